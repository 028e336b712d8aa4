//! Completions in bytes (`struct siw_cqe`), and the word by which the kernel is asked to tell of the next one.

use super::VALID;

/// Bytes of a completion.
pub const SIZE: usize = 32;
/// Bytes behind the completions of a queue (`struct siw_cq_ctrl`), of which the first four are the word of [`asks`].
pub const CONTROL: usize = 8;

/// What of a completion is read, in one go, after its word: words of 4 bytes at these places.
pub const ID: usize = 0;
/// See [`ID`].
pub const BYTES: usize = 12;
/// See [`ID`].
pub const QPN: usize = 24;

/// A completion as programs have it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct What {
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// `enum ibv_wc_opcode`.
    pub opcode: u32,
}

/// What the word of a completion says; `None` while it is the kernel's. The memory is shared: a kind or status that there is
/// not is an error of no known cause.
#[inline]
pub fn what(word: u32) -> Option<What> {
    /// In the order of `enum siw_opcode`: WRITE, two READs, three SENDs, fetch and add, compare and swap, receive.
    const OPCODES: [u8; 9] = [1, 2, 2, 0, 0, 0, 4, 3, 128];
    /// In the order of `enum siw_wc_status`: success, local length, protection and operation, flushed, bad response, local
    /// and remote access, remote request, general.
    const STATUSES: [u8; 10] = [0, 1, 4, 2, 5, 7, 8, 10, 9, GENERAL];
    const GENERAL: u8 = 21;
    let [flags, opcode, low, high] = word.to_ne_bytes();
    if u16::from(flags) & VALID == 0 {
        return None;
    }
    let status = usize::from(u16::from_ne_bytes([low, high]));
    let status = STATUSES.get(status).copied().unwrap_or(GENERAL);
    Some(match OPCODES.get(usize::from(opcode)) {
        Some(&opcode) => What { status: status.into(), opcode: opcode.into() },
        None => What { status: GENERAL.into(), opcode: 0 },
    })
}

/// The word that asks for an event with the next completion, or the next that was solicited (`enum siw_notify_flags`).
#[inline]
pub fn asks(solicited: bool) -> u32 {
    const SOLICITED: u32 = 1;
    const NEXT: u32 = 1 << 1;
    if solicited { SOLICITED } else { SOLICITED | NEXT }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(flags: u8, opcode: u8, status: u16) -> u32 {
        let [low, high] = status.to_ne_bytes();
        u32::from_ne_bytes([flags, opcode, low, high])
    }

    #[test]
    fn a_completion_is_read_as_programs_have_it() {
        let of = |opcode, status| what(word(1, opcode, status)).map(|w| (w.opcode, w.status));
        assert_eq!([0, 1, 2, 3, 5, 8].map(|opcode| of(opcode, 0).unwrap().0), [1, 2, 2, 0, 0, 128]);
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|status| of(3, status).unwrap().1),
            [0, 1, 4, 2, 5, 7, 8, 10, 9, 21]
        );
        assert_eq!(what(word(0, 3, 0)), None);
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        for (opcode, status) in [(9, 0), (255, 0), (3, 10), (3, u16::MAX)] {
            let told = what(word(1, opcode, status)).unwrap();
            assert_eq!(told.status, 21, "{opcode} {status}");
        }
    }

    #[test]
    fn who_asks_for_any_asks_for_solicited_ones_too() {
        assert_eq!([true, false].map(asks), [1, 3]);
    }
}
