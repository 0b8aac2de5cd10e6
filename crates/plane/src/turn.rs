//! A port's turn. Each step holds one lock, and the turn can stop between receivers and continue later.

use nicety_adapter::{Batch, Budget, News, Packet, Pick, PortId, Reason, Time};
use nicety_switch::{Plan, Skipped, Slots};

use crate::inward::Charged;
use crate::plane::{Plane, Slot};
use crate::port::{HeldSender, Port, caught, is_unforwarded};
use crate::split::Split;
use crate::team::Team;
use crate::times::SAMPLE_EVERY;

/// One turn copies this many bytes to receivers before other ports get a turn; at least one receiver is served.
const REPLICA_BYTES: u64 = 128 << 10;
/// The fixed cost of a packet in bytes: the work that is independent of its length.
const PACKET_COST: u64 = 256;

/// Result of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The port has more work: give it another turn after the others.
    pub more: bool,
    /// Some receivers do not have the batch yet: continue with the same [`Turn`].
    pub unfinished: bool,
    /// The cost of the turn, in bytes, for fairness between ports. Replicas, backlog and dropped frames count.
    pub cost: u64,
    /// Packets that were fetched.
    pub packets: usize,
}

/// The state of a turn: a batch, its plan, and the plan's receivers. One per worker, and one more for each unfinished flood.
#[derive(Debug, Default)]
pub struct Turn {
    batch: Batch,
    plan: Plan,
    /// The ports that the plan is for.
    slots: Option<Slots<Slot>>,
    next: usize,
    port: Option<PortId>,
    /// Packets whose receiver left before delivery, a bit each.
    missed: u64,
    /// Packets that inward I/O control has charged.
    charged: Charged,
    /// Batches until the next timed one, and the fetch time of the batch in flight, if it is timed.
    until_sample: u32,
    since: Option<Time>,
}

impl Turn {
    /// Room for one batch. Allocates no more once the switch has its final size.
    pub fn new() -> Self {
        Self::default()
    }

    /// Times one batch in [`SAMPLE_EVERY`], starting with the first.
    #[inline]
    fn sample(&mut self, port: &Port, now: Time) {
        if self.until_sample == 0 {
            self.until_sample = SAMPLE_EVERY;
            self.since = Some(port.clock(now));
        }
        self.until_sample -= 1;
    }

    /// The port whose batch is in flight.
    pub fn unfinished(&self) -> Option<PortId> {
        self.port
    }
}

impl Plane {
    /// One turn of a port: continues the unfinished batch of `turn`; else drains its backlog and fetches one batch of one queue.
    pub fn turn(&self, port: &Port, turn: &mut Turn, now: Time) -> Outcome {
        let mut outcome = Outcome::default();
        if turn.port.is_none() {
            let gathered = port.gather(&mut turn.batch, Budget::TURN, now);
            self.let_go(&gathered.released);
            self.let_go(&gathered.let_go);
            let mut is_apart = false;
            if port.is_special() {
                is_apart = port.is_apart();
                self.stir_team(port, now);
            }
            if port.inward().is_there() {
                turn.charged = Charged::default();
                outcome.cost += self.pass_on(port, now);
            }
            let beside = gathered.drained as u64 + gathered.dropped;
            outcome.cost += gathered.drained_bytes + gathered.owed + beside * PACKET_COST;
            if gathered.progress.is_none() {
                outcome.more = port.busy(now);
                return outcome;
            }
            outcome.packets = turn.batch.len();
            outcome.cost += turn.batch.summed();
            if turn.batch.is_empty() {
                if gathered.is_drained {
                    port.has_drained();
                }
                turn.batch.release();
                outcome.more = port.busy(now);
                return outcome;
            }
            turn.sample(port, now);
            let Turn { batch, plan, slots, .. } = &mut *turn;
            // A link that its team does not use takes nothing into the switch: what comes in there came by another link too, or left
            // by one.
            let forwarded = if is_apart {
                self.forward_apart(port, batch, plan, now)
            } else if port.is_refused() {
                plan.drop_all(batch.len(), Reason::UnusedLink);
                Ok(self.switch().slots())
            } else if let Some((steering, member, floods)) = port.takes_copies() {
                caught(|| {
                    let copies = self.copies(steering, member, floods, batch, now);
                    self.switch().forward_except(batch, Skipped { copies, ..Skipped::default() }, now, plan)
                })
            } else {
                caught(|| self.switch().forward(batch, now, plan))
            };
            match forwarded {
                Ok(planned_for) => *slots = Some(planned_for),
                Err(cause) => {
                    plan.drop_all(batch.len(), Reason::Failed);
                    port.fail(cause);
                }
            }
            if gathered.is_drained {
                port.has_drained();
            }
            if port.has_agents() && turn.plan.drops().iter().any(|(_, reason)| is_unforwarded(*reason)) {
                self.hear(port, turn, now);
            }
            let Turn { batch, plan, slots, .. } = &mut *turn;
            if self.is_watched() {
                let copies = self.show_ingress(port, batch, plan, slots.as_ref(), now);
                outcome.cost = outcome.cost.saturating_sub(copies);
            }
            (turn.next, turn.port, turn.missed) = (0, Some(port.id()), 0);
        }
        let slots = turn.slots.take();
        if let Some(slots) = &slots {
            self.deliver(port, slots, turn, now, &mut outcome);
        }
        if turn.next < turn.plan.receivers().len() {
            turn.slots = slots.map(Slots::kept);
            outcome.unfinished = true;
            outcome.more = true;
            return outcome;
        }
        if turn.missed != 0 {
            turn.plan.drop_missed(turn.missed);
        }
        if !turn.plan.drops().is_empty() {
            outcome.cost += turn.plan.drops().len() as u64 * PACKET_COST;
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

    /// Decides for a batch of a port that gets a mirror's copies, or by which frames could go round. `Err`: a panic.
    #[cold]
    #[inline(never)]
    fn forward_apart(&self, port: &Port, batch: &Batch, plan: &mut Plan, now: Time) -> Result<Slots<Slot>, String> {
        let refused = match (port.is_aside(), port.is_refused()) {
            (true, _) => Some(Reason::MirrorPort),
            (false, true) => Some(Reason::UnusedLink),
            (false, false) => None,
        };
        if let Some(reason) = refused {
            plan.drop_all(batch.len(), reason);
            return Ok(self.switch().slots());
        }
        caught(|| {
            let copies = port.takes_copies();
            let copies =
                copies.map_or(0, |(steering, member, floods)| self.copies(steering, member, floods, batch, now));
            let (looped, taken) = self.looped(port, batch, now);
            self.switch().forward_except(batch, Skipped { copies, looped, taken }, now, plan)
        })
    }

    /// Lets senders go that an uplink held. A port that has one's number now is another: nobody held it.
    pub(crate) fn let_go(&self, held: &[HeldSender]) {
        if held.is_empty() {
            return;
        }
        let slots = self.switch().slots();
        for HeldSender { sender, tenure } in held {
            let sender = slots.get(*sender).and_then(Slot::port);
            if let Some(sender) = sender.filter(|sender| sender.tenure() == *tenure) {
                sender.let_go();
            }
        }
    }

    /// Shows the frames that the switch did not forward to the port's agents.
    #[cold]
    fn hear(&self, port: &Port, turn: &mut Turn, now: Time) {
        let taken = port.hear(&turn.batch, turn.plan.drops(), now);
        turn.plan.take(taken);
        self.stir_team(port, now);
    }

    /// Gives turns to the members of a port's team that need one.
    #[cold]
    fn stir_team(&self, port: &Port, now: Time) {
        if let Some(team) = port.team().and_then(|id| self.team(id)) {
            self.announce_moved(&team, now);
            if let Some(moved) = team.steering().take_told()
                && let Some(port) = self.port(moved.port)
            {
                port.tell(News::Moved(moved.words));
            }
            team.stir();
        }
    }

    /// Delivers to one receiver after another, until the turn's cost limit is reached.
    fn deliver(&self, sender: &Port, slots: &Slots<Slot>, turn: &mut Turn, now: Time, outcome: &mut Outcome) {
        while let Some(&receiver) = turn.plan.receivers().get(turn.next) {
            turn.next += 1;
            let picks = match slots.get(receiver) {
                Some(slot @ Slot::Port(port)) if !port.has_left() => {
                    let picks = turn.plan.picks(receiver);
                    if sender.inward().is_there() && !port.is_link() {
                        self.keep_inward(sender, slot, &turn.batch, &picks, &mut turn.charged, now);
                    } else {
                        self.offer(sender, port, &turn.batch, &picks, now);
                    }
                    picks
                }
                Some(slot) if slot.divides() => {
                    let picks = turn.plan.picks(receiver);
                    self.offer_divided(sender, slot, turn, &picks, now);
                    picks
                }
                _ => {
                    turn.missed |= turn.plan.miss(receiver);
                    continue;
                }
            };
            let bytes = if picks.len() == turn.batch.len() {
                // The receiver gets the whole batch: no packet goes to a receiver twice.
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

    /// Offers frames to a port, which may hold their sender.
    #[inline]
    fn offer(&self, sender: &Port, port: &Port, batch: &Batch, picks: &[Pick], now: Time) {
        let holds =
            if self.is_watched() { self.offer_watched(port, batch, picks, now) } else { port.offer(batch, picks, now) };
        if holds {
            sender.hold();
            if !port.name_held(sender) {
                sender.let_go();
            }
        }
    }

    /// Offers frames to a slot of several ports.
    #[inline(never)]
    fn offer_divided(&self, sender: &Port, slot: &Slot, turn: &mut Turn, picks: &[Pick], now: Time) {
        match slot {
            Slot::Port(_) => {}
            Slot::Team(team) => self.offer_to_team(sender, team, &turn.batch, picks, now),
            Slot::Split(_) if sender.inward().is_there() => {
                self.keep_inward(sender, slot, &turn.batch, picks, &mut turn.charged, now);
            }
            Slot::Split(split) => self.offer_to_parts(sender, split, &turn.batch, picks, now),
        }
    }

    /// Offers each part of a port the frames of its flows.
    #[inline(never)]
    fn offer_to_parts(&self, sender: &Port, split: &Split, batch: &Batch, picks: &[Pick], now: Time) {
        split.divide(batch, picks, |part, picks| self.offer(sender, part, batch, picks, now));
    }

    /// Offers each member of a team its part of the frames.
    #[inline(never)]
    fn offer_to_team(&self, sender: &Port, team: &Team, batch: &Batch, picks: &[Pick], now: Time) {
        team.divide(batch, picks, |member, picks| self.offer(sender, member, batch, picks, now));
    }
}
