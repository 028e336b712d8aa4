//! Carrying commands to the kernel, with what a driver adds to them.

use std::ffi::{c_int, c_void};
use std::slice;

use ironverbs_kernel::command::{Command, EXTENDED_HEADER, HEADER};
use ironverbs_kernel::method::{self, Method};
use ironverbs_sys::uverbs::{self, Attribute};

use super::abi::*;
use super::context::descriptor;
use super::{Driven, of};
use crate::abi::*;
use crate::fail;

/// The value of errno, as a driver's call returns it.
pub(super) type Errno = c_int;

pub(super) fn failed(errno: Errno) -> c_int {
    fail::set_errno(errno);
    errno
}

/// For calls that return 0 or the value of errno.
pub(super) fn status(result: Result<(), Errno>) -> c_int {
    result.map_or_else(failed, |()| 0)
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// What a driver adds to a command and to its response, and where it wants to see the response's fixed part.
pub(super) struct Extra {
    input: *const u8,
    input_len: usize,
    fixed: *mut u8,
    fixed_len: usize,
    output: *mut u8,
    output_len: usize,
}

impl Extra {
    /// Nothing.
    pub(super) const NONE: Extra = Extra {
        input: std::ptr::null(),
        input_len: 0,
        fixed: std::ptr::null_mut(),
        fixed_len: 0,
        output: std::ptr::null_mut(),
        output_len: 0,
    };

    /// From a driver's structures, which have its own part behind so many bytes of the fixed one (with the header in
    /// the command).
    pub(super) fn new(
        cmd: *const c_void,
        cmd_size: usize,
        fixed_cmd: usize,
        resp: *mut c_void,
        resp_size: usize,
        fixed_resp: usize,
    ) -> Result<Extra, Errno> {
        let mut extra = Extra::NONE;
        if !cmd.is_null() && cmd_size > 0 {
            extra.input_len = cmd_size.checked_sub(fixed_cmd).ok_or(libc::EINVAL)?;
            extra.input = cmd.cast::<u8>().wrapping_add(fixed_cmd);
        }
        if !resp.is_null() && resp_size > 0 {
            extra.output_len = resp_size.checked_sub(fixed_resp).ok_or(libc::EINVAL)?;
            (extra.fixed, extra.fixed_len) = (resp.cast(), fixed_resp);
            extra.output = extra.fixed.wrapping_add(fixed_resp);
        }
        Ok(extra)
    }

    /// A driver's part of a creation, whose fixed part is of that generation.
    pub(super) fn of(
        fixed: [(usize, usize); 2],
        extended: bool,
        (cmd, cmd_size): (*mut c_void, usize),
        (resp, resp_size): (*mut c_void, usize),
    ) -> Result<Extra, Errno> {
        let ([old, new], header) = (fixed, if extended { EXTENDED_HEADER } else { HEADER });
        let (request, response) = if extended { new } else { old };
        Extra::new(cmd, cmd_size, header + request, resp, resp_size, response)
    }

    /// # Safety
    /// The structures that it was made from are there.
    unsafe fn input(&self) -> &[u8] {
        if self.input_len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { slice::from_raw_parts(self.input, self.input_len) }
    }

    /// # Safety
    /// As above.
    unsafe fn output(&mut self) -> &mut [u8] {
        if self.output_len == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.output, self.output_len) }
    }

    /// The parts by which ioctls have it.
    ///
    /// # Safety
    /// As above.
    pub(super) unsafe fn attributes(&mut self) -> Result<Vec<Attribute>, Errno> {
        let mut out = Vec::new();
        // SAFETY: the caller's promise.
        unsafe {
            if self.input_len > 0 {
                out.push(
                    Attribute::input(method::DRIVER_IN, self.input()).map_err(|e| errno_of(&e))?,
                );
            }
            if self.output_len > 0 {
                let output = Attribute::output(method::DRIVER_OUT, self.output());
                out.push(output.map_err(|e| errno_of(&e))?);
            }
        }
        Ok(out)
    }

    /// Shows the driver the fixed part of a response.
    ///
    /// # Safety
    /// As above.
    pub(super) unsafe fn show(&mut self, response: &[u8]) {
        let n = response.len().min(self.fixed_len);
        if n > 0 {
            // SAFETY: the caller's promise; `n` is within both.
            unsafe { std::ptr::copy_nonoverlapping(response.as_ptr(), self.fixed, n) };
        }
    }
}

/// The driver's context, or EINVAL.
///
/// # Safety
/// `context` is null or readable.
pub(super) unsafe fn driven(context: *mut ibv_context) -> Result<Driven, Errno> {
    // SAFETY: the caller's promise.
    unsafe { of(context) }.ok_or(libc::EINVAL)
}

/// Issues a command on a context, and gives the fixed part of the response.
///
/// # Safety
/// The context is a driver's, and the memory that the command names may be used as it says.
pub(super) unsafe fn issue(
    context: *mut ibv_context,
    command: &Command,
    mut extra: Extra,
) -> Result<Vec<u8>, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let driven = driven(context)?;
        let mut response = vec![0; command.response];
        if (*driven.private).by_ioctl {
            let mut call = Call::new(method::INVOKE_WRITE);
            call.u64(method::WRITE_CMD, command.code().into());
            call.input(method::CORE_IN, &command.request);
            if !response.is_empty() {
                call.output(method::CORE_OUT, &mut response);
            }
            call.attributes.extend(extra.attributes()?);
            call.issue(context)?;
        } else {
            response.resize(command.response + extra.output_len, 0);
            let at = response.as_mut_ptr().expose_provenance() as u64;
            let written =
                command.written(extra.input(), at, extra.output_len).ok_or(libc::EINVAL)?;
            uverbs::write(descriptor(context), &written).map_err(|e| errno_of(&e))?;
            let own = response.split_off(command.response);
            extra.output().copy_from_slice(&own);
        }
        extra.show(&response);
        Ok(response)
    }
}

/// An ioctl that is being put together.
pub(super) struct Call {
    method: Method,
    attributes: Vec<Attribute>,
    links: Vec<(*mut Attribute, usize)>,
    problem: Option<Errno>,
}

impl Call {
    pub(super) fn new(method: Method) -> Self {
        Call { method, attributes: Vec::new(), links: Vec::new(), problem: None }
    }

    fn push(&mut self, attribute: std::io::Result<Attribute>) {
        match attribute {
            Ok(attribute) => self.attributes.push(attribute),
            Err(error) => self.problem = Some(errno_of(&error)),
        }
    }

    pub(super) fn extend(&mut self, attributes: Vec<Attribute>) {
        self.attributes.extend(attributes);
    }

    /// Bytes that stay until the call.
    pub(super) fn input(&mut self, id: u16, bytes: &[u8]) {
        self.push(Attribute::input(id, bytes));
    }

    /// Bytes that stay until the call, as that element of an enumeration.
    pub(super) fn element(&mut self, id: u16, element: u16, bytes: &[u8]) {
        self.push(Attribute::input(id, bytes).map(|a| Attribute { element, ..a }));
    }

    pub(super) fn u32(&mut self, id: u16, value: u32) {
        self.input(id, &value.to_ne_bytes());
    }

    pub(super) fn u64(&mut self, id: u16, value: u64) {
        self.input(id, &value.to_ne_bytes());
    }

    /// Room that stays until the call.
    pub(super) fn output(&mut self, id: u16, room: &mut [u8]) {
        self.push(Attribute::output(id, room));
    }

    /// A handle or a descriptor; 0 where the kernel makes it. Gives its place.
    pub(super) fn object(&mut self, id: u16, number: u64) -> usize {
        self.attributes.push(Attribute::object(id, number));
        self.attributes.len() - 1
    }

    /// A driver's attributes, which get back what the kernel says.
    ///
    /// # Safety
    /// `link` is null or leads to a list of buffers as the header makes them.
    pub(super) unsafe fn link(&mut self, mut link: *mut ibv_command_buffer) {
        // SAFETY: the caller's promise.
        unsafe {
            while !link.is_null() && self.links.len() < 16 {
                let first = (&raw mut (*link).attrs).cast::<Attribute>();
                let bytes = (*link).next_attr as usize;
                let n = bytes.wrapping_sub(first as usize) / size_of::<Attribute>();
                let beyond = (*link).next_attr > (*link).last_attr || (*link).next_attr < first;
                if (*link).errors & 1 != 0 || beyond || n > 64 {
                    self.problem = Some(libc::EINVAL);
                    return;
                }
                self.attributes.extend_from_slice(slice::from_raw_parts(first, n));
                self.links.push((first, n));
                link = (*link).next;
            }
        }
    }

    /// Calls the kernel. Gives the attributes as it left them.
    ///
    /// # Safety
    /// As for [`issue`].
    pub(super) unsafe fn issue(
        mut self,
        context: *mut ibv_context,
    ) -> Result<Vec<Attribute>, Errno> {
        if let Some(errno) = self.problem {
            return Err(errno);
        }
        // SAFETY: the caller's promise.
        unsafe {
            let driver = (*driven(context)?.private).driver_id;
            let Method(object, method) = self.method;
            let fd = descriptor(context);
            uverbs::ioctl(fd, object, method, driver, &mut self.attributes)
                .map_err(|e| errno_of(&e))?;
            // The driver's come last, in order.
            let total: usize = self.links.iter().map(|&(_, n)| n).sum();
            let mut rest = self.attributes.get(self.attributes.len() - total..).unwrap_or_default();
            for (place, n) in self.links {
                let (own, others) = rest.split_at(n.min(rest.len()));
                std::ptr::copy_nonoverlapping(own.as_ptr(), place, own.len());
                rest = others;
            }
        }
        Ok(self.attributes)
    }
}

/// Whether the kernel does not know the method: an older way may do.
pub(super) fn is_missing(errno: Errno) -> bool {
    matches!(errno, libc::ENOTTY | libc::EPROTONOSUPPORT)
}

/// The handle that the kernel made.
pub(super) fn handle(attributes: &[Attribute], at: usize) -> u32 {
    attributes.get(at).map_or(0, |attribute| attribute.data as u32)
}

/// `__ioctl_final_num_attrs`: attributes of this buffer and of those that it leads to.
///
/// # Safety
/// As for [`Call::link`].
pub(crate) unsafe extern "C" fn ioctl_final_num_attrs(
    num_attrs: u32,
    mut link: *mut ibv_command_buffer,
) -> u32 {
    let mut total = num_attrs;
    for _ in 0..16 {
        if link.is_null() {
            break;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let first = (&raw const (*link).attrs) as usize;
            total +=
                (((*link).next_attr as usize).wrapping_sub(first) / size_of::<Attribute>()) as u32;
            link = (*link).next;
        }
    }
    total
}

/// `execute_ioctl`: a driver's own method.
///
/// # Safety
/// As for [`Call::link`]; `context` is a driver's.
pub(crate) unsafe extern "C" fn execute_ioctl(
    context: *mut ibv_context,
    cmd: *mut ibv_command_buffer,
) -> c_int {
    if cmd.is_null() {
        return failed(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let mut call = Call::new(Method((*cmd).hdr.object_id, (*cmd).hdr.method_id));
        call.link(cmd);
        status(call.issue(context).map(drop))
    }
}

/// Whether ending an object worked: where its device is gone, EIO may count as that.
pub(super) fn ended(result: Result<Vec<u8>, Errno>) -> Result<Option<Vec<u8>>, Errno> {
    match result {
        Err(libc::EIO) if std::env::var_os("RDMAV_ALLOW_DISASSOC_DESTROY").is_some() => Ok(None),
        other => other.map(Some),
    }
}

/// Waits until the program has acknowledged every event of an object that ends.
///
/// # Safety
/// The mutex, the condition and what `done` looks at are those of a driver's object.
pub(super) unsafe fn wait(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    done: impl Fn() -> bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while !done() {
            libc::pthread_cond_wait(cond, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}
