//! Descriptors that the keeper holds for a daemon.
//!
//! Each belongs to an *owner*: a port, or something of the daemon's own, whose name begins with a slash. A daemon sends them in groups, each
//! with its owner's name and a number. A new group replaces the older ones only when the daemon says so: until then its own record may
//! still refer to an older one. A group that differs little from an older one is *renewed*: only new descriptors are sent.
//!
//! A VMM can have its port send without end, and descriptors that take long to close. So each owner has its own limits: descriptors, and
//! among them those that wait to be closed (`closing.rs`); messages; lines in the log. What exceeds one of them is held no more, and the
//! daemon hears of it ([`kind::LOST`]); nothing else is touched. It may come again when all its descriptors are closed
//! ([`kind::FREE`]).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::budget::Budget;
use crate::channel::{Channel, FDS_MAX};
use crate::closing::Closing;
use crate::lines::{About, say_about};
use crate::protocol::{DESCRIPTORS_MAX, Why, kind};

/// Most owners: a daemon has one for each port.
pub(crate) const NAMES_MAX: usize = 4096;
/// Most groups of an owner at a time.
const GROUPS_MAX: usize = 4;
/// An owner may have at most this part of the descriptors that are free: however many owners take what they can, some are left.
const FREE_PART: usize = 4;
/// Descriptors that an owner may have in any case while others are free: a port with a few queues.
const FEW: usize = 64;
/// Descriptors that owners never get: for the keeper itself, and for those of one message.
const OWN: usize = 2 * FDS_MAX;
/// Messages about an owner at once, and a second. A VM that starts changes its interrupts some hundred times.
const MESSAGES: (u32, f64) = (4000, 200.0);
/// Longest name in bytes.
const NAME_MAX: usize = 255;
/// Time between two looks whether an owner may come again.
const LOOKS: Duration = Duration::from_secs(1);
/// In a renewed group: the next new descriptor.
const NEW: u16 = u16::MAX;

/// Descriptors that were held for a daemon that has ended.
#[derive(Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its number: a higher one is newer.
    pub number: u64,
    /// The descriptors, in the order in which they were sent.
    pub fds: Vec<OwnedFd>,
}

/// The content of a message about a group.
pub(crate) fn content(number: u64, name: &str) -> Vec<u8> {
    [&number.to_le_bytes(), name.as_bytes()].concat()
}

/// The number and the name in a message.
pub(crate) fn named(content: &[u8]) -> Option<(u64, String)> {
    let (number, name) = content.split_first_chunk()?;
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_MAX)?;
    Some((u64::from_le_bytes(*number), name.to_owned()))
}

/// The content of a message that renews a group: its number and name; the older group's number; and of each place in the new group the
/// place of the same descriptor in the older one, or `None` for the next new descriptor.
pub(crate) fn renewal(number: u64, name: &str, from: u64, places: &[Option<u16>]) -> Vec<u8> {
    let count = u16::try_from(places.len()).unwrap_or(NEW);
    let places = places.iter().flat_map(|place| place.unwrap_or(NEW).to_le_bytes());
    let head = number.to_le_bytes().into_iter().chain(from.to_le_bytes()).chain(count.to_le_bytes());
    head.chain(places).chain(name.bytes()).collect()
}

/// The number, the name, the older group's number and the places in such a message.
fn renewed(content: &[u8]) -> Option<(u64, String, u64, Vec<u16>)> {
    let (number, rest) = content.split_first_chunk()?;
    let (from, rest) = rest.split_first_chunk()?;
    let (count, rest) = rest.split_first_chunk()?;
    let (places, name) = rest.split_at_checked(2 * usize::from(u16::from_le_bytes(*count)))?;
    let places = places.as_chunks().0.iter().map(|place| u16::from_le_bytes(*place)).collect();
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_MAX)?;
    Some((u64::from_le_bytes(*number), name.to_owned(), u64::from_le_bytes(*from), places))
}

type Fds = Vec<Arc<OwnedFd>>;

/// Descriptors that are held for one owner.
#[derive(Debug)]
struct Owner {
    /// Groups by number, the oldest first.
    groups: Vec<(u64, Fds)>,
    /// Descriptors in them: one that is in several groups counts once.
    count: usize,
    closing: Closing,
    messages: Budget,
    /// Why nothing is held, if it exceeded a limit.
    lost: Option<Why>,
}

impl Owner {
    /// Takes the descriptors out of groups that were removed. The last group that has one closes it.
    fn close(&mut self, groups: impl IntoIterator<Item = Fds>) -> usize {
        let closed: Vec<OwnedFd> = groups.into_iter().flatten().filter_map(Arc::into_inner).collect();
        let count = closed.len();
        self.count -= count;
        self.closing.close(closed);
        count
    }

    fn is_idle(&mut self, now: Instant) -> bool {
        self.groups.is_empty() && self.lost.is_none() && self.closing.open() == 0 && self.messages.is_full(now)
    }
}

/// A daemon that hears what is not held.
#[derive(Debug)]
struct Hearer {
    channel: Channel,
    /// Owners of which it has not heard yet.
    untold: BTreeSet<String>,
}

/// Most of them: the daemon that serves, its heir, and some that are ending.
const HEARERS_MAX: usize = 4;

/// All that is held.
#[derive(Debug)]
pub(crate) struct Held {
    owners: BTreeMap<String, Owner>,
    /// Descriptors in all groups.
    count: usize,
    /// Descriptors of all owners that wait to be closed.
    closing: Arc<AtomicUsize>,
    /// Closes what has no owner.
    rest: Closing,
    /// Descriptors that this process may have for owners.
    limit: usize,
    hearers: Vec<Hearer>,
    looks_at: Instant,
}

impl Default for Held {
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile)
            .current
            .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Self::with(limit)
    }
}

impl Held {
    /// With so many descriptors in this process.
    fn with(limit: usize) -> Self {
        let closing = Arc::default();
        let rest = Closing::new(&closing);
        let (owners, hearers, looks_at) = (BTreeMap::new(), Vec::new(), Instant::now());
        let limit = limit - OWN.min(limit / 4);
        Self { owners, count: 0, closing, rest, limit, hearers, looks_at }
    }

    /// Closes what has no owner.
    pub fn close(&self, fds: impl IntoIterator<Item = OwnedFd>) {
        self.rest.close(fds);
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.count + self.closing.load(Ordering::Relaxed))
    }

    /// Whether a message with descriptors may be received: those that wait to be closed leave room for them.
    pub fn has_room(&self) -> bool {
        self.count + self.closing.load(Ordering::Relaxed) <= self.limit
    }

    /// Its owner, if a message about it may be taken now. Else the descriptors are closed.
    fn admit(&mut self, name: &str, fds: Vec<OwnedFd>, now: Instant) -> Option<Vec<OwnedFd>> {
        if self.owners.len() >= NAMES_MAX && !self.owners.contains_key(name) {
            self.owners.retain(|_, owner| !owner.is_idle(now));
            if self.owners.len() >= NAMES_MAX {
                self.close(fds);
                return None;
            }
        }
        let owner = self.owners.entry(name.to_owned()).or_insert_with(|| Owner {
            groups: Vec::new(),
            count: 0,
            closing: Closing::new(&self.closing),
            messages: Budget::new(MESSAGES.0, MESSAGES.1, now),
            lost: None,
        });
        let may = owner.messages.take(now);
        if owner.lost.is_some() {
            // The daemon has not heard it yet.
            owner.closing.close(fds);
            return None;
        }
        let waiting = owner.closing.open();
        let sum = owner.count + waiting + fds.len();
        // A new daemon's group is beside the old one's for a moment, and replaces it.
        let lasting = owner.count.max(fds.len()) + waiting;
        let why = if !may {
            Why::Often
        } else if sum > DESCRIPTORS_MAX {
            if waiting > owner.count { Why::Slow } else { Why::Many }
        } else if lasting > self.free() / FREE_PART && (lasting > FEW || self.free() < FEW) {
            Why::Full
        } else {
            return Some(fds);
        };
        self.lose(name, why, fds);
        None
    }

    /// Holds nothing of an owner any more.
    fn lose(&mut self, name: &str, why: Why, fds: Vec<OwnedFd>) {
        let Some(owner) = self.owners.get_mut(name) else { return };
        let groups = std::mem::take(&mut owner.groups);
        self.count -= owner.close(groups.into_iter().map(|(_, fds)| fds));
        owner.closing.close(fds);
        owner.lost = Some(why);
        say_about(About::Owner(name.to_owned()), &format!("{name} would not survive a kill of the daemon: {why}"));
        self.tell(name);
    }

    /// Holds a group. The daemon may be compromised: beyond the limits nothing of its owner is held.
    pub fn hold(&mut self, content: &[u8], fds: Vec<OwnedFd>, now: Instant) {
        let Some((number, name)) = named(content) else { return self.close(fds) };
        if let Some(fds) = self.admit(&name, fds, now) {
            let count = fds.len();
            self.add(&name, number, fds.into_iter().map(Arc::new).collect(), count);
        }
    }

    /// Holds a group with some descriptors of an older one.
    pub fn renew(&mut self, content: &[u8], fds: Vec<OwnedFd>, now: Instant) {
        let Some((number, name, from, places)) = renewed(content) else { return self.close(fds) };
        let Some(fds) = self.admit(&name, fds, now) else { return };
        let older = self.owners.get(&name).and_then(|owner| owner.groups.iter().find(|(number, _)| *number == from));
        let is_whole =
            places.len() <= DESCRIPTORS_MAX && places.iter().filter(|place| **place == NEW).count() == fds.len();
        let is_there =
            |(_, group): &&(u64, Fds)| places.iter().all(|place| *place == NEW || usize::from(*place) < group.len());
        let Some((_, older)) = older.filter(|_| is_whole).filter(is_there) else {
            return self.lose(&name, Why::Missing, fds);
        };
        let count = fds.len();
        let mut new = fds.into_iter().map(Arc::new);
        let pick = |place: &u16| if *place == NEW { new.next() } else { older.get(usize::from(*place)).cloned() };
        let group = places.iter().filter_map(pick).collect();
        self.add(&name, number, group, count);
    }

    /// Adds a group with so many new descriptors.
    fn add(&mut self, name: &str, number: u64, fds: Fds, new: usize) {
        let Some(owner) = self.owners.get_mut(name) else { return };
        owner.count += new;
        self.count += new;
        // A daemon's last message may be read after its heir's first one.
        if owner.groups.iter().any(|(other, _)| *other > number) {
            self.count -= owner.close([fds]);
            return;
        }
        owner.groups.push((number, fds));
        let surplus = owner.groups.len().saturating_sub(GROUPS_MAX);
        let surplus: Vec<Fds> = owner.groups.drain(..surplus).map(|(_, fds)| fds).collect();
        self.count -= owner.close(surplus);
    }

    /// Closes the groups of an owner below a number.
    pub fn forget(&mut self, content: &[u8], now: Instant) {
        let Some((number, name)) = named(content) else { return };
        let Some(owner) = self.owners.get_mut(&name) else { return };
        let _counted = owner.messages.take(now);
        let gone: Vec<Fds> = owner.groups.extract_if(.., |(other, _)| *other < number).map(|(_, fds)| fds).collect();
        self.count -= owner.close(gone);
        if owner.is_idle(now) {
            self.owners.remove(&name);
        }
    }

    /// A daemon hears there from now on what is not held.
    pub fn heard_by(&mut self, channel: Channel) {
        let lost = self.owners.iter().filter(|(_, owner)| owner.lost.is_some());
        self.hearers.push(Hearer { channel, untold: lost.map(|(name, _)| name.clone()).collect() });
        let surplus = self.hearers.len().saturating_sub(HEARERS_MAX);
        let gone: Vec<OwnedFd> = self.hearers.drain(..surplus).map(|hearer| hearer.channel.into()).collect();
        self.close(gone);
        self.tell_all();
    }

    fn tell(&mut self, name: &str) {
        self.hearers.iter_mut().for_each(|hearer| _ = hearer.untold.insert(name.to_owned()));
        self.tell_all();
    }

    /// Tells what was not told, as far as there is room.
    fn tell_all(&mut self) {
        for hearer in &mut self.hearers {
            while let Some(name) = hearer.untold.first() {
                let lost = self.owners.get(name).and_then(|owner| owner.lost);
                let (kind, number) = lost.map_or((kind::FREE, 0), |why| (kind::LOST, why.number()));
                match hearer.channel.send(kind, &content(number, name), &[], Duration::ZERO) {
                    Err(error) if error.is_passing() => break,
                    // It may have ended.
                    _ => _ = hearer.untold.pop_first(),
                }
            }
        }
    }

    /// Looks which owners may come again, tells what was not told, and closes what waits for a thread.
    pub fn look(&mut self, now: Instant) {
        if self.next().is_none_or(|at| now < at) {
            return;
        }
        self.looks_at = now + LOOKS;
        let _waits = self.rest.retry();
        let mut free = Vec::new();
        for (name, owner) in &mut self.owners {
            let _waits = owner.closing.retry();
            if owner.lost.is_some() && owner.closing.open() == 0 && owner.messages.is_calm(now) {
                owner.lost = None;
                free.push(name.clone());
            }
        }
        free.iter().for_each(|name| self.tell(name));
        self.tell_all();
    }

    /// The time of the next look, if there is something to look at.
    pub fn next(&self) -> Option<Instant> {
        let is_untold = self.hearers.iter().any(|hearer| !hearer.untold.is_empty());
        let waits = self.closing.load(Ordering::Relaxed) > 0;
        (is_untold || waits || self.owners.values().any(|owner| owner.lost.is_some())).then_some(self.looks_at)
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.owners.values().all(|owner| owner.groups.is_empty())
    }

    /// Each group: its owner's name, its number, its descriptors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64, &[Arc<OwnedFd>])> {
        self.owners
            .iter()
            .flat_map(|(name, owner)| owner.groups.iter().map(|(number, fds)| (name.as_str(), *number, fds.as_slice())))
    }
}

#[cfg(test)]
#[path = "../../peer/tests/lingering/mod.rs"]
mod lingering;

#[cfg(test)]
#[path = "held_test.rs"]
mod tests;
