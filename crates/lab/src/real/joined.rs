//! Two hosts with a guest each: the lab's namespace, and another one behind a veth pair. Three ways join their daemons.
//!
//! ```text
//! tunnel:   left ── daemon ═ VXLAN in UDP ═ veth ═ VXLAN in UDP ═ daemon ── right
//! kernel:   left ── daemon ── tap, bridge, vxlan device ═ veth ═ vxlan device, bridge, tap ── daemon ── right
//! pair:     left ── daemon ════════════ SOCK_SEQPACKET ════════════ daemon ── right
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nicety_guests::uml::{UmlConfig, UmlKernel};
use nicety_guests::{Error, Folder, Layer, Machine, Namespace, Port, Root, Served, Setup};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::netperf::{self, Test};
use super::pair::{self, Pair};
use super::veth::{FAR, NEAR, Veth};
use crate::spent::Spent;

/// The network between the hosts: addresses, and an MTU that leaves guests 1500 bytes.
const HOSTS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const UNDER_MTU: u32 = 1550;
const INNER_MTU: u32 = 1500;
/// The network of both guests, and its identifier.
const GUESTS: [&str; 2] = ["10.9.5.1", "10.9.5.2"];
const MACS: [&str; 2] = ["52:54:00:4e:05:01", "52:54:00:4e:05:02"];
const VNI: u32 = 5010;
/// Port of the kernel's devices: Nicety's tunnels have the port of RFC 7348 on the same hosts.
const KERNEL_PORT: u16 = 8472;
/// The names of a host's interfaces for the kernel's way.
const TAP: &str = "t0";
const BRIDGE: &str = "b0";
const DEVICE: &str = "vx0";
/// Time limit of what takes no time itself.
const SLACK: Duration = Duration::from_secs(30);

/// The connection of the two daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Nicety's VXLAN tunnel.
    Tunnel,
    /// A tap of each daemon on the kernel's bridge, with its `vxlan` device.
    Kernel,
    /// Nicety's own link between daemons of one machine, without a network.
    Pair,
}

/// The packets that the cable between the hosts takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cable {
    /// Uncut packets of every kind, as a card has that cuts tunnelled packets.
    Uncut,
    /// Single frames of tunnels, as a card has that cuts none. The kernel cuts them before, and joins them at the other end (GRO).
    Frames,
}

/// Two hosts (see the module's page).
#[derive(Debug)]
pub struct Hosts {
    namespace: Namespace,
    far: Veth,
    root: Root,
    kernel: UmlKernel,
    program: PathBuf,
    processors: Option<[usize; 2]>,
    /// `ethtool`, as words for the shell.
    ethtool: String,
    cable: Cable,
}

/// Guests of both hosts. They end by [`Hosts::end`].
#[derive(Debug)]
pub struct Joined {
    pair: Pair,
    served: Vec<Served>,
    _folder: Folder,
}

/// A line of shell that makes the kernel's way on a host.
fn kernel_way(ip: &str, under: &str, own: &str, peer: &str) -> String {
    format!(
        "\"$busybox\" tunctl -t {TAP} && {ip} link add {BRIDGE} type bridge && \
         {ip} link add {DEVICE} type vxlan id {VNI} dstport {KERNEL_PORT} local {own} remote {peer} dev {under} && \
         {ip} link set {DEVICE} mtu {INNER_MTU} master {BRIDGE} && {ip} link set {TAP} master {BRIDGE} && \
         {ip} link set {BRIDGE} up && {ip} link set {DEVICE} up && {ip} link set {TAP} up"
    )
}

impl Hosts {
    /// Lays guests, and makes both hosts with all that the kernel's way needs.
    ///
    /// # Errors
    /// Those of [`Root::lay`], of the user-mode kernel, and of the kernel; each names its remedy.
    pub fn open(program: &Path, say: &mut dyn FnMut(&str)) -> Result<Hosts, Error> {
        let (root, kernel) = (Root::lay(say)?, UmlKernel::lay(say)?);
        let iproute = Layer::lay("iproute2", &["iproute2"], say)?;
        let mut namespace = Namespace::open(&root)?;
        let [here, there] = HOSTS;
        let far = Veth::open(&mut namespace, &root, &format!("{there}/24"))?;
        let quoted = |words: &[String]| words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let words = |command: &Command| {
            let all = std::iter::once(command.get_program()).chain(command.get_args());
            quoted(&all.map(|word| word.display().to_string()).collect::<Vec<_>>())
        };
        let (ip, ethtool) = (words(&iproute.program("usr/sbin/ip")), words(&root.program("usr/sbin/ethtool")));
        let inside = quoted(&far.entrance());
        let under = format!(
            "ip link set {NEAR} mtu {UNDER_MTU} && ip addr add {here}/24 dev {NEAR} && {inside} {ip} link set {FAR} mtu {UNDER_MTU}"
        );
        namespace.run(&under, SLACK)?;
        namespace.run(&kernel_way(&ip, NEAR, here, there), SLACK)?;
        let beyond =
            kernel_way(&ip, FAR, there, here).replace("\"$busybox\"", &format!("'{}'", root.busybox().display()));
        let script = beyond.replace('\'', r"'\''");
        namespace.run(&format!("{inside} \"$busybox\" sh -c '{script}'"), SLACK)?;
        far.wait(&mut namespace)?;
        let (program, processors) = (program.to_owned(), processors());
        Ok(Hosts { namespace, far, root, kernel, program, processors, ethtool, cable: Cable::Uncut })
    }

    /// Has the cable take this from now on.
    fn lay_cable(&mut self, cable: Cable) -> Result<(), Error> {
        if std::mem::replace(&mut self.cable, cable) == cable {
            return Ok(());
        }
        let (uncut, joins) = if cable == Cable::Uncut { ("on", "off") } else { ("off", "on") };
        // A veth device gives packets to GRO only if it cuts no TCP packets itself (`veth_skb_is_eligible_for_gro()` of drivers/net/veth.c).
        let set = |name: &str| {
            format!(
                "{} -K {name} tx-udp_tnl-segmentation {uncut} tx-udp_tnl-csum-segmentation {uncut} tx-udp-segmentation {uncut} tso {uncut} \
                 gro {joins}",
                self.ethtool
            )
        };
        let inside = self.far.entrance().iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        self.namespace.run(&format!("{} && {inside} {}", set(NEAR), set(FAR)), SLACK).map(drop)
    }

    /// The command prefix that binds a program to the processor of a host.
    fn bound(&self, host: usize) -> Vec<String> {
        let Some(processors) = self.processors else { return Vec::new() };
        let number = processors.get(host).copied().unwrap_or_default();
        vec![self.root.busybox().display().to_string(), "taskset".into(), "-c".into(), number.to_string()]
    }

    /// Boots a guest with this adapter on each host.
    ///
    /// # Errors
    /// Those of the guests and of the daemons.
    pub fn boot(&mut self, adapter: &str, way: Way, cable: Cable, stop: &AtomicBool) -> Result<Joined, Error> {
        self.lay_cable(cable)?;
        let folder = Folder::new()?;
        let missing = || Error::Daemon { why: format!("there is no adapter {adapter}"), said: String::new() };
        let entry = nicety_adapters::find(adapter).ok_or_else(missing)?;
        let mut served = Vec::new();
        for (host, mac) in MACS.iter().enumerate() {
            let name = if host == 0 { "left" } else { "right" };
            let queues = if entry.about.transports.contains(&"vhost-user") { "queues = 1\n" } else { "" };
            let port = Port { more: format!("{}{queues}", vlan(way)), ..Port::new(name, entry, mac) };
            let mut before = if host == 0 { Vec::new() } else { self.far.entrance() };
            before.extend(self.bound(host));
            let setup = Setup { daemon_more: uplink(way, host, &folder), before, ..Setup::default() };
            match Served::start_as(&self.program, &mut self.namespace, vec![port], setup) {
                Ok(one) => served.push(one),
                Err(error) => {
                    // An error of stopping the other has the same cause, so it is dropped.
                    let _ = self.stop(served);
                    return Err(error);
                }
            }
        }
        let machine = |host: usize| {
            let machine = UmlConfig::new(&self.kernel).address("eth0", &format!("{}/24", GUESTS[host]));
            UmlConfig { before: self.bound(host), ..machine }
        };
        let [left, right] = [("left", 0), ("right", 1)].map(|(name, host)| served[host].attach(machine(host), name));
        match pair::boot_unless(&self.root, left, right, stop) {
            Ok(pair) => Ok(Joined { pair, served, _folder: folder }),
            Err(error) => {
                let _ = self.stop(served);
                Err(error)
            }
        }
    }

    fn stop(&mut self, served: Vec<Served>) -> Result<(), Error> {
        let ends: Vec<Result<(), Error>> = served.into_iter().map(|one| one.stop(&mut self.namespace)).collect();
        ends.into_iter().collect()
    }

    /// Ends the guests, then the daemons.
    ///
    /// # Errors
    /// A daemon does not end.
    pub fn end(&mut self, joined: Joined) -> Result<(), Error> {
        let Joined { pair, served, _folder } = joined;
        drop(pair);
        self.stop(served)
    }

    /// Facts for the report.
    pub fn notes(&self) -> Vec<String> {
        let bound = match self.processors {
            Some([left, right]) => {
                format!("The left guest and its daemon are bound to processor {left}, the right ones to {right}")
            }
            None => "There is only one processor for all processes".to_owned(),
        };
        vec![
            format!(
                "Guests: kernel {} built as a user-mode program (UML) from Debian's {}, unmodified drivers, one processor, 256 MiB, MTU \
                 {INNER_MTU}. Each guest has a daemon of its own, in a network namespace of its own. A veth pair with an MTU of {UNDER_MTU} \
                 joins the namespaces. {bound}.",
                self.kernel.release(),
                self.kernel.source(),
            ),
            "The veth pair passes packets on uncut, those of the kernel's vxlan device and those that Nicety sends by UDP_SEGMENT alike, as a \
             card does that cuts tunnelled packets. In the loads with single frames it does not: the kernel cuts them, and joins them at the \
             other end (GRO). Checksums are left to the card in both, and nobody computes them: the kernel's way has none to compute, and \
             Nicety computes the inner ones."
                .to_owned(),
            "CPU time is that of both guests and both daemons. The kernel's bridge, its vxlan device and the network work in the daemons' \
             system calls, so they are counted with them."
                .to_owned(),
        ]
    }
}

impl Joined {
    /// Resolves addresses, and starts netperf's server.
    ///
    /// # Errors
    /// No answer.
    pub fn warm(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        // The daemons of a pair may still be meeting.
        let ping = format!("/usr/bin/ping -n -q -c 1 -W 5 {}", GUESTS[1]);
        self.pair.left.succeed_unless(&format!("{ping} || {ping}"), SLACK, stop)?;
        self.pair.serve()?;
        netperf::run(&mut self.pair.left, GUESTS[1], Test::Stream, 1, stop).map(drop)
    }

    /// TCP from the left guest to the right one.
    ///
    /// # Errors
    /// Those of [`netperf::run`].
    pub fn stream(&mut self, seconds: u32, stop: &AtomicBool) -> Result<netperf::Measured, Error> {
        netperf::run(&mut self.pair.left, GUESTS[1], Test::Stream, seconds, stop)
    }

    /// Processor time so far.
    pub fn spent(&self) -> Spent {
        Spent { vmm: self.pair.cpu_time(), daemon: Some(self.served.iter().map(Served::cpu_time).sum()) }
    }
}

/// The port's line that puts it into the tunnel's VLAN.
fn vlan(way: Way) -> &'static str {
    if way == Way::Tunnel { "vlan = 10\n" } else { "" }
}

/// The uplink of a host's daemon.
fn uplink(way: Way, host: usize, folder: &Folder) -> String {
    let (own, peer) = (HOSTS[host], HOSTS[1 - host]);
    let lines = match way {
        Way::Tunnel => format!(
            "kind = \"vxlan\"\nname = \"tunnel\"\naddress = \"{own}\"\npeers = \"{peer}\"\ntrunk = \"10\"\nvnis = \"10={VNI}\"\nmtu = {UNDER_MTU}\n"
        ),
        Way::Kernel => format!("kind = \"tap\"\nname = \"{TAP}\"\n"),
        Way::Pair => {
            let role = if host == 0 { "listen" } else { "connect" };
            format!("kind = \"pair\"\nsocket = \"{}\"\nrole = \"{role}\"\n", folder.join("pair.sock"))
        }
    };
    format!("\n[[uplink]]\n{lines}")
}

/// The two processors on which everything runs. None if we may only use one.
fn processors() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut numbers = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    Some([numbers.next()?, numbers.next()?])
}
