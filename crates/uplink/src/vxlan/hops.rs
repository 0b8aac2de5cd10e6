//! The other hosts of a tunnel, and behind which of them an address is: Linux's forwarding database of a `vxlan` device (bridge(8), `fdb`).
//!
//! A *hop* is another host, by its address on the network between them. Its number stays as long as it is there. An entry (network, address
//! of a guest) is *told* by whoever knows where guests are, or *learned* from what comes in: the source address of a frame is behind the hop
//! that sent it. A told entry wins over a learned one, and does not age. Guests choose addresses: so the table of learned ones has a fixed size,
//! and its hash has a seed. A frame for an address that is not here goes to each hop that has the network: that is always correct.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use nicety_adapter::Time;
use nicety_frame::{Mac, Vni};

use super::networks::{Network, Networks};
use super::saved::{SavedHop, SavedPlace};

/// Most hops.
pub const HOPS_MAX: usize = 1024;
/// Entries that share a set: one cache line.
const WAYS: usize = 4;
/// Sets: 65,536 entries, 1 MiB.
const SETS: usize = 1 << 14;
/// Most entries that are told.
pub const TOLD_MAX: usize = 200_000;
/// Age at which a learned entry is forgotten: the switch's default, and Linux's (IEEE 802.1Q section 8.8.3).
const AGEING_S: u32 = 300;

/// Another host, and the networks that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Its address on the network between hosts.
    pub address: IpAddr,
    /// Its networks, to which broadcasts are sent, in order; `None`: all.
    pub networks: Option<Vec<Vni>>,
}

/// A guest's address, and the host that it is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The network.
    pub vni: Vni,
    /// The guest's address.
    pub mac: Mac,
    /// The host.
    pub hop: IpAddr,
    /// Whether somebody has told it; else it was learned.
    pub is_told: bool,
}

/// The traffic one way between a tunnel and a hop: frames of guests, without the tunnel's headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Frames as a wire would see them.
    pub frames: u64,
    /// Their bytes, without frame check sequences.
    pub bytes: u64,
    /// Datagrams that were dropped.
    pub dropped: u64,
}

/// The traffic between a tunnel and a hop since the hop was put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Came from the hop: for the switch, an uplink's world is the guest that transmits.
    pub transmit: Passed,
    /// Went to the hop.
    pub receive: Passed,
}

/// The way of a frame into a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nowhere: its VLAN is no network of the tunnel.
    NoNetwork,
    /// To one hop, behind which its address is.
    Hop(Vni, IpAddr),
    /// To all hops that have its network, or none.
    All(Vni, Vec<IpAddr>),
}

/// The reason why an address was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TellError {
    /// The hop is not among the hops.
    #[error("{0} is none of the tunnel's peers: add it first")]
    NoHop(IpAddr),
    /// It is a group's address, or none.
    #[error("{0} is no address of one guest")]
    NotUnicast(Mac),
    /// There are as many as there may be.
    #[error("the tunnel's table has no room for {0}: its frames go to all peers of their network")]
    Full(Mac),
}

/// A learned entry: 16 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    mac: [u8; 6],
    hop: u16,
    /// The network; 0: the entry is free.
    vni: u32,
    /// Second of the last frame.
    seen_s: u32,
}

impl Entry {
    fn is(&self, vni: Vni, mac: Mac) -> bool {
        self.vni == vni.number() && self.mac == mac.0
    }

    fn is_old(&self, now_s: u32) -> bool {
        self.vni == 0 || now_s.saturating_sub(self.seen_s) >= AGEING_S
    }
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set([Entry; WAYS]);

/// The table itself, locked: once for each batch of frames, and for each change.
#[derive(Debug)]
pub(crate) struct Table {
    told: HashMap<(Vni, Mac), u16>,
    sets: Box<[Set]>,
    seed: u64,
    /// The hops by number.
    hops: Vec<Option<Hop>>,
    /// By number, as long as `hops`.
    traffic: Vec<Traffic>,
    /// Sorted by address.
    numbers: Vec<(IpAddr, u16)>,
    /// This host's own networks, without those that it leaves.
    networks: Arc<Networks>,
    /// All its own networks.
    own: Vec<Network>,
    /// Networks that it leaves.
    left: BTreeSet<Vni>,
    unconfirmed: Unconfirmed,
}

/// Entries that were told to the process before this one, and were not told again yet.
#[derive(Debug, Default)]
struct Unconfirmed {
    hops: HashSet<IpAddr>,
    told: HashSet<(Vni, Mac)>,
}

/// The hops of a tunnel: its own, and whoever feeds it, have the same.
#[derive(Clone, Debug)]
pub struct Hops(Arc<Mutex<Table>>);

impl Hops {
    /// None yet. The seed is secret.
    pub fn new(seed: u64) -> Self {
        let sets = vec![Set::default(); SETS].into_boxed_slice();
        let (told, networks) = (HashMap::new(), Arc::new(Networks::new(&[])));
        let (hops, traffic, numbers, unconfirmed) = (Vec::new(), Vec::new(), Vec::new(), Unconfirmed::default());
        let (own, left) = (Vec::new(), BTreeSet::new());
        let table = Table { told, sets, seed, hops, traffic, numbers, networks, own, left, unconfirmed };
        Self(Arc::new(Mutex::new(table)))
    }

    /// This host has these networks from now on, and no others.
    pub fn set_networks(&self, networks: &[Network]) {
        let mut table = self.lock();
        table.own = networks.to_vec();
        table.set_networks();
    }

    /// Nothing is sent in these networks and nothing is taken from them, whatever [`Hops::set_networks`] says. All others are taken up again.
    pub fn leave(&self, vnis: &BTreeSet<Vni>) {
        let mut table = self.lock();
        table.left.clone_from(vnis);
        table.set_networks();
    }

    /// A hop has come, or has other networks.
    pub fn put(&self, hop: Hop) {
        let mut table = self.lock();
        table.put(hop);
        table.sort();
    }

    /// A hop has gone. What was behind it is forgotten.
    pub fn remove(&self, address: IpAddr) {
        let mut table = self.lock();
        if let Some(number) = table.number(address) {
            table.forget_hop(usize::from(number));
            table.sort();
        }
    }

    /// Replaces the list of hops. What was behind a hop that is not in it any more is forgotten. Those beyond [`HOPS_MAX`] are left out.
    pub fn set(&self, hops: &[Hop]) {
        self.lock().set(hops);
    }

    /// The addresses of all.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.lock().numbers.iter().map(|(address, _)| *address).collect()
    }

    /// The traffic between the tunnel and each hop, in the order of their addresses.
    pub fn traffic(&self) -> Vec<(IpAddr, Traffic)> {
        let table = self.lock();
        let of = |(address, number): &(IpAddr, u16)| Some((*address, *table.traffic.get(usize::from(*number))?));
        table.numbers.iter().filter_map(of).collect()
    }

    /// The hosts to which the tunnel would send a frame of this VLAN of the switch (0: without a tag) for this address. Changes nothing.
    pub fn way(&self, vlan: u16, to: Mac, now: Time) -> Way {
        let mut table = self.lock();
        let Some(vni) = table.networks.vni(vlan) else { return Way::NoNetwork };
        let hop = if to.is_multicast() { None } else { table.place_of(vni, to, now) };
        match hop.and_then(|hop| table.hop(hop)) {
            Some(hop) => Way::Hop(vni, hop.address),
            None => Way::All(vni, table.all_of(vni).map(|(_, address)| address).collect()),
        }
    }

    /// Says where an address is from now on.
    ///
    /// # Errors
    /// The hop is unknown, the address is no guest's, or there is no room.
    pub fn tell(&self, vni: Vni, mac: Mac, hop: IpAddr) -> Result<(), TellError> {
        self.lock().tell(vni, mac, hop)
    }

    /// Takes back what was told or learned of an address.
    pub fn forget(&self, vni: Vni, mac: Mac) {
        let mut table = self.lock();
        table.told.remove(&(vni, mac));
        table.unconfirmed.told.remove(&(vni, mac));
        if let Some(entry) = table.entry(vni, mac) {
            *entry = Entry::default();
        }
    }

    /// Whoever feeds these hops has told all that it knows. What was told to the process before this one, and was not told again, is
    /// forgotten.
    pub fn forget_unconfirmed(&self) {
        let mut table = self.lock();
        let Unconfirmed { hops, told } = std::mem::take(&mut table.unconfirmed);
        told.iter().for_each(|place| _ = table.told.remove(place));
        let numbers: Vec<u16> = hops.into_iter().filter_map(|address| table.number(address)).collect();
        numbers.into_iter().for_each(|number| table.forget_hop(usize::from(number)));
        table.sort();
    }

    /// All that is known now.
    pub fn places(&self, now: Time) -> Vec<Place> {
        let (table, now_s) = (self.lock(), seconds(now));
        let learned = table.sets.iter().flat_map(|set| &set.0).filter(|entry| !entry.is_old(now_s));
        let learned = learned.filter_map(|entry| Some((Vni::new(entry.vni)?, Mac(entry.mac), entry.hop, false)));
        let learned = learned.filter(|(vni, mac, ..)| !table.told.contains_key(&(*vni, *mac)));
        let told = table.told.iter().map(|(&(vni, mac), &hop)| (vni, mac, hop, true));
        let place = |(vni, mac, hop, is_told)| Some(Place { vni, mac, hop: table.hop(hop)?.address, is_told });
        told.chain(learned).filter_map(place).collect()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        // A thread that panicked has left the table as valid as it was: a lost entry is a flood.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Passed {
    fn count(&mut self, frames: u32, bytes: u32, is_dropped: bool) {
        if is_dropped {
            self.dropped += u64::from(frames);
        } else {
            self.frames += u64::from(frames);
            self.bytes += u64::from(bytes);
        }
    }
}

fn seconds(now: Time) -> u32 {
    u32::try_from(now.since(Time::ZERO).as_secs()).unwrap_or(u32::MAX)
}

impl Table {
    fn set_networks(&mut self) {
        let stays = |network: &&Network| !self.left.contains(&network.vni);
        let networks: Vec<Network> = self.own.iter().filter(stays).copied().collect();
        self.networks = Arc::new(Networks::new(&networks));
    }

    fn set(&mut self, hops: &[Hop]) {
        for number in 0..self.hops.len() {
            let stays = self.hops[number].as_ref().is_none_or(|old| hops.iter().any(|hop| hop.address == old.address));
            if !stays {
                self.forget_hop(number);
            }
        }
        hops.iter().for_each(|hop| self.put(hop.clone()));
        self.sort();
    }

    fn put(&mut self, mut hop: Hop) {
        self.unconfirmed.hops.remove(&hop.address);
        hop.networks.iter_mut().for_each(|networks| networks.sort_unstable());
        let is_same = |old: &&mut Option<Hop>| old.as_ref().is_some_and(|old| old.address == hop.address);
        if let Some(old) = self.hops.iter_mut().find(is_same) {
            *old = Some(hop);
        } else if let Some(free) = self.hops.iter().position(Option::is_none) {
            (self.hops[free], self.traffic[free]) = (Some(hop), Traffic::default());
        } else if self.hops.len() < HOPS_MAX {
            self.hops.push(Some(hop));
            self.traffic.push(Traffic::default());
        }
    }

    fn forget_hop(&mut self, number: usize) {
        let Some(slot) = self.hops.get_mut(number) else { return };
        *slot = None;
        self.told.retain(|_, hop| usize::from(*hop) != number);
        let behind = |entry: &&mut Entry| usize::from(entry.hop) == number;
        let entries = self.sets.iter_mut().flat_map(|set| &mut set.0);
        entries.filter(behind).for_each(|entry| *entry = Entry::default());
    }

    fn sort(&mut self) {
        let numbered = (0..).zip(&self.hops).filter_map(|(number, hop)| Some((hop.as_ref()?.address, number)));
        self.numbers = numbered.collect();
        self.numbers.sort_unstable();
    }

    fn tell(&mut self, vni: Vni, mac: Mac, hop: IpAddr) -> Result<(), TellError> {
        let number = self.number(hop).ok_or(TellError::NoHop(hop))?;
        if !mac.is_unicast() {
            return Err(TellError::NotUnicast(mac));
        }
        if self.told.len() >= TOLD_MAX && !self.told.contains_key(&(vni, mac)) {
            return Err(TellError::Full(mac));
        }
        self.told.insert((vni, mac), number);
        self.unconfirmed.told.remove(&(vni, mac));
        Ok(())
    }

    /// All hops and entries, for the next process. A learned entry may be old.
    pub(super) fn save(&self) -> (Vec<SavedHop>, Vec<SavedPlace>) {
        let hop = |(address, number): &(IpAddr, u16)| {
            let numbers = |networks: &Vec<Vni>| networks.iter().map(|vni| vni.number()).collect();
            SavedHop {
                address: *address,
                networks: self.hop(*number).and_then(|hop| hop.networks.as_ref().map(numbers)),
            }
        };
        // Hops are saved in the order of their addresses, without gaps.
        let mut places: Vec<Option<u16>> = vec![None; self.hops.len()];
        for (place, (_, number)) in (0..).zip(&self.numbers) {
            places[usize::from(*number)] = Some(place);
        }
        let place_of = |hop: u16| places.get(usize::from(hop)).copied().flatten();
        let told = self.told.iter().filter_map(|(&(vni, mac), &hop)| {
            Some(SavedPlace { vni: vni.number(), mac: mac.0, hop: place_of(hop)?, seen_s: None })
        });
        let learned = self.sets.iter().flat_map(|set| &set.0).filter(|entry| entry.vni != 0);
        let learned = learned.filter_map(|&Entry { mac, hop, vni, seen_s }| {
            Some(SavedPlace { vni, mac, hop: place_of(hop)?, seen_s: Some(seen_s) })
        });
        (self.numbers.iter().map(hop).collect(), told.chain(learned).collect())
    }

    /// Goes on with what another process knew. Peers that the host file names are here already, and no others are added to them.
    pub(super) fn restore(&mut self, hops: &[SavedHop], places: &[SavedPlace]) {
        if self.numbers.is_empty() {
            for SavedHop { address, networks } in hops {
                let vnis = |numbers: &Vec<u32>| numbers.iter().filter_map(|number| Vni::new(*number)).collect();
                self.put(Hop { address: *address, networks: networks.as_ref().map(vnis) });
                self.unconfirmed.hops.insert(*address);
            }
            self.sort();
        }
        for &SavedPlace { vni, mac, hop, seen_s } in places {
            let number = hops.get(usize::from(hop)).and_then(|hop| self.number(hop.address));
            let mac = Mac(mac);
            let Some((vni, hop)) = Vni::new(vni).zip(number).filter(|_| mac.is_unicast()) else { continue };
            match seen_s {
                Some(seen_s) => self.note(vni, mac, hop, seen_s),
                None if self.told.len() < TOLD_MAX => {
                    self.told.insert((vni, mac), hop);
                    self.unconfirmed.told.insert((vni, mac));
                }
                None => {}
            }
        }
    }

    /// The source of a frame that this hop has sent is behind it.
    pub(crate) fn learn(&mut self, vni: Vni, mac: Mac, hop: u16, now: Time) {
        if mac.is_unicast() {
            self.note(vni, mac, hop, seconds(now));
        }
    }

    fn note(&mut self, vni: Vni, mac: Mac, hop: u16, seen_s: u32) {
        let seen = Entry { mac: mac.0, hop, vni: vni.number(), seen_s };
        let set = &mut self.set_of(vni, mac).0;
        let at = set.iter().position(|entry| entry.is(vni, mac));
        // A free entry, or the one that has been silent for longest.
        let at = at.or_else(|| (0..WAYS).min_by_key(|at| (set[*at].vni != 0, set[*at].seen_s)));
        if let Some(entry) = at.and_then(|at| set.get_mut(at)) {
            *entry = seen;
        }
    }

    /// The hop behind which an address is.
    pub(crate) fn place_of(&mut self, vni: Vni, mac: Mac, now: Time) -> Option<u16> {
        if !self.told.is_empty()
            && let Some(hop) = self.told.get(&(vni, mac))
        {
            return Some(*hop);
        }
        let now_s = seconds(now);
        self.entry(vni, mac).filter(|entry| !entry.is_old(now_s)).map(|entry| entry.hop)
    }

    /// The numbers and addresses of all hops that have a network.
    pub(crate) fn all_of(&self, vni: Vni) -> impl Iterator<Item = (u16, IpAddr)> + '_ {
        let has = move |hop: &Hop| hop.networks.as_ref().is_none_or(|networks| networks.binary_search(&vni).is_ok());
        let hops = (0..).zip(&self.hops).filter_map(|(number, hop)| Some((number, hop.as_ref()?)));
        hops.filter(move |(_, hop)| has(hop)).map(|(number, hop)| (number, hop.address))
    }

    /// A datagram has come from a hop, with a frame of so many bytes.
    pub(crate) fn came(&mut self, hop: u16, bytes: u32, is_dropped: bool) {
        if let Some(traffic) = self.traffic.get_mut(usize::from(hop)) {
            traffic.transmit.count(1, bytes, is_dropped);
        }
    }

    /// Datagrams with so many frames were sent to a hop. One that has another address by now is another host.
    pub(crate) fn went(&mut self, hop: u16, to: IpAddr, (frames, bytes): (u32, u32), is_dropped: bool) {
        let is_there = self.hop(hop).is_some_and(|hop| hop.address == to);
        if let Some(traffic) = self.traffic.get_mut(usize::from(hop)).filter(|_| is_there) {
            traffic.receive.count(frames, bytes, is_dropped);
        }
    }

    /// The hop at this address.
    pub(crate) fn number(&self, address: IpAddr) -> Option<u16> {
        let at = self.numbers.binary_search_by_key(&address, |(address, _)| *address).ok()?;
        self.numbers.get(at).map(|(_, number)| *number)
    }

    /// A hop.
    pub(crate) fn hop(&self, number: u16) -> Option<&Hop> {
        self.hops.get(usize::from(number))?.as_ref()
    }

    /// This host's own networks.
    pub(crate) fn networks(&self) -> Arc<Networks> {
        Arc::clone(&self.networks)
    }

    /// The number of hops.
    pub(crate) fn count(&self) -> usize {
        self.numbers.len()
    }

    fn entry(&mut self, vni: Vni, mac: Mac) -> Option<&mut Entry> {
        self.set_of(vni, mac).0.iter_mut().find(|entry| entry.is(vni, mac))
    }

    fn set_of(&mut self, vni: Vni, mac: Mac) -> &mut Set {
        let key = mac.to_u64() ^ u64::from(vni.number()) << 40;
        // The high bits of a product with an odd secret depend on all bits of the key.
        let mixed = (key ^ self.seed).wrapping_mul(self.seed | 1);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (mixed >> (u64::BITS - SETS.trailing_zeros())) as usize;
        &mut self.sets[at]
    }
}

#[cfg(test)]
#[path = "hops_test.rs"]
mod tests;
