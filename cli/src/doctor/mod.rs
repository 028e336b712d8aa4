//! `ironverbs doctor`: what stands in the way of programs, and what to do about it.

mod adapters;
mod checks;
mod compare;

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use self::checks::Facts;

/// Checks devices, the UDP port, rights and limits, and says what to do. Exit status: 0 if nothing is wrong, 1 with warnings, 2
/// with problems, 3 if it could not look
#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print findings and facts as JSON
    #[arg(long)]
    json: bool,
    /// Compare with another host: a file with what `ironverbs doctor --json` printed there
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

/// How bad a finding is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Good,
    /// As it is, things work; it is good to know.
    Note,
    /// Some programs, or some peers, will not work, or work slowly.
    Warning,
    /// Nothing will work until it is changed.
    Problem,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Good => "good",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

/// What a check found.
struct Finding {
    check: &'static str,
    level: Level,
    what: String,
    /// What to do; empty where there is nothing to.
    advice: String,
}

/// The findings so far.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        check: &'static str,
        level: Level,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.0.push(Finding { check, level, what: what.into(), advice: advice.into() });
    }

    fn good(&mut self, check: &'static str, what: impl Into<String>) {
        self.add(check, Level::Good, what, "");
    }

    fn worst(&self) -> Level {
        self.0.iter().map(|finding| finding.level).max().unwrap_or(Level::Good)
    }

    fn json(&self) -> Value {
        let one = |finding: &Finding| {
            json!({
                "check": finding.check,
                "level": finding.level.name(),
                "what": finding.what,
                "advice": finding.advice,
            })
        };
        self.0.iter().map(one).collect()
    }
}

pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    match look(args) {
        Ok(Level::Good | Level::Note) => ExitCode::SUCCESS,
        Ok(Level::Warning) => ExitCode::from(1),
        Ok(Level::Problem) => ExitCode::from(2),
        Err(why) => {
            crate::complain(why);
            ExitCode::from(3)
        }
    }
}

fn look(args: &DoctorArgs) -> Result<Level, String> {
    let mut findings = Findings::default();
    let facts = Facts::gather(&mut findings)?;
    if let Some(path) = &args.compare {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let other =
            serde_json::from_str::<Value>(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        compare::hosts(&facts.json(), &other["facts"], &mut findings).ok_or_else(|| {
            format!("{}: not what ironverbs doctor --json prints", path.display())
        })?;
    }
    if args.json {
        let report = json!({
            "program": "ironverbs",
            "version": env!("CARGO_PKG_VERSION"),
            "worst": findings.worst().name(),
            "findings": findings.json(),
            "facts": facts.json(),
        });
        say!("{}", serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?);
    } else {
        for finding in &findings.0 {
            say!("{:<8} {:<14} {}", finding.level.name(), finding.check, finding.what);
            if !finding.advice.is_empty() {
                say!("{:<8} {:<14}   {}", "", "", finding.advice);
            }
        }
    }
    Ok(findings.worst())
}
