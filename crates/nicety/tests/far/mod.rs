//! Another network namespace, at the other end of a wire. The test runs in namespaces of its own (`again::inside` with `-Urn`).

#[path = "../../../uplink/tests/elsewhere/mod.rs"]
pub mod elsewhere;

use std::process::Command;

use elsewhere::Elsewhere;

/// This end's address.
pub const HERE: &str = "192.0.2.1";
/// The other end's.
pub const THERE: &str = "192.0.2.2";

/// See the module's page. The namespace ends with this.
pub struct Far(Elsewhere);

impl Far {
    /// The wire is `wire0` here and `far0` there.
    pub fn new(mtu: u16) -> Self {
        let this = Self(Elsewhere::new());
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
        self.0.run(act)
    }
}

pub fn sh(script: &str) {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}
