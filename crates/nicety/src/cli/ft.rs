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
    /// Show the protected VMs: where each one runs, whether it is protected or why not, and how long it is paused for a copy
    Status {
        /// Show only this VM
        vm: Option<String>,
        /// JSON instead of text
        #[arg(long)]
        json: bool,
        /// The daemon
        #[command(flatten)]
        which: Which,
    },
    /// Protect a VM again, after `stop`: a twin of it is made on the other host
    Protect {
        /// The VM's name
        vm: String,
        /// The daemon
        #[command(flatten)]
        which: Which,
    },
    /// Stop the protection of a VM: the VM goes on here, without a twin until `protect`
    Stop {
        /// The VM's name
        vm: String,
        /// The daemon
        #[command(flatten)]
        which: Which,
    },
    /// Let the twin on the other host take over the VM now; its QEMU on this host ends
    Failover {
        /// The VM's name
        vm: String,
        /// The daemon
        #[command(flatten)]
        which: Which,
    },
}
