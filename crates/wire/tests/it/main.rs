//! Packets as others sent them, as they may arrive damaged, and as any may be.

mod captures;
mod damage;
mod ib;
mod mads;
mod pcap;
mod properties;
