//! Announcements of addresses that are reached by another link of a team from now on: switches beyond it learn them there, without waiting
//! for the guests to send.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use nicety_adapter::{PortId, Time};
use nicety_frame::Mac;
use nicety_frame::vlan::{Tag, Tci};
use nicety_switch::{Vlan, VlanId};

use super::Plane;
use crate::announced;
use crate::group::Group;
use crate::port::Port;
use crate::team::MEMBERS_MAX;

/// Most addresses that are announced after one change.
const MOVED_MAX: usize = 4096;

/// The tag with which a frame of a VLAN leaves by a port: `None` if it does not.
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
    /// Announces to the switch, as the guest would, that these stations are behind the guest's port from now on. Each has the identifier of
    /// its network. The port's IP addresses are announced with the port's own address.
    pub fn announce_port(&self, port: &Port, stations: &[(u16, Mac)]) {
        let policy = self.switch().policy(port.id());
        let own = policy.addresses.first().copied();
        let frames = stations.iter().filter_map(|(fid, address)| Some((tag(&policy.vlan, *fid)?, *address)));
        let frames = frames.flat_map(|(tag, address)| {
            let ips = policy.ip.iter().filter(move |_| own == Some(address));
            let station = announced::of_station(address, tag).into_iter();
            station.chain(ips.filter_map(move |ip| announced::of_ip(address, *ip, tag)))
        });
        port.announce_all(frames.take(MOVED_MAX).collect());
    }

    /// Announces all addresses on this side of a team by a member that has taken over, if one has.
    pub(crate) fn announce_moved(&self, team: &Group, now: Time) {
        let Some(steering) = team.steering() else { return };
        let Some(member) = steering.take_moved() else { return };
        let vlan = self.switch().policy(team.id()).vlan;
        let here = self.switch().addresses().iter(now).filter(|learned| learned.port != team.id());
        let mut frames: [VecDeque<Vec<u8>>; MEMBERS_MAX] = Default::default();
        let choice = steering.choice();
        let mut bound: BTreeMap<PortId, (Option<Mac>, Vec<IpAddr>)> = BTreeMap::new();
        for learned in here.take(MOVED_MAX) {
            let Some(tag) = tag(&vlan, learned.fid) else { continue };
            let (own, ips) = bound.entry(learned.port).or_insert_with(|| {
                let policy = self.switch().policy(learned.port);
                (policy.addresses.first().copied(), policy.ip)
            });
            // Of several addresses of one port nobody knows whose an IP address is.
            let ips = ips.iter().filter(|_| *own == Some(learned.address)).copied();
            // Neighbours that know nothing of the team reach each station by one member.
            let its = steering.floods().and_then(|_| {
                let hash = choice.hash().of_station(learned.port, learned.address);
                steering.member(choice, hash, learned.port)
            });
            if let Some(frames) = frames.get_mut(its.unwrap_or(member)) {
                frames.extend(announced::of_station(learned.address, tag));
                frames.extend(ips.filter_map(|ip| announced::of_ip(learned.address, ip, tag)));
            }
        }
        for (place, frames) in frames.into_iter().enumerate().filter(|(_, frames)| !frames.is_empty()) {
            if let Some(member) = team.at(place) {
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
        let announced = announced::of_station(address, tag(&trunk, 7).unwrap()).unwrap();
        assert_eq!((announced.len(), &announced[12..18]), (64, &[0x81, 0, 0, 7, 0x80, 0x35][..]));
    }
}
