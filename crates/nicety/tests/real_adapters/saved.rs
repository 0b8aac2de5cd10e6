//! One daemon saves a port in the middle of traffic, another process restores it, and the guest's driver notices nothing.

use std::{
    cell::RefCell,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use nicety_guests::{Guest, Link, Machine, Namespace, Root, Served, Setup};
use nicety_trials::scope::{few, is_full};
use tempfile::TempDir;

use crate::{
    relay::Relay,
    stage::{FLOOD, SENDER, SOON, address, amount, ping, port, quiet, sh, well},
    user_mode,
};

/// Number of moves from one daemon to the other, in a normal and in a full run.
const MOVES: [usize; 2] = [2, 4];

/// Two daemons, joined by a stream. Both have a port `vm1` of the same adapter; the first also has the peer's port.
struct Two {
    root: Root,
    served: [Served; 2],
    namespace: RefCell<Namespace>,
    folder: TempDir,
}

impl Two {
    fn new(adapter: &str) -> Two {
        let root = well(Root::lay(&mut |line| eprintln!("{line}")));
        let mut namespace = well(Namespace::open(&root));
        let folder = well(TempDir::new());
        let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
        let mut moved = port(adapter, 1);
        if adapter == "vmxnet3" {
            // A guest cannot map another daemon's doorbells.
            moved.more = "doorbells = \"trapped\"\n".to_owned();
        }
        let served = [true, false].map(|listens| {
            let socket = folder.path().join("joined.sock").display().to_string();
            let setup = Setup { link: Some(Link::Stream { socket, listens }), ..Setup::default() };
            let peer = listens.then(|| port("virtio-net", 2));
            let ports = [moved.clone()].into_iter().chain(peer).collect();
            well(Served::start_as(program, &mut namespace, ports, setup))
        });
        Two { root, served, namespace: namespace.into(), folder }
    }

    /// Runs `nicety port VERB vm1` at one of the daemons.
    fn port(&self, number: usize, verb: &str) -> String {
        let (program, file) = (env!("CARGO_BIN_EXE_nicety"), self.folder.path().join("vm1.state"));
        let control = self.served[number].socket("control.sock");
        // The control socket is for the daemon's user: so it runs in the daemon's namespace.
        let command = format!("'{program}' port {verb} vm1 {} --control {}", file.display(), control.display());
        let output = self.namespace.borrow_mut().run(&command, SOON);
        output.unwrap_or_else(|error| panic!("{error}\n{}", self.served[number].log()))
    }

    fn report(&self, number: usize) -> serde_json::Value {
        let answer: serde_json::Value = well(serde_json::from_str(&self.served[number].ask().unwrap_or_default()));
        let ports = answer["ports"].as_array().into_iter().flatten();
        ports.clone().find(|port| port["name"] == "vm1").cloned().unwrap_or_else(|| panic!("no vm1 in {answer}"))
    }

    /// Frames of the guest, out and in.
    fn carried(&self, number: usize) -> [u64; 2] {
        let report = self.report(number);
        let sum =
            |way: &str| report[way].as_array().into_iter().flatten().filter_map(|queue| queue["frames"].as_u64()).sum();
        [sum("transmit"), sum("receive")]
    }

    /// Waits until enough frames more than `before` have passed.
    fn wait(&self, number: usize, before: [u64; 2], is_enough: impl Fn([u64; 2]) -> bool) {
        let end = Instant::now() + SOON;
        let more = |now: [u64; 2]| [now[0] - before[0], now[1] - before[1]];
        while !is_enough(more(self.carried(number))) {
            assert!(Instant::now() < end, "after {before:?}: {}", self.report(number));
            sleep(Duration::from_millis(2));
        }
    }
}

/// Listens for a file, and makes one of random bytes. Returns its checksum.
fn prepare(guest: &mut Guest, megabytes: u32) -> String {
    let receive = "rm -f /tmp/came; (nc -l -p 9000 -e sh -c 'sha256sum >/tmp/came' >/dev/null 2>&1 &)";
    sh(guest, &format!("{receive}; until netstat -ltn | grep -q :9000; do rest; done"));
    sh(guest, &format!("dd if=/dev/urandom of=/tmp/sent bs=1M count={megabytes} 2>/dev/null; sha256sum </tmp/sent"))
}

/// Sends the file in the background.
fn begin(guest: &mut Guest, address: &str) {
    sh(guest, &format!("(nc {address} 9000 -e {SENDER} >/dev/null 2>&1 &)"));
}

fn came(at: &mut Guest) -> String {
    sh(at, "until [ -s /tmp/came ]; do rest; done; cat /tmp/came")
}

/// Moves the guest's port to and fro, each time in the middle of a file in each direction and of pings.
fn moves<M: Machine>(adapter: &str, machine: M, megabytes: u32) {
    let two = Two::new(adapter);
    let mut relay = Relay::new(&two.served[0].socket("vm1.sock"));
    let moved = machine.address("eth0", &format!("{}/24", address(1))).vfio_user(&relay.socket());
    let peer = two.served[0].attach(user_mode::machine(1).address("eth0", &format!("{}/24", address(2))), "vm2");
    let (mut guest, mut peer) = (well(Guest::start(&two.root, moved)), well(Guest::start(&two.root, peer)));
    for guest in [&mut guest, &mut peer] {
        guest.wait_ready().unwrap_or_else(|error| panic!("{error}\n{}", two.served[0].log()));
    }
    ping(&mut guest, "", &address(2));
    sh(&mut guest, &format!("({FLOOD} -n -q -i 0.02 {} >/tmp/pinged 2>&1 &)", address(2)));
    for number in 0..MOVES[usize::from(is_full())] {
        let (old, new) = (number % 2, 1 - number % 2);
        let [there, back] = [&mut guest, &mut peer].map(|guest| prepare(guest, megabytes));
        let sent = two.carried(old);
        begin(&mut guest, &address(2));
        begin(&mut peer, &address(1));
        // A little later each time.
        let whole = u64::from(megabytes << 20) / 1500;
        two.wait(old, sent, |[out, into]| out > 20 && into > 20 && out.max(into) > whole * (number as u64 + 1) / 8);
        let (began, before) = (Instant::now(), two.carried(new));
        let mut saved = String::new();
        relay.go_to(
            &two.served[new].socket("vm1.sock"),
            || saved = two.port(old, "save"),
            || _ = two.port(new, "restore"),
        );
        let took = began.elapsed();
        two.wait(new, before, |[out, into]| out > 100 && into > 100);
        assert_eq!([came(&mut peer), came(&mut guest)], [there, back], "move {number}");
        let after = two.carried(new);
        let frames = [after[0] - before[0], after[1] - before[1]];
        // The move was in the middle: at least a tenth of a file arrived later.
        assert!(frames.iter().any(|frames| frames * 10 > whole), "{frames:?} of {megabytes} MB");
        println!("{} moved in {took:.0?}, {frames:?} frames of both files afterwards", saved.trim());
        ping(&mut guest, "", &address(2));
        ping(&mut peer, "", &address(1));
        let report = two.report(old);
        assert_eq!(report["condition"], "waiting", "{report}");
        quiet(&mut guest);
    }
    let pinged = sh(&mut guest, "killall -INT ping; until grep received /tmp/pinged; do rest; done");
    println!("{adapter}: {pinged}");
    for number in [0, 1] {
        let report = two.report(number);
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
    }
    quiet(&mut guest);
    sh(&mut guest, "ip link set eth0 down; ip link set eth0 up; until has_carrier eth0; do rest; done");
    ping(&mut guest, "", &address(2));
}

/// In the usual scope few of them: `upgraded.rs` hands all over, to the next daemon.
#[test]
fn every_adapter_goes_on_in_another_daemon_in_the_middle_of_traffic() {
    for entry in few().into_iter().filter(|entry| entry.about.transports.contains(&"vfio-user")) {
        let mut machine = user_mode::machine(1);
        // On a busy host the commands take a while.
        machine.append.push("vfio_user.timeout_ms=30000".to_owned());
        moves(entry.about.name, machine, amount(entry.about.name, 40).max(if entry.about.dma { 8 } else { 3 }));
    }
}
