//! An aggregate's state, for another process that goes on with the same partner: no timer begins anew, and the partner notices nothing.

use nicety_adapter::Time;
use nicety_frame::Mac;
use serde::{Deserialize, Serialize};

use crate::pdu::{FRAME_BYTES, Info, State};
use crate::port::{MARKERS_MAX, Mux, PDUS_MAX, Port, Receive, Selected};
use crate::{Aggregate, Lag};

/// The state of an [`Aggregate`] without its settings. Times are of the clock that its calls bring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    chosen: Option<Lag>,
    links: Vec<SavedLink>,
}

/// A port, as a PDU describes it: system priority, system, key, port priority, port, state.
type SavedInfo = (u16, [u8; 6], u16, u16, u16, u8);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedLink {
    is_up: bool,
    receive: Receive,
    mux: Mux,
    selected: Selected,
    partner: SavedInfo,
    /// The actor's state; the rest of it is settings.
    state: u8,
    looped_until: Option<Time>,
    current_until: Option<Time>,
    wait_until: Option<Time>,
    periodic_at: Option<Time>,
    needs: bool,
    retry_at: Time,
    sent: Vec<Time>,
    answered: Vec<Time>,
    answers: Vec<Vec<u8>>,
    out_of_sync: [Option<Time>; 2],
}

impl SavedLink {
    fn of(port: &Port) -> Self {
        let Port { is_up, receive, mux, selected, partner, looped_until, actor, source: _, .. } = port;
        let Port { current_until, wait_until, periodic_at, needs, retry_at, .. } = port;
        let Port { sent, answered, answers, out_of_sync, .. } = port;
        let Info { system_priority, system, key, port_priority, port: number, state } = *partner;
        Self {
            is_up: *is_up,
            receive: *receive,
            mux: *mux,
            selected: *selected,
            partner: (system_priority, system.0, key, port_priority, number, state.0),
            state: actor.state.0,
            looped_until: *looped_until,
            current_until: *current_until,
            wait_until: *wait_until,
            periodic_at: *periodic_at,
            needs: *needs,
            retry_at: *retry_at,
            sent: sent.iter().copied().collect(),
            answered: answered.iter().copied().collect(),
            answers: answers.iter().map(|answer| answer.to_vec()).collect(),
            out_of_sync: *out_of_sync,
        }
    }

    fn restore(&self, port: &mut Port) {
        let (system_priority, system, key, port_priority, number, state) = self.partner;
        let system = Mac(system);
        port.partner = Info { system_priority, system, key, port_priority, port: number, state: State(state) };
        port.actor.state = State(self.state);
        (port.is_up, port.receive, port.mux, port.selected) = (self.is_up, self.receive, self.mux, self.selected);
        (port.looped_until, port.current_until, port.wait_until) =
            (self.looped_until, self.current_until, self.wait_until);
        (port.periodic_at, port.needs, port.retry_at) = (self.periodic_at, self.needs, self.retry_at);
        port.sent = self.sent.iter().copied().take(PDUS_MAX).collect();
        port.answered = self.answered.iter().copied().take(MARKERS_MAX).collect();
        let answer = |answer: &Vec<u8>| <[u8; FRAME_BYTES]>::try_from(&answer[..]).ok().map(Box::new);
        port.answers = self.answers.iter().take(MARKERS_MAX).filter_map(answer).collect();
        port.out_of_sync = self.out_of_sync;
    }
}

impl Aggregate {
    /// Its state.
    pub fn save(&self) -> Saved {
        let Self { min_links: _, ports, chosen } = self;
        Saved { chosen: *chosen, links: ports.iter().map(SavedLink::of).collect() }
    }

    /// Goes on from the state of an aggregate with the same settings. False, and nothing changes, if that had another number of links.
    pub fn restore(&mut self, saved: &Saved) -> bool {
        if saved.links.len() != self.ports.len() {
            return false;
        }
        self.chosen = saved.chosen;
        self.ports.iter_mut().zip(&saved.links).for_each(|(port, link)| link.restore(port));
        true
    }
}
