//! Commands to the kernel's connection manager, /dev/infiniband/rdma_cm, as bytes (`rdma/rdma_user_cm.h`).

use crate::command::{Bytes, Response};

/// A command: its number, and all behind the header; where it has a response, its length and where in the command its
/// address goes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CmCommand {
    number: u32,
    body: Vec<u8>,
    /// Bytes of the response.
    pub response: usize,
    address_at: usize,
}

impl CmCommand {
    /// The whole command, for a response at that address.
    pub fn written(&self, response: u64) -> Vec<u8> {
        let mut body = self.body.clone();
        if self.response > 0
            && let Some(place) = body.get_mut(self.address_at..self.address_at + 8)
        {
            place.copy_from_slice(&response.to_ne_bytes());
        }
        let head = Bytes::new().u32(self.number).u16(body.len() as u16);
        head.u16(self.response as u16).bytes(&body).0
    }
}

fn silent(number: u32, body: Bytes) -> CmCommand {
    CmCommand { number, body: body.0, response: 0, address_at: 0 }
}

fn answered(number: u32, body: Bytes, response: usize, address_at: usize) -> CmCommand {
    CmCommand { number, body: body.0, response, address_at }
}

/// An id that events name so: its handle.
pub fn create_id(name: u64, port_space: u16, qp_type: u8) -> CmCommand {
    answered(0, Bytes::new().u64(name).u64(0).u16(port_space).u8(qp_type).zeros(5), 4, 8)
}

/// Ends an id: how many events it had.
pub fn destroy_id(id: u32) -> CmCommand {
    answered(1, Bytes::new().u64(0).u32(id).u32(0), 4, 0)
}

/// Bytes of a `sockaddr_storage`.
pub const ADDRESS: usize = 128;

/// Binds an id to an address of so many bytes.
pub fn bind(id: u32, address: &[u8; ADDRESS], len: u16) -> CmCommand {
    silent(20, Bytes::new().u32(id).u16(len).u16(0).bytes(address))
}

/// Looks for an address, from another or from any.
pub fn resolve_addr(
    id: u32,
    timeout_ms: u32,
    from: Option<(&[u8; ADDRESS], u16)>,
    (to, to_len): (&[u8; ADDRESS], u16),
) -> CmCommand {
    let (from, from_len) = from.unwrap_or((&[0; ADDRESS], 0));
    let what = Bytes::new().u32(id).u32(timeout_ms).u16(from_len).u16(to_len).u32(0);
    silent(21, what.bytes(from).bytes(to))
}

/// Looks for a route.
pub fn resolve_route(id: u32, timeout_ms: u32) -> CmCommand {
    silent(4, Bytes::new().u32(id).u32(timeout_ms))
}

/// Where an id is: device, port, addresses.
pub fn query_addr(id: u32) -> CmCommand {
    answered(19, Bytes::new().u64(0).u32(id).u32(0), 280, 0)
}

/// The GIDs of an id, in the place of the addresses.
pub fn query_gid(id: u32) -> CmCommand {
    answered(19, Bytes::new().u64(0).u32(id).u32(2), 280, 0)
}

/// The paths of an id.
pub fn query_path(id: u32) -> CmCommand {
    answered(19, Bytes::new().u64(0).u32(id).u32(1), 8 + 6 * 72, 0)
}

/// What [`query_addr`] and [`query_gid`] answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// The device's GUID as it is in memory, network order; 0 where there is none yet.
    pub node_guid: u64,
    /// Port.
    pub port: u8,
    /// P_Key, in network order.
    pub pkey: u16,
    /// The own address, then the peer's.
    pub addresses: [[u8; ADDRESS]; 2],
}

impl Place {
    /// Reads the response.
    pub fn read(response: &[u8]) -> Place {
        let r = Response(response);
        let address = |at| r.part(at).unwrap_or([0; ADDRESS]);
        Place {
            node_guid: r.u64(0),
            port: r.u8(8),
            pkey: r.u16(10),
            addresses: [address(16), address(16 + ADDRESS)],
        }
    }

    /// The GIDs, of a response to [`query_gid`].
    pub fn gids(&self) -> [[u8; 16]; 2] {
        self.addresses.map(|address| Response(&address).part(8).unwrap_or_default())
    }
}

/// The first path of [`query_path`]'s response: 64 bytes as in MADs.
pub fn first_path(response: &[u8]) -> Option<[u8; 64]> {
    let r = Response(response);
    if r.u32(0) == 0 { None } else { r.part(16) }
}

/// What is told to, or by, the peer of a connection.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Conn {
    /// QPN.
    pub qpn: u32,
    /// Q_Key, of datagram services.
    pub qkey: u32,
    /// Private data, at most 255 bytes.
    pub data: Vec<u8>,
    /// Whether receives come from a shared queue.
    pub srq: u8,
    /// READs and atomics that are answered at a time.
    pub responder_resources: u8,
    /// READs and atomics that are asked at a time.
    pub initiator_depth: u8,
    /// Flow control.
    pub flow_control: u8,
    /// Retries.
    pub retry_count: u8,
    /// Retries after RNR.
    pub rnr_retry_count: u8,
}

/// What makes of adapters agree on beyond the standard (enhanced connection establishment). All 0: nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Ece {
    /// Whose options they are.
    pub vendor_id: u32,
    /// Bits.
    pub options: u32,
}

impl Ece {
    fn put(self, what: Bytes) -> Bytes {
        what.u32(self.vendor_id).u32(self.options)
    }
}

/// Bytes of private data in a command.
const DATA: usize = 256;

impl Conn {
    fn put(&self, what: Bytes, valid: bool) -> Bytes {
        let data = self.data.get(..self.data.len().min(DATA - 1)).unwrap_or_default();
        let what = what.u32(self.qpn).u32(self.qkey).bytes(data).zeros(DATA - data.len());
        let what = what.u8(data.len() as u8).u8(self.srq).u8(self.responder_resources);
        let what = what.u8(self.initiator_depth).u8(self.flow_control).u8(self.retry_count);
        what.u8(self.rnr_retry_count).u8(valid.into())
    }

    fn read(response: Response<'_>, at: usize) -> Conn {
        let [len, srq, responder_resources, initiator_depth, flow_control, retry_count, rnr] =
            [0, 1, 2, 3, 4, 5, 6].map(|i| response.u8(at + 8 + DATA + i));
        Conn {
            qpn: response.u32(at),
            qkey: response.u32(at + 4),
            data: private_data(response, at + 8, len),
            srq,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count: rnr,
        }
    }
}

fn private_data(response: Response<'_>, at: usize, len: u8) -> Vec<u8> {
    response.0.get(at..at + usize::from(len)).unwrap_or_default().to_vec()
}

/// Asks for a connection.
pub fn connect(id: u32, conn: &Conn, ece: Ece) -> CmCommand {
    silent(6, ece.put(conn.put(Bytes::new(), true).u32(id).u32(0)))
}

/// Waits for requests.
pub fn listen(id: u32, backlog: u32) -> CmCommand {
    silent(7, Bytes::new().u32(id).u32(backlog))
}

/// Accepts a request, whose id gets that name; or says that a connection is complete.
pub fn accept(id: u32, name: u64, conn: Option<&Conn>, ece: Ece) -> CmCommand {
    let empty = Conn::default();
    let what = conn.unwrap_or(&empty).put(Bytes::new().u64(name), conn.is_some());
    silent(8, ece.put(what.u32(id).u32(0)))
}

/// Why a request is refused, of the reasons that a program may give (IBA 12.6.7.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Reason {
    /// The program's own.
    Consumer = 28,
    /// The peer's [`Ece`].
    VendorOption = 35,
}

/// Refuses a request. Kernels before 5.8 know no reason but the program's own, and look at none.
pub fn reject(id: u32, data: &[u8], reason: Reason) -> CmCommand {
    let data = data.get(..data.len().min(DATA - 1)).unwrap_or_default();
    let what = Bytes::new().u32(id).u8(data.len() as u8).u8(reason as u8).zeros(2).bytes(data);
    silent(9, what.zeros(DATA - data.len()))
}

/// Ends a connection.
pub fn disconnect(id: u32) -> CmCommand {
    silent(10, Bytes::new().u32(id))
}

/// The attributes of a queue pair for a transition: `struct ib_uverbs_qp_attr`.
pub fn init_qp_attr(id: u32, state: u32) -> CmCommand {
    answered(11, Bytes::new().u64(0).u32(id).u32(state), 144, 0)
}

/// The next event.
pub fn get_event() -> CmCommand {
    answered(12, Bytes::new().u64(0), 336, 0)
}

/// Sets an option, whose value lies at that address.
pub fn set_option(id: u32, level: u32, name: u32, value: u64, len: u32) -> CmCommand {
    silent(14, Bytes::new().u64(value).u32(id).u32(level).u32(name).u32(len))
}

/// Joins a group, whose events have that name: the handle of the membership.
pub fn join(id: u32, name: u64, flags: u16, address: &[u8; ADDRESS], len: u16) -> CmCommand {
    let what = Bytes::new().u64(0).u64(name).u32(id).u16(len).u16(flags).bytes(address);
    answered(22, what, 4, 0)
}

/// Ends a membership: how many events it had.
pub fn leave(membership: u32) -> CmCommand {
    answered(17, Bytes::new().u64(0).u32(membership).u32(0), 4, 0)
}

/// Takes an id from the connection manager with that descriptor: how many events it had there.
pub fn migrate_id(id: u32, fd: i32) -> CmCommand {
    answered(18, Bytes::new().u64(0).u32(id).u32(fd as u32), 4, 0)
}

/// Tells of an event of a queue pair.
pub fn notify(id: u32, event: u32) -> CmCommand {
    silent(15, Bytes::new().u32(id).u32(event))
}

/// An event as it is read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CmRecord {
    /// What the id is called that it is about.
    pub name: u64,
    /// The new id of a request.
    pub id: u32,
    /// `enum rdma_cm_event_type`.
    pub event: u32,
    /// 0, a negative errno, or a reason.
    pub status: i32,
    bytes: Vec<u8>,
}

/// What a datagram service is reached by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ud {
    /// QPN.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
    /// `struct ib_uverbs_ah_attr`.
    pub path: [u8; 32],
    /// Private data.
    pub data: Vec<u8>,
}

impl CmRecord {
    /// Reads the response to [`get_event`].
    pub fn read(response: Vec<u8>) -> CmRecord {
        let r = Response(&response);
        let (name, id, event, status) = (r.u64(0), r.u32(8), r.u32(12), r.u32(16) as i32);
        CmRecord { name, id, event, status, bytes: response }
    }

    /// What it tells of a connection.
    pub fn conn(&self) -> Conn {
        Conn::read(Response(&self.bytes), 20)
    }

    /// The peer's options, of a request or an answer.
    pub fn ece(&self) -> Ece {
        let r = Response(&self.bytes);
        Ece { vendor_id: r.u32(328), options: r.u32(332) }
    }

    /// What it tells of a datagram service.
    pub fn ud(&self) -> Ud {
        let r = Response(&self.bytes);
        Ud {
            qpn: r.u32(20),
            qkey: r.u32(24),
            path: r.part(28).unwrap_or_default(),
            data: private_data(r, 60, r.u8(60 + DATA)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_as_long_as_the_headers_structures() {
        let conn = Conn { data: vec![7; 300], ..Conn::default() };
        let sizes = [
            (create_id(0, 0, 0), 24),
            (destroy_id(0), 16),
            (bind(0, &[0; ADDRESS], 16), 136),
            (resolve_addr(0, 0, None, (&[0; ADDRESS], 16)), 272),
            (connect(0, &conn, Ece::default()), 288),
            (accept(0, 0, None, Ece::default()), 296),
            (reject(0, &[1; 300], Reason::Consumer), 264),
            (query_addr(0), 16),
            (set_option(0, 0, 0, 0, 0), 24),
            (join(0, 0, 0, &[0; ADDRESS], 16), 152),
            (migrate_id(0, 0), 16),
            (init_qp_attr(0, 0), 16),
        ];
        for (command, size) in sizes {
            let written = command.written(0x1122);
            assert_eq!(written.len(), 8 + size, "{command:?}");
            assert_eq!(Response(&written).u16(4) as usize, size, "{command:?}");
        }
        // The address of a response is behind the name of a new id, and first elsewhere.
        assert_eq!(Response(&create_id(5, 0, 0).written(0x1122)).u64(16), 0x1122);
        assert_eq!(Response(&destroy_id(5).written(0x1122)).u64(8), 0x1122);
    }

    #[test]
    fn an_event_has_what_was_told() {
        let conn = Conn { qpn: 17, data: vec![1, 2, 3], retry_count: 7, ..Conn::default() };
        let head = Bytes::new().u64(9).u32(2).u32(4).u32(-5i32 as u32);
        let ece = Ece { vendor_id: 0x15b3, options: 6 };
        let record = CmRecord::read(ece.put(conn.put(head, true).zeros(36)).0);
        assert_eq!((record.name, record.id, record.event, record.status), (9, 2, 4, -5));
        assert_eq!((record.conn(), record.ece()), (conn, ece));
        // Shorter than it should be: nothing.
        assert_eq!(CmRecord::read(vec![1]).conn(), Conn::default());
    }
}
