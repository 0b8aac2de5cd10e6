//! Measurements between two unmodified kernels in unmodified QEMUs. Not among `cargo test`'s targets, because it needs the network
//! once and minutes of translation: `cargo xtask test` and `cargo test -p nicety-lab --test real_pair` run it.

use nicety_guests::{Accel, GuestConfig, Kernel, Root};
use nicety_lab::real::pair::{self, RIGHT};

#[test]
#[ignore = "only with --full: the lab measures QEMU's own models in real_adapters"]
fn two_guests_ping_and_netperf_through_qemus_own_e1000() {
    let root = Root::lay(&mut |line| eprintln!("{line}")).unwrap_or_else(|error| panic!("{error}"));
    let translated = GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(Kernel::V6_12) };
    let mut pair = pair::qemu_peers(&root, &translated, "e1000").unwrap_or_else(|error| panic!("{error}"));
    let ping = pair.ping(RIGHT, 5).unwrap_or_else(|error| panic!("{error}"));
    println!("{ping:?}");
    assert_eq!((ping.sent, ping.received), (5, 5));
    pair.serve().unwrap_or_else(|error| panic!("{error}"));
    let stream = pair.stream(RIGHT, 3).unwrap_or_else(|error| panic!("{error}"));
    println!("TCP_STREAM {:.0} Mbit/s, {:.1} CPU-s per Gbit", stream.rate, stream.cpu_seconds_per_gbit());
    assert!(stream.rate > 1.0, "{stream:?}");
    let answers = pair.request_response(RIGHT, 3).unwrap_or_else(|error| panic!("{error}"));
    println!("TCP_RR {:.0} per second", answers.rate);
    assert!(answers.rate > 1.0, "{answers:?}");
}
