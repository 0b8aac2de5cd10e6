//! A port's keys in the host file, looked up and checked: what it is opened with.

use std::path::PathBuf;

use nicety_adapters::{Entry, Settings};
use nicety_host::{FunctionConfig, PeerAddress, Role};
use nicety_socket::Access;
use nicety_switch::Policy;

/// The specification of a port.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// Its name.
    pub name: String,
    /// Its adapter.
    pub entry: &'static Entry,
    /// The adapter's settings.
    pub settings: Settings,
    /// The socket at which its VM connects, or listens.
    pub socket: PathBuf,
    /// Whether this side listens there.
    pub role: Role,
    /// Whether its doorbells are mapped.
    pub mapped: bool,
    /// The worker that serves it, or its first queue pair. `None`: one that was busy least lately.
    pub worker: Option<u16>,
    /// The number of workers that serve its queue pairs.
    pub workers: u16,
    /// The daemon that has its log.
    pub ft_peer: Option<PeerAddress>,
    /// Receive buffer in bytes.
    pub buffer_bytes: u32,
    /// The accounts that may connect.
    pub access: Access,
    /// Its port group, if it is in one.
    pub group: Option<String>,
    /// Its place on a card, if it is a function of one.
    pub function: Option<FunctionConfig>,
    /// Its policy on the switch.
    pub policy: Policy,
}
