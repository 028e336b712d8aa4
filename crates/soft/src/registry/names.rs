//! The names of the group's unix sockets.

use std::fmt::Write as _;
use std::io;

use ironverbs_sys::unix::Name;
use ironverbs_wire::ROCE_PORT;

use super::JoinOptions;

/// Names of one group: `<namespace>/<uid>/…`, with the port in it where it is not RoCEv2's own.
///
/// A name says what somebody claims to be. Whether it is true, the peer's credentials tell.
#[derive(Clone, Debug)]
pub(super) struct Names {
    base: String,
}

impl Names {
    pub(super) fn new(options: &JoinOptions, uid: u32) -> Names {
        Names { base: format!("{}{uid}", Names::prefix(options)) }
    }

    /// What comes before the user's number.
    pub(super) fn prefix(options: &JoinOptions) -> String {
        let namespace = &options.namespace;
        match options.port {
            ROCE_PORT => format!("{namespace}/"),
            port => format!("{namespace}:{port}/"),
        }
    }

    /// Where the member in a slot hands the group to newcomers.
    pub(super) fn entry(&self, slot: u16) -> io::Result<Name> {
        self.name(|out| write!(out, "{slot}"))
    }

    /// Where the member in a slot takes what other members send it.
    pub(super) fn mailbox(&self, slot: u16) -> io::Result<Name> {
        self.name(|out| write!(out, "{slot}/mail"))
    }

    /// Held by the process that starts the group; the `turn` counts on when a name is held by
    /// another user.
    pub(super) fn founder(&self, turn: u16) -> io::Result<Name> {
        self.name(|out| write!(out, "founder/{turn}"))
    }

    fn name(&self, last: impl FnOnce(&mut Text) -> std::fmt::Result) -> io::Result<Name> {
        let mut text = Text { bytes: [0; 108], len: 0 };
        write!(text, "{}/", self.base)
            .and_then(|()| last(&mut text))
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Name::new(text.bytes.get(..text.len).unwrap_or_default())
    }
}

/// Text on the stack: a name is made for every forwarded packet.
struct Text {
    bytes: [u8; 108],
    len: usize,
}

impl std::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(std::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_shows_unless_it_is_the_usual_one() {
        let mut options = JoinOptions::default();
        let names = Names::new(&options, 1000);
        assert_eq!(format!("{:?}", names.entry(7).unwrap()), "@ironverbs/1000/7");
        assert_eq!(format!("{:?}", names.mailbox(1023).unwrap()), "@ironverbs/1000/1023/mail");
        options.port = 4800;
        let names = Names::new(&options, 0);
        assert_eq!(format!("{:?}", names.founder(0).unwrap()), "@ironverbs:4800/0/founder/0");
    }

    #[test]
    fn too_long_a_namespace_is_an_error() {
        let options = JoinOptions { namespace: "x".repeat(120), ..JoinOptions::default() };
        assert!(Names::new(&options, 0).entry(0).is_err());
    }
}
