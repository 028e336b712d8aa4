//! Addresses of ports as text: LIDs and directed routes.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::fmt::Write;
use std::net::Ipv6Addr;

use super::abi::*;
use super::text::{put, string};

/// As [`portid2str`] prints it.
pub(super) fn name(portid: &ib_portid_t) -> String {
    let mut text = String::new();
    if portid.lid > 0 {
        let _ = write!(text, "Lid {}", portid.lid);
        if portid.grh_present != 0 {
            let _ = write!(text, " Gid {}", Ipv6Addr::from(portid.gid));
        }
        if portid.drpath.cnt == 0 {
            return text;
        }
        text.push(' ');
    }
    text + "DR path " + &route(&portid.drpath)
}

fn route(path: &ib_dr_path_t) -> String {
    let [first, rest @ ..] = &path.p;
    let mut text = format!("slid {}; dlid {}; {first}", path.drslid, path.drdlid);
    for hop in rest.iter().take(usize::try_from(path.cnt).unwrap_or(0)) {
        let _ = write!(text, ",{hop}");
    }
    text
}

/// The string is the thread's, until its next call.
///
/// # Safety
/// `portid` is null or points to its type.
pub(crate) unsafe extern "C" fn portid2str(portid: *mut ib_portid_t) -> *mut c_char {
    const ROOM: usize = 1024;
    thread_local! {
        static TEXT: UnsafeCell<[c_char; ROOM]> = const { UnsafeCell::new([0; ROOM]) };
    }
    // SAFETY: the caller's promise.
    let text = unsafe { portid.as_ref() }.map(name).unwrap_or_default();
    let room = TEXT.with(|text| text.get().cast::<c_char>());
    // SAFETY: the buffer is this thread's and has that size.
    unsafe { put(room, ROOM as c_int, text.as_bytes()) };
    room
}

/// The port by which a directed route leaves its last node but one; -1 for a LID.
///
/// # Safety
/// `portid` is null or points to its type.
pub(crate) unsafe extern "C" fn portid2portnum(portid: *mut ib_portid_t) -> c_int {
    // SAFETY: the caller's promise.
    let Some(portid) = (unsafe { portid.as_ref() }).filter(|portid| portid.lid <= 0) else {
        return -1;
    };
    let last = usize::try_from(portid.drpath.cnt).unwrap_or(0).checked_sub(1);
    last.and_then(|at| portid.drpath.p.get(at)).map_or(0, |port| c_int::from(*port))
}

/// From ports with commas between. Returns the number of hops, -1 where there is none or are more than a route has.
///
/// # Safety
/// `path` points to its type, `text` is null or a string.
pub(crate) unsafe extern "C" fn str2drpath(
    path: *mut ib_dr_path_t,
    text: *mut c_char,
    drslid: c_int,
    drdlid: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (path, text) = unsafe { (path.as_mut(), string(text)) };
    let Some(path) = path else { return -1 };
    (path.cnt, path.drslid, path.drdlid) = (-1, drslid as u16, drdlid as u16);
    let mut rest = text.unwrap_or_default();
    let mut hops = Vec::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b',');
        let (hop, more) = rest.split_at(end.unwrap_or(rest.len()));
        hops.push(leading_number(hop) as u8);
        rest = more.get(1..).unwrap_or_default();
    }
    let Some(to) = path.p.get_mut(..hops.len()) else { return -1 };
    to.copy_from_slice(&hops);
    path.cnt = hops.len() as c_int - 1;
    path.cnt
}

/// As atoi(3): 0 where there is none.
fn leading_number(text: &[u8]) -> i64 {
    let text = text.trim_ascii_start();
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let value = digits.fold(0_i64, |value, digit| {
        value.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
    });
    sign * value
}

/// # Safety
/// `path` points to its type; `text` has room for `size` bytes.
pub(crate) unsafe extern "C" fn drpath2str(
    path: *mut ib_dr_path_t,
    text: *mut c_char,
    size: usize,
) -> *mut c_char {
    // SAFETY: the caller's promise.
    if let Some(path) = (unsafe { path.as_ref() }).filter(|_| !text.is_null()) {
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        // SAFETY: the caller's promise.
        unsafe { put(text, size, route(path).as_bytes()) };
    }
    text
}
