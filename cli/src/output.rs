//! Lines on stdout. A reader that has gone away ends the command as it would end any other; a
//! disk that is full must not pass for success.

use std::fmt::Arguments;
use std::io::{self, Write};

/// What a shell reports for a process that SIGPIPE ended; Rust programs ignore the signal.
const BROKEN_PIPE: i32 = 128 + 13;

pub(crate) fn line(text: Arguments<'_>) {
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(BROKEN_PIPE),
        Err(e) => {
            crate::complain(format_args!("cannot write the output: {e}"));
            std::process::exit(1);
        }
    }
}

/// As `println!`.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
