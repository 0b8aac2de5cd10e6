//! The lease in a file that both hosts can lock (flock(2)): on this machine, or on storage that they share.
//!
//! ```text
//! holder 1f3a…   the owner, or `-`
//! peer   77c0…   who may take over, or `-`
//! epoch  3
//! renewals 1042
//! past 90ce… 1f3a…
//! ```
//!
//! No clock is shared: a lease has expired for a host that has seen the file unchanged for the lease's duration, by its own clock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Answer, Lease, NodeId, Request};
use rustix::fs::{FlockOperation, flock};

use crate::ThirdParty;

/// See the module's page.
#[derive(Debug)]
pub struct LeaseFile {
    path: PathBuf,
    term: Duration,
    who: NodeId,
    /// The file's last change that this host has seen, and when.
    seen: Option<(Lease, Instant)>,
}

impl LeaseFile {
    /// The lease at `path`, for this host. The file need not exist.
    pub fn new(path: &Path, term: Duration, who: NodeId) -> Self {
        Self { path: path.to_owned(), term, who, seen: None }
    }

    fn notice(&mut self, lease: Lease) {
        if self.seen.is_none_or(|(seen, _)| seen != lease) {
            self.seen = Some((lease, Instant::now()));
        }
    }

    fn read(&self) -> io::Result<Lease> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lease::default()),
            Err(error) => return Err(error),
        };
        parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is no lease"))
    }

    /// Replaces the file whole. A renewal need not last: a count that a crash of the machine takes back is a change like another, and
    /// a disk that takes a second to sync would cost the lease.
    fn write(&self, lease: &Lease, lasts: bool) -> io::Result<()> {
        let new = self.path.with_added_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(print(lease).as_bytes())?;
        if lasts {
            file.sync_all()?;
        }
        fs::rename(&new, &self.path)
    }
}

impl ThirdParty for LeaseFile {
    fn look(&mut self) {
        // A file that cannot be read says nothing new.
        if let Ok(lease) = self.read() {
            self.notice(lease);
        }
    }

    fn ask(&mut self, request: Request) -> io::Result<Answer> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display()));
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(self.path.with_added_extension("lock"));
        let lock = lock.map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
        let mut lease = self.read().map_err(failed)?;
        self.notice(lease);
        let expired = self.seen.is_some_and(|(_, since)| since.elapsed() >= self.term);
        let answer = lease.ask(self.who, request, expired);
        if answer.granted {
            self.write(&lease, request != Request::Renew)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display())))?;
            self.notice(lease);
        }
        Ok(answer)
    }
}

/// A lease as text.
pub fn print(lease: &Lease) -> String {
    let id = |id: Option<NodeId>| id.map_or_else(|| "-".to_owned(), |id| format!("{:016x}", id.0));
    let Lease { holder, peer, epoch, renewals, past } = *lease;
    let past: String = past.into_iter().flatten().map(|run| format!(" {:016x}", run.0)).collect();
    format!("holder {}\npeer {}\nepoch {epoch}\nrenewals {renewals}\npast{past}\n", id(holder), id(peer))
}

/// A lease of its text.
pub fn parse(text: &str) -> Option<Lease> {
    let mut lines = text.lines();
    let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let id = |text: &str| match text {
        "-" => Some(None),
        text => u64::from_str_radix(text, 16).ok().map(|id| Some(NodeId(id))),
    };
    let holder = id(value("holder")?)?;
    let peer = id(value("peer")?)?;
    let epoch = value("epoch")?.parse().ok()?;
    let renewals = value("renewals")?.parse().ok()?;
    // A lease of an earlier version has no such line.
    let mut runs = lines.next().unwrap_or("past").strip_prefix("past")?.split_whitespace();
    let mut past = Lease::default().past;
    for (to, run) in past.iter_mut().zip(&mut runs) {
        *to = id(run)?;
    }
    Some(Lease { holder, peer, epoch, renewals, past })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_read_as_it_was_written() {
        let mut lease = Lease {
            holder: Some(NodeId(u64::MAX)),
            peer: Some(NodeId(7)),
            epoch: 3,
            renewals: 12,
            past: Lease::default().past,
        };
        assert_eq!(parse(&print(&lease)), Some(lease));
        lease.past[..2].copy_from_slice(&[Some(NodeId(9)), Some(NodeId(8))]);
        assert_eq!(parse(&print(&lease)), Some(lease));
        assert_eq!(parse("holder -\npeer -\nepoch 0\nrenewals 0\n"), Some(Lease::default()));
        assert_eq!(parse(&print(&Lease::default())), Some(Lease::default()));
        assert_eq!(parse("holder x\n"), None);
    }

    #[test]
    fn a_peer_takes_a_lease_that_nobody_renews_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let (path, term) = (folder.path().join("lease"), Duration::from_millis(40));
        let [mut one, mut other] = [1, 2].map(|id| LeaseFile::new(&path, term, NodeId(id)));
        assert!(one.ask(Request::Found).unwrap().granted);
        assert!(!other.ask(Request::Take).unwrap().granted, "it is not the peer");
        assert!(one.ask(Request::Pair { epoch: 1, peer: NodeId(2) }).unwrap().granted);
        let begun = Instant::now();
        while begun.elapsed() < 3 * term {
            assert!(one.ask(Request::Renew).unwrap().granted);
            assert!(!other.ask(Request::Take).unwrap().granted, "the owner renews");
        }
        std::thread::sleep(term);
        assert!(other.ask(Request::Take).unwrap().granted);
        assert!(!one.ask(Request::Renew).unwrap().granted);
        // A lease that is given back is taken at once, but only by the peer.
        assert!(other.ask(Request::Pair { epoch: 3, peer: NodeId(1) }).unwrap().granted);
        assert!(other.ask(Request::Release).unwrap().granted);
        let mut third = LeaseFile::new(&path, term, NodeId(3));
        assert!(!third.ask(Request::Found).unwrap().granted && !third.ask(Request::Take).unwrap().granted);
        assert!(one.ask(Request::Take).unwrap().granted);
        // Without a peer the guest is gone, and another one may begin.
        assert!(one.ask(Request::Release).unwrap().granted);
        assert!(third.ask(Request::Found).unwrap().granted);
    }

    /// On a full disk, for example.
    #[test]
    fn a_lease_that_cannot_be_written_is_not_granted_and_the_reason_names_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lease");
        let mut one = LeaseFile::new(&path, Duration::from_secs(1), NodeId(1));
        let place = folder.path().join("lease.new");
        fs::create_dir(&place).unwrap();
        let error = one.ask(Request::Found).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert!(!path.exists());
        fs::remove_dir(&place).unwrap();
        assert!(one.ask(Request::Found).unwrap().granted);
    }
}
