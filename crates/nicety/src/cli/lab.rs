//! The words of `nicety lab`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Guests, rounds, seed, share};

/// `lab`.
#[derive(Debug, Args)]
pub struct Lab {
    /// The command.
    #[command(subcommand)]
    pub what: LabCommand,
}

/// The lab's commands.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// List the methods: document, duration, what each measures and needs
    List,
    /// Run a method; each run is written to the report's folder when it ends
    Run(LabRun),
    /// Compare two results of the same methods: ratio, interval, verdict; the exit code is 4 if a figure is worse, 5 if none can be judged or the second lacks one
    Diff {
        /// The folder of the first report, or of one method in it
        first: PathBuf,
        /// That of the second
        second: PathBuf,
    },
    /// Make the pages of reports again, from their results, and a page in front of all of them in the first folder
    Report {
        /// The folders of the reports, or of methods in them
        #[arg(default_value = LAB_FOLDER, value_name = "DIR")]
        folders: Vec<PathBuf>,
    },
}

/// Default folder of the lab's reports.
pub const LAB_FOLDER: &str = "nicety-lab";

/// `lab run`.
#[derive(Debug, Args)]
pub struct LabRun {
    /// The method, as `nicety lab list` names it
    pub method: String,
    /// Who drives the adapters [default: the method's first kind]
    #[arg(long, value_enum)]
    pub guests: Option<Guests>,
    /// Which adapters, such as e1000e,vmxnet3, or all; a row `native` stands below them [default: the method's]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub adapters: Vec<String>,
    /// Which loads, as --dry-run names them, such as ping,kill-vmm [default: all of the method]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub loads: Vec<String>,
    /// A first look: few adapters, three short rounds, no intervals
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// The document's own durations
    #[arg(long)]
    pub full: bool,
    /// How long each run of the main load lasts, in whole seconds
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = rounds)]
    pub seconds: Option<u32>,
    /// How many times each is run; fewer than 7 give no intervals [default: 7; with --full 10]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = rounds)]
    pub repeat: Option<u32>,
    /// Stop early when each interval is this close around its median, such as 5%
    #[arg(long, value_name = "P%", value_parser = share)]
    pub confidence: Option<f64>,
    /// The order of the runs follows from it [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<u64>,
    /// The folder of the reports; the method's results go into a folder of its name in it
    #[arg(long, value_name = "DIR", default_value = LAB_FOLDER, conflicts_with = "resume")]
    pub report: PathBuf,
    /// Go on with the results in this folder, that of the reports or the method's in it: options as at the beginning
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// One's own guest: a disk image (raw or qcow2) that QEMU boots by a BIOS; it asks for its address by DHCP, and what it writes is dropped
    #[arg(long, value_name = "FILE", requires = "ssh")]
    pub image: Option<PathBuf>,
    /// The user whom the image lets in by ssh
    #[arg(long, value_name = "USER", requires = "image")]
    pub ssh: Option<String>,
    /// The private key for it [default: ssh's own choice]
    #[arg(long, value_name = "FILE", requires = "image")]
    pub key: Option<PathBuf>,
    /// Only say what would run: which guest, which command, how long, how much disk
    #[arg(long)]
    pub dry_run: bool,
}
