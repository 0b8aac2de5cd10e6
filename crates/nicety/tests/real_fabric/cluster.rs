//! A cluster of etcd, and the fabric's keys in it.

use std::path::Path;
use std::time::{Duration, Instant};

use nicety_etcd::{Blocking, Keys};
use nicety_guests::Etcd;
use tempfile::TempDir;

use crate::SOON;
use crate::etcd_servers::{Servers, addresses, newer};

/// See the module's page.
pub struct Cluster {
    etcd: Etcd,
    servers: Servers,
    folder: TempDir,
}

impl Cluster {
    /// So many members, of which a majority answers.
    pub fn start<const COUNT: usize>() -> Self {
        Self::start_with::<COUNT>(&[])
    }

    /// The same with further arguments.
    pub fn start_with<const COUNT: usize>(more: &[&str]) -> Self {
        let this = Self::start_at(addresses::<COUNT>().into(), more);
        this.ready();
        this
    }

    /// Members at these addresses. They are not [ready](Cluster::ready).
    pub fn start_at(addresses: Vec<String>, more: &[&str]) -> Self {
        let (etcd, folder) = (newer(), TempDir::new().unwrap());
        let servers = Servers::start(&etcd, folder.path(), ("http", addresses), more);
        Self { etcd, servers, folder }
    }

    /// Starts a member again with what it has.
    pub fn run(&mut self, member: usize) {
        self.servers.run(member);
    }

    pub fn kill(&mut self, member: usize) {
        self.servers.kill(member);
    }

    /// Debian's packages.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// The folder of all members: that of the first one's data is `m0`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The endpoints, as text for a host file.
    pub fn endpoints(&self) -> String {
        self.servers.endpoints()
    }

    pub fn client(&self) -> Blocking {
        self.servers.client(None)
    }

    /// Waits until it has a leader.
    pub fn ready(&self) {
        self.servers.ready();
    }

    /// Writes a key of the fabric.
    pub fn put(&self, key: &str, value: &str) {
        let (key, end) = (format!("/nicety/fabrics/prod/{key}"), Instant::now() + SOON);
        let client = self.servers.client(None);
        while let Err(error) = client.wait(async |client| client.put(&key, value, 0).await) {
            assert!(Instant::now() < end, "{error}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The fabric's keys, and the revision at which each was made.
    pub fn keys(&self) -> Vec<(String, i64)> {
        let found = self.servers.client(None).range(&Keys::prefix("/nicety/fabrics/prod/"), 0).unwrap();
        let key = |found: nicety_etcd::KeyValue| (String::from_utf8(found.key).unwrap(), found.create_revision);
        found.values.into_iter().map(key).collect()
    }
}
