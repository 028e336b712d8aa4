//! Fields of datagrams: read, written, printed.
//!
//! libibmad counts the bits of a field of up to 32 bits within words of 32, from the least significant bit of the word on,
//! so that base offsets which are no multiple of 4 move the bytes of a word in a way of its own. Programs get the same here.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::table::{Field, field};
use super::text::{print, put, string};

/// Bytes that the number and the dots of a line take.
const DOTS: usize = 33;

impl Field {
    /// The number of its least significant bit, in bytes that are counted backwards within each word.
    fn low(&self) -> isize {
        let at = self.at as isize;
        if self.width > 32 { at } else { (at & !31) + 32 - (at & 31) - self.width as isize }
    }

    /// Which byte of the structure it begins with, where it is an array or a number of 64 bits.
    fn byte(&self) -> isize {
        self.low() / 8
    }
}

/// A byte of the backward count.
///
/// # Safety
/// The byte is part of the buffer.
unsafe fn at(buf: *mut u8, index: isize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { buf.offset(3 ^ index) }
}

/// The low 32 bits.
///
/// # Safety
/// `buf` has the field, `base` bytes behind its begin.
unsafe fn get(buf: *mut u8, base: c_int, field: &Field) -> u32 {
    let low = base as isize * 8 + field.low();
    let width = field.width.min(32);
    let (first, shift) = (low.div_euclid(8), low.rem_euclid(8) as u32);
    let mut value = 0;
    for nth in 0..(shift + width).div_ceil(8) {
        // SAFETY: the caller's promise: it holds bits of the field.
        value |= u64::from(unsafe { *at(buf, first + nth as isize) }) << (8 * nth);
    }
    (value >> shift & ((1 << width) - 1)) as u32
}

/// What does not fit changes the rest of the byte that has the most significant bits, as in libibmad.
///
/// # Safety
/// As [`get`].
unsafe fn set(buf: *mut u8, base: c_int, field: &Field, value: u32) {
    let low = base as isize * 8 + field.low();
    let (mut at_bit, mut left, mut rest) = (low, field.width, u64::from(value));
    while left > 0 {
        let (index, shift) = (at_bit.div_euclid(8), at_bit.rem_euclid(8) as u32);
        let here = left.min(8 - shift);
        let mask = ((1_u32 << here) - 1) << shift;
        let last_of_many = here == left && shift == 0 && here < 8 && left != field.width;
        let new = if last_of_many { rest as u32 } else { (rest as u32) << shift & mask };
        // SAFETY: the caller's promise.
        unsafe {
            let byte = at(buf, index);
            *byte = (u32::from(*byte) & !mask | new) as u8;
        }
        rest >>= here;
        at_bit += here as isize;
        left -= here;
    }
}

/// # Safety
/// `buf` has the field, `base` bytes behind its begin.
pub(crate) unsafe extern "C" fn mad_get_field(buf: *mut c_void, base: c_int, number: u32) -> u32 {
    match field(number) {
        // SAFETY: the caller's promise.
        Some(field) if !buf.is_null() => unsafe { get(buf.cast(), base, field) },
        _ => 0,
    }
}

/// # Safety
/// As [`mad_get_field`].
pub(crate) unsafe extern "C" fn mad_set_field(
    buf: *mut c_void,
    base: c_int,
    number: u32,
    value: u32,
) {
    if let Some(field) = field(number).filter(|_| !buf.is_null()) {
        // SAFETY: the caller's promise.
        unsafe { set(buf.cast(), base, field, value) };
    }
}

/// Where the bytes of a field begin.
fn start(buf: *mut c_void, base: c_int, byte: isize) -> *mut u8 {
    buf.cast::<u8>().wrapping_offset(base as isize + byte)
}

/// # Safety
/// As [`mad_get_field`]; the field has 64 bits.
pub(crate) unsafe extern "C" fn mad_get_field64(buf: *mut c_void, base: c_int, number: u32) -> u64 {
    match field(number) {
        Some(field) if !buf.is_null() => {
            // SAFETY: the caller's promise.
            u64::from_be(unsafe { start(buf, base, field.byte()).cast::<u64>().read_unaligned() })
        }
        _ => 0,
    }
}

/// # Safety
/// As [`mad_get_field64`].
pub(crate) unsafe extern "C" fn mad_set_field64(
    buf: *mut c_void,
    base: c_int,
    number: u32,
    value: u64,
) {
    if let Some(field) = field(number).filter(|_| !buf.is_null()) {
        let to = start(buf, base, field.byte()).cast::<u64>();
        // SAFETY: the caller's promise.
        unsafe { to.write_unaligned(value.to_be()) };
    }
}

/// # Safety
/// As [`mad_get_field`]; `value` has the bytes of the field.
pub(crate) unsafe extern "C" fn mad_set_array(
    buf: *mut c_void,
    base: c_int,
    number: u32,
    value: *mut c_void,
) {
    if let Some(field) = field(number).filter(|_| !buf.is_null() && !value.is_null()) {
        let to = start(buf, base, field.at as isize / 8);
        // SAFETY: the caller's promise.
        unsafe { ptr::copy(value.cast(), to, field.width as usize / 8) };
    }
}

/// # Safety
/// As [`mad_set_array`].
pub(crate) unsafe extern "C" fn mad_get_array(
    buf: *mut c_void,
    base: c_int,
    number: u32,
    value: *mut c_void,
) {
    if let Some(field) = field(number).filter(|_| !buf.is_null() && !value.is_null()) {
        let from = start(buf, base, field.at as isize / 8);
        // SAFETY: the caller's promise.
        unsafe { ptr::copy(from, value.cast(), field.width as usize / 8) };
    }
}

/// From a structure to a value as [`print`] takes it.
///
/// # Safety
/// `buf` has the field; `value` has room for an int, a uint64_t or the array that it is.
pub(crate) unsafe extern "C" fn mad_decode_field(buf: *mut u8, number: u32, value: *mut c_void) {
    let Some(field) = field(number).filter(|_| !buf.is_null() && !value.is_null()) else { return };
    // SAFETY: the caller's promise.
    unsafe {
        match field.width {
            // No field is the first word as it is.
            _ if number == 0 => {
                value.cast::<u32>().write_unaligned(buf.cast::<u32>().read_unaligned())
            }
            0..=32 => value.cast::<u32>().write_unaligned(get(buf, 0, field)),
            64 => value.cast::<u64>().write_unaligned(mad_get_field64(buf.cast(), 0, number)),
            _ => mad_get_array(buf.cast(), 0, number, value),
        }
    }
}

/// # Safety
/// As [`mad_decode_field`], the other way round.
pub(crate) unsafe extern "C" fn mad_encode_field(buf: *mut u8, number: u32, value: *mut c_void) {
    let Some(field) = field(number).filter(|_| !buf.is_null() && !value.is_null()) else { return };
    // SAFETY: the caller's promise.
    unsafe {
        match field.width {
            _ if number == 0 => {
                buf.cast::<u32>().write_unaligned(value.cast::<u32>().read_unaligned())
            }
            0..=32 => set(buf, 0, field, value.cast::<u32>().read_unaligned()),
            64 => mad_set_field64(buf.cast(), 0, number, value.cast::<u64>().read_unaligned()),
            _ => mad_set_array(buf.cast(), 0, number, value),
        }
    }
}

/// The field, unless the number is none or that of no field.
fn printable(number: u32) -> Option<&'static Field> {
    field(number).filter(|_| number != 0)
}

/// # Safety
/// `buf` has room for `size` bytes; `value` is as [`print`] takes it.
pub(crate) unsafe extern "C" fn mad_dump_val(
    number: u32,
    buf: *mut c_char,
    size: c_int,
    value: *mut c_void,
) -> *mut c_char {
    let Some(field) = printable(number).filter(|_| !buf.is_null() && size > 0) else {
        return ptr::null_mut();
    };
    // SAFETY: the caller's promise.
    unsafe {
        dump_value(field, buf, size, value, field.bytes() as c_int);
        buf.add(size as usize - 1).write(0);
    }
    buf
}

/// # Safety
/// As [`mad_dump_val`].
unsafe fn dump_value(
    field: &Field,
    buf: *mut c_char,
    size: c_int,
    value: *mut c_void,
    bytes: c_int,
) {
    if let Some(kind) = field.kind {
        // SAFETY: the caller's promise.
        unsafe { print(kind, buf, size, value, bytes) };
    }
}

/// A name, a colon and dots up to where values begin.
fn label(name: &[u8]) -> Vec<u8> {
    let mut text = [name, b":"].concat();
    text.resize(text.len().max(DOTS), b'.');
    text
}

/// # Safety
/// As [`mad_dump_val`].
pub(crate) unsafe extern "C" fn mad_dump_field(
    number: u32,
    buf: *mut c_char,
    size: c_int,
    value: *mut c_void,
) -> *mut c_char {
    let Some(field) = printable(number).filter(|_| !buf.is_null()) else { return ptr::null_mut() };
    // SAFETY: the caller's promise.
    let has_room = unsafe { line(field, field.name().to_bytes(), buf, size, value) };
    if has_room { buf } else { ptr::null_mut() }
}

/// Whether there was room for more than the name.
///
/// # Safety
/// As [`mad_dump_val`].
unsafe fn line(
    field: &Field,
    name: &[u8],
    buf: *mut c_char,
    size: c_int,
    value: *mut c_void,
) -> bool {
    let label = label(name);
    let used = label.len() as c_int;
    if size < used {
        return false;
    }
    // SAFETY: the caller's promise; the label is cut to the room, and behind it is what is left.
    unsafe {
        put(buf, size, &label);
        dump_value(field, buf.add(label.len()), size - used, value, field.bytes() as c_int);
        buf.add(size as usize - 1).write(0);
    }
    true
}

/// # Safety
/// `name` is null or a string; `value` is as [`print`] takes it.
pub(crate) unsafe extern "C" fn mad_print_field(
    number: u32,
    name: *const c_char,
    value: *mut c_void,
) -> c_int {
    let Some(field) = printable(number) else { return -1 };
    let mut text: [c_char; 512] = [0; 512];
    // SAFETY: the caller's promise; the buffer has that size, and its text ends within it. The stream is C's own, so that
    // what the program printed before stands before it.
    unsafe {
        let name = string(name).unwrap_or(field.name().to_bytes());
        if !line(field, name, text.as_mut_ptr(), text.len() as c_int, value) {
            return -1;
        }
        libc::printf(c"%s\n".as_ptr(), text.as_ptr())
    }
}

/// A string that lives as long as the process; null for a number of no field.
pub(crate) extern "C" fn mad_field_name(number: u32) -> *const c_char {
    field(number).map_or(ptr::null(), |field| field.name().as_ptr())
}

/// Prints the fields of these numbers, a line each, as far as there is room.
///
/// # Safety
/// `buf` has room for `size` bytes; `structure` has the fields.
pub(super) unsafe fn dump(
    buf: *mut c_char,
    size: c_int,
    structure: *mut c_void,
    numbers: impl Iterator<Item = u32>,
) {
    if buf.is_null() || structure.is_null() {
        return;
    }
    let (mut to, mut left) = (buf, size);
    for number in numbers {
        // The longest field, SaData, has 200 bytes, a vendor's data 216.
        let mut value = [0_u64; 32];
        // SAFETY: the caller's promise; each line is cut to the room that is left, less the byte for its end.
        unsafe {
            mad_decode_field(structure.cast(), number, value.as_mut_ptr().cast());
            if mad_dump_field(number, to, left.saturating_sub(1), value.as_mut_ptr().cast())
                .is_null()
            {
                return;
            }
            let len = libc::strlen(to);
            to = to.add(len);
            to.write(b'\n' as c_char);
            to = to.add(1);
            to.write(0);
            left -= len as c_int + 1;
        }
    }
}

/// # Safety
/// As [`dump`].
pub(crate) unsafe extern "C" fn mad_dump_fields(
    buf: *mut c_char,
    size: c_int,
    structure: *mut c_void,
    _bytes: c_int,
    start: c_int,
    end: c_int,
) {
    let (start, end) = (start.max(0) as u32, end.max(0) as u32);
    // SAFETY: the caller's promise.
    unsafe { dump(buf, size, structure, start..end) };
}
