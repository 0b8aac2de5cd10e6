//! Servers of etcd on addresses of this machine.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nicety_etcd::{Answer, Blocking, Client, Keys, Pem, Settings, User};
use nicety_guests::Etcd;
use rustix::process::{Pid, Signal, kill_process};

/// Time limit for everything that should take a second or two, on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

pub fn newer() -> Etcd {
    Etcd::lay(&mut |line| eprintln!("{line}")).unwrap()
}

pub fn older() -> Etcd {
    Etcd::lay_older(&mut |line| eprintln!("{line}")).unwrap()
}

/// Most addresses of one caller.
const ADDRESSES_MAX: usize = 4;

/// Addresses of this process and of one caller alone, so that ports need not be looked for.
pub fn addresses<const COUNT: usize>() -> [String; COUNT] {
    const { assert!(COUNT <= ADDRESSES_MAX) };
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let number = usize::from(NEXT.fetch_add(1, Ordering::Relaxed));
    std::array::from_fn(|member| format!("127.{}.{low}.{}", 16 + high % 200, number * ADDRESSES_MAX + member))
}

/// A member, which ends with this value.
struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        let _ended = (self.0.kill(), self.0.wait());
    }
}

/// See the module's page. Their data, and their log `etcd.log`, are in a folder that must outlive them.
pub struct Servers {
    etcd: Etcd,
    folder: PathBuf,
    scheme: &'static str,
    pub addresses: Vec<String>,
    /// The CA of their certificates, if they have any, for the clients of this value.
    pub ca: Option<PathBuf>,
    /// More options of each.
    more: Vec<String>,
    members: Vec<Option<Member>>,
}

impl Servers {
    /// Starts a server at each address. They are not [ready](Servers::ready).
    pub fn start(etcd: &Etcd, folder: &Path, (scheme, addresses): (&'static str, Vec<String>), more: &[&str]) -> Self {
        let more = more.iter().map(|&option| option.to_owned()).collect();
        let members = addresses.iter().map(|_| None).collect();
        let mut this =
            Self { etcd: etcd.clone(), folder: folder.to_owned(), scheme, addresses, ca: None, more, members };
        (0..this.addresses.len()).for_each(|member| this.run(member));
        this
    }

    /// Starts a member, or starts it again with what it has.
    pub fn run(&mut self, member: usize) {
        let peer = |(member, address): (usize, &String)| format!("m{member}=http://{address}:2380");
        let peers: Vec<String> = self.addresses.iter().enumerate().map(peer).collect();
        let (address, scheme) = (&self.addresses[member], self.scheme);
        let (client, peer) = (format!("{scheme}://{address}:2379"), format!("http://{address}:2380"));
        let data = self.folder.join(format!("m{member}")).display().to_string();
        let log = File::options().append(true).create(true).open(self.folder.join("etcd.log")).unwrap();
        let mut command = self.etcd.command();
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

    /// Sends a signal to a member, such as `STOP` and `CONT`.
    pub fn signal(&self, member: usize, signal: Signal) {
        let Member(child) = self.members[member].as_ref().unwrap();
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// The member that leads the others.
    pub fn leader(&self) -> usize {
        let leads = |endpoint: &str| {
            let status = self.client_of(endpoint, None).wait(|client| async move { client.status().await });
            status.is_ok_and(|status| status.is_leader)
        };
        let end = Instant::now() + SOON;
        loop {
            if let Some(member) = self.endpoints().split(',').position(leads) {
                return member;
            }
            assert!(Instant::now() < end, "no member leads");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The endpoints, as text for a host file.
    pub fn endpoints(&self) -> String {
        let all: Vec<String> =
            self.addresses.iter().map(|address| format!("{}://{address}:2379", self.scheme)).collect();
        all.join(",")
    }

    /// A client, as a user if there is one.
    pub fn client(&self, user: Option<(&str, &str)>) -> Blocking {
        self.client_of(&self.endpoints(), user)
    }

    fn client_of(&self, endpoints: &str, user: Option<(&str, &str)>) -> Blocking {
        let mut settings = Settings::new(endpoints.split(',').map(|one| one.parse().unwrap()).collect());
        settings.ca = self.ca.as_deref().map(|path| Pem::read(path).unwrap());
        settings.user = user.map(|(name, password)| User { name: name.to_owned(), password: password.to_owned() });
        Blocking::new(Client::new(settings, |_: &str, _: u16, _: Answer| {}).unwrap()).unwrap()
    }

    /// Waits until they have a leader.
    pub fn ready(&self) {
        let (client, end) = (self.client(None), Instant::now() + SOON);
        while let Err(error) = client.range(&Keys::one("ready"), 1) {
            let log = || std::fs::read_to_string(self.folder.join("etcd.log")).unwrap();
            assert!(Instant::now() < end, "{error}\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
