//! Changing state and attributes.

use ironverbs_wire::{Path, psn};

use super::error::ModifyError;
use super::requester::Requester;
use super::responder::Responder;
use super::{PacketSize, Qp, transition};
use crate::device::{Device, Instant, QpEvent};
use crate::verbs::{AttrMask, MigState, QpAttr, QpState, QpType};

impl Qp {
    /// `ibv_modify_qp(3)`. Needs the attributes that the transition needs and takes no others;
    /// without [`AttrMask::STATE`] the state stays. Of an XRC QP it takes those of the side that it lacks, too, and ignores
    /// them, as programs give them that treat it as an RC QP. An error leaves everything as it was.
    ///
    /// The device has checked what lies with it: ports, GIDs, the P_Key index, `pkey` being the
    /// key at it, and the MTU of the port. `resolved` is the address vector's path, local address
    /// first, and is given if `mask` has [`AttrMask::AV`].
    ///
    /// Entering ERR completes every send, then every receive, with WR_FLUSH_ERR. Entering RESET
    /// forgets them, and the completions in the CQs are the device's to remove. Both forget
    /// acknowledgements not yet sent: a peer waits for them, so [`transmit`](Qp::transmit) first.
    #[allow(clippy::too_many_arguments)]
    pub fn modify<D: Device + ?Sized>(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        resolved: Option<Path>,
        pkey: u16,
        now: Instant,
        dev: &mut D,
    ) -> Result<(), ModifyError> {
        let from = self.attr.state;
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
        let mask = mask - transition::meaningless(self.config.qp_type);
        transition::check(self.config.qp_type, from, to, mask)?;
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != from {
            return Err(ModifyError::CurState { asked: attr.cur_state, actual: from });
        }
        check_values(attr, mask)?;
        if mask.contains(AttrMask::AV) && resolved.is_none() {
            return Err(ModifyError::MissingAttr(AttrMask::AV));
        }

        self.take(attr, mask, resolved, pkey);
        match to {
            QpState::Reset => {
                self.revoke_references(dev);
                self.reset();
            }
            QpState::Err => {
                if from != QpState::Err {
                    self.responder.forget();
                }
                self.enter_error(dev);
            }
            QpState::Rtr => {
                self.responder = Responder::new(attr.rq_psn, self.attr.max_dest_rd_atomic);
            }
            QpState::Rts if from == QpState::Rtr => {
                self.requester = Requester::new(self.attr.sq_psn, &self.attr, now);
            }
            QpState::Rts | QpState::Sqd => {
                self.requester.update(&self.attr);
                self.responder.resources.set_limit(self.attr.max_dest_rd_atomic);
            }
            QpState::Init | QpState::Sqe => {}
        }
        self.attr.state = to;
        self.attr.cur_state = to;
        if to == QpState::Sqd {
            self.note_drained(dev);
        }
        Ok(())
    }

    /// Moves to ERR and flushes (IBA 10.3.1): sends first, then receives, each in order.
    pub(super) fn enter_error<D: Device + ?Sized>(&mut self, dev: &mut D) {
        let entered = self.attr.state != QpState::Err;
        self.attr.state = QpState::Err;
        self.attr.cur_state = QpState::Err;
        self.revoke_references(dev);
        self.requester.stop();
        self.flush_posted(dev);
        // ibv_get_async_event(3): no more of the SRQ's requests will be taken.
        if entered && self.receives.is_shared() && self.config.qp_type != QpType::XrcRecv {
            dev.event(QpEvent::LastWqeReached);
        }
    }

    fn take(&mut self, attr: &QpAttr, mask: AttrMask, resolved: Option<Path>, pkey: u16) {
        let mine = &mut self.attr;
        if let (true, Some(path)) = (mask.contains(AttrMask::AV), resolved) {
            mine.ah = attr.ah;
            self.path = path;
        }
        if mask.contains(AttrMask::PKEY_INDEX) {
            mine.pkey_index = attr.pkey_index;
            self.pkey = pkey;
        }
        if mask.contains(AttrMask::PATH_MTU) {
            mine.path_mtu = attr.path_mtu;
            if !self.mtu.fixed {
                self.mtu = attr.path_mtu.into();
            }
        }
        macro_rules! take {
            ($($bit:ident => $field:ident,)*) => {
                $(if mask.contains(AttrMask::$bit) { mine.$field = attr.$field; })*
            };
        }
        take! {
            EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
            ACCESS_FLAGS => access,
            PORT => port_num,
            QKEY => qkey,
            TIMEOUT => timeout,
            RETRY_CNT => retry_cnt,
            RNR_RETRY => rnr_retry,
            MAX_QP_RD_ATOMIC => max_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            DEST_QPN => dest_qpn,
        }
        if mask.contains(AttrMask::RQ_PSN) {
            mine.rq_psn = attr.rq_psn & psn::MASK;
        }
        if mask.contains(AttrMask::SQ_PSN) {
            mine.sq_psn = attr.sq_psn & psn::MASK;
        }
    }

    fn reset(&mut self) {
        self.sends.clear();
        self.watch.reset();
        self.receives.clear();
        self.requester = Requester::default();
        self.responder = Responder::default();
        self.attr = QpAttr { cap: self.config.cap, ..QpAttr::default() };
        self.path = Path::default();
        self.pkey = 0;
        self.held = false;
        if self.config.qp_type != QpType::Ud {
            self.mtu = PacketSize::default();
        }
    }

    /// Whether the send queue is on its way to drained (`sq_draining`).
    pub(super) fn is_draining(&self) -> bool {
        self.attr.state == QpState::Sqd && self.requester.is_busy(&self.sends)
    }

    /// Tells of the drained send queue, once (IBA 10.3.1).
    pub(super) fn note_drained<D: Device + ?Sized>(&mut self, dev: &mut D) {
        if self.attr.state == QpState::Sqd
            && self.attr.en_sqd_async_notify
            && !self.requester.is_busy(&self.sends)
        {
            self.attr.en_sqd_async_notify = false;
            dev.event(QpEvent::SendQueueDrained);
        }
    }

    /// Whether requests are completed as flushed when the device calls next.
    pub(super) fn has_flushable(&self) -> bool {
        match self.attr.state {
            QpState::Err => !self.sends.is_empty() || self.receives.current().is_some(),
            QpState::Sqe => !self.sends.is_empty(),
            _ => false,
        }
    }
}

/// Ranges of ibv_modify_qp(3); what only the device can judge is not here.
fn check_values(attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
    let limits: [(AttrMask, &'static str, u64, u64); 5] = [
        (AttrMask::DEST_QPN, "dest_qp_num", attr.dest_qpn.into(), 0xff_ffff),
        (AttrMask::TIMEOUT, "timeout", attr.timeout.into(), 31),
        (AttrMask::RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), 7),
        (AttrMask::RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), 7),
        (AttrMask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into(), 31),
    ];
    for (bit, what, asked, max) in limits {
        if mask.contains(bit) && asked > max {
            return Err(ModifyError::Value { what, asked, max });
        }
    }
    // Automatic path migration is not implemented, and not advertised.
    if mask.contains(AttrMask::ALT_PATH) && attr.alt_port_num != 0 {
        let asked = attr.alt_port_num.into();
        return Err(ModifyError::Value { what: "alt_port_num", asked, max: 0 });
    }
    if mask.contains(AttrMask::PATH_MIG_STATE) && attr.path_mig_state != MigState::Migrated {
        let asked = attr.path_mig_state as u64;
        return Err(ModifyError::Value { what: "path_mig_state", asked, max: 0 });
    }
    Ok(())
}

impl Qp {
    /// Whether the responder takes requests (IBA 10.3.1).
    pub(super) fn receives_requests(&self) -> bool {
        matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Whether the requester may send what it has begun.
    pub(super) fn sends_requests(&self) -> bool {
        match self.attr.state {
            QpState::Rts => true,
            QpState::Sqd => self.config.qp_type != QpType::Ud,
            _ => false,
        }
    }
}
