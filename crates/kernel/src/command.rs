//! Commands of the interface by write(2), which newer kernels take by ioctl(2), too, and their responses.
//!
//! A command is its number, a fixed part and a fixed response; what a driver adds to both travels behind them.

/// A command, as far as every driver's is the same.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Command {
    /// Its number (`IB_USER_VERBS_CMD_*`).
    pub number: u32,
    /// Whether it is one of the second generation (`IB_USER_VERBS_EX_CMD_*`), whose response is named in its header.
    pub extended: bool,
    /// Its fixed part. In the first generation, one that has a response starts with room for its address.
    pub request: Vec<u8>,
    /// Bytes of the fixed response.
    pub response: usize,
}

/// Bytes in front of the fixed part: `struct ib_uverbs_cmd_hdr`, and behind it `ib_uverbs_ex_cmd_hdr`.
pub const HEADER: usize = 8;
/// See [`HEADER`].
pub const EXTENDED_HEADER: usize = 24;

const EXTENDED_FLAG: u32 = 1 << 31;

impl Command {
    /// Bytes in front of the fixed part.
    pub fn header(&self) -> usize {
        if self.extended { EXTENDED_HEADER } else { HEADER }
    }

    /// The number as the kernel knows it.
    pub fn code(&self) -> u32 {
        if self.extended { self.number | EXTENDED_FLAG } else { self.number }
    }

    /// The whole command for write(2), with the driver's part, for responses at that address of which the driver's
    /// part has so many bytes. `None` when lengths are no multiples of the words that the header counts in.
    pub fn written(&self, driver: &[u8], response: u64, driver_response: usize) -> Option<Vec<u8>> {
        let words = |bytes: usize, word: usize| {
            (bytes.is_multiple_of(word)).then(|| u16::try_from(bytes / word).ok())?
        };
        let mut out = Bytes::new().u32(self.code());
        if self.extended {
            let response = if self.response + driver_response == 0 { 0 } else { response };
            out = out
                .u16(words(self.request.len(), 8)?)
                .u16(words(self.response, 8)?)
                .u64(response)
                .u16(words(driver.len(), 8)?)
                .u16(words(driver_response, 8)?)
                .u32(0)
                .bytes(&self.request);
        } else {
            let total = HEADER + self.request.len() + driver.len();
            out = out.u16(words(total, 4)?).u16(words(self.response + driver_response, 4)?);
            out = match self.response {
                0 => out.bytes(&self.request),
                _ => out.u64(response).bytes(self.request.get(8..)?),
            };
        }
        Some(out.bytes(driver).0)
    }
}

/// Bytes as they are appended, numbers in host order.
#[derive(Clone, Debug, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes.
    #[must_use]
    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.0.extend_from_slice(value);
        self
    }

    /// Appends zeros.
    #[must_use]
    pub fn zeros(mut self, n: usize) -> Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }

    /// Appends a number.
    #[must_use]
    pub fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    /// Appends a number.
    #[must_use]
    pub fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends a number.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends a number.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    fn command(self, number: u32, response: usize) -> Command {
        Command { number, extended: false, request: self.0, response }
    }

    fn extended(self, number: u32, response: usize) -> Command {
        Command { number, extended: true, request: self.0, response }
    }
}

/// What a response has at a place; zero behind its end.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a>(pub &'a [u8]);

impl Response<'_> {
    /// The number at that place.
    pub fn u8(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or_default()
    }

    /// The number at that place.
    pub fn u16(&self, at: usize) -> u16 {
        self.part(at).map_or(0, u16::from_ne_bytes)
    }

    /// The number at that place.
    pub fn u32(&self, at: usize) -> u32 {
        self.part(at).map_or(0, u32::from_ne_bytes)
    }

    /// The number at that place.
    pub fn u64(&self, at: usize) -> u64 {
        self.part(at).map_or(0, u64::from_ne_bytes)
    }

    /// The bytes at that place.
    pub fn part<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied()
    }
}

/// Room for the address of the response.
fn answered() -> Bytes {
    Bytes::new().u64(0)
}

/// Opens a context: the descriptor for asynchronous events, the number of completion vectors.
pub fn get_context() -> Command {
    answered().command(0, 8)
}

/// The device's attributes; read with [`crate::queue`]'s callers' offsets of `ib_uverbs_query_device_resp`.
pub fn query_device() -> Command {
    answered().command(1, QUERY_DEVICE_RESPONSE)
}

/// The same and more, for a response of that length.
pub fn query_device_extended(response: usize) -> Command {
    Bytes::new().zeros(8).extended(1, response)
}

/// Bytes of `struct ib_uverbs_query_device_resp`.
pub const QUERY_DEVICE_RESPONSE: usize = 176;
/// Bytes of `struct ib_uverbs_ex_query_device_resp`.
pub const QUERY_DEVICE_EXTENDED_RESPONSE: usize = 304;

/// The port's attributes.
pub fn query_port(port: u8) -> Command {
    answered().u8(port).zeros(7).command(2, QUERY_PORT_RESPONSE)
}

/// Bytes of `struct ib_uverbs_query_port_resp`.
pub const QUERY_PORT_RESPONSE: usize = 40;

/// A protection domain: its handle.
pub fn alloc_pd() -> Command {
    answered().command(3, 4)
}

/// Ends it.
pub fn dealloc_pd(handle: u32) -> Command {
    Bytes::new().u32(handle).command(4, 0)
}

/// A memory region: handle, lkey, rkey.
pub fn reg_mr(start: u64, length: u64, iova: u64, pd: u32, access: u32) -> Command {
    answered().u64(start).u64(length).u64(iova).u32(pd).u32(access).command(9, 12)
}

/// What a region is to become.
#[derive(Clone, Copy, Debug)]
pub struct Reregistration {
    /// `IBV_REREG_MR_*`: which of the others count.
    pub flags: u32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// The address that peers use for the first.
    pub iova: u64,
    /// Handle of the protection domain.
    pub pd: u32,
    /// Rights.
    pub access: u32,
}

/// Changes a region: lkey, rkey.
pub fn rereg_mr(handle: u32, to: &Reregistration) -> Command {
    let what = answered().u32(handle).u32(to.flags).u64(to.start).u64(to.length);
    what.u64(to.iova).u32(to.pd).u32(to.access).command(11, 8)
}

/// Ends a region.
pub fn dereg_mr(handle: u32) -> Command {
    Bytes::new().u32(handle).command(13, 0)
}

/// A memory window: handle, rkey.
pub fn alloc_mw(pd: u32, kind: u8) -> Command {
    answered().u32(pd).u8(kind).zeros(3).command(14, 8)
}

/// Ends a window.
pub fn dealloc_mw(handle: u32) -> Command {
    Bytes::new().u32(handle).command(16, 0)
}

/// A completion channel: its descriptor.
pub fn create_comp_channel() -> Command {
    answered().command(17, 4)
}

/// An XRC domain: its handle.
pub fn open_xrcd(fd: i32, oflags: i32) -> Command {
    answered().u32(fd as u32).u32(oflags as u32).command(37, 4)
}

/// Ends it.
pub fn close_xrcd(handle: u32) -> Command {
    Bytes::new().u32(handle).command(38, 0)
}

/// A path to a destination, as address handles and queries of queue pairs have it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Path {
    /// The destination's GID.
    pub dgid: [u8; 16],
    /// Flow label.
    pub flow_label: u32,
    /// Index of the own GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// The destination's LID.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the own LID.
    pub src_path_bits: u8,
    /// Rate.
    pub static_rate: u8,
    /// Whether packets have a GRH.
    pub is_global: u8,
    /// The own port.
    pub port_num: u8,
}

/// An address handle: its handle.
pub fn create_ah(user: u64, pd: u32, path: &Path) -> Command {
    let what = answered().u64(user).u32(pd).u32(0).bytes(&path.dgid).u32(path.flow_label);
    let what = what.u8(path.sgid_index).u8(path.hop_limit).u8(path.traffic_class).u8(0);
    let what = what.u16(path.dlid).u8(path.sl).u8(path.src_path_bits).u8(path.static_rate);
    what.u8(path.is_global).u8(path.port_num).u8(0).command(5, 4)
}

/// Ends it.
pub fn destroy_ah(handle: u32) -> Command {
    Bytes::new().u32(handle).command(8, 0)
}

/// Joins a queue pair to a multicast group, or takes it out.
pub fn mcast(attach: bool, gid: &[u8; 16], qp: u32, lid: u16) -> Command {
    let number = if attach { 30 } else { 31 };
    Bytes::new().bytes(gid).u32(qp).u16(lid).u16(0).command(number, 0)
}

/// The flow that a queue pair is to get, by rules that are there already as the kernel wants them.
pub fn create_flow(qp: u32, attr: &FlowAttr, rules: &[u8]) -> Command {
    let what = Bytes::new().u32(0).u32(qp).u32(attr.kind).u16(rules.len() as u16);
    let what = what.u16(attr.priority).u8(attr.rules).zeros(2).u8(attr.port).u32(attr.flags);
    what.bytes(rules).extended(50, 8)
}

/// The fixed part of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowAttr {
    /// `enum ibv_flow_attr_type`.
    pub kind: u32,
    /// Lower is earlier.
    pub priority: u16,
    /// How many rules.
    pub rules: u8,
    /// The port.
    pub port: u8,
    /// `enum ibv_flow_flags`.
    pub flags: u32,
}

/// Ends a flow.
pub fn destroy_flow(handle: u32) -> Command {
    Bytes::new().u32(0).u32(handle).extended(51, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_the_first_generation_counts_in_words_of_four() {
        let bytes = alloc_pd().written(&[1, 2, 3, 4], 0x1122, 8).unwrap();
        let wanted = Bytes::new().u32(3).u16(5).u16(3).u64(0x1122).bytes(&[1, 2, 3, 4]);
        assert_eq!(bytes, wanted.0);
        assert_eq!(alloc_pd().written(&[1, 2, 3], 0, 0), None);
        // Without a response there is no address.
        assert_eq!(
            dealloc_pd(9).written(&[], 0x1122, 0).unwrap(),
            Bytes::new().u32(4).u16(3).u16(0).u32(9).0
        );
    }

    #[test]
    fn a_command_of_the_second_generation_counts_in_words_of_eight() {
        let bytes = query_device_extended(304).written(&[], 0x1122, 0).unwrap();
        let wanted = Bytes::new().u32(1 | 1 << 31).u16(1).u16(38).u64(0x1122).zeros(8).zeros(8);
        assert_eq!(bytes, wanted.0);
        assert_eq!(query_device_extended(304).written(&[0; 4], 0, 0), None);
    }

    #[test]
    fn requests_are_as_long_as_the_headers_structures() {
        let sizes = [
            (reg_mr(0, 0, 0, 0, 0), 40),
            (alloc_mw(0, 0), 16),
            (create_ah(0, 0, &Path::default()), 56),
            (mcast(true, &[0; 16], 0, 0), 24),
            (open_xrcd(0, 0), 16),
            (query_port(1), 16),
        ];
        for (command, size) in sizes {
            assert_eq!(command.request.len(), size, "{command:?}");
        }
    }

    #[test]
    fn behind_the_end_of_a_response_are_zeros() {
        let response = Response(&[1, 0, 0, 0, 2]);
        assert_eq!(
            (response.u32(0), response.u32(2), response.u8(4), response.u8(5)),
            (1, 0, 2, 0)
        );
    }
}
