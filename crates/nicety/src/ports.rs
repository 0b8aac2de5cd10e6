//! `nicety ports`: a running daemon's reports about its ports.

pub(crate) mod fabric;
mod table;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::Path;

use nicety_control::api::{AddressList, DaemonView, PortList, Restarted};
use nicety_control::{self as control, Ask, AskError, Reply};
use nicety_daemon::attach::{OTHER_FILE, is_same, otherwise};
use nicety_daemon::fabric::FabricReport;
use nicety_daemon::report::{
    AddressReport, Condition, FunctionReport, MirrorReport, PortReport, QueueReport, RefusedDmaReport,
};
use nicety_host::Host;
use ratatui::crossterm::terminal;
use serde_json::{Map, Value, json};

use crate::answer::{failure, odd};
use crate::cli::{Change, Ports};
use crate::confirm;
use crate::exit::{Exit, Failure};
use crate::find::{self, Meant, Search, served};
use crate::output::{self, columns, count, size};
use table::page;
pub(crate) use table::{NO_PORTS, adapter};

mod guest_errors;

/// Most entries of a list that are shown; `--json` has all.
const LISTED_MAX: usize = 8;

/// Runs it.
pub fn run(args: &Ports) -> Result<(), Failure> {
    if let Some(Change::Restart { port, host, control }) = &args.change {
        return restart(port, host.as_deref(), control.as_deref());
    }
    if args.all {
        return all(args);
    }
    let (host, socket) = match &args.control {
        Some(control) => (None, control.clone()),
        None => match Meant::by(args.host.as_deref(), args.port.as_deref())? {
            Meant::Daemon(running) => (None, running.control),
            Meant::File(host) => {
                let socket = served(&host)?;
                (Some(*host), socket)
            }
        },
    };
    let ask = |ask| control::ask(&socket, ask).map_err(failure);
    let ports = match &args.port {
        Some(name) => {
            if let Some(host) = &host {
                match ask(Ask::Version)? {
                    Reply::Version(DaemonView { host: served, .. }) => note_other_file(host, &served),
                    other => return Err(odd(&other)),
                }
            }
            let asked = host.as_ref().and_then(|host| host.port(name));
            match (control::ask(&socket, Ask::Port { name: name.clone() }), asked) {
                (Ok(Reply::Port(port)), asked) => {
                    if let Some(otherwise) = asked.and_then(|asked| otherwise(asked, &port)) {
                        output::tell(format_args!("note: {otherwise}"));
                    }
                    vec![*port]
                }
                (Ok(other), _) => return Err(odd(&other)),
                (Err(AskError::Refused(_)), Some(_)) => {
                    return Err(Failure::new(Exit::Usage, format!("the daemon runs without {name}: {OTHER_FILE}")));
                }
                (Err(error), _) => return Err(failure(error)),
            }
        }
        None => match ask(Ask::Ports)? {
            Reply::Ports(PortList { ports, host: served }) => {
                if let Some(host) = &host {
                    note_other_file(host, &served);
                }
                if args.attached {
                    return output::print(&attached(&served, &ports));
                }
                ports
            }
            other => return Err(odd(&other)),
        },
    };
    if let Reply::Version(DaemonView { waiting, .. }) = ask(Ask::Version)? {
        confirm::note(waiting.as_ref());
    }
    let shown = Shown::of(args, ports, &socket)?;
    let text = if args.json {
        let mut all = json!({ "version": control::VERSION, "ports": shown.ports });
        if let Some(object) = all.as_object_mut() {
            shown.into_object(object);
        }
        serde_json::to_string_pretty(&all).map_err(Failure::with(Exit::Failed))? + "\n"
    } else {
        shown.text(args)
    };
    output::print(&text)
}

/// The chosen ports of a daemon, and their addresses.
struct Shown {
    ports: Vec<PortReport>,
    /// Number of all ports.
    all: usize,
    addresses: Option<Vec<AddressReport>>,
    /// The fabric that the host is in, if all ports are shown, or its tunnel.
    fabric: Option<FabricReport>,
}

impl Shown {
    fn of(args: &Ports, mut ports: Vec<PortReport>, socket: &Path) -> Result<Self, Failure> {
        let mut addresses = args.addresses.then(|| addresses(socket)).transpose()?;
        let all = ports.len();
        if args.chosen.is_choice() {
            ports.retain(|port| args.chosen.has(port));
            if let Some(addresses) = &mut addresses {
                addresses.retain(|learned| ports.iter().any(|port| port.name == learned.port));
            }
        }
        let fabric = if args.chosen.is_choice() { None } else { fabric::of(socket)? };
        let fabric = fabric.filter(|fabric| args.port.as_ref().is_none_or(|port| *port == fabric.tunnel));
        Ok(Self { ports, all, addresses, fabric })
    }

    /// What `--json` has beside the ports.
    fn into_object(self, object: &mut Map<String, Value>) {
        object.extend(self.addresses.map(|addresses| ("addresses".to_owned(), json!(addresses))));
        object.extend(self.fabric.map(|fabric| ("fabric".to_owned(), json!(fabric))));
    }

    fn text(&self, args: &Ports) -> String {
        let width = io::stdout().is_terminal().then(|| terminal::size().ok()).flatten();
        let mut text = if args.long || args.port.is_some() {
            whole(&self.ports, self.all)
        } else {
            page(&self.ports, self.all, width.map(|(columns, _)| columns.into()))
        };
        text.push_str(&self.addresses.as_deref().map(address_table).unwrap_or_default());
        let is_long = args.long || args.port.is_some();
        text.push_str(&self.fabric.as_ref().map(|fabric| fabric::table(fabric, is_long)).unwrap_or_default());
        text
    }
}

/// Restarts a port that has failed.
pub(crate) fn restart(port: &str, host: Option<&Path>, control: Option<&Path>) -> Result<(), Failure> {
    let socket = match control {
        Some(control) => control.to_owned(),
        None => match Meant::by(host, Some(port))? {
            Meant::Daemon(running) => running.control,
            Meant::File(host) => served(&host)?,
        },
    };
    match control::ask(&socket, Ask::Restart { name: port.to_owned() }).map_err(failure)? {
        Reply::Restarted(Restarted { name }) => {
            output::print(&format!("{name} is new, and waits for its VM: start that again\n"))
        }
        other => Err(odd(&other)),
    }
}

fn addresses(socket: &Path) -> Result<Vec<AddressReport>, Failure> {
    match control::ask(socket, Ask::Addresses).map_err(failure)? {
        Reply::Addresses(AddressList { addresses, more }) => {
            if more > 0 {
                output::tell(format_args!("note: the switch has learned {} more", count(more as u64, "address")));
            }
            Ok(addresses)
        }
        other => Err(odd(&other)),
    }
}

/// All daemons that are found, each with its ports.
fn all(args: &Ports) -> Result<(), Failure> {
    let search = Search::new();
    if search.running.is_empty() {
        return Err(search.none());
    }
    for odd in search.odd() {
        output::tell(format_args!("note: {odd}"));
    }
    let (mut daemons, mut text) = (Vec::new(), String::new());
    for running in &search.running {
        let ports = match control::ask(&running.control, Ask::Ports) {
            Ok(Reply::Ports(PortList { ports, .. })) => ports,
            Ok(other) => return Err(odd(&other)),
            // The daemon may be starting, or may have ended meanwhile.
            Err(error) => {
                output::tell(format_args!("note: {}: {error}", find::line(running)));
                continue;
            }
        };
        if args.attached {
            text.push_str(&attached(&running.host, &ports));
            continue;
        }
        let shown = Shown::of(args, ports, &running.control)?;
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("{}\n{}", find::line(running), shown.text(args)));
        let mut daemon =
            json!({ "pid": running.pid, "host": running.host, "control": running.control, "ports": shown.ports });
        if let Some(object) = daemon.as_object_mut() {
            shown.into_object(object);
        }
        daemons.push(daemon);
    }
    if args.json {
        let all = json!({ "version": control::VERSION, "daemons": daemons });
        text = serde_json::to_string_pretty(&all).map_err(Failure::with(Exit::Failed))? + "\n";
    }
    output::print(&text)
}

/// The ports that have a VM, a line each.
fn attached(host: &Path, ports: &[PortReport]) -> String {
    let has_vm = |port: &&PortReport| !matches!(port.condition, Condition::Waiting | Condition::Failed);
    let of_guests = ports.iter().filter_map(|port| Some((port, port.adapter.as_deref()?)));
    let lines = of_guests.filter(|(port, _)| has_vm(port));
    lines.map(|(port, adapter)| format!("{} ({adapter}), of {}\n", port.name, host.display())).collect()
}

/// Notes that the daemon serves another file than the requested one.
fn note_other_file(host: &Host, served: &Path) {
    if !is_same(&host.path, served) {
        let (served, asked) = (served.display(), host.path.display());
        output::tell(format_args!(
            "note: this daemon serves {served}, not {asked}: restart it with that, or, if both are to be served, give their \
             switches different names"
        ));
    }
}

pub(crate) fn word(condition: Condition) -> &'static str {
    match condition {
        Condition::Waiting => "waiting",
        Condition::Attached => "attached",
        Condition::Up => "up",
        Condition::Saved => "saved",
        Condition::Broken => "broken",
        Condition::Failed => "failed",
        Condition::Blocked => "blocked",
    }
}

/// The ports in a line each, then the details of each.
fn whole(ports: &[PortReport], all: usize) -> String {
    if ports.is_empty() {
        return page(ports, all, None);
    }
    let mut text = table::table(ports, None);
    for port in ports {
        text.push('\n');
        text.push_str(&details(port));
    }
    text
}

fn details(port: &PortReport) -> String {
    let mut text = format!("{}: {}\n", port.name, port.sentence);
    let mut line = |name: &str, what: String| {
        if !what.is_empty() {
            text.push_str(&format!("  {name:12}  {what}\n"));
        }
    };
    if let (Some(mac), Some(socket)) = (&port.mac, &port.socket) {
        line("address", mac.clone());
        line("socket", socket.display().to_string());
    }
    line("function", port.function.as_ref().map(function).unwrap_or_default());
    line("made by", port.origin.clone().unwrap_or_default());
    line("policy", policy(port));
    line("neighbour", port.neighbour.clone().unwrap_or_default());
    line("multicasts", some(&port.multicasts));
    line("mirror", port.mirror.as_ref().map(mirror).unwrap_or_default());
    line("mirrored to", some(&port.mirrored_to));
    line(
        "not kept",
        port.not_kept.as_ref().map(|why| format!("after a kill of the daemon: {why}")).unwrap_or_default(),
    );
    line("features", port.features.join(", "));
    let transmit = port.transmit.iter().map(|queue| one_queue("transmit", queue));
    let queues: Vec<String> = transmit.chain(port.receive.iter().map(|queue| one_queue("receive", queue))).collect();
    line("queues", queues.join("; "));
    line("dropped", dropped(port));
    if port.taken > 0 {
        line("taken", format!("{} for the switch itself", count(port.taken, "frame")));
    }
    for (name, classes) in [("class", &port.io_classes), ("inward class", &port.inward_classes)] {
        for class in classes {
            let more = [("wait", class.waiting), ("marked", class.marked), ("dropped", class.dropped)];
            let more: String =
                more.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!(", {count} {what}")).collect();
            line(name, format!("{}: {}, {}{more}", class.name, count(class.packets, "packet"), size(class.bytes)));
        }
    }
    if port.adapter.is_some() {
        let written = port.signals;
        line("interrupts", format!("{} raised, {} written", port.interrupts, count(written, "descriptor")));
        line("registers", format!("{}, {}", count(port.register_reads, "read"), count(port.register_writes, "write")));
    }
    if port.backlog_frames > 0 {
        line("backlog", format!("{}, {}", count(port.backlog_frames, "frame"), size(port.backlog_bytes)));
    }
    if port.allocated_bytes > 0 {
        line("memory", format!("{} allocated by writing to it first", size(port.allocated_bytes)));
    }
    if let Some(RefusedDmaReport { direction, address, bytes }) = &port.last_refused_dma {
        let (reads, writes) = (count(port.refused_dma_reads, "read"), count(port.refused_dma_writes, "write"));
        let last = format!("the last a {direction} of {} at {address}", count(u64::from(*bytes), "byte"));
        line("refused", format!("{reads} and {writes} of guest memory, where nothing is mapped for it; {last}"));
    }
    if port.bad_accesses > 0 {
        line(
            "odd",
            format!(
                "{} of a wrong width, to a hole, or to an adapter asleep",
                count(port.bad_accesses, "register access")
            ),
        );
    }
    if port.guest_errors > 0 {
        line("guest errors", port.guest_errors.to_string());
    }
    text + &guest_errors::block(port)
}

/// A mirror whose copies a port gets.
fn mirror(mirror: &MirrorReport) -> String {
    let MirrorReport { name, of, direction, rate } = mirror;
    let of = if of.is_empty() { "no port".to_owned() } else { some(of) };
    format!("{name}: copies of {of} ({direction}), at most {rate}; nothing else comes here, or goes out from here")
}

/// A function's place on its card, and what its host lets it do.
fn function(function: &FunctionReport) -> String {
    let FunctionReport { card, function, trust, spoofchk, link_state, query_rss, min_rate } = function;
    let on = |flag: &bool| if *flag { "on" } else { "off" };
    let (trust, spoofchk, query_rss) = (on(trust), on(spoofchk), on(query_rss));
    let min_rate = min_rate.as_ref().map_or_else(String::new, |rate| format!(", min-rate {rate}"));
    format!(
        "{card}/{function}, trust {trust}, spoofchk {spoofchk}, state {link_state}, query-rss {query_rss}{min_rate}"
    )
}

/// The port's policy on the switch, by the host file's keys.
pub(crate) fn policy(port: &PortReport) -> String {
    let words: Vec<String> = port.policy.iter().map(|(key, value)| format!("{key} {value}")).collect();
    let group = port.port_group.iter().map(|group| format!("port group {group}"));
    group.chain((!words.is_empty()).then(|| words.join(", "))).collect::<Vec<_>>().join(": ")
}

/// The first entries of a list that may be long.
fn some(all: &[String]) -> String {
    match all.split_at_checked(LISTED_MAX) {
        Some((first, more)) if !more.is_empty() => format!("{}, and {} more", first.join(", "), more.len()),
        _ => all.join(", "),
    }
}

fn one_queue(direction: &str, queue: &QueueReport) -> String {
    format!("{direction} {}: {}, {}", queue.queue, count(queue.frames, "frame"), size(queue.bytes))
}

fn dropped(port: &PortReport) -> String {
    let direction = |direction: &str, drops: &BTreeMap<String, u64>| {
        let reasons: Vec<String> = drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        (!reasons.is_empty()).then(|| format!("{direction} {}", reasons.join(", ")))
    };
    let both = [direction("transmit", &port.transmit_drops), direction("receive", &port.receive_drops)];
    both.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn address_table(addresses: &[AddressReport]) -> String {
    let mut addresses: Vec<&AddressReport> = addresses.iter().collect();
    addresses.sort_by(|a, b| (&a.port, &a.address).cmp(&(&b.port, &b.address)));
    let mut rows = vec![["ADDRESS", "PORT", "LAST HEARD"].map(str::to_owned).to_vec()];
    rows.extend(addresses.iter().map(|learned| {
        vec![learned.address.clone(), learned.port.clone(), format!("{} s ago", learned.silent_seconds)]
    }));
    format!("\n{}", columns(&rows))
}

#[cfg(test)]
mod tests {
    use nicety_daemon::report::MadeOf;

    use super::*;

    pub(super) fn port() -> PortReport {
        PortReport {
            name: "vm1".into(),
            adapter: Some("e1000".into()),
            mac: Some("52:54:00:12:34:01".into()),
            socket: Some("/run/n/vm1.sock".into()),
            made_of: Some(MadeOf {
                queues: None,
                mtu: None,
                rom: false,
                vmware_subsystem: false,
                standby: false,
                device_state: false,
                role: Default::default(),
                mapped: false,
                buffer: 1 << 20,
                access: "mode 0600".into(),
            }),
            port_group: Some("web".into()),
            function: None,
            origin: None,
            policy: BTreeMap::from([("forged_transmits".into(), "reject".into()), ("vlan".into(), "10".into())]),
            multicasts: vec!["239.1.2.3 (VLAN 10)".into()],
            workers: Vec::new(),
            members: None,
            io_classes: Vec::new(),
            inward_classes: Vec::new(),
            mirror: None,
            mirrored_to: Vec::new(),
            not_kept: None,
            neighbour: Some("core1, port 1/1".into()),
            condition: Condition::Up,
            sentence: "a VM is attached, and its driver is up".into(),
            last_end: None,
            features: vec!["tso4".into(), "rx-checksum".into()],
            transmit: vec![QueueReport { queue: 0, packets: 1, frames: 45, bytes: 65_226 }],
            receive: vec![QueueReport { queue: 0, packets: 1, frames: 1, bytes: 60 }],
            transmit_drops: BTreeMap::from([("same-port".into(), 1)]),
            receive_drops: BTreeMap::from([("buffer-full".into(), 2), ("filtered".into(), 40)]),
            taken: 0,
            interrupts: 7,
            signals: 4,
            register_reads: 5,
            register_writes: 1,
            bad_accesses: 0,
            guest_errors: 0,
            last_guest_errors: Vec::new(),
            refused_dma_reads: 0,
            refused_dma_writes: 0,
            last_refused_dma: None,
            memory_changes: 0,
            backlog_frames: 3,
            backlog_bytes: 900,
            allocated_bytes: 64 << 12,
        }
    }

    #[test]
    fn a_port_is_a_line_and_its_particulars() {
        let uplink = PortReport {
            name: "uplink".into(),
            adapter: None,
            mac: None,
            socket: None,
            made_of: None,
            port_group: None,
            function: None,
            origin: None,
            policy: BTreeMap::new(),
            multicasts: Vec::new(),
            workers: Vec::new(),
            members: None,
            io_classes: Vec::new(),
            inward_classes: Vec::new(),
            mirror: None,
            mirrored_to: Vec::new(),
            not_kept: None,
            neighbour: None,
            sentence: "the way out of the switch".into(),
            features: Vec::new(),
            transmit: Vec::new(),
            receive: Vec::new(),
            transmit_drops: BTreeMap::new(),
            receive_drops: BTreeMap::new(),
            backlog_frames: 0,
            allocated_bytes: 0,
            ..port()
        };
        assert_eq!(
            whole(&[uplink, port()], 2),
            "\
PORT    ADAPTER   GROUP  VLAN  STATE  TX  RX  DROPPED  ERRORS
uplink  (uplink)  -      -     up      0   0        0       0
vm1     e1000     web    10    up     45   1       43       0

uplink: the way out of the switch

vm1: a VM is attached, and its driver is up
  address       52:54:00:12:34:01
  socket        /run/n/vm1.sock
  policy        port group web: forged_transmits reject, vlan 10
  neighbour     core1, port 1/1
  multicasts    239.1.2.3 (VLAN 10)
  features      tso4, rx-checksum
  queues        transmit 0: 45 frames, 65.2 kB; receive 0: 1 frame, 60 B
  dropped       transmit same-port 1; receive buffer-full 2, filtered 40
  interrupts    7 raised, 4 descriptors written
  registers     5 reads, 1 write
  backlog       3 frames, 900 B
  memory        262 kB allocated by writing to it first
"
        );
    }

    #[test]
    fn a_port_whose_driver_errs_says_how_often_and_where() {
        let port =
            PortReport { bad_accesses: 4, guest_errors: 8, last_guest_errors: guest_errors::tests::errors(), ..port() };
        let text = details(&port);
        let lines = "  odd           4 register accesses of a wrong width, to a hole, or to an adapter asleep
  guest errors  8
  the last of both, oldest first:
    @1000000, ";
        assert!(text.contains(lines), "{text}");
    }

    #[test]
    fn a_port_whose_adapter_was_refused_memory_says_which_way_where_and_how_much() {
        let last = RefusedDmaReport { direction: "write".into(), address: "0xfff000".into(), bytes: 1514 };
        let port = PortReport { refused_dma_reads: 1, refused_dma_writes: 2, last_refused_dma: Some(last), ..port() };
        let text = details(&port);
        let line = "  refused       1 read and 2 writes of guest memory, where nothing is mapped for it; the last a write of 1514 bytes at 0xfff000\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn of_many_multicasts_the_first_are_shown() {
        let groups = (1..=10).map(|number| format!("239.0.0.{number}")).collect();
        let text = details(&PortReport { multicasts: groups, ..port() });
        assert!(text.contains("239.0.0.7, 239.0.0.8, and 2 more\n"), "{text}");
    }

    #[test]
    fn several_queues_are_shown_apart() {
        let queue = |queue| QueueReport { queue, packets: 1, frames: 1, bytes: 1500 };
        let text = details(&PortReport { transmit: vec![queue(0), queue(3)], ..port() });
        let line =
            "  queues        transmit 0: 1 frame, 1.50 kB; transmit 3: 1 frame, 1.50 kB; receive 0: 1 frame, 60 B\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn addresses_stand_by_port() {
        let learned =
            |address: &str, port: &str| AddressReport { address: address.into(), port: port.into(), silent_seconds: 4 };
        let text = address_table(&[learned("52:54:00:00:00:02", "vm2"), learned("52:54:00:00:00:01", "vm1")]);
        assert_eq!(
            text,
            "\nADDRESS            PORT  LAST HEARD\n52:54:00:00:00:01  vm1   4 s ago\n52:54:00:00:00:02  vm2   4 s ago\n"
        );
    }
}
