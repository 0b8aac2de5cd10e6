//! A TCP connection whose bytes are checked: what is sent comes back, and is compared.
//!
//! ```text
//! this thread ── pipe ──► nc, in the network outside ── TCP ──► the VM's nc, cat
//!             ◄── pipe ──┘
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nicety_guests::{Error, Process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use crate::embedded::Compare;

/// Bytes of a message.
pub const MESSAGE: usize = 1024;
/// Most bytes that have not come back, below the size of a pipe.
const UNANSWERED: u64 = 32 << 10;
/// Between two messages of [`Checked::carry`].
const INTERVAL: Duration = Duration::from_millis(10);
/// Longest wait for bytes, and for the rest at the end: TCP itself waits some seconds before it sends a segment for the sixth time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection (see the module's page).
#[derive(Debug)]
pub struct Checked {
    to: File,
    from: File,
    process: Process,
    log: PathBuf,
    compare: Compare,
    chunk: Vec<u8>,
}

/// The state that a connection and its owner share while it carries messages.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes that came back.
    pub came: AtomicU64,
    /// Nothing more is to be sent, and the rest is to come back.
    pub is_over: AtomicBool,
    /// One of both has given up.
    pub is_broken: AtomicBool,
}

/// The traffic of a connection.
#[derive(Debug, Default)]
pub struct Carried {
    /// Times at which bytes came back.
    pub times: Vec<Instant>,
    /// Bytes that came back.
    pub bytes: u64,
    /// Bytes that came back and are not what was sent, or that did not come back.
    pub wrong: u64,
}

fn made(path: &Path, flags: OFlags) -> Result<File, Error> {
    let failed = |source| Error::File { doing: "make the pipe", path: path.to_owned(), source };
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(|error| failed(error.into()))?;
    // Read and written, so that neither end waits for the other one, nor finds the end of the file.
    let options = OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path);
    options.map_err(failed)
}

impl Checked {
    /// Makes the pipes, and starts the program between them: `start` gets both, and a file for its complaints.
    pub(super) fn open(
        [to_path, from_path, log]: [PathBuf; 3],
        start: impl FnOnce(&Path, &Path, &Path) -> Result<Process, Error>,
    ) -> Result<Checked, Error> {
        let [to, from] = [made(&to_path, OFlags::NONBLOCK)?, made(&from_path, OFlags::NONBLOCK)?];
        let process = start(&to_path, &from_path, &log)?;
        Ok(Checked { to, from, process, log, compare: Compare::new(None), chunk: vec![0; 64 << 10] })
    }

    pub(super) fn process(&self) -> Process {
        self.process
    }

    fn failed(&self, why: &str) -> Error {
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let (came, sent) = (self.compare.received, self.compare.sent);
        let said = format!("{why}: {came} of {sent} bytes came back; {}", said.trim());
        Error::Run { doing: "a TCP connection to the VM".to_owned(), said }
    }

    /// Sends so many bytes, which the pipe has room for.
    fn send(&mut self, bytes: usize) -> Result<(), Error> {
        let mut left = bytes;
        while left > 0 {
            let part = self.compare.expected(self.compare.sent);
            let part = part.get(..left).unwrap_or(part);
            match self.to.write(part) {
                Ok(count @ 1..) => {
                    self.compare.sent += count as u64;
                    left -= count;
                }
                Ok(0) => return Err(self.failed("the pipe takes nothing")),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error.to_string())),
            }
        }
        Ok(())
    }

    /// Waits until bytes come, at most so long, and compares them. Returns whether some came.
    fn receive(&mut self, most: Duration) -> Result<bool, Error> {
        let most = Timespec { tv_sec: most.as_secs().cast_signed(), tv_nsec: most.subsec_nanos().into() };
        // An interrupted wait is a short one.
        let _ready = poll(&mut [PollFd::new(&self.from, PollFlags::IN)], Some(&most));
        match self.from.read(&mut self.chunk) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.compare.compare(self.chunk.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                if self.process.runs() { Ok(false) } else { Err(self.failed("it has ended")) }
            }
            Err(error) => Err(self.failed(&error.to_string())),
        }
    }

    /// Sends one message, and the next one when it has come back, for this time. Returns how long each took.
    ///
    /// # Errors
    /// The connection ends, stands still, or brings other bytes; `stop` became true.
    pub fn exchange(&mut self, duration: Duration, stop: &AtomicBool) -> Result<Vec<Duration>, Error> {
        let (end, mut each) = (Instant::now() + duration, Vec::new());
        while Instant::now() < end || each.is_empty() {
            let begin = Instant::now();
            self.send(MESSAGE)?;
            while !self.compare.is_whole() {
                self.receive(INTERVAL)?;
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::Stopped);
                }
                if begin.elapsed() > PATIENCE {
                    return Err(self.failed(&format!("it stands still for {PATIENCE:?}")));
                }
            }
            each.push(begin.elapsed());
        }
        if self.compare.different > 0 {
            return Err(self.failed(&format!("{} bytes differ", self.compare.different)));
        }
        Ok(each)
    }

    /// Sends a message at each interval until it is over, and waits for the rest.
    ///
    /// # Errors
    /// The connection ends, `stop` became true, or its owner has given up.
    pub fn carry(&mut self, progress: &Progress, stop: &AtomicBool) -> Result<Carried, Error> {
        let carried = self.carry_all(progress, stop);
        if carried.is_err() {
            progress.is_broken.store(true, Ordering::Relaxed);
        }
        carried
    }

    fn carry_all(&mut self, progress: &Progress, stop: &AtomicBool) -> Result<Carried, Error> {
        let (mut carried, mut next, mut moved) = (Carried::default(), Instant::now(), Instant::now());
        loop {
            let now = Instant::now();
            if stop.load(Ordering::Relaxed) || progress.is_broken.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let is_over = progress.is_over.load(Ordering::Relaxed);
            // What does not come any more is missing.
            if is_over && (self.compare.is_whole() || moved.elapsed() > PATIENCE) {
                break;
            }
            if now >= next && !is_over && self.compare.sent - self.compare.received < UNANSWERED {
                self.send(MESSAGE)?;
                next = now + INTERVAL;
            }
            if self.receive(INTERVAL.min(next.saturating_duration_since(now)).max(Duration::from_millis(1)))? {
                moved = Instant::now();
                carried.times.push(moved);
                progress.came.store(self.compare.received, Ordering::Relaxed);
            }
        }
        carried.bytes = self.compare.received;
        carried.wrong = self.compare.different + self.compare.sent.saturating_sub(self.compare.received);
        Ok(carried)
    }
}
