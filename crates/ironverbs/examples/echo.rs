//! An echo service by address and port.
//!
//! `cargo run --example echo -- serve 0.0.0.0:7471`, then, here or on another host, by its address:
//! `cargo run --example echo -- 192.0.2.1:7471 some words`

use std::net::SocketAddr;
use std::time::Duration;

use ironverbs::cm::{self, Listener, Offer, Request};
use ironverbs::{Access, Cq, Devices, Error, Pd, Qp, Rc};

/// Bytes of the longest message.
const LONGEST: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.split_first() {
        Some((role, [addr])) if role == "serve" => serve(addr.parse()?)?,
        Some((addr, words)) if !words.is_empty() => ask(addr.parse()?, &words.join(" "))?,
        _ => eprintln!("echo serve ADDRESS:PORT | echo ADDRESS:PORT WORDS..."),
    }
    Ok(())
}

fn serve(addr: SocketAddr) -> Result<(), Error> {
    let mut listener = Listener::<Rc>::bind(&Devices::new()?, addr, 0)?;
    println!("listening on {}", listener.local_addr());
    loop {
        let request = listener.next()?.wait()?;
        println!("{} asks", request.peer_addr());
        std::thread::spawn(move || {
            if let Err(error) = answer(request) {
                eprintln!("{error}");
            }
        });
    }
}

fn answer(request: Request<Rc>) -> Result<(), Error> {
    let context = request.device().open()?;
    let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 4)?);
    let region = pd.region(LONGEST, Access::LOCAL_WRITE)?;
    let qp = Qp::<Rc>::builder(&pd, &cq).depth(1, 1).build()?;
    // Posted before the peer can send.
    let recv = qp.recv(region.slice(..)?)?;
    let mut connection = request.accept(qp, &Offer::default())?.wait()?;
    let (received, mut slice) = recv.wait();
    slice.set_len(received?.len)?;
    connection.qp().send(slice).post()?.wait().0?;
    connection.closed().wait()?;
    Ok(())
}

fn ask(addr: SocketAddr, words: &str) -> Result<(), Error> {
    let route = cm::resolve(&Devices::new()?, None, addr, Duration::from_secs(2))?.wait()?;
    let context = route.device().open()?;
    let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 4)?);
    let region = pd.region(2 * LONGEST, Access::LOCAL_WRITE)?;
    let qp = Qp::<Rc>::builder(&pd, &cq).depth(1, 1).build()?;
    let recv = qp.recv(region.slice(..LONGEST)?)?;
    let connection = route.connect(qp, &Offer::default())?.wait()?;
    let words = &words.as_bytes()[..words.len().min(LONGEST)];
    let mut slice = region.slice(LONGEST..LONGEST + words.len())?;
    slice.write_at(0, words)?;
    connection.qp().send(slice).post()?.wait().0?;
    let (received, slice) = recv.wait();
    println!("{}", String::from_utf8_lossy(&received?.data(&slice)));
    Ok(())
}
