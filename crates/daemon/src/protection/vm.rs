//! The thread of one VM: its QEMU, its twin's daemon, its lease and its ports, joined by the state machines of `nicety_protect`.

mod act;
mod copying;
mod news;
mod replaced;
mod reporter;
mod wishes;

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nicety_adapter::Time;
use nicety_host::VmConfig;
use nicety_lease::{Asker, NodeId};
use nicety_plane::{GateMode, Waiting};
use nicety_protect::{Owner, Pairing, Stage, Terms, Twin, TwinStage};
use nicety_qmp::{Facts, Marked};
use rustix::event::{PollFd, Timespec, poll};
use tracing::{info, warn};

use copying::{Copying, Offer};
use replaced::Leaving;
pub(super) use replaced::STILL;
use reporter::{Reporter, View};
use wishes::Wishes;

use super::carrier::Over;
use super::gates::Gates;
use super::left::Left;
use super::note::{Board, Note};
use super::peer::Peer;
use super::qemu::Qemu;
use super::wire::{Line, Wire};
use crate::random::random;
use crate::run::protected::{EpochEvent, Protected};

/// Longest wait. Then the gates are compared with what the state machine wants of them.
const LOOK: Duration = Duration::from_millis(50);
/// A QEMU that says nothing for so long although it was asked is as good as dead, if its twin is well: it hangs, or is writing its core.
const HUNG: Duration = Duration::from_secs(2);

pub(super) enum Role {
    None,
    Owner(Owner),
    Twin(Twin),
}

/// A port of the VM.
pub(super) struct VmPort {
    name: String,
    protected: Option<Arc<Protected>>,
    mode: GateMode,
    /// Epochs that it has closed in this protection.
    closed: u64,
}

/// The packets that waited in the owner's gates when the last copy was made. `None`: a port of the copy does not say.
fn unseen(ports: &[VmPort]) -> Option<Waiting> {
    ports.iter().try_fold(Waiting::default(), |sum, port| {
        let one = port.protected.as_ref()?.unseen()?;
        Some(Waiting { packets: sum.packets + one.packets, bytes: sum.bytes + one.bytes })
    })
}

/// See the module's page.
pub(super) struct Vm {
    config: VmConfig,
    terms: Terms,
    gates: Weak<dyn Gates>,
    board: Arc<Board>,
    notes: Receiver<Note>,
    /// The start of the daemon's clock: ports are told when the lease ends.
    began: Instant,
    qemu: Qemu,
    facts: Option<Box<Facts>>,
    /// A QEMU that has come while the last one's end is not settled.
    newcomer: Option<(Box<Facts>, Marked)>,
    role: Role,
    run: u64,
    lease: Asker,
    peer: Peer,
    wishes: Wishes,
    ports: Vec<VmPort>,
    copying: Copying,
    reporter: Reporter,
    /// The daemon is about to be replaced.
    leaving: Option<Leaving>,
    /// The next daemon has this, and this thread does nothing more.
    parked: Option<Left>,
    /// QEMU's control socket is sought, for copies that another daemon has begun.
    is_adopting: bool,
}

impl Vm {
    pub fn new(
        (config, terms, began): (VmConfig, Terms, Instant),
        gates: Weak<dyn Gates>,
        peer: Peer,
        lease: Asker,
        (board, notes): (Arc<Board>, Receiver<Note>),
    ) -> Self {
        let now = Instant::now();
        let port = |name: &String| VmPort { name: name.clone(), protected: None, mode: GateMode::Shut, closed: 0 };
        let ports: Vec<_> = config.ports.iter().map(port).collect();
        Self {
            qemu: Qemu::new(&config.qmp, now),
            copying: Copying::new(ports.len()),
            reporter: Reporter::new(&config),
            terms,
            began,
            facts: None,
            newcomer: None,
            role: Role::None,
            run: 0,
            lease,
            wishes: Wishes::default(),
            config,
            gates,
            board,
            notes,
            peer,
            ports,
            leaving: None,
            parked: None,
            is_adopting: false,
        }
    }

    fn time(&self, now: Instant) -> Time {
        Time::ZERO.after(now - self.began)
    }

    /// Runs until the daemon ends.
    pub fn run(mut self) {
        while !self.board.bell.has_ended() {
            if self.parked.is_some() {
                self.rest();
                continue;
            }
            let now = Instant::now();
            self.turn(now);
            self.wait();
            self.board.bell.answer();
        }
    }

    fn wait(&self) {
        let now = Instant::now();
        let mut until = now + LOOK;
        let machine = match &self.role {
            Role::None => None,
            Role::Owner(owner) => owner.wake_at(),
            Role::Twin(twin) => twin.wake_at(),
        };
        let machine = machine.map(|at| self.began + Duration::from_nanos(at.0));
        let dials = matches!(&self.role, Role::Twin(twin) if twin.stage() == TwinStage::Offers || twin.is_paused());
        for at in [machine, self.qemu.wake_at(), self.peer.wake_at(dials)].into_iter().flatten() {
            until = until.min(at);
        }
        let polled = self.copying.polled().chain(self.qemu.polled()).chain(self.peer.polled());
        let polled = polled.filter(|(_, events)| !events.is_empty());
        let mut fds: Vec<PollFd<'_>> = polled.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events)).collect();
        fds.push(PollFd::new(&*self.board.bell, rustix::event::PollFlags::IN));
        fds.push(PollFd::new(&self.lease, rustix::event::PollFlags::IN));
        let wait = if self.copying.has_more() { Duration::ZERO } else { until.saturating_duration_since(now) };
        let wait = Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: wait.subsec_nanos().into() };
        // An error is one of arguments, which are right: look again.
        let _ready = poll(&mut fds, Some(&wait));
    }

    fn turn(&mut self, now: Instant) {
        while let Ok(note) = self.notes.try_recv() {
            self.note(note, now);
        }
        self.qemu.turn(now);
        while let Some(news) = self.qemu.news() {
            self.news(news, now);
        }
        self.come();
        self.hear(now);
        self.carry(now);
        self.see_to_replaced(now);
        self.ask(now);
        self.tick(now);
        self.meet(now);
        let is_news = self.acts(now);
        if self.reporter.is_due(is_news, now) {
            self.settle(now);
            self.report(now);
        }
    }

    fn tick(&mut self, now: Instant) {
        let time = self.time(now);
        match &mut self.role {
            Role::None => {}
            Role::Owner(owner) => owner.tick(time),
            Role::Twin(twin) => {
                twin.tick(time);
                if matches!(twin.stage(), TwinStage::Asks { .. }) {
                    self.reporter.seems_lost(now);
                } else {
                    self.reporter.is_well();
                }
            }
        }
    }

    fn report(&mut self, now: Instant) {
        let time = self.time(now);
        let Self { role, qemu, peer, copying, ports, wishes, .. } = self;
        let view = View { role, qemu, peer, copying, ports, is_stopped: wishes.is_stopped, time };
        self.board.show(self.reporter.report(&view));
        self.answer_wish(now);
    }

    /// A QEMU that has come, once the last one's end is settled.
    fn come(&mut self) {
        let is_free = match &self.role {
            Role::None => true,
            Role::Owner(owner) => matches!(owner.stage(), Stage::Ended(_)),
            Role::Twin(twin) => twin.stage() == TwinStage::Stale,
        };
        if !is_free {
            return;
        }
        let Some((facts, marked)) = self.newcomer.take() else { return };
        let name = &self.config.name;
        self.run = marked.run;
        self.reporter.is_well();
        let who = NodeId(marked.run);
        let waits = facts.status == "inmigrate";
        self.role = match (waits, marked.is_known && marked.is_twin) {
            (true, _) => Role::Twin(Twin::new(who, self.terms)),
            (false, true) => Role::Owner(Owner::maybe(who, self.terms)),
            (false, false) => Role::Owner(Owner::new(who, self.terms)),
        };
        info!(vm = name, status = facts.status, version = %facts.version, "QEMU is there");
        self.facts = Some(facts);
        self.peer.hang();
    }

    fn note(&mut self, note: Note, now: Instant) {
        let time = self.time(now);
        match note {
            Note::Line(line, rejoins) => {
                let Some(line) = self.rejoin(line, rejoins) else { return };
                // A daemon that connects again has forgotten what was before.
                if let Role::Owner(owner) = &mut self.role
                    && rejoins.is_none()
                {
                    owner.lost("the twin's daemon has begun anew", time);
                    self.copying.offer = None;
                    self.peer.accepted(line);
                } else {
                    self.refuse(line);
                }
            }
            Note::Stream(pairing, link) => self.copying.joined(pairing, link),
            Note::Epoch(pairing, port, event) => self.epoch(pairing, port, event, now),
            Note::Hurry(pairing) => {
                if matches!(&self.role, Role::Owner(owner) if owner.pairing() == Some(pairing)) {
                    self.qemu.hurry();
                }
            }
            Note::Wish(wish, answer) => self.wish(wish, answer, now),
            Note::Leave(answer) => self.leave(answer, now),
            Note::GoOn => {}
        }
    }

    /// The VM does not run here, so no twin of it can be taken.
    fn refuse(&self, mut line: Line) {
        let why = self.qemu.why_not().map_or_else(
            || "its VM does not run there: it waits for a VM itself, or has begun a moment ago".to_owned(),
            |why| format!("its VM does not run there: {why}"),
        );
        if line.send(&Wire::Refused(why)) {
            // It may not be sent whole: the other daemon asks again.
            let _sent = line.turn();
        }
    }

    fn epoch(&mut self, pairing: Pairing, port: usize, event: EpochEvent, now: Instant) {
        let time = self.time(now);
        match (&mut self.role, event) {
            (Role::Owner(owner), EpochEvent::Closed(closed)) if closed.pairing == pairing => {
                if let Some(port) = self.ports.get_mut(port) {
                    port.closed = closed.epoch;
                }
                let all = self.ports.iter().map(|port| port.closed).min().unwrap_or(0);
                owner.closed(pairing, all, time);
            }
            (Role::Twin(twin), event) if twin.pairing() == Some(pairing) => {
                match event {
                    EpochEvent::Loaded(closed) => {
                        self.copying.loads.loaded(port, closed.epoch, closed.ran);
                        self.ask_whether_it_runs(now);
                    }
                    EpochEvent::Runs => self.copying.loads.port_runs(port),
                    EpochEvent::Closed(_) => {}
                }
                self.whole(time);
            }
            _ => {}
        }
    }

    /// Asks QEMU, if it is its word that counts for the copy that was loaded last. It answers after that load, so it cannot mean the copy
    /// before, as a RESUME may that is late.
    fn ask_whether_it_runs(&mut self, now: Instant) {
        if self.copying.loads.waits_for_vm() {
            self.qemu.ask_whether_it_runs(now);
        }
    }

    fn whole(&mut self, time: Time) {
        if let Role::Twin(twin) = &mut self.role
            && let Some(pairing) = twin.pairing()
            && let Some(epoch) = self.copying.loads.whole()
        {
            twin.loaded(pairing, epoch, time);
        }
    }

    /// Handles messages of the other host.
    fn hear(&mut self, now: Instant) {
        let time = self.time(now);
        let came = match self.peer.turn() {
            Ok(came) => came,
            Err(why) => {
                info!(vm = self.config.name, "the line to the other host: {why}");
                self.copying.offer = None;
                if self.role.is_paused() && self.leaving.is_none() {
                    return;
                }
                match &mut self.role {
                    Role::None => {}
                    Role::Owner(owner) => owner.lost("the connection to the twin's host was cut", time),
                    Role::Twin(twin) => twin.lost(time),
                }
                return;
            }
        };
        for message in came {
            match (message, &mut self.role) {
                (Wire::Say(message), Role::Owner(owner)) => owner.heard(message, time),
                (Wire::Say(message), Role::Twin(twin)) => twin.heard(message, time),
                (Wire::Offer { run, facts, ports }, Role::Owner(_)) => {
                    self.copying.offer = Some(Offer { run, facts, ports, is_checked: false });
                }
                (Wire::Refused(why), Role::Twin(twin)) => {
                    self.peer.refused(why, now);
                    // The protection that was to go on has ended there.
                    if twin.is_paused() {
                        twin.lost(time);
                    }
                }
                (message, _) => self.hear_of_pause(message, now),
            }
        }
    }

    fn carry(&mut self, now: Instant) {
        let time = self.time(now);
        self.watch_qemu(now);
        let before = self.copying.written_by_qemu();
        let turned = self.copying.turn();
        if self.copying.written_by_qemu() > before {
            self.qemu.wrote(now);
        }
        match turned {
            Ok(true) => {
                if let Role::Owner(owner) = &mut self.role {
                    owner.moved(time);
                }
            }
            Ok(false) => {}
            Err(over) => {
                info!(vm = self.config.name, "the stream of copies: {over}");
                match &mut self.role {
                    Role::None => {}
                    Role::Owner(_) if matches!(over, Over::Qemu) => self.copying.cut(now),
                    Role::Owner(owner) => owner.lost("the stream of copies was cut", time),
                    Role::Twin(twin) => twin.lost(time),
                }
            }
        }
    }

    /// A twin is given up only by a QEMU that lives; one that hangs gives its VM to the twin. A QEMU that ends closes its stream some
    /// milliseconds before its control socket, and one that writes its core much earlier.
    fn watch_qemu(&mut self, now: Instant) {
        let time = self.time(now);
        let Role::Owner(owner) = &mut self.role else { return };
        if owner.pairing().is_none() {
            self.copying.forget_cut();
            return;
        }
        self.qemu.prove(now);
        let spoke_at = self.qemu.spoke_at();
        if let Some(at) = spoke_at {
            owner.spoke(Time::ZERO.after(at.saturating_duration_since(self.began)));
        }
        if self.copying.outlives_cut(spoke_at) {
            owner.lost("QEMU has ended the stream of copies", time);
        }
        let is_protected = matches!(owner.stage(), Stage::Protected { .. });
        if is_protected && self.qemu.silent_for(now).is_some_and(|silent| silent >= HUNG) {
            warn!(vm = self.config.name, "QEMU has said nothing for {HUNG:?}: its VM is given to the twin");
            owner.died(nicety_protect::Death::Sudden, time);
        }
    }

    /// The third party's answers.
    fn ask(&mut self, now: Instant) {
        let time = self.time(now);
        while let Some((number, answer)) = self.lease.answer() {
            self.reporter.lease_answered(answer.as_ref().err().map(ToString::to_string));
            let answer = answer.ok();
            match &mut self.role {
                Role::None => {}
                Role::Owner(owner) => owner.answered(number, answer, time),
                Role::Twin(twin) => {
                    if let Some(owner) = twin.answered(number, answer, time) {
                        self.reporter.takes_over(unseen(&self.ports));
                        self.role = Role::Owner(owner);
                        self.peer.hang();
                        // What the old owner may still send is no copy of this VM any more.
                        self.copying.stop_carrying();
                        self.qemu.mark(self.run, now);
                    }
                }
            }
            self.acts(now);
        }
    }

    /// Twins seek owners; owners look at what they are offered.
    fn meet(&mut self, now: Instant) {
        let time = self.time(now);
        match &mut self.role {
            Role::Twin(twin) if twin.stage() == TwinStage::Offers => {
                if let Some(facts) = &self.facts {
                    let (run, ports) = (self.run, self.ports.len());
                    self.peer.dial(|| Wire::Offer { run, facts: facts.clone(), ports }, now);
                }
            }
            Role::Owner(owner) if owner.wants_twin(time) && !self.wishes.is_stopped => match &self.copying.offer {
                Some(offer) if offer.is_checked => {
                    owner.offered(NodeId(offer.run), Pairing(random()), time);
                    self.copying.offer = None;
                }
                Some(_) => self.qemu.inquire(),
                None => {}
            },
            _ => {}
        }
    }

    /// Accepts or refuses the twin that is offered, by the facts of this VM now.
    fn checked(&mut self, found: Result<Box<Facts>, String>) {
        let Some(offer) = &mut self.copying.offer else { return };
        let why = offer.refusals(&found, self.ports.len());
        if why.is_empty() {
            offer.is_checked = true;
            self.reporter.accepted();
            return;
        }
        let why = why.join("; ");
        self.peer.send(&Wire::Refused(why.clone()));
        // It is sent before the line ends.
        let _came = self.peer.turn();
        self.reporter.refused(why);
        self.copying.offer = None;
    }
}
