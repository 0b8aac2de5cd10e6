//! Cost of a received frame for a guest's kernel, in its instructions: the translator's clock advances by one for each.

use nicety_guests::{Accel, Guest, GuestConfig, Kernel};
use nicety_trials::scope::is_asked;

use crate::{
    stage::{Stage, address, ping, quiet, sh, well},
    user_mode::machine,
};

/// The reference adapter, and the adapters compared with it.
const COMPARED: [&str; 3] = ["vmxnet3", "e1000e", "igb"];
/// Bytes to receive, one run after the other. The first run of netperf costs a thousand million instructions whatever it carries,
/// each later one a few million: so the difference between the last two runs is the cost of their frames alone.
const BYTES: [u64; 3] = [1_000_000, 10_000_000, 70_000_000];

/// Instructions so far: the clock without its idle time; `/proc/timer_list` has both.
fn busy(guest: &mut Guest) -> u64 {
    let text = sh(guest, "grep -E '^now at|idle_sleeptime' /proc/timer_list");
    let number = |word: &str| {
        let line = text.lines().find(|line| line.contains(word)).and_then(|line| line.split_once(word));
        let number = line.and_then(|(_, rest)| rest.trim_matches([' ', ':']).split(' ').next()?.parse::<u64>().ok());
        number.unwrap_or_else(|| panic!("no nanoseconds: {text}"))
    };
    number("now at") - number("idle_sleeptime")
}

/// Instructions and frames of a TCP connection that sends `bytes` bytes to the guest.
fn received(stage: &Stage, guest: &mut Guest, bytes: u64) -> [u64; 2] {
    let before = [busy(guest), stage.received("vm1")];
    sh(guest, &format!("netperf -4 -H {} -t TCP_MAERTS -l -{bytes} -P 0", address(2)));
    let after = [busy(guest), stage.received("vm1")];
    [after[0] - before[0], after[1] - before[1]]
}

fn instructions(adapter: &str) -> u64 {
    let stage = Stage::new(&[adapter, "virtio-net"]);
    let counted = GuestConfig { accel: Accel::Counted, ..GuestConfig::new(Kernel::V6_12) };
    let mut guest = well(Guest::start(&stage.root, stage.at_port(counted, 1)));
    let mut peer = well(Guest::start(&stage.root, stage.at_port(machine(1), 2)));
    stage.ready(guest.wait_ready());
    stage.ready(peer.wait_ready());
    sh(&mut peer, "netserver -4 >/dev/null </dev/null 2>&1");
    ping(&mut guest, "", &address(2));
    let [_, small, large] = BYTES.map(|bytes| received(&stage, &mut guest, bytes));
    quiet(&mut guest);
    let [instructions, frames] = [0, 1].map(|n| large[n].saturating_sub(small[n]));
    println!("{adapter}: {small:?} and {large:?} instructions and frames, {} a frame", instructions / frames.max(1));
    assert!(frames > (BYTES[2] - BYTES[1]) / 1500, "{frames} frames");
    instructions / frames
}

#[test]
#[ignore = "only with --full: it boots a guest for each adapter and counts its instructions"]
fn a_received_frame_costs_the_intel_drivers_more_of_the_guest_s_instructions_than_vmxnet3_s() {
    let [vmxnet3, rest @ ..] = COMPARED.map(|adapter| is_asked(adapter).then(|| instructions(adapter)));
    for (adapter, intel) in COMPARED[1..].iter().zip(rest) {
        if let (Some(vmxnet3), Some(intel)) = (vmxnet3, intel) {
            assert!(intel > vmxnet3, "{adapter}: {intel}, vmxnet3: {vmxnet3}");
        }
    }
}
