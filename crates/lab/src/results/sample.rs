//! Results for tests of tables and reports: those of the bench without guests, on a fixed host.

use std::sync::atomic::AtomicBool;

use super::{Results, Run};
use crate::bench::fake::{FakeBench, Fault};
use crate::host::Host;
use crate::method::{Contestant, Guests, Load, Options, Plan, Server};
use crate::progress::Progress;
use crate::run;

fn of(mut bench: FakeBench, quick: bool) -> Results {
    let plan = Plan::new(&Options { quick, ..Options::default() }, &bench).unwrap();
    let command = "nicety compare --seed 1";
    let mut results = run::run(&plan, &mut bench, command, &mut Progress::silent(), &AtomicBool::new(false)).unwrap();
    results.host = Host {
        cpu_model: "Example CPU <9>".to_owned(),
        cores: 2,
        kernel: "6.12.0-example".to_owned(),
        date: "2025-11-21T08:54:07Z".to_owned(),
        steal_percent: Some(1.25),
        nicety_version: "0.1.0".to_owned(),
        memory_bytes: Some(16 << 30),
        hypervisor: Some("none".to_owned()),
        governor: Some("performance".to_owned()),
        machine: Some("0123456789abcdef".to_owned()),
        processors: Some(2),
    };
    for run in &mut results.runs {
        (run.took_seconds, run.steal_percent, run.others_percent) = (1.5, Some(0.5), Some(1.0));
    }
    results.rows.iter_mut().for_each(|row| row.loaded = false);
    results
}

/// Two adapters, each served by Nicety and by QEMU, seven rounds.
pub(crate) fn two_servers() -> Results {
    of(FakeBench::two_servers(), false)
}

/// Two adapters, each served by Nicety over two transports and one of them by QEMU, seven rounds.
pub(crate) fn linked() -> Results {
    of(FakeBench::linked(), false)
}

/// An adapter served by Nicety and by QEMU, and one driven from user space that QEMU lacks, seven rounds.
pub(crate) fn user_space() -> Results {
    of(FakeBench::user_space(), false)
}

/// All adapters of the registry, each by these servers, under these guests, seven rounds. A user-space driver drives those for which Linux
/// has none.
pub(crate) fn every_adapter(guests: Guests, servers: &[Server]) -> Results {
    let contestants = nicety_adapters::REGISTRY.iter().flat_map(|entry| {
        servers.iter().map(|server| {
            let contestant = Contestant::new(entry.about.name, *server);
            let undriven = guests != Guests::Embedded && !entry.about.in_linux();
            if undriven { contestant.by_user_space() } else { contestant }
        })
    });
    let loads = if guests == Guests::Uml { &Load::ALL[2..] } else { &Load::ALL };
    of(
        FakeBench { guests, contestants: contestants.collect(), loads: loads.to_vec(), ..FakeBench::two_servers() },
        false,
    )
}

fn embedded_bench(faults: Vec<Fault>) -> FakeBench {
    let mut bench = FakeBench { guests: Guests::Embedded, faults, ..FakeBench::two_servers() };
    bench.contestants.retain(|contestant| contestant.server == Server::Nicety);
    bench
}

/// Two adapters under embedded guests, seven rounds.
pub(crate) fn embedded() -> Results {
    of(embedded_bench(Vec::new()), false)
}

/// The same, of which other processes disturbed one of virtio-net's runs from guest to guest.
pub(crate) fn loaded() -> Results {
    let Results { host, method, mut runs, rows, .. } = embedded();
    let is_disturbed = |run: &&mut Run| run.adapter == "virtio-net" && run.load == Load::GuestToGuest;
    runs.iter_mut().find(is_disturbed).unwrap().others_percent = Some(10.5);
    Results::new(host, method, runs, rows)
}

/// The same, three rounds.
pub(crate) fn quick() -> Results {
    of(embedded_bench(Vec::new()), true)
}

/// The same as [`embedded`], with faults.
pub(crate) fn with_faults(faults: Vec<Fault>) -> Results {
    of(embedded_bench(faults), false)
}
