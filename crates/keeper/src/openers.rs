//! The keeper's side of openers (`opener.rs`): it starts them, and keeps the lines that they have named. It reads none of these lines.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{SocketFlags, accept_with};

use crate::acceptor::Acceptor;
use crate::budget::Budget;
use crate::channel::{Channel, ChannelError, Message};
use crate::closing::Closing;
use crate::lines::{self, About, say_about};
use crate::named::Named;
use crate::opener::{OPENS_WITHIN, path_in};
use crate::pace::Pace;
use crate::protocol::{OPENS, QUIETLY, SAYS, kind};
use crate::start::Start;

/// Most openers at a time that a daemon has asked for.
const FOR_DAEMONS_MAX: usize = 16;
/// Most openers at a time for clients of the keeper's socket. Further clients wait in its queue.
const FOR_CLIENTS_MAX: usize = 4;
/// Longest line in bytes: a word and a path.
const LINE_MAX: usize = 4200;
/// Openers that daemons may ask for at once, and a second: a change may open a thing for each of its ports.
const ASKED: (u32, f64) = (1024, 16.0);
/// Clients of the keeper's socket that are heard at once, and a second. Others wait in its queue.
const CLIENTS: (u32, f64) = (64, 8.0);
/// The time until a client that waits is looked for again.
const CLIENT_WAITS: Duration = Duration::from_millis(125);
/// An opener that does not read a message for so long is given up.
const WITHIN: Duration = Duration::from_secs(1);

/// An opener that runs.
struct Running {
    process: Child,
    /// `None` once it has closed it.
    channel: Option<Channel>,
    is_for_client: bool,
    ends_by: Instant,
}

/// See the module's documentation.
pub(crate) struct Openers {
    start: Start,
    pace: Pace,
    named: Named,
    running: Vec<Running>,
    /// Openers that daemons may still ask for.
    asked: Budget,
    /// Clients of the keeper's socket that may still be heard.
    clients: Budget,
    /// Closes what daemons, clients and openers have sent.
    closing: Closing,
    /// The keeper's socket, and its path.
    socket: Option<(OwnedFd, PathBuf)>,
    /// Accepts the control socket's connections.
    pub acceptor: Acceptor,
}

impl Openers {
    /// Openers are this program. Makes the keeper's socket, and names what will run, by the first of them; waits for its end.
    pub fn begin(start: &Start, pace: Pace) -> Self {
        let (named, running, closing) = (Named::default(), Vec::new(), Closing::new(&Arc::default()));
        let asked = Budget::new(ASKED.0, ASKED.1, Instant::now());
        let clients = Budget::new(CLIENTS.0, CLIENTS.1, Instant::now());
        let (start, acceptor) = (start.clone(), Acceptor::default());
        let mut this = Self { start, pace, named, running, asked, clients, closing, socket: None, acceptor };
        this.run(kind::BEGIN, b"", &[], true);
        let Some(first) = this.running.pop() else { return this };
        let Running { mut process, channel, .. } = first;
        let channel = channel.into_iter();
        for message in channel.flat_map(|channel| std::iter::from_fn(move || channel.receive(OPENS_WITHIN).ok())) {
            this.hear(message);
        }
        // It has closed its end, so it ends by itself, or it hangs.
        let _ = process.kill();
        let _status = process.wait();
        this
    }

    /// Starts an opener with a task.
    fn run(&mut self, task: u8, content: &[u8], fds: &[BorrowedFd<'_>], is_for_client: bool) {
        let started = self.spawn(task, content, fds);
        self.running.extend(started.map(|(process, channel)| {
            let ends_by = Instant::now() + OPENS_WITHIN;
            Running { process, channel: Some(channel), is_for_client, ends_by }
        }));
    }

    /// Starts the program with a task.
    fn spawn(&self, task: u8, content: &[u8], fds: &[BorrowedFd<'_>]) -> Option<(Child, Channel)> {
        let start = || -> io::Result<(Child, Channel)> {
            let (ours, theirs) = Channel::pair()?;
            let mut command = Command::new(&self.start.program);
            command.args(&self.start.arguments).arg(OPENS).stdin(Stdio::from(OwnedFd::from(theirs)));
            command.env(SAYS, if lines::is_used_up(&About::Opened) { QUIETLY } else { "" });
            let process = command.spawn()?;
            self.pace.calm(process.id());
            Ok((process, ours))
        };
        let (process, channel) = match start() {
            Ok(started) => started,
            Err(error) => {
                let program = self.start.program.display();
                say_about(About::Openers, &format!("{program} cannot be started: {error}"));
                return None;
            }
        };
        let named = self.named.lines().map(|line| channel.send(kind::NAMED, line.as_bytes(), &[], WITHIN));
        let told: Result<(), ChannelError> = named.collect();
        // It is given up when it does not end in time.
        let _ = told.and_then(|()| channel.send(task, content, fds, WITHIN));
        Some((process, channel))
    }

    /// A daemon wants the connections of its control socket accepted.
    pub fn control(&mut self, message: Message, is_heir: bool) {
        // The keeper's socket is beside the control socket, and has a suffix.
        let socket = self.socket.as_ref().map(|(_, path)| path.with_extension(""));
        self.closing.close(self.acceptor.offer(message, socket.as_deref()));
        if !is_heir {
            self.acceptor.take_over();
        }
        self.accept_control();
    }

    /// Starts an acceptor if one is needed, and none runs.
    fn accept_control(&mut self) {
        let Some(end) = self.acceptor.end_for_next(Instant::now()) else { return };
        let started = self.spawn(kind::ACCEPT, b"", &[end.as_fd()]);
        self.acceptor.started(started);
    }

    fn count(&self, is_for_client: bool) -> usize {
        self.running.iter().filter(|running| running.is_for_client == is_for_client).count()
    }

    /// A daemon wants something opened. The daemon may be compromised: the opener judges.
    pub fn open(&mut self, Message { kind, content, fds }: Message) {
        // It may have been named just before.
        self.listen();
        if !self.asked.take(Instant::now()) {
            say_about(About::Openers, "the daemon wants things opened too often: refused");
        } else if let [asker] = &fds[..]
            && self.count(false) < FOR_DAEMONS_MAX
        {
            self.run(kind, &content, &[asker.as_fd()], false);
        }
        self.closing.close(fds);
    }

    /// Accepts clients of the keeper's socket.
    fn accept(&mut self) {
        while self.count(true) < FOR_CLIENTS_MAX
            && self.clients.is_left()
            && let Some((socket, _)) = &self.socket
            && let Ok(client) = accept_with(socket, SocketFlags::CLOEXEC)
        {
            let _was_left = self.clients.take(Instant::now());
            self.run(kind::CLIENT, b"", &[client.as_fd()], true);
            self.closing.close([client]);
        }
    }

    fn hear(&mut self, Message { kind, content, mut fds }: Message) {
        match kind {
            kind::NAMED if content.len() <= LINE_MAX => {
                String::from_utf8(content).into_iter().for_each(|line| self.named.add(line));
            }
            kind::LISTENS if self.socket.is_none() => {
                self.socket = fds.pop().map(|socket| (socket, path_in(content)));
            }
            kind::SAYS => lines::count(About::Opened),
            _ => {}
        }
        self.closing.close(fds);
    }

    fn listen(&mut self) {
        while let Some(message) = self.acceptor.next_message() {
            self.hear(message);
        }
        for at in 0..self.running.len() {
            while let Some(channel) = &self.running[at].channel {
                match channel.receive(Duration::ZERO) {
                    Ok(message) => self.hear(message),
                    Err(ChannelError::Late(_)) => break,
                    Err(_closed) => self.running[at].channel = None,
                }
            }
        }
    }

    /// Hears openers and clients, and looks who has ended.
    pub fn serve(&mut self) {
        self.listen();
        let now = Instant::now();
        self.clients.grow(now);
        self.running.retain_mut(|running| {
            if now >= running.ends_by {
                say_about(About::Openers, "an opener does not end: it is killed");
                // It may have ended already.
                let _ = running.process.kill();
                running.ends_by = now + OPENS_WITHIN;
            }
            running.channel.is_some() || !matches!(running.process.try_wait(), Ok(Some(_)))
        });
        self.accept();
        self.accept_control();
    }

    /// The descriptors to wait for.
    pub fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        let takes_clients = self.count(true) < FOR_CLIENTS_MAX && self.clients.is_left();
        let socket = self.socket.iter().filter(move |_| takes_clients).map(|(socket, _)| socket.as_fd());
        let channels = self.running.iter().filter_map(|running| running.channel.as_ref()).map(AsFd::as_fd);
        socket.chain(channels).chain(self.acceptor.polled()).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    /// The time at which an opener is given up.
    pub fn next(&self) -> Option<Instant> {
        let waits = (!self.clients.is_left()).then(|| Instant::now() + CLIENT_WAITS);
        let openers = self.running.iter().map(|running| running.ends_by);
        openers.chain(waits).chain(self.acceptor.starts_at()).min()
    }
}

impl Drop for Openers {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.socket {
            // The next keeper replaces it.
            let _ = std::fs::remove_file(path);
        }
        for running in &mut self.running {
            // It may have ended already.
            let _ = running.process.kill();
            let _status = running.process.wait();
        }
    }
}
