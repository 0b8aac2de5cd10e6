//! A store with etcd's semantics: one revision for each transaction, leases that delete their keys at one revision, a history that watches
//! go on from until it is compacted.

use std::collections::BTreeMap;

use nicety_fabric::{Compare, Entry, Found, Op, Outcome, Transaction, Trouble};

/// A change of one key, at a revision.
#[derive(Clone, Debug)]
pub enum Change {
    Put(Entry),
    Delete { key: Vec<u8>, revision: i64 },
}

impl Change {
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete { key, .. } => key,
        }
    }

    pub fn revision(&self) -> i64 {
        match self {
            Self::Put(entry) => entry.modified,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

pub struct Store {
    pub revision: i64,
    /// Revisions up to this one cannot be watched any more.
    pub compacted: i64,
    /// Without it nothing is answered, and no lease ends.
    pub has_majority: bool,
    keys: BTreeMap<Vec<u8>, Entry>,
    history: Vec<Change>,
    /// When each ends, and its time to live.
    leases: BTreeMap<i64, (u64, u64)>,
    last_lease: i64,
    lease_ns: u64,
}

impl Store {
    pub fn new(lease_ns: u64) -> Self {
        Self {
            revision: 1,
            compacted: 0,
            has_majority: true,
            keys: BTreeMap::new(),
            history: Vec::new(),
            leases: BTreeMap::new(),
            last_lease: 0,
            lease_ns,
        }
    }

    /// A host's lease.
    pub fn grant(&mut self, now: u64) -> i64 {
        self.grant_for(self.lease_ns, now)
    }

    pub fn grant_for(&mut self, time_to_live: u64, now: u64) -> i64 {
        self.last_lease += 1;
        self.leases.insert(self.last_lease, (now + time_to_live, time_to_live));
        self.last_lease
    }

    pub fn renew(&mut self, lease: i64, now: u64) -> Result<(), Trouble> {
        let (until, time_to_live) = self.leases.get_mut(&lease).ok_or(Trouble::LeaseGone)?;
        *until = now + *time_to_live;
        Ok(())
    }

    pub fn revoke(&mut self, lease: i64) {
        if self.leases.remove(&lease).is_none() {
            return;
        }
        let keys = self.keys.values().filter(|entry| entry.lease == lease).map(|entry| entry.key.clone());
        let keys: Vec<_> = keys.collect();
        self.revision += i64::from(!keys.is_empty());
        for key in keys {
            self.keys.remove(&key);
            self.history.push(Change::Delete { key, revision: self.revision });
        }
    }

    /// Ends leases that are due. Returns when the next one is.
    pub fn expire(&mut self, now: u64) -> Option<u64> {
        if self.has_majority {
            let due: Vec<i64> = self.leases.iter().filter(|(_, (at, _))| *at <= now).map(|(id, _)| *id).collect();
            due.into_iter().for_each(|lease| self.revoke(lease));
        }
        self.leases.values().map(|(at, _)| *at).min()
    }

    /// A new leader prolongs all leases (`Promote` in etcd's server/lease/lessor.go).
    pub fn regain(&mut self, now: u64) {
        self.has_majority = true;
        self.leases.values_mut().for_each(|(at, time_to_live)| *at = now + *time_to_live);
    }

    pub fn read(&self, prefix: &[u8]) -> Found {
        let entries = self.keys.values().filter(|entry| entry.key.starts_with(prefix)).cloned().collect();
        Found { revision: self.revision, entries }
    }

    pub fn transact(&mut self, transaction: &Transaction) -> Result<Outcome, Trouble> {
        let holds = |compare: &Compare| match compare {
            Compare::Modified { key, revision } => {
                self.keys.get(key.as_bytes()).map_or(0, |entry| entry.modified) == *revision
            }
        };
        if !transaction.compares.iter().all(holds) {
            let found = transaction.otherwise.as_ref().and_then(|key| self.keys.get(key.as_bytes()).cloned());
            return Ok(Outcome { is_done: false, revision: self.revision, found });
        }
        let is_gone = |op: &Op| matches!(op, Op::Put { lease, .. } if *lease != 0 && !self.leases.contains_key(lease));
        if transaction.ops.iter().any(is_gone) {
            return Err(Trouble::LeaseGone);
        }
        assert!(transaction.ops.len() <= 128, "etcd refuses more than 128 operations");
        self.revision += 1;
        let revision = self.revision;
        let mut changes = 0;
        for op in &transaction.ops {
            match op {
                Op::Put { key, value, lease } => {
                    let key = key.as_bytes().to_vec();
                    let created = self.keys.get(&key).map_or(revision, |entry| entry.created);
                    let value = value.as_bytes().to_vec();
                    let entry = Entry { key: key.clone(), value, created, modified: revision, lease: *lease };
                    self.history.push(Change::Put(entry.clone()));
                    assert!(
                        self.keys.insert(key, entry).is_none_or(|old| old.modified < revision),
                        "a key occurs twice"
                    );
                    changes += 1;
                }
                Op::Delete { key } => {
                    if self.keys.remove(key.as_bytes()).is_some() {
                        self.history.push(Change::Delete { key: key.as_bytes().to_vec(), revision });
                        changes += 1;
                    }
                }
            }
        }
        self.revision -= i64::from(changes == 0);
        Ok(Outcome { is_done: true, revision: self.revision, found: None })
    }

    /// For a failure's message: all keys with their leases, and when these end.
    pub fn describe(&self, now: u64) -> String {
        let text = |entry: &Entry| {
            let left = self.leases.get(&entry.lease).map(|(at, _)| at.saturating_sub(now) / 1_000_000);
            let (key, value) = (String::from_utf8_lossy(&entry.key), String::from_utf8_lossy(&entry.value));
            format!("{key} = {value} (revision {}, lease {}, ends in {left:?} ms)", entry.modified, entry.lease)
        };
        self.keys.values().map(text).collect::<Vec<_>>().join("\n")
    }

    /// The history from one revision to another.
    pub fn changes(&self, from: i64, to: i64) -> &[Change] {
        let start = self.history.partition_point(|change| change.revision() < from);
        let end = self.history.partition_point(|change| change.revision() <= to);
        &self.history[start.min(end)..end]
    }
}
