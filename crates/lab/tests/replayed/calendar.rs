//! The calendar of a kernel with `time-travel=ext`: messages of `include/uapi/linux/um_timetravel.h`, 16 bytes each, over a UNIX socket.

use std::{
    fs::File,
    io::{self, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const ACK: u32 = 0;
const START: u32 = 1;
const REQUEST: u32 = 2;
const WAIT: u32 = 3;
const GET: u32 = 4;
const UPDATE: u32 = 5;
const RUN: u32 = 6;
const GET_TOD: u32 = 8;

/// The time of day at which each boot begins, in nanoseconds: 2026-11-27.
const TIME_OF_DAY_NS: u64 = 1_795_737_600_000_000_000;
/// The guest answers at once. One that does not has stopped.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the guest does with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It runs: its time stands still until it waits.
    Runs,
    /// It waits for this time.
    Waits(u64),
}

/// The connection of one guest.
#[derive(Debug)]
pub struct Calendar {
    socket: UnixStream,
    state: State,
    /// The time that the guest has asked for since it last ran.
    wanted: u64,
    runs: u32,
}

impl AsFd for Calendar {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A message of the guest, for the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    pub op: u32,
    pub time: u64,
}

impl Calendar {
    pub fn new(socket: UnixStream) -> io::Result<Calendar> {
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Calendar { socket, state: State::Runs, wanted: u64::MAX, runs: 0 })
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Answers one message of the guest, which runs. `None`: the guest has gone.
    pub fn hear(&mut self, now: u64) -> io::Result<Option<Message>> {
        let Some((op, seq, time)) = self.receive()? else { return Ok(None) };
        let answer = match op {
            START => {
                self.send_with_descriptors(seq)?;
                return Ok(Some(Message { op, time }));
            }
            REQUEST => {
                self.wanted = time;
                0
            }
            WAIT => {
                self.state = State::Waits(self.wanted);
                0
            }
            GET => now,
            GET_TOD => TIME_OF_DAY_NS + now,
            // Only a guest that was given time in advance moves it.
            UPDATE => 0,
            _ => return Err(io::Error::other(format!("the guest sent the message {op}"))),
        };
        self.send(ACK, seq, answer)?;
        Ok(Some(Message { op, time }))
    }

    /// Lets the waiting guest run from this time on.
    pub fn run(&mut self, now: u64) -> io::Result<()> {
        self.runs += 1;
        self.send(RUN, self.runs, now)?;
        match self.receive()? {
            Some((ACK, seq, _)) if seq == self.runs => {}
            other => return Err(io::Error::other(format!("the guest answered RUN with {other:?}"))),
        }
        (self.state, self.wanted) = (State::Runs, u64::MAX);
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Option<(u32, u32, u64)>> {
        let mut bytes = [0; 16];
        match self.socket.read_exact(&mut bytes) {
            Err(error) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                return Ok(None);
            }
            read => read?,
        }
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Ok(Some((word(0), word(4), u64::from(word(8)) | u64::from(word(12)) << 32)))
    }

    fn send(&mut self, op: u32, seq: u32, time: u64) -> io::Result<()> {
        self.socket.write_all(&message(op, seq, time))
    }

    /// The answer to START brings a file to be mapped and a log. There are neither, and they must be descriptors all the same: without them
    /// `time_travel_handle_message()` maps and closes what lies on its stack. Of these the first cannot be mapped.
    fn send_with_descriptors(&mut self, seq: u32) -> io::Result<()> {
        let null = File::open("/dev/null")?;
        let descriptors = [null.as_fd(), null.as_fd()];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&self.socket, &[IoSlice::new(&message(ACK, seq, 0))], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

fn message(op: u32, seq: u32, time: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&op.to_ne_bytes());
    bytes[4..8].copy_from_slice(&seq.to_ne_bytes());
    bytes[8..].copy_from_slice(&time.to_ne_bytes());
    bytes
}
