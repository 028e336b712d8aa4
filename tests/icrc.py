"""Checks the ICRC of every RoCEv2 packet of a capture with decoders that are not ours.

    icrc.py CAPTURE...

IPv4: scapy.contrib.roce computes it. scapy does not for IPv6, so there the standard library's CRC-32 does, over the fields
as scapy dissects them. Prints a line per wrong packet and one with the counts; fails where a packet is wrong, or none is there.
"""

import struct
import sys
import zlib

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.utils import PcapReader

ONES = b"\xff"


def of_ipv6(ip):
    """The ICRC of an IPv6 packet: variant fields of IP, UDP and BTH count as ones (IBA annex A17.3.3)."""
    header = bytearray(bytes(ip)[:40])
    header[0] |= 0x0F  # traffic class and flow label
    header[1:4] = ONES * 3
    header[7] = 0xFF  # hop limit
    datagram = bytearray(bytes(ip)[40 : 40 + ip.plen])
    datagram[6:8] = ONES * 2  # checksum
    datagram[8 + 4] = 0xFF  # FECN, BECN, reserved
    return struct.pack("<I", zlib.crc32(ONES * 8 + bytes(header) + bytes(datagram[:-4])))


def check(packet):
    """Whether the packet's ICRC is right; None for what is not RoCEv2."""
    if UDP not in packet or packet[UDP].dport != 4791:
        return None
    bth = packet[BTH]
    found = struct.pack("!I", bth.icrc)
    expected = of_ipv6(packet[IPv6]) if IPv6 in packet else bth.compute_icrc(b"")
    return found == expected


def main(captures):
    right = wrong = 0
    for name in captures:
        with PcapReader(name) as capture:
            for number, packet in enumerate(capture, 1):
                verdict = check(packet)
                if verdict is None:
                    continue
                if verdict:
                    right += 1
                else:
                    wrong += 1
                    print(f"{name}: packet {number}: wrong ICRC: {packet.summary()}")
    print(f"{right} right, {wrong} wrong")
    return 0 if right and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
