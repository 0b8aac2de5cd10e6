//! The words of the commands that change one thing of a running daemon: `port`, `vf`, `card`, `group`, `uplink`, `team`, `mirror`,
//! `flow-export`, `class`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nicety_daemon::live::confirm::CONFIRM_MAX;
use nicety_host::Seconds;

use super::Which;
use crate::reach::Address;

/// Words by which a change takes itself back.
#[derive(Debug, Default, Args)]
pub struct Guard {
    /// Undo the change after this time, such as 60s, unless `nicety confirm` comes before
    #[arg(long, value_name = "TIME", value_parser = waits)]
    pub confirm: Option<u32>,
    /// Undo the change unless this address answers echo requests (ping) from here for 5 s afterwards: by the host's routes, or by one
    /// interface (192.0.2.1%eth0). Without --confirm that confirms it
    #[arg(long, value_name = "ADDRESS[%INTERFACE]")]
    pub check_reach: Option<Address>,
}

/// A time within which a change is to be confirmed, in seconds.
fn waits(text: &str) -> Result<u32, String> {
    let range = || format!("a change waits to be confirmed for 1s to {CONFIRM_MAX}s");
    match text.parse::<Seconds>() {
        Ok(Seconds(seconds @ 1..=CONFIRM_MAX)) => Ok(seconds),
        Ok(_) => Err(range()),
        Err(error) => Err(format!("{error}; {}, such as 60s", range())),
    }
}

/// `confirm`.
#[derive(Debug, Args)]
#[command(after_help = "\
  nicety apply --confirm 60s      # undone after 60 s, unless
  nicety confirm                  # keeps it
While a change waits, no other one is made, and a start of the daemon serves what was confirmed before.")]
pub struct Confirm {
    /// Undo the change that waits
    #[arg(long)]
    pub undo: bool,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// The options of every change.
#[derive(Debug, Args)]
pub struct ChangeOptions {
    /// Do not ask, even if a VM loses its adapter or its way out
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Also write the change into the host file; its comments and order stay
    #[arg(long, conflicts_with_all = ["confirm", "check_reach"])]
    pub save: bool,
    /// The guard of the change.
    #[command(flatten)]
    pub guard: Guard,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `port`.
#[derive(Debug, Args)]
pub struct PortCommand {
    /// The change.
    #[command(subcommand)]
    pub change: PortChange,
}

/// Changes to a port.
#[derive(Debug, Subcommand)]
pub enum PortChange {
    /// Add a port, with the keys of the host file: nicety port add vm3 adapter=e1000 mac=52:54:00:00:00:03 socket=vm3.sock
    Add {
        /// Its name
        port: String,
        /// Its keys (docs/host-file.md); relative paths begin at the host file's folder
        #[arg(value_name = "KEY=VALUE", value_parser = value)]
        values: Vec<(String, String)>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Remove a port
    Remove {
        /// Its name
        port: String,
        /// Only if the port has this origin: another port, and none, are no mistake
        #[arg(long, value_name = "TEXT")]
        origin: Option<String>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Change values of a port: nicety port set vm1 buffer=4MiB
    Set {
        /// Its name
        port: String,
        /// Keys and their new values; without a value a key gets its default
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Restart a port that a defect has ended (state `failed`)
    Restart {
        /// The port's name; `uplink`'s kind for the uplink
        port: String,
        /// The daemon to ask.
        #[command(flatten)]
        which: Which,
    },
    /// Save a port's state to a file, and stop the port: it stands still until it is restored or its VMM disconnects
    Save {
        /// Its name
        port: String,
        /// The file
        file: PathBuf,
        /// The daemon to ask.
        #[command(flatten)]
        which: Which,
    },
    /// Restore a port from a saved state: a port that its VM does not use, or that was saved
    Restore {
        /// Its name
        port: String,
        /// The file
        file: PathBuf,
        /// The daemon to ask.
        #[command(flatten)]
        which: Which,
    },
}

/// `vf`.
#[derive(Debug, Args)]
pub struct Vf {
    /// The command.
    #[command(subcommand)]
    pub command: VfCommand,
}

/// The commands of `vf`.
#[derive(Debug, Subcommand)]
pub enum VfCommand {
    /// Show the functions: what the host lets each do, and its frames that were dropped as spoofed
    Show(VfShow),
    /// Change what the host lets a function do, by the words of `ip link set DEV vf N`
    Set(VfSet),
}

/// `vf show`.
#[derive(Debug, Args)]
pub struct VfShow {
    /// Only those of this card, or this one
    #[arg(value_name = "CARD[/N]")]
    pub function: Option<String>,
    /// JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `vf set`.
#[derive(Debug, Args)]
#[command(after_help = "\
Words:
  mac ADDRESS            its address; its driver learns it when it resets the function
  vlan N                 the VLAN of its frames, which leave with its tag; 0 is none
  qos N                  beside vlan: the priority in that tag; usually 0
  proto 802.1Q           beside vlan: the kind of that tag
  rate MBIT              what it may send, in Mbit/s or with a unit; 0 is no limit
  min-rate MBIT          what it has of its card's uplink at least; 0 is no promise
  spoofchk on|off        whether it may send only from its own address
  trust on|off           whether it may have other addresses, and all multicast frames
  state auto|enable|disable
                         its link: the card's, up, or down
  query-rss on|off       whether it may ask for the hash's key and table
Example:
  nicety vf set card0/3 vlan 10 trust on")]
pub struct VfSet {
    /// The function
    #[arg(value_name = "CARD/N")]
    pub function: String,
    /// Words, each with its value
    #[arg(value_name = "WORD VALUE", required = true, num_args = 2..)]
    pub values: Vec<String>,
    /// The options of the change.
    #[command(flatten)]
    pub options: ChangeOptions,
}

/// `card`.
#[derive(Debug, Args)]
pub struct CardCommand {
    /// The change.
    #[command(subcommand)]
    pub change: CardChange,
}

/// Changes to a card.
#[derive(Debug, Subcommand)]
pub enum CardChange {
    /// The changes that ports, groups and uplinks have too.
    #[command(flatten)]
    List(ListChange),
    /// Reset one: the driver of each of its functions is told, and resets its function
    Reset {
        /// Its name
        name: String,
        /// The daemon to ask.
        #[command(flatten)]
        which: Which,
    },
}

/// `group`, `uplink` and `team`.
#[derive(Debug, Args)]
pub struct ListCommand {
    /// The change.
    #[command(subcommand)]
    pub change: ListChange,
}

/// `flow-export`.
#[derive(Debug, Args)]
pub struct FlowExport {
    /// What to do.
    #[command(subcommand)]
    pub command: FlowExportCommand,
}

/// The commands of `flow-export`.
#[derive(Debug, Subcommand)]
pub enum FlowExportCommand {
    /// Show them: what each counts, whether its collector gets records, and how many records were sent and lost
    List(FlowExportList),
    /// The changes that ports, groups and uplinks have too.
    #[command(flatten)]
    Change(ListChange),
}

/// `flow-export list`.
#[derive(Debug, Args)]
pub struct FlowExportList {
    /// JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `class`.
#[derive(Debug, Args)]
pub struct ClassCommand {
    /// The change.
    #[command(subcommand)]
    pub change: ClassChange,
}

/// Changes to a class of I/O control.
#[derive(Debug, Subcommand)]
pub enum ClassChange {
    /// The changes that ports, groups and uplinks have too.
    #[command(flatten)]
    List(ListChange),
    /// Change what one port gets inside a class: nicety class port tap0/vm vm1 shares=80 limit=2Gbit/s
    Port {
        /// The class, with its uplink or team before it: tap0/vm
        #[arg(value_name = "UPLINK/CLASS")]
        name: String,
        /// The port
        port: String,
        /// shares, reservation or limit, and its value; without a value the port has what the class's other ports have
        #[arg(value_name = "TERM=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
}

/// Changes to a port group, an uplink, a team, a mirror, an export of flows or a class.
#[derive(Debug, Subcommand)]
pub enum ListChange {
    /// Add one, with the keys of the host file: nicety group add web vlan=10; nicety uplink add tap7 kind=tap; nicety card add
    /// nic0 chip=82599; nicety team add lan members=tap0,tap1 mode=active-standby; nicety mirror add watch ports=vm1 to=vm9; nicety
    /// flow-export add noc collector=udp:10.0.0.9:4739; nicety class add tap0/iscsi reservation=2Gbit/s
    Add {
        /// Its name; a tap's is its interface, a class's has its uplink or team before it (tap0/iscsi)
        name: String,
        /// Its keys (docs/host-file.md); relative paths begin at the host file's folder
        #[arg(value_name = "KEY=VALUE", value_parser = value)]
        values: Vec<(String, String)>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Remove one; a group or a card that ports are in stays, and a team takes its uplinks with it
    Remove {
        /// Its name; an uplink's without one is its kind, a class's has its uplink or team before it (tap0/iscsi)
        name: String,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Change values of one: nicety group set web vlan=20
    Set {
        /// Its name; an uplink's without one is its kind, a class's has its uplink or team before it (tap0/iscsi)
        name: String,
        /// Keys and their new values; without a value a key gets its default
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
}

/// A key and its value.
pub(super) fn value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("write a key and its value, such as buffer=4MiB".to_owned()),
    }
}
