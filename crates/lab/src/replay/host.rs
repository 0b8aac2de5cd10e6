//! The two hosts of a guest: the owner runs it, and its twin replays it and can take over.
//!
//! ```text
//! outside ─► Host::offer ─► guest ─► gate ───────────────► Action::Emit ─► outside
//!                  │                   ▲ the twin has the inputs up to this epoch
//!                  └► log ─► Message::Log ═════► Host::receive ─► replay
//!                                      ▲                 │
//!                                      └════ Loaded { n } ◄┘
//! ```
//! [`Owner`] and [`Twin`] decide all that is about ownership, as they do for a VM. A host carries out their actions for its guest:
//! - The first copy is all inputs so far, and each input after it closes an epoch. An epoch's number is one more than its inputs, so the copy
//!   of a guest without inputs has a number, too.
//! - The link brings all messages, in order, or is [lost](Host::lost).

use nicety_adapter::Time;
use nicety_lease::{Answer, Request};
use nicety_plane::GateMode;
use nicety_protect::{Action as Order, Owner, Pairing, Run, Stage, Twin, TwinStage};

use super::gate::Gate;
use super::input::{GuestTime, Input, Machine};
use super::log::{Entry, Log, Message, Piece};

/// Times and sizes of a pair of hosts.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Times of the lease, and of the hosts.
    pub protect: nicety_protect::Terms,
    /// Bytes of frames that wait for the twin. At this limit the guest takes no input.
    pub gate_bytes: usize,
    /// Inputs that the twin may lack, a joining one too. At this limit the guest takes none.
    pub window: u64,
    /// Bytes of old inputs that are kept for a twin that joins later.
    pub log_bytes: usize,
    /// A digest of the guest's state goes along every so many inputs.
    pub state_every: u64,
}

impl Default for Terms {
    fn default() -> Self {
        let protect = nicety_protect::Terms::default();
        Self { protect, gate_bytes: 1 << 20, window: 4096, log_bytes: 64 << 20, state_every: 1024 }
    }
}

/// Bytes of inputs in one message.
const MESSAGE_BYTES: usize = 64 << 10;
/// So many inputs go to the twin at once, also if no frame follows from them.
const UNSENT_MAX: u64 = 64;
/// Protections of one owner have numbers below this one.
const PAIRINGS: u64 = 1 << 16;

/// The part of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It runs the guest, or will once the third party agrees.
    Owner,
    /// It replays the guest.
    Twin,
    /// It has ended.
    Out(End),
}

/// The reason why a host has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// Another host owns the guest.
    #[error("another host owns the guest")]
    Owned,
    /// The owner goes on without it, or it has no whole copy and the owner is lost.
    #[error("its copy of the guest is of no use any more")]
    Stale,
    /// Its replica does not do what the owner's does.
    #[error("the replica differs from the owner's after input {0}")]
    Differs(u64),
    /// The first inputs are kept nowhere any more.
    #[error("the owner has no inputs before input {0} any more: start both hosts again")]
    TooOld(u64),
    /// The guest cannot continue.
    #[error("the guest: {0}")]
    Failed(String),
}

/// Something that the host's program has to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this message to the other host.
    Send(Message),
    /// Send this frame to the outside.
    Emit(Vec<u8>),
    /// Ask the third party. The answer goes to [`Host::answered`], with the number.
    Ask(u32, Request),
}

/// The state of a host, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its part.
    pub role: Role,
    /// Its stage as an owner.
    pub stage: Option<Stage>,
    /// Inputs of the guest.
    pub inputs: u64,
    /// Inputs that the twin has, as far as the owner knows.
    pub known: u64,
    /// Whether a twin can take over (owner only).
    pub is_protected: bool,
    /// Frames and bytes that wait for the twin.
    pub waiting: (usize, usize),
}

#[derive(Debug)]
enum Part {
    Owner(Owner),
    Twin(Twin),
    Out(End),
}

/// The log on its way to the twin.
#[derive(Debug)]
struct Copying {
    pairing: Pairing,
    /// Inputs of the first copy.
    copied: u64,
    /// Inputs that were sent, and when the last ones were.
    sent: u64,
    spoken: Option<Time>,
}

/// See the module's page.
#[derive(Debug)]
pub struct Host<M> {
    id: Run,
    machine: M,
    terms: Terms,
    part: Part,
    /// Inputs that the guest has had.
    inputs: u64,
    log: Log,
    gate: Gate,
    /// The time of the guest's last input, and its time minus the host's, in microseconds.
    guest: GuestTime,
    shift_us: i64,
    /// Messages that are sent at the next step.
    messages: Vec<Message>,

    // Of an owner.
    pairings: u64,
    copying: Option<Copying>,
    /// Inputs when the state's digest was last sent.
    state_at: u64,
    /// The next time to say where the guest is, if it was taken over.
    announce_at: Option<Time>,

    // Of a twin.
    /// The next time to say that it is there.
    offer_at: Time,
}

impl<M: Machine> Host<M> {
    fn new(id: Run, machine: M, terms: Terms, part: Part, mode: GateMode) -> Self {
        Self {
            id,
            machine,
            terms,
            part,
            inputs: 0,
            log: Log::new(terms.log_bytes),
            gate: Gate::new(mode),
            guest: GuestTime::default(),
            shift_us: 0,
            messages: Vec::new(),
            pairings: 0,
            copying: None,
            state_at: 0,
            announce_at: None,
            offer_at: Time::ZERO,
        }
    }

    /// A host that will run a new guest.
    pub fn owner(id: Run, machine: M, terms: Terms) -> Self {
        Self::new(id, machine, terms, Part::Owner(Owner::new(id, terms.protect)), GateMode::Shut)
    }

    /// A host that will replay the guest: `machine` is in the same state as the owner's was at first.
    pub fn twin(id: Run, machine: M, terms: Terms) -> Self {
        Self::new(id, machine, terms, Part::Twin(Twin::new(id, terms.protect)), GateMode::Mute)
    }

    /// Its part.
    pub fn role(&self) -> Role {
        match &self.part {
            Part::Owner(_) => Role::Owner,
            Part::Twin(_) => Role::Twin,
            Part::Out(end) => Role::Out(end.clone()),
        }
    }

    /// The guest.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    fn as_owner(&self) -> Option<&Owner> {
        if let Part::Owner(owner) = &self.part { Some(owner) } else { None }
    }

    /// Its state, for a person.
    pub fn status(&self) -> Status {
        let stage = self.as_owner().map(Owner::stage);
        Status {
            role: self.role(),
            stage,
            inputs: self.inputs,
            known: self.known().unwrap_or_default(),
            is_protected: matches!(stage, Some(Stage::Protected { .. })),
            waiting: self.gate.waiting(),
        }
    }

    /// Whether frames may leave at `now`.
    pub fn owns(&self, now: Time) -> bool {
        self.as_owner().is_some() && self.gate.is_open(now)
    }

    /// Whether the guest can take an input. If not, frames from the outside wait, or are lost.
    pub fn has_room(&self) -> bool {
        let runs = self
            .as_owner()
            .is_some_and(|owner| !matches!(owner.stage(), Stage::Begins | Stage::Leaving { .. } | Stage::Ended(_)));
        let lag = if self.copying.is_some() { self.inputs - self.known().unwrap_or_default() } else { 0 };
        runs && self.gate.waiting().1 < self.terms.gate_bytes && lag < self.terms.window
    }

    /// The number of the epoch that the last input has closed.
    fn epoch(&self) -> u64 {
        self.inputs + 1
    }

    /// Inputs that the twin has. `None`: it has no whole copy.
    fn known(&self) -> Option<u64> {
        let (_, loaded) = self.as_owner()?.copies();
        loaded.checked_sub(1)
    }

    fn guest_time(&self, now: Time) -> GuestTime {
        let shifted = (now.0 / 1000).saturating_add_signed(self.shift_us);
        self.guest.max(GuestTime(shifted))
    }

    /// A frame from the outside. False if the guest cannot take it ([`Host::has_room`]). Call [`Host::step`] after the last one.
    pub fn offer(&mut self, frame: Vec<u8>, now: Time) -> bool {
        let takes = self.has_room();
        if takes {
            self.give(Input::Frame(frame), now);
        }
        takes
    }

    /// Gives the guest an input, as its owner.
    fn give(&mut self, input: Input, now: Time) {
        let entry = Entry { at: self.guest_time(now), input, check: self.machine.history() as u8 };
        let needed = if self.copying.is_some() { self.known().unwrap_or_default() } else { self.inputs };
        self.apply(entry, needed);
        self.close(now);
    }

    /// Closes an epoch, if a twin has a copy or gets one.
    fn close(&mut self, now: Time) {
        let epoch = self.epoch();
        if let (Part::Owner(owner), Some(copying)) = (&mut self.part, &self.copying) {
            self.gate.close();
            owner.closed(copying.pairing, epoch, now);
        }
    }

    fn apply(&mut self, entry: Entry, needed: u64) {
        let mut out = Vec::new();
        self.machine.take(entry.at, &entry.input, &mut out);
        self.guest = entry.at;
        self.inputs += 1;
        self.log.push(entry, needed);
        self.gate.push(self.epoch(), out);
        if let Some(why) = self.machine.failure() {
            self.part = Part::Out(End::Failed(why));
        }
    }

    /// When [`Host::step`] is due at the latest.
    pub fn due(&self) -> Option<Time> {
        match &self.part {
            Part::Out(_) => None,
            Part::Twin(twin) => {
                let offer = (twin.stage() == TwinStage::Offers).then_some(self.offer_at);
                [twin.wake_at(), offer].into_iter().flatten().min()
            }
            Part::Owner(owner) => {
                let wake = self.machine.wake().filter(|_| self.has_room());
                let wake = wake.map(|wake| Time(wake.0.saturating_add_signed(-self.shift_us).saturating_mul(1000)));
                let unsent = self.copying.as_ref().filter(|copying| copying.sent < self.inputs);
                let speak = unsent.and_then(|copying| Some(copying.spoken?.after(self.terms.protect.heartbeat)));
                [wake, speak, owner.wake_at(), self.announce_at].into_iter().flatten().min()
            }
        }
    }

    /// Does what is due at `now`: timers, the log, the gate. Call it after every input.
    pub fn step(&mut self, now: Time, actions: &mut Vec<Action>) {
        match &mut self.part {
            Part::Owner(owner) => owner.tick(now),
            Part::Twin(twin) => {
                twin.tick(now);
                if twin.stage() == TwinStage::Offers && now >= self.offer_at {
                    self.offer_at = now.after(self.terms.protect.heartbeat);
                    self.messages.push(Message::Offer(self.id));
                }
            }
            Part::Out(_) => {}
        }
        self.obey(now, actions);
        if self.has_room() && self.machine.wake().is_some_and(|wake| wake <= self.guest_time(now)) {
            self.give(Input::Wake, now);
        }
        self.announce(now);
        actions.extend(self.messages.drain(..).map(Action::Send));
        while self.must_speak(now) {
            actions.extend(self.speak(now).map(Action::Send));
        }
        if self.as_owner().is_some() {
            actions.extend(std::iter::from_fn(|| self.gate.pop(now)).map(Action::Emit));
        }
    }

    fn order(&mut self) -> Option<Order> {
        match &mut self.part {
            Part::Owner(owner) => owner.action(),
            Part::Twin(twin) => twin.action(),
            Part::Out(_) => None,
        }
    }

    /// Carries out what the machines decide.
    fn obey(&mut self, now: Time, actions: &mut Vec<Action>) {
        while let Some(order) = self.order() {
            match (order, &mut self.part) {
                (Order::Ask(number, request), _) => actions.push(Action::Ask(number, request)),
                (Order::Send(message), _) => self.messages.push(Message::Protect(message)),
                (Order::Arm(_), _) => self.gate.set_mode(GateMode::Armed),
                (Order::Shut, _) => self.gate.set_mode(GateMode::Shut),
                (Order::Release(epoch, until), _) => self.gate.release(epoch, until),
                (Order::Open, _) => self.gate.set_mode(GateMode::Open),
                (Order::Mute(_), _) => self.gate.set_mode(GateMode::Mute),
                (Order::Copy(pairing), _) => {
                    self.copying = Some(Copying { pairing, copied: self.inputs, sent: 0, spoken: None });
                    self.close(now);
                }
                (Order::Listen(pairing), Part::Twin(twin)) => twin.listens(pairing, now),
                (Order::GoAlone, Part::Owner(owner)) => owner.went_alone(),
                (Order::Hang(_), _) => self.copying = None,
                (Order::End, Part::Owner(_)) => self.part = Part::Out(End::Owned),
                (Order::End, _) => self.part = Part::Out(End::Stale),
                // Only a twin listens, and only an owner goes on alone.
                (Order::Listen(_) | Order::GoAlone, _) => {}
            }
        }
    }

    /// Says where the guest is, again and again. An owner that stood still may send a last frame when it goes on, and a switch then takes the
    /// guest for being there. A guest that was taken over may have nothing to say that tells the switch better.
    fn announce(&mut self, now: Time) {
        if self.announce_at.is_some_and(|at| at <= now) {
            self.announce_at = Some(now.after(2 * self.terms.protect.lease));
            if self.owns(now) {
                self.gate.push(0, self.machine.announcement());
            }
        }
    }

    /// Whether inputs go to the twin now. Inputs from which no frame follows, as most timers, go along with the next ones: if they get lost,
    /// nobody has seen anything of them.
    fn must_speak(&self, now: Time) -> bool {
        let Some(copying) = &self.copying else { return false };
        let unsent = self.inputs - copying.sent;
        let is_awaited =
            copying.sent < copying.copied || self.gate.last().is_some_and(|epoch| epoch > copying.sent + 1);
        let is_due = copying.spoken.is_none_or(|at| now >= at.after(self.terms.protect.heartbeat));
        copying.spoken.is_none() || (unsent > 0 && (is_awaited || is_due || unsent >= UNSENT_MAX))
    }

    /// The next piece of the log for the twin.
    fn speak(&mut self, now: Time) -> Option<Message> {
        let copying = self.copying.as_mut()?;
        let first = copying.sent;
        let entries = self.log.from(first, MESSAGE_BYTES);
        copying.sent += entries.len() as u64;
        copying.spoken = Some(now);
        let (pairing, is_part) = (copying.pairing, copying.sent < copying.copied);
        let is_due = copying.sent == self.inputs && self.inputs >= self.state_at + self.terms.state_every;
        let state = is_due.then(|| self.machine.state());
        if is_due {
            self.state_at = self.inputs;
        }
        Some(Message::Log(Piece { pairing, first, is_part, entries, state }))
    }

    /// An authentic message from the other host. Call [`Host::step`] after the last one.
    pub fn receive(&mut self, message: Message, now: Time) {
        match (&mut self.part, message) {
            (Part::Owner(owner), Message::Protect(message)) => owner.heard(message, now),
            (Part::Twin(twin), Message::Protect(message)) => twin.heard(message, now),
            (Part::Owner(owner), Message::Offer(run)) if owner.wants_twin(now) => {
                if self.log.base() > 0 {
                    self.messages.push(Message::TooOld(self.log.base()));
                } else {
                    self.pairings += 1;
                    let number = self.id.0.wrapping_mul(PAIRINGS).wrapping_add(self.pairings);
                    owner.offered(run, Pairing(number), now);
                }
            }
            (Part::Owner(owner), Message::Differs(_)) => owner.lost("the twin's replica differs", now),
            (Part::Twin(twin), Message::Log(piece)) if twin.pairing() == Some(piece.pairing) => self.replay(piece, now),
            (Part::Twin(twin), Message::TooOld(base)) if twin.stage() == TwinStage::Offers => {
                self.part = Part::Out(End::TooOld(base));
            }
            _ => {}
        }
    }

    /// The link to the other host is of no use any more. Messages may be lost.
    pub fn lost(&mut self, now: Time) {
        match &mut self.part {
            Part::Owner(owner) => owner.lost("the link to the twin is lost", now),
            Part::Twin(twin) => twin.lost(now),
            Part::Out(_) => {}
        }
    }

    /// Takes inputs as a twin.
    fn replay(&mut self, Piece { pairing, first, is_part, entries, state }: Piece, now: Time) {
        if first != self.inputs {
            // The link brings all or is lost.
            return self.lost(now);
        }
        for entry in entries {
            if entry.check != self.machine.history() as u8 {
                return self.differs();
            }
            self.apply(entry, u64::MAX);
        }
        if state.is_some_and(|state| state != self.machine.state()) {
            return self.differs();
        }
        let epoch = self.epoch();
        if let Part::Twin(twin) = &mut self.part
            && !is_part
        {
            twin.loaded(pairing, epoch, now);
        }
    }

    /// The replicas differ since the last input.
    fn differs(&mut self) {
        let inputs = self.inputs.saturating_sub(1);
        self.part = Part::Out(End::Differs(inputs));
        self.messages.push(Message::Differs(inputs));
    }

    /// The third party's answer to the request of this number. `None`: it has not answered. Call [`Host::step`] then.
    pub fn answered(&mut self, number: u32, answer: Option<Answer>, now: Time) {
        match &mut self.part {
            Part::Owner(owner) => owner.answered(number, answer, now),
            Part::Twin(twin) => {
                if let Some(owner) = twin.answered(number, answer, now) {
                    self.part = Part::Owner(owner);
                    self.shift_us = self.guest.0.cast_signed() - (now.0 / 1000).cast_signed();
                    (self.state_at, self.announce_at) = (self.inputs, Some(now));
                }
            }
            Part::Out(_) => {}
        }
    }
}
