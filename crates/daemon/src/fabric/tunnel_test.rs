use nicety_adapter::Time;
use nicety_uplink::{Network, Place, Way};

use super::*;
use crate::fabric::around::Nobody;

#[test]
fn a_host_with_another_address_is_reached_there_once_its_guests_are_told_again() {
    let (vni, hop, mac) = (Vni::new(5010).unwrap(), Hop(0), Mac([2, 0, 0, 0, 0, 1]));
    let [old, new] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
    let hops = Hops::new(0x5eed);
    hops.set_networks(&[Network { vlan: Some(10), vni }]);
    let mut tunnel = Tunnel::new("tunnel".to_owned(), hops.clone());
    let mut carry_out = |actions: &[Action]| {
        for action in actions {
            assert_eq!(tunnel.carry_out(action.clone(), &Nobody), None);
        }
        tunnel.told_all();
    };
    let reached = |address| Action::Hop { hop, peer: Some(Peer { address, mtu: 1500 }) };
    let told = Action::Tell { vni, mac, hop };
    carry_out(&[reached(old), Action::Flood { vni, hop, is_on: true }, told.clone()]);
    let place = |hop| vec![Place { vni, mac, hop, is_told: true }];
    assert_eq!(hops.places(Time::ZERO), place(old));
    carry_out(&[reached(new)]);
    assert_eq!(hops.places(Time::ZERO), [], "what was told is behind an address");
    assert_eq!(hops.way(10, mac, Time::ZERO), Way::All(vni, vec![new]));
    carry_out(&[told]);
    assert_eq!(hops.places(Time::ZERO), place(new));
    assert_eq!(hops.way(10, mac, Time::ZERO), Way::Hop(vni, new));
}
