//! Explains the path of a frame through the switch. A dry run: nothing is learned, counted or delivered.

use std::sync::Arc;

use nicety_adapter::{Batch, Edit, PACKET_BYTES, PortId, Reason, Time};
use nicety_memory::{Map, MapError};
use nicety_switch::{Plan, Step};

use super::Plane;
use crate::port::{Intake, Prospect};

/// The result of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The sender's port's handling.
    pub intake: Intake,
    /// The switch's decision, step by step.
    pub steps: Vec<Step>,
    /// The reason why the switch drops it, if it does.
    pub dropped: Option<Reason>,
    /// Each receiver, the edit of the tag, and that port's handling.
    pub receivers: Vec<(PortId, Edit, Prospect)>,
}

/// Reasons why a frame was not traced.
#[derive(Debug)]
pub enum TraceError {
    /// There is no such port.
    Missing,
    /// The frame is empty, or longer than a packet may be.
    Length(usize),
    /// No memory.
    Memory(MapError),
}

impl Plane {
    /// Traces a frame as if it came in from a port now.
    pub fn trace(&self, from: PortId, frame: &[u8], now: Time) -> Result<Trace, TraceError> {
        // A frame of a team comes in by one of its members.
        let port = self.port(from).or_else(|| self.team(from)?.ports().next().cloned());
        let port = port.ok_or(TraceError::Missing)?;
        let wrong = TraceError::Length(frame.len());
        if frame.is_empty() || frame.len() > PACKET_BYTES as usize {
            return Err(wrong);
        }
        let map = Arc::new(Map::private(frame.len()).map_err(TraceError::Memory)?);
        let (mut batch, mut plan) = (Batch::new(), Plan::new());
        batch.start(&map, port.place().origin, 0);
        if map.write(0, frame).is_err() {
            return Err(wrong);
        }
        let Some(mut draft) = batch.draft(0) else { return Err(wrong) };
        if draft.push(0, frame.len() as u32).is_err() {
            return Err(wrong);
        }
        draft.finish_plain(0);
        let port_origin = port.place().origin;
        let steps = self.switch().explain(&batch, port.primary(), now, &mut plan);
        let receivers = plan.receivers().iter().filter_map(|&receiver| {
            let pick = *plan.picks(receiver).first()?;
            let prospect = match self.switch().slots().get(receiver) {
                None => Prospect::Dropped(Reason::Removed),
                Some(slot) => match slot.port_for(&batch, &pick) {
                    None => Prospect::Dropped(Reason::LinkDown),
                    Some(port) => port.prospect(port_origin, frame.len() as u32, now),
                },
            };
            Some((receiver, pick.edit, prospect))
        });
        let mut receivers: Vec<_> = receivers.collect();
        receivers.sort_by_key(|(port, ..)| *port);
        let dropped = plan.drops().first().map(|(_, reason)| *reason);
        Ok(Trace { intake: port.intake(now), steps, dropped, receivers })
    }
}
