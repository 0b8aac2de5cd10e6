//! The agents of a port: what they hear, and how they speak.

use std::collections::VecDeque;
use std::sync::Arc;

use nicety_adapter::{Batch, Budget, Frames, Pick, PortId, Reason, Time};
use nicety_frame::Mac;
use nicety_memory::{Map, MapError};

use super::caught::caught;
use super::end::either;
use super::{AGENTS, Inner, LOOKED_AT_FIRST, Port};
use crate::agent::{Agent, INWARD_MAX, LinkState, Neighbour, OUTWARD_MAX, Role, SavedAgent};
use crate::announced;
use crate::herald::Herald;
use crate::lldp::Listener;

/// The time until the next try if the uplink has no room for an agent's frame.
const AGAIN_NS: u64 = 1_000_000;

/// Memory for a frame of our own.
pub(super) struct Voice {
    batch: Batch,
    map: Arc<Map>,
}

impl Voice {
    pub fn new() -> Result<Self, MapError> {
        Ok(Self { batch: Batch::new(), map: Arc::new(Map::private(OUTWARD_MAX)?) })
    }
}

/// An agent of a port.
pub(super) struct Placed {
    pub role: Role,
    /// It speaks to the switch on this port, and not to the neighbour of its link.
    pub faces_switch: bool,
    pub agent: Box<dyn Agent>,
}

impl Inner {
    /// Lets agents speak before the frames that wait for a full uplink: those take all the room that a turn finds.
    pub fn speak_first(&mut self, now: Time) {
        let is_due = |placed: &Placed| placed.agent.wake().is_some_and(|at| at <= now);
        if !self.stage.backlog.is_empty() && self.agents.iter().any(is_due) {
            self.attend(now);
        }
    }

    /// Calls the agents. A panic ends the port.
    fn with_agents(&mut self, act: impl FnOnce(&mut Self, &mut Vec<Placed>)) {
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
        let is_up = self.ask(|end, _| either!(end, end => end.has_carrier()));
        let bytes = [self.counters.taken().bytes, self.counters.transmitted().bytes];
        let state = LinkState { is_up, has_backlog: !self.stage.backlog.is_empty(), bytes };
        self.with_agents(|inner, agents| {
            agents.retain_mut(|Placed { faces_switch, agent, .. }| {
                if !*faces_switch {
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
        self.with_agents(|inner, agents| {
            let mut send = |frame: &[u8]| {
                if batch.len() >= budget.packets || frame.len() > INWARD_MAX {
                    return false;
                }
                let Some(mut draft) = batch.draft(frame.len()) else { return false };
                draft.pad_to(frame.len());
                draft.head_mut().copy_from_slice(frame);
                inner.counters.sent(queue, 1, draft.len().into());
                draft.finish_plain(0);
                true
            };
            agents.retain_mut(|Placed { faces_switch, agent, .. }| {
                if *faces_switch {
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
        self.speaks_inward = self.agents.iter().any(|placed| placed.faces_switch);
    }

    /// Shows agents the frames that the switch sends to the port.
    #[cold]
    pub fn show(&mut self, batch: &Batch, picks: &[Pick], now: Time) {
        self.with_agents(|_, agents| {
            agents.iter_mut().for_each(|Placed { agent, .. }| agent.receive(&Frames::new(batch, picks), now));
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
            let mut frame = [0; OUTWARD_MAX];
            for (index, _) in drops.iter().filter(|(_, reason)| is_unforwarded(*reason)) {
                let Some(packet) = batch.packet(*index) else { continue };
                let len = batch.copy(packet, &mut frame);
                for Placed { agent, .. } in agents.iter_mut() {
                    if agent.hear(&frame[..len], now) {
                        taken |= 1u64.wrapping_shl((*index).into());
                    }
                }
            }
        });
        taken
    }
}

impl Port {
    /// An agent speaks on this port from now on.
    pub fn with_agent(self, role: Role, agent: Box<dyn Agent>) -> Self {
        self.set_agent(role, Some(agent));
        self
    }

    /// Gives a role to an agent, in place of the agent that has it. `None`: nobody has the role.
    pub fn set_agent(&self, role: Role, agent: Option<Box<dyn Agent>>) {
        let faces_switch = role.faces_switch(self.is_link);
        let mut inner = self.lock();
        inner.agents.retain(|had| had.role != role);
        inner.agents.extend(agent.map(|agent| Placed { role, faces_switch, agent }));
        self.note_agents(&mut inner);
        drop(inner);
        self.stir();
    }

    /// Other agents are there.
    pub(super) fn note_agents(&self, inner: &mut Inner) {
        inner.note_agents();
        self.mark(AGENTS, !inner.agents.is_empty());
        let is_shown = inner.agents.iter().any(|placed| placed.role == Role::Querier);
        self.mark(LOOKED_AT_FIRST, is_shown || self.member.is_some());
    }

    /// The state of its agents, for another process. Changes nothing.
    pub fn agents(&self) -> Vec<SavedAgent> {
        self.lock().agents.iter().filter_map(|placed| placed.agent.save()).collect()
    }

    /// Restores the state of agents: of those that the port has already, and of those that leave when their work is done. Call it before
    /// the port is served.
    pub fn go_on_with_agents(&self, saved: &[SavedAgent]) {
        for saved in saved {
            if let SavedAgent::Herald(frames) = saved {
                self.announce_all(frames.iter().cloned().collect());
            }
            self.lock().agents.iter_mut().for_each(|placed| placed.agent.restore(saved));
        }
    }

    /// Whether an agent has this role.
    pub fn has_agent(&self, role: Role) -> bool {
        self.lock().agents.iter().any(|had| had.role == role)
    }

    /// Listens for the LLDP of its neighbour, or no longer. What was heard stays until it is too old.
    pub(crate) fn listen(&self, listens: bool) {
        if listens != self.has_agent(Role::Listener) {
            let agent = listens.then(|| Box::new(Listener::default()) as Box<dyn Agent>);
            self.set_agent(Role::Listener, agent);
        }
    }

    /// The present LLDP neighbour, if the port listens.
    pub(crate) fn neighbour(&self, now: Time) -> Option<Neighbour> {
        self.lock().agents.iter().find_map(|placed| placed.agent.neighbour(now).cloned())
    }

    /// Its LLDP neighbour, which another process has heard, if the port listens.
    pub fn meet(&self, neighbour: &Neighbour) {
        self.lock().agents.iter_mut().for_each(|placed| placed.agent.meet(neighbour));
    }

    /// Sends these frames to the neighbour of the link.
    pub(crate) fn probe(&self, frames: VecDeque<Vec<u8>>) {
        self.set_agent(Role::Probe, Some(Box::new(Herald::new(frames, false))));
    }

    /// Announces addresses by these frames: to the neighbour of a link, or to the switch as a guest's port; in place of earlier ones
    /// that were not sent yet.
    pub(crate) fn announce_all(&self, frames: VecDeque<Vec<u8>>) {
        let faces_switch = Role::Herald.faces_switch(self.is_link);
        self.set_agent(Role::Herald, Some(Box::new(Herald::new(frames, faces_switch))));
    }

    /// A guest with this address was migrated here. The port sends a frame that needs no answer, so that every switch on the path
    /// learns the guest's new port. Not for a link.
    pub fn announce(&self, address: Mac) {
        if !self.is_link {
            // QEMU's announcement has the same form.
            self.announce_all(announced::of_station(address, None).into_iter().collect());
        }
    }

    /// Shows its agents the frames that the switch did not forward. Returns those that they took, a bit each.
    #[cold]
    pub(crate) fn hear(&self, batch: &Batch, drops: &[(u16, Reason)], now: Time) -> u64 {
        let mut inner = self.lock();
        let taken = inner.hear(batch, drops, now);
        inner.settle(self.shell.as_ref());
        taken
    }
}

/// Whether frames with this reason are for the neighbour of the link, or may be.
pub(crate) fn is_unforwarded(reason: Reason) -> bool {
    matches!(reason, Reason::Policy | Reason::UnusedLink | Reason::Blocked | Reason::MirrorPort)
}
