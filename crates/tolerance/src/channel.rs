//! The bytes between the two hosts: compact. [`nicety_sealed`] authenticates them by a shared key.
//!
//! ```text
//! body     kind (1)   …
//! log      epoch, first, released: differences to the last message   flags (1)   [state (8)]   entries
//! image    epoch   calls   time   state (8)   length   offset   bytes
//! entry    (time difference, kind)   check (1)   [length   [mask (8)   changed bytes of the head]   other bytes of the frame]
//! ```
//!
//! The first 64 bytes of a frame are its head. A frame of the same connection differs from the last one in few of them, so a mask says which
//! bytes differ, and only these follow, if that is shorter.
//!
//! Numbers are variable-length (LEB128), signed ones in zigzag.

use nicety_lease::NodeId;
use nicety_sealed::Protocol;
pub use nicety_sealed::{BODY_MAX, HELLO, Key, SealError as ChannelError};

use crate::call::{Call, GuestTime};
use crate::log::{Entry, Message};

/// These bytes, and their version.
pub const PROTOCOL: Protocol = Protocol { magic: *b"NcFT", version: 3 };
/// No guest runs for longer: 35,000 years.
const TIME_MAX: GuestTime = GuestTime(1 << 60);

/// Makes bytes of messages.
pub type Writer = nicety_sealed::Writer<Message>;
/// Makes messages of bytes.
pub type Reader = nicety_sealed::Reader<Message>;

/// Both directions of a connection, once both sides have said hello ([`PROTOCOL`]). Returns how to write and how to read.
///
/// # Errors
/// The peer is another one than it should be.
pub fn joined(key: &Key, ours: &[u8; HELLO], theirs: &[u8; HELLO]) -> Result<(Writer, Reader), ChannelError> {
    nicety_sealed::joined(key, ours, theirs)
}

/// Bytes of a frame's head: one for each bit of a mask.
const HEAD: usize = 64;

/// The values of the last message, from which the next ones differ by little.
#[derive(Clone, Debug)]
pub struct Last {
    epoch: u32,
    next: u64,
    at: GuestTime,
    /// The head of the last frame; behind a shorter one, of those before it.
    head: [u8; HEAD],
}

impl Default for Last {
    fn default() -> Self {
        Self { epoch: 0, next: 0, at: GuestTime::default(), head: [0; HEAD] }
    }
}

impl Last {
    /// The mask and the changed bytes of a frame's head, if they are shorter than the head.
    fn differs(&self, frame: &[u8]) -> Option<(u64, Vec<u8>)> {
        let pairs = frame.iter().zip(&self.head).zip(0..);
        let changed: Vec<(u8, u32)> =
            pairs.filter(|((new, old), _)| new != old).map(|((new, _), at)| (*new, at)).collect();
        let mask = changed.iter().fold(0, |mask, (_, at)| mask | 1 << at);
        let bytes: Vec<u8> = changed.into_iter().map(|(byte, _)| byte).collect();
        (bytes.len() + size_of::<u64>() < frame.len().min(HEAD)).then_some((mask, bytes))
    }

    fn note(&mut self, frame: &[u8]) {
        self.head.iter_mut().zip(frame).for_each(|(old, new)| *old = *new);
    }
}

/// Kinds of an entry: no frame, a whole frame, a frame whose head is a difference, and an image.
const WAKE: u64 = 0;
const WHOLE: u64 = 1;
const CHANGED: u64 = 2;
const RENEW: u64 = 3;

const LOG: u8 = 0;
const KNOWN: u8 = 1;
const DIVERGED: u8 = 2;
const TOO_OLD: u8 = 3;
const IMAGE: u8 = 4;
const ASSEMBLED: u8 = 5;

impl nicety_sealed::Message for Message {
    type Past = Last;

    fn write(&self, last: &mut Last, body: &mut Vec<u8>) {
        match self {
            Message::Log { epoch, first, released, entries, state } => {
                body.push(LOG);
                signed(body, i64::from(*epoch) - i64::from(last.epoch));
                signed(body, first.wrapping_sub(last.next).cast_signed());
                signed(body, first.wrapping_sub(*released).cast_signed());
                body.push(u8::from(state.is_some()));
                body.extend_from_slice(
                    &state.map(u64::to_le_bytes).unwrap_or_default()[..8 * usize::from(state.is_some())],
                );
                for entry in entries {
                    let (kind, frame, head) = match &entry.call {
                        Call::Wake => (WAKE, [].as_slice(), None),
                        Call::Renew => (RENEW, [].as_slice(), None),
                        Call::Frame(frame) => {
                            let head = last.differs(frame);
                            (if head.is_some() { CHANGED } else { WHOLE }, frame.as_slice(), head)
                        }
                    };
                    let difference = entry.at.0.wrapping_sub(last.at.0).cast_signed();
                    unsigned(body, zigzag(difference) << 2 | kind);
                    body.push(entry.check);
                    if matches!(kind, WHOLE | CHANGED) {
                        unsigned(body, frame.len() as u64);
                        let rest = if let Some((mask, changed)) = head {
                            body.extend_from_slice(&mask.to_le_bytes());
                            body.extend_from_slice(&changed);
                            frame.get(HEAD..).unwrap_or_default()
                        } else {
                            frame
                        };
                        body.extend_from_slice(rest);
                        last.note(frame);
                    }
                    last.at = entry.at;
                }
                (last.epoch, last.next) = (*epoch, first + entries.len() as u64);
            }
            Message::Known { from, calls } => {
                body.push(KNOWN);
                body.extend_from_slice(&from.0.to_le_bytes());
                unsigned(body, *calls);
            }
            Message::Diverged { from, call } => {
                body.push(DIVERGED);
                body.extend_from_slice(&from.0.to_le_bytes());
                unsigned(body, *call);
            }
            Message::TooOld { base } => {
                body.push(TOO_OLD);
                unsigned(body, *base);
            }
            Message::Image { epoch, calls, at, state, len, offset, bytes } => {
                body.push(IMAGE);
                [(*epoch).into(), *calls, at.0].into_iter().for_each(|number| unsigned(body, number));
                body.extend_from_slice(&state.to_le_bytes());
                [*len, *offset].into_iter().for_each(|number| unsigned(body, number));
                body.extend_from_slice(bytes);
            }
            Message::Assembled { from, calls, bytes } => {
                body.push(ASSEMBLED);
                body.extend_from_slice(&from.0.to_le_bytes());
                [*calls, *bytes].into_iter().for_each(|number| unsigned(body, number));
            }
        }
    }

    fn read(body: &[u8], last: &mut Last) -> Result<Self, ChannelError> {
        parse(Cursor(body), last)
    }
}

fn parse(mut body: Cursor<'_>, last: &mut Last) -> Result<Message, ChannelError> {
    let message = match body.byte()? {
        LOG => {
            let epoch = u32::try_from(i64::from(last.epoch).wrapping_add(body.signed()?));
            let epoch = epoch.map_err(|_| ChannelError::Malformed)?;
            let first = last.next.wrapping_add_signed(body.signed()?);
            let released = first.wrapping_sub(body.signed()?.cast_unsigned());
            let state = match body.byte()? {
                0 => None,
                _ => Some(body.word()?),
            };
            let mut entries = Vec::new();
            while !body.0.is_empty() {
                let head = body.unsigned()?;
                let at = GuestTime(last.at.0.wrapping_add_signed(unzigzag(head >> 2)));
                if at > TIME_MAX {
                    return Err(ChannelError::Malformed);
                }
                let check = body.byte()?;
                let call = match head & 3 {
                    WAKE => Call::Wake,
                    RENEW => Call::Renew,
                    kind @ (WHOLE | CHANGED) => {
                        let len = usize::try_from(body.unsigned()?).map_err(|_| ChannelError::Malformed)?;
                        let frame =
                            if kind == WHOLE { body.take(len)?.to_vec() } else { changed(&mut body, len, last)? };
                        last.note(&frame);
                        Call::Frame(frame)
                    }
                    _ => return Err(ChannelError::Malformed),
                };
                entries.push(Entry { at, call, check });
                last.at = at;
            }
            (last.epoch, last.next) = (epoch, first.wrapping_add(entries.len() as u64));
            Message::Log { epoch, first, released, entries, state }
        }
        KNOWN => Message::Known { from: NodeId(body.word()?), calls: body.unsigned()? },
        DIVERGED => Message::Diverged { from: NodeId(body.word()?), call: body.unsigned()? },
        TOO_OLD => Message::TooOld { base: body.unsigned()? },
        IMAGE => {
            let epoch = u32::try_from(body.unsigned()?).map_err(|_| ChannelError::Malformed)?;
            let (calls, at) = (body.unsigned()?, GuestTime(body.unsigned()?));
            if at > TIME_MAX {
                return Err(ChannelError::Malformed);
            }
            let (state, len, offset) = (body.word()?, body.unsigned()?, body.unsigned()?);
            let bytes = body.take(body.0.len())?.to_vec();
            Message::Image { epoch, calls, at, state, len, offset, bytes }
        }
        ASSEMBLED => {
            Message::Assembled { from: NodeId(body.word()?), calls: body.unsigned()?, bytes: body.unsigned()? }
        }
        _ => return Err(ChannelError::Malformed),
    };
    if body.0.is_empty() { Ok(message) } else { Err(ChannelError::Malformed) }
}

/// A frame of `len` bytes whose head is a difference.
fn changed(body: &mut Cursor<'_>, len: usize, last: &Last) -> Result<Vec<u8>, ChannelError> {
    let mask = body.word()?;
    let mut frame = last.head.get(..len.min(HEAD)).unwrap_or_default().to_vec();
    for (byte, at) in frame.iter_mut().zip(0..) {
        if mask >> at & 1 == 1 {
            *byte = body.byte()?;
        }
    }
    frame.extend_from_slice(body.take(len - frame.len())?);
    Ok(frame)
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

fn unsigned(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn signed(out: &mut Vec<u8>, value: i64) {
    unsigned(out, zigzag(value));
}

/// Bytes that are read from the front.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ChannelError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(ChannelError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, ChannelError> {
        self.take(1)?.first().copied().ok_or(ChannelError::Malformed)
    }

    fn word(&mut self) -> Result<u64, ChannelError> {
        let bytes = self.take(8)?.try_into().map_err(|_| ChannelError::Malformed)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn unsigned(&mut self) -> Result<u64, ChannelError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ChannelError::Malformed)
    }

    fn signed(&mut self) -> Result<i64, ChannelError> {
        Ok(unzigzag(self.unsigned()?))
    }
}
