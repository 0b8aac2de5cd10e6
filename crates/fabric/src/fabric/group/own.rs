//! The addresses of this host: what it claims, and which of its keys are still to be written or deleted.

use std::time::Duration;

use nicety_adapter::Time;
use nicety_frame::Mac;

use crate::fabric::Fabric;
use crate::record::{CARRIED, ClaimRecord, Key, Name, SEQUENCE_MAX};
use crate::store::{Call, Compare, Entry, Op, Outcome, Scope, Transaction, Trouble};
use crate::{Action, earlier};

/// Addresses that were learned behind one port and are claimed, at most. The others are reached by flooding.
pub const LEARNED_MAX: u16 = 16;
/// The same for all ports of a host. Guests choose these addresses. So they take no room from those that a host file gives to its ports,
/// which are all claimed.
pub const LEARNED_ALL_MAX: usize = 8192;
/// Keys of one transaction. etcd takes 128 (`--max-txn-ops`).
const KEYS_MAX: usize = 100;
/// Those of learned addresses.
const LEARNED_KEYS_MAX: usize = 20;

/// A VMM is at a port, and its guest does not run there. Such a claim is below all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiting {
    /// The guest has run, and stands still. Perhaps it has moved away.
    Stopped = 1,
    /// The guest is still to come: frames go here as soon as it stops elsewhere.
    Expected = 2,
}

/// The highest number of a claim without a guest.
pub(crate) const WAITING_MAX: u64 = Waiting::Expected as u64;

/// Why a host claims an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Runs,
    Learned,
    Waits(Waiting),
}

/// The claim that a host wants to publish for one of its addresses.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) port: Name,
    /// The number of the claim before: the next one is above it.
    before: u64,
    /// 0: not chosen yet.
    pub(crate) sequence: u64,
    /// The revision at which it was written last; 0: not yet.
    written: i64,
    /// The revision at which a claim with this number was written first; 0: not yet. A claim is written again after the end of a lease.
    first: i64,
    is_learned: bool,
    /// No guest runs there.
    pub(crate) waits: bool,
}

/// An own key, as it is known to be in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    port: Name,
    sequence: u64,
    revision: i64,
    lease: i64,
}

/// An own address.
#[derive(Debug, Default)]
pub(crate) struct Own {
    pub(crate) wanted: Option<Wanted>,
    /// Another host has claimed it since.
    pub(crate) is_overtaken: bool,
    stored: Option<Stored>,
    /// The last revision at which a watch or a read has told of the key.
    heard: i64,
    /// A transaction had no answer: the key may be there.
    is_uncertain: bool,
    is_in_flight: bool,
    /// A claim that follows a defeat waits until then.
    not_before: Time,
    damping: Duration,
    overtaken_at: Time,
    pub(crate) defeats: u32,
}

/// The change of an own key in a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    group: Name,
    mac: Mac,
    /// The claim; `None`: the key is deleted.
    claim: Option<ClaimRecord>,
}

impl Wanted {
    fn written_at(&mut self, revision: i64) {
        self.written = revision;
        if self.first == 0 {
            self.first = revision;
        }
    }
}

impl Own {
    /// Whether frames for it go to this host's port.
    pub(crate) fn is_here(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| !wanted.waits) && !self.is_overtaken
    }

    fn is_learned(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.is_learned)
    }

    /// The claim that the store should have.
    fn claim(&self) -> Option<&Wanted> {
        self.wanted.as_ref().filter(|_| !self.is_overtaken)
    }

    /// Whether the key is as it should be.
    fn is_settled(&self, lease: Option<i64>) -> bool {
        !self.is_uncertain
            && match (self.claim(), &self.stored) {
                (None, None) => true,
                (Some(wanted), Some(stored)) => {
                    stored.sequence == wanted.sequence && stored.port == wanted.port && Some(stored.lease) == lease
                }
                _ => false,
            }
    }
}

impl Fabric {
    /// A port's rings run, and this address is its own.
    pub fn started(&mut self, group: &Name, mac: Mac, port: &Name, now: Time) {
        self.claim(group, mac, (port, Reason::Runs), now);
        self.tick(now);
    }

    /// A VMM is at a port whose own address this is, and its guest does not run.
    pub fn waits(&mut self, group: &Name, mac: Mac, port: &Name, waiting: Waiting, now: Time) {
        self.claim(group, mac, (port, Reason::Waits(waiting)), now);
        self.tick(now);
    }

    /// A guest has sent from this address: for the first time behind this port, or again since [`Action::Moved`]. Returns whether this host
    /// claims it. If not, there are too many such addresses: it is to be called again when [`Fabric::has_room`] says so.
    pub fn learned(&mut self, group: &Name, mac: Mac, port: &Name, now: Time) -> bool {
        let is_claimed = self.claim(group, mac, (port, Reason::Learned), now);
        self.tick(now);
        is_claimed
    }

    /// Whether another learned address behind this port would be claimed.
    pub fn has_room(&self, port: &Name) -> bool {
        let of_port = self.learned.get(port).copied().unwrap_or(0);
        self.learned_count < LEARNED_ALL_MAX && of_port < LEARNED_MAX
    }

    /// The port's VMM has left, or a learned address has aged.
    pub fn stopped(&mut self, group: &Name, mac: Mac, now: Time) {
        self.give_up(group, mac, now);
        self.tick(now);
    }

    /// Returns false if there is no room. An address that is not unicast needs no claim.
    fn claim(&mut self, name: &Name, mac: Mac, (port, reason): (&Name, Reason), now: Time) -> bool {
        if !mac.is_unicast() && mac != CARRIED {
            return true;
        }
        let is_learned = reason == Reason::Learned;
        let old = self.groups.get(name).and_then(|group| group.own.get(&mac));
        let is_here = old.is_some_and(Own::is_here);
        let is_same = is_here && old.and_then(|own| own.wanted.as_ref()).is_some_and(|wanted| wanted.port == *port);
        if is_same && is_learned {
            return true;
        }
        if is_learned && old.is_none_or(|own| own.wanted.is_none()) && !self.has_room(port) {
            self.left_out.insert(port.clone());
            return false;
        }
        self.need(name, now);
        let Some(group) = self.groups.get_mut(name) else { return false };
        let own = group.own.entry(mac).or_default();
        let was = own.wanted.take();
        let is_of_learning = is_learned && was.as_ref().is_none_or(|was| was.is_learned);
        // A port that only changes, and a guest that sends, keep the number of a claim that stands.
        let (sequence, written, first) = match (&was, reason) {
            (_, Reason::Waits(waiting)) => (waiting as u64, 0, 0),
            (Some(was), Reason::Learned) if is_here => (was.sequence, was.written, was.first),
            _ => (0, 0, 0),
        };
        let before = was.as_ref().map_or(0, |was| was.before.max(was.sequence));
        own.wanted = Some(Wanted {
            port: port.clone(),
            before,
            sequence,
            written,
            first,
            is_learned: is_of_learning,
            waits: matches!(reason, Reason::Waits(_)),
        });
        let is_again = std::mem::take(&mut own.is_overtaken);
        if !is_learned {
            own.not_before = now;
        }
        if is_learned && (is_again || is_of_learning) {
            group.slow.insert(mac)
        } else {
            group.urgent.insert(mac)
        };
        if let Some(was) = was.filter(|was| was.is_learned) {
            self.uncount(&was.port);
        }
        if is_of_learning {
            *self.learned.entry(port.clone()).or_default() += 1;
            self.learned_count += 1;
        }
        self.dirty.insert(name.clone());
        self.show(name, mac);
        true
    }

    /// A learned address behind this port is not claimed any more, or not as one.
    fn uncount(&mut self, port: &Name) {
        if let Some(count) = self.learned.get_mut(port) {
            *count -= 1;
            self.learned_count -= 1;
            if *count == 0 {
                self.learned.remove(port);
                self.left_out.remove(port);
            }
        }
    }

    /// The address is not this host's any more.
    pub(crate) fn give_up(&mut self, name: &Name, mac: Mac, _now: Time) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let Some(own) = group.own.get_mut(&mac) else { return };
        let is_learned = own.is_learned();
        let was = own.wanted.take();
        own.is_overtaken = false;
        if is_learned {
            group.slow.insert(mac)
        } else {
            group.urgent.insert(mac)
        };
        self.dirty.insert(name.clone());
        if let Some(was) = was.filter(|was| was.is_learned) {
            self.uncount(&was.port);
        }
        self.show(name, mac);
    }

    /// Gives a claim up that another host has overtaken. One that was written after theirs is made again, above it: this host had not heard
    /// of theirs when it chose the number.
    pub(crate) fn overtake(&mut self, name: &Name, mac: Mac, now: Time) {
        let terms = self.terms;
        let Some(group) = self.groups.get_mut(name) else { return };
        let best = group.best(mac, &self.hosts).filter(|(_, claim)| claim.gone_at.is_none());
        let Some((hop, theirs)) = best.map(|(hop, claim)| (hop, (claim.sequence, claim.modified))) else { return };
        let Some(own) = group.own.get_mut(&mac) else { return };
        let Some(wanted) = own.claim().filter(|wanted| wanted.sequence > 0 && !wanted.waits) else { return };
        let written = if wanted.written == 0 { i64::MAX } else { wanted.written };
        if theirs <= (wanted.sequence, written) {
            return;
        }
        // The answer says which of the two was first, and calls this again.
        if wanted.first == 0 && own.is_in_flight {
            return;
        }
        if wanted.first > theirs.1 {
            if let Some(wanted) = &mut own.wanted {
                (wanted.sequence, wanted.written, wanted.first) = (0, 0, 0);
            }
            group.urgent.insert(mac);
            self.dirty.insert(name.clone());
            return;
        }
        own.is_overtaken = true;
        if now.since(own.overtaken_at) >= terms.damping_max * 3 {
            (own.damping, own.defeats) = (Duration::ZERO, 0);
        }
        own.not_before = now.after(own.damping);
        own.damping = (own.damping * 2).clamp(terms.damping_min, terms.damping_max);
        (own.overtaken_at, own.defeats) = (now, own.defeats.saturating_add(1));
        group.urgent.insert(mac);
        self.dirty.insert(name.clone());
        if let Some(host) = self.hosts.get(hop) {
            let moved = Action::Moved { group: name.clone(), mac, to: host.name.clone() };
            self.actions.push_back(moved);
        }
    }

    /// An own key is there.
    pub(crate) fn own_key_is(&mut self, name: &Name, mac: Mac, record: &ClaimRecord, entry: &Entry, now: Time) {
        let lease = self.standing.lease();
        let is_taken_over = self.adopt_at.is_some_and(|at| now < at);
        let Some(group) = self.groups.get_mut(name) else { return };
        let own = group.own.entry(mac).or_default();
        own.heard = own.heard.max(entry.modified);
        if own.stored.as_ref().is_some_and(|stored| stored.revision > entry.modified) {
            return;
        }
        let ClaimRecord { port, sequence } = record.clone();
        own.stored = Some(Stored { port, sequence, revision: entry.modified, lease: entry.lease });
        if let Some(wanted) = own.wanted.as_mut().filter(|wanted| wanted.sequence == sequence && wanted.written == 0) {
            wanted.written_at(entry.modified);
        }
        // The ports of an earlier run have not started yet.
        let waits = is_taken_over && own.wanted.is_none();
        if !own.is_settled(lease) && !waits {
            group.urgent.insert(mac);
            self.dirty.insert(name.clone());
        }
        self.overtake(name, mac, now);
    }

    /// An own key is not there.
    pub(crate) fn own_key_is_gone(&mut self, name: &Name, mac: Mac, revision: i64) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let Some(own) = group.own.get_mut(&mac) else { return };
        own.heard = own.heard.max(revision);
        own.stored.take_if(|stored| stored.revision <= revision);
        group.urgent.insert(mac);
        self.dirty.insert(name.clone());
    }

    /// The store was restored from an older state: revisions of before say nothing any more.
    pub(crate) fn forget_revisions(&mut self, name: &Name) {
        let Some(group) = self.groups.get_mut(name) else { return };
        for (mac, own) in &mut group.own {
            (own.stored, own.heard) = (None, 0);
            if let Some(wanted) = &mut own.wanted {
                (wanted.written, wanted.first) = (0, 0);
            }
            group.urgent.insert(*mac);
        }
        self.dirty.insert(name.clone());
    }

    /// Keys of an earlier run whose ports have not started are deleted.
    pub(crate) fn disown(&mut self, now: Time) {
        if self.adopt_at.take_if(|at| now >= *at).is_none() {
            return;
        }
        for (name, group) in &mut self.groups {
            let unwanted = group.own.iter().filter(|(_, own)| own.wanted.is_none()).map(|(mac, _)| *mac);
            group.urgent.extend(unwanted);
            self.dirty.insert(name.clone());
        }
    }

    /// The lease has ended, and the own keys with it: they are written again.
    pub(crate) fn write_all_again(&mut self) {
        for (name, group) in &mut self.groups {
            group.urgent.extend(group.own.keys().copied());
            self.dirty.insert(name.clone());
        }
    }

    /// A group is read: its claims may be written.
    pub(crate) fn may_claim(&mut self, name: &Name) {
        if let Some(group) = self.groups.get_mut(name) {
            group.urgent.append(&mut group.unread);
            self.dirty.insert(name.clone());
        }
    }

    /// Writes and deletes own keys, as far as it may.
    pub(crate) fn write(&mut self, now: Time) {
        self.write_at = None;
        let Some(lease) = self.standing.registered() else { return };
        if self.writing.is_some() || self.dirty.is_empty() {
            return;
        }
        if now < self.write_again_at {
            self.write_at = Some(self.write_again_at);
            return;
        }
        let mut writes = Vec::new();
        let mut learned = 0;
        let mut settled = Vec::new();
        for name in self.dirty.iter() {
            let Some(group) = self.groups.get_mut(name) else {
                settled.push(name.clone());
                continue;
            };
            let course = self.courses.get(&Scope::Group(name.clone()));
            let is_read = course.is_some_and(|course| course.read_for == Some(self.registrations));
            let room = KEYS_MAX - writes.len();
            group.take_writes(name, (lease, is_read, now), (&mut writes, room), self.newest);
            if now >= self.learn_at {
                let room = (KEYS_MAX - writes.len()).min(LEARNED_KEYS_MAX - learned);
                let before = writes.len();
                let later = group.take_slow_writes(name, (lease, is_read, now), (&mut writes, room), self.newest);
                learned += writes.len() - before;
                self.write_at = earlier(self.write_at, later);
            } else if !group.slow.is_empty() {
                self.write_at = earlier(self.write_at, Some(self.learn_at));
            }
            if group.urgent.is_empty() && group.slow.is_empty() {
                settled.push(name.clone());
            }
            if writes.len() >= KEYS_MAX {
                break;
            }
        }
        settled.iter().for_each(|name| _ = self.dirty.remove(name));
        if learned > 0 {
            self.learn_at = now.after(self.terms.learn);
        }
        self.groups.retain(|_, group| !group.is_empty());
        if writes.is_empty() {
            return;
        }
        let call = self.call();
        let host = self.keys.text(&Key::Host(self.me.host.clone()));
        let mut ops: Vec<Op> = writes.iter().map(|write| self.op(write, lease)).collect();
        // The transaction before had no answer, and may still come. It must not undo this one, so this one writes the own key again.
        if self.write_failures > 0 {
            ops.push(Op::Put { key: host.clone(), value: self.own_record().text(), lease });
        }
        let compares = vec![Compare::Modified { key: host.clone(), revision: self.standing.registered_at }];
        self.writing = Some((call, lease, writes));
        let transaction = Transaction { compares, ops, otherwise: Some(host) };
        self.act(Action::Transact { call, transaction });
    }

    fn op(&self, Write { group, mac, claim }: &Write, lease: i64) -> Op {
        let key = Key::At { group: group.clone(), host: self.me.host.clone(), mac: *mac };
        let key = self.keys.text(&key);
        match claim {
            Some(claim) => Op::Put { key, value: claim.text(), lease },
            None => Op::Delete { key },
        }
    }

    /// The transaction was answered.
    pub(crate) fn was_written(&mut self, call: Call, result: &Result<Outcome, Trouble>, now: Time) {
        let Some((_, lease, writes)) = self.writing.take_if(|(writing, ..)| *writing == call) else { return };
        let done = result.as_ref().ok().filter(|outcome| outcome.is_done).map(|outcome| outcome.revision);
        for write in writes {
            if let Some(group) = self.groups.get_mut(&write.group) {
                group.was_written(&write, (done, result.is_err()), lease);
                self.dirty.insert(write.group.clone());
            }
            self.overtake(&write.group, write.mac, now);
        }
        match result {
            Ok(outcome) => {
                self.newest = self.newest.max(outcome.revision);
                if std::mem::take(&mut self.write_failures) > 0
                    && self.standing.registered() == Some(lease)
                    && outcome.is_done
                {
                    self.standing.registered_at = outcome.revision;
                }
                if !outcome.is_done {
                    self.registration_lost(outcome, now);
                }
            }
            Err(Trouble::LeaseGone) => self.lease_is_gone(lease, now),
            Err(Trouble::Failed(_)) => {
                self.write_again_at = now.after(self.pause(self.write_failures));
                self.write_failures += 1;
            }
        }
    }
}

impl crate::fabric::group::Group {
    /// The highest sequence number that is known of an address.
    fn sequence(&self, mac: Mac) -> u64 {
        let others = self.of(mac).map(|(_, claim)| claim.sequence).max().unwrap_or(0);
        let own = self.own.get(&mac).map_or(0, |own| {
            let stored = own.stored.as_ref().map_or(0, |stored| stored.sequence);
            let wanted = own.wanted.as_ref().map_or(0, |wanted| wanted.before.max(wanted.sequence));
            stored.max(wanted)
        });
        others.max(own)
    }

    fn take_writes(
        &mut self,
        name: &Name,
        at: (i64, bool, Time),
        (writes, room): (&mut Vec<Write>, usize),
        newest: i64,
    ) {
        let todo: Vec<Mac> = self.urgent.iter().take(room).copied().collect();
        for mac in todo {
            self.urgent.remove(&mac);
            writes.extend(self.next_write(name, mac, at, newest));
        }
    }

    /// Returns when the next one may be written.
    fn take_slow_writes(
        &mut self,
        name: &Name,
        at: (i64, bool, Time),
        (writes, room): (&mut Vec<Write>, usize),
        newest: i64,
    ) -> Option<Time> {
        let (_, _, now) = at;
        let due = |own: &Own| own.claim().map_or(now, |_| own.not_before);
        let later = |mac: &&Mac| self.own.get(mac).map(due).filter(|&at| at > now);
        let waits = self.slow.iter().filter_map(|mac| later(&mac)).min();
        let todo: Vec<Mac> = self.slow.iter().filter(|mac| later(mac).is_none()).take(room).copied().collect();
        for mac in todo {
            self.slow.remove(&mac);
            writes.extend(self.next_write(name, mac, at, newest));
        }
        waits
    }

    /// What is to be done with an own key, if anything, and if it may be done now. What may not is noted for when it may.
    fn next_write(
        &mut self,
        name: &Name,
        mac: Mac,
        (lease, is_read, _): (i64, bool, Time),
        newest: i64,
    ) -> Option<Write> {
        let highest = self.sequence(mac);
        let own = self.own.get_mut(&mac)?;
        // The answer brings it back.
        if own.is_in_flight {
            return None;
        }
        let is_overtaken = own.is_overtaken;
        let claim = match own.wanted.as_mut().filter(|_| !is_overtaken) {
            // [`Fabric::may_claim`] brings it back.
            Some(_) if !is_read => {
                self.unread.insert(mac);
                return None;
            }
            Some(wanted) => {
                if wanted.sequence == 0 {
                    // Above the store's revision: so also above claims that were made and deleted before.
                    let revision = u64::try_from(newest).unwrap_or(0);
                    wanted.sequence = (highest.max(revision).max(WAITING_MAX) + 1).min(SEQUENCE_MAX);
                }
                Some(ClaimRecord { port: wanted.port.clone(), sequence: wanted.sequence })
            }
            None => None,
        };
        if own.is_settled(Some(lease)) {
            if own.wanted.is_none() {
                self.own.remove(&mac);
            }
            return None;
        }
        own.is_in_flight = true;
        Some(Write { group: name.clone(), mac, claim })
    }

    fn was_written(&mut self, write: &Write, (done, is_uncertain): (Option<i64>, bool), lease: i64) {
        let Some(own) = self.own.get_mut(&write.mac) else { return };
        own.is_in_flight = false;
        self.urgent.insert(write.mac);
        let Some(revision) = done else {
            own.is_uncertain |= is_uncertain;
            return;
        };
        own.is_uncertain = false;
        if revision < own.heard {
            return;
        }
        own.stored = write.claim.clone().map(|ClaimRecord { port, sequence }| {
            if let Some(wanted) = own.wanted.as_mut().filter(|wanted| wanted.sequence == sequence) {
                wanted.written_at(revision);
            }
            Stored { port, sequence, revision, lease }
        });
    }
}
