//! VLANs that leave by uplinks of the flat network, with their tags: those of guests' ports that no other uplink has. `ip link set DEV vf N
//! vlan ID` tags a function's frames on the card's link, whatever else uses the link.
//!
//! A frame that comes in by such an uplink with such a tag belongs to two networks: to the ports of its VLAN, and, with its tag, to the
//! flat network, whose guests may have VLANs of their own. Frames of guests' ports in the flat network never reach a VLAN's ports.

use nicety_adapter::PortId;

use crate::Members;
use crate::policy::{Policy, Vlan, VlanSet};
use crate::rules::{FrameVlan, Rules, SERVICE, Tags};

/// Filtering identifiers: customers' VLANs, and service VLANs.
const IDS: usize = 2 * SERVICE as usize;

/// A set of filtering identifiers.
#[derive(Clone, PartialEq, Eq)]
struct Ids(Box<[u64; IDS / 64]>);

impl Ids {
    fn none() -> Self {
        Self(Box::new([0; IDS / 64]))
    }

    fn contains(&self, fid: u16) -> bool {
        self.0.get(usize::from(fid / 64)).is_some_and(|word| word >> (fid % 64) & 1 != 0)
    }

    fn add(&mut self, fid: u16) {
        if let Some(word) = self.0.get_mut(usize::from(fid / 64)) {
            *word |= 1 << (fid % 64);
        }
    }

    /// Adds a port's networks.
    fn add_all(&mut self, vlan: &Vlan) {
        match vlan {
            Vlan::Flat => {}
            Vlan::Access(id) => self.add(id.number()),
            Vlan::Service(id) => self.add(SERVICE + id.number()),
            Vlan::Trunk { allowed, native } => {
                for id in allowed.iter().chain(*native) {
                    self.add(id.number());
                    self.add(SERVICE + id.number());
                }
            }
        }
    }

    fn without(&self, others: &Self) -> Self {
        let mut left = self.clone();
        left.0.iter_mut().zip(others.0.iter()).for_each(|(word, other)| *word &= !other);
        left
    }
}

/// The VLANs, and the rules by which frames with their tags come in.
#[derive(Clone)]
pub(crate) struct Outward {
    ids: Ids,
    rules: std::sync::Arc<Rules>,
}

impl std::fmt::Debug for Outward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outward")
    }
}

impl Outward {
    /// `None` if no uplink of the flat network carries any VLAN.
    pub fn of(members: &Members) -> Option<Self> {
        let (mut guests, mut uplinks) = (Ids::none(), Ids::none());
        let mut has_flat_uplink = false;
        for &port in &members.list {
            let rules = members.rules(port).filter(|rules| !rules.is_flat());
            match (rules, members.is_uplink(port)) {
                (None, is_uplink) => has_flat_uplink |= is_uplink,
                (Some(rules), false) => guests.add_all(&rules.vlan),
                (Some(rules), true) if rules.policy.is_service => {}
                (Some(rules), true) => uplinks.add_all(&rules.vlan),
            }
        }
        let ids = guests.without(&uplinks);
        if !has_flat_uplink || ids == Ids::none() {
            return None;
        }
        let vlan = Vlan::Trunk { allowed: VlanSet::all(), native: None };
        Some(Self { ids, rules: std::sync::Arc::new(Rules::new(Policy { vlan, ..Policy::default() })) })
    }

    /// Whether uplinks of the flat network carry it.
    pub fn carries(&self, fid: u16) -> bool {
        self.ids.contains(fid)
    }

    /// The VLAN of a frame that comes in by an uplink of the flat network with these tags.
    #[cold]
    #[inline(never)]
    pub fn classify(&self, tags: Tags) -> Option<FrameVlan> {
        let mut lane = self.rules.classify(tags).ok().filter(|lane| self.carries(lane.fid))?;
        lane.comes_in = true;
        Some(lane)
    }
}

impl Members {
    /// The VLANs beside the flat network that frames of this port may belong to, if it is an uplink that carries some.
    #[inline]
    pub(crate) fn outward(&self, port: PortId) -> Option<&Outward> {
        let outward = self.outward.as_ref()?;
        (self.is_uplink(port) && self.rules(port).is_none_or(Rules::is_flat)).then_some(outward)
    }
}
