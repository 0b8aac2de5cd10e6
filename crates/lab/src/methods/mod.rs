//! The seam of the lab's methods: a method is one file here, and everything else about it is the same for all.
//!
//! A [`Method`] says what a document measured, which [`Subject`]s it is repeated on, under which [`Load`]s, and how its tables look.
//! Its `Measurement` says how guests are laid out and what a run does with them; a [`Rig`] makes one run of it at a time.
//! [`crate::study`] plans the runs, writes them to disk as they come, and reports them.

use nicety_guests::uml::UmlKernel;
use nicety_guests::{Error, Root};

use crate::embedded::Program;
use crate::method::{Guests, Own};
use crate::plan::{Length, Load, Plan};
use crate::real::veth::Tc;
use crate::record::{RunRecord, Taken};
use crate::results::Direction;
use crate::subject::{NATIVE, Subject};

mod aggregation;
mod boot;
mod chart;
mod compare;
mod embedded;
mod esx_netperf;
mod field;
mod ft_netperf;
mod ft_vm;
mod iscsi_mix;
mod kvm_scp;
mod messages;
mod pairs;
mod pps;
mod qos_over_time;
mod rig;
mod ten_gig;
mod vmxnet3_iperf;
mod vxlan;

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
    &ft_vm::FtVm,
    &qos_over_time::QosOverTime,
    &boot::Boot,
    &pps::Pps,
    &vxlan::Vxlan,
    &compare::Compare,
];

/// The method of this name.
pub fn find(name: &str) -> Option<&'static dyn Method> {
    ALL.iter().copied().find(|method| method.about().name == name)
}

/// The description of a method, as `lab list` and its report show it.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Its name on the command line.
    pub name: &'static str,
    /// The document whose measurement it repeats: number (1 to 5) and title.
    pub document: Option<(u8, &'static str)>,
    /// The measurement, in one line.
    pub line: &'static str,
    /// Its needs on this machine, in one line.
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
/// Notes for the reader about each of [`CPU`].
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

/// The parts from which a method makes its rig.
pub struct Opening<'a> {
    /// The plan whose runs it will make.
    pub plan: &'a Plan,
    /// The program that is measured, with the words that make it a daemon or an embedded guest.
    pub program: &'a Program,
    /// Runs that are there already, of a study that goes on.
    pub before: &'a [RunRecord],
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
