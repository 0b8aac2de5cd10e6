//! Announcements of addresses that are reached by another link from now on: switches beyond it learn them there, without waiting for the
//! guests to send.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use nicety_adapter::Time;
use nicety_frame::vlan::{Tag, Tci};
use nicety_frame::{Mac, arp, ethernet};
use nicety_switch::{Vlan, VlanId};

use crate::plane::Plane;

use super::{MEMBERS_MOST, Team};

/// Most addresses that are announced after one change.
const MOVED_MOST: usize = 4096;

/// A reverse ARP request whose target is the sender itself (RFC 903): it needs no answer.
pub(crate) fn frame(address: Mac, tag: Option<Tag>) -> Option<Vec<u8>> {
    let mut frame = vec![0; ethernet::FRAME_LEN_MIN];
    let ethertype = ethernet::ethertype::RARP;
    let header = ethernet::Header { destination: Mac::BROADCAST, source: address, ethertype };
    let (operation, unset) = (arp::operation::REVERSE_REQUEST, Ipv4Addr::UNSPECIFIED);
    let packet = arp::Packet { operation, sender_mac: address, sender: unset, target_mac: address, target: unset };
    let len = header.write(&mut frame).ok()?;
    packet.write(frame.get_mut(len..)?).ok()?;
    if let Some(tag) = tag {
        frame.splice(12..12, tag.to_bytes());
    }
    Some(frame)
}

/// How a frame of a VLAN leaves by a port: `None` if it does not.
fn tag(vlan: &Vlan, fid: u16) -> Option<Option<Tag>> {
    let is = |id: &VlanId| id.number() == fid;
    match vlan {
        Vlan::Flat => (fid == 0).then_some(None),
        Vlan::Access(id) => is(id).then_some(None),
        Vlan::Trunk { native: Some(native), .. } if is(native) => Some(None),
        Vlan::Trunk { allowed, .. } => {
            allowed.iter().any(|id| is(&id)).then(|| Some(Tag::customer(Tci::new(0, false, fid))))
        }
        Vlan::Service(_) => None,
    }
}

impl Plane {
    /// Announces all addresses on this side of a team by a member that has taken over, if one has.
    pub(crate) fn announce_moved(&self, team: &Team, now: Time) {
        let Some(member) = team.steering.take_moved() else { return };
        let vlan = self.switch().policy(team.id).vlan;
        let here = self.switch().addresses().iter(now).filter(|learned| learned.port != team.id);
        let mut frames: [VecDeque<Vec<u8>>; MEMBERS_MOST] = Default::default();
        let choice = team.steering.choice();
        for learned in here.take(MOVED_MOST) {
            let Some(frame) = tag(&vlan, learned.fid).and_then(|tag| frame(learned.address, tag)) else { continue };
            // Where the neighbours know nothing of the team, each station is reached by one member.
            let its = team.steering.floods().and_then(|_| {
                let hash = choice.hash().of_station(learned.port, learned.address);
                team.steering.member(choice, hash, learned.port)
            });
            if let Some(frames) = frames.get_mut(its.unwrap_or(member)) {
                frames.push_back(frame);
            }
        }
        for (place, frames) in frames.into_iter().enumerate().filter(|(_, frames)| !frames.is_empty()) {
            if let Some(member) = team.member(place) {
                member.announce_all(frames);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_has_the_tag_that_its_vlans_frames_have_there() {
        let id = |number| VlanId::new(number).unwrap();
        let tagged = |vlan: &Vlan, fid| tag(vlan, fid).map(|tag| tag.map(Tag::to_bytes));
        assert_eq!([0, 7].map(|fid| tagged(&Vlan::Flat, fid)), [Some(None), None]);
        assert_eq!([0, 7, 8].map(|fid| tagged(&Vlan::Access(id(7)), fid)), [None, Some(None), None]);
        let trunk = Vlan::Trunk { allowed: [id(7), id(8)].into_iter().collect(), native: Some(id(8)) };
        assert_eq!([7, 8, 9].map(|fid| tagged(&trunk, fid)), [Some(Some([0x81, 0, 0, 7])), Some(None), None]);
        let address = Mac([2, 0, 0, 0, 0, 1]);
        let announced = frame(address, tag(&trunk, 7).unwrap()).unwrap();
        assert_eq!((announced.len(), &announced[12..18]), (64, &[0x81, 0, 0, 7, 0x80, 0x35][..]));
    }
}
