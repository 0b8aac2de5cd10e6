//! Instructions that a frame costs between two virtio-net ports, counted and not timed: the same on a loaded machine.
//!
//! ```sh
//! cargo build --release -p nicety-plane --example instructions
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*counted*' --callgrind-out-file=out \
//!     target/release/examples/instructions 64 1000 100000
//! ```
//! The arguments are bytes of a frame (its check sequence counted), addresses per port, frames; and `policed` for ports with a VLAN,
//! guards, storm control and shapes, `packed` for packed rings, `pairs` for frames between random pairs of the addresses instead of
//! fixed ones, `flows` for an export of both ports' flows (each pair of addresses is one), or `alone` for one frame a turn instead of
//! 64. "Collected" over the frames is the figure: `Plane::turn` and all beneath it, without system calls, transports and the drivers' work.
//! The switch knows all addresses before it counts. It fails if it has forgotten one at the end: a flooded frame would be counted.
//! Drivers and rings: `virtio/mod.rs`. Both directions at once.
#![forbid(unsafe_code)]

mod help;
mod virtio;

use std::sync::Arc;

use nicety_adapter::{Rate, Shape, Time};
use nicety_ipfix::Record;
use nicety_plane::{Covered, FlowExport, FlowSink, Plane, Turn};
use nicety_switch::{Guards, Limits, Policy, Storm, Vlan, VlanId};
use virtio::{ACCESS, Addresses, Error, Guest, frame, serve};

/// Sets of the address table hold four. With this many places per address, only few numbers are left out.
const PLACES: usize = 8;
/// Frames of each port between random pairs before anything is counted: twice the entries of the switch's cache of pairs.
const RANDOM: u32 = 1 << 15;
/// Time between two turns.
const STEP_NS: u64 = 20_000;

/// The counted part: turns of each port until it has no work.
#[inline(never)]
fn counted(plane: &Plane, guests: &[Guest], turn: &mut Turn, now: Time) {
    guests.iter().for_each(|guest| serve(plane, &guest.port, turn, now));
}

/// One VLAN, all guards, storm control, and shapes in both directions that never delay a frame.
fn police(plane: &Plane, guest: &Guest) -> Result<(), Error> {
    let rate = Rate::new(10_000_000_000_000).ok_or("too fast")?;
    let shape = Some(Shape { average: rate, peak: Some(rate), burst_bytes: 1 << 30 });
    let policy = Policy {
        vlan: Vlan::Access(VlanId::new(ACCESS).ok_or("no VLAN")?),
        regenerates: true,
        guards: Guards { bpdu: true, dhcp_server: true, arp: true, router_advertisement: true, multicast_router: true },
        storm: Storm { broadcast: Some(1000), multicast: Some(1000), unknown: Some(100_000_000) },
        mtu: Some(1500),
        transmit: shape,
        receive: shape,
        ..Policy::default()
    };
    plane.set_policy(&guest.port, &policy);
    Ok(())
}

/// Takes no record: none comes before the counting is over.
#[derive(Debug)]
struct Nobody;

impl FlowSink for Nobody {
    fn take(&self, records: &mut Vec<Record>) {
        records.clear();
    }

    fn displaced(&self) {}
}

/// Both ports' flows are counted, with room for all of them.
fn count_flows(plane: &Plane) {
    let covered = |identity| Covered { identity, directions: Covered::BOTH };
    let export = FlowExport {
        id: 1,
        ports: vec![covered(1), covered(2)],
        sampling: 1,
        active_ns: u64::MAX,
        idle_ns: u64::MAX,
        port_bytes: 2 << 20,
        sink: Arc::new(Nobody),
    };
    plane.set_flows(1, vec![export]);
}

fn main() -> Result<(), Error> {
    help::on_request(include_str!("instructions.rs"));
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let [packed, policed, random, flows, alone] =
        ["packed", "policed", "pairs", "flows", "alone"].map(|kind| words.pop_if(|word| word == kind).is_some());
    let arguments: Vec<u32> = words.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [bytes, count, frames] = arguments[..] else { return Err("arguments: bytes addresses frames".into()) };
    let (frame, count) = (frame(bytes.try_into()?)?, usize::try_from(count.max(1))?);
    let table = Limits::default().addresses.max(2 * PLACES * count);
    let plane = Plane::new(Limits { addresses: table, port_addresses: u32::MAX, ..Limits::default() });
    let mut guests = [Guest::new(&plane, 0, &frame, packed)?, Guest::new(&plane, 1, &frame, packed)?];
    if alone {
        guests.iter_mut().for_each(|guest| guest.burst = 1);
    }
    let burst = u32::from(guests[0].burst);
    if policed {
        guests.iter().try_for_each(|guest| police(&plane, guest))?;
    }
    if flows {
        count_flows(&plane);
    }
    let addresses = Addresses::learned(&plane, &guests, count, policed, random)?;
    let (mut turn, mut now) = (Turn::new(), Time::ZERO);
    let rounds = frames.div_ceil(2 * burst);
    // Not counted: all addresses once, or as many random pairs as fill the cache, so that it holds what it can.
    let warm = u32::try_from(count)?.max(if random { RANDOM } else { 0 }).div_ceil(burst);
    for round in 0..warm + rounds {
        now = now.after_ns(STEP_NS);
        guests.iter_mut().try_for_each(|guest| guest.send(&addresses, now))?;
        match round < warm {
            true => guests.iter().for_each(|guest| serve(&plane, &guest.port, &mut turn, now)),
            false => counted(&plane, &guests, &mut turn, now),
        }
        guests.iter_mut().try_for_each(Guest::receive)?;
    }
    if !addresses.numbers.iter().all(|&number| Addresses::is_known(&plane, &guests, number, policed)) {
        return Err("the switch has forgotten an address, so frames were flooded".into());
    }
    println!("{} frames of {bytes} bytes, {count} addresses per port", rounds * 2 * burst);
    Ok(())
}
