//! The words of `nicety ft`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nicety_etcd::{ENDPOINTS_MAX, Endpoint};
use nicety_host::{ListenAddress, PeerAddress};

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
    /// Run one of the two hosts, until it is killed or stopped
    Start(Box<FtStart>),
    /// Say what a host, or a daemon's ports with `ft_peer`, do: the log's traffic and lag, how long commits take, what the gate holds
    Status {
        /// The control socket of the host, or of the daemon
        control: PathBuf,
        /// JSON
        #[arg(long)]
        json: bool,
    },
    /// Have the primary hand the guest over to the secondary now; the primary ends
    Failover {
        /// The primary's control socket
        control: PathBuf,
    },
    /// End a host: a primary's guest is gone then, a secondary's goes on without it
    Stop {
        /// The host's control socket
        control: PathBuf,
    },
}

/// `ft start`.
#[derive(Debug, Args)]
#[command(after_help = "\
Both hosts have the same guest, key and lease. A frame of the guest leaves when the secondary has all that precedes it.
When the primary dies the secondary takes over: within the lease of 1 s after the last sign of life, and a little.
  head -c 32 /dev/urandom > key
  nicety ft start --role primary   --tap tap0 --listen 127.0.0.1:7001 --key key --lease lease --address 10.9.0.2/24
  nicety ft start --role secondary --tap tap1 --listen 127.0.0.1:7002 --peer 127.0.0.1:7001 --key key --lease lease --address 10.9.0.2/24
With --control FILE a host can be asked: nicety ft status FILE")]
pub struct FtStart {
    /// The part of this host at first
    #[arg(long, value_enum)]
    pub role: FtPart,
    /// Address, or UNIX socket, for the other host to connect to
    #[arg(long, value_name = "ADDRESS:PORT or unix:PATH")]
    pub listen: ListenAddress,
    /// Address or name, and port, or UNIX socket, at which the other host listens; for a secondary
    #[arg(long, value_name = "HOST:PORT or unix:PATH", required_if_eq("role", "secondary"))]
    pub peer: Option<PeerAddress>,
    /// A file with the shared key, of 16 bytes at least. The link is authenticated by it, and not encrypted
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// Who says which host owns the guest: a file that both hosts can lock, or a key of etcd, as etcd://etcd1:2379/KEY or
    /// etcd://etcd1:2379,etcd2:2379,etcd3:2379/KEY
    #[arg(long, value_name = "FILE or etcd://HOST:PORT/KEY", value_parser = lease_place)]
    pub lease: LeasePlace,
    /// The user of etcd, if it asks for one
    #[arg(long, value_name = "NAME", requires = "etcd_password")]
    pub etcd_user: Option<String>,
    /// A file with that user's password
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    pub etcd_password: Option<PathBuf>,
    /// A file with the CA that has signed etcd's certificate. etcd is spoken to by TLS then
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// A file with a certificate for etcd, if it asks for one
    #[arg(long, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    pub etcd_certificate: Option<PathBuf>,
    /// A file with that certificate's key
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    pub etcd_key: Option<PathBuf>,
    /// A socket for `nicety ft status`, `failover` and `stop`, which only its owner can use
    #[arg(long, value_name = "FILE")]
    pub control: Option<PathBuf>,
    /// The tap at which the guest is
    #[arg(long, value_name = "NAME")]
    pub tap: String,
    /// The guest's adapter
    #[arg(long, default_value = "e1000")]
    pub adapter: String,
    /// The guest's MAC address
    #[arg(long, default_value = "52:54:00:f7:00:01")]
    pub mac: nicety_frame::Mac,
    /// The guest's IPv4 address, and the length of its network's prefix
    #[arg(long, value_name = "ADDRESS/BITS", value_parser = network)]
    pub address: ([u8; 4], u8),
    /// The guest's router
    #[arg(long, value_name = "ADDRESS")]
    pub gateway: Option<std::net::Ipv4Addr>,
    /// What the guest serves
    #[arg(long, value_enum, default_value = "echo")]
    pub application: FtApplication,
    /// On which TCP port
    #[arg(long, default_value = "7", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
}

/// The part of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FtPart {
    /// It runs the guest
    Primary,
    /// It replays the guest, and takes over
    Secondary,
}

/// What the guest serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FtApplication {
    /// Each byte comes back (RFC 862)
    Echo,
    /// Lines SET key value, GET key, DELETE key
    Store,
}

impl From<FtApplication> for nicety_tolerance::Application {
    fn from(application: FtApplication) -> Self {
        match application {
            FtApplication::Echo => Self::Echo,
            FtApplication::Store => Self::Store,
        }
    }
}

/// An address with the length of its prefix.
fn network(text: &str) -> Result<([u8; 4], u8), String> {
    let wrong = || "an IPv4 address with the length of its prefix, as in 10.9.0.2/24".to_owned();
    let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
    let address: std::net::Ipv4Addr = address.parse().map_err(|_| wrong())?;
    let bits = bits.parse().ok().filter(|bits| *bits <= 32).ok_or_else(wrong)?;
    Ok((address.octets(), bits))
}

/// Where the lease is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeasePlace {
    /// A file that both hosts can lock.
    File(PathBuf),
    /// A key of etcd.
    Etcd {
        /// Its servers, without TLS. Those of one cluster may have one name.
        servers: Vec<Endpoint>,
        /// The key.
        key: String,
    },
}

fn lease_place(text: &str) -> Result<LeasePlace, String> {
    let Some(rest) = text.strip_prefix("etcd://") else { return Ok(LeasePlace::File(text.into())) };
    const AS_IN: &str = "as in etcd://127.0.0.1:2379/KEY or etcd://etcd1:2379,etcd2:2379/KEY";
    let parts = rest.split_once('/').filter(|(_, key)| !key.is_empty());
    let (servers, key) = parts.ok_or_else(|| format!("a key is missing: {AS_IN}"))?;
    let server = |server: &str| {
        let place: Result<Endpoint, _> = format!("http://{server}").parse();
        place.map_err(|_| format!("{server}: this is no host, or address, with a TCP port: {AS_IN}"))
    };
    let servers: Vec<Endpoint> = servers.split(',').map(server).collect::<Result<_, _>>()?;
    if servers.len() > ENDPOINTS_MAX {
        return Err(format!("more than {ENDPOINTS_MAX} servers"));
    }
    Ok(LeasePlace::Etcd { servers, key: key.to_owned() })
}
