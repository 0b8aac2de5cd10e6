//! The machine: what it holds, and how its parts take turns.

pub(crate) mod config;
mod course;
pub(crate) mod group;
pub(crate) mod kept;
pub(crate) mod report;
mod standing;
mod tenure;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use nicety_adapter::Time;

use crate::hosts::{Hop, Hosts};
use crate::record::{Keys, Name};
use crate::store::{Call, Event, Scope, WatchId};
use crate::{Action, Me, Terms, earlier};
use config::Configs;
use course::{Course, Refusals};
use group::Group;
use group::own::Write;
use standing::{Stage, Standing};

/// The settings of a machine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The fabric's name.
    pub fabric: Name,
    /// This host.
    pub me: Me,
    /// A random number of this start of the daemon.
    pub run: u64,
    /// For pauses, so that hosts do not ask at the same instant.
    pub seed: u64,
    /// Time limits.
    pub terms: Terms,
}

/// See the crate's page.
#[derive(Debug)]
pub struct Fabric {
    pub(crate) keys: Keys,
    pub(crate) me: Me,
    pub(crate) run: u64,
    pub(crate) terms: Terms,
    pub(crate) random: Random,
    pub(crate) last_call: Call,
    pub(crate) last_watch: WatchId,
    /// The highest revision of the store that was heard of.
    pub(crate) newest: i64,
    pub(crate) courses: BTreeMap<Scope, Course>,
    /// Scopes that are to be read.
    pub(crate) wants: BTreeSet<Scope>,
    pub(crate) watches: BTreeMap<WatchId, Scope>,
    pub(crate) refusals: Refusals,
    pub(crate) configs: Configs,
    /// The hosts were read anew for the next version of the configuration.
    pub(crate) is_read_for_config: bool,
    pub(crate) hosts: Hosts,
    /// Other hosts that may have changed since the tunnel was told of them.
    pub(crate) concerned: BTreeSet<Hop>,
    pub(crate) groups: BTreeMap<Name, Group>,
    /// Claims of other hosts, in all groups.
    pub(crate) claims: usize,
    /// When something that has vanished is believed gone.
    pub(crate) vanish_at: Option<Time>,
    /// Scopes of which keys were left out because there were too many hosts or claims.
    pub(crate) crowded: BTreeSet<Scope>,
    /// These are read again then, because there is room.
    pub(crate) room_at: Option<Time>,
    pub(crate) standing: Standing,
    /// Leases that have ended. What was read before may be older than that.
    pub(crate) registrations: u32,
    /// This host has been registered, and was not refused since: its tunnel may be used.
    pub(crate) is_admitted: bool,
    /// Groups with own keys that may differ from what they should be.
    pub(crate) dirty: BTreeSet<Name>,
    /// The transaction that writes own keys, and its lease.
    pub(crate) writing: Option<(Call, i64, Vec<Write>)>,
    pub(crate) write_at: Option<Time>,
    pub(crate) write_again_at: Time,
    pub(crate) write_failures: u32,
    pub(crate) learn_at: Time,
    /// Learned own addresses: all, and those of each port.
    pub(crate) learned_count: usize,
    pub(crate) learned: BTreeMap<Name, u16>,
    /// Ports behind which more addresses were learned than are claimed, as long as one of those is there.
    pub(crate) left_out: BTreeSet<Name>,
    /// Own keys of an earlier run whose ports have not started are deleted then.
    pub(crate) adopt_at: Option<Time>,
    pub(crate) actions: VecDeque<Action>,
}

impl Fabric {
    /// Of a host about which nothing is known. For one whose last known state was kept: [`Fabric::resume`].
    pub fn new(settings: Settings, now: Time) -> Self {
        let mut fabric = Self::empty(settings, now);
        fabric.follow(Scope::Config, now);
        fabric.follow(Scope::Hosts, now);
        fabric.tick(now);
        fabric
    }

    pub(crate) fn empty(settings: Settings, now: Time) -> Self {
        let Settings { fabric, me, run, seed, terms } = settings;
        Self {
            keys: Keys::new(&fabric),
            me,
            run,
            terms,
            random: Random(seed),
            last_call: 0,
            last_watch: 0,
            newest: 0,
            courses: BTreeMap::new(),
            wants: BTreeSet::new(),
            watches: BTreeMap::new(),
            refusals: Refusals::default(),
            configs: Configs::default(),
            is_read_for_config: false,
            hosts: Hosts::default(),
            concerned: BTreeSet::new(),
            groups: BTreeMap::new(),
            claims: 0,
            vanish_at: None,
            crowded: BTreeSet::new(),
            room_at: None,
            standing: Standing::new(now),
            registrations: 0,
            is_admitted: false,
            dirty: BTreeSet::new(),
            writing: None,
            write_at: None,
            write_again_at: Time::ZERO,
            write_failures: 0,
            learn_at: Time::ZERO,
            learned_count: 0,
            learned: BTreeMap::new(),
            left_out: BTreeSet::new(),
            adopt_at: None,
            actions: VecDeque::new(),
        }
    }

    /// The keys of this fabric: scopes and watches are prefixes of them.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// This host's lease, from when the store has granted it: whoever ends for good has it revoked, and its keys with it.
    pub fn lease(&self) -> Option<i64> {
        self.standing.lease()
    }

    /// The next thing to do.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(crate) fn call(&mut self) -> Call {
        self.last_call = self.last_call.wrapping_add(1);
        self.last_call
    }

    /// The pause after so many failures. It is up to a half shorter: not all hosts ask at the same instant.
    pub(crate) fn pause(&mut self, failures: u32) -> Duration {
        let whole = self.terms.pause_min * 2_u32.pow(failures.min(16));
        whole.min(self.terms.pause_max).mul_f64(0.5 + self.random.fraction() / 2.0)
    }

    pub(crate) fn follow(&mut self, scope: Scope, now: Time) {
        self.courses.insert(scope.clone(), Course::new(now));
        self.wants.insert(scope);
    }

    pub(crate) fn unfollow(&mut self, scope: &Scope) {
        self.wants.remove(scope);
        self.crowded.remove(scope);
        let Some(course) = self.courses.remove(scope) else { return };
        if course.watch != 0 {
            self.watches.remove(&course.watch);
            self.act(Action::Unwatch { watch: course.watch });
        }
    }

    /// The store says something.
    pub fn event(&mut self, event: Event, now: Time) {
        if self.standing.stage == Stage::Left {
            return;
        }
        match event {
            Event::Read { call, result } => self.was_read(call, result, now),
            Event::InTouch { watch, revision } => self.in_touch(watch, revision, now),
            Event::Put { watch, entry } => self.changed(watch, &entry, now),
            Event::Delete { watch, key, revision } => self.deleted(watch, &key, revision, now),
            Event::Broken { watch, why } => self.broken(watch, why, now),
            Event::Compacted { watch } => self.compacted(watch, now),
            Event::Granted { call, result } => self.was_granted(call, result, now),
            Event::Renewed { call, result } => self.was_renewed(call, result, now),
            Event::Transacted { call, result } => {
                self.was_written(call, &result, now);
                self.was_registered(call, result, now);
            }
        }
        self.tick(now);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Time) {
        self.vanish(now);
        self.disown(now);
        self.judge(now);
        self.stand(now);
        self.read_what_was_left_out(now);
        self.read(now);
        self.write(now);
    }

    /// When [`Fabric::tick`] must be called at the latest.
    pub fn wake_at(&self) -> Option<Time> {
        if self.standing.stage == Stage::Left {
            return None;
        }
        let vanish = earlier(earlier(self.vanish_at, self.room_at), self.adopt_at);
        let store = earlier(self.read_at(), self.standing_wake_at());
        earlier(earlier(vanish, store), self.write_at)
    }
}

/// A random number generator (SplitMix64): the same seed gives the same pauses.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// From 0 to below 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
