//! A second network namespace, which ends when its value is dropped.
#![allow(dead_code, reason = "not every test asks for its process")]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// See the module's page.
pub struct Elsewhere(Child);

impl Elsewhere {
    pub fn new() -> Self {
        let mut child = Command::new("unshare");
        child.args(["-n", "sh", "-c", "echo there; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut message = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut message).unwrap();
        Self(child)
    }

    /// Its process, as `ip link set … netns` takes it.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Calls `act` in that namespace. A process that it starts stays there.
    pub fn run<R: Send>(&self, act: impl FnOnce() -> R + Send) -> R {
        let namespace = File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap();
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                act()
            });
            there.join().unwrap()
        })
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}
