//! `compare`: the loads of `nicety compare` (docs/measuring.md), with the lab's statistics, its resumption and its report.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nicety_guests::{Accel, Error, Root};

use super::embedded::taken;
use super::rig::{Measurement, Run, Stay, rig};
use super::{ABOUT_CPU, About, CPU, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::{Bench, BenchError};
use crate::embedded::Embedded;
use crate::method::{self, Guests, Server};
use crate::progress::Progress;
use crate::real::native::{self, Native};
use crate::real::{RealBench, netperf, subjects};
use crate::results::Direction;

/// One adapter of each kind, for a first look.
const QUICK: [&str; 4] = ["virtio-net", "vmxnet3", "e1000e", "rtl8139"];

const FIGURES: [Figure; 10] = [
    Figure::new("mbit", "Throughput", "Mbit/s", Direction::Higher),
    Figure::new("transactions", "Request-response", "per second", Direction::Higher),
    CPU[0],
    CPU[1],
    CPU[2],
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
            memory_mib: Some(256),
            disk_bytes: 0,
        }
    }

    fn field(&self, guests: Guests, length: Length) -> Vec<Subject> {
        let all = nicety_adapters::REGISTRY.iter().map(|entry| entry.about.name);
        let names = all.filter(|name| length != Length::Quick || QUICK.contains(name));
        let served = |subject: &Subject| length != Length::Quick || subject.server == Some(Server::Nicety);
        // Under a user-space driver an adapter is measured on the switch alone, as in `nicety compare`.
        names.flat_map(|name| subjects(guests, name)).filter(served).chain([Subject::native()]).collect()
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
                &["mbit", "cpu", "daemon_cpu", "vmm_cpu", "reads", "writes", "interrupts"]
            };
            for figure in FIGURES.iter().filter(|figure| figures.contains(&figure.name)) {
                tables.push(Table {
                    title: format!("{}: {}", figure.title, load.name.replace('-', " ")),
                    load: load.name.clone(),
                    figure: figure.name,
                    bases: &[],
                    document: &[],
                    about: CPU
                        .iter()
                        .zip(ABOUT_CPU)
                        .find(|(cpu, _)| cpu.name == figure.name)
                        .map_or("No document's: Nicety's own comparison.", |(_, about)| about),
                });
            }
        }
        tables
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { plan, program, say, .. } = opening;
        let mut bench = match plan.guests {
            Guests::Embedded => return Ok(rig(Comparison::Embedded(Embedded::new(program.clone())))),
            Guests::Qemu => RealBench::qemu(&program.path, say)?,
            Guests::Uml => RealBench::user_mode(&program.path, say)?,
        };
        let failed =
            |error: BenchError| Error::Run { doing: "preparing the guests".to_owned(), said: error.to_string() };
        bench.prepare(&prepared(plan), &mut Progress::silent(), &AtomicBool::new(false)).map_err(failed)?;
        Ok(rig(Comparison::Real(Box::new(bench), native::Kept::default())))
    }
}

/// The plan with which `compare`'s benches are prepared.
fn prepared(plan: &crate::plan::Plan) -> method::Plan {
    method::Plan {
        guests: plan.guests,
        contestants: plan.subjects.iter().filter_map(Subject::contestant).collect(),
        left_out: Vec::new(),
        without: Vec::new(),
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

/// The bench, and the link of the native row.
enum Comparison {
    Embedded(Embedded),
    Real(Box<RealBench>, native::Kept<Native>),
}

impl Comparison {
    fn bench(&self) -> &dyn Bench {
        match self {
            Comparison::Embedded(bench) => bench,
            Comparison::Real(bench, _) => bench.as_ref(),
        }
    }
}

impl Measurement for Comparison {
    type Layout = method::Load;
    type Guests = ();
    const STAY: Stay = Stay::Study;

    fn layout(load: &str) -> Option<method::Load> {
        of(load)
    }

    fn boot(&mut self, _: &Run<'_, method::Load>) -> Result<(), BenchError> {
        Ok(())
    }

    fn measure(&mut self, _: &mut (), run: &Run<'_, method::Load>) -> Result<Taken, BenchError> {
        let missing = || BenchError::Impossible("there is no guest".to_owned());
        let contestant = run.subject.contestant().ok_or_else(missing)?;
        let item = method::Item { round: run.round, contestant, load: run.layout };
        Ok(taken(match self {
            Comparison::Embedded(bench) => bench.run(&item, run.duration(), run.stop)?,
            Comparison::Real(bench, _) => bench.run(&item, run.duration(), run.stop)?,
        }))
    }

    fn natively(&mut self, run: &Run<'_, method::Load>) -> Result<Taken, BenchError> {
        match self {
            Comparison::Embedded(bench) => {
                Ok(taken(bench.natively(run.layout, (None, None), run.duration(), run.stop)?))
            }
            Comparison::Real(bench, kept) => Ok(netperf_natively(bench.root(), kept, run)?),
        }
    }

    fn end(&mut self, (): ()) -> Result<(), BenchError> {
        match self {
            // Idle ones sleep.
            Comparison::Embedded(_) => Ok(()),
            Comparison::Real(bench, _) => Ok(bench.end()?),
        }
    }

    fn accelerator(&self) -> Option<Accel> {
        match self {
            Comparison::Embedded(_) => None,
            Comparison::Real(bench, _) => bench.accelerator(),
        }
    }

    fn notes(&self) -> Vec<String> {
        let notes = self.bench().notes();
        match self {
            Comparison::Embedded(_) => super::embedded::notes(&notes),
            Comparison::Real(..) => notes.into_iter().chain([native::NOTE.to_owned()]).collect(),
        }
    }
}

/// netperf between two namespaces.
fn netperf_natively(root: &Root, kept: &mut native::Kept<Native>, run: &Run<'_, method::Load>) -> Result<Taken, Error> {
    let test = match run.layout {
        method::Load::BulkTransmit | method::Load::GuestToGuest => netperf::Test::Stream,
        method::Load::BulkReceive => netperf::Test::Maerts,
        method::Load::RequestResponse => netperf::Test::RequestResponse,
    };
    let open = || Native::serving(root, &[(netperf::server(root), native::NETPERF_PORT)]);
    let command = netperf::program(root, native::FAR, test, run.load.seconds);
    let limit = Duration::from_secs(30) + run.duration();
    let (said, _) = kept.with(open, |native| native.run(&command, limit, run.stop, &mut |_| Ok(())))?;
    let doing = || "netperf without a virtual machine".to_owned();
    netperf::parse(&said, test).map(netperf::Measured::taken).ok_or_else(|| Error::Run { doing: doing(), said })
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
            assert_eq!(rows.last(), Some(&Subject::native()));
            assert!(rows.iter().all(|row| *guests == Guests::Embedded
                || row.driver.is_some() == ["vmxnet", "vmxnet2", "flexible"].contains(&&*row.adapter)));
        }
    }
}
