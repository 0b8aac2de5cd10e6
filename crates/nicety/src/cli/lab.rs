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
    /// List the methods: from which document, how long each takes, what it measures and what it needs
    List,
    /// Run a method, and write the results into the report's folder: each run's when it ends
    Run(LabRun),
    /// Compare two results of the same methods: ratio, interval, verdict. The exit code is 4 if a figure is worse, and 5 if no figure can be judged or the second result lacks one
    Diff {
        /// The folder of the first report, or of one method in it
        first: PathBuf,
        /// The folder of the second report
        second: PathBuf,
    },
    /// Make the pages of reports again from their results; an overview of all of them goes into the first folder
    Report {
        /// The folders of the reports, or of single methods in them
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
    /// Who drives the adapters [default: the first kind that the method lists]
    #[arg(long, value_enum)]
    pub guests: Option<Guests>,
    /// Which adapters, such as e1000e,vmxnet3, or all. A row `native`, without an adapter, is measured too [default: those of the method]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub adapters: Vec<String>,
    /// Which loads, such as ping,kill-vmm; --dry-run names them [default: all of the method]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub loads: Vec<String>,
    /// A first look: few adapters, three short rounds, no confidence intervals
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// Runs as long as in the document
    #[arg(long)]
    pub full: bool,
    /// The whole seconds that each run of the main load lasts
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = rounds)]
    pub seconds: Option<u32>,
    /// How many times each load is run; with fewer than 7 the report has no confidence intervals [default: 7; with --full 10]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = rounds)]
    pub repeat: Option<u32>,
    /// Stop early once each confidence interval is this close to its median, such as 5%
    #[arg(long, value_name = "P%", value_parser = share)]
    pub confidence: Option<f64>,
    /// The seed of the random order of the runs [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<u64>,
    /// The folder of the reports; the results go into a folder in it, with the method's name
    #[arg(long, value_name = "DIR", default_value = LAB_FOLDER, conflicts_with = "resume")]
    pub report: PathBuf,
    /// Continue an interrupted run: the folder of the reports, or the method's folder in it. Give the same options as before
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// A guest of your own: a disk image (raw or qcow2) that QEMU boots by a BIOS. The guest must get its address by DHCP. What it writes is lost
    #[arg(long, value_name = "FILE", requires = "ssh")]
    pub image: Option<PathBuf>,
    /// The user who may log in to the image by ssh
    #[arg(long, value_name = "USER", requires = "image")]
    pub ssh: Option<String>,
    /// The private key of that user [default: what ssh chooses]
    #[arg(long, value_name = "FILE", requires = "image")]
    pub key: Option<PathBuf>,
    /// Run nothing, and say what would run: which guests and commands, how long, how much disk
    #[arg(long)]
    pub dry_run: bool,
}
