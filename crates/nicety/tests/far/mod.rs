//! Another network namespace, at the other end of a wire. The test runs in namespaces of its own (`again::inside` with `-Urn`).

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// This end's address.
pub const HERE: &str = "192.0.2.1";
/// The other end's.
pub const THERE: &str = "192.0.2.2";

/// See the module's page. The namespace ends with this.
pub struct Far(Child);

impl Far {
    /// The wire is `wire0` here and `far0` there.
    pub fn new(mtu: u16) -> Self {
        let mut child = Command::new("unshare");
        child.args(["-n", "sh", "-c", "echo there; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut message = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut message).unwrap();
        let this = Self(child);
        sh(&format!(
            "ip link add wire0 type veth peer name far0 netns {} && ip address add {HERE}/24 dev wire0 && \
             ip link set wire0 mtu {mtu} up && ip link set lo up",
            this.0.id()
        ));
        this.run(|| {
            sh(&format!("ip address add {THERE}/24 dev far0 && ip link set far0 mtu {mtu} up && ip link set lo up"));
        });
        this
    }

    /// Does this there. A process that it starts stays there.
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

impl Drop for Far {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

pub fn sh(script: &str) {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}
