//! The host whose VM the world sees.

use std::collections::VecDeque;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_lease::{Answer, NodeId, Request};

use crate::call::{Call, is_alone};
use crate::{Action, Death, Kept, Message, Pairing, Run, Terms, earlier};

/// The stage of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Nothing leaves: the lease has not said yet whose VM it is.
    Begins,
    /// The lease says that nobody else may have the VM, and QEMU is told to go on alone.
    Settling,
    /// The VM runs, and nothing protects it.
    Alone,
    /// It is copied to a twin for the first time.
    Joining {
        /// The protection.
        pairing: Pairing,
        /// The twin.
        peer: Run,
        /// The twin has a whole copy, and the lease is to name it.
        is_copied: bool,
    },
    /// The lease names a twin that has a whole copy.
    Protected {
        /// The protection.
        pairing: Pairing,
        /// The twin.
        peer: Run,
    },
    /// The twin is lost. Nothing leaves, until the lease says that it may not take over.
    Parting {
        /// The protection.
        pairing: Pairing,
    },
    /// The VM has ended here, or is to: the lease is given to the twin, or back.
    Leaving {
        /// The protection that the VM had.
        pairing: Option<Pairing>,
        /// The step that the lease is asked for.
        step: Leave,
    },
    /// It is not here any more.
    Ended(Ended),
}

/// A step by which an owner gives its VM up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leave {
    /// It has ended on both hosts: the lease names no heir any more. Then it is released.
    Disown,
    /// The heir goes on with it. If there is none, it is released, or stays.
    Give,
    /// Nobody goes on with it.
    Release,
}

/// Why a VM is not here any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Another host has taken it over, or has begun it.
    Taken,
    /// It was handed over.
    HandedOver,
    /// It ended.
    Over,
}

/// The times of a protection's copies.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Copies {
    /// Epochs that were closed here, and that the twin has.
    closed: u64,
    loaded: u64,
    /// The epoch that was released last, and until when.
    released: (u64, Time),
    /// When the first epoch of those that the twin lacks was closed.
    waits_since: Time,
    /// When bytes of the stream last moved.
    moved: Time,
}

/// See the crate's page.
#[derive(Clone, Debug, Hash)]
pub struct Owner {
    me: Run,
    terms: Terms,
    stage: Stage,
    call: Call,
    /// The lease's.
    epoch: u32,
    /// When the lease first said that it is another's.
    begun: Option<Time>,
    /// The first request for the lease.
    begins_by: Request,
    /// The third party has forgotten whose the VM is: somebody has removed the lease.
    is_forgotten: bool,
    /// The end of the lease. Frames leave until then, if the twin has a whole copy.
    until: Time,
    renew_at: Time,
    /// The last message from the twin's host, and to it.
    heard: Time,
    sent: Time,
    copies: Copies,
    /// One of the daemons is being replaced: by then both speak to each other again.
    away_until: Option<Time>,
    /// Its QEMU last said something.
    spoke: Time,
    /// Its QEMU has not ended.
    is_alive: bool,
    /// An administrator wants the twin to go on with the VM.
    wants_handover: bool,
    /// The twin's host is asked whether it reaches the lease.
    probe_at: Option<Time>,
    why: &'static str,
    actions: VecDeque<Action>,
}

impl Owner {
    /// Of a VM that runs here. Nothing leaves before the lease has said that it is ours.
    pub fn new(me: Run, terms: Terms) -> Self {
        Self {
            me,
            terms,
            stage: Stage::Begins,
            call: Call::default(),
            epoch: 0,
            begun: None,
            begins_by: Request::Begin,
            is_forgotten: false,
            until: Time::ZERO,
            renew_at: Time::ZERO,
            heard: Time::ZERO,
            sent: Time::ZERO,
            copies: Copies::default(),
            away_until: None,
            spoke: Time::ZERO,
            is_alive: true,
            wants_handover: false,
            probe_at: None,
            why: "it has just begun",
            actions: VecDeque::from([Action::Shut]),
        }
    }

    /// Of a run that was a twin when a daemon saw it last. It is ended, unless the lease says that it has taken over.
    pub fn maybe(me: Run, terms: Terms) -> Self {
        Self { begins_by: Request::Renew, ..Self::new(me, terms) }
    }

    /// The owner that a twin becomes when it has taken over by this answer.
    pub(crate) fn taken(me: Run, terms: Terms, call: Call, answer: &Answer) -> Self {
        // Its ports stay mute until QEMU goes on alone: a copy that is loaded until then discards what the guest has done.
        let mut owner = Self { call, epoch: answer.epoch, actions: VecDeque::new(), ..Self::new(me, terms) };
        owner.settle("it has just been taken over");
        owner
    }

    /// Of a VM that the daemon before this one has protected, and whose gates have closed so many epochs. Nothing leaves before the lease was
    /// renewed. `None`: it had a twin.
    pub fn again(me: Run, terms: Terms, kept: Kept, closed: u64, now: Time) -> Option<Self> {
        let Kept::Owner { pairing, peer, epoch, loaded } = kept else { return None };
        let loaded = loaded.min(closed);
        let copies = Copies { closed, loaded, waits_since: now, moved: now, ..Copies::default() };
        let stage = Stage::Protected { pairing, peer: NodeId(peer) };
        let mut owner = Self { stage, epoch, copies, actions: VecDeque::new(), heard: now, ..Self::new(me, terms) };
        owner.pause(now);
        owner.why = "its daemon was replaced";
        Some(owner)
    }

    /// The state that the next daemon needs. `None`: the protection ends with this one.
    pub fn kept(&self) -> Option<Kept> {
        let Stage::Protected { pairing, peer } = self.stage else { return None };
        let kept = Kept::Owner { pairing, peer: peer.0, epoch: self.epoch, loaded: self.copies.loaded };
        Some(kept).filter(|_| !self.wants_handover)
    }

    /// One of the daemons is about to be replaced: the stream of copies stands still, and nobody is lost for being silent for a while. Only
    /// if [`Owner::kept`] says something.
    pub fn pause(&mut self, now: Time) {
        self.away_until = Some(now.after(self.terms.patience));
    }

    /// Whether the other host is waited for, after [`Owner::pause`].
    pub fn is_paused(&self) -> bool {
        self.away_until.is_some()
    }

    /// Both daemons speak to each other again, and the stream of copies goes on.
    pub fn rejoined(&mut self, now: Time) {
        self.away_until = None;
        self.heard = now;
        (self.copies.moved, self.copies.waits_since) = (now, now);
    }

    /// Its stage.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Why it is not protected, or was not at last.
    pub fn why(&self) -> &'static str {
        self.why
    }

    /// Whether a twin may be offered now. A VM that goes on alone while the lease is away has none named, and would have to stop for one.
    pub fn wants_twin(&self, now: Time) -> bool {
        self.stage == Stage::Alone && now < self.until
    }

    /// The protection, if there is one.
    pub fn pairing(&self) -> Option<Pairing> {
        match self.stage {
            Stage::Joining { pairing, .. } | Stage::Protected { pairing, .. } | Stage::Parting { pairing } => {
                Some(pairing)
            }
            _ => None,
        }
    }

    /// Whether the lease has run out for this host while a twin could take over.
    pub fn is_isolated(&self, now: Time) -> bool {
        let may_have_heir = matches!(
            self.stage,
            Stage::Joining { is_copied: true, .. } | Stage::Protected { .. } | Stage::Parting { .. }
        );
        may_have_heir && now >= self.until
    }

    /// Epochs that were closed, and that the twin has.
    pub fn copies(&self) -> (u64, u64) {
        (self.copies.closed, self.copies.loaded)
    }

    /// The next thing to do.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn send(&mut self, message: Message, now: Time) {
        self.sent = now;
        self.act(Action::Send(message));
    }

    fn ask(&mut self, request: Request, now: Time) {
        let asked = self.call.ask(request, &self.terms, now);
        self.actions.extend(asked);
    }

    /// Does what is due. Call it when all that has come was told: messages, and that bytes of the stream have moved.
    pub fn tick(&mut self, now: Time) {
        let epoch = self.epoch;
        match self.stage {
            Stage::Ended(_) => return,
            _ if self.is_forgotten => self.ask(Request::Begin, now),
            Stage::Begins => self.ask(self.begins_by, now),
            Stage::Parting { .. } | Stage::Leaving { step: Leave::Disown, .. } => {
                self.ask(Request::Alone { epoch }, now);
            }
            Stage::Leaving { step: Leave::Give, .. } => self.ask(Request::Give, now),
            Stage::Leaving { step: Leave::Release, .. } => self.ask(Request::Release, now),
            Stage::Joining { peer, is_copied: true, .. } => self.ask(Request::Pair { epoch, peer }, now),
            Stage::Settling | Stage::Alone | Stage::Joining { .. } | Stage::Protected { .. } => self.renew(now),
        }
        self.watch(now);
        if self.hears() && now.since(self.sent) >= self.terms.heartbeat {
            self.send(Message::Alive, now);
        }
        if let (Stage::Protected { pairing, .. }, Some(at)) = (self.stage, self.probe_at)
            && now >= at
        {
            self.probe_at = Some(now.after(self.terms.silence));
            self.send(Message::Probe(pairing), now);
        }
        self.release(now);
    }

    /// When [`Owner::tick`] must be called at the latest.
    pub fn wake_at(&self) -> Option<Time> {
        let call = self.call.wake_at(&self.terms);
        let ask = match self.stage {
            Stage::Ended(_) => return None,
            Stage::Settling | Stage::Alone | Stage::Joining { is_copied: false, .. } | Stage::Protected { .. } => {
                self.renew_at.max(call)
            }
            Stage::Begins | Stage::Joining { .. } | Stage::Parting { .. } | Stage::Leaving { .. } => call,
        };
        let pair = self.pairing().map(|_| {
            let beat = self.sent.after(self.terms.heartbeat);
            let silence = self.heard.after(self.silence());
            let moved = self.copies.moved.max(self.copies.waits_since);
            let waits = self.copies.loaded < self.copies.closed && self.spoke > moved;
            let copy = waits.then(|| moved.after(self.silence()));
            let paused = self.away_until.map(|until| beat.min(until));
            paused.or_else(|| earlier(Some(beat.min(silence)), copy)).unwrap_or(beat)
        });
        let pair = pair.filter(|_| !matches!(self.stage, Stage::Parting { .. }));
        earlier(earlier(Some(ask), pair), self.probe_at)
    }

    /// An owner that has lost its twin is silent, too. Otherwise a twin that still hears it would not ask for the lease, and nobody would
    /// go on with the VM if the owner does not reach the lease.
    fn hears(&self) -> bool {
        matches!(self.stage, Stage::Joining { .. } | Stage::Protected { .. })
    }

    /// The time after which a silent twin is lost.
    fn silence(&self) -> Duration {
        if let Stage::Joining { is_copied: false, .. } = self.stage { self.terms.patience } else { self.terms.silence }
    }

    fn renew(&mut self, now: Time) {
        if now >= self.renew_at {
            self.ask(Request::Renew, now);
        }
    }

    /// Ends a protection whose twin, or whose stream, is silent.
    fn watch(&mut self, now: Time) {
        let (Stage::Joining { .. } | Stage::Protected { .. }) = self.stage else { return };
        if let Some(until) = self.away_until {
            if now >= until {
                self.part("a daemon was replaced, and the twin's host has not come back", now);
            }
            return;
        }
        let (silence, copy) = (self.silence(), self.terms.copy);
        let waits = self.copies.loaded < self.copies.closed;
        let moved = self.copies.moved.max(self.copies.waits_since);
        if now.since(self.heard) >= silence {
            self.part("the twin's host is silent", now);
        } else if waits && now.since(moved) >= silence && self.spoke > moved {
            self.part("the twin takes no copy any more", now);
        } else if waits && now.since(self.copies.waits_since) >= copy {
            self.part("a copy took too long: the link is slower than the VM writes its memory", now);
        }
    }

    /// The third party has answered. `None`: it has not, in time or at all.
    pub fn answered(&mut self, number: u32, answer: Option<Answer>, now: Time) {
        let Some((request, asked)) = self.call.answered(number) else { return };
        let Some(answer) = answer else { return };
        self.epoch = answer.epoch;
        let is_left = matches!(self.stage, Stage::Begins | Stage::Leaving { .. });
        self.is_forgotten = answer.holder.is_none() && !is_left;
        if self.is_forgotten {
            self.lost("somebody has removed the lease", now);
        }
        if let (Stage::Leaving { pairing, step: Leave::Give }, Request::Give) = (self.stage, request) {
            return self.gave(pairing, &answer, now);
        }
        if answer.granted {
            self.until = asked.after(self.terms.lease.saturating_sub(self.terms.margin));
            self.renew_at = asked.after(self.terms.lease / 4);
        } else if self.stage == Stage::Begins && self.begins_by == Request::Begin && self.may_expire(now) {
            // The holder may be dead: ask for a whole lease before this is believed.
            return;
        } else if answer.holder.is_some_and(|holder| holder != self.me) {
            return self.end(if let Stage::Leaving { .. } = self.stage { Ended::Over } else { Ended::Taken });
        }
        match (self.stage, request) {
            // It has had the VM before, and another one since: this state is stale.
            (_, Request::Begin) | (Stage::Begins, Request::Renew | Request::Found)
                if !answer.granted && answer.holder.is_none() =>
            {
                return self.end(Ended::Taken);
            }
            (Stage::Begins, _) if is_alone(&answer, self.me) => self.settle("it has just begun"),
            // An earlier run of this daemon has had a twin named.
            (Stage::Begins, _) if answer.holder == Some(self.me) => {
                self.stage = Stage::Parting { pairing: Pairing(0) };
                self.why = "this daemon has begun anew";
                self.call.hurry();
            }
            (Stage::Parting { pairing }, _) if is_alone(&answer, self.me) => {
                self.send(Message::Alone(pairing), now);
                self.act(Action::Hang(pairing));
                self.settle(self.why);
            }
            (Stage::Leaving { pairing, step: Leave::Disown }, _) if is_alone(&answer, self.me) => {
                self.leave(pairing, Leave::Release);
            }
            // Given back, now or by a request whose answer was lost.
            (Stage::Leaving { pairing, step: Leave::Release }, Request::Release) if answer.holder.is_none() => {
                self.left(pairing, now);
            }
            (Stage::Joining { pairing, peer, .. }, Request::Pair { .. }) if answer.granted => {
                self.stage = Stage::Protected { pairing, peer };
                self.send(Message::Heir(pairing), now);
            }
            _ => {}
        }
        self.tick(now);
    }

    /// A new VM waits for the end of an earlier one's lease.
    fn may_expire(&mut self, now: Time) -> bool {
        let since = *self.begun.get_or_insert(now);
        now.since(since) < self.terms.lease * 3 / 2
    }

    fn leave(&mut self, pairing: Option<Pairing>, step: Leave) {
        self.stage = Stage::Leaving { pairing, step };
        self.call.hurry();
    }

    /// The heir was to get the VM. Whoever has it now has it by this request, by one whose answer was lost, or because the lease had run out.
    fn gave(&mut self, pairing: Option<Pairing>, answer: &Answer, now: Time) {
        match (pairing, answer.holder) {
            (_, Some(holder)) if holder != self.me => {
                if let Some(pairing) = pairing {
                    self.send(Message::HandOver(pairing), now);
                }
                return self.end(Ended::HandedOver);
            }
            // The lease names no heir. A VM that runs stays.
            (Some(pairing), Some(_)) if self.is_alive => {
                (self.stage, self.why) = (Stage::Parting { pairing }, "the lease does not name the twin");
                self.call.hurry();
            }
            (Some(pairing), None) if self.is_alive => {
                self.send(Message::Alone(pairing), now);
                self.act(Action::Hang(pairing));
                (self.stage, self.begins_by) = (Stage::Begins, Request::Found);
                self.why = "somebody has removed the lease";
                self.call.hurry();
            }
            (_, Some(_)) => self.leave(pairing, Leave::Release),
            (_, None) => return self.left(pairing, now),
        }
        self.tick(now);
    }

    /// The lease has no holder any more, and no host goes on with the VM.
    fn left(&mut self, pairing: Option<Pairing>, now: Time) {
        if let Some(pairing) = pairing {
            self.send(Message::Alone(pairing), now);
        }
        self.end(Ended::Over);
    }

    fn end(&mut self, ended: Ended) {
        if let Some(pairing) = self.pairing() {
            self.act(Action::Hang(pairing));
        }
        self.stage = Stage::Ended(ended);
        self.act(Action::Shut);
        self.act(Action::End);
    }

    fn settle(&mut self, why: &'static str) {
        (self.stage, self.why) = (Stage::Settling, why);
        self.act(Action::GoAlone);
    }

    /// QEMU goes on alone.
    pub fn went_alone(&mut self) {
        if self.stage == Stage::Settling {
            self.stage = Stage::Alone;
            self.act(Action::Open);
        }
    }

    /// A twin is there, and may be one. Only if [`Owner::wants_twin`].
    pub fn offered(&mut self, peer: Run, pairing: Pairing, now: Time) {
        if !self.wants_twin(now) {
            return;
        }
        self.stage = Stage::Joining { pairing, peer, is_copied: false };
        (self.copies, self.heard) = (Copies::default(), now);
        self.why = "its first copy is on its way";
        self.act(Action::Arm(pairing));
        self.send(Message::Begin(pairing), now);
    }

    /// The twin's host says something.
    pub fn heard(&mut self, message: Message, now: Time) {
        self.heard = now;
        let Some(ours) = self.pairing() else { return };
        match message {
            Message::Ready(pairing) if pairing == ours => self.act(Action::Copy(pairing)),
            Message::Loaded(pairing, epoch) if pairing == ours => self.loaded(epoch, now),
            Message::Reaches(pairing) if pairing == ours && self.wants_handover => self.hand_over(pairing),
            _ => {}
        }
        // Not `tick`: a host that has stood still for a moment looks at all that has come before it says that something is silent.
        self.release(now);
    }

    fn loaded(&mut self, epoch: u64, now: Time) {
        if epoch <= self.copies.loaded || epoch > self.copies.closed {
            return;
        }
        (self.copies.loaded, self.copies.waits_since) = (epoch, now);
        if let Stage::Joining { is_copied, .. } = &mut self.stage {
            *is_copied = true;
            self.call.hurry();
        }
    }

    /// Lets leave what the twin has, while the lease lasts: the lease may name a twin that has a whole copy, although no answer has said so.
    fn release(&mut self, now: Time) {
        let (Stage::Joining { .. } | Stage::Protected { .. }) = self.stage else { return };
        let release = (self.copies.loaded, self.until);
        if self.copies.loaded > 0 && now < self.until && self.copies.released != release {
            self.copies.released = release;
            self.act(Action::Release(release.0, release.1));
        }
    }

    /// A copy has closed this epoch, on all ports.
    pub fn closed(&mut self, pairing: Pairing, epoch: u64, now: Time) {
        if self.pairing() == Some(pairing) && epoch > self.copies.closed {
            if self.copies.loaded == self.copies.closed {
                self.copies.waits_since = now;
            }
            self.copies.closed = epoch;
        }
    }

    /// Its QEMU has said something. One that does not, and copies nothing, may be dying: then its twin is not given up.
    pub fn spoke(&mut self, at: Time) {
        self.spoke = self.spoke.max(at);
    }

    /// Bytes of the stream of copies have moved.
    pub fn moved(&mut self, now: Time) {
        self.copies.moved = now;
    }

    /// The twin, its host, or the stream to it is lost.
    pub fn lost(&mut self, why: &'static str, now: Time) {
        if matches!(self.stage, Stage::Joining { .. } | Stage::Protected { .. }) {
            self.part(why, now);
        }
    }

    fn part(&mut self, why: &'static str, now: Time) {
        let Some(pairing) = self.pairing() else { return };
        (self.stage, self.why) = (Stage::Parting { pairing }, why);
        (self.wants_handover, self.probe_at, self.away_until) = (false, None, None);
        self.act(Action::Shut);
        self.call.hurry();
        self.tick(now);
    }

    /// An administrator wants the protection to end.
    pub fn stop(&mut self, now: Time) {
        self.lost("it was stopped", now);
    }

    /// An administrator wants the twin to go on with the VM. Its host is first asked whether it reaches the lease. `false`: the VM is not
    /// protected.
    pub fn fail_over(&mut self, now: Time) -> bool {
        let is_protected = matches!(self.stage, Stage::Protected { .. });
        if is_protected {
            (self.wants_handover, self.probe_at) = (true, Some(now));
            self.tick(now);
        }
        is_protected
    }

    /// Whether an administrator's wish to fail over waits for the twin's host.
    pub fn is_handing_over(&self) -> bool {
        self.wants_handover
    }

    /// The wish to fail over is taken back: the twin's host does not reach the lease.
    pub fn keep(&mut self) {
        (self.wants_handover, self.probe_at) = (false, None);
    }

    fn hand_over(&mut self, pairing: Pairing) {
        (self.wants_handover, self.probe_at) = (false, None);
        self.act(Action::Shut);
        self.leave(Some(pairing), Leave::Give);
    }

    /// QEMU has ended.
    pub fn died(&mut self, death: Death, now: Time) {
        let pairing = self.pairing();
        self.is_alive = false;
        self.act(Action::Shut);
        let may_have_heir = matches!(
            self.stage,
            Stage::Protected { .. } | Stage::Parting { .. } | Stage::Joining { is_copied: true, .. }
        );
        let step = match (self.stage, death) {
            (Stage::Ended(_), _) => return,
            // An answer of `Leaving` is on its way.
            (Stage::Leaving { .. }, _) => return,
            // Nobody knows whose it was.
            (Stage::Begins, _) => return self.end(Ended::Over),
            // A twin that is named takes over, even if it was lost a moment ago.
            (_, Death::Sudden) if may_have_heir => Leave::Give,
            (_, Death::Ordered) if may_have_heir => Leave::Disown,
            _ => Leave::Release,
        };
        self.leave(pairing, step);
        self.tick(now);
    }
}
