//! A page of `docs/runbooks/`: its sections, their `sh` blocks, and what the page says that these print.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    time::{Duration, Instant},
};

/// The longest that the lines of one block may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Printed after each block.
const MARK: &str = "=== end of block ===";

pub(super) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks")
}

pub(super) fn read(file: &str) -> String {
    let path = folder().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Lines to run, and lines that their output must hold.
#[derive(Debug, Default, PartialEq, Eq)]
struct Block {
    section: String,
    lines: String,
    expected: Vec<String>,
}

/// The `sh` blocks of a text in order; a `text` or `json` block belongs to the `sh` block before it.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut section, mut fence) = (String::new(), None);
    for line in text.lines() {
        match (fence, line) {
            (None, line) if line.starts_with("## ") => line[3..].clone_into(&mut section),
            (None, "```sh") => {
                fence = Some("sh");
                blocks.push(Block {
                    section: section.clone(),
                    ..Block::default()
                });
            }
            (None, "```text" | "```json") => fence = Some("output"),
            (None, line) => assert!(!line.starts_with("```"), "a block of another kind: {line}"),
            (Some(_), "```") => fence = None,
            (Some(kind), line) => {
                let block = blocks.last_mut().expect("output follows lines");
                if kind == "sh" {
                    block.lines.push_str(line);
                    block.lines.push('\n');
                } else {
                    block.expected.push(line.to_owned());
                }
            }
        }
    }
    assert_eq!(fence, None, "a block without an end");
    blocks
}

/// Whether a line is as the page says; `...` stands for any characters.
fn is_as_said(said: &str, line: &str) -> bool {
    let Some((before, mut rest)) = said.split_once("...") else {
        return said == line;
    };
    let Some(mut line) = line.strip_prefix(before) else {
        return false;
    };
    while let Some((part, more)) = rest.split_once("...") {
        let Some((_, behind)) = line.split_once(part) else {
            return false;
        };
        (line, rest) = (behind, more);
    }
    line.ends_with(rest)
}

/// The first line of the page that the output does not hold, in order.
fn missing<'a>(expected: &'a [String], output: &[String]) -> Option<&'a str> {
    let mut lines = output.iter();
    expected
        .iter()
        .map(|said| said.trim())
        .filter(|said| !said.is_empty())
        .find(|said| !lines.any(|line| is_as_said(said, line.trim())))
}

/// A page in the hands of somebody with one shell.
pub(super) struct Page {
    file: &'static str,
    job: String,
    blocks: std::vec::IntoIter<Block>,
    shell: Child,
    input: ChildStdin,
    output: Receiver<String>,
}

impl Page {
    /// Opens the page beside a shell that has `H` and `JOB`. Pages call their job and topic `orders`.
    pub(super) fn open(file: &'static str, base: &str, job: &str) -> Self {
        let mut shell = Command::new("bash")
            .args(["-euo", "pipefail"])
            .env("H", format!("{base}/api/v1"))
            .env("JOB", job)
            // A proxy of whoever runs the tests must not get between.
            .env("no_proxy", "*")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash runs");
        let mut input = shell.stdin.take().expect("a pipe");
        writeln!(input, "exec 2>&1").expect("the shell reads");
        let lines = BufReader::new(shell.stdout.take().expect("a pipe")).lines();
        let (sender, output) = sync_channel(1_000);
        // Ends with the shell.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            file,
            job: job.to_owned(),
            blocks: blocks(&read(file)).into_iter(),
            shell,
            input,
            output,
        }
    }

    /// Runs the lines of a section, which must be the next one that has any; answers what they printed.
    ///
    /// # Panics
    /// When a line fails, or prints something else than the page says.
    pub(super) fn run(&mut self, section: &str) -> Vec<String> {
        let next = |page: &Self| {
            page.blocks
                .as_slice()
                .first()
                .map(|block| block.section.clone())
        };
        assert_eq!(next(self).as_deref(), Some(section), "{}", self.file);
        if section == "Go back" {
            self.goes_back_only_when_told();
        }
        let mut printed = Vec::new();
        while next(self).as_deref() == Some(section) {
            let block = self.blocks.next().expect("there is one");
            let output = self.run_block(&block.lines);
            if let Some(said) = missing(&block.expected, &output) {
                panic!(
                    "{}, {section}: the page says {said:?}\n{}--- printed\n{}",
                    self.file,
                    block.lines,
                    output.join("\n")
                );
            }
            // For whoever wants to see what the page looks like in use: --nocapture.
            println!("$ {}{}", block.lines, output.join("\n"));
            printed.extend(output);
        }
        printed
    }

    /// The lines that undo the work stop for whoever has pasted them with the rest; then it is said that they are meant.
    fn goes_back_only_when_told(&mut self) {
        let blocks = self.blocks.as_slice().iter();
        let undoing: Vec<String> = blocks
            .take_while(|block| block.section == "Go back")
            .map(|block| block.lines.clone())
            .collect();
        for lines in undoing {
            self.stops(&lines, "GO_BACK");
        }
        self.say("export GO_BACK=yes");
    }

    /// Runs lines that must not do anything as long as this is not set.
    fn stops(&mut self, lines: &str, unset: &str) {
        let output = self.run_block(&format!(
            "if (\n{lines}\n); then echo RAN; else echo STOPPED; fi"
        ));
        let [why, end] = output.as_slice() else {
            panic!("{}: more than a word was said: {output:?}", self.file);
        };
        assert!(why.contains(unset) && end == "STOPPED", "{output:?}");
    }

    /// The next block stops as long as this is not set; then it is.
    pub(super) fn next_needs(&mut self, unset: &str, value: &str) {
        let block = self.blocks.as_slice().first();
        let lines = block.expect("a block").lines.clone();
        self.stops(&lines, unset);
        self.say(&format!("export {unset}={value}"));
    }

    /// The next block stops here, because this is not set, and is passed over.
    pub(super) fn next_stops(&mut self, unset: &str) {
        let lines = self.blocks.next().expect("a block").lines;
        self.stops(&lines, unset);
    }

    /// What somebody types besides the lines of the page.
    pub(super) fn say(&mut self, line: &str) {
        let output = self.run_block(line);
        assert!(output.is_empty(), "{output:?}");
    }

    /// Passes over the lines of a section, which must be the next one that has any.
    pub(super) fn pass(&mut self, section: &str) {
        let rest: Vec<Block> = self.blocks.by_ref().collect();
        let passed = rest.iter().take_while(|block| block.section == section);
        let passed = passed.count();
        assert!(passed > 0, "{}: {section} is not next", self.file);
        self.blocks = rest
            .into_iter()
            .skip(passed)
            .collect::<Vec<_>>()
            .into_iter();
    }

    /// Runs one block of a section.
    pub(super) fn run_one(&mut self, section: &str) -> Vec<String> {
        let rest: Vec<Block> = self.blocks.by_ref().collect();
        let mut rest = rest.into_iter();
        let one = rest.next().expect("a block");
        self.blocks = vec![one].into_iter();
        let printed = self.run(section);
        self.blocks = rest.collect::<Vec<_>>().into_iter();
        printed
    }

    fn run_block(&mut self, lines: &str) -> Vec<String> {
        // A shell that has ended shows below, with what it printed.
        let _written = writeln!(self.input, "{lines}\necho '{MARK}'");
        let deadline = Instant::now() + PATIENCE;
        let mut output: Vec<String> = Vec::new();
        let why = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(line) if line == MARK => return output,
                Ok(line) => output.push(line.replace(&self.job, "orders")),
                Err(RecvTimeoutError::Timeout) => break format!("not within {PATIENCE:?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    break format!("{:?}", self.shell.wait().map(|status| status.code()));
                }
            }
        };
        panic!(
            "{}: {why}\n{lines}--- printed\n{}",
            self.file,
            output.join("\n")
        );
    }

    /// Goes on in a situation of the same kind with other numbers: the lines must succeed, whatever they print.
    pub(super) fn with_other_numbers(mut self) -> Self {
        self.blocks
            .as_mut_slice()
            .iter_mut()
            .for_each(|block| block.expected.clear());
        self
    }

    /// Ends the reading: every line of the page was run.
    pub(super) fn end(mut self) {
        let left = self.blocks.next();
        assert_eq!(left, None, "{}: lines that nobody ran", self.file);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _killed = self.shell.kill();
        let _ended = self.shell.wait();
    }
}

#[test]
fn blocks_belong_to_sections_and_output_to_lines() {
    let text =
        "# T\n## Look\n```sh\na\nb\n```\nwords\n```text\n  x ... z\n```\n## Act\n```sh\nc\n```\n";
    let found = blocks(text);
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].section.as_str(), found[0].lines.as_str()),
        ("Look", "a\nb\n")
    );
    assert_eq!(
        (found[1].section.as_str(), found[1].lines.as_str()),
        ("Act", "c\n")
    );
    let printed = |lines: &[&str]| {
        lines
            .iter()
            .map(|line| (*line).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        missing(&found[0].expected, &printed(&["w", " x 1 z"])),
        None
    );
    assert_eq!(
        missing(&found[0].expected, &printed(&["x 1 y"])),
        Some("x ... z")
    );
    let two = printed(&["a...", "b...c...d"]);
    assert_eq!(missing(&two, &printed(&["a1", "b2c3d"])), None);
    assert_eq!(missing(&two, &printed(&["b2c3d", "a1"])), Some("b...c...d"));
}

#[test]
#[should_panic(expected = "docs-of-a-test.md")]
fn a_line_that_fails_fails_the_page() {
    let mut page = Page::open("README.md", "http://127.0.0.1:1", "orders");
    page.file = "docs-of-a-test.md";
    page.run_block("echo 1 | jq -e '. == 2'\n");
}
