//! The queue pair of an id, and how it follows the connection.

use std::sync::Arc;

use ironverbs_transport::verbs::{Access, AttrMask, QpAttr, QpState, QpType};

use super::connect::{UD_QKEY, fail};
use super::id::{Phase, State};
use super::{CmError, CmId};
use crate::{Error, Qp};

/// The RNR timer code of a queue pair whose peer was told to retry so often. The kernel asks for the longest pause,
/// 655.36 ms, and programs with a finite count rely on what that adds up to: they send before the peer has posted its
/// receives. Who retries for ever needs no long pauses: 0.64 ms.
fn rnr_timer(retries: u8) -> u8 {
    if retries < 7 { 0 } else { 12 }
}

impl CmId {
    /// Attaches the queue pair of the connection, or takes it away. It is moved to INIT, a UD one to RTS; from then
    /// on the id moves it as the connection goes, and takes numbers and flags from it.
    ///
    /// # Errors
    /// EINVAL without a device, for a queue pair of another type or device, or when there is one already.
    pub fn attach_qp(&self, qp: Option<&Arc<Qp>>) -> Result<(), CmError> {
        self.check()?;
        let Some(qp) = qp else {
            self.state.lock().qp = None;
            return Ok(());
        };
        {
            let state = self.state.lock();
            let place = state.place.as_ref().ok_or_else(|| state.phase.refuses("have a QP"))?;
            if state.qp.is_some() {
                return Err(CmError::Invalid { what: "queue pair", why: "the id has one" });
            }
            if qp.qp_type() != self.qp_type() {
                return Err(CmError::Invalid { what: "queue pair", why: "it is of another type" });
            }
            if !Arc::ptr_eq(qp.context().device(), &place.device) {
                return Err(CmError::Device(Error::Foreign { what: "queue pair" }));
            }
        }
        self.advance(qp, QpState::Init)?;
        if qp.qp_type() == QpType::Ud {
            self.advance(qp, QpState::Rtr)?;
            self.advance(qp, QpState::Rts)?;
        }
        self.state.lock().qp = Some(qp.clone());
        Ok(())
    }

    /// Makes the queue pair of a connection whose peer is known ready to send.
    pub(super) fn make_ready(&self, qp: &Qp) -> Result<(), CmError> {
        // INIT again: what the peer may do is known only now.
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.advance(qp, state)?;
        }
        Ok(())
    }

    /// The peer has accepted: makes the queue pair ready and says so. On an error the connection is refused.
    pub(super) fn complete(&self, qp: &Qp) -> Result<(), CmError> {
        let done = self.make_ready(qp).and_then(|()| self.establish());
        if done.is_err() {
            fail(qp);
            let _ = self.reject(&[]);
        }
        done
    }

    fn advance(&self, qp: &Qp, target: QpState) -> Result<(), CmError> {
        let (attr, mask) = self.qp_attr(target)?;
        Ok(qp.modify(&attr, mask)?)
    }

    /// Attributes with which a queue pair of the connection goes to INIT, RTR or RTS (rdma_init_qp_attr(3)).
    ///
    /// # Errors
    /// EINVAL without a device, for another state, and for RTR and RTS before the peer is known.
    pub fn qp_attr(&self, target: QpState) -> Result<(QpAttr, AttrMask), CmError> {
        self.check()?;
        let state = self.state.lock();
        let pkey_index = self.pkey_index(&state);
        let attr = QpAttr { state: target, port_num: 1, pkey_index, ..QpAttr::default() };
        if state.place.is_none() {
            return Err(state.phase.refuses("have a QP"));
        }
        match (target, self.qp_type()) {
            (QpState::Init, _) => Ok(self.init_attr(&state, attr)),
            (QpState::Rtr, QpType::Ud) => Ok((attr, AttrMask::STATE)),
            (QpState::Rts, QpType::Ud) => Ok((attr, AttrMask::STATE | AttrMask::SQ_PSN)),
            (QpState::Rtr, _) => self.rtr_attr(&state, attr),
            (QpState::Rts, _) => self.rts_attr(&state, attr),
            _ => Err(CmError::Invalid { what: "state", why: "only INIT, RTR and RTS" }),
        }
    }

    /// The place of the route's P_Key in the port's table; the first where there is no route yet.
    fn pkey_index(&self, state: &State) -> u16 {
        let subnet = self.inner().subnet.as_ref();
        let found =
            subnet.zip(state.route).map(|(subnet, route)| subnet.pkey_index(route.path.pkey));
        found.flatten().unwrap_or(0)
    }

    fn init_attr(&self, state: &State, mut attr: QpAttr) -> (QpAttr, AttrMask) {
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
        if self.qp_type() == QpType::Ud {
            attr.qkey = UD_QKEY;
            return (attr, mask | AttrMask::QKEY);
        }
        if let Some(link) = state.link {
            attr.access = Access::REMOTE_WRITE;
            if link.responder_resources > 0 {
                attr.access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            }
        }
        (attr, mask | AttrMask::ACCESS_FLAGS)
    }

    fn rtr_attr(&self, state: &State, attr: QpAttr) -> Result<(QpAttr, AttrMask), CmError> {
        let known = state.link.filter(|link| link.complete).zip(state.route);
        let (link, route) = known.ok_or_else(|| state.phase.refuses("name its peer"))?;
        let mut mask = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN;
        if matches!(self.qp_type(), QpType::Rc | QpType::XrcRecv) {
            mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        }
        let attr = QpAttr {
            ah: route.ah_attr(),
            path_mtu: link.mtu,
            dest_qpn: link.dest_qpn,
            rq_psn: link.rq_psn,
            max_dest_rd_atomic: link.responder_resources,
            min_rnr_timer: rnr_timer(link.rnr_retries_told),
            ..attr
        };
        Ok((attr, mask))
    }

    fn rts_attr(&self, state: &State, attr: QpAttr) -> Result<(QpAttr, AttrMask), CmError> {
        let link = state.link.filter(|link| link.complete);
        let link = link.ok_or_else(|| state.phase.refuses("name its peer"))?;
        let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
        if matches!(self.qp_type(), QpType::Rc | QpType::XrcSend) {
            mask |= AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
        }
        if self.qp_type() != QpType::Uc {
            mask |= AttrMask::TIMEOUT;
        }
        let attr = QpAttr {
            sq_psn: link.sq_psn,
            max_rd_atomic: link.initiator_depth,
            retry_cnt: link.retry_count,
            rnr_retry: link.rnr_retry_count,
            timeout: link.ack_timeout,
            ..attr
        };
        Ok((attr, mask))
    }

    /// Whether the peer has accepted and the queue pair is to be made ready.
    pub(super) fn waits_for_qp(&self) -> Option<Arc<Qp>> {
        let state = self.state.lock();
        state.qp.clone().filter(|_| state.phase == Phase::Replied)
    }
}
