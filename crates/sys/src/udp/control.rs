//! Ancillary data of sendmsg(2) and recvmsg(2), by the layout of cmsg(3).

use std::mem::size_of;

use libc::c_int;

/// `struct cmsghdr` as the kernel has it: a size_t length that counts the header, level, type.
const HEADER: usize = size_of::<usize>() + 2 * size_of::<c_int>();

/// Each message starts at a multiple of this.
const ALIGN: usize = size_of::<usize>();

/// Room for every message that a send or a receive here can carry, of either family.
const ROOM: usize = 192;

/// A control buffer.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; ROOM],
    len: usize,
}

impl Control {
    pub(super) const EMPTY: Self = Self { bytes: [0; ROOM], len: 0 };
    pub(super) const ROOM: usize = ROOM;

    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.bytes.as_mut_ptr().cast()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// After a receive: how much of the buffer the kernel filled.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(ROOM);
    }

    /// Appends one message.
    pub(super) fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let start = self.len;
        let end = start + HEADER + data.len();
        let out = &mut self.bytes[start..end];
        out[..ALIGN].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        out[ALIGN..ALIGN + 4].copy_from_slice(&level.to_ne_bytes());
        out[ALIGN + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        out[HEADER..].copy_from_slice(data);
        self.len = end.next_multiple_of(ALIGN);
    }

    /// The messages, in order; ends at the first that does not fit its buffer.
    pub(super) fn messages(&self) -> Messages<'_> {
        Messages(&self.bytes[..self.len])
    }
}

pub(super) struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    /// Level, type, data.
    type Item = (c_int, c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (len, rest) = self.0.split_first_chunk::<{ size_of::<usize>() }>()?;
        let (level, rest) = rest.split_first_chunk::<4>()?;
        let (kind, _) = rest.split_first_chunk::<4>()?;
        let len = usize::from_ne_bytes(*len);
        let data = self.0.get(HEADER..len)?;
        self.0 = self.0.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind), data))
    }
}

/// An integer of native byte order at the start of a message's data.
pub(super) fn int(data: &[u8]) -> Option<c_int> {
    data.first_chunk().map(|b| c_int::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_went_in() {
        let mut control = Control::EMPTY;
        control.push(17, 103, &4096u16.to_ne_bytes());
        control.push(0, 8, &[1; 12]);
        control.push(41, 50, &[2; 20]);
        let seen: Vec<_> = control.messages().map(|(l, k, d)| (l, k, d.len())).collect();
        assert_eq!(seen, [(17, 103, 2), (0, 8, 12), (41, 50, 20)]);
    }

    #[test]
    fn a_length_beyond_the_buffer_ends_the_list() {
        let mut control = Control::EMPTY;
        control.push(0, 2, &[0; 4]);
        for len in [0usize, 3, ROOM, usize::MAX] {
            control.bytes[..ALIGN].copy_from_slice(&len.to_ne_bytes());
            assert!(control.messages().next().is_none(), "length {len}");
        }
    }
}
