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
use nicety_adapter::{Batch, Edit, Pick, PortId, Reason, Time};
use nicety_frame::Mac;

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
        for packet in batch.packets() {
            // One pass that only touches the table's lines: the next pass finds them in the cache.
            if let Some((target, source)) = addresses_of(batch.head(packet)) {
                self.addresses.prefetch(target, 0);
                self.addresses.prefetch(source, 0);
            }
        }
        for (index, packet) in batch.packets().iter().enumerate() {
            let pick = Pick { packet: index as u16, edit: Edit::Keep };
            match self.decide(&members, batch.origin, batch.head(packet), now) {
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

    fn decide(&self, members: &Members, origin: PortId, head: &[u8], now: Time) -> Verdict {
        let Some((target, source)) = addresses_of(head) else {
            return Verdict::Drop(Reason::TooShort);
        };
        if !source.is_multicast() {
            self.addresses.learn(source, 0, origin, now);
        }
        if target.is_multicast() {
            // 01:80:c2:00:00:00 to 0f are for the next bridge and no further: IEEE 802.1Q-2018, table 8-1.
            let reserved = target.0[..5] == [0x01, 0x80, 0xc2, 0, 0] && target.0[5] < 0x10;
            return if reserved { Verdict::Drop(Reason::Policy) } else { Verdict::Flood };
        }
        match self.addresses.find(target, 0, now) {
            Some(port) if port == origin => Verdict::Drop(Reason::SamePort),
            Some(port) if members.present.get(usize::from(port.0)) == Some(&true) => Verdict::To(port),
            _ => Verdict::Flood,
        }
    }
}

enum Verdict {
    To(PortId),
    Flood,
    Drop(Reason),
}

/// Target and source address of a frame.
fn addresses_of(head: &[u8]) -> Option<(Mac, Mac)> {
    let bytes: &[u8; 12] = head.first_chunk()?;
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
    (head.len() >= 14).then_some((Mac([a, b, c, d, e, f]), Mac([g, h, i, j, k, l])))
}
