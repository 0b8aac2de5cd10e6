//! Metrics in Prometheus's text format, version 0.0.4. Names have units, counters end in `_total`, and drops are counted by
//! reason.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::time::Duration;

use nicety_adapter::{QueueCounters, Reason};
use nicety_plane::{BUCKETS_NS, ClassState, Histogram};
use nicety_switch::{Policy, Vlan, VlanSet};
use nicety_uplink::{Passed, Traffic};

use crate::daemon::{PortView, TunnelTraffic};
use crate::fabric::{Connection, FabricReport, HostReport};
use crate::flows::FlowExportReport;
use crate::observe::report::{Condition, condition_of};
use crate::protection::{VmReport, VmRole};
use crate::usage::Process;

/// The value of the Content-Type header.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric's name or a part of it, its help, and its value.
type Metric<T, V = u64> = (&'static str, &'static str, fn(&T) -> V);

/// The values to report.
#[derive(Debug)]
pub struct Facts {
    /// All ports, uplinks first.
    pub ports: Vec<PortView>,
    /// VMs that are copied to twins on other hosts.
    pub vms: Vec<VmReport>,
    /// The fabric that the host is in.
    pub fabric: Option<FabricReport>,
    /// The tunnels to other hosts.
    pub tunnels: Vec<TunnelTraffic>,
    /// Addresses that the switch knows.
    pub addresses: usize,
    /// Processor time by threads' names.
    pub threads: BTreeMap<String, Duration>,
    /// The whole process. `None` if the system does not tell.
    pub process: Option<Process>,
    /// The times that frames spend in the switch.
    pub times: Histogram,
    /// Running captures.
    pub captures: usize,
    /// The exports of flows.
    pub flow_exports: Vec<FlowExportReport>,
    /// Number of times that each worker has slept and woken.
    pub wakes: Vec<u64>,
    /// For how long ports stood still when this daemon took over from another one, in nanoseconds.
    pub pauses: Vec<(String, u64)>,
    /// Whether a change waits to be confirmed, and whether it could not be undone in time.
    pub change: (bool, bool),
}

/// A text under construction.
#[derive(Default)]
struct Page(String);

impl Page {
    /// Starts a metric.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.line(format_args!("{name}{labels} {value}"));
    }

    /// One value per port.
    fn of_ports(&mut self, ports: &[PortView], kind: &str, name: &str, help: &str, value: impl Fn(&PortView) -> u64) {
        self.family(name, kind, help);
        for port in ports {
            self.sample(name, &[("port", &port.name)], value(port));
        }
    }
}

/// Escapes a label's value (the format's "escaping").
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

/// The whole text.
pub fn text(facts: &Facts) -> String {
    let mut page = Page::default();
    page.family("nicety_build_info", "gauge", "The program's version; always 1.");
    page.sample("nicety_build_info", &[("version", nicety_version::BUILD)], 1);
    ports(&mut page, &facts.ports);
    traffic(&mut page, &facts.ports);
    drops(&mut page, &facts.ports);
    taken(&mut page, &facts.ports);
    refused(&mut page, &facts.ports);
    throttled(&mut page, &facts.ports);
    classes(&mut page, &facts.ports);
    vms(&mut page, &facts.vms);
    facts.fabric.iter().for_each(|one| fabric(&mut page, one));
    tunnels(&mut page, &facts.tunnels, facts.fabric.as_ref());
    let one = |page: &mut Page, name: &str, help: &str, value: usize| {
        page.family(name, "gauge", help);
        page.sample(name, &[], value);
    };
    one(
        &mut page,
        "nicety_switch_addresses",
        "Addresses that the switch has learned and not forgotten.",
        facts.addresses,
    );
    one(&mut page, "nicety_captures", "Captures that run.", facts.captures);
    let (waits, stands) = facts.change;
    let help = "Whether a change waits to be confirmed; `nicety ports` says which.";
    one(&mut page, "nicety_change_waiting", help, waits.into());
    let help = "Whether that change was not confirmed in time, and could not be undone.";
    one(&mut page, "nicety_change_not_undone", help, stands.into());
    pauses(&mut page, facts);
    flow_exports(&mut page, &facts.flow_exports);
    page.family("nicety_thread_cpu_seconds_total", "counter", "Processor time of the daemon's threads of a name.");
    for (thread, time) in &facts.threads {
        page.sample("nicety_thread_cpu_seconds_total", &[("thread", thread)], time.as_secs_f64());
    }
    page.family("nicety_worker_wakes_total", "counter", "How often a worker has slept and woken.");
    for (worker, wakes) in facts.wakes.iter().enumerate() {
        page.sample("nicety_worker_wakes_total", &[("worker", &worker.to_string())], wakes);
    }
    times(&mut page, &facts.times);
    if let Some(of) = &facts.process {
        process(&mut page, of);
    }
    page.0
}

/// The pauses of ports that are still there.
fn pauses(page: &mut Page, facts: &Facts) {
    const NAME: &str = "nicety_port_upgrade_pause_seconds";
    let help = "For how long the port stood still when this daemon took over from another one; of no other start.";
    page.family(NAME, "gauge", help);
    for (name, ns) in facts.pauses.iter().filter(|(name, _)| facts.ports.iter().any(|port| port.name == *name)) {
        page.sample(NAME, &[("port", name)], Duration::from_nanos(*ns).as_secs_f64());
    }
}

/// The VLANs of a port, as its host file has them: of `vlan`, `trunk` or `qinq`. Empty: the flat network.
fn vlans(policy: &Policy) -> String {
    match &policy.vlan {
        Vlan::Flat => String::new(),
        Vlan::Access(id) | Vlan::Service(id) => id.to_string(),
        Vlan::Trunk { allowed, .. } if *allowed == VlanSet::all() => "all".to_owned(),
        Vlan::Trunk { allowed, .. } => allowed.to_string(),
    }
}

/// A value for each export. Hosts without exports have no such metrics.
fn flow_exports(page: &mut Page, exports: &[FlowExportReport]) {
    const BY_PORT: &str = "nicety_flow_port_records_lost_total";
    if exports.is_empty() {
        return;
    }
    page.family("nicety_flow_collector_up", "gauge", "Whether the collector gets records, as far as is known.");
    for export in exports {
        page.sample("nicety_flow_collector_up", &[("export", &export.name)], u8::from(export.away.is_none()));
    }
    let counters: [Metric<FlowExportReport>; 4] = [
        ("nicety_flow_records_total", "Records of flows that were sent.", |export| export.records),
        ("nicety_flow_templates_total", "Times that the templates were sent.", |export| export.templates),
        (
            "nicety_flow_records_lost_total",
            "Records that were lost because the collector was away or too slow.",
            |export| export.lost,
        ),
        (
            "nicety_flows_displaced_total",
            "Flows that were reported early because their port had no room for more.",
            |export| export.displaced,
        ),
    ];
    for (name, help, value) in counters {
        page.family(name, "counter", help);
        exports.iter().for_each(|export| page.sample(name, &[("export", &export.name)], value(export)));
    }
    page.family(BY_PORT, "counter", "Records that were lost, by the port that their frames came from.");
    for export in exports {
        for (port, lost) in &export.lost_by_port {
            page.sample(BY_PORT, &[("export", &export.name), ("port", port)], lost);
        }
    }
}

/// The metrics that Prometheus's own client libraries give for every process, by the same names.
fn process(page: &mut Page, process: &Process) {
    let Process { cpu, resident_bytes, virtual_bytes, open_files, open_files_most, start_seconds } = process;
    let mut one = |name: &str, kind: &str, help: &str, value: &dyn Display| {
        page.family(name, kind, help);
        page.sample(name, &[], value);
    };
    one("process_cpu_seconds_total", "counter", "Processor time of the process.", &cpu.as_secs_f64());
    one(
        "process_resident_memory_bytes",
        "gauge",
        "Resident memory, touched memory of attached VMs included.",
        resident_bytes,
    );
    one("process_virtual_memory_bytes", "gauge", "Address space, memory of attached VMs included.", virtual_bytes);
    one("process_open_fds", "gauge", "Open file descriptors.", open_files);
    match open_files_most {
        Some(most) => one("process_max_fds", "gauge", "The limit of open file descriptors.", most),
        None => one("process_max_fds", "gauge", "The limit of open file descriptors.", &"+Inf"),
    }
    one(
        "process_start_time_seconds",
        "gauge",
        "The start of the process, in seconds since 1970-01-01 00:00 UTC.",
        start_seconds,
    );
}

fn ports(page: &mut Page, ports: &[PortView]) {
    page.family("nicety_port_info", "gauge", "A port's adapter, address, port group and VLANs; always 1.");
    for port in ports {
        let mac = port.spec.as_ref().map(|spec| spec.config.mac.to_string()).unwrap_or_default();
        let link = if port.members.is_some() { "(team)" } else { "(uplink)" };
        let adapter = port.spec.as_ref().map_or(link, |spec| spec.config.entry.about.name);
        let group = port.spec.as_ref().and_then(|spec| spec.config.group.as_deref()).unwrap_or_default();
        let (vlan, name) = (vlans(&port.policy), port.name.as_str());
        let labels = [("port", name), ("adapter", adapter), ("mac", &mac), ("group", group), ("vlan", &vlan)];
        page.sample("nicety_port_info", &labels, 1);
    }
    let gauges: [Metric<PortView>; 10] = [
        ("nicety_port_attached", "Whether a VM is attached; always 1 for an uplink.", |port| {
            port.state.attached.into()
        }),
        ("nicety_port_driver_up", "Whether the guest's driver has started the adapter.", |port| {
            port.state.driven.into()
        }),
        ("nicety_port_up", "Whether the guest's driver works, or the uplink passes frames.", |port| {
            (condition_of(port).0 == Condition::Up).into()
        }),
        ("nicety_port_broken", "Whether the port or one of its queues cannot work; `nicety ports` says why.", |port| {
            (condition_of(port).0 == Condition::Broken).into()
        }),
        ("nicety_port_failed", "Whether a defect of the daemon has ended the port.", |port| {
            port.state.failed.is_some().into()
        }),
        (
            "nicety_port_multicasts",
            "Multicast groups, and reasons for all of them, for which it is sent frames.",
            |port| port.wanted.len() as u64,
        ),
        ("nicety_port_held", "Whether what it sends waits for an uplink.", |port| port.state.held.into()),
        ("nicety_port_waiting_frames", "Frames that wait for the receiver.", |port| port.state.backlog_frames as u64),
        ("nicety_port_waiting_bytes", "Bytes of the receive buffer that they take.", |port| port.state.backlog_bytes),
        (
            "nicety_port_allocated_bytes",
            "Guest memory that nobody had touched before the daemon wrote to it.",
            |port| port.state.allocated_bytes,
        ),
    ];
    for (name, help, value) in gauges {
        page.of_ports(ports, "gauge", name, help, value);
    }
    let counters: [Metric<PortView>; 7] = [
        ("nicety_port_interrupts_total", "Interrupts that the adapter raised.", |port| port.state.counters.interrupts),
        ("nicety_port_signals_total", "Interrupt descriptors that were written.", |port| port.signals),
        ("nicety_port_register_reads_total", "Register reads by the guest.", |port| port.state.counters.reads),
        ("nicety_port_register_writes_total", "Register writes by the guest.", |port| port.state.counters.writes),
        (
            "nicety_port_bad_accesses_total",
            "Register accesses of a wrong width, to a hole, or to an adapter asleep.",
            |port| port.state.counters.bad_accesses(),
        ),
        ("nicety_port_guest_errors_total", "Breaches of the device's protocol by the guest.", |port| {
            port.state.counters.guest_errors()
        }),
        ("nicety_port_memory_changes_total", "Maps and unmaps of memory by its VMM, or by the VM's IOMMU.", |port| {
            port.state.memory_changes
        }),
    ];
    for (name, help, value) in counters {
        page.of_ports(ports, "counter", name, help, value);
    }
}

/// Queues that carried traffic, in each direction. Those of teams have names of their own: a sum over all ports must not count a frame twice.
fn traffic(page: &mut Page, ports: &[PortView]) {
    let values: [Metric<QueueCounters>; 3] = [
        ("packets", "Packets as the guest sees them", |queue| queue.packets),
        ("frames", "Frames as a wire would see them", |queue| queue.frames),
        ("bytes", "Bytes, without frame check sequences", |queue| queue.bytes),
    ];
    for direction in ["transmit", "receive"] {
        for (unit, what, value) in values {
            let name = format!("nicety_team_{direction}_{unit}_total");
            let way = if direction == "transmit" { "that came in" } else { "that went out" };
            page.family(&name, "counter", &format!("{what}, {way} by a team's uplinks."));
            for team in ports.iter().filter(|port| port.members.is_some()) {
                let counters = &team.state.counters;
                let sum = if direction == "transmit" { counters.transmitted() } else { counters.taken() };
                page.sample(&name, &[("port", &team.name)], value(&sum));
            }
            let name = format!("nicety_port_{direction}_{unit}_total");
            let from = if direction == "transmit" { "that the guest sent" } else { "that the guest received" };
            page.family(&name, "counter", &format!("{what}, {from}; of an uplink, the world is the guest."));
            for port in ports.iter().filter(|port| port.members.is_none()) {
                let counters = &port.state.counters;
                let queues = if direction == "transmit" { &counters.transmit } else { &counters.receive };
                // Queue 0 is always reported, so that its rate is 0 and not missing.
                for (number, queue) in
                    queues.iter().enumerate().filter(|(number, queue)| *number == 0 || queue.packets > 0)
                {
                    page.sample(&name, &[("port", &port.name), ("queue", &number.to_string())], value(queue));
                }
            }
        }
    }
}

fn drops(page: &mut Page, ports: &[PortView]) {
    const NAME: &str = "nicety_port_drops_total";
    page.family(
        NAME,
        "counter",
        "Frames that the guest sent and that went nowhere, or that were for it and did not reach it.",
    );
    for port in ports {
        let counters = &port.state.counters;
        for (direction, drops) in [("transmit", &counters.transmit_drops), ("receive", &counters.receive_drops)] {
            let dropped = Reason::ALL.iter().zip(drops).filter(|(reason, _)| **reason != Reason::Taken);
            for (reason, count) in dropped.filter(|(_, count)| **count > 0) {
                let labels = [("port", port.name.as_str()), ("direction", direction), ("reason", reason.name())];
                page.sample(NAME, &labels, count);
            }
        }
    }
}

fn taken(page: &mut Page, ports: &[PortView]) {
    const NAME: &str = "nicety_port_taken_total";
    let help = "Frames that came in and were for the switch itself: LACP, LLDP, a probe for loops.";
    page.of_ports(ports, "counter", NAME, help, |port| port.state.counters.transmit_drops[Reason::Taken as usize]);
}

fn refused(page: &mut Page, ports: &[PortView]) {
    const NAME: &str = "nicety_port_refused_dma_total";
    page.family(
        NAME,
        "counter",
        "Accesses to guest memory that the adapter was refused: nothing is mapped there for it.",
    );
    for port in ports {
        let refused = port.state.refused;
        for (direction, count) in [("read", refused.reads), ("write", refused.writes)] {
            page.sample(NAME, &[("port", port.name.as_str()), ("direction", direction)], count);
        }
    }
}

fn throttled(page: &mut Page, ports: &[PortView]) {
    const NAME: &str = "nicety_port_throttled_seconds_total";
    page.family(NAME, "counter", "Time for which frames waited for a rate limit: a shape, or an uplink's rate.");
    for port in ports {
        let counters = &port.state.counters;
        for (direction, ns) in
            [("transmit", counters.transmit_throttled_ns), ("receive", counters.receive_throttled_ns)]
        {
            let labels = [("port", port.name.as_str()), ("direction", direction)];
            page.sample(NAME, &labels, Duration::from_nanos(ns).as_secs_f64());
        }
    }
}

/// The classes of uplinks with I/O control. Those of teams have names of their own: a sum over all ports must not count a frame twice.
fn classes(page: &mut Page, ports: &[PortView]) {
    let values: [(&str, bool, Metric<ClassState>); 4] = [
        (
            "counter",
            false,
            ("nicety_io_class_bytes_total", "Bytes of a class that went out or in by an uplink.", |class| class.bytes),
        ),
        ("gauge", false, ("nicety_io_class_waiting_frames", "Packets of a class that wait.", |class| class.waiting)),
        (
            "counter",
            true,
            ("nicety_team_class_bytes_total", "Bytes of a class that went out or in by a team.", |class| class.bytes),
        ),
        (
            "gauge",
            true,
            ("nicety_team_class_waiting_frames", "Packets of a class that wait at a team.", |class| class.waiting),
        ),
    ];
    for (kind, of_team, (name, help, value)) in values {
        page.family(name, kind, help);
        for port in ports.iter().filter(|port| port.members.is_some() == of_team) {
            for (way, classes) in [("out", &port.state.classes), ("in", &port.state.inward_classes)] {
                for class in classes {
                    let labels = [("port", port.name.as_str()), ("way", way), ("class", class.name.as_str())];
                    page.sample(name, &labels, value(class));
                }
            }
        }
    }
}

/// VMs that are copied to twins. Both hosts of a VM have them, by the same name.
fn vms(page: &mut Page, vms: &[VmReport]) {
    const ROLE: &str = "nicety_vm_role";
    page.family(ROLE, "gauge", "What is here of a VM: 1 for its role, 0 for the others.");
    for vm in vms {
        for (role, word) in [(VmRole::Owner, "owner"), (VmRole::Twin, "twin"), (VmRole::Absent, "absent")] {
            page.sample(ROLE, &[("vm", &vm.name), ("role", word)], u8::from(vm.role == role));
        }
    }
    let values: [(&str, Metric<VmReport>); 8] = [
        (
            "gauge",
            (
                "nicety_vm_protected",
                "Whether the VM runs here, and goes on at the other host if this one dies.",
                |vm| vm.protected.into(),
            ),
        ),
        ("gauge", ("nicety_vm_epoch", "Copies of this protection, the first one included.", |vm| vm.epoch)),
        ("gauge", ("nicety_vm_lag_epochs", "Copies that the twin lacks.", |vm| vm.lag_epochs)),
        ("gauge", ("nicety_vm_gate_packets", "Packets that wait for a copy.", |vm| vm.gate_packets)),
        ("gauge", ("nicety_vm_gate_bytes", "Bytes of the packets that wait for a copy.", |vm| vm.gate_bytes)),
        (
            "counter",
            ("nicety_vm_stream_bytes_total", "Bytes of QEMU's stream of copies, both directions.", |vm| {
                vm.stream_bytes
            }),
        ),
        (
            "counter",
            ("nicety_vm_wire_bytes_total", "Bytes between the two hosts, encrypted, both directions.", |vm| {
                vm.wire_bytes
            }),
        ),
        ("counter", ("nicety_vm_takeovers_total", "Takeovers of the VM by this daemon.", |vm| vm.takeovers)),
    ];
    for (kind, (name, help, value)) in values {
        page.family(name, kind, help);
        for vm in vms {
            page.sample(name, &[("vm", &vm.name)], value(vm));
        }
    }
    let times: [Metric<VmReport, Option<u64>>; 3] = [
        (
            "nicety_vm_stop_median_seconds",
            "Median of the times for which the VM stood still for a copy, of the last 512.",
            |vm| vm.stop_median_microseconds,
        ),
        ("nicety_vm_stop_max_seconds", "Longest of these times.", |vm| vm.stop_most_microseconds),
        (
            "nicety_vm_last_takeover_seconds",
            "From the first sign that the owner is lost to the VM that runs here, at the last takeover.",
            |vm| vm.takeover_microseconds,
        ),
    ];
    for (name, help, value) in times {
        page.family(name, "gauge", help);
        for (vm, time) in vms.iter().filter_map(|vm| Some((vm, value(vm)?))) {
            page.sample(name, &[("vm", &vm.name)], Duration::from_micros(time).as_secs_f64());
        }
    }
}

/// The fabric, if the host is in one.
fn fabric(page: &mut Page, fabric: &FabricReport) {
    let values: [Metric<FabricReport>; 6] = [
        ("nicety_fabric_connected", "Whether etcd has this host, and all changes are heard.", |fabric| {
            (fabric.connection == Connection::Connected).into()
        }),
        ("nicety_fabric_hosts", "Other hosts of the fabric.", |fabric| fabric.hosts.len() as u64),
        ("nicety_fabric_claims", "Addresses that other hosts have in groups that this host has ports in.", |fabric| {
            fabric.claims as u64
        }),
        ("nicety_fabric_config_revision", "The version of the configuration in force; 0: there is none.", |fabric| {
            fabric.config.and_then(|version| version.try_into().ok()).unwrap_or(0)
        }),
        ("nicety_fabric_revision", "The highest revision of etcd that was heard of.", |fabric| {
            fabric.revision.try_into().unwrap_or(0)
        }),
        ("nicety_fabric_refused", "Refused configurations and keys.", |fabric| fabric.refused.len() as u64),
    ];
    for (name, help, value) in values {
        page.family(name, "gauge", help);
        page.sample(name, &[("fabric", &fabric.fabric)], value(fabric));
    }
    let of_hosts: [Metric<HostReport>; 3] = [
        ("nicety_fabric_host_reached", "Whether frames are sent to the host.", |host| host.is_reached.into()),
        (
            "nicety_fabric_host_ports",
            "Ports of the host with an address in groups that this host has ports in.",
            |host| host.ports as u64,
        ),
        ("nicety_fabric_host_addresses", "Addresses of the host in these groups.", |host| host.addresses.into()),
    ];
    for (name, help, value) in of_hosts {
        page.family(name, "gauge", help);
        for host in &fabric.hosts {
            page.sample(name, &[("fabric", &fabric.fabric), ("host", &host.name)], value(host));
        }
    }
}

/// The traffic of each tunnel from and to each other host. Hosts without a tunnel have no such metrics.
fn tunnels(page: &mut Page, tunnels: &[TunnelTraffic], fabric: Option<&FabricReport>) {
    if tunnels.is_empty() {
        return;
    }
    page.family("nicety_tunnel_peers", "gauge", "Other hosts that the tunnel reaches.");
    tunnels.iter().for_each(|tunnel| page.sample("nicety_tunnel_peers", &[("port", &tunnel.port)], tunnel.peers.len()));
    let ways: [Metric<Traffic, Passed>; 2] = [
        ("transmit", "that came from the peer", |traffic| traffic.transmit),
        ("receive", "that went to the peer", |traffic| traffic.receive),
    ];
    let units: [Metric<Passed>; 2] = [
        ("frames", "Frames of guests", |passed| passed.frames),
        ("bytes", "Bytes of guests' frames", |passed| passed.bytes),
    ];
    for (way, which, passed) in ways {
        for (unit, what, value) in units {
            let name = format!("nicety_tunnel_{way}_{unit}_total");
            page.family(&name, "counter", &format!("{what} {which} by the tunnel, without its headers."));
            each_peer(tunnels, fabric, |labels, traffic| page.sample(&name, labels, value(&passed(traffic))));
        }
    }
    const DROPS: &str = "nicety_tunnel_drops_total";
    page.family(DROPS, "counter", "Frames from or to the peer that the tunnel has dropped.");
    for (way, _, passed) in ways {
        each_peer(tunnels, fabric, |[port, peer, host], traffic| {
            page.sample(DROPS, &[*port, *peer, *host, ("direction", way)], passed(traffic).dropped);
        });
    }
}

/// Each other host of each tunnel, with its labels. Its name is that in the fabric, and empty if the host file names it.
fn each_peer(
    tunnels: &[TunnelTraffic],
    fabric: Option<&FabricReport>,
    mut visit: impl FnMut(&[(&str, &str); 3], &Traffic),
) {
    for TunnelTraffic { port, peers } in tunnels {
        let hosts = fabric.filter(|fabric| fabric.tunnel == *port).map_or(&[][..], |fabric| &fabric.hosts);
        for (address, traffic) in peers {
            let address = address.to_string();
            let host = hosts.iter().find(|host| host.address == address).map_or("", |host| host.name.as_str());
            visit(&[("port", port.as_str()), ("peer", address.as_str()), ("host", host)], traffic);
        }
    }
}

fn times(page: &mut Page, times: &Histogram) {
    const NAME: &str = "nicety_frame_duration_seconds";
    let help = "From the fetch of a frame until its last receiver had it, of one batch of frames in 64.";
    page.family(NAME, "histogram", help);
    let (bucket, mut sum) = (format!("{NAME}_bucket"), 0);
    for (count, end) in times.buckets.iter().zip(BUCKETS_NS.map(Some).into_iter().chain([None])) {
        sum += count;
        let end = end.map_or("+Inf".to_owned(), |ns| (ns as f64 / 1e9).to_string());
        page.sample(&bucket, &[("le", &end)], sum);
    }
    page.sample(&format!("{NAME}_sum"), &[], times.sum_ns as f64 / 1e9);
    page.sample(&format!("{NAME}_count"), &[], sum);
}

#[cfg(test)]
#[path = "metrics_test.rs"]
mod tests;
