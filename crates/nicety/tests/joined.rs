//! Two daemons whose switches are joined by a pair: TCP between a guest of one and a guest of the other, and after either daemon
//! was killed and started again.

mod station;

use std::path::Path;

use serde_json::json;
use station::{Process, Station, serve};

/// A daemon with one guest.
struct Side {
    guest: Station,
    daemon: Process,
}

impl Side {
    /// In a folder of its own; both know the socket `up.sock` beside their folders.
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

    /// Without a word to anybody: its socket stays behind.
    fn kill(mut self) {
        self.daemon.0.kill().unwrap();
        self.daemon.0.wait().unwrap();
    }
}

/// TCP from one to the other; what arrived, in bytes.
fn carried(from: &mut Station, to: &mut Station) -> u64 {
    let said = from.asked(&json!({ "send": { "to": to.address, "seconds": 0.2 } }));
    assert!(said.get("failed").is_none(), "{said}");
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
