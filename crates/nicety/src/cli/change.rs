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
    /// Undo the change after this time, such as 60s, unless `nicety confirm` is called before
    #[arg(long, value_name = "TIME", value_parser = waits)]
    pub confirm: Option<u32>,
    /// Undo the change unless this address answers pings from here for 5 s afterwards: by the host's routes, or by one interface
    /// (192.0.2.1%eth0). If it answers, the change needs no `nicety confirm`, unless --confirm is given, too
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
Example:
  nicety apply --confirm 60s      # the change is undone after 60 s
  nicety confirm                  # unless this command keeps it
While a change waits, no other change is made. A daemon that starts meanwhile serves what was confirmed before.")]
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
    /// Do not ask before a VM loses its adapter or its uplink
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Also write the change into the host file; comments and order of the file stay
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
        /// The port's name
        port: String,
        /// The port's keys (docs/host-file.md). A relative path begins at the host file's folder
        #[arg(value_name = "KEY=VALUE", value_parser = value)]
        values: Vec<(String, String)>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Remove a port
    Remove {
        /// The port's name
        port: String,
        /// Remove the port only if its key `origin` has this value. If it has another one, or if there is no such port, the command
        /// changes nothing, and succeeds
        #[arg(long, value_name = "TEXT")]
        origin: Option<String>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Change values of a port: nicety port set vm1 buffer=4MiB
    Set {
        /// The port's name
        port: String,
        /// Keys and their new values. A key without a value (buffer=) gets its default
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Restart a port, or an uplink, that a defect of the daemon has ended (state `failed`)
    Restart {
        /// The name of a port or an uplink; an uplink without a name is called by its kind, such as tap
        port: String,
        /// The daemon to ask.
        #[command(flatten)]
        which: Which,
    },
    /// Save a port's state to a file, and stop the port: it carries nothing until it is restored or its VMM disconnects
    Save {
        /// The port's name
        port: String,
        /// The file to write
        file: PathBuf,
        /// The daemon to ask.
        #[command(flatten)]
        which: Which,
    },
    /// Restore a port's state from a file. The port must have been saved, or must not be in use by a VM
    Restore {
        /// The port's name
        port: String,
        /// The file that `port save` has written
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
    /// Show the virtual functions of cards: what the host lets each one do, and how many of its frames were dropped as spoofed
    Show(VfShow),
    /// Change what the host lets a virtual function do, by the words of `ip link set DEV vf N`
    Set(VfSet),
}

/// `vf show`.
#[derive(Debug, Args)]
pub struct VfShow {
    /// Show only the functions of this card, or only this function
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
  mac ADDRESS            its MAC address. Its driver learns it when it resets the function
  vlan N                 the VLAN of its frames, which leave with a tag; 0: none
  qos N                  with vlan: the priority in that tag [default: 0]
  proto 802.1Q           with vlan: the kind of that tag
  rate MBIT              the most that it may send, in Mbit/s or with a unit; 0: no limit
  min-rate MBIT          the least that it has of its card's uplink; 0: no promise
  spoofchk on|off        on: it may send only from its own address
  trust on|off           on: it may choose other addresses, and get all multicast frames
  state auto|enable|disable
                         its link: as its card's, always up, or always down
  query-rss on|off       on: it may ask for the key and the table of the receive hash
Example:
  nicety vf set card0/3 vlan 10 trust on")]
pub struct VfSet {
    /// The function: its card, and its number on it
    #[arg(value_name = "CARD/N")]
    pub function: String,
    /// Words, each with its value: see below
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
    /// Reset a card: the driver of each of its functions is told, and resets its function
    Reset {
        /// The card's name
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
    /// Show the exports of flows: what each one counts, whether its collector gets records, and how many records were sent and lost
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
        /// The port's name
        port: String,
        /// shares, reservation or limit, and its value. Without a value (limit=) the port gets what the other ports of the class have
        #[arg(value_name = "TERM=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
}

/// Changes to a port group, an uplink, a card, a team, a mirror, an export of flows or a class.
#[derive(Debug, Subcommand)]
pub enum ListChange {
    /// Adds an entry. `lists.rs` has what a person reads of it, of its name, and of the others.
    Add {
        /// Its name.
        name: String,
        /// The keys (docs/host-file.md). A relative path begins at the host file's folder
        #[arg(value_name = "KEY=VALUE", value_parser = value)]
        values: Vec<(String, String)>,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Removes an entry.
    Remove {
        /// Its name.
        name: String,
        /// The options of the change.
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Changes values of an entry.
    Set {
        /// Its name.
        name: String,
        /// Keys and their new values. A key without a value (vlan=) gets its default
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
