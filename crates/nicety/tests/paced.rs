//! `rate` in a host file: TCP of embedded guests through a paced uplink, both ways, and between guests beside it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// Bytes per second of `rate`.
const RATE: f64 = 100e6 / 8.0;
/// What a bucket holds, and a packet that may go although it is longer than what is left.
const BURST: f64 = 2.0 * 65_536.0;
/// How long each run lasts.
const SECONDS: f64 = 1.0;

/// A process of this program that ends with its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An embedded guest, or a peer at the uplink.
struct Station {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    address: [u8; 4],
    _process: Process,
}

impl Station {
    fn start(attach: &Value, last: u8) -> Station {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        let mut child = command.args(["guest", "guest"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut station = Station { orders, answers, address: [10, 0, 0, last], _process: Process(child) };
        let order = json!({ "configure": { "attach": attach, "address": station.address } });
        assert_eq!(station.asked(&order), json!("ready"));
        station
    }

    fn asked(&mut self, order: &Value) -> Value {
        writeln!(self.orders, "{order}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

/// Bytes that came through, and in how many seconds.
fn carried(from: &mut Station, to: &mut Station) -> (f64, f64) {
    // The first exchange of addresses is not of the run.
    for seconds in [0.1, SECONDS] {
        from.asked(&json!({ "send": { "to": to.address, "seconds": seconds } }));
    }
    let counts = to.asked(&json!("report"));
    let number = |key: &str| counts["counts"][key].as_f64().unwrap();
    (number("discarded_bytes"), number("discarded_ns") / 1e9)
}

#[test]
fn an_uplink_keeps_to_its_rate_both_ways_and_guests_among_themselves_do_not() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let mut host = "[uplink]\nkind = \"pair\"\nsocket = \"up.sock\"\nrate = \"100Mbit/s\"\n".to_owned();
    for (n, adapter) in [(1, "e1000"), (2, "virtio-net")] {
        host += &format!("[[port]]\nname = \"vm{n}\"\nadapter = \"{adapter}\"\n");
        host += &format!("mac = \"52:54:00:12:34:0{n}\"\nsocket = \"vm{n}.sock\"\n");
    }
    std::fs::write(dir.join("host.toml"), host).unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_nicety"));
    serve.arg("serve").current_dir(dir).env_remove("XDG_RUNTIME_DIR").stderr(Stdio::null());
    let daemon = Process(serve.spawn().unwrap());
    let path = |name: &str| dir.join(name).display().to_string();
    let mut e1000 = Station::start(&json!({ "vfio-user": { "driver": "e1000", "socket": path("vm1.sock") } }), 1);
    let mut virtio = Station::start(&json!({ "vhost-user": { "socket": path("vm2.sock") } }), 2);
    let mut peer = Station::start(&json!({ "pair": { "socket": path("up.sock"), "mac": [2, 0, 0, 0, 0, 9] } }), 9);

    for guest in [&mut e1000, &mut virtio] {
        let ways = [carried(guest, &mut peer), carried(&mut peer, guest)];
        for (way, (bytes, seconds)) in ["out", "in"].into_iter().zip(ways) {
            let most = RATE * seconds + BURST;
            println!("{way}: {bytes} bytes in {seconds} s, {most} at most");
            assert!(bytes > 1e6, "{way}: {bytes} bytes");
            assert!(bytes <= most, "{way}: {bytes} bytes in {seconds} s, and {most} are allowed");
        }
    }
    let (bytes, seconds) = carried(&mut e1000, &mut virtio);
    assert!(bytes > 2.0 * RATE * seconds, "nobody paces guests among themselves: {bytes} bytes in {seconds} s");
    drop((e1000, virtio, peer, daemon));
}
