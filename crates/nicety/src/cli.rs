//! The command line.

mod change;
mod fabric;
mod ft;
mod hook;
mod lab;
mod lists;

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
  3    this machine lacks something that the command needs
  4    `lab diff`: a figure is worse
  5    `lab diff`: no figure can be judged, or one of the first result is not in the second
  130  interrupted (Ctrl-C, SIGTERM, SIGHUP) before the work was done
`try` ends with the code of its shell or command, once that has begun.

Environment:
  NICETY_LOG       what `serve` logs: error, warn, info (the default) or debug; by crate:
                   info,nicety_daemon=debug
  NO_COLOR         if it is not empty, the output has no colours
  XDG_RUNTIME_DIR  the folder of the control socket, unless the host file names one";

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
    /// Print what starts a VM at a port: QEMU's arguments, libvirt's XML, or files for Proxmox or KubeVirt
    Attach(Attach),
    /// Show the ports of a running daemon: state, VM, frames, drops
    Ports(Ports),
    /// Make a running daemon serve a host file as it is now: shows the plan, and asks before it cuts a VM off
    Apply(Apply),
    /// Confirm the change of a running daemon that was made with --confirm, or undo it
    Confirm(Confirm),
    /// Replace a running daemon by another program, while all VMs keep running
    Upgrade(Upgrade),
    /// Add, remove, change or restart one port of a running daemon
    Port(PortCommand),
    /// Add, remove or change one port group of a running daemon
    #[command(mut_subcommands(|one| lists::GROUP.on(one)))]
    Group(ListCommand),
    /// Add, remove or change one uplink of a running daemon
    #[command(mut_subcommands(|one| lists::UPLINK.on(one)))]
    Uplink(ListCommand),
    /// Add, remove, change or reset one card of a running daemon
    #[command(mut_subcommands(|one| lists::CARD.on(one)))]
    Card(CardCommand),
    /// Show or change the virtual functions of a running daemon's cards
    Vf(Vf),
    /// Add, remove or change one team of uplinks of a running daemon
    #[command(mut_subcommands(|one| lists::TEAM.on(one)))]
    Team(ListCommand),
    /// Add, remove or change one mirror of a running daemon
    #[command(mut_subcommands(|one| lists::MIRROR.on(one)))]
    Mirror(ListCommand),
    /// Show the exports of flows of a running daemon, or add, remove or change one
    #[command(visible_alias = "flow_export", mut_subcommands(|one| lists::FLOW_EXPORT.on(one)))]
    FlowExport(FlowExport),
    /// Add, remove or change one class of I/O control of a running daemon, or what one port gets in it
    #[command(mut_subcommands(|one| lists::CLASS.on(one)))]
    Class(ClassCommand),
    /// Write what a running daemon serves, as the text of a host file
    Export(Export),
    /// Write the live changes of a running daemon into its host file; comments and order of the file stay
    Save(Save),
    /// Add and remove ports with the VMs of another program, which calls this at each VM's start and end
    Hook(Hook),
    /// Print the interfaces of a libvirt domain as ports of a host file, with their bandwidth limits
    Import(Import),
    /// Capture frames of a running daemon as pcapng: those of a port, an uplink or a port group, or those that are dropped
    Capture(Capture),
    /// Show step by step what a running daemon would do with a frame, and why; no frame is sent
    Trace(Trace),
    /// Play a recorded trace to an adapter of this version, and show the first call with another answer
    Replay(Replay),
    /// Show and control VMs that are copied to a twin on another host (fault tolerance)
    Ft(Ft),
    /// Join the switches of many hosts into one: its hosts, port groups, classes and addresses
    Fabric(Fabric),
    /// Show rates, drops, queues and processor time of a running daemon, every second
    Top(Top),
    /// List the adapters, or show all about one, with its sources
    Adapters(Adapters),
    /// Measure the adapters against each other, and write a report
    Compare(Compare),
    /// Repeat the measurements of published papers on this machine, each with a report
    Lab(Lab),
    /// Recommend an adapter for a guest, by figures that were measured on this machine
    Choose(Choose),
    /// Start a small Linux, whose eth0 is this adapter, for a shell or one command
    Try(Try),
    /// Print the script that completes this command line in a shell: bash, zsh or fish
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the man page of nicety, or write the pages of all commands and of the host file into a folder
    Man {
        /// The folder to write all pages into: nicety.1, nicety-serve.1 and so on
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
    /// Check the host file, say what it asks for, and end
    #[arg(long)]
    pub check: bool,
    /// Record each register access of the guests' drivers to DIR/PORT.trace (docs/traces.md)
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// With --record: also record each call of the adapter, its frames and the guest memory that it reads, for `nicety replay`
    #[arg(long, requires = "record")]
    pub calls: bool,
    /// Start the daemon as a child of a keeper: then `nicety upgrade` can replace it while VMs run, and a killed one starts again
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
    /// The trace, as `nicety serve --record DIR --calls` has written it
    pub file: PathBuf,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// `upgrade`.
#[derive(Debug, Args)]
#[command(after_help = "\
The daemon must have been started with `nicety serve --keeper`. If the new program refuses, crashes or does not answer, the old daemon \
goes on, and the answer says why.")]
pub struct Upgrade {
    /// The absolute path of the new program [default: the path from which the running daemon was started]
    pub program: Option<PathBuf>,
    /// Upgrade although the VM of this port cannot be kept: its connection is closed. May be repeated. An upgrade that is refused names
    /// such a port, and what its VM would lose
    #[arg(long, value_name = "PORT")]
    pub without: Vec<String>,
    /// JSON instead of text, with the pause of each port
    #[arg(long)]
    pub json: bool,
    /// The daemon to upgrade.
    #[command(flatten)]
    pub which: Which,
}

/// `attach`.
#[derive(Debug, Args)]
#[command(
    after_help = "The arguments go to stdout, notes to stderr. The running daemon is asked. If none runs, the host file is read."
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
    /// JSON, with the notes in it
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
TX and RX are the frames that the guest has sent and received. `nicety top` shows rates.
Examples:
  nicety ports vm1                         # all about one port
  nicety ports --group web --state down    # the ports of a group that are not up"
)]
pub struct Ports {
    #[command(subcommand)]
    pub change: Option<Change>,
    /// Show only the port of this name, with all details
    pub port: Option<String>,
    /// The host file that the daemon serves [default: host.toml here, or else that of the daemon that runs]
    #[arg(long, value_name = "FILE", conflicts_with = "control")]
    pub host: Option<PathBuf>,
    /// The daemon's control socket
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Show the ports of all running daemons of this user and of the system
    #[arg(long, conflicts_with_all = ["port", "host", "control"])]
    pub all: bool,
    /// Show only the ports that a VM is connected to: a restart of the daemon cuts these off
    #[arg(long, conflicts_with_all = ["port", "addresses", "json"])]
    pub attached: bool,
    /// Show the details of each port below the table, as `nicety ports PORT` does
    #[arg(long, conflicts_with = "json")]
    pub long: bool,
    /// The ports to show.
    #[command(flatten)]
    pub chosen: Chosen,
    /// Show also the addresses that the switch has learned
    #[arg(long)]
    pub addresses: bool,
    /// JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Selects ports.
#[derive(Debug, Default, Args)]
pub struct Chosen {
    /// Show only the ports of this port group
    #[arg(long, value_name = "GROUP", conflicts_with = "port")]
    pub group: Option<String>,
    /// Show only the ports and uplinks that carry this VLAN
    #[arg(long, value_name = "VLAN", conflicts_with = "port", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Show only the ports in one of these states, with commas between them
    #[arg(long, value_name = "STATE,…", conflicts_with = "port", value_enum, value_delimiter = ',')]
    pub state: Vec<PortState>,
}

/// A state of a port, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PortState {
    /// The guest's driver has started the adapter; the uplink works
    Up,
    /// Any state but `up`
    Down,
    /// No VM is connected to the port; the uplink has no peer
    Waiting,
    /// A VM is connected, and its driver has not started the adapter
    Attached,
    /// `nicety port save` has stopped the port
    Saved,
    /// The port, or one of its queues, cannot work: `nicety ports PORT` says why
    Broken,
    /// A defect of the daemon has ended the port: `nicety port restart PORT`
    Failed,
    /// The uplink or team is told to carry nothing: `nicety uplink set NAME blocked=false`
    Blocked,
}

/// Changes to a port.
#[derive(Debug, Subcommand)]
pub enum Change {
    /// Restart a port, or an uplink, that a defect of the daemon has ended (state `failed`)
    Restart {
        /// The name of a port or an uplink; an uplink without a name is called by its kind, such as tap
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
    /// The host file, as other commands take it
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    pub host: Option<PathBuf>,
    /// Do not ask before VMs are cut off
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Show the plan, and change nothing
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
    /// The file to write. If that fails, the file stays as it was [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub into: Option<PathBuf>,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `save`.
#[derive(Debug, Args)]
#[command(
    after_help = "`nicety port set … --save`, and --save of the other commands that change one thing, do the same for one change."
)]
pub struct Save {
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  virsh dumpxml web1 | nicety import - >>host.toml\nstderr names each setting that is left out, and each interface that cannot be a port. With such an interface the exit code is 1."
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
In the file each port is an interface with the port's name. A comment on each frame says where it went, what the switch changed, and why \
it was dropped. No port waits for a slow reader: the file says how many frames it lacks. Ctrl-C ends the capture, with exit code 0.")]
pub struct Capture {
    /// The port, uplink or port group whose frames to capture; `drops`: the frames that any port drops
    pub of: String,
    /// Capture on only one side of the switch [default: both]
    #[arg(long, value_enum)]
    pub stage: Option<Stage>,
    /// Capture only the frames that match this expression of tcpdump (pcap-filter(7)); tcpdump must be installed
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Keep at most so many bytes of each frame [default: all]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(14..))]
    pub snap: Option<u32>,
    /// End after so many frames
    #[arg(long, short = 'c', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// The file to write; `-` is stdout [default: stdout, if that is no terminal]
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
    /// The port or uplink by which the frame comes in
    pub port: String,
    /// The frame: hexadecimal digits, or a pcap or pcapng file, whose first frame is taken; `-` reads either from stdin
    #[arg(required_unless_present = "next", conflicts_with = "next")]
    pub frame: Option<String>,
    /// Take the port's next frame that matches this expression of tcpdump, which must be installed; '' matches any frame
    #[arg(long, value_name = "EXPR")]
    pub next: Option<String>,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `top`.
#[derive(Debug, Args)]
#[command(after_help = "\
TX is what the guest sends, RX what it gets. The port with most traffic is on top.
Keys:
  right, left            sort by the next column, or by the one before; left of the first column: by traffic
  r                      reverse the order
  up, down, PgUp, PgDn, Home, End   choose a port and scroll
  Enter, Esc             show all about the port, and go back
  f                      show the other hosts of the fabric instead of the ports, and go back
  q                      quit")]
pub struct Top {
    /// Print what happens in one second, and end: for a pipe
    #[arg(long)]
    pub once: bool,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

/// `adapters`.
#[derive(Debug, Args)]
pub struct Adapters {
    /// Show all about this adapter
    pub name: Option<String>,
    /// JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Guests that drive the adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Guests {
    /// Processes with Nicety's own drivers and TCP: quick, and nothing else is needed
    Embedded,
    /// Unmodified Linux in QEMU; each adapter is served by Nicety and by QEMU itself
    Qemu,
    /// Unmodified Linux as a user-mode kernel: at this machine's full speed without KVM; it is built before its first use
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
    /// The seconds of each run [default: so many that all runs together take 2 minutes, at least 0.2; with --guests uml 5 minutes, at
    /// least 1; with --guests qemu 20 minutes, at least 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: Option<f64>,
    /// How many times each adapter is measured; with fewer than 7 the report has no confidence intervals [default: 7]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = rounds)]
    pub repeat: Option<u32>,
    /// A first look: three rounds of half a second or less (real guests: of a second), without confidence intervals
    #[arg(long)]
    pub quick: bool,
    /// How doorbells reach the daemon, for adapters that Nicety serves [default: mapped for vmxnet3, trapped for the others]
    #[arg(long, value_enum)]
    pub doorbells: Option<Doorbells>,
    /// Measure nothing, and make the report again from the results.json of an earlier one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["guests", "adapters", "seconds", "repeat", "quick", "doorbells", "seed"])]
    pub from: Option<PathBuf>,
    /// The folder of the report
    #[arg(long, value_name = "DIR", default_value = COMPARE_FOLDER)]
    pub report: PathBuf,
    /// The seed of the random order of the runs
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
    /// High throughput of bulk transfers
    Throughput,
    /// Low latency of requests and answers
    Latency,
    /// Little CPU time on the host, for many VMs
    Cpu,
}

/// `choose`.
#[derive(Debug, Args)]
pub struct Choose {
    /// The guest's operating system [default: you are asked on a terminal; otherwise linux]
    #[arg(value_enum)]
    pub system: Option<System>,
    /// The version of that system [default: a current one]
    #[arg(long, value_name = "VERSION")]
    pub version: Option<String>,
    /// The guest has only the drivers that its system brings
    #[arg(long)]
    pub in_box: bool,
    /// The guest boots from the network
    #[arg(long)]
    pub network_boot: bool,
    /// QEMU migrates the guest live
    #[arg(long)]
    pub migrates: bool,
    /// The adapter must segment what TCP sends
    #[arg(long)]
    pub segmentation: bool,
    /// The figure that counts most
    #[arg(long, value_enum, default_value = "throughput")]
    pub prefer: Prefer,
    /// The folder of results: of `nicety lab`, of one of its methods, or of `nicety compare` [default: nicety-lab and nicety-report]
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
    /// Each write to a doorbell is a message to the daemon
    Trapped,
    /// The guest writes to a page that the daemon polls, if the adapter has such a page
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
    /// The adapter, at a throw-away switch
    #[arg(required_unless_present = "port", conflicts_with = "port")]
    pub adapter: Option<String>,
    /// Use this port of a running daemon instead
    #[arg(long)]
    pub port: Option<String>,
    /// The host file that the daemon serves [default: host.toml here, or else that of the daemon that runs]
    #[arg(long, value_name = "FILE", requires = "port", conflicts_with_all = ["adapter", "control"])]
    pub host: Option<PathBuf>,
    /// The daemon's control socket
    #[arg(long, value_name = "SOCKET", requires = "port", conflicts_with = "adapter")]
    pub control: Option<PathBuf>,
    /// What else is at the throw-away switch
    #[arg(long, value_enum, default_value = "guest", conflicts_with = "port")]
    pub peer: Peer,
    /// Each guest's memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(64..=3838))]
    pub memory: u32,
    /// A user-mode kernel of your own: the program `linux` that `make ARCH=um linux` makes, not a bzImage
    #[arg(long, value_name = "FILE", conflicts_with = "kernel_tree")]
    pub kernel: Option<PathBuf>,
    /// The kernel tree, or the build folder, in which you have built such a kernel
    #[arg(long, value_name = "DIR")]
    pub kernel_tree: Option<PathBuf>,
    /// Add this to the command line of the guest's kernel, such as `vfio_user.msix=0`; may be repeated
    #[arg(long, value_name = "WORD")]
    pub append: Vec<String>,
    /// Write the frames that pass the guest's port to this file, as `nicety capture` does
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// Record each register access of the guest's driver to this file (docs/traces.md)
    #[arg(long, value_name = "FILE", conflicts_with = "port")]
    pub record: Option<PathBuf>,
    /// Hold the guest's kernel before its first instruction until gdb has attached, by the command that is printed
    #[arg(long)]
    pub gdb: bool,
    /// The command to run instead of a shell
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
