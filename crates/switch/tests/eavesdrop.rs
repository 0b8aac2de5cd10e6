//! A guest that tries to read its neighbours' unicasts: it sends from many addresses, so that the switch forgets theirs and floods.

mod world;

use nicety_adapter::{Offload, PortId, Time};
use nicety_frame::Mac;
use nicety_switch::{Addresses, Limits, Policy, Switch};
use world::World;

const VICTIM: u16 = 0;
const PEER: u16 = 1;
const EAVESDROPPER: u16 = 2;
const SECOND: u64 = 1_000_000_000;

fn mac(number: u64) -> Mac {
    let [_, _, _, _, c, d, e, f] = number.to_be_bytes();
    Mac([2, 0xee, c, d, e, f])
}

impl World {
    fn send(&mut self, from: u16, frames: &[Vec<u8>]) {
        self.load(from, frames, Offload::default());
        self.switch.forward(&self.batch, self.now, &mut self.plan);
    }
}

fn frame(target: Mac, source: Mac) -> Vec<u8> {
    [&target.0[..], &source.0, &[0x88, 0xb5], &[0; 46]].concat()
}

/// The set of an address in a table of 256 sets whose hash has a seed that everybody knows: 0.
fn unseeded_set(Mac(bytes): Mac) -> u64 {
    let [a, b, c, d, e, f] = bytes;
    let key = 1 << 63 | u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    let product = u128::from(key) * u128::from(key.rotate_left(32));
    ((product >> 64) as u64 ^ product as u64) % 256
}

#[test]
fn four_addresses_computed_for_a_neighbours_set_do_not_make_its_frames_flood() {
    let guest = Policy { promiscuous: false, address_limit: Some(4), ..Policy::default() };
    let mut world = World::new(&[guest.clone(), guest.clone(), guest]);
    let (victim, peer) = (mac(1), mac(2));
    let computed: Vec<Mac> =
        (3..).map(mac).filter(|address| unseeded_set(*address) == unseeded_set(victim)).take(4).collect();
    world.send(VICTIM, &[frame(Mac::BROADCAST, victim)]);
    for round in 0..400 {
        world.now = Time((2 + round / 100) * SECOND);
        let lies: Vec<_> = computed.iter().map(|source| frame(peer, *source)).collect();
        world.send(EAVESDROPPER, &lies);
        world.send(PEER, &[frame(victim, peer)]);
        assert_eq!(world.plan.receivers(), [PortId(VICTIM)], "round {round}");
    }
}

/// A table of a single set: every address collides with every other.
fn one_set() -> Addresses {
    Addresses::new(Limits { addresses: 4, ..Limits::default() })
}

#[test]
fn a_port_that_invents_addresses_evicts_its_own_and_no_other_ports() {
    let table = one_set();
    table.learn(mac(1), 0, PortId(VICTIM), Time(SECOND));
    for number in 2..1000 {
        table.learn(mac(number), 0, PortId(EAVESDROPPER), Time((1 + number) * SECOND / 4));
        assert_eq!(table.find(mac(1), 0, Time((1 + number) * SECOND / 4)), Some(PortId(VICTIM)), "after {number}");
    }
    assert_eq!(table.find(mac(999), 0, Time(250 * SECOND)), Some(PortId(EAVESDROPPER)), "the newest is known");
}

#[test]
fn of_several_ports_the_one_with_the_most_addresses_gives_way() {
    let table = one_set();
    let (hoards, second) = (PortId(EAVESDROPPER), PortId(EAVESDROPPER + 1));
    table.learn(mac(1), 0, PortId(VICTIM), Time(SECOND));
    (2..5).for_each(|number| table.learn(mac(number), 0, hoards, Time(2 * SECOND)));
    // The peer has one address and was silent longest; it keeps the address.
    table.learn(mac(5), 0, PortId(PEER), Time(3 * SECOND));
    table.learn(mac(6), 0, second, Time(4 * SECOND));
    let known = |number: u64| table.find(mac(number), 0, Time(4 * SECOND));
    assert_eq!([1, 5, 6].map(known), [VICTIM, PEER, EAVESDROPPER + 1].map(|port| Some(PortId(port))));
    assert_eq!((2..5).filter_map(known).count(), 1, "one of its three");
    // A port with an address in the set takes none from ports with one each: it replaces its own.
    table.learn(mac(7), 0, hoards, Time(5 * SECOND));
    assert_eq!((2..8).filter(|number| known(*number) == Some(hoards)).collect::<Vec<_>>(), [7]);
}

#[test]
fn a_port_that_hoards_elsewhere_evicts_nobody_who_has_less() {
    // Two sets; the four addresses may fall into either.
    let table = Addresses::new(Limits { addresses: 8, ..Limits::default() });
    let hoards = PortId(9);
    let victims: Vec<Mac> = (1..).map(mac).take(4).collect();
    for (victim, port) in victims.iter().zip(0..) {
        table.learn(*victim, 0, PortId(port), Time(SECOND));
    }
    (10..200).for_each(|number| table.learn(mac(number), 0, hoards, Time(2 * SECOND)));
    for (victim, port) in victims.iter().zip(0..) {
        assert_eq!(table.find(*victim, 0, Time(2 * SECOND)), Some(PortId(port)));
    }
    assert_eq!(table.iter(Time(2 * SECOND)).filter(|learned| learned.port == hoards).count(), 4, "all that was free");
}

#[test]
fn a_guests_port_is_known_by_1024_addresses_and_an_uplink_by_any_number() {
    let switch = Switch::new(Limits::default());
    let (guest, uplink) = (PortId(1), PortId(2));
    switch.join(guest, ()).unwrap();
    switch.join_uplink(uplink, ()).unwrap();
    let table = switch.addresses();
    let known = |port, at_s| table.iter(Time(at_s * SECOND)).filter(|learned| learned.port == port).count();
    for number in 0..3000 {
        table.learn(mac(number), 0, guest, Time(SECOND));
        table.learn(mac(10_000 + number), 0, uplink, Time(SECOND));
    }
    assert_eq!(known(guest, 1), 1024);
    assert!(known(uplink, 1) > 2900, "{}: but for a full set or two", known(uplink, 1));
    // An address of another port does not become one of its own beyond the limit.
    table.learn(mac(10_000), 0, guest, Time(SECOND));
    assert_eq!((known(guest, 1), table.find(mac(10_000), 0, Time(SECOND))), (1024, None), "unknown, and so flooded");
    // Addresses that were silent for the ageing time make room. Each new address frees some.
    (3000..6000).for_each(|number| table.learn(mac(number), 0, guest, Time(400 * SECOND)));
    assert!(known(guest, 400) > 900, "{}", known(guest, 400));
}

#[test]
fn which_addresses_share_a_set_depends_on_the_seed_alone() {
    // The addresses left of 3,000 from one port in 1,024 entries: the newest four of each set.
    let left = |seed| {
        let table = Addresses::new(Limits { addresses: 1024, seed, ..Limits::default() });
        (0..3000).for_each(|number| table.learn(mac(number), 0, PortId(1), Time(SECOND)));
        table.iter(Time(SECOND)).map(|learned| learned.address).collect::<Vec<_>>()
    };
    assert_eq!(left(1), left(1));
    let (one, other) = (left(1), left(2));
    let both = one.iter().filter(|address| other.contains(address)).count();
    assert!(both < 600, "{both} of {}", one.len());
}
