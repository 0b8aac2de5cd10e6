//! Explained decisions: they come from the deciding code, and have no side effects.

mod world;

use nicety_adapter::{Edit, Offload, Pick, PortId, Reason};
use nicety_frame::Mac;
use nicety_frame::vlan::{Tag, Tci};
use nicety_switch::{Guards, Policy, Private, Step, Storm, Vlan, VlanId};

use world::World;

const EVERYBODY: [u8; 6] = [0xff; 6];

/// The receivers with their picks, and the dropped packets.
type Decided = (Vec<(PortId, Vec<Pick>)>, Vec<(u16, Reason)>);

impl World {
    fn decided(&self) -> Decided {
        let mut got: Vec<_> =
            self.plan.receivers().iter().map(|port| (*port, self.plan.picks(*port).to_vec())).collect();
        got.sort_by_key(|(port, _)| *port);
        (got, self.plan.drops().to_vec())
    }

    fn explain(&mut self, from: u16, frame: &[u8]) -> (Vec<Step>, Decided) {
        self.load(from, &[frame.to_vec()], Offload::default());
        let steps = self.switch.explain(&self.batch, None, self.now, &mut self.plan);
        (steps, self.decided())
    }

    fn forward(&mut self, from: u16, frame: &[u8]) -> Decided {
        self.load(from, &[frame.to_vec()], Offload::default());
        self.switch.forward(&self.batch, self.now, &mut self.plan);
        self.decided()
    }
}

fn address(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

fn frame(target: [u8; 6], source: [u8; 6], rest: &[u8]) -> Vec<u8> {
    let mut bytes = [&target[..], &source, rest].concat();
    bytes.resize(60, 0);
    bytes
}

fn vlan(number: u16) -> VlanId {
    VlanId::new(number).unwrap()
}

#[test]
fn an_explanation_decides_as_forwarding_does_and_changes_nothing() {
    let access = |number| Policy { vlan: Vlan::Access(vlan(number)), ..Policy::default() };
    let trunk = Vlan::Trunk { allowed: "10,20".parse().unwrap(), native: Some(vlan(20)) };
    let strict = Policy {
        addresses: vec![Mac(address(1))],
        forged_transmits: false,
        mac_changes: false,
        guards: Guards { bpdu: true, dhcp_server: true, arp: true, router_advertisement: true, multicast_router: true },
        private: Private::Isolated,
        ..access(10)
    };
    let metered = Storm { broadcast: Some(10), multicast: Some(10), unknown: Some(10) };
    let policies = [
        Policy { vlan: trunk, ..Policy::default() },
        strict,
        Policy { address_limit: Some(2), storm: metered, ..access(10) },
        Policy { promiscuous: true, ..access(10) },
        Policy { private: Private::Community(1), ..access(10) },
        access(20),
        Policy::default(),
        Policy::default(),
    ];
    let mut world = World::new(&policies);
    let tag = |number| [&Tag::customer(Tci::new(0, false, number)).to_bytes()[..], &[0x88, 0xb5]].concat();
    let rests = [vec![0x88, 0xb5], tag(10), tag(20), tag(30), vec![8, 6, 0, 1]];
    let (mut seed, mut refused) = (7u32, 0);
    let mut any = |below: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize % below
    };
    for _ in 0..5000 {
        let targets =
            [EVERYBODY, [1, 0, 0x5e, 0, 0, 9], [1, 0x80, 0xc2, 0, 0, 0], address(any(9) as u8), address(any(9) as u8)];
        let frame = frame(targets[any(targets.len())], address(any(9) as u8), &rests[any(rests.len())]);
        let from = any(policies.len()) as u16;
        let known = world.switch.addresses().iter(world.now).count();
        let (steps, explained) = world.explain(from, &frame);
        assert_eq!(world.explain(from, &frame), (steps.clone(), explained.clone()), "asked again");
        assert_eq!(world.switch.addresses().iter(world.now).count(), known);
        assert_eq!(world.forward(from, &frame), explained, "{steps:?}");
        refused += usize::from(!explained.1.is_empty());
        world.now = world.now.after_ns(1_000_000);
    }
    assert!((1000..4000).contains(&refused), "{refused}");
}

#[test]
fn the_steps_say_how_it_came_to_that() {
    let access = |number| Policy { vlan: Vlan::Access(vlan(number)), ..Policy::default() };
    let own = Policy { addresses: vec![Mac(address(0))], forged_transmits: false, ..access(10) };
    let mut world = World::new(&[own, access(10), access(20)]);
    let plain = [0x88, 0xb5];
    let (steps, _) = world.explain(0, &frame(EVERYBODY, address(0), &plain));
    assert_eq!(
        steps,
        [
            Step::Guards(None),
            Step::Vlan(Ok(10)),
            Step::Source(Ok(())),
            Step::Learns { address: Mac(address(0)), at: PortId(0), before: None },
            Step::Floods { kind: Reason::BroadcastStorm, goes: true },
            Step::Receiver(PortId(1), Ok(Edit::Keep)),
            Step::Receiver(PortId(2), Err(Reason::Vlan)),
        ]
    );
    let (steps, _) = world.explain(0, &frame(EVERYBODY, address(9), &plain));
    assert_eq!(steps[2..], [Step::Source(Err(Reason::Forged))]);
    world.forward(1, &frame(EVERYBODY, address(1), &plain));
    let (steps, _) = world.explain(0, &frame(address(1), address(0), &plain));
    assert_eq!(steps[4..], [Step::Found(PortId(1)), Step::Receiver(PortId(1), Ok(Edit::Keep))]);
}

#[test]
fn a_flat_switch_is_explained_too_and_a_frame_to_its_own_sender() {
    let mut world = World::new(&[Policy::default(), Policy::default()]);
    let own = frame(address(0), address(0), &[]);
    let (steps, decided) = world.explain(0, &own);
    assert_eq!(steps, [Step::Learns { address: Mac(address(0)), at: PortId(0), before: None }, Step::Found(PortId(0))]);
    assert_eq!(decided, world.forward(0, &own));
    let (steps, _) = world.explain(1, &frame(address(0), address(1), &[]));
    let expected = [
        Step::Learns { address: Mac(address(1)), at: PortId(1), before: None },
        Step::Found(PortId(0)),
        Step::Receiver(PortId(0), Ok(Edit::Keep)),
    ];
    assert_eq!(steps, expected);
    assert_eq!(world.explain(0, &[0; 9]).0, []);
}
