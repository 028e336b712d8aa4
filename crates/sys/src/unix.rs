//! Unix sockets with abstract names (unix(7)): connections and datagrams that carry descriptors and
//! tell who sent them. All are nonblocking and close-on-exec.
//!
//! An abstract name belongs to the network namespace and vanishes with the last descriptor of its
//! socket. Anybody may bind any name: what a peer is, only its credentials tell.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::cancel;
use crate::process::{PidFd, check, owned};

/// Descriptors that one message may carry.
pub const MAX_FDS: usize = 16;

/// An abstract socket name.
#[derive(Clone, Copy)]
pub struct Name {
    address: libc::sockaddr_un,
    len: libc::socklen_t,
}

impl Name {
    /// The name with these bytes, without the leading NUL that marks it as abstract.
    ///
    /// # Errors
    /// InvalidInput beyond 107 bytes.
    pub fn new(name: &[u8]) -> io::Result<Name> {
        let mut address = libc::sockaddr_un {
            sun_family: libc::AF_UNIX as libc::sa_family_t,
            sun_path: [0; 108],
        };
        let Some(path) = address.sun_path.get_mut(1..=name.len()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        for (to, from) in path.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
        Ok(Name { address, len: len as libc::socklen_t })
    }

    /// Whether a [`Datagrams`] socket has the name. Its owner notices nothing of the question.
    ///
    /// # Errors
    /// As socket(2) and connect(2).
    pub fn takes_datagrams(&self) -> io::Result<bool> {
        let _held = cancel::held();
        let fd = socket(libc::SOCK_DGRAM)?;
        // SAFETY: the address is valid for its length.
        match check(unsafe { libc::connect(fd.as_raw_fd(), self.as_ptr(), self.len) }) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn as_ptr(&self) -> *const libc::sockaddr {
        std::ptr::from_ref(&self.address).cast()
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let start = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1;
        let path = self.address.sun_path.get(1..1 + self.len as usize - start).unwrap_or_default();
        let bytes: Vec<u8> = path.iter().map(|&byte| byte as u8).collect();
        write!(f, "@{}", bytes.escape_ascii())
    }
}

/// Who is at the other end, as the kernel vouches. The ids are those of the caller's own
/// namespaces: pid 0 and uid 65534 stand for what has none there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peer {
    /// Process id.
    pub pid: u32,
    /// Effective user id when it connected, listened or sent.
    pub uid: u32,
}

/// What a message brought.
#[derive(Debug, Default)]
pub struct Received {
    /// Bytes written to the buffer.
    pub len: usize,
    /// Descriptors, in the order sent; close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// Who sent it, on a socket that asks for it ([`Datagrams`]).
    pub sender: Option<Peer>,
    /// The buffer was too small for the message, or the process had no room for all descriptors.
    pub truncated: bool,
}

fn socket(kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; a success returns a new descriptor.
    unsafe {
        owned(libc::socket(libc::AF_UNIX, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0))
    }
}

fn bind(fd: &OwnedFd, name: &Name) -> io::Result<()> {
    // SAFETY: the address is valid for its length.
    check(unsafe { libc::bind(fd.as_raw_fd(), name.as_ptr(), name.len) }).map(drop)
}

fn set(fd: &OwnedFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let value = std::ptr::from_ref(&value).cast();
    // SAFETY: a live integer of the length given.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, value, len) })
        .map(drop)
}

/// # Safety
/// Every bit pattern is a `T`, and T is what the option gives.
unsafe fn get<T>(fd: &OwnedFd, option: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of the place.
    check(unsafe {
        let place = value.as_mut_ptr().cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, place, &mut len)
    })?;
    // SAFETY: zeroed, then written by the kernel; any bit pattern will do.
    Ok(unsafe { value.assume_init() })
}

/// A listening SOCK_SEQPACKET socket.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Binds `name` and listens.
    ///
    /// # Errors
    /// AddrInUse when another socket has the name.
    pub fn bind(name: &Name, backlog: u16) -> io::Result<Listener> {
        let fd = socket(libc::SOCK_SEQPACKET)?;
        bind(&fd, name)?;
        // SAFETY: no pointers.
        check(unsafe { libc::listen(fd.as_raw_fd(), backlog.into()) })?;
        Ok(Listener(fd))
    }

    /// The next connection, if one waits.
    pub fn accept(&self) -> io::Result<Option<Connection>> {
        // SAFETY: the peer's address is not asked for; a success returns a new descriptor.
        let accepted = unsafe {
            owned(libc::accept4(
                self.0.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            ))
        };
        match accepted {
            Ok(fd) => Ok(Some(Connection(fd))),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A SOCK_SEQPACKET connection: messages in order, each with its descriptors.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects to the listener with this name; it need not have accepted yet, or ever.
    ///
    /// # Errors
    /// ConnectionRefused: nobody listens. WouldBlock: its backlog is full.
    pub fn connect(name: &Name) -> io::Result<Connection> {
        let _held = cancel::held();
        let fd = socket(libc::SOCK_SEQPACKET)?;
        // SAFETY: the address is valid for its length.
        check(unsafe { libc::connect(fd.as_raw_fd(), name.as_ptr(), name.len) })?;
        Ok(Connection(fd))
    }

    /// Two ends connected to each other.
    pub fn pair() -> io::Result<(Connection, Connection)> {
        let mut fds = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
        // SAFETY: both are new and nobody else's.
        unsafe { Ok((owned(fds[0]).map(Connection)?, owned(fds[1]).map(Connection)?)) }
    }

    /// The process that connected, or that called listen(2) (SO_PEERCRED).
    pub fn peer(&self) -> io::Result<Peer> {
        // SAFETY: SO_PEERCRED gives a ucred, three integers.
        let cred: libc::ucred = unsafe { get(&self.0, libc::SO_PEERCRED) }?;
        Ok(Peer { pid: cred.pid.try_into().unwrap_or(0), uid: cred.uid })
    }

    /// That process by descriptor, also where its pid has no number here (SO_PEERPIDFD, Linux 6.5;
    /// before that by its pid, which may have been reused).
    ///
    /// # Errors
    /// When the process is dead: ESRCH, ENODATA or EINVAL, as the kernel's version has it. On an old
    /// kernel Unsupported for a process without a pid here.
    pub fn peer_pidfd(&self) -> io::Result<PidFd> {
        // SAFETY: SO_PEERPIDFD gives an integer.
        match unsafe { get::<RawFd>(&self.0, SO_PEERPIDFD) } {
            // SAFETY: a new descriptor, ours alone.
            Ok(fd) => Ok(PidFd::from(unsafe { OwnedFd::from_raw_fd(fd) })),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                match self.peer()?.pid {
                    0 => Err(io::ErrorKind::Unsupported.into()),
                    pid => PidFd::open(pid),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Sends one message with up to [`MAX_FDS`] descriptors. The kernel holds them open until the
    /// message is received or the receiving end is closed.
    ///
    /// # Errors
    /// WouldBlock: no room. BrokenPipe: the other end is closed (no SIGPIPE is raised).
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.0, None, &[IoSlice::new(bytes)], fds)
    }

    /// Receives one message; None when none waits. An empty message without descriptors is the
    /// end: the other side has closed.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        recv(&self.0, buffer, 0)
    }

    /// Looks at the message that starts `offset` bytes into the queue: its bytes, and duplicates of
    /// its descriptors. The message stays.
    ///
    /// The offset is a state of the socket (SO_PEEK_OFF), which all duplicates share: only one
    /// thread of all processes may peek at a time, and nobody may receive.
    pub fn peek_at(&self, offset: u32, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let offset = offset.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        set(&self.0, libc::SO_PEEK_OFF, offset)?;
        recv(&self.0, buffer, libc::MSG_PEEK)
    }
}

/// asm-generic/socket.h; the C library's headers are older than the option.
const SO_PEERPIDFD: libc::c_int = 77;

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Connection {
    /// Of a descriptor that another process sent.
    fn from(fd: OwnedFd) -> Connection {
        Connection(fd)
    }
}

impl From<Connection> for OwnedFd {
    fn from(connection: Connection) -> OwnedFd {
        connection.0
    }
}

/// A SOCK_DGRAM socket that learns the credentials of every sender (SO_PASSCRED).
#[derive(Debug)]
pub struct Datagrams(OwnedFd);

impl Datagrams {
    /// Binds `name`.
    ///
    /// # Errors
    /// AddrInUse when another socket has the name.
    pub fn bind(name: &Name) -> io::Result<Datagrams> {
        let fd = socket(libc::SOCK_DGRAM)?;
        set(&fd, libc::SO_PASSCRED, 1)?;
        bind(&fd, name)?;
        Ok(Datagrams(fd))
    }

    /// One that only sends.
    pub fn unbound() -> io::Result<Datagrams> {
        socket(libc::SOCK_DGRAM).map(Datagrams)
    }

    /// Sends one datagram, the parts in a row.
    ///
    /// # Errors
    /// WouldBlock: the receiver's queue is full (net.unix.max_dgram_qlen). ConnectionRefused: nobody
    /// has the name.
    pub fn send_to(&self, name: &Name, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.send_with(name, parts, &[])
    }

    /// [`Datagrams::send_to`] with up to [`MAX_FDS`] descriptors, which the kernel holds open until
    /// the datagram is received or the receiver gone.
    pub fn send_with(
        &self,
        name: &Name,
        parts: &[IoSlice<'_>],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        send(&self.0, Some(name), parts, fds)
    }

    /// Receives one datagram; None when none waits.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        recv(&self.0, buffer, 0)
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Room for the descriptors and the credentials of one message, aligned as a cmsghdr.
#[repr(C, align(8))]
struct Control([u8; 256]);
// SAFETY: the macro computes.
const _: () = assert!(
    unsafe {
        libc::CMSG_SPACE((MAX_FDS * size_of::<RawFd>()) as u32)
            + libc::CMSG_SPACE(size_of::<libc::ucred>() as u32)
    } as usize
        <= size_of::<Control>()
);

fn send(
    fd: &OwnedFd,
    name: Option<&Name>,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = Control([0; 256]);
    // SAFETY: an all-zero msghdr is a valid one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    if let Some(name) = name {
        message.msg_name = name.as_ptr().cast_mut().cast();
        message.msg_namelen = name.len;
    }
    // An IoSlice is an iovec (its documentation says so).
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len() as _;
    if !fds.is_empty() {
        let bytes = size_of_val(fds) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the buffer has room for MAX_FDS descriptors, checked above; a BorrowedFd is
        // represented as its number.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let data = libc::CMSG_DATA(header);
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), data, bytes as usize);
        }
    }
    let _held = cancel::held();
    loop {
        // SAFETY: the message refers to live parts, name and control data.
        let n = unsafe {
            libc::sendmsg(fd.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        };
        if n >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn recv(fd: &OwnedFd, buffer: &mut [u8], flags: libc::c_int) -> io::Result<Option<Received>> {
    let mut control = Control([0; 256]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: an all-zero msghdr is a valid one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let _held = cancel::held();
    let len = loop {
        // SAFETY: the message refers to a live buffer and control buffer of the lengths given.
        let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, flags) };
        if let Ok(len) = usize::try_from(n) {
            break len;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    };
    let mut received = Received {
        len: len.min(buffer.len()),
        truncated: message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        ..Received::default()
    };
    // SAFETY: the kernel filled the control buffer with complete messages; every descriptor in it is
    // new and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..bytes / size_of::<RawFd>() {
                        let raw = data.cast::<RawFd>().add(index).read_unaligned();
                        received.fds.push(OwnedFd::from_raw_fd(raw));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                    let cred = data.cast::<libc::ucred>().read_unaligned();
                    let pid = cred.pid.try_into().unwrap_or(0);
                    received.sender = Some(Peer { pid, uid: cred.uid });
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(Some(received))
}

/// Waits until one of the descriptors is readable (or closed, or in error), at most `timeout`.
/// Returns whether one is; false also when a signal handler ran.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<bool> {
    let mut polls: Vec<libc::pollfd> = fds
        .iter()
        .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let timeout = timeout.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(libc::c_int::MAX);
    // SAFETY: as many live pollfds as the count says.
    match check(unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) }) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Memfd;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    fn name(test: &str) -> Name {
        Name::new(format!("ironverbs-sys-test/{}/{test}", std::process::id()).as_bytes()).unwrap()
    }

    #[test]
    fn whether_a_name_takes_datagrams_shows_without_sending_any() {
        let name = name("asked");
        assert!(!name.takes_datagrams().unwrap());
        let owner = Datagrams::bind(&name).unwrap();
        assert!(name.takes_datagrams().unwrap());
        assert!(owner.recv(&mut [0; 8]).unwrap().is_none());
        drop(owner);
        assert!(!name.takes_datagrams().unwrap());
        let _listener = Listener::bind(&name, 1).unwrap();
        assert!(!name.takes_datagrams().unwrap());
    }

    #[test]
    fn a_connection_carries_messages_descriptors_and_credentials() {
        let name = name("connection");
        assert_eq!(
            Connection::connect(&name).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        let listener = Listener::bind(&name, 4).unwrap();
        assert_eq!(Listener::bind(&name, 4).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(listener.accept().unwrap().is_none());
        let client = Connection::connect(&name).unwrap();
        let server = listener.accept().unwrap().unwrap();
        let us = Peer { pid: std::process::id(), uid: crate::process::uid() };
        assert_eq!((client.peer().unwrap(), server.peer().unwrap()), (us, us));
        assert!(client.peer_pidfd().unwrap().alive());

        let (near, far) = Connection::pair().unwrap();
        server.send(b"take these", &[near.as_fd(), far.as_fd()]).unwrap();
        drop((near, far));
        assert!(wait_readable(&[client.as_fd()], Duration::from_secs(20)).unwrap());
        let mut buffer = [0; 16];
        let received = client.recv(&mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..received.len], b"take these");
        assert!(!received.truncated);
        let mut ends = received.fds.into_iter().map(Connection::from);
        let (near, far) = (ends.next().unwrap(), ends.next().unwrap());
        near.send(b"x", &[]).unwrap();
        assert_eq!(far.recv(&mut buffer).unwrap().unwrap().len, 1);

        assert!(client.recv(&mut buffer).unwrap().is_none());
        drop(server);
        assert_eq!(client.recv(&mut buffer).unwrap().unwrap().len, 0);
        assert_eq!(client.send(b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_full_backlog_is_would_block() {
        let name = name("backlog");
        let _listener = Listener::bind(&name, 1).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match Connection::connect(&name) {
                Ok(connection) => waiting.push(connection),
                Err(error) => break error,
            }
            assert!(waiting.len() < 10);
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_queue_can_be_read_at_any_place_and_stays() {
        let (tx, rx) = Connection::pair().unwrap();
        for index in 0..100u8 {
            let mut file = File::from(OwnedFd::from(Memfd::create(c"q", 1).unwrap()));
            file.write_all(&[index]).unwrap();
            tx.send(&[index, 0, 0, 0], &[file.as_fd()]).unwrap();
        }
        let mut buffer = [0; 4];
        for index in [0u8, 99, 42, 42, 7] {
            let peeked = rx.peek_at(u32::from(index) * 4, &mut buffer).unwrap().unwrap();
            assert_eq!((peeked.len, buffer), (4, [index, 0, 0, 0]));
            let mut file = File::from(peeked.fds.into_iter().next().unwrap());
            let mut byte = [0];
            file.rewind().unwrap();
            file.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [index]);
        }
        assert!(rx.peek_at(400, &mut buffer).unwrap().is_none());
    }

    #[test]
    fn datagrams_say_who_sent_them() {
        let (a, b) = (name("a"), name("b"));
        let (left, right) = (Datagrams::bind(&a).unwrap(), Datagrams::bind(&b).unwrap());
        assert!(right.recv(&mut []).unwrap().is_none());
        left.send_to(&b, &[IoSlice::new(b"one "), IoSlice::new(b"message")]).unwrap();
        let mut buffer = [0; 32];
        let received = right.recv(&mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..received.len], b"one message");
        assert_eq!(
            received.sender,
            Some(Peer { pid: std::process::id(), uid: crate::process::uid() })
        );
        left.send_to(&b, &[IoSlice::new(b"too long")]).unwrap();
        assert!(right.recv(&mut [0; 3]).unwrap().unwrap().truncated);
        drop(right);
        assert_eq!(
            left.send_to(&b, &[IoSlice::new(b"x")]).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn names_have_a_limit_and_a_form() {
        assert!(Name::new(&[b'x'; 107]).is_ok());
        assert!(Name::new(&[b'x'; 108]).is_err());
        assert_eq!(format!("{:?}", Name::new(b"a/7\xff").unwrap()), "@a/7\\xff");
    }
}
