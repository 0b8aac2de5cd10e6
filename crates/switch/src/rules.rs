//! A port's policy in the form that the switch applies, with its per-port state.
//!
//! One worker forwards a port's frames, and only that worker writes here. The values are atomics because another thread may replace
//! the policy while the worker reads it.

use std::sync::atomic::{AtomicU64, Ordering};

use nicety_adapter::{Edit, Reason, Time};
use nicety_frame::Mac;
use nicety_frame::ethernet::{HEADER_LEN, ethertype};
use nicety_frame::vlan::{self, Tag, Tci};

use crate::policy::{ADDRESS_LIMIT_MAX, Guards, Policy, Private, Vlan, VlanId, VlanSet};

/// The first filtering identifier of service VLANs. Identifiers of other VLANs start at 0, which is the flat network's.
pub(crate) const SERVICE: u16 = 4096;

/// A frame's VLAN, and the edits for an untagged and a tagged receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameVlan {
    /// The filtering identifier: addresses are learned, and frames flooded, within it.
    pub fid: u16,
    /// `None` if another tag follows: the next switch would take it for the VLAN's.
    untagged: Option<Edit>,
    tagged: Edit,
    /// The frame came in by an uplink of the flat network. Other uplinks of that network get it there.
    pub comes_in: bool,
}

impl FrameVlan {
    const fn new(fid: u16, untagged: Option<Edit>, tagged: Edit) -> Self {
        Self { fid, untagged, tagged, comes_in: false }
    }

    /// Of a frame that brings these tags: its tag beyond the port has this priority, and no other mark.
    #[cold]
    #[inline(never)]
    fn set_priority(&mut self, priority: u8, tags: Tags) {
        let with = |tag: Tag| Tag { tci: Tci::new(priority, false, tag.tci.id()), ..tag };
        self.tagged = match (self.tagged, tags.outer) {
            (Edit::Tag(tag), _) => Edit::Tag(with(tag)),
            (Edit::Retag(tag), _) => Edit::Retag(with(tag)),
            (Edit::Keep, Some(tag)) if tag != with(tag) => Edit::Retag(with(tag)),
            (kept, _) => kept,
        };
    }

    /// The edit for a receiver that gets the frame with its tag.
    pub(crate) fn tagged(&self) -> Edit {
        self.tagged
    }
}

/// The flat network.
pub(crate) const FLAT: FrameVlan = FrameVlan::new(0, Some(Edit::Keep), Edit::Keep);

/// The tags that classify a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tags {
    pub outer: Option<Tag>,
    /// The type field behind the outer tag; 0 without one.
    pub behind: u16,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Rules {
    pub policy: Policy,
    /// Its VLANs: those of the policy, or none while it is blocked.
    pub vlan: Vlan,
    senders: Box<[Sender]>,
    pub broadcast: Option<Meter>,
    pub multicast: Option<Meter>,
    pub unknown: Option<Meter>,
    /// Whether to check more than addresses and the outer tag.
    pub inspects: bool,
    /// The longest frame without a tag, in bytes.
    pub untagged_max: u32,
    /// The VLAN of frames without a tag.
    untagged: Result<FrameVlan, Reason>,
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
        let limit = policy.address_limit.map_or(0, |limit| limit.clamp(1, ADDRESS_LIMIT_MAX));
        let guards = policy.guards;
        let guarded = guards != Guards::default();
        let none = Vlan::Trunk { allowed: VlanSet::default(), native: None };
        let mut this = Self {
            vlan: if policy.blocked { none } else { policy.vlan.clone() },
            senders: (0..limit).map(|_| Sender::default()).collect(),
            broadcast: policy.storm.broadcast.map(Meter::new),
            multicast: policy.storm.multicast.map(Meter::new),
            unknown: policy.storm.unknown.map(Meter::new),
            inspects: (guarded || policy.mtu.is_some()) && !policy.blocked,
            untagged_max: policy.mtu.map_or(u32::MAX, |mtu| u32::from(mtu) + HEADER_LEN as u32),
            untagged: Err(Reason::Vlan),
            policy,
        };
        this.untagged = this.find(Tags { outer: None, behind: 0 });
        this
    }

    /// The VLAN of a frame with these tags; or the reason why it is refused.
    #[inline]
    pub fn classify(&self, tags: Tags) -> Result<FrameVlan, Reason> {
        if tags.outer.is_none() { self.untagged } else { self.find(tags) }
    }

    #[inline(never)]
    fn find(&self, tags: Tags) -> Result<FrameVlan, Reason> {
        if self.policy.blocked {
            return Err(Reason::Blocked);
        }
        let mut lane = self.lane(tags)?;
        let priority = self.policy.priority;
        // The port's word counts for frames that bring no tag, and for all if its guest's does not.
        let is_marked = match tags.outer {
            None => priority != 0,
            Some(tag) => self.policy.regenerates && (priority != 0 || tag.tci != Tci(tag.tci.id())),
        };
        if is_marked && !self.is_flat() {
            lane.set_priority(priority, tags);
        }
        Ok(lane)
    }

    #[inline]
    fn lane(&self, tags: Tags) -> Result<FrameVlan, Reason> {
        match &self.vlan {
            Vlan::Flat => Ok(FLAT),
            Vlan::Access(id) => customer(tags, Some(*id), |_| false),
            Vlan::Trunk { allowed, native } => match tags.outer {
                Some(tag) if is_service(tag.tpid) => {
                    let id = VlanId::new(tag.tci.id()).filter(|id| allowed.contains(*id)).ok_or(Reason::Vlan)?;
                    // A customer's tags are passed on to the customer; another provider's are not.
                    let untagged = (!is_service(tags.behind)).then_some(Edit::Untag);
                    Ok(FrameVlan::new(SERVICE + id.number(), untagged, Edit::Keep))
                }
                _ => customer(tags, *native, |id| allowed.contains(id) || *native == Some(id)),
            },
            Vlan::Service(id) => match tags.outer {
                // Another provider's frame: a third tag is more than most parsers expect.
                Some(tag) if is_service(tag.tpid) => Err(Reason::Vlan),
                inner => {
                    let inner = inner.map_or(Tci(0), |tag| tag.tci);
                    let tci = Tci::new(inner.priority(), inner.drop_eligible(), id.number());
                    let tagged = Edit::Tag(Tag::service(tci));
                    Ok(FrameVlan::new(SERVICE + id.number(), Some(Edit::Keep), tagged))
                }
            },
        }
    }

    /// The edit of a frame of this VLAN that leaves by this port; `None` if the port is not in the VLAN, or the frame needs its tag.
    #[inline]
    pub fn leaves(&self, lane: &FrameVlan) -> Option<Edit> {
        let fid = lane.fid;
        match &self.vlan {
            Vlan::Flat => (fid == 0).then_some(Edit::Keep),
            Vlan::Access(id) => lane.untagged.filter(|_| fid == id.number()),
            Vlan::Service(id) => lane.untagged.filter(|_| fid == SERVICE + id.number()),
            Vlan::Trunk { native, .. } if native.is_some_and(|id| id.number() == fid) => {
                Some(lane.untagged.unwrap_or(lane.tagged))
            }
            Vlan::Trunk { allowed, .. } => {
                VlanId::new(fid % SERVICE).is_some_and(|id| allowed.contains(id)).then_some(lane.tagged)
            }
        }
    }

    /// Whether this is a port of the flat network.
    #[inline]
    pub fn is_flat(&self) -> bool {
        matches!(self.vlan, Vlan::Flat)
    }

    fn has(&self, address: Mac) -> bool {
        self.policy.addresses.contains(&address)
    }

    /// Whether the port may not send from every address.
    #[inline]
    pub fn limits_senders(&self) -> bool {
        !self.policy.forged_transmits || !self.senders.is_empty()
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

    /// Whether an address is, or becomes, one of the permitted number of senders.
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

fn is_service(tpid: u16) -> bool {
    tpid == ethertype::SERVICE_VLAN
}

/// The VLAN of a frame of a customer's network: `usual` if it is untagged or priority-tagged.
#[inline]
fn customer(tags: Tags, usual: Option<VlanId>, allowed: impl Fn(VlanId) -> bool) -> Result<FrameVlan, Reason> {
    let usual = || usual.map(VlanId::number).ok_or(Reason::Vlan);
    let Some(Tag { tpid, tci }) = tags.outer else {
        let fid = usual()?;
        return Ok(FrameVlan::new(fid, Some(Edit::Keep), Edit::Tag(Tag::customer(Tci(fid)))));
    };
    let is_double = vlan::is_tpid(tags.behind);
    if is_service(tpid) {
        return Err(Reason::Vlan);
    }
    if tci.id() != 0 {
        let id = VlanId::new(tci.id()).filter(|id| allowed(*id)).ok_or(Reason::Vlan)?;
        let untagged = (!is_double).then_some(Edit::Untag);
        return Ok(FrameVlan::new(id.number(), untagged, Edit::Keep));
    }
    // Without its priority tag the frame would be in the next tag's VLAN.
    if is_double {
        return Err(Reason::Vlan);
    }
    let fid = usual()?;
    let tagged = Edit::Retag(Tag::customer(Tci::new(tci.priority(), tci.drop_eligible(), fid)));
    Ok(FrameVlan::new(fid, Some(Edit::Untag), tagged))
}

/// Whether ports with these parts of a private VLAN reach each other, if neither is [`Private::Vepa`].
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

    /// Whether this many more frames may pass. If so, counts them, unless `dry`.
    pub fn take(&self, frames: u32, now: Time, dry: bool) -> bool {
        let due = self.due.load(Ordering::Relaxed).max(now.0);
        let next = due.saturating_add(self.interval_ns.saturating_mul(frames.into()));
        let passes = due - now.0 < self.depth_ns;
        if passes && !dry {
            self.due.store(next, Ordering::Relaxed);
        }
        passes
    }
}
