//! What a received frame costs a guest's kernel, counted in its instructions: the translator's clock goes on by one for each.

use nicety_guests::{Accel, Guest, GuestConfig, Kernel};
use nicety_trials::extent::is_asked;

use crate::{
    stage::{Stage, address, ping, quiet, sh, well},
    user_mode::machine,
};

/// The one that the others are held against, and those.
const COMPARED: [&str; 3] = ["vmxnet3", "e1000e", "igb"];
/// Received twice: what the larger one costs more is its frames' alone.
const BYTES: [u64; 2] = [40_000_000, 160_000_000];

/// Instructions so far: all that the clock has gone on by, but for what it was idle (Documentation/timers: `/proc/timer_list`).
fn busy(guest: &mut Guest) -> u64 {
    let sum = "awk '/^now at/ { now = $3 } / .idle_sleeptime/ { idle = $3 } END { printf \"%.0f\", now - idle }'";
    let text = sh(guest, &format!("{sum} /proc/timer_list"));
    text.trim().parse().unwrap_or_else(|_| panic!("nanoseconds: {text}"))
}

/// Instructions and frames of a TCP connection that sends the guest so many bytes.
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
    let [small, large] = BYTES.map(|bytes| received(&stage, &mut guest, bytes));
    quiet(&mut guest);
    let [instructions, frames] = [0, 1].map(|n| large[n].saturating_sub(small[n]));
    println!("{adapter}: {small:?} and {large:?} instructions and frames, {} a frame", instructions / frames.max(1));
    assert!(frames > (BYTES[1] - BYTES[0]) / 1500, "{frames} frames");
    instructions / frames
}

#[test]
fn a_received_frame_costs_the_intel_drivers_more_of_the_guest_s_instructions_than_vmxnet3_s() {
    let [vmxnet3, rest @ ..] = COMPARED.map(|adapter| is_asked(adapter).then(|| instructions(adapter)));
    for (adapter, intel) in COMPARED[1..].iter().zip(rest) {
        if let (Some(vmxnet3), Some(intel)) = (vmxnet3, intel) {
            assert!(2 * intel > 3 * vmxnet3, "{adapter}: {intel}, vmxnet3: {vmxnet3}");
        }
    }
}
