//! The kernel's verbs devices: their files, and the two ways to give them commands (`rdma/rdma_user_ioctl_cmds.h`,
//! `rdma/ib_user_verbs.h`).
//!
//! Files are opened by the system call itself: a preloaded library may show programs another `/dev/infiniband`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::cancel;

/// One attribute of an ioctl, as the kernel reads it.
#[repr(C)]
#[derive(Copy, Clone, Debug, Default)]
pub struct Attribute {
    /// Its number within the method.
    pub id: u16,
    /// Bytes of what `data` points to, or of `data` itself up to 8; 0 for handles and descriptors.
    pub len: u16,
    /// [`MANDATORY`], and what the kernel sets.
    pub flags: u16,
    /// The element of an enumeration; else 0.
    pub element: u16,
    /// A pointer, up to 8 bytes in place, a handle or a descriptor.
    pub data: u64,
}

/// The kernel must know the attribute.
pub const MANDATORY: u16 = 1;

impl Attribute {
    /// Bytes for the kernel to read, which must stay until the call.
    ///
    /// # Errors
    /// `EINVAL` for more than an attribute can have.
    pub fn input(id: u16, bytes: &[u8]) -> io::Result<Self> {
        let data = match bytes.len() {
            n @ 0..=8 => {
                let mut inline = [0; 8];
                inline.get_mut(..n).unwrap_or_default().copy_from_slice(bytes);
                u64::from_ne_bytes(inline)
            }
            _ => bytes.as_ptr().expose_provenance() as u64,
        };
        Ok(Attribute { id, len: length(bytes.len())?, flags: MANDATORY, element: 0, data })
    }

    /// Room for the kernel to write to, which must stay until the call.
    ///
    /// # Errors
    /// As [`Attribute::input`].
    pub fn output(id: u16, room: &mut [u8]) -> io::Result<Self> {
        let data = room.as_mut_ptr().expose_provenance() as u64;
        Ok(Attribute { id, len: length(room.len())?, flags: MANDATORY, element: 0, data })
    }

    /// A handle or a descriptor; 0 where the kernel makes it, and then writes its number into `data`.
    pub fn object(id: u16, number: u64) -> Self {
        Attribute { id, len: 0, flags: MANDATORY, element: 0, data: number }
    }

    /// The same, as one that an older kernel may ignore.
    #[must_use]
    pub fn optional(self) -> Self {
        Attribute { flags: self.flags & !MANDATORY, ..self }
    }
}

fn length(n: usize) -> io::Result<u16> {
    u16::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The fixed part of `struct ib_uverbs_ioctl_hdr`.
#[repr(C)]
struct Header {
    length: u16,
    object: u16,
    method: u16,
    attributes: u16,
    reserved1: u64,
    driver: u32,
    reserved2: u32,
}

/// `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
const RDMA_VERBS_IOCTL: libc::Ioctl = 0xc018_1b01_u32 as libc::Ioctl;

/// More than any method has.
const MAX_ATTRIBUTES: usize = 64;

/// Calls a method of a verbs device. What the kernel returns in attributes is in `attributes` afterwards.
///
/// # Errors
/// The kernel's: `ENOTTY` without this interface, `EPROTONOSUPPORT` without this method or a mandatory attribute;
/// `EINVAL` for too many attributes.
///
/// # Safety
/// Pointers in the attributes, and in what they point to, lead to memory that the kernel may use as the method says,
/// for as long as it says.
pub unsafe fn ioctl(
    fd: BorrowedFd<'_>,
    object: u16,
    method: u16,
    driver: u32,
    attributes: &mut [Attribute],
) -> io::Result<()> {
    #[repr(C)]
    struct Call {
        header: Header,
        attributes: [Attribute; MAX_ATTRIBUTES],
    }
    let n = attributes.len();
    let bytes = size_of::<Header>() + size_of_val(attributes);
    let (reserved1, reserved2) = (0, 0);
    let header = Header {
        length: bytes as u16,
        object,
        method,
        attributes: n as u16,
        reserved1,
        driver,
        reserved2,
    };
    let mut call = Call { header, attributes: [Attribute::default(); MAX_ATTRIBUTES] };
    let Some(place) = call.attributes.get_mut(..n) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    place.copy_from_slice(attributes);
    // SAFETY: the structure is as long as its header says and alive during the call; the rest is the caller's promise.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), RDMA_VERBS_IOCTL, &raw mut call) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    attributes.copy_from_slice(call.attributes.get(..n).unwrap_or_default());
    Ok(())
}

/// Writes one whole command of the older interface.
///
/// # Errors
/// The kernel's: `EACCES` to a process that changed its user since it opened the device; `EIO` for a short write.
///
/// # Safety
/// As for [`ioctl`]; the pointer to the response leads to room for what the command says.
pub unsafe fn write(fd: BorrowedFd<'_>, command: &[u8]) -> io::Result<()> {
    // SAFETY: reads the bytes of `command`; the rest is the caller's promise.
    let n = unsafe { libc::write(fd.as_raw_fd(), command.as_ptr().cast(), command.len()) };
    match usize::try_from(n) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(n) if n == command.len() => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}

/// Opens the character device at `path`, if it is the one with that number, where one is given.
///
/// # Errors
/// As open(2); `ENODEV` when it is another device, or none.
pub fn open(path: &CStr, number: Option<libc::dev_t>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the path is a string; the call keeps nothing.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    match device_number(&fd) {
        Some(found) if number.is_none_or(|number| number == found) => Ok(fd),
        _ => Err(io::Error::from_raw_os_error(libc::ENODEV)),
    }
}

/// The number of the character device that a descriptor leads to; `None` for anything else.
pub fn device_number(fd: &impl AsRawFd) -> Option<libc::dev_t> {
    // SAFETY: a stat structure is integers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is alive during the call.
    let rc = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) };
    (rc == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFCHR).then_some(stat.st_rdev)
}

/// The device number of a major and a minor number.
pub fn make_device(major: u32, minor: u32) -> libc::dev_t {
    libc::makedev(major, minor)
}

/// Reads one record of an event file, blocking unless the file says otherwise; a thread may be cancelled here
/// ([`cancel::read`]).
///
/// # Errors
/// As read(2), as the value of errno; `EIO` when what is there is no whole record.
pub fn read_event(fd: BorrowedFd<'_>, record: &mut [u8]) -> Result<(), i32> {
    match cancel::read(fd.as_raw_fd(), record)? {
        n if n == record.len() => Ok(()),
        _ => Err(libc::EIO),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn layouts_are_the_kernel_headers() {
        assert_eq!(size_of::<Attribute>(), 16);
        assert_eq!(size_of::<Header>(), 24);
    }

    #[test]
    fn up_to_eight_bytes_travel_in_place() {
        let short = Attribute::input(3, &[1, 2, 3]).unwrap();
        assert_eq!((short.len, short.data.to_ne_bytes()), (3, [1, 2, 3, 0, 0, 0, 0, 0]));
        let bytes = [7; 9];
        let long = Attribute::input(3, &bytes).unwrap();
        assert_eq!((long.len, long.data), (9, bytes.as_ptr() as u64));
        assert!(Attribute::input(3, &[0; 65536]).is_err());
    }

    #[test]
    fn what_is_no_verbs_device_is_refused() {
        let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        // SAFETY: no pointers.
        let answer = unsafe { ioctl(null.as_fd(), 0, 0, 0, &mut []) };
        assert_eq!(answer.unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        let mut many = [Attribute::default(); MAX_ATTRIBUTES + 1];
        // SAFETY: refused before it is used.
        let answer = unsafe { ioctl(null.as_fd(), 0, 0, 0, &mut many) };
        assert_eq!(answer.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let number = device_number(&null).unwrap();
        assert!(open(c"/dev/null", Some(number)).is_ok());
        assert_eq!(
            open(c"/dev/null", Some(number + 1)).unwrap_err().raw_os_error(),
            Some(libc::ENODEV)
        );
        assert!(open(c"/dev/null/there", None).is_err());
    }
}
