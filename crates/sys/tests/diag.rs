//! The owner of a port. A process of its own: a child that another test forks would hold the
//! sockets as well.

use std::net::UdpSocket;

use ironverbs_sys::diag::udp_port_owner;

#[test]
fn a_port_of_ours_is_ours_until_it_is_closed() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let socket = UdpSocket::bind(address).unwrap();
        let port = socket.local_addr().unwrap().port();
        let owner = udp_port_owner(port).unwrap();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(owner.pid, Some(std::process::id()), "{owner:?}");
        assert_eq!(owner.comm, comm.trim_end());
        assert!(!owner.kernel);

        drop(socket);
        assert_eq!(udp_port_owner(port), None);
    }
}
