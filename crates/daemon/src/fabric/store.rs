//! etcd, as the machine asks it: each call is a task, and each watch. Commands that need no daemon ask by the same functions.

use std::collections::HashMap;

use nicety_etcd::{
    Change, Client, Compare as EtcdCompare, Error, ErrorKind, KeyValue, Keys as EtcdKeys, Op as EtcdOp, OpAnswer,
    Order, Settings, Test, Txn, Update,
};
use nicety_fabric::{
    Action, Compare, Entry, Event, Found, Keys, Op, Outcome, Scope, Terms, Transaction, Trouble, WatchId,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use super::Note;

/// Keys of one answer: each takes less than 2 KiB.
const KEYS_AT_ONCE: u32 = 2000;

/// Calls take a third of a lease at most, so that one that is late can be made again before the lease ends. A silent watch is opened anew
/// within a lease.
pub(super) fn with_limits(settings: Settings, terms: &Terms) -> Settings {
    Settings { limit: terms.lease / 3, silence: terms.lease / 2, ..settings }
}

/// See the module's page.
pub(super) struct Store {
    client: Client,
    keys: Keys,
    notes: UnboundedSender<Note>,
    watches: HashMap<WatchId, JoinHandle<()>>,
}

impl Store {
    pub(super) fn new(client: Client, keys: Keys, notes: UnboundedSender<Note>) -> Self {
        Self { client, keys, notes, watches: HashMap::new() }
    }

    /// Asks etcd. Returns an action that is not for it.
    pub(super) fn carry_out(&mut self, action: Action) -> Option<Action> {
        let client = self.client.clone();
        match action {
            Action::Read { call, scope } => {
                let keys = self.keys_of(&scope);
                self.call(async move { Event::Read { call, result: read(&client, keys).await.map_err(trouble) } });
            }
            Action::Watch { watch, scope, from } => {
                let told = follow(client.watch(&self.keys_of(&scope), from), watch, self.notes.clone());
                self.watches.insert(watch, tokio::spawn(told));
            }
            Action::Unwatch { watch } => self.watches.remove(&watch).iter().for_each(JoinHandle::abort),
            Action::Grant { call, time_to_live } => self.call(async move {
                let result = client.grant(time_to_live).await.map(|lease| lease.id).map_err(trouble);
                Event::Granted { call, result }
            }),
            Action::Renew { call, lease } => self.call(async move {
                Event::Renewed { call, result: client.keep_alive(lease).await.map(drop).map_err(trouble) }
            }),
            Action::Revoke { lease } => {
                // One whose answer is lost ends by itself.
                let _detached = tokio::spawn(async move { client.revoke(lease).await });
            }
            Action::Transact { call, transaction } => self.call(async move {
                Event::Transacted { call, result: transact(&client, transaction).await.map_err(trouble) }
            }),
            other => return Some(other),
        }
        None
    }

    fn call(&self, answer: impl Future<Output = Event> + Send + 'static) {
        let notes = self.notes.clone();
        let _detached = tokio::spawn(async move {
            // The session may have ended.
            let _gone = notes.send(Note::Event(answer.await));
        });
    }

    fn keys_of(&self, scope: &Scope) -> EtcdKeys {
        match scope {
            Scope::Config => EtcdKeys::one(self.keys.text(&nicety_fabric::Key::Config)),
            Scope::Hosts => EtcdKeys::prefix(self.keys.hosts()),
            Scope::Group(group) => EtcdKeys::prefix(self.keys.group(group)),
        }
    }

    /// Ends a lease, and its keys.
    pub(super) async fn revoke(&self, lease: i64) {
        // One whose answer is lost ends by itself.
        let _lost = self.client.revoke(lease).await;
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.watches.values().for_each(JoinHandle::abort);
    }
}

fn trouble(error: Error) -> Trouble {
    match error.any(|kind| matches!(kind, ErrorKind::LeaseGone { .. })) {
        true => Trouble::LeaseGone,
        false => Trouble::Failed(error.to_string()),
    }
}

/// A key as the machine has it.
pub fn entry(found: KeyValue) -> Entry {
    let KeyValue { key, value, create_revision, mod_revision, version: _, lease } = found;
    Entry { key, value, created: create_revision, modified: mod_revision, lease }
}

/// Reads all keys at one revision, in pieces that an answer has room for.
///
/// # Errors
/// One of the calls has failed.
pub async fn read(client: &Client, mut keys: EtcdKeys) -> Result<Found, Error> {
    let mut all = Found { revision: 0, entries: Vec::new() };
    loop {
        let found = client.range_at(&keys, KEYS_AT_ONCE, all.revision).await?;
        if all.revision == 0 {
            all.revision = found.revision;
        }
        let (is_all, last) = (!found.more, found.values.last().map(|last| last.key.clone()));
        all.entries.extend(found.values.into_iter().map(entry));
        match last {
            Some(mut next) if !is_all => {
                // The least key above the last one.
                next.push(0);
                keys = keys.starting_at(next);
            }
            _ => return Ok(all),
        }
    }
}

/// Carries out a transaction of the machine's, or of an administrator's change.
///
/// # Errors
/// The call has failed. The transaction may have been carried out all the same.
pub async fn transact(client: &Client, transaction: Transaction) -> Result<Outcome, Error> {
    let Transaction { compares, ops, otherwise } = transaction;
    let compare = |compare: Compare| {
        let Compare::Modified { key, revision } = compare;
        EtcdCompare { key: key.into_bytes(), order: Order::Equal, test: Test::ModRevision(revision) }
    };
    let op = |op: Op| match op {
        Op::Put { key, value, lease } => EtcdOp::Put { key: key.into_bytes(), value: value.into_bytes(), lease },
        Op::Delete { key } => EtcdOp::Delete(EtcdKeys::one(key)),
    };
    let txn = Txn {
        compare: compares.into_iter().map(compare).collect(),
        then: ops.into_iter().map(op).collect(),
        otherwise: otherwise.into_iter().map(|key| EtcdOp::Range(EtcdKeys::one(key))).collect(),
        may_repeat: false,
    };
    let done = client.txn(&txn).await?;
    let found = done.answers.into_iter().find_map(|answer| match answer {
        OpAnswer::Range(found) => found.values.into_iter().next(),
        _ => None,
    });
    Ok(Outcome { is_done: done.succeeded, revision: done.revision, found: found.map(entry) })
}

/// Tells what a watch tells, until it ends.
async fn follow(mut updates: nicety_etcd::Watch, watch: WatchId, notes: UnboundedSender<Note>) {
    loop {
        let told: Vec<Event> = match updates.next().await {
            Ok(Update::InTouch { revision }) => vec![Event::InTouch { watch, revision }],
            Ok(Update::Changes(changes)) => changes.into_iter().map(|change| changed(watch, change)).collect(),
            Ok(Update::Progress { .. }) => Vec::new(),
            Ok(Update::Compacted { .. }) => {
                let _gone = notes.send(Note::Event(Event::Compacted { watch }));
                return;
            }
            Err(error) => vec![Event::Broken { watch, why: error.to_string() }],
        };
        for event in told {
            if notes.send(Note::Event(event)).is_err() {
                return;
            }
        }
    }
}

fn changed(watch: WatchId, change: Change) -> Event {
    match change {
        Change::Put(found) => Event::Put { watch, entry: entry(found) },
        Change::Delete { key, revision } => Event::Delete { watch, key, revision },
    }
}
