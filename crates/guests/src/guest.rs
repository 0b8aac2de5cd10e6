//! A real guest: a [`Machine`] that runs, asked over a serial port, ended with its owner.

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
    companion::Companion,
    console::{self, Console},
    control::{self, Line},
    error::Error,
    processor::{group_time, virtual_processors_time},
    root::Root,
    spawn::spawn,
    uml::STARTER,
};
use crate::folder::Folder;

/// What the guest may take beyond a command's own limit to say that it ended.
const GRACE: Duration = Duration::from_secs(5);
/// Lines of output that wait for their reader before the guest is made to wait.
const LINES_WAITING: usize = 4096;
/// How soon a wait is given up when it is to be.
const STOP_LATENCY: Duration = Duration::from_millis(100);
/// A command's output beyond this is dropped.
const OUTPUT_LIMIT_BYTES: usize = 4 << 20;

/// What a guest is made of: a QEMU ([`GuestConfig`](super::GuestConfig)) or a user-mode kernel
/// ([`UmlConfig`](super::uml::UmlConfig)). Tests and measurements are written for either.
pub trait Machine: Clone + fmt::Debug {
    /// Adds an adapter that a vfio-user server offers on a socket.
    #[must_use]
    fn vfio_user(self, socket: &str) -> Self;

    /// Adds a virtio-net whose rings a vhost-user server serves on a socket.
    #[must_use]
    fn vhost_user(self, socket: &str, mac: &str) -> Self;

    /// Gives this address (`10.9.1.1/24`) to an interface (`eth0`), to bring up while booting.
    #[must_use]
    fn address(self, interface: &str, address: &str) -> Self;

    /// How it is started.
    ///
    /// # Errors
    /// What is missing on this host for it.
    fn launch(&self, root: &Root) -> Result<Launch, Error>;
}

/// How a [`Machine`] is started. Its first process speaks the control protocol on standard input and output, or, if it has another
/// use for its input, on standard output alone, which is a socket then. It writes the console and its own complaints to standard
/// error.
#[derive(Debug)]
pub struct Launch {
    /// The program with its arguments. It must end by itself when the thread that started it does (prctl(2), PR_SET_PDEATHSIG).
    pub command: Command,
    /// What it is, for error messages: `kernel 6.12 in QEMU`.
    pub title: String,
    /// How long it may take until it answers.
    pub boot_limit: Duration,
    /// What it has as standard input instead of the control line.
    pub input: Option<OwnedFd>,
    /// A process that serves it alone, and ends after it.
    pub companion: Option<Companion>,
    /// What goes when the guest has gone.
    pub folder: Option<Folder>,
}

/// The two ends of a control line: what is written to the guest, and what it says.
type Ends = (Box<dyn Write + Send>, Box<dyn Read + Send>);

/// What a command said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// What it wrote to its standard output and error, in order; control characters are left out.
    pub text: String,
    /// Its exit code.
    pub code: i32,
    /// How long it took, seen from the host.
    pub elapsed: Duration,
}

/// A running guest. It ends when this is dropped, and when this process ends, however it ends.
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
    /// [`Error::Boot`] with the end of its console if it does not come up as asked within `boot_limit`.
    pub fn boot<M: Machine>(root: &Root, machine: M) -> Result<Guest, Error> {
        let mut guest = Guest::start(root, machine)?;
        guest.wait_ready()?;
        Ok(guest)
    }

    /// Starts a guest without waiting; [`Guest::wait_ready`] must come next. So that several guests boot at a time.
    ///
    /// # Errors
    /// Those of [`Machine::launch`], and [`Error::Run`] if it cannot be started.
    pub fn start<M: Machine>(root: &Root, machine: M) -> Result<Guest, Error> {
        Guest::launch(machine.launch(root)?)
    }

    /// Like [`Guest::start`], for what needs no root.
    ///
    /// # Errors
    /// [`Error::Run`] if it cannot be started.
    pub fn launch(launch: Launch) -> Result<Guest, Error> {
        let Launch { mut command, title, boot_limit, input, companion, folder } = launch;
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
        // A group of its own: the terminal's Ctrl-C reaches it only through us, and all of it ends at once.
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
            _folder: folder,
        })
    }

    /// Waits until a started guest answers.
    ///
    /// # Errors
    /// [`Error::Boot`] with the end of its console if it does not come up as asked within `boot_limit`, counted from its start.
    pub fn wait_ready(&mut self) -> Result<(), Error> {
        self.wait_ready_unless(&AtomicBool::new(false))
    }

    /// Like [`Guest::wait_ready`], until `stop` becomes true.
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
                    _ => {}
                },
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Err(Error::Stopped),
                Err(RecvTimeoutError::Timeout) => break format!("no answer within {:?}", self.boot_limit),
                Err(RecvTimeoutError::Disconnected) => break "its process ended".to_owned(),
            }
        };
        Err(Error::Boot { guest: self.title.clone(), why, console: self.last_words() })
    }

    /// Runs a command line with the guest's `sh -c` and waits for its end. It is killed in the guest when `limit` (in whole
    /// seconds, rounded up) is over. The command may have several lines, 3,400 bytes in all.
    ///
    /// # Errors
    /// [`Error::Late`] if it does not end in time, [`Error::Gone`] if the guest ends, [`Error::Command`] if it is too long.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Output, Error> {
        self.run_unless(command, limit, &AtomicBool::new(false))
    }

    /// Has the guest begin a command line, and does not wait for it: one that ends the guest, of which no answer is to be expected.
    /// Nothing is killed if it does not.
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

    /// That of the last command.
    fn id(&self) -> String {
        format!("{:x}-{}", self.child.id(), self.commands)
    }

    /// Like [`Guest::run`], until `stop` becomes true: the command goes on in the guest then.
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

    /// Like [`Guest::succeed`], until `stop` becomes true.
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

    /// From its process's start to its answer.
    pub fn boot_time(&self) -> Duration {
        self.boot
    }

    /// The processor time that all of its processes and its companion have used, as /proc counts it (in hundredths of a second),
    /// or zero if they have ended.
    pub fn cpu_time(&self) -> Duration {
        let companion = self.companion.as_ref().map_or(Duration::ZERO, |companion| group_time(companion.id()));
        group_time(self.child.id()) + companion
    }

    /// The part of it that is the guest's own work and not its adapter's: what a QEMU's virtual processors have used (accesses to
    /// registers that its own models serve are in it), or a user-mode kernel without its companion.
    pub fn own_cpu_time(&self) -> Duration {
        virtual_processors_time(self.child.id()).unwrap_or_else(|| group_time(self.child.id()))
    }

    /// Its first process's id, and that of its process group.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// The last lines of its console and of its own complaints.
    pub fn console(&self) -> String {
        self.console.tail()
    }

    /// The next line; a timeout also when `stop` becomes true.
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

    /// Ends it, so that everything it said has been read, and gives the end of it.
    fn last_words(&mut self) -> String {
        self.end();
        self.console.tail()
    }

    fn end(&mut self) {
        // It may have ended by itself; and nothing can be done about a failure to end a child of our own. Its number stays its own
        // until it is waited for, and so does its group's.
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

/// What a program was started with pipes for.
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
