//! The keeper's loop.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use rustix::time::Timespec;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use crate::budget::{Budget, Share};
use crate::channel::{Channel, ChannelError, Message};
use crate::held::{self, Held};
use crate::lines::{self, About, say, say_about};
use crate::openers::Openers;
use crate::pace::Pace;
use crate::protocol::{KEPT, OPENS_TOO, RENEWS, WATCHES, WITH_ADMINISTRATION, kind};
use crate::rights::{administers, provide_descriptors, without_administration};
use crate::start::Start;
use crate::watch::Watch;

/// A daemon that does not read a message of some bytes for so long is given up.
const WITHIN: Duration = Duration::from_secs(1);

/// A daemon that is killed more often than this in [`RESTART_WINDOW`] is not started again: the service manager is told.
const RESTARTS_MAX: usize = 10;
const RESTART_WINDOW: Duration = Duration::from_secs(60);
/// Pause before a daemon is started again that has ended by itself before it served: what it lacks may come back. It doubles from try to
/// try, up to [`PAUSE_MAX`], so that the tries of a window are spread over most of it.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// An heir whose predecessor has died during the upgrade serves within this time, or is given up.
const HEIR_WITHIN: Duration = Duration::from_secs(10);

/// A daemon runs before VMs' threads so long at most: for each upgrade, and from its start in the place of a killed one.
const HURRY_MAX: Duration = Duration::from_secs(10);
const HURRY_AT_START_MAX: Duration = Duration::from_secs(30);
/// The time for which they may do so: at once, and then the divisor of all time.
const HURRIES: (Duration, u32) = (Duration::from_secs(60), 20);
/// Upgrades that a daemon may ask for at once, and a second.
const UPGRADES: (u32, f64) = (200, 5.0);
/// Messages of a daemon that are heard before the keeper looks after everything else: more than a channel has room for.
const MESSAGES_AT_ONCE: usize = 1024;
/// The time that daemons' messages may take: at once, and then the divisor of all time. They wait in their channels meanwhile.
const HEARING: (Duration, u32) = (Duration::from_millis(200), 10);
/// The time until messages that wait are looked for again.
const HEARS_AGAIN: Duration = Duration::from_millis(20);

/// Descriptors that are kept free for the start of a daemon: two channels, and the pipe by which a new process reports that it cannot be
/// executed.
const RESERVE: usize = 6;
/// Tries to start a daemon again, each after [`PAUSE`], while the system lacks what a new process takes: descriptors, memory, processes.
const TRIES: usize = 20;

/// A child.
struct Daemon {
    process: Child,
    /// `None` once the daemon has closed it.
    channel: Option<Channel>,
}

/// The two processes at the ends of a channel.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    KeeperAndDaemon,
    HeirAndDaemon,
}

/// Parts that a test replaces, to stop an upgrade at each of its messages.
#[doc(hidden)]
pub struct Seam<'a> {
    /// Makes channels.
    pub connect: &'a dyn Fn(Between) -> Result<(Channel, Channel), Errno>,
    /// A daemon that is killed more often than this in a minute is not started again: the service manager is told.
    pub restarts_most: usize,
    /// A daemon runs before VMs' threads so long at most, for each upgrade.
    pub hurry_most: Duration,
}

impl Default for Seam<'_> {
    fn default() -> Self {
        Self { connect: &|_| Channel::pair(), restarts_most: RESTARTS_MAX, hurry_most: HURRY_MAX }
    }
}

impl Daemon {
    fn start(program: &Path, start: &Start, seam: &Seam<'_>, watch: &Watch) -> io::Result<Self> {
        let (ours, theirs) = (seam.connect)(Between::KeeperAndDaemon)?;
        let mut command = Command::new(program);
        command.args(&start.arguments).arg(KEPT).stdin(Stdio::from(OwnedFd::from(theirs)));
        command.env(RENEWS, "1");
        // A daemon of an earlier version does not know these, feeds the manager's watchdog itself, and opens what it needs itself.
        command.env(WATCHES, watch.limit.as_micros().to_string()).env_remove("WATCHDOG_PID");
        command.env(OPENS_TOO, if administers() { WITH_ADMINISTRATION } else { "" });
        let process = if program == start.program {
            // It gives CAP_NET_ADMIN up by itself.
            command.spawn()?
        } else {
            without_administration(|| command.spawn())?
        };
        Ok(Self { process, channel: Some(ours) })
    }

    /// It is the first daemon, or replaces one that was killed and for which these descriptors were held.
    fn begins(&mut self, held: &Held) {
        for (name, number, fds) in held.iter() {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let content = held::content(number, name);
            let sent = self.channel.as_ref().map(|channel| channel.send(kind::HOLD, &content, &fds, WITHIN));
            if let Some(Err(_gone)) = sent {
                self.channel = None;
            }
        }
        self.tell(kind::FIRST, b"", None);
    }

    fn tell(&mut self, kind: u8, content: &[u8], fd: Option<&Channel>) {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let sent = self.channel.as_ref().map(|channel| channel.send(kind, content, &fds, WITHIN));
        if let Some(Err(_gone)) = sent {
            self.channel = None;
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            // It may have ended already.
            let _ = kill_process(pid, signal);
        }
    }
}

/// The keeper's state.
struct Keeper<'a> {
    seam: Seam<'a>,
    start: Start,
    /// The program of the daemon that serves.
    program: PathBuf,
    /// Another daemon is started even if this one ends by itself: its heir failed when it had taken over, or this one follows a killed
    /// daemon whose VMMs wait, and has not reported that it serves.
    begins_again: bool,
    /// The time at which an heir whose predecessor has died is given up.
    serves_by: Option<Instant>,
    /// The time at which a daemon is started in the place of the current one, which has ended.
    starts_at: Option<Instant>,
    /// Signs of life.
    watch: Watch,
    /// A signal that ends the daemon was passed on.
    is_ending: bool,
    /// The times at which a daemon was started again, the last ones.
    restarts: Vec<Instant>,
    /// The daemon that serves.
    current: Daemon,
    /// The next one, while it takes over.
    heir: Option<(PathBuf, Daemon)>,
    /// Daemons that were replaced, and heirs that were given up, which have not ended yet.
    replaced: Vec<Daemon>,
    /// Descriptors that the daemon would lose if it were killed. Its heir's replace them one after the other.
    held: Held,
    /// Held so that VMs' descriptors cannot take their places.
    reserve: Vec<OwnedFd>,
    /// The openers, which open for the daemon.
    openers: Openers,
    /// The daemons' nice values.
    pace: Pace,
    /// The time since which daemons run before others, and that at which they no longer do.
    hurried: Option<(Instant, Instant)>,
    /// The time for which they may do so.
    hurries: Share,
    /// The heir for which daemons ran before others.
    hurried_for: Option<u32>,
    /// Upgrades that may still be asked for.
    upgrades: Budget,
    /// The time that daemons' messages may take.
    hearing: Share,
}

/// Starts a daemon, the next one whenever the daemon asks for it, and another one if it is killed. Returns when no daemon is left, with the last one's status.
///
/// # Errors
/// The first daemon cannot be started, or the system refuses to report signals.
pub fn keep(start: &Start) -> io::Result<ExitStatus> {
    keep_with(start, Seam::default())
}

/// Like [`keep`], for tests.
#[doc(hidden)]
pub fn keep_with(start: &Start, seam: Seam<'_>) -> io::Result<ExitStatus> {
    let mut signals = Vec::new();
    for signal in [SIGCHLD, SIGTERM, SIGINT, SIGHUP] {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(signal, write)?;
        signals.push((signal, read));
    }
    provide_descriptors();
    let watch = Watch::begin(Instant::now());
    let pace = Pace::begin();
    // Before a daemon runs that could be compromised.
    let openers = Openers::begin(start, pace);
    let mut current = Daemon::start(&start.program, start, &seam, &watch)?;
    current.begins(&Held::default());
    let mut keeper = Keeper {
        seam,
        start: start.clone(),
        program: start.program.clone(),
        begins_again: false,
        serves_by: None,
        starts_at: None,
        watch,
        is_ending: false,
        restarts: Vec::new(),
        current,
        heir: None,
        replaced: Vec::new(),
        held: Held::default(),
        reserve: Vec::new(),
        openers,
        pace,
        hurried: Some((Instant::now(), Instant::now() + HURRY_AT_START_MAX)),
        hurries: Share::new(HURRIES.0, HURRIES.1, Instant::now()),
        hurried_for: None,
        upgrades: Budget::new(UPGRADES.0, UPGRADES.1, Instant::now()),
        hearing: Share::new(HEARING.0, HEARING.1, Instant::now()),
    };
    keeper.reserve();
    loop {
        keeper.wait(&signals)?;
        lines::say_left_out(Instant::now());
        keeper.held.look(Instant::now());
        if keeper.hurried.is_some_and(|(_, end)| end <= Instant::now()) {
            keeper.calm();
        }
        if keeper.serves_by.is_some_and(|end| end <= Instant::now()) {
            keeper.serves_by = None;
            say("the next daemon does not serve: it is killed");
            // It may have ended already.
            let _ = keeper.current.process.kill();
        }
        for (signal, pipe) in &signals {
            if drain(pipe) {
                match *signal {
                    SIGCHLD => {}
                    SIGTERM => keeper.signal(Signal::TERM),
                    SIGINT => keeper.signal(Signal::INT),
                    _ if keeper.starts_at.is_some() => {}
                    _ => keeper.current.signal(Signal::HUP),
                }
            }
        }
        if keeper.hears() {
            keeper.listen();
        }
        keeper.openers.serve();
        // After all that it has said was heard.
        if keeper.watch.round(Instant::now()) {
            say(&format!("the daemon's workers stand still, for {:?}: it is killed", keeper.watch.limit));
            // It may have ended already.
            let _ = keeper.current.process.kill();
        }
        if let Some(status) = keeper.reap()? {
            // A daemon that stands still for ever has nobody else to end it.
            keeper.replaced.drain(..).for_each(end);
            return Ok(status);
        }
    }
}

/// Ends a daemon that was replaced, or given up.
fn end(mut daemon: Daemon) {
    // It may have ended already.
    let _ = daemon.process.kill();
    let _status = daemon.process.wait();
}

/// Empties a signal's pipe. True if there was something in it.
fn drain(pipe: &UnixStream) -> bool {
    let mut bytes = [0; 64];
    rustix::io::read(pipe, &mut bytes).is_ok_and(|count| count > 0)
}

impl Keeper<'_> {
    fn daemons(&self) -> impl Iterator<Item = &Daemon> {
        std::iter::once(&self.current).chain(self.heir.as_ref().map(|(_, heir)| heir))
    }

    /// Whether daemons are heard now: there is room for descriptors, and their messages have not taken too much time. Nothing else waits
    /// for that.
    fn hears(&mut self) -> bool {
        self.held.has_room() && self.hearing.is_left(Instant::now())
    }

    fn wait(&mut self, signals: &[(i32, UnixStream)]) -> io::Result<()> {
        let hears = self.hears();
        let channels = self.daemons().filter(|_| hears).filter_map(|daemon| daemon.channel.as_ref());
        let mut fds: Vec<PollFd<'_>> = channels.map(|channel| PollFd::new(channel, PollFlags::IN)).collect();
        fds.extend(signals.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)));
        fds.extend(self.openers.polled());
        let own = self.serves_by.into_iter().chain(self.starts_at).chain(self.hurried.map(|(_, end)| end));
        let own = own.chain(self.held.next()).chain(lines::next());
        let own = own.chain((!hears).then(|| Instant::now() + HEARS_AGAIN));
        let next = own.chain(self.watch.next()).chain(self.openers.next()).min();
        let left = next.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// If a signal has asked all daemons to end, ends the one that serves now too: it may have been started after that signal.
    fn pass_end_on(&self) {
        if self.is_ending {
            self.current.signal(Signal::TERM);
        }
    }

    /// Passes a signal that ends the daemon to all of them.
    fn signal(&mut self, signal: Signal) {
        self.is_ending = true;
        // Another process may have the number of one that has ended.
        if self.starts_at.is_none() {
            self.daemons().for_each(|daemon| daemon.signal(signal));
        }
    }

    /// Hears what daemons have said: all that had come before.
    fn listen(&mut self) {
        let begun = Instant::now();
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(message) = next(&mut self.current, &self.held) else { break };
            self.hear_current(message);
        }
        for _ in 0..MESSAGES_AT_ONCE {
            let Some((_, heir)) = &mut self.heir else { break };
            let Some(message) = next(heir, &self.held) else { break };
            match message.kind {
                kind::SERVES => self.succeed(),
                kind::CONTROL => self.openers.control(message, true),
                _ => self.hear(message),
            }
        }
        self.hearing.spend(begun.elapsed());
    }

    fn hear_current(&mut self, message: Message) {
        match message.kind {
            kind::UPGRADE => self.upgrade(PathBuf::from(OsString::from_vec(message.content))),
            // The next upgrade need not wait for its end.
            kind::ABANDON => {
                self.openers.acceptor.heir_failed();
                self.calm();
                self.replaced.extend(self.heir.take().map(|(_, mut heir)| {
                    // It may have ended already.
                    let _ = heir.process.kill();
                    heir
                }));
            }
            kind::STOPS => self.hurry(),
            kind::SERVES => {
                self.calm();
                (self.begins_again, self.serves_by) = (false, None);
            }
            kind::STUCK => self.begins_again = true,
            kind::CONTROL => self.openers.control(message, false),
            kind::ALIVE => self.watch.heard(),
            _ => self.hear(message),
        }
    }

    /// A message that any daemon may send.
    fn hear(&mut self, mut message: Message) {
        match message.kind {
            kind::HOLD => self.held.hold(&message.content, message.fds, Instant::now()),
            kind::RENEW => self.held.renew(&message.content, message.fds, Instant::now()),
            kind::FORGET => self.held.forget(&message.content, Instant::now()),
            kind::HEARS => {
                if let Some(fd) = message.fds.pop() {
                    self.held.heard_by(fd.into());
                }
                self.held.close(message.fds);
            }
            kind::OPEN | kind::IS_NAMED => self.openers.open(message),
            _ => self.held.close(message.fds),
        }
    }

    /// VMs wait for daemons: once for each upgrade, and not for long. The daemon that says so may be compromised.
    fn hurry(&mut self) {
        let (now, heir) = (Instant::now(), self.heir.as_ref().map(|(_, heir)| heir.process.id()));
        if heir.is_none() || heir == self.hurried_for || !self.hurries.is_left(now) {
            return;
        }
        self.hurried_for = heir;
        self.hurried = Some((now, now + self.seam.hurry_most));
        self.daemons().for_each(|daemon| self.pace.hurry(daemon.process.id()));
    }

    /// No VM waits for a daemon any more.
    fn calm(&mut self) {
        if let Some((since, _)) = self.hurried.take() {
            self.hurries.spend(since.elapsed());
            self.daemons().for_each(|daemon| self.pace.calm(daemon.process.id()));
        }
    }

    /// The heir serves now.
    fn succeed(&mut self) {
        if let Some((program, heir)) = self.heir.take() {
            self.program = program;
            self.calm();
            self.openers.acceptor.take_over();
            self.pace.calm(heir.process.id());
            self.watch.begin_anew();
            self.replaced.push(std::mem::replace(&mut self.current, heir));
            self.pass_end_on();
        }
    }

    fn upgrade(&mut self, program: PathBuf) {
        if self.heir.is_some() {
            self.current.tell(kind::REFUSED, b"another upgrade is under way", None);
            return;
        }
        if self.is_ending {
            self.current.tell(kind::REFUSED, ENDING.as_bytes(), None);
            return;
        }
        if !self.upgrades.take(Instant::now()) {
            self.current.tell(kind::REFUSED, b"upgrades are asked for too often: ask again in a minute", None);
            return;
        }
        self.reserve.clear();
        let started = check(&program).and_then(|()| {
            let pair = (self.seam.connect)(Between::HeirAndDaemon);
            let (to_heir, to_current) = pair.map_err(|error| error.to_string())?;
            let heir = Daemon::start(&program, &self.start, &self.seam, &self.watch);
            let mut heir = heir.map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
            // The ports are served meanwhile.
            self.pace.calm(heir.process.id());
            heir.tell(kind::HEIR, b"", Some(&to_current));
            Ok((heir, to_heir))
        });
        match started {
            Ok((heir, to_heir)) => {
                self.current.tell(kind::STARTED, b"", Some(&to_heir));
                self.heir = Some((program, heir));
            }
            Err(why) => self.current.tell(kind::REFUSED, why.as_bytes(), None),
        }
        self.reserve();
    }

    /// Takes descriptors, which are let go when a daemon is started.
    fn reserve(&mut self) {
        while self.reserve.len() < RESERVE {
            // There may be none left: the next daemon may then have to wait.
            let Ok(one) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3) else { return };
            self.reserve.push(one);
        }
    }

    /// Starts a daemon in the place of one that has ended. VMs wait for it, so what the system lacks now is waited for.
    fn start_again(&mut self) -> io::Result<()> {
        // What was not heard may take long to close.
        self.held.close(self.current.channel.take().map(OwnedFd::from));
        self.openers.acceptor.daemon_died();
        self.reserve.clear();
        let mut left = TRIES;
        self.current = loop {
            match Daemon::start(&self.program, &self.start, &self.seam, &self.watch) {
                Ok(daemon) => break daemon,
                Err(error) if left > 0 && is_lacking(&error) => {
                    say(&format!("{} cannot be started now: {error}; it is tried again", self.program.display()));
                    left -= 1;
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        };
        self.reserve();
        let now = Instant::now();
        // It has inherited the value.
        self.hurried = Some((now, now + HURRY_AT_START_MAX));
        if !self.hurries.is_left(now) {
            self.calm();
        }
        self.current.begins(&self.held);
        Ok(())
    }

    /// Looks which children have ended. Returns the status with which the keeper ends, if no daemon is left.
    fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        self.replaced.retain_mut(|daemon| !matches!(daemon.process.try_wait(), Ok(Some(_))));
        if let Some((_, heir)) = &mut self.heir
            && let Some(status) = heir.process.try_wait()?
        {
            let ended = heir.process.id();
            // Its last messages may have come since: if it has taken over, its predecessor ends.
            self.listen();
            if self.heir.take_if(|(_, heir)| heir.process.id() == ended).is_some() {
                self.openers.acceptor.heir_failed();
                self.calm();
                self.current.tell(kind::ENDED, words(status).as_bytes(), None);
            }
        }
        let Some(status) = self.current.process.try_wait()? else { return Ok(None) };
        if let Some(at) = self.starts_at {
            if self.is_ending {
                return Ok(Some(status));
            }
            if at <= Instant::now() {
                self.starts_at = None;
                self.start_again()?;
            }
            return Ok(None);
        }
        let ended = self.current.process.id();
        // Its last messages may have come since.
        self.listen();
        // And its heir's word that it serves: then the one that has ended was replaced before.
        if self.current.process.id() != ended {
            return self.reap();
        }
        self.watch.begin_anew();
        // An heir that has all state serves when its predecessor ends.
        if let Some((program, heir)) = self.heir.take() {
            // Until it reports that it serves, it may still find that it cannot: then its predecessor's program is started again.
            self.begins_again |= status.code().is_none();
            if !self.begins_again {
                self.program = program;
            }
            self.current = heir;
            self.openers.acceptor.take_over();
            self.pass_end_on();
            self.serves_by = Some(Instant::now() + HEIR_WITHIN);
            return self.reap();
        }
        // A daemon that ends by itself has said why. One that was killed is started again.
        if (status.code().is_some() && !self.begins_again) || self.is_ending {
            return Ok(Some(status));
        }
        let ended = words(status);
        if !self.may_restart() {
            say(&format!("the daemon: {ended}, too often in a minute: it is not started again"));
            return Ok(Some(status));
        }
        say(&format!("the daemon: {ended}: it is started again"));
        // The next one reads the host file: what it finds wrong there may be mended while VMMs wait.
        self.begins_again = !self.held.is_empty();
        self.serves_by = None;
        // A daemon that was replaced stands still, and still has the control socket until it ends.
        self.replaced.drain(..).for_each(end);
        if status.code().is_some() {
            self.starts_at = Some(Instant::now() + pause(self.restarts.len()));
            return Ok(None);
        }
        self.start_again()?;
        Ok(None)
    }

    /// Whether a killed daemon is started again: unless it was, too often, in the last minute.
    fn may_restart(&mut self) -> bool {
        let now = Instant::now();
        self.restarts.retain(|at| now.duration_since(*at) < RESTART_WINDOW);
        self.restarts.push(now);
        self.restarts.len() <= self.seam.restarts_most
    }
}

/// The pause before a try, of which there were so many in the window with this one.
fn pause(tries: usize) -> Duration {
    // The first daemon was killed, or took over and failed.
    let doubled = u32::try_from(tries.saturating_sub(2)).unwrap_or(u32::MAX).min(8);
    (PAUSE * 2u32.pow(doubled)).min(PAUSE_MAX)
}

/// The next message of a daemon, if there is one, and room for its descriptors.
fn next(daemon: &mut Daemon, held: &Held) -> Option<Message> {
    if !held.has_room() {
        return None;
    }
    match daemon.channel.as_ref()?.receive_closing(Duration::ZERO, |fds| held.close(fds)) {
        Ok(message) => Some(message),
        Err(ChannelError::Late(_)) => None,
        Err(error @ ChannelError::DescriptorsLost) => {
            say_about(About::Lost, &format!("a port would not survive a kill of the daemon: {error}"));
            Some(Message { kind: 0, content: Vec::new(), fds: Vec::new() })
        }
        Err(_closed) => {
            held.close(daemon.channel.take().map(OwnedFd::from));
            None
        }
    }
}

/// Whether the system lacks something that may come back (fork(2), socketpair(2)).
fn is_lacking(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM, Errno::NOBUFS];
    Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno))
}

/// The service ends: no daemon is started any more.
const ENDING: &str = "the daemon is about to end";

/// Whether the keeper's reason why there is no heir means that the service ends: it passes the signal to the daemon too.
pub fn is_end_of_service(why: &str) -> bool {
    let told = [SIGTERM, SIGINT].map(|signal| format!("signal {signal} ended it"));
    why.ends_with(ENDING) || told.iter().any(|told| why.ends_with(told))
}

/// The end of a process, in words.
fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("signal {signal} ended it"),
        (None, None) => "it ended".to_owned(),
    }
}

/// Whether a program may be started. The daemon that asks may be compromised: a program that only root or the keeper's user could
/// have written is no more than they could start themselves.
fn check(program: &Path) -> Result<(), String> {
    let path = program.display();
    let found = std::fs::metadata(program).map_err(|error| format!("{path}: {error}"))?;
    if !program.is_absolute() || !found.is_file() {
        return Err(format!("{path} is no program: name a file by its whole path"));
    }
    if found.uid() != 0 && found.uid() != geteuid().as_raw() {
        return Err(format!(
            "{path} is the file of user {}: it must be root's or the daemon's own user's",
            found.uid()
        ));
    }
    if found.mode() & 0o002 != 0 {
        return Err(format!("everybody may write to {path}: chmod o-w {path}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tries_to_start_a_daemon_are_spread_over_most_of_their_window() {
        let pauses: Vec<Duration> = (2..=RESTARTS_MAX).map(pause).collect();
        assert_eq!(pauses[0], PAUSE);
        let all: Duration = pauses.iter().sum();
        assert!(all > RESTART_WINDOW * 3 / 4 && all < RESTART_WINDOW, "{all:?}");
    }

    #[test]
    fn a_program_that_others_could_have_written_is_not_started() {
        assert_eq!(check(Path::new("/bin/sh")), Ok(()));
        assert!(check(Path::new("/bin")).unwrap_err().contains("is no program"));
        assert!(check(Path::new("no/such")).unwrap_err().contains("No such file"));
        assert!(check(Path::new("/no/such")).unwrap_err().contains("No such file"));
    }
}
