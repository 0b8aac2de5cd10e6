//! The bytes between the two hosts: compact, and authenticated by a shared key.
//!
//! ```text
//! hello    magic (4)  version (1)  build (8)  settings (8)  nonce (16)  tag (16)  both sides, first
//! message  length     body         tag (16)                                      then
//! body     kind (1)   …
//! log      epoch, first, released: differences to the last message   flags (1)   [state (8)]   entries
//! image    epoch   calls   time   state (8)   length   offset   bytes
//! entry    (time difference, kind)   check (1)   [length   [mask (8)   changed bytes of the head]   other bytes of the frame]
//! ```
//!
//! The first 64 bytes of a frame are its head. A frame of the same connection differs from the last one in few of them, so a mask says which
//! bytes differ, and only these follow, if that is shorter.
//!
//! Numbers are variable-length (LEB128), signed ones in zigzag. A tag is the first 16 bytes of HMAC-SHA256 (RFC 2104, RFC 4231), with a
//! key of this connection and direction, over the message's number and its body: a message that is altered, left out, repeated, or
//! from another connection does not pass. Nothing is encrypted: who reads the link reads the guest's frames.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::call::{Call, GuestTime};
use crate::lease::NodeId;
use crate::log::{Entry, Message};

/// The version of these bytes.
pub const VERSION: u8 = 3;
/// Bytes of a hello.
pub const HELLO: usize = 53;
/// Most bytes of a body.
pub const BODY_MAX: usize = 1 << 20;
/// No guest runs for longer: 35,000 years.
const TIME_MAX: GuestTime = GuestTime(1 << 60);
const MAGIC: [u8; 4] = *b"NcFT";
const TAG: usize = 16;

/// The reason why a peer is not understood. The connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The peer does not speak this protocol.
    #[error("the peer is no fault-tolerance peer")]
    Magic,
    /// The peer is of another version.
    #[error("the peer speaks version {0} of the log, not {VERSION}")]
    Version(u8),
    /// The peer's build is another one: its guest may behave differently.
    #[error("the peer is another build of this program: both hosts need the same one")]
    Build,
    /// The peer's guest is configured differently.
    #[error("the peer's guest has other settings")]
    Settings,
    /// A tag is wrong: another key, or altered bytes.
    #[error("a message is not authentic: another key, or altered on the way")]
    Forged,
    /// An authentic message makes no sense.
    #[error("a message is malformed")]
    Malformed,
}

/// The shared key.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

fn mac(key: &[u8]) -> Hmac<Sha256> {
    // HMAC takes keys of every length.
    Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| unreachable!("a key of any length"))
}

fn tag(key: &Hmac<Sha256>, pieces: &[&[u8]]) -> [u8; TAG] {
    let mut mac = key.clone();
    for piece in pieces {
        mac.update(piece);
    }
    let full = mac.finalize().into_bytes();
    std::array::from_fn(|index| full.get(index).copied().unwrap_or_default())
}

fn is_authentic(key: &Hmac<Sha256>, pieces: &[&[u8]], tag: &[u8]) -> bool {
    let mut mac = key.clone();
    for piece in pieces {
        mac.update(piece);
    }
    tag.len() == TAG && mac.verify_truncated_left(tag).is_ok()
}

impl Key {
    /// A key of these bytes: 16 at least, to be of use.
    pub fn new(bytes: &[u8]) -> Self {
        Self(mac(bytes))
    }

    /// A number that follows from the key and a text, and is known to nobody without the key.
    pub fn number(&self, text: &str) -> u64 {
        let tag = tag(&self.0, &[b"number", text.as_bytes()]);
        tag.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    /// The first bytes that a side sends. `build` and `settings` are digests of the program and of the guest's settings, `nonce` is new for
    /// each connection.
    pub fn hello(&self, build: u64, settings: u64, nonce: [u8; 16]) -> [u8; HELLO] {
        let mut hello = [0; HELLO];
        let (build, settings) = (build.to_le_bytes(), settings.to_le_bytes());
        let body = [&MAGIC, [VERSION].as_slice(), &build, &settings, &nonce].concat();
        let tag = tag(&self.0, &[&body]);
        for (to, from) in hello.iter_mut().zip(body.iter().chain(&tag)) {
            *to = *from;
        }
        hello
    }

    /// Both directions of a connection, once both sides have said hello. Returns how to write and how to read.
    ///
    /// # Errors
    /// The peer is another one than it should be.
    pub fn joined(&self, ours: &[u8; HELLO], theirs: &[u8; HELLO]) -> Result<(Writer, Reader), ChannelError> {
        let (body, tag_of_theirs) = theirs.split_at(HELLO - TAG);
        if !body.starts_with(&MAGIC) {
            return Err(ChannelError::Magic);
        }
        if body.get(4) != Some(&VERSION) {
            return Err(ChannelError::Version(body.get(4).copied().unwrap_or_default()));
        }
        // The tag before all that it covers. A hello that comes back is no peer.
        if !is_authentic(&self.0, &[body], tag_of_theirs) || ours == theirs {
            return Err(ChannelError::Forged);
        }
        if ours.get(5..13) != theirs.get(5..13) {
            return Err(ChannelError::Build);
        }
        if ours.get(13..21) != theirs.get(13..21) {
            return Err(ChannelError::Settings);
        }
        let direction = |from: &[u8], to: &[u8]| mac(&tag(&self.0, &[b"direction", from, to]));
        let writer = Writer { key: direction(ours, theirs), number: 0, last: Last::default() };
        let reader = Reader { key: direction(theirs, ours), number: 0, last: Last::default(), bytes: Vec::new() };
        Ok((writer, reader))
    }
}

/// Bytes of a frame's head: one for each bit of a mask.
const HEAD: usize = 64;

/// The values of the last message, from which the next ones differ by little.
#[derive(Clone, Debug)]
struct Last {
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

/// Makes bytes of messages.
#[derive(Clone, Debug)]
pub struct Writer {
    key: Hmac<Sha256>,
    number: u64,
    last: Last,
}

const LOG: u8 = 0;
const KNOWN: u8 = 1;
const DIVERGED: u8 = 2;
const TOO_OLD: u8 = 3;
const IMAGE: u8 = 4;
const ASSEMBLED: u8 = 5;

impl Writer {
    /// Appends a message.
    pub fn write(&mut self, message: &Message, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        match message {
            Message::Log { epoch, first, released, entries, state } => {
                body.push(LOG);
                signed(&mut body, i64::from(*epoch) - i64::from(self.last.epoch));
                signed(&mut body, first.wrapping_sub(self.last.next).cast_signed());
                signed(&mut body, first.wrapping_sub(*released).cast_signed());
                body.push(u8::from(state.is_some()));
                body.extend_from_slice(
                    &state.map(u64::to_le_bytes).unwrap_or_default()[..8 * usize::from(state.is_some())],
                );
                for entry in entries {
                    let (kind, frame, head) = match &entry.call {
                        Call::Wake => (WAKE, [].as_slice(), None),
                        Call::Renew => (RENEW, [].as_slice(), None),
                        Call::Frame(frame) => {
                            let head = self.last.differs(frame);
                            (if head.is_some() { CHANGED } else { WHOLE }, frame.as_slice(), head)
                        }
                    };
                    let difference = entry.at.0.wrapping_sub(self.last.at.0).cast_signed();
                    unsigned(&mut body, zigzag(difference) << 2 | kind);
                    body.push(entry.check);
                    if matches!(kind, WHOLE | CHANGED) {
                        unsigned(&mut body, frame.len() as u64);
                        let rest = if let Some((mask, changed)) = head {
                            body.extend_from_slice(&mask.to_le_bytes());
                            body.extend_from_slice(&changed);
                            frame.get(HEAD..).unwrap_or_default()
                        } else {
                            frame
                        };
                        body.extend_from_slice(rest);
                        self.last.note(frame);
                    }
                    self.last.at = entry.at;
                }
                (self.last.epoch, self.last.next) = (*epoch, first + entries.len() as u64);
            }
            Message::Known { from, calls } => {
                body.push(KNOWN);
                body.extend_from_slice(&from.0.to_le_bytes());
                unsigned(&mut body, *calls);
            }
            Message::Diverged { from, call } => {
                body.push(DIVERGED);
                body.extend_from_slice(&from.0.to_le_bytes());
                unsigned(&mut body, *call);
            }
            Message::TooOld { base } => {
                body.push(TOO_OLD);
                unsigned(&mut body, *base);
            }
            Message::Image { epoch, calls, at, state, len, offset, bytes } => {
                body.push(IMAGE);
                [(*epoch).into(), *calls, at.0].into_iter().for_each(|number| unsigned(&mut body, number));
                body.extend_from_slice(&state.to_le_bytes());
                [*len, *offset].into_iter().for_each(|number| unsigned(&mut body, number));
                body.extend_from_slice(bytes);
            }
            Message::Assembled { from, calls, bytes } => {
                body.push(ASSEMBLED);
                body.extend_from_slice(&from.0.to_le_bytes());
                [*calls, *bytes].into_iter().for_each(|number| unsigned(&mut body, number));
            }
        }
        unsigned(out, body.len() as u64);
        out.extend_from_slice(&body);
        out.extend_from_slice(&tag(&self.key, &[&self.number.to_le_bytes(), &body]));
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
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    /// It is not authentic, or malformed. Nothing after it is of use.
    pub fn read(&mut self) -> Result<Option<Message>, ChannelError> {
        let mut cursor = Cursor(&self.bytes);
        let len = match cursor.unsigned() {
            Ok(len) => len,
            Err(_) if self.bytes.len() < 10 => return Ok(None),
            Err(error) => return Err(error),
        };
        let len = usize::try_from(len).ok().filter(|len| *len <= BODY_MAX).ok_or(ChannelError::Malformed)?;
        let Some((body, rest)) = cursor.0.split_at_checked(len) else { return Ok(None) };
        let Some((tag, rest)) = rest.split_at_checked(TAG) else { return Ok(None) };
        if !is_authentic(&self.key, &[&self.number.to_le_bytes(), body], tag) {
            return Err(ChannelError::Forged);
        }
        let message = parse(Cursor(body), &mut self.last)?;
        self.number += 1;
        let used = self.bytes.len() - rest.len();
        self.bytes.drain(..used);
        Ok(Some(message))
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
