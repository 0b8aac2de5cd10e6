//! A port's policy as the switch applies it, with the state that it keeps per port.
//!
//! One worker forwards a port's frames, and only that worker writes here. The values are atomics because another thread may replace
//! the policy while the worker reads it.

use std::sync::atomic::{AtomicU64, Ordering};

use nicety_adapter::{Edit, Reason, Time};
use nicety_frame::Mac;
use nicety_frame::vlan::{Tag, Tci};

use crate::policy::{ADDRESS_LIMIT_MOST, Policy, Private, Vlan, VlanId};

/// The first filtering identifier of service VLANs. The others start at 0, the flat network's.
const SERVICE: u16 = 4096;

/// A frame's VLAN, and the edits for an untagged and a tagged receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    /// The filtering identifier: addresses are learned, and frames flooded, within it.
    pub fid: u16,
    untagged: Edit,
    tagged: Edit,
}

/// The flat network.
pub(crate) const FLAT: Lane = Lane { fid: 0, untagged: Edit::Keep, tagged: Edit::Keep };

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Rules {
    pub policy: Policy,
    senders: Box<[Sender]>,
    pub broadcast: Option<Meter>,
    pub multicast: Option<Meter>,
    pub unknown: Option<Meter>,
    /// Whether to check more than addresses and the outer tag.
    pub inspects: bool,
}

/// An address that has sent.
#[derive(Debug, Default)]
struct Sender {
    /// Bits 0–47 the address, 63 set when in use.
    address: AtomicU64,
    /// When it last sent.
    last: AtomicU64,
}

impl Rules {
    pub fn new(policy: Policy) -> Self {
        let limit = policy.address_limit.map_or(0, |limit| limit.clamp(1, ADDRESS_LIMIT_MOST));
        let guards = policy.guards;
        let guarded = guards.bpdu || guards.dhcp_server || guards.arp || guards.router_advertisement;
        Self {
            senders: (0..limit).map(|_| Sender::default()).collect(),
            broadcast: policy.storm.broadcast.map(Meter::new),
            multicast: policy.storm.multicast.map(Meter::new),
            unknown: policy.storm.unknown.map(Meter::new),
            inspects: guarded || policy.mtu.is_some(),
            policy,
        }
    }

    /// The VLAN of a frame with this outer tag; or why it is refused.
    #[inline]
    pub fn classify(&self, outer: Option<Tag>, priority: impl Fn() -> Tci) -> Result<Lane, Reason> {
        match &self.policy.vlan {
            Vlan::Flat => Ok(FLAT),
            Vlan::Access(id) => customer(outer, Some(*id), |_| false),
            Vlan::Trunk { allowed, native } => match outer {
                Some(tag) if is_service(tag) => {
                    let id = VlanId::new(tag.tci.id()).filter(|id| allowed.contains(*id)).ok_or(Reason::Vlan)?;
                    Ok(Lane { fid: SERVICE + id.number(), untagged: Edit::Untag, tagged: Edit::Keep })
                }
                _ => customer(outer, *native, |id| allowed.contains(id) || *native == Some(id)),
            },
            Vlan::Service(id) => match outer {
                // Another provider's frame: a third tag is more than most parsers expect.
                Some(tag) if is_service(tag) => Err(Reason::Vlan),
                _ => {
                    let inner = priority();
                    let tci = Tci::new(inner.priority(), inner.drop_eligible(), id.number());
                    let tagged = Edit::Tag(Tag::service(tci));
                    Ok(Lane { fid: SERVICE + id.number(), untagged: Edit::Keep, tagged })
                }
            },
        }
    }

    /// How a frame of this VLAN leaves by this port; `None` if the port is not in the VLAN.
    #[inline]
    pub fn leaves(&self, lane: &Lane) -> Option<Edit> {
        let fid = lane.fid;
        match &self.policy.vlan {
            Vlan::Flat => (fid == 0).then_some(Edit::Keep),
            Vlan::Access(id) => (fid == id.number()).then_some(lane.untagged),
            Vlan::Service(id) => (fid == SERVICE + id.number()).then_some(lane.untagged),
            Vlan::Trunk { native, .. } if native.is_some_and(|id| id.number() == fid) => Some(lane.untagged),
            Vlan::Trunk { allowed, .. } => {
                VlanId::new(fid % SERVICE).is_some_and(|id| allowed.contains(id)).then_some(lane.tagged)
            }
        }
    }

    fn has(&self, address: Mac) -> bool {
        self.policy.addresses.contains(&address)
    }

    /// Whether the port may send from this address. `dry`: do not count the address.
    #[inline]
    pub fn sends(&self, source: Mac, now: Time, ageing_ns: u64, dry: bool) -> Result<(), Reason> {
        if !self.policy.forged_transmits && !self.has(source) {
            return Err(Reason::Forged);
        }
        if self.senders.is_empty() || self.counts(source, now, ageing_ns, dry) {
            Ok(())
        } else {
            Err(Reason::AddressLimit)
        }
    }

    /// Whether an address is, or becomes, one of the allowed number of senders.
    fn counts(&self, source: Mac, now: Time, ageing_ns: u64, dry: bool) -> bool {
        let word = source.to_u64() | 1 << 63;
        let known = |sender: &&Sender| sender.address.load(Ordering::Relaxed) == word;
        let free = |sender: &&Sender| {
            let silent = now.0.saturating_sub(sender.last.load(Ordering::Relaxed));
            sender.address.load(Ordering::Relaxed) == 0 || silent > ageing_ns
        };
        let found = self.senders.iter().find(known).or_else(|| self.senders.iter().find(free));
        if let (Some(sender), false) = (found, dry) {
            sender.last.store(now.0, Ordering::Relaxed);
            sender.address.store(word, Ordering::Relaxed);
        }
        found.is_some()
    }

    /// Whether frames for this address reach the guest.
    #[inline]
    pub fn receives(&self, target: Mac) -> bool {
        self.policy.mac_changes || target.is_multicast() || self.has(target)
    }
}

fn is_service(tag: Tag) -> bool {
    tag.tpid == Tag::service(Tci(0)).tpid
}

/// The VLAN of a frame of a customer's network: `usual` if it is untagged or priority-tagged.
#[inline]
fn customer(outer: Option<Tag>, usual: Option<VlanId>, allowed: impl Fn(VlanId) -> bool) -> Result<Lane, Reason> {
    match outer {
        Some(tag) if is_service(tag) => Err(Reason::Vlan),
        Some(tag) if tag.tci.id() != 0 => {
            let id = VlanId::new(tag.tci.id()).filter(|id| allowed(*id)).ok_or(Reason::Vlan)?;
            Ok(Lane { fid: id.number(), untagged: Edit::Untag, tagged: Edit::Keep })
        }
        prioritised => {
            let id = usual.ok_or(Reason::Vlan)?.number();
            let (untagged, tagged) = match prioritised {
                None => (Edit::Keep, Edit::Tag(Tag::customer(Tci::new(0, false, id)))),
                Some(Tag { tci, .. }) => {
                    let tag = Tag::customer(Tci::new(tci.priority(), tci.drop_eligible(), id));
                    (Edit::Untag, Edit::Retag(tag))
                }
            };
            Ok(Lane { fid: id, untagged, tagged })
        }
    }
}

/// Whether ports with these parts of a private VLAN reach each other.
pub(crate) fn reach(one: Private, other: Private) -> bool {
    match (one, other) {
        (Private::Promiscuous, _) | (_, Private::Promiscuous) => true,
        (Private::Community(one), Private::Community(other)) => one == other,
        _ => false,
    }
}

/// Limits frames per second, with a burst of a tenth of a second: the generic cell rate algorithm (ITU-T I.371, annex A).
#[derive(Debug)]
pub(crate) struct Meter {
    interval_ns: u64,
    depth_ns: u64,
    /// When the next frame would be due.
    due: AtomicU64,
}

impl Meter {
    fn new(frames_per_second: u32) -> Self {
        let interval_ns = 1_000_000_000 / u64::from(frames_per_second.max(1));
        Self { interval_ns, depth_ns: 100_000_000.max(interval_ns), due: AtomicU64::new(0) }
    }

    /// Whether this many more frames may pass; if so, counts them, unless `dry`.
    pub fn take(&self, frames: u32, now: Time, dry: bool) -> bool {
        let due = self.due.load(Ordering::Relaxed).max(now.0);
        let next = due.saturating_add(self.interval_ns.saturating_mul(frames.into()));
        let goes = due - now.0 < self.depth_ns;
        if goes && !dry {
            self.due.store(next, Ordering::Relaxed);
        }
        goes
    }
}
