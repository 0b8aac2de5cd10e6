//! Runs a driver through the phases of its life, against a daemon that records.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nicety_adapters::Entry;
use nicety_guests::{Accel, Counts, Error, Folder, Guest, GuestConfig, Kernel, Namespace, Port, Root, Served};

/// Time limit of a command that returns at once, in a translated guest on a busy host.
const SOON: Duration = Duration::from_secs(90);
/// Longer than the interval at which the recorder writes: 100 ms.
const WRITTEN: Duration = Duration::from_millis(500);
const TAP: &str = "n0";
const HOST: &str = "10.9.4.254";
const GUEST: &str = "10.9.4.1";
const MAC: &str = "52:54:00:12:34:56";
/// Pings in the `exchange` phase of a whole recording, and of a short one.
const EXCHANGES: [u32; 2] = [20, 3];

/// Phases of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// All of them.
    Whole,
    /// Those without bulk traffic.
    Short,
}

/// The recording of one phase.
pub struct Phase {
    /// The guest's activity.
    pub name: &'static str,
    /// Lines of the trace.
    pub lines: Vec<String>,
    /// The daemon's counts during the phase.
    pub counts: Counts,
}

struct Stage {
    served: Served,
    guest: Guest,
    trace: PathBuf,
    seen: usize,
    counts: Counts,
    phases: Vec<Phase>,
}

impl Stage {
    /// Runs a command in the guest. The events recorded since the last phase become a phase of this name.
    fn phase(&mut self, name: &'static str, command: &str) -> Result<(), Error> {
        eprintln!("  {name}");
        self.guest.succeed(command, SOON)?;
        thread::sleep(WRITTEN);
        let text = fs::read_to_string(&self.trace).unwrap_or_default();
        let lines: Vec<String> = text.lines().skip(self.seen).map(str::to_owned).collect();
        self.seen += lines.len();
        let counts = self.served.counts().unwrap_or_default();
        self.phases.push(Phase { name, lines, counts: counts.since(self.counts) });
        self.counts = counts;
        Ok(())
    }
}

/// Runs the phases. The first phase is everything before the driver.
pub fn live(
    root: &Root,
    program: &Path,
    entry: &'static Entry,
    kernel: Kernel,
    length: Length,
) -> Result<Vec<Phase>, Error> {
    let mut namespace = Namespace::open(root)?;
    namespace.tap(TAP, Some(&format!("{HOST}/24")))?;
    if length == Length::Whole {
        let mut netserver = root.program("usr/bin/netserver");
        netserver.args(["-4", "-D", "-N"]);
        namespace.start(&netserver, Path::new("/dev/null"))?;
    }
    let folder = Folder::new()?;
    let record = folder.join("traces");
    // Writes to a mapped doorbell page cannot be recorded.
    let trapped = Port { more: "doorbells = \"trapped\"\n".into(), ..Port::new("vm1", entry, MAC) };
    let served = Served::start_with(program, &mut namespace, vec![trapped], Some(TAP), &["--record", &record])?;
    let config = GuestConfig { accel: Accel::Tcg, drivers: vec!["none".into()], ..GuestConfig::new(kernel) };
    let guest = Guest::boot(root, served.attach(config, "vm1"))?;
    let trace = Path::new(&record).join("vm1.trace");
    let mut stage = Stage { served, guest, trace, seen: 0, counts: Counts::default(), phases: Vec::new() };
    let driver = entry.about.linux.driver;
    // With IPv6 the kernel sends neighbour discovery at times of its own. virtio's bus is a module in one of the kernels.
    let quiet =
        "for all in all default; do echo 1 >/proc/sys/net/ipv6/conf/$all/disable_ipv6; done; modprobe virtio_pci";
    stage.phase("boot", &format!("({quiet}) 2>/dev/null; true"))?;
    stage.phase("probe", &format!("modprobe {driver} && until [ -e /sys/class/net/eth0 ]; do usleep 20000; done"))?;
    let carrier = "until [ \"$(cat /sys/class/net/eth0/carrier)\" = 1 ]; do usleep 20000; done";
    stage.phase("up", &format!("ip link set eth0 up && {carrier}"))?;
    let ping = "/usr/bin/ping -n -q";
    stage.phase("address", &format!("ip addr add {GUEST}/24 dev eth0; {ping} -c 1 -W 10 {HOST} >/dev/null"))?;
    let pings = EXCHANGES[usize::from(length == Length::Short)];
    stage.phase("exchange", &format!("{ping} -c {pings} -i 0.05 -W 5 {HOST} >/dev/null"))?;
    if length == Length::Whole {
        loads(&mut stage)?;
    }
    stage.phase("down", "ip link set eth0 down")?;
    stage.phase("remove", &format!("rmmod {driver}"))?;
    let Stage { served, guest, phases, .. } = stage;
    drop(guest);
    served.stop(&mut namespace)?;
    Ok(phases)
}

/// The phases with bulk traffic.
fn loads(stage: &mut Stage) -> Result<(), Error> {
    let netperf = |test| format!("netperf -4 -H {HOST} -t {test} -l 2 >/dev/null");
    stage.phase("request-response", &netperf("TCP_RR"))?;
    stage.phase("transmit", &netperf("TCP_STREAM"))?;
    stage.phase("receive", &netperf("TCP_MAERTS"))?;
    stage.phase("segmentation off", "ethtool -K eth0 tso off gso off 2>&1 || true")?;
    stage.phase("transmit without segmentation", &netperf("TCP_STREAM"))
}
