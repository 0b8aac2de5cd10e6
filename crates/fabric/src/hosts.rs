//! The other hosts: their numbers, what they say of themselves, and which of them a tunnel may reach.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nicety_adapter::Time;

use crate::record::{HostRecord, Name};

/// Other hosts that one host knows, at most: as many as its tunnel reaches.
pub const HOSTS_MAX: usize = 1024;
/// Tunnel addresses that one host claims, at most. It uses one; a stranger may have added others.
const TENURES_MAX: usize = 4;

/// A host's number in this host's tunnel. It stays while the host is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop(pub u16);

/// The other end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Its underlay's MTU, in bytes.
    pub mtu: u16,
}

/// A host's key.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) record: HostRecord,
    pub(crate) modified: i64,
    /// When this host first heard of this run.
    pub(crate) since: Time,
    /// The key has vanished while the store was out of reach. It is believed gone then.
    pub(crate) gone_at: Option<Time>,
}

/// A host's claim of a tunnel address. Of several claims of one address, the one whose key was made first counts. A host that writes its
/// keys again keeps that rank. A host that changes its address makes a new key, and begins at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenure {
    /// The revision at which its key was made.
    pub(crate) created: i64,
    /// The key has vanished while the store was out of reach. It is believed gone then.
    pub(crate) gone_at: Option<Time>,
}

/// Another host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: Name,
    known: Option<Known>,
    tenures: BTreeMap<IpAddr, Tenure>,
    /// Its claims in all groups that this host follows.
    pub(crate) claims: u32,
    /// The tunnel address and MTU that were told to the tunnel.
    pub(crate) peer: Option<Peer>,
}

/// All hosts.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    slots: Vec<Option<Host>>,
    by_name: BTreeMap<Name, Hop>,
    /// The hosts that claim an address.
    by_address: BTreeMap<IpAddr, BTreeSet<Hop>>,
    free: BTreeSet<u16>,
    /// This host's own key.
    pub(crate) mine: Option<Known>,
    /// The tunnel addresses that this host's keys claim, and the revisions at which these keys were made.
    pub(crate) my_tenures: BTreeMap<IpAddr, i64>,
}

impl Host {
    pub(crate) fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    pub(crate) fn tenures(&self) -> impl Iterator<Item = (IpAddr, Tenure)> {
        self.tenures.iter().map(|(address, tenure)| (*address, *tenure))
    }
}

impl Hosts {
    /// Notes a host's key, or that it has none.
    pub(crate) fn set(&mut self, hop: Hop, known: Option<Known>) {
        if let Some(host) = self.get_mut(hop) {
            host.known = known;
        }
    }

    /// Notes that a host claims an address, or does not any more. Returns the hosts that claim it: for these it may matter.
    ///
    /// # Errors
    /// A sentence: the host claims too many.
    pub(crate) fn claim(&mut self, hop: Hop, address: IpAddr, tenure: Option<Tenure>) -> Result<BTreeSet<Hop>, String> {
        let mut concerned = self.by_address.get(&address).cloned().unwrap_or_default();
        concerned.insert(hop);
        let Some(host) = self.get_mut(hop) else { return Ok(concerned) };
        let Some(tenure) = tenure else {
            host.tenures.remove(&address);
            if let Some(hops) = self.by_address.get_mut(&address) {
                hops.remove(&hop);
                if hops.is_empty() {
                    self.by_address.remove(&address);
                }
            }
            return Ok(concerned);
        };
        if host.tenures.len() >= TENURES_MAX && !host.tenures.contains_key(&address) {
            return Err(format!(
                "host {:?} claims more than {TENURES_MAX} tunnel addresses: this one is left out",
                host.name.as_str()
            ));
        }
        host.tenures.insert(address, tenure);
        self.by_address.entry(address).or_default().insert(hop);
        Ok(concerned)
    }

    /// The key of a host's claim has vanished, and is believed gone then.
    pub(crate) fn tenure_gone_at(&mut self, hop: Hop, address: IpAddr) -> Option<&mut Option<Time>> {
        Some(&mut self.get_mut(hop)?.tenures.get_mut(&address)?.gone_at)
    }

    /// All claims of tunnel addresses.
    pub(crate) fn tenures(&self) -> impl Iterator<Item = (Hop, IpAddr, Tenure)> {
        self.all().flat_map(|(hop, host)| host.tenures().map(move |(address, tenure)| (hop, address, tenure)))
    }

    /// A host's key has vanished, and is believed gone then.
    pub(crate) fn gone_at(&mut self, hop: Hop) -> Option<&mut Option<Time>> {
        Some(&mut self.get_mut(hop)?.known.as_mut()?.gone_at)
    }

    pub(crate) fn get(&self, hop: Hop) -> Option<&Host> {
        self.slots.get(usize::from(hop.0))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, hop: Hop) -> Option<&mut Host> {
        self.slots.get_mut(usize::from(hop.0))?.as_mut()
    }

    pub(crate) fn find(&self, name: &Name) -> Option<Hop> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Hop, &Host)> {
        self.by_name.values().filter_map(|&hop| Some((hop, self.get(hop)?)))
    }

    /// The number of this name. A new one is the lowest that is free; `None`: there are too many hosts.
    pub(crate) fn intern(&mut self, name: &Name) -> Option<Hop> {
        if let Some(hop) = self.find(name) {
            return Some(hop);
        }
        let host = Host { name: name.clone(), known: None, tenures: BTreeMap::new(), claims: 0, peer: None };
        let number = match self.free.pop_first() {
            Some(number) => {
                *self.slots.get_mut(usize::from(number))? = Some(host);
                number
            }
            None => {
                let number = u16::try_from(self.slots.len()).ok().filter(|&number| usize::from(number) < HOSTS_MAX)?;
                self.slots.push(Some(host));
                number
            }
        };
        self.by_name.insert(name.clone(), Hop(number));
        Some(Hop(number))
    }

    /// Whether there is a number for one more host.
    pub(crate) fn has_room(&self) -> bool {
        self.by_name.len() < HOSTS_MAX
    }

    /// Frees the number of a host of which nothing is known any more.
    pub(crate) fn release(&mut self, hop: Hop) {
        let Some(slot) = self.slots.get_mut(usize::from(hop.0)) else { return };
        let is_unknown = |host: &Host| host.known.is_none() && host.tenures.is_empty() && host.claims == 0;
        if let Some(host) = slot.take_if(|host| is_unknown(host) && host.peer.is_none()) {
            self.by_name.remove(&host.name);
            self.free.insert(hop.0);
        }
    }

    /// The host that has claimed this address first, and before this claim.
    pub(crate) fn first_with(&self, address: IpAddr, than: Option<(i64, &Name)>) -> Option<(Hop, &Name)> {
        let same = self.by_address.get(&address).into_iter().flatten().filter_map(|&hop| {
            let host = self.get(hop)?;
            Some((host.tenures.get(&address)?.created, &host.name, hop))
        });
        let before = same.filter(|(created, name, _)| than.is_none_or(|than| (*created, *name) < than));
        before.min().map(|(_, name, hop)| (hop, name))
    }

    /// The address at which the tunnel may reach this host. `mine`: this host's own address.
    pub(crate) fn peer_of(&self, hop: Hop, mine: IpAddr) -> Option<Peer> {
        let HostRecord { address, mtu, .. } = self.get(hop)?.known.as_ref()?.record;
        let is_its = self.first_with(address, None).is_some_and(|(first, _)| first == hop);
        (is_its && address != mine).then_some(Peer { address, mtu })
    }

    /// Why the tunnel does not reach a host that is registered. `me`: this host.
    pub(crate) fn why_not_reached(&self, host: &Host, me: (&Name, IpAddr)) -> Option<String> {
        let address = host.known.as_ref().filter(|_| host.peer.is_none())?.record.address;
        let name = host.name.as_str();
        let first = if address == me.1 { Some(me.0) } else { self.first_with(address, None).map(|(_, first)| first) };
        Some(match first.filter(|first| **first != host.name) {
            Some(first) => format!(
                "nothing is sent to host {name:?}: its tunnel address {address} is that of host {:?}, which had it first",
                first.as_str()
            ),
            None => format!("nothing is sent to host {name:?}: it has not claimed its tunnel address {address}"),
        })
    }
}
