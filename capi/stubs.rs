//! Exports under GNU symbol versions, each a stub of a few instructions.
//!
//! `capi/ibverbs/src/symver.rs` tells why such tables are assembly and stand in the cdylib's own
//! crate: each of the libraries that jump into libibverbs.so.1 has this file as a module.

/// Exports functions that jump to the function `ironverbs_NAME` of libibverbs.so.1, or, where that
/// library lacks it, to `$missing`.
macro_rules! forward {
    ($version:literal, $missing:ident: $($name:ident,)*) => {$(
        std::arch::global_asm!(
            concat!(".weak ironverbs_", stringify!($name)),
            concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl \"", stringify!($name), ".ours\""),
            concat!(".type \"", stringify!($name), ".ours\",@function"),
            concat!("\"", stringify!($name), ".ours\":"),
            ".cfi_startproc",
            $crate::stubs::jump!($name),
            ".cfi_endproc",
            concat!(
                ".size \"", stringify!($name), ".ours\", . - \"", stringify!($name), ".ours\""
            ),
            concat!(
                ".symver \"", stringify!($name), ".ours\", ",
                stringify!($name), "@@", $version, ", remove"
            ),
            ".popsection",
            missing = sym $crate::foreign::$missing,
        );
    )*};
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($name:ident) => {
        concat!(
            "mov r11, qword ptr [rip + ironverbs_",
            stringify!($name),
            "@GOTPCREL]\n",
            "test r11, r11\n",
            "je {missing}\n",
            "jmp r11"
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($name:ident) => {
        concat!(
            "adrp x16, :got:ironverbs_",
            stringify!($name),
            "\n",
            "ldr x16, [x16, :got_lo12:ironverbs_",
            stringify!($name),
            "]\n",
            "cbz x16, 1f\n",
            "br x16\n",
            "1: b {missing}"
        )
    };
}

pub(crate) use {forward, jump};
