//! The port's state, which goes with its guest when a VMM moves it, or copies it to another host ("Migrating back-end state"): through a
//! pipe of the front end's, while all rings stand still.
//!
//! The front end waits in its main thread until a saved state ends, so it is written at once, into what a pipe holds. A state to load is
//! read as it comes, until its end; a longer one is read and refused.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nicety_peer::PeerFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::{Answer, Refusal, Session, single};
use crate::port::STATE_BYTES_MAX;
use crate::protocol::{Fields, NO_FD, Request};

/// A front end that has begun to pass a state, and does not end it for so long, holds up nothing any more.
const LOADING: Duration = Duration::from_secs(1);
/// Bytes of a state that are read at most: a VMM that sends without end is not listened to.
const READ_BYTES_MAX: usize = 16 << 20;
/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 16 << 10;
/// The answers to a front end: done, or not.
const DONE: u64 = 0;
const FAILED: u64 = 1;

/// The front end's last request for a state.
#[derive(Debug, Default)]
pub(super) enum Transfer {
    #[default]
    Nothing,
    /// A state was written, or was not.
    Saved(Result<(), Errno>),
    Loads(Loading),
}

/// A state that comes.
#[derive(Debug)]
pub(super) struct Loading {
    /// `None` when no more of it is read: then the front end need not wait for a reader.
    from: Option<PeerFd>,
    bytes: Vec<u8>,
    read: usize,
    end: Instant,
    /// Whether it has come whole, once nothing is read any more.
    result: Result<(), String>,
}

impl Loading {
    fn new(from: PeerFd) -> Self {
        let result = Err("it does not end".to_owned());
        Self { from: Some(from), bytes: Vec::new(), read: 0, end: Instant::now() + LOADING, result }
    }

    /// Reads what has come.
    fn read(&mut self) {
        let mut chunk = [0; CHUNK_BYTES];
        while let Some(from) = &self.from {
            let result = match rustix::io::read(from, &mut chunk) {
                Ok(0) => Ok(()),
                Ok(len) => {
                    let room = (STATE_BYTES_MAX + 1).saturating_sub(self.bytes.len());
                    self.bytes.extend(&chunk[..len.min(room)]);
                    self.read += len;
                    if self.read <= READ_BYTES_MAX {
                        continue;
                    }
                    Err(format!("it has more than {READ_BYTES_MAX} bytes"))
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(errno) => Err(format!("reading it failed: {errno}")),
            };
            (self.result, self.from) = (result, None);
        }
    }

    /// The state, once the front end says that it has passed it whole.
    fn state(mut self) -> Result<Vec<u8>, String> {
        self.read();
        self.result?;
        if self.bytes.len() > STATE_BYTES_MAX {
            return Err(format!("it has {} bytes, and no state of a port has more than {STATE_BYTES_MAX}", self.read));
        }
        Ok(self.bytes)
    }
}

impl Transfer {
    /// The pipe from which a state comes.
    pub fn awaited(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Loads(loading) => loading.from.as_ref().map(AsFd::as_fd),
            _ => None,
        }
    }

    pub fn read(&mut self) {
        if let Self::Loads(loading) = self {
            loading.read();
        }
    }

    /// Whether a front end is in the middle of passing a state: the session is not handed over before it has ended.
    pub fn holds_up(&self) -> Option<Instant> {
        match self {
            Self::Loads(loading) => Some(loading.end).filter(|end| *end > Instant::now()),
            _ => None,
        }
    }
}

impl Session {
    /// VHOST_USER_SET_DEVICE_STATE_FD.
    pub(super) fn transfer_state(&mut self, body: &[u8], fds: Vec<PeerFd>) -> Result<Answer, Refusal> {
        /// Transfer directions, and the only phase: all rings are stopped.
        const SAVE: u32 = 0;
        const LOAD: u32 = 1;
        const STOPPED: u32 = 0;
        let request = Request::SetDeviceStateFd;
        let pipe = single(request, fds)?;
        let mut fields = Fields(body);
        let read = fields.u32().zip(fields.u32()).filter(|_| fields.end().is_some());
        let (direction, phase) = read.ok_or(Refusal::Body(request))?;
        let runs = self.rings.states().iter().any(|ring| ring.runs.is_some());
        let answer = |result: u64| Ok(Answer::Body((result | NO_FD).to_ne_bytes().to_vec()));
        if runs || phase != STOPPED || direction > LOAD {
            self.port.refused(&Refusal::State { why: "rings run, or it is another transfer than is specified" });
            return answer(FAILED);
        }
        if let Err(errno) = fcntl_getfl(&pipe).and_then(|flags| fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)) {
            self.transfer = Transfer::Saved(Err(errno));
            return answer(FAILED);
        }
        self.transfer = match direction {
            SAVE => {
                let ran = self.rings.states().iter().any(|ring| ring.paused);
                Transfer::Saved(written(&pipe, &self.port.save_state(ran)))
            }
            _ => Transfer::Loads(Loading::new(pipe)),
        };
        answer(DONE)
    }

    /// VHOST_USER_CHECK_DEVICE_STATE. A state that cannot be loaded is no reason for a VMM to give its guest up: the port says what it is
    /// without.
    pub(super) fn check_state(&mut self) -> Answer {
        let result = match std::mem::take(&mut self.transfer) {
            Transfer::Nothing => FAILED,
            Transfer::Saved(Ok(())) => DONE,
            Transfer::Saved(Err(errno)) => {
                self.port.refused(&Refusal::StateUnwritten { errno });
                FAILED
            }
            Transfer::Loads(loading) => {
                self.port.load_state(loading.state());
                DONE
            }
        };
        Answer::Body(result.to_ne_bytes().to_vec())
    }
}

/// Writes a state whole, without waiting for its reader.
fn written(pipe: &PeerFd, mut state: &[u8]) -> Result<(), Errno> {
    while !state.is_empty() {
        match rustix::io::write(pipe, state) {
            Ok(len) => state = state.get(len..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
