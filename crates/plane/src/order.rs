//! Which waiting frames are next: round by round, or by I/O control.

use nicety_adapter::Time;
use nicety_ioc::{Lane, Scheduler};
use nicety_switch::PORTS;

use crate::rounds::{Grant, Rounds};

/// See the module's page.
#[derive(Debug)]
pub(crate) enum Order {
    Rounds(Rounds),
    /// Of an uplink; its lanes are numbered class by class.
    Control(Box<Scheduler>),
}

/// The number of a class's and port's lane.
pub(crate) fn number_of(Lane { class, port }: Lane) -> u16 {
    class.wrapping_mul(PORTS as u16).wrapping_add(port)
}

/// The class of a lane of an uplink.
pub(crate) fn class_of(number: u16) -> u16 {
    number / PORTS as u16
}

/// The class and the port of a lane of an uplink.
pub(crate) fn lane_of(number: u16) -> Lane {
    Lane { class: class_of(number), port: number % PORTS as u16 }
}

impl Order {
    /// The first packet of a lane waits: `request` bytes on the wire.
    pub fn add(&mut self, lane: u16, request: u32, now: Time) {
        match self {
            Self::Rounds(rounds) => rounds.add(lane),
            Self::Control(scheduler) => scheduler.add(lane_of(lane), request, now),
        }
    }

    /// The lane that is served next. The error is the time until which all that wait are held by limits, if any waits.
    pub fn pick(&mut self, open: impl Fn(u16) -> bool, now: Time) -> Result<Grant, Option<Time>> {
        match self {
            Self::Rounds(rounds) => rounds.pick(open).ok_or(None),
            Self::Control(scheduler) => {
                let grant = scheduler.pick(now)?;
                Ok(Grant { lane: number_of(grant.lane), bytes: grant.bytes.into() })
            }
        }
    }
}
