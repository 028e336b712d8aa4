//! What each side says of a connection.

use ironverbs_soft::cm::ConnParam;

/// What a side offers when it connects or accepts: as many READs and atomics as the device can, retries without end where
/// the peer is not ready, no private data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Offer {
    param: ConnParam,
}

/// As many as the device can.
const MOST: u8 = 0xff;

impl Default for Offer {
    fn default() -> Offer {
        let param = ConnParam {
            responder_resources: MOST,
            initiator_depth: MOST,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParam::default()
        };
        Offer { param }
    }
}

impl Offer {
    /// Bytes for the peer's program: at most 56 when connecting, 196 when accepting.
    pub fn private_data(mut self, bytes: &[u8]) -> Offer {
        self.param.private_data = bytes.to_vec();
        self
    }

    /// READs and atomics that this side has in flight at most, and that it takes of the peer.
    pub fn depth(mut self, initiator: u8, responder: u8) -> Offer {
        self.param.initiator_depth = initiator;
        self.param.responder_resources = responder;
        self
    }

    /// Retries after a timeout, up to 7, and when the peer has no receive posted, up to 6; 7 is for ever.
    pub fn retries(mut self, timeout: u8, rnr: u8) -> Offer {
        self.param.retry_count = timeout;
        self.param.rnr_retry_count = rnr;
        self
    }

    pub(super) fn param(&self) -> &ConnParam {
        &self.param
    }
}
