//! Two reliable queue pairs of one process bounce a message back and forth, verified.
//!
//! `cargo run --release --example pingpong [ROUNDS [BYTES]]`

use std::time::Instant;

use ironverbs::{
    Access, ConnectOptions, Context, Cq, Devices, Error, Op, Pd, Qp, Rc, Slice, Unconnected,
    connect_pair,
};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1).map_while(|arg| arg.parse().ok());
    let rounds: usize = args.next().unwrap_or(1000);
    let bytes: usize = args.next().unwrap_or(64);

    let context = Devices::new()?.first()?.open()?;
    println!("{} ({})", context.device(), context.gid(0)?);
    let (ping, pong) = (Side::new(&context, bytes)?, Side::new(&context, bytes)?);

    // The peers would exchange their endpoints over a socket; receives are posted before any message can come.
    let pong_recv = pong.qp.recv(pong.input)?;
    let ping_recv = ping.qp.recv(ping.input)?;
    let (ping_qp, pong_qp) = connect_pair(ping.qp, pong.qp, &ConnectOptions::default())?;

    let echo = std::thread::spawn(move || serve(&pong_qp, pong_recv, pong.output, rounds));
    let start = Instant::now();
    play(&ping_qp, ping_recv, ping.output, rounds)?;
    let elapsed = start.elapsed();
    echo.join().expect("the other side runs to its end")?;

    let round = elapsed.as_secs_f64() * 1e6 / rounds.max(1) as f64;
    println!("{rounds} round trips of {bytes} bytes, {round:.2} us each");
    Ok(())
}

struct Side {
    qp: Unconnected<Rc>,
    input: Slice,
    output: Slice,
}

impl Side {
    fn new(context: &Context, bytes: usize) -> Result<Side, Error> {
        let (pd, cq) = (Pd::new(context)?, Cq::new(context, 16)?);
        let region = pd.region(2 * bytes.max(8), Access::LOCAL_WRITE)?;
        let (input, output) = (region.slice(..bytes)?, region.slice(bytes..2 * bytes)?);
        Ok(Side { qp: Qp::<Rc>::builder(&pd, &cq).build()?, input, output })
    }
}

type Receive = Op<Slice, ironverbs::Message>;

/// Sends a message, and expects the same back.
fn play(qp: &Qp<Rc>, mut recv: Receive, mut output: Slice, rounds: usize) -> Result<(), Error> {
    for round in 0..rounds {
        let message = vec![round as u8; output.len()];
        output.write_at(0, &message)?;
        let send = qp.send(output).post()?;
        let (received, input) = recv.spin();
        assert_eq!(received?.data(&input), message, "round {round} came back different");
        recv = qp.recv(input)?;
        let (sent, slice) = send.spin();
        sent?;
        output = slice;
    }
    Ok(())
}

/// Sends back what comes.
fn serve(qp: &Qp<Rc>, mut recv: Receive, mut output: Slice, rounds: usize) -> Result<(), Error> {
    for _ in 0..rounds {
        let (received, input) = recv.spin();
        output.write_at(0, &received?.data(&input))?;
        recv = qp.recv(input)?;
        let (sent, slice) = qp.send(output).post()?.spin();
        sent?;
        output = slice;
    }
    Ok(())
}
