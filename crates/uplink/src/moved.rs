//! Uplinks over sockets that go on in another process: their peers notice nothing.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode};
use nicety_adapter::{HandOver, SavedBucket};
use rustix::net::SocketType;
use serde::{Deserialize, Serialize};

use crate::peer_source::PeerSource;
use crate::socket::SocketError;
use crate::watch::Watch;

/// The state of a pair or a stream. Its descriptors are the listening socket, if it listens, and the peer's, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedLink {
    pub listens: bool,
    pub has_peer: bool,
    /// The peer of a pair has sent its hello.
    pub greeted: bool,
    /// Messages that were received and not fetched, and whether each was longer than its buffer; of a stream the bytes.
    pub arrived: Vec<(Vec<u8>, bool)>,
    /// Bytes still to come of a frame that is dropped.
    pub skip: u32,
    /// Bytes that wait for room in the socket.
    pub leaving: Vec<u8>,
}

impl Version for SavedLink {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

const LINK_KIND: &str = "nicety-link";

/// A link of another process, as it comes here.
pub(crate) struct Found {
    pub saved: SavedLink,
    pub source: PeerSource,
    pub peer: Option<OwnedFd>,
}

impl SavedLink {
    /// The parts of a link, for another process.
    pub(crate) fn parts<'a>(self, source: &'a PeerSource, peer: Option<BorrowedFd<'a>>) -> HandOver<'a> {
        if matches!(source, PeerSource::Given) {
            return HandOver::Never("an uplink that was given its peer cannot be handed over");
        }
        let listener = source.listener();
        let this = Self { listens: listener.is_some(), has_peer: peer.is_some(), ..self };
        HandOver::Parts {
            descriptors: listener.into_iter().chain(peer).collect(),
            state: encode(LINK_KIND, Self::NUMBER, &this),
        }
    }

    /// Takes a link's parts.
    pub(crate) fn find(
        state: &[u8],
        descriptors: Vec<OwnedFd>,
        path: &Path,
        kind: SocketType,
        watch: &Watch,
    ) -> Result<Found, SocketError> {
        let wrong = |source| SocketError::State { path: path.to_owned(), source };
        let saved: Self = decode(LINK_KIND, state).map_err(wrong)?;
        let mut descriptors = descriptors.into_iter();
        let listener = if saved.listens { descriptors.next() } else { None };
        let peer = if saved.has_peer { descriptors.next() } else { None };
        if (listener.is_some(), peer.is_some()) != (saved.listens, saved.has_peer) {
            return Err(wrong(RestoreError::Impossible("descriptors")));
        }
        let source = PeerSource::go_on(listener, path, kind, peer.is_some(), watch)?;
        Ok(Found { saved, source, peer })
    }
}

/// The state of a paced uplink: the tokens of ingress and egress, and the state of the uplink itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPaced {
    pub tokens: Option<[SavedBucket; 2]>,
    pub inner: Vec<u8>,
}

impl Version for SavedPaced {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

const PACED_KIND: &str = "nicety-paced";

impl SavedPaced {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        encode(PACED_KIND, Self::NUMBER, self)
    }
}

/// The tokens of a paced uplink of another process, and the state of the uplink itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens(pub(crate) Option<[SavedBucket; 2]>);

impl Tokens {
    /// Takes the state of a [`Paced`](crate::Paced) apart.
    ///
    /// # Errors
    /// The state is damaged, or another version's.
    pub fn split(state: &[u8]) -> Result<(Self, Vec<u8>), RestoreError> {
        let SavedPaced { tokens, inner } = decode(PACED_KIND, state)?;
        Ok((Self(tokens), inner))
    }
}
