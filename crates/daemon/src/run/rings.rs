//! Ports that speak vhost-user. Each has a thread that listens for front ends, or connects to them, and serves the session.
//!
//! Control messages are few, and a front end may stop within one: it blocks only this thread. Frames never pass through this
//! thread; the port's worker watches the kicks.

mod connecting;
mod device_state;
mod standing;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nicety_adapter::trace::Event;
use nicety_adapter::{Context, RingFace};
use nicety_frame::Mac;
use nicety_memory::Map;
use nicety_peer::{Table, UNCLOSED_MAX};
use nicety_plane::Group;
use nicety_vhost_user::{
    Accepted, Bell, Closer, Ended, Kick, Listener, NotSaved, RECORD_RING_BYTES, Refusal, SavedSession,
    Served as SessionServed, Session,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tracing::warn;

use self::connecting::Absence;
pub use self::device_state::Moving;
use self::standing::Pause;
pub use self::standing::{Front, Standing};
use crate::clock::Clock;
use crate::descriptors::warn_left_open;
use crate::run::allowance::{self, Allowance};
use crate::run::image::FrontImage;
use crate::run::inbox::{Inbox, Note};
use crate::run::kicks::Kicks;
use crate::run::port_log::{Kind, PortLog};
use crate::run::recorder::Recorder;
use crate::run::rings_file::RingsFile;
use crate::run::service::ACCEPT_PAUSE;
use crate::run::shell::{Signals, ready_to_ring};
use crate::sharing::SHARE_MEMORY;

/// The socket of a port and its front ends.
#[derive(Debug)]
pub enum FrontendSocket {
    /// Front ends connect to this socket.
    Listen(Listener),
    /// A front end listens at this path. The file is not ours.
    Connect(PathBuf),
}

impl FrontendSocket {
    fn path(&self) -> &Path {
        match self {
            Self::Listen(listener) => listener.path(),
            Self::Connect(path) => path,
        }
    }
}

/// A port whose thread has not started.
#[derive(Debug)]
pub struct Preparing {
    socket: FrontendSocket,
    stop: Arc<Stop>,
    served: Arc<Served>,
    absence: Arc<Absence>,
    /// The session of another process.
    session: Option<Session>,
}

impl Preparing {
    /// A port without a session. `inboxes` are those of its parts' workers.
    ///
    /// # Errors
    /// The system's.
    pub fn new(
        log: Arc<PortLog>,
        socket: FrontendSocket,
        group: Arc<Group>,
        signals: Arc<Signals>,
        inboxes: Vec<Arc<Inbox>>,
        recorder: Option<Arc<Recorder>>,
    ) -> std::io::Result<Self> {
        let (clock, moving) = (log.clock(), OnceLock::new());
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (session, pause) = (Mutex::default(), Pause::default());
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), bell, session, pause, socket: OnceLock::new() });
        let (rings_file, absence) = (Arc::new(RingsFile::beside(socket.path())), Arc::<Absence>::default());
        let (kicks, allowance) = (Arc::default(), Mutex::default());
        let served = Served { log, group, signals, inboxes, clock, recorder, kicks, rings_file, allowance, moving };
        Ok(Self { socket, stop, served: Arc::new(served), absence, session: None })
    }

    /// The port's state goes with its guest when a VMM moves that.
    #[must_use]
    pub fn moving(self, moving: Option<Moving>) -> Self {
        if let Some(moving) = moving {
            let _set_once = self.served.moving.set(Arc::new(moving));
        }
        self
    }

    /// The part of the port's state that goes with its guest. `None`: `device_state = false`.
    pub fn moved(&self) -> Option<&Arc<Moving>> {
        self.served.moving.get()
    }

    /// Goes on with the front end of another process. The error is a sentence.
    ///
    /// # Errors
    /// The session is impossible, or the VM's memory cannot be mapped.
    pub fn resume(&mut self, saved: SavedSession, table: &mut Table) -> Result<(), String> {
        let port: Arc<dyn nicety_vhost_user::Port> = Arc::clone(&self.served) as Arc<_>;
        self.session = Some(Session::restore(saved, table, port)?);
        Ok(())
    }

    /// The other process has let go of the socket.
    pub fn own(&mut self) {
        if let FrontendSocket::Listen(listener) = &mut self.socket {
            listener.own();
        }
    }

    /// Passes the VM's memory to the port, before its adapter is restored.
    pub fn go_on(&self) {
        self.session.iter().for_each(Session::go_on);
    }

    /// Its adapter is restored: frames for rings that the front end had stopped wait on.
    pub fn pause_again(&self) {
        self.session.iter().for_each(Session::pause_again);
    }
}

/// The thread of one port. Dropping it ends the session, and removes the socket if the socket is its own.
#[derive(Debug)]
pub struct RingsServer {
    stop: Arc<Stop>,
    kicks: Arc<Kicks>,
    rings_file: Arc<RingsFile>,
    absence: Arc<Absence>,
    moving: Option<Arc<Moving>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    bell: OwnedFd,
    session: Mutex<Option<Closer>>,
    pause: Pause,
    /// The thread has it.
    socket: OnceLock<Weak<FrontendSocket>>,
}

/// Stops the thread of a port, and lets it go on: see [`RingsServer::halt`].
#[derive(Debug, Clone)]
pub struct Halt(Arc<Stop>);

impl Halt {
    /// Asks the thread to stand still between two messages. `without`: the port is to be saved without its front end.
    pub fn ask(&self, without: bool) {
        self.0.pause.ask(without);
        self.0.wake();
    }

    /// The port, once its thread stands still. `None` if it does not in time: it is in the middle of a message.
    pub fn front(&self, end: Instant) -> Option<Result<Standing, NotSaved>> {
        self.0.pause.front(end)
    }

    /// Disconnects a front end for which the thread waits within a message. False if it waits for none.
    pub fn send_away(&self) -> bool {
        let session = self.0.session();
        let waiting = session.as_ref().filter(|closer| closer.is_waiting());
        waiting.into_iter().for_each(Closer::close);
        waiting.is_some()
    }

    /// The port of this name as it is without its front end, although its thread does not stand still. `None`: the thread has ended.
    /// The thread takes no other front end while it is asked to stand still.
    pub fn without_front_end(&self, name: &str) -> Option<Result<Standing, NotSaved>> {
        let socket = self.0.socket.get()?.upgrade()?;
        Some(front_of(name, &socket))
    }

    /// Disconnects the front end.
    pub fn disconnect(&self) {
        self.0.session().iter().for_each(Closer::close);
    }

    /// The thread goes on.
    pub fn resume(&self) {
        self.0.pause.resume();
    }
}

/// A port without a front end.
fn front_of(name: &str, socket: &FrontendSocket) -> Result<Standing, NotSaved> {
    let mut table = Table::default();
    let listener = match socket {
        FrontendSocket::Listen(listener) => Some(table.put(listener)?),
        FrontendSocket::Connect(_) => None,
    };
    let image = FrontImage { name: name.to_owned(), listener, session: None, calls: Vec::new(), errors: Vec::new() };
    Ok(Standing { image, table, own_log: None })
}

impl Stop {
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    fn session(&self) -> MutexGuard<'_, Option<Closer>> {
        self.session.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for `time`, or until the thread is asked to stop.
    fn pause(&self, time: Duration, served: &Served, listener: Option<&Listener>) {
        let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        // A signal may end the wait early. Then the caller only tries again early.
        let _ = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(&timeout));
        self.stand(|_| served.front(None, listener));
    }

    fn wake(&self) {
        // A full counter means that the thread has been woken already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Stands still if the thread was asked to. Without a session there is only the listening socket to save.
    fn stand(&self, save: impl FnOnce(bool) -> Result<Standing, NotSaved>) {
        if self.pause.is_asked() {
            // The end of the thread rings the bell again.
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            self.pause.stand(save);
        }
    }
}

impl RingsServer {
    /// Stops the thread while another process takes over.
    pub fn halt(&self) -> Halt {
        Halt(Arc::clone(&self.stop))
    }

    /// Starts the thread that serves a port. The port's worker must know the port already: kicks reach the worker as soon as a
    /// front end connects.
    pub fn start(preparing: Preparing) -> std::io::Result<Self> {
        let Preparing { socket, stop, served, absence, session } = preparing;
        let name = format!("vhost {}", served.log.port());
        let kind = match socket {
            FrontendSocket::Listen(_) => nicety_sandbox::Kind::Vhost,
            FrontendSocket::Connect(_) => nicety_sandbox::Kind::VhostConnect,
        };
        let (kicks, rings_file) = (Arc::clone(&served.kicks), Arc::clone(&served.rings_file));
        let moving = served.moving.get().cloned();
        let (watch, shared_absence) = (Arc::clone(&stop), Arc::clone(&absence));
        let socket = Arc::new(socket);
        let _set_once = stop.socket.set(Arc::downgrade(&socket));
        let serve = move || {
            ready_to_ring();
            nicety_peer::this_thread_may_wait();
            nicety_peer::this_thread_pays(Arc::default());
            let listener = match &*socket {
                FrontendSocket::Listen(listener) => Some(listener),
                FrontendSocket::Connect(_) => None,
            };
            if let Some(session) = session {
                talk(session, false, listener, &served, &watch);
            }
            match &*socket {
                FrontendSocket::Listen(listener) => serve(listener, &served, &watch),
                FrontendSocket::Connect(path) => connecting::serve(path, &served, &watch, &shared_absence),
            }
        };
        let thread = nicety_sandbox::spawn(kind, name, 256 << 10, serve)?;
        Ok(Self { stop, kicks, rings_file, absence, moving, thread: Some(thread) })
    }

    /// The port's state that goes with its guest. `None`: `device_state = false`.
    pub fn moving(&self) -> Option<&Arc<Moving>> {
        self.moving.as_ref()
    }

    /// The reason why no front end is there, if the port connects to one.
    pub fn absence(&self) -> Option<String> {
        self.absence.why()
    }
}

impl RingsServer {
    /// Asks the thread to end, and does not wait for it. The kernel takes some ten milliseconds to end it (io_destroy(2)): whoever
    /// ends many asks all of them first.
    pub fn ask_to_end(&self) {
        self.stop.asked.store(true, Ordering::SeqCst);
        // A full counter means that the thread has been woken already.
        let _ = rustix::io::write(&self.stop.bell, &1u64.to_ne_bytes());
        match self.stop.session().as_ref() {
            Some(closer) => closer.close(),
            // A connected front end keeps the file: it connects to the next daemon.
            None => self.rings_file.remove(),
        }
        // The worker may have ended early.
        self.kicks.end();
    }
}

impl Drop for RingsServer {
    fn drop(&mut self) {
        self.ask_to_end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("a vhost-user thread had panicked");
        }
    }
}

/// Serves one front end after another, until asked to stop.
fn serve(listener: &Listener, served: &Arc<Served>, stop: &Stop) {
    while !stop.is_asked() {
        let mut ready = [
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stop.bell.as_fd(), PollFlags::IN),
        ];
        if poll(&mut ready, None).is_err() {
            continue;
        }
        if stop.pause.is_asked() {
            stop.stand(|_| served.front(None, Some(listener)));
            continue;
        }
        if nicety_peer::this_threads_is_exceeded() {
            let what =
                format_args!("no front end is let in: {UNCLOSED_MAX} descriptors of earlier ones are slow to close");
            served.log.say(Kind::NotAccepted, what);
            stop.pause(ACCEPT_PAUSE, served, Some(listener));
            continue;
        }
        let failure = served.failure();
        match listener.accept(failure.is_some()) {
            Ok(Accepted::Refused(_socket, peer)) => {
                let what =
                    format_args!("a front end was refused: the port has failed: {}", failure.unwrap_or_default());
                served.log.say_of(Kind::Failed, peer.map(|p| p.pid), what);
                stop.pause(ACCEPT_PAUSE, served, Some(listener));
            }
            Ok(Accepted::Client(socket, peer)) => {
                served.log.say_of(Kind::Connected, peer.map(|p| p.pid), "a front end has connected");
                session(socket, Some(listener), served, stop);
            }
            Ok(_) => {}
            Err(error) => {
                let what = format_args!("a connection was not accepted, the next try is in {ACCEPT_PAUSE:?}: {error}");
                served.log.say(Kind::NotAccepted, what);
                stop.pause(ACCEPT_PAUSE, served, Some(listener));
            }
        }
    }
}

/// Refuses a front end while another is connected. Returns the pause before the next refusal: QEMU would retry at once.
fn send_away(listener: &Listener, log: &PortLog) -> Duration {
    match listener.accept(true) {
        Ok(Accepted::Refused(_socket, peer)) => {
            let pid = peer.map(|p| p.pid);
            log.say_of(Kind::Occupied, pid, "a second front end was refused: the port has one already");
            ACCEPT_PAUSE
        }
        Ok(_) => Duration::ZERO,
        Err(_) => ACCEPT_PAUSE,
    }
}

/// Serves a front end until it disconnects. Others that connect to the `listener` are refused meanwhile.
fn session(socket: OwnedFd, listener: Option<&Listener>, served: &Arc<Served>, stop: &Stop) {
    nicety_sandbox::forget_refused_here();
    let port: Arc<dyn nicety_vhost_user::Port> = Arc::clone(served) as Arc<_>;
    let not_begun = |error| served.log.say(Kind::NotServed, format_args!("its session could not start: {error}"));
    let session = match Session::new(socket, port) {
        Ok(session) => session,
        Err(error) => return not_begun(error),
    };
    talk(session, true, listener, served, stop);
}

/// Serves a session until it ends. `is_new`: it has not begun.
fn talk(mut session: Session, is_new: bool, listener: Option<&Listener>, served: &Arc<Served>, stop: &Stop) {
    match session.closer() {
        Ok(closer) => *stop.session() = Some(closer),
        Err(error) => return served.log.say(Kind::NotServed, format_args!("its session could not start: {error}")),
    }
    if stop.is_asked() {
        return;
    }
    if is_new {
        // From here on the end of the session detaches the VM.
        served.group.ports().for_each(|part| part.attach());
        served.note(Event::Connect);
        session.greet();
    }
    let mut on_connect = || listener.map_or(ACCEPT_PAUSE, |listener| send_away(listener, &served.log));
    let mut first = is_new;
    let ended = loop {
        // A thread that is asked to end is woken by its socket.
        let interrupt = Some(stop.bell.as_fd()).filter(|_| !stop.is_asked());
        match session.serve_until(interrupt, first, listener.map(AsFd::as_fd), &mut on_connect) {
            SessionServed::Ended(ended) => break session.end(ended),
            SessionServed::Interrupted => {
                first = false;
                stop.stand(|without| served.front(Some(&session).filter(|_| !without), listener));
            }
        }
    };
    match ended {
        Ended::Gone => served.log.say(Kind::Gone, "the front end has disconnected"),
        Ended::VfioUser => {
            let why = served.log.wrong_protocol("vfio-user", "vhost-user");
            served.log.say(Kind::Broken, format_args!("the front end is disconnected: {why}"));
            // The front end may connect again and again.
            stop.pause(ACCEPT_PAUSE, served, listener);
        }
        ended => {
            let kind = if matches!(ended, Ended::Silent) { Kind::Silent } else { Kind::Broken };
            let refused = nicety_sandbox::refused_here();
            served.log.say(kind, format_args!("the front end is disconnected: {ended}{refused}"));
        }
    }
    warn_left_open();
    *stop.session() = None;
    // The front end may connect again and again.
    served.rest();
}

/// The port of a session.
#[derive(Debug)]
struct Served {
    log: Arc<PortLog>,
    /// The parts that serve its rings; one, if the port has no others.
    group: Arc<Group>,
    signals: Arc<Signals>,
    /// The inboxes of the parts' workers.
    inboxes: Vec<Arc<Inbox>>,
    clock: Clock,
    recorder: Option<Arc<Recorder>>,
    kicks: Arc<Kicks>,
    rings_file: Arc<RingsFile>,
    /// The allowance of the port's thread.
    allowance: Mutex<Allowance>,
    /// The port's state that goes with its guest.
    moving: OnceLock<Arc<Moving>>,
}

impl Served {
    /// The port as this thread knows it.
    fn front(&self, session: Option<&Session>, listener: Option<&Listener>) -> Result<Standing, NotSaved> {
        let mut table = Table::default();
        let [calls, errors] = match session {
            Some(_) => self.signals.connections(&mut table)?,
            None => Default::default(),
        };
        let listener = listener.map(|listener| table.put(listener)).transpose()?;
        let own_log = session.and_then(Session::own_log);
        let session = session.map(|session| session.save(&mut table)).transpose()?;
        let name = self.log.port().to_owned();
        Ok(Standing { image: FrontImage { name, listener, session, calls, errors }, table, own_log })
    }

    /// The failure of one of its parts.
    fn failure(&self) -> Option<String> {
        self.group.ports().find_map(|part| part.failure())
    }

    /// Rests if the thread has used more than its part of a processor.
    fn rest(&self) {
        let mut allowance = self.allowance.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let rest = allowance.rest(allowance::used(), self.clock.now());
        drop(allowance);
        if let Some(time) = rest {
            self.kicks.rest(time);
        }
    }

    fn note(&self, event: Event) {
        if let Some(recorder) = &self.recorder {
            recorder.note(event);
        }
    }
}

impl nicety_vhost_user::Port for Served {
    fn with(&self, act: &mut dyn FnMut(&mut dyn RingFace, &mut Context<'_>)) {
        for part in self.group.ports() {
            part.with_quiet_rings(self.clock.now(), |face, cx| act(face, cx));
        }
        self.group.look(self.clock.now());
    }

    fn with_ring(&self, ring: u16, act: &mut dyn FnMut(&mut dyn RingFace, &mut Context<'_>)) {
        if let Some(part) = self.group.of_pair(ring / 2) {
            part.with_quiet_rings(self.clock.now(), act);
        }
        self.group.look(self.clock.now());
    }

    fn set_memory(&self, map: Arc<Map>) {
        for part in self.group.ports().skip(1) {
            part.set_quiet_memory(Arc::new(map.beside()), self.clock.now());
        }
        if let Some(first) = self.group.lead() {
            first.set_quiet_memory(map, self.clock.now());
        }
    }

    fn set_kick(&self, ring: u16, kick: Kick) {
        let bell = match kick {
            Kick::Bell(bell) => Some(bell),
            Kick::Stopped => None,
        };
        let part = usize::from(ring / 2) % self.inboxes.len().max(1);
        if let (Some(inbox), Some(port)) = (self.inboxes.get(part), self.group.of_pair(ring / 2))
            && let Some(in_flight) = self.kicks.send_one()
        {
            inbox.push(Note::Kick(port.id(), ring, bell, in_flight));
        }
    }

    fn set_call(&self, ring: u16, call: Option<Bell>) {
        self.signals.set_call(ring, call);
    }

    fn set_err(&self, ring: u16, err: Option<Bell>) {
        self.signals.set_error(ring, err);
    }

    fn announce(&self, address: [u8; 6]) {
        let protected = self.moving.get().and_then(|moving| moving.protected());
        if protected.is_some_and(|protected| protected.is_twin()) {
            // The VM that runs elsewhere has this address.
            return;
        }
        if let Some(first) = self.group.lead() {
            first.announce(Mac(address));
        }
    }

    fn record(&self) -> Option<Arc<Map>> {
        let mut rings = 0;
        self.with_ring(0, &mut |face, _| rings = face.rings());
        let (rings_file, bytes) = (Arc::clone(&self.rings_file), RECORD_RING_BYTES * u64::from(rings));
        // This thread opens no files.
        let opened = nicety_sandbox::aside(move || rings_file.open(bytes));
        let opened = opened.unwrap_or_else(|| Err(std::io::Error::other("no thread could open it")));
        let unkept = |error| {
            let path = self.rings_file.path().display();
            self.log.say(Kind::Refused, format_args!("packed rings will not survive a killed daemon: {path}: {error}"));
        };
        opened.map_err(unkept).ok()
    }

    fn offers_state(&self) -> bool {
        self.moving.get().is_some()
    }

    fn save_state(&self, ran: bool) -> Vec<u8> {
        self.moving.get().map(|moving| moving.save(&self.group, ran, self.clock.now())).unwrap_or_default()
    }

    fn load_state(&self, state: Result<Vec<u8>, String>) {
        let Some(moving) = self.moving.get() else { return };
        let loaded = state.and_then(|state| moving.load(&state, &self.group, self.clock.now()));
        match loaded {
            Ok(what) => what.into_iter().for_each(|what| self.log.say(Kind::Restored, what)),
            Err(why) => {
                let what = format_args!(
                    "the state that its VM brought along from another host's port is not used: {why}. The VM goes on without it: its \
                     addresses are learned again"
                );
                self.log.say(Kind::Refused, what);
            }
        }
    }

    fn started(&self, _ring: u16) {
        if let Some(protected) = self.moving.get().and_then(|moving| moving.protected()) {
            protected.runs();
        }
    }

    fn handled(&self) {
        // The next message's errors are its own.
        nicety_sandbox::forget_refused_here();
        self.rest();
    }

    fn refused(&self, refusal: &Refusal) {
        match refusal {
            Refusal::Unshared { .. } => self.log.say(Kind::Unshared, SHARE_MEMORY),
            Refusal::Unlogged { .. } => self.log.say(Kind::Memory, refusal),
            refusal => self.log.say(Kind::Refused, format_args!("a message was refused: {refusal}")),
        }
    }

    fn disconnected(&self) {
        self.note(Event::Disconnect);
        self.moving.get().into_iter().for_each(|moving| moving.forget());
        self.group.ports().for_each(|part| part.detach(self.clock.now()));
        self.signals.disconnect();
    }
}

#[cfg(test)]
#[path = "rings_test.rs"]
mod tests;
