//! What a failed completion means, and what to try.

use crate::verbs::{VendorErr, Wc, WcStatus};

/// The name of `enum ibv_wc_status` without its prefix, and what ibv_wc_status_str(3) says.
pub(crate) fn status(status: WcStatus) -> (&'static str, &'static str) {
    match status {
        WcStatus::Success => ("SUCCESS", "success"),
        WcStatus::LocLenErr => ("LOC_LEN_ERR", "local length error"),
        WcStatus::LocQpOpErr => ("LOC_QP_OP_ERR", "local QP operation error"),
        WcStatus::LocEecOpErr => ("LOC_EEC_OP_ERR", "local EE context operation error"),
        WcStatus::LocProtErr => ("LOC_PROT_ERR", "local protection error"),
        WcStatus::WrFlushErr => ("WR_FLUSH_ERR", "work request flushed"),
        WcStatus::MwBindErr => ("MW_BIND_ERR", "memory window bind error"),
        WcStatus::BadRespErr => ("BAD_RESP_ERR", "bad response"),
        WcStatus::LocAccessErr => ("LOC_ACCESS_ERR", "local access error"),
        WcStatus::RemInvReqErr => ("REM_INV_REQ_ERR", "remote invalid request"),
        WcStatus::RemAccessErr => ("REM_ACCESS_ERR", "remote access error"),
        WcStatus::RemOpErr => ("REM_OP_ERR", "remote operation error"),
        WcStatus::RetryExcErr => ("RETRY_EXC_ERR", "transport retry counter exceeded"),
        WcStatus::RnrRetryExcErr => ("RNR_RETRY_EXC_ERR", "RNR retry counter exceeded"),
        WcStatus::LocRddViolErr => ("LOC_RDD_VIOL_ERR", "local RDD violation"),
        WcStatus::RemInvRdReqErr => ("REM_INV_RD_REQ_ERR", "remote invalid RD request"),
        WcStatus::RemAbortErr => ("REM_ABORT_ERR", "operation aborted by the remote side"),
        WcStatus::InvEecnErr => ("INV_EECN_ERR", "invalid EE context number"),
        WcStatus::InvEecStateErr => ("INV_EEC_STATE_ERR", "invalid EE context state"),
        WcStatus::FatalErr => ("FATAL_ERR", "fatal error"),
        WcStatus::RespTimeoutErr => ("RESP_TIMEOUT_ERR", "response timeout"),
        WcStatus::GeneralErr => ("GENERAL_ERR", "general error"),
    }
}

const VENDOR: [(VendorErr, &str); 19] = [
    (VendorErr::None, "no further reason"),
    (VendorErr::Flushed, "the QP is in the error state"),
    (VendorErr::LkeyUnknown, "the lkey names no region"),
    (VendorErr::LkeyPd, "the lkey's region belongs to another protection domain"),
    (VendorErr::LkeyRange, "the range is not within the lkey's region"),
    (VendorErr::LkeyAccess, "the lkey's region may not be written"),
    (VendorErr::TooLong, "the message is longer than the port or path MTU allows"),
    (VendorErr::RecvTooSmall, "the receive buffer is smaller than the message"),
    (VendorErr::RetryExceeded, "no acknowledgement within the retries"),
    (VendorErr::RnrRetryExceeded, "the peer had no receive posted within the RNR retries"),
    (VendorErr::NakInvalidRequest, "the peer answered: invalid request"),
    (VendorErr::NakRemoteAccess, "the peer answered: access refused (rkey, range or rights)"),
    (VendorErr::NakRemoteOperational, "the peer answered: it cannot complete the request"),
    (VendorErr::NakInvalidRdRequest, "the peer answered: invalid RD request"),
    (VendorErr::BadResponse, "the peer's response did not fit the request"),
    (VendorErr::InvalidateRefused, "the rkey may not be invalidated by this QP"),
    (VendorErr::MemoryFault, "the memory under a region is gone"),
    (VendorErr::OpNotAllowed, "the QP's type or attributes do not allow the operation"),
    (VendorErr::RemoteAccessHere, "this side refused the peer's access"),
];

/// What a `vendor_err` of ours means.
pub(crate) fn vendor(code: u32) -> &'static str {
    VENDOR.iter().find(|(e, _)| *e as u32 == code).map_or("unknown code", |(_, text)| text)
}

fn hint(wc: &Wc, peer: &str, port: u16) -> Option<String> {
    Some(match wc.status {
        WcStatus::RetryExcErr => format!(
            "is the peer still running, and does UDP port {port} reach {peer}? Firewalls drop it, and \
             address translation (NAT, published container ports) breaks the packets' checksum. \
             `ironverbs ping {peer}` shows whether anything arrives"
        ),
        WcStatus::RnrRetryExcErr => "the peer does not keep up, or is stopped".to_owned(),
        WcStatus::RemAccessErr => {
            "the peer's region is gone or smaller; does it run the same version?".to_owned()
        }
        WcStatus::WrFlushErr => "an earlier request failed; its completion says why".to_owned(),
        WcStatus::LocLenErr => {
            "the message was larger than expected; do both sides run the same version?".to_owned()
        }
        _ => return None,
    })
}

/// A failed completion in words: what was done, its status, the reason behind it and a hint.
pub(crate) fn failure(what: &str, wc: &Wc, peer: &str, port: u16) -> String {
    let (name, meaning) = status(wc.status);
    let mut text = format!(
        "{what} failed: {name} ({}): {meaning}\n  vendor_err {}: {}\n  QP {:#08x}, request {}",
        wc.status as u32,
        wc.vendor_err,
        vendor(wc.vendor_err),
        wc.qpn,
        wc.wr_id
    );
    if let Some(hint) = hint(wc, peer, port) {
        text.push_str("\n  hint: ");
        text.push_str(&hint);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vendor_code_has_a_meaning() {
        for (i, (code, text)) in VENDOR.iter().enumerate() {
            assert_eq!(*code as usize, i);
            assert_eq!(vendor(i as u32), *text);
        }
        assert_eq!(vendor(9999), "unknown code");
    }
}
