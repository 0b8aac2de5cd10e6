//! Two hosts of a protected VM: the test plays both QEMUs and their guests.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nicety_daemon::daemon::Daemon;
use nicety_daemon::protection::{Terms, VmReport};
use nicety_daemon::serve;
use nicety_host::Host;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::played::Qemu;
use crate::rings_guest::{Guest, until};

pub const VM: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

/// The test's machine may stand still for a while: nobody is lost for being silent, where a test is not about that.
pub fn terms() -> Terms {
    let long = Duration::from_secs(30);
    Terms { silence: long, patience: long, ..Terms::default() }
}

/// A host: its daemon, its QEMU and its guest, and somebody else at the same switch who hears what the VM sends.
pub struct Side {
    pub daemon: Arc<Daemon>,
    pub host: Host,
    pub qemu: Option<Qemu>,
    pub guest: Guest,
    pub other: Guest,
}

impl Side {
    pub fn new(folder: &Path, own: &str, peer: &str, waits: bool, terms: Terms) -> Self {
        let mut side = Self::without(folder, own, peer, terms);
        side.qemu = Some(Qemu::at(&folder.join(format!("{own}.qmp")), waits));
        side
    }

    /// Its QEMU is not there.
    pub fn without(folder: &Path, own: &str, peer: &str, terms: Terms) -> Self {
        let port = |name: &str, number: u8| {
            format!(
                "[[port]]\nname = \"{name}\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:00:00:{number:02x}\"\n\
                 socket = \"{own}-{name}.sock\"\n"
            )
        };
        let text = format!(
            "[ft]\nlisten = \"unix:{own}.ft\"\nkey = \"key\"\nlease = \"leases\"\n{}{}\
             [[vm]]\nname = \"guest\"\nports = \"vm1\"\nqmp = \"{own}.qmp\"\npeer = \"unix:{peer}.ft\"\n",
            port("vm1", 1),
            port("vm2", 2)
        );
        let host = Host::parse(&text, &folder.join("host.toml")).unwrap();
        let daemon = Arc::new(serve::start(serve::prepare(&host, None).unwrap()).unwrap());
        daemon.protect_vms(terms).unwrap();
        let other = Guest::new(folder.join(format!("{own}-vm2.sock")));
        let guest = Guest::waiting(folder.join(format!("{own}-vm1.sock")));
        Self { daemon, host, qemu: None, guest, other }
    }

    /// The next daemon goes on, and has not begun to protect its VM.
    pub fn replace(&mut self) {
        let (new, _) = crate::upgrade::replaced(Arc::clone(&self.daemon), &self.host);
        self.daemon = new;
    }

    pub fn upgrade(&mut self, terms: Terms) {
        self.replace();
        self.daemon.protect_vms(terms).unwrap();
    }

    pub fn qemu(&self) -> &Qemu {
        self.qemu.as_ref().unwrap()
    }

    pub fn report(&self) -> VmReport {
        self.daemon.vms().remove(0)
    }

    pub fn state(&self, wanted: &str) {
        until(wanted, || self.report().state == wanted);
    }

    /// The VM sends a frame, whose descriptor is given back whatever happens to the frame.
    pub fn send(&mut self, first: u8) {
        let taken = self.guest.taken();
        self.guest.send(VM, first);
        until("a frame that is taken", || self.guest.taken() > taken);
    }

    /// First bytes of the frames that were heard.
    pub fn heard(&self) -> Vec<u8> {
        (0..self.other.received()).map(|number| self.other.first_byte(number)).collect()
    }
}

/// Two hosts. The first one's VM runs, and the second one's QEMU waits.
pub struct Hosts {
    pub here: Side,
    pub there: Side,
    pub folder: TempDir,
}

pub fn folder() -> TempDir {
    nicety_sandbox::begin_for_tests();
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("key"), [7; 32]).unwrap();
    std::fs::create_dir(folder.path().join("leases")).unwrap();
    folder
}

impl Hosts {
    /// The lease goes away, or is back.
    pub fn exchange_lease(&self) {
        let (lease, other) = (self.folder.path().join("leases/guest.lease"), self.folder.path().join("other"));
        if !other.exists() {
            std::fs::create_dir(&other).unwrap();
        }
        // In one step, for a lease that is not there was removed by somebody.
        renameat_with(CWD, &lease, CWD, &other, RenameFlags::EXCHANGE).unwrap();
    }

    /// The first copy begins.
    pub fn joining(terms: Terms) -> Self {
        let folder = folder();
        let mut here = Side::new(folder.path(), "a", "b", false, terms);
        here.state("alone");
        here.guest.start([0, 0]);
        let there = Side::new(folder.path(), "b", "a", true, terms);
        here.qemu().hears("migrate");
        there.qemu().hears("migrate-incoming");
        let hosts = Self { here, there, folder };
        for side in [&hosts.here, &hosts.there] {
            side.qemu().event("MIGRATION", &json!({"status": "active"}));
        }
        hosts
    }

    /// QEMU stops the VM, and has the state of its port saved.
    pub fn save(&mut self) -> ([u32; 2], Vec<u8>) {
        self.here.qemu().event("STOP", &Value::Null);
        let bases = self.here.guest.stop();
        (bases, self.here.guest.save())
    }

    /// The other QEMU loads it.
    pub fn load(&mut self, state: &[u8], bases: [u32; 2]) {
        self.there.guest.load(state);
        self.there.guest.start(bases);
    }

    pub fn goes_on(&mut self, bases: [u32; 2], is_first: bool) {
        self.here.guest.start(bases);
        if is_first {
            self.here.qemu().event("MIGRATION", &json!({"status": "colo"}));
            self.there.qemu().event("MIGRATION", &json!({"status": "colo"}));
            self.there.qemu().event("RESUME", &Value::Null);
        }
        self.here.qemu().event("RESUME", &Value::Null);
    }

    pub fn kill_here(&mut self) {
        self.here.qemu.take().unwrap().kill(&self.folder.path().join("a.qmp"));
    }

    pub fn kill_there(&mut self) {
        self.there.qemu.take().unwrap().kill(&self.folder.path().join("b.qmp"));
    }

    pub fn protected(terms: Terms) -> Self {
        let mut hosts = Self::joining(terms);
        let (bases, state) = hosts.save();
        hosts.load(&state, [0, 0]);
        hosts.goes_on(bases, true);
        hosts.here.state("protected");
        hosts.there.state("heir");
        hosts
    }
}

/// QEMU answers whoever has it go on alone.
pub fn goes_alone(qemu: &Qemu) {
    qemu.answers("query-migrate", json!({"return": {"status": "completed"}}));
    qemu.answers("query-status", json!({"return": {"status": "running", "running": true}}));
}
