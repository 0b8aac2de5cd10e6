//! A cluster of etcd on addresses of this machine, and the commands in a folder.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nicety_etcd::{Answer, Blocking, Client, Error, Keys, Settings, User};
use nicety_guests::Etcd;
use serde_json::{Value, json};

use crate::scratch::{Ended, Scratch};

/// Time limit for everything that should take a second or two, on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);
/// The password of etcd's own administrator.
pub const ROOT: &str = "r00t";

pub fn newer() -> Etcd {
    Etcd::lay(&mut |line| eprintln!("{line}")).unwrap()
}

pub fn older() -> Etcd {
    Etcd::lay_older(&mut |line| eprintln!("{line}")).unwrap()
}

struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        let _ended = (self.0.kill(), self.0.wait());
    }
}

/// etcd, and a folder in which commands run. Both end with this value.
pub struct Cluster {
    pub scratch: Scratch,
    pub addresses: Vec<String>,
    members: Vec<Member>,
    scheme: &'static str,
}

impl Cluster {
    /// Addresses of this process and cluster alone, so that ports need not be looked for.
    pub fn new_addresses(count: usize) -> Vec<String> {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let number = usize::from(NEXT.fetch_add(1, Ordering::Relaxed));
        (0..count).map(|member| format!("127.{}.{low}.{}", 16 + high % 200, number * 8 + member)).collect()
    }

    /// One server that has an answer.
    pub fn start(etcd: &Etcd) -> Self {
        let cluster = Self::start_at(etcd, Scratch::new(), ("http", Self::new_addresses(1)), &[]);
        cluster.ready();
        cluster
    }

    pub fn start_at(
        etcd: &Etcd,
        scratch: Scratch,
        (scheme, addresses): (&'static str, Vec<String>),
        more: &[&str],
    ) -> Self {
        let peer = |(member, address): (usize, &String)| format!("m{member}=http://{address}:2380");
        let peers: Vec<String> = addresses.iter().enumerate().map(peer).collect();
        let mut members = Vec::new();
        for (member, address) in addresses.iter().enumerate() {
            let (client, peer) = (format!("{scheme}://{address}:2379"), format!("http://{address}:2380"));
            let data = scratch.path().join(format!("m{member}")).display().to_string();
            let log = File::options().append(true).create(true).open(scratch.path().join("etcd.log")).unwrap();
            let mut command = etcd.command();
            command.args([format!("--name=m{member}"), format!("--data-dir={data}")]);
            command.args([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")]);
            command.args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")]);
            command.arg(format!("--initial-cluster={}", peers.join(","))).args(more);
            let log = (log.try_clone().unwrap(), log);
            members.push(Member(command.stdin(Stdio::null()).stdout(log.0).stderr(log.1).spawn().unwrap()));
        }
        Self { scratch, addresses, members, scheme }
    }

    /// Kills a member.
    pub fn kill(&mut self, member: usize) {
        self.members.remove(member);
    }

    pub fn endpoints(&self) -> String {
        let all: Vec<String> =
            self.addresses.iter().map(|address| format!("{}://{address}:2379", self.scheme)).collect();
        all.join(",")
    }

    /// A client, as a user if there is one.
    pub fn client(&self, user: Option<(&str, &str)>) -> Blocking {
        let mut settings = Settings::new(self.endpoints().split(',').map(|one| one.parse().unwrap()).collect());
        settings.user = user.map(|(name, password)| User { name: name.to_owned(), password: password.to_owned() });
        Blocking::new(Client::new(settings, |_: &str, _: u16, _: Answer| {}).unwrap()).unwrap()
    }

    /// Waits until it has a leader.
    pub fn ready(&self) {
        let client = self.client(None);
        let end = Instant::now() + SOON;
        while let Err(error) = client.range(&Keys::one("ready"), 1) {
            let log = || std::fs::read_to_string(self.scratch.path().join("etcd.log")).unwrap();
            assert!(Instant::now() < end, "{error}\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Asks the gateway for what the client has no method for.
    pub fn ask(&self, path: &str, body: Value) -> Value {
        let mut stream = TcpStream::connect((self.addresses[0].as_str(), 2379)).unwrap();
        let body = body.to_string();
        write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{path}: {answer}");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Turns users on. [`Cluster::as_root`] is etcd's own administrator.
    pub fn turn_users_on(&self) {
        let client = self.client(None);
        let root = User { name: "root".to_owned(), password: ROOT.to_owned() };
        let made = client.wait(|client| async move {
            client.add_user(&root).await?;
            client.add_role("root").await?;
            client.grant_role("root", "root").await
        });
        made.unwrap();
        self.ask("/v3/auth/enable", json!({}));
        std::fs::write(self.scratch.path().join("root.password"), ROOT).unwrap();
    }

    /// `nicety fabric …` for the fabric `prod`.
    pub fn run(&self, words: &[&str]) -> Ended {
        let endpoints = self.endpoints();
        let to = ["--fabric", "prod", "--etcd", endpoints.as_str()];
        self.scratch.run(&[&["fabric"], words, &to].concat())
    }

    /// The same as a user, whose password is in this file.
    pub fn run_as(&self, user: &str, file: &str, words: &[&str]) -> Ended {
        self.run(&[words, &["--user", user, "--password", file]].concat())
    }

    pub fn as_root(&self, words: &[&str]) -> Ended {
        self.run_as("root", "root.password", words)
    }

    /// The keys that begin so, with their values.
    pub fn keys(&self, client: &Blocking, prefix: &str) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let found = client.range(&Keys::prefix(format!("/nicety/fabrics/prod/{prefix}")), 0).unwrap();
        found.values.iter().map(|found| (text(&found.key), text(&found.value))).collect()
    }
}

/// Writes a key of the fabric.
pub fn put(client: &Blocking, key: &str, value: &str, lease: i64) -> Result<i64, Error> {
    let key = format!("/nicety/fabrics/prod/{key}");
    client.wait(|client| async move { client.put(key, value, lease).await })
}

/// Checks a command's end: its code, and all that it says to stdout.
#[track_caller]
pub fn says(ended: Ended, code: i32, out: &str) -> String {
    assert_eq!((ended.code, ended.out.as_str()), (Some(code), out), "{}", ended.err);
    ended.err
}

/// Checks that a command was refused with these words.
#[track_caller]
pub fn refused(ended: Ended, code: i32, words: &str) {
    assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{}", ended.err);
    assert!(ended.err.starts_with("nicety: ") && ended.err.contains(words), "{}", ended.err);
}
