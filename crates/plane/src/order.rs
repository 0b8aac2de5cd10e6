//! The choice of the next waiting frames: round by round, or by I/O control.

use nicety_adapter::{PortId, Time};
use nicety_ioc::{Lane, Scheduler};
use nicety_switch::PORTS;

use crate::rounds::{Grant, Rounds};

/// The receive queue or the peer that a lane of waiting frames belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneKey {
    /// A receive queue of a guest's adapter.
    Queue(u16),
    /// At a link: a class and a port. Outward this is the port that sent the frames, inward the port that gets them. Without I/O control
    /// all frames are of class 0.
    Peer(Lane),
}

/// An adapter's only queue.
impl Default for LaneKey {
    fn default() -> Self {
        Self::Queue(0)
    }
}

impl LaneKey {
    /// The lane of a port at a link without I/O control.
    pub fn peer(port: PortId) -> Self {
        Self::Peer(Lane { class: 0, port: port.0 })
    }

    /// Its place among the lanes of a backlog: those of a class stand side by side.
    #[inline]
    pub(crate) fn number(self) -> u16 {
        match self {
            Self::Queue(queue) => queue,
            Self::Peer(Lane { class, port }) => class.wrapping_mul(PORTS as u16).wrapping_add(port),
        }
    }

    /// The port that a lane of a link is for.
    pub(crate) fn port(self) -> PortId {
        match self {
            Self::Queue(_) => PortId::default(),
            Self::Peer(lane) => PortId(lane.port),
        }
    }
}

/// A lane of a link, by its place.
#[inline]
pub(crate) fn peer_at(number: u16) -> Lane {
    Lane { class: number / PORTS as u16, port: number % PORTS as u16 }
}

/// See the module's page.
#[derive(Debug)]
pub(crate) enum Order {
    Rounds(Rounds),
    /// I/O control of a link, whose lanes are numbered class by class.
    Control(Box<Scheduler>),
}

impl Order {
    /// A lane that was empty has its first packet, of `request` bytes on the wire.
    pub fn add(&mut self, lane: u16, request: u32, now: Time) {
        match self {
            Self::Rounds(rounds) => rounds.add(lane),
            Self::Control(scheduler) => scheduler.add(peer_at(lane), request, now),
        }
    }

    /// The lane that is served next. If limits hold all packets that wait, the error is the time until which they do.
    pub fn pick(&mut self, open: impl Fn(u16) -> bool, now: Time) -> Result<Grant, Option<Time>> {
        match self {
            Self::Rounds(rounds) => rounds.pick(open).ok_or(None),
            Self::Control(scheduler) => {
                let grant = scheduler.pick(now)?;
                Ok(Grant { lane: LaneKey::Peer(grant.lane).number(), bytes: grant.bytes.into() })
            }
        }
    }
}
