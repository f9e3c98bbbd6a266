//! `oracle FOLDER`: judges the run whose files are in the folder.
//!
//! Exit codes: 0 nothing is wrong, 1 something is, 2 the files cannot be read.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

const USAGE: &str = "usage: oracle FOLDER

Judges a run by plan.json, journal.jsonl, reading.jsonl and history.jsonl of the folder.
Exit codes: 0 nothing is wrong, 1 something is, 2 the files cannot be read.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (code, text) = match arguments.as_slice() {
        [help] if help == "--help" || help == "-h" => (0, USAGE.to_owned()),
        [folder] => match oracle::read(Path::new(folder)) {
            Ok(run) => {
                let verdict = oracle::judge(&run);
                (u8::from(!verdict.passed()), verdict.to_string())
            }
            Err(error) => (2, error.to_string()),
        },
        _ => (2, USAGE.to_owned()),
    };
    let said = if code == 2 {
        writeln!(io::stderr(), "{text}")
    } else {
        writeln!(io::stdout(), "{text}")
    };
    // Whoever closed the pipe still gets the code.
    drop(said);
    ExitCode::from(code)
}
