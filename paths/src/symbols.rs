//! The functions that stand before libc's.
//!
//! `open` and `openat` are variadic in C; a third or fourth argument that the caller did not pass
//! is then whatever its register holds, and goes on as that, as in the System V calling
//! conventions of x86-64 and AArch64 it may.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use crate::real::{self, Compare, Filter};
use crate::view::{strip, with_path};

/// Defines `$name` so that it calls what follows it with its path argument sent through the view.
macro_rules! redirect {
    ($($name:ident => $real:ident($($before:ident: $b:ty,)* [path] $(, $after:ident: $a:ty)*) -> $result:ty | $failed:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($before: $b,)* path: *const c_char $(, $after: $a)*) -> $result {
                // SAFETY: the arguments go on as they came; libc's contract for this function,
                // which the caller keeps, makes `path` null or a C string.
                unsafe {
                    with_path(path, $failed, |path, _| match real::$real.get() {
                        Some(next) => next($($before,)* path $(, $after)*),
                        None => $failed,
                    })
                }
            }
        )*
    };
}

redirect! {
    open => OPEN([path], flags: c_int, mode: c_uint) -> c_int | -1;
    open64 => OPEN64([path], flags: c_int, mode: c_uint) -> c_int | -1;
    openat => OPENAT(dir: c_int, [path], flags: c_int, mode: c_uint) -> c_int | -1;
    openat64 => OPENAT64(dir: c_int, [path], flags: c_int, mode: c_uint) -> c_int | -1;
    __open_2 => OPEN_2([path], flags: c_int) -> c_int | -1;
    __open64_2 => OPEN64_2([path], flags: c_int) -> c_int | -1;
    __openat_2 => OPENAT_2(dir: c_int, [path], flags: c_int) -> c_int | -1;
    __openat64_2 => OPENAT64_2(dir: c_int, [path], flags: c_int) -> c_int | -1;
    fopen => FOPEN([path], mode: *const c_char) -> *mut c_void | ptr::null_mut();
    fopen64 => FOPEN64([path], mode: *const c_char) -> *mut c_void | ptr::null_mut();
    opendir => OPENDIR([path]) -> *mut c_void | ptr::null_mut();
    scandir => SCANDIR([path], list: *mut c_void, filter: Filter, compare: Compare) -> c_int | -1;
    scandir64 => SCANDIR64([path], list: *mut c_void, filter: Filter, compare: Compare) -> c_int | -1;
    scandirat => SCANDIRAT(dir: c_int, [path], list: *mut c_void, filter: Filter, compare: Compare) -> c_int | -1;
    scandirat64 => SCANDIRAT64(dir: c_int, [path], list: *mut c_void, filter: Filter, compare: Compare) -> c_int | -1;
    stat => STAT([path], buffer: *mut c_void) -> c_int | -1;
    stat64 => STAT64([path], buffer: *mut c_void) -> c_int | -1;
    lstat => LSTAT([path], buffer: *mut c_void) -> c_int | -1;
    lstat64 => LSTAT64([path], buffer: *mut c_void) -> c_int | -1;
    fstatat => FSTATAT(dir: c_int, [path], buffer: *mut c_void, flags: c_int) -> c_int | -1;
    fstatat64 => FSTATAT64(dir: c_int, [path], buffer: *mut c_void, flags: c_int) -> c_int | -1;
    __xstat => XSTAT(version: c_int, [path], buffer: *mut c_void) -> c_int | -1;
    __xstat64 => XSTAT64(version: c_int, [path], buffer: *mut c_void) -> c_int | -1;
    __lxstat => LXSTAT(version: c_int, [path], buffer: *mut c_void) -> c_int | -1;
    __lxstat64 => LXSTAT64(version: c_int, [path], buffer: *mut c_void) -> c_int | -1;
    __fxstatat => FXSTATAT(version: c_int, dir: c_int, [path], buffer: *mut c_void, flags: c_int) -> c_int | -1;
    __fxstatat64 => FXSTATAT64(version: c_int, dir: c_int, [path], buffer: *mut c_void, flags: c_int) -> c_int | -1;
    statx => STATX(dir: c_int, [path], flags: c_int, mask: c_uint, buffer: *mut c_void) -> c_int | -1;
    access => ACCESS([path], mode: c_int) -> c_int | -1;
    eaccess => EACCESS([path], mode: c_int) -> c_int | -1;
    euidaccess => EUIDACCESS([path], mode: c_int) -> c_int | -1;
    faccessat => FACCESSAT(dir: c_int, [path], mode: c_int, flags: c_int) -> c_int | -1;
    readlink => READLINK([path], buffer: *mut c_char, size: usize) -> isize | -1;
    readlinkat => READLINKAT(dir: c_int, [path], buffer: *mut c_char, size: usize) -> isize | -1;
    __readlink_chk => READLINK_CHK([path], buffer: *mut c_char, size: usize, object: usize) -> isize | -1;
    getxattr => GETXATTR([path], name: *const c_char, value: *mut c_void, size: usize) -> isize | -1;
    lgetxattr => LGETXATTR([path], name: *const c_char, value: *mut c_void, size: usize) -> isize | -1;
    listxattr => LISTXATTR([path], list: *mut c_char, size: usize) -> isize | -1;
    llistxattr => LLISTXATTR([path], list: *mut c_char, size: usize) -> isize | -1;
    chdir => CHDIR([path]) -> c_int | -1;
    __readlinkat_chk => READLINKAT_CHK(dir: c_int, [path], buffer: *mut c_char, size: usize, object: usize) -> isize | -1;
}

/// As [`redirect`], for functions whose result is a path: it must not show where the view is.
macro_rules! resolve {
    ($($name:ident => $real:ident([path] $(, $after:ident: $a:ty)*);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(path: *const c_char $(, $after: $a)*) -> *mut c_char {
                // SAFETY: as in `redirect`; what the next definition returns is null or a C string
                // that the caller owns.
                unsafe {
                    with_path(path, ptr::null_mut(), |path, redirected| {
                        let Some(next) = real::$real.get() else { return ptr::null_mut() };
                        let resolved = next(path $(, $after)*);
                        if redirected {
                            strip(resolved);
                        }
                        resolved
                    })
                }
            }
        )*
    };
}

resolve! {
    realpath => REALPATH([path], resolved: *mut c_char);
    __realpath_chk => REALPATH_CHK([path], resolved: *mut c_char, size: usize);
    canonicalize_file_name => CANONICALIZE([path]);
}
