//! The bench of real guests: unmodified Linux in QEMU, each adapter served by Nicety and by QEMU itself, measured by netperf.
//!
//! Two guests at a time, booted afresh for each contestant of each round, in a [`Namespace`]:
//!
//! ```text
//! Nicety:  left ─ vfio-user or vhost-user ─┐                        QEMU:  left ── its own adapter ── tap ─┐
//!                                        daemon ── tap ── netserver                                     bridge ── netserver
//!         right ─ vfio-user or vhost-user ─┘                              right ── its own adapter ── tap ─┘
//! ```
//!
//! The bridge is how people connect QEMU's adapters (libvirt's default), and faster than QEMU's own `-netdev stream`.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nicety_adapters::{Entry, REGISTRY};

use super::{
    accel::Accel,
    error::Error,
    guest::GuestConfig,
    image::Image,
    kernel::Kernel,
    namespace::Namespace,
    netperf::{self, Test},
    pair::{self, Pair},
    root::Root,
    served::{Counts, Port, Served},
};
use crate::{
    bench::{Bench, BenchError, Latency, Measured, Outcome, Usage},
    method::{Contestant, Guests, Item, Load, Order, Plan, Server},
    progress::Progress,
};

/// Booting two guests and warming them, over the four loads of a contestant, and a run's own beginning and end.
const OVERHEAD: Duration = Duration::from_millis(3_900);
/// How long a command beside the measurements may take in a guest.
const SLACK: Duration = Duration::from_secs(30);
/// Names and addresses of the two networks: the same but for a number.
const BRIDGE: &str = "b0";
const BRIDGED: [&str; 2] = ["q1", "q2"];
const UPLINK: &str = "n0";
const LEFT_MAC: &str = "52:54:00:4e:00:01";
const RIGHT_MAC: &str = "52:54:00:4e:00:02";

/// The address of the `last` station in a server's network.
fn address(server: Server, last: u8) -> String {
    let network = match server {
        Server::Qemu => 1,
        Server::Nicety => 2,
    };
    format!("10.9.{network}.{last}")
}

/// QEMU's own model of an adapter, if it has one.
fn qemu_model(adapter: &str) -> Option<&'static str> {
    let models = [
        ("e1000", "e1000"),
        ("vmxnet3", "vmxnet3"),
        ("virtio-net", "virtio-net-pci"),
        ("lance", "pcnet"),
        ("ne2000", "ne2k_pci"),
        ("rtl8139", "rtl8139"),
    ];
    models.iter().find(|(ours, _)| *ours == adapter).map(|(_, model)| *model)
}

/// See the module's page.
#[derive(Debug)]
pub struct RealBench {
    running: Option<Running>,
    namespace: Namespace,
    root: Root,
    program: PathBuf,
    accel: Accel,
    kernel: Kernel,
}

/// A contestant's guests, up.
#[derive(Debug)]
struct Running {
    contestant: Contestant,
    round: u32,
    pair: Pair,
    served: Option<Served>,
}

impl Running {
    fn cpu_time(&self) -> Duration {
        self.pair.cpu_time() + self.served.as_ref().map_or(Duration::ZERO, Served::cpu_time)
    }

    fn counts(&self) -> Option<Counts> {
        self.served.as_ref().and_then(Served::counts)
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
    /// Lays what guests are made of, if it is not there yet, and makes the network; `program` is the one whose
    /// `serve FILE` is measured. `say` gets a line for each step of the laying.
    ///
    /// # Errors
    /// Those of [`Root::lay`] and [`Namespace::open`]; each says what to do.
    pub fn open(program: &Path, say: &mut dyn FnMut(&str)) -> Result<RealBench, Error> {
        let root = Root::lay(say)?;
        let mut namespace = Namespace::open(&root)?;
        let host = |server| format!("{}/24", address(server, 254));
        namespace.bridge(BRIDGE, &host(Server::Qemu), &BRIDGED)?;
        namespace.tap(UPLINK, Some(&host(Server::Nicety)))?;
        let mut netserver = root.program("usr/bin/netserver");
        netserver.args(["-4", "-D", "-N"]);
        namespace.start(&netserver, Path::new("/dev/null"))?;
        let (program, kernel) = (program.to_owned(), Kernel::V6_12);
        Ok(RealBench { running: None, namespace, root, program, accel: Accel::Auto, kernel })
    }

    fn base(&self, server: Server, last: u8) -> GuestConfig {
        GuestConfig {
            accel: self.accel,
            addresses: vec![format!("eth0:{}/24", address(server, last))],
            entrance: self.namespace.entrance(),
            ..GuestConfig::new(self.kernel)
        }
    }

    /// Ends the guests that run, then the daemon.
    fn end(&mut self) -> Result<(), Error> {
        let Some(Running { pair, served, .. }) = self.running.take() else { return Ok(()) };
        drop(pair);
        served.map_or(Ok(()), |served| served.stop(&mut self.namespace))
    }

    fn boot(&mut self, item: &Item, cancel: &AtomicBool) -> Result<Running, Error> {
        let Contestant { adapter, server } = &item.contestant;
        let (left, right) = (self.base(*server, 1), self.base(*server, 2));
        let (served, left, right) = match server {
            Server::Nicety => {
                let entry = entry(adapter)?;
                let ports = vec![Port::new("left", entry, LEFT_MAC), Port::new("right", entry, RIGHT_MAC)];
                let served = Served::start(&self.program, &mut self.namespace, ports, Some(UPLINK))?;
                let (left, right) = (served.attach(left, "left"), served.attach(right, "right"));
                (Some(served), left, right)
            }
            Server::Qemu => {
                let model = qemu_model(adapter).unwrap_or(adapter);
                let adapter = |config: GuestConfig, mac: &str, tap: &str| {
                    let tap = format!("tap,ifname={tap},script=no,downscript=no");
                    config.adapter(&format!("{model},mac={mac}"), &tap)
                };
                (None, adapter(left, LEFT_MAC, BRIDGED[0]), adapter(right, RIGHT_MAC, BRIDGED[1]))
            }
        };
        let pair = pair::boot_unless(&self.root, left, right, cancel)?;
        let mut running = Running { contestant: item.contestant.clone(), round: item.round, pair, served };
        running.pair.serve()?;
        running.warm(cancel)?;
        Ok(running)
    }

    /// The guests of this run, booted if they are not up.
    fn guests(&mut self, item: &Item, cancel: &AtomicBool) -> Result<&mut Running, Error> {
        let fits = |running: &Running| running.contestant == item.contestant && running.round == item.round;
        if !self.running.as_ref().is_some_and(fits) {
            self.end()?;
            self.running = Some(self.boot(item, cancel)?);
        }
        self.running.as_mut().ok_or(Error::Stopped)
    }
}

fn entry(adapter: &str) -> Result<&'static Entry, Error> {
    nicety_adapters::find(adapter)
        .ok_or_else(|| Error::Daemon { why: format!("there is no adapter {adapter}"), said: String::new() })
}

impl Running {
    /// What is slow only once: addresses are resolved, the guests' code is translated.
    fn warm(&mut self, cancel: &AtomicBool) -> Result<(), Error> {
        let server = self.contestant.server;
        for last in [2, 254] {
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
        let (cpu, counts) = (self.cpu_time(), self.counts());
        let peer = address(self.contestant.server, last);
        let measured = netperf::run(&mut self.pair.left, &peer, test, seconds, cancel)?;
        let cpu_seconds = self.cpu_time().saturating_sub(cpu).as_secs_f64();
        let counts = self.counts().zip(counts).map(|(now, before)| now.since(before));
        let elapsed = Duration::from_secs_f64(measured.seconds);
        let outcome = match measured.latency_us {
            Some((p50, p99)) => Outcome::Transactions {
                count: (measured.rate * measured.seconds) as u64,
                elapsed,
                latency: Latency::ReportedUs { p50, p99 },
            },
            None => Outcome::Bulk { payload_bytes: measured.payload_bytes(), elapsed },
        };
        let usage = Usage {
            frames: counts.map(|counts| counts.frames),
            register_reads: counts.map(|counts| counts.reads),
            register_writes: counts.map(|counts| counts.writes),
            interrupts: counts.map(|counts| counts.interrupts),
            cpu_seconds: Some(cpu_seconds),
        };
        Ok(Measured { outcome, usage })
    }
}

impl Bench for RealBench {
    fn guests(&self) -> Guests {
        Guests::Qemu
    }

    fn contestants(&self) -> Vec<Contestant> {
        let servers = |name: &'static str| {
            let qemu = qemu_model(name).map(|_| Contestant::new(name, Server::Qemu));
            [Some(Contestant::new(name, Server::Nicety)), qemu].into_iter().flatten()
        };
        REGISTRY.iter().flat_map(|entry| servers(entry.about.name)).collect()
    }

    fn order(&self) -> Order {
        Order::EveryContestant
    }

    fn overhead(&self) -> Duration {
        OVERHEAD
    }

    fn prepare(&mut self, _plan: &Plan, progress: &mut Progress, cancel: &AtomicBool) -> Result<(), BenchError> {
        progress.step("preparing the guests");
        let fatal = |error: Error| BenchError::Fatal(error.to_string());
        Image::of(&self.root, self.kernel).map_err(fatal)?;
        self.accel = Accel::Auto.resolve(&self.root).map_err(fatal)?;
        if cancel.load(Ordering::Relaxed) { Err(BenchError::Cancelled) } else { Ok(()) }
    }

    fn run(&mut self, item: &Item, duration: Duration, cancel: &AtomicBool) -> Result<Measured, BenchError> {
        // netperf counts in whole seconds.
        let seconds = (duration.as_secs_f64().round() as u32).max(1);
        let measured = self.guests(item, cancel).and_then(|running| running.measure(item.load, seconds, cancel));
        if measured.is_err() {
            // Guests that did not answer once are not asked again. What the end complains of is the same trouble.
            let _ = self.end();
        }
        Ok(measured?)
    }

    fn notes(&self) -> Vec<String> {
        let version = |package| self.root.version(package).unwrap_or("of unknown version").to_owned();
        let kernel = self.root.packages().iter().find(|p| p.name.starts_with(&format!("linux-image-{}.", self.kernel)));
        let runs = match self.accel {
            Accel::Kvm => "KVM",
            Accel::Auto | Accel::Tcg => "QEMU's translator (TCG), for there is no KVM that boots a stock kernel",
        };
        vec![
            format!(
                "Guests: Debian's kernel {}, unmodified drivers, one processor, 256 MiB, in QEMU {} (machine q35), run by {runs}; \
                 two guests, booted afresh for each contestant of each round.",
                kernel.map_or("of unknown version", |package| package.version.as_str()),
                version("qemu-system-x86"),
            ),
            format!(
                "Measured by netperf {}: TCP_STREAM, TCP_MAERTS, and TCP_RR from guest to guest, whose percentiles are those \
                 of its histogram; runs last whole seconds.",
                version("netperf"),
            ),
            "Nicety: both guests and a tap on one daemon with one worker, doorbells trapped, options as they come. QEMU: its own \
             adapters, each with a tap on the kernel's bridge, options as they come, vhost off. The peer outside is netserver \
             on the host, behind the tap or the bridge."
                .to_owned(),
            "CPU time is that of both QEMU processes and the daemon together, guests' own work included; netserver's is not."
                .to_owned(),
            "Counts per frame are the daemon's, of both ports; QEMU does not count its own.".to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registered_adapter_is_compared_and_those_that_qemu_has_twice() {
        for (ours, model) in [("e1000", "e1000"), ("vmxnet3", "vmxnet3"), ("virtio-net", "virtio-net-pci")] {
            assert!(nicety_adapters::find(ours).is_some(), "{ours}");
            assert_eq!(qemu_model(ours), Some(model));
        }
        assert_eq!(qemu_model("igbvf"), None);
    }

    #[test]
    fn a_stop_is_no_failure() {
        assert_eq!(BenchError::from(Error::Stopped), BenchError::Cancelled);
    }
}
