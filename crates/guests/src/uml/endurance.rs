//! Many lives of a guest at one port, each ended in its own way in the middle of traffic. Nothing may hang, and no life may leave
//! anything behind: no process, no descriptor and no mapping in the daemon or here, no folder, no memory file.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command},
    thread,
    time::{Duration, Instant},
};

use nicety_adapters::Entry;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    super::{
        error::Error,
        guest::{Guest, Machine},
        namespace::Namespace,
        processor::processes_of_group,
        root::Root,
        served::{Port, Served},
    },
    held::Held,
    machine::UmlConfig,
    memory::folder_for_memory,
};

/// Time limit for each request to a guest, and for its end.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const TAP: &str = "n0";
const HOST: &str = "10.9.4.254";
const ADDRESS: &str = "10.9.4.1";
const PORT: &str = "vm1";
const MAC: &str = "52:54:00:4e:04:01";
/// Prints counters that show how far a lost frame came.
const COUNTERS: &str = "cat /proc/net/dev; grep Icmp: /proc/net/snmp";
/// Powers off without ending the programs first.
const POWER_OFF: &str = "poweroff -f";
/// Last message of the kernel (kernel/reboot.c, kernel_power_off).
const POWERED_OFF: &str = "reboot: Power down";
/// Port of the echo service (RFC 862).
const ECHO: &str = "7";

/// The end of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The guest powers off with its interface up.
    PowerOff,
    /// The guest's kernel is killed.
    GuestKilled,
    /// The daemon is killed. The guest continues, and then powers off. The daemon is started again.
    DaemonKilled,
}

/// Durations of a life's start and end.
#[derive(Debug, Clone, Copy)]
pub struct Life {
    /// Time from the kernel's start to its first answer.
    pub boot: Duration,
    /// Time from the command or signal that ends it until nothing of it runs and nothing is left.
    pub end: Duration,
}

/// A daemon with one port, in a network of its own, and the current guest.
#[derive(Debug)]
pub struct Endurance {
    /// Dropped before the daemon to which it is attached.
    guest: Option<Guest>,
    root: Root,
    machine: UmlConfig,
    served: Served,
    namespace: Namespace,
    /// Descriptors and mappings of daemon and lab before the first guest.
    daemon_held: Held,
    lab_held: Held,
    files: Vec<PathBuf>,
    lives: u32,
}

impl Endurance {
    /// Starts the daemon `nicety` with a port of this adapter. `machine` is the guest without an adapter.
    ///
    /// # Errors
    /// Those of [`Namespace::open`] and [`Served::start`].
    pub fn start(root: Root, nicety: &Path, entry: &'static Entry, machine: UmlConfig) -> Result<Endurance, Error> {
        let mut namespace = Namespace::open(&root)?;
        namespace.tap(TAP, Some(&format!("{HOST}/24")))?;
        // A life that ends leaves the host with a connection that still sends. Without this entry the host asks for the guest's address.
        // After three seconds without an answer it drops all packets that wait for it; now and then the next life's echo was among them.
        namespace.run(&format!("arp -i {TAP} -s {ADDRESS} {MAC}"), TIMEOUT)?;
        let served = Served::start(nicety, &mut namespace, vec![Port::new(PORT, entry, MAC)], Some(TAP))?;
        let busybox = root.busybox();
        let mut echo = Command::new(&busybox);
        echo.args(["nc", "-ll", "-p", ECHO, "-e"]).arg(&busybox).arg("cat");
        namespace.start(&echo, Path::new("/dev/null"))?;
        let machine = served.attach(machine.address("eth0", &format!("{ADDRESS}/24")), PORT);
        let daemon_held = Held::of(served.process());
        let lab_held = Held::of(process::id());
        let files = files(machine.memory_mib)?;
        Ok(Endurance { guest: None, root, machine, served, namespace, daemon_held, lab_held, files, lives: 0 })
    }

    /// Runs one life. If it fails, the guest stays as it is until this is dropped, for a debugger.
    ///
    /// # Errors
    /// What hung, with the end of the guest's console, or what was left behind.
    pub fn live(&mut self, end: End) -> Result<Life, Error> {
        self.lives += 1;
        let mut guest = Guest::start(&self.root, self.machine.clone())?;
        let booted = guest.wait_ready();
        let boot = guest.boot_time();
        let guest = self.guest.insert(guest);
        booted?;
        if let Err(error) = guest.succeed(&format!("ping -q -c 1 -W 10 {HOST}"), TIMEOUT) {
            let in_guest = guest.run(COUNTERS, TIMEOUT).map_or_else(|worse| worse.to_string(), |output| output.text);
            let on_host = self.namespace.run(COUNTERS, TIMEOUT).unwrap_or_else(|worse| worse.to_string());
            let daemon = self.served.ask().unwrap_or_default();
            let counts = format!("in the guest\n{in_guest}on the host\n{on_host}the daemon\n{daemon}");
            return Err(self.failed(end, &format!("{error}\n{counts}")));
        }
        // A flood of requests, and a stream that is echoed, so that both directions are full. The path selects iputils' ping: busybox's own
        // cannot flood.
        let flood =
            format!("(/usr/bin/ping -f {HOST} >/dev/null 2>&1 &); (nc {HOST} {ECHO} </dev/zero >/dev/null 2>&1 &)");
        guest.succeed(&flood, TIMEOUT)?;
        // A varying delay ends each life at another point of the flood.
        thread::sleep(Duration::from_millis(u64::from(self.lives * 37 % 300)));
        let begin = Instant::now();
        match end {
            End::PowerOff => guest.order(POWER_OFF, TIMEOUT)?,
            End::GuestKilled => kill(guest.process())?,
            End::DaemonKilled => {
                self.served.kill(&mut self.namespace)?;
                // The guest finds its adapter dead, and continues without it.
                guest.succeed(&format!("killall ping nc; ! ping -q -c 1 -W 1 {HOST} >/dev/null"), TIMEOUT)?;
                guest.order(POWER_OFF, TIMEOUT)?;
            }
        }
        // No process is killed here, because each should have ended by itself.
        let leader = guest.process();
        let gone = wait(|| {
            let left = processes_of_group(leader);
            (!left.is_empty()).then(|| format!("its processes {left:?} go on"))
        });
        let off = || end == End::GuestKilled || guest.console().contains(POWERED_OFF);
        let gone = gone.and_then(|()| wait(|| (!off()).then(|| "it ended without powering off".to_owned())));
        let console = guest.console();
        gone.map_err(|left| self.failed(end, &format!("{left}; its console ended with\n{console}")))?;
        self.guest = None;
        if end == End::DaemonKilled {
            self.served.restart(&mut self.namespace)?;
        }
        self.check_leftovers(end)?;
        Ok(Life { boot, end: begin.elapsed() })
    }

    /// The guest that failed to end correctly.
    pub fn guest(&self) -> Option<&Guest> {
        self.guest.as_ref()
    }

    /// The daemon's process ID.
    pub fn daemon(&self) -> u32 {
        self.served.process()
    }

    fn check_leftovers(&self, end: End) -> Result<(), Error> {
        let daemon = self.served.process();
        let more = |process, before: &Held| Held::of(process).beyond(before);
        wait(|| more(daemon, &self.daemon_held).map(|more| format!("the daemon still holds {more}")))
            .and_then(|()| {
                wait(|| more(process::id(), &self.lab_held).map(|more| format!("the lab still holds {more}")))
            })
            .and_then(|()| {
                wait(|| {
                    let now = files(self.machine.memory_mib).unwrap_or_default();
                    let left: Vec<PathBuf> = now.into_iter().filter(|path| !self.files.contains(path)).collect();
                    (!left.is_empty()).then(|| format!("{left:?} are left"))
                })
            })
            .map_err(|left| self.failed(end, &left))
    }

    fn failed(&self, end: End, said: &str) -> Error {
        Error::Run { doing: format!("life {} ({end:?})", self.lives), said: said.to_owned() }
    }
}

/// Kills the kernel alone. Its programs must end by themselves.
fn kill(leader: u32) -> Result<(), Error> {
    let killed = i32::try_from(leader).ok().and_then(Pid::from_raw).map(|pid| kill_process(pid, Signal::KILL));
    match killed {
        Some(Ok(())) => Ok(()),
        other => Err(Error::Run { doing: format!("killing the guest, process {leader}"), said: format!("{other:?}") }),
    }
}

/// Waits until `left` returns none. On timeout the error is its last text.
fn wait(mut left: impl FnMut() -> Option<String>) -> Result<(), String> {
    let end = Instant::now() + TIMEOUT;
    loop {
        match left() {
            None => return Ok(()),
            Some(said) if Instant::now() > end => return Err(format!("after {TIMEOUT:?} {said}")),
            Some(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Files that a guest could leave behind: the file of its memory (before it is unlinked), and our folders.
fn files(memory_mib: u32) -> Result<Vec<PathBuf>, Error> {
    let own = format!("nicety-{}-", process::id());
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folders = [Some(folder_for_memory(memory_mib)?), runtime, Some(env::temp_dir())];
    let entries = folders.into_iter().flatten().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("vm_file-") || name.starts_with(&own)
    };
    Ok(entries.map(|entry| entry.path()).filter(ours).collect())
}
