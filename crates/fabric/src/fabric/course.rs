//! The reading side: each scope is read once, and then watched.

use std::time::Duration;

use nicety_adapter::Time;

use crate::Action;
use crate::fabric::Fabric;
use crate::record::{Key, excerpt};
use crate::store::{Call, Entry, Found, Scope, Trouble, WatchId};

/// The knowledge about one scope.
#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) stage: Stage,
    /// 0: none.
    pub(crate) watch: WatchId,
    /// All changes up to this one are known.
    pub(crate) revision: i64,
    /// Deletions up to this revision happened while the store was out of reach.
    caught_up: i64,
    /// So did, perhaps, the reason of those until then: other hosts reconnect a moment later than this one.
    calm_at: Option<Time>,
    /// The registration for which it was read last.
    pub(crate) read_for: Option<u32>,
    /// When that was.
    pub(crate) read_at: Time,
    failures: u32,
    /// Since when it is in this state, and why it is not in touch.
    pub(crate) since: Time,
    pub(crate) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It is to be read then.
    Wants(Time),
    /// It is being read, for this registration.
    Reading(Call, u32),
    /// It is watched.
    Follows { is_in_touch: bool },
}

impl Course {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            stage: Stage::Wants(now),
            watch: 0,
            revision: 0,
            caught_up: 0,
            calm_at: None,
            read_for: None,
            read_at: now,
            failures: 0,
            since: now,
            why: "it is not read yet".to_owned(),
        }
    }

    /// Of a scope whose last known state was kept.
    pub(crate) fn kept(now: Time) -> Self {
        // Any revision is newer, and everything that the first read lacks has vanished while the store was out of reach.
        Self { revision: 1, ..Self::new(now) }
    }

    fn is_due(&self, now: Time) -> bool {
        matches!(self.stage, Stage::Wants(at) if now >= at)
    }

    pub(crate) fn is_in_touch(&self) -> bool {
        self.stage == Stage::Follows { is_in_touch: true }
    }

    /// When a key is believed gone that was deleted at this revision. `None`: at once.
    fn grace(&self, revision: i64, lease: Duration, now: Time) -> Option<Time> {
        let is_calm = self.calm_at.is_none_or(|at| now >= at);
        (revision <= self.caught_up || !is_calm).then(|| now.after(lease))
    }

    fn catches_up(&mut self, revision: i64, lease: Duration, now: Time) {
        (self.caught_up, self.calm_at) = (revision, Some(now.after(lease)));
        (self.since, self.failures) = (now, 0);
        self.why.clear();
    }
}

impl Fabric {
    /// Has a scope read anew.
    pub(crate) fn read_again(&mut self, scope: &Scope, now: Time) {
        if let Some(course) = self.courses.get_mut(scope) {
            course.stage = Stage::Wants(now);
            self.wants.insert(scope.clone());
        }
    }

    /// Reads what is due.
    pub(crate) fn read(&mut self, now: Time) {
        let due = |scope: &&Scope| self.courses.get(scope).is_some_and(|course| course.is_due(now));
        let due: Vec<Scope> = self.wants.iter().filter(due).cloned().collect();
        for scope in due {
            self.wants.remove(&scope);
            let call = self.call();
            if let Some(course) = self.courses.get_mut(&scope) {
                course.stage = Stage::Reading(call, self.registrations);
            }
            self.act(Action::Read { call, scope });
        }
    }

    /// When the next scope is to be read.
    pub(crate) fn read_at(&self) -> Option<Time> {
        let at = |scope: &Scope| match self.courses.get(scope)?.stage {
            Stage::Wants(at) => Some(at),
            Stage::Reading(..) | Stage::Follows { .. } => None,
        };
        self.wants.iter().filter_map(at).min()
    }

    /// A read was answered.
    pub(crate) fn was_read(&mut self, call: Call, result: Result<Found, Trouble>, now: Time) {
        let mut courses = self.courses.iter();
        let found = courses.find_map(|(scope, course)| match course.stage {
            Stage::Reading(reading, read_for) if reading == call => Some((scope.clone(), read_for)),
            _ => None,
        });
        let Some((scope, read_for)) = found else { return };
        match result {
            Ok(found) => self.take_all(&scope, found, read_for, now),
            Err(trouble) => {
                let failures = self.courses.get(&scope).map_or(0, |course| course.failures);
                let at = now.after(self.pause(failures));
                if let Some(course) = self.courses.get_mut(&scope) {
                    (course.stage, course.failures) = (Stage::Wants(at), failures + 1);
                    course.why = trouble.text();
                }
                self.wants.insert(scope);
            }
        }
    }

    /// All keys of a scope. What is known and not among them has vanished.
    fn take_all(&mut self, scope: &Scope, found: Found, read_for: u32, now: Time) {
        let Some(course) = self.courses.get_mut(scope) else { return };
        let is_first = course.revision == 0;
        let is_restored = found.revision < course.revision;
        let revision = found.revision;
        course.catches_up(revision, self.terms.lease, now);
        if is_first {
            course.calm_at = None;
        }
        (course.revision, course.read_for, course.read_at) = (revision, Some(read_for), now);
        course.stage = Stage::Follows { is_in_touch: true };
        let old = std::mem::take(&mut course.watch);
        let is_strict = *scope == Scope::Hosts && std::mem::take(&mut self.configs.waits_for_hosts);
        let gone_at = if is_strict { now } else { now.after(self.terms.lease) };
        self.refusals.clear(scope);
        self.prolong(scope, gone_at);
        if is_restored && let Scope::Group(group) = scope {
            self.forget_revisions(&group.clone());
        }
        let keys: Vec<Key> = found.entries.iter().filter_map(|entry| self.take(scope, entry, now)).collect();
        self.vanished(scope, keys, gone_at, now);
        if old != 0 {
            self.watches.remove(&old);
            self.act(Action::Unwatch { watch: old });
        }
        self.last_watch += 1;
        let watch = self.last_watch;
        self.watches.insert(watch, scope.clone());
        if let Some(course) = self.courses.get_mut(scope) {
            course.watch = watch;
        }
        self.act(Action::Watch { watch, scope: scope.clone(), from: revision + 1 });
        if let Scope::Group(group) = scope {
            self.may_claim(&group.clone());
        }
        if is_strict {
            // The tunnel leaves hosts that are gone before a number is another group's.
            self.judge(now);
            self.is_read_for_config = true;
            self.offer(now);
        }
    }

    /// Takes a key that is there. Returns it if it is of this scope, also if its value cannot be used.
    fn take(&mut self, scope: &Scope, entry: &Entry, now: Time) -> Option<Key> {
        let key = match self.keys.parse(&entry.key).and_then(|key| scope.check(key)) {
            Ok(key) => key,
            Err(why) => {
                self.refusals.note(scope, &entry.key, why);
                return None;
            }
        };
        let result = match &key {
            Key::Config => {
                self.config_is(&entry.value, entry.modified, now);
                Ok(())
            }
            Key::Host(host) => self.host_is(host, entry, now),
            Key::Tunnel { host, address } => self.tenure_is(host, *address, entry),
            Key::At { group, host, mac } => self.claim_is(group, host, *mac, entry, now),
        };
        match result {
            Ok(()) => self.refusals.forget(scope, &entry.key),
            Err(why) => self.refusals.note(scope, &entry.key, why),
        }
        Some(key)
    }

    /// Keys that are known, and not among these, have vanished.
    fn vanished(&mut self, scope: &Scope, mut there: Vec<Key>, gone_at: Time, now: Time) {
        there.sort_unstable();
        let is_there = |key: &Key| there.binary_search(key).is_ok();
        match scope {
            Scope::Config if there.is_empty() => self.config_is_gone(),
            Scope::Config => {}
            Scope::Hosts => self.hosts_vanished(is_there, gone_at, now),
            Scope::Group(group) => self.claims_vanished(&group.clone(), is_there, gone_at, now),
        }
    }

    /// A watch tells a change.
    pub(crate) fn changed(&mut self, watch: WatchId, entry: &Entry, now: Time) {
        let Some(scope) = self.watches.get(&watch).cloned() else { return };
        if self.passes(&scope, entry.modified) {
            self.take(&scope, entry, now);
        }
    }

    /// A watch tells a deletion.
    pub(crate) fn deleted(&mut self, watch: WatchId, key: &[u8], revision: i64, now: Time) {
        let Some(scope) = self.watches.get(&watch).cloned() else { return };
        if !self.passes(&scope, revision) {
            return;
        }
        self.refusals.forget(&scope, key);
        let lease = self.terms.lease;
        let gone_at = self.courses.get(&scope).and_then(|course| course.grace(revision, lease, now));
        match self.keys.parse(key).and_then(|key| scope.check(key)) {
            Ok(Key::Config) => self.config_is_gone(),
            Ok(Key::Host(host)) => self.host_is_gone(&host, gone_at, now),
            Ok(Key::Tunnel { host, address }) => self.tenure_is_gone(&host, address, (revision, gone_at), now),
            Ok(Key::At { group, host, mac }) => self.claim_is_gone(&group, &host, mac, (revision, gone_at), now),
            // It was refused when it was written.
            Err(_) => {}
        }
    }

    /// Notes that a scope's changes up to this revision come. `false`: it is an old one.
    fn passes(&mut self, scope: &Scope, revision: i64) -> bool {
        let Some(course) = self.courses.get_mut(scope) else { return false };
        let is_new = revision >= course.revision;
        course.revision = course.revision.max(revision);
        is_new
    }

    /// A watch's stream stands.
    pub(crate) fn in_touch(&mut self, watch: WatchId, revision: i64, now: Time) {
        let Some(scope) = self.watches.get(&watch).cloned() else { return };
        let lease = self.terms.lease;
        let Some(course) = self.courses.get_mut(&scope) else { return };
        if revision < course.revision {
            // The store was restored from an older state.
            return self.read_everything_again(now, Duration::ZERO);
        }
        // At the beginning of a watch its read is a moment old.
        if course.is_in_touch() {
            return;
        }
        course.catches_up(revision, lease, now);
        // One that is read again, or is to be, still hears its old watch.
        if let Stage::Follows { is_in_touch } = &mut course.stage {
            *is_in_touch = true;
        }
        self.prolong(&scope, now.after(lease));
    }

    /// A watch's stream has ended.
    pub(crate) fn broken(&mut self, watch: WatchId, why: String, now: Time) {
        let Some(scope) = self.watches.get(&watch) else { return };
        let Some(course) = self.courses.get_mut(scope) else { return };
        if let Stage::Follows { is_in_touch } = course.stage {
            if is_in_touch {
                course.since = now;
            }
            course.stage = Stage::Follows { is_in_touch: false };
            course.why = why;
        }
    }

    /// A watch cannot go on.
    pub(crate) fn compacted(&mut self, watch: WatchId, now: Time) {
        let Some(scope) = self.watches.remove(&watch) else { return };
        if let Some(course) = self.courses.get_mut(&scope) {
            course.watch = 0;
            course.why = "its changes are compacted".to_owned();
        }
        self.read_again(&scope, now);
    }

    /// Reads all scopes again, each at a time of its own up to so much later: not all hosts at once.
    pub(crate) fn read_everything_again(&mut self, now: Time, within: Duration) {
        let scopes: Vec<Scope> = self.courses.keys().cloned().collect();
        for scope in scopes {
            let at = now.after(within.mul_f64(self.random.fraction()));
            if let Some(course) = self.courses.get_mut(&scope) {
                course.stage = Stage::Wants(at);
                self.wants.insert(scope);
            }
        }
    }
}

impl Scope {
    /// Whether a key belongs here.
    fn check(&self, key: Key) -> Result<Key, String> {
        let is_here = match (self, &key) {
            (Self::Config, Key::Config) | (Self::Hosts, Key::Host(_) | Key::Tunnel { .. }) => true,
            (Self::Group(group), Key::At { group: of, .. }) => group == of,
            _ => false,
        };
        if is_here { Ok(key) } else { Err("the key was not asked for".to_owned()) }
    }
}

impl Trouble {
    /// For a person.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::LeaseGone => "the lease of this host has expired".to_owned(),
            Self::Failed(why) => why.clone(),
        }
    }
}

/// Refused keys and the reasons: the last value of each key.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    of: std::collections::BTreeMap<(Scope, Vec<u8>), String>,
    /// Refused keys beyond those that are kept.
    pub(crate) more: u64,
}

/// Refusals that are kept.
const REFUSALS_MAX: usize = 64;

impl Refusals {
    pub(crate) fn note(&mut self, scope: &Scope, key: &[u8], why: String) {
        let key = (scope.clone(), key.get(..2 * 160).unwrap_or(key).to_vec());
        if self.of.len() >= REFUSALS_MAX && !self.of.contains_key(&key) {
            self.more += 1;
        } else {
            self.of.insert(key, why);
        }
    }

    fn forget(&mut self, scope: &Scope, key: &[u8]) {
        if !self.of.is_empty() {
            self.of.remove(&(scope.clone(), key.to_vec()));
        }
    }

    fn clear(&mut self, scope: &Scope) {
        self.of.retain(|(of, _), _| of != scope);
        if self.of.is_empty() {
            self.more = 0;
        }
    }

    /// A sentence for each.
    pub(crate) fn sentences(&self) -> impl Iterator<Item = String> {
        self.of.iter().map(|((_, key), why)| format!("{}: {why}", excerpt(key)))
    }
}
