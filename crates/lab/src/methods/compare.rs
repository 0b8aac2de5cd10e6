//! `compare`: the loads of `nicety compare` (docs/measuring.md), with the lab's statistics, its resumption and its report.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nicety_guests::Error;

use super::embedded::taken;
use super::{About, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::{Bench, BenchError};
use crate::embedded::Embedded;
use crate::method::{self, Guests, Server};
use crate::progress::Progress;
use crate::real::{RealBench, subjects};
use crate::results::Direction;

/// One adapter of each kind, for a first look.
const QUICK: [&str; 4] = ["virtio-net", "vmxnet3", "e1000e", "rtl8139"];

const FIGURES: [Figure; 8] = [
    Figure::new("mbit", "Throughput", "Mbit/s", Direction::Higher),
    Figure::new("transactions", "Request-response", "per second", Direction::Higher),
    Figure::new("cpu", "CPU per gigabit", "CPU-s/Gbit", Direction::Lower),
    Figure::new("p50", "Latency, median", "µs", Direction::Lower),
    Figure::new("p99", "Latency, 99th percentile", "µs", Direction::Lower),
    Figure::new("reads", "Register reads", "per frame", Direction::Lower),
    Figure::new("writes", "Register writes", "per frame", Direction::Lower),
    Figure::new("interrupts", "Interrupts", "per frame", Direction::Lower),
];

/// The method (see the module's page).
#[derive(Debug)]
pub struct Compare;

/// Name of a load in results.
fn name(load: method::Load) -> &'static str {
    match load {
        method::Load::BulkTransmit => "bulk-transmit",
        method::Load::BulkReceive => "bulk-receive",
        method::Load::GuestToGuest => "guest-to-guest",
        method::Load::RequestResponse => "request-response",
    }
}

fn of(name: &str) -> Option<method::Load> {
    method::Load::ALL.into_iter().find(|load| self::name(*load) == name)
}

/// The loads under these guests: user-mode guests have no peer outside.
fn loads(guests: Guests) -> &'static [method::Load] {
    match guests {
        Guests::Uml => &[method::Load::GuestToGuest, method::Load::RequestResponse],
        Guests::Embedded | Guests::Qemu => &method::Load::ALL,
    }
}

impl Method for Compare {
    fn about(&self) -> About {
        About {
            name: "compare",
            document: None,
            line: "the loads of `nicety compare`, with the lab's intervals, --resume and diff",
            needs: "nothing for embedded guests; user-mode guests (a C compiler, once); QEMU's: Debian packages, 220 MB once",
            guests: &[Guests::Embedded, Guests::Qemu, Guests::Uml],
            overhead_seconds: 0.4,
            disk_bytes: 0,
        }
    }

    fn field(&self, guests: Guests, length: Length) -> Vec<Subject> {
        let all = nicety_adapters::REGISTRY.iter().map(|entry| entry.about.name);
        let names = all.filter(|name| length != Length::Quick || QUICK.contains(name));
        let served = |subject: &Subject| length != Length::Quick || subject.server == Some(Server::Nicety);
        // Under a user-space driver an adapter is measured on the switch alone, as in `nicety compare`.
        names.flat_map(|name| subjects(guests, name)).filter(served).collect()
    }

    fn loads(&self, guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(match length {
            Length::Quick => 1,
            Length::Usual => 2,
            Length::Full => 5,
        });
        let program = if guests == Guests::Embedded { "embedded guests' own program" } else { "netperf" };
        let load = |load: &method::Load| {
            let work = match load {
                method::Load::BulkTransmit => "TCP from the guest to a peer outside",
                method::Load::BulkReceive => "TCP from a peer outside to the guest",
                method::Load::GuestToGuest => "TCP from one guest to another with the same adapter",
                method::Load::RequestResponse => "one byte each way, one at a time",
            };
            let commands = vec![format!("{program}: {work}, {seconds} s")];
            Load { name: name(*load).to_owned(), title: work.to_owned(), seconds, commands }
        };
        loads(guests).iter().map(load).collect()
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let mut tables = Vec::new();
        for load in loads.iter().filter(|load| of(&load.name).is_some()) {
            let latency = of(&load.name) == Some(method::Load::RequestResponse);
            let figures: &[&str] = if latency {
                &["transactions", "p50", "p99"]
            } else {
                &["mbit", "cpu", "reads", "writes", "interrupts"]
            };
            for figure in FIGURES.iter().filter(|figure| figures.contains(&figure.name)) {
                tables.push(Table {
                    title: format!("{}: {}", load.name.replace('-', " "), figure.title.to_lowercase()),
                    load: load.name.clone(),
                    figure: figure.name,
                    bases: &[],
                    document: &[],
                    about: "No document's: Nicety's own comparison.",
                });
            }
        }
        tables
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { plan, program, say } = opening;
        let mut bench: Box<dyn Bench> = match plan.guests {
            Guests::Embedded => Box::new(Embedded::new(program.clone())),
            Guests::Qemu => Box::new(RealBench::qemu(&program.path, say)?),
            Guests::Uml => Box::new(RealBench::user_mode(&program.path, say)?),
        };
        if plan.guests != Guests::Embedded {
            let failed =
                |error: BenchError| Error::Run { doing: "preparing the guests".to_owned(), said: error.to_string() };
            bench.prepare(&prepared(plan), &mut Progress::silent(), &AtomicBool::new(false)).map_err(failed)?;
        }
        Ok(Box::new(Comparison(bench)))
    }
}

/// The plan with which `compare`'s benches are prepared.
fn prepared(plan: &crate::study::Plan) -> method::Plan {
    method::Plan {
        guests: plan.guests,
        contestants: plan.subjects.iter().filter_map(Subject::contestant).collect(),
        left_out: Vec::new(),
        loads: loads(plan.guests).to_vec(),
        items: Vec::new(),
        duration: Duration::from_secs(plan.loads.first().map_or(1, |load| load.seconds).into()),
        overhead: Duration::ZERO,
        repeat: plan.repeat,
        seed: plan.seed,
        order: method::Order::EveryContestant,
        doorbells: None,
    }
}

struct Comparison(Box<dyn Bench>);

impl Rig for Comparison {
    fn in_guests(
        &mut self,
        round: u32,
        subject: &Subject,
        load: &Load,
        stop: &AtomicBool,
    ) -> Result<Taken, BenchError> {
        let missing = || BenchError::Impossible("there is no guest".to_owned());
        let (contestant, kind) = subject.contestant().zip(of(&load.name)).ok_or_else(missing)?;
        let item = method::Item { round, contestant, load: kind };
        Ok(taken(self.0.run(&item, Duration::from_secs(load.seconds.into()), stop)?))
    }

    fn notes(&self) -> Vec<String> {
        self.0.notes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_load_has_a_table_of_its_rate_and_every_registered_adapter_with_a_driver_a_row() {
        for guests in Compare.about().guests {
            let loads = Compare.loads(*guests, Length::Full, None);
            let tables = Compare.tables(&loads);
            for load in &loads {
                let first = tables.iter().find(|table| table.load == load.name).unwrap();
                assert!(["mbit", "transactions"].contains(&first.figure), "{first:?}");
            }
            let rows = Compare.field(*guests, Length::Full);
            assert!(rows.iter().any(|row| row.adapter == "vmxnet3"), "{rows:?}");
            assert!(rows.iter().all(|row| *guests == Guests::Embedded
                || row.driver.is_some() == ["vmxnet", "vmxnet2", "flexible"].contains(&&*row.adapter)));
        }
    }
}
