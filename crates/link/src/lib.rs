//! An encrypted connection between two hosts that share a key: TLS 1.3 (RFC 8446) with raw public keys (RFC 7250).
//!
//! ```text
//! the key of both hosts ── HKDF-SHA256 ──► Ed25519 key pair of the host that connects   ┐ both hosts derive both pairs, so
//!                                     └──► Ed25519 key pair of the host that accepts    ┘ each knows the only right peer
//! ```
//! Each end shows its public key, signs the handshake, and refuses every other key. There are no certificates, and no clock decides.
//! The traffic keys come from X25519 keys of this connection alone, so a key that is stolen later opens no recorded connection.
//! There is no session resumption, no ticket and no early data.
//!
//! The shared key must be random. Whoever connects is shown a public key that follows from it, and can try guesses at home: a
//! passphrase would be found.
//!
//! A [`Link`] never blocks: its owner polls. Time decides one thing: how long a handshake may take.
#![forbid(unsafe_code)]

mod link;
mod messages;
mod place;
mod secret;

pub use link::{HANDSHAKE_TIME_MAX, Link};
pub use messages::{MESSAGE_BYTES_MAX, Messages, WAITING_BYTES_MAX};
pub use place::{Listener, Place, Stream};
pub use secret::{KEY_BYTES_MIN, Secret, SecretError};

use rustix::io::Errno;
use rustls::{AlertDescription, Error, PeerIncompatible};

/// The reason why a connection is of no use any more, as a sentence for a person.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LinkError {
    /// The other end shows a public key of another shared key, or refuses ours.
    #[error("the other host has another key: the file of [ft] key must be the same on both hosts")]
    Key,
    /// The other end speaks TLS, but shows no key.
    #[error("the other end shows no key: it is no Nicety daemon, or one of another version")]
    NoKey,
    /// The other end speaks something else. These are its first bytes.
    #[error(
        "the other end does not speak TLS, it began with {0}: check the address, and that nothing in between answers"
    )]
    NotTls(FirstBytes),
    /// Bytes do not pass the authentication.
    #[error("received bytes were altered on the way: check the network and what stands between the hosts")]
    Altered,
    /// The other end breaks the rules of TLS, or wants another version of it.
    #[error("TLS with the other end failed ({0}): check that both hosts run the same version of Nicety")]
    Tls(Error),
    /// The other end has refused with this alert (RFC 8446, section 6.2).
    #[error("the other end refused TLS with the alert {0:?}: its log has the reason")]
    Refused(AlertDescription),
    /// The handshake was not over in time.
    #[error("no handshake within {} s: the other host is busy, or something else listens there", HANDSHAKE_TIME_MAX.as_secs())]
    Silent,
    /// The other end has ended the connection in order. All that it sent has been read.
    #[error("the other host has ended the connection")]
    Ended,
    /// The connection ended without the other end's word: its process or host died, or the network.
    #[error("the connection was cut: the other host, its daemon or the network failed")]
    Cut,
    /// A message of this many bytes is announced.
    #[error("the other end announces a message of {0} bytes, and at most {MESSAGE_BYTES_MAX} are allowed")]
    Message(u32),
    /// The descriptor is no TCP or UNIX stream socket.
    #[error("this is neither a TCP nor a UNIX stream socket")]
    Socket,
    /// The system's error.
    #[error("the connection failed: {0}")]
    Io(Errno),
}

impl From<Errno> for LinkError {
    fn from(errno: Errno) -> Self {
        match errno {
            // A UNIX socket gives EPIPE where TCP gives ECONNRESET.
            Errno::CONNRESET | Errno::PIPE => Self::Cut,
            errno => Self::Io(errno),
        }
    }
}

impl From<Error> for LinkError {
    fn from(error: Error) -> Self {
        match error {
            // What `secret.rs` answers to a wrong key or signature, and what that becomes at the other end (RFC 8446, section 6.2).
            Error::InvalidCertificate(_)
            | Error::AlertReceived(AlertDescription::AccessDenied | AlertDescription::DecryptError) => Self::Key,
            Error::NoCertificatesPresented
            | Error::PeerIncompatible(PeerIncompatible::IncorrectCertificateTypeExtension) => Self::NoKey,
            Error::DecryptError | Error::AlertReceived(AlertDescription::BadRecordMac) => Self::Altered,
            // A close_notify in the middle of a handshake.
            Error::AlertReceived(AlertDescription::CloseNotify) => Self::Cut,
            Error::AlertReceived(alert) => Self::Refused(alert),
            error => Self::Tls(error),
        }
    }
}

/// The first bytes that were received, for a person: as text if they are text, in hexadecimal otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct FirstBytes {
    bytes: [u8; Self::BYTES_MAX],
    count: usize,
}

impl FirstBytes {
    const BYTES_MAX: usize = 24;

    fn push(&mut self, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.count).zip(bytes) {
            *to = *from;
            self.count += 1;
        }
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(..self.count).unwrap_or_default()
    }

    /// Whether this can be the beginning of a TLS record: its type, a handshake or an alert, and the first half of its version
    /// (RFC 8446, section 5.1).
    fn may_be_tls(&self) -> bool {
        matches!(self.get(), [] | [21 | 22] | [21 | 22, 3, ..])
    }
}

impl std::fmt::Debug for FirstBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FirstBytes({self})")
    }
}

impl std::fmt::Display for FirstBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.get();
        let is_text = |byte: &u8| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\r' | b'\n' | b'\t');
        if bytes.iter().all(is_text) {
            return write!(f, "the text {:?}", String::from_utf8_lossy(bytes));
        }
        f.write_str("the bytes")?;
        bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_are_shown_as_text_or_in_hexadecimal() {
        let shown = |bytes: &[u8]| {
            let mut first = FirstBytes::default();
            bytes.iter().for_each(|byte| first.push(std::slice::from_ref(byte)));
            first.to_string()
        };
        assert_eq!(shown(b"SSH-2.0-OpenSSH_9.2p1 Debian-2"), "the text \"SSH-2.0-OpenSSH_9.2p1 De\"");
        assert_eq!(shown(b"HTTP/1.1 400\r\n"), "the text \"HTTP/1.1 400\\r\\n\"");
        assert_eq!(shown(&[0, 255, b'a']), "the bytes 00 ff 61");
    }
}
