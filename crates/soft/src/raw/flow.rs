//! Rules that say which frames go to which queue pair (ibv_create_flow(3)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::headers::{Headers, TCP, UDP, Version, bytes};
use super::{FlowCounters, RawQp};
use crate::context::{check_port, limits};
use crate::object::{self, Identity};
use crate::{Context, Error};

/// Which header a [`Spec`] is about. The fields are those of the header's `struct ibv_flow_*_filter`, in its order and
/// in network order.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Destination, source, type behind the last VLAN tag, value of the first VLAN tag.
    Ethernet,
    /// Source, destination.
    Ipv4,
    /// Source, destination, protocol, type of service, time to live, flags (2: don't fragment, 4: more fragments).
    Ipv4Ext,
    /// Source, destination, flow label, next header, traffic class, hop limit.
    Ipv6,
    /// Destination port, source port.
    Tcp,
    /// Destination port, source port.
    Udp,
    /// Network number.
    Vxlan,
}

impl Layer {
    /// Bytes of its fields.
    pub fn len(self) -> usize {
        match self {
            Layer::Ethernet => 16,
            Layer::Ipv4 => 8,
            Layer::Ipv4Ext => 12,
            Layer::Ipv6 => 39,
            Layer::Tcp | Layer::Udp | Layer::Vxlan => 4,
        }
    }

    /// Whether it has no fields, as none has.
    pub fn is_empty(self) -> bool {
        false
    }
}

/// Bytes of the fields of the longest.
const FIELDS: usize = 40;
type Fields = [u8; FIELDS];

/// What one header of a frame has to be like: `value`, where `mask` has ones.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    layer: Layer,
    inner: bool,
    value: Fields,
    mask: Fields,
}

impl Spec {
    /// Of the fields of a header, of the frame inside a VXLAN tunnel where `inner`. Shorter fields are as if zeros
    /// followed.
    pub fn new(layer: Layer, inner: bool, value: &[u8], mask: &[u8]) -> Spec {
        let fill = |from: &[u8]| {
            let mut fields = [0; FIELDS];
            let len = layer.len().min(from.len());
            fields[..len].copy_from_slice(&from[..len]);
            fields
        };
        let mask = fill(mask);
        // What is not looked at does not count for whether two are the same.
        let mut value = fill(value);
        value.iter_mut().zip(mask).for_each(|(value, mask)| *value &= mask);
        Spec { layer, inner, value, mask }
    }

    /// The fields of the header in a frame; None where the frame has no such header.
    fn fields(&self, frame: &[u8], seen: &Seen) -> Option<Fields> {
        let headers = if self.inner { seen.inner? } else { seen.outer };
        let mut fields = [0; FIELDS];
        let mut put = |at: usize, from: &[u8]| {
            if let Some(to) = fields.get_mut(at..at + from.len()) {
                to.copy_from_slice(from);
            }
        };
        match self.layer {
            Layer::Ethernet => {
                put(0, &bytes::<12>(frame, headers.at)?);
                put(12, &headers.ether_type.to_be_bytes());
                // A frame without a tag is none with a tag of zeros.
                if self.mask[14..16] != [0; 2] {
                    put(14, &headers.vlan?.to_be_bytes());
                }
            }
            Layer::Ipv4 | Layer::Ipv4Ext => {
                let ip = headers.ip.filter(|ip| ip.version == Version::V4)?;
                put(0, &bytes::<8>(frame, ip.at + 12)?);
                let [tos] = bytes(frame, ip.at + 1)?;
                let [fragment] = bytes(frame, ip.at + 6)?;
                let [ttl, protocol] = bytes(frame, ip.at + 8)?;
                let flags = (fragment >> 6 & 1) << 1 | (fragment >> 5 & 1) << 2;
                put(8, &[protocol, tos, ttl, flags]);
            }
            Layer::Ipv6 => {
                let ip = headers.ip.filter(|ip| ip.version == Version::V6)?;
                put(0, &bytes::<32>(frame, ip.at + 8)?);
                let first = u32::from_be_bytes(bytes(frame, ip.at)?);
                put(32, &(first & 0xf_ffff).to_be_bytes());
                let [hops] = bytes(frame, ip.at + 7)?;
                put(36, &[ip.protocol, (first >> 20) as u8, hops]);
            }
            Layer::Tcp | Layer::Udp => {
                let protocol = if self.layer == Layer::Tcp { TCP } else { UDP };
                let [a, b, c, d] = bytes(frame, headers.transport(protocol)?)?;
                put(0, &[c, d, a, b]);
            }
            Layer::Vxlan => put(0, &headers.vxlan(frame)?.0),
        }
        Some(fields)
    }

    fn fits(&self, frame: &[u8], seen: &Seen) -> bool {
        self.fields(frame, seen).is_some_and(|fields| {
            let pairs = fields.iter().zip(&self.value).zip(&self.mask);
            pairs.fold(0, |differs, ((is, value), mask)| differs | (is ^ value) & mask) == 0
        })
    }

    fn weight(&self) -> u32 {
        self.mask.iter().map(|byte| byte.count_ones()).sum()
    }
}

/// The headers of a frame, and of the one inside it.
struct Seen {
    outer: Headers,
    inner: Option<Headers>,
}

/// Which frames a flow is about (`enum ibv_flow_attr_type`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// Those that fit its [`Spec`]s.
    Normal,
    /// Those that no other flow takes.
    AllDefault,
    /// Those of several receivers that no other flow takes.
    MulticastDefault,
    /// All, and others get them too.
    Sniffer,
}

/// How a flow is made (`struct ibv_flow_attr`).
#[derive(Clone, Debug)]
pub struct FlowInit {
    /// Which frames it is about.
    pub kind: FlowKind,
    /// Flows of lower numbers are asked first.
    pub priority: u16,
    /// Port, from 1.
    pub port: u8,
    /// Frames that fit go on to flows of higher numbers, too (IBV_FLOW_ATTR_FLAGS_DONT_TRAP).
    pub passes_on: bool,
    /// All of these a frame has to fit.
    pub specs: Vec<Spec>,
    /// What completions of its frames tell (IBV_FLOW_SPEC_ACTION_TAG).
    pub tag: u32,
    /// Frames that fit go nowhere (IBV_FLOW_SPEC_ACTION_DROP).
    pub drops: bool,
    /// What counts its frames (IBV_FLOW_SPEC_ACTION_COUNT).
    pub counters: Option<Arc<FlowCounters>>,
}

impl Default for FlowInit {
    fn default() -> FlowInit {
        FlowInit {
            kind: FlowKind::Normal,
            priority: 0,
            port: 1,
            passes_on: false,
            specs: Vec::new(),
            tag: 0,
            drops: false,
            counters: None,
        }
    }
}

/// A flow (ibv_create_flow(3)).
#[derive(Debug)]
pub struct Flow {
    pub(crate) identity: Identity,
    qp: Arc<RawQp>,
    rule: Arc<Rule>,
}

impl Flow {
    /// Frames that come in on the device's interface go to `qp` from now on, as `init` says. The first flow of a device
    /// opens a packet socket: it puts the interface into promiscuous mode, and the kernel goes on seeing all frames
    /// itself.
    ///
    /// # Errors
    /// Invalid for a rule that contradicts itself; Io with EPERM where the process may open no packet socket.
    pub fn new(qp: &Arc<RawQp>, init: FlowInit) -> Result<Arc<Flow>, Error> {
        let context = qp.context();
        context.check()?;
        qp.identity.check()?;
        check_port(init.port)?;
        check(&init)?;
        if let Some(counters) = &init.counters {
            counters.identity.check()?;
            if !Arc::ptr_eq(counters.context(), context) {
                return Err(Error::Foreign { what: "counters object" });
            }
        }
        let identity = context.inner().counted(&context.inner().quotas.flow)?;
        let rule = Arc::new(Rule {
            qp: qp.clone(),
            init,
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        context.device().steering.add(context.device(), &rule)?;
        object::take(&qp.users);
        if let Some(counters) = &rule.init.counters {
            object::take(&counters.users);
        }
        Ok(Arc::new(Flow { identity, qp: qp.clone(), rule }))
    }

    /// The queue pair that it leads to.
    pub fn qp(&self) -> &Arc<RawQp> {
        &self.qp
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.qp.context()
    }

    pub(crate) fn rule(&self) -> &Arc<Rule> {
        &self.rule
    }

    /// Ends it (ibv_destroy_flow(3)): nothing comes by it any more once this returns.
    pub fn destroy(&self) -> Result<(), Error> {
        self.context().inner().check()?;
        self.release()
    }

    fn release(&self) -> Result<(), Error> {
        self.identity.retire()?;
        self.context().device().steering.remove(&self.rule);
        object::give_back(&self.qp.users);
        if let Some(counters) = &self.rule.init.counters {
            object::give_back(&counters.users);
        }
        Ok(())
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // In a fork the thread that it would wait for is not there.
        if self.context().inner().check().is_ok() {
            let _ = self.release();
        }
    }
}

object::accessors!(Flow);

fn check(init: &FlowInit) -> Result<(), Error> {
    let wrong = |what, value: u64, why| Err(Error::Invalid { what, value, why });
    if init.specs.len() > limits::FLOW_SPECS {
        let asked = init.specs.len() as u64;
        return Err(Error::Limit { what: "num_of_specs", asked, max: limits::FLOW_SPECS as u64 });
    }
    if init.kind != FlowKind::Normal {
        if !init.specs.is_empty() {
            let number = init.specs.len() as u64;
            return wrong("num_of_specs", number, "only a normal flow has specifications");
        }
        if init.passes_on {
            return wrong("flags", 2, "only a normal flow may pass frames on");
        }
        return Ok(());
    }
    if init.passes_on && init.drops {
        return wrong("flags", 2, "what is dropped cannot be passed on");
    }
    if init.specs.is_empty() {
        return wrong("num_of_specs", 0, "a normal flow needs a specification");
    }
    for (i, spec) in init.specs.iter().enumerate() {
        let same_place =
            |other: &&Spec| other.inner == spec.inner && other.layer.place() == spec.layer.place();
        if init.specs[..i].iter().any(|other| same_place(&other)) {
            return wrong("spec type", spec.layer.place().into(), "one header is named twice");
        }
        if spec.inner && spec.layer == Layer::Vxlan {
            return wrong("spec type", 0x150, "a tunnel inside a tunnel is not looked into");
        }
        if !spec.of_its_type(&init.specs) {
            return wrong("ether_type", 0, "it is not that of the IP version specified");
        }
    }
    Ok(())
}

impl Layer {
    /// Which of the headers of a frame: of one, only one can be specified.
    fn place(self) -> u8 {
        match self {
            Layer::Ethernet => 0x20,
            Layer::Ipv4 | Layer::Ipv4Ext | Layer::Ipv6 => 0x30,
            Layer::Tcp | Layer::Udp => 0x40,
            Layer::Vxlan => 0x50,
        }
    }
}

impl Spec {
    /// Whether the type that an Ethernet specification names is that of the IP header named beside it.
    fn of_its_type(&self, all: &[Spec]) -> bool {
        let wanted: [u8; 2] = match self.layer {
            Layer::Ipv4 | Layer::Ipv4Ext => [0x08, 0x00],
            Layer::Ipv6 => [0x86, 0xdd],
            _ => return true,
        };
        all.iter().filter(|s| s.layer == Layer::Ethernet && s.inner == self.inner).all(|ethernet| {
            let named = &ethernet.value[12..14];
            ethernet.mask[12..14] != [0xff; 2] || named == wanted
        })
    }
}

/// A flow as those who look frames up see it.
#[derive(Debug)]
pub(crate) struct Rule {
    qp: Arc<RawQp>,
    init: FlowInit,
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Rule {
    /// Frames, and their bytes, since it was made.
    pub(crate) fn counted(&self) -> [u64; 2] {
        [self.packets.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed)]
    }

    fn fits(&self, frame: &[u8], seen: &Seen) -> bool {
        self.init.specs.iter().all(|spec| spec.fits(frame, seen))
    }

    fn order(&self) -> (u16, std::cmp::Reverse<u32>) {
        let weight = self.init.specs.iter().map(Spec::weight).sum();
        (self.init.priority, std::cmp::Reverse(weight))
    }

    fn is_same(&self, other: &Rule) -> bool {
        self.init.priority == other.init.priority && self.init.specs == other.init.specs
    }

    fn take(&self, arrived: &Arrived<'_>, headers: Option<&Headers>) {
        let len = arrived.frame.len() as u64;
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len, Ordering::Relaxed);
        if let Some(counters) = &self.init.counters {
            counters.count(len);
        }
        if !self.init.drops {
            self.qp.receive(arrived, headers, self.init.tag);
        }
    }
}

/// A frame that has come in.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Arrived<'a> {
    pub(crate) frame: &'a [u8],
    /// Its checksums are right.
    pub(crate) checked: bool,
    /// It was sent by a queue pair of this interface.
    pub(crate) own: bool,
}

/// The flows of a device, those asked first first.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    rules: RwLock<Vec<Arc<Rule>>>,
}

impl Rules {
    pub(crate) fn add(&self, rule: &Arc<Rule>) {
        let mut rules = self.rules.write();
        let at = rules.partition_point(|other| other.order() <= rule.order());
        rules.insert(at, rule.clone());
    }

    /// Takes one away, once nobody is looking any more; how many are left.
    pub(crate) fn remove(&self, rule: &Arc<Rule>) -> usize {
        let mut rules = self.rules.write();
        rules.retain(|other| !Arc::ptr_eq(other, rule));
        rules.len()
    }

    /// Gives a frame to whom it belongs.
    pub(crate) fn steer(&self, arrived: &Arrived<'_>) {
        let frame = arrived.frame;
        let rules = self.rules.read();
        let Some(outer) = Headers::of(frame, 0) else { return };
        let inner = outer.vxlan(frame).and_then(|(_, at)| Headers::of(frame, at));
        let seen = Seen { outer, inner };
        let of_kind = |kind| rules.iter().filter(move |rule| rule.init.kind == kind);
        for rule in of_kind(FlowKind::Sniffer) {
            rule.take(arrived, Some(&outer));
        }
        let mut taken: Option<&Arc<Rule>> = None;
        for rule in of_kind(FlowKind::Normal) {
            // Queue pairs that ask for just the same get a copy each.
            if taken.is_some_and(|first| !first.is_same(rule)) || !rule.fits(frame, &seen) {
                continue;
            }
            rule.take(arrived, Some(&outer));
            if !rule.init.passes_on {
                taken = taken.or(Some(rule));
            }
        }
        // What goes out from here is nobody's by default.
        if taken.is_some() || arrived.own {
            return;
        }
        let is_multicast = frame.first().is_some_and(|byte| byte & 1 != 0);
        let default = of_kind(FlowKind::MulticastDefault).find(|_| is_multicast);
        if let Some(rule) = default.or_else(|| of_kind(FlowKind::AllDefault).next()) {
            rule.take(arrived, Some(&outer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::headers::tests::udp;
    use super::*;

    fn fits(spec: &Spec, frame: &[u8]) -> bool {
        let outer = Headers::of(frame, 0).unwrap();
        let inner = outer.vxlan(frame).and_then(|(_, at)| Headers::of(frame, at));
        spec.fits(frame, &Seen { outer, inner })
    }

    #[test]
    fn each_field_is_compared_where_the_mask_says() {
        let frame = udp(Some(0x2005), [7, 9], b"abc");
        let mut ethernet = frame[..12].to_vec();
        ethernet.extend([0x08, 0, 0x20, 0x05]);
        let ports = [0, 9, 0, 7];
        let addresses = [10, 0, 0, 1, 10, 0, 0, 2];
        let mut extended = addresses.to_vec();
        extended.extend([UDP, 0, 64, 2]);
        for (layer, fields) in [
            (Layer::Ethernet, ethernet.as_slice()),
            (Layer::Ipv4, &addresses),
            (Layer::Ipv4Ext, &extended),
            (Layer::Udp, &ports),
        ] {
            assert_eq!(fields.len(), layer.len());
            let all = vec![0xff; fields.len()];
            assert!(fits(&Spec::new(layer, false, fields, &all), &frame), "{layer:?}");
            for i in 0..fields.len() {
                let mut other = fields.to_vec();
                other[i] ^= 1;
                assert!(!fits(&Spec::new(layer, false, &other, &all), &frame), "{layer:?} {i}");
                let mut mask = all.clone();
                mask[i] = 0xfe;
                assert!(fits(&Spec::new(layer, false, &other, &mask), &frame), "{layer:?} {i}");
            }
            assert!(
                !fits(&Spec::new(layer, true, fields, &all), &frame),
                "there is no inner frame"
            );
        }
        assert!(!fits(&Spec::new(Layer::Tcp, false, &[], &[]), &frame));
        assert!(!fits(&Spec::new(Layer::Ipv6, false, &[], &[]), &frame));
        assert!(!fits(&Spec::new(Layer::Vxlan, false, &[], &[]), &frame));
    }

    #[test]
    fn a_frame_without_a_tag_has_no_tag_of_zeros() {
        let frame = udp(None, [7, 9], b"");
        let mut mask = [0; 16];
        assert!(fits(&Spec::new(Layer::Ethernet, false, &[0; 16], &mask), &frame));
        mask[14] = 0xff;
        assert!(!fits(&Spec::new(Layer::Ethernet, false, &[0; 16], &mask), &frame));
    }

    #[test]
    fn frames_inside_a_tunnel_are_looked_at() {
        let mut inner = vec![0x08, 0, 0, 0, 0, 0, 5, 0];
        inner.extend(udp(None, [1, 2], b"x"));
        let frame = udp(None, [5, 4789], &inner);
        let ports = Spec::new(Layer::Udp, true, &[0, 2, 0, 1], &[0xff; 4]);
        assert!(fits(&ports, &frame));
        assert!(fits(&Spec::new(Layer::Vxlan, false, &[0, 0, 0, 5], &[0xff; 4]), &frame));
        assert!(!fits(&Spec::new(Layer::Vxlan, false, &[0, 0, 0, 6], &[0xff; 4]), &frame));
    }

    #[test]
    fn contradictions_are_refused() {
        let spec = |layer| Spec::new(layer, false, &[], &[]);
        let of = |specs: &[Layer]| FlowInit {
            specs: specs.iter().map(|layer| spec(*layer)).collect(),
            ..FlowInit::default()
        };
        assert!(check(&of(&[Layer::Ethernet, Layer::Ipv4, Layer::Udp])).is_ok());
        assert!(check(&of(&[])).is_err());
        assert!(check(&of(&[Layer::Ipv4, Layer::Ipv6])).is_err());
        assert!(check(&of(&[Layer::Udp, Layer::Tcp])).is_err());
        let sniffer = FlowInit { kind: FlowKind::Sniffer, ..of(&[]) };
        assert!(check(&sniffer).is_ok());
        assert!(check(&FlowInit { passes_on: true, ..sniffer }).is_err());
        let mut mask = [0; 16];
        mask[12..14].fill(0xff);
        let mut other = of(&[Layer::Ipv4]);
        other.specs.push(Spec::new(Layer::Ethernet, false, &[0; 16], &mask));
        assert!(check(&other).is_err(), "not the type of IPv4");
    }
}
