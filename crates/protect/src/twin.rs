//! The host whose VM is the copy.

use std::collections::VecDeque;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_lease::{Answer, Request};

use crate::call::Call;
use crate::{Action, Kept, Message, Owner, Pairing, Run, Terms, earlier};

/// The stage of a twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TwinStage {
    /// It waits for an owner.
    Offers,
    /// It is copied.
    Copied {
        /// The protection.
        pairing: Pairing,
        /// A whole copy is here.
        is_whole: bool,
        /// The owner says that the lease names this twin.
        is_heir: bool,
    },
    /// The owner is lost, or gives the VM away: the lease is asked for.
    Asks {
        /// The protection.
        pairing: Pairing,
        /// No more copies can come.
        is_cut: bool,
    },
    /// Its state is of no use: QEMU ends.
    Stale,
}

/// See the crate's page.
#[derive(Clone, Debug, Hash)]
pub struct Twin {
    me: Run,
    terms: Terms,
    stage: TwinStage,
    call: Call,
    heard: Time,
    sent: Time,
    /// One of the daemons is being replaced: by then both speak to each other again.
    away_until: Option<Time>,
    /// The owner wants to know whether the lease is in reach.
    probed: Option<Pairing>,
    actions: VecDeque<Action>,
}

impl Twin {
    /// The twin with a QEMU that waits for a VM.
    pub fn new(me: Run, terms: Terms) -> Self {
        let call = Call::default();
        let (heard, sent) = (Time::ZERO, Time::ZERO);
        let (stage, away_until, probed, actions) = (TwinStage::Offers, None, None, VecDeque::new());
        Self { me, terms, stage, call, heard, sent, away_until, probed, actions }
    }

    /// Of a copy that is whole, and that the daemon before this one has followed. `None`: it had an owner.
    pub fn again(me: Run, terms: Terms, kept: Kept, now: Time) -> Option<Self> {
        let Kept::Twin { pairing, is_heir } = kept else { return None };
        let stage = TwinStage::Copied { pairing, is_whole: true, is_heir };
        let mut twin = Self { stage, heard: now, ..Self::new(me, terms) };
        twin.pause(now);
        Some(twin)
    }

    /// The state that the next daemon needs. `None`: the protection ends with this one.
    pub fn kept(&self) -> Option<Kept> {
        match self.stage {
            TwinStage::Copied { pairing, is_whole: true, is_heir } => Some(Kept::Twin { pairing, is_heir }),
            _ => None,
        }
    }

    /// See [`Owner::pause`].
    pub fn pause(&mut self, now: Time) {
        self.away_until = Some(now.after(self.terms.patience));
    }

    /// See [`Owner::is_paused`].
    pub fn is_paused(&self) -> bool {
        self.away_until.is_some()
    }

    /// See [`Owner::rejoined`].
    pub fn rejoined(&mut self, now: Time) {
        (self.away_until, self.heard) = (None, now);
    }

    /// Its stage.
    pub fn stage(&self) -> TwinStage {
        self.stage
    }

    /// The protection, if there is one.
    pub fn pairing(&self) -> Option<Pairing> {
        match self.stage {
            TwinStage::Copied { pairing, .. } | TwinStage::Asks { pairing, .. } => Some(pairing),
            TwinStage::Offers | TwinStage::Stale => None,
        }
    }

    /// The next thing to do.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn send(&mut self, message: Message, now: Time) {
        self.sent = now;
        self.actions.push_back(Action::Send(message));
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Time) {
        match self.stage {
            TwinStage::Copied { .. } => match self.away_until {
                Some(until) if now >= until => self.ask(true, now),
                None if now.since(self.heard) >= self.silence() => self.ask(false, now),
                _ => {}
            },
            TwinStage::Asks { .. } => self.take(now),
            _ => {}
        }
        if self.probed.is_some() {
            // Only an owner may do this: a refusal is an answer too.
            self.actions.extend(self.call.ask(Request::Renew, &self.terms, now));
        }
        if self.hears() && now.since(self.sent) >= self.terms.heartbeat {
            self.send(Message::Alive, now);
        }
    }

    /// A twin that does not hear its owner is silent, too. Otherwise the owner would go on as protected when the link loses what it
    /// sends and nothing else: its frames would wait for copies that do not come.
    fn hears(&self) -> bool {
        matches!(self.stage, TwinStage::Copied { .. })
    }

    /// The time after which a silent owner is lost.
    fn silence(&self) -> Duration {
        if let TwinStage::Copied { is_whole: false, .. } = self.stage {
            self.terms.patience
        } else {
            self.terms.silence
        }
    }

    /// When [`Twin::tick`] must be called at the latest.
    pub fn wake_at(&self) -> Option<Time> {
        let beat = self.hears().then(|| self.sent.after(self.terms.heartbeat));
        let call = Some(self.call.wake_at(&self.terms));
        let next = match self.stage {
            TwinStage::Copied { .. } if self.probed.is_some() => call,
            TwinStage::Copied { .. } => Some(self.away_until.unwrap_or(self.heard.after(self.silence()))),
            TwinStage::Asks { .. } => call,
            TwinStage::Offers | TwinStage::Stale => None,
        };
        earlier(beat, next)
    }

    fn take(&mut self, now: Time) {
        let asked = self.call.ask(Request::Take, &self.terms, now);
        self.actions.extend(asked);
    }

    /// Asks for the VM, if there is a copy of it.
    fn ask(&mut self, is_cut: bool, now: Time) {
        match self.stage {
            TwinStage::Copied { pairing, is_whole: true, .. } => {
                self.stage = TwinStage::Asks { pairing, is_cut };
                (self.probed, self.away_until) = (None, None);
                self.call.hurry();
                self.take(now);
            }
            TwinStage::Copied { .. } => self.stale(),
            TwinStage::Asks { pairing, .. } if is_cut => self.stage = TwinStage::Asks { pairing, is_cut },
            TwinStage::Asks { .. } | TwinStage::Offers | TwinStage::Stale => {}
        }
    }

    fn stale(&mut self) {
        if let Some(pairing) = self.pairing() {
            self.actions.push_back(Action::Hang(pairing));
        }
        if self.stage != TwinStage::Stale {
            self.stage = TwinStage::Stale;
            self.actions.push_back(Action::End);
        }
    }

    /// The owner's host says something.
    pub fn heard(&mut self, message: Message, now: Time) {
        self.heard = now;
        match (self.stage, message) {
            (TwinStage::Offers, Message::Begin(pairing)) => {
                self.stage = TwinStage::Copied { pairing, is_whole: false, is_heir: false };
                self.actions.push_back(Action::Mute(pairing));
                self.actions.push_back(Action::Listen(pairing));
            }
            (TwinStage::Copied { pairing: ours, is_whole, .. }, Message::Heir(pairing)) if pairing == ours => {
                self.stage = TwinStage::Copied { pairing, is_whole, is_heir: true };
            }
            (TwinStage::Copied { pairing: ours, .. }, Message::Probe(pairing)) if pairing == ours => {
                self.probed = Some(pairing);
            }
            (_, Message::HandOver(pairing)) if self.pairing() == Some(pairing) => {
                self.call.hurry();
                self.ask(true, now);
            }
            (_, Message::Alone(pairing)) if self.pairing() == Some(pairing) => self.stale(),
            // It was only late.
            (TwinStage::Asks { pairing, is_cut: false }, _) => {
                self.stage = TwinStage::Copied { pairing, is_whole: true, is_heir: false };
            }
            _ => {}
        }
        self.tick(now);
    }

    /// QEMU listens for copies, and its stream is there.
    pub fn listens(&mut self, pairing: Pairing, now: Time) {
        if self.pairing() == Some(pairing) {
            self.send(Message::Ready(pairing), now);
        }
    }

    /// The copy that closed this epoch is whole.
    pub fn loaded(&mut self, pairing: Pairing, epoch: u64, now: Time) {
        match &mut self.stage {
            TwinStage::Copied { pairing: ours, is_whole, .. } if *ours == pairing => *is_whole = true,
            TwinStage::Asks { pairing: ours, .. } if *ours == pairing => {}
            _ => return,
        }
        self.send(Message::Loaded(pairing, epoch), now);
    }

    /// The owner, its host, or the stream from it is lost.
    pub fn lost(&mut self, now: Time) {
        self.ask(true, now);
    }

    /// QEMU has ended.
    pub fn died(&mut self) {
        self.stale();
    }

    /// The third party has answered. `None`: it has not, in time or at all. Returns the owner that this host has become.
    pub fn answered(&mut self, number: u32, answer: Option<Answer>, now: Time) -> Option<Owner> {
        let (request, _) = self.call.answered(number)?;
        let answer = answer?;
        if let Some(pairing) = self.probed.take() {
            self.send(Message::Reaches(pairing), now);
        }
        if request != Request::Take {
            return None;
        }
        if answer.granted {
            return Some(Owner::taken(self.me, self.terms, self.call, &answer));
        }
        // Somebody else has it, or goes on without this twin.
        if answer.peer != Some(self.me) && matches!(self.stage, TwinStage::Asks { .. }) {
            self.stale();
        }
        None
    }
}
