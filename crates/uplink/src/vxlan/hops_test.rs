use std::time::Duration;

use super::*;

const SEED: u64 = 0x1234_5678_9abc_def1;

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn mac(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    Mac([2, 0, a, b, c, d])
}

fn at(second: u64) -> Time {
    Time::ZERO.after(Duration::from_secs(second))
}

fn hop(last: u8) -> Hop {
    Hop { address: ip(last), networks: None }
}

fn of(hops: &Hops, number: u32, address: u32, now: Time) -> Option<IpAddr> {
    let mut table = hops.lock();
    let number = table.place_of(vni(number), mac(address), now)?;
    table.hop(number).map(|hop| hop.address)
}

fn learn(hops: &Hops, number: u32, address: u32, last: u8, now: Time) {
    let mut table = hops.lock();
    let hop = table.number(ip(last)).unwrap();
    table.learn(vni(number), mac(address), hop, now);
}

#[test]
fn an_address_is_behind_the_hop_that_sent_from_it_last_and_only_in_its_network() {
    let hops = Hops::new(SEED);
    hops.set(&[hop(2), hop(3)]);
    learn(&hops, 10, 1, 2, at(1));
    assert_eq!(of(&hops, 10, 1, at(2)), Some(ip(2)));
    assert_eq!(of(&hops, 11, 1, at(2)), None, "another network");
    learn(&hops, 10, 1, 3, at(3));
    assert_eq!(of(&hops, 10, 1, at(3)), Some(ip(3)), "it has moved");
}

#[test]
fn a_learned_address_is_forgotten_after_five_silent_minutes_and_a_told_one_never() {
    let hops = Hops::new(SEED);
    hops.set(&[hop(2)]);
    learn(&hops, 10, 1, 2, at(0));
    hops.tell(vni(10), mac(2), ip(2)).unwrap();
    assert_eq!(of(&hops, 10, 1, at(299)), Some(ip(2)));
    assert_eq!(of(&hops, 10, 1, at(300)), None);
    assert_eq!(of(&hops, 10, 2, at(1 << 33)), Some(ip(2)));
}

#[test]
fn a_told_address_is_not_learned_elsewhere_until_it_is_taken_back() {
    let hops = Hops::new(SEED);
    hops.set(&[hop(2), hop(3)]);
    learn(&hops, 10, 1, 3, at(0));
    hops.tell(vni(10), mac(1), ip(2)).unwrap();
    learn(&hops, 10, 1, 3, at(1));
    assert_eq!(of(&hops, 10, 1, at(1)), Some(ip(2)));
    hops.forget(vni(10), mac(1));
    assert_eq!(of(&hops, 10, 1, at(1)), None);
    learn(&hops, 10, 1, 3, at(2));
    assert_eq!(of(&hops, 10, 1, at(2)), Some(ip(3)));
}

#[test]
fn what_was_behind_a_hop_that_leaves_is_forgotten_and_the_others_keep_their_numbers() {
    let hops = Hops::new(SEED);
    hops.set(&[hop(2), hop(3)]);
    learn(&hops, 10, 1, 2, at(0));
    hops.tell(vni(10), mac(2), ip(2)).unwrap();
    learn(&hops, 10, 3, 3, at(0));
    hops.set(&[hop(4), hop(3)]);
    assert_eq!([1, 2, 3].map(|address| of(&hops, 10, address, at(0))), [None, None, Some(ip(3))]);
    let table = hops.lock();
    assert_eq!((table.number(ip(2)), table.number(ip(3)), table.number(ip(4))), (None, Some(1), Some(0)));
    assert_eq!(table.numbers.len(), 2);
}

#[test]
fn a_broadcast_goes_to_the_hops_that_have_its_network() {
    let hops = Hops::new(SEED);
    let some = Hop { address: ip(3), networks: Some(vec![vni(10), vni(11)]) };
    hops.set(&[hop(2), some, Hop { address: ip(4), networks: Some(Vec::new()) }]);
    let all = |number| hops.lock().all_of(vni(number)).map(|(_, address)| address).collect::<Vec<_>>();
    assert_eq!(all(11), [ip(2), ip(3)]);
    assert_eq!(all(12), [ip(2)]);
}

#[test]
fn what_cannot_be_told_is_refused_with_the_reason() {
    let hops = Hops::new(SEED);
    hops.set(&[hop(2)]);
    let said = |mac, last| hops.tell(vni(10), mac, ip(last)).unwrap_err().to_string();
    assert_eq!(said(mac(1), 3), "192.0.2.3 is none of the tunnel's peers: add it first");
    assert_eq!(said(Mac::BROADCAST, 2), "ff:ff:ff:ff:ff:ff is no address of one guest");
    assert_eq!(said(Mac::ZERO, 2), "00:00:00:00:00:00 is no address of one guest");
}

#[test]
fn a_flood_of_addresses_displaces_learned_ones_and_no_told_one() {
    let hops = Hops::new(SEED);
    hops.set(&[hop(2), hop(3)]);
    (0..10_000).for_each(|address| hops.tell(vni(10), mac(address), ip(2)).unwrap());
    (10_000..400_000).for_each(|address| learn(&hops, 10, address, 3, at(1)));
    assert!((0..10_000).all(|address| of(&hops, 10, address, at(1)) == Some(ip(2))));
    let places = hops.places(at(1));
    assert_eq!(places.iter().filter(|place| place.is_told).count(), 10_000);
    assert!(places.len() > SETS * WAYS * 9 / 10, "the table is in use: {}", places.len());
    let error = (10_000..=TOLD_MAX as u32).find_map(|address| hops.tell(vni(10), mac(address), ip(2)).err()).unwrap();
    assert!(error.to_string().ends_with("its frames go to all peers of their network"), "{error}");
}

#[test]
fn hops_beyond_the_most_are_left_out() {
    let hops = Hops::new(SEED);
    let many = |count: usize| {
        (0..count as u32).map(|n| Hop { address: IpAddr::from((0x0a00_0000 + n).to_be_bytes()), networks: None })
    };
    hops.set(&many(HOPS_MAX + 5).collect::<Vec<_>>());
    assert_eq!(hops.lock().numbers.len(), HOPS_MAX);
}

#[test]
fn a_hop_that_comes_or_goes_by_itself_leaves_the_others_as_they_are() {
    let hops = Hops::new(SEED);
    hops.put(Hop { address: ip(2), networks: Some(vec![vni(11), vni(10)]) });
    hops.put(Hop { address: ip(3), networks: Some(vec![vni(11)]) });
    hops.tell(vni(10), mac(1), ip(2)).unwrap();
    hops.tell(vni(11), mac(2), ip(3)).unwrap();
    let all_of = |number| hops.lock().all_of(vni(number)).map(|(_, address)| address).collect::<Vec<_>>();
    assert_eq!((all_of(10), all_of(11)), (vec![ip(2)], vec![ip(2), ip(3)]));
    // Other networks of a hop are no new hop.
    hops.put(Hop { address: ip(2), networks: Some(vec![vni(12)]) });
    assert_eq!((all_of(10), all_of(11), all_of(12)), (vec![], vec![ip(3)], vec![ip(2)]));
    assert_eq!(of(&hops, 10, 1, at(0)), Some(ip(2)));
    hops.remove(ip(2));
    hops.remove(ip(9));
    assert_eq!((of(&hops, 10, 1, at(0)), of(&hops, 11, 2, at(0))), (None, Some(ip(3))));
    assert_eq!(hops.addresses(), [ip(3)]);
}

/// Another process's table that goes on from this one.
fn next(hops: &Hops, next: &Hops) {
    let (hops, places) = hops.lock().save();
    next.lock().restore(&hops, &places);
}

#[test]
fn the_next_process_knows_all_hops_and_addresses_and_forgets_what_is_not_told_again() {
    let (old, new) = (Hops::new(SEED), Hops::new(SEED + 2));
    // Numbers have gaps here, and are others there.
    old.set(&[hop(9), hop(3), hop(2)]);
    old.set(&[hop(3), Hop { address: ip(2), networks: Some(vec![vni(10)]) }, hop(4)]);
    old.tell(vni(10), mac(1), ip(2)).unwrap();
    old.tell(vni(10), mac(2), ip(3)).unwrap();
    old.tell(vni(10), mac(4), ip(4)).unwrap();
    learn(&old, 10, 3, 3, at(5));
    next(&old, &new);
    let places = |hops: &Hops| [1, 2, 3, 4].map(|address| of(hops, 10, address, at(6)));
    assert_eq!(places(&new), [Some(ip(2)), Some(ip(3)), Some(ip(3)), Some(ip(4))]);
    assert_eq!(
        new.lock().all_of(vni(11)).map(|(_, address)| address).collect::<Vec<_>>(),
        [ip(3), ip(4)],
        "each with its networks"
    );
    assert_eq!(of(&new, 10, 3, at(305)), None, "a learned one is as old as it was");
    // It goes on itself before anything was told again.
    let third = Hops::new(SEED);
    next(&new, &third);
    assert_eq!(places(&third), places(&new));

    new.put(hop(2));
    new.put(hop(3));
    new.tell(vni(10), mac(2), ip(3)).unwrap();
    new.forget_unconfirmed();
    assert_eq!(places(&new), [None, Some(ip(3)), Some(ip(3)), None]);
    assert_eq!(new.addresses(), [ip(2), ip(3)]);
    // Only once: what is told later stays.
    new.tell(vni(10), mac(1), ip(2)).unwrap();
    new.forget_unconfirmed();
    assert_eq!(of(&new, 10, 1, at(6)), Some(ip(2)));
}

#[test]
fn peers_that_the_host_file_names_stay_the_only_ones_in_the_next_process() {
    let (old, new) = (Hops::new(SEED), Hops::new(SEED));
    old.set(&[hop(2), hop(3)]);
    learn(&old, 10, 1, 2, at(5));
    learn(&old, 10, 2, 3, at(5));
    new.set(&[hop(3)]);
    next(&old, &new);
    assert_eq!(new.addresses(), [ip(3)]);
    assert_eq!([1, 2].map(|address| of(&new, 10, address, at(6))), [None, Some(ip(3))]);
}

#[test]
fn a_damaged_state_of_another_process_adds_nothing_that_cannot_be() {
    let hops = Hops::new(SEED);
    let place = |vni, hop, seen_s| SavedPlace { vni, mac: mac(1).0, hop, seen_s };
    let saved = [SavedHop { address: ip(2), networks: Some(vec![0, 10, 1 << 24]) }];
    let places = [place(0, 0, None), place(1 << 24, 0, Some(1)), place(10, 1, None), place(11, 9, Some(1))];
    hops.lock().restore(&saved, &places);
    assert_eq!((hops.places(at(1)), hops.addresses()), (Vec::new(), vec![ip(2)]));
    assert_eq!(hops.lock().all_of(vni(10)).map(|(_, address)| address).collect::<Vec<_>>(), [ip(2)]);
}

#[test]
fn what_passes_is_counted_for_each_hop_until_it_goes_and_another_one_begins_anew() {
    let hops = Hops::new(SEED);
    hops.set(&[hop(2), hop(3)]);
    let number = |last| hops.lock().number(ip(last)).unwrap();
    let (second, third) = (number(2), number(3));
    hops.lock().came(second, 60, false);
    hops.lock().came(second, 9000, true);
    hops.lock().went(third, ip(3), (45, 65_000), false);
    hops.lock().went(third, ip(3), (2, 120), true);
    let came = Traffic { transmit: Passed { frames: 1, bytes: 60, dropped: 1 }, ..Traffic::default() };
    let went = Traffic { receive: Passed { frames: 45, bytes: 65_000, dropped: 2 }, ..Traffic::default() };
    assert_eq!(hops.traffic(), [(ip(2), came), (ip(3), went)]);
    // Other networks of the same host.
    hops.put(Hop { networks: Some(vec![vni(10)]), ..hop(3) });
    assert_eq!(hops.traffic()[1], (ip(3), went));
    hops.remove(ip(3));
    hops.put(hop(4));
    assert_eq!(number(4), third, "the number is used again");
    hops.lock().went(third, ip(3), (1, 60), false);
    assert_eq!(hops.traffic(), [(ip(2), came), (ip(4), Traffic::default())], "a late message to the old one");
}

#[test]
fn the_way_of_a_frame_is_said_before_it_is_sent() {
    let hops = Hops::new(SEED);
    hops.set_networks(&[Network { vlan: Some(7), vni: vni(10) }]);
    hops.set(&[Hop { networks: Some(vec![vni(10)]), ..hop(2) }, hop(3)]);
    hops.tell(vni(10), mac(1), ip(3)).unwrap();
    let way = |vlan, to| hops.way(vlan, to, at(1));
    assert_eq!(way(7, mac(1)), Way::Hop(vni(10), ip(3)));
    assert_eq!(way(7, mac(2)), Way::All(vni(10), vec![ip(2), ip(3)]));
    assert_eq!(way(7, Mac::BROADCAST), Way::All(vni(10), vec![ip(2), ip(3)]));
    assert_eq!(way(8, mac(1)), Way::NoNetwork);
}

#[test]
fn a_network_that_is_left_is_neither_sent_in_nor_taken_from_until_it_is_taken_up_again() {
    let hops = Hops::new(SEED);
    let networks = [(7, 10), (8, 20)].map(|(vlan, number)| Network { vlan: Some(vlan), vni: vni(number) });
    hops.set_networks(&networks);
    hops.set(&[hop(2)]);
    hops.tell(vni(10), mac(1), ip(2)).unwrap();
    let vlan = |number| hops.lock().networks().vlan(number).map(|(_, vlan)| vlan);
    hops.leave(&[vni(10)].into());
    // Also after a change of the networks.
    for _ in 0..2 {
        assert_eq!((hops.way(7, mac(1), at(1)), vlan(10)), (Way::NoNetwork, None));
        assert_eq!((hops.way(8, mac(1), at(1)), vlan(20)), (Way::All(vni(20), vec![ip(2)]), Some(8)));
        hops.set_networks(&networks);
    }
    hops.leave(&[].into());
    assert_eq!((hops.way(7, mac(1), at(1)), vlan(10)), (Way::Hop(vni(10), ip(2)), Some(7)));
}
