//! Agents on a port: to whom they speak, and what they hear.

mod linked;
mod silent;

use std::sync::{Arc, Mutex};

use linked::{Wire, link};
use nicety_adapter::{PortId, Time};
use nicety_frame::Mac;
use nicety_frame::group::{IGMP_QUERY, MLD_QUERY};
use nicety_plane::{End, Plane, Port, Querier, Role, Turn};
use nicety_switch::Limits;
use silent::Silent;

const SECOND: u64 = 1_000_000_000;

struct World {
    plane: Plane,
    ports: Vec<(Arc<Port>, Arc<Mutex<Wire>>)>,
}

impl World {
    fn new(ports: u16) -> Self {
        let plane = Plane::new(Limits::default());
        let join = |id: u16| {
            let (link, wire) = link();
            let port = Port::new(PortId(id), End::link(Box::new(link)), Box::new(Silent), 1 << 16).unwrap();
            let port = Arc::new(port);
            plane.join(Arc::clone(&port)).unwrap();
            (port, wire)
        };
        Self { ports: (0..ports).map(join).collect(), plane }
    }

    /// Turns for all ports until nobody has work.
    fn run_at(&self, second: u64) {
        let (now, mut turn) = (Time(second * SECOND), Turn::new());
        while let Some((port, _)) = self.ports.iter().find(|(port, _)| port.busy(now)) {
            while self.plane.turn(port, &mut turn, now).unfinished {}
        }
    }

    /// Takes the frames that left by a wire.
    fn seen(&self, at: usize) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.ports[at].1.lock().unwrap().incoming)
    }
}

/// RFC 2236, section 2: host 10.0.0.9 leaves 239.1.1.7, with a router alert and right checksums.
const LEAVE: &str =
    "01005e000002 020000000009 0800 46c0 0020 0000 0000 0102 3a0d 0a000009 e0000002 94040000 1700 f8f6 ef010107";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

#[test]
fn a_querier_asks_the_other_ports_and_not_its_own_link_and_hears_who_leaves() {
    let world = World::new(3);
    let (port, _) = &world.ports[0];
    let querier = Querier::new(Mac([2, 0x4e, 0, 0, 0, 1]), &[None]);
    port.set_agent(Role::Querier, Some(Box::new(querier)));
    world.run_at(0);
    assert_eq!(world.seen(0), Vec::<Vec<u8>>::new());
    for other in [1, 2] {
        let queries = world.seen(other);
        let types: Vec<u8> = queries.iter().zip([38, 62]).map(|(query, at)| query[at]).collect();
        assert_eq!(types, [IGMP_QUERY, MLD_QUERY], "{other}");
    }
    let counters = port.state().counters;
    assert_eq!((counters.transmitted().packets, counters.transmitted().bytes), (2, 60 + 90));
    world.run_at(1);
    assert_eq!(world.seen(1).len(), 0, "the next round is not due");
    // RFC 3376, section 8.8: asked twice, a second apart.
    world.ports[1].1.lock().unwrap().outgoing.push_back(bytes(LEAVE));
    world.ports[1].0.ready();
    for second in [2, 3] {
        world.run_at(second);
        let [query] = &world.seen(2).into_iter().filter(|frame| frame[38] == IGMP_QUERY).collect::<Vec<_>>()[..] else {
            panic!("one query")
        };
        assert_eq!((&query[..6], &query[42..46]), (&[1, 0, 0x5e, 1, 1, 7][..], &[239, 1, 1, 7][..]));
    }
    world.run_at(4);
    assert_eq!(world.seen(2).len(), 0);
    // Without it nobody asks.
    port.set_agent(Role::Querier, None);
    world.run_at(1000);
    assert_eq!(world.seen(2).into_iter().filter(|frame| frame[38] == IGMP_QUERY).count(), 0);
}
