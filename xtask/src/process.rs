//! Programs under a watchdog, their output kept in a file each.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Why a task failed, for a reader.
#[derive(Debug)]
pub(crate) struct Failure(String);

/// What a task comes to.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// One that the reader has been told already.
    pub(crate) const TOLD: Failure = Failure(String::new());

    pub(crate) fn is_told(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure(text)
    }
}

impl From<&str> for Failure {
    fn from(text: &str) -> Failure {
        Failure(text.to_owned())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure(error.to_string())
    }
}

/// Says `what` was being done when an error struck.
pub(crate) trait During<T> {
    fn during(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}

/// A command line to be.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    words: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Program {
    pub(crate) fn new(name: impl Into<String>) -> Program {
        Program { words: vec![name.into()], variables: Vec::new() }
    }

    pub(crate) fn arg(mut self, argument: impl ToString) -> Program {
        self.words.push(argument.to_string());
        self
    }

    pub(crate) fn args<S: ToString>(mut self, arguments: impl IntoIterator<Item = S>) -> Program {
        self.words.extend(arguments.into_iter().map(|argument| argument.to_string()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Program {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// The same command run by another: `under(["setpriv", "--reuid=1"])`.
    pub(crate) fn under<S: ToString>(mut self, wrapper: impl IntoIterator<Item = S>) -> Program {
        let mut words: Vec<String> = wrapper.into_iter().map(|word| word.to_string()).collect();
        words.append(&mut self.words);
        self.words = words;
        self
    }

    /// Its command line, for one that runs it.
    pub(crate) fn into_words(self) -> Vec<String> {
        self.words
    }

    fn command(&self) -> Command {
        // A process group of its own, so that a watchdog ends all of it, and the kernel's promise
        // that it ends with this process however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(&self.words);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(crate::tree::root()).process_group(0).stdin(Stdio::null());
        command
    }

    /// Starts it, both output streams appended to `log`.
    pub(crate) fn start(&self, log: &Path) -> Outcome<Running> {
        let mut file = File::options().create(true).append(true).open(log).during(log.display())?;
        writeln!(file, "$ {self}")?;
        let from = file.metadata()?.len() as usize;
        let mut command = self.command();
        // No colours in a file.
        command.env("TERM", "dumb").env("CARGO_TERM_COLOR", "never");
        let child = command
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .during(format!("cannot start {self}"))?;
        Ok(Running { child, log: log.to_owned(), from, line: self.to_string(), ended: false })
    }

    /// Runs it to its end with this process's own output streams.
    pub(crate) fn show(&self) -> Outcome {
        let status = self.command().status().during(format!("cannot start {self}"))?;
        if status.success() { Ok(()) } else { Err(format!("{self}: {}", describe(status)).into()) }
    }

    /// Runs it to its end and gives its standard output; for short helpers such as `ip`.
    pub(crate) fn read(&self) -> Outcome<String> {
        let output = self.command().output().during(format!("cannot start {self}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{self}: {}: {}", describe(output.status), said.trim()).into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.variables {
            write!(f, "{name}={value:?} ")?;
        }
        f.write_str(&self.words.join(" "))
    }
}

/// A program that was started. Dropping it kills its whole process group.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
    from: usize,
    line: String,
    ended: bool,
}

/// A program that ended.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// Everything it wrote, both streams.
    pub(crate) output: String,
    line: String,
}

impl Running {
    /// Its process ID; programs that only `exec` another keep it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written so far.
    pub(crate) fn output(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.from..).unwrap_or_default()).into_owned()
    }

    /// Waits for its end; past `deadline` it is killed and that is the failure.
    pub(crate) fn wait(mut self, deadline: Instant) -> Outcome<Finished> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.ended = true;
                return Ok(Finished { status, output: self.output(), line: self.line.clone() });
            }
            if Instant::now() >= deadline {
                return Err(format!("still running at the watchdog's limit: {}", self.line).into());
            }
            pause();
        }
    }

    /// Waits until `ready` holds, the program ends (a failure) or the deadline passes (a failure).
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        deadline: Instant,
        mut ready: impl FnMut(&Running) -> bool,
    ) -> Outcome {
        loop {
            if ready(self) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                self.ended = true;
                let line = &self.line;
                return Err(format!("ended ({}) before {what}: {line}", describe(status)).into());
            }
            if Instant::now() >= deadline {
                return Err(format!("waited in vain for {what}: {}", self.line).into());
            }
            pause();
        }
    }

    /// Sends `signal` to the process alone, not to its group.
    pub(crate) fn signal(&self, signal: &str) -> Outcome {
        Program::new("kill").args(["-s", signal, "--", &self.pid().to_string()]).read().map(drop)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let group = format!("-{}", self.child.id());
            let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
            let _ = self.child.wait();
        }
    }
}

impl Finished {
    /// The same, or a failure unless it exited with 0.
    pub(crate) fn success(self) -> Outcome<Finished> {
        if self.status.success() {
            Ok(self)
        } else {
            Err(format!("{}: {}", describe(self.status), self.line).into())
        }
    }

    /// The same, or a failure unless its output contains `text`.
    pub(crate) fn says(self, text: &str) -> Outcome<Finished> {
        if self.output.contains(text) {
            Ok(self)
        } else {
            Err(format!("did not say {text:?}: {}", self.line).into())
        }
    }
}

/// Between two looks at something that cannot be waited for.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
