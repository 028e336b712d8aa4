//! One-sided operations: a client writes, reads and counts in the memory of a server, whose program does nothing.
//!
//! `cargo run --release --example read_write [BYTES]`

use ironverbs::{
    Access, ConnectOptions, Context, Cq, Devices, Error, Pd, Qp, Rc, RemoteRegion, Unconnected,
    connect_pair,
};

fn main() -> Result<(), Error> {
    let bytes = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1 << 20);
    let context = Devices::new()?.first()?.open()?;
    let (client, server) = (End::new(&context)?, End::new(&context)?);

    // The server's side: memory, and what it tells the client of it, as the bytes that would go over a socket.
    let access =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let memory = server.pd.region(bytes + 8, access)?;
    let told = memory.remote().to_bytes();

    let (client_qp, _server_qp) = connect_pair(client.qp, server.qp, &ConnectOptions::default())?;
    let remote = RemoteRegion::from_bytes(&told)?;
    let (data, counter) = (remote.part(8, bytes as u64)?, remote.part(0, 8)?);

    let pattern: Vec<u8> = (0..bytes).map(|i| (i * 31 / 7) as u8).collect();
    let local = client.pd.region(bytes, Access::LOCAL_WRITE)?;
    let mut slice = local.slice(..)?;
    slice.assign(&pattern)?;
    let (written, mut slice) = client_qp.write(slice, &data).post()?.wait();
    written?;
    println!("WRITE {bytes} bytes: ok");

    slice.assign(&vec![0; bytes])?;
    let (read, slice) = client_qp.read(slice, &data).post()?.wait();
    read?;
    assert!(slice.to_vec() == pattern, "what was read differs from what was written");
    println!("READ  {bytes} bytes: ok, the same");

    let mut word = client.pd.region(8, Access::LOCAL_WRITE)?.slice(..)?;
    for expected in 0..10 {
        let (before, back) = client_qp.fetch_add(word, &counter, 1).post()?.wait();
        assert_eq!(before?, expected);
        word = back;
    }
    println!("FETCH_ADD: the server's counter is {}", memory.load_u64(0)?);

    let (before, _) = client_qp.compare_swap(word, &counter, 10, 100).post()?.wait();
    println!("COMPARE_SWAP: {} became {}", before?, memory.load_u64(0)?);

    // What the server did not grant: the error says what was asked for.
    let (refused, _) = client_qp
        .write(
            client.pd.region(8, Access::empty())?.slice(..)?,
            &RemoteRegion { rkey: 0, ..counter },
        )
        .post()?
        .wait();
    println!(
        "WRITE with a wrong key: {}",
        refused.map_or_else(|e| e.to_string(), |()| "ok".into())
    );
    Ok(())
}

struct End {
    pd: Pd,
    qp: Unconnected<Rc>,
}

impl End {
    fn new(context: &Context) -> Result<End, Error> {
        let (pd, cq) = (Pd::new(context)?, Cq::new(context, 16)?);
        let qp = Qp::<Rc>::builder(&pd, &cq).build()?;
        Ok(End { pd, qp })
    }
}
