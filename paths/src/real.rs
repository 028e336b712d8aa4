//! The definitions that follow ours in the order of the dynamic linker.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that another library, in the end libc, defines; `F` is its type.
pub(crate) struct Real<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    of: PhantomData<F>,
}

impl<F: Copy> Real<F> {
    const fn new(name: &'static CStr) -> Real<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Real { name, address: AtomicPtr::new(ptr::null_mut()), of: PhantomData }
    }

    fn resolve(&self) -> *mut c_void {
        // SAFETY: the name is a C string. A constructor that runs before ours may come here.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Release);
        address
    }

    /// The function; `None` where nobody defines it, with errno ENOSYS.
    #[inline]
    pub(crate) fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            address = self.resolve();
        }
        if address.is_null() {
            // SAFETY: the pointer is this thread's errno.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
            return None;
        }
        // SAFETY: `F` is a function pointer (its size was checked), and the table below gives each
        // name the type that libc declares.
        Some(unsafe { ptr::from_ref(&address).cast::<F>().read() })
    }
}

macro_rules! reals {
    ($($real:ident = $name:literal: $type:ty;)*) => {
        $(pub(crate) static $real: Real<$type> = Real::new($name);)*

        pub(crate) fn initialise() {
            $($real.resolve();)*
        }
    };
}

type Path = *const c_char;
type Buffer = *mut c_void;
pub(crate) type Compare = Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int>;
pub(crate) type Filter = Option<unsafe extern "C" fn(*const c_void) -> c_int>;

type Open = unsafe extern "C" fn(Path, c_int, ...) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, Path, c_int, ...) -> c_int;
type Open2 = unsafe extern "C" fn(Path, c_int) -> c_int;
type OpenAt2 = unsafe extern "C" fn(c_int, Path, c_int) -> c_int;
type Fopen = unsafe extern "C" fn(Path, *const c_char) -> Buffer;
type Opendir = unsafe extern "C" fn(Path) -> Buffer;
type Scandir = unsafe extern "C" fn(Path, Buffer, Filter, Compare) -> c_int;
type ScandirAt = unsafe extern "C" fn(c_int, Path, Buffer, Filter, Compare) -> c_int;
type Stat = unsafe extern "C" fn(Path, Buffer) -> c_int;
type StatAt = unsafe extern "C" fn(c_int, Path, Buffer, c_int) -> c_int;
type XStat = unsafe extern "C" fn(c_int, Path, Buffer) -> c_int;
type XStatAt = unsafe extern "C" fn(c_int, c_int, Path, Buffer, c_int) -> c_int;
type Statx = unsafe extern "C" fn(c_int, Path, c_int, c_uint, Buffer) -> c_int;
type Access = unsafe extern "C" fn(Path, c_int) -> c_int;
type AccessAt = unsafe extern "C" fn(c_int, Path, c_int, c_int) -> c_int;
type Readlink = unsafe extern "C" fn(Path, *mut c_char, usize) -> isize;
type ReadlinkAt = unsafe extern "C" fn(c_int, Path, *mut c_char, usize) -> isize;
type ReadlinkChk = unsafe extern "C" fn(Path, *mut c_char, usize, usize) -> isize;
type ReadlinkAtChk = unsafe extern "C" fn(c_int, Path, *mut c_char, usize, usize) -> isize;
type Getxattr = unsafe extern "C" fn(Path, *const c_char, Buffer, usize) -> isize;
type Chdir = unsafe extern "C" fn(Path) -> c_int;
type Realpath = unsafe extern "C" fn(Path, *mut c_char) -> *mut c_char;
type RealpathChk = unsafe extern "C" fn(Path, *mut c_char, usize) -> *mut c_char;
type Canonicalize = unsafe extern "C" fn(Path) -> *mut c_char;

reals! {
    OPEN = c"open": Open;
    OPEN64 = c"open64": Open;
    OPENAT = c"openat": OpenAt;
    OPENAT64 = c"openat64": OpenAt;
    OPEN_2 = c"__open_2": Open2;
    OPEN64_2 = c"__open64_2": Open2;
    OPENAT_2 = c"__openat_2": OpenAt2;
    OPENAT64_2 = c"__openat64_2": OpenAt2;
    FOPEN = c"fopen": Fopen;
    FOPEN64 = c"fopen64": Fopen;
    OPENDIR = c"opendir": Opendir;
    SCANDIR = c"scandir": Scandir;
    SCANDIR64 = c"scandir64": Scandir;
    SCANDIRAT = c"scandirat": ScandirAt;
    SCANDIRAT64 = c"scandirat64": ScandirAt;
    STAT = c"stat": Stat;
    STAT64 = c"stat64": Stat;
    LSTAT = c"lstat": Stat;
    LSTAT64 = c"lstat64": Stat;
    FSTATAT = c"fstatat": StatAt;
    FSTATAT64 = c"fstatat64": StatAt;
    XSTAT = c"__xstat": XStat;
    XSTAT64 = c"__xstat64": XStat;
    LXSTAT = c"__lxstat": XStat;
    LXSTAT64 = c"__lxstat64": XStat;
    FXSTATAT = c"__fxstatat": XStatAt;
    FXSTATAT64 = c"__fxstatat64": XStatAt;
    STATX = c"statx": Statx;
    ACCESS = c"access": Access;
    EACCESS = c"eaccess": Access;
    EUIDACCESS = c"euidaccess": Access;
    FACCESSAT = c"faccessat": AccessAt;
    READLINK = c"readlink": Readlink;
    READLINKAT = c"readlinkat": ReadlinkAt;
    READLINK_CHK = c"__readlink_chk": ReadlinkChk;
    READLINKAT_CHK = c"__readlinkat_chk": ReadlinkAtChk;
    GETXATTR = c"getxattr": Getxattr;
    LGETXATTR = c"lgetxattr": Getxattr;
    LISTXATTR = c"listxattr": Readlink;
    LLISTXATTR = c"llistxattr": Readlink;
    CHDIR = c"chdir": Chdir;
    REALPATH = c"realpath": Realpath;
    REALPATH_CHK = c"__realpath_chk": RealpathChk;
    CANONICALIZE = c"canonicalize_file_name": Canonicalize;
}
