//! The words of `nicety fabric`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use nicety_etcd::Endpoint;
use nicety_fabric::Name;
use nicety_frame::Mac;

use super::Which;
use super::change::value;

/// `fabric`.
#[derive(Debug, Args)]
#[command(after_help = "\
`status` asks the daemon. All other commands ask etcd, by the host file's [fabric] or by --fabric, --etcd and so on, and need no daemon. docs/fabric.md explains them.")]
pub struct Fabric {
    /// Its command.
    #[command(subcommand)]
    pub command: FabricCommand,
}

/// How etcd is asked.
#[derive(Debug, Args)]
pub struct Store {
    /// The host file, whose table fabric says how etcd is asked [default: host.toml here]
    #[arg(long = "host", value_name = "FILE")]
    pub host_file: Option<PathBuf>,
    /// The fabric's name [default: the host file's]
    #[arg(long, value_name = "NAME", value_parser = Name::new)]
    pub fabric: Option<Name>,
    /// Servers of one etcd with commas between them, such as https://etcd1:2379 [default: the host file's]
    #[arg(long, value_name = "URL,…", value_delimiter = ',')]
    pub etcd: Vec<Endpoint>,
    /// As which user of etcd to ask [default: the host file's, who may only read]
    #[arg(long, value_name = "NAME", requires = "password")]
    pub user: Option<String>,
    /// The file with that user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password: Option<PathBuf>,
    /// The certificate of the CA that signed etcd's, in PEM format [default: the host file's]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// What to show if etcd asks for a certificate, in PEM format [default: the host file's]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// The private key of that certificate
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
}

/// The options of a change.
#[derive(Debug, Args)]
pub struct FabricOptions {
    /// Do not ask, even if VMs lose their way to other hosts
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// How etcd is asked.
    #[command(flatten)]
    pub store: Store,
}

/// The commands of `fabric`.
#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// Show the fabric as this host's daemon knows it: etcd, the other hosts, the groups, what is refused. Ends with 1 if it is not connected
    Status {
        /// JSON
        #[arg(long)]
        json: bool,
        /// The daemon.
        #[command(flatten)]
        which: Which,
    },
    /// Make a fabric: its configuration without groups, and, if etcd has users, the role and the user of an administrator
    Init {
        /// The file for the new user's password: its owner alone may read it [default: FABRIC-admin.password]
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Let a host take part: makes its role and its user, and prints the tables for its host file
    Join {
        /// The host's name in the fabric
        #[arg(value_name = "NAME", value_parser = Name::new)]
        name: Name,
        /// The host's address on the network between hosts
        #[arg(long, value_name = "ADDRESS")]
        address: IpAddr,
        /// MTU of that network in bytes
        #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..))]
        mtu: u16,
        /// The file for the new user's password: its owner alone may read it [default: FABRIC-NAME.password]
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Take this host out of its fabric: as `forget`, for the host that the host file names
    Leave {
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Take a host out: its user, its role, its keys and its lease
    Forget {
        /// The host's name in the fabric
        #[arg(value_name = "NAME", value_parser = Name::new)]
        name: Name,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// List the fabric's port groups, or change one
    Group(FabricGroup),
    /// List the fabric's classes of I/O control, or change one. They divide the tunnel of each host
    Class(FabricClass),
    /// List the ports of all hosts with their addresses
    Port(FabricPort),
    /// Say which host and port an address is at
    Where {
        /// The address
        #[arg(value_name = "MAC")]
        mac: Mac,
        /// JSON
        #[arg(long)]
        json: bool,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Write the configuration with all port groups and classes, as it is in etcd
    Export {
        /// The file: it is written whole, or stays as it is [default: stdout]
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Show what `apply` would change
    Plan {
        /// The configuration
        file: PathBuf,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Make a file the configuration of all hosts: shows the plan, and asks before VMs lose their way to other hosts
    Apply {
        /// The configuration
        file: PathBuf,
        /// The version that the file was made from, as `export` says it: nothing is done if there is a newer one
        #[arg(long, value_name = "N")]
        based_on: Option<i64>,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Change the configuration in an editor ($VISUAL, or $EDITOR), then as `apply`
    Edit {
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Make a CA, and a certificate for etcd's servers, for those who have none. etcd is not asked
    Certificates {
        /// The folder for ca.pem, ca.key, etcd.pem and etcd.key; a CA that is there already is used
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Servers of etcd with commas between them: the certificate is for their names and addresses
        #[arg(long, value_name = "URL,…", value_delimiter = ',', required = true)]
        etcd: Vec<Endpoint>,
    },
}

/// `fabric group`.
#[derive(Debug, Args)]
pub struct FabricGroup {
    /// Its command.
    #[command(subcommand)]
    pub command: FabricGroupCommand,
}

/// The commands of `fabric group`.
#[derive(Debug, Subcommand)]
pub enum FabricGroupCommand {
    /// List the groups
    List {
        /// JSON
        #[arg(long)]
        json: bool,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Add one: nicety fabric group add web vni=5010 vlan=10
    Add {
        /// Its name
        #[arg(value_parser = Name::new)]
        name: Name,
        /// vni, vlan, and the keys of a port_group of the host file (docs/host-file.md)
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Change values of one: nicety fabric group set web send_average=1Gbit/s
    Set {
        /// Its name
        #[arg(value_parser = Name::new)]
        name: Name,
        /// Keys and their new values; without a value a key gets its default
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Remove one that no port is in
    Remove {
        /// Its name
        #[arg(value_parser = Name::new)]
        name: Name,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
}

/// `fabric class`.
#[derive(Debug, Args)]
pub struct FabricClass {
    /// Its command.
    #[command(subcommand)]
    pub command: FabricClassCommand,
}

/// The commands of `fabric class`.
#[derive(Debug, Subcommand)]
pub enum FabricClassCommand {
    /// List the classes in their order: the first one that a frame fits is the frame's
    List {
        /// JSON
        #[arg(long)]
        json: bool,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Add one behind the others: nicety fabric class add slow groups=web limit=2Gbit/s
    Add {
        /// Its name
        #[arg(value_parser = Name::new)]
        name: Name,
        /// The keys of an io_class of the host file, without those that name an uplink or ports (docs/fabric.md)
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Change values of one: nicety fabric class set slow limit=1Gbit/s
    Set {
        /// Its name
        #[arg(value_parser = Name::new)]
        name: Name,
        /// Keys and their new values; without a value a key gets its default
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Remove one
    Remove {
        /// Its name
        #[arg(value_parser = Name::new)]
        name: Name,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
}

/// `fabric port`.
#[derive(Debug, Args)]
pub struct FabricPort {
    /// Its command.
    #[command(subcommand)]
    pub command: FabricPortCommand,
}

/// The commands of `fabric port`.
#[derive(Debug, Subcommand)]
pub enum FabricPortCommand {
    /// List them. A port is there while its guest's driver works
    List {
        /// Only those in this group
        #[arg(long, value_name = "GROUP", value_parser = Name::new)]
        group: Option<Name>,
        /// JSON
        #[arg(long)]
        json: bool,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
}
