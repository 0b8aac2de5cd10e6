//! A daemon is replaced under a protected VM (docs/adr/0028): its stream of copies stands still first, and goes on in the next daemon.
//!
//! ```text
//! leave ──► both hosts' carriers are paused ──► nothing is under way ──► Left ──► resume, in the next daemon (or here: go_on)
//!                                                                                  │ QEMU's control socket, the lease, the gates
//!             the other host waits, and joins the stream again ◄────────────────────┘
//! ```
//! If that does not come about in time, nothing is handed over: the next daemon begins as after a kill, with a new protection.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use nicety_lease::NodeId;
use nicety_plane::GateMode;
use nicety_protect::{Kept, Owner, Pairing, Twin};
use nicety_qmp::Role as Side;
use tracing::{info, warn};

use super::{Role, Vm};
use crate::protection::left::Left;
use crate::protection::note::Note;
use crate::protection::qemu::Qemu;
use crate::protection::wire::{Line, Wire};

/// The stream stands still by then, or nothing is handed over.
pub(in crate::protection) const STILL: Duration = Duration::from_millis(500);

/// The daemon is about to be replaced.
pub(super) struct Leaving {
    answer: Sender<Left>,
    until: Instant,
}

impl Role {
    fn kept(&self) -> Option<Kept> {
        match self {
            Self::None => None,
            Self::Owner(owner) => owner.kept(),
            Self::Twin(twin) => twin.kept(),
        }
    }

    /// Whether the other host is waited for, because a daemon is being replaced.
    pub(super) fn is_paused(&self) -> bool {
        match self {
            Self::None => false,
            Self::Owner(owner) => owner.is_paused(),
            Self::Twin(twin) => twin.is_paused(),
        }
    }
}

impl Vm {
    /// The daemon is about to be replaced. Answers when the stream stands still; drops the answer if it does not.
    pub(super) fn leave(&mut self, answer: Sender<Left>, now: Instant) {
        let Some(kept) = self.role.kept().filter(|_| self.peer.is_there() && !self.role.is_paused()) else { return };
        let Some(sent) = self.copying.pause() else { return };
        self.pause(now);
        self.peer.send(&Wire::Pause { pairing: kept.pairing(), sent });
        self.leaving = Some(Leaving { answer, until: now + STILL });
    }

    fn pause(&mut self, now: Instant) {
        let time = self.time(now);
        match &mut self.role {
            Role::None => {}
            Role::Owner(owner) => owner.pause(time),
            Role::Twin(twin) => twin.pause(time),
        }
    }

    fn rejoined(&mut self, now: Instant) {
        let time = self.time(now);
        match &mut self.role {
            Role::None => {}
            Role::Owner(owner) => owner.rejoined(time),
            Role::Twin(twin) => twin.rejoined(time),
        }
    }

    /// The other host's daemon says something of a daemon that is replaced.
    pub(super) fn hear_of_pause(&mut self, message: Wire, now: Instant) {
        let Some(ours) = self.role.kept().map(|kept| kept.pairing()) else { return };
        match message {
            Wire::Pause { pairing, sent: there } if pairing == ours => {
                let Some(sent) = self.copying.pause() else { return };
                self.copying.pauses_there(there);
                self.pause(now);
                self.peer.send(&Wire::Paused { pairing, sent });
            }
            Wire::Paused { pairing, sent } if pairing == ours && self.leaving.is_some() => {
                self.copying.pauses_there(sent);
            }
            Wire::GoOn(pairing) if pairing == ours && self.leaving.is_none() && self.role.is_paused() => {
                self.copying.go_on();
                self.rejoined(now);
            }
            Wire::Rejoined(pairing) if pairing == ours => self.join_stream(pairing, now),
            _ => {}
        }
    }

    /// The owner's daemon has this protection: the twin's connects for the stream.
    fn join_stream(&mut self, pairing: Pairing, now: Instant) {
        if !matches!(&self.role, Role::Twin(twin) if twin.is_paused()) || !self.copying.waits() {
            return;
        }
        match self.peer.stream(pairing, now) {
            Ok(link) => {
                if self.copying.rejoin(link) {
                    self.goes_on(now);
                }
            }
            Err(why) => {
                info!(vm = self.config.name, "no stream to the other host: {why}");
                self.peer.hang();
            }
        }
    }

    fn goes_on(&mut self, now: Instant) {
        self.rejoined(now);
        info!(vm = self.config.name, "a daemon was replaced: the protection goes on");
    }

    /// A daemon has connected that says which protection goes on. Gives the line back if it is none of this host's.
    pub(super) fn rejoin(&mut self, line: Line, rejoins: Option<Pairing>) -> Option<Line> {
        let is_ours = matches!(&self.role, Role::Owner(owner) if owner.is_paused() && owner.pairing() == rejoins);
        let Some(pairing) = rejoins.filter(|_| is_ours && self.leaving.is_none()) else { return Some(line) };
        self.peer.accepted(line);
        self.peer.send(&Wire::Rejoined(pairing));
        None
    }

    /// The streams of a daemon that was replaced, and of one that is about to be.
    pub(super) fn see_to_replaced(&mut self, now: Instant) {
        if let Role::Owner(owner) = &self.role
            && owner.is_paused()
            && self.leaving.is_none()
            && let Some(link) = owner.pairing().and_then(|pairing| self.copying.take_rejoined(pairing))
            && self.copying.rejoin(link)
        {
            self.goes_on(now);
        }
        if let Role::Twin(twin) = &self.role
            && twin.is_paused()
            && self.leaving.is_none()
            && self.copying.waits()
            && let Some(pairing) = twin.pairing()
        {
            self.peer.dial_again(pairing, now);
        }
        if self.leaving.is_some() && self.copying.is_still() {
            self.park();
        } else if self.leaving.take_if(|leaving| now >= leaving.until).is_some() {
            self.stays(now);
        }
    }

    /// The stream has not come to stand still: it goes on here.
    fn stays(&mut self, now: Instant) {
        warn!(vm = self.config.name, "the stream of copies has not come to stand still within {STILL:?}");
        self.copying.go_on();
        if let Some(kept) = self.role.kept() {
            self.peer.send(&Wire::GoOn(kept.pairing()));
        }
        self.rejoined(now);
    }

    /// Nothing is under way. The thread does nothing more, unless the daemon goes on.
    fn park(&mut self) {
        let Some(Leaving { answer, .. }) = self.leaving.take() else { return };
        let (Some(kept), Some(still)) = (self.role.kept(), self.copying.stand_still()) else { return };
        let left = Left { vm: self.config.name.clone(), run: self.run, kept, still };
        match left.another() {
            // The one that has asked gets it, or does not wait any more.
            Ok(other) => _ = answer.send(other),
            Err(why) => warn!(vm = self.config.name, "its stream is not handed over: {why}"),
        }
        self.peer.hang();
        self.qemu = Qemu::new(&self.config.qmp, Instant::now());
        self.role = Role::None;
        self.parked = Some(left);
    }

    /// A parked thread is told things.
    pub(super) fn rest(&mut self) {
        let until_rung = rustix::event::PollFd::new(&*self.board.bell, rustix::event::PollFlags::IN);
        let _ready = rustix::event::poll(&mut [until_rung], None);
        self.board.bell.answer();
        while let Ok(note) = self.notes.try_recv() {
            match note {
                Note::GoOn => {
                    if let Some(left) = self.parked.take() {
                        self.resume(left, Instant::now());
                    }
                    return;
                }
                Note::Wish(_, answer) => {
                    let _gone = answer.send(Err("the daemon is being replaced: ask again in a moment".to_owned()));
                }
                _ => {}
            }
        }
    }

    /// Goes on with what another thread of this VM has left.
    pub fn resume(&mut self, left: Left, now: Instant) {
        let Left { vm: _, run, kept, still } = left;
        let (time, pairing) = (self.time(now), kept.pairing());
        let Some(closed) = self.adopt_ports(pairing) else {
            warn!(vm = self.config.name, "the protection ends: its ports were not handed over");
            return;
        };
        let (who, terms) = (NodeId(run), self.terms);
        let owner = Owner::again(who, terms, kept, closed, time).map(Role::Owner);
        let Some(role) = owner.or_else(|| Twin::again(who, terms, kept, time).map(Role::Twin)) else { return };
        (self.role, self.run) = (role, run);
        self.copying.follow(self.ports.len());
        self.copying.stands_still(still);
        self.qemu = Qemu::known(&self.config.qmp, now);
        self.is_adopting = true;
    }

    /// The gates of the VM's ports, as another thread has left them: how many epochs all have closed. `None`: they are not of this protection.
    fn adopt_ports(&mut self, pairing: Pairing) -> Option<u64> {
        let gates = self.gates.upgrade()?;
        let found: Option<Vec<_>> = self.ports.iter().map(|port| gates.protected(&port.name)).collect();
        let found = found?;
        if found.iter().any(|protected| protected.pairing() != pairing) {
            return None;
        }
        for (at, (port, protected)) in self.ports.iter_mut().zip(found).enumerate() {
            let [hurried, told] = [(); 2].map(|()| std::sync::Arc::clone(&self.board));
            protected.epochs().set_hurry(move || hurried.tell(Note::Hurry(pairing)));
            protected.tell_to(move |event| told.tell(Note::Epoch(pairing, at, event)));
            // Behind that: no epoch is closed unheard.
            port.closed = protected.epochs().current() - 1;
            port.mode = if protected.is_twin() { GateMode::Mute } else { GateMode::Shut };
            port.protected = Some(protected);
        }
        self.ports.iter().map(|port| port.closed).min()
    }

    /// QEMU is there, of a protection that another daemon has begun. Returns whether that goes on.
    pub(super) fn adopt(&mut self, is_same: bool, now: Instant) -> bool {
        if !std::mem::take(&mut self.is_adopting) || !is_same {
            return false;
        }
        let side = match &self.role {
            Role::Owner(owner) if owner.kept().is_some() => Side::Primary,
            Role::Twin(twin) if twin.kept().is_some() => Side::Secondary,
            _ => return false,
        };
        self.qemu.go_on(side, self.config.checkpoint, now);
        true
    }
}
