//! Exports of functions that are not there yet, as `stubs` makes those that are.

/// Exports functions that are not there yet.
macro_rules! refuse {
    ($version:literal: $($name:ident,)*) => {$(
        std::arch::global_asm!(
            concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl \"", stringify!($name), ".ours\""),
            concat!(".type \"", stringify!($name), ".ours\",@function"),
            concat!("\"", stringify!($name), ".ours\":"),
            ".cfi_startproc",
            $crate::refusals::always!(),
            ".cfi_endproc",
            concat!(
                ".size \"", stringify!($name), ".ours\", . - \"", stringify!($name), ".ours\""
            ),
            concat!(
                ".symver \"", stringify!($name), ".ours\", ",
                stringify!($name), "@@", $version, ", remove"
            ),
            ".popsection",
            refused = sym $crate::foreign::refused,
        );
    )*};
}

#[cfg(target_arch = "x86_64")]
macro_rules! always {
    () => {
        "jmp {refused}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! always {
    () => {
        "b {refused}"
    };
}

pub(crate) use {always, refuse};
