//! The virtual switch: it decides, from private heads and its own tables, which ports a frame goes to, and why not.
//!
//! It holds no port, no socket and no clock. [`Switch::forward`] turns a batch into a [`Plan`]: for each receiver the
//! list of packets that it gets, in order, so that a receiver's lock is taken once a batch and not once a frame (the
//! idea of VALE, Rizzo and Lettieri 2012). Learning, ageing and moving follow IEEE 802.1Q-2018, 8.7 and 8.8.
//!
//! Several workers forward at the same time: the address table is a set-associative array of atomics, membership is
//! a table that is read without a lock and replaced whole.
#![forbid(unsafe_code)]

mod addresses;
mod plan;

use std::time::Duration;

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Edit, PACKETS, Pick, PortId, Reason, Time};
use nicety_frame::Mac;

use addresses::Key;
pub use addresses::{Addresses, Learned};
pub use plan::Plan;

/// Ports of one switch at most.
pub const PORTS: usize = 1024;

/// How a switch is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Addresses that it can remember, rounded up to a power of two; some sets fill earlier. 16 bytes each.
    pub addresses: usize,
    /// How long an address that sends nothing is remembered: 300 s by IEEE 802.1Q-2018, table 8-6.
    pub ageing: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { addresses: 32_768, ageing: Duration::from_secs(300) }
    }
}

/// Why a port cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a switch has at most {PORTS} ports")
    }
}

impl std::error::Error for Full {}

/// The ports that are there, in order.
#[derive(Clone, Debug, Default)]
struct Members {
    present: Vec<bool>,
    list: Vec<PortId>,
}

/// One switch.
#[derive(Debug)]
pub struct Switch {
    addresses: Addresses,
    members: ArcSwap<Members>,
}

impl Switch {
    /// A switch without ports.
    pub fn new(limits: Limits) -> Self {
        Self { addresses: Addresses::new(limits.addresses, limits.ageing), members: ArcSwap::default() }
    }

    /// A port joins.
    pub fn join(&self, port: PortId) -> Result<(), Full> {
        if usize::from(port.0) >= PORTS {
            return Err(Full);
        }
        self.change(port, true);
        Ok(())
    }

    /// A port leaves; what was learned of it is forgotten.
    pub fn leave(&self, port: PortId) {
        self.change(port, false);
        self.addresses.forget(port);
    }

    fn change(&self, port: PortId, present: bool) {
        self.members.rcu(|old| {
            let mut new = Members::clone(old);
            let index = usize::from(port.0);
            if new.present.len() <= index {
                new.present.resize(index + 1, false);
            }
            new.present[index] = present;
            new.list = (0..new.present.len()).filter(|&i| new.present[i]).map(|i| PortId(i as u16)).collect();
            new
        });
    }

    /// The address table, to look at.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Decides for a whole batch. Learns its senders.
    pub fn forward(&self, batch: &Batch, now: Time, plan: &mut Plan) {
        let members = self.members.load();
        plan.begin(members.present.len());
        let mut ways = ArrayVec::<Option<Way>, PACKETS>::new();
        for packet in batch.packets() {
            // One pass that only touches the table's lines: the next pass finds them in the cache.
            let way = Way::of(batch.head(packet));
            if let Some(way) = way {
                self.addresses.prefetch(way.target);
                self.addresses.prefetch(way.source);
            }
            let _full_only_if_a_batch_were_longer_than_itself = ways.try_push(way);
        }
        let mut last = (None, Verdict::Drop(Reason::TooShort));
        for (index, way) in ways.iter().enumerate() {
            let pick = Pick { packet: index as u16, edit: Edit::Keep };
            // Frames come in trains: what was decided for the last one holds for the next.
            if *way != last.0 {
                let short = Verdict::Drop(Reason::TooShort);
                last = (*way, way.map_or(short, |way| self.decide(&members, batch.origin, way, now)));
            }
            match last.1 {
                Verdict::To(port) => plan.add(port, pick),
                Verdict::Flood => {
                    let mut reached = false;
                    for &port in members.list.iter().filter(|&&port| port != batch.origin) {
                        plan.add(port, pick);
                        reached = true;
                    }
                    if !reached {
                        plan.drop(pick.packet, Reason::NoReceiver);
                    }
                }
                Verdict::Drop(reason) => plan.drop(pick.packet, reason),
            }
        }
    }

    fn decide(&self, members: &Members, origin: PortId, way: Way, now: Time) -> Verdict {
        let Way { target, source } = way;
        if !source.is_multicast() {
            self.addresses.learn_key(source, origin, now);
        }
        if target.is_multicast() {
            // 01:80:c2:00:00:00 to 0f are for the next bridge and no further: IEEE 802.1Q-2018, table 8-1.
            let Mac(bytes) = target.address();
            let reserved = bytes[..5] == [0x01, 0x80, 0xc2, 0, 0] && bytes[5] < 0x10;
            return if reserved { Verdict::Drop(Reason::Policy) } else { Verdict::Flood };
        }
        match self.addresses.find_key(target, now) {
            Some(port) if port == origin => Verdict::Drop(Reason::SamePort),
            Some(port) if members.present.get(usize::from(port.0)) == Some(&true) => Verdict::To(port),
            _ => Verdict::Flood,
        }
    }
}

#[derive(Clone, Copy)]
enum Verdict {
    To(PortId),
    Flood,
    Drop(Reason),
}

/// From which address a frame comes, and to which it goes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Way {
    target: Key,
    source: Key,
}

impl Way {
    /// `None` of what is shorter than an Ethernet header.
    fn of(head: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *head.first_chunk::<14>()?;
        Some(Self { target: Key::new(Mac([a, b, c, d, e, f]), 0), source: Key::new(Mac([g, h, i, j, k, l]), 0) })
    }
}
