//! A port's turn. Each step holds one lock, and the turn can stop between receivers and continue later.

use nicety_adapter::{Batch, Budget, Frames, News, Packet, Pick, PortId, Reason, Time};
use nicety_switch::{Plan, Skipped, Slots};

use super::{COUNTED, Plane, Slot};
use crate::flows::{Decided, FlowTables};
use crate::group::Group;
use crate::inward::Charged;
use crate::losses::Losses;
use crate::port::{HeldSender, Port, caught, is_unforwarded};
use crate::times::SAMPLE_EVERY;

/// One turn copies this many bytes to receivers before other ports get a turn; at least one receiver is served.
const REPLICA_BYTES: u64 = 128 << 10;
/// The fixed cost of a packet in bytes: the work that is independent of its length.
pub(super) const PACKET_COST: u64 = 256;

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
    /// Receivers of the plan that get frames, and no mirror's copies: the first ones.
    receivers: usize,
    /// Packets whose receiver left before delivery, a bit each.
    missed: u64,
    /// Packets that a receiver dropped.
    losses: Losses,
    /// Packets that inward I/O control has charged.
    charged: Charged,
    /// Batches until the next timed one, and the fetch time of the batch in flight, if it is timed.
    until_sample: u32,
    since: Option<Time>,
    /// The flows that its worker has counted.
    pub(super) flows: FlowTables,
}

impl Turn {
    /// Room for one batch. Allocates no more once the switch has its final size.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes over what the switch keeps from batch to batch, from a turn that stays for an unfinished flood.
    pub fn succeed(&mut self, other: &mut Self) {
        self.plan.succeed(&mut other.plan);
        self.take_flows(other);
    }

    /// Takes over the flows that another turn has counted. A worker has one set of counted flows, which the turn that runs next must have.
    pub fn take_flows(&mut self, other: &mut Self) {
        self.flows = std::mem::take(&mut other.flows);
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
        if turn.port.is_none() && !self.begin(port, turn, now, &mut outcome) {
            outcome.more = port.busy(now);
            return outcome;
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
        if turn.losses.is_on() {
            let Turn { batch, plan, receivers, losses, flows, .. } = &mut *turn;
            let receivers = plan.receivers().get(..*receivers).unwrap_or_default();
            self.count_flows(batch, Decided { plan, receivers }, losses, flows, now);
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

    /// The first steps: gathers a batch, and decides where its packets go. False if there are none.
    #[inline]
    fn begin(&self, port: &Port, turn: &mut Turn, now: Time, outcome: &mut Outcome) -> bool {
        let gathered = port.gather(&mut turn.batch, Budget::TURN, now);
        if !(gathered.released.is_empty() && gathered.let_go.is_empty()) {
            self.let_go(&gathered.released);
            self.let_go(&gathered.let_go);
        }
        if port.is_special() {
            self.stir_team(port, now);
        }
        if port.inward().is_there() {
            turn.charged = Charged::default();
            outcome.cost += self.pass_on(port, now);
        }
        let beside = gathered.drained as u64 + gathered.dropped;
        outcome.cost += gathered.drained_bytes + gathered.owed + beside * PACKET_COST;
        if gathered.progress.is_none() {
            return false;
        }
        outcome.packets = turn.batch.len();
        outcome.cost += turn.batch.summed();
        let has_packets = !turn.batch.is_empty();
        if has_packets {
            turn.sample(port, now);
            self.decide(port, turn, now);
        } else {
            turn.batch.release();
        }
        if gathered.is_drained {
            port.note_drained();
        }
        if has_packets {
            self.show(port, turn, now, outcome);
        }
        has_packets
    }

    /// Decides for a batch.
    #[inline]
    fn decide(&self, port: &Port, turn: &mut Turn, now: Time) {
        let Turn { batch, plan, slots, .. } = &mut *turn;
        let decided = match port.is_special() {
            true => self.decide_specially(port, batch, plan, now),
            false => caught(|| self.switch().forward(batch, now, plan)),
        };
        match decided {
            Ok(planned_for) => *slots = Some(planned_for),
            Err(cause) => {
                plan.drop_all(batch.len(), Reason::Failed);
                port.fail(cause);
            }
        }
    }

    /// Shows agents and watchers what was decided.
    #[inline]
    fn show(&self, port: &Port, turn: &mut Turn, now: Time, outcome: &mut Outcome) {
        if port.has_agents() && turn.plan.drops().iter().any(|(_, reason)| is_unforwarded(*reason)) {
            self.hear(port, turn, now);
        }
        let Turn { batch, plan, slots, receivers, losses, .. } = &mut *turn;
        let watched = self.watched();
        losses.begin(watched & COUNTED != 0);
        *receivers = plan.receivers().len();
        if watched & !COUNTED != 0 {
            let copies = self.show_ingress(port, batch, plan, slots.as_ref(), now);
            outcome.cost = outcome.cost.saturating_sub(copies);
        }
        (turn.next, turn.port, turn.missed) = (0, Some(port.id()), 0);
    }

    /// Decides for a batch of a port that gets a mirror's copies, of a team's member, of a link by which frames could go round, or of a port
    /// that stands by for another one. `Err`: a panic.
    #[inline(never)]
    fn decide_specially(&self, port: &Port, batch: &Batch, plan: &mut Plan, now: Time) -> Result<Slots<Slot>, String> {
        // A link that its team does not use takes nothing into the switch: what comes in there came by another link too, or left by one.
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
            if let Some(primary) = port.primary() {
                return self.switch().forward_standby(batch, primary, now, plan);
            }
            let duplicates = port.takes_duplicates().map_or(0, |side| self.duplicates(&side, batch, now));
            let (looped, taken) = if port.is_guarded() { self.looped(port, batch, now) } else { (0, 0) };
            match duplicates | looped | taken {
                0 => self.switch().forward(batch, now, plan),
                _ => self.switch().forward_except(batch, Skipped { duplicates, looped, taken }, now, plan),
            }
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
            if let Some(moved) = team.steering().and_then(|steering| steering.take_told())
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
            let Some(slot) = slots.get(receiver).filter(|slot| slot.is_there()) else {
                turn.missed |= turn.plan.miss(receiver);
                continue;
            };
            let picks = turn.plan.picks(receiver);
            let losses = &mut turn.losses;
            losses.offer_to(receiver);
            match slot {
                Slot::Sink(port) => port.offer_copies(&turn.batch, &picks, now),
                _ if sender.inward().is_there() && slot.is_guests() => {
                    let frames = Frames::new(&turn.batch, &picks);
                    self.keep_inward(sender, slot, &frames, (&mut turn.charged, losses), now);
                }
                Slot::Port(port) => self.offer(sender, port, (&turn.batch, &picks), losses, now),
                Slot::Group(group) => self.offer_to_group(sender, group, (&turn.batch, &picks), losses, now),
            }
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
    fn offer(&self, sender: &Port, port: &Port, (batch, picks): (&Batch, &[Pick]), losses: &mut Losses, now: Time) {
        if self.offer_shown(port, batch, picks, losses, now) {
            sender.hold();
            if !port.name_held(sender) {
                sender.let_go();
            }
        }
    }

    /// Offers each port of a group its part of the frames.
    #[inline(never)]
    fn offer_to_group(
        &self,
        sender: &Port,
        group: &Group,
        (batch, picks): (&Batch, &[Pick]),
        losses: &mut Losses,
        now: Time,
    ) {
        group.divide(batch, picks, losses, |port, picks, losses| {
            self.offer(sender, port, (batch, picks), losses, now);
        });
    }
}
