//! A VM in QEMU on one of two hosts, and its twin on the other one, which goes on with it (docs/fault-tolerance.md). Each host has a daemon
//! of its own; a tap of each is on one bridge.
//!
//! ```text
//! host a:  QEMU ── virtio-net ── daemon ── tap ─┐
//!                    ║ copies                   ├── bridge ── namespace: netperf, ping, a connection whose bytes are checked
//! host b:  QEMU ── virtio-net ── daemon ── tap ─┘
//! ```
//! Both hosts are this machine. The lease is a folder of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nicety_daemon::protection::{VmReport, VmRole};
use nicety_guests::{
    Accel, Error, Folder, Guest, GuestConfig, Image, Kernel, Link, Machine, Namespace, Port, Process, Root, Served,
    Setup,
};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use super::wait::Outputs;

mod checked;
pub mod silence;
mod stops;

pub use checked::{Carried, Checked, MESSAGE, Progress};
use stops::Stops;

/// The VM's address.
pub const VM: &str = "10.9.6.1";
/// The address outside.
const OUTSIDE: &str = "10.9.6.254/24";
const MAC: &str = "52:54:00:4e:06:01";
/// Name of the VM and of its port, in both host files.
const NAME: &str = "guest";
/// The VM's adapter: the only one that QEMU's COLO copies.
const ADAPTER: &str = "virtio-net";
/// The bridge, and the hosts' taps on it.
const BRIDGE: &str = "n0";
const TAPS: [&str; 2] = ["h0", "h1"];
const HOSTS: [&str; 2] = ["a", "b"];
const KERNEL: Kernel = Kernel::V6_12;
/// The service of the VM that sends back what comes.
const ECHO_PORT: u16 = 9000;
/// Time limit of what takes no time itself, in a guest without KVM.
const SLACK: Duration = Duration::from_secs(30);
/// Time limit for a protection to begin, and for a twin to go on: a machine with much else to do copies slowly.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Words of a kernel in distress.
const COMPLAINTS: &str = "bug:|warning:|oops|call trace|unit hang|hung task|corrupt|bad page";
/// Twins that are started at most until one protects the VM.
const TWINS: u32 = 3;

/// The part of a host that dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// The VM's QEMU, by SIGKILL.
    Vmm,
    /// The daemon, by SIGKILL.
    Daemon,
    /// Both stand still at once, by SIGSTOP, and end later. No connection closes, as when a host loses its power.
    Host,
}

/// The parts that stay from VM to VM.
#[derive(Debug)]
pub struct Hosts {
    root: Root,
    accel: Accel,
    program: PathBuf,
    namespace: Namespace,
    outputs: Outputs,
}

/// A VM that runs, with its twin if it is protected. Ends by [`Hosts::end`].
#[derive(Debug)]
pub struct Vm {
    folder: Folder,
    /// The time between two copies. None: there is no other host.
    checkpoint: Option<Duration>,
    served: Vec<Served>,
    guests: [Option<Guest>; 2],
    stops: [Option<Stops>; 2],
    /// The host where it runs.
    owner: usize,
    /// The host whose daemon is gone, or stands still.
    fallen: Option<usize>,
}

/// A `ping` that goes on until it is asked for what it said.
#[derive(Debug)]
pub struct Pinging {
    process: Process,
    log: PathBuf,
}

/// The daemon's answer about its VMs.
#[derive(Deserialize)]
struct Answer {
    vms: Vec<VmReport>,
}

impl Vm {
    /// A path in its folder.
    fn path(&self, host: usize, ending: &str) -> String {
        self.folder.join(&format!("{}.{ending}", HOSTS.get(host).copied().unwrap_or_default()))
    }

    /// The daemon's report about the VM on this host.
    fn report_of(&self, host: usize) -> Option<VmReport> {
        let answer = self.served.get(host)?.get("/v1/vms")?;
        let answer: Answer = serde_json::from_str(&answer).ok()?;
        answer.vms.into_iter().find(|vm| vm.name == NAME)
    }

    /// The report of the host where it runs. None if it is not protected at all, or the daemon does not answer.
    pub fn report(&self) -> Option<VmReport> {
        self.report_of(self.owner)
    }

    /// Times for which it stood still since the last call, by QEMU's own events.
    pub fn stops(&self) -> Vec<Duration> {
        self.stops.get(self.owner).and_then(Option::as_ref).map(Stops::take).unwrap_or_default()
    }

    /// Tables of this host's file that protect the VM.
    fn tables(&self, host: usize, checkpoint: Duration) -> String {
        format!(
            "\n[ft]\nlisten = \"unix:{}\"\nkey = \"{}\"\nlease = \"{}\"\n\
             \n[[vm]]\nname = \"{NAME}\"\nports = \"{NAME}\"\nqmp = \"{}\"\npeer = \"unix:{}\"\ncheckpoint = \"{}ms\"\n",
            self.path(host, "ft"),
            self.folder.join("key"),
            self.folder.join("leases"),
            self.path(host, "qmp"),
            self.path(1 - host, "ft"),
            checkpoint.as_millis()
        )
    }

    /// Waits until the daemon of this host says so. The QEMUs of these hosts must run meanwhile.
    fn wait(
        &self,
        (host, of): (usize, &[usize]),
        what: &str,
        stop: &AtomicBool,
        done: impl Fn(&VmReport) -> bool,
    ) -> Result<(), Error> {
        let end = Instant::now() + PATIENCE;
        loop {
            let ended = of.iter().find(|host| self.guest(**host).is_some_and(|guest| !guest.runs()));
            let report = self.report_of(host);
            let why = match (report, ended) {
                (Some(report), None) if done(&report) => return Ok(()),
                _ if stop.load(Ordering::Relaxed) => return Err(Error::Stopped),
                (_, Some(_)) => "its QEMU has ended".to_owned(),
                (report, None) if Instant::now() > end => {
                    let report =
                        report.map_or_else(|| "its daemon does not answer".to_owned(), |report| report.to_string());
                    format!("not within {PATIENCE:?}: {report}")
                }
                _ => {
                    thread::sleep(POLL_INTERVAL);
                    continue;
                }
            };
            return Err(Error::Daemon { why: format!("the VM is not {what}: {why}"), said: self.last_words() });
        }
    }

    fn guest(&self, host: usize) -> Option<&Guest> {
        self.guests.get(host).and_then(Option::as_ref)
    }

    /// The last lines of both hosts' daemons and QEMUs.
    pub fn last_words(&self) -> String {
        let of = |(host, served): (usize, &Served)| {
            let console = self.guest(host).map(Guest::console).unwrap_or_default();
            let name = HOSTS.get(host).copied().unwrap_or_default();
            format!("host {name}\n{}\nand its VM's console ended with\n{console}", served.log())
        };
        self.served.iter().enumerate().map(of).collect::<Vec<_>>().join("\n")
    }
}

impl Hosts {
    /// Lays guests, and makes the network.
    ///
    /// # Errors
    /// Those of [`Root::lay`] and [`Namespace::open`]; each names its remedy.
    pub fn open(program: &Path, say: &mut dyn FnMut(&str)) -> Result<Hosts, Error> {
        let root = Root::lay(say)?;
        Image::of(&root, KERNEL)?;
        let accel = Accel::Auto.resolve(&root)?;
        let mut namespace = Namespace::open(&root)?;
        namespace.bridge(BRIDGE, OUTSIDE, &TAPS)?;
        Ok(Hosts { root, accel, program: program.to_owned(), namespace, outputs: Outputs::new()? })
    }

    /// The private root.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The accelerator of the VM.
    pub fn accelerator(&self) -> Accel {
        self.accel
    }

    /// Boots the VM, with its services, and protects it.
    ///
    /// # Errors
    /// Those of [`Guest::boot`] and of the daemon, with the last lines of console or log.
    pub fn boot(&mut self, checkpoint: Option<Duration>, stop: &AtomicBool) -> Result<Vm, Error> {
        let mut vm = Vm {
            folder: Folder::new()?,
            checkpoint,
            served: Vec::new(),
            guests: [None, None],
            stops: [None, None],
            owner: 0,
            fallen: None,
        };
        match self.bring_up(&mut vm, stop) {
            Ok(()) => Ok(vm),
            Err(error) => {
                // A daemon that runs would keep its tap. An error of ending it has the same cause.
                let _ = self.end(vm);
                Err(error)
            }
        }
    }

    fn bring_up(&mut self, vm: &mut Vm, stop: &AtomicBool) -> Result<(), Error> {
        let key = vm.folder.write("key", [7; 32])?;
        let owned = fs::set_permissions(&key, fs::Permissions::from_mode(0o600));
        owned.map_err(|source| Error::File { doing: "protect", path: key, source })?;
        let leases = vm.folder.path().join("leases");
        fs::create_dir(&leases).map_err(|source| Error::File { doing: "make", path: leases, source })?;
        let entry = nicety_adapters::find(ADAPTER);
        let missing = || Error::Daemon { why: format!("there is no adapter {ADAPTER}"), said: String::new() };
        let entry = entry.ok_or_else(missing)?;
        for (host, tap) in TAPS.iter().enumerate().take(1 + usize::from(vm.checkpoint.is_some())) {
            let setup = Setup {
                link: Some(Link::Tap((*tap).to_owned())),
                link_more: vm.checkpoint.map(|checkpoint| vm.tables(host, checkpoint)).unwrap_or_default(),
                ..Setup::default()
            };
            let ports = vec![Port::new(NAME, entry, MAC)];
            vm.served.push(Served::start_as(&self.program, &mut self.namespace, ports, setup)?);
        }
        self.start(vm, 0, false)?;
        let Some(guest) = &mut vm.guests[0] else { return Err(Error::Stopped) };
        guest.wait_ready_unless(stop)?;
        let services = format!(
            "/usr/bin/ping -n -q -c 1 -W 5 {}; netserver -4 >/dev/null </dev/null 2>&1; ((while true; do nc -l -p {ECHO_PORT} -e cat; done) >/dev/null 2>&1 &)",
            OUTSIDE.trim_end_matches("/24")
        );
        guest.succeed_unless(&services, SLACK, stop)?;
        self.protected(vm, stop).map(drop)
    }

    /// Starts the VM's QEMU on a host: it runs, or waits to be a twin.
    fn start(&self, vm: &mut Vm, host: usize, waits: bool) -> Result<(), Error> {
        let config = GuestConfig { accel: self.accel, ..GuestConfig::new(KERNEL) };
        let mut config = config.address("eth0", &format!("{VM}/24"));
        if let Some(served) = vm.served.get(host) {
            config = served.attach(config, NAME);
        }
        // One control socket is the daemon's, the other one ours.
        let events = vm.path(host, "events");
        for socket in [&vm.path(host, "qmp"), &events] {
            config.devices.extend(["-qmp".to_owned(), format!("unix:{socket},server=on,wait=off")]);
        }
        if waits {
            config.devices.extend(["-incoming", "defer"].map(str::to_owned));
        }
        let guest = Guest::start(&self.root, config)?;
        let (Some(place), Some(stops)) = (vm.guests.get_mut(host), vm.stops.get_mut(host)) else { return Ok(()) };
        *place = Some(guest);
        *stops = Some(Stops::of(PathBuf::from(events)));
        Ok(())
    }

    /// Waits until the VM is protected, if it is to be. A twin that has ended is replaced: on a busy machine it may be given up as silent.
    /// Returns how many were started.
    ///
    /// # Errors
    /// It is not in time, with the last lines of daemons and QEMUs.
    pub fn protected(&mut self, vm: &mut Vm, stop: &AtomicBool) -> Result<u32, Error> {
        if vm.checkpoint.is_none() {
            return Ok(0);
        }
        let (other, mut started) = (1 - vm.owner, 0);
        let has_twin = |vm: &Vm| vm.guest(other).is_some_and(Guest::runs);
        loop {
            if has_twin(vm) {
                let waited = vm.wait((vm.owner, &[0, 1]), "protected", stop, |report| report.protected);
                if waited.is_ok() || started >= TWINS || has_twin(vm) || stop.load(Ordering::Relaxed) {
                    return waited.map(|()| started);
                }
            }
            self.start(vm, other, true)?;
            started += 1;
        }
    }

    /// Has the host where the VM runs die.
    ///
    /// # Errors
    /// The namespace does not answer.
    pub fn kill(&mut self, vm: &mut Vm, kill: Kill) -> Result<(), Error> {
        let (owner, namespace) = (vm.owner, &mut self.namespace);
        let (Some(served), Some(place)) = (vm.served.get_mut(owner), vm.guests.get_mut(owner)) else { return Ok(()) };
        vm.fallen = Some(owner).filter(|_| kill != Kill::Vmm);
        match kill {
            // Its end kills it.
            Kill::Vmm => drop(place.take()),
            Kill::Daemon => served.kill(namespace)?,
            Kill::Host => {
                if let Some(group) = place.as_ref().and_then(|guest| i32::try_from(guest.process()).ok()) {
                    // A QEMU that has just ended stands still too.
                    let _ended = Pid::from_raw(group).map(|group| kill_process_group(group, Signal::STOP));
                }
                served.stand_still(namespace)?;
            }
        }
        Ok(())
    }

    /// Waits until the twin has gone on with the VM.
    ///
    /// # Errors
    /// It does not in time, with the daemons' last lines.
    pub fn taken_over(&self, vm: &mut Vm, stop: &AtomicBool) -> Result<(), Error> {
        vm.wait((1 - vm.owner, &[1 - vm.owner]), "taken over", stop, |report| report.role == VmRole::Owner)?;
        vm.owner = 1 - vm.owner;
        Ok(())
    }

    /// Ends what is left of the host that died, and gives the VM a new twin there.
    ///
    /// # Errors
    /// The host does not come up, or the VM is not protected in time.
    pub fn replace(&mut self, vm: &mut Vm, stop: &AtomicBool) -> Result<(), Error> {
        let lost = 1 - vm.owner;
        if let Some(place) = vm.guests.get_mut(lost) {
            *place = None;
        }
        if let Some(served) = vm.fallen.and_then(|fallen| vm.served.get_mut(fallen)) {
            served.kill_and_restart(&mut self.namespace)?;
            vm.fallen = None;
        }
        self.protected(vm, stop).map(drop)
    }

    /// Ends the VM and its twin, then the daemons.
    ///
    /// # Errors
    /// A daemon does not end.
    pub fn end(&mut self, vm: Vm) -> Result<(), Error> {
        let Vm { served, guests, fallen, folder, .. } = vm;
        drop(guests);
        let mut ended = Ok(());
        for (host, mut served) in served.into_iter().enumerate() {
            // One that stands still would not end by itself.
            let one =
                if fallen == Some(host) { served.kill(&mut self.namespace) } else { served.stop(&mut self.namespace) };
            ended = ended.and(one);
        }
        drop(folder);
        ended
    }

    /// Runs a program outside, and returns its output.
    ///
    /// # Errors
    /// It does not end within `limit`, or `stop` became true.
    pub fn run(&mut self, command: &Command, limit: Duration, stop: &AtomicBool) -> Result<String, Error> {
        let doing = format!("`{}` outside", super::quoted(command));
        let running = self.outputs.start(&mut self.namespace, command, doing)?;
        let (said, _) = running.wait(&mut self.namespace, limit, stop, &mut |_| Ok(()))?;
        Ok(said)
    }

    /// `ping` of the VM at this interval. `-D`: with the time of each answer.
    pub fn ping(&self, interval: Duration) -> Command {
        let mut ping = self.root.program("usr/bin/ping");
        ping.args(["-n", "-D", "-i", &format!("{:.3}", interval.as_secs_f64())]);
        ping
    }

    /// Begins to ping the VM.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn begin_ping(&mut self, interval: Duration) -> Result<Pinging, Error> {
        let mut ping = self.ping(interval);
        ping.arg(VM);
        let log = self.outputs.file();
        Ok(Pinging { process: self.namespace.start(&ping, &log)?, log })
    }

    /// Ends a ping, and returns what it said.
    ///
    /// # Errors
    /// It does not end.
    pub fn end_ping(&mut self, pinging: Pinging) -> Result<String, Error> {
        let Pinging { process, log } = pinging;
        self.namespace.signal(process, "INT", SLACK)?;
        let said = fs::read_to_string(&log).map_err(|source| Error::File { doing: "read", path: log.clone(), source });
        // A file that cannot be removed goes with its folder.
        let _ = fs::remove_file(&log);
        said
    }

    /// A connection to the VM's service that sends back what comes.
    ///
    /// # Errors
    /// Its files or its program cannot be made, or the service does not listen in time.
    pub fn connect(&mut self, vm: &mut Vm, stop: &AtomicBool) -> Result<Checked, Error> {
        // It has one connection at a time, and the last one's end comes late.
        if let Some(guest) = vm.guests.get_mut(vm.owner).and_then(Option::as_mut) {
            guest.succeed_unless(&format!("until netstat -ltn | grep -q :{ECHO_PORT}; do rest; done"), SLACK, stop)?;
        }
        let [to, from, log] = [(); 3].map(|()| self.outputs.file());
        let (root, namespace) = (&self.root, &mut self.namespace);
        Checked::open([to, from, log], |to, from, log| {
            let busybox = root.busybox();
            let script =
                format!("exec '{}' nc {VM} {ECHO_PORT} <'{}' >'{}'", busybox.display(), to.display(), from.display());
            let mut shell = Command::new(&busybox);
            shell.args(["sh", "-c", &script]);
            namespace.start(&shell, log)
        })
    }

    /// The complaints of the VM's kernel, where it runs now. Empty: it has none.
    ///
    /// # Errors
    /// The VM does not answer.
    pub fn complaints(&self, vm: &mut Vm, stop: &AtomicBool) -> Result<String, Error> {
        let Some(guest) = vm.guests.get_mut(vm.owner).and_then(Option::as_mut) else { return Ok(String::new()) };
        guest.succeed_unless(&format!("dmesg | grep -iE '{COMPLAINTS}' || true"), SLACK, stop)
    }

    /// Ends a connection.
    ///
    /// # Errors
    /// Its program does not end.
    pub fn close(&mut self, checked: Checked) -> Result<(), Error> {
        self.namespace.signal(checked.process(), "KILL", SLACK)
    }

    /// Facts for the report.
    pub fn notes(&self) -> Vec<String> {
        let version = self.root.version("qemu-system-x86").unwrap_or("of unknown version");
        let runs = match self.accel {
            Accel::Kvm => "KVM",
            _ => "QEMU's translator (TCG): compare rows with each other",
        };
        vec![
            format!(
                "The VM: Debian's kernel {KERNEL} in an unmodified QEMU {version}, run by {runs}; one processor, 256 MiB, one {ADAPTER}; booted \
                 afresh for each row of each round. Its twin is a QEMU with the same command line and -incoming defer."
            ),
            "Both hosts are this machine: two daemons, each with a tap on one bridge, joined by a socket that is encrypted as a network's \
             connection is. Both QEMUs run the VM's instructions, so they share the machine's processors, which two hosts would not. The lease \
             is a folder."
                .to_owned(),
            "The peer outside is a network namespace of the host. netperf's and busybox's programs run in the VM and outside.".to_owned(),
        ]
    }
}
