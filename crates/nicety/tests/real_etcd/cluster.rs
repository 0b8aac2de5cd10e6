//! Servers of etcd, and the commands in a folder.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};

use nicety_etcd::{Blocking, Error, Keys, User};
use nicety_guests::Etcd;
use serde_json::{Value, json};

use crate::etcd_servers::Servers;
pub use crate::etcd_servers::{SOON, addresses, newer, older};
use crate::scratch::{Ended, Scratch};

/// The password of etcd's own administrator.
pub const ROOT: &str = "r00t";

/// etcd, and a folder in which commands run. Both end with this value.
pub struct Cluster {
    servers: Servers,
    pub scratch: Scratch,
}

impl Deref for Cluster {
    type Target = Servers;

    fn deref(&self) -> &Servers {
        &self.servers
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Servers {
        &mut self.servers
    }
}

impl Cluster {
    /// One server that has an answer.
    pub fn start(etcd: &Etcd) -> Self {
        let cluster = Self::start_at(etcd, Scratch::new(), ("http", addresses::<1>().into()), &[]);
        cluster.ready();
        cluster
    }

    pub fn start_at(etcd: &Etcd, scratch: Scratch, place: (&'static str, Vec<String>), more: &[&str]) -> Self {
        Self { servers: Servers::start(etcd, scratch.path(), place, more), scratch }
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
