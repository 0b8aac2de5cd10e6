//! `rate` in a host file: TCP of embedded guests through a paced uplink, in both directions, and between guests beside it.

mod station;

use serde_json::json;
use station::{Station, serve};

/// Bytes per second of `rate`.
const RATE: f64 = 20e6 / 8.0;
/// Bytes in a bucket, and a packet that may pass although it is longer than the remaining tokens.
const BURST: f64 = 2.0 * 65_536.0;
/// Duration of each run.
const SECONDS: f64 = 1.0;

/// Bytes that arrived, and in how many seconds.
fn carried(from: &mut Station, to: &mut Station) -> (f64, f64) {
    // The first exchange of addresses is not part of the run.
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
    let mut host = "[uplink]\nkind = \"pair\"\nsocket = \"up.sock\"\nrate = \"20Mbit/s\"\n".to_owned();
    for (n, adapter) in [(1, "e1000"), (2, "virtio-net")] {
        host += &format!("[[port]]\nname = \"vm{n}\"\nadapter = \"{adapter}\"\n");
        host += &format!("mac = \"52:54:00:12:34:0{n}\"\nsocket = \"vm{n}.sock\"\n");
    }
    std::fs::write(dir.join("host.toml"), host).unwrap();
    let daemon = serve(dir);
    let path = |name: &str| dir.join(name).display().to_string();
    let mut e1000 = Station::start(&json!({ "vfio-user": { "driver": "e1000", "socket": path("vm1.sock") } }), 1);
    let mut virtio = Station::start(&json!({ "vhost-user": { "socket": path("vm2.sock") } }), 2);
    let mut peer = Station::start(&json!({ "pair": { "socket": path("up.sock"), "mac": [2, 0, 0, 0, 0, 9] } }), 9);

    for guest in [&mut e1000, &mut virtio] {
        let ways = [carried(guest, &mut peer), carried(&mut peer, guest)];
        for (way, (bytes, seconds)) in ["out", "in"].into_iter().zip(ways) {
            let most = RATE * seconds + BURST;
            println!("{way}: {bytes} bytes in {seconds} s, {most} at most");
            assert!(bytes > 5e5, "{way}: {bytes} bytes");
            assert!(bytes <= most, "{way}: {bytes} bytes in {seconds} s, and {most} are allowed");
        }
    }
    let (bytes, seconds) = carried(&mut e1000, &mut virtio);
    assert!(bytes > 2.0 * RATE * seconds, "nobody paces guests among themselves: {bytes} bytes in {seconds} s");
    drop((e1000, virtio, peer, daemon));
}
