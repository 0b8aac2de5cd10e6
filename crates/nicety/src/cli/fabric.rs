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
`nicety fabric status` asks this host's daemon. All other commands need no daemon: they ask etcd itself. The table [fabric] of the host file \
says how etcd is reached, or --fabric, --etcd and the other options do. docs/fabric.md explains the commands.")]
pub struct Fabric {
    /// Its command.
    #[command(subcommand)]
    pub command: FabricCommand,
}

/// How etcd is asked.
#[derive(Debug, Args)]
pub struct Store {
    /// The host file, whose table `[fabric]` says how to reach etcd [default: host.toml here]
    #[arg(long = "host", value_name = "FILE")]
    pub host_file: Option<PathBuf>,
    /// The fabric's name [default: the host file's]
    #[arg(long, value_name = "NAME", value_parser = Name::new)]
    pub fabric: Option<Name>,
    /// The servers of etcd, with commas between them, such as https://etcd1:2379 [default: the host file's]
    #[arg(long, value_name = "URL,…", value_delimiter = ',')]
    pub etcd: Vec<Endpoint>,
    /// The user of etcd who asks [default: the host file's, who may only read]
    #[arg(long, value_name = "NAME", requires = "password")]
    pub user: Option<String>,
    /// The file with that user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password: Option<PathBuf>,
    /// The certificate of the CA that signed etcd's, in PEM format [default: the host file's]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The certificate to present to etcd, in PEM format [default: the host file's]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// The private key of that certificate
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
}

/// The options of a change.
#[derive(Debug, Args)]
pub struct FabricOptions {
    /// Do not ask before VMs lose their connection to other hosts
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// How etcd is asked.
    #[command(flatten)]
    pub store: Store,
}

/// The commands of `fabric`.
#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// Show the fabric as this host's daemon knows it: etcd, the other hosts, the groups, what is refused. The exit code is 1 if the daemon is not connected to etcd
    Status {
        /// JSON instead of text
        #[arg(long)]
        json: bool,
        /// The daemon.
        #[command(flatten)]
        which: Which,
    },
    /// Make a fabric: a configuration without groups. If etcd has users, also the role and the user of an administrator
    Init {
        /// The file to write the new user's password into, which only its owner may read [default: FABRIC-admin.password]
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Add a host to the fabric: makes its role and its user in etcd, and prints the tables for its host file
    Join {
        /// The host's name in the fabric
        #[arg(value_name = "NAME", value_parser = Name::new)]
        name: Name,
        /// The host's IP address on the network between hosts
        #[arg(long, value_name = "ADDRESS")]
        address: IpAddr,
        /// The MTU of that network
        #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..))]
        mtu: u16,
        /// The file to write the new user's password into, which only its owner may read [default: FABRIC-NAME.password]
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Remove this host from its fabric: `forget` for the host that the host file names
    Leave {
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Remove a host from the fabric: its user, its role, its keys and its lease
    Forget {
        /// The host's name in the fabric
        #[arg(value_name = "NAME", value_parser = Name::new)]
        name: Name,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// List the fabric's port groups, or add, change or remove one
    Group(FabricGroup),
    /// List the fabric's classes of I/O control, or add, change or remove one. They divide the tunnel of each host
    Class(FabricClass),
    /// List the ports of all hosts with their addresses
    Port(FabricPort),
    /// Say at which host and port a MAC address is
    Where {
        /// The MAC address
        #[arg(value_name = "MAC")]
        mac: Mac,
        /// JSON instead of text
        #[arg(long)]
        json: bool,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Write the fabric's configuration with all port groups and classes, as it is in etcd
    Export {
        /// The file to write. If that fails, the file stays as it was [default: stdout]
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Show what `nicety fabric apply` would change
    Plan {
        /// The file with the configuration
        file: PathBuf,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Put a configuration in force on all hosts: shows the plan, and asks before VMs lose their connection to other hosts
    Apply {
        /// The file with the configuration
        file: PathBuf,
        /// The version that the file was made from, which `nicety fabric export` has written into it. If etcd has a newer one, nothing is changed
        #[arg(long, value_name = "N")]
        based_on: Option<i64>,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Edit the configuration in $VISUAL or $EDITOR, and then apply it
    Edit {
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Make a CA, and a certificate for etcd's servers, if you have none. etcd is not asked
    Certificates {
        /// The folder to write ca.pem, ca.key, etcd.pem and etcd.key into. A CA that is already there is used
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// The servers of etcd, with commas between them. The certificate is for their names and addresses
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
    /// List the fabric's port groups
    List {
        /// JSON instead of text
        #[arg(long)]
        json: bool,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Add a port group to the fabric: nicety fabric group add web vni=5010 vlan=10
    Add {
        /// The group's name
        #[arg(value_parser = Name::new)]
        name: Name,
        /// The keys vni and vlan, and those of a port_group of the host file (docs/host-file.md)
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Change values of a port group of the fabric: nicety fabric group set web send_average=1Gbit/s
    Set {
        /// The group's name
        #[arg(value_parser = Name::new)]
        name: Name,
        /// Keys and their new values. A key without a value (send_average=) gets its default
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Remove a port group from the fabric; a group that has addresses stays
    Remove {
        /// The group's name
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
    /// List the fabric's classes in their order: a frame belongs to the first class that it fits
    List {
        /// JSON instead of text
        #[arg(long)]
        json: bool,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
    /// Add a class to the fabric, behind the others: nicety fabric class add slow groups=web limit=2Gbit/s
    Add {
        /// The class's name
        #[arg(value_parser = Name::new)]
        name: Name,
        /// The keys of an io_class of the host file, without those that name an uplink or ports (docs/fabric.md)
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Change values of a class of the fabric: nicety fabric class set slow limit=1Gbit/s
    Set {
        /// The class's name
        #[arg(value_parser = Name::new)]
        name: Name,
        /// Keys and their new values. A key without a value (limit=) gets its default
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = value)]
        values: Vec<(String, String)>,
        /// The options.
        #[command(flatten)]
        options: FabricOptions,
    },
    /// Remove a class from the fabric
    Remove {
        /// The class's name
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
    /// List the ports of all hosts with their addresses. A port is in the list while its guest's driver works
    List {
        /// List only the ports in this group
        #[arg(long, value_name = "GROUP", value_parser = Name::new)]
        group: Option<Name>,
        /// JSON instead of text
        #[arg(long)]
        json: bool,
        /// How etcd is asked.
        #[command(flatten)]
        store: Store,
    },
}
