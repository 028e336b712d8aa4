//! Numbers at fixed places of a body. The places are constants of the formats, so no input can
//! move an access out of bounds.

use super::BODY_LEN;

/// What follows the common header.
pub(super) type Body = [u8; BODY_LEN];

/// The bytes from `at` on.
pub(super) fn bytes<const N: usize>(body: &Body, at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&body[at..at + N]);
    out
}

pub(super) fn be16(body: &Body, at: usize) -> u16 {
    u16::from_be_bytes(bytes(body, at))
}

pub(super) fn be24(body: &Body, at: usize) -> u32 {
    be32(body, at) >> 8
}

pub(super) fn be32(body: &Body, at: usize) -> u32 {
    u32::from_be_bytes(bytes(body, at))
}

pub(super) fn be64(body: &Body, at: usize) -> u64 {
    u64::from_be_bytes(bytes(body, at))
}

pub(super) fn put(body: &mut Body, at: usize, bytes: &[u8]) {
    body[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A number of 24 bits and the byte after it.
pub(super) fn put24(body: &mut Body, at: usize, number: u32, byte: u8) {
    put(body, at, &(number << 8 | u32::from(byte)).to_be_bytes());
}

/// The low `bits` of `value`, moved up by `shift`.
pub(super) const fn low(value: u8, bits: u32, shift: u32) -> u8 {
    (value & ((1u16 << bits) - 1) as u8) << shift
}
