//! Notes to a VM's thread, and the board where the thread shows its state.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use nicety_link::Link;
use nicety_protect::Pairing;
use rustix::event::{EventfdFlags, eventfd};

use super::left::Left;
use super::report::VmReport;
use super::wire::Line;
use crate::run::protected::EpochEvent;

/// Something for the thread.
pub(crate) enum Note {
    /// The other daemon has connected: its first message was read. It may say that a protection goes on.
    Line(Line, Option<Pairing>),
    /// The stream of this protection.
    Stream(Pairing, Link),
    /// A port's front end says this.
    Epoch(Pairing, usize, EpochEvent),
    /// A gate is half full.
    Hurry(Pairing),
    /// An administrator's wish, and where its answer goes: a sentence if it cannot be.
    Wish(Wish, Sender<Result<(), String>>),
    /// The daemon is about to be replaced: the protection is to stand still, and goes there. Nothing goes there if it cannot go on.
    Leave(Sender<Left>),
    /// The daemon is not replaced after all.
    GoOn,
}

/// An administrator's wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The twin is to go on with the VM.
    FailOver,
    /// The protection ends, and no twin is taken.
    Stop,
    /// A twin is taken again.
    Protect,
}

/// Wakes a thread.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: std::os::fd::OwnedFd,
    is_rung: AtomicBool,
    has_ended: AtomicBool,
}

impl std::os::fd::AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Bell {
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, is_rung: AtomicBool::new(false), has_ended: AtomicBool::new(false) })
    }

    pub fn ring(&self) {
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            // A full counter means that it has been rung already.
            let _full = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.ring();
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Before what was announced is looked at: what comes meanwhile rings again.
    pub fn answer(&self) {
        let _none = rustix::io::read(&self.fd, &mut [0; 8]);
        self.is_rung.store(false, Ordering::Release);
    }
}

/// A VM's thread as others see it: they send it notes, and read its state.
pub(crate) struct Board {
    pub bell: Arc<Bell>,
    pub notes: Sender<Note>,
    pub shown: Mutex<VmReport>,
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Board({})", self.shown().name)
    }
}

impl Board {
    pub fn shown(&self) -> VmReport {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the VM's thread.
    pub fn tell(&self, note: Note) {
        // The thread ends with the daemon only.
        let _gone = self.notes.send(note);
        self.bell.ring();
    }

    pub fn show(&self, report: &VmReport) {
        report.clone_into(&mut self.shown.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
