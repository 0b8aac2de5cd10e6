//! A cluster of etcd on addresses of this machine.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nicety_etcd::{Answer, Blocking, Client, Keys, Settings};
use nicety_guests::Etcd;
use tempfile::TempDir;

use crate::SOON;

/// A member, which ends with this value.
struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        let _ended = (self.0.kill(), self.0.wait());
    }
}

/// See the module's page.
pub struct Cluster {
    etcd: Etcd,
    folder: TempDir,
    addresses: Vec<String>,
    members: Vec<Option<Member>>,
    /// Further arguments of each member.
    more: Vec<String>,
}

/// Addresses of this process and of one caller alone, so that ports need not be looked for.
pub fn addresses<const COUNT: usize>() -> [String; COUNT] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let number = usize::from(NEXT.fetch_add(1, Ordering::Relaxed));
    std::array::from_fn(|member| format!("127.{}.{low}.{}", 16 + high % 200, number * 8 + member))
}

impl Cluster {
    /// So many members, of which a majority answers.
    pub fn start<const COUNT: usize>() -> Self {
        Self::start_with::<COUNT>(&[])
    }

    /// The same with further arguments.
    pub fn start_with<const COUNT: usize>(more: &[&str]) -> Self {
        let more = more.iter().map(|&word| word.to_owned()).collect();
        let etcd = Etcd::lay(&mut |line| eprintln!("{line}")).unwrap();
        let (folder, addresses) = (TempDir::new().unwrap(), addresses::<COUNT>().to_vec());
        let mut this = Self { etcd, folder, addresses, members: Vec::new(), more };
        for member in 0..COUNT {
            this.members.push(None);
            this.run(member);
        }
        this.ready();
        this
    }

    /// Starts a member, or starts it again with what it has.
    pub fn run(&mut self, member: usize) {
        let peer = |(member, address): (usize, &String)| format!("m{member}=http://{address}:2380");
        let peers: Vec<String> = self.addresses.iter().enumerate().map(peer).collect();
        let address = &self.addresses[member];
        let (client, peer) = (format!("http://{address}:2379"), format!("http://{address}:2380"));
        let data = self.folder.path().join(format!("m{member}")).display().to_string();
        let log = File::options().append(true).create(true).open(self.folder.path().join("log")).unwrap();
        let mut command: Command = self.etcd.command();
        command.args([format!("--name=m{member}"), format!("--data-dir={data}")]);
        command.args([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")]);
        command.args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")]);
        command.arg(format!("--initial-cluster={}", peers.join(","))).args(&self.more);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.members[member] = Some(Member(child));
    }

    pub fn kill(&mut self, member: usize) {
        self.members[member] = None;
    }

    /// Debian's packages.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// The folder of all members: that of the first one's data is `m0`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// As a host file has them.
    pub fn endpoints(&self) -> String {
        let all: Vec<String> = self.addresses.iter().map(|address| format!("http://{address}:2379")).collect();
        all.join(",")
    }

    pub fn client(&self) -> Blocking {
        let settings = Settings::new(self.endpoints().split(',').map(|one| one.parse().unwrap()).collect());
        Blocking::new(Client::new(settings, |_: &str, _: u16, _: Answer| {}).unwrap()).unwrap()
    }

    /// Waits until it has a leader.
    pub fn ready(&self) {
        let (client, end) = (self.client(), Instant::now() + SOON);
        while let Err(error) = client.range(&Keys::one("ready"), 1) {
            let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(Instant::now() < end, "{error}\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Writes a key of the fabric.
    pub fn put(&self, key: &str, value: &str) {
        let (key, end) = (format!("/nicety/fabrics/prod/{key}"), Instant::now() + SOON);
        let client = self.client();
        while let Err(error) = client.wait(async |client| client.put(&key, value, 0).await) {
            assert!(Instant::now() < end, "{error}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The fabric's keys.
    pub fn keys(&self) -> Vec<String> {
        let found = self.client().range(&Keys::prefix("/nicety/fabrics/prod/"), 0).unwrap();
        found.values.into_iter().map(|found| String::from_utf8(found.key).unwrap()).collect()
    }
}
