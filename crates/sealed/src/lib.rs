//! The messages of a connection between two hosts, authenticated by a shared key. Their content is the caller's.
//!
//! ```text
//! hello    magic (4)  version (1)  build (8)  settings (8)  nonce (16)  tag (16)  both sides, first
//! message  length     body         tag (16)                                      then
//! ```
//! A length is of variable size (LEB128). A tag is the first 16 bytes of HMAC-SHA256 (RFC 2104, RFC 4231), with a key of this connection
//! and direction, over the message's number and its body: a message that is altered, left out, repeated, or from another connection does
//! not pass. Nothing is encrypted: who reads the link reads its messages.
//!
//! No clock or randomness, and no I/O but that of a [`Link`].
#![forbid(unsafe_code)]

mod link;
mod messages;
mod place;

pub use link::Link;
pub use messages::{Message, Reader, Writer, joined};
pub use place::{Listener, Place, Stream};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a hello.
pub const HELLO: usize = 53;
/// Most bytes of a body.
pub const BODY_MAX: usize = 4 << 20;
const TAG: usize = 16;
/// Bytes of a length: nine groups of seven bits are enough for any body.
const LENGTH_MAX: usize = 9;

/// The reason why a peer is not understood. The connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The peer does not speak this protocol.
    #[error("the peer is no fault-tolerance peer")]
    Magic,
    /// The peer is of this version, and we are of that one.
    #[error("the peer speaks version {0} of the log, not {1}")]
    Version(u8, u8),
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

/// A protocol: the first bytes of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Its name.
    pub magic: [u8; 4],
    /// Its version.
    pub version: u8,
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
    /// Shortest key that a person should choose, in bytes.
    pub const BYTES_MIN: usize = 16;

    /// A key of these bytes: [`Key::BYTES_MIN`] at least, to be of use.
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
    pub fn hello(&self, protocol: Protocol, build: u64, settings: u64, nonce: [u8; 16]) -> [u8; HELLO] {
        let Protocol { magic, version } = protocol;
        let mut hello = [0; HELLO];
        let (build, settings) = (build.to_le_bytes(), settings.to_le_bytes());
        let body = [&magic, [version].as_slice(), &build, &settings, &nonce].concat();
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
    pub fn joined(&self, ours: &[u8; HELLO], theirs: &[u8; HELLO]) -> Result<(Sealer, Opener), SealError> {
        let (body, tag_of_theirs) = theirs.split_at(HELLO - TAG);
        if ours.get(..4) != body.get(..4) {
            return Err(SealError::Magic);
        }
        if ours.get(4) != body.get(4) {
            let version = |hello: &[u8]| hello.get(4).copied().unwrap_or_default();
            return Err(SealError::Version(version(body), version(ours)));
        }
        // The tag before all that it covers. A hello that comes back is no peer.
        if !is_authentic(&self.0, &[body], tag_of_theirs) || ours == theirs {
            return Err(SealError::Forged);
        }
        if ours.get(5..13) != theirs.get(5..13) {
            return Err(SealError::Build);
        }
        if ours.get(13..21) != theirs.get(13..21) {
            return Err(SealError::Settings);
        }
        let direction = |from: &[u8], to: &[u8]| mac(&tag(&self.0, &[b"direction", from, to]));
        let sealer = Sealer { key: direction(ours, theirs), number: 0 };
        Ok((sealer, Opener { key: direction(theirs, ours), number: 0, bytes: Vec::new() }))
    }
}

/// Makes messages.
#[derive(Clone, Debug)]
pub struct Sealer {
    key: Hmac<Sha256>,
    number: u64,
}

impl Sealer {
    /// Appends a message with this body, of at most [`BODY_MAX`] bytes.
    pub fn seal(&mut self, body: &[u8], out: &mut Vec<u8>) {
        let mut length = body.len();
        while length >= 0x80 {
            out.push(length as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        out.extend_from_slice(body);
        out.extend_from_slice(&tag(&self.key, &[&self.number.to_le_bytes(), body]));
        self.number += 1;
    }
}

/// Reads messages.
#[derive(Clone, Debug)]
pub struct Opener {
    key: Hmac<Sha256>,
    number: u64,
    bytes: Vec<u8>,
}

impl Opener {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The body of the next message, if all of it is there.
    ///
    /// # Errors
    /// It is not authentic, or too long. Nothing after it is of use.
    pub fn open(&mut self) -> Result<Option<Vec<u8>>, SealError> {
        let Some(end) = self.bytes.iter().position(|byte| byte & 0x80 == 0) else {
            return if self.bytes.len() < LENGTH_MAX { Ok(None) } else { Err(SealError::Malformed) };
        };
        if end >= LENGTH_MAX {
            return Err(SealError::Malformed);
        }
        let (length, rest) = self.bytes.split_at(end + 1);
        let length = length.iter().rev().fold(0, |length: usize, byte| length << 7 | usize::from(byte & 0x7f));
        if length > BODY_MAX {
            return Err(SealError::Malformed);
        }
        let Some((body, rest)) = rest.split_at_checked(length) else { return Ok(None) };
        let Some((tag, rest)) = rest.split_at_checked(TAG) else { return Ok(None) };
        if !is_authentic(&self.key, &[&self.number.to_le_bytes(), body], tag) {
            return Err(SealError::Forged);
        }
        let (body, used) = (body.to_vec(), self.bytes.len() - rest.len());
        self.number += 1;
        self.bytes.drain(..used);
        Ok(Some(body))
    }
}
