//! BTH opcodes: transport service in the upper three bits, operation in the lower five (IBA 9.2,
//! table 38).

use std::fmt;

/// Transport service, the upper three bits of an opcode, in place.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0x00,
    /// Unreliable connection.
    Uc = 0x20,
    /// Reliable datagram. No packet of it is understood here.
    Rd = 0x40,
    /// Unreliable datagram.
    Ud = 0x60,
    /// Extended reliable connection (IBA A14): the operations of a reliable connection.
    Xrc = 0xa0,
}

/// What a packet does, whatever its service: the lower five bits of an opcode.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(u8)]
pub enum Op {
    /// First of several packets of a SEND.
    SendFirst = 0x00,
    /// Neither first nor last packet of a SEND.
    SendMiddle = 0x01,
    /// Last packet of a SEND.
    SendLast = 0x02,
    /// Last packet of a SEND with immediate.
    SendLastImm = 0x03,
    /// The one packet of a SEND.
    SendOnly = 0x04,
    /// The one packet of a SEND with immediate.
    SendOnlyImm = 0x05,
    /// First of several packets of an RDMA WRITE.
    WriteFirst = 0x06,
    /// Neither first nor last packet of an RDMA WRITE.
    WriteMiddle = 0x07,
    /// Last packet of an RDMA WRITE.
    WriteLast = 0x08,
    /// Last packet of an RDMA WRITE with immediate.
    WriteLastImm = 0x09,
    /// The one packet of an RDMA WRITE.
    WriteOnly = 0x0a,
    /// The one packet of an RDMA WRITE with immediate.
    WriteOnlyImm = 0x0b,
    /// RDMA READ request.
    ReadRequest = 0x0c,
    /// First of several packets of an RDMA READ response.
    ReadRespFirst = 0x0d,
    /// Neither first nor last packet of an RDMA READ response.
    ReadRespMiddle = 0x0e,
    /// Last packet of an RDMA READ response.
    ReadRespLast = 0x0f,
    /// The one packet of an RDMA READ response.
    ReadRespOnly = 0x10,
    /// Acknowledgement, positive or negative.
    Ack = 0x11,
    /// Response to an atomic operation.
    AtomicAck = 0x12,
    /// Compare and swap.
    CompareSwap = 0x13,
    /// Fetch and add.
    FetchAdd = 0x14,
    /// Last packet of a SEND with invalidate.
    SendLastInv = 0x16,
    /// The one packet of a SEND with invalidate.
    SendOnlyInv = 0x17,
    /// A WRITE of eight bytes that is seen whole, and answered with a READ response of none (IBA, memory placement
    /// extensions).
    AtomicWrite = 0x1d,
}

use Op::*;

impl Op {
    /// Every operation.
    pub const ALL: [Self; 24] = [
        SendFirst,
        SendMiddle,
        SendLast,
        SendLastImm,
        SendOnly,
        SendOnlyImm,
        WriteFirst,
        WriteMiddle,
        WriteLast,
        WriteLastImm,
        WriteOnly,
        WriteOnlyImm,
        ReadRequest,
        ReadRespFirst,
        ReadRespMiddle,
        ReadRespLast,
        ReadRespOnly,
        Ack,
        AtomicAck,
        CompareSwap,
        FetchAdd,
        SendLastInv,
        SendOnlyInv,
        AtomicWrite,
    ];

    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x00 => SendFirst,
            0x01 => SendMiddle,
            0x02 => SendLast,
            0x03 => SendLastImm,
            0x04 => SendOnly,
            0x05 => SendOnlyImm,
            0x06 => WriteFirst,
            0x07 => WriteMiddle,
            0x08 => WriteLast,
            0x09 => WriteLastImm,
            0x0a => WriteOnly,
            0x0b => WriteOnlyImm,
            0x0c => ReadRequest,
            0x0d => ReadRespFirst,
            0x0e => ReadRespMiddle,
            0x0f => ReadRespLast,
            0x10 => ReadRespOnly,
            0x11 => Ack,
            0x12 => AtomicAck,
            0x13 => CompareSwap,
            0x14 => FetchAdd,
            0x16 => SendLastInv,
            0x17 => SendOnlyInv,
            0x1d => AtomicWrite,
            _ => return None,
        })
    }

    /// Whether the packet is part of a SEND of any kind.
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            SendFirst
                | SendMiddle
                | SendLast
                | SendLastImm
                | SendOnly
                | SendOnlyImm
                | SendLastInv
                | SendOnlyInv
        )
    }

    /// Whether the packet is part of an RDMA WRITE of any kind.
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            WriteFirst | WriteMiddle | WriteLast | WriteLastImm | WriteOnly | WriteOnlyImm
        )
    }

    /// Whether the packet carries RDMA READ data.
    pub const fn is_read_response(self) -> bool {
        matches!(self, ReadRespFirst | ReadRespMiddle | ReadRespLast | ReadRespOnly)
    }

    /// Whether the packet is an atomic request.
    pub const fn is_atomic(self) -> bool {
        matches!(self, CompareSwap | FetchAdd)
    }

    /// Whether the packet begins a message or read response that has more packets. The packet of
    /// a one-packet message is [only](Op::is_only), not first.
    pub const fn is_first(self) -> bool {
        matches!(self, SendFirst | WriteFirst | ReadRespFirst)
    }

    /// Whether the packet is between the first and the last of its message.
    pub const fn is_middle(self) -> bool {
        matches!(self, SendMiddle | WriteMiddle | ReadRespMiddle)
    }

    /// Whether the packet ends its message, Last or Only.
    pub const fn is_last(self) -> bool {
        !self.is_first() && !self.is_middle()
    }

    /// Whether the packet is all of its message. True too of what never takes several packets:
    /// read and atomic requests and acknowledgements.
    pub const fn is_only(self) -> bool {
        self.is_last()
            && !matches!(self, SendLast | SendLastImm | SendLastInv)
            && !matches!(self, WriteLast | WriteLastImm | ReadRespLast)
    }

    /// Whether an RETH follows the BTH.
    pub const fn has_reth(self) -> bool {
        matches!(self, WriteFirst | WriteOnly | WriteOnlyImm | ReadRequest | AtomicWrite)
    }

    /// Whether the packet carries immediate data.
    pub const fn has_imm(self) -> bool {
        matches!(self, SendLastImm | SendOnlyImm | WriteLastImm | WriteOnlyImm)
    }

    /// Whether the packet carries an rkey to invalidate.
    pub const fn has_ieth(self) -> bool {
        matches!(self, SendLastInv | SendOnlyInv)
    }

    /// Whether an AETH follows the BTH.
    pub const fn has_aeth(self) -> bool {
        matches!(self, ReadRespFirst | ReadRespLast | ReadRespOnly | Ack | AtomicAck)
    }

    /// Whether an AtomicETH follows the BTH.
    pub const fn has_atomic_eth(self) -> bool {
        self.is_atomic()
    }

    /// Whether a payload may follow, be it of no bytes.
    pub const fn has_payload(self) -> bool {
        self.is_send() || self.is_write() || self.is_read_response() || matches!(self, AtomicWrite)
    }

    /// Whether the packet goes from requester to responder.
    pub const fn is_request(self) -> bool {
        !self.is_response()
    }

    /// Whether the packet goes from responder to requester.
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Ack | AtomicAck)
    }

    /// Whether the operation exists on a service that this crate has the headers of.
    const fn is_valid_for(self, service: Service) -> bool {
        match service {
            Service::Rc => true,
            Service::Xrc => !matches!(self, AtomicWrite),
            Service::Uc => (self.is_send() && !self.has_ieth()) || self.is_write(),
            Service::Ud => matches!(self, SendOnly | SendOnlyImm),
            Service::Rd => false,
        }
    }
}

/// The opcode byte of a BTH, whether or not it means something.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($name:ident = $service:ident $op:ident;)*) => {
        /// The opcodes by the names of IBA table 38.
        impl Opcode {
            $(
                #[doc = concat!("[`Op::", stringify!($op), "`] on [`Service::", stringify!($service), "`].")]
                pub const $name: Self = Self::new(Service::$service, Op::$op);
            )*

            const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    Self::CNP => Some("CNP"),
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    RC_SEND_FIRST = Rc SendFirst;
    RC_SEND_MIDDLE = Rc SendMiddle;
    RC_SEND_LAST = Rc SendLast;
    RC_SEND_LAST_IMM = Rc SendLastImm;
    RC_SEND_ONLY = Rc SendOnly;
    RC_SEND_ONLY_IMM = Rc SendOnlyImm;
    RC_WRITE_FIRST = Rc WriteFirst;
    RC_WRITE_MIDDLE = Rc WriteMiddle;
    RC_WRITE_LAST = Rc WriteLast;
    RC_WRITE_LAST_IMM = Rc WriteLastImm;
    RC_WRITE_ONLY = Rc WriteOnly;
    RC_WRITE_ONLY_IMM = Rc WriteOnlyImm;
    RC_READ_REQUEST = Rc ReadRequest;
    RC_READ_RESP_FIRST = Rc ReadRespFirst;
    RC_READ_RESP_MIDDLE = Rc ReadRespMiddle;
    RC_READ_RESP_LAST = Rc ReadRespLast;
    RC_READ_RESP_ONLY = Rc ReadRespOnly;
    RC_ACK = Rc Ack;
    RC_ATOMIC_ACK = Rc AtomicAck;
    RC_COMPARE_SWAP = Rc CompareSwap;
    RC_FETCH_ADD = Rc FetchAdd;
    RC_SEND_LAST_INV = Rc SendLastInv;
    RC_SEND_ONLY_INV = Rc SendOnlyInv;
    RC_ATOMIC_WRITE = Rc AtomicWrite;
    UC_SEND_FIRST = Uc SendFirst;
    UC_SEND_MIDDLE = Uc SendMiddle;
    UC_SEND_LAST = Uc SendLast;
    UC_SEND_LAST_IMM = Uc SendLastImm;
    UC_SEND_ONLY = Uc SendOnly;
    UC_SEND_ONLY_IMM = Uc SendOnlyImm;
    UC_WRITE_FIRST = Uc WriteFirst;
    UC_WRITE_MIDDLE = Uc WriteMiddle;
    UC_WRITE_LAST = Uc WriteLast;
    UC_WRITE_LAST_IMM = Uc WriteLastImm;
    UC_WRITE_ONLY = Uc WriteOnly;
    UC_WRITE_ONLY_IMM = Uc WriteOnlyImm;
    UD_SEND_ONLY = Ud SendOnly;
    UD_SEND_ONLY_IMM = Ud SendOnlyImm;
    XRC_SEND_FIRST = Xrc SendFirst;
    XRC_SEND_MIDDLE = Xrc SendMiddle;
    XRC_SEND_LAST = Xrc SendLast;
    XRC_SEND_LAST_IMM = Xrc SendLastImm;
    XRC_SEND_ONLY = Xrc SendOnly;
    XRC_SEND_ONLY_IMM = Xrc SendOnlyImm;
    XRC_WRITE_FIRST = Xrc WriteFirst;
    XRC_WRITE_MIDDLE = Xrc WriteMiddle;
    XRC_WRITE_LAST = Xrc WriteLast;
    XRC_WRITE_LAST_IMM = Xrc WriteLastImm;
    XRC_WRITE_ONLY = Xrc WriteOnly;
    XRC_WRITE_ONLY_IMM = Xrc WriteOnlyImm;
    XRC_READ_REQUEST = Xrc ReadRequest;
    XRC_READ_RESP_FIRST = Xrc ReadRespFirst;
    XRC_READ_RESP_MIDDLE = Xrc ReadRespMiddle;
    XRC_READ_RESP_LAST = Xrc ReadRespLast;
    XRC_READ_RESP_ONLY = Xrc ReadRespOnly;
    XRC_ACK = Xrc Ack;
    XRC_ATOMIC_ACK = Xrc AtomicAck;
    XRC_COMPARE_SWAP = Xrc CompareSwap;
    XRC_FETCH_ADD = Xrc FetchAdd;
    XRC_SEND_LAST_INV = Xrc SendLastInv;
    XRC_SEND_ONLY_INV = Xrc SendOnlyInv;
}

impl Opcode {
    /// RoCEv2 congestion notification (IBA A17.9.3). No service of [`Service`] and no operation:
    /// a receiver that does not control its rate drops it.
    pub const CNP: Self = Self(0x81);

    /// The opcode of an operation on a service, also where the two do not go together.
    pub const fn new(service: Service, op: Op) -> Self {
        Self(service as u8 | op as u8)
    }

    /// Service and operation; `None` if the service has no such operation (a READ on UC), or is
    /// RD, whose extended headers this crate does not know.
    pub const fn split(self) -> Option<(Service, Op)> {
        let service = match self.0 & 0xe0 {
            0x00 => Service::Rc,
            0x20 => Service::Uc,
            0x60 => Service::Ud,
            0xa0 => Service::Xrc,
            _ => return None,
        };
        match Op::from_bits(self.0 & 0x1f) {
            Some(op) if op.is_valid_for(service) => Some((service, op)),
            _ => None,
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Opcode({:#04x})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as tshark and scapy list them.
    #[test]
    fn numbers() {
        let cases = [
            (Opcode::RC_SEND_FIRST, 0),
            (Opcode::RC_SEND_ONLY_IMM, 5),
            (Opcode::RC_WRITE_FIRST, 6),
            (Opcode::RC_WRITE_ONLY_IMM, 11),
            (Opcode::RC_READ_REQUEST, 12),
            (Opcode::RC_READ_RESP_ONLY, 16),
            (Opcode::RC_ACK, 17),
            (Opcode::RC_ATOMIC_ACK, 18),
            (Opcode::RC_COMPARE_SWAP, 19),
            (Opcode::RC_FETCH_ADD, 20),
            (Opcode::RC_SEND_LAST_INV, 22),
            (Opcode::RC_SEND_ONLY_INV, 23),
            (Opcode::RC_ATOMIC_WRITE, 29),
            (Opcode::UC_SEND_FIRST, 32),
            (Opcode::UC_WRITE_ONLY_IMM, 43),
            (Opcode::UD_SEND_ONLY, 100),
            (Opcode::UD_SEND_ONLY_IMM, 101),
            (Opcode::CNP, 129),
            (Opcode::XRC_SEND_FIRST, 160),
            (Opcode::XRC_SEND_ONLY_INV, 183),
        ];
        for (opcode, number) in cases {
            assert_eq!(opcode.0, number, "{opcode:?}");
        }
    }

    #[test]
    fn each_service_has_its_operations_and_no_others() {
        let valid: Vec<u8> = (0..=255).filter(|&byte| Opcode(byte).split().is_some()).collect();
        let expected = (0..=0x14).chain([0x16, 0x17, 0x1d]).chain(0x20..=0x2b).chain([0x64, 0x65]);
        let expected: Vec<u8> = expected.chain(0xa0..=0xb4).chain([0xb6, 0xb7]).collect();
        assert_eq!(valid, expected);
        for byte in valid {
            let (service, op) = Opcode(byte).split().unwrap();
            assert_eq!(Opcode::new(service, op), Opcode(byte));
            assert!(Opcode(byte).name().is_some(), "{byte:#x}");
        }
        assert_eq!(format!("{:?} {:?}", Opcode(0x15), Opcode::CNP), "Opcode(0x15) CNP");
        assert_eq!(Opcode::new(Service::Ud, FetchAdd).split(), None);
    }

    #[test]
    fn properties_of_each_operation() {
        // One letter each: First Middle Last Only, Payload, Reth, Immediate, ieTh, Aeth,
        // atomic eth (X), reSponse.
        let expected = [
            (SendFirst, "FP"),
            (SendMiddle, "MP"),
            (SendLast, "LP"),
            (SendLastImm, "LPI"),
            (SendOnly, "LOP"),
            (SendOnlyImm, "LOPI"),
            (WriteFirst, "FPR"),
            (WriteMiddle, "MP"),
            (WriteLast, "LP"),
            (WriteLastImm, "LPI"),
            (WriteOnly, "LOPR"),
            (WriteOnlyImm, "LOPRI"),
            (ReadRequest, "LOR"),
            (ReadRespFirst, "FPAS"),
            (ReadRespMiddle, "MPS"),
            (ReadRespLast, "LPAS"),
            (ReadRespOnly, "LOPAS"),
            (Ack, "LOAS"),
            (AtomicAck, "LOAS"),
            (CompareSwap, "LOX"),
            (FetchAdd, "LOX"),
            (SendLastInv, "LPT"),
            (SendOnlyInv, "LOPT"),
            (AtomicWrite, "LOPR"),
        ];
        assert_eq!(expected.map(|(op, _)| op), Op::ALL);
        for (op, letters) in expected {
            let tests = [
                ('F', op.is_first()),
                ('M', op.is_middle()),
                ('L', op.is_last()),
                ('O', op.is_only()),
                ('P', op.has_payload()),
                ('R', op.has_reth()),
                ('I', op.has_imm()),
                ('T', op.has_ieth()),
                ('A', op.has_aeth()),
                ('X', op.has_atomic_eth()),
                ('S', op.is_response()),
            ];
            let found: String =
                tests.iter().filter(|(_, holds)| *holds).map(|(letter, _)| letter).collect();
            assert_eq!(found, letters, "{op:?}");
            assert_ne!(op.is_request(), op.is_response(), "{op:?}");
            assert_eq!(Op::from_bits(op as u8), Some(op));
        }
    }
}
