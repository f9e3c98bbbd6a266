//! A run as a folder of files; [`crate::run`] says what stands in them.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::run::{Reading, Run};

const PLAN: &str = "plan.json";
const JOURNAL: &str = "journal.jsonl";
const READING: &str = "reading.jsonl";
const HISTORY: &str = "history.jsonl";

/// A run could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file is not there, or the disk is full.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not what it should be.
    #[error("{path}, line {line}: {source}")]
    Form {
        /// The file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// Reads the four files of a folder.
///
/// # Errors
/// When one is missing or a line cannot be understood.
pub fn read(folder: &Path) -> Result<Run, FileError> {
    let path = folder.join(PLAN);
    let text = std::fs::read(&path).map_err(|source| FileError::Io {
        path: path.clone(),
        source,
    })?;
    let plan = serde_json::from_slice(&text).map_err(|source| FileError::Form {
        path,
        line: source.line(),
        source,
    })?;
    let mut run = Run {
        plan,
        journal: lines(&folder.join(JOURNAL))?,
        history: lines(&folder.join(HISTORY))?,
        ..Run::default()
    };
    for reading in lines(&folder.join(READING))? {
        match reading {
            Reading::Row(row) => run.rows.push(row),
            Reading::Look(look) => run.looks.push(look),
        }
    }
    Ok(run)
}

/// Writes the four files of a folder, so that a run can be judged again.
///
/// # Errors
/// When the disk says no.
pub fn write(folder: &Path, run: &Run) -> Result<(), FileError> {
    let rows = run.rows.iter().cloned().map(Reading::Row);
    let looks = run.looks.iter().cloned().map(Reading::Look);
    write_lines(&folder.join(PLAN), std::iter::once(&run.plan))?;
    write_lines(&folder.join(JOURNAL), &run.journal)?;
    write_lines(&folder.join(READING), rows.chain(looks))?;
    write_lines(&folder.join(HISTORY), &run.history)
}

fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, FileError> {
    let io = |source| FileError::Io {
        path: path.to_owned(),
        source,
    };
    let file = BufReader::new(File::open(path).map_err(io)?);
    let mut found = Vec::new();
    for (number, line) in file.lines().enumerate() {
        let line = line.map_err(io)?;
        if line.trim().is_empty() {
            continue;
        }
        let document = serde_json::from_str(&line).map_err(|source| FileError::Form {
            path: path.to_owned(),
            line: number + 1,
            source,
        })?;
        found.push(document);
    }
    Ok(found)
}

fn write_lines<T: Serialize>(
    path: &Path,
    documents: impl IntoIterator<Item = T>,
) -> Result<(), FileError> {
    let io = |source| FileError::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = BufWriter::new(File::create(path).map_err(io)?);
    for document in documents {
        serde_json::to_writer(&mut file, &document).map_err(|source| io(source.into()))?;
        file.write_all(b"\n").map_err(io)?;
    }
    file.flush().map_err(io)
}
