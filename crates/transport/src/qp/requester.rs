//! The requester.
use super::Qp;
use super::send_queue::SendQueue;
use crate::device::{Device, Instant, Sink};
use crate::verbs::QpAttr;
use ironverbs_wire::Packet;

#[derive(Debug, Default)]
pub(super) struct Requester {}
impl Requester {
    pub(super) fn new(_psn: u32, _attr: &QpAttr, _now: Instant) -> Requester {
        Requester {}
    }
    pub(super) fn update(&mut self, _attr: &QpAttr) {}
    pub(super) fn stop(&mut self) {}
    pub(super) fn skip_to_tail(&mut self, _sends: &SendQueue) {}
    pub(super) fn is_busy(&self, _sends: &SendQueue) -> bool {
        false
    }
}
impl Qp {
    pub(super) fn transmit_requests<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        _now: Instant,
        _dev: &mut D,
        _sink: &mut S,
    ) {
    }
    pub(super) fn can_send(&self) -> bool {
        false
    }
    pub(super) fn request_deadline(&self) -> Option<Instant> {
        None
    }
    pub(super) fn handle_request_timeout<D: Device + ?Sized>(
        &mut self,
        _now: Instant,
        _dev: &mut D,
    ) {
    }
    pub(super) fn handle_response<D: Device + ?Sized>(
        &mut self,
        _packet: &Packet<'_>,
        _now: Instant,
        _dev: &mut D,
    ) {
    }
}
