//! The agents of a port: what they hear, and how they speak.

use std::sync::Arc;

use nicety_adapter::{Batch, Frames, Pick, PortId, Reason, Time};
use nicety_memory::{Map, MapError};

use super::caught::caught;
use super::inner::Inner;
use crate::agent::LinkState;

/// Most bytes of a frame that an agent hears or sends.
const FRAME_MOST: usize = 1514;

/// Announcements in one turn, and the time until the next ones, or until the next try if the uplink has no room.
const ANNOUNCED_AT_ONCE: usize = 64;
const ANNOUNCE_NS: u64 = 1_000_000;

/// Memory for a frame of our own.
pub(super) struct Voice {
    batch: Batch,
    map: Arc<Map>,
}

impl Voice {
    pub fn new() -> Result<Self, MapError> {
        Ok(Self { batch: Batch::new(), map: Arc::new(Map::private(FRAME_MOST)?) })
    }
}

impl Inner {
    /// Lets agents speak before the frames that wait for a full uplink: those take all the room that a turn finds.
    pub fn speak_first(&mut self, now: Time) {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if !self.backlog.is_empty()
            && (is_due(self.announce_at) || self.agents.iter().any(|(_, agent)| is_due(agent.wake())))
        {
            self.attend(now);
        }
    }

    /// The agents' part of a turn.
    #[cold]
    pub fn attend(&mut self, now: Time) {
        let is_up = self.call_uplink(|uplink, _| uplink.carrier());
        let bytes = [self.counters.taken().bytes, self.counters.transmitted().bytes];
        let state = LinkState { is_up, has_backlog: !self.backlog.is_empty(), bytes };
        let mut agents = std::mem::take(&mut self.agents);
        let attended = caught(|| {
            for (_, agent) in &mut agents {
                agent.link(state, now);
                if is_up {
                    agent.speak(now, &mut |frame| self.say(frame, now));
                }
            }
        });
        self.agents = agents;
        self.announce_some(now);
        if let Err(cause) = attended {
            self.fail(cause);
        }
    }

    /// Sends some of the announcements; the rest soon after.
    fn announce_some(&mut self, now: Time) {
        if self.announce_at.is_some_and(|at| at > now) {
            return;
        }
        for _ in 0..ANNOUNCED_AT_ONCE {
            let Some(frame) = self.announcements.pop_front() else { break };
            if !self.say(&frame, now) {
                self.announcements.push_front(frame);
                break;
            }
        }
        self.announce_at = (!self.announcements.is_empty()).then(|| now.after_ns(ANNOUNCE_NS));
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
            self.hushed_until = now.after_ns(ANNOUNCE_NS);
        }
        batch.release();
        self.voice = Some(voice);
        is_sent
    }

    /// Shows the agents the frames that the switch did not forward.
    pub fn hear(&mut self, batch: &Batch, drops: &[(u16, Reason)], now: Time) {
        let mut agents = std::mem::take(&mut self.agents);
        let heard = caught(|| {
            let mut frame = [0; FRAME_MOST];
            for (packet, _) in drops.iter().filter(|(_, reason)| is_unforwarded(*reason)) {
                let Some(packet) = batch.packet(*packet) else { continue };
                let len = batch.copy(packet, &mut frame);
                agents.iter_mut().for_each(|(_, agent)| agent.hear(&frame[..len], now));
            }
        });
        self.agents = agents;
        if let Err(cause) = heard {
            self.fail(cause);
        }
    }
}

/// Whether frames with this reason are for the neighbour of the link, or may be.
pub(crate) fn is_unforwarded(reason: Reason) -> bool {
    matches!(reason, Reason::Policy | Reason::UnusedLink | Reason::MirrorPort)
}
