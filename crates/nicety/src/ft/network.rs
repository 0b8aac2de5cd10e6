//! The outside: a tap, as plain whole frames.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nicety_adapter::{Offload, PortId, Time, Uplink};
use nicety_plane::wire::{Far, Wire};
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;
use nicety_tolerance::replica::bus::Memo;
use nicety_uplink::Tap;

/// Bytes of a port's receive buffer.
const BUFFER: u32 = 4 << 20;
/// Turns in a row. More frames wait for the next time.
const TURNS: usize = 16;

/// A switch of two ports: the tap, and a wire to us. The switch completes checksums and cuts segments where the tap left that undone.
pub struct Network {
    plane: Plane,
    ports: [Arc<Port>; 2],
    turn: Turn,
    far: Far,
    ready: OwnedFd,
    begun: std::time::Instant,
}

impl AsFd for Network {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Network {
    /// Attaches to the tap of this name, or makes it.
    ///
    /// # Errors
    /// The reason, for a person.
    pub fn open(tap: &str) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| format!("the tap {tap}: {error}");
        let mut uplink = Tap::open(tap).map_err(|error| text(&error))?;
        uplink.expect(false, false).map_err(|error| text(&error))?;
        let descriptor = uplink.descriptor().map(|fd| fd.try_clone_to_owned());
        let ready = descriptor.ok_or("the tap has no descriptor")?.map_err(|error| text(&error))?;
        let (wire, far) = Wire::new(false).map_err(|error| text(&error))?;
        let plane = Plane::new(Limits { addresses: 1 << 10, ..Limits::default() });
        let mut ports = Vec::new();
        for (number, end) in [Box::new(uplink) as Box<dyn Uplink>, Box::new(wire)].into_iter().enumerate() {
            let id = PortId(number as u16);
            let port = Port::new(id, End::link(end), Box::new(Memo::default()), BUFFER);
            let port = Arc::new(port.map_err(|error| text(&error))?);
            plane.join(Arc::clone(&port)).map_err(|error| text(&error))?;
            ports.push(port);
        }
        let ports = ports.try_into().map_err(|_| "two ports")?;
        Ok(Self { plane, ports, turn: Turn::new(), far, ready, begun: std::time::Instant::now() })
    }

    /// Moves frames between the tap and us.
    pub fn turn(&mut self) {
        self.ports.iter().for_each(|port| port.ready());
        for _ in 0..TURNS {
            let now = Time(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
            let mut more = false;
            for port in &self.ports {
                loop {
                    let outcome = self.plane.turn(port, &mut self.turn, now);
                    if !outcome.unfinished {
                        more |= outcome.packets > 0;
                        break;
                    }
                }
            }
            if !more {
                return;
            }
        }
    }

    /// Whether frames from the tap wait here.
    pub fn has_frames(&self) -> bool {
        !self.far.ends().incoming.is_empty()
    }

    /// The next frame from the tap.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        self.far.ends().incoming.pop_front().map(|(frame, _)| frame)
    }

    /// Queues a frame for the tap.
    pub fn send(&mut self, frame: Vec<u8>) {
        self.far.ends().outgoing.push_back((frame, Offload::default()));
    }
}
