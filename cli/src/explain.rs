//! What a failed completion means, and what to try.

use ironverbs::{CompletionError, WcStatus, Why};

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

fn why(error: &CompletionError) -> Option<Why> {
    use CompletionError as E;
    match error {
        E::LocalLength { why, .. }
        | E::LocalProtection { why }
        | E::LocalOperation { why }
        | E::RemoteInvalidRequest { why, .. }
        | E::RemoteAccess { why, .. }
        | E::RemoteOperation { why, .. }
        | E::RetryExceeded { why }
        | E::RnrRetryExceeded { why }
        | E::BadResponse { why }
        | E::Other { why, .. } => Some(*why),
        _ => None,
    }
}

fn hint(error: &CompletionError, peer: &str, port: u16) -> Option<String> {
    Some(match error {
        CompletionError::RetryExceeded { .. } => format!(
            "is the peer still running, and does UDP port {port} reach {peer}? Firewalls drop it, and \
             address translation (NAT, published container ports) breaks the packets' checksum. \
             `ironverbs ping {peer}` shows whether anything arrives"
        ),
        CompletionError::RnrRetryExceeded { .. } => {
            "the peer does not keep up, or is stopped".to_owned()
        }
        CompletionError::RemoteAccess { .. } => {
            "the peer's region is gone or smaller; does it run the same version?".to_owned()
        }
        CompletionError::Flushed => "an earlier request failed; its completion says why".to_owned(),
        CompletionError::LocalLength { .. } => {
            "the message was larger than expected; do both sides run the same version?".to_owned()
        }
        _ => return None,
    })
}

/// A failed request in words: what was done, how it ended, the reason behind that and a hint.
pub(crate) fn failure(what: &str, error: &CompletionError, peer: &str, port: u16) -> String {
    let mut text = match error.status() {
        Some(code) => {
            let (name, meaning) = status(code);
            format!("{what} failed: {name} ({}): {meaning}", code as u32)
        }
        None => format!("{what} failed: {error}"),
    };
    if let Some(why) = why(error) {
        text.push_str(&format!("\n  vendor_err {}: {why}", why.0));
    }
    if let Some(hint) = hint(error, peer, port) {
        text.push_str("\n  hint: ");
        text.push_str(&hint);
    }
    text
}

#[cfg(test)]
mod tests {
    use ironverbs::VendorErr;

    use super::*;

    #[test]
    fn a_failure_says_what_how_why_and_what_to_do() {
        let error = CompletionError::RetryExceeded { why: Why(VendorErr::RetryExceeded as u32) };
        let text = failure("a send", &error, "10.0.0.1", 4791);
        for part in [
            "a send failed: RETRY_EXC_ERR (12): transport retry counter exceeded",
            "vendor_err 8: no acknowledgement",
            "hint: ",
            "UDP port 4791 reach 10.0.0.1",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
