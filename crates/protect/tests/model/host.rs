//! A daemon with its gate, and a QEMU.

use std::collections::VecDeque;

use nicety_adapter::Time;
use nicety_lease::Answer;
use nicety_protect::{Action, Death, Message, Owner, Pairing, Run, Stage, Terms, Twin};

#[derive(Clone, Debug, Hash)]
pub enum Part {
    Owner(Owner),
    Twin(Twin),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Open,
    Armed,
    Shut,
    Mute,
}

/// A daemon with its gate, and a QEMU.
#[derive(Clone, Debug, Hash)]
pub struct Host {
    pub run: Run,
    /// Grows with each start of the daemon.
    pub start: u8,
    pub part: Part,
    pub mode: Mode,
    pub epoch: u64,
    /// Frames that wait: each with its epoch, and with all that the VM had sent with it.
    pub held: VecDeque<(u64, Vec<u8>)>,
    pub released: (u64, Time),
    /// All that the VM has sent.
    pub vm: Vec<u8>,
    /// QEMU copies its VM.
    pub copies: Option<Pairing>,
    pub is_alive: bool,
}

impl Host {
    pub fn new(run: Run, start: u8, part: Part, mode: Mode) -> Self {
        let (held, released) = (VecDeque::new(), (0, Time(0)));
        Self { run, start, part, mode, epoch: 1, held, released, vm: Vec::new(), copies: None, is_alive: true }
    }

    pub fn twin(run: Run, terms: Terms) -> Self {
        Self::new(run, 0, Part::Twin(Twin::new(run, terms)), Mode::Mute)
    }

    /// The daemon is killed and started again. The VM goes on.
    pub fn restarted(&self, terms: Terms) -> Self {
        let part = match self.part {
            Part::Owner(_) => Owner::new(self.run, terms),
            Part::Twin(_) => Owner::maybe(self.run, terms),
        };
        let new = Self::new(self.run, self.start + 1, Part::Owner(part), Mode::Shut);
        Self { vm: self.vm.clone(), is_alive: self.is_alive, ..new }
    }

    pub fn stage(&self) -> Option<Stage> {
        if let Part::Owner(owner) = &self.part { Some(owner.stage()) } else { None }
    }

    pub fn is_protected(&self) -> bool {
        matches!(self.stage(), Some(Stage::Protected { .. }))
    }

    /// Whether frames may leave.
    pub fn owns(&self, now: Time) -> bool {
        match self.mode {
            Mode::Open | Mode::Armed => true,
            Mode::Shut => now < self.released.1,
            Mode::Mute => false,
        }
    }

    /// Whether its VM sends something that anybody may see.
    pub fn sends(&self) -> bool {
        self.is_alive && matches!(self.part, Part::Owner(_))
    }

    /// Whether QEMU makes a copy now: there is new work, and the twin has what was copied before.
    pub fn may_copy(&self) -> bool {
        let Part::Owner(owner) = &self.part else { return false };
        let (closed, loaded) = owner.copies();
        let is_ahead = self.epoch == 1 || self.held.back().is_some_and(|(epoch, _)| *epoch == self.epoch);
        self.is_alive && is_ahead && self.copies.is_some() && owner.pairing() == self.copies && closed == loaded
    }

    pub fn action(&mut self) -> Option<Action> {
        match &mut self.part {
            Part::Owner(owner) => owner.action(),
            Part::Twin(twin) => twin.action(),
        }
    }

    pub fn tick(&mut self, now: Time) {
        match &mut self.part {
            Part::Owner(owner) => owner.tick(now),
            Part::Twin(twin) => twin.tick(now),
        }
    }

    pub fn heard(&mut self, message: Message, now: Time) {
        match &mut self.part {
            Part::Owner(owner) => owner.heard(message, now),
            Part::Twin(twin) => twin.heard(message, now),
        }
    }

    pub fn lost(&mut self, now: Time) {
        self.copies = None;
        match &mut self.part {
            Part::Owner(owner) => owner.lost("the link is lost", now),
            Part::Twin(twin) => twin.lost(now),
        }
    }

    pub fn answered(&mut self, number: u32, answer: Answer, now: Time) {
        match &mut self.part {
            Part::Owner(owner) => owner.answered(number, Some(answer), now),
            Part::Twin(twin) => {
                if let Some(owner) = twin.answered(number, Some(answer), now) {
                    self.part = Part::Owner(owner);
                }
            }
        }
    }

    pub fn loaded(&mut self, pairing: Pairing, epoch: u64, vm: Vec<u8>, now: Time) {
        if let Part::Twin(twin) = &mut self.part
            && twin.pairing() == Some(pairing)
            && self.is_alive
        {
            self.vm = vm;
            twin.loaded(pairing, epoch, now);
        }
    }

    pub fn died(&mut self, now: Time) {
        (self.is_alive, self.copies) = (false, None);
        match &mut self.part {
            Part::Owner(owner) => owner.died(Death::Sudden, now),
            Part::Twin(twin) => twin.died(),
        }
    }

    pub fn set_mode(&mut self, mode: Mode) {
        match mode {
            Mode::Armed => (self.epoch, self.released) = (1, (0, Time(0))),
            Mode::Shut => self.released.1 = Time(0),
            Mode::Open | Mode::Mute => {}
        }
        self.mode = mode;
    }

    /// The next frame that leaves: all that the VM had sent with it.
    pub fn leaves(&mut self, now: Time) -> Option<Vec<u8>> {
        let limit = match self.mode {
            Mode::Open | Mode::Armed => u64::MAX,
            Mode::Shut if now < self.released.1 => self.released.0,
            Mode::Shut | Mode::Mute => 0,
        };
        self.held.pop_front_if(|(epoch, _)| *epoch <= limit).map(|(_, vm)| vm)
    }
}
