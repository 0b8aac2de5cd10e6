//! One QMP socket (docs/interop/qmp-spec.rst). QEMU greets and the client negotiates. Commands, answers and events follow, each a JSON
//! object on a line.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg};
use serde_json::{Value, json};

use crate::{Command, Failure, Item, Version};

/// Bytes of QEMU's longest line: `query-named-block-nodes` of a hundred disks has 100 KB.
pub const LINE_MAX: usize = 1 << 20;
/// Items that wait for their owner; with more, nothing is read.
const ITEMS_MAX: usize = 1024;
/// Commands without an answer. QEMU itself reads no further than eight (`QMP_REQ_QUEUE_LEN_MAX`, monitor/qmp.c).
const ASKED_MAX: usize = 64;
/// Bytes of a read, and reads in a row: the thread has other work too.
const READ_BYTES: usize = 64 << 10;
const READS: usize = 16;
/// Bytes of what a peer has sent that a message shows.
const SHOWN: usize = 60;

/// Limits of a peer's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the connection to the end of the negotiation. QEMU serves one client of a socket at a time, so a connection behind another
    /// client's is accepted by the kernel and never greeted.
    pub greeting: Duration,
    /// The time from a command to its answer.
    pub answer: Duration,
}

impl Default for Limits {
    /// 3 s, and 10 s.
    fn default() -> Limits {
        Limits { greeting: Duration::from_secs(3), answer: Duration::from_secs(10) }
    }
}

/// A QMP socket that is of no use any more, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("QMP socket {socket}: {cause}")]
pub struct Error {
    /// The socket, as its owner named it.
    pub socket: String,
    /// The cause, and what to do.
    pub cause: Cause,
}

/// The cause of a QMP socket's failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// Nobody greets.
    #[error(
        "connected, but no greeting within {limit:?}: another program has this QMP socket (QEMU serves one at a time), or it is no QMP \
         socket. Give nicety one of its own: -qmp unix:PATH,server=on,wait=off"
    )]
    NoGreeting {
        /// The time that a greeting has.
        limit: Duration,
    },
    /// QEMU's monitor for people.
    #[error(
        "this is QEMU's monitor for people (-monitor, HMP): name a QMP socket, of -qmp unix:PATH,server=on,wait=off"
    )]
    ForPeople,
    /// Several lines an object.
    #[error("this QMP socket has pretty=on, or is -qmp-pretty: leave that out")]
    Pretty,
    /// Other bytes than QMP's.
    #[error("this is no QMP socket, for it says {said:?}: name QEMU's, of -qmp unix:PATH,server=on,wait=off")]
    NotQmp {
        /// The beginning of what it says.
        said: String,
    },
    /// A QMP peer that no longer makes sense.
    #[error("QEMU has sent what is no QMP: {said:?}. Does something stand between? Connect to QEMU's own socket")]
    Malformed {
        /// The beginning of what it says.
        said: String,
    },
    /// A line without an end.
    #[error("a line has more than {LINE_MAX} bytes: is this QEMU's QMP socket?")]
    LongLine,
    /// QEMU refuses the negotiation.
    #[error("QEMU refuses qmp_capabilities: {0}")]
    Negotiation(Failure),
    /// The peer closed before it greeted.
    #[error(
        "closed without a greeting: QEMU is ending, or this is no QMP socket. Name QEMU's, of -qmp unix:PATH,server=on,wait=off"
    )]
    ClosedAtOnce,
    /// The peer closed.
    #[error("closed by QEMU: it has ended, or is ending; its own log says why")]
    Closed,
    /// An answer does not come.
    #[error(
        "no answer to {command} within {limit:?}: QEMU's main loop is stuck (a disk or a back end that does not answer?)"
    )]
    NoAnswer {
        /// The command.
        command: String,
        /// The time that an answer has.
        limit: Duration,
    },
    /// The owner asks faster than QEMU answers.
    #[error("{ASKED_MAX} commands have no answer yet")]
    TooManyCommands,
    /// The kernel's words.
    #[error("{0}")]
    Io(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    Negotiating,
    Ready,
}

/// A command without an answer.
struct Asked {
    id: u64,
    name: &'static str,
    since: Instant,
}

/// A client of one QMP socket. It never waits: its owner polls for [`events`](Monitor::events), calls [`turn`](Monitor::turn), and takes
/// every item that [`next`](Monitor::next) has. Commands may be sent from the start; they leave after the negotiation.
pub struct Monitor {
    socket: OwnedFd,
    name: String,
    limits: Limits,
    since: Instant,
    phase: Phase,
    /// Received, not yet read as lines; the first `scanned` bytes have no end of a line.
    received: Vec<u8>,
    scanned: usize,
    out: Vec<u8>,
    /// Bytes that leave after the negotiation.
    held: Vec<u8>,
    /// Descriptors that go with the byte at this place of `out`, and of `held`.
    out_fds: VecDeque<(usize, OwnedFd)>,
    held_fds: VecDeque<(usize, OwnedFd)>,
    asked: VecDeque<Asked>,
    items: VecDeque<Item>,
    last_id: u64,
    version: Option<Version>,
    has_out_of_band: bool,
    failed: Option<Cause>,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Monitor({}, {:?})", self.name, self.phase)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Monitor {
    /// On a connected UNIX stream socket. `name` is its path, for messages.
    pub fn new(socket: OwnedFd, name: impl Into<String>, limits: Limits, now: Instant) -> Monitor {
        Monitor {
            socket,
            name: name.into(),
            limits,
            since: now,
            phase: Phase::Greeting,
            received: Vec::new(),
            scanned: 0,
            out: Vec::new(),
            held: Vec::new(),
            out_fds: VecDeque::new(),
            held_fds: VecDeque::new(),
            asked: VecDeque::new(),
            items: VecDeque::new(),
            last_id: 0,
            version: None,
            has_out_of_band: false,
            failed: None,
        }
    }

    /// The events to poll for.
    pub fn events(&self) -> PollFlags {
        let read = if self.items.len() < ITEMS_MAX { PollFlags::IN } else { PollFlags::empty() };
        if self.out.is_empty() { read } else { read | PollFlags::OUT }
    }

    /// When [`Monitor::turn`] must be called at the latest: a limit ends.
    pub fn wake_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Ready => self.asked.front().map(|asked| asked.since + self.limits.answer),
            Phase::Greeting | Phase::Negotiating => Some(self.since + self.limits.greeting),
        }
    }

    /// Whether the negotiation is done.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// QEMU's version, as soon as it has greeted.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Queues a command and returns its number, by which its answer is known. It leaves with the next turn. An out-of-band command is sent
    /// as a usual one if QEMU does not offer the other way.
    pub fn send(&mut self, command: &Command, now: Instant) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        if self.asked.len() >= ASKED_MAX {
            self.fail(Cause::TooManyCommands);
            return id;
        }
        self.asked.push_back(Asked { id, name: command.name, since: now });
        let verb = if command.is_out_of_band && self.has_out_of_band { "exec-oob" } else { "execute" };
        let line = json!({verb: command.name, "arguments": command.arguments, "id": id}).to_string();
        let to = if self.phase == Phase::Ready { &mut self.out } else { &mut self.held };
        to.extend_from_slice(line.as_bytes());
        to.push(b'\n');
        id
    }

    /// Gives QEMU a descriptor, by `getfd`: from then on `fd:NAME` means it. Returns the command's number.
    pub fn give(&mut self, name: &str, fd: OwnedFd, now: Instant) -> u64 {
        let is_ready = self.phase == Phase::Ready;
        let at = if is_ready { self.out.len() } else { self.held.len() };
        let id = self.send(&Command::new("getfd", json!({"fdname": name})), now);
        let fds = if is_ready { &mut self.out_fds } else { &mut self.held_fds };
        fds.push_back((at, fd));
        id
    }

    /// Sends and receives what is possible now.
    ///
    /// # Errors
    /// The socket is of no use any more: see [`Cause`]. Items that came before are still returned by [`Monitor::next`]. So is the error, by
    /// each further turn.
    pub fn turn(&mut self, now: Instant) -> Result<(), Error> {
        if self.failed.is_none()
            && let Err(cause) = self.exchange(now)
        {
            self.fail(cause);
        }
        match &self.failed {
            None => Ok(()),
            Some(cause) => Err(Error { socket: self.name.clone(), cause: cause.clone() }),
        }
    }

    /// The next item.
    #[expect(clippy::should_implement_trait, reason = "it ends only for now")]
    pub fn next(&mut self) -> Option<Item> {
        self.items.pop_front()
    }

    fn fail(&mut self, cause: Cause) {
        self.failed.get_or_insert(cause);
    }

    fn exchange(&mut self, now: Instant) -> Result<(), Cause> {
        self.receive()?;
        self.flush()?;
        match (self.phase, self.asked.front()) {
            (Phase::Greeting, _) if now >= self.since + self.limits.greeting => {
                Err(Cause::NoGreeting { limit: self.limits.greeting })
            }
            (Phase::Negotiating, _) if now >= self.since + self.limits.greeting => {
                Err(Cause::NoAnswer { command: "qmp_capabilities".to_owned(), limit: self.limits.greeting })
            }
            (Phase::Ready, Some(asked)) if now >= asked.since + self.limits.answer => {
                Err(Cause::NoAnswer { command: asked.name.to_owned(), limit: self.limits.answer })
            }
            _ => Ok(()),
        }
    }

    fn receive(&mut self) -> Result<(), Cause> {
        let mut buffer = vec![0; READ_BYTES];
        for _ in 0..READS {
            if self.items.len() >= ITEMS_MAX {
                break;
            }
            match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    let is_greeted = self.phase != Phase::Greeting;
                    return Err(if is_greeted { Cause::Closed } else { self.closed_at_once() });
                }
                Ok((count, _)) => {
                    self.received.extend_from_slice(&buffer[..count]);
                    self.lines()?;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) if self.phase == Phase::Greeting => return Err(Cause::ClosedAtOnce),
                Err(Errno::CONNRESET) => return Err(Cause::Closed),
                Err(errno) => return Err(Cause::Io(errno.to_string())),
            }
        }
        Ok(())
    }

    /// A peer that closes after half a line of something else.
    fn closed_at_once(&self) -> Cause {
        if self.received.is_empty() { Cause::ClosedAtOnce } else { Cause::NotQmp { said: shown(&self.received) } }
    }

    fn lines(&mut self) -> Result<(), Cause> {
        let received = std::mem::take(&mut self.received);
        let (mut begin, mut from) = (0, self.scanned);
        while let Some(end) = received[from..].iter().position(|byte| *byte == b'\n').map(|at| from + at) {
            self.line(&received[begin..end])?;
            (begin, from) = (end + 1, end + 1);
        }
        let rest = &received[begin..];
        if rest.len() > LINE_MAX {
            return Err(if self.phase == Phase::Greeting {
                Cause::NotQmp { said: shown(rest) }
            } else {
                Cause::LongLine
            });
        }
        // A peer of another protocol may never end a line: its first byte already tells.
        if self.phase == Phase::Greeting && !rest.is_empty() && rest[0] != b'{' {
            return Err(not_qmp(rest));
        }
        (self.scanned, self.received) = (rest.len(), rest.to_vec());
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Cause> {
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        let Ok(value) = serde_json::from_slice::<Value>(line) else {
            return Err(match self.phase {
                Phase::Greeting if line == b"{" => Cause::Pretty,
                Phase::Greeting => not_qmp(line),
                _ => Cause::Malformed { said: shown(line) },
            });
        };
        match self.phase {
            Phase::Greeting => self.greeted(&value).ok_or_else(|| not_qmp(line)),
            Phase::Negotiating if value.get("event").is_none() => match (value.get("return"), failure(&value)) {
                (Some(_), _) => {
                    self.phase = Phase::Ready;
                    let before = self.out.len();
                    self.out_fds.extend(self.held_fds.drain(..).map(|(at, fd)| (before + at, fd)));
                    self.out.append(&mut self.held);
                    Ok(())
                }
                (None, Some(failure)) => Err(Cause::Negotiation(failure)),
                (None, None) => Err(Cause::Malformed { said: shown(line) }),
            },
            Phase::Negotiating | Phase::Ready => {
                let item = self.item(value).ok_or_else(|| Cause::Malformed { said: shown(line) })?;
                self.items.push_back(item);
                Ok(())
            }
        }
    }

    fn greeted(&mut self, value: &Value) -> Option<()> {
        let greeting = value.get("QMP")?;
        self.version = Some(Version::read(&greeting["version"])?);
        self.has_out_of_band =
            greeting["capabilities"].as_array().is_some_and(|offered| offered.iter().any(|word| word == "oob"));
        let enable = if self.has_out_of_band { json!({"enable": ["oob"]}) } else { json!({}) };
        let line = json!({"execute": "qmp_capabilities", "arguments": enable}).to_string();
        self.out.extend_from_slice(line.as_bytes());
        self.out.push(b'\n');
        self.phase = Phase::Negotiating;
        Some(())
    }

    fn item(&mut self, mut value: Value) -> Option<Item> {
        if let Some(name) = value["event"].as_str() {
            let time = &value["timestamp"];
            let at = match (time["seconds"].as_u64(), time["microseconds"].as_u64()) {
                (Some(seconds), Some(micros)) => Duration::from_secs(seconds) + Duration::from_micros(micros),
                _ => Duration::ZERO,
            };
            return Some(Item::Event { name: name.to_owned(), at, data: value["data"].take() });
        }
        let result = match value.get_mut("return") {
            Some(value) => Ok(value.take()),
            None => Err(failure(&value)?),
        };
        // An answer without the number of a command that waits is to nothing that was asked.
        let id = value["id"].as_u64()?;
        let at = self.asked.iter().position(|asked| asked.id == id)?;
        self.asked.remove(at);
        Some(Item::Answer { id, result })
    }

    /// Sends what waits, up to the first byte that has a descriptor; or that byte's command, with it.
    fn send_some(&mut self) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut places = self.out_fds.iter().map(|(at, _)| *at);
        let (first, second) = (places.next(), places.next());
        let (end, fd) = match first {
            Some(0) => (second, self.out_fds.front().map(|(_, fd)| fd.as_fd())),
            first => (first, None),
        };
        let bytes = self.out.get(..end.unwrap_or(self.out.len())).unwrap_or_default();
        let count = match fd {
            None => send(&self.socket, bytes, flags)?,
            Some(fd) => {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let fds = [fd];
                control.push(SendAncillaryMessage::ScmRights(&fds));
                sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags)?
            }
        };
        if count > 0 && first == Some(0) {
            self.out_fds.pop_front();
        }
        for (at, _) in &mut self.out_fds {
            *at = at.saturating_sub(count);
        }
        Ok(count)
    }

    fn flush(&mut self) -> Result<(), Cause> {
        while !self.out.is_empty() {
            match self.send_some() {
                Ok(count) => drop(self.out.drain(..count)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Cause::Closed),
                Err(errno) => return Err(Cause::Io(errno.to_string())),
            }
        }
        Ok(())
    }
}

fn failure(value: &Value) -> Option<Failure> {
    let error = value.get("error")?;
    let word = |name: &str| error[name].as_str().map(str::to_owned);
    Some(Failure { class: word("class")?, desc: word("desc")? })
}

fn not_qmp(said: &[u8]) -> Cause {
    // "QEMU 11.1.3 monitor - type 'help' for more information" (monitor/hmp.c)
    if said.starts_with(b"QEMU ") { Cause::ForPeople } else { Cause::NotQmp { said: shown(said) } }
}

/// The beginning of bytes, as text for a person.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned()
}
