//! The other hosts of the fabric in `nicety top`: the rates at which frames come from each of them and go there by the tunnel.

use std::collections::BTreeMap;

use nicety_daemon::fabric::{HostReport, PassedReport};

use super::amount::{short, spaced};
use super::sample::{Sample, rate};
use crate::output::{columns, count};

/// Rates per second of one way.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    bits: f64,
    frames: f64,
    drops: f64,
}

impl Rates {
    fn between(before: PassedReport, now: PassedReport, seconds: f64) -> Self {
        Self {
            bits: 8.0 * rate(before.bytes, now.bytes, seconds),
            frames: rate(before.frames, now.frames, seconds),
            drops: rate(before.dropped, now.dropped, seconds),
        }
    }
}

/// Each other host with the rates from it and to it. A new one has no rates yet.
fn rows<'a>(before: &'a Sample, now: &'a Sample) -> Vec<(&'a HostReport, Rates, Rates)> {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let of = |sample: &'a Sample| sample.fabric.iter().flat_map(|fabric| &fabric.hosts);
    let old: BTreeMap<&str, &HostReport> = of(before).map(|host| (host.name.as_str(), host)).collect();
    let row = |host: &'a HostReport| {
        let was = old.get(host.name.as_str()).copied().unwrap_or(host);
        let from = Rates::between(was.transmit, host.transmit, seconds);
        (host, from, Rates::between(was.receive, host.receive, seconds))
    };
    of(now).map(row).collect()
}

/// How the host stands with its fabric, and the rates of all other hosts together. `None`: it is in none.
pub fn summary(before: &Sample, now: &Sample) -> Option<String> {
    let fabric = now.fabric.as_ref()?;
    let rows = rows(before, now);
    let sum = |way: fn(&(&HostReport, Rates, Rates)) -> f64| spaced(rows.iter().map(way).sum());
    let [from, to] = [sum(|row| row.1.bits), sum(|row| row.2.bits)];
    let (name, state, hosts) =
        (&fabric.fabric, fabric.connection.words(), count(fabric.hosts.len() as u64, "other host"));
    Some(format!("FABRIC  {name}: {state}  {hosts}  from them {from}bit/s  to them {to}bit/s"))
}

/// A line for each other host, below a head. Empty: the host is in no fabric, or alone there.
pub fn lines(before: &Sample, now: &Sample) -> Vec<String> {
    let rows = rows(before, now);
    if rows.is_empty() {
        return Vec::new();
    }
    let head = ["HOST", "ADDRESSES", "FROM bit/s", "FROM f/s", "TO bit/s", "TO f/s", "DROP/s"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    table.extend(rows.into_iter().map(|(host, from, to)| {
        let numbers =
            [f64::from(host.addresses), from.bits, from.frames, to.bits, to.frames, from.drops + to.drops].map(short);
        let numbers = numbers.into_iter().zip(&head[1..]).map(|(number, head)| format!("{number:>0$}", head.len()));
        std::iter::once(host.name.clone()).chain(numbers).collect()
    }));
    columns(&table).lines().map(str::to_owned).collect()
}
