//! The bytes between the two hosts: compact, and authenticated by a shared key.
//!
//! ```text
//! message  length     body         tag (16)
//! body     kind (1)   …
//! log      pairing, first: differences to the last message   flags (1)   [state (8)]   entries
//! entry    (time difference, kind)   check (1)   [length   [mask (8)   changed bytes of the head]   other bytes of the frame]
//! ```
//!
//! The first 64 bytes of a frame are its head. A frame of the same connection differs from the last one in few of them, so a mask says which
//! bytes differ, and only these follow, if that is shorter.
//!
//! Numbers are variable-length (LEB128), signed ones in zigzag. A tag is the first 16 bytes of HMAC-SHA256 (RFC 2104, RFC 4231) over the
//! message's number and its body, with a key of this direction. A message that is altered, left out or repeated does not pass. Both ends
//! are in one process, so nothing is encrypted: what VMs send between hosts goes through `nicety_link`.

use hmac::{Hmac, KeyInit, Mac};
use nicety_lease::NodeId;
use nicety_protect::Pairing;
use sha2::Sha256;

use super::input::{GuestTime, Input};
use super::log::{Entry, Message, Piece};

/// Bytes of a tag.
const TAG: usize = 16;
/// Most bytes of a body.
const BODY_MAX: u64 = 4 << 20;
/// No guest runs for longer: 35,000 years.
const TIME_MAX: GuestTime = GuestTime(1 << 60);

/// The reason why a message is not understood. The link is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// A tag is wrong: another key, or altered bytes.
    #[error("a message is not authentic: another key, or altered on the way")]
    Forged,
    /// An authentic message makes no sense.
    #[error("a message is malformed")]
    Malformed,
}

/// A direction of a link: the key of its messages.
fn direction(key: &[u8], name: u8) -> Hmac<Sha256> {
    // HMAC takes keys of every length.
    Hmac::new_from_slice(&[key, &[name]].concat()).unwrap_or_else(|_| unreachable!("a key of any length"))
}

/// The authentication of one message.
fn sealed(key: &Hmac<Sha256>, number: u64, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = key.clone();
    mac.update(&number.to_le_bytes());
    mac.update(body);
    mac
}

/// Makes bytes of messages.
#[derive(Clone, Debug)]
pub struct Writer {
    key: Hmac<Sha256>,
    number: u64,
    last: Last,
}

impl Writer {
    /// The sender of a direction, by a key that both ends share and the direction's name.
    pub fn new(key: &[u8], name: u8) -> Self {
        Self { key: direction(key, name), number: 0, last: Last::default() }
    }

    /// Appends a message.
    pub fn write(&mut self, message: &Message, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        self.last.write(message, &mut body);
        unsigned(out, body.len() as u64);
        out.extend_from_slice(&body);
        let tag = sealed(&self.key, self.number, &body).finalize().into_bytes();
        out.extend(tag.iter().take(TAG));
        self.number += 1;
    }
}

/// Makes messages of bytes.
#[derive(Clone, Debug)]
pub struct Reader {
    key: Hmac<Sha256>,
    number: u64,
    last: Last,
    bytes: Vec<u8>,
}

impl Reader {
    /// The receiver of the direction whose [`Writer`] has the same key and name.
    pub fn new(key: &[u8], name: u8) -> Self {
        Self { key: direction(key, name), number: 0, last: Last::default(), bytes: Vec::new() }
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    /// It is not authentic, or malformed. Nothing after it is of use.
    pub fn read(&mut self) -> Result<Option<Message>, ChannelError> {
        let mut rest = Cursor(&self.bytes);
        let Ok(length) = rest.unsigned() else {
            return if self.bytes.len() < LENGTH_MAX { Ok(None) } else { Err(ChannelError::Malformed) };
        };
        if length > BODY_MAX {
            return Err(ChannelError::Malformed);
        }
        let (Ok(body), Ok(tag)) = (rest.take(length as usize), rest.take(TAG)) else { return Ok(None) };
        if sealed(&self.key, self.number, body).verify_truncated_left(tag).is_err() {
            return Err(ChannelError::Forged);
        }
        let message = self.last.read(Cursor(body))?;
        let used = self.bytes.len() - rest.0.len();
        self.bytes.drain(..used);
        self.number += 1;
        Ok(Some(message))
    }
}

/// Bytes of the longest number.
const LENGTH_MAX: usize = 10;

/// Bytes of a frame's head: one for each bit of a mask.
const HEAD: usize = 64;

/// The values of the last message, from which the next ones differ by little.
#[derive(Clone, Debug)]
struct Last {
    pairing: u64,
    next: u64,
    at: GuestTime,
    /// The head of the last frame; behind a shorter one, of those before it.
    head: [u8; HEAD],
}

impl Default for Last {
    fn default() -> Self {
        Self { pairing: 0, next: 0, at: GuestTime::default(), head: [0; HEAD] }
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

/// Kinds of an entry: no frame, a whole frame, and a frame whose head is a difference.
const WAKE: u64 = 0;
const WHOLE: u64 = 1;
const CHANGED: u64 = 2;

/// Kinds of a message.
const LOG: u8 = 0;
const OFFER: u8 = 1;
const DIFFERS: u8 = 2;
const TOO_OLD: u8 = 3;
const PROTECT: u8 = 4;

/// Flags of a piece of the log.
const HAS_STATE: u8 = 1;
const IS_PART: u8 = 2;

impl Last {
    fn write(&mut self, message: &Message, body: &mut Vec<u8>) {
        match message {
            Message::Log(piece) => {
                body.push(LOG);
                self.write_piece(piece, body);
            }
            Message::Offer(NodeId(run)) => {
                body.push(OFFER);
                unsigned(body, *run);
            }
            Message::Differs(inputs) => {
                body.push(DIFFERS);
                unsigned(body, *inputs);
            }
            Message::TooOld(base) => {
                body.push(TOO_OLD);
                unsigned(body, *base);
            }
            Message::Protect(message) => {
                body.push(PROTECT);
                // A vector takes all bytes.
                body.extend(postcard::to_allocvec(message).unwrap_or_default());
            }
        }
    }

    fn write_piece(&mut self, Piece { pairing, first, is_part, entries, state }: &Piece, body: &mut Vec<u8>) {
        signed(body, pairing.0.wrapping_sub(self.pairing).cast_signed());
        signed(body, first.wrapping_sub(self.next).cast_signed());
        body.push((u8::from(state.is_some()) * HAS_STATE) | (u8::from(*is_part) * IS_PART));
        body.extend(state.iter().flat_map(|state| state.to_le_bytes()));
        for Entry { at, input, check } in entries {
            let (kind, frame, head) = match input {
                Input::Wake => (WAKE, [].as_slice(), None),
                Input::Frame(frame) => {
                    let head = self.differs(frame);
                    (if head.is_some() { CHANGED } else { WHOLE }, frame.as_slice(), head)
                }
            };
            let difference = at.0.wrapping_sub(self.at.0).cast_signed();
            unsigned(body, zigzag(difference) << 2 | kind);
            body.push(*check);
            if kind != WAKE {
                unsigned(body, frame.len() as u64);
                let rest = if let Some((mask, changed)) = head {
                    body.extend_from_slice(&mask.to_le_bytes());
                    body.extend_from_slice(&changed);
                    frame.get(HEAD..).unwrap_or_default()
                } else {
                    frame
                };
                body.extend_from_slice(rest);
                self.note(frame);
            }
            self.at = *at;
        }
        (self.pairing, self.next) = (pairing.0, first.wrapping_add(entries.len() as u64));
    }

    fn read(&mut self, mut body: Cursor<'_>) -> Result<Message, ChannelError> {
        let message = match body.byte()? {
            LOG => Message::Log(self.read_piece(&mut body)?),
            OFFER => Message::Offer(NodeId(body.unsigned()?)),
            DIFFERS => Message::Differs(body.unsigned()?),
            TOO_OLD => Message::TooOld(body.unsigned()?),
            PROTECT => {
                let (message, rest) = postcard::take_from_bytes(body.0).map_err(|_| ChannelError::Malformed)?;
                body.0 = rest;
                Message::Protect(message)
            }
            _ => return Err(ChannelError::Malformed),
        };
        if body.0.is_empty() { Ok(message) } else { Err(ChannelError::Malformed) }
    }

    fn read_piece(&mut self, body: &mut Cursor<'_>) -> Result<Piece, ChannelError> {
        let pairing = Pairing(self.pairing.wrapping_add_signed(body.signed()?));
        let first = self.next.wrapping_add_signed(body.signed()?);
        let flags = body.byte()?;
        let state = if flags & HAS_STATE == 0 { None } else { Some(body.word()?) };
        let mut entries = Vec::new();
        while !body.0.is_empty() {
            let head = body.unsigned()?;
            let at = GuestTime(self.at.0.wrapping_add_signed(unzigzag(head >> 2)));
            if at > TIME_MAX {
                return Err(ChannelError::Malformed);
            }
            let check = body.byte()?;
            let input = match head & 3 {
                WAKE => Input::Wake,
                kind @ (WHOLE | CHANGED) => {
                    let len = usize::try_from(body.unsigned()?).map_err(|_| ChannelError::Malformed)?;
                    let frame = if kind == WHOLE { body.take(len)?.to_vec() } else { changed(body, len, self)? };
                    self.note(&frame);
                    Input::Frame(frame)
                }
                _ => return Err(ChannelError::Malformed),
            };
            entries.push(Entry { at, input, check });
            self.at = at;
        }
        (self.pairing, self.next) = (pairing.0, first.wrapping_add(entries.len() as u64));
        Ok(Piece { pairing, first, is_part: flags & IS_PART != 0, entries, state })
    }
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
