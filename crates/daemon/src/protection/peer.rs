//! The other host's daemon, as one VM's thread has it: the line for messages, and the connection for the stream of copies.

use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nicety_host::PeerAddress;
use nicety_link::{Link, Place, Secret, Stream};
use nicety_names::{Addresses, Names};
use nicety_protect::Pairing;
use rustix::event::PollFlags;

use super::wire::{Line, VERSION, Wire};

/// Between two tries to connect.
const AGAIN: Duration = Duration::from_millis(200);
/// The same while one of the daemons is being replaced: the VM waits for it.
const AGAIN_SOON: Duration = Duration::from_millis(20);
/// An offer that was refused is made again after this time.
const REFUSED: Duration = Duration::from_secs(2);

/// See the module's page.
pub(super) struct Peer {
    vm: String,
    secret: Secret,
    names: Names,
    addresses: Addresses<Place>,
    line: Option<Line>,
    dial_at: Instant,
    /// Why there is no line, for a person.
    why_not: Option<String>,
    /// Bytes on the wire of lines that have ended.
    pub traffic: u64,
}

impl Peer {
    pub fn new(vm: &str, peer: &PeerAddress, secret: &Secret, names: &Names, now: Instant) -> Self {
        let (vm, secret, names) = (vm.to_owned(), secret.clone(), names.clone());
        let addresses = Addresses::of(peer.at());
        Self { vm, secret, names, addresses, line: None, dial_at: now, why_not: None, traffic: 0 }
    }

    /// Why there is no line.
    pub fn why_not(&self) -> Option<&str> {
        self.why_not.as_deref()
    }

    /// Whether there is a line.
    pub fn is_there(&self) -> bool {
        self.line.is_some()
    }

    /// The other daemon has connected.
    pub fn accepted(&mut self, line: Line) {
        self.line = Some(line);
        self.why_not = None;
    }

    /// Connects, if it is time to: the first message of its line is this.
    pub fn dial(&mut self, offer: impl FnOnce() -> Wire, now: Instant) {
        let Some(mut line) = self.connected(None, AGAIN, now) else { return };
        if line.send(&offer()) {
            self.line = Some(line);
        } else {
            self.why_not = Some("what QEMU says of this VM is too long for a message".to_owned());
        }
    }

    /// Connects, if it is time to, to go on with this protection.
    pub fn dial_again(&mut self, pairing: Pairing, now: Instant) {
        if let Some(line) = self.connected(Some(pairing), AGAIN_SOON, now) {
            self.line = Some(line);
        }
    }

    /// A line, if there is none and it is time to connect.
    fn connected(&mut self, rejoins: Option<Pairing>, again: Duration, now: Instant) -> Option<Line> {
        if self.line.is_some() || now < self.dial_at {
            return None;
        }
        self.dial_at = now + again;
        self.connect([None, rejoins], now).unwrap_or_else(|why| {
            self.why_not = Some(why);
            None
        })
    }

    /// A connection that is the stream of this protection.
    ///
    /// # Errors
    /// A sentence.
    pub fn stream(&mut self, pairing: Pairing, now: Instant) -> Result<Link, String> {
        let line = self.connect([Some(pairing), None], now)?.ok_or("the other host's name has no address now")?;
        line.into_link().ok_or_else(|| "the connection takes no bytes".to_owned())
    }

    /// The connection is the stream of a protection, or goes on with one, or neither.
    fn connect(&mut self, [stream, rejoins]: [Option<Pairing>; 2], now: Instant) -> Result<Option<Line>, String> {
        let Some(place) = self.addresses.next(&self.names, now)? else { return Ok(None) };
        let (socket, _) = Stream::connect(&place).map_err(|error| format!("{place}: {error}"))?;
        let socket = match socket {
            Stream::Tcp(stream) => stream.into(),
            Stream::Unix(stream) => stream.into(),
        };
        let link = Link::connect(socket, &self.secret).map_err(|why| format!("{place}: {why}"))?;
        let mut line = Line::new(link);
        let hello = Wire::Hello { version: VERSION, vm: self.vm.clone(), stream, rejoins };
        if line.send(&hello) { Ok(Some(line)) } else { Err("a message is too long".to_owned()) }
    }

    /// Says something. Without a line it is not said.
    pub fn send(&mut self, message: &Wire) {
        if let Some(line) = &mut self.line
            && !line.send(message)
        {
            self.drop_line("the other host takes no messages".to_owned());
        }
    }

    /// The offer was refused: it is made again later.
    pub fn refused(&mut self, why: String, now: Instant) {
        self.drop_line(format!("the other host does not take this twin: {why}"));
        self.dial_at = now + REFUSED;
    }

    /// Ends the line.
    pub fn hang(&mut self) {
        if let Some(mut line) = self.line.take() {
            self.traffic += line.link.take_traffic().iter().sum::<u64>();
        }
    }

    fn drop_line(&mut self, why: String) {
        self.hang();
        self.why_not = Some(why);
    }

    /// Messages that have come. `Err`: the connection has ended.
    pub fn turn(&mut self) -> Result<Vec<Wire>, String> {
        let Some(line) = &mut self.line else { return Ok(Vec::new()) };
        let came = line.turn();
        self.traffic += line.link.take_traffic().iter().sum::<u64>();
        if came.as_ref().is_ok_and(|came| !came.is_empty()) {
            self.why_not = None;
        }
        came.inspect_err(|why| self.drop_line(why.clone()))
    }

    /// The line's descriptor, and what to wait for.
    pub fn polled(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.line.as_ref().map(|line| (line.link.as_fd(), line.link.events()))
    }

    /// When something is due.
    /// `dials`: without a line one is sought.
    pub fn wake_at(&self, dials: bool) -> Option<Instant> {
        match &self.line {
            Some(line) => line.link.deadline(),
            None => dials.then_some(self.dial_at),
        }
    }
}
