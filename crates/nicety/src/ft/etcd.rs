//! The lease in etcd: a key whose value is the text of a lease's file.
//!
//! A request reads the key, applies the lease's own rules, and writes the result in a transaction that compares the key's revision: of two
//! hosts that ask at once, one finds the key changed and begins again. etcd carries out a transaction after a majority has it, so there is
//! one order of all requests. No clock is shared, and etcd's own leases are not needed: a lease has expired for a host that has seen the
//! value unchanged for the lease's duration, by its own clock, as with the file.

use std::io;
use std::time::{Duration, Instant};

use nicety_daemon::tolerance::names::Names;
use nicety_etcd::{Answer as Found, Blocking, Client, Compare, Keys, Op, Settings, Txn};
use nicety_tolerance::{Answer, Lease, NodeId, Request};

use super::lease_file::{parse, print};
use super::third_party::ThirdParty;

/// Times that a request begins again because another host's came between.
const TRIES: usize = 5;
/// Longest answer, in bytes. A lease is one line.
const ANSWER_MAX: usize = 64 << 10;

/// See the module's page.
pub struct Etcd {
    etcd: Blocking,
    key: String,
    term: Duration,
    who: NodeId,
    /// The last change that this host has seen, and when.
    seen: Option<(Lease, Instant)>,
}

impl Etcd {
    /// The lease at this key of this etcd, for this host. A request's time limit is a third of the lease's.
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

    /// The lease, and the key's revision: 0 if there is none.
    fn read(&mut self) -> io::Result<(Lease, i64)> {
        let found = self.etcd.range(&Keys::one(&self.key), 1).map_err(io::Error::other)?;
        let Some(found) = found.values.into_iter().next() else { return Ok((Lease::default(), 0)) };
        let lease = String::from_utf8(found.value).ok().as_deref().and_then(parse);
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "the key has no lease");
        Ok((lease.ok_or_else(odd)?, found.mod_revision))
    }

    /// Writes the lease if the key still has this revision. It is sent once: a copy that comes later would not know whose lease it finds.
    fn write(&mut self, lease: &Lease, revision: i64) -> io::Result<bool> {
        let compare = vec![Compare::unchanged(&self.key, revision)];
        let txn = Txn { compare, then: vec![Op::put(&self.key, print(lease))], ..Txn::default() };
        Ok(self.etcd.txn(&txn).map_err(io::Error::other)?.succeeded)
    }
}

impl ThirdParty for Etcd {
    fn look(&mut self) {
        // One that does not answer says nothing new.
        if let Ok((lease, _)) = self.read() {
            self.notice(lease);
        }
    }

    fn ask(&mut self, request: Request) -> io::Result<Answer> {
        for _ in 0..TRIES {
            let (mut lease, revision) = self.read()?;
            self.notice(lease);
            let expired = self.seen.is_some_and(|(_, since)| since.elapsed() >= self.term);
            let answer = lease.ask(self.who, request, expired);
            if !answer.granted || self.write(&lease, revision)? {
                self.notice(lease);
                return Ok(answer);
            }
        }
        Err(io::Error::other("etcd: another host writes the lease all the time"))
    }
}
