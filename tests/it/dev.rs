//! `handover dev`, as somebody runs it who has never seen it: read what it prints, paste the calls, end it by Ctrl-C.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// The last line of the guide.
const END_OF_GUIDE: &str = "Ctrl-C ends it.";
const GUIDE_WITHIN: Duration = Duration::from_secs(90);
const END_WITHIN: Duration = Duration::from_secs(60);

struct Demo {
    process: Child,
    lines: Receiver<String>,
    folders: tempfile::TempDir,
}

impl Demo {
    /// Starts it with its folders below one of ours, so that what it leaves can be seen.
    fn start(arguments: &[&str]) -> Self {
        let folders = tempfile::tempdir().unwrap();
        // The database's user has to get through.
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folders.path(), everybody).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_handover"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HANDOVER_")) {
            command.env_remove(name);
        }
        let mut process = command
            .args(["dev", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("TMPDIR", folders.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = sync_channel(1_000);
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            process,
            lines,
            folders,
        }
    }

    /// What it prints until the guide is complete.
    fn guide(&self) -> Vec<String> {
        let deadline = Instant::now() + GUIDE_WITHIN;
        let mut guide = Vec::new();
        while guide.last().is_none_or(|line| line != END_OF_GUIDE) {
            let wait = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(wait) {
                Ok(line) => guide.push(line),
                Err(reason) => panic!("no guide ({reason}), only {guide:#?}"),
            }
        }
        guide
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.process.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    fn await_end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + END_WITHIN;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::yield_now();
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    fn left_behind(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.folders.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Only when the test failed half-way; its database goes with it.
        if matches!(self.process.try_wait(), Ok(None)) {
            let _killed = self.process.kill();
            let _waited = self.process.wait();
        }
    }
}

/// Runs a printed line in a shell, as it stands.
fn paste(line: &str) -> String {
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c", line])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{line}\n{text}");
    assert!(!text.contains("/problems/"), "{line}\n{text}");
    text
}

fn processes_in(folder: &Path) -> String {
    let list = Command::new("ps").args(["-eo", "args"]).output().unwrap();
    let folder = folder.display().to_string();
    String::from_utf8_lossy(&list.stdout)
        .lines()
        .filter(|line| line.contains(&folder))
        .collect()
}

#[test]
fn each_printed_call_works_as_printed_and_nothing_is_left() {
    let mut demo = Demo::start(&["--rate", "100", "--partitions", "3", "--seed", "1"]);
    let guide = demo.guide();
    let calls: Vec<&String> = guide
        .iter()
        .filter(|line| line.starts_with("curl "))
        .collect();
    assert_eq!(calls.len(), 6, "{guide:#?}");
    let answers: Vec<String> = calls.iter().map(|call| paste(call)).collect();
    for job in ["orders-to-postgres", "orders-blackhole"] {
        assert!(answers[0].contains(job), "{}", answers[0]);
    }
    assert!(answers[1].contains("succeeded"), "{}", answers[1]);
    assert!(answers[2].contains("\"partition\""), "{}", answers[2]);
    assert!(answers[3].contains("succeeded"), "{}", answers[3]);
    assert!(answers[4].contains("succeeded"), "{}", answers[4]);
    assert!(answers[5].contains("partition"), "{}", answers[5]);
    let rows = guide.iter().find(|line| line.starts_with("psql "));
    assert!(paste(rows.expect("a line for psql")).contains("order-created"));

    assert!(
        !processes_in(demo.folders.path()).is_empty(),
        "the database runs in our folder"
    );
    demo.signal("-INT");
    assert_eq!(demo.await_end().code(), Some(0));
    assert_eq!(demo.left_behind(), Vec::<PathBuf>::new());
    assert_eq!(processes_in(demo.folders.path()), "");
}

#[test]
fn a_second_signal_ends_it_at_once_and_leaves_nothing_either() {
    let mut demo = Demo::start(&[]);
    demo.guide();
    demo.signal("-TERM");
    demo.signal("-TERM");
    let code = demo.await_end().code();
    // The first one may have been enough.
    assert!(matches!(code, Some(143 | 0)), "{code:?}");
    assert_eq!(demo.left_behind(), Vec::<PathBuf>::new());
    assert_eq!(processes_in(demo.folders.path()), "");
}
