//! A tap interface of the host. Follows Linux's `Documentation/networking/tuntap.rst` and `drivers/net/tun.c`.
//!
//! The interface is attached by name, or made if this process may make it. It is not brought up, bridged or given an address: that
//! is the administrator's task. Partial checksums and uncut packets pass unchanged in both directions; a virtio header before each
//! frame describes them. A tap takes one whole frame per call, from one buffer. A deleted tap is attached again after the
//! administrator has made it again.

mod address;
mod attached;
mod error;
mod link;
mod words;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, HandOver, News, PACKET_BYTES, Packet, Piece, PortId, Progress, Reason,
    Time, Uplink, Wants,
};
use nicety_keeper::{Asked, Opener};
use rustix::event::PollFlags;
use rustix::io::Errno;
use vm_memory::{ReadVolatile, VolatileMemoryError, WriteVolatile};

use crate::buffers::{Buffers, SLOT_BYTES};
use crate::egress::{self, Put, Sink};
use crate::events::LinkEvents;
use crate::interface::Interface;
use crate::offload::passes_uncut;
use crate::virtio_header::{self, HEADER_BYTES};
use crate::watch::{Watch, polled, writable};
use address::Address;
use attached::{Attached, Queues};
pub use error::TapError;
pub use link::Kind;

/// Buffer for a batch: its bytes, headers and gaps, and one more packet of the greatest length.
const BATCH_BYTES: u32 = (64 << 10) + (16 << 10) + 2 * SLOT_BYTES;

/// Interval between searches for a tap that was deleted.
const AGAIN: Duration = Duration::from_secs(1);

/// Interval between looks whether an opener has answered.
const ANSWERED: Duration = Duration::from_millis(20);

/// See the module's documentation.
#[derive(Debug)]
pub struct Tap {
    name: String,
    /// The queues of a tap that was deleted and made again.
    queues: Queues,
    fd: Arc<OwnedFd>,
    /// Its interface, and its place among the queues.
    interface: Option<(Arc<Interface>, usize)>,
    /// The queue on which answers to what leaves now are to come.
    answers: Option<Arc<OwnedFd>>,
    watch: Watch,
    /// Without them it is known to be down when a frame is sent to it.
    events: Option<LinkEvents>,
    index: u32,
    offloads: u32,
    arrived: Buffers,
    leaving: Buffers,
    borrowed: bool,
    /// The tap refused a frame for lack of room, or is down; the watch reports when it takes frames again.
    full: bool,
    /// The tap takes frames again.
    room: bool,
    line: Line,
    /// State that the log has already reported.
    logged: Line,
    /// Time of the next search for a deleted tap.
    again: Time,
    /// Attaches to it for this process, if it may not.
    opener: Option<Arc<Opener>>,
    /// The question to the opener, until it has answered.
    asked: Option<Asked>,
    /// The reason why an interface that has the deleted tap's name could not be attached.
    barred: Option<String>,
    /// The reason in `barred` that the log has already reported.
    logged_barred: Option<String>,
    address: Address,
}

/// State of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Frames reach the host's stack.
    Up,
    /// The interface is down.
    Down,
    /// The interface was deleted.
    Gone,
}

impl Tap {
    /// Attaches to the tap of this name, or makes it; a tap that was made goes when this is dropped. `tap%d` takes the next free
    /// number.
    pub fn open(name: &str) -> Result<Self, TapError> {
        Self::open_by(None, name)
    }

    /// Like [`Tap::open`], by an opener if there is one.
    pub fn open_by(opener: Option<&Arc<Opener>>, name: &str) -> Result<Self, TapError> {
        Self::attach(opener, name, Queues::One, 1)
    }

    /// Attaches to `count` queues (at least 1) of the tap of this name, which was made with `multi_queue`, or is made. The kernel gives
    /// a flow's frames to the queue that has last sent some of it. No other process may hold a queue.
    pub fn open_queues(name: &str, count: u16) -> Result<Vec<Self>, TapError> {
        Self::open_queues_by(None, name, count)
    }

    /// Like [`Tap::open_queues`], by an opener if there is one.
    pub fn open_queues_by(opener: Option<&Arc<Opener>>, name: &str, count: u16) -> Result<Vec<Self>, TapError> {
        let first = Self::attach(opener, name, Queues::Several { held: 0 }, count)?;
        let name = first.name.clone();
        let more = (1..count).map(|held| Self::attach(opener, &name, Queues::Several { held: held.into() }, count));
        std::iter::once(Ok(first)).chain(more).collect()
    }

    /// Attaches to one more queue of a tap of which this process holds fewer than `count`: in place of one that was closed.
    pub fn open_queue_again(opener: Option<&Arc<Opener>>, name: &str, count: u16) -> Result<Self, TapError> {
        Self::attach(opener, name, Queues::Several { held: u32::from(count.saturating_sub(1)) }, count)
    }

    fn attach(opener: Option<&Arc<Opener>>, name: &str, queues: Queues, count: u16) -> Result<Self, TapError> {
        Self::fits(name)?;
        // When it is attached again, its sisters may be there already.
        let again = match queues {
            Queues::One => Queues::One,
            Queues::Several { .. } => Queues::Several { held: u32::from(count.saturating_sub(1)) },
        };
        let attached = match opener {
            Some(opener) => Attached::by(opener, name, queues)?,
            None => Attached::new(name, queues)?,
        };
        Self::with(attached, again, opener)
    }

    /// Goes on with the tap of this name that another process has attached to, by its descriptor: that of one of its `queues`. If it is
    /// deleted, the next one is attached by the opener.
    pub fn go_on(opener: Option<&Arc<Opener>>, name: &str, fd: OwnedFd, queues: u16) -> Result<Self, TapError> {
        let again = match queues {
            0 | 1 => Queues::One,
            count => Queues::Several { held: u32::from(count - 1) },
        };
        Self::with(Attached::go_on(name, fd), again, opener)
    }

    /// Whether a descriptor is still attached to a tap: nobody has deleted the interface.
    pub fn is_attached(fd: &OwnedFd) -> bool {
        crate::system::attached_to(fd.as_fd()).is_ok()
    }

    fn with(attached: Attached, again: Queues, opener: Option<&Arc<Opener>>) -> Result<Self, TapError> {
        let os = |doing| move |source: io::Error| TapError::Os { doing, source };
        let Attached { name, fd, offloads, index } = attached;
        let mut this = Self {
            name,
            queues: again,
            fd: Arc::new(fd),
            interface: None,
            answers: None,
            watch: Watch::new().map_err(os("making an epoll instance"))?,
            events: None,
            index,
            offloads,
            arrived: Buffers::new(BATCH_BYTES)?,
            leaving: Buffers::new(SLOT_BYTES)?,
            borrowed: false,
            full: false,
            room: false,
            line: Line::Up,
            logged: Line::Up,
            again: Time::ZERO,
            opener: opener.cloned(),
            asked: None,
            barred: None,
            logged_barred: None,
            address: Address::default(),
        };
        this.begin().map_err(os("watching a tap"))?;
        this.events = LinkEvents::new().ok().filter(|events| this.watch.add(events).is_ok());
        Ok(this)
    }

    /// One of the queues of an interface, at this place. A frame that leaves here for a port with another queue is written to that one: the
    /// kernel gives a flow's frames to the queue to which some of it was written last.
    pub fn queue_of(mut self, interface: &Arc<Interface>, place: usize) -> Self {
        interface.register(place, &self.fd);
        self.interface = Some((Arc::clone(interface), place));
        self
    }

    /// Finds out whether [`Tap::open_by`] would attach to the tap of this name, or make it, without doing so. It cannot find out
    /// whether another process has the tap.
    pub fn check(opener: Option<&Opener>, name: &str) -> Result<(), TapError> {
        Self::fits(name)?;
        attached::check(name, Queues::One, opener)
    }

    /// The same of [`Tap::open_queues_by`]. `held`: queues that this process holds now, and will have closed by then.
    pub fn check_queues(opener: Option<&Opener>, name: &str, held: u16) -> Result<(), TapError> {
        Self::fits(name)?;
        attached::check(name, Queues::Several { held: held.into() }, opener)
    }

    /// For an opener: the tap of this name, attached or made, or one more of its queues, and its name. Which queues others hold is for
    /// whoever has asked to know.
    pub fn open_for(name: &str, several: bool) -> Result<(String, OwnedFd), TapError> {
        Self::fits(name)?;
        let queues = if several { Queues::Several { held: u32::MAX } } else { Queues::One };
        let Attached { name, fd, .. } = Attached::new(name, queues)?;
        Ok((name, fd))
    }

    /// The line that names a tap to an opener.
    pub fn line(name: &str) -> String {
        attached::line(name)
    }

    fn fits(name: &str) -> Result<(), TapError> {
        let fits = (1..libc::IFNAMSIZ).contains(&name.len())
            && !name.bytes().any(|byte| byte == b'/' || byte == b':' || byte == 0 || byte.is_ascii_whitespace())
            && !matches!(name, "." | "..");
        if !fits {
            return Err(TapError::Name(name.to_owned()));
        }
        Ok(())
    }

    /// Sets the work that the stack behind the interface may leave undone in the frames that are fetched here: checksums, and the
    /// cutting of TCP. Initially all that its kernel supports. Holds until the tap is deleted.
    pub fn expect(&mut self, checksum: bool, tcp: bool) -> Result<(), TapError> {
        let cut = if tcp { libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN } else { 0 };
        let flags = if checksum { self.offloads & (libc::TUN_F_CSUM | cut) } else { 0 };
        let os = |source: io::Error| TapError::Os { doing: "setting a tap's offloads (TUNSETOFFLOAD)", source };
        crate::system::set_offload(self.fd.as_fd(), flags).map_err(os)
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Offloads that pass unchanged, as text for people: "checksum", "tso4", "tso6", "uso".
    pub fn features(&self) -> Vec<&'static str> {
        let names = [
            (libc::TUN_F_CSUM, "checksum"),
            (libc::TUN_F_TSO4, "tso4"),
            (libc::TUN_F_TSO6, "tso6"),
            (libc::TUN_F_USO4, "uso"),
        ];
        names.into_iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| name).collect()
    }

    /// Whether the interface was deleted.
    pub fn gone(&self) -> bool {
        self.line == Line::Gone
    }

    /// Begins to watch an interface that was just attached, up or down.
    fn begin(&mut self) -> io::Result<()> {
        self.watch.add(&self.fd)?;
        self.line = Line::Up;
        self.address.read(&self.name);
        if polled(&self.fd).is_empty() {
            self.down();
        }
        Ok(())
    }

    /// Marks the interface as up: frames pass.
    fn up(&mut self) {
        if self.line != Line::Up {
            self.line = Line::Up;
            self.address.read(&self.name);
        }
    }

    /// Marks the interface as down. The watch reports when it is up: only then can it be written (Linux 5.3).
    fn down(&mut self) {
        self.line = Line::Down;
        self.full = self.full || self.watch.room(&self.fd, true).is_ok();
    }

    /// Searches for a deleted interface by name, now and then: no event reports a new one. It attaches only if the name exists,
    /// since attaching would make it.
    fn look_again(&mut self, now: Time) {
        if self.line != Line::Gone || now < self.again {
            return;
        }
        self.again = now.after(AGAIN);
        if let Some(asked) = &self.asked {
            match Attached::answered_to(asked, &self.name) {
                Some(attached) => self.attached_again(attached),
                None => self.again = now.after(ANSWERED),
            }
            return;
        }
        self.barred = None;
        if !attached::is_there(&self.name) {
            return;
        }
        let Some(opener) = &self.opener else {
            return self.attached_again(Attached::again(&self.name, self.queues));
        };
        match attached::ask_later(opener, &self.name, self.queues) {
            Ok(asked) => (self.asked, self.again) = (Some(asked), now.after(ANSWERED)),
            Err(error) => self.barred = Some(error.to_string()),
        }
    }

    fn attached_again(&mut self, attached: Result<Attached, TapError>) {
        self.asked = None;
        match attached {
            Ok(Attached { name: _, fd, offloads, index }) => {
                (self.fd, self.offloads, self.index, self.logged_barred) = (Arc::new(fd), offloads, index, None);
                if let Some((interface, place)) = &self.interface {
                    interface.register(*place, &self.fd);
                }
                let _retried_later = self.begin();
            }
            Err(error) => self.barred = Some(error.to_string()),
        }
    }

    /// Looks whether the interface was taken down.
    fn look_at_events(&mut self) {
        if self.events.as_ref().and_then(|events| events.take(self.index, libc::IFF_UP)) == Some(false)
            && self.line == Line::Up
        {
            self.down();
        }
    }

    fn has(&self, flag: u32) -> bool {
        self.offloads & flag != 0
    }

    /// Reads one frame to `[at, ..)`. `Err(None)`: no frame is waiting.
    fn read(&self, at: u32) -> Result<u32, Option<Errno>> {
        let mut bytes = self.arrived.map().bytes(self.arrived.span(at, SLOT_BYTES));
        match { &*self.fd }.read_volatile(&mut bytes) {
            Ok(len) => Ok(len as u32),
            Err(error) => match errno(&error) {
                Errno::AGAIN | Errno::INTR => Err(None),
                error => Err(Some(error)),
            },
        }
    }

    /// Drafts the frame that was read into `[at, at + len)`.
    fn draft(&self, at: u32, len: u32, batch: &mut Batch) -> Result<(), Reason> {
        let mut header = [0; HEADER_BYTES as usize];
        self.arrived.map().read_span(self.arrived.span(at, HEADER_BYTES), &mut header);
        let len = len.checked_sub(HEADER_BYTES).filter(|&len| len >= 14).ok_or(Reason::TooShort)?;
        if len > PACKET_BYTES {
            return Err(Reason::TooLong);
        }
        let asked = virtio_header::decode(header).ok_or(Reason::BadOffload)?;
        let mut draft = batch.draft(asked.head_wanted()).ok_or(Reason::BufferFull)?;
        draft.push_span(self.arrived.span(at + HEADER_BYTES, len)).map_err(|_| Reason::TooLong)?;
        let offload = asked.vet(draft.head_mut(), len).ok_or(Reason::BadOffload)?;
        draft.finish(offload, 0)
    }

    fn lose(&mut self) {
        (self.line, self.full, self.again) = (Line::Gone, false, Time::ZERO);
        self.address.lose();
        self.watch.remove(&self.fd);
    }
}

fn errno(error: &VolatileMemoryError) -> Errno {
    match error {
        VolatileMemoryError::IOError(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
        _ => Errno::IO,
    }
}

impl Uplink for Tap {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        self.look_again(now);
        self.room = self.full && writable(&self.fd);
        if self.room {
            self.full = false;
            self.up();
            let _deleted = self.watch.room(&self.fd, false);
        }
        if self.borrowed && self.arrived.held() {
            batch.start(&nicety_memory::Map::empty(), port, 0);
            return Progress { more: true, armed: false };
        }
        batch.start(self.arrived.map(), port, 0);
        let mut progress = Progress { more: true, armed: false };
        let (mut at, mut reads) = (0, 0);
        while self.line != Line::Gone
            && budget.allows(batch)
            && reads < budget.packets.max(1)
            && at + SLOT_BYTES <= self.arrived.len()
        {
            reads += 1;
            match self.read(at) {
                Ok(len) => match self.draft(at, len, batch) {
                    Ok(()) => {
                        let packet = batch.packets().last();
                        let (frames, bytes) = packet.map_or((1, 0), |packet| (packet.frames(), packet.len()));
                        counters.sent(0, u64::from(frames), u64::from(bytes));
                        at = (at + len).next_multiple_of(64);
                    }
                    Err(reason) => counters.transmit_drop(reason),
                },
                Err(None) => {
                    progress = Progress { more: false, armed: true };
                    break;
                }
                Err(Some(_)) => self.lose(),
            }
        }
        // Woken for nothing: an interface has changed. Counted under load: twice in 19,449 frames.
        if batch.is_empty() {
            self.look_at_events();
        }
        if self.line == Line::Gone {
            progress = Progress { more: false, armed: true };
        }
        self.borrowed = !batch.is_empty();
        progress
    }

    fn complete(&mut self, _batch: &Batch) {
        self.borrowed = false;
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _now: Time) -> Delivery {
        self.room = false;
        let sender = frames.batch.sender.0;
        self.answers = self.interface.as_ref().and_then(|(interface, _)| interface.queue_of(sender));
        let delivery = egress::deliver(frames, counters, self);
        self.answers = None;
        if delivery.refused() != 0 {
            self.full = self.watch.room(&self.fd, true).is_ok();
        }
        delivery
    }

    fn hand_over(&self) -> HandOver<'_> {
        // A deleted tap is searched for by name.
        if self.line == Line::Gone {
            return HandOver::Again;
        }
        HandOver::Parts { descriptors: vec![self.fd.as_fd()], state: Vec::new() }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.descriptor())
    }

    fn wake(&self) -> Option<Time> {
        let gone = self.line == Line::Gone;
        if self.room { Some(Time::ZERO) } else { gone.then_some(self.again) }
    }

    fn carrier(&self) -> bool {
        self.line == Line::Up
    }

    fn vacant(&self) -> Option<String> {
        let polled = polled(&self.fd);
        self.why(match self.line {
            Line::Gone => Line::Gone,
            _ if polled.contains(PollFlags::ERR) => Line::Gone,
            _ if polled.contains(PollFlags::OUT) => Line::Up,
            // The tap may be full rather than down.
            Line::Up if self.full => Line::Up,
            Line::Up | Line::Down => Line::Down,
        })
    }

    fn news(&mut self) -> Option<News> {
        let barred = self.barred.is_some() && self.barred != self.logged_barred;
        if self.logged == self.line && !barred {
            return None;
        }
        self.logged = self.line;
        if barred {
            self.logged_barred.clone_from(&self.barred);
        }
        Some(self.why(self.line).map_or_else(|| News::Back(self.back()), News::Vacant))
    }
}

impl Sink for Tap {
    fn wants(&self, packet: &Packet) -> Wants {
        let uncut = passes_uncut(packet) && self.has(libc::TUN_F_CSUM);
        Wants {
            frame_max: PACKET_BYTES,
            tcp4: uncut && self.has(libc::TUN_F_TSO4),
            tcp6: uncut && self.has(libc::TUN_F_TSO6),
            udp: uncut && self.has(libc::TUN_F_USO4),
            partial: self.has(libc::TUN_F_CSUM),
            strip: 0,
            verify: false,
        }
    }

    fn put(&mut self, piece: &mut Piece<'_>) -> Put {
        if self.line == Line::Gone {
            return Put::Dropped(Reason::LinkDown);
        }
        let len = piece.len();
        if len > PACKET_BYTES {
            return Put::Dropped(Reason::TooLong);
        }
        let checked = piece.write(self.leaving.map(), &[self.leaving.span(HEADER_BYTES, len)]);
        let header = virtio_header::encode(piece, checked);
        self.leaving.map().write_span(self.leaving.span(0, HEADER_BYTES), &header);
        let bytes = self.leaving.map().bytes(self.leaving.span(0, HEADER_BYTES + len));
        // If the sender's own queue does not take the frame, it goes out by this one.
        if let Some(answers) = self.answers.as_deref().filter(|answers| answers.as_raw_fd() != self.fd.as_raw_fd())
            && { answers }.write_volatile(&bytes).is_ok()
        {
            self.up();
            return Put::Taken;
        }
        match { &*self.fd }.write_volatile(&bytes) {
            Ok(_) => {
                self.up();
                Put::Taken
            }
            Err(error) => match errno(&error) {
                Errno::AGAIN | Errno::INTR => Put::Full,
                // The interface is down.
                Errno::IO => {
                    self.down();
                    Put::Dropped(Reason::LinkDown)
                }
                Errno::INVAL => Put::Dropped(Reason::BadOffload),
                Errno::BADFD => {
                    self.lose();
                    Put::Dropped(Reason::LinkDown)
                }
                _ => Put::Dropped(Reason::UplinkRefused),
            },
        }
    }
}
