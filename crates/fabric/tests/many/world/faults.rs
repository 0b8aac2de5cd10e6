//! What happens to hosts, to their guests, and to the store.

use std::net::{IpAddr, Ipv4Addr};

use nicety_fabric::WatchId;

use super::{Guest, LEASE, MS, What, World};

impl World {
    pub(super) fn appear(&mut self, guest: usize, host: usize) {
        if !self.hosts[host].is_on {
            return;
        }
        let Guest { group, mac, .. } = self.guests[guest];
        (self.guests[guest].at, self.guests[guest].expected_at) = (Some(host), None);
        self.had.insert((group, mac, host));
        self.tell(format!("guest {mac} is at h{host}"));
        self.needs(host);
        self.started(guest, host);
        self.actions(host);
    }

    /// A guest begins somewhere, after a moment.
    pub fn start(&mut self, guest: usize, host: usize, late: u64) {
        self.leave_expected(guest);
        self.guests[guest].moves += 1;
        let move_number = self.guests[guest].moves;
        self.at(self.now + late, What::Arrive { guest, host, move_number });
    }

    pub fn stop(&mut self, guest: usize) {
        self.leave_expected(guest);
        self.guests[guest].moves += 1;
        if let Some(host) = self.guests[guest].at.take() {
            self.tell(format!("guest {} stops at h{host}", self.guests[guest].mac));
            self.stopped(guest, host);
        }
    }

    /// The VMM that waits for a guest ends.
    fn leave_expected(&mut self, guest: usize) {
        if let Some(host) = self.guests[guest].expected_at.take() {
            self.stopped(guest, host);
        }
    }

    /// A guest moves: a VMM waits for it at the other host.
    pub fn migrate(&mut self, guest: usize, host: usize, late: u64) {
        if self.guests[guest].at.is_none_or(|from| from == host) || !self.hosts[host].is_on {
            return;
        }
        self.stop(guest);
        let Guest { group, mac, .. } = self.guests[guest];
        self.guests[guest].expected_at = Some(host);
        self.had.insert((group, mac, host));
        self.tell(format!("h{host}: a VMM waits for guest {mac}"));
        self.needs(host);
        self.expects(guest, host);
        self.actions(host);
        let move_number = self.guests[guest].moves;
        self.at(self.now + late, What::Arrive { guest, host, move_number });
    }

    /// A guest is begun elsewhere, and the daemon at its old place hears late that it has ended there.
    pub fn restart_elsewhere(&mut self, guest: usize, host: usize) {
        let Some(from) = self.guests[guest].at.take_if(|from| *from != host) else { return };
        self.tell(format!("guest {} dies at h{from}, which does not notice", self.guests[guest].mac));
        let late = self.random.below(200) * MS;
        self.start(guest, host, late);
        let when = self.now + self.random.below(3_000) * MS;
        self.at(when, What::Zombie { guest, host: from });
    }

    pub fn kill_daemon(&mut self, host: usize, is_kept: bool) {
        self.tell(format!("h{host}: the daemon is killed"));
        self.hosts[host].daemon = None;
        if !is_kept {
            self.hosts[host].kept = None;
        }
        let late = self.now + (50 + self.random.below(1_500)) * MS;
        self.at(late, What::Begin { host });
    }

    /// A host's tunnel gets another address, with a daemon that begins anew.
    pub fn readdress(&mut self, host: usize, address: IpAddr, is_kept: bool) {
        if !self.hosts[host].is_on {
            return;
        }
        self.tell(format!("h{host}: its tunnel has the address {address} from now on"));
        self.readdressed += 1;
        self.collisions += u64::from(self.hosts.iter().any(|other| other.address == address));
        let to = &mut self.hosts[host];
        to.address = address;
        to.addresses.insert(address);
        self.kill_daemon(host, is_kept);
    }

    /// An address that no host has had.
    pub fn fresh_address(&self) -> IpAddr {
        let [.., high, low] = self.readdressed.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(198, 18, high, low))
    }

    /// Of hosts with one address, all but the first get addresses of their own.
    pub fn tell_addresses_apart(&mut self) {
        for host in 0..self.hosts.len() {
            let address = self.hosts[host].address;
            if self.hosts[..host].iter().any(|other| other.is_on && other.address == address) {
                let fresh = self.fresh_address();
                self.readdress(host, fresh, true);
            }
        }
    }

    /// A host dies with all its guests. `None`: for good.
    pub fn kill_host(&mut self, host: usize, until: Option<u64>) {
        self.tell(format!("h{host} dies"));
        (self.hosts[host].daemon, self.hosts[host].kept) = (None, None);
        self.hosts[host].is_on = until.is_some();
        for guest in &mut self.guests {
            if guest.at == Some(host) {
                (guest.at, guest.moves) = (None, guest.moves + 1);
            }
            guest.expected_at.take_if(|at| *at == host);
        }
        if let Some(at) = until {
            self.at(at, What::Begin { host });
        }
    }

    pub fn cut(&mut self, host: usize, is_cut: bool) {
        if self.hosts[host].is_cut == is_cut {
            return;
        }
        self.tell(format!("h{host}: cut off {is_cut}"));
        self.hosts[host].is_cut = is_cut;
        self.reach(host, !is_cut);
    }

    pub fn majority(&mut self, has_majority: bool) {
        if self.store.has_majority == has_majority {
            return;
        }
        self.tell(format!("the store has a majority: {has_majority}"));
        if has_majority {
            self.store.regain(self.now);
            self.at(self.now + LEASE, What::Expire);
        } else {
            self.store.has_majority = false;
        }
        for host in 0..self.hosts.len() {
            self.reach(host, has_majority);
        }
    }

    /// A host's streams end, or are opened again.
    pub fn reach(&mut self, host: usize, is_reached: bool) {
        let now = self.now;
        self.hosts[host].heard_from = now;
        let Some(daemon) = &mut self.hosts[host].daemon else { return };
        daemon.away_since = (!is_reached).then_some(now);
        let number = daemon.number;
        let watches: Vec<WatchId> = daemon.watches.keys().copied().collect();
        for watch in watches {
            if is_reached {
                let late = now + self.random.below(300) * MS;
                self.at(late, What::Reopen { host, number, watch });
            } else {
                if let Some(watch) = self.daemon(host, number).and_then(|daemon| daemon.watches.get_mut(&watch)) {
                    watch.stream = None;
                }
                let late = now + self.random.below(300) * MS;
                self.at(late, What::Broken { host, number, watch });
            }
        }
    }

    /// A stream ends by itself.
    pub fn hang_up(&mut self, host: usize) {
        if !self.hosts[host].is_cut && self.store.has_majority {
            self.reach(host, false);
            self.reach(host, true);
        }
    }
}
