//! An uplink whose far end a target plays, at one switch with a guest and a wire.

use std::sync::Arc;

use nicety_adapter::{PortId, Uplink};
use nicety_adapters::find;
use nicety_plane::doubles::Memo;
use nicety_plane::{End, Port, Turn};
use nicety_trials::hostile::packets;
use nicety_trials::random::Random;
use nicety_trials::rig::Rig;
use nicety_trials::working::{self, Working};

/// See the module's page.
pub struct Session {
    pub rig: Rig,
    guest: Option<Box<dyn Working>>,
    port: Arc<Port>,
    turn: Turn,
}

impl Session {
    /// With an uplink. `whole`: the wire takes TSO packets uncut. `seed` is that of the guest's driver.
    pub fn begin(uplink: Box<dyn Uplink>, whole: bool, seed: u8) -> Option<Self> {
        let entry = find("virtio-net")?;
        let mut rig = Rig::new(entry, working::MEMORY, whole);
        let guest = working::begin(entry.about.name, &mut rig, &mut Random::new(seed.into()));
        let port = Arc::new(Port::new(PortId(2), End::link(uplink), Box::new(Memo::default()), 1 << 20).ok()?);
        rig.plane.join(Arc::clone(&port)).ok()?;
        Some(Self { rig, guest, port, turn: Turn::new() })
    }

    /// A packet comes by the wire.
    pub fn wire_sends(&mut self, random: &mut Random) {
        self.rig.far.ends().outgoing.push_back(packets::any(random, true));
    }

    /// The guest sends a packet.
    pub fn guest_sends(&mut self, random: &mut Random) {
        let (packet, offload) = packets::any(random, false);
        if let Some(guest) = &mut self.guest {
            guest.send(&mut self.rig, &packet, &offload);
            guest.attend(&mut self.rig);
        }
    }

    /// Turns of all ports, a millisecond later. The wire's far end takes what comes.
    pub fn turns(&mut self) {
        let Self { rig, port, turn, .. } = self;
        rig.uplink.ready();
        port.ready();
        rig.now = rig.now.after_ns(1_000_000);
        for _ in 0..3 {
            rig.step();
            while rig.plane.turn(port, turn, rig.now).unfinished {}
        }
        rig.far.ends().incoming.clear();
    }
}

/// Up to 39 bytes of any kind.
pub fn junk(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; random.below(40) as usize];
    bytes.fill_with(|| random.below(256) as u8);
    bytes
}
