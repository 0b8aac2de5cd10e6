//! The command line.

mod change;
mod fabric;
mod ft;
mod hook;
mod lab;

use std::ffi::OsString;
use std::num::ParseIntError;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use change::{
    CardChange, CardCommand, ChangeOptions, ClassChange, ClassCommand, Confirm, FlowExport, FlowExportCommand,
    FlowExportList, Guard, ListChange, ListCommand, PortChange, PortCommand, Vf, VfCommand, VfSet, VfShow,
};
pub use fabric::{
    Fabric, FabricClassCommand, FabricCommand, FabricGroupCommand, FabricOptions, FabricPortCommand, Store,
};
pub use ft::{Ft, FtCommand};
pub use hook::{Hook, HookLibvirt, HookOf};
pub use lab::{LAB_FOLDER, Lab, LabCommand, LabRun};

/// Default host file.
pub const HOST_FILE: &str = "host.toml";

/// Default folder of `nicety compare`'s report.
pub const COMPARE_FOLDER: &str = "nicety-report";

/// A hidden command that only the program itself uses.
pub const HIDDEN: &str = "guest";

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the work was begun and failed
  2    the command line or the host file is wrong
  3    something that the command needs is missing on this machine
  4    `lab diff`: a figure is worse
  5    `lab diff`: no figure can be judged, or one of the first result is not in the second
  130  interrupted (Ctrl-C, SIGTERM, SIGHUP) before the work was done
`try` ends with the code of its shell or command, once that has begun.

Environment:
  NICETY_LOG       what `serve` logs to stderr: error, warn, info (usual), debug, or by part, as in info,nicety_daemon=debug
  NO_COLOR         not empty: no colours, as in a file
  XDG_RUNTIME_DIR  where the control socket is, unless the host file says";

/// Virtual network adapters for virtual machines: served out of process, joined by one switch, compared in a lab.
#[derive(Debug, Parser)]
#[command(name = "nicety", version = nicety_version::BUILD, after_help = EXIT_CODES, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the ports of a host file to VMs, until SIGTERM or Ctrl-C
    Serve(Serve),
    /// Say how to start a VM at a port: QEMU's arguments, or libvirt's XML
    Attach(Attach),
    /// Show what the ports of a running daemon do
    Ports(Ports),
    /// Make a running daemon serve a host file as it is now: shows the plan, and asks before it cuts a VM off
    Apply(Apply),
    /// Keep the change of a running daemon that waits to be confirmed (`--confirm`), or undo it
    Confirm(Confirm),
    /// Replace a running daemon by another program, while all VMs keep running
    Upgrade(Upgrade),
    /// Add, remove, change or restart one port of a running daemon
    Port(PortCommand),
    /// Add, remove or change one port group of a running daemon
    Group(ListCommand),
    /// Add, remove or change one uplink of a running daemon
    Uplink(ListCommand),
    /// Add, remove, change or reset one card of a running daemon
    Card(CardCommand),
    /// Show or change the functions of cards of a running daemon
    Vf(Vf),
    /// Add, remove or change one team of uplinks of a running daemon
    Team(ListCommand),
    /// Add, remove or change one mirror of a running daemon
    Mirror(ListCommand),
    /// Show the exports of flows of a running daemon, or add, remove or change one
    #[command(visible_alias = "flow_export")]
    FlowExport(FlowExport),
    /// Add, remove or change one class of I/O control of a running daemon, or what one port gets in it
    Class(ClassCommand),
    /// Write what a running daemon serves as a host file
    Export(Export),
    /// Write live changes into the host file; its comments and order stay
    Save(Save),
    /// Add and remove ports with the VMs of another program, which calls this at each VM's start and end
    Hook(Hook),
    /// Write the interfaces of a libvirt domain as ports of a host file, with their bandwidth limits
    Import(Import),
    /// Write the frames that pass a port, an uplink or a port group of a running daemon, or that are dropped, as pcapng
    Capture(Capture),
    /// Show what a running daemon would do with a frame, step by step, and why; changes nothing
    Trace(Trace),
    /// Play a trace to this version's adapter, and name the first call that it answers otherwise
    Replay(Replay),
    /// Show and steer VMs that are copied to twins on other hosts
    Ft(Ft),
    /// Make one switch of many hosts: its port groups, its hosts, where each address is
    Fabric(Fabric),
    /// Show rates, drops, queues and processor time of a running daemon, every second
    Top(Top),
    /// List the adapters, or all about one, with sources
    Adapters(Adapters),
    /// Measure the adapters against each other, and write a report
    Compare(Compare),
    /// Repeat the measurements of published comparisons on this machine, each with its report
    Lab(Lab),
    /// Say which adapter fits a guest, and why, by the figures that were measured on this machine
    Choose(Choose),
    /// Start a small Linux whose eth0 is an adapter, for a shell or for one command
    Try(Try),
    /// Write a shell's completions of this command line
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man page, or one for each command into a folder
    Man {
        /// The folder: nicety.1, nicety-serve.1 and so on go there
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
    /// What `compare` starts its own processes with
    #[command(name = HIDDEN, hide = true, disable_help_flag = true)]
    Guest {
        /// Its words
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

/// `serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The host file: switch, uplink, ports (docs/host-file.md)
    #[arg(default_value = HOST_FILE)]
    pub host: PathBuf,
    /// Only check the host file, and say what it asks for
    #[arg(long)]
    pub check: bool,
    /// Record what each guest's driver does to its adapter, to DIR/PORT.trace (docs/traces.md)
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// With --record: also every call of the adapter, its frames, and the guest memory that it reads, for `nicety replay`
    #[arg(long, requires = "record")]
    pub calls: bool,
    /// Start the daemon as a child, so that `nicety upgrade` can replace it under its VMs
    #[arg(long, conflicts_with_all = ["check", "record"])]
    pub keeper: bool,
    /// A keeper has started this process.
    #[arg(long, hide = true)]
    pub kept: bool,
    /// A keeper has started this process to open something.
    #[arg(long, hide = true)]
    pub opens: bool,
}

/// `replay`.
#[derive(Debug, Args)]
pub struct Replay {
    /// A trace by `nicety serve --record DIR --calls`
    pub file: PathBuf,
    /// JSON
    #[arg(long)]
    pub json: bool,
}

/// `upgrade`.
#[derive(Debug, Args)]
#[command(after_help = "\
The daemon must have been started with `nicety serve --keeper`. If the new program refuses, crashes or does not answer, the old daemon \
goes on, and the answer says why.")]
pub struct Upgrade {
    /// The new program, by its whole path [default: the path at which the running daemon was started]
    pub program: Option<PathBuf>,
    /// Go on without the VM of this port, whose connection is closed; may be repeated. A refused upgrade says which port's VM is in the
    /// way, and what it would lose
    #[arg(long, value_name = "PORT")]
    pub without: Vec<String>,
    /// JSON, with the pause of each port
    #[arg(long)]
    pub json: bool,
    /// The daemon to upgrade.
    #[command(flatten)]
    pub which: Which,
}

/// `attach`.
#[derive(Debug, Args)]
#[command(
    after_help = "The arguments go to stdout, notes to stderr. The daemon that runs is asked; where none runs, the host file counts."
)]
pub struct Attach {
    /// The port's name
    pub port: String,
    /// What to print: QEMU's arguments, XML for libvirt, a hookscript for Proxmox, or a ConfigMap for KubeVirt
    #[arg(long, value_enum, default_value_t = AttachFormat::Qemu)]
    pub format: AttachFormat,
    /// The same as --format libvirt
    #[arg(long, conflicts_with = "format")]
    pub libvirt: bool,
    /// JSON, with the notes
    #[arg(long)]
    pub json: bool,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// The program that starts the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AttachFormat {
    /// QEMU's arguments, quoted for a shell
    Qemu,
    /// Elements of a libvirt domain
    Libvirt,
    /// A hookscript, with the VM's `args` (from documentation, not tried)
    Proxmox,
    /// A ConfigMap with a script for a hook sidecar (from documentation, not tried)
    Kubevirt,
}

/// `ports`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
TX and RX are frames that the guest has sent and received. `nicety top` shows rates.
  nicety ports vm1                         # all about one port
  nicety ports --group web --state down    # which of a group are not up?"
)]
pub struct Ports {
    #[command(subcommand)]
    pub change: Option<Change>,
    /// Only the port of this name
    pub port: Option<String>,
    /// The host file that the daemon serves [default: host.toml here, or else that of the daemon that runs]
    #[arg(long, value_name = "FILE", conflicts_with = "control")]
    pub host: Option<PathBuf>,
    /// The daemon's control socket
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// All daemons of this user that run, and the system's, with their ports
    #[arg(long, conflicts_with_all = ["port", "host", "control"])]
    pub all: bool,
    /// Only the ports that have a VM: what a restart cuts off
    #[arg(long, conflicts_with_all = ["port", "addresses", "json"])]
    pub attached: bool,
    /// Details of each port below the table, as `nicety ports PORT` shows them
    #[arg(long, conflicts_with = "json")]
    pub long: bool,
    /// The ports to show.
    #[command(flatten)]
    pub chosen: Chosen,
    /// Also the addresses that the switch has learned
    #[arg(long)]
    pub addresses: bool,
    /// JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Selects ports.
#[derive(Debug, Default, Args)]
pub struct Chosen {
    /// Only the ports of this port group
    #[arg(long, value_name = "GROUP", conflicts_with = "port")]
    pub group: Option<String>,
    /// Only the ports and uplinks that carry this VLAN
    #[arg(long, value_name = "VLAN", conflicts_with = "port", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Only the ports in one of these states; `down` is every state but `up`
    #[arg(long, value_name = "STATE,…", conflicts_with = "port", value_enum, value_delimiter = ',')]
    pub state: Vec<PortState>,
}

/// A state of a port, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PortState {
    /// The guest's driver, or the uplink, works
    Up,
    /// Every other state
    Down,
    /// No VM is connected, or the uplink has no peer
    Waiting,
    /// A VM is connected, and its driver has not begun
    Attached,
    /// Its state was saved, and it stands still
    Saved,
    /// The port or one of its queues cannot work
    Broken,
    /// A defect of the daemon has ended it
    Failed,
    /// The uplink or team carries nothing until it is told to
    Blocked,
}

/// Changes to a port.
#[derive(Debug, Subcommand)]
pub enum Change {
    /// Restart a port that a defect has ended (state `failed`)
    Restart {
        /// The port's name; `uplink`'s kind for the uplink
        port: String,
        /// The host file that the daemon serves [default: host.toml here, or else that of the daemon that runs]
        #[arg(long, value_name = "FILE", conflicts_with = "control")]
        host: Option<PathBuf>,
        /// The daemon's control socket
        #[arg(long, value_name = "SOCKET")]
        control: Option<PathBuf>,
    },
}

/// Selects the daemon.
#[derive(Debug, Args)]
pub struct Which {
    /// The host file that the daemon serves [default: host.toml here, or else that of the daemon that runs]
    #[arg(long, value_name = "FILE", conflicts_with = "control")]
    pub host: Option<PathBuf>,
    /// The daemon's control socket
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
}

/// `apply`.
#[derive(Debug, Args)]
pub struct Apply {
    /// The host file
    #[arg(default_value = HOST_FILE)]
    pub file: PathBuf,
    /// The same, as the other commands name it
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    pub host: Option<PathBuf>,
    /// Do not ask, even if VMs are cut off
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Only show the plan
    #[arg(long, conflicts_with_all = ["yes", "confirm", "check_reach"])]
    pub dry_run: bool,
    /// The guard of the change.
    #[command(flatten)]
    pub guard: Guard,
    /// The control socket of the daemon [default: of the one that serves FILE]
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
}

/// `export`.
#[derive(Debug, Args)]
pub struct Export {
    /// The file: it is written whole, or stays as it is [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub into: Option<PathBuf>,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `save`.
#[derive(Debug, Args)]
#[command(after_help = "`--save` of port, group and uplink does the same for one change.")]
pub struct Save {
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  virsh dumpxml web1 | nicety import - >>host.toml\nstderr names each setting that is not taken over, and each interface that cannot be a port. Such an interface also ends the command with 1."
)]
pub struct Import {
    /// The domain's XML, as `virsh dumpxml` prints it; `-` is stdin
    pub file: PathBuf,
}

/// Side of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// Frames as they come in from a port
    Ingress,
    /// Frames as they are offered to a port, with what the switch has changed
    Egress,
}

/// `capture`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nicety capture vm1 -w vm1.pcapng
  nicety capture drops -w - | tcpdump -n -r -
  nicety capture vm1 --filter 'tcp port 443' | wireshark -k -i -
Each port is an interface of its name. Comments say where a frame went, what the switch changed, and why it was dropped. \
No port waits for a slow reader: the file counts the frames that it has lost. Ctrl-C ends the capture, with exit code 0.")]
pub struct Capture {
    /// The port, uplink or port group; or `drops`: whatever any port drops
    pub of: String,
    /// Only one side of the switch [default: both]
    #[arg(long, value_enum)]
    pub stage: Option<Stage>,
    /// Only frames that this wants, in the language of tcpdump, which must be installed for it (pcap-filter(7))
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Bytes of each frame at most [default: all]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(14..))]
    pub snap: Option<u32>,
    /// End after so many frames
    #[arg(long, short = 'c', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// The file; `-` is stdout [default: stdout, if that is no terminal]
    #[arg(long, short = 'w', value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `trace`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nicety trace vm1 'ffffffffffff 525400123401 0806 0001'
  nicety trace vm1 frame.pcapng
  nicety trace vm1 --next 'udp port 67'
The answer is the switch's decision now. It does not include what a receiving adapter's own filter does with the frame.")]
pub struct Trace {
    /// The port, or the uplink, that the frame comes in from
    pub port: String,
    /// The frame: a pcap or pcapng file, of which the first is taken, or hexadecimal digits; `-` is stdin, with either
    #[arg(required_unless_present = "next", conflicts_with = "next")]
    pub frame: Option<String>,
    /// The next frame of the port that this wants, in the language of tcpdump, which must be installed for it; '' is any
    #[arg(long, value_name = "EXPR")]
    pub next: Option<String>,
    /// JSON instead of words
    #[arg(long)]
    pub json: bool,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `top`.
#[derive(Debug, Args)]
#[command(after_help = "\
TX is what the guest sends, RX what it gets. At first the port with most traffic stands above.
Keys:
  right, left            choose the column to sort by; left of the first column: by traffic again
  r                      reverse the order
  up, down, PgUp, PgDn, Home, End   choose a port and scroll
  Enter, Esc             show all of the port, go back
  f                      show the other hosts of the fabric instead of the ports, and again the ports
  q                      end")]
pub struct Top {
    /// Print one page, of one second, and end: for a pipe
    #[arg(long)]
    pub once: bool,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `adapters`.
#[derive(Debug, Args)]
pub struct Adapters {
    /// All about this one
    pub name: Option<String>,
    /// JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Guests that drive the adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Guests {
    /// Our own drivers and TCP in processes of their own: quick, needs nothing
    Embedded,
    /// Unmodified Linux in QEMU, each adapter served by Nicety and by QEMU itself
    Qemu,
    /// Unmodified Linux as a user-mode kernel: at this machine's own speed, without KVM; the first time it is built
    Uml,
}

/// `compare`.
#[derive(Debug, Args)]
pub struct Compare {
    /// Who drives the adapters
    #[arg(long, value_enum, default_value = "embedded")]
    pub guests: Guests,
    /// Which adapters, such as e1000,virtio-net
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    pub adapters: Vec<String>,
    /// How long each run lasts, in seconds [default: what fits the whole into 2 minutes, at least 0.2; with --guests uml
    /// into 5, at least 1; with qemu into 20, at least 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: Option<f64>,
    /// How many times each is run; fewer than 7 give no intervals [default: 7]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = rounds)]
    pub repeat: Option<u32>,
    /// A first look: three rounds of half a second or less, with real guests of a second; no intervals
    #[arg(long)]
    pub quick: bool,
    /// How our adapters' doorbells reach the daemon [default: mapped for vmxnet3, trapped for the others]
    #[arg(long, value_enum)]
    pub doorbells: Option<Doorbells>,
    /// Measure nothing: make the report again, from the results.json of an earlier one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["guests", "adapters", "seconds", "repeat", "quick", "doorbells", "seed"])]
    pub from: Option<PathBuf>,
    /// The folder of the report
    #[arg(long, value_name = "DIR", default_value = COMPARE_FOLDER)]
    pub report: PathBuf,
    /// The order of the runs follows from it
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = seed)]
    pub seed: u64,
}

/// A guest's system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// Linux; --version is its kernel's, such as 2.6.18
    Linux,
    /// Windows; --version is its release, such as 7, XP or "Server 2008 R2"
    Windows,
}

/// The figure that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Prefer {
    /// Bulk transfers
    Throughput,
    /// Quick answers
    Latency,
    /// Little of the host's processors: many VMs
    Cpu,
}

/// `choose`.
#[derive(Debug, Args)]
pub struct Choose {
    /// The guest's system [default: on a terminal you are asked; else linux]
    #[arg(value_enum)]
    pub system: Option<System>,
    /// Its version [default: a current one]
    #[arg(long, value_name = "VERSION")]
    pub version: Option<String>,
    /// Only drivers that the system brings: nothing is installed
    #[arg(long)]
    pub in_box: bool,
    /// It boots from the network
    #[arg(long)]
    pub network_boot: bool,
    /// It migrates live under QEMU
    #[arg(long)]
    pub migrates: bool,
    /// The adapter must segment what TCP sends
    #[arg(long)]
    pub segmentation: bool,
    /// The figure that decides
    #[arg(long, value_enum, default_value = "throughput")]
    pub prefer: Prefer,
    /// The folder of the lab's results, or a method's in it, or `nicety compare`'s [default: nicety-lab, and nicety-report]
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Print the table of all adapters as Markdown
    #[arg(long)]
    pub markdown: bool,
}

/// A share in percent, with or without the sign.
fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent: f64 = number.parse().map_err(|_| "write a share in percent, such as 5%".to_owned())?;
    Ok(percent / 100.0)
}

/// Path of a guest's doorbells to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Doorbells {
    /// Each write is a message
    Trapped,
    /// Writes go to a page that the daemon looks at, where the adapter has one
    Mapped,
}

/// A number of rounds. A number out of range becomes 0; `compare` then reports the range.
fn rounds(text: &str) -> Result<u32, ParseIntError> {
    Ok(u32::try_from(text.parse::<i64>()?).unwrap_or(0))
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "a run may last from 0.1 to 3600 seconds".to_owned())
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a seed is a whole number from 0 to {}", u64::MAX))
}

/// Second guest of a throw-away switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// A second guest with the same adapter, which serves iperf3 and netperf if this machine has them
    Guest,
    /// No second guest
    None,
}

/// `try`.
#[derive(Debug, Args)]
#[command(after_help = "\
The guest's files are this machine's own; what it writes is gone when it ends. The exit code is that of the shell \
or the COMMAND. If the guest powers itself off, it is 0 after a shell and 1 after a COMMAND. COMMAND's stdout and stderr \
are those of `try`. Its input is the terminal, or empty if there is none.
docs/driver-developers.md shows more.")]
pub struct Try {
    /// The adapter, on a throw-away switch
    #[arg(required_unless_present = "port", conflicts_with = "port")]
    pub adapter: Option<String>,
    /// A port of a running daemon instead
    #[arg(long)]
    pub port: Option<String>,
    /// The host file that the daemon serves [default: host.toml here, or else that of the daemon that runs]
    #[arg(long, value_name = "FILE", requires = "port", conflicts_with_all = ["adapter", "control"])]
    pub host: Option<PathBuf>,
    /// The daemon's control socket
    #[arg(long, value_name = "SOCKET", requires = "port", conflicts_with = "adapter")]
    pub control: Option<PathBuf>,
    /// Who else is at the throw-away switch
    #[arg(long, value_enum, default_value = "guest", conflicts_with = "port")]
    pub peer: Peer,
    /// Each guest's memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(64..=3838))]
    pub memory: u32,
    /// A user-mode kernel of your own: the program `linux` that `make ARCH=um linux` makes, no bzImage
    #[arg(long, value_name = "FILE", conflicts_with = "kernel_tree")]
    pub kernel: Option<PathBuf>,
    /// The tree, or the build folder, in which you have built one
    #[arg(long, value_name = "DIR")]
    pub kernel_tree: Option<PathBuf>,
    /// A word more for the guest's kernel, as `vfio_user.msix=0`; may come several times
    #[arg(long, value_name = "WORD")]
    pub append: Vec<String>,
    /// Write the frames that pass the guest's port to this file, as `nicety capture` does
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// Record what the guest's driver does to its adapter, register by register, to this file (docs/traces.md)
    #[arg(long, value_name = "FILE", conflicts_with = "port")]
    pub record: Option<PathBuf>,
    /// Hold the guest's kernel before its first instruction until gdb has attached, by the command that is printed
    #[arg(long)]
    pub gdb: bool,
    /// Run this instead of a shell
    #[arg(last = true)]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_host_file_is_nothing_for_a_switch_of_ones_own() {
        assert!(Cli::try_parse_from(["nicety", "try", "--port", "vm1", "--host", "other.toml"]).is_ok());
        assert!(Cli::try_parse_from(["nicety", "try", "e1000"]).is_ok());
        assert!(Cli::try_parse_from(["nicety", "try", "e1000", "--host", "other.toml"]).is_err());
    }

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Cli::command().debug_assert();
    }
}
