//! Where the headers of an Ethernet frame are.

/// Bytes of an Ethernet header without a tag.
pub(crate) const ETHERNET: usize = 14;
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const TAG: usize = 4;
/// Tags that are looked through.
const MOST_TAGS: usize = 4;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
/// UDP port of VXLAN (RFC 7348).
const VXLAN_PORT: u16 = 4789;
const VXLAN: usize = 8;
/// Extension headers of IPv6 that lead to another (RFC 8200).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// `N` bytes of a frame.
pub(crate) fn bytes<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn word(frame: &[u8], at: usize) -> Option<u16> {
    bytes(frame, at).map(u16::from_be_bytes)
}

/// The version of an IP header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V4,
    V6,
}

/// An IP header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    pub(crate) version: Version,
    pub(crate) at: usize,
    /// What it carries, behind extension headers.
    pub(crate) protocol: u8,
    /// Where that starts; None in a fragment that is not the first.
    pub(crate) payload: Option<usize>,
    /// Where the packet ends, as it says itself; within the frame.
    pub(crate) end: usize,
    pub(crate) is_fragment: bool,
}

/// The headers of a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Headers {
    /// Where the Ethernet header is.
    pub(crate) at: usize,
    /// The outermost VLAN tag's value.
    pub(crate) vlan: Option<u16>,
    /// Behind the last tag.
    pub(crate) ether_type: u16,
    pub(crate) ip: Option<Ip>,
}

impl Headers {
    /// Of the Ethernet frame that starts at `at`.
    pub(crate) fn of(frame: &[u8], at: usize) -> Option<Headers> {
        let mut next = at + ETHERNET - 2;
        let mut ether_type = word(frame, next)?;
        let mut vlan = None;
        for _ in 0..MOST_TAGS {
            if !TAGS.contains(&ether_type) {
                break;
            }
            vlan = vlan.or(word(frame, next + 2));
            next += TAG;
            ether_type = word(frame, next)?;
        }
        let ip = match ether_type {
            IPV4 => ipv4(frame, next + 2),
            IPV6 => ipv6(frame, next + 2),
            _ => None,
        };
        Some(Headers { at, vlan, ether_type, ip })
    }

    /// Where the header of TCP or UDP is, if it carries that.
    pub(crate) fn transport(&self, protocol: u8) -> Option<usize> {
        self.ip.filter(|ip| ip.protocol == protocol)?.payload
    }

    /// Network number and inner frame of VXLAN.
    pub(crate) fn vxlan(&self, frame: &[u8]) -> Option<([u8; 4], usize)> {
        let udp = self.transport(UDP)?;
        if word(frame, udp + 2)? != VXLAN_PORT {
            return None;
        }
        let [a, b, c] = bytes(frame, udp + 8 + 4)?;
        Some(([0, a, b, c], udp + 8 + VXLAN))
    }
}

fn ipv4(frame: &[u8], at: usize) -> Option<Ip> {
    let first = *frame.get(at)?;
    let len = usize::from(first & 15) * 4;
    if first >> 4 != 4 || len < 20 {
        return None;
    }
    let fragment = word(frame, at + 6)?;
    let total = usize::from(word(frame, at + 2)?);
    let protocol = *frame.get(at + 9)?;
    Some(Ip {
        version: Version::V4,
        at,
        protocol,
        payload: (fragment & 0x1fff == 0).then_some(at + len),
        end: (at + total).min(frame.len()),
        is_fragment: fragment & 0x3fff != 0,
    })
}

fn ipv6(frame: &[u8], at: usize) -> Option<Ip> {
    const HEADER: usize = 40;
    if *frame.get(at)? >> 4 != 6 {
        return None;
    }
    let end = (at + HEADER + usize::from(word(frame, at + 4)?)).min(frame.len());
    let mut protocol = *frame.get(at + 6)?;
    let mut payload = at + HEADER;
    let (mut is_fragment, mut is_first) = (false, true);
    // Each moves on by at least eight bytes, so that this ends with the frame.
    while is_first {
        let [next, len] = match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION | FRAGMENT => bytes(frame, payload)?,
            _ => break,
        };
        if protocol == FRAGMENT {
            is_fragment = true;
            is_first = word(frame, payload + 2)? >> 3 == 0;
            payload += 8;
        } else {
            payload += 8 + usize::from(len) * 8;
        }
        protocol = next;
    }
    Some(Ip {
        version: Version::V6,
        at,
        protocol,
        payload: is_first.then_some(payload),
        end,
        is_fragment,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame of UDP over IPv4 with that payload.
    pub(crate) fn udp(tag: Option<u16>, ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if let Some(tag) = tag {
            frame.extend([0x81, 0x00]);
            frame.extend(tag.to_be_bytes());
        }
        let len = 28 + payload.len() as u16;
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        frame.extend((len - 20).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn headers_behind_tags_are_found() {
        for tag in [None, Some(0x2005)] {
            let frame = udp(tag, [7, 9], b"abc");
            let headers = Headers::of(&frame, 0).unwrap();
            assert_eq!((headers.vlan, headers.ether_type), (tag, IPV4));
            let at = headers.transport(UDP).unwrap();
            assert_eq!(word(&frame, at), Some(7));
            assert_eq!(headers.ip.unwrap().end, frame.len());
            assert_eq!(headers.transport(TCP), None);
        }
    }

    #[test]
    fn inner_frames_are_found() {
        let mut inner = vec![0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0];
        inner.extend(udp(None, [1, 2], b"x"));
        let frame = udp(None, [5, VXLAN_PORT], &inner);
        let (network, at) = Headers::of(&frame, 0).unwrap().vxlan(&frame).unwrap();
        assert_eq!(network, [0, 0x12, 0x34, 0x56]);
        assert!(Headers::of(&frame, at).unwrap().transport(UDP).is_some());
    }

    #[test]
    fn nothing_is_read_beyond_the_end() {
        let frame = udp(Some(5), [5, VXLAN_PORT], &[0; 60]);
        for len in 0..frame.len() {
            let cut = &frame[..len];
            if let Some(headers) = Headers::of(cut, 0) {
                let _ = headers.vxlan(cut).and_then(|(_, at)| Headers::of(cut, at));
            }
        }
        let mut endless = vec![0; 12];
        endless.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0xff, 0xff, HOP_BY_HOP]);
        endless.resize(4000, 0);
        assert_eq!(Headers::of(&endless, 0).unwrap().ip, None);
    }
}
