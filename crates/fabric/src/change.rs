//! A change of the configuration, as an administrator makes it: from the version that was read to the next one, by one transaction.
//!
//! A network identifier must never mean one group on one host and another group on another host. So a change that gives identifiers up
//! writes them to a key `freed/VERSION`, whose lease is [`Terms::reuse`]. While that key is there nobody may take them. etcd keeps this
//! time for all administrators: no clock of theirs is needed, and no memory.

use std::collections::BTreeSet;
use std::time::Duration;

use nicety_frame::Vni;
use serde::{Deserialize, Serialize};

use crate::Terms;
use crate::fabric::config::Config;
use crate::record::{Key, Keys, excerpt};
use crate::store::{Compare, Entry, Op, Transaction};

impl Terms {
    /// The lease of the identifiers that a change gives up. Within two lease times each host has applied that change, or has lost its lease
    /// and is no end of a tunnel for the others. The third one is for the time from the grant to the transaction.
    pub fn reuse(&self) -> Duration {
        self.lease * 3
    }
}

/// The value of a key `freed/VERSION`.
#[derive(Serialize, Deserialize)]
struct Freed {
    vnis: Vec<u32>,
}

/// The version from which a change is made.
#[derive(Clone, Debug)]
pub struct Basis {
    /// The version: the revision of the key `config`, or 0 if it is not there.
    pub version: i64,
    /// The configuration.
    pub config: Config,
    /// Identifiers that were given up a moment ago.
    freed: BTreeSet<Vni>,
}

impl Basis {
    /// Of the key `config`, and of all keys below `freed/`. These must be read with it, or after it.
    ///
    /// # Errors
    /// A sentence: the configuration cannot be read, so nobody knows which identifiers are in use.
    pub fn read(keys: &Keys, config: Option<&Entry>, freed: &[Entry]) -> Result<Self, String> {
        let key = keys.text(&Key::Config);
        let parse = |entry: &Entry| {
            Config::parse(&entry.value).map_err(|why| {
                let version = entry.modified;
                format!("version {version} of the configuration ({key}) cannot be read: {why}")
            })
        };
        let version = config.map_or(0, |entry| entry.modified);
        let config = config.map(parse).transpose()?.unwrap_or_default();
        let mut all = BTreeSet::new();
        for entry in freed {
            let Ok(Freed { vnis }) = serde_json::from_slice(&entry.value) else {
                return Err(format!(
                    "the key {} has a value that is no list of identifiers: {}; delete the key if no group was removed within the last 20 s",
                    excerpt(&entry.key),
                    excerpt(&entry.value)
                ));
            };
            all.extend(vnis.into_iter().filter_map(Vni::new));
        }
        Ok(Self { version, config, freed: all })
    }

    /// The change to this text.
    ///
    /// # Errors
    /// A sentence: the text is wrong, or takes an identifier that hosts may still use for another group.
    pub fn change(&self, text: &str) -> Result<Change, String> {
        let new = Config::parse(text.as_bytes())?;
        if let Some((vni, name, before)) = new.reassigns(&self.config) {
            return Err(format!(
                "vni {vni} of group {name:?} is group {before:?}'s: give it up there in a change of its own first"
            ));
        }
        if let Some((name, vni)) = new.groups.iter().find(|(_, vni)| self.freed.contains(vni)) {
            return Err(format!(
                "vni {vni} of group {name:?} was given up a moment ago, and a host that is cut off may still use it for the group of before: \
                 take another one, or try again in {:?}",
                Terms::default().reuse()
            ));
        }
        let is_used = |vni: &&Vni| new.groups.values().any(|used| used == *vni);
        let gives_up = self.config.groups.values().filter(|vni| !is_used(vni)).copied().collect();
        Ok(Change { version: self.version, config: new, gives_up })
    }
}

/// A change that may be made.
#[derive(Clone, Debug)]
pub struct Change {
    version: i64,
    /// The next configuration.
    pub config: Config,
    /// Identifiers that no group has afterwards.
    pub gives_up: BTreeSet<Vni>,
}

impl Change {
    /// The transaction. It fails if somebody else was faster. `lease`: one of [`Terms::reuse`], or 0 if nothing is given up.
    pub fn transaction(&self, keys: &Keys, lease: i64) -> Transaction {
        let key = keys.text(&Key::Config);
        let mut ops = vec![Op::Put { key: key.clone(), value: self.config.text.clone(), lease: 0 }];
        if !self.gives_up.is_empty() {
            let freed = Freed { vnis: self.gives_up.iter().map(|vni| vni.number()).collect() };
            // A struct of plain fields can always be written.
            let value = serde_json::to_string(&freed).unwrap_or_default();
            // Each version is replaced once, so no other change has this key.
            ops.push(Op::Put { key: format!("{}{}", keys.freed(), self.version), value, lease });
        }
        Transaction { compares: vec![Compare::Modified { key, revision: self.version }], ops, otherwise: None }
    }
}

#[cfg(test)]
#[path = "change_test.rs"]
mod tests;
