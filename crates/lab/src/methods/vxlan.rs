//! `vxlan`: TCP between guests of two hosts. Nicety's VXLAN tunnel beside the kernel's bridge with its `vxlan` device, and beside two daemons
//! that are joined without a tunnel. All else is the same: guests, adapters, daemons.

use nicety_guests::Error;

use super::rig::{Measurement, Run, rig};
use super::{ABOUT_CPU, About, CPU, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::BenchError;
use crate::host::CpuTimes;
use crate::method::Guests;
use crate::real::joined::{Cable, Hosts, Joined, Way};
use crate::results::Direction;
use crate::spent::Stopwatch;

/// The rows.
const TUNNEL: &str = "nicety-vxlan";
const KERNEL: &str = "kernel-vxlan";
const PAIR: &str = "nicety-pair";
const ROWS: [(&str, Way); 3] = [(TUNNEL, Way::Tunnel), (KERNEL, Way::Kernel), (PAIR, Way::Pair)];
/// The loads: the adapter of both guests, and the cable.
const SHAPES: [Shape; 5] = [
    Shape { name: "vmxnet3", adapter: "vmxnet3", cable: Cable::Uncut },
    Shape { name: "vmxnet3-frames", adapter: "vmxnet3", cable: Cable::Frames },
    Shape { name: "virtio-net", adapter: "virtio-net", cable: Cable::Uncut },
    Shape { name: "virtio-net-frames", adapter: "virtio-net", cable: Cable::Frames },
    Shape { name: "e1000", adapter: "e1000", cable: Cable::Uncut },
];
/// Loads of a quick look.
const QUICK: usize = 2;

/// A load, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    adapter: &'static str,
    cable: Cable,
}

/// Processor time of the whole machine. In the other figures of CPU work is missing that the kernel does for nobody's account: a card's
/// interrupts, and the threads that take their work over when there is much.
const MACHINE_CPU: Figure =
    Figure::new("machine_cpu", "All processors' time per gigabit", "CPU-s/Gbit", Direction::Lower);
const FIGURES: [Figure; 5] =
    [Figure::new("mbit", "Throughput", "Mbit/s", Direction::Higher), MACHINE_CPU, CPU[0], CPU[1], CPU[2]];

/// The method (see the module's page).
#[derive(Debug)]
pub struct Vxlan;

fn way(subject: &Subject) -> Option<Way> {
    ROWS.iter().find(|(name, _)| *name == subject.adapter).map(|(_, way)| *way)
}

impl Method for Vxlan {
    fn about(&self) -> About {
        About {
            name: "vxlan",
            document: None,
            line: "TCP between guests of two hosts: Nicety's VXLAN beside the kernel's bridge and vxlan device, and beside no tunnel",
            needs: "user-mode guests: a C compiler and Debian packages, 220 MB once; a kernel with vxlan devices",
            guests: &[Guests::Uml],
            overhead_seconds: 3.0,
            memory_mib: Some(256),
            disk_bytes: 10_000_000,
        }
    }

    fn field(&self, _guests: Guests, _length: Length) -> Vec<Subject> {
        let of = |(name, _): &(&str, Way)| Subject { adapter: (*name).to_owned(), server: None, driver: None };
        ROWS.iter().map(of).collect()
    }

    fn loads(&self, _guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(match length {
            Length::Quick => 2,
            Length::Usual => 5,
            Length::Full => 30,
        });
        let load = |shape: &Shape| Load {
            name: shape.name.to_owned(),
            title: format!(
                "One stream from host to host, both guests with {}, {}",
                shape.adapter,
                if shape.cable == Cable::Uncut {
                    "over a card that cuts packets"
                } else {
                    "over a card that takes single frames"
                }
            ),
            seconds,
            commands: vec![
                "right guest: netserver -4".to_owned(),
                format!("left guest: netperf -H RIGHT -t TCP_STREAM -l {seconds}"),
                format!("{KERNEL}: ip link add vx0 type vxlan id 5010, and a tap of each daemon, on a bridge"),
            ],
        };
        let shapes = if length == Length::Quick { &SHAPES[..QUICK] } else { &SHAPES[..] };
        shapes.iter().map(load).collect()
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let mut tables = Vec::new();
        for load in loads {
            let mut table = |title: &str, figure, about| {
                let title = format!("{title}: {}", load.name);
                let bases = &[KERNEL, PAIR];
                tables.push(Table { title, load: load.name.clone(), figure, bases, document: &[], about });
            };
            table(
                "Throughput",
                "mbit",
                "The goals: 1.2 times the kernel's bridge and vxlan device at the same CPU, 0.6 times two daemons without a tunnel.",
            );
            table(
                MACHINE_CPU.title,
                MACHINE_CPU.name,
                "Time that processors were busy, divided by the payload, also with what the kernel counts for no program. Everything of a host \
                 runs on one processor. Rows have the same CPU if this time multiplied by the throughput is the same.",
            );
            CPU.iter().zip(ABOUT_CPU).for_each(|(cpu, about)| table(cpu.title, cpu.name, about));
        }
        tables
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { program, say, .. } = opening;
        Ok(rig(Between { hosts: Hosts::open(&program.path, say)? }))
    }
}

#[derive(Debug)]
struct Between {
    hosts: Hosts,
}

impl Measurement for Between {
    type Layout = Shape;
    type Guests = Joined;

    fn layout(load: &str) -> Option<Shape> {
        SHAPES.into_iter().find(|shape| shape.name == load)
    }

    fn serves(standing: Shape, wanted: Shape) -> bool {
        standing == wanted
    }

    fn boot(&mut self, run: &Run<'_, Shape>) -> Result<Joined, BenchError> {
        let unknown = || BenchError::Fatal(format!("there is no row {}", run.subject));
        let Shape { adapter, cable, .. } = run.layout;
        Ok(self.hosts.boot(adapter, way(run.subject).ok_or_else(unknown)?, cable, run.stop)?)
    }

    fn warm(&mut self, joined: &mut Joined, run: &Run<'_, Shape>) -> Result<(), BenchError> {
        Ok(joined.warm(run.stop)?)
    }

    fn measure(&mut self, joined: &mut Joined, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let (machine, watch) = (CpuTimes::now(), Stopwatch::start(joined.spent()));
        let measured = joined.stream(run.load.seconds, run.stop)?;
        let (spent, steal_percent) = watch.stop(joined.spent());
        let busy = CpuTimes::busy_time(machine);
        let gbit = measured.rate * measured.seconds / 1000.0;
        let mut taken = measured.taken();
        taken.figures.extend(spent.per(gbit, ""));
        // A run that carried nothing gives no figure.
        let busy = busy.map(|busy| busy.as_secs_f64() / gbit).filter(|busy| busy.is_finite());
        taken.figures.extend(busy.map(|busy| (MACHINE_CPU.name.to_owned(), busy)));
        Ok(Taken { steal_percent, ..taken })
    }

    fn end(&mut self, joined: Joined) -> Result<(), BenchError> {
        Ok(self.hosts.end(joined)?)
    }

    fn notes(&self) -> Vec<String> {
        self.hosts.notes()
    }
}
