//! The connected clients. All users have equal rights to the places: the user with most clients makes room.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

/// Most connections at once.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// Most connections of a user who may only read. Each may leave an answer of some megabytes unread.
const USERS_MAX: usize = 16;

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) task: JoinHandle<()>,
    /// Whether its request is being answered.
    pub(super) busy: Arc<AtomicBool>,
    /// The user, if it may only read.
    pub(super) reader: Option<u32>,
}

/// All clients, in the order in which they connected.
#[derive(Debug, Default)]
pub(super) struct Clients(Vec<Client>);

impl Clients {
    /// Removes clients that have disconnected.
    pub(super) fn tidy(&mut self) {
        self.0.retain(|client| !client.task.is_finished());
    }

    /// Waits until all clients have disconnected, at most for `within`.
    pub(super) async fn finish(&mut self, within: Duration) {
        let all = async {
            for client in &mut self.0 {
                let _ended = (&mut client.task).await;
            }
        };
        let _in_time = tokio::time::timeout(within, all).await;
    }

    /// Adds a client. Make room for it first.
    pub(super) fn add(&mut self, client: Client) {
        self.0.push(client);
    }

    /// Makes room for one more client. If the user has too many clients, disconnects one of them. Else, if all places are taken,
    /// disconnects a client of the user who has most.
    pub(super) fn make_room_for(&mut self, reader: Option<u32>) {
        let of = |clients: &[Client]| clients.iter().filter(|client| client.reader == reader).count();
        if reader.is_some() && of(&self.0) >= USERS_MAX {
            self.end_one_of(reader);
        } else if self.0.len() >= CONNECTIONS_MAX {
            self.make_room();
        }
    }

    /// Disconnects a client. Returns false if there is none.
    pub(super) fn make_room(&mut self) -> bool {
        let mut counts = BTreeMap::<u32, usize>::new();
        for reader in self.0.iter().filter_map(|client| client.reader) {
            *counts.entry(reader).or_default() += 1;
        }
        let greatest = counts.into_iter().max_by_key(|(_, count)| *count).map(|(reader, _)| reader);
        self.end_one_of(greatest)
    }

    /// Disconnects the user's client that has been connected longest without a whole request. If there is none, the client that
    /// has been connected longest without reading its answer.
    fn end_one_of(&mut self, reader: Option<u32>) -> bool {
        let its = |client: &Client| client.reader == reader;
        let silent = self.0.iter().position(|client| its(client) && !client.busy.load(Ordering::Relaxed));
        let Some(index) = silent.or_else(|| self.0.iter().position(its)) else { return false };
        self.0.remove(index).task.abort();
        true
    }
}
