//! Calls to the store, and its answers: the part of etcd's keys, leases, transactions and watches that a fabric needs.

use crate::record::Name;

/// A call's number. Its answer carries it.
pub type Call = u32;

/// A watch's number. Its events carry it.
pub type WatchId = u32;

/// Keys that are read and watched together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The one key `config`.
    Config,
    /// All keys that begin with `host/`.
    Hosts,
    /// All keys that begin with `at/GROUP/`.
    Group(Name),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The revision at which the key was made.
    pub created: i64,
    /// The revision at which it was written last.
    pub modified: i64,
    /// The lease that it ends with, or 0.
    pub lease: i64,
}

/// All keys of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The revision at which they were read.
    pub revision: i64,
    /// The keys.
    pub entries: Vec<Entry>,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key was written last at this revision; 0: it is not there.
    Modified {
        /// The key.
        key: String,
        /// The revision.
        revision: i64,
    },
}

/// A part of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Write a key.
    Put {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The lease that it ends with; 0: none.
        lease: i64,
    },
    /// Delete a key.
    Delete {
        /// The key.
        key: String,
    },
}

/// A transaction: all of it if all conditions hold, else nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The conditions.
    pub compares: Vec<Compare>,
    /// The changes. Each key occurs once.
    pub ops: Vec<Op>,
    /// The key that is read instead if a condition does not hold.
    pub otherwise: Option<String>,
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether all conditions held.
    pub is_done: bool,
    /// The store's revision after it.
    pub revision: i64,
    /// The key that was read instead, if it is there.
    pub found: Option<Entry>,
}

/// Why a call has no result. It may have been carried out all the same, or may be later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The store does not know the lease: it has expired.
    LeaseGone,
    /// Anything else, as a sentence for a person.
    Failed(String),
}

/// News from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The answer to a read.
    Read {
        /// The call's number.
        call: Call,
        /// The keys.
        result: Result<Found, Trouble>,
    },
    /// A watch's stream stands, at the beginning or again after a failure. Changes up to this revision may be still to come.
    InTouch {
        /// The watch's number.
        watch: WatchId,
        /// The store's revision.
        revision: i64,
    },
    /// A key was written.
    Put {
        /// The watch's number.
        watch: WatchId,
        /// The key.
        entry: Entry,
    },
    /// A key was deleted, or its lease has ended.
    Delete {
        /// The watch's number.
        watch: WatchId,
        /// The key.
        key: Vec<u8>,
        /// When.
        revision: i64,
    },
    /// A watch's stream has ended, or is silent for too long. It will be opened again.
    Broken {
        /// The watch's number.
        watch: WatchId,
        /// Why, for a person.
        why: String,
    },
    /// The revision from which a watch goes on is compacted away. The watch has ended.
    Compacted {
        /// The watch's number.
        watch: WatchId,
    },
    /// The answer to a grant: the lease's identifier.
    Granted {
        /// The call's number.
        call: Call,
        /// The identifier.
        result: Result<i64, Trouble>,
    },
    /// The answer to a renewal.
    Renewed {
        /// The call's number.
        call: Call,
        /// Whether the lease lives.
        result: Result<(), Trouble>,
    },
    /// The answer to a transaction.
    Transacted {
        /// The call's number.
        call: Call,
        /// Its result.
        result: Result<Outcome, Trouble>,
    },
}
