//! One adapter under test: a daemon with two ports of it, a guest at each, and a peer at the far end of its uplink.
//!
//! ```text
//! guest a ── port a ┐
//!                   ├ switch ── uplink (pair) ── peer
//! guest b ── port b ┘
//! ```

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::child::{GuestProcess, reap};
use super::cpu;
use super::guest::{EXEC, GUEST};
use super::words::{Answer, Attach, Counts, Order};
use crate::bench::BenchError;

/// How long a guest may take to attach, and to answer beyond what its order lasts.
const PATIENCE: Duration = Duration::from_secs(10);
const PEER: [u8; 4] = [10, 77, 0, 254];
const GUESTS: [[u8; 4]; 2] = [[10, 77, 0, 1], [10, 77, 0, 2]];
const MACS: [[u8; 6]; 3] = [[0x52, 0x54, 0, 0x77, 0, 1], [0x52, 0x54, 0, 0x77, 0, 2], [0x52, 0x54, 0, 0x77, 0, 0xfe]];

/// How this program starts its own hidden commands, and the daemon.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// What makes it a guest: the words before those of [`guest_main`](super::guest_main).
    pub hidden: Vec<OsString>,
    /// What makes it a daemon: the words before the host file's path.
    pub serve: Vec<OsString>,
}

impl Program {
    fn hidden(&self, word: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.hidden).arg(word);
        command
    }
}

/// Who takes part in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    A,
    B,
    Peer,
}

impl Party {
    pub(super) fn address(self) -> [u8; 4] {
        match self {
            Party::A => GUESTS[0],
            Party::B => GUESTS[1],
            Party::Peer => PEER,
        }
    }
}

/// See the module's page. Fields are dropped in their order: guests, then the daemon, then its folder.
pub(super) struct Rig {
    guests: [GuestProcess; 2],
    peer: GuestProcess,
    daemon: Daemon,
    _folder: Folder,
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ended = kill_process(pid, Signal::TERM);
        }
        reap(&mut self.0);
    }
}

struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Folder, BenchError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nicety-lab-{}-{number}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| BenchError::Fatal(format!("making {}: {error}", path.display())))?;
        Ok(Folder(path))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing can be done about a folder that stays.
        let _stays = fs::remove_dir_all(&self.0);
    }
}

fn host_file(folder: &Folder, adapter: &str) -> String {
    let quoted = |path: PathBuf| format!("{:?}", path.display().to_string());
    let port = |name: &str, mac: [u8; 6]| {
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let socket = quoted(folder.file(&format!("{name}.sock")));
        format!("[[port]]\nname = \"{name}\"\nadapter = \"{adapter}\"\nmac = \"{mac}\"\nsocket = {socket}\n\n")
    };
    format!(
        "[switch]\nname = \"lab\"\n\n[uplink]\nkind = \"pair\"\nsocket = {}\n\n[daemon]\ncontrol = {}\n\n{}{}",
        quoted(folder.file("uplink.sock")),
        quoted(folder.file("control.sock")),
        port("a", MACS[0]),
        port("b", MACS[1])
    )
}

fn start_daemon(program: &Program, host_file: &Path, log: &Path) -> Result<Daemon, BenchError> {
    let fatal = |error: std::io::Error| BenchError::Fatal(format!("starting the daemon: {error}"));
    let log = fs::File::create(log).map_err(fatal)?;
    let mut command = program.hidden(EXEC);
    command.arg(std::process::id().to_string()).arg(&program.path).args(&program.serve).arg(host_file);
    let output = log.try_clone().map_err(fatal)?;
    let child = command.stdin(Stdio::null()).stdout(output).stderr(log).process_group(0).spawn();
    Ok(Daemon(child.map_err(fatal)?))
}

impl Rig {
    /// Starts daemon, peer and guests, and waits until all are attached.
    pub(super) fn start(program: &Program, adapter: &str, cancel: &AtomicBool) -> Result<Rig, BenchError> {
        let folder = Folder::make()?;
        let (path, log) = (folder.file("host.toml"), folder.file("daemon.log"));
        let written = fs::write(&path, host_file(&folder, adapter));
        written.map_err(|error| BenchError::Fatal(format!("writing {}: {error}", path.display())))?;
        let daemon = start_daemon(program, &path, &log)?;
        let start = |name: &str| GuestProcess::start(&format!("{adapter}: {name}"), program.hidden(GUEST));
        let mut rig =
            Rig { guests: [start("guest a")?, start("guest b")?], peer: start("peer")?, daemon, _folder: folder };
        let attached = rig.attach(adapter, cancel);
        attached.map_err(|error| rig.explained(error, &log))?;
        Ok(rig)
    }

    fn attach(&mut self, adapter: &str, cancel: &AtomicBool) -> Result<(), BenchError> {
        let socket = |name: &str| self._folder.file(name);
        let uplink = Attach::Pair { socket: socket("uplink.sock"), mac: MACS[2] };
        let (a, b) = (attach_to(adapter, socket("a.sock")), attach_to(adapter, socket("b.sock")));
        self.peer.tell(&Order::Configure { attach: uplink, address: PEER })?;
        let [guest_a, guest_b] = &mut self.guests;
        guest_a.tell(&Order::Configure { attach: a, address: GUESTS[0] })?;
        guest_b.tell(&Order::Configure { attach: b, address: GUESTS[1] })?;
        for party in [Party::Peer, Party::A, Party::B] {
            self.expect(party, PATIENCE, cancel, |answer| matches!(answer, Answer::Ready).then_some(()))?;
        }
        Ok(())
    }

    /// What the daemon said of a failure, if it said anything.
    fn explained(&self, error: BenchError, log: &Path) -> BenchError {
        let BenchError::Failed(why) = error else { return error };
        let said = fs::read_to_string(log).unwrap_or_default();
        let last: Vec<&str> = said.lines().rev().take(3).collect();
        let said: Vec<&str> = last.into_iter().rev().collect();
        BenchError::Failed(if said.is_empty() { why } else { format!("{why}; the daemon said: {}", said.join(" / ")) })
    }

    fn process(&mut self, party: Party) -> &mut GuestProcess {
        let [a, b] = &mut self.guests;
        match party {
            Party::A => a,
            Party::B => b,
            Party::Peer => &mut self.peer,
        }
    }

    fn expect<T>(
        &mut self,
        party: Party,
        most: Duration,
        cancel: &AtomicBool,
        wanted: impl Fn(Answer) -> Option<T>,
    ) -> Result<T, BenchError> {
        let answer = self.process(party).hear(most, cancel)?;
        wanted(answer).ok_or_else(|| BenchError::Failed("a guest gave another answer than was asked for".to_owned()))
    }

    /// Gives an order that takes `duration`, and waits for its answer.
    pub(super) fn order<T>(
        &mut self,
        party: Party,
        order: &Order,
        duration: Duration,
        cancel: &AtomicBool,
        wanted: impl Fn(Answer) -> Option<T>,
    ) -> Result<T, BenchError> {
        self.process(party).tell(order)?;
        self.expect(party, duration + PATIENCE, cancel, wanted)
    }

    /// The counts of a station.
    pub(super) fn counts(&mut self, party: Party, cancel: &AtomicBool) -> Result<Counts, BenchError> {
        self.order(party, &Order::Report, Duration::ZERO, cancel, |answer| match answer {
            Answer::Counts(counts) => Some(counts),
            _ => None,
        })
    }

    /// CPU seconds of the daemon so far.
    pub(super) fn daemon_cpu(&self) -> Option<f64> {
        cpu::seconds_of(self.daemon.0.id())
    }

    /// The processes of this rig, the daemon last.
    pub(super) fn pids(&self) -> [u32; 4] {
        let [a, b] = &self.guests;
        [a.pid(), b.pid(), self.peer.pid(), self.daemon.0.id()]
    }
}

fn attach_to(adapter: &str, socket: PathBuf) -> Attach {
    match adapter {
        "virtio-net" => Attach::VhostUser { socket },
        driver => Attach::VfioUser { driver: driver.to_owned(), socket },
    }
}
