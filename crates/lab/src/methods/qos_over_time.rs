//! `qos-over-time`: "10G: more than a big pipe", its last test. Four guests at one full link: a storage port that takes what it gets, two
//! ports to which 2 Gbit/s are promised, and one without terms. Everybody's rate over time, with I/O control and without: once outward, once
//! with nine of ten frames inward.
//!
//! A machine of few processors does not carry 10 Gbit/s for four guests and their peers. All rates are therefore the document's, divided by
//! one number ([`Rates`]).

use nicety_guests::Error;

use super::chart::{Chart, Lines};
use super::field::Adapters;
use super::rig::rig;
use super::{ABOUT_CPU, About, CPU, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken, lower_first};
use crate::method::Guests;
use crate::results::Direction;
use crate::series::Series;
use crate::spent::Spent;
use crate::windows::{Flows, Stolen, Windows};

mod in_embedded;
mod in_user_mode;

/// The document's rates in Mbit/s: the link, and what is promised to each of two ports.
const LINK: f64 = 10_000.0;
const RESERVED: f64 = 2_000.0;
/// Share of the link's rate at which what comes in is passed on, so that the queue is the daemon's.
const INWARD: f64 = 0.97;
/// Share of the link's rate that each guest sends outward while nine of ten frames come in. Acknowledgements are the rest.
const BESIDE: f64 = 0.01;
/// Streams of the storage port. The others have one each.
const STORAGE_STREAMS: usize = 4;
/// Frame of a full TCP segment on the wire, in bytes. Bytes count there as I/O control counts them: with the Ethernet header.
const FRAME_BYTES: f64 = 1514.0;
/// Windows below this are a picture of a machine that was too busy, and give no percentile.
const COUNTED_MIN: usize = 10;
const ADAPTERS: Adapters = Adapters::sharing(&["vmxnet3", "virtio-net"]);

/// The ports in their order: title and name of their line.
const PORTS: [(&str, &str); 4] = [
    ("storage, as fast as it can", "storage"),
    ("first with a reservation", "first"),
    ("second with a reservation", "second"),
    ("without terms", "other"),
];
const RESERVED_PORTS: [usize; 2] = [1, 2];
/// The lines of the pictures: the ports', and the promise.
const LINES: [(&str, &str); 5] = {
    let [storage, first, second, other] = PORTS;
    [storage, first, second, other, ("the reservation", "reserved")]
};

/// The rates of a run, in Mbit/s on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rates {
    scale: f64,
    link: f64,
    reserved: f64,
}

impl Rates {
    /// The document's by so much less.
    const fn divided_by(scale: f64) -> Rates {
        Rates { scale, link: LINK / scale, reserved: RESERVED / scale }
    }

    /// A kernel for each guest costs more than a driver.
    const fn under(guests: Guests) -> Rates {
        Rates::divided_by(match guests {
            Guests::Uml | Guests::Qemu => 20.0,
            Guests::Embedded => 10.0,
        })
    }

    /// The rate that the ports share.
    fn shared(self, shape: Shape) -> f64 {
        if shape.is_inward && shape.has_control { self.inward() } else { self.link }
    }

    /// The rate at which what comes in is passed on.
    fn inward(self) -> f64 {
        INWARD * self.link
    }

    /// The rate that each guest sends outward while nine of ten frames come in.
    fn beside(self) -> f64 {
        BESIDE * self.link
    }

    /// A note for the reader of all rates.
    fn note(self) -> String {
        let Rates { scale, link, reserved } = self;
        format!(
            "All rates are the document's divided by {scale}: a link of {link} Mbit/s, and {reserved} Mbit/s reserved for each of two ports."
        )
    }
}

const FIGURES: [Figure; 14] = [
    Figure::new("fifth", "Reservation kept, 5th percentile of windows", "of the promise", Direction::Higher),
    Figure::new("worst", "Reservation kept, worst window", "of the promise", Direction::Higher),
    Figure::new("storage", "Storage port", "Mbit/s", Direction::Higher),
    Figure::new("first", "First port with a reservation", "Mbit/s", Direction::Higher),
    Figure::new("second", "Second port with a reservation", "Mbit/s", Direction::Higher),
    Figure::new("other", "Port without terms", "Mbit/s", Direction::Higher),
    Figure::new("mbit", "All four", "Mbit/s", Direction::Higher),
    CPU[0],
    CPU[1],
    CPU[2],
    Figure::new("inward", "Frames that came in", "of all", Direction::Higher),
    Figure::new("marked", "Packets marked to tell their senders", "packets", Direction::Lower),
    Figure::new("dropped", "Packets dropped to tell their senders", "packets", Direction::Lower),
    Figure::new("counted", "Windows that count", "of all", Direction::Higher),
];

/// The method (see the module's page).
#[derive(Debug)]
pub struct QosOverTime;

/// A load, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    title: &'static str,
    is_inward: bool,
    has_control: bool,
}

const SHAPES: [Shape; 4] = [
    Shape { name: "outward", title: "Outward, with I/O control", is_inward: false, has_control: true },
    Shape { name: "outward-without", title: "Outward, without I/O control", is_inward: false, has_control: false },
    Shape { name: "inward", title: "Nine of ten frames inward, with I/O control", is_inward: true, has_control: true },
    Shape {
        name: "inward-without",
        title: "Nine of ten frames inward, without I/O control",
        is_inward: true,
        has_control: false,
    },
];

fn shape(load: &str) -> Option<Shape> {
    SHAPES.into_iter().find(|shape| shape.name == load)
}

impl Shape {
    /// Lines of the uplink's section in the host file, and the classes behind it. `ports`: names of the ports in the order of [`PORTS`].
    fn host_file(self, rates: Rates, uplink: &str, ports: [&str; 4], receive_buffer: &str) -> String {
        if !self.has_control {
            return String::new();
        }
        let mut text = String::new();
        if self.is_inward {
            text += &format!("inward_rate = \"{}Mbit/s\"\nreceive_buffer = \"{receive_buffer}\"\n", rates.inward());
        }
        let [storage, first, second, _] = ports;
        // Few shares: with as many as the others' a reserved port would get more than its reservation, and nothing would be shown.
        let reserved = format!("shares = 1\nreservation = \"{}Mbit/s\"\n", rates.reserved);
        for (name, port, terms) in
            [("storage", storage, "shares = 100\n"), ("first", first, &*reserved), ("second", second, &reserved)]
        {
            text += &format!("\n[[io_class]]\nuplink = \"{uplink}\"\nname = \"{name}\"\nports = \"{port}\"\n{terms}");
        }
        text + &format!("\n[[io_class]]\nuplink = \"{uplink}\"\nname = \"vm\"\nshares = 100\n")
    }
}

impl Method for QosOverTime {
    fn about(&self) -> About {
        About {
            name: "qos-over-time",
            document: Some((4, "10G: more than a big pipe")),
            line: "two ports keep 2 Gbit/s beside a storage port that takes all it gets: everybody's rate over time, outward and inward",
            needs: "nothing; with --guests uml a C compiler and Debian packages, 220 MB once",
            guests: &[Guests::Embedded, Guests::Uml],
            overhead_seconds: 3.0,
            memory_mib: Some(256),
            disk_bytes: 6_000_000,
        }
    }

    fn field(&self, _guests: Guests, length: Length) -> Vec<Subject> {
        ADAPTERS.ours(length).chain([Subject::native()]).collect()
    }

    fn loads(&self, guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(match length {
            Length::Quick => 5,
            Length::Usual => 10,
            Length::Full => 120,
        });
        let load = |shape: Shape| {
            let way = if shape.is_inward { "the peer outside sends to" } else { "the peer outside takes from" };
            let mut commands = vec![format!("{way} the storage port, {STORAGE_STREAMS} streams, {seconds} s")];
            commands.push(format!("{way} each of the three other ports, 1 stream, meanwhile"));
            if shape.is_inward {
                commands.push(format!("each guest, meanwhile: {} Mbit/s outward", Rates::under(guests).beside()));
            }
            Load { name: shape.name.to_owned(), title: shape.title.to_owned(), seconds, commands }
        };
        SHAPES.into_iter().map(load).collect()
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn charts(&self, loads: &[Load]) -> Vec<Chart> {
        let charts = loads.iter().filter_map(|load| shape(&load.name)).map(|shape| {
            Chart::Lines(Lines {
                title: format!("Over time: {}", lower_first(shape.title)),
                load: shape.name.to_owned(),
                unit: "Mbit/s of payload",
                lines: &LINES,
                about: "One run, in windows of 100 ms or, if it is long, means of several. The document, with 2 Gbit/s reserved: shaping in \
                        software wandered from 0.5 to 2.2, the best hardware with virtual functions kept close to 2, at worst 1.4. All rates \
                        here are the document's divided by one number: see the method.",
            })
        });
        charts.collect()
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let mut tables = Vec::new();
        for shape in loads.iter().filter_map(|load| shape(&load.name)) {
            let mut table = |title: &str, figure, about| {
                tables.push(Table {
                    title: format!("{title}: {}", lower_first(shape.title)),
                    load: shape.name.to_owned(),
                    figure,
                    bases: &[],
                    document: &[],
                    about,
                });
            };
            table(
                "Reservation kept",
                "fifth",
                "Of the port that did worse: 19 of 20 windows of 100 ms have at least this share of its reservation. Windows count in which \
                 the link was full and the hypervisor took no time from this machine.",
            );
            table("Worst window", "worst", "The worst of the windows that count. The document's best hardware: 0.7.");
            table("All four", "mbit", "Payload of all ports together.");
            for (cpu, about) in CPU.iter().zip(ABOUT_CPU) {
                table(cpu.title, cpu.name, about);
            }
        }
        tables
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        match opening.plan.guests {
            Guests::Uml => Ok(rig(in_user_mode::Four::open(opening)?)),
            Guests::Embedded | Guests::Qemu => Ok(rig(in_embedded::Four(opening.program.clone()))),
        }
    }
}

/// The figures and lines of a run. `payload`: bytes of payload in a full frame.
fn taken(
    (shape, rates): (Shape, Rates),
    ports: &[Windows; 4],
    stolen: &Stolen,
    payload: f64,
    spent: Option<(Spent, f64)>,
) -> Taken {
    let flows = Flows::of(ports);
    let mut taken = Taken::default();
    if flows.is_empty() {
        taken.marks.push("the ports never sent at the same time".to_owned());
        return taken;
    }
    let share = payload / FRAME_BYTES;
    let kept = |port: usize| flows.while_full(port, rates.shared(shape) * share, stolen);
    let [first, second] = RESERVED_PORTS.map(kept);
    let counted = first.len();
    if counted < COUNTED_MIN {
        taken.marks.push(format!("the link was full in {counted} of {} windows: no percentile", flows.len()));
    } else {
        // The rates are in rising order.
        let of = |sorted: &[f64], at: usize| sorted.get(at).map_or(0.0, |rate| rate / (rates.reserved * share));
        let lower = |at: usize| of(&first, at).min(of(&second, at));
        taken.figures.extend([("fifth".to_owned(), lower(counted / 20)), ("worst".to_owned(), lower(0))]);
    }
    for (number, (_, name)) in PORTS.iter().enumerate() {
        taken.figures.insert((*name).to_owned(), flows.mean(number));
        taken.lines.insert((*name).to_owned(), flows.series(number));
    }
    let mut reserved = Series::default();
    reserved.push(flows.seconds(), rates.reserved * share);
    taken.lines.insert("reserved".to_owned(), reserved);
    taken.figures.insert("mbit".to_owned(), flows.total());
    taken.figures.insert("counted".to_owned(), counted as f64 / flows.len() as f64);
    taken.figures.extend(spent.into_iter().flat_map(|(spent, gbit)| spent.per(gbit, "")));
    taken
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// 12,500 bytes in 100 ms are 1 Mbit/s.
    fn port(mbit: u64) -> Windows {
        Windows { first: 7, bytes: vec![mbit * 12_500; 50] }
    }

    #[test]
    fn a_reservation_is_kept_as_well_as_the_worse_of_two_ports_keeps_it_in_full_windows() {
        // 1460 of 1514 bytes are payload: of 200 Mbit/s 192.9, of the link's 1000 964.3.
        let mut ports = [port(290), port(200), port(193), port(290)];
        ports[1].bytes[30] = 100 * 12_500;
        ports[0].bytes[30] = 390 * 12_500;
        // Not full: the machine stood still.
        ports.iter_mut().for_each(|port| port.bytes[35] = 12_500);
        let outward = (shape("outward").unwrap(), Rates::divided_by(10.0));
        let spent = Spent { vmm: Duration::from_secs(3), daemon: Some(Duration::from_secs(1)) };
        let taken = taken(outward, &ports, &Stolen::default(), 1460.0, Some((spent, 2.0)));
        let of = |name: &str| taken.figures[name];
        assert!((of("worst") - 100.0 / 192.87).abs() < 1e-3, "{taken:?}");
        assert!((of("fifth") - 193.0 / 192.87).abs() < 1e-3, "{taken:?}");
        assert!((of("counted") - 33.0 / 34.0).abs() < 1e-9 && of("cpu") == 2.0 && of("daemon_cpu") == 0.5);
        assert!((280.0..291.0).contains(&of("other")) && taken.lines["first"].values.len() == 34, "{taken:?}");
        assert_eq!(taken.marks, Vec::<String>::new());
    }

    #[test]
    fn a_machine_that_never_fills_the_link_gets_no_percentile_and_a_mark() {
        let ports = [port(90), port(90), port(90), port(90)];
        let inward = (shape("inward").unwrap(), Rates::divided_by(10.0));
        let taken = taken(inward, &ports, &Stolen::default(), 1460.0, None);
        assert_eq!(taken.marks, ["the link was full in 0 of 34 windows: no percentile"]);
        assert!(!taken.figures.contains_key("fifth") && (taken.figures["mbit"] - 360.0).abs() < 1e-9);
        let none = super::taken(inward, &Default::default(), &Stolen::default(), 1460.0, None);
        assert!(none.figures.is_empty());
    }
}
