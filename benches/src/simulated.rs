//! Goodput under loss in virtual time, which no machine's noise touches.

use std::net::Ipv4Addr;

use ironverbs_soft::sim::{Impairments, Network};
use ironverbs_soft::*;

use crate::Outcome;
use crate::ours::End;

const MESSAGES: u64 = 2_000;
const MESSAGE: u32 = 65_536;
/// A link of 25 Gbit/s, 5 us long.
const RATE: u64 = 25_000_000_000 / 8;

/// Goodput of 64 KiB WRITEs at a share of lost packets, as a share of the goodput without loss.
pub(crate) fn goodput_share(loss: f64) -> Outcome<f64> {
    Ok(nanoseconds(0.0)? as f64 / nanoseconds(loss)? as f64)
}

fn nanoseconds(loss: f64) -> Outcome<u64> {
    let network = Network::new(1);
    let host = |n| network.host(&[Ipv4Addr::new(10, 1, 0, n).into()]);
    let (one, two) = (host(1)?, host(2)?);
    let (a, b) = (End::new(&one)?, End::new(&two)?);
    a.connect(b.context.gid(1, 0)?.gid, b.qp.qpn())?;
    b.connect(a.context.gid(1, 0)?.gid, a.qp.qpn())?;
    network.impair(Impairments { loss, rate: RATE, ..Impairments::default() });
    let wr = SendWr {
        wr_id: 0,
        opcode: WrOpcode::Write,
        flags: SendFlags::SIGNALED,
        imm: [0; 4],
        invalidate_rkey: 0,
        remote_addr: b.memory.addr(),
        rkey: b.mr.rkey(),
        compare_add: 0,
        swap: 0,
        ud: None,
        xrc_srqn: 0,
    };
    let (mut posted, mut done, start) = (0, 0, network.now());
    while done < MESSAGES {
        while posted < MESSAGES && posted - done < 64 {
            a.qp.post_send(&wr, Payload::Sges(&[a.sge(MESSAGE)]))?;
            posted += 1;
        }
        let mut failed = None;
        a.cq.poll(64, |wc| match wc.status {
            WcStatus::Success => done += 1,
            status => failed = Some(status),
        })?;
        if let Some(status) = failed {
            return Err(format!("completed with {status:?}").into());
        }
        if done < MESSAGES && !network.step() {
            return Err("nothing moves any more".into());
        }
    }
    Ok(network.now() - start)
}
