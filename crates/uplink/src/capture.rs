//! A pcapng file of every frame that leaves the switch by this port, as the wire would see it: segmented, with its checksums filled
//! in.
//!
//! A file is written through the page cache. A pipe (for a program that shows packets as they come) is written without waiting for
//! its reader. Frames that do not fit, because of the limit, a full disk or a slow reader, are dropped and counted; the next packet
//! block states how many were lost before it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode};
use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, HandOver, PACKET_BYTES, Packet, Piece, PortId, Progress, QueueCounters,
    Reason, Scratch, Time, Unfolded, Uplink, Wants,
};
use nicety_keeper::{OPENS_WITHIN, Opener};
use nicety_memory::{Map, MapError};
use rustix::fs::{Access, AtFlags, FileType, FlockOperation, Mode, OFlags, accessat, open, openat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::buffers::{Buffers, SLOT_BYTES};
use crate::egress::{self, Put, Sink};
use crate::pcapng::{self, AROUND_BYTES, Direction, Note};

/// Most bytes that are gathered before they are written.
const GATHER_BYTES: usize = 128 << 10;
/// Bytes at the end of a file that is longer in which the last whole block is sought.
const TAIL_BYTES: u64 = 4 * (GATHER_BYTES as u64 + SLOT_BYTES as u64);
/// The shortest packet block (section 4.3 of the format: 32 bytes without a frame and options).
const BLOCK_MIN: usize = 32;

/// Options of a capture.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// The name of the interface in the file.
    pub interface: String,
    /// Time from 1970-01-01 00:00 UTC to the origin of [`Time`].
    pub origin: Duration,
    /// Largest size of the file in bytes; `None` for no limit.
    pub most_bytes: Option<u64>,
}

/// The reason why a capture could not begin.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// An error of the operating system.
    #[error("writing a capture to {}: {source}; check its directory and rights, or choose another file", path.display())]
    Os {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file exists and is not a capture.
    #[error("writing a capture to {}: that is no capture (pcapng), and is left as it is; choose another file, or move that one away", .0.display())]
    NoCapture(PathBuf),
    /// The path is a symbolic link. Anybody who may write to the folder may have made it.
    #[error("writing a capture to {}: that is a link, and is not followed; name the file itself", .0.display())]
    Link(PathBuf),
    /// Another process writes this capture.
    #[error("writing a capture to {}: another process writes one there now; choose another file", .0.display())]
    Busy(PathBuf),
    /// The keeper, which opens files for this process, did not.
    #[error("the keeper does not open the capture {path}: {why}")]
    Keeper {
        /// The file.
        path: PathBuf,
        /// The reason: a sentence.
        why: String,
    },
    /// The limit is less than the file's header.
    #[error("a capture of at most {0} bytes holds no frame: allow 4096 or more")]
    Limit(u64),
    /// No memory for the buffers.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The state of another process's capture does not fit.
    #[error("going on with a capture: {0}")]
    State(RestoreError),
}

/// See the module's documentation.
pub struct Capture {
    fd: OwnedFd,
    /// True for a file: an incomplete block at its end can be cut off. False for a pipe.
    regular: bool,
    origin: Duration,
    most_bytes: u64,
    frame: Buffers,
    /// Blocks to write; the bytes before `done` are written.
    gathered: Vec<u8>,
    done: usize,
    /// Packet blocks in `gathered` that are not completely written.
    blocks: VecDeque<Block>,
    /// Bytes of the file that have left `gathered`.
    written: u64,
    now: Time,
    direction: Direction,
    /// Packets lost since the last block.
    gap: u64,
    /// Lost packets that the gathered blocks report.
    reported: u64,
    lost: u64,
    errors: u64,
    /// A packet is being cut, and some of its frames are gathered. `torn`: some of its frames were lost.
    under_way: bool,
    torn: bool,
    /// Results of packets that are not in the counters yet.
    taken: QueueCounters,
    dropped: u64,
}

/// The state of a capture beside its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedCapture {
    regular: bool,
    written: u64,
    /// Bytes that wait for the reader of a pipe, and the ends of their packet blocks.
    gathered: Vec<u8>,
    blocks: Vec<u32>,
    gap: u64,
    reported: u64,
    lost: u64,
    errors: u64,
}

impl Version for SavedCapture {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

const SAVED_KIND: &str = "nicety-capture";

/// A packet block that waits to be written.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// End of the block in `gathered`.
    end: usize,
    /// For the last frame of a packet whose frames are all gathered or written: the packet's number of frames, and its bytes.
    packet: Option<(u64, u64)>,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("written", &self.written).field("lost", &self.lost).finish_non_exhaustive()
    }
}

/// Opens a path's folder once, and returns it with the name in it.
fn place(path: &Path) -> Result<(OwnedFd, &OsStr), Errno> {
    let name = path.file_name().ok_or(Errno::ISDIR)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((open(folder, flags, Mode::empty())?, name))
}

/// Checks that a file is empty or a capture: only those are overwritten.
fn is_capture(fd: &OwnedFd, path: &Path) -> Result<(), CaptureError> {
    let mut begin = [0; pcapng::MAGIC.len()];
    let read = rustix::io::pread(fd, &mut begin, 0);
    let len = read.map_err(|error| CaptureError::Os { path: path.to_owned(), source: error.into() })?;
    if begin[..len] == pcapng::MAGIC { Ok(()) } else { Err(CaptureError::NoCapture(path.to_owned())) }
}

fn is_file(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::RegularFile
}

/// Opens a file by an opener, and waits for it.
fn open_by(opener: &Opener, path: &Path) -> Result<OwnedFd, CaptureError> {
    let keeper = |why: String| CaptureError::Keeper { path: path.to_owned(), why };
    let asked = opener.ask(&Capture::line(path), OPENS_WITHIN).map_err(|error| keeper(error.to_string()))?;
    let late = || Err(format!("it has not answered within {OPENS_WITHIN:?}"));
    let (_path, fd) = asked.answer(OPENS_WITHIN).unwrap_or_else(late).map_err(keeper)?;
    Ok(fd)
}

impl Capture {
    /// Finds out whether [`Capture::create`] would begin a file here. It makes and changes nothing, and does not find out whether
    /// another process writes the file.
    pub fn check(path: impl AsRef<Path>) -> Result<(), CaptureError> {
        let path = path.as_ref();
        let (folder, name) =
            place(path).map_err(|error| CaptureError::Os { path: path.to_owned(), source: error.into() })?;
        Self::check_at(&folder, name, path)
    }

    /// Checks a name in a folder; `path` is the name as the person gave it.
    fn check_at(folder: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), CaptureError> {
        let os = |error: Errno| CaptureError::Os { path: path.to_owned(), source: error.into() };
        let may = |name: &OsStr, rights| accessat(folder, name, rights, AtFlags::EACCESS).map_err(os);
        let status = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => status,
            Err(Errno::NOENT) => return may(OsStr::new("."), Access::WRITE_OK | Access::EXEC_OK),
            Err(error) => return Err(os(error)),
        };
        let kind = FileType::from_raw_mode(status.st_mode);
        if kind == FileType::Symlink {
            return Err(CaptureError::Link(path.to_owned()));
        }
        may(name, Access::WRITE_OK)?;
        if matches!(kind, FileType::RegularFile | FileType::Directory) {
            // A write of no bytes changes nothing, and fails for a folder or a read-only file of /proc (write(2)).
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::io::write(openat(folder, name, flags, Mode::empty()).map_err(os)?, &[]).map_err(os)?;
        }
        if kind == FileType::RegularFile && status.st_size > 0 {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            is_capture(&openat(folder, name, flags, Mode::empty()).map_err(os)?, path)?;
        }
        Ok(())
    }

    /// Begins a capture file. It replaces an empty file or an existing capture, or writes to an existing pipe. Any other file is
    /// left alone, and no link is followed.
    pub fn create(path: impl AsRef<Path>, options: &CaptureOptions) -> Result<Self, CaptureError> {
        let path = path.as_ref();
        let os = |error: Errno| CaptureError::Os { path: path.to_owned(), source: error.into() };
        let mut gathered = Vec::with_capacity(GATHER_BYTES + SLOT_BYTES as usize + AROUND_BYTES);
        pcapng::begin(&mut gathered, &options.interface);
        let most_bytes = options.most_bytes.unwrap_or(u64::MAX);
        if gathered.len() as u64 > most_bytes {
            return Err(CaptureError::Limit(most_bytes));
        }
        let fd = match nicety_socket::opener() {
            Some(opener) => open_by(opener, path)?,
            None => Self::open(path)?,
        };
        let regular = is_file(rustix::fs::fstat(&fd).map_err(os)?.st_mode);
        let mut this = Self {
            fd,
            regular,
            origin: options.origin,
            most_bytes,
            frame: Buffers::new(SLOT_BYTES)?,
            blocks: VecDeque::with_capacity(gathered.capacity() / BLOCK_MIN),
            gathered,
            done: 0,
            written: 0,
            now: Time::ZERO,
            direction: Direction::Outbound,
            gap: 0,
            reported: 0,
            lost: 0,
            errors: 0,
            under_way: false,
            torn: false,
            taken: QueueCounters::default(),
            dropped: 0,
        };
        match this.write() {
            Ok(()) | Err(Errno::AGAIN) => Ok(this),
            Err(error) => Err(os(error)),
        }
    }

    /// Opens a file or a pipe for [`Capture::create`], and empties a file.
    ///
    /// # Errors
    /// It is another process's, no capture, or a link, or the system refuses.
    pub fn open(path: &Path) -> Result<OwnedFd, CaptureError> {
        let os = |error: Errno| CaptureError::Os { path: path.to_owned(), source: error.into() };
        let (folder, name) = place(path).map_err(os)?;
        Self::check_at(&folder, name, path)?;
        // The writing descriptor also reads, to check an existing file. A pipe opens without its reader only for reading and
        // writing.
        let both = |mode| is_file(mode) || FileType::from_raw_mode(mode) == FileType::Fifo;
        let access = match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            Ok(status) if both(status.st_mode) => OFlags::RDWR,
            _ => OFlags::WRONLY,
        };
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = openat(&folder, name, flags, Mode::RUSR | Mode::WUSR).map_err(os)?;
        let status = rustix::fs::fstat(&fd).map_err(os)?;
        let regular = is_file(status.st_mode);
        if regular {
            rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
                Errno::WOULDBLOCK => CaptureError::Busy(path.to_owned()),
                error => os(error),
            })?;
        }
        if regular && status.st_size > 0 {
            // Another file may have replaced it meanwhile.
            is_capture(&fd, path)?;
            rustix::fs::ftruncate(&fd, 0).map_err(os)?;
        }
        Ok(fd)
    }

    /// The line that names a capture's file to an opener.
    pub fn line(path: &Path) -> String {
        format!("capture {}", path.display())
    }

    /// Goes on with the file of another process, behind what that has written.
    ///
    /// # Errors
    /// The state is damaged or another version's, or there is no memory.
    pub fn go_on(fd: OwnedFd, state: &[u8], options: &CaptureOptions) -> Result<Self, CaptureError> {
        let SavedCapture { regular, written, gathered: waiting, blocks: ends, gap, reported, lost, errors } =
            decode(SAVED_KIND, state).map_err(CaptureError::State)?;
        let mut gathered = Vec::with_capacity(GATHER_BYTES + SLOT_BYTES as usize + AROUND_BYTES);
        if waiting.len() > gathered.capacity() {
            return Err(CaptureError::State(RestoreError::Impossible("bytes that wait")));
        }
        let mut blocks = VecDeque::with_capacity(gathered.capacity() / BLOCK_MIN);
        blocks.extend(ends.into_iter().map(|end| Block { end: end as usize, packet: None }));
        gathered.extend_from_slice(&waiting);
        Ok(Self {
            fd,
            regular,
            origin: options.origin,
            most_bytes: options.most_bytes.unwrap_or(u64::MAX),
            frame: Buffers::new(SLOT_BYTES)?,
            gathered,
            done: 0,
            blocks,
            written,
            now: Time::ZERO,
            direction: Direction::Outbound,
            gap,
            reported,
            lost,
            errors,
            under_way: false,
            torn: false,
            taken: QueueCounters::default(),
            dropped: 0,
        })
    }

    /// Goes on with the file of a process that was killed: behind the last block that it has written whole. Frames that it had not written
    /// are lost, and nobody knows how many.
    ///
    /// # Errors
    /// It is a pipe, whose reader may have a part of a block, or what is in it is no capture.
    pub fn resume(fd: OwnedFd, options: &CaptureOptions) -> Result<Self, CaptureError> {
        let failed = |source: io::Error| CaptureError::Os { path: PathBuf::new(), source };
        let os = |error: Errno| failed(error.into());
        let status = rustix::fs::fstat(&fd).map_err(os)?;
        if !is_file(status.st_mode) {
            return Err(failed(io::Error::other("it is no file")));
        }
        let len = u64::try_from(status.st_size).unwrap_or(0);
        let from = len.saturating_sub(TAIL_BYTES) & !3;
        let mut tail = vec![0; usize::try_from(len - from).unwrap_or(0)];
        let mut read = 0;
        while read < tail.len() {
            match rustix::io::pread(&fd, &mut tail[read..], from + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(os(error)),
            }
        }
        let end = pcapng::end_of_blocks(&tail[..read], from == 0)
            .ok_or_else(|| failed(io::Error::other("it is no capture")))?;
        let written = from + end as u64;
        rustix::fs::ftruncate(&fd, written).map_err(os)?;
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(written)).map_err(os)?;
        let (gathered, blocks) = (Vec::new(), Vec::new());
        let saved = SavedCapture { regular: true, written, gathered, blocks, gap: 0, reported: 0, lost: 0, errors: 0 };
        Self::go_on(fd, &encode(SAVED_KIND, SavedCapture::NUMBER, &saved), options)
    }

    /// Its state, between two deliveries: all packets are in the counters.
    fn save(&self) -> SavedCapture {
        let at = |block: &Block| u32::try_from(block.end.saturating_sub(self.done)).unwrap_or(u32::MAX);
        SavedCapture {
            regular: self.regular,
            written: self.written + self.done as u64,
            gathered: self.gathered.get(self.done..).unwrap_or_default().to_vec(),
            blocks: self.blocks.iter().map(at).collect(),
            gap: self.gap,
            reported: self.reported,
            lost: self.lost,
            errors: self.errors,
        }
    }

    /// Writes a frame whose bytes are at hand, with a comment such as the reason of a drop. False if it was lost.
    pub fn record(&mut self, frame: &[u8], direction: Direction, comment: Option<&str>, now: Time) -> bool {
        let len = frame.len().min(PACKET_BYTES as usize);
        (self.now, self.direction) = (now, direction);
        let taken = self.gather(len as u32, comment, |_, out| out.copy_from_slice(&frame[..len]));
        self.settle();
        taken
    }

    /// Number of frames that were lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Number of errors of the file system.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Appends a packet block. False if there is no room.
    fn gather(&mut self, len: u32, comment: Option<&str>, fill: impl FnOnce(&Buffers, &mut [u8])) -> bool {
        if self.gathered.len() + len as usize + AROUND_BYTES > self.gathered.capacity() {
            self.settle();
        }
        let before = self.gathered.len();
        if before + len as usize + AROUND_BYTES <= self.gathered.capacity() {
            let time = self.origin + Duration::from_nanos(self.now.0);
            let note = Note { interface: 0, time, direction: self.direction, len, lost: self.gap, comment };
            let frame = &self.frame;
            pcapng::packet(&mut self.gathered, note, len, |out| fill(frame, out));
            if self.written + (self.gathered.len() - self.done) as u64 <= self.most_bytes {
                self.reported += std::mem::take(&mut self.gap);
                self.blocks.push_back(Block { end: self.gathered.len(), packet: None });
                return true;
            }
            self.gathered.truncate(before);
        }
        self.gap += 1;
        self.lost += 1;
        false
    }

    /// Writes the gathered blocks. A full pipe leaves the rest for later; an error loses it.
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

    /// Removes the written blocks from the buffer.
    fn keep(&mut self) {
        while let Some(block) = self.blocks.pop_front_if(|block| block.end <= self.done) {
            self.take(block.packet);
        }
        self.blocks.iter_mut().for_each(|block| block.end -= self.done);
        self.written += self.done as u64;
        self.gathered.drain(..self.done);
        self.done = 0;
        if self.gathered.is_empty() {
            self.reported = 0;
        }
    }

    /// Counts the unwritten blocks as lost, and cuts the file after its last whole block.
    fn forget(&mut self) {
        let frames = self.blocks.len() as u64;
        self.gap += frames + std::mem::take(&mut self.reported);
        self.lost += frames;
        self.dropped += self.blocks.iter().filter(|block| block.packet.is_some()).count() as u64;
        self.torn |= self.under_way;
        self.blocks.clear();
        self.gathered.clear();
        self.done = 0;
        if self.regular {
            let end = self.written;
            let _next_write_fails_too = rustix::fs::ftruncate(&self.fd, end);
            let _next_write_fails_too = rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::Start(end));
        }
    }

    /// Counts a packet as taken if its last block is written.
    fn take(&mut self, packet: Option<(u64, u64)>) {
        if let Some((frames, bytes)) = packet {
            self.taken.packets += 1;
            self.taken.frames += frames;
            self.taken.bytes += bytes;
        }
    }

    /// Gathers all frames of a packet. The packet is taken when the last frame is written, and dropped if any frame cannot be.
    fn offer(&mut self, unfolded: &Unfolded<'_>, scratch: &mut Scratch, counters: &mut Counters) {
        (self.under_way, self.torn) = (false, false);
        let (_, put) = egress::put_all(unfolded, scratch, self);
        self.under_way = false;
        match (put, self.blocks.back_mut()) {
            (Put::Taken, Some(last)) if !self.torn => {
                let packet = unfolded.packet();
                last.packet = Some((u64::from(packet.frames()), u64::from(packet.len())));
            }
            (Put::Dropped(reason), _) => counters.receive_drop(reason),
            _ => counters.receive_drop(Reason::UplinkRefused),
        }
    }

    /// Adds the results of packets to the counters. Packets that wait for a slow reader count as taken, like those in its pipe.
    fn count(&mut self, counters: &mut Counters) {
        for at in 0..self.blocks.len() {
            let packet = self.blocks[at].packet.take();
            self.take(packet);
        }
        let (taken, all) = (std::mem::take(&mut self.taken), &mut counters.receive[0]);
        all.packets += taken.packets;
        all.frames += taken.frames;
        all.bytes += taken.bytes;
        counters.receive_drops[Reason::UplinkRefused as usize] += std::mem::take(&mut self.dropped);
    }
}

impl Uplink for Capture {
    fn fetch(&mut self, port: PortId, _: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        batch.start(&Map::empty(), port, 0);
        Progress { more: false, armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        (self.now, self.direction) = (now, Direction::Outbound);
        let mut scratch = Scratch::new();
        for (_, pick, packet) in frames.iter() {
            match Unfolded::new(frames, pick, self.wants(packet)) {
                Ok(unfolded) => self.offer(&unfolded, &mut scratch, counters),
                Err(reason) => counters.receive_drop(reason),
            }
        }
        self.settle();
        self.count(counters);
        Delivery::default()
    }

    fn hand_over(&self) -> HandOver<'_> {
        let state = encode(SAVED_KIND, SavedCapture::NUMBER, &self.save());
        HandOver::Parts { descriptors: vec![self.fd.as_fd()], state }
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
        self.under_way |= taken;
        if taken { Put::Taken } else { Put::Dropped(Reason::UplinkRefused) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_capture_is_read_by_each_later_version() {
        let (gathered, blocks) = (vec![1, 2, 3], vec![3]);
        let saved =
            SavedCapture { regular: true, written: 4, gathered, blocks, gap: 5, reported: 6, lost: 7, errors: 8 };
        crate::handover::held(SAVED_KIND, &saved);
    }
}
