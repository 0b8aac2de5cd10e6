//! VMs that are protected, in a daemon that is replaced: the next process confines itself before it has the ports, and reaches the other
//! host and the lease all the same, both by TCP.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::played::Qemu;
use super::*;

/// The other host's daemon is asked for by a connection.
fn accepted(peer: &TcpListener, log: &dyn Fn() -> String) -> TcpStream {
    let end = Instant::now() + SOON;
    loop {
        match peer.accept() {
            Ok((stream, _)) => return stream,
            Err(error) => {
                assert!(Instant::now() < end, "{error}\n{}", log());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[test]
fn a_daemon_that_takes_over_reaches_the_other_host_and_the_lease_in_etcd() {
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    let [own, other] = addresses::<2>();
    let host = Host::new(place.path(), "one", &own, &cluster, &[("virtio-net", "web", 1), ("virtio-net", "web", 2)]);
    let mut host = Host { has_keeper: true, ..host };
    let peer = TcpListener::bind((other.as_str(), 7001)).unwrap();
    peer.set_nonblocking(true).unwrap();
    std::fs::write(host.dir.join("key"), [7; 32]).unwrap();
    let vm = |name: &str, port: u8| {
        format!("\n[[vm]]\nname = \"{name}\"\nports = \"vm{port}\"\nqmp = \"{name}.qmp\"\npeer = \"{other}:7001\"\n")
    };
    let file = host.dir.join("host.toml");
    let tables = format!(
        "\n[ft]\nlisten = \"{own}:7001\"\nkey = \"key\"\netcd = \"{}\"\n{}{}",
        cluster.endpoints(),
        vm("runs", 1),
        vm("waits", 2)
    );
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + &tables).unwrap();
    let _qemus =
        [("runs", false), ("waits", true)].map(|(name, waits)| Qemu::at(&host.dir.join(format!("{name}.qmp")), waits));
    host.serve();
    let state = |host: &Host| match host.ask(Ask::Vms) {
        Some(Reply::Vms(list)) => list.vms.iter().map(|vm| (vm.name.clone(), vm.state.clone())).collect(),
        other => panic!("{other:?}\n{}", host.log()),
    };
    let alone = |host: &Host| {
        let states: Vec<(String, String)> = state(host);
        states.iter().any(|(name, state)| name == "runs" && state == "alone")
    };
    // The one that runs has its lease. The one that waits asks the other host for its VM.
    until("the VM is this host's", || alone(&host));
    let first = accepted(&peer, &|| host.log());
    for _ in 0..2 {
        let said = host.command(&["upgrade"]).wait_with_output().unwrap();
        assert!(said.status.success(), "{said:?}\n{}", host.log());
        until("the VM is this host's again", || alone(&host));
        let _again = accepted(&peer, &|| host.log());
    }
    let log = host.log();
    assert!(!log.contains("Permission denied") && !log.contains("the sandbox refused"), "{log}");
    drop(first);
}
