//! Two daemons whose switches are joined by a pair: TCP between a guest of each, also after either daemon was killed and started
//! again; and joined by two pairs, each of which carries a VLAN.

mod station;

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use station::{Process, Station, serve};

/// A daemon with one guest.
struct Side {
    guest: Station,
    daemon: Process,
}

impl Side {
    /// Starts a daemon in a folder of its own; both use the socket `up.sock` beside their folders.
    fn start(place: &Path, role: &str, adapter: &str, number: u8) -> Side {
        let dir = place.join(role);
        std::fs::create_dir_all(&dir).unwrap();
        let host = format!(
            "[uplink]\nkind = \"pair\"\nsocket = \"../up.sock\"\nrole = \"{role}\"\n\n[[port]]\nname = \"vm\"\n\
             adapter = \"{adapter}\"\nmac = \"52:54:00:12:34:0{number}\"\nsocket = \"vm.sock\"\n"
        );
        std::fs::write(dir.join("host.toml"), host).unwrap();
        let daemon = serve(&dir);
        let socket = dir.join("vm.sock").display().to_string();
        let attach = json!({ "vfio-user": { "driver": adapter, "socket": socket } });
        Side { guest: Station::start(&attach, number), daemon }
    }

    /// Kills the daemon: its socket file stays.
    fn kill(mut self) {
        self.daemon.0.kill().unwrap();
        self.daemon.0.wait().unwrap();
    }
}

/// Sends TCP from one guest to the other. Returns the bytes that arrived.
fn carried(from: &mut Station, to: &mut Station) -> u64 {
    let answer = from.asked(&json!({ "send": { "to": to.address, "seconds": 0.2 } }));
    assert!(answer.get("failed").is_none(), "{answer}");
    to.asked(&json!("report"))["counts"]["discarded_bytes"].as_u64().unwrap()
}

fn both_ways(one: &mut Side, other: &mut Side, when: &str) {
    let bytes = [carried(&mut one.guest, &mut other.guest), carried(&mut other.guest, &mut one.guest)];
    println!("{when}: {bytes:?} bytes");
    assert!(bytes.iter().all(|bytes| *bytes > 100_000), "{when}: {bytes:?}");
}

#[test]
fn a_pair_joins_two_daemons_whichever_starts_first_and_again_after_either_was_killed() {
    let place = tempfile::tempdir().unwrap();
    let connecting = || Side::start(place.path(), "connect", "vmxnet3", 1);
    let listening = || Side::start(place.path(), "listen", "e1000", 2);
    let mut left = connecting();
    let mut right = listening();
    both_ways(&mut left, &mut right, "joined");
    right.kill();
    let mut right = listening();
    both_ways(&mut left, &mut right, "the listening one came back");
    left.kill();
    let mut left = connecting();
    both_ways(&mut left, &mut right, "the connecting one came back");
}

/// A daemon with two uplinks, each for one VLAN, and a guest in each. `numbers`: last bytes of the guests' addresses.
fn two_uplinks(dir: &Path, role: &str, numbers: [u8; 2]) -> (Process, Vec<Station>) {
    std::fs::create_dir_all(dir).unwrap();
    let vlans = [10, 20];
    let tables = vlans.iter().zip(numbers).map(|(vlan, number)| {
        format!(
            "[[uplink]]\nkind = \"pair\"\nname = \"up{vlan}\"\nsocket = \"../up{vlan}.sock\"\nrole = \"{role}\"\nvlan = {vlan}\n\n\
             [[port]]\nname = \"vm{vlan}\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:0{number}\"\nsocket = \"vm{vlan}.sock\"\n\
             vlan = {vlan}\n\n"
        )
    });
    std::fs::write(dir.join("host.toml"), tables.collect::<String>()).unwrap();
    let daemon = serve(dir);
    let guests = vlans.iter().zip(numbers).map(|(vlan, number)| {
        let socket = dir.join(format!("vm{vlan}.sock")).display().to_string();
        Station::start(&json!({ "vfio-user": { "driver": "e1000", "socket": socket } }), number)
    });
    (daemon, guests.collect())
}

#[test]
fn two_uplinks_carry_the_frames_of_a_vlan_each() {
    let place = tempfile::tempdir().unwrap();
    let (left, right) = (place.path().join("left"), place.path().join("right"));
    let (_listens, mut ours) = two_uplinks(&left, "listen", [1, 2]);
    let (_connects, mut theirs) = two_uplinks(&right, "connect", [3, 4]);
    let frames = |uplink: &str, way: &str| {
        let mut ports = Command::new(env!("CARGO_BIN_EXE_nicety"));
        let output = ports.args(["ports", uplink, "--json"]).current_dir(&left).env_remove("XDG_RUNTIME_DIR").output();
        let report: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        report["ports"][0][way][0]["frames"].as_u64().unwrap_or(0)
    };
    let mut before = [0; 2];
    for (at, uplink) in ["up10", "up20"].into_iter().enumerate() {
        let bytes = carried(&mut ours[at], &mut theirs[at]);
        assert!(bytes > 100_000, "by {uplink}: {bytes}");
        let [out, back] = ["receive", "transmit"].map(|way| frames(uplink, way));
        assert!(out > bytes / 66_000 && back > 0, "by {uplink}: {out} frames out, {back} back");
        before[at] = out;
    }
    let more = frames("up10", "receive") - before[0];
    assert!(more < 10, "{more} frames of the other VLAN went by it");
}
