//! Ports whose logs are at another daemon: either daemon is replaced, and the ports are protected again.

use std::net::{SocketAddr, TcpListener};

use super::*;

impl Kept {
    /// A daemon with this host file, and the key for logs.
    fn start_with_key(host: &str) -> Kept {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("key"), [7; 32]).unwrap();
        Self::start_on(dir, &format!("[daemon]\ncontrol = \"control.sock\"\n\n[ft]\nkey = \"key\"\n{host}"))
    }

    fn until_protected(&self) {
        let end = Instant::now() + SOON;
        loop {
            let ports = self.json(&["ports", "--json"]);
            let mut ports = ports["ports"].as_array().unwrap().iter();
            if ports.all(|port| port["tolerance"]["protected"] == true) {
                return;
            }
            assert!(Instant::now() < end, "{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_port_is_protected_again_after_either_daemon_was_replaced() {
    let listen: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let peer = Kept::start_with_key(&format!("listen = \"{listen}\"\n"));
    let adapters = ["e1000", "vmxnet3"];
    let port = |(adapter, number): (&str, u8)| {
        format!(
            "\n[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:12:34:{number:02x}\"\n\
             socket = \"vm{number}.sock\"\nft_peer = \"{listen}\"\n"
        )
    };
    let mut kept = Kept::start_with_key(&adapters.into_iter().zip(1..).map(port).collect::<String>());
    kept.attach(&adapters);
    kept.until_protected();
    kept.answers("before");
    for daemon in ["the port's", "the peer's"] {
        let pause = if daemon == "the peer's" { peer.upgrade() } else { kept.upgrade() };
        kept.answers(daemon);
        kept.until_protected();
        kept.answers(daemon);
        println!("{daemon} daemon was replaced, and stood still for {pause:.1} ms");
    }
    assert!(!peer.log().contains("at call"), "a replica differs: {}", peer.log());
    assert!(!kept.log().contains("disconnected"), "{}", kept.log());
}
