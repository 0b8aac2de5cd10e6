//! Frames in = frames out + counted drops + waiting frames, at both ports of a rig, after any step (ARCHITECTURE.md, "What holds
//! everywhere", 4).

use nicety_adapter::{Counters, Reason};

use crate::rig::Rig;

/// The switch's own drop reasons. An adapter never gives these.
const BY_SWITCH: [Reason; 3] = [Reason::Policy, Reason::SamePort, Reason::NoReceiver];

/// Describes an imbalance of a rig's counters between two turns; `None` if they balance.
pub fn imbalance(rig: &Rig) -> Option<String> {
    let (adapter, wire) = (rig.port.state(), rig.uplink.state());
    let [entered_by_wire, entered_by_adapter] = rig.entered;
    let [lost, ..] = [sum(&wire.counters.transmit_drops)];
    let offered = entered_by_wire.checked_sub(lost)?;
    let met = reached(&adapter.counters) + adapter.backlog_frames as u64;
    if offered != met {
        return Some(format!(
            "{entered_by_wire} packets came by the wire, the switch dropped {lost}; the adapter's port took {}, \
             dropped {} and holds {}",
            adapter.counters.taken().packets,
            sum(&adapter.counters.receive_drops),
            adapter.backlog_frames
        ));
    }
    let met = reached(&wire.counters) + wire.backlog_frames as u64;
    let drops = &adapter.counters.transmit_drops;
    let certain: u64 = BY_SWITCH.iter().map(|reason| drops[*reason as usize]).sum();
    // Either the adapter or the switch drops a frame without a whole Ethernet header: both are right.
    let short = drops[Reason::TooShort as usize];
    if !(met + certain..=met + certain + short).contains(&entered_by_adapter) {
        return Some(format!(
            "{entered_by_adapter} packets came from the adapter; the wire got {met}, the switch dropped {certain} and \
             at most {short} more"
        ));
    }
    None
}

fn reached(counters: &Counters) -> u64 {
    counters.taken().packets + sum(&counters.receive_drops)
}

fn sum(drops: &[u64]) -> u64 {
    drops.iter().sum()
}
