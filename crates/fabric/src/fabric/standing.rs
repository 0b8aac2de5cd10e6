//! The writing side's right to write: this host's lease, and its own key.

use std::time::Duration;

use nicety_adapter::Time;

use crate::Action;
use crate::fabric::Fabric;
use crate::hosts::Known;
use crate::record::{HostRecord, Key};
use crate::store::{Call, Compare, Entry, Op, Outcome, Scope, Transaction, Trouble};

/// Claims of other tunnel addresses, which strangers have made, that one registration deletes.
const OTHERS_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has no lease. One is made then, once the hosts are read.
    Idle(Time),
    Granting(Call, Time),
    /// It has a lease, and registers then.
    Leased(Time),
    Registering(Call),
    Registered,
    /// Another host has its name or its tunnel address.
    Refused(String),
    /// An administrator has taken it out.
    Left,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    id: i64,
    /// The store lets it end then, unless it is renewed.
    pub(crate) until: Time,
    renew_at: Time,
    renewing: Option<(Call, Time)>,
    failures: u32,
}

/// See the file's page.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) stage: Stage,
    pub(crate) lease: Option<Lease>,
    /// Hosts have changed since names and addresses were compared.
    pub(crate) are_hosts_new: bool,
    failures: u32,
    /// The revision at which the own key was written last.
    pub(crate) registered_at: i64,
    /// The run of before, until the own key is written with the new one.
    former_run: Option<u64>,
    /// The last trouble.
    pub(crate) why: String,
}

impl Standing {
    pub(crate) fn new(now: Time) -> Self {
        let why = "it has just begun".to_owned();
        Self {
            stage: Stage::Idle(now),
            lease: None,
            are_hosts_new: true,
            failures: 0,
            registered_at: 0,
            former_run: None,
            why,
        }
    }

    pub(crate) fn lease(&self) -> Option<i64> {
        self.lease.map(|lease| lease.id)
    }

    /// The lease, if this host's own key is bound to it.
    pub(crate) fn registered(&self) -> Option<i64> {
        if self.stage == Stage::Registered { self.lease() } else { None }
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        let renew = self.lease.filter(|lease| lease.renewing.is_none()).map(|lease| lease.renew_at);
        match self.stage {
            Stage::Idle(at) | Stage::Leased(at) => Some(at),
            Stage::Registered => renew,
            Stage::Granting(..) | Stage::Registering(_) | Stage::Refused(_) | Stage::Left => None,
        }
    }
}

impl Fabric {
    /// Why this host may not be in the fabric, if somebody was there before.
    fn conflict(&self) -> Option<String> {
        let me = &self.me;
        let claimed = self.hosts.my_tenures.get(&me.address).map(|&created| (created, &me.host));
        if let Some((_, host)) = self.hosts.first_with(me.address, claimed) {
            return Some(format!(
                "host {:?} has the tunnel address {} already, so host {:?}, which has the same one, is refused: give one of them another \
                 address",
                host.as_str(),
                me.address,
                me.host.as_str()
            ));
        }
        let HostRecord { address, run, version, .. } = &self.hosts.mine.as_ref()?.record;
        (*run != self.run).then(|| {
            format!(
                "a host with the name {:?} is registered already: tunnel address {address}, version {version}, run {run:016x}. This one \
                 (tunnel address {}, run {:016x}) is refused: give it another name. If that was an earlier run on this host, its lease \
                 ends within {:?}",
                me.host.as_str(),
                me.address,
                self.run,
                self.terms.lease
            )
        })
    }

    /// Finds out whether this host may be in the fabric, if hosts have changed. Only then the tunnel is told of other hosts: a host that is
    /// refused sends nothing to them before, and takes nothing from them.
    pub(crate) fn judge(&mut self, now: Time) {
        if self.standing.stage != Stage::Left && std::mem::take(&mut self.standing.are_hosts_new) {
            match self.conflict() {
                Some(why) => self.refuse(why),
                None if matches!(self.standing.stage, Stage::Refused(_)) => self.stand_again(now, Duration::ZERO),
                None => {}
            }
        }
        self.tell_hosts();
    }

    /// Does what is due for the lease and the own key.
    pub(crate) fn stand(&mut self, now: Time) {
        match self.standing.stage {
            // It has had no lease for long. Watches that are silent may not have told everything since.
            Stage::Idle(at) if now >= at && self.is_current() && !self.is_recent(now) => {
                self.stand_again(now, self.terms.pause_max);
            }
            Stage::Idle(at) if now >= at && self.is_current() => {
                let call = self.call();
                self.standing.stage = Stage::Granting(call, now);
                self.act(Action::Grant { call, time_to_live: self.terms.lease });
            }
            Stage::Leased(at) if now >= at && self.is_current() => self.register(),
            Stage::Registered => self.renew(now),
            _ => {}
        }
    }

    /// Whether this host may be seen by others: it knows the hosts and the configuration since its last lease has ended, and has applied
    /// that. Else it would send frames of one group with a number that is another's now.
    fn is_current(&self) -> bool {
        let is_read =
            |scope| self.courses.get(&scope).is_some_and(|course| course.read_for == Some(self.registrations));
        let is_applied = self.configs.applying.is_none() && self.configs.next.is_none();
        is_read(Scope::Hosts) && is_read(Scope::Config) && is_applied
    }

    /// Whether that was read within a lease.
    fn is_recent(&self, now: Time) -> bool {
        let mut courses = [Scope::Hosts, Scope::Config].iter().filter_map(|scope| self.courses.get(scope));
        courses.all(|course| now.since(course.read_at) <= self.terms.lease)
    }

    pub(crate) fn own_record(&self) -> HostRecord {
        HostRecord { address: self.me.address, mtu: self.me.mtu, run: self.run, version: self.me.version.clone() }
    }

    fn register(&mut self) {
        let Some(lease) = self.standing.lease() else { return };
        let call = self.call();
        let key = self.keys.text(&Key::Host(self.me.host.clone()));
        // Only a key of this run is written again.
        let revision = self.hosts.mine.as_ref().map_or(0, |mine| mine.modified);
        let record = self.own_record();
        let compares = vec![Compare::Modified { key: key.clone(), revision }];
        // The address's key comes first, so that other hosts never see the record without it. It says nothing but that it is there.
        let tunnel = |address| self.keys.text(&Key::Tunnel { host: self.me.host.clone(), address });
        let mut ops = vec![
            Op::Put { key: tunnel(self.me.address), value: "{}".to_owned(), lease },
            Op::Put { key: key.clone(), value: record.text(), lease },
        ];
        let others = self.hosts.my_tenures.keys().filter(|address| **address != self.me.address);
        ops.extend(others.take(OTHERS_MAX).map(|&address| Op::Delete { key: tunnel(address) }));
        self.standing.stage = Stage::Registering(call);
        self.act(Action::Transact { call, transaction: Transaction { compares, ops, otherwise: Some(key) } });
    }

    fn renew(&mut self, now: Time) {
        let call = self.last_call.wrapping_add(1);
        let Some(lease) = &mut self.standing.lease else { return };
        if lease.renewing.is_none() && now >= lease.renew_at {
            self.last_call = call;
            lease.renewing = Some((call, now));
            let lease = lease.id;
            self.act(Action::Renew { call, lease });
        }
    }

    fn refuse(&mut self, why: String) {
        if let Some(lease) = self.standing.lease.take() {
            self.act(Action::Revoke { lease: lease.id });
        }
        self.standing.stage = Stage::Refused(why);
        self.is_admitted = false;
        self.show_all_hosts();
    }

    /// It may register, and has no lease. Without one it may have missed something, so it reads everything first, up to so much later.
    fn stand_again(&mut self, now: Time, within: Duration) {
        self.standing.stage = Stage::Idle(now);
        self.registrations += 1;
        self.read_everything_again(now, within);
    }

    /// A lease was granted, or not.
    pub(crate) fn was_granted(&mut self, call: Call, result: Result<i64, Trouble>, now: Time) {
        let asked = match self.standing.stage {
            Stage::Granting(granting, asked) if granting == call => asked,
            // Nobody waits for it any more.
            _ => {
                if let Ok(lease) = result {
                    self.act(Action::Revoke { lease });
                }
                return;
            }
        };
        match result {
            Ok(id) => {
                let (until, renew_at) = (asked.after(self.terms.lease), asked.after(self.terms.lease / 3));
                self.standing.lease = Some(Lease { id, until, renew_at, renewing: None, failures: 0 });
                self.standing.stage = Stage::Leased(now);
                self.standing.failures = 0;
            }
            Err(trouble) => {
                self.standing.why = trouble.text();
                self.standing.stage = Stage::Idle(now.after(self.pause(self.standing.failures)));
                self.standing.failures += 1;
            }
        }
    }

    /// The lease was renewed, or not.
    pub(crate) fn was_renewed(&mut self, call: Call, result: Result<(), Trouble>, now: Time) {
        let Some(lease) = &mut self.standing.lease else { return };
        let Some((_, asked)) = lease.renewing.take_if(|(renewing, _)| *renewing == call) else { return };
        match result {
            Ok(()) => {
                (lease.until, lease.renew_at) = (asked.after(self.terms.lease), asked.after(self.terms.lease / 3));
                lease.failures = 0;
                self.standing.why.clear();
            }
            Err(Trouble::LeaseGone) => {
                let id = lease.id;
                self.lease_is_gone(id, now);
            }
            Err(Trouble::Failed(why)) => {
                let failures = lease.failures;
                lease.failures += 1;
                let at = now.after(self.pause(failures));
                if let Some(lease) = &mut self.standing.lease {
                    lease.renew_at = at;
                }
                self.standing.why = why;
            }
        }
    }

    /// The own key was written, or not.
    pub(crate) fn was_registered(&mut self, call: Call, result: Result<Outcome, Trouble>, now: Time) {
        if self.standing.stage != Stage::Registering(call) {
            return;
        }
        match result {
            Ok(outcome) if outcome.is_done => {
                self.newest = self.newest.max(outcome.revision);
                self.standing.stage = Stage::Registered;
                (self.standing.registered_at, self.standing.former_run) = (outcome.revision, None);
                self.standing.why.clear();
                self.standing.failures = 0;
                self.is_admitted = true;
                self.show_all_hosts();
                self.write_all_again();
            }
            Ok(outcome) => self.registration_lost(&outcome, now),
            Err(Trouble::LeaseGone) => {
                let lease = self.standing.lease().unwrap_or(0);
                self.lease_is_gone(lease, now);
            }
            Err(Trouble::Failed(why)) => {
                self.standing.why = why;
                self.standing.stage = Stage::Leased(now.after(self.pause(self.standing.failures)));
                self.standing.failures += 1;
            }
        }
    }

    /// The own key is not as this host has written it.
    pub(crate) fn registration_lost(&mut self, outcome: &Outcome, now: Time) {
        let host = self.me.host.clone();
        match &outcome.found {
            Some(entry) => {
                if let Err(why) = self.host_is(&host, entry, now) {
                    self.refusals.note(&Scope::Hosts, &entry.key, why);
                }
            }
            None => self.host_is_gone(&host, None, now),
        }
        self.register_again(now);
    }

    /// The own key has gone, or is not this host's any more, and the lease may still live.
    pub(crate) fn register_again(&mut self, now: Time) {
        if matches!(self.standing.stage, Stage::Registered | Stage::Registering(_)) {
            self.standing.stage = Stage::Leased(now.after(self.pause(self.standing.failures)));
            self.standing.failures += 1;
        }
    }

    /// Whether somebody else has written the own key, and has no right to it: a stranger without a lease, or a daemon that has this run. That
    /// one's machine is a copy of this one, with its last known state.
    pub(crate) fn is_spoiled(&self, entry: &Entry) -> bool {
        let run = HostRecord::parse(&entry.value).ok().map(|record| record.run);
        let is_newer = entry.modified > self.standing.registered_at;
        let is_copy = self.standing.registered().is_some_and(|lease| lease != entry.lease) && is_newer;
        entry.lease == 0 || is_copy && run == Some(self.run) || run.is_some() && run == self.standing.former_run
    }

    /// The own key [is spoiled](Self::is_spoiled). It is written again, with a run that nobody else has: so a copy is refused.
    pub(crate) fn own_host_key_is_spoiled(&mut self, entry: &Entry, now: Time) -> Result<(), String> {
        if entry.lease != 0 && self.standing.former_run.is_none() {
            self.standing.former_run = Some(std::mem::replace(&mut self.run, self.random.number()));
        }
        let modified = entry.modified;
        self.hosts.mine = Some(Known { record: self.own_record(), modified, since: now, gone_at: None });
        self.register_again(now);
        HostRecord::parse(&entry.value).map(drop)
    }

    /// The store has let the lease end, and this host's keys with it. Others may have claimed its addresses meanwhile: it reads first.
    pub(crate) fn lease_is_gone(&mut self, id: i64, now: Time) {
        if self.standing.lease() != Some(id) {
            return;
        }
        self.standing.lease = None;
        self.standing.why = Trouble::LeaseGone.text();
        self.stand_again(now, self.terms.pause_max);
    }

    /// An administrator takes this host out of the fabric.
    pub fn leave(&mut self, now: Time) {
        let scopes: Vec<Scope> = self.courses.keys().cloned().collect();
        scopes.iter().for_each(|scope| self.unfollow(scope));
        if let Some(lease) = self.standing.lease.take() {
            self.act(Action::Revoke { lease: lease.id });
        }
        self.standing.stage = Stage::Left;
        self.is_admitted = false;
        self.show_all_hosts();
        self.tick(now);
    }

    pub(crate) fn standing_wake_at(&self) -> Option<Time> {
        let at = self.standing.wake_at();
        let waits_for_read = matches!(self.standing.stage, Stage::Idle(_) | Stage::Leased(_)) && !self.is_current();
        at.filter(|_| !waits_for_read)
    }
}
