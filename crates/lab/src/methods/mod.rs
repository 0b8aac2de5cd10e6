//! The seam of the lab's methods: a method is one file here, and everything else about it is the same for all.
//!
//! A [`Method`] says what a document measured, which [`Subject`]s it is repeated on, under which [`Load`]s, and how its tables look.
//! Its `Measurement` says how guests are laid out and what a run does with them; a [`Rig`] makes one run of it at a time.
//! [`crate::study`] plans the runs, writes them to disk as they come, and reports them.

use std::collections::BTreeMap;

use nicety_guests::uml::UmlKernel;
use nicety_guests::{Error, Root};
use serde::{Deserialize, Serialize};

use crate::bench::Percentile;
use crate::embedded::Program;
use crate::method::{Contestant, Driver, Guests, Server};
use crate::real::own::Own;
use crate::real::veth::Tc;
use crate::results::Direction;
use crate::series::Series;
use crate::study::{Plan, Record};

mod aggregation;
mod boot;
mod chart;
mod compare;
mod embedded;
mod esx_netperf;
mod field;
mod ft_netperf;
mod iscsi_mix;
mod kvm_scp;
mod messages;
mod pairs;
mod pps;
mod qos_over_time;
mod rig;
mod ten_gig;
mod vmxnet3_iperf;

pub use chart::{Chart, Heat, Lines, Ratios, Stack};
pub use rig::Rig;
use rig::{Measurement, Run};

/// The methods that can run, in the order of lists.
pub static ALL: &[&dyn Method] = &[
    &vmxnet3_iperf::Vmxnet3Iperf,
    &kvm_scp::KvmScp,
    &esx_netperf::EsxNetperf,
    &messages::Messages,
    &pairs::Pairs,
    &ten_gig::TenGig,
    &aggregation::Aggregation,
    &iscsi_mix::IscsiMix,
    &ft_netperf::FtNetperf,
    &qos_over_time::QosOverTime,
    &boot::Boot,
    &pps::Pps,
    &compare::Compare,
];

/// The method of this name.
pub fn find(name: &str) -> Option<&'static dyn Method> {
    ALL.iter().copied().find(|method| method.about().name == name)
}

/// Name of the subject without a virtual machine, as a row and in `--adapters`.
pub const NATIVE: &str = "native";

/// How long a method takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Length {
    /// A first look: few adapters, three short rounds, no intervals.
    Quick,
    /// Seven rounds, so that there are intervals.
    #[default]
    Usual,
    /// The document's own durations, and every adapter.
    Full,
}

impl Length {
    /// All lengths, the shortest first.
    pub const ALL: [Length; 3] = [Length::Quick, Length::Usual, Length::Full];
}

/// The description of a method, as `lab list` and its report show it.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Its name on the command line.
    pub name: &'static str,
    /// The document whose measurement it repeats: number (1 to 5) and title.
    pub document: Option<(u8, &'static str)>,
    /// What is measured, in one line.
    pub line: &'static str,
    /// What it needs on this machine, in one line.
    pub needs: &'static str,
    /// The kinds of guests that it runs under; the first is the default.
    pub guests: &'static [Guests],
    /// Time of a run beside its duration, in seconds: starting guests, settling.
    pub overhead_seconds: f64,
    /// Memory of a guest with a kernel, in MiB. None: it depends on the load.
    pub memory_mib: Option<u32>,
    /// Room on the disk for the programs in real guests, in bytes, beside that of the guests themselves.
    pub disk_bytes: u64,
}

/// A row of the tables: an adapter with its server and driver, or the same programs without a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subject {
    /// The adapter's name in the registry, or [`NATIVE`].
    pub adapter: String,
    /// The adapter's server. None: there is no virtual machine.
    pub server: Option<Server>,
    /// The adapter's driver, where it is not the guest kernel's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<Driver>,
}

impl Subject {
    /// `adapter` served by `server`.
    pub fn new(adapter: &str, server: Server) -> Subject {
        Subject { adapter: adapter.to_owned(), server: Some(server), driver: None }
    }

    /// The same programs between two namespaces.
    pub fn native() -> Subject {
        Subject { adapter: NATIVE.to_owned(), server: None, driver: None }
    }

    /// Whether it is the same programs between two namespaces.
    pub fn is_native(&self) -> bool {
        self.adapter == NATIVE
    }

    /// The contestant to boot. None without a virtual machine.
    pub fn contestant(&self) -> Option<Contestant> {
        let Subject { adapter, server, driver } = self.clone();
        Some(Contestant { adapter, server: server?, driver })
    }

    /// Its server, for readers.
    pub fn served(&self) -> &'static str {
        // A forwarder such as testpmd has no server but itself.
        let without = if self.is_native() { "no virtual machine" } else { "itself" };
        self.server.map_or(without, Server::title)
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.server {
            Some(server) => write!(f, "{} by {server}", self.adapter),
            None => f.write_str(&self.adapter),
        }
    }
}

/// The work of the programs during a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Its name in results, such as `stream`.
    pub name: String,
    /// Its title in the report.
    pub title: String,
    /// Duration of the measurement in seconds.
    pub seconds: u32,
    /// The exact commands, each with the place where it runs in front: `guest 1: iperf -s -w 64k -l 128k`.
    pub commands: Vec<String>,
}

/// A quantity that runs give.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Its name in results.
    pub name: &'static str,
    /// Its title in the report.
    pub title: &'static str,
    /// The unit.
    pub unit: &'static str,
    /// Whether more or less of it is better.
    pub direction: Direction,
    /// Whether its values are 1 (yes) and 0 (no), shown as how many of how many.
    pub yes_or_no: bool,
}

impl Figure {
    /// A measured quantity.
    const fn new(name: &'static str, title: &'static str, unit: &'static str, direction: Direction) -> Figure {
        Figure { name, title, unit, direction, yes_or_no: false }
    }
}

/// Processor time of VMMs with their guests and of our daemon together, then of each apart. Every method that measures it has these three.
const CPU: [Figure; 3] = [
    Figure::new("cpu", "CPU per gigabit", "CPU-s/Gbit", Direction::Lower),
    Figure::new("daemon_cpu", "Nicety's CPU per gigabit", "CPU-s/Gbit", Direction::Lower),
    Figure::new("vmm_cpu", "VMMs' CPU per gigabit", "CPU-s/Gbit", Direction::Lower),
];
/// What the reader should know of each of [`CPU`].
const ABOUT_CPU: [&str; 3] = [
    "VMMs with their guests and Nicety together, divided by the payload.",
    "Of that, Nicety's daemon alone. Where QEMU serves the adapter there is none: its part is the VMM's.",
    "Of that, the VMMs with all that runs in their guests.",
];

/// A title within a sentence: `Latency` becomes `latency`, `CPU` stays.
pub(crate) fn lower_first(title: &str) -> String {
    let mut letters = title.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => first.to_lowercase().chain(letters).collect(),
        _ => title.to_owned(),
    }
}

/// A table of the report: a figure of all subjects under one load, with ratios beside the document's.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Its heading.
    pub title: String,
    /// Name of the load.
    pub load: String,
    /// Name of the figure.
    pub figure: &'static str,
    /// The adapters to which ratios are formed, a column each.
    pub bases: &'static [&'static str],
    /// The document's own ratios: adapter, base, ratio.
    pub document: &'static [(&'static str, &'static str, f64)],
    /// A sentence or two that a reader should know.
    pub about: &'static str,
}

/// The measurements of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Taken {
    /// Values by the figure's name.
    pub figures: BTreeMap<String, f64>,
    /// The rate over time, in the unit of the load's main figure.
    pub series: Option<Series>,
    /// Several rates over time, by name, in one unit.
    pub lines: BTreeMap<String, Series>,
    /// Percentiles of latencies.
    pub latency: Option<Vec<Percentile>>,
    /// Texts that guests showed, by title: `lspci`, `dmesg`.
    pub texts: BTreeMap<String, String>,
    /// Remarks on the run that a reader must know, such as `guest-bound`.
    pub marks: Vec<String>,
    /// Percentage of the processors' time that the hypervisor gave to others during the measurement itself. None: the rig does not mark
    /// its begin and end, and the run's whole time counts.
    pub steal_percent: Option<f64>,
}

impl Taken {
    /// A run without figures, and the remark that says why.
    pub(crate) fn marked(mark: impl Into<String>) -> Taken {
        Taken { marks: vec![mark.into()], ..Taken::default() }
    }

    /// Adds latencies: their percentiles, and the figures `p50` and `p99` of them.
    #[must_use]
    pub(crate) fn with_latency(mut self, latency: Option<Vec<Percentile>>) -> Taken {
        for known in latency.iter().flatten().filter(|known| [50.0, 99.0].contains(&known.percent)) {
            self.figures.insert(format!("p{}", known.percent), known.us);
        }
        self.latency = latency;
        self
    }
}

/// What a method needs to make its rig.
pub struct Opening<'a> {
    /// The plan whose runs it will make.
    pub plan: &'a Plan,
    /// The program that is measured, with the words that make it a daemon or an embedded guest.
    pub program: &'a Program,
    /// Runs that are there already, of a study that goes on.
    pub before: &'a [Record],
    /// Gets a line for each step of laying guests.
    pub say: &'a mut dyn FnMut(&str),
}

impl Opening<'_> {
    /// `tc`, if there is a native row, whose link it paces.
    fn tc(&mut self) -> Result<Option<Tc>, Error> {
        self.plan.subjects.iter().any(Subject::is_native).then(|| Tc::lay(self.say)).transpose()
    }
}

/// A method of measuring (see the module's page).
pub trait Method: Sync {
    /// Its description.
    fn about(&self) -> About;

    /// Its subjects under these guests, in the order of the tables.
    fn field(&self, guests: Guests, length: Length) -> Vec<Subject>;

    /// The loads of a round. `seconds` replaces the length's own duration of the main load.
    fn loads(&self, guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load>;

    /// The figures that its runs give, the main one first.
    fn figures(&self) -> &'static [Figure];

    /// Its tables, in the order of the report.
    fn tables(&self, loads: &[Load]) -> Vec<Table>;

    /// Its charts, before the tables.
    fn charts(&self, loads: &[Load]) -> Vec<Chart> {
        let _ = loads;
        Vec::new()
    }

    /// Whether this load takes part when only `adapters` are measured.
    fn keeps(&self, load: &Load, adapters: &[&str]) -> bool {
        let _ = (load, adapters);
        true
    }

    /// The same loads with a person's own image as the guest. None: an image cannot be its guest.
    fn in_image(&self, loads: Vec<Load>, own: &Own) -> Option<Vec<Load>> {
        let _ = (loads, own);
        None
    }

    /// Room on the disk that a plan takes, in bytes: what is laid once, and files while it runs.
    fn disk_bytes(&self, plan: &Plan) -> u64 {
        let programs = self.about().disk_bytes;
        match plan.guests {
            Guests::Embedded => 0,
            Guests::Qemu => Root::DISK_BYTES + programs,
            Guests::Uml => Root::DISK_BYTES + UmlKernel::DISK_BYTES + programs,
        }
    }

    /// Prepares the guests.
    ///
    /// # Errors
    /// Something that it needs is missing on this machine; the message names the remedy.
    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error>;
}
