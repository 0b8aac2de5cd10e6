//! Ports whose logs are at another daemon, under Linux's TCP: a paravirtual adapter and an emulated one.

use std::fs;
use std::path::Path;

use nicety_guests::{Guest, Link, Port, Served, Setup};

use crate::stage::{SOON, Stage, TAP, address, amount, ping, port, quiet, send, well};
use crate::user_mode::machine;

/// The peer's address: of the stage's own network.
const PEER: &str = "127.0.0.1:7001";

fn protection(stage: &Stage, name: &str) -> bool {
    stage.report(name)["tolerance"]["protected"] == true
}

fn both_protected(stage: &Stage) {
    stage.wait_until("protection", || ["vm1", "vm2"].iter().all(|name| protection(stage, name)));
}

#[test]
fn tcp_passes_gates_whose_logs_are_at_another_daemon_and_goes_on_when_that_goes() {
    let folder = well(tempfile::tempdir());
    let key = folder.path().join("key");
    well(fs::write(&key, [7; 32]));
    let ft = |more: &str| Setup { daemon_more: format!("[ft]\nkey = {key:?}\n{more}"), ..Setup::default() };
    let tolerant = |adapter, number| Port { more: format!("ft_peer = {PEER:?}\n"), ..port(adapter, number) };
    let link = Some(Link::Tap(TAP.to_owned()));
    let mut stage = Stage::set_up(vec![tolerant("vmxnet3", 1), tolerant("e1000", 2)], Setup { link, ..ft("") });
    well(stage.namespace.run("ip link set lo up", SOON));
    let start_peer = |stage: &mut Stage| {
        let setup = ft(&format!("listen = {PEER:?}\n"));
        well(Served::start_as(Path::new(env!("CARGO_BIN_EXE_nicety")), &mut stage.namespace, Vec::new(), setup))
    };
    let peer = start_peer(&mut stage);
    let [mut left, mut right] = [1, 2].map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number))));
    [&mut left, &mut right].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
    both_protected(&stage);
    ping(&mut left, "", &address(2));
    send(&mut left, &mut right, &address(2), amount("e1000", 4));
    send(&mut right, &mut left, &address(1), amount("e1000", 4));
    both_protected(&stage);
    let socket = stage.report("vm1")["socket"].as_str().unwrap_or_default().to_owned();
    let control = Path::new(&socket).with_file_name("control.sock");
    let program = env!("CARGO_BIN_EXE_nicety");
    let status = well(stage.namespace.run(&format!("{program} ft status {}", control.display()), SOON));
    println!("{status}");
    for name in ["vm1", "vm2"] {
        assert!(status.contains(&format!("{name}: protected by {PEER}, which lacks ")), "{status}");
        assert!(!peer.log().contains("at call"), "a replica differs:\n{}", peer.log());
    }
    well(peer.stop(&mut stage.namespace));
    stage.wait_until("the peer's end", || !protection(&stage, "vm1") && !protection(&stage, "vm2"));
    stage.wait_log("not protected any more");
    send(&mut left, &mut right, &address(2), amount("e1000", 1));
    let peer = start_peer(&mut stage);
    both_protected(&stage);
    send(&mut right, &mut left, &address(1), amount("e1000", 1));
    assert!(protection(&stage, "vm1") && protection(&stage, "vm2"), "{}", stage.served.log());
    well(peer.stop(&mut stage.namespace));
    quiet(&mut left);
    quiet(&mut right);
}
