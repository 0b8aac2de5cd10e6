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

/// Three guests send at once by a link of 200 Mbit/s: two with a reservation and few shares, and a greedy one with many. TCP itself gives
/// each a third, shares alone give the two a hundredth of the greedy one's. How well a reservation is kept in each 100 ms is a matter of the
/// plane's own clock (`crates/plane/tests/tcp.rs`), and of the lab's `qos-over-time`: here the machine may be busy.
#[test]
fn guests_beside_each_other_keep_their_reservations_on_a_full_uplink() {
    const LINK: f64 = 200.0;
    const RESERVED: f64 = 70.0;
    let place = tempfile::tempdir().unwrap();
    let uplink = place.path().join("up.sock").display().to_string();
    let class = |name: &str, more: &str| format!("[[io_class]]\nuplink = \"pair\"\nname = \"{name}\"\n{more}\n");
    let reserved = format!("shares = 1\nreservation = \"{RESERVED}Mbit/s\"\n");
    let classes = format!("rate = \"{LINK}Mbit/s\"\n")
        + &class("management", &format!("ports = \"vm1\"\ndelay = \"normal\"\n{reserved}"))
        + &class("storage", &format!("ports = \"vm2\"\n{reserved}"))
        + &class("vm", "shares = 100");
    let mut daemons = Vec::new();
    let mut guests = Vec::new();
    for (side, role, more) in [(0u8, "listen", classes.as_str()), (1, "connect", "")] {
        let dir = place.path().join(role);
        std::fs::create_dir(&dir).unwrap();
        let mut host = format!("[uplink]\nkind = \"pair\"\nsocket = \"{uplink}\"\nrole = \"{role}\"\n{more}");
        for n in 1..=3 {
            host += &format!("[[port]]\nname = \"vm{n}\"\nadapter = \"virtio-net\"\n");
            host += &format!("mac = \"52:54:00:12:{side:02}:0{n}\"\nsocket = \"vm{n}.sock\"\n");
        }
        std::fs::write(dir.join("host.toml"), host).unwrap();
        daemons.push(serve(&dir));
        guests.extend((1..=3).map(|n| {
            let socket = dir.join(format!("vm{n}.sock")).display().to_string();
            Station::start(&json!({ "vhost-user": { "socket": socket } }), 10 * side + n)
        }));
    }
    let mut receivers = guests.split_off(3);
    // Addresses are exchanged first.
    for (sender, receiver) in guests.iter_mut().zip(&receivers) {
        sender.asked(&json!({ "send": { "to": receiver.address, "seconds": 0.1 } }));
    }
    std::thread::scope(|scope| {
        for (sender, receiver) in guests.iter_mut().zip(&receivers) {
            let order = json!({ "send": { "to": receiver.address, "seconds": 4.0 } });
            scope.spawn(move || sender.asked(&order));
        }
    });
    let carried = receivers.iter_mut().map(|receiver| {
        let counts = receiver.asked(&json!("report"));
        let number = |key: &str| counts["counts"][key].as_f64().unwrap();
        (number("discarded_bytes"), number("discarded_ns") / 1e9)
    });
    let carried: Vec<(f64, f64)> = carried.collect();
    println!("bytes and seconds of each guest: {carried:?}");
    let [management, storage, vm] = [0, 1, 2].map(|guest: usize| carried[guest].0);
    assert!(management > vm / 10.0 && storage > vm / 10.0, "no reservation was kept: {carried:?}");
    for (bytes, seconds) in &carried {
        assert!(*bytes <= LINK * 1e6 / 8.0 * seconds + BURST, "the link's rate is kept: {carried:?}");
    }
    drop((guests, receivers, daemons));
}
