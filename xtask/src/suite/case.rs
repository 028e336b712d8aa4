//! One test: its time, its logs, its result.

use crate::process::{Outcome, Program, Running};
use crate::tree;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a running test can do.
pub(crate) struct Case {
    /// Path of its logs without their endings.
    stem: PathBuf,
    logs: Vec<PathBuf>,
    deadline: Instant,
    note: String,
}

/// How a test ended.
pub(crate) struct Verdict {
    pub(crate) name: String,
    pub(crate) time: Duration,
    /// Why it failed.
    pub(crate) failure: Option<String>,
}

/// Where the logs of all tests are.
pub(crate) fn logs() -> PathBuf {
    tree::target().join("test-logs")
}

impl Case {
    /// When the watchdog strikes.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Starts a program, its output in a log of its own.
    pub(crate) fn start(&mut self, program: &Program) -> Outcome<Running> {
        let log = self.stem.with_file_name(format!(
            "{}.{}.log",
            self.stem.file_name().unwrap_or_default().to_string_lossy(),
            self.logs.len()
        ));
        self.logs.push(log.clone());
        program.start(&log)
    }

    /// Runs a program to its success and gives its output.
    pub(crate) fn run(&mut self, program: &Program) -> Outcome<String> {
        let finished = self.start(program)?.wait(self.deadline)?.success()?;
        Ok(finished.output)
    }

    /// A file of this test's own beside its logs.
    pub(crate) fn file(&self, ending: &str) -> PathBuf {
        let name = self.stem.file_name().unwrap_or_default().to_string_lossy();
        self.stem.with_file_name(format!("{name}.{ending}"))
    }

    /// A few words beside its name.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.note = note.into();
    }
}

/// Runs one test.
pub(crate) fn run(
    step: &str,
    name: &str,
    limit: Duration,
    body: impl FnOnce(&mut Case) -> Outcome,
) -> Verdict {
    let started = Instant::now();
    let directory = logs().join(step);
    let stem = directory.join(name.replace('/', "-"));
    let mut case = Case { stem, logs: Vec::new(), deadline: started + limit, note: String::new() };
    let outcome = fs::create_dir_all(&directory).map_err(Into::into).and_then(|()| body(&mut case));
    let failure = outcome.err().map(|failure| failure.to_string());
    let name = format!("{step}/{name}");
    let time = started.elapsed();
    match &failure {
        None => println!("  ok      {name} ({:.1} s) {}", time.as_secs_f64(), case.note),
        Some(failure) => {
            println!("  FAILED  {name} ({:.1} s): {failure}", time.as_secs_f64());
            case.logs.iter().for_each(tail);
        }
    }
    Verdict { name, time, failure }
}

/// Shows the end of a log.
fn tail(log: &PathBuf) {
    const LINES: usize = 15;
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    println!("    --- {}", log.display());
    for line in lines.iter().skip(lines.len().saturating_sub(LINES)) {
        println!("    | {line}");
    }
}
