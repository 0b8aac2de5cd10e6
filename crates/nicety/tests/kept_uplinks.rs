//! The keeper holds what uplinks have opened: a daemon that is killed takes no tap along.

#[path = "station/kept.rs"]
mod kept;
#[path = "../../daemon/tests/namespace/mod.rs"]
mod namespace;
#[allow(dead_code, reason = "no guests here")]
mod station;

use std::net::UdpSocket;
use std::process::Command;

use kept::Kept;
use namespace::{inside, ip, ip_with};
use pcap_file::pcapng::{Block, PcapNgReader};

impl Kept {
    /// Serves these uplinks.
    fn start(uplinks: &str) -> Kept {
        let dir = tempfile::tempdir().unwrap();
        let host = format!("[daemon]\ncontrol = \"control.sock\"\nlisted = false\nworkers = 2\n{uplinks}");
        std::fs::write(dir.path().join("host.toml"), host).unwrap();
        Kept::serve(dir)
    }

    /// The daemon's process.
    fn daemon(&self) -> Option<u32> {
        let keeper = self.keeper.0.id();
        let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
        let is_daemon = |pid: &u32| station::is_daemon((*pid).into());
        children.split_whitespace().map(|pid| pid.parse().unwrap()).rfind(is_daemon)
    }

    fn signal(&self, signal: &str, pid: u32) {
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    }

    /// Kills the daemon, and waits for the next one.
    fn kill(&self) {
        let ready = || self.log().matches("all sockets are ready").count();
        let before = ready();
        self.signal("-KILL", self.daemon().unwrap());
        self.until("the next one serves", || ready() > before);
    }

    /// Ends the service as systemd does.
    fn end(mut self) {
        self.signal("-TERM", self.keeper.0.id());
        assert_eq!(self.keeper.0.wait().unwrap().code(), Some(0));
    }
}

fn is_there(interface: &str) -> bool {
    Command::new("ip").args(["link", "show", interface]).output().unwrap().status.success()
}

/// An interface as `ip` shows it: number, flags, bridge, addresses. Parts that change by themselves are left out.
fn shown(interface: &str) -> (String, String) {
    let link = ip_with(&["-o"], &format!("link show {interface}"));
    (link.replace("state UNKNOWN", "state UP"), ip_with(&["-4", "-o"], &format!("address show {interface}")))
}

/// Frames that the daemon has taken from this uplink.
fn taken(kept: &Kept, uplink: &str) -> u64 {
    let output = kept.asked(&["ports", uplink, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let queues = report["ports"][0]["transmit"].as_array().into_iter().flatten();
    queues.filter_map(|queue| queue["frames"].as_u64()).sum()
}

#[test]
fn a_killed_daemon_leaves_its_taps_as_they_are_and_a_normal_end_takes_them_along() {
    if !inside("a_killed_daemon_leaves_its_taps_as_they_are_and_a_normal_end_takes_them_along") {
        return;
    }
    let kept = Kept::start(
        "[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\n[[uplink]]\nkind = \"tap\"\nname = \"tap1\"\nqueues = 2\n",
    );
    kept.done(&["uplink", "add", "tap2", "kind=tap", "--yes"]);
    ip(
        "link add br0 type bridge\nlink set br0 up\nlink set tap0 master br0\nlink set tap0 up\naddress add 192.0.2.1/24 dev tap0\n\
        link set tap1 up\naddress add 198.51.100.1/24 dev tap1\nlink set tap2 up",
    );
    let taps = ["tap0", "tap1", "tap2"];
    // A link that has just come up.
    kept.until("they are up", || taps.iter().all(|tap| shown(tap).0.contains("LOWER_UP")));
    let before = taps.map(shown);
    for _ in 0..2 {
        kept.kill();
        assert_eq!(taps.map(shown), before, "{}", kept.log());
    }
    // Traffic goes on.
    let socket = UdpSocket::bind("198.51.100.1:0").unwrap();
    ip("neighbour add 198.51.100.2 lladdr 02:00:00:00:00:02 dev tap1");
    kept.until("a frame comes in by tap1", || {
        socket.send_to(b"out", "198.51.100.2:9").unwrap();
        taken(&kept, "tap1") > 0
    });
    // An upgrade keeps them too, and so does a kill after it.
    kept.done(&["upgrade"]);
    kept.kill();
    assert_eq!(taps.map(shown), before, "{}", kept.log());

    // A tap of an uplink that is removed goes, also from a daemon that came by an upgrade, and comes as a new one.
    kept.done(&["upgrade"]);
    kept.done(&["uplink", "remove", "tap2", "--yes"]);
    kept.until("tap2 is gone", || !is_there("tap2"));
    kept.done(&["uplink", "remove", "tap1", "--yes"]);
    kept.done(&["uplink", "add", "tap1", "kind=tap", "--yes"]);
    assert!(!shown("tap1").1.contains("198.51.100.1"), "{}", kept.log());
    kept.kill();
    assert!(is_there("tap0") && is_there("tap1") && !is_there("tap2"), "{}", kept.log());
    kept.end();
    assert!(!taps.iter().any(|tap| is_there(tap)));
}

#[test]
fn a_daemon_that_is_killed_within_a_change_leaves_the_taps_that_the_next_one_serves_and_no_other() {
    if !inside("a_daemon_that_is_killed_within_a_change_leaves_the_taps_that_the_next_one_serves_and_no_other") {
        return;
    }
    let kept = Kept::start("[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\n");
    ip("tuntap add dev own0 mode tap\nlink set own0 up\naddress add 203.0.113.1/24 dev own0");
    kept.done(&["uplink", "add", "own0", "kind=tap", "--yes"]);
    let before = ["tap0", "own0"].map(shown);
    let taps = ["tap1", "tap2", "tap3"];
    for (at, tap) in taps.iter().enumerate() {
        // The change comes to its end, or to a part of it, or is not begun.
        let words: &[&str] = if at == 2 { &["remove", "tap1"] } else { &["add", tap, "kind=tap"] };
        let mut change = Command::new(env!("CARGO_BIN_EXE_nicety"));
        change.arg("uplink").args(words).args(["--yes", "--control"]).arg(kept.path("control.sock"));
        let mut change = change.stderr(std::process::Stdio::null()).spawn().unwrap();
        let named = format!("names tap {tap}:");
        if at == 1 {
            kept.until("the change is being made", || kept.log().contains(&named));
        }
        kept.kill();
        change.wait().unwrap();
    }
    kept.until("taps are those of the uplinks", || {
        let output = kept.asked(&["ports", "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let names: Vec<&str> =
            report["ports"].as_array().into_iter().flatten().filter_map(|port| port["name"].as_str()).collect();
        names.contains(&"tap0") && taps.iter().all(|tap| is_there(tap) == names.contains(tap))
    });
    assert_eq!(["tap0", "own0"].map(shown)[0], before[0], "{}", kept.log());
    assert!(shown("own0").1 == before[1].1, "{}", kept.log());
    kept.end();
    assert!(is_there("own0") && !is_there("tap0"), "what the administrator has made stays");
}

#[test]
fn an_uplink_that_is_blocked_for_a_loop_stays_so_over_kills_and_upgrades_and_says_why() {
    if !inside("an_uplink_that_is_blocked_for_a_loop_stays_so_over_kills_and_upgrades_and_says_why") {
        return;
    }
    let kept =
        Kept::start("[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\n[[uplink]]\nkind = \"tap\"\nname = \"tap1\"\n");
    ip(
        "link add br0 type bridge\nlink set tap0 master br0\nlink set tap1 master br0\nlink set tap0 up\nlink set tap1 up\n\
        link set br0 up\naddress add 192.0.2.1/24 dev br0",
    );
    let station = UdpSocket::bind("192.0.2.1:0").unwrap();
    station.set_broadcast(true).unwrap();
    let says = |uplink: &str, words: &str| {
        let shown = kept.asked(&["ports", uplink]).stdout;
        String::from_utf8_lossy(&shown).contains(words)
    };
    let is_blocked = || {
        says("tap1", "tap1: it leads into the network of tap0, and frames went round: it carries nothing until")
            && says("tap0", "; tap1 leads into the same network, and is blocked")
    };
    let is_found = || {
        kept.until("the loop is found", || {
            let _no_link_yet = station.send_to(b"all", "192.0.2.255:9");
            is_blocked()
        });
    };
    is_found();
    // The daemon notes it a moment later.
    let is_noted = || {
        let exported = kept.asked(&["export"]).stdout;
        String::from_utf8_lossy(&exported).contains("loop_with = \"tap0\"")
    };
    kept.until("it is noted", is_noted);
    kept.kill();
    assert!(is_blocked(), "{}", kept.log());
    kept.done(&["upgrade"]);
    assert!(is_blocked(), "{}", kept.log());
    kept.kill();
    assert!(is_blocked(), "{}", kept.log());
    // It is told to carry frames again: the loop is still there, and found again.
    kept.done(&["uplink", "set", "tap1", "blocked=false", "--yes"]);
    is_found();
    kept.end();
}

#[test]
fn a_capture_goes_on_after_a_kill_behind_what_it_has() {
    if !inside("a_capture_goes_on_after_a_kill_behind_what_it_has") {
        return;
    }
    let kept = Kept::start(
        "[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\n[[uplink]]\nkind = \"capture\"\nname = \"all\"\nfile = \"all.pcapng\"\n",
    );
    ip(
        "link set tap0 up\naddress add 192.0.2.1/24 dev tap0\nneighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 dev tap0",
    );
    let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
    let captured = |word: &str| {
        let file = std::fs::read(kept.path("all.pcapng")).unwrap();
        file.windows(word.len()).any(|bytes| bytes == word.as_bytes())
    };
    let rounds = ["before the kill", "after one kill", "after two kills"];
    for (round, word) in rounds.iter().enumerate() {
        kept.until(word, || {
            socket.send_to(word.as_bytes(), "192.0.2.2:9").unwrap();
            captured(word)
        });
        assert!(rounds[..=round].iter().all(|word| captured(word)), "{}", kept.log());
        if round < 2 {
            kept.kill();
        }
    }
    let path = kept.path("all.pcapng");
    kept.done(&["uplink", "remove", "all", "--yes"]);
    let mut reader = PcapNgReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let mut packets = 0;
    while let Some(block) = reader.next_block() {
        packets += usize::from(matches!(block.unwrap(), Block::EnhancedPacket(_)));
    }
    assert!(packets >= 3);
    // Another one begins anew: the keeper has let go of the file.
    kept.done(&["uplink", "add", "all", "kind=capture", &format!("file={}", path.display()), "--yes"]);
    assert!(!captured(rounds[0]));
    kept.end();
}
