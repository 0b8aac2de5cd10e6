//! The actions that the state machines ask for.

use std::sync::Arc;
use std::time::Instant;

use nicety_lease::NodeId;
use nicety_plane::{Epochs, GateMode};
use nicety_protect::{Action, Ended, Pairing, Stage};
use nicety_qmp::Role as Side;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tracing::warn;

use super::{Role, Vm};
use crate::protection::gates::{Gates, ProtectError};
use crate::protection::note::Note;
use crate::protection::wire::Wire;
use crate::run::protected::Protected;

impl Vm {
    /// Returns whether there was anything to do but to talk.
    pub(super) fn acts(&mut self, now: Instant) -> bool {
        let mut is_news = false;
        loop {
            let action = match &mut self.role {
                Role::None => None,
                Role::Owner(owner) => owner.action(),
                Role::Twin(twin) => twin.action(),
            };
            let Some(action) = action else { break };
            is_news |= !matches!(action, Action::Ask(..) | Action::Send(_) | Action::Release(..));
            self.act(action, now);
        }
        self.begin_copies(now);
        is_news
    }

    fn act(&mut self, action: Action, now: Instant) {
        match action {
            Action::Ask(number, request) => {
                self.lease.ask(number, NodeId(self.run), request);
            }
            Action::Send(message) => self.peer.send(&Wire::Say(message)),
            Action::Arm(pairing) => {
                self.copying.begin();
                self.protect(pairing, GateMode::Armed);
            }
            Action::Mute(pairing) => {
                self.copying.follow(self.ports.len());
                self.protect(pairing, GateMode::Mute);
            }
            Action::Shut => self.gate(GateMode::Shut),
            Action::Open => self.open(now),
            Action::Release(epoch, until) => self.each(|gates, port| {
                port.protected.iter().for_each(|protected| protected.epochs().release(epoch, until));
                gates.release(&port.name)
            }),
            Action::Copy(pairing) => self.copying.listened(pairing),
            Action::Listen(pairing) => self.listen(pairing, now),
            Action::GoAlone => self.qemu.go_alone(self.facts.as_deref(), now),
            Action::End => {
                warn!(vm = self.config.name, "QEMU is told to end: {}", self.why_it_ends());
                let is_over = matches!(&self.role, Role::Owner(owner) if owner.stage() == Stage::Ended(Ended::Over));
                self.qemu.end(!is_over, now);
            }
            Action::Hang(_) => {
                // What was said before it goes out.
                let _came = self.peer.turn();
                self.peer.hang();
                self.copying.hang();
            }
        }
    }

    fn why_it_ends(&self) -> &'static str {
        match &self.role {
            Role::Owner(owner) => match owner.stage() {
                Stage::Ended(Ended::Taken) => "another host has the VM",
                Stage::Ended(Ended::HandedOver) => "the VM was handed over",
                _ => "its VM has ended",
            },
            _ => "its copy of the VM is of no use any more; start it again with -incoming defer",
        }
    }

    /// Does this to each port. A port that is not there now is seen to by [`Vm::settle`].
    fn each(&mut self, mut act: impl FnMut(&dyn Gates, &mut super::VmPort) -> Result<(), ProtectError>) {
        let Some(gates) = self.gates.upgrade() else { return };
        for port in &mut self.ports {
            if let Err(why) = act(&*gates, port) {
                warn!(vm = self.config.name, port = port.name, "{why}");
            }
        }
    }

    fn protect(&mut self, pairing: Pairing, mode: GateMode) {
        let board = Arc::clone(&self.board);
        let mut number = 0;
        self.each(|gates, port| {
            let (hurried, told, at) = (Arc::clone(&board), Arc::clone(&board), number);
            number += 1;
            let epochs = Arc::new(Epochs::new(mode, move || hurried.tell(Note::Hurry(pairing))));
            let tell = move |event| told.tell(Note::Epoch(pairing, at, event));
            let protected = Arc::new(Protected::new(pairing, epochs, mode == GateMode::Mute, tell));
            (port.closed, port.mode) = (0, mode);
            port.protected = Some(Arc::clone(&protected));
            gates.protect(&port.name, &protected)
        });
    }

    fn gate(&mut self, mode: GateMode) {
        self.each(|gates, port| {
            port.mode = mode;
            gates.set_gate(&port.name, mode)
        });
    }

    fn open(&mut self, now: Instant) {
        self.each(|gates, port| {
            port.mode = GateMode::Open;
            if port.protected.as_ref().is_some_and(|protected| protected.is_twin()) {
                gates.own(&port.name)
            } else {
                gates.set_gate(&port.name, GateMode::Open)
            }
        });
        self.reporter.opens(now);
    }

    /// The twin's QEMU is to listen at a stream of this protection.
    fn listen(&mut self, pairing: Pairing, now: Instant) {
        let stream = self.peer.stream(pairing, now);
        let joined = stream.and_then(|link| Ok((link, pair()?)));
        match joined {
            Ok((link, [ours, theirs])) => {
                self.copying.carry(link, ours);
                self.qemu.copy(Side::Secondary, theirs, self.config.checkpoint, now);
            }
            Err(why) => {
                warn!(vm = self.config.name, "no stream to the other host: {why}");
                let time = self.time(now);
                if let Role::Twin(twin) = &mut self.role {
                    twin.lost(time);
                }
            }
        }
    }

    /// The owner's QEMU begins to copy, once the twin's listens and the stream is there.
    fn begin_copies(&mut self, now: Instant) {
        let Some(link) = self.copying.take_link() else { return };
        match pair() {
            Ok([ours, theirs]) => {
                self.copying.carry(link, ours);
                self.qemu.copy(Side::Primary, theirs, self.config.checkpoint, now);
            }
            Err(why) => {
                warn!(vm = self.config.name, "{why}");
                let time = self.time(now);
                if let Role::Owner(owner) = &mut self.role {
                    owner.lost("the system gives no sockets for the stream", time);
                }
            }
        }
    }

    /// Ports that were opened again, or whose gates are not needed any more.
    pub(super) fn settle(&mut self, now: Instant) {
        let Some(gates) = self.gates.upgrade() else { return };
        let mut is_new = false;
        for port in &mut self.ports {
            let Some(epochs) = gates.gate(&port.name) else {
                continue;
            };
            let is_ours = port.protected.as_ref().is_some_and(|protected| Arc::ptr_eq(protected.epochs(), &epochs));
            match port.mode {
                GateMode::Open if epochs.mode() != GateMode::Open => {
                    let _gone = gates.set_gate(&port.name, GateMode::Open);
                }
                GateMode::Open if epochs.waiting().packets == 0 => {
                    let _gone = gates.unprotect(&port.name);
                    port.protected = None;
                }
                GateMode::Open => {}
                _ if port.protected.is_some() && !is_ours => is_new = true,
                _ => {}
            }
        }
        if is_new {
            let time = self.time(now);
            match &mut self.role {
                Role::Owner(owner) => owner.lost("a port was opened again", time),
                Role::Twin(twin) => twin.died(),
                Role::None => {}
            }
            self.ports.iter_mut().for_each(|port| port.protected = None);
        }
    }
}

/// Two ends of a stream: ours, and QEMU's.
fn pair() -> Result<[std::os::fd::OwnedFd; 2], String> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(|errno| format!("a pair of sockets for the stream: {errno}"))?;
    Ok([ours, theirs])
}
