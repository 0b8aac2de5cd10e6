//! Announces addresses that are reached by this port from now on.

use std::collections::VecDeque;

use nicety_adapter::Time;

use crate::agent::{Agent, LinkState, SavedAgent};

/// Announcements in one turn, and the time until the next ones, or until the next try if there is no room.
const AT_ONCE: usize = 64;
const PAUSE_NS: u64 = 1_000_000;

/// Sends its frames as there is room, each once, and leaves. It leaves too if the link fails.
#[derive(Debug)]
pub(crate) struct Herald {
    frames: VecDeque<Vec<u8>>,
    /// The link can pass frames. On a guest's port there is none to wait for.
    is_up: bool,
    at: Time,
}

impl Herald {
    /// An announcement to the switch, or to the neighbour of a link.
    pub fn new(frames: VecDeque<Vec<u8>>, faces_switch: bool) -> Self {
        Self { frames, is_up: faces_switch, at: Time::ZERO }
    }
}

impl Agent for Herald {
    fn link(&mut self, state: LinkState, _: Time) {
        self.is_up = state.is_up;
        if !self.is_up {
            // When the link is back, addresses may be reached by another one.
            self.frames.clear();
        }
    }

    fn speak(&mut self, now: Time, send: &mut dyn FnMut(&[u8]) -> bool) {
        if self.at > now {
            return;
        }
        for _ in 0..AT_ONCE {
            if !self.frames.front().is_some_and(|frame| send(frame)) {
                break;
            }
            self.frames.pop_front();
        }
        self.at = now.after_ns(PAUSE_NS);
    }

    fn wake(&self) -> Option<Time> {
        (self.is_up && !self.frames.is_empty()).then_some(self.at)
    }

    fn is_done(&self) -> bool {
        self.frames.is_empty()
    }

    fn save(&self) -> Option<SavedAgent> {
        Some(SavedAgent::Herald(self.frames.iter().cloned().collect()))
    }
}
