//! The responder.
use super::Qp;
use crate::device::{Device, Sink};
use ironverbs_wire::{Packet, Path};

#[derive(Debug, Default)]
pub(super) struct Responder {}
impl Responder {
    pub(super) fn new(_psn: u32, _resources: u8) -> Responder {
        Responder {}
    }
    pub(super) fn forget(&mut self) {}
}
impl Qp {
    pub(super) fn transmit_responses<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        _dev: &mut D,
        _sink: &mut S,
    ) -> bool {
        true
    }
    pub(super) fn owes_response(&self) -> bool {
        false
    }
    pub(super) fn owes_ack(&self) -> bool {
        false
    }
    pub(super) fn handle_request<D: Device + ?Sized>(
        &mut self,
        _packet: &Packet<'_>,
        _dev: &mut D,
    ) {
    }
    pub(super) fn receive_datagram<D: Device + ?Sized>(
        &mut self,
        _packet: &Packet<'_>,
        _path: &Path,
        _udp_len: u16,
        _dev: &mut D,
    ) {
    }
}
