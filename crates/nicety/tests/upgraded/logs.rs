//! Ports whose logs are at another daemon: either daemon is replaced, and the ports are protected again.

use super::*;

impl Kept {
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

/// A host file with a key for logs, which is written to this folder.
fn with_key(dir: &Path, host: &str) -> String {
    std::fs::write(dir.join("key"), [7; 32]).unwrap();
    format!("[daemon]\ncontrol = \"control.sock\"\n\n[ft]\nkey = \"key\"\n{host}")
}

#[test]
fn a_port_is_protected_again_after_either_daemon_was_replaced() {
    let (peer, listen) = Kept::start_at_port(|listen, dir| with_key(dir, &format!("listen = \"{listen}\"\n")));
    let adapters = ["e1000", "vmxnet3"];
    let port = |(adapter, number): (&str, u8)| {
        format!(
            "\n[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:12:34:{number:02x}\"\n\
             socket = \"vm{number}.sock\"\nft_peer = \"{listen}\"\n"
        )
    };
    let dir = tempfile::tempdir().unwrap();
    let host = with_key(dir.path(), &adapters.into_iter().zip(1..).map(port).collect::<String>());
    let mut kept = Kept::start_on(dir, &host);
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
