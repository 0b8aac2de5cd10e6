//! Two samples of a daemon, and the rates between them.

use std::collections::BTreeMap;
use std::time::Instant;

use nicety_control::api::ThreadReport;
use nicety_daemon::fabric::FabricReport;
use nicety_daemon::report::{PortReport, QueueReport};

/// One sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Time of the sample.
    pub at: Instant,
    /// The ports, the uplink first.
    pub ports: Vec<PortReport>,
    /// The daemon's threads.
    pub threads: Vec<ThreadReport>,
    /// The fabric that the host is in.
    pub fabric: Option<FabricReport>,
}

/// Rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Sent by the guest.
    pub tx_bits: f64,
    pub tx_frames: f64,
    /// Received by the guest.
    pub rx_bits: f64,
    pub rx_frames: f64,
    /// Drops in both directions.
    pub drops: f64,
}

/// A port with its rates between two samples.
#[derive(Clone, Debug)]
pub struct Row {
    pub rates: Rates,
    pub report: PortReport,
    /// Drops: direction, reason, total, per second.
    pub drops: Vec<(&'static str, String, u64, f64)>,
    /// Queues: direction, number, bit/s, frames/s.
    pub queues: Vec<(&'static str, usize, f64, f64)>,
}

/// Increase of a counter per second; 0 if it was reset.
pub fn rate(before: u64, now: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 }
}

/// Rows for the ports of the later sample.
pub fn rows(before: &Sample, now: &Sample) -> Vec<Row> {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let old: BTreeMap<&str, &PortReport> = before.ports.iter().map(|port| (port.name.as_str(), port)).collect();
    // A new port has no rates yet.
    now.ports.iter().map(|port| row(old.get(port.name.as_str()).copied().unwrap_or(port), port, seconds)).collect()
}

fn row(before: &PortReport, now: &PortReport, seconds: f64) -> Row {
    let ways = [("TX", &before.transmit, &now.transmit), ("RX", &before.receive, &now.receive)];
    let mut queues = Vec::new();
    for (way, old, new) in ways {
        for queue in new {
            let none = QueueReport { queue: queue.queue, packets: 0, frames: 0, bytes: 0 };
            let was = old.iter().find(|old| old.queue == queue.queue).unwrap_or(&none);
            let bits = 8.0 * rate(was.bytes, queue.bytes, seconds);
            queues.push((way, queue.queue, bits, rate(was.frames, queue.frames, seconds)));
        }
    }
    let ways = [
        ("transmit", &before.transmit_drops, &now.transmit_drops),
        ("receive", &before.receive_drops, &now.receive_drops),
    ];
    let mut drops = Vec::new();
    for (way, old, new) in ways {
        for (reason, &count) in new {
            let was = old.get(reason).copied().unwrap_or(0);
            drops.push((way, reason.clone(), count, rate(was, count, seconds)));
        }
    }
    let sum = |way: &str, part: fn(&(&'static str, usize, f64, f64)) -> f64| {
        queues.iter().filter(|queue| queue.0 == way).map(part).sum()
    };
    let rates = Rates {
        tx_bits: sum("TX", |queue| queue.2),
        tx_frames: sum("TX", |queue| queue.3),
        rx_bits: sum("RX", |queue| queue.2),
        rx_frames: sum("RX", |queue| queue.3),
        drops: drops.iter().map(|drop| drop.3).sum(),
    };
    Row { rates, report: now.clone(), drops, queues }
}

/// Threads that used processor time, each with its share of a processor in percent: workers first, then by share.
pub fn shares(before: &Sample, now: &Sample) -> Vec<(String, f64)> {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let old: BTreeMap<&str, u64> = before.threads.iter().map(|thread| (thread.name.as_str(), thread.cpu_ns)).collect();
    let share = |thread: &ThreadReport| {
        let was = old.get(thread.name.as_str()).copied().unwrap_or(thread.cpu_ns);
        (thread.name.clone(), rate(was, thread.cpu_ns, seconds) / 1e7)
    };
    let is_worker = |name: &str| name.starts_with("worker");
    let mut shares: Vec<_> = now.threads.iter().map(share).collect();
    shares.retain(|(name, share)| is_worker(name) || *share >= 0.5);
    shares.sort_by(|(a, one), (b, other)| {
        is_worker(b).cmp(&is_worker(a)).then(if is_worker(a) { a.cmp(b) } else { other.total_cmp(one) })
    });
    shares
}
