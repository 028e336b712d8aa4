//! Which paths are sent elsewhere, and where to. Pure: bytes in, bytes out.

/// The directories shown from the view, as children of `/sys/class` and `/dev`.
pub(crate) const PREFIXES: [&[u8]; 4] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_mad",
    b"/dev/infiniband",
];

/// What becomes of a path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Not ours.
    Pass,
    /// The first so many bytes of the buffer name it now; a NUL follows.
    Rewritten(usize),
    /// It is ours, and does not fit the buffer.
    TooLong,
}

/// Where the walk along a path has come to. Only real directories stand here, so that `..` may be
/// resolved by name.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Place {
    Root,
    Sys,
    SysClass,
    Dev,
    /// In one of [`PREFIXES`], so many components below it.
    Within {
        depth: usize,
    },
}

impl Place {
    fn name(self) -> &'static [u8] {
        match self {
            Place::Root | Place::Within { .. } => b"",
            Place::Sys => b"/sys",
            Place::SysClass => b"/sys/class",
            Place::Dev => b"/dev",
        }
    }

    fn parent(self) -> Place {
        match self {
            Place::SysClass => Place::Sys,
            _ => Place::Root,
        }
    }
}

/// Sends an absolute path that lies in one of [`PREFIXES`] to the same path under `view`.
///
/// Doubled slashes, `.` and `..` are understood as the kernel does. A path that enters a prefix
/// and leaves it by `..` names something outside the view: it is written out without the detour,
/// for the prefix need not exist on this machine.
pub(crate) fn rewrite(path: &[u8], view: &[u8], buffer: &mut [u8]) -> Outcome {
    if path.first() != Some(&b'/') {
        return Outcome::Pass;
    }
    let mut out = Output { buffer, len: 0, overflow: false };
    let mut place = Place::Root;
    // The directory that holds the prefix we are in.
    let mut holder = Place::Root;
    let mut entered = false;
    let mut rest = path;
    loop {
        let (component, after) = next_component(rest);
        match (place, component) {
            (_, b"") => break,
            (_, b".") => {}
            (Place::Within { depth: 0 }, b"..") => place = holder,
            (Place::Within { depth }, b"..") => {
                out.component(b"..");
                place = Place::Within { depth: depth.saturating_sub(1) };
            }
            (Place::Within { depth }, name) => {
                out.component(name);
                place = Place::Within { depth: depth.saturating_add(1) };
            }
            (_, b"..") => place = place.parent(),
            (Place::Root, b"sys") => place = Place::Sys,
            (Place::Root, b"dev") => place = Place::Dev,
            (Place::Sys, b"class") => place = Place::SysClass,
            (_, name) if is_prefix(place, name) => {
                entered = true;
                holder = place;
                out.restart();
                out.push(view);
                out.push(place.name());
                out.component(name);
                place = Place::Within { depth: 0 };
            }
            _ if entered => {
                out.restart();
                out.push(place.name());
                out.push(b"/");
                out.push(without_slashes(rest));
                return out.finish();
            }
            _ => return Outcome::Pass,
        }
        rest = after;
    }
    if !entered {
        return Outcome::Pass;
    }
    match place {
        Place::Within { .. } => {
            if matches!(path, [.., b'/'] | [.., b'/', b'.']) {
                out.push(b"/");
            }
        }
        Place::Root => {
            out.restart();
            out.push(b"/");
        }
        place => {
            out.restart();
            out.push(place.name());
        }
    }
    out.finish()
}

fn is_prefix(place: Place, name: &[u8]) -> bool {
    matches!(place, Place::SysClass | Place::Dev)
        && PREFIXES
            .iter()
            .any(|p| p.strip_prefix(place.name()).and_then(|p| p.strip_prefix(b"/")) == Some(name))
}

/// The first component, empty at the end, and what follows it.
fn next_component(path: &[u8]) -> (&[u8], &[u8]) {
    let path = without_slashes(path);
    let end = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
    path.split_at_checked(end).unwrap_or((path, b""))
}

fn without_slashes(mut path: &[u8]) -> &[u8] {
    while let [b'/', tail @ ..] = path {
        path = tail;
    }
    path
}

struct Output<'a> {
    buffer: &'a mut [u8],
    len: usize,
    overflow: bool,
}

impl Output<'_> {
    fn restart(&mut self) {
        self.len = 0;
        self.overflow = false;
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.len.saturating_add(bytes.len());
        match self.buffer.get_mut(self.len..end) {
            Some(place) if !self.overflow => {
                place.copy_from_slice(bytes);
                self.len = end;
            }
            _ => self.overflow = true,
        }
    }

    fn component(&mut self, name: &[u8]) {
        self.push(b"/");
        self.push(name);
    }

    fn finish(mut self) -> Outcome {
        let len = self.len;
        self.push(b"\0");
        if self.overflow { Outcome::TooLong } else { Outcome::Rewritten(len) }
    }
}
