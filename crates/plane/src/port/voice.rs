//! The agents of a port: what they hear, and how they speak.

use std::sync::Arc;

use nicety_adapter::{Batch, Budget, Frames, Pick, PortId, Reason, Time};
use nicety_memory::{Map, MapError};

use super::caught::caught;
use super::inner::Inner;
use crate::agent::{Agent, INWARD_MOST, LinkState, OUTWARD_MOST, Role};

/// The time until the next try if the uplink has no room for an agent's frame.
const AGAIN_NS: u64 = 1_000_000;

/// Memory for a frame of our own.
pub(super) struct Voice {
    batch: Batch,
    map: Arc<Map>,
}

impl Voice {
    pub fn new() -> Result<Self, MapError> {
        Ok(Self { batch: Batch::new(), map: Arc::new(Map::private(OUTWARD_MOST)?) })
    }
}

/// The agents of a port, each in its role.
pub(super) type Agents = Vec<(Role, Box<dyn Agent>)>;

impl Inner {
    /// Lets agents speak before the frames that wait for a full uplink: those take all the room that a turn finds.
    pub fn speak_first(&mut self, now: Time) {
        let is_due = |(_, agent): &(Role, Box<dyn Agent>)| agent.wake().is_some_and(|at| at <= now);
        if !self.backlog.is_empty() && self.agents.iter().any(is_due) {
            self.attend(now);
        }
    }

    /// Calls the agents. A panic ends the port.
    fn with_agents(&mut self, act: impl FnOnce(&mut Self, &mut Agents)) {
        let mut agents = std::mem::take(&mut self.agents);
        let called = caught(|| act(self, &mut agents));
        self.agents = agents;
        if let Err(cause) = called {
            self.fail(cause);
        }
    }

    /// The part of a turn of the agents that face the link.
    #[cold]
    pub fn attend(&mut self, now: Time) {
        let is_uplink = self.is_uplink();
        let is_up = self.call_uplink(|uplink, _| uplink.carrier());
        let bytes = [self.counters.taken().bytes, self.counters.transmitted().bytes];
        let state = LinkState { is_up, has_backlog: !self.backlog.is_empty(), bytes };
        self.with_agents(|inner, agents| {
            agents.retain_mut(|(role, agent)| {
                if !role.faces_switch(is_uplink) {
                    agent.link(state, now);
                    if is_up {
                        agent.speak(now, &mut |frame| inner.say(frame, now));
                    }
                }
                !agent.is_done()
            });
        });
    }

    /// The part of a turn of the agents that face the switch: puts their frames into an empty batch, up to the budget. False if there are
    /// none.
    #[cold]
    pub fn speak_inward(&mut self, queue: u16, budget: Budget, batch: &mut Batch, now: Time) -> bool {
        let is_uplink = self.is_uplink();
        self.with_agents(|inner, agents| {
            let mut send = |frame: &[u8]| {
                if batch.len() >= budget.packets || frame.len() > INWARD_MOST {
                    return false;
                }
                let Some(mut draft) = batch.draft(frame.len()) else { return false };
                draft.pad_to(frame.len());
                draft.head_mut().copy_from_slice(frame);
                inner.counters.sent(queue, 1, draft.len().into());
                draft.finish_plain(0);
                true
            };
            agents.retain_mut(|(role, agent)| {
                if role.faces_switch(is_uplink) {
                    agent.speak(now, &mut send);
                }
                !agent.is_done()
            });
        });
        self.note_agents();
        !batch.is_empty()
    }

    /// Other agents are there.
    pub fn note_agents(&mut self) {
        let is_uplink = self.is_uplink();
        self.speaks_inward = self.agents.iter().any(|(role, _)| role.faces_switch(is_uplink));
    }

    /// Shows agents the frames that the switch sends to the port.
    #[cold]
    pub fn show(&mut self, batch: &Batch, picks: &[Pick], now: Time) {
        self.with_agents(|_, agents| {
            agents.iter_mut().for_each(|(_, agent)| agent.receive(&Frames::new(batch, picks), now));
        });
    }

    /// Sends an agent's frame, before all that waits. False if there is no room for it.
    fn say(&mut self, frame: &[u8], now: Time) -> bool {
        let Some(mut voice) = self.voice.take() else { return false };
        let Voice { batch, map } = voice.as_mut();
        batch.start(map, PortId::default(), 0);
        if map.write(0, frame).is_ok()
            && let Some(mut draft) = batch.draft(0)
            && draft.push(0, frame.len() as u32).is_ok()
        {
            draft.finish_plain(0);
        }
        let is_sent = !batch.is_empty() && self.deliver(&Frames::new(batch, &[Pick::whole(0)]), now).refused() == 0;
        if !is_sent {
            self.hushed_until = now.after_ns(AGAIN_NS);
        }
        batch.release();
        self.voice = Some(voice);
        is_sent
    }

    /// Shows the agents the frames that the switch did not forward. Returns those that they took, a bit each.
    pub fn hear(&mut self, batch: &Batch, drops: &[(u16, Reason)], now: Time) -> u64 {
        let mut taken = 0;
        self.with_agents(|_, agents| {
            let mut frame = [0; OUTWARD_MOST];
            for (index, _) in drops.iter().filter(|(_, reason)| is_unforwarded(*reason)) {
                let Some(packet) = batch.packet(*index) else { continue };
                let len = batch.copy(packet, &mut frame);
                for (_, agent) in agents.iter_mut() {
                    if agent.hear(&frame[..len], now) {
                        taken |= 1u64.wrapping_shl((*index).into());
                    }
                }
            }
        });
        taken
    }
}

/// Whether frames with this reason are for the neighbour of the link, or may be.
pub(crate) fn is_unforwarded(reason: Reason) -> bool {
    matches!(reason, Reason::Policy | Reason::UnusedLink | Reason::Blocked | Reason::MirrorPort)
}
