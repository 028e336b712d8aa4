//! Exports Rust functions under GNU symbol versions.
//!
//! Rust has no attribute for them, and the obvious ways fail, two of them silently: rustc's own
//! version script refuses `export_name = "f@@V"`; `no_mangle` functions named in a second script
//! come out without a version; `.symver` on a mangled name exports nothing, since the directive
//! must stand in the object file that defines the symbol. So every export is a one-jump stub,
//! defined and versioned in one `global_asm!` block. `, remove` drops the stub's own name, so that
//! nothing else becomes visible. The tables must stand in this crate: nobody refers to the object
//! file of a table in a dependency, and the linker would leave it out.

/// Exports functions under one version node.
///
/// `current` is the version that new programs link to (`@@`), `old` one kept for programs that were
/// linked to it (`@`).
macro_rules! export_functions {
    ($version:literal, $at:ident: $($name:ident => $imp:path,)*) => {$(
        std::arch::global_asm!(
            concat!(".pushsection .text.", stringify!($name), ".", $version, ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl \"", stringify!($name), ".", $version, "\""),
            concat!(".type \"", stringify!($name), ".", $version, "\",@function"),
            concat!("\"", stringify!($name), ".", $version, "\":"),
            ".cfi_startproc",
            $crate::symver::jump!(),
            ".cfi_endproc",
            concat!(
                ".size \"", stringify!($name), ".", $version, "\", ",
                ". - \"", stringify!($name), ".", $version, "\""
            ),
            concat!(
                ".symver \"", stringify!($name), ".", $version, "\", ",
                stringify!($name), $crate::symver::at!($at), $version, ", remove"
            ),
            ".popsection",
            imp = sym $imp,
        );
    )*};
}

/// Exports a zeroed object of `$size` bytes.
macro_rules! export_object {
    ($version:literal, $at:ident: $name:ident: $size:literal) => {
        std::arch::global_asm!(
            concat!(".pushsection .bss.", stringify!($name), ",\"aw\",@nobits"),
            ".p2align 4",
            concat!(".globl \"", stringify!($name), ".", $version, "\""),
            concat!(".type \"", stringify!($name), ".", $version, "\",@object"),
            concat!("\"", stringify!($name), ".", $version, "\": .zero ", stringify!($size)),
            concat!(".size \"", stringify!($name), ".", $version, "\", ", stringify!($size)),
            concat!(
                ".symver \"",
                stringify!($name),
                ".",
                $version,
                "\", ",
                stringify!($name),
                $crate::symver::at!($at),
                $version,
                ", remove"
            ),
            ".popsection",
        );
    };
}

macro_rules! at {
    (current) => {
        "@@"
    };
    (old) => {
        "@"
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {imp}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {imp}"
    };
}

pub(crate) use {at, export_functions, export_object, jump};
