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

/// Golden files of states: another form takes another version, and a conversion of this one. Only `NICETY_GOLDEN=write` makes the file
/// of a new version.
#[cfg(test)]
pub(crate) fn held<T: Version + Serialize + std::fmt::Debug + PartialEq>(kind: &'static str, value: &T) {
    let bytes = encode(kind, T::NUMBER, value);
    let name = format!("tests/golden/{}-v{}.state", &kind["nicety-".len()..], T::NUMBER);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("NICETY_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &bytes).unwrap();
    }
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "{kind}");
    assert_eq!(decode::<T>(kind, &bytes).as_ref(), Ok(value));
    let refused = decode::<T>(kind, &encode(kind, T::NUMBER + 1, value));
    assert!(matches!(refused, Err(RestoreError::Version { .. })), "{refused:?}");
    assert!(decode::<T>(kind, &encode(kind, T::NUMBER, &(value, 7u8))).is_err(), "{kind}: a field that is not known");
    assert!((0..bytes.len()).all(|len| decode::<T>(kind, &bytes[..len]).is_err()), "{kind}: a part");
}

/// The same, and each earlier version's file reads as the value beside it.
#[cfg(test)]
pub(crate) fn held_since<T: Version + Serialize + std::fmt::Debug + PartialEq>(
    kind: &'static str,
    value: &T,
    before: &[(u16, T)],
) {
    held(kind, value);
    for (version, value) in before {
        let name = format!("tests/golden/{}-v{version}.state", &kind["nicety-".len()..]);
        let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
        assert_eq!(decode::<T>(kind, &bytes).as_ref(), Ok(value), "{kind}, version {version}");
    }
}

#[cfg(test)]
mod tests {
    use nicety_adapter::{Bucket, Rate};

    use super::*;

    #[test]
    fn the_states_of_links_are_read_by_each_later_version() {
        let link = SavedLink {
            listens: true,
            has_peer: true,
            greeted: true,
            arrived: vec![(vec![1, 2], true)],
            skip: 3,
            leaving: vec![4, 5, 6],
        };
        held(LINK_KIND, &link);
        let bucket = Bucket::new(Rate::new(1_000_000).unwrap(), 1500).save();
        held(PACED_KIND, &SavedPaced { tokens: Some([bucket; 2]), inner: vec![7] });
    }
}
