//! The words of `nicety ft`.

use clap::{Args, Subcommand};

use super::Which;

/// `ft`.
#[derive(Debug, Args)]
pub struct Ft {
    /// Its command.
    #[command(subcommand)]
    pub command: FtCommand,
}

/// The commands of `ft`.
#[derive(Debug, Subcommand)]
pub enum FtCommand {
    /// Show the protected VMs: where each runs, whether it is protected or why not, how long it stands still for a copy
    Status {
        /// Only this VM
        vm: Option<String>,
        /// JSON
        #[arg(long)]
        json: bool,
        /// The daemon
        #[command(flatten)]
        which: Which,
    },
    /// Take a twin of a VM again, after `stop`
    Protect {
        /// The VM
        vm: String,
        /// The daemon
        #[command(flatten)]
        which: Which,
    },
    /// End a VM's protection: the VM goes on here, and no twin is taken until `protect`
    Stop {
        /// The VM
        vm: String,
        /// The daemon
        #[command(flatten)]
        which: Which,
    },
    /// Have the twin go on with the VM now; its QEMU here ends
    Failover {
        /// The VM
        vm: String,
        /// The daemon
        #[command(flatten)]
        which: Which,
    },
}
