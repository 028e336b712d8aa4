//! Formatting, lints, cargo's own tests, the stage and the demo.

use super::case::Case;
use super::{Cases, seconds};
use crate::pair::User;
use crate::process::{During, Outcome, Program};
use crate::{check, demo, tools, tree};
use std::fs;

pub(super) fn format(cases: &mut Cases<'_>) -> Outcome {
    cases.case("fmt", seconds(120), |case| case.run(&check::format()).map(drop));
    cases.case("fmt-fuzz", seconds(120), |case| case.run(&check::format_fuzz()).map(drop));
    Ok(())
}

pub(super) fn lints(cases: &mut Cases<'_>) -> Outcome {
    cases.case("clippy", seconds(1800), |case| case.run(&check::lints()).map(drop));
    Ok(())
}

pub(super) fn unit(cases: &mut Cases<'_>) -> Outcome {
    cases.case("workspace", seconds(2400), |case| {
        cargo_test(case, Program::new("cargo").args(["test", "--workspace", "--no-fail-fast"]))
    });
    Ok(())
}

/// Runs cargo's tests; that none ran is a failure.
pub(super) fn cargo_test(case: &mut Case, program: Program) -> Outcome {
    let output = case.run(&program)?;
    // test result: ok. 12 passed; 0 failed; …
    let counts = output.lines().filter_map(|line| {
        let count = line.strip_prefix("test result: ok. ")?.split(' ').next()?;
        count.parse::<u32>().ok()
    });
    let total: u32 = counts.sum();
    case.note(format!("{total} tests of cargo's"));
    if total > 0 { Ok(()) } else { Err("cargo ran no test".into()) }
}

pub(super) fn stage(cases: &mut Cases<'_>) -> Outcome {
    cases.case("layout", seconds(30), |case| {
        for name in [
            "lib/libibverbs.so.1",
            "lib/libibverbs.so",
            "lib/libironverbs_paths.so",
            "bin/ironverbs",
        ] {
            if !tree::stage().join(name).is_file() {
                return Err(format!("the stage lacks {name}").into());
            }
        }
        case.run(&User::own().command().arg("--version")).map(drop)
    });
    cases.case("manual", seconds(60), |case| {
        tools::need(&[tools::MAN])?;
        let mut pages = 0;
        for section in ["man1", "man3"] {
            let directory = tree::stage().join("share/man").join(section);
            for page in fs::read_dir(&directory).during(directory.display())? {
                let page = page?.path();
                let man =
                    Program::new("man").args(["--warnings", "--encoding=UTF-8", "--local-file"]);
                let text = case.run(&man.arg(page.display()).env("MANWIDTH", "100"))?;
                // What it complains of goes to the same place.
                let name = page.file_stem().unwrap_or_default().display().to_string();
                if !text.contains(&name) || text.contains("warning:") || text.contains("error:") {
                    return Err(format!("{} is not a clean page", page.display()).into());
                }
                pages += 1;
            }
        }
        case.note(format!("{pages} pages"));
        if pages >= 15 { Ok(()) } else { Err("pages are missing".into()) }
    });
    cases.case("pkg-config", seconds(60), |case| {
        tools::need(&[tools::PKGCONF, tools::CC, tools::VERBS_HEADERS, tools::CM_HEADERS])?;
        let path = tree::stage().join("lib/pkgconfig").display().to_string();
        let config = |case: &mut Case, words: &[&str]| {
            case.run(&Program::new("pkg-config").args(words).env("PKG_CONFIG_PATH", &path))
        };
        let all = ["libibverbs", "librdmacm", "libibumad", "libibmad"];
        for (name, least) in all.iter().zip(["1.14", "1.3", "3.2", "5.3"]) {
            config(case, &["--atleast-version", least, name])?;
        }
        let flags = config(case, &["--cflags", "--libs", "librdmacm", "libibverbs"])?;
        let program = std::env::temp_dir().join(format!("ironverbs-pc-{}", std::process::id()));
        let built = case.run(
            &Program::new("gcc")
                .args(["-x", "c", "-Wall", "-Werror", "-o"])
                .arg(program.display())
                .arg(tree::root().join("tests/linked.c").display())
                .args(["-x", "none"])
                .args(flags.split_whitespace()),
        );
        let ran = built.and_then(|_| {
            let library = tree::stage().join("lib").display().to_string();
            case.run(&Program::new(program.display().to_string()).env("LD_LIBRARY_PATH", library))
        });
        let _ = fs::remove_file(&program);
        ran.map(drop)
    });
    Ok(())
}

pub(super) fn demo(cases: &mut Cases<'_>) -> Outcome {
    cases.case("demo", seconds(300), |case| {
        let xtask = std::env::current_exe()?.display().to_string();
        let output = case.run(&Program::new(xtask).arg("demo"))?;
        for operation in demo::OPERATIONS {
            let verified = |line: &str| line.contains(operation) && line.contains("verified");
            if !output.lines().any(verified) {
                return Err(format!("the demo shows no verified {operation}").into());
            }
        }
        Ok(())
    });
    Ok(())
}
