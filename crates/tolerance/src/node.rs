//! The two hosts of a guest: a primary that runs it, and a secondary that replays it and can take over.
//!
//! ```text
//! outside ─► Node::offer ─► guest ─► gate ───────────────► Action::Emit ─► outside
//!                  │                   ▲ the first n calls are known
//!                  └► log ─► Action::Send ═════► Node::receive ─► replay
//!                                      ▲                 │
//!                                      └═══ Known { n } ◄┘
//! ```
//!
//! Rules, all of which the model checks (`tests/model`):
//! - **Output commit.** A frame leaves when the secondary has every call that precedes it. Without a secondary it leaves at once.
//! - **One owner.** Frames leave only during the lease. A primary whose lease has run out closes its gate, and tries to renew.
//! - **Alone, or taken over; never both.** A primary that has lost its secondary asks the third party to go on alone, and its gate
//!   stays closed to what the secondary does not know until that is granted. After that nobody can take over.
//! - **Joined by an image.** A peer that has none of the calls, or lacks many, gets an image of the guest and the calls after it
//!   (`Call::Renew`). It may lack no more of those than any secondary.
//! - **Paired only when equal.** A secondary may take over from the moment at which it has every call whose frames have left.

use nicety_adapter::Time;
use nicety_lease::{Answer, NodeId, Request};

use crate::call::{Call, GuestTime, Machine};
use crate::gate::Gate;
use crate::log::{Entry, Log, Message};

/// Times and sizes of a pair of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Duration of a lease.
    pub lease_ns: u64,
    /// The owner's lease ends this much earlier for itself. Covers clocks of different speed, and the time from looking at the clock
    /// to the end of sending a frame.
    pub margin_ns: u64,
    /// Longest time between two messages to the other host.
    pub heartbeat_ns: u64,
    /// A host that says nothing for this long is lost.
    pub silence_ns: u64,
    /// Bytes of frames that wait for the secondary. At this limit the guest is not called.
    pub gate_bytes: usize,
    /// Calls that the secondary may lack, a joining one too. At this limit the guest is not called.
    pub window_calls: u64,
    /// Bytes of old calls that are kept for a secondary that joins later.
    pub history_bytes: usize,
    /// A digest of the guest's state goes along every so many calls.
    pub state_every: u64,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lease_ns: 1_000_000_000,
            margin_ns: 100_000_000,
            heartbeat_ns: 50_000_000,
            silence_ns: 300_000_000,
            gate_bytes: 1 << 20,
            window_calls: 4096,
            history_bytes: 64 << 20,
            state_every: 1024,
        }
    }
}

/// Bytes of calls in one message.
const MESSAGE_BYTES: usize = 64 << 10;
/// Bytes of the largest image.
const IMAGE_BYTES: u64 = 16 << 20;
/// So many calls go to the secondary at once, also if no frame follows from them.
const MANY_CALLS: u64 = 64;
/// Lost calls are sent again after a while, and after twice as long each time, up to 2^n times as long.
const PATIENCE_MAX: u32 = 6;
/// Requests to the third party that may still be answered.
const REQUESTS: usize = 8;

/// The part of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It will run the guest once the third party agrees.
    Founding,
    /// It runs the guest.
    Primary,
    /// It replays the guest.
    Secondary,
    /// It has ended.
    Out(End),
}

/// The reason why a host has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum End {
    /// Another host owns the guest.
    #[error("another host owns the guest")]
    Owned,
    /// Its replica does not do what the primary's does.
    #[error("the replica differs from the primary after call {0}")]
    Diverged(u64),
    /// The first calls are kept nowhere any more.
    #[error("the primary has no calls before call {0} any more, and no image of the guest: start both hosts again")]
    TooOld(u64),
    /// The primary's image is none for this guest.
    #[error("the primary's image of the guest: {0}")]
    Image(String),
    /// The guest cannot continue.
    #[error("the guest: {0}")]
    Failed(String),
}

/// Something that the host's program has to do, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this message to the other host.
    Send(Message),
    /// Send this frame to the outside.
    Emit(Vec<u8>),
    /// Ask the third party. The answer goes to [`Node::answered`], with the number.
    Ask(u32, Request),
}

/// The state of a host, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its part.
    pub role: Role,
    /// The last epoch that it knows.
    pub epoch: u32,
    /// Calls made.
    pub calls: u64,
    /// Calls that the secondary has, as far as the primary knows.
    pub known: u64,
    /// Whether a secondary can take over (primary only).
    pub is_protected: bool,
    /// Frames and bytes that wait for the secondary.
    pub waiting: (usize, usize),
    /// An image on its way to the secondary: bytes that it has, and all.
    pub image: Option<(u64, u64)>,
}

/// An image for a peer that joins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Image {
    calls: u64,
    at: GuestTime,
    state: u64,
    bytes: Vec<u8>,
    /// Bytes that were sent, and that the peer has.
    sent: usize,
    assembled: u64,
}

/// An image that arrives in pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Arriving {
    calls: u64,
    bytes: Vec<u8>,
}

/// See the module's page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node<M> {
    id: NodeId,
    machine: M,
    terms: Terms,
    role: Role,
    epoch: u32,
    /// Calls that the guest has had.
    calls: u64,
    log: Log,
    /// Frames that have not left: the primary's gate, or what the secondary sends again when it takes over.
    gate: Gate,
    /// The time of the guest's last call, and its time minus the host's, in microseconds.
    guest: GuestTime,
    shift_us: i64,
    /// When the other host was last heard, and last spoken to.
    heard: Time,
    spoken: Time,
    /// Requests without an answer: number, request, when.
    asked: Vec<(u32, Request, Time)>,
    requests: u32,
    last_asked: Option<Time>,

    // Of a primary.
    /// End of the lease.
    until: Time,
    /// Last renewal, by the time of asking.
    renewed: Time,
    peer: Option<NodeId>,
    /// The image that the peer needs, until it has it.
    image: Option<Image>,
    /// Calls that the peer has, calls that were sent to it, and when it last had more.
    known: u64,
    sent: u64,
    progress: Time,
    /// Times that the same was sent again since then.
    again: u32,
    /// Frames wait for the peer.
    commits: bool,
    /// The third party was asked to let the peer take over, and has not agreed to going on alone since.
    paired: bool,
    /// The third party has agreed to that.
    is_confirmed: bool,
    wants_alone: bool,
    /// Calls from which frames have left.
    emitted: u64,
    state_at: u64,
    /// The next time to say where the guest is, if it was taken over.
    announce_at: Option<Time>,

    // Of a secondary.
    arriving: Option<Arriving>,
}

impl<M: Machine> Node<M> {
    fn new(id: NodeId, machine: M, terms: Terms, role: Role, now: Time) -> Self {
        Self {
            id,
            machine,
            role,
            epoch: 0,
            calls: 0,
            log: Log::new(0, terms.history_bytes),
            gate: Gate::new(terms.gate_bytes),
            guest: GuestTime::default(),
            shift_us: 0,
            heard: now,
            spoken: now,
            asked: Vec::new(),
            requests: 0,
            last_asked: None,
            until: Time::ZERO,
            renewed: now,
            peer: None,
            image: None,
            arriving: None,
            known: 0,
            sent: 0,
            progress: now,
            again: 0,
            commits: false,
            paired: false,
            is_confirmed: false,
            wants_alone: false,
            emitted: 0,
            state_at: 0,
            announce_at: None,
            terms,
        }
    }

    /// A host that will run a new guest.
    pub fn primary(id: NodeId, machine: M, terms: Terms, now: Time) -> Self {
        Self::new(id, machine, terms, Role::Founding, now)
    }

    /// A host that will replay the guest: `machine` is in the same state as the primary's was at first.
    pub fn secondary(id: NodeId, machine: M, terms: Terms, now: Time) -> Self {
        Self::new(id, machine, terms, Role::Secondary, now)
    }

    /// Its part.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// The guest.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Its state, for a person.
    pub fn status(&self) -> Status {
        Status {
            role: self.role.clone(),
            epoch: self.epoch,
            calls: self.calls,
            known: self.known,
            is_protected: self.is_confirmed && !self.wants_alone,
            waiting: (self.gate.len(), self.gate.bytes()),
            image: self.image.as_ref().map(|image| (image.assembled, image.bytes.len() as u64)),
        }
    }

    /// Whether frames may leave at `now`.
    pub fn owns(&self, now: Time) -> bool {
        self.role == Role::Primary && now < self.until
    }

    /// Whether the guest can be called. If not, frames from the outside wait, or are lost.
    pub fn has_room(&self) -> bool {
        self.role == Role::Primary && !self.gate.is_full() && self.lag() < self.terms.window_calls
    }

    /// Calls that the secondary lacks, without those that its image spares it.
    fn lag(&self) -> u64 {
        if self.peer.is_some() { self.calls - self.granted() } else { 0 }
    }

    /// Calls that the secondary has, or will have with its image.
    fn granted(&self) -> u64 {
        self.image.as_ref().map_or(self.known, |image| image.calls)
    }

    fn guest_time(&self, now: Time) -> GuestTime {
        let shifted = (now.0 / 1000).saturating_add_signed(self.shift_us);
        self.guest.max(GuestTime(shifted))
    }

    /// A frame from the outside. False if the guest cannot take it ([`Node::has_room`]). Call [`Node::step`] after the last one.
    pub fn offer(&mut self, frame: Vec<u8>, now: Time) -> bool {
        let takes = self.has_room();
        if takes {
            let _no_image = self.call(Call::Frame(frame), now);
        }
        takes
    }

    fn call(&mut self, call: Call, now: Time) -> Option<Vec<u8>> {
        let at = self.guest_time(now);
        let entry = Entry { at, call, check: self.machine.history() as u8 };
        let needed = if self.peer.is_some() { self.granted() } else { self.calls };
        self.apply(entry, needed)
    }

    /// Makes a call. Returns an image, if it was that.
    fn apply(&mut self, entry: Entry, needed: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let mut image = None;
        if entry.call == Call::Renew {
            image = self.machine.renew(entry.at, &mut out);
        } else {
            self.machine.call(entry.at, &entry.call, &mut out);
        }
        self.guest = entry.at;
        self.calls += 1;
        self.log.push(entry, needed);
        self.gate.push(self.calls, out);
        if let Some(why) = self.machine.failure() {
            self.role = Role::Out(End::Failed(why));
        }
        image
    }

    /// When [`Node::step`] is due at the latest.
    pub fn due(&self) -> Option<Time> {
        let ask = self.last_asked.map_or(Time::ZERO, |at| at.after_ns(self.terms.lease_ns / 3));
        let beat = self.spoken.after_ns(self.terms.heartbeat_ns);
        let silence = self.heard.after_ns(self.terms.silence_ns);
        match self.role {
            Role::Out(_) => None,
            Role::Founding => Some(ask),
            Role::Secondary if !self.may_take() => Some(beat),
            // After a silence it asks again and again.
            Role::Secondary => Some(beat.min(silence.max(ask))),
            Role::Primary => {
                let wake = self.machine.wake().filter(|_| self.has_room());
                let wake = wake.map(|wake| Time(wake.0.saturating_add_signed(-self.shift_us).saturating_mul(1000)));
                let renew = self.renewed.after_ns(self.terms.lease_ns / 3).max(ask);
                let beat = self.peer.map(|_| beat.min(silence.max(ask)));
                [wake, beat, Some(renew), self.announce_at].into_iter().flatten().min()
            }
        }
    }

    /// Does what is due at `now`: timers, the log, the gate. Call it after every input.
    pub fn step(&mut self, now: Time, actions: &mut Vec<Action>) {
        match self.role {
            Role::Founding if self.may_ask(now) => self.ask(Request::Found, now, actions),
            Role::Primary => self.lead(now, actions),
            Role::Secondary => self.follow(now, actions),
            Role::Founding | Role::Out(_) => {}
        }
    }

    fn may_ask(&self, now: Time) -> bool {
        self.last_asked.is_none_or(|at| now >= at.after_ns(self.terms.lease_ns / 3))
    }

    fn ask(&mut self, request: Request, now: Time, actions: &mut Vec<Action>) {
        self.requests += 1;
        if self.asked.len() >= REQUESTS {
            self.asked.remove(0);
        }
        self.asked.push((self.requests, request, now));
        self.last_asked = Some(now);
        actions.push(Action::Ask(self.requests, request));
    }

    fn lead(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.peer.is_some() && now >= self.heard.after_ns(self.terms.silence_ns) {
            self.lose_peer();
        }
        if self.has_room() && self.machine.wake().is_some_and(|wake| wake <= self.guest_time(now)) {
            let _no_image = self.call(Call::Wake, now);
        }
        if self.announce_at.is_some_and(|at| at <= now) {
            if self.owns(now) {
                self.gate.push(0, self.machine.announcement());
            }
            self.announce_again(now);
        }
        // From here on frames wait for it: else it might never have all from which frames have left.
        self.commits |= self.peer.is_some() && self.image.is_none() && self.lag() < self.terms.window_calls;
        if self.wants_alone && self.may_ask(now) {
            self.ask(Request::Alone { epoch: self.epoch }, now, actions);
        } else if let (Some(peer), true) = (self.peer, self.is_ready_to_pair(now)) {
            self.paired = true;
            self.ask(Request::Pair { epoch: self.epoch, peer }, now, actions);
        } else if now >= self.renewed.after_ns(self.terms.lease_ns / 3) && self.may_ask(now) {
            self.ask(Request::Renew, now, actions);
        }
        self.speak(now, actions);
        self.release(now, actions);
    }

    fn is_ready_to_pair(&self, now: Time) -> bool {
        let is_due = !self.paired || self.may_ask(now);
        let has_all = self.commits && self.image.is_none() && self.known >= self.emitted;
        has_all && !self.wants_alone && !self.is_confirmed && is_due
    }

    /// The peer does not answer, or differs. Without a pair nobody needs to be asked.
    fn lose_peer(&mut self) {
        if self.paired {
            self.wants_alone = true;
        } else {
            (self.peer, self.commits, self.image) = (None, false, None);
        }
    }

    /// Sends the calls that the peer lacks.
    fn speak(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.peer.is_none() {
            return;
        }
        if self.sent == self.known {
            (self.progress, self.again) = (now, 0);
        }
        let patience = (4 * self.terms.heartbeat_ns) << self.again.min(PATIENCE_MAX);
        if self.sent > self.known && now >= self.progress.after_ns(patience) {
            // Something got lost, or is slow: send it again.
            (self.sent, self.progress) = (self.known, now);
            self.again += 1;
            if let Some(image) = &mut self.image {
                image.sent = usize::try_from(image.assembled).unwrap_or(usize::MAX).min(image.bytes.len());
                self.sent = image.calls;
            }
        }
        self.send_image(now, actions);
        while self.must_send() || now >= self.spoken.after_ns(self.terms.heartbeat_ns) {
            let first = self.sent;
            let entries = self.log.from(first, MESSAGE_BYTES);
            if entries.is_empty() && self.sent < self.calls {
                break;
            }
            self.sent += entries.len() as u64;
            let is_due = self.sent == self.calls && self.calls >= self.state_at + self.terms.state_every;
            let state = is_due.then(|| self.machine.state());
            if is_due {
                self.state_at = self.calls;
            }
            self.spoken = now;
            let released = self.released();
            actions.push(Action::Send(Message::Log { epoch: self.epoch, first, released, entries, state }));
        }
    }

    /// Sends the rest of the image.
    fn send_image(&mut self, now: Time, actions: &mut Vec<Action>) {
        let Some(image) = &mut self.image else { return };
        let Image { calls, at, state, .. } = *image;
        while let Some((piece, _)) = image.bytes.get(image.sent..).and_then(|rest| {
            let len = rest.len().min(MESSAGE_BYTES);
            rest.split_at_checked(len).filter(|(piece, _)| !piece.is_empty())
        }) {
            let (epoch, len, offset) = (self.epoch, image.bytes.len() as u64, image.sent as u64);
            let bytes = piece.to_vec();
            image.sent += bytes.len();
            self.spoken = now;
            actions.push(Action::Send(Message::Image { epoch, calls, at, state, len, offset, bytes }));
        }
    }

    /// Whether calls go to the peer now. Calls from which no frame follows, as most timers, go along with the next ones, or with the next
    /// sign of life: if they get lost, nobody has seen anything of them.
    fn must_send(&self) -> bool {
        let unsent = self.calls - self.sent;
        let is_awaited = !self.is_confirmed || self.gate.last().is_some_and(|needs| needs > self.sent);
        unsent > 0 && (is_awaited || unsent >= MANY_CALLS)
    }

    /// The number of calls from which all frames have left.
    fn released(&self) -> u64 {
        self.gate.first().map_or(self.calls, |needs| needs.saturating_sub(1))
    }

    fn release(&mut self, now: Time, actions: &mut Vec<Action>) {
        if !self.owns(now) {
            return;
        }
        let limit = if self.commits { self.known } else { self.calls };
        while let Some((needs, frame)) = self.gate.pop(limit) {
            self.emitted = self.emitted.max(needs);
            actions.push(Action::Emit(frame));
        }
    }

    fn follow(&mut self, now: Time, actions: &mut Vec<Action>) {
        if now >= self.spoken.after_ns(self.terms.heartbeat_ns) {
            self.report(now, actions);
        }
        if self.may_take() && now >= self.heard.after_ns(self.terms.silence_ns) && self.may_ask(now) {
            self.ask(Request::Take, now, actions);
        }
    }

    /// A host that never heard a primary, or has a part of its image, knows nothing of the guest.
    fn may_take(&self) -> bool {
        self.epoch > 0 && self.arriving.is_none()
    }

    fn report(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.spoken = now;
        let from = self.id;
        actions.push(Action::Send(match &self.arriving {
            Some(Arriving { calls, bytes }) => Message::Assembled { from, calls: *calls, bytes: bytes.len() as u64 },
            None => Message::Known { from, calls: self.calls },
        }));
    }

    /// An authentic message from the other host.
    pub fn receive(&mut self, message: Message, now: Time, actions: &mut Vec<Action>) {
        match (&self.role, message) {
            (Role::Primary, Message::Known { from, calls }) => self.known_to(from, calls, now, actions),
            (Role::Primary, Message::Assembled { from, calls, bytes }) => {
                self.assembled(from, calls, bytes, now, actions)
            }
            (Role::Primary, Message::Diverged { from, .. }) if self.peer == Some(from) => self.lose_peer(),
            (Role::Secondary, Message::Log { epoch, first, released, entries, state }) if epoch >= self.epoch => {
                (self.epoch, self.heard) = (epoch, now);
                self.replay(first, entries, state, actions);
                while self.gate.pop(released).is_some() {}
                if self.role == Role::Secondary {
                    self.report(now, actions);
                }
            }
            (Role::Secondary, Message::Image { epoch, calls, at, state, len, offset, bytes })
                if epoch >= self.epoch =>
            {
                (self.epoch, self.heard) = (epoch, now);
                if self.assemble(calls, len, offset, &bytes) {
                    self.restore(at, state, actions);
                }
                if self.role == Role::Secondary {
                    self.report(now, actions);
                }
            }
            (Role::Secondary, Message::TooOld { base }) => self.role = Role::Out(End::TooOld(base)),
            _ => {}
        }
    }

    fn known_to(&mut self, from: NodeId, calls: u64, now: Time, actions: &mut Vec<Action>) {
        if self.peer == Some(from) {
            self.heard = now;
            if calls > self.known && calls <= self.calls {
                (self.known, self.progress, self.again) = (calls, now, 0);
                self.sent = self.sent.max(calls);
                self.image = self.image.take().filter(|image| calls < image.calls);
            }
        } else if self.peer.is_some() {
            // The peer was started again.
            self.lose_peer();
        } else if calls <= self.calls {
            self.join(from, calls, now, actions);
        }
    }

    /// A host becomes the peer. If it has none of the calls, or lacks so many that the guest would wait for it, it gets an image.
    fn join(&mut self, from: NodeId, calls: u64, now: Time, actions: &mut Vec<Action>) {
        let is_too_old = calls < self.log.base();
        let is_far = self.calls - calls >= self.terms.window_calls;
        if self.calls > 0 && (calls == 0 || is_too_old || is_far) {
            let bytes = self.call(Call::Renew, now).filter(|bytes| bytes.len() as u64 <= IMAGE_BYTES);
            let (calls, at, state) = (self.calls, self.guest, self.machine.state());
            self.image = bytes.map(|bytes| Image { calls, at, state, bytes, sent: 0, assembled: 0 });
            if self.image.is_none() && is_too_old {
                return actions.push(Action::Send(Message::TooOld { base: self.log.base() }));
            }
        }
        self.peer = Some(from);
        self.known = calls;
        self.sent = self.granted();
        (self.heard, self.progress, self.again) = (now, now, 0);
    }

    /// The peer has so many bytes of the image that was made after so many calls. A host that is no peer joins.
    fn assembled(&mut self, from: NodeId, calls: u64, bytes: u64, now: Time, actions: &mut Vec<Action>) {
        if self.peer != Some(from) {
            return self.known_to(from, 0, now, actions);
        }
        self.heard = now;
        if let Some(image) = self.image.as_mut().filter(|image| image.calls == calls && bytes > image.assembled) {
            (image.assembled, self.progress, self.again) = (bytes, now, 0);
        }
    }

    /// Adds a piece to an image. True if that was the last one. A piece that does not follow is not taken: the answer says which one does.
    fn assemble(&mut self, calls: u64, len: u64, offset: u64, bytes: &[u8]) -> bool {
        if calls <= self.calls || len > IMAGE_BYTES {
            return false;
        }
        let arriving = self.arriving.get_or_insert_default();
        if arriving.calls < calls {
            *arriving = Arriving { calls, bytes: Vec::new() };
        }
        if arriving.calls == calls && arriving.bytes.len() as u64 == offset {
            arriving.bytes.extend_from_slice(bytes);
        }
        arriving.calls == calls && arriving.bytes.len() as u64 == len
    }

    /// Goes on from the image that has arrived, in place of the calls before it.
    fn restore(&mut self, at: GuestTime, state: u64, actions: &mut Vec<Action>) {
        let Some(Arriving { calls, bytes }) = self.arriving.take() else { return };
        let mut out = Vec::new();
        if let Err(why) = self.machine.restore(at, &bytes, &mut out) {
            self.role = Role::Out(End::Image(why));
            return;
        }
        (self.calls, self.guest) = (calls, at);
        self.log = Log::new(calls, self.terms.history_bytes);
        self.gate = Gate::new(self.terms.gate_bytes);
        self.gate.push(calls, out);
        if self.machine.state() != state {
            self.diverge(actions);
        }
    }

    fn replay(&mut self, first: u64, entries: Vec<Entry>, state: Option<u64>, actions: &mut Vec<Action>) {
        if first > self.calls {
            // Calls are missing. The answer says from where on.
            return;
        }
        let end = first.saturating_add(entries.len() as u64);
        for entry in entries.into_iter().skip((self.calls - first) as usize) {
            if entry.check != self.machine.history() as u8 {
                return self.diverge(actions);
            }
            let _image = self.apply(entry, u64::MAX);
        }
        if end == self.calls && state.is_some_and(|state| state != self.machine.state()) {
            self.diverge(actions);
        }
    }

    fn diverge(&mut self, actions: &mut Vec<Action>) {
        let call = self.calls.saturating_sub(1);
        self.role = Role::Out(End::Diverged(call));
        actions.push(Action::Send(Message::Diverged { from: self.id, call }));
    }

    /// The third party's answer to the request of this number.
    pub fn answered(&mut self, number: u32, answer: Answer, now: Time) {
        let Some(index) = self.asked.iter().position(|(asked, ..)| *asked == number) else { return };
        let (_, request, at) = self.asked.remove(index);
        let is_mine = answer.holder == Some(self.id);
        match (&self.role, answer.granted) {
            (Role::Founding | Role::Secondary, true) if is_mine => self.go_live(answer.epoch, now),
            (Role::Founding, false) => self.role = Role::Out(End::Owned),
            (Role::Primary, false) if !is_mine => {
                self.role = Role::Out(End::Owned);
                return;
            }
            (Role::Primary, _) => self.agreed(request, answer),
            _ => return,
        }
        if self.role == Role::Primary && is_mine {
            if answer.granted {
                let until = at.after_ns(self.terms.lease_ns.saturating_sub(self.terms.margin_ns));
                (self.until, self.renewed) = (self.until.max(until), self.renewed.max(at));
            }
            self.epoch = self.epoch.max(answer.epoch);
        }
    }

    /// Only an answer in the current epoch is news: an older one may come late.
    fn agreed(&mut self, request: Request, answer: Answer) {
        if request == (Request::Alone { epoch: self.epoch }) && answer.granted && self.wants_alone {
            (self.peer, self.commits, self.image) = (None, false, None);
            (self.paired, self.is_confirmed, self.wants_alone) = (false, false, false);
        }
        if matches!(request, Request::Pair { epoch, .. } if epoch == self.epoch) && answer.granted {
            self.is_confirmed = true;
        }
    }

    /// A primary that stood still may send a last frame when it goes on, and a switch then takes the guest for being there. A guest that was
    /// taken over may have nothing to say that tells the switch better.
    fn announce_again(&mut self, now: Time) {
        self.announce_at = Some(now.after_ns(2 * self.terms.lease_ns));
    }

    /// It owns the guest from now on, and nobody follows it.
    fn go_live(&mut self, epoch: u32, now: Time) {
        let announcement = self.machine.announcement();
        if self.role == Role::Secondary && !announcement.is_empty() {
            self.announce_again(now);
        }
        self.role = Role::Primary;
        (self.epoch, self.peer, self.heard, self.state_at) = (epoch, None, now, self.calls);
        // Frames of all of them may have left the other host.
        self.emitted = self.calls;
        self.shift_us = self.guest.0.cast_signed() - (now.0 / 1000).cast_signed();
        let mut gate = Gate::new(self.terms.gate_bytes);
        gate.push(0, announcement);
        while let Some((needs, frame)) = self.gate.pop(u64::MAX) {
            // TCP takes a frame that comes twice for what it is.
            gate.push(needs, [frame]);
        }
        self.gate = gate;
    }
}
