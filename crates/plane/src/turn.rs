//! A port's turn, in steps that each hold one lock, and that can stop between receivers and go on later.

use nicety_adapter::{Batch, Budget, Packet, PortId, Reason, Time};
use nicety_switch::Plan;

use crate::plane::Plane;
use crate::port::{Port, caught};
use crate::times::SAMPLE_EVERY;

/// Bytes that one turn copies to receivers before other ports have theirs; at least one receiver is served.
const REPLICA_BYTES: u64 = 128 << 10;
/// What a packet costs beside its bytes on the wire, in bytes: the work that does not depend on its length.
const PACKET_COST: u64 = 256;

/// How a turn ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The port has more to do: give it another turn when the others have had theirs.
    pub more: bool,
    /// The batch is not delivered to all its receivers yet: the same [`Turn`] must go on.
    pub unfinished: bool,
    /// What it cost, in bytes, replicas, what had waited for it and what went nowhere included: for fairness between ports.
    pub cost: u64,
    /// Packets that were fetched.
    pub packets: usize,
}

/// The state of a turn: a batch and its plan. One per worker, and one more for each flood that is under way.
#[derive(Debug, Default)]
pub struct Turn {
    batch: Batch,
    plan: Plan,
    next: usize,
    port: Option<PortId>,
    /// Packets whose receiver had left when they were to be delivered, a bit each.
    missed: u64,
    /// Batches until the next one whose time is taken, and when the one that is under way was fetched if it is that.
    until_sample: u32,
    since: Option<Time>,
}

impl Turn {
    /// Room for one batch. Nothing is allocated after the switch has its final size.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the time of one batch in [`SAMPLE_EVERY`], the first included.
    #[inline]
    fn sample(&mut self, port: &Port, now: Time) {
        if self.until_sample == 0 {
            self.until_sample = SAMPLE_EVERY;
            self.since = Some(port.clock(now));
        }
        self.until_sample -= 1;
    }

    /// The port whose batch is under way.
    pub fn unfinished(&self) -> Option<PortId> {
        self.port
    }
}

impl Plane {
    /// One turn of a port: whatever is under way in `turn` goes on; else its backlog, and one batch of one queue.
    pub fn turn(&self, port: &Port, turn: &mut Turn, now: Time) -> Outcome {
        let mut outcome = Outcome::default();
        if turn.port.is_none() {
            let gathered = port.gather(&mut turn.batch, Budget::TURN, now);
            for sender in gathered.released.iter().chain(&gathered.let_go) {
                if let Some(sender) = self.ports().get(usize::from(sender.0)).and_then(Option::as_ref) {
                    sender.let_go();
                }
            }
            let beside = gathered.drained as u64 + gathered.dropped;
            outcome.cost = gathered.drained_bytes + gathered.owed + beside * PACKET_COST;
            if gathered.progress.is_none() {
                outcome.more = port.busy(now);
                return outcome;
            }
            outcome.packets = turn.batch.len();
            if turn.batch.is_empty() {
                turn.batch.release();
                outcome.more = port.busy(now);
                return outcome;
            }
            turn.sample(port, now);
            let Turn { batch, plan, .. } = &mut *turn;
            if let Err(cause) = caught(|| self.switch().forward(batch, now, plan)) {
                plan.drop_all(batch.len(), Reason::Failed);
                port.fail(cause);
            }
            if self.is_watched() {
                self.show_ingress(batch, plan, now);
            }
            (turn.next, turn.port, turn.missed) = (0, Some(port.id()), 0);
        }
        self.deliver(turn, now, &mut outcome);
        if turn.next < turn.plan.receivers().len() {
            outcome.unfinished = true;
            outcome.more = true;
            return outcome;
        }
        if turn.missed != 0 {
            turn.plan.drop_missed(turn.missed);
        }
        outcome.cost += turn.plan.drops().len() as u64 * PACKET_COST;
        if turn.plan.drops().iter().any(|(_, reason)| *reason == Reason::Policy) {
            self.neighbours.hear(&turn.batch, turn.plan.drops(), now);
        }
        port.finish(&turn.batch, turn.plan.drops(), now);
        if let Some(since) = turn.since.take() {
            self.times.took(turn.batch.len(), since, port.clock(now));
        }
        turn.port = None;
        turn.plan.clear();
        turn.batch.release();
        outcome.more = port.busy(now);
        outcome
    }

    /// Receiver after receiver, until the turn has cost enough.
    fn deliver(&self, turn: &mut Turn, now: Time, outcome: &mut Outcome) {
        let ports = self.ports();
        while let Some(&receiver) = turn.plan.receivers().get(turn.next) {
            turn.next += 1;
            let Some(port) = ports.get(usize::from(receiver.0)).and_then(Option::as_ref) else {
                turn.missed |= turn.plan.miss(receiver);
                continue;
            };
            let picks = turn.plan.picks(receiver);
            let holds = if self.is_watched() {
                self.offer_watched(port, &turn.batch, picks, now)
            } else {
                port.offer(&turn.batch, picks, now)
            };
            if holds && let Some(sender) = ports.get(usize::from(turn.batch.origin.0)).and_then(Option::as_ref) {
                sender.hold();
            }
            let bytes = if picks.len() == turn.batch.len() {
                // No packet goes to a receiver twice: these are all.
                turn.batch.bytes()
            } else {
                picks.iter().filter_map(|pick| turn.batch.packet(pick.packet)).map(Packet::wire_bytes).sum()
            };
            outcome.cost += bytes + picks.len() as u64 * PACKET_COST;
            if outcome.cost >= REPLICA_BYTES {
                return;
            }
        }
    }
}
