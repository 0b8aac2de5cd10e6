//! Earlier forms of a saved session, which earlier builds hand over. They never change.

use serde::{Deserialize, Serialize};

use super::rings::SavedRing;
use super::saved::{SavedLog, SavedSession};
use crate::protocol::F_LOG_ALL;

/// Without a log of written pages: a front end that had given one was not handed over. If it had only turned the log on, the features said
/// so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSession1 {
    socket: u32,
    protocol: u64,
    features: u64,
    status: u8,
    requests: Option<u32>,
    rings: Vec<SavedRing1>,
    regions: Vec<([u64; 4], u32)>,
    kept: Option<(u32, u64, u64)>,
    record: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedRing1 {
    size: u16,
    addresses: Option<[u64; 3]>,
    base: u32,
    kicked: bool,
    enabled: bool,
    runs: Option<(u16, [u64; 3])>,
}

impl From<SavedRing1> for SavedRing {
    fn from(SavedRing1 { size, addresses, base, kicked, enabled, runs }: SavedRing1) -> Self {
        Self { size, addresses, base, kicked, enabled, runs, paused: false }
    }
}

impl From<SavedSession1> for SavedSession {
    fn from(before: SavedSession1) -> Self {
        let SavedSession1 { socket, protocol, features, status, requests, rings, regions, kept, record } = before;
        let log = (features & F_LOG_ALL != 0).then(|| SavedLog::Own(Vec::new()));
        let (features, rings) = (features & !F_LOG_ALL, rings.into_iter().map(SavedRing::from).collect());
        Self { socket, protocol, features, status, requests, rings, regions, kept, record, log }
    }
}
