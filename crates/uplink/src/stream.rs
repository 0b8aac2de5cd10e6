//! Frames over a UNIX stream socket, as QEMU's `-netdev stream` (and its older `-netdev socket`) sends them: a switch
//! joined to a QEMU without a tap and without rights, or to another switch.
//!
//! Each frame, from its destination address on and without a frame check sequence, stands behind its length in four
//! bytes, big endian (QEMU's `net/net.c`, `net_fill_rstate`, and `net/stream_data.c`). Nothing else passes: no
//! offloads, so that packets are cut and checksums made before they leave, and joined again when they arrive
//! (`joining.rs`). Frames of less than 60 bytes are padded, as
//! on a wire, for those of QEMU's adapters that drop shorter ones.
//!
//! A frame that is too short or too long for the switch is dropped and counted, and the stream goes on behind it. A
//! length that QEMU takes from no peer either is no length: the stream is out of step, and the peer is left. A peer
//! that goes takes the half frame with it; an end that listens takes the next one, an end that connects tries again.

mod arriving;
mod joining;
mod leaving;

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nicety_adapter::{Batch, Budget, Counters, Delivery, Frames, PACKETS, PortId, Progress, Time, Uplink};
use nicety_memory::Map;
use rustix::net::SocketType;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use self::arriving::{Arriving, Next};
use self::joining::Joining;
use self::leaving::Leaving;
use crate::socket::{self, Door, SocketError, watching};
use crate::watch::{Watch, writable};

/// Bytes of a frame's length.
const PREFIX_BYTES: u32 = 4;
/// How soon joining is tried again, first and at last.
const RETRY_NS: (i64, i64) = (100_000_000, 1_000_000_000);

/// Why a peer was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severed {
    /// It closed its end, or its process ended.
    Gone,
    /// Where a frame's length should be was this number, which is none.
    Length(u32),
}

impl fmt::Display for Severed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the peer closed the stream"),
            Self::Length(length) => {
                write!(f, "the peer does not send frames behind their lengths: {length} is no frame's length")
            }
        }
    }
}

/// Where peers come from.
#[derive(Debug)]
enum Way {
    /// One after the other.
    Listen(Door),
    /// One that listens; when there is none, the timer says when to try again.
    Connect { path: PathBuf, timer: OwnedFd, pause_ns: i64 },
    /// One, and then none.
    Given,
}

/// See the module's page.
#[derive(Debug)]
pub struct Stream {
    peer: Option<OwnedFd>,
    way: Way,
    severed: Option<Severed>,
    watch: Watch,
    arriving: Arriving,
    joining: Joining,
    /// A batch points into what has arrived.
    lent: bool,
    leaving: Leaving,
    full: bool,
    room: bool,
}

impl Stream {
    /// Both ends of a new stream.
    pub fn connected() -> Result<(Self, Self), SocketError> {
        let (one, other) = socket::pair(SocketType::STREAM)?;
        let over = |fd| {
            let mut this = Self::new(Way::Given)?;
            this.join(fd).map_err(watching)?;
            Ok::<_, SocketError>(this)
        };
        Ok((over(one)?, over(other)?))
    }

    /// An end that waits at `path` for a peer, and for the next one when it has gone. A socket that nobody listens at
    /// any more is replaced.
    pub fn listen(path: impl AsRef<Path>) -> Result<Self, SocketError> {
        let this = Self::new(Way::Listen(Door::bind(path.as_ref(), SocketType::STREAM)?))?;
        if let Way::Listen(door) = &this.way {
            door.watch(&this.watch).map_err(watching)?;
        }
        Ok(this)
    }

    /// An end that joins whoever listens at `path`, now or later, and again when the peer has gone.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, SocketError> {
        let path = path.as_ref().to_owned();
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags);
        let timer = timer.map_err(|error| watching(error.into()))?;
        let mut this = Self::new(Way::Connect { path, timer, pause_ns: RETRY_NS.0 })?;
        if let Way::Connect { path, timer, .. } = &this.way {
            // A path that no socket can have will have none later.
            rustix::net::SocketAddrUnix::new(path.as_path()).map_err(|error| SocketError::Os {
                doing: "connecting to",
                path: path.clone(),
                source: error.into(),
            })?;
            this.watch.add(timer).map_err(watching)?;
        }
        this.dial();
        Ok(this)
    }

    /// Whether a peer is there.
    pub fn joined(&self) -> bool {
        self.peer.is_some()
    }

    /// Why the last peer was left.
    pub fn severed(&self) -> Option<Severed> {
        self.severed
    }

    fn new(way: Way) -> Result<Self, SocketError> {
        Ok(Self {
            peer: None,
            way,
            severed: None,
            watch: Watch::new().map_err(watching)?,
            arriving: Arriving::new()?,
            joining: Joining::new(),
            lent: false,
            leaving: Leaving::new()?,
            full: false,
            room: false,
        })
    }

    fn join(&mut self, fd: OwnedFd) -> io::Result<()> {
        self.watch.add(&fd)?;
        if let Way::Listen(door) = &self.way {
            door.leave(&self.watch);
        }
        self.peer = Some(fd);
        Ok(())
    }

    fn part(&mut self, why: Severed) {
        let Some(peer) = self.peer.take() else { return };
        self.watch.remove(&peer);
        self.severed = Some(why);
        self.full = false;
        self.arriving.forget();
        self.leaving.forget();
        match &mut self.way {
            Way::Listen(door) => {
                let _nobody_can_join_then = door.watch(&self.watch);
            }
            Way::Connect { pause_ns, timer, .. } => {
                *pause_ns = RETRY_NS.0;
                arm(timer, *pause_ns);
            }
            Way::Given => {}
        }
    }

    /// Takes a peer that waits, or tries to join one if it is time to.
    fn seek(&mut self, now: Time) {
        if self.peer.is_some() {
            return;
        }
        match &mut self.way {
            Way::Listen(door) => {
                if let Some(fd) = door.accept(&self.watch, now) {
                    let _it_has_gone_again = self.join(fd);
                }
            }
            Way::Connect { timer, .. } if rustix::io::read(&*timer, &mut [0; 8]).is_ok() => self.dial(),
            Way::Connect { .. } | Way::Given => {}
        }
    }

    /// Tries to join the one that listens; if nobody does, the timer is set.
    fn dial(&mut self) {
        let Way::Connect { path, timer, pause_ns } = &mut self.way else { return };
        match socket::connect(path, SocketType::STREAM) {
            Ok(fd) => {
                let _it_has_gone_again = self.join(fd);
            }
            Err(_) => {
                arm(timer, *pause_ns);
                *pause_ns = (*pause_ns * 2).min(RETRY_NS.1);
            }
        }
    }

    /// Sends what waits, if there is room for it again.
    fn send_waiting(&mut self) {
        let Some(peer) = self.peer.as_ref().filter(|peer| self.full && writable(peer)) else { return };
        match self.leaving.send(peer) {
            Ok(true) => {
                let _it_has_gone = self.watch.room(peer, false);
                (self.full, self.room) = (false, true);
            }
            Ok(false) => {}
            Err(_) => self.part(Severed::Gone),
        }
    }
}

fn arm(timer: &OwnedFd, pause_ns: i64) {
    let at = Timespec { tv_sec: pause_ns / 1_000_000_000, tv_nsec: pause_ns % 1_000_000_000 };
    let once = Itimerspec { it_interval: Timespec::default(), it_value: at };
    let _no_time_is_refused = rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
}

impl Uplink for Stream {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        self.room = false;
        self.send_waiting();
        if self.lent && self.arriving.held() {
            batch.start(&Map::empty(), port, 0);
            return Progress { more: true, armed: false };
        }
        self.seek(now);
        batch.start(self.arriving.map(), port, 0);
        let (mut frames, mut drained, mut armed) = (0, false, false);
        // A frame that ends a packet may be one of its own.
        let enough = |batch: &Batch, joining: &Joining| {
            let bytes = batch.bytes() + joining.bytes();
            batch.len() + 2 > PACKETS || (bytes > 0 && bytes >= budget.bytes)
        };
        while frames < budget.packets.max(1) && !enough(batch, &self.joining) {
            match self.arriving.next() {
                Next::Frame(span) => {
                    frames += 1;
                    self.joining.take(self.arriving.map(), span, batch, counters);
                }
                Next::Dropped(reason) => {
                    frames += 1;
                    counters.transmit_drop(reason);
                }
                Next::Foreign(length) => self.part(Severed::Length(length)),
                Next::More => {
                    let Some(peer) = self.peer.as_ref().filter(|_| !drained) else {
                        armed = true;
                        break;
                    };
                    match self.arriving.read(peer, batch.is_empty() && !self.joining.is_open()) {
                        Ok(None) => break,
                        Ok(Some(all)) => drained = all,
                        Err(_) => self.part(Severed::Gone),
                    }
                }
            }
        }
        self.joining.close(batch, counters);
        self.lent = !batch.is_empty();
        Progress { more: !armed, armed }
    }

    fn complete(&mut self, _batch: &Batch) {
        self.lent = false;
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _now: Time) -> Delivery {
        self.room = false;
        leaving::deliver(self, frames, counters)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.descriptor())
    }

    fn wake(&self) -> Option<Time> {
        match &self.way {
            _ if self.room => Some(Time::ZERO),
            Way::Listen(door) => door.wake(),
            Way::Connect { .. } | Way::Given => None,
        }
    }
}
