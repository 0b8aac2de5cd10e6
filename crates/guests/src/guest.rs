//! A real guest: a running [`Machine`], controlled over a serial port, which ends with its owner.

use std::{
    fmt,
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{
    command::STARTER,
    companion::Companion,
    console::{self, Console},
    control::{self, Line},
    error::Error,
    namespace::runs,
    processor::{group_time, virtual_processors_time},
    root::Root,
    spawn::spawn,
};
use crate::folder::Folder;

/// Time that the guest may take beyond a command's own limit to report its end.
const GRACE: Duration = Duration::from_secs(5);
/// Number of output lines that wait for their reader before the guest is blocked.
const LINES_WAITING: usize = 4096;
/// Time within which a wait reacts to a stop.
const STOP_LATENCY: Duration = Duration::from_millis(100);
/// A command's output beyond this is dropped.
const OUTPUT_LIMIT_BYTES: usize = 4 << 20;

/// A kind of guest: a QEMU ([`GuestConfig`](super::GuestConfig)) or a user-mode kernel ([`UmlConfig`](super::uml::UmlConfig)). Tests and
/// measurements work with either.
pub trait Machine: Clone + fmt::Debug {
    /// Adds the adapter of a vfio-user server's socket.
    #[must_use]
    fn vfio_user(self, socket: &str) -> Self;

    /// Adds a virtio-net whose rings a vhost-user server serves on a socket.
    #[must_use]
    fn vhost_user(self, socket: &str, mac: &str) -> Self;

    /// Assigns an address (`10.9.1.1/24`) to an interface (`eth0`), which comes up while booting.
    #[must_use]
    fn address(self, interface: &str, address: &str) -> Self;

    /// Builds the command that starts the guest.
    ///
    /// # Errors
    /// Something that it needs is missing on this host.
    fn launch(&self, root: &Root) -> Result<Launch, Error>;
}

/// The start of a [`Machine`]. Its first process speaks the control protocol on standard input and output. If its input has another use,
/// the protocol uses standard output alone, which is then a socket. The console and error messages of the guest's program go to standard
/// error.
#[derive(Debug)]
pub struct Launch {
    /// The program with its arguments. It must end by itself when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).
    pub command: Command,
    /// Its title in error messages: `kernel 6.12 in QEMU`.
    pub title: String,
    /// Time limit until it answers.
    pub boot_limit: Duration,
    /// Its standard input, if that is not the control line.
    pub input: Option<OwnedFd>,
    /// A process that serves this guest alone, and ends after it.
    pub companion: Option<Companion>,
    /// A folder to remove after the guest has ended.
    pub folder: Option<Folder>,
    /// The line that ends its waiting, if it is restored.
    pub settings: Option<String>,
}

/// The two ends of a control line: to the guest and from it.
type Ends = (Box<dyn Write + Send>, Box<dyn Read + Send>);

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its standard output and error, in order, without control characters.
    pub text: String,
    /// Its exit code.
    pub code: i32,
    /// Duration, measured on the host.
    pub elapsed: Duration,
}

/// A running guest. It ends when this is dropped, and when this process ends for any reason.
pub struct Guest {
    child: Child,
    control: Box<dyn Write + Send>,
    lines: Option<Receiver<String>>,
    readers: Vec<JoinHandle<()>>,
    console: Console,
    title: String,
    boot_limit: Duration,
    begin: Instant,
    boot: Duration,
    commands: u64,
    companion: Option<Companion>,
    settings: Option<String>,
    _folder: Option<Folder>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("process", &self.child.id()).field("title", &self.title).finish_non_exhaustive()
    }
}

impl Guest {
    /// Starts a guest and waits until it answers.
    ///
    /// # Errors
    /// [`Error::Boot`] with the end of its console if it does not come up as configured within `boot_limit`.
    pub fn boot<M: Machine>(root: &Root, machine: M) -> Result<Guest, Error> {
        let mut guest = Guest::start(root, machine)?;
        guest.wait_ready()?;
        Ok(guest)
    }

    /// Starts a guest without waiting, so that several guests can boot at the same time. [`Guest::wait_ready`] must come next.
    ///
    /// # Errors
    /// Those of [`Machine::launch`], and [`Error::Run`] if it cannot be started.
    pub fn start<M: Machine>(root: &Root, machine: M) -> Result<Guest, Error> {
        Guest::launch(machine.launch(root)?)
    }

    /// Like [`Guest::start`], for a launch that needs no root.
    ///
    /// # Errors
    /// [`Error::Run`] if it cannot be started.
    pub fn launch(launch: Launch) -> Result<Guest, Error> {
        let Launch { mut command, title, boot_limit, input, companion, folder, settings } = launch;
        let failed = |error: io::Error| Error::Run { doing: format!("starting {title}"), said: error.to_string() };
        let socket = match input {
            Some(input) => {
                let (own, its) = UnixStream::pair().map_err(failed)?;
                command.stdin(Stdio::from(input)).stdout(Stdio::from(OwnedFd::from(its)));
                Some(own)
            }
            None => {
                command.stdin(Stdio::piped()).stdout(Stdio::piped());
                None
            }
        };
        let mut companion = companion;
        let its_complaints = companion.as_mut().and_then(Companion::complaints);
        command.stderr(Stdio::piped());
        // A group of its own: the terminal's Ctrl-C reaches it only through us, and the whole group ends at once.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let begin = Instant::now();
        let starter = command.get_program().to_owned();
        let mut child = spawn(command).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if starter == STARTER => Error::Program { program: STARTER, package: "util-linux" },
            _ => failed(error),
        })?;
        let ((control, output), complaints) =
            match ends(&mut child, socket).and_then(|e| Ok((e, piped(child.stderr.take())?))) {
                Ok(ends) => ends,
                Err(error) => {
                    let _ = child.kill();
                    return Err(failed(error));
                }
            };
        let console = Console::default();
        let (log, also) = (console.clone(), console.clone());
        let (sender, lines): (SyncSender<String>, _) = sync_channel(LINES_WAITING);
        let readers = vec![
            thread::spawn(move || log.fill(complaints)),
            thread::spawn(move || its_complaints.map_or((), |complaints| also.fill(complaints))),
            thread::spawn(move || console::lines(output, |line| sender.send(line.to_owned()).is_ok())),
        ];
        Ok(Guest {
            child,
            control,
            lines: Some(lines),
            readers,
            console,
            title,
            boot_limit,
            begin,
            boot: Duration::ZERO,
            commands: 0,
            companion,
            settings,
            _folder: folder,
        })
    }

    /// Waits until a started guest answers.
    ///
    /// # Errors
    /// [`Error::Boot`] with the end of its console if it does not come up as configured within `boot_limit`, counted from its start.
    pub fn wait_ready(&mut self) -> Result<(), Error> {
        self.wait_ready_unless(&AtomicBool::new(false))
    }

    /// Like [`Guest::wait_ready`], but stops when `stop` becomes true.
    ///
    /// # Errors
    /// Those of [`Guest::wait_ready`], and [`Error::Stopped`].
    pub fn wait_ready_unless(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let end = self.begin + self.boot_limit;
        let why = loop {
            match self.line(end, stop) {
                Ok(line) => match control::parse(&line) {
                    Line::Ready(_) => {
                        self.boot = self.begin.elapsed();
                        return Ok(());
                    }
                    Line::Broken(why) => break why.to_owned(),
                    // Only now: what QEMU is sent while it restores a guest is lost.
                    Line::Waiting(_) => self.go_on().map_err(|_| self.gone("its settings"))?,
                    _ => {}
                },
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Err(Error::Stopped),
                Err(RecvTimeoutError::Timeout) => break format!("no answer within {:?}", self.boot_limit),
                Err(RecvTimeoutError::Disconnected) => break "its process ended".to_owned(),
            }
        };
        Err(Error::Boot { guest: self.title.clone(), why, console: self.last_words() })
    }

    /// Sends the settings that a restored guest waits for, once.
    fn go_on(&mut self) -> io::Result<()> {
        let settings = self.settings.take().unwrap_or_default();
        self.control.write_all(settings.as_bytes()).and_then(|()| self.control.flush())
    }

    /// Waits until a guest that is to be saved waits for settings. Returns its uptime.
    pub(super) fn wait_waiting(&mut self) -> Result<Duration, Error> {
        let end = self.begin + self.boot_limit;
        loop {
            let Ok(line) = self.line(end, &AtomicBool::new(false)) else {
                let why = format!("it does not wait within {:?}", self.boot_limit);
                return Err(Error::Boot { guest: self.title.clone(), why, console: self.last_words() });
            };
            if let Line::Waiting(uptime) = control::parse(&line) {
                return Ok(Duration::from_secs_f64(uptime.parse().unwrap_or(0.0)));
            }
        }
    }

    /// Runs a command line with the guest's `sh -c` and waits for its end. The guest kills it after `limit` (in whole
    /// seconds, rounded up). The command may have several lines, with 3,400 bytes in all.
    ///
    /// # Errors
    /// [`Error::Late`] if it does not end in time, [`Error::Gone`] if the guest ends, [`Error::Command`] if it is too long.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Output, Error> {
        self.run_unless(command, limit, &AtomicBool::new(false))
    }

    /// Starts a command line in the guest without waiting for it. It is for a command that ends the guest and therefore gives no answer.
    /// Nothing is killed if the command does not end.
    ///
    /// # Errors
    /// [`Error::Gone`] if the guest has ended, [`Error::Command`] if it is too long.
    pub fn order(&mut self, command: &str, limit: Duration) -> Result<(), Error> {
        self.commands += 1;
        let said = "the command is too long for the control line".to_owned();
        let request = control::request(&self.id(), limit, command);
        let request = request.ok_or_else(|| Error::Command { command: command.into(), code: -1, said })?;
        let sent = self.control.write_all(request.as_bytes()).and_then(|()| self.control.flush());
        sent.map_err(|_| self.gone(command))
    }

    /// ID of the last command.
    fn id(&self) -> String {
        format!("{:x}-{}", self.child.id(), self.commands)
    }

    /// Like [`Guest::run`], but returns when `stop` becomes true. The command then continues in the guest.
    ///
    /// # Errors
    /// Those of [`Guest::run`], and [`Error::Stopped`].
    pub fn run_unless(&mut self, command: &str, limit: Duration, stop: &AtomicBool) -> Result<Output, Error> {
        let begin = Instant::now();
        let end = begin + limit + GRACE;
        self.order(command, limit)?;
        let id = self.id();
        let late = |guest: &Guest| Error::Late { command: command.into(), limit, console: guest.console.tail() };
        let (mut text, mut begun) = (String::new(), false);
        loop {
            let line = match self.line(end, stop) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Err(Error::Stopped),
                Err(RecvTimeoutError::Timeout) => return Err(late(self)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone(command)),
            };
            match control::parse(&line) {
                Line::Begin(of) if of == id => begun = true,
                Line::End(of, code) if of == id => {
                    let elapsed = begin.elapsed();
                    if code == 128 + 9 && elapsed >= limit {
                        return Err(late(self));
                    }
                    text.pop(); // the newline that starts the mark's line
                    return Ok(Output { text, code, elapsed });
                }
                _ if begun && text.len() < OUTPUT_LIMIT_BYTES => {
                    text.push_str(&line);
                    text.push('\n');
                }
                _ => {}
            }
        }
    }

    /// Like [`Guest::run`], for a command whose failure is an error.
    ///
    /// # Errors
    /// Those of [`Guest::run`], and [`Error::Command`] if its code is not 0.
    pub fn succeed(&mut self, command: &str, limit: Duration) -> Result<String, Error> {
        self.succeed_unless(command, limit, &AtomicBool::new(false))
    }

    /// Like [`Guest::succeed`], but returns when `stop` becomes true.
    ///
    /// # Errors
    /// Those of [`Guest::succeed`], and [`Error::Stopped`].
    pub fn succeed_unless(&mut self, command: &str, limit: Duration, stop: &AtomicBool) -> Result<String, Error> {
        let output = self.run_unless(command, limit, stop)?;
        if output.code == 0 {
            return Ok(output.text);
        }
        Err(Error::Command { command: command.into(), code: output.code, said: output.text })
    }

    /// Time from the start of its process to its first answer.
    pub fn boot_time(&self) -> Duration {
        self.boot
    }

    /// Processor time of all its processes and its companion, as /proc counts it (in hundredths of a second). Zero if they have ended.
    pub fn cpu_time(&self) -> Duration {
        let companion = self.companion.as_ref().map_or(Duration::ZERO, |companion| group_time(companion.id()));
        group_time(self.child.id()) + companion
    }

    /// The share of the guest's own work in it, without its adapter's. For QEMU it is the time of the virtual processors, which includes
    /// accesses to registers of QEMU's own models. For a user-mode kernel it is the time without its companion.
    pub fn own_cpu_time(&self) -> Duration {
        virtual_processors_time(self.child.id()).unwrap_or_else(|| group_time(self.child.id()))
    }

    /// ID of its first process, and of its process group.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Whether its first process still runs.
    pub fn runs(&self) -> bool {
        runs(self.child.id())
    }

    /// The last lines of its console and of its error output.
    pub fn console(&self) -> String {
        self.console.tail()
    }

    /// The next line. Also times out when `stop` becomes true.
    fn line(&self, end: Instant, stop: &AtomicBool) -> Result<String, RecvTimeoutError> {
        let lines = self.lines.as_ref().ok_or(RecvTimeoutError::Disconnected)?;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left.min(STOP_LATENCY)) {
                Err(RecvTimeoutError::Timeout) if left > STOP_LATENCY && !stop.load(Ordering::Relaxed) => {}
                other => return other,
            }
        }
    }

    fn gone(&mut self, command: &str) -> Error {
        Error::Gone { command: command.into(), console: self.last_words() }
    }

    /// Ends the guest, so that all its output has been read. Returns the last lines.
    fn last_words(&mut self) -> String {
        self.end();
        self.console.tail()
    }

    fn end(&mut self) {
        // The guest may have ended by itself, and nothing can be done about a failure to end our own child. The kernel does not reuse the
        // child's process ID, and its group's, until it is waited for.
        if self.lines.is_some() {
            let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let companion = self.companion.take();
        let ended = companion.and_then(Companion::ended);
        self.lines = None;
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        if let Some(status) = ended {
            self.console.note(&format!("what served its adapter had ended by itself: {status}"));
        }
    }
}

/// Takes a pipe of a program that was started with pipes.
fn piped<T>(end: Option<T>) -> io::Result<T> {
    end.ok_or_else(|| io::Error::other("its pipes are missing"))
}

/// The control line of a started program.
fn ends(child: &mut Child, socket: Option<UnixStream>) -> io::Result<Ends> {
    Ok(match socket {
        Some(own) => (Box::new(own.try_clone()?), Box::new(own)),
        None => (Box::new(piped(child.stdin.take())?), Box::new(piped(child.stdout.take())?)),
    })
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.end();
    }
}
