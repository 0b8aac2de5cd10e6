//! The other hosts: their numbers, what they say of themselves, and which of them a tunnel may reach.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nicety_adapter::Time;

use crate::record::{HostRecord, Name};

/// Hosts of a fabric, at most.
pub const HOSTS_MAX: usize = 4096;

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
    pub(crate) created: i64,
    pub(crate) modified: i64,
    /// When this host first heard of this run.
    pub(crate) since: Time,
    /// The key has vanished while the store was out of reach. It is believed gone then.
    pub(crate) gone_at: Option<Time>,
}

/// Another host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: Name,
    known: Option<Known>,
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
    by_address: BTreeMap<IpAddr, BTreeSet<Hop>>,
    free: BTreeSet<u16>,
    /// This host's own key.
    pub(crate) mine: Option<Known>,
}

impl Host {
    pub(crate) fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }
}

impl Hosts {
    /// Notes a host's key, or that it has none. Returns the hosts with its address, old or new: for these it may matter.
    pub(crate) fn set(&mut self, hop: Hop, known: Option<Known>) -> BTreeSet<Hop> {
        let address = known.as_ref().map(|known| known.record.address);
        let mut concerned = BTreeSet::from([hop]);
        let Some(host) = self.get_mut(hop) else { return concerned };
        let old = std::mem::replace(&mut host.known, known).map(|known| known.record.address);
        if let Some(old) = old
            && let Some(hops) = self.by_address.get_mut(&old)
        {
            hops.remove(&hop);
            concerned.extend(hops.iter());
            if hops.is_empty() {
                self.by_address.remove(&old);
            }
        }
        if let Some(address) = address {
            let hops = self.by_address.entry(address).or_default();
            hops.insert(hop);
            concerned.extend(hops.iter());
        }
        concerned
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
        let host = Host { name: name.clone(), known: None, claims: 0, peer: None };
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

    pub(crate) fn too_many(&self) -> String {
        format!("there are more than {HOSTS_MAX} hosts: this one is left out")
    }

    /// Frees the number of a host of which nothing is known any more.
    pub(crate) fn release(&mut self, hop: Hop) {
        let Some(slot) = self.slots.get_mut(usize::from(hop.0)) else { return };
        if let Some(host) = slot.take_if(|host| host.known.is_none() && host.claims == 0 && host.peer.is_none()) {
            self.by_name.remove(&host.name);
            self.free.insert(hop.0);
        }
    }

    /// The host that had this address before this one. Of two hosts with one address the first counts.
    pub(crate) fn first_with(&self, address: IpAddr, than: Option<(i64, &Name)>) -> Option<(&Name, &Known)> {
        let same = self.by_address.get(&address).into_iter().flatten().filter_map(|&hop| {
            let host = self.get(hop)?;
            Some((&host.name, host.known.as_ref()?))
        });
        same.filter(|(name, known)| than.is_none_or(|than| (known.created, *name) < than))
            .min_by_key(|(name, known)| (known.created, *name))
    }

    /// The address at which the tunnel may reach this host. `mine`: this host's own address, and when its key was made.
    pub(crate) fn peer_of(&self, hop: Hop, mine: IpAddr) -> Option<Peer> {
        let host = self.get(hop)?;
        let known = host.known.as_ref()?;
        let HostRecord { address, mtu, .. } = known.record;
        let is_second = address == mine || self.first_with(address, Some((known.created, &host.name))).is_some();
        (!is_second).then_some(Peer { address, mtu })
    }
}
