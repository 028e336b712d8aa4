//! Attributes of queue pairs: changed, checked, asked for, and what peers on this host are told of them.

use std::sync::atomic::Ordering;

use ironverbs_transport::verbs::{AttrMask, QpAttr, QpState, QpType};
use ironverbs_wire::Path;

use super::{Link, Qp, State, Told};
use crate::Error;
use crate::context::{check_port, limits};
use crate::direct::Thing;
use crate::direct::table::{QpLine, line_of_qp};
use crate::neighbours::LOCAL_PACKET;
use crate::status::Waiting;
use crate::surroundings::Surroundings;

impl Qp {
    /// Changes attributes, the state among them (ibv_modify_qp(3)). On an error nothing has changed.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        self.context().check()?;
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Err {
            // An acknowledgement that is here tells that a request is done. What an adapter has heard is not flushed.
            self.host().take_what_came();
        }
        self.change(attr, mask)
    }

    /// The same, as part of a round of the engine too.
    pub(crate) fn change(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        self.identity.check()?;
        let path = self.validate(attr, mask)?;
        let link = self.link(attr, mask, path.as_ref())?;
        let mut state = self.state.lock();
        if state.removed {
            let device = self.context().device().name().to_owned();
            return Err(Error::Removed { device });
        }
        let now = self.host().now();
        let pkey = match mask.contains(AttrMask::PKEY_INDEX) {
            true => self.context().pkey(1, attr.pkey_index.into())?,
            // Not looked at.
            false => limits::PKEY,
        };
        if mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Reset | QpState::Err) {
            self.settle_debts(&mut state, now);
        }
        {
            let mut surroundings = Surroundings::of(self);
            state.transport.modify(attr, mask, path, pkey, now, &mut surroundings)?;
        }
        if let Some(link) = link {
            if let Link::Lane(_) = link {
                state.transport.set_packet_size(LOCAL_PACKET);
                state.transport.hold_timeouts();
            }
            state.link = link;
            state.aim = None;
            state.condemned = None;
        }
        if mask.contains(AttrMask::ACCESS_FLAGS) {
            self.access.store(attr.access.bits(), Ordering::Relaxed);
        }
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            state.link = Link::Wire;
            state.aim = None;
            state.condemned = None;
            state.patience = None;
            state.posted = 0;
            self.access.store(0, Ordering::Relaxed);
            self.send_cq.purge(self.qpn);
            self.recv_cq.purge(self.qpn);
            self.read.store(0, Ordering::Release);
        }
        self.pump(&mut state, now);
        self.publish(&state);
        let took = self.tell(&mut state);
        drop(state);
        if took {
            // What a peer does by itself by what it was told before ends before this returns.
            let told = (Waiting::ModifyQp, self.qpn);
            self.host().wait_for_peers(Thing::Qp(line_of_qp(self.qpn)), told);
        }
        Ok(())
    }

    /// The way to the peer that a transition to RTR names.
    fn link(
        &self,
        attr: &QpAttr,
        mask: AttrMask,
        path: Option<&Path>,
    ) -> Result<Option<Link>, Error> {
        let learns =
            mask.contains(AttrMask::STATE | AttrMask::DEST_QPN) && attr.state == QpState::Rtr;
        let (Some(path), true) = (path, learns && self.qp_type != QpType::Ud) else {
            return Ok(None);
        };
        match self.host().lane_to(&path.dst, attr.dest_qpn) {
            Some(lane) => Ok(Some(Link::Lane(lane?))),
            None => Ok(Some(Link::Wire)),
        }
    }

    /// What only the device can check of a modify: ports, keys, GIDs, MTU.
    fn validate(&self, attr: &QpAttr, mask: AttrMask) -> Result<Option<Path>, Error> {
        if mask.contains(AttrMask::PORT) {
            check_port(attr.port_num)?;
        }
        if mask.contains(AttrMask::PKEY_INDEX) {
            let pkey = self.context().pkey(1, attr.pkey_index.into())?;
            if pkey == 0 {
                let (what, value) = ("pkey_index", attr.pkey_index.into());
                return Err(Error::Invalid { what, value, why: "the entry is empty" });
            }
        }
        if mask.intersects(AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE) {
            return Err(Error::NotSupported { what: "path migration" });
        }
        if mask.contains(AttrMask::RATE_LIMIT) {
            return Err(Error::NotSupported { what: "a rate limit" });
        }
        if mask.contains(AttrMask::CAP) {
            return Err(Error::NotSupported { what: "resizing a queue pair" });
        }
        for (bit, what, asked) in [
            (AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic),
            (AttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", attr.max_dest_rd_atomic),
        ] {
            if mask.contains(bit) && u32::from(asked) > limits::RD_ATOMIC {
                let (asked, max) = (asked.into(), limits::RD_ATOMIC.into());
                return Err(Error::Limit { what, asked, max });
            }
        }
        if mask.contains(AttrMask::PATH_MTU) {
            let active = self.context().device().link().1;
            if attr.path_mtu > active {
                let (asked, max) = (attr.path_mtu.bytes() as u64, active.bytes() as u64);
                return Err(Error::Limit { what: "path_mtu", asked, max });
            }
        }
        match mask.contains(AttrMask::AV) {
            true => self.context().resolve(&attr.ah).map(Some),
            false => Ok(None),
        }
    }

    /// Its attributes (ibv_query_qp(3)).
    pub fn query(&self) -> QpAttr {
        // A fork's copy of the lock may be held for ever; there the QP is as good as reset.
        if self.own().is_err() {
            return QpAttr::default();
        }
        self.state.lock().transport.query()
    }

    /// Tells after packets, which change the PSN and seldom more, what [`Qp::tell`] tells.
    #[inline]
    pub(super) fn tell_psn(&self, state: &mut State) {
        match (&mut state.told, state.transport.accepts()) {
            (Some(Told { line, psn }), Some(now))
                if line.access == now.access && line.peer_qpn == now.peer =>
            {
                if let Some(table) = self.host().table.get().filter(|_| *psn != now.psn) {
                    *psn = now.psn;
                    table.set_psn(line_of_qp(self.qpn), now.psn);
                }
            }
            (None, None) => {}
            _ => {
                self.tell(state);
            }
        }
    }

    /// Tells the peer's process what it may do by itself, if that has changed. Whether it was told otherwise before.
    pub(super) fn tell(&self, state: &mut State) -> bool {
        let Some(table) = self.host().table.get() else { return false };
        let index = line_of_qp(self.qpn);
        let told = match (&state.link, state.transport.accepts()) {
            (Link::Lane(lane), Some(accepts)) if !state.gone && !self.counting.needs_packets() => {
                let peer = lane.peer();
                let line = QpLine {
                    pd: self.pd.handle(),
                    access: accepts.access,
                    peer_qpn: accepts.peer,
                    peer_slot: peer.slot,
                    peer_tenure: peer.tenure,
                };
                Some(Told { line, psn: accepts.psn })
            }
            _ => None,
        };
        if told == state.told {
            return false;
        }
        let before = std::mem::replace(&mut state.told, told);
        if let Some(told) = &told {
            table.set_psn(index, told.psn);
        }
        let line = |told: &Told| told.line;
        if before.as_ref().map(line) == told.as_ref().map(line) {
            return false;
        }
        table.set_qp(index, told.as_ref().map(|told| &told.line));
        before.is_some()
    }
}
