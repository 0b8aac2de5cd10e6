//! The benches of real guests: unmodified Linux, measured by netperf. Adapters without a Linux driver get our own driver in the guest's
//! user space ([`Uio`]). The [`Kind`] decides how a guest runs: in QEMU ([`qemu`]) or in a user-mode kernel ([`user_mode`]).
//!
//! Two guests at a time run in a [`Namespace`]. They are booted afresh for each contestant of each round.
//!
//! ```text
//!  left ── vfio-user or vhost-user ─┐
//!                                 daemon ── in QEMU's table: tap ── netserver
//! right ── vfio-user or vhost-user ─┘
//! ```

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nicety_adapters::{Entry, REGISTRY};
use nicety_guests::{Accel, Counts, Error, Machine, Namespace, Port, Root, Served, Tap, Uio};

use super::{
    netperf::{self, Test},
    pair::{self, Pair},
};
use crate::{
    bench::{Bench, BenchError, Latency, Measured, Outcome, Usage},
    host::CpuTimes,
    method::{Contestant, Doorbells, Driver, Guests, Item, Load, Order, Plan, Server},
    progress::Progress,
};

mod pairs;
mod qemu;
mod user_mode;

pub(crate) use pairs::take;
pub use pairs::{Pairs, Standing, subjects, subjects_outside};

/// Time limit of a command beside the measurements in a guest.
const SLACK: Duration = Duration::from_secs(30);
/// The daemon's uplink: a tap.
const UPLINK: &str = "n0";
const LEFT_MAC: &str = "52:54:00:4e:00:01";
const RIGHT_MAC: &str = "52:54:00:4e:00:02";
/// The guests' interface under a user-space driver.
const TAP: &str = "v0";
/// Note of the report on rows with a user-space driver.
const USER_SPACE: &str = "Rows marked \"user-space driver\": no kernel has a driver of a vmxnet, so nicety-uio, our own in each \
                          guest's user space over uio_pci_generic, drives it, and netperf runs over its tap. Each packet costs system \
                          calls that a kernel's driver has not: these rows do not compare with the others.";
/// The reason why QEMU does not serve an adapter: it has no model of it.
const NOT_IN_QEMU: &str = "QEMU has no such adapter";

/// The kind of guests, and the servers of their adapters.
trait Kind: fmt::Debug {
    fn guests(&self) -> Guests;

    /// Time per run for booting and warming two guests, spread over the four loads of a contestant, and for a run's start and end.
    fn overhead(&self) -> Duration;

    /// Servers of this adapter under Linux's driver.
    fn servers(&self, adapter: &str) -> Vec<Server>;

    /// Servers that a reader might expect for this adapter and driver but which cannot serve it, each with the reason.
    fn absent(&self, adapter: &str, driver: Option<Driver>) -> Vec<(Server, String)>;

    /// The loads of a round.
    fn loads(&self) -> Vec<Load> {
        Load::ALL.to_vec()
    }

    /// Does the work needed once before the first run.
    fn prepare(&mut self, ground: &mut Ground) -> Result<(), Error>;

    /// Boots both guests of a contestant, with their daemons.
    fn boot(&self, ground: &mut Ground, contestant: &Contestant, stop: &AtomicBool) -> Result<Up, Error>;

    /// The accelerator of the guests' instructions, once they are prepared. None: they are no guests of QEMU.
    fn accelerator(&self) -> Option<Accel> {
        None
    }

    /// Facts for the report.
    fn notes(&self, root: &Root) -> Vec<String>;
}

/// The environment that all contestants share.
#[derive(Debug)]
struct Ground {
    namespace: Namespace,
    root: Root,
    program: PathBuf,
    doorbells: Option<Doorbells>,
    uio: Result<Uio, String>,
    /// Further programs of guests in QEMU, as an initramfs archive.
    archive: Vec<u8>,
}

/// Two guests, and the daemons that serve them (none where QEMU serves).
#[derive(Debug)]
struct Up {
    pair: Pair,
    served: Vec<Served>,
}

/// The address of the `last` station in a server's network.
fn address(server: Server, last: u8) -> String {
    let network = match server {
        Server::Qemu => 1,
        Server::Nicety | Server::NicetyStream => 2,
    };
    format!("10.9.{network}.{last}")
}

/// Both machines with their addresses in a server's network.
fn addressed<M: Machine>(machine: M, server: Server) -> (M, M) {
    let with = |machine: M, last| machine.address("eth0", &format!("{}/24", address(server, last)));
    (with(machine.clone(), 1), with(machine, 2))
}

/// Starts `nicety-uio` as the driver of each guest's adapter, and gives its tap the guest's address in a server's network.
fn drive(pair: &mut Pair, server: Server, stop: &AtomicBool) -> Result<(), Error> {
    for (guest, mac, last) in [(&mut pair.left, LEFT_MAC, 1), (&mut pair.right, RIGHT_MAC, 2)] {
        let function = Uio::hand_over(guest, 1, stop)?;
        let address = format!("{}/24", address(server, last));
        Uio::start(guest, &function, Tap { name: TAP, mac, address: &address }, stop)?;
    }
    Ok(())
}

impl Ground {
    fn new(namespace: Namespace, root: Root, program: &Path) -> Ground {
        let uio = Uio::beside(program).map_err(|error| error.to_string());
        Ground { namespace, root, program: program.to_owned(), doorbells: None, uio, archive: Vec::new() }
    }

    /// Boots two guests, each at the daemon's port of its name, and calls `then` with them.
    fn boot_served<M: Machine>(
        &mut self,
        (left, right): (M, M),
        served: Vec<Served>,
        stop: &AtomicBool,
        then: impl FnOnce(&mut Pair) -> Result<(), Error>,
    ) -> Result<Up, Error> {
        // A single daemon has both ports. Of two daemons, the first has the left port.
        let at = |machine, served: Option<&Served>, name| match served {
            Some(served) => served.attach(machine, name),
            None => machine,
        };
        let (left, right) = (at(left, served.first(), "left"), at(right, served.last(), "right"));
        let booted = pair::boot_unless(&self.root, left, right, stop);
        match booted.and_then(|mut pair| then(&mut pair).map(|()| pair)) {
            Ok(pair) => Ok(Up { pair, served }),
            Err(error) => {
                // Running daemons would keep a tap from the next ones. An error of stopping them has the same cause, so it is dropped.
                let _ = self.stop(served);
                Err(error)
            }
        }
    }

    /// The user-space driver.
    fn uio(&self) -> Result<Uio, Error> {
        let missing = |said| Error::Run { doing: "driving an adapter from user space".to_owned(), said };
        self.uio.clone().map_err(missing)
    }

    /// A port of this adapter.
    fn port(&self, name: &str, adapter: &str, mac: &str) -> Result<Port, Error> {
        let entry = nicety_adapters::find(adapter)
            .ok_or_else(|| Error::Daemon { why: format!("there is no adapter {adapter}"), said: String::new() })?;
        let more = self.doorbells.map(|doorbells| format!("doorbells = \"{doorbells}\"\n")).unwrap_or_default();
        Ok(Port { more, ..Port::new(name, entry, mac) })
    }

    /// Stops all daemons. Returns the first error.
    fn stop(&mut self, served: Vec<Served>) -> Result<(), Error> {
        let ends: Vec<Result<(), Error>> = served.into_iter().map(|one| one.stop(&mut self.namespace)).collect();
        ends.into_iter().collect()
    }

    /// Sets up the outside peer: netserver on the host, behind a tap.
    fn outside(&mut self) -> Result<(), Error> {
        self.namespace.tap(UPLINK, Some(&format!("{}/24", address(Server::Nicety, 254))))?;
        self.namespace.start(&netperf::server(&self.root), Path::new("/dev/null")).map(drop)
    }
}

/// The bench of real guests (see the module's page).
#[derive(Debug)]
pub struct RealBench {
    running: Option<Running>,
    /// Whether some adapters are driven from the guests' user space.
    user_space: bool,
    kind: Box<dyn Kind>,
    ground: Ground,
}

/// The running guests of a contestant.
#[derive(Debug)]
struct Running {
    contestant: Contestant,
    round: u32,
    pair: Pair,
    served: Vec<Served>,
}

impl Running {
    /// Processor time of the VMMs with their guests, and of our daemons.
    fn cpu_times(&self) -> (Duration, Duration) {
        (self.pair.cpu_time(), self.served.iter().map(Served::cpu_time).sum())
    }

    /// Counts of all daemons together. None where QEMU serves.
    fn counts(&self) -> Option<Counts> {
        let counts = self.served.iter().map(Served::counts);
        counts.reduce(|sum, counts| Some(sum?.and(counts?))).flatten()
    }
}

impl From<Error> for BenchError {
    fn from(error: Error) -> BenchError {
        match error {
            Error::Stopped => BenchError::Cancelled,
            other => BenchError::Failed(other.to_string()),
        }
    }
}

impl RealBench {
    /// Guests in QEMU, each adapter served by Nicety and by QEMU itself. Unpacks the guests' files if they are missing, and sets up the
    /// network. `program` is the daemon to measure, by its `serve FILE`. `say` gets a line for each step of unpacking.
    ///
    /// # Errors
    /// Those of [`Root::lay`] and [`Namespace::open`]; each names its remedy.
    pub fn qemu(program: &Path, say: &mut dyn FnMut(&str)) -> Result<RealBench, Error> {
        let root = Root::lay(say)?;
        let mut bench = RealBench::open(Box::new(qemu::Qemu::new()), root, program)?;
        bench.ground.outside()?;
        Ok(bench)
    }

    /// Guests in user mode, each adapter served by Nicety, and by QEMU where it can, over the same link. Builds their kernel if it is
    /// missing.
    ///
    /// # Errors
    /// Those of [`Root::lay`], [`UmlKernel::lay`](nicety_guests::uml::UmlKernel::lay) and [`Namespace::open`]; each names its remedy.
    pub fn user_mode(program: &Path, say: &mut dyn FnMut(&str)) -> Result<RealBench, Error> {
        let root = Root::lay(say)?;
        let kind = user_mode::UserMode::lay(say)?;
        RealBench::open(Box::new(kind), root, program)
    }

    fn open(kind: Box<dyn Kind>, root: Root, program: &Path) -> Result<RealBench, Error> {
        let namespace = Namespace::open(&root)?;
        let ground = Ground::new(namespace, root, program);
        Ok(RealBench { running: None, user_space: false, kind, ground })
    }

    fn field(&self, entry: &Entry) -> (Vec<Contestant>, Vec<(Contestant, String)>) {
        let uio = self.ground.uio.as_ref().map(drop).map_err(String::as_str);
        field(self.kind.as_ref(), entry, uio)
    }

    /// The private root.
    pub fn root(&self) -> &Root {
        &self.ground.root
    }

    /// The accelerator of guests in QEMU, once they are prepared. None: there are none.
    pub fn accelerator(&self) -> Option<Accel> {
        self.kind.accelerator()
    }

    /// Ends the running guests, then the daemons.
    ///
    /// # Errors
    /// A daemon does not end.
    pub fn end(&mut self) -> Result<(), Error> {
        let Some(Running { pair, served, .. }) = self.running.take() else { return Ok(()) };
        drop(pair);
        self.ground.stop(served)
    }

    /// The guests of this run. Boots them if they are not running.
    fn running(&mut self, item: &Item, stop: &AtomicBool) -> Result<&mut Running, Error> {
        let fits = |running: &Running| running.contestant == item.contestant && running.round == item.round;
        if !self.running.as_ref().is_some_and(fits) {
            self.end()?;
            let Up { pair, served } = self.kind.boot(&mut self.ground, &item.contestant, stop)?;
            let contestant = item.contestant.clone();
            let running = self.running.insert(Running { contestant, round: item.round, pair, served });
            running.pair.serve()?;
            let outside = self.kind.loads().contains(&Load::BulkTransmit);
            running.warm(outside, stop)?;
        }
        self.running.as_mut().ok_or(Error::Stopped)
    }
}

impl Running {
    /// Does once what is slow only the first time: resolving addresses, translating the guests' code.
    fn warm(&mut self, outside: bool, cancel: &AtomicBool) -> Result<(), Error> {
        let server = self.contestant.server;
        for &last in if outside { &[2, 254][..] } else { &[2] } {
            let ping = format!("/usr/bin/ping -n -q -c 1 -W 5 {}", address(server, last));
            self.pair.left.succeed_unless(&ping, SLACK, cancel)?;
        }
        netperf::run(&mut self.pair.left, &address(server, 2), Test::Stream, 1, cancel).map(drop)
    }

    fn measure(&mut self, load: Load, seconds: u32, cancel: &AtomicBool) -> Result<Measured, Error> {
        let (test, last) = match load {
            Load::BulkTransmit => (Test::Stream, 254),
            Load::BulkReceive => (Test::Maerts, 254),
            Load::GuestToGuest => (Test::Stream, 2),
            Load::RequestResponse => (Test::RequestResponse, 2),
        };
        let (cpu, own, counts) = (self.cpu_times(), self.pair.own_cpu_time(), self.counts());
        let steal = CpuTimes::now();
        let peer = address(self.contestant.server, last);
        let measured = netperf::run(&mut self.pair.left, &peer, test, seconds, cancel)?;
        let (now, steal_percent) = (self.cpu_times(), CpuTimes::stolen_percent(steal));
        let vmm = now.0.saturating_sub(cpu.0).as_secs_f64();
        let daemon = now.1.saturating_sub(cpu.1).as_secs_f64();
        let own_seconds = self.pair.own_cpu_time().saturating_sub(own).as_secs_f64();
        let counts = self.counts().zip(counts).map(|(now, before)| now.since(before));
        let elapsed = Duration::from_secs_f64(measured.seconds);
        let payload_bytes = measured.payload_bytes();
        let outcome = match measured.latency {
            Some(percentiles) => Outcome::Transactions {
                count: (measured.rate * measured.seconds) as u64,
                elapsed,
                latency: Latency::Reported(percentiles),
            },
            None => Outcome::Bulk { payload_bytes, elapsed },
        };
        let usage = Usage {
            frames: counts.map(|counts| counts.frames),
            register_reads: counts.map(|counts| counts.reads),
            register_writes: counts.map(|counts| counts.writes),
            interrupts: counts.map(|counts| counts.interrupts),
            cpu_seconds: Some(vmm + daemon),
            guest_cpu_seconds: Some(own_seconds),
            vmm_cpu_seconds: Some(vmm),
            daemon_cpu_seconds: (!self.served.is_empty()).then_some(daemon),
            steal_percent,
        };
        let series = Some(measured.series).filter(|series| !series.values.is_empty());
        Ok(Measured { outcome, usage, series })
    }
}

/// The driver of this adapter in the guests, where it is not their kernel's.
fn driver(entry: &Entry) -> Option<Driver> {
    Uio::DRIVES.contains(&entry.about.name).then_some(Driver::UserSpace)
}

/// An adapter's contestants and the missing ones. `uio` gives the reason if there is no user-space driver.
fn field(kind: &dyn Kind, entry: &Entry, uio: Result<(), &str>) -> (Vec<Contestant>, Vec<(Contestant, String)>) {
    let of = |server| Contestant::new(entry.about.name, server);
    let driver = driver(entry);
    let absent = kind.absent(entry.about.name, driver).into_iter().map(|(server, why)| (of(server), why));
    match (driver, uio) {
        (None, _) => (kind.servers(entry.about.name).into_iter().map(of).collect(), absent.collect()),
        (Some(_), Ok(())) => (vec![of(Server::Nicety).by_user_space()], absent.collect()),
        (Some(_), Err(why)) => {
            let gone = (of(Server::Nicety).by_user_space(), why.to_owned());
            (Vec::new(), [gone].into_iter().chain(absent).collect())
        }
    }
}

impl Bench for RealBench {
    fn guests(&self) -> Guests {
        self.kind.guests()
    }

    fn contestants(&self) -> Vec<Contestant> {
        REGISTRY.iter().flat_map(|entry| self.field(entry).0).collect()
    }

    fn absent(&self) -> Vec<(Contestant, String)> {
        REGISTRY.iter().flat_map(|entry| self.field(entry).1).collect()
    }

    fn loads(&self) -> Vec<Load> {
        self.kind.loads()
    }

    fn order(&self) -> Order {
        Order::EveryContestant
    }

    fn overhead(&self) -> Duration {
        self.kind.overhead()
    }

    fn prepare(&mut self, plan: &Plan, progress: &mut Progress, cancel: &AtomicBool) -> Result<(), BenchError> {
        progress.step("preparing the guests");
        self.ground.doorbells = plan.doorbells;
        self.user_space = plan.contestants.iter().any(|contestant| contestant.driver.is_some());
        self.kind.prepare(&mut self.ground).map_err(|error| BenchError::Fatal(error.to_string()))?;
        if cancel.load(Ordering::Relaxed) { Err(BenchError::Cancelled) } else { Ok(()) }
    }

    fn run(&mut self, item: &Item, duration: Duration, cancel: &AtomicBool) -> Result<Measured, BenchError> {
        // netperf counts whole seconds.
        let seconds = (duration.as_secs_f64().round() as u32).max(1);
        let measured = self.running(item, cancel).and_then(|running| running.measure(item.load, seconds, cancel));
        if measured.is_err() {
            // Guests that failed to answer once are not asked again. An error of ending them has the same cause, so it is dropped.
            let _ = self.end();
        }
        Ok(measured?)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.kind.notes(&self.ground.root);
        if let Some(doorbells) = self.ground.doorbells {
            notes.push(format!("Except: our doorbells are {doorbells} in every row."));
        }
        let outside = if self.kind.loads().contains(&Load::BulkTransmit) {
            " The peer outside is netserver on the host, behind a tap."
        } else {
            ""
        };
        notes.push(format!(
            "Measured by netperf {}: TCP_STREAM, TCP_MAERTS, and TCP_RR from guest to guest, whose percentiles are those of its \
             histogram; runs last whole seconds.{outside} TCP's checksums guard what arrives: what came damaged would have been sent \
             again, and counts as nothing.",
            version(&self.ground.root, "netperf")
        ));
        if self.user_space {
            notes.push(USER_SPACE.to_owned());
        }
        notes.push("Counts per frame are the daemons', of both guests' ports; QEMU does not count its own.".to_owned());
        notes
    }
}

/// A package's version, for a sentence.
fn version(root: &Root, package: &str) -> String {
    root.version(package).unwrap_or("of unknown version").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind whose other methods are not called here.
    #[derive(Debug)]
    struct Any;

    impl Kind for Any {
        fn guests(&self) -> Guests {
            Guests::Qemu
        }

        fn overhead(&self) -> Duration {
            Duration::ZERO
        }

        fn servers(&self, _adapter: &str) -> Vec<Server> {
            Server::ALL.to_vec()
        }

        fn absent(&self, _adapter: &str, driver: Option<Driver>) -> Vec<(Server, String)> {
            driver.map(|_| (Server::Qemu, NOT_IN_QEMU.to_owned())).into_iter().collect()
        }

        fn prepare(&mut self, _ground: &mut Ground) -> Result<(), Error> {
            Err(Error::Stopped)
        }

        fn boot(&self, _ground: &mut Ground, _contestant: &Contestant, _stop: &AtomicBool) -> Result<Up, Error> {
            Err(Error::Stopped)
        }

        fn notes(&self, _root: &Root) -> Vec<String> {
            Vec::new()
        }
    }

    fn all(uio: Result<(), &str>) -> (Vec<Contestant>, Vec<(Contestant, String)>) {
        let (there, absent): (Vec<_>, Vec<_>) = REGISTRY.iter().map(|entry| field(&Any, entry, uio)).unzip();
        (there.concat(), absent.concat())
    }

    #[test]
    fn what_linux_has_no_driver_for_is_served_by_nicety_alone_under_ours() {
        let (there, absent) = all(Ok(()));
        let ours = |one: &&Contestant| one.driver.is_some();
        let mut names: Vec<(&str, Server)> =
            there.iter().filter(ours).map(|one| (one.adapter.as_str(), one.server)).collect();
        names.sort_unstable();
        assert_eq!(names, ["flexible", "vmxnet", "vmxnet2"].map(|name| (name, Server::Nicety)));
        let undriven = |entry: &&Entry| !entry.about.in_linux() && driver(entry).is_none();
        assert_eq!(REGISTRY.iter().filter(undriven).count(), 0, "nobody drives it");
        assert_eq!(there.iter().filter(|one| one.adapter == "vmxnet3").count(), Server::ALL.len());
        assert!(
            absent.iter().all(|(one, why)| (one.server, why.as_str()) == (Server::Qemu, NOT_IN_QEMU)),
            "{absent:?}"
        );
        assert_eq!(absent.len(), 3);
    }

    #[test]
    fn without_the_program_those_are_absent_with_the_reason_first() {
        let (there, absent) = all(Err("it is not there"));
        assert!(there.iter().all(|one| one.driver.is_none()));
        for name in ["vmxnet", "vmxnet2", "flexible"] {
            let (first, why) = absent.iter().find(|(one, _)| one.adapter == name).unwrap();
            assert_eq!((first.server, why.as_str()), (Server::Nicety, "it is not there"), "{name}");
        }
    }

    #[test]
    fn a_stop_is_no_failure() {
        assert_eq!(BenchError::from(Error::Stopped), BenchError::Cancelled);
    }
}
