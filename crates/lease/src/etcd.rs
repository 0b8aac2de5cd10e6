//! The lease in etcd: a key whose value is the text of a lease's file.
//!
//! A request reads the key, applies the lease's own rules, and writes the result in a transaction that compares the key's revision. If two
//! hosts ask at once, one finds the key changed and begins again. etcd carries out a transaction after a majority has it, so there is one
//! order of all requests.
//!
//! No clock is shared, and etcd's own leases are not needed. A lease has expired for a host that has seen the value unchanged for the
//! lease's duration, by its own clock. It is the same with the file.

use std::io;
use std::time::{Duration, Instant};

use nicety_etcd::{Answer as Found, Blocking, Client, Compare, Keys, Op, Settings, Txn};
use nicety_names::Names;
use nicety_sandbox::Kind;

use crate::asker::ThirdParty;
use crate::lease::{Answer, Lease, NodeId, Request};

/// Times that a request begins again because another host's came between.
const TRIES: usize = 5;
/// Longest answer, in bytes. A lease is one line.
const ANSWER_MAX: usize = 64 << 10;

/// See the module's page.
pub struct LeaseInEtcd {
    etcd: Blocking,
    key: String,
    term: Duration,
    who: NodeId,
    /// The last change that this host has seen, and when.
    seen: Option<(Lease, Instant)>,
}

impl std::fmt::Debug for LeaseInEtcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { etcd: _, key, term, who, seen } = self;
        let mut shown = f.debug_struct("LeaseInEtcd");
        shown.field("key", key).field("term", term).field("who", who).field("seen", seen).finish()
    }
}

impl LeaseInEtcd {
    /// The lease at this key of this etcd, for this host. A request takes a third of the lease's time at most, with all that it does.
    ///
    /// # Errors
    /// The settings cannot be used. For a person.
    pub fn new(settings: Settings, names: Names, key: &str, term: Duration, who: NodeId) -> Result<Self, String> {
        let settings = Settings { limit: term / 3, answer_max: ANSWER_MAX, ..settings };
        let resolver = move |host: &str, port: u16, answer: Found| names.look_up(host, port, answer);
        let client = Client::new(settings, resolver).map_err(|error| error.to_string())?;
        let etcd = Blocking::new(client).map_err(|error| error.to_string())?;
        Ok(Self { etcd, key: key.to_owned(), term, who, seen: None })
    }

    fn notice(&mut self, lease: Lease) {
        if self.seen.is_none_or(|(seen, _)| seen != lease) {
            self.seen = Some((lease, Instant::now()));
        }
    }

    /// The end of a request that begins now.
    fn end(&self) -> Instant {
        Instant::now() + self.term / 3
    }

    /// The lease, and the key's revision: 0 if there is none.
    fn read(&mut self, end: Instant) -> io::Result<(Lease, i64)> {
        let keys = Keys::one(&self.key);
        let found = self.etcd.wait(|client| async move { client.until(end).range(&keys, 1).await });
        let Some(found) = found.map_err(io::Error::other)?.values.into_iter().next() else {
            return Ok((Lease::default(), 0));
        };
        let lease = String::from_utf8(found.value).ok().and_then(|text| text.parse().ok());
        let odd = || {
            let what = format!("etcd: the key {} has a value that is no lease: delete it if no host uses it", self.key);
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        Ok((lease.ok_or_else(odd)?, found.mod_revision))
    }

    /// Writes the lease if the key still has this revision. It is sent once: a copy that comes later would not know whose lease it finds.
    fn write(&mut self, lease: &Lease, revision: i64, end: Instant) -> io::Result<bool> {
        let compare = vec![Compare::unchanged(&self.key, revision)];
        let txn = Txn { compare, then: vec![Op::put(&self.key, lease.to_string())], ..Txn::default() };
        let done = self.etcd.wait(|client| async move { client.until(end).txn(&txn).await });
        Ok(done.map_err(io::Error::other)?.succeeded)
    }
}

impl ThirdParty for LeaseInEtcd {
    fn kind(&self) -> Kind {
        Kind::LeaseEtcd
    }

    fn be(&mut self, who: NodeId) {
        self.who = who;
    }

    fn look(&mut self) {
        // One that does not answer says nothing new.
        if let Ok((lease, _)) = self.read(self.end()) {
            self.notice(lease);
        }
    }

    fn ask(&mut self, request: Request) -> io::Result<Answer> {
        let end = self.end();
        for _ in 0..TRIES {
            let (mut lease, revision) = self.read(end)?;
            self.notice(lease);
            let expired = self.seen.is_some_and(|(_, since)| since.elapsed() >= self.term);
            let answer = lease.ask(self.who, request, expired);
            if !answer.granted || self.write(&lease, revision, end)? {
                self.notice(lease);
                return Ok(answer);
            }
        }
        Err(io::Error::other("etcd: another host writes the lease all the time"))
    }
}

#[cfg(test)]
#[path = "etcd_test.rs"]
mod tests;
