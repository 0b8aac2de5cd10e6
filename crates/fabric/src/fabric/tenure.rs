//! Tunnel addresses: which host has claimed which one, and since when. And hosts and claims for which there was no room.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nicety_adapter::Time;

use crate::fabric::Fabric;
use crate::fabric::standing::Stage;
use crate::hosts::{HOSTS_MAX, Hop, Tenure};
use crate::record::{Key, Name};
use crate::store::{Entry, Scope};
use crate::{CLAIMS_MAX, earlier};

impl Fabric {
    /// The number of a host.
    ///
    /// # Errors
    /// A sentence: there are too many. The scope is read again when there is room.
    pub(crate) fn intern(&mut self, host: &Name, scope: &Scope) -> Result<Hop, String> {
        self.hosts.intern(host).ok_or_else(|| {
            self.crowded.insert(scope.clone());
            format!("there are more than {HOSTS_MAX} other hosts: this one is left out")
        })
    }

    /// The key of a claim of a tunnel address is there. Its value says nothing.
    pub(crate) fn tenure_is(&mut self, name: &Name, address: IpAddr, entry: &Entry) -> Result<(), String> {
        self.standing.are_hosts_new = true;
        if *name == self.me.host {
            self.hosts.my_tenures.insert(address, entry.created);
            return Ok(());
        }
        let hop = self.intern(name, &Scope::Hosts)?;
        let tenure = Tenure { created: entry.created, gone_at: None };
        let concerned = self.hosts.claim(hop, address, Some(tenure));
        self.show_hosts(concerned?);
        Ok(())
    }

    /// The key of a claim of a tunnel address was deleted at a revision, and is believed gone then.
    pub(crate) fn tenure_is_gone(
        &mut self,
        name: &Name,
        address: IpAddr,
        (revision, gone_at): (i64, Option<Time>),
        now: Time,
    ) {
        self.standing.are_hosts_new = true;
        if *name == self.me.host {
            self.hosts.my_tenures.remove(&address);
            // A stranger has deleted it, and not the end of the lease: that ends the host's key before this one.
            let is_lost =
                address == self.me.address && self.hosts.mine.as_ref().is_some_and(|mine| mine.modified < revision);
            if is_lost && self.standing.stage == Stage::Registered {
                self.standing.stage = Stage::Leased(now);
            }
            return;
        }
        let Some(hop) = self.hosts.find(name) else { return };
        self.tenure_vanishes(hop, address, gone_at.unwrap_or(now));
        if gone_at.is_none() {
            self.vanish(now);
        }
    }

    fn tenure_vanishes(&mut self, hop: Hop, address: IpAddr, at: Time) {
        let Some(gone_at) = self.hosts.tenure_gone_at(hop, address) else { return };
        let at = *gone_at.get_or_insert(at);
        self.vanish_at = earlier(self.vanish_at, Some(at));
    }

    /// Claims of tunnel addresses that are known and not there any more.
    pub(crate) fn tenures_vanished(&mut self, is_there: impl Fn(&Key) -> bool, at: Time) {
        let is_lost = |host: &Name, address| !is_there(&Key::Tunnel { host: host.clone(), address });
        let lost = self
            .hosts
            .tenures()
            .filter(|(hop, address, _)| self.hosts.get(*hop).is_some_and(|host| is_lost(&host.name, *address)));
        for (hop, address, _) in lost.collect::<Vec<_>>() {
            self.tenure_vanishes(hop, address, at);
        }
        let me = self.me.host.clone();
        self.hosts.my_tenures.retain(|address, _| !is_lost(&me, *address));
    }

    /// Removes the claims of tunnel addresses that are believed gone now.
    pub(crate) fn vanish_tenures(&mut self, now: Time) {
        let missing = self.hosts.tenures().filter_map(|(hop, address, tenure)| Some((hop, address, tenure.gone_at?)));
        for (hop, address, at) in missing.collect::<Vec<_>>() {
            if now < at {
                self.vanish_at = earlier(self.vanish_at, Some(at));
                continue;
            }
            self.standing.are_hosts_new = true;
            let concerned = self.hosts.claim(hop, address, None).unwrap_or_else(|_| BTreeSet::from([hop]));
            self.show_hosts(concerned);
            self.hosts.release(hop);
        }
    }

    /// Reads scopes again of which something was left out, one lease after there is room: room that comes and goes costs the store little.
    pub(crate) fn read_what_was_left_out(&mut self, now: Time) {
        if self.crowded.is_empty() || self.claims >= CLAIMS_MAX || !self.hosts.has_room() {
            self.room_at = None;
            return;
        }
        let lease = self.terms.lease;
        if now >= *self.room_at.get_or_insert(now.after(lease)) {
            self.room_at = None;
            for scope in std::mem::take(&mut self.crowded) {
                self.read_again(&scope, now);
            }
        }
    }
}
