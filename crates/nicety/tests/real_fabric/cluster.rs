//! A cluster of etcd, and the fabric's keys in it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nicety_etcd::{Blocking, Keys};
use nicety_guests::Etcd;
use rustix::process::Signal;
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
        Self::serve(("http", addresses), None, more)
    }

    /// The same with TLS: a member at this address, the CA's certificate, and the options that name the server's.
    pub fn start_secure(address: String, ca: PathBuf, more: &[&str]) -> Self {
        Self::serve(("https", vec![address]), Some(ca), more)
    }

    fn serve(at: (&'static str, Vec<String>), ca: Option<PathBuf>, more: &[&str]) -> Self {
        let (etcd, folder) = (newer(), TempDir::new().unwrap());
        // A busy disk would only make them late: the machine itself does not crash.
        let more = [&["--unsafe-no-fsync"], more].concat();
        let mut servers = Servers::start(&etcd, folder.path(), at, &more);
        servers.ca = ca;
        Self { etcd, servers, folder }
    }

    /// Starts a member again with what it has.
    pub fn run(&mut self, member: usize) {
        self.servers.run(member);
    }

    pub fn kill(&mut self, member: usize) {
        self.servers.kill(member);
    }

    /// Sends a signal to a member, such as `STOP` and `CONT`.
    pub fn signal(&self, member: usize, signal: Signal) {
        self.servers.signal(member, signal);
    }

    /// The member that leads the others.
    pub fn leader(&self) -> usize {
        self.servers.leader()
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
    pub fn put(&self, key: &str, value: impl AsRef<[u8]>) {
        let (key, end) = (format!("/nicety/fabrics/prod/{key}"), Instant::now() + SOON);
        let (client, value) = (self.servers.client(None), value.as_ref());
        while let Err(error) = client.wait(async |client| client.put(&key, value, 0).await) {
            assert!(Instant::now() < end, "{error}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Deletes a key of the fabric, which is there.
    pub fn delete(&self, key: &str) {
        let keys = Keys::one(format!("/nicety/fabrics/prod/{key}"));
        self.servers.client(None).wait(|client| async move { client.delete(&keys).await }).unwrap();
    }

    /// The revision at which a key of the fabric was written, as hosts have the version of the configuration.
    pub fn version(&self, key: &str) -> i64 {
        let key = Keys::one(format!("/nicety/fabrics/prod/{key}"));
        self.servers.client(None).range(&key, 1).unwrap().values[0].mod_revision
    }

    /// The value of a key of the fabric, if it is there and is a text.
    pub fn value(&self, key: &str) -> Option<String> {
        let found = self.servers.client(None).range(&Keys::one(format!("/nicety/fabrics/prod/{key}")), 1).unwrap();
        String::from_utf8(found.values.into_iter().next()?.value).ok()
    }

    /// The fabric's keys, and the revision at which each was made.
    pub fn keys(&self) -> Vec<(String, i64)> {
        let found = self.servers.client(None).range(&Keys::prefix("/nicety/fabrics/prod/"), 0).unwrap();
        let key = |found: nicety_etcd::KeyValue| (String::from_utf8(found.key).unwrap(), found.create_revision);
        found.values.into_iter().map(key).collect()
    }
}
