//! Mirrors: some ports' frames are copied to another port, up to a rate (docs/switch.md).
//!
//! The port that gets the copies is the mirror's alone: the switch decides nothing on it, and what comes from it is dropped. So a copy never
//! comes back into the switch. Copies of what a port sends are made after all receivers have the frames, and copies of what a port gets after
//! it has them. They hold no sender, and their bytes are charged to the port that gets them.

use std::sync::Arc;

use nicety_adapter::{Batch, Packet, Pick, Rate, Reason, Time};
use nicety_switch::{Plan, Slots};

use super::{Plane, Slot};
use crate::port::Port;

/// Most mirrors of a switch.
pub const MIRRORS_MAX: usize = 16;

const _: () = assert!(MIRRORS_MAX <= u16::BITS as usize);

/// A mirror.
#[derive(Clone, Debug)]
pub struct Mirror {
    /// The ports whose frames are copied. Those of a team are its members.
    pub sources: Vec<Mirrored>,
    /// The port that gets the copies. It must not be a source of any mirror, another mirror's port, or a member of a team.
    pub to: Arc<Port>,
    /// The most that is copied.
    pub rate: Rate,
}

/// A port whose frames are copied.
#[derive(Clone, Debug)]
pub struct Mirrored {
    /// The port.
    pub port: Arc<Port>,
    /// Frames that come from it into the switch.
    pub ingress: bool,
    /// Frames that the switch offers it.
    pub egress: bool,
}

/// The mirrors of one port's frames, a bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Sides {
    /// Tells the port from others that have its number at other times.
    tenure: u64,
    ingress: u16,
    egress: u16,
}

/// All mirrors of a switch. Replaced as a whole.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    list: Vec<Mirror>,
    /// The mirrors of each port, by its number.
    sides: Vec<Sides>,
}

impl Mirrors {
    fn new(list: Vec<Mirror>) -> Self {
        let mut sides: Vec<Sides> = Vec::new();
        for (mirror, bit) in list.iter().zip((0..).map(|index| 1u16.wrapping_shl(index))) {
            for Mirrored { port, ingress, egress } in &mirror.sources {
                let index = usize::from(port.id().0);
                if sides.len() <= index {
                    sides.resize(index + 1, Sides::default());
                }
                let side = &mut sides[index];
                side.tenure = port.tenure();
                side.ingress |= if *ingress { bit } else { 0 };
                side.egress |= if *egress { bit } else { 0 };
            }
        }
        Self { list, sides }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The ports that get copies of a port's frames.
    fn of(&self, port: &Port, side: impl Fn(&Sides) -> u16) -> impl Iterator<Item = &Arc<Port>> {
        let sides = self.sides.get(usize::from(port.id().0)).filter(|sides| sides.tenure == port.tenure());
        let bits = sides.map_or(0, side);
        let chosen = self.list.iter().enumerate().filter(move |(index, _)| bits >> index & 1 != 0);
        chosen.map(|(_, mirror)| &mirror.to)
    }

    fn has_port(&self, port: &Arc<Port>) -> bool {
        self.list.iter().any(|mirror| Arc::ptr_eq(&mirror.to, port))
    }
}

impl Plane {
    /// Replaces all mirrors. If there are more than [`MIRRORS_MAX`], only the first ones count. A port that no longer gets copies belongs
    /// to the networks again. The change loses and delays no frame of a mirrored port.
    pub fn set_mirrors(&self, mut list: Vec<Mirror>) {
        list.truncate(MIRRORS_MAX);
        let old = self.mirrors.load_full();
        for mirror in &list {
            let is_new = mirror.to.set_copies(Some(mirror.rate));
            if is_new && self.port(mirror.to.id()).is_some_and(|joined| Arc::ptr_eq(&joined, &mirror.to)) {
                self.move_aside(&mirror.to);
            }
        }
        let new = Arc::new(Mirrors::new(list));
        self.mirrors.store(Arc::clone(&new));
        self.note_watched();
        for Mirror { to, .. } in old.list.iter().filter(|mirror| !new.has_port(&mirror.to)) {
            to.set_copies(None);
            if self.port(to.id()).is_some_and(|joined| Arc::ptr_eq(&joined, to)) {
                self.move_aside(to);
            }
        }
    }

    /// Adds the mirrors of what a port sends to a batch's receivers. Returns the bytes of the copies.
    pub(crate) fn copy_ingress(&self, port: &Port, batch: &Batch, plan: &mut Plan, slots: &Slots<Slot>) -> u64 {
        let mirrors = self.mirrors.load();
        let mut copied = 0;
        for to in mirrors.of(port, |sides| sides.ingress) {
            // Its number may mean another port in this plan.
            if !slots.get(to.id()).and_then(Slot::port).is_some_and(|port| Arc::ptr_eq(port, to)) {
                continue;
            }
            let packets = (0..batch.len() as u16).filter(|packet| is_copied(plan, *packet));
            let packets = packets.fold(0u64, |all, packet| all | 1u64.wrapping_shl(packet.into()));
            plan.copy_to(to.id(), packets);
            copied += plan
                .picks(to.id())
                .iter()
                .filter_map(|pick| batch.packet(pick.packet))
                .map(Packet::wire_bytes)
                .sum::<u64>();
        }
        copied
    }

    /// Copies frames that a port was offered.
    pub(crate) fn copy_egress(&self, port: &Port, batch: &Batch, picks: &[Pick], now: Time) {
        let mirrors = self.mirrors.load();
        mirrors.of(port, |sides| sides.egress).for_each(|to| to.offer_copies(batch, picks, now));
    }
}

/// Whether a packet that came in is copied. A copy that came in by a team's other link is none of its frames, and what is shorter than an
/// Ethernet header is no frame.
fn is_copied(plan: &Plan, packet: u16) -> bool {
    let dropped = plan.drops().iter().find(|(dropped, _)| *dropped == packet);
    !dropped.is_some_and(|(_, reason)| {
        matches!(reason, Reason::UnusedLink | Reason::Blocked | Reason::Looped | Reason::TooShort | Reason::MirrorPort)
    })
}
