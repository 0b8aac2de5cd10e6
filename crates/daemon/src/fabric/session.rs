//! The thread that drives the machine.

use std::ops::ControlFlow;
use std::sync::Weak;
use std::sync::mpsc::{Sender, SyncSender};
use std::time::Duration;

use nicety_adapter::Time;
use nicety_fabric::{Action, Connection, Event, Fabric, Kept, Keys, Settings};
use nicety_host::FabricGroups;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;
use tracing::{info, warn};

use super::around::Around;
use super::ports::Ports;
use super::report::NamesakeReport;
use super::store::Store;
use super::tunnel::Tunnel;
use super::{Job, Note, kept};
use crate::clock::Clock;

/// Between two looks at the ports: a guest that has come is told of within this time and what etcd takes.
const LOOK: Duration = Duration::from_millis(10);
/// Between two looks at what the log says.
const SAY: Duration = Duration::from_millis(500);
/// Between two writes of the last known state, at least. A state that takes longer to copy is written less often.
const KEEP: Duration = Duration::from_secs(1);
const KEEP_FACTOR: u32 = 20;
/// Notes that are taken before what follows from them is done.
const NOTES_AT_ONCE: usize = 1000;
/// Between two looks at the names of ports, for the log.
const NAMES: Duration = Duration::from_secs(5);
/// Refused keys, and ports of one name, that the log names at once.
const REFUSED_AT_ONCE: usize = 8;

/// A session that has not begun.
pub(super) struct Before {
    pub(super) settings: Settings,
    pub(super) kept: Option<Kept>,
    /// The groups of the fabric that this host's ports are in.
    pub(super) groups: Option<FabricGroups>,
    pub(super) clock: Clock,
    pub(super) tunnel: Tunnel,
    pub(super) jobs: Sender<Job>,
}

/// See the module's page.
struct Session {
    fabric: Fabric,
    store: Store,
    clock: Clock,
    daemon: Weak<dyn Around>,
    tunnel: Tunnel,
    ports: Ports,
    jobs: Sender<Job>,
    /// The groups that are being applied.
    applying: Option<(i64, FabricGroups)>,
    /// Another process may serve the ports now.
    is_paused: bool,
    look_at: Time,
    say_at: Time,
    names_at: Time,
    keep: Keeping,
    said: Said,
}

/// When the last known state is written.
#[derive(Debug, Default)]
struct Keeping {
    /// Something has changed since.
    is_due: bool,
    /// It is being written.
    is_busy: bool,
    not_before: Time,
    /// The log has the reason why it cannot be.
    has_failed: bool,
}

/// What the log has.
#[derive(Debug, Default)]
struct Said {
    connection: Option<&'static str>,
    refused: Vec<String>,
    namesakes: Vec<NamesakeReport>,
}

impl Before {
    /// Waits until the ports are served, and then serves the fabric until the daemon ends.
    pub(super) async fn run(mut self, mut notes: UnboundedReceiver<Note>, store: impl FnOnce(Keys) -> Store) {
        let daemon = loop {
            match notes.recv().await {
                Some(Note::Begin(daemon)) => break daemon,
                Some(Note::Resume(known)) => self.resume(&known),
                Some(Note::Pause(_, answer)) => answers(&answer, None),
                Some(Note::End(answer)) => {
                    answers(&answer, ());
                    return;
                }
                // Nobody is answered before that.
                Some(_) => {}
                None => return,
            }
        };
        self.session(daemon, store).run(notes).await;
    }

    /// The session, which serves the ports of this daemon.
    fn session(self, daemon: Weak<dyn Around>, store: impl FnOnce(Keys) -> Store) -> Session {
        let Self { settings, kept, groups, clock, mut tunnel, jobs } = self;
        let now = clock.now();
        let in_force =
            groups.filter(|groups| kept.as_ref().and_then(Kept::config).is_some_and(|config| groups.is(config)));
        let is_in_force = in_force.is_some();
        let fabric = match kept {
            Some(kept) => Fabric::resume(settings, kept, is_in_force, now),
            None => Fabric::new(settings, now),
        };
        if let Some(groups) = in_force {
            tunnel.has_groups(groups);
        }
        let store = store(fabric.keys().clone());
        Session {
            fabric,
            store,
            clock,
            daemon,
            tunnel,
            ports: Ports::default(),
            jobs,
            applying: None,
            is_paused: false,
            look_at: now,
            say_at: now.after(SAY),
            names_at: now.after(NAMES),
            keep: Keeping { not_before: now.after(KEEP), ..Keeping::default() },
            said: Said::default(),
        }
    }

    fn resume(&mut self, known: &[u8]) {
        match kept::parse(known) {
            Ok(known) => {
                self.tunnel.leave(&known.left());
                self.kept = Some(known);
            }
            Err(why) => warn!("fabric: what the daemon before knew cannot be used: {why}; it is read from etcd"),
        }
    }
}

/// Whether the last known state may be another one after it. A renewal of the lease, and a watch that breaks or stands again, change nothing
/// of what is known.
fn may_change_what_is_kept(event: &Event) -> bool {
    match event {
        Event::Renewed { .. } | Event::Granted { .. } | Event::InTouch { .. } | Event::Broken { .. } => false,
        Event::Read { .. }
        | Event::Put { .. }
        | Event::Delete { .. }
        | Event::Compacted { .. }
        | Event::Transacted { .. } => true,
    }
}

/// Whether etcd is asked for something: its answer says what changes.
fn is_question(action: &Action) -> bool {
    matches!(
        action,
        Action::Read { .. }
            | Action::Watch { .. }
            | Action::Grant { .. }
            | Action::Renew { .. }
            | Action::Transact { .. }
    )
}

fn answers<T>(to: &SyncSender<T>, answer: T) {
    // Whoever waits for it may have given up.
    let _late = to.send(answer);
}

impl Session {
    async fn run(mut self, mut notes: UnboundedReceiver<Note>) {
        loop {
            let Some(daemon) = self.daemon.upgrade() else { return };
            if !self.is_paused {
                self.serve(daemon.as_ref());
            }
            drop(daemon);
            let wait = self.wake_at().since(self.clock.now());
            let Ok(first) = timeout(wait, notes.recv()).await else { continue };
            let Some(first) = first else { return };
            let mut next = Some(first);
            for _ in 0..NOTES_AT_ONCE {
                let Some(note) = next.take().or_else(|| notes.try_recv().ok()) else { break };
                if let ControlFlow::Break(answer) = self.hear(note) {
                    self.leave().await;
                    answers(&answer, ());
                    return;
                }
            }
        }
    }

    fn wake_at(&self) -> Time {
        if self.is_paused {
            return self.clock.now().after(SAY);
        }
        self.fabric.wake_at().map_or(self.look_at, |at| at.min(self.look_at))
    }

    /// A note. Breaks off if the daemon ends.
    fn hear(&mut self, note: Note) -> ControlFlow<SyncSender<()>> {
        let now = self.clock.now();
        match note {
            Note::Event(event) => {
                self.keep.is_due |= may_change_what_is_kept(&event);
                self.fabric.event(event, now);
            }
            Note::Applied(revision, result) => self.applied(revision, result, now),
            Note::Delayed(revision, why) => {
                self.keep.is_due = true;
                self.fabric.delayed(revision, &why, now);
            }
            Note::Kept(result) => self.kept(result),
            Note::Ask(question) => question(&self.fabric, now),
            Note::Pause(is_paused, answer) => {
                if is_paused && !self.is_paused {
                    self.write_now();
                }
                self.is_paused = is_paused;
                let known = is_paused.then(|| kept::text(&self.fabric.keep()).ok().map(String::into_bytes));
                answers(&answer, known.flatten());
            }
            Note::End(answer) => return ControlFlow::Break(answer),
            Note::Resume(_) | Note::Begin(_) => {}
        }
        ControlFlow::Continue(())
    }

    /// All that is due.
    fn serve(&mut self, daemon: &dyn Around) {
        let now = self.clock.now();
        if now >= self.look_at {
            self.look_at = now.after(LOOK);
            self.ports.look(daemon, &self.tunnel, &mut self.fabric, now);
        }
        self.fabric.tick(now);
        self.carry_out(daemon);
        if now >= self.say_at {
            self.say_at = now.after(SAY);
            self.say(now);
        }
        if self.keep.is_due && !self.keep.is_busy && now >= self.keep.not_before {
            self.write_now();
        }
    }

    fn carry_out(&mut self, daemon: &dyn Around) {
        while let Some(action) = self.fabric.action() {
            self.keep.is_due |= !is_question(&action);
            let rest = self.store.carry_out(action).and_then(|action| self.tunnel.carry_out(action, daemon));
            match rest {
                Some(Action::Config { revision, text }) => self.apply(revision, text),
                Some(Action::Moved { group, mac, to }) => {
                    info!("{mac} of group {group} is at host {to} now");
                    self.ports.moved(group, mac);
                }
                _ => {}
            }
        }
        self.tunnel.told_all();
    }

    fn apply(&mut self, revision: i64, text: String) {
        // One that cannot be read is refused by the thread that applies it.
        self.applying = FabricGroups::parse(&text).ok().map(|groups| (revision, groups));
        // It ends after this one.
        let _gone = self.jobs.send(Job::Apply(revision, text));
    }

    fn applied(&mut self, revision: i64, result: Result<(), String>, now: Time) {
        let groups = self.applying.take_if(|(applying, _)| *applying == revision);
        match (&result, groups) {
            (Ok(()), Some((_, groups))) => self.tunnel.has_groups(groups),
            (Err(why), _) => warn!("version {revision} of the fabric's configuration is refused: {why}"),
            (Ok(()), None) => {}
        }
        self.keep.is_due = true;
        self.fabric.applied(revision, result, now);
    }

    /// Has the last known state written.
    fn write_now(&mut self) {
        let begun = self.clock.now();
        let state = Box::new(self.fabric.keep());
        let took = self.clock.now().since(begun);
        self.keep.is_due = false;
        self.keep.is_busy = self.jobs.send(Job::Keep(state)).is_ok();
        self.keep.not_before = begun.after((took * KEEP_FACTOR).max(KEEP));
    }

    fn kept(&mut self, result: Result<(), String>) {
        self.keep.is_busy = false;
        match result {
            Ok(()) => self.keep.has_failed = false,
            Err(why) if !std::mem::replace(&mut self.keep.has_failed, true) => {
                warn!("the last known state of the fabric is not kept for the next start: {why}");
            }
            Err(_) => {}
        }
    }

    /// Logs what has changed in how this host stands with the store.
    fn say(&mut self, now: Time) {
        let connection = self.fabric.connection(now);
        let word = match &connection {
            Connection::Connected => "connected",
            Connection::Away { is_forgotten: false, .. } => "away",
            Connection::Away { is_forgotten: true, .. } => "forgotten",
            Connection::Refused { .. } => "refused",
            Connection::Left => "left",
        };
        if self.said.connection.replace(word) != Some(word) {
            match connection {
                Connection::Connected => info!("fabric: etcd has this host, and all changes are heard"),
                Connection::Away { why, is_forgotten, .. } => {
                    let others = if is_forgotten { "; other hosts take this one for gone" } else { "" };
                    warn!(
                        "fabric: etcd is out of reach: {why}; what is known stays in force, and nothing can be changed{others}"
                    );
                }
                Connection::Refused { why } => warn!("fabric: this host is refused: {why}"),
                Connection::Left => info!("fabric: this host has left"),
            }
        }
        let refused = self.fabric.report(now).refused;
        let new = refused.iter().filter(|sentence| !self.said.refused.contains(sentence));
        new.take(REFUSED_AT_ONCE).for_each(|sentence| warn!("fabric: {sentence}"));
        self.said.refused = refused;
        if now >= self.names_at {
            self.names_at = now.after(NAMES);
            self.say_namesakes();
        }
    }

    /// Logs ports of other hosts that have come with a name of this host's ports.
    fn say_namesakes(&mut self) {
        let namesakes: Vec<_> = self.fabric.namesakes().into_iter().map(NamesakeReport::from).collect();
        let new = namesakes.iter().filter(|namesake| !self.said.namesakes.contains(namesake));
        for namesake in new.take(REFUSED_AT_ONCE) {
            if namesake.has_same_address {
                info!("fabric: {namesake}");
            } else {
                warn!("fabric: {namesake}");
            }
        }
        self.said.namesakes = namesakes;
    }

    /// The daemon ends: the lease does, and with it this host's keys. What was known stays in the file.
    async fn leave(&mut self) {
        if self.is_paused {
            return;
        }
        self.write_now();
        if let Some(lease) = self.fabric.lease() {
            self.store.revoke(lease).await;
        }
    }
}

#[cfg(test)]
#[path = "session_test.rs"]
mod tests;
