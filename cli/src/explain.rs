//! What a failed completion means, and what to try; `ironverbs explain`.

use ironverbs::{CompletionError, VendorErr, WcStatus, Why};

/// Says what a code in `vendor_err`, or a completion's status, means and what to look at.
///
/// A program that fails verbs, rather than completions, is explained by running it with IRONVERBS_EXPLAIN=1: one line on
/// stderr for each failing call.
#[derive(clap::Args)]
pub(crate) struct ExplainArgs {
    /// A number from `vendor_err`, or the name of a status, as REM_ACCESS_ERR; all there are without one
    #[arg(value_name = "CODE|STATUS")]
    codes: Vec<String>,
}

const STATUSES: [WcStatus; 22] = [
    WcStatus::Success,
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocEecOpErr,
    WcStatus::LocProtErr,
    WcStatus::WrFlushErr,
    WcStatus::MwBindErr,
    WcStatus::BadRespErr,
    WcStatus::LocAccessErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
    WcStatus::LocRddViolErr,
    WcStatus::RemInvRdReqErr,
    WcStatus::RemAbortErr,
    WcStatus::InvEecnErr,
    WcStatus::InvEecStateErr,
    WcStatus::FatalErr,
    WcStatus::RespTimeoutErr,
    WcStatus::GeneralErr,
];

pub(crate) fn run(args: &ExplainArgs) -> Result<(), String> {
    if args.codes.is_empty() {
        for (code, text) in Why::all() {
            say!("vendor_err {:>2}  {code:?}: {text}", code as u32);
        }
        return Ok(());
    }
    for code in &args.codes {
        say!("{}", explained(code).ok_or_else(|| format!("{code:?} is no code and no status"))?);
    }
    Ok(())
}

fn explained(code: &str) -> Option<String> {
    let number = match code.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => code.parse().ok(),
    };
    if let Some(number) = number {
        let (code, text) = Why::all().find(|(code, _)| *code as u32 == number)?;
        return Some(format!("vendor_err {number} ({code:?}): {text}.\n  {}", advice(code)));
    }
    let name = code.to_ascii_uppercase();
    let name = name.strip_prefix("IBV_WC_").unwrap_or(&name);
    let found = STATUSES.into_iter().find(|&code| status(code).0 == name)?;
    let (name, meaning) = status(found);
    Some(format!(
        "IBV_WC_{name} ({}): {meaning}.\n  vendor_err says why, see `ironverbs explain`.",
        found as u32
    ))
}

/// What to look at.
fn advice(code: VendorErr) -> &'static str {
    match code {
        VendorErr::None => "Nothing failed.",
        VendorErr::Flushed => {
            "An earlier request of the queue pair failed; its completion says why."
        }
        VendorErr::LkeyUnknown => {
            "Look at the lkey of each element of the list: mistyped, an rkey, or of a region that was deregistered."
        }
        VendorErr::LkeyPd => {
            "Register the memory in the domain that the queue pair, or the SRQ, was made in."
        }
        VendorErr::LkeyRange => {
            "An element's address and length must lie within its region, from the address it was registered with on."
        }
        VendorErr::LkeyAccess => {
            "Receives, READs and atomics write: register with IBV_ACCESS_LOCAL_WRITE."
        }
        VendorErr::TooLong => {
            "A datagram is at most the port's active MTU, any other message 2 GiB."
        }
        VendorErr::RecvTooSmall => {
            "Post larger receives; a datagram's takes 40 bytes more than its payload."
        }
        VendorErr::RetryExceeded => {
            "The peer is gone, or its packets do not arrive: firewalls drop UDP 4791, address translation breaks the packets' \
             checksum. `ironverbs ping` shows whether anything arrives, `ironverbs ps` who is there."
        }
        VendorErr::RnrRetryExceeded => {
            "The peer posted no receive in time: rnr_retry 7 waits for ever."
        }
        VendorErr::NakInvalidRequest => {
            "The peer's queue pair does not take the operation: its qp_access_flags, max_dest_rd_atomic, an atomic's \
             alignment, or a message longer than its receive."
        }
        VendorErr::NakRemoteAccess => {
            "The rkey is none of the peer's, of another domain, does not give the right, or the range lies outside; a window \
             may be invalidated, or another queue pair's. The peer has an asynchronous event of its queue pair."
        }
        VendorErr::NakRemoteOperational => {
            "The peer's receive failed: its completion says why, most often a bad lkey."
        }
        VendorErr::NakInvalidRdRequest => {
            "Reliable datagrams are not known here: look at who answers."
        }
        VendorErr::BadResponse => {
            "Who answers is not the queue pair that was connected, or is broken."
        }
        VendorErr::InvalidateRefused => {
            "Invalidated can be a window of type 2 that this queue pair bound, by the key that it was bound with: no region, \
             no window of type 1, none twice."
        }
        VendorErr::MemoryFault => "The memory was unmapped, or protected, while it was registered.",
        VendorErr::OpNotAllowed => {
            "READs and atomics need max_rd_atomic above 0 (ibv_modify_qp to RTS)."
        }
        VendorErr::RemoteAccessHere => {
            "The peer asked for what this side's queue pair or region does not give."
        }
        VendorErr::PeerKilled => "The peer's process ended without closing its device.",
        VendorErr::BindKey => {
            "The new rkey differs from the window's in its lowest byte only; a window of type 2 is invalidated before it is \
             bound again; the region's key is its lkey."
        }
        VendorErr::BindPd => "Make window, region and queue pair in one domain.",
        VendorErr::BindRange => {
            "What is bound lies within the region; only type 1 is bound to nothing."
        }
        VendorErr::BindAccess => {
            "Register with IBV_ACCESS_MW_BIND, for writes and atomics with IBV_ACCESS_LOCAL_WRITE too, and not zero-based."
        }
        VendorErr::PeerKey => {
            "Look at the rkey: mistyped, an lkey, of a region that was deregistered, or of a window that was invalidated or is \
             bound for another queue pair."
        }
        VendorErr::PeerPd => "Register the peer's memory in the domain of its queue pair.",
        VendorErr::PeerRange => {
            "Address and length must lie within the peer's region, from the address it was registered with on."
        }
        VendorErr::PeerRegionAccess => {
            "Register the peer's memory with IBV_ACCESS_REMOTE_WRITE, _READ or _ATOMIC."
        }
        VendorErr::PeerQpAccess => "Move the peer to INIT with the right in qp_access_flags.",
        VendorErr::PeerAlignment => "Atomics are on addresses that are multiples of 8.",
        VendorErr::PeerMemory => {
            "The peer unmapped or protected the memory while it was registered."
        }
        VendorErr::PeerResources => {
            "max_rd_atomic of this side must not exceed max_dest_rd_atomic of the peer, which is 0 by default."
        }
        VendorErr::PeerRecvTooSmall => "Post larger receives at the peer.",
        VendorErr::PeerRecvMemory => {
            "The completion of the peer's receive says why, most often a bad lkey."
        }
        VendorErr::PeerInvalidate => {
            "Invalidated can be a window of type 2 that the peer bound for this connection, by the key that it was bound with."
        }
        VendorErr::PeerQueue => "Look at the number of the shared receive queue (ibv_get_srq_num).",
    }
}

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
        | E::Binding { why }
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
    fn every_code_and_status_is_explained() {
        for (code, text) in Why::all() {
            let said = explained(&(code as u32).to_string()).unwrap();
            assert!(said.contains(text) && said.contains(advice(code)), "{said}");
            assert_eq!(explained(&format!("{:#x}", code as u32)), Some(said));
        }
        let said = explained("ibv_wc_rem_access_err").unwrap();
        assert!(said.contains("(10): remote access error"), "{said}");
        assert_eq!(explained("REM_ACCESS_ERR"), Some(said));
        for nonsense in ["", "-1", "36", "4294967296", "0xzz", "SUCCES", "IBV_WC_"] {
            assert_eq!(explained(nonsense), None, "{nonsense}");
        }
    }

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
