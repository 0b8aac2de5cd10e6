//! What workers keep of the address table changes no decision: the same traffic goes through a switch whose plans are reused, and through
//! one whose plans are new for each batch, and so keep nothing.

use std::sync::Arc;

use nicety_adapter::{Batch, Edit, PortId, Reason, Time};
use nicety_frame::Mac;
use nicety_memory::Map;
use nicety_switch::{Guards, Limits, Plan, Policy, Private, Storm, Switch, Vlan, VlanId, VlanSet};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Ports, of which the last two are uplinks; and workers, which serve each n-th port.
const PORTS: u16 = 8;
const WORKERS: usize = 2;

/// A generator of random numbers (xorshift64, Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn port(&mut self) -> PortId {
        PortId(self.below(PORTS.into()) as u16)
    }
}

fn mac(number: u64) -> Mac {
    let [.., c, d, e, f] = number.to_be_bytes();
    Mac([2, 0, c, d, e, f])
}

fn frame(target: Mac, source: Mac, vlan: Option<u16>) -> Vec<u8> {
    let tag = vlan.map_or(Vec::new(), |id| [[0x81, 0], id.to_be_bytes()].concat());
    [&target.0[..], &source.0, &tag, &[0x88, 0xb5], &[0; 46]].concat()
}

/// A UDP packet in IPv4 from this port (RFC 791, RFC 768), for a frame of that type.
fn datagram(from: u16) -> Vec<u8> {
    let addresses = [10, 0, 0, 1, 10, 0, 0, 2];
    let header = [[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0].as_slice(), &addresses].concat();
    [&header[..], &from.to_be_bytes(), &5000u16.to_be_bytes(), &[0, 26, 0, 0], &[0; 18]].concat()
}

/// A decision: receivers with their packets and edits, and what is dropped, by packet: a plan has the drops in no order.
type Decision = (Vec<(PortId, Vec<(u16, Edit)>)>, Vec<(u16, Reason)>);

fn decision(plan: &Plan) -> Decision {
    let picks = |port| plan.picks(port).iter().map(|pick| (pick.packet, pick.edit)).collect();
    let receivers = plan.receivers().iter().map(|&port| (port, picks(port))).collect();
    let mut drops = plan.drops().to_vec();
    drops.sort_by_key(|(packet, _)| *packet);
    (receivers, drops)
}

/// A switch that keeps, with a plan for each worker, and one that does not.
struct Twins {
    keeping: Switch,
    plans: [Plan; WORKERS],
    other: Switch,
    map: Arc<Map>,
    batch: Batch,
}

impl Twins {
    fn new(limits: Limits) -> Self {
        let twins = Self {
            keeping: Switch::new(limits),
            plans: Default::default(),
            other: Switch::new(limits),
            map: Arc::new(Map::private(1 << 16).unwrap()),
            batch: Batch::new(),
        };
        (0..PORTS).for_each(|port| twins.join(PortId(port)));
        twins
    }

    fn both(&self, change: impl Fn(&Switch)) {
        [&self.keeping, &self.other].into_iter().for_each(change);
    }

    fn join(&self, port: PortId) {
        self.both(|switch| match port.0 + 2 >= PORTS {
            true => switch.join_uplink(port, ()).unwrap(),
            false => switch.join(port, ()).unwrap(),
        });
    }

    /// Both decide the same for these frames, and know the same after it. Returns the decision.
    #[track_caller]
    fn send(&mut self, from: PortId, frames: &[Vec<u8>], now: Time) -> Decision {
        self.batch.start(&self.map, from, 0);
        for (bytes, at) in frames.iter().zip((0..).step_by(128)) {
            self.map.write(at, bytes).unwrap();
            let mut draft = self.batch.draft(0).unwrap();
            draft.push(at, bytes.len() as u32).unwrap();
            draft.finish_plain(0);
        }
        let [explained, trusted] = [&self.keeping, &self.other].map(|switch| {
            let mut plan = Plan::new();
            (switch.explain(&self.batch, None, now, &mut plan), decision(&plan))
        });
        assert_eq!(explained, trusted);
        let mut plan = Plan::new();
        self.other.forward(&self.batch, now, &mut plan);
        let expected = decision(&plan);
        let plan = &mut self.plans[usize::from(from.0) % WORKERS];
        self.keeping.forward(&self.batch, now, plan);
        assert_eq!(decision(plan), expected);
        assert!(self.keeping.addresses().iter(now).eq(self.other.addresses().iter(now)), "both know the same");
        expected
    }
}

fn policy(random: &mut Random) -> Policy {
    let id = |number| VlanId::new(number).unwrap();
    let vlan = match random.below(6) {
        0 => Vlan::Access(id(10)),
        1 => Vlan::Access(id(11)),
        2 => Vlan::Trunk { allowed: VlanSet::all(), native: Some(id(10)) },
        _ => Vlan::Flat,
    };
    let private = match random.below(12) {
        0 => Private::Isolated,
        1 => Private::Community(1),
        2 => Private::Vepa,
        _ => Private::Promiscuous,
    };
    Policy {
        vlan,
        private,
        promiscuous: random.once_in(8),
        blocked: random.once_in(12),
        forged_transmits: !random.once_in(8),
        mac_changes: !random.once_in(8),
        addresses: (0..4).map(mac).collect(),
        address_limit: random.once_in(6).then_some(3),
        storm: Storm { unknown: random.once_in(6).then_some(50), ..Storm::default() },
        guards: Guards { dhcp_server: random.once_in(6), ..Guards::default() },
        mtu: random.once_in(8).then_some(50),
        snooping: random.once_in(8),
        ..Policy::default()
    }
}

/// Frames of a port: mostly from its usual addresses to a few others, in trains.
fn frames(random: &mut Random, from: PortId, addresses: u64) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..1 + random.below(8) {
        let usual = u64::from(from.0) + u64::from(PORTS) * random.below(addresses / u64::from(PORTS));
        let source = mac(if random.once_in(12) { random.below(addresses) } else { usual });
        let target = match random.below(16) {
            0 => Mac::BROADCAST,
            1 => Mac([1, 0, 0x5e, 0, 0, 1]),
            _ => mac(random.below(addresses)),
        };
        let source = if random.once_in(60) { Mac::BROADCAST } else { source };
        let vlan = random.once_in(6).then(|| 10 + random.below(2) as u16);
        let mut frame = frame(target, source, vlan);
        match random.below(24) {
            kind @ (0 | 1) => {
                frame.truncate(frame.len() - 48);
                frame.extend([8, 0]);
                // From a DHCP server's port, and from another one.
                frame.extend(datagram(67 + kind as u16));
            }
            // Longer than a policy's MTU.
            2 => frame.extend([0; 20]),
            _ => {}
        }
        if random.once_in(60) {
            frame.truncate(10);
        }
        (0..1 + random.below(3)).for_each(|_| frames.push(frame.clone()));
    }
    if random.once_in(3) { frames[..1].to_vec() } else { frames }
}

#[test]
fn what_workers_keep_changes_no_decision_and_nothing_learned() {
    for seed in 1..=150 {
        let mut random = Random(seed << 32 | seed);
        let policed = seed % 3 != 0;
        let addresses = u64::from(PORTS) << random.below(4);
        let ageing = std::time::Duration::from_secs(3);
        let limits = Limits { addresses: 32, ageing, port_addresses: 5, seed, relays: false };
        let mut twins = Twins::new(limits);
        let mut now = 10 * SECOND;
        for _ in 0..600 {
            match random.below(100) {
                0 => now += 4 * SECOND,
                1..8 => now += SECOND / 3,
                // Workers read their clocks at different times.
                8..10 => now -= 2 * MS,
                _ => now += random.below(MS),
            }
            match random.below(60) {
                0 => {
                    let port = random.port();
                    twins.both(|switch| assert_eq!(switch.leave(port), Some(())));
                    if random.once_in(2) {
                        let from = random.port();
                        let frames = frames(&mut random, from, addresses);
                        if from != port {
                            twins.send(from, &frames, Time(now));
                        }
                    }
                    twins.join(port);
                }
                1 if policed => {
                    let (port, policy) = (random.port(), policy(&mut random));
                    twins.both(|switch| switch.set_policy(port, &policy));
                }
                2 => {
                    let port = random.port();
                    twins.both(|switch| switch.forget(port));
                }
                3 => {
                    let (port, address) = (random.port(), mac(random.below(addresses)));
                    twins.both(|switch| {
                        switch.teach(port, address, 0, Time(now));
                    });
                }
                _ => {}
            }
            let from = random.port();
            let frames = frames(&mut random, from, addresses);
            twins.send(from, &frames, Time(now));
        }
    }
}

/// Ports 0 and 1, whose guests have talked to each other in this second, so that their worker keeps it.
fn talking() -> (Twins, [Vec<u8>; 2], Time) {
    let mut twins = Twins::new(Limits::default());
    let (now, [there, back]) = (Time(5 * SECOND), [(2, 1), (1, 2)].map(|(to, by)| frame(mac(to), mac(by), None)));
    for _ in 0..4 {
        twins.send(PortId(0), std::slice::from_ref(&there), now);
        twins.send(PortId(2), std::slice::from_ref(&back), now);
    }
    (twins, [there, back], now)
}

fn receivers((receivers, _): &Decision) -> Vec<u16> {
    receivers.iter().map(|(port, _)| port.0).collect()
}

#[test]
fn an_address_that_two_guests_have_is_where_it_sent_last() {
    let (mut twins, [there, back], now) = talking();
    for round in 0..100 {
        let port = PortId(2 + round % 3);
        twins.send(port, std::slice::from_ref(&back), now);
        assert_eq!(receivers(&twins.send(PortId(0), std::slice::from_ref(&there), now)), [port.0], "round {round}");
    }
}

#[test]
fn an_address_that_moves_within_a_batch_is_followed_by_the_batch_s_next_frame() {
    let (mut twins, [there, _], now) = talking();
    // What follows a frame from an address is for the port where that frame came in, and so goes nowhere.
    let moved = frame(mac(1), mac(2), None);
    let decision = twins.send(PortId(0), &[there.clone(), moved, there], now);
    assert_eq!(decision.0, [(PortId(2), vec![(0, Edit::Keep)])]);
    assert_eq!(decision.1, [(1, Reason::SamePort), (2, Reason::SamePort)]);
}

#[test]
fn a_number_that_another_port_gets_between_two_batches_does_not_get_the_frames_of_the_one_that_left() {
    let (mut twins, [there, back], now) = talking();
    twins.both(|switch| assert_eq!(switch.leave(PortId(2)), Some(())));
    twins.join(PortId(2));
    let flooded = twins.send(PortId(0), std::slice::from_ref(&there), now);
    assert_eq!(receivers(&flooded), [1, 2, 3, 4, 5, 6, 7], "nobody knows the address");
    twins.send(PortId(4), std::slice::from_ref(&back), now);
    assert_eq!(receivers(&twins.send(PortId(0), &[there], now)), [4]);
}

#[test]
fn a_plan_that_goes_to_another_switch_brings_nothing_of_the_first() {
    let (mut twins, [there, _], now) = talking();
    // A table of another size replaces the switch's, or two switches share a worker.
    for addresses in [64, 32_768, 131_072] {
        let mut resized = Twins::new(Limits { addresses, ..Limits::default() });
        resized.plans = std::mem::take(&mut twins.plans);
        let flooded = resized.send(PortId(0), std::slice::from_ref(&there), now);
        assert_eq!(receivers(&flooded), [1, 2, 3, 4, 5, 6, 7], "{addresses}");
        twins.plans = resized.plans;
    }
}

#[test]
fn a_plan_that_succeeds_another_one_knows_what_it_kept_and_nothing_that_is_no_longer_so() {
    let (mut twins, [there, back], now) = talking();
    let mut fresh = Plan::new();
    fresh.succeed(&mut twins.plans[0]);
    twins.plans[0] = fresh;
    assert_eq!(receivers(&twins.send(PortId(0), std::slice::from_ref(&there), now)), [2]);
    twins.send(PortId(3), &[back], now);
    assert_eq!(receivers(&twins.send(PortId(0), &[there], now)), [3]);
}

#[test]
fn an_address_that_ages_while_its_peer_sends_is_flooded() {
    let (mut twins, [there, _], now) = talking();
    let ageing = Limits::default().ageing;
    for (after, flooded) in [(ageing, false), (ageing + std::time::Duration::from_secs(1), true)] {
        for _ in 0..4 {
            let decision = twins.send(PortId(0), std::slice::from_ref(&there), now.after(after));
            assert_eq!(receivers(&decision).len() > 1, flooded, "{after:?}");
        }
    }
}

#[test]
fn a_guest_that_sends_from_a_million_addresses_leaves_no_stale_answer() {
    let limits = Limits { addresses: 1024, ..Limits::default() };
    let mut twins = Twins::new(limits);
    let (mut random, mut now) = (Random(7), 5 * SECOND);
    for number in (0..1_000_000).step_by(60) {
        now += 100_000;
        let lies: Vec<_> =
            (number..number + 60).map(|number| frame(mac(random.below(20)), mac(100 + number), None)).collect();
        // The tables are compared by the frames of others: a look through them after each batch would take minutes.
        for switch in [&twins.keeping, &twins.other] {
            twins.batch.start(&twins.map, PortId(0), 0);
            for (bytes, at) in lies.iter().zip((0..).step_by(128)) {
                twins.map.write(at, bytes).unwrap();
                let mut draft = twins.batch.draft(0).unwrap();
                draft.push(at, bytes.len() as u32).unwrap();
                draft.finish_plain(0);
            }
            match std::ptr::eq(switch, &raw const twins.keeping) {
                true => switch.forward(&twins.batch, Time(now), &mut twins.plans[0]),
                false => switch.forward(&twins.batch, Time(now), &mut Plan::new()),
            };
        }
        if number % 1200 == 0 {
            for port in 2..6 {
                let talk: Vec<_> = (0..12).map(|to| frame(mac(to), mac(port), None)).collect();
                twins.send(PortId(port as u16), &talk, Time(now));
            }
        }
    }
}
