//! A pcapng file of every frame that leaves the switch by this port, as the wire would see it: cut, with its checksums
//! made.
//!
//! A file is written through the page cache, a pipe (for a program that shows packets as they come) without waiting
//! for its reader. What does not fit, by the limit, a full disk or a slow reader, is dropped and counted, and the next
//! packet block tells how many were lost before it.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, PACKET_BYTES, Packet, Piece, PortId, Progress, QueueCounters, Reason,
    Time, Uplink, Wants,
};
use nicety_memory::{Map, MapError};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::buffers::{Buffers, SLOT_BYTES};
use crate::egress::{self, Put, Sink};
use crate::pcapng::{self, AROUND_BYTES, Direction, Note};

/// Bytes that are gathered before they are written.
const GATHER_BYTES: usize = 128 << 10;

/// How a capture is to be made.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// The name of the interface in the file.
    pub interface: String,
    /// How long after 1970-01-01 00:00 UTC the origin of [`Time`] lies.
    pub origin: Duration,
    /// The file's size in bytes at most; `None` for no limit.
    pub most_bytes: Option<u64>,
}

/// Why a capture could not begin.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The operating system's reasons.
    #[error("writing a capture to {}: {source}; check its directory and rights, or choose another file", path.display())]
    Os {
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Something else is there.
    #[error("writing a capture to {}: that is no capture (pcapng), and is left as it is; choose another file, or move that one away", .0.display())]
    NoCapture(PathBuf),
    /// Another daemon is at it.
    #[error("writing a capture to {}: another process writes one there now; choose another file", .0.display())]
    Busy(PathBuf),
    /// Not even the file's head fits the limit.
    #[error("a capture of at most {0} bytes holds no frame: allow 4096 or more")]
    Limit(u64),
    /// No memory for its buffers.
    #[error(transparent)]
    Memory(#[from] MapError),
}

/// See the module's page.
pub struct Capture {
    fd: OwnedFd,
    /// A file, whose torn end can be cut off; not a pipe.
    regular: bool,
    origin: Duration,
    most_bytes: u64,
    frame: Buffers,
    /// Blocks to be written; those before `done` are.
    gathered: Vec<u8>,
    done: usize,
    /// Where the last of `gathered`'s blocks ends that is whole.
    written: u64,
    now: Time,
    direction: Direction,
    /// Lost since the last block.
    gap: u64,
    /// Told of by blocks that are gathered.
    told: u64,
    lost: u64,
    /// Frames that were gathered and could not be written, after they were counted as taken.
    forgotten: u64,
    errors: u64,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("written", &self.written).field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl Capture {
    /// Begins a file, in place of an empty one or a capture that is there, or writes to a pipe that is there. Any other file is
    /// left as it is.
    pub fn create(path: impl AsRef<Path>, options: &CaptureOptions) -> Result<Self, CaptureError> {
        let path = path.as_ref();
        let mut gathered = Vec::with_capacity(GATHER_BYTES + SLOT_BYTES as usize + AROUND_BYTES);
        pcapng::begin(&mut gathered, &options.interface);
        let most_bytes = options.most_bytes.unwrap_or(u64::MAX);
        if gathered.len() as u64 > most_bytes {
            return Err(CaptureError::Limit(most_bytes));
        }
        let os = |error: Errno| CaptureError::Os { path: path.to_owned(), source: error.into() };
        // A file is looked into, by the descriptor that writes; a pipe whose reader is not there yet opens in no other way.
        let is_file = |mode| FileType::from_raw_mode(mode) == FileType::RegularFile;
        let both = |mode| is_file(mode) || FileType::from_raw_mode(mode) == FileType::Fifo;
        let known = rustix::fs::stat(path).is_ok_and(|status| both(status.st_mode));
        let way = if known { OFlags::RDWR } else { OFlags::WRONLY };
        let flags = way | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(os)?;
        let status = rustix::fs::fstat(&fd).map_err(os)?;
        let regular = is_file(status.st_mode);
        if regular {
            rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
                Errno::WOULDBLOCK => CaptureError::Busy(path.to_owned()),
                error => os(error),
            })?;
        }
        if regular && status.st_size > 0 {
            let mut begin = [0; pcapng::MAGIC.len()];
            let len = rustix::io::pread(&fd, &mut begin, 0).map_err(os)?;
            if begin[..len] != pcapng::MAGIC {
                return Err(CaptureError::NoCapture(path.to_owned()));
            }
            rustix::fs::ftruncate(&fd, 0).map_err(os)?;
        }
        let mut this = Self {
            fd,
            regular,
            origin: options.origin,
            most_bytes,
            frame: Buffers::new(SLOT_BYTES)?,
            gathered,
            done: 0,
            written: 0,
            now: Time::ZERO,
            direction: Direction::Outbound,
            gap: 0,
            told: 0,
            lost: 0,
            forgotten: 0,
            errors: 0,
        };
        match this.write() {
            Ok(()) | Err(Errno::AGAIN) => Ok(this),
            Err(error) => Err(os(error)),
        }
    }

    /// Writes a frame of which the bytes are at hand, with a comment: the reason of a drop, for one. False if it was
    /// lost.
    pub fn record(&mut self, frame: &[u8], direction: Direction, comment: Option<&str>, now: Time) -> bool {
        let len = frame.len().min(PACKET_BYTES as usize);
        (self.now, self.direction) = (now, direction);
        let taken = self.gather(len as u32, comment, |_, out| out.copy_from_slice(&frame[..len]));
        self.settle();
        taken
    }

    /// Frames that were lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Errors of the file system.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Appends a packet block, if there is room for it. False if there is none.
    fn gather(&mut self, len: u32, comment: Option<&str>, fill: impl FnOnce(&Buffers, &mut [u8])) -> bool {
        if self.gathered.len() + len as usize + AROUND_BYTES > self.gathered.capacity() {
            self.settle();
        }
        let before = self.gathered.len();
        if before + len as usize + AROUND_BYTES <= self.gathered.capacity() {
            let time = self.origin + Duration::from_nanos(self.now.0);
            let note = Note { time, direction: self.direction, lost: self.gap, comment };
            let frame = &self.frame;
            pcapng::packet(&mut self.gathered, note, len, |out| fill(frame, out));
            if self.written + (self.gathered.len() - self.done) as u64 <= self.most_bytes {
                self.told += std::mem::take(&mut self.gap);
                return true;
            }
            self.gathered.truncate(before);
        }
        self.gap += 1;
        self.lost += 1;
        false
    }

    /// Writes what is gathered; a full pipe keeps the rest for later, an error loses it.
    fn settle(&mut self) {
        match self.write() {
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(_) => {
                self.errors += 1;
                self.forget();
            }
        }
    }

    fn write(&mut self) -> Result<(), Errno> {
        while self.done < self.gathered.len() {
            match rustix::io::write(&self.fd, &self.gathered[self.done..]) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => self.done += written,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.keep();
                    return Err(Errno::AGAIN);
                }
                Err(error) => return Err(error),
            }
        }
        self.keep();
        Ok(())
    }

    /// What is written leaves the buffer.
    fn keep(&mut self) {
        self.written += self.done as u64;
        self.gathered.drain(..self.done);
        self.done = 0;
        if self.gathered.is_empty() {
            self.told = 0;
        }
    }

    /// What could not be written is lost, and the file ends where it was whole.
    fn forget(&mut self) {
        let frames = count_packets(&self.gathered);
        self.gap += frames + std::mem::take(&mut self.told);
        self.lost += frames;
        self.forgotten += frames;
        self.gathered.clear();
        self.done = 0;
        if self.regular {
            let end = self.written;
            let _the_next_write_fails_too = rustix::fs::ftruncate(&self.fd, end);
            let _the_next_write_fails_too = rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::Start(end));
        }
    }
}

/// Packet blocks in whole blocks.
fn count_packets(mut blocks: &[u8]) -> u64 {
    let mut count = 0;
    while let Some((kind, rest)) = blocks.split_first_chunk::<4>()
        && let Some(len) = rest.first_chunk::<4>()
    {
        count += u64::from(*kind == [6, 0, 0, 0]);
        blocks = blocks.get(u32::from_le_bytes(*len).max(12) as usize..).unwrap_or_default();
    }
    count
}

/// Frames that were counted as taken, of which this many are lost after all: in this call, which `before` was before, or, on a
/// slow pipe, some before it. Packets that were cut, and bytes, are reckoned by their share.
fn take_back(before: QueueCounters, frames: u64, counters: &mut Counters) {
    let all = &mut counters.receive[0];
    let (packets, taken, bytes) = (all.packets - before.packets, all.frames - before.frames, all.bytes - before.bytes);
    let here = frames.min(taken);
    let share = |of: u64| (of * here).div_ceil(taken.max(1));
    let lost = share(packets) + (frames - here);
    all.packets = all.packets.saturating_sub(lost);
    all.frames = all.frames.saturating_sub(frames);
    all.bytes = all.bytes.saturating_sub(share(bytes));
    (0..lost).for_each(|_| counters.receive_drop(Reason::UplinkRefused));
}

impl Uplink for Capture {
    fn fetch(&mut self, port: PortId, _: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        batch.start(&Map::empty(), port, 0);
        Progress { more: false, armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        (self.now, self.direction) = (now, Direction::Outbound);
        let before = counters.receive[0];
        let delivery = egress::deliver(frames, counters, self);
        self.settle();
        let lost = std::mem::take(&mut self.forgotten);
        if lost > 0 {
            take_back(before, lost, counters);
        }
        delivery
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Sink for Capture {
    fn wants(&self, _: &Packet) -> Wants {
        Wants { frame_max: PACKET_BYTES, ..Wants::default() }
    }

    fn put(&mut self, piece: &mut Piece<'_>) -> Put {
        let len = piece.len();
        if len > PACKET_BYTES {
            return Put::Dropped(Reason::TooLong);
        }
        piece.write(self.frame.map(), &[self.frame.span(0, len)]);
        let taken = self.gather(len, None, |frame, out| {
            frame.map().read_span(frame.span(0, len), out);
        });
        if taken { Put::Taken } else { Put::Dropped(Reason::UplinkRefused) }
    }
}
