//! The client's side of what rping (rdmacm-utils) does, to ping its server, on any device or kernel.
//!
//! Each side tells the other where a buffer is, in 16 bytes of network order: address, rkey, length. The client names the
//! message; the server READs it and answers; the client names where the echo goes; the server WRITEs it there and answers.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use ironverbs::cm::{self, Connection, Offer};
use ironverbs::raw::Host;
use ironverbs::{
    Access, CompletionError, Cq, Devices, Inline, Message, Op, Pd, Qp, Rc, Region, Slice,
};

use crate::explain;

/// The port that rping's server has by default.
pub(crate) const PORT: u16 = 7174;

/// Bytes of what names a buffer.
const ADVERT: usize = 16;

/// For a route, and for a server to accept.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks whether a silent server has disconnected.
const LOOK: Duration = Duration::from_millis(50);

/// Where things are in the region: the message, the echo, the server's words.
struct Layout {
    size: usize,
}

impl Layout {
    fn echo(&self) -> usize {
        self.size.next_multiple_of(64)
    }

    fn answers(&self) -> usize {
        2 * self.echo()
    }
}

/// A connection to rping's server.
pub(crate) struct Rping {
    connection: Connection<Rc>,
    region: Region,
    layout: Layout,
    receive: Option<Op<Slice, Message>>,
    peer: String,
    device: String,
    udp_port: u16,
}

impl Rping {
    /// Connects for messages of `size` bytes.
    pub(crate) fn connect(
        host: &Host,
        name: &str,
        port: u16,
        size: usize,
    ) -> Result<Rping, String> {
        let addresses: Vec<SocketAddr> =
            (name, port).to_socket_addrs().map_err(|e| format!("{name}: {e}"))?.collect();
        let mut error = format!("{name} has no address");
        for address in addresses {
            match Rping::to(host, address, size) {
                Ok(rping) => return Ok(rping),
                Err(why) => error = format!("{name} port {port}: {why}"),
            }
        }
        Err(error)
    }

    fn to(host: &Host, address: SocketAddr, size: usize) -> Result<Rping, String> {
        let refused = |e: cm::Error| match e {
            cm::Error::Rejected { reason: 8, .. } => {
                format!("connection refused: start `rping -s -p {}` there", address.port())
            }
            e => e.to_string(),
        };
        let text = |e: ironverbs::Error| e.to_string();
        let devices = Devices::from(host.clone());
        let route = cm::resolve::<Rc>(&devices, None, address, PATIENCE);
        let route = route.and_then(|pending| pending.wait()).map_err(refused)?;
        let context = route.device().open().map_err(text)?;
        let pd = Pd::new(&context).map_err(text)?;
        let cq = Cq::new(&context, 8).map_err(text)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let layout = Layout { size };
        let region = pd.region(layout.answers() + 64, access).map_err(text)?;
        let qp = Qp::<Rc>::builder(&pd, &cq).depth(4, 4).inline(ADVERT as u32);
        let qp = qp.access(Access::REMOTE_READ | Access::REMOTE_WRITE).build().map_err(text)?;
        let answer = region.slice(layout.answers()..layout.answers() + ADVERT);
        let answer = answer.map_err(|e| e.to_string())?;
        let receive = qp.recv(answer).map_err(|e| e.error.to_string())?;
        let pending = route.connect(qp, &Offer::default().depth(1, 1)).map_err(refused)?;
        let connection = pending.wait_for(PATIENCE).map_err(|_| {
            format!("no answer within {} s: is there a connection manager?", PATIENCE.as_secs())
        })?;
        let connection = connection.map_err(refused)?;
        let peer = connection.peer_addr().ip().to_canonical().to_string();
        let (device, udp_port) = (context.device().to_string(), host.config().udp_port.value);
        Ok(Rping { connection, region, layout, receive: Some(receive), peer, device, udp_port })
    }

    /// The server's address.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// The device that leads there.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// The address of this side's end.
    pub(crate) fn local(&self) -> SocketAddr {
        self.connection.local_addr()
    }

    /// Sends message number `number` there and back; how long it took, and whether it came back as it was.
    pub(crate) fn once(&mut self, number: u64) -> Result<(Duration, bool), String> {
        let message = text(number, self.layout.size);
        let mut echo = vec![0; self.layout.size];
        self.region.write_at(0, &message).map_err(|e| e.to_string())?;
        self.region.write_at(self.layout.echo(), &echo).map_err(|e| e.to_string())?;
        let start = Instant::now();
        self.name(0)?;
        self.name(self.layout.echo())?;
        let time = start.elapsed();
        self.region.read_at(self.layout.echo(), &mut echo).map_err(|e| e.to_string())?;
        Ok((time, echo == message))
    }

    /// Names a buffer and waits for the answer.
    fn name(&mut self, offset: usize) -> Result<(), String> {
        let part = self.region.remote().part(offset as u64, self.layout.size as u64);
        let part = part.map_err(|e| e.to_string())?;
        let mut advert = [0; ADVERT];
        advert[..8].copy_from_slice(&part.addr.to_be_bytes());
        advert[8..12].copy_from_slice(&part.rkey.to_be_bytes());
        advert[12..].copy_from_slice(&(self.layout.size as u32).to_be_bytes());
        let send = self.connection.qp().send(Inline(&advert)).post();
        let send = send.map_err(|e| e.error.to_string())?;
        let (peer, udp_port) = (self.peer.clone(), self.udp_port);
        let explain =
            |what: &str, error: &CompletionError| explain::failure(what, error, &peer, udp_port);
        send.wait().0.map_err(|e| explain("telling the server of a buffer", &e))?;
        let mut receive = self.receive.take().ok_or("the server has answered out of turn")?;
        let (result, slice) = loop {
            match receive.wait_for(LOOK) {
                Ok(output) => break output,
                Err(op) if self.connection.closed().wait_for(Duration::ZERO).is_ok() => {
                    drop(op);
                    return Err("the server has disconnected".to_owned());
                }
                Err(op) => receive = op,
            }
        };
        result.map_err(|e| explain("the server's answer", &e))?;
        let again = self.connection.qp().recv(slice).map_err(|e| e.error.to_string())?;
        self.receive = Some(again);
        Ok(())
    }

    /// Ends the connection; the server hears of it.
    pub(crate) fn bye(self) {
        let _ = self.connection.disconnect();
    }
}

/// What rping's server shows with -v: text, with a zero at its end.
fn text(number: u64, size: usize) -> Vec<u8> {
    let start = format!("rdma-ping-{number}: ");
    let letters = (b'A'..=b'z').cycle().skip(number as usize % 58);
    let mut text: Vec<u8> = start.bytes().chain(letters).take(size).collect();
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_text_that_ends() {
        for size in [1, 5, 64, 1000] {
            let text = text(7, size);
            assert_eq!((text.len(), text.last()), (size, Some(&0)));
        }
        assert!(text(7, 64).starts_with(b"rdma-ping-7: HIJ"));
    }

    #[test]
    fn buffers_do_not_overlap() {
        for size in [1, 56, 64, 65, 65_536] {
            let layout = Layout { size };
            assert!(layout.echo() >= size && layout.answers() >= layout.echo() + size);
        }
    }
}
