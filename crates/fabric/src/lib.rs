//! What the hosts of a distributed switch agree on (docs/fabric.md): a pure state machine for one host, over a store with etcd's semantics.
//!
//! ```text
//!   the daemon                                     etcd (a thread speaks with it)
//!     ports start, stop, are learned ──► Fabric ──► leases, transactions, reads, watches
//!     configuration, hops, addresses ◄── Fabric ◄── answers, changes of keys
//! ```
//! What holds, whoever is cut off, killed or late (`tests/many.rs` plays it):
//! - **An address is at one host.** Of several claims the one with the highest sequence number counts. A host whose claim is overtaken
//!   gives it up.
//! - **No entry without a claim.** A host is told only what the host that it names has written itself.
//! - **The last known state stays** while etcd is out of reach. What has vanished meanwhile is believed gone one lease time after
//!   reconnecting, so that others may register again first.
//!
//! Time is a parameter. The machine gives [`Action`]s: what to ask of etcd, and what to tell the tunnel. It takes [`Event`]s: what etcd
//! answers. Every call ([`Call`]) is answered exactly once, by a result or by a [`Trouble`].
#![forbid(unsafe_code)]

mod change;
mod fabric;
mod hosts;
mod record;
mod store;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_frame::{Mac, Vni};

pub use change::{Basis, Change};
pub use fabric::config::{Config, GROUPS_MAX, TEXT_MAX};
pub use fabric::group::own::{LEARNED_ALL_MAX, LEARNED_MAX, Waiting};
pub use fabric::kept::Kept;
pub use fabric::report::{Connection, GroupReport, HostReport, Namesake, Place, Report};
pub use fabric::{Fabric, Settings};
pub use hosts::{HOSTS_MAX, Hop, Peer};
pub use record::{CARRIED, ClaimRecord, HostRecord, Key, Keys, NAME_MAX, Name, SEQUENCE_MAX, VALUE_MAX};
pub use store::{Call, Compare, Entry, Event, Found, Op, Outcome, Scope, Transaction, Trouble, WatchId};

/// Claims of all other hosts that one host keeps.
pub const CLAIMS_MAX: usize = 200_000;

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Time to live of a host's lease. What has vanished while etcd was out of reach is believed gone after the same time.
    pub lease: Duration,
    /// The first pause after a failed call. It doubles with each further one.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// Between two transactions that claim learned addresses, which guests can make up.
    pub learn: Duration,
    /// A host that was overtaken claims the address again when its guest sends: at once, then after this pause, which doubles.
    pub damping_min: Duration,
    /// The longest such pause. An address that was not overtaken for three times as long begins anew.
    pub damping_max: Duration,
}

impl Default for Terms {
    /// 10 s; 50 ms to 1 s; 200 ms; 1 s to 60 s.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            pause_min: Duration::from_millis(50),
            pause_max: Duration::from_secs(1),
            learn: Duration::from_millis(200),
            damping_min: Duration::from_secs(1),
            damping_max: Duration::from_secs(60),
        }
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read all keys of a scope, at one revision.
    Read {
        /// For the answer.
        call: Call,
        /// The keys.
        scope: Scope,
    },
    /// Tell all changes of these keys, each once and in order, across failures, until [`Action::Unwatch`].
    Watch {
        /// Its number: events carry it.
        watch: WatchId,
        /// The keys.
        scope: Scope,
        /// The first revision to tell.
        from: i64,
    },
    /// A watch ends. Its late events are ignored.
    Unwatch {
        /// The watch.
        watch: WatchId,
    },
    /// Make a lease.
    Grant {
        /// For the answer.
        call: Call,
        /// The time that it lives without renewal.
        time_to_live: Duration,
    },
    /// Renew a lease.
    Renew {
        /// For the answer.
        call: Call,
        /// Its identifier.
        lease: i64,
    },
    /// End a lease, and its keys. Nobody waits for the answer.
    Revoke {
        /// Its identifier.
        lease: i64,
    },
    /// Carry out a transaction.
    Transact {
        /// For the answer.
        call: Call,
        /// The transaction.
        transaction: Transaction,
    },
    /// Apply this configuration. Then call [`Fabric::applied`] or [`Fabric::delayed`].
    Config {
        /// Its version: the revision of its key.
        revision: i64,
        /// The text: groups as tables of a host file.
        text: String,
    },
    /// The tunnel sends nothing in these networks and takes nothing from them, whatever configuration is in force. It takes up all others
    /// again.
    Leave {
        /// Network identifiers that other hosts may use for another group than this host.
        vnis: BTreeSet<Vni>,
    },
    /// A host can be reached at this address from now on. With another address than before, it has none of the addresses that were told:
    /// those that it still has are told again. `None`: it is gone, and nothing is told of it any more.
    Hop {
        /// The number of the host. It stays while the host is there.
        hop: Hop,
        /// The host's address.
        peer: Option<Peer>,
    },
    /// Frames for all ports of a group go to this hop as well, or do not any more.
    Flood {
        /// The group's network identifier.
        vni: Vni,
        /// The number of the host.
        hop: Hop,
        /// Whether they do.
        is_on: bool,
    },
    /// An address is at this hop, and at no other one.
    Tell {
        /// Its group's network identifier.
        vni: Vni,
        /// The address.
        mac: Mac,
        /// The number of the host that has it.
        hop: Hop,
    },
    /// An address is at no other host.
    Forget {
        /// Its group's network identifier.
        vni: Vni,
        /// The address.
        mac: Mac,
    },
    /// An address that was claimed here is at another host now. [`Fabric::learned`] claims it again when its guest sends here.
    Moved {
        /// The group.
        group: Name,
        /// The address.
        mac: Mac,
        /// The host that has it.
        to: Name,
    },
}

/// This host's facts for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Me {
    /// The host's name.
    pub host: Name,
    /// Its tunnel's address.
    pub address: IpAddr,
    /// Its underlay's MTU, in bytes.
    pub mtu: u16,
    /// The version of the program.
    pub version: String,
}

/// The earlier of two times, if there are any.
fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    [one, other].into_iter().flatten().min()
}
