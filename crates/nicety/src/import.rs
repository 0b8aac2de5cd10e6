//! `nicety import`: the interfaces of a libvirt domain as ports of a host file
//! (libvirt's "Domain XML format", sections "Network interfaces" and "Quality of service").

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;

use nicety_host::Host;
use nicety_uplink::Rate;
use roxmltree::{Document, Node};

use crate::cli::Import;
use crate::exit::{Exit, Failure};
use crate::output;

/// Longest XML that is read, in bytes: libvirt's own limit for a message.
pub(crate) const MAX: u64 = 32 << 20;
/// Libvirt's unit of rates, KiB/s, in bits per second.
const RATE_BITS: u64 = 8 * 1024;
/// Models with another name here.
const MODELS: [(&str, &str); 3] =
    [("virtio", "virtio-net"), ("virtio-non-transitional", "virtio-net"), ("virtio-transitional", "virtio-net-pci")];

/// Type of an interface whose rings another process serves: vhost-user.
pub(crate) const RINGS: &str = "vhostuser";

/// Elements that say nothing about the network: the VMM keeps them, or makes them anew.
const SILENT: [&str; 14] = [
    "mac",
    "model",
    "source",
    "target",
    "guest",
    "alias",
    "address",
    "driver",
    "mtu",
    "port",
    "vlan",
    "bandwidth",
    "acpi",
    "script",
];
/// Elements without a key in the host file, and what to do about each.
const LEFT_OUT: [(&str, &str); 8] = [
    ("boot", "`nicety attach` gives the boot order where the port has an option ROM (rom)"),
    ("coalesce", "set it in the guest (ethtool -C)"),
    ("tune", "the port's buffer is its own key"),
    ("ip", "set addresses in the guest, or by a DHCP server behind the uplink"),
    ("route", "set routes in the guest, or by a DHCP server behind the uplink"),
    ("virtualport", "it belongs to the switch that the VM was at"),
    ("portForward", "no address is translated here: forward at the host behind the uplink"),
    ("filterref", "see forged_transmits, dhcp_guard, and arp_guard with bound_ips"),
];

/// Result of an import.
#[derive(Debug, Default)]
struct Imported {
    /// `[[port]]` tables.
    text: String,
    /// Settings that are not imported.
    notes: Vec<String>,
    /// Interfaces that are not imported, each with the reason and what to do.
    refused: Vec<String>,
}

/// An interface as a port.
#[derive(Debug)]
pub(crate) struct Port {
    /// Its `[[port]]` table.
    pub(crate) text: String,
    notes: Vec<String>,
    group: Option<String>,
}

/// Runs it.
pub fn run(args: &Import) -> Result<(), Failure> {
    let mut xml = String::new();
    let read = match args.file.to_str() {
        Some("-") => std::io::stdin().lock().take(MAX).read_to_string(&mut xml),
        _ => std::fs::File::open(&args.file).and_then(|file| file.take(MAX).read_to_string(&mut xml)),
    };
    let of = |error| Failure::new(Exit::Failed, format!("{}: {error}", args.file.display()));
    read.map_err(of)?;
    let wrong = |what| Failure::new(Exit::Usage, format!("{}: {what}", args.file.display()));
    let Imported { text, notes, refused } = import(&xml).map_err(wrong)?;
    output::print(&text)?;
    for note in notes {
        output::tell(format_args!("note: {note}"));
    }
    if refused.is_empty() { Ok(()) } else { Err(Failure::new(Exit::Failed, refused.join("\n"))) }
}

/// The ports of a domain, or of one `<interface>`. The error describes the mistake.
fn import(xml: &str) -> Result<Imported, String> {
    let document = Document::parse(xml).map_err(|error| format!("it is no XML that can be read: {error}"))?;
    let domain = document.root_element();
    let interfaces: Vec<Node<'_, '_>> = domain.descendants().filter(|node| node.has_tag_name("interface")).collect();
    if interfaces.is_empty() {
        return Err("it has no <interface>: give what `virsh dumpxml DOMAIN` prints".to_owned());
    }
    let vm = plain(child(domain, "name").and_then(|name| name.text()).unwrap_or("vm").trim());
    let mut imported = Imported::default();
    let mut groups = Vec::new();
    for (number, interface) in (1..).zip(&interfaces) {
        let name = if interfaces.len() == 1 { vm.clone() } else { format!("{vm}-{number}") };
        match port(*interface, &name).and_then(checked) {
            Ok(Port { text, notes, group }) => {
                let begin = if imported.text.is_empty() { "" } else { "\n" };
                imported.text.push_str(&format!("{begin}{text}"));
                imported.notes.extend(notes.into_iter().map(|note| format!("{name}: {note}")));
                groups.extend(group);
            }
            Err(why) => imported.refused.push(format!("<interface> {number} is not imported: {why}")),
        }
    }
    if imported.text.is_empty() {
        return Err(imported.refused.join("\n"));
    }
    parsed(&imported.text, &groups)?;
    Ok(imported)
}

/// A name as the host file allows it.
pub(crate) fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}

fn checked(port: Port) -> Result<Port, String> {
    parsed(&port.text, port.group.as_slice()).map(|()| port)
}

/// Checks a host file with these ports. Their groups are in the file that they are added to.
fn parsed(ports: &str, groups: &[String]) -> Result<(), String> {
    let names: BTreeSet<&String> = groups.iter().collect();
    let groups: String = names.into_iter().map(|name| format!("[[port_group]]\nname = {}\n", quoted(name))).collect();
    let mistakes = |error: &_| format!("as a host file it has a mistake: {error}");
    let parsed = Host::parse(&format!("{groups}{ports}"), Path::new("/host.toml"));
    parsed.map(|_| ()).map_err(|errors| errors.list.iter().map(mistakes).collect::<Vec<_>>().join("; "))
}

/// An interface of a domain as a port of this name. The error says what is missing, and what to do.
pub(crate) fn port(interface: Node<'_, '_>, name: &str) -> Result<Port, String> {
    let attribute = |element: &str, key: &str| child(interface, element).and_then(|node| node.attribute(key));
    if interface.attribute("type") == Some("hostdev") {
        return Err(
            "type='hostdev' gives the VM a device of this machine, past every switch: leave it in the domain, \
                    or give the interface a <model> that `nicety adapters` lists and another type"
                .to_owned(),
        );
    }
    let mac = attribute("mac", "address").ok_or("it has no <mac address='…'/>: `virsh dumpxml` prints one")?;
    let choose = "choose one that `nicety adapters` lists and the guest has a driver for, such as virtio or e1000e";
    let model = attribute("model", "type").ok_or(format!("it has no <model type='…'/>: {choose}"))?;
    let adapter = match MODELS.iter().find(|(model_name, _)| *model_name == model) {
        // The rings are the daemon's, and the PCI function is QEMU's, whatever its generation.
        Some(_) if interface.attribute("type") == Some(RINGS) => "virtio-net",
        Some((_, adapter)) => *adapter,
        None => model,
    };
    let no_adapter = || format!("there is no adapter for <model type='{model}'/>: {choose}");
    let entry = nicety_adapters::find(adapter).ok_or_else(no_adapter)?;
    let is_vhost_user = entry.about.transports.contains(&"vhost-user");
    let source = child(interface, "source").filter(|source| source.attribute("type") == Some("unix"));
    let usual = format!("{name}.sock");
    let socket = source.and_then(|source| source.attribute("path")).unwrap_or(&usual);
    let mut values =
        vec![("name", quoted(name)), ("adapter", quoted(adapter)), ("mac", quoted(mac)), ("socket", quoted(socket))];
    let mut notes = left_out(interface);
    let mut note = |what: String| notes.push(what);
    let listens = source.is_some_and(|source| source.attribute("mode") == Some("server"));
    if listens && is_vhost_user {
        values.push(("role", quoted("connect")));
    } else if listens {
        note("the daemon listens at its socket: <source> needs mode='client'".to_owned());
    }
    if let Some(queues) = attribute("driver", "queues").filter(|_| entry.about.queues > 1) {
        values.push(("queues", whole(queues, "<driver queues>")?.to_string()));
    }
    match attribute("mtu", "size") {
        Some(size) if entry.about.announces_mtu => values.push(("mtu", whole(size, "<mtu size>")?.to_string())),
        Some(_) => note(format!("{adapter} does not tell its driver an MTU: set it in the guest")),
        None => {}
    }
    match attribute("rom", "file") {
        Some(file) if !is_vhost_user => values.push(("rom", quoted(file))),
        Some(_) => note(format!("{adapter}'s option ROM is the VMM's: keep <rom> in the domain")),
        None => {}
    }
    match attribute("teaming", "type") {
        Some("persistent") if entry.about.stands_by => values.push(("standby", "true".to_owned())),
        Some(kind) => note(format!("<teaming type='{kind}'> is left out: only a virtio port can stand by")),
        None => {}
    }
    if attribute("link", "state") == Some("down") {
        values.push(("link_state", quoted("disable")));
    }
    if attribute("port", "isolated") == Some("yes") {
        values.push(("private", quoted("isolated")));
    }
    if let Some(vlan) = child(interface, "vlan") {
        values.extend(vlans(vlan)?);
    }
    let group = attribute("source", "portgroup").map(plain);
    if let Some(group) = &group {
        values.push(("port_group", quoted(group)));
        let network = attribute("source", "network").unwrap_or("NETWORK");
        note(format!(
            "the host file needs a [[port_group]] with name = {}, once: `virsh net-dumpxml {network}` shows its VLAN and bandwidth",
            quoted(group)
        ));
    }
    if let Some(bandwidth) = child(interface, "bandwidth") {
        values.extend(limits(bandwidth)?);
        let both = ["inbound", "outbound"].into_iter().filter_map(|direction| child(bandwidth, direction));
        both.filter_map(|limits| floor_note(limits, name)).for_each(&mut note);
    }
    let mut text = "[[port]]\n".to_owned();
    for (key, value) in values {
        let _infallible = writeln!(text, "{key} = {value}");
    }
    Ok(Port { text, notes, group })
}

/// The keys of a `<bandwidth>`.
fn limits(bandwidth: Node<'_, '_>) -> Result<Vec<(&'static str, String)>, String> {
    let mut values = Vec::new();
    for (direction, keys) in [
        ("inbound", ["receive_average", "receive_peak", "receive_burst"]),
        ("outbound", ["send_average", "send_peak", "send_burst"]),
    ] {
        if let Some(limits) = child(bandwidth, direction) {
            values.extend(shape(limits, keys)?);
        }
    }
    Ok(values)
}

/// Notes about what has no key in the host file, whatever the adapter.
fn left_out(interface: Node<'_, '_>) -> Vec<String> {
    let mut notes = Vec::new();
    for element in interface.children().filter(Node::is_element) {
        let name = element.tag_name().name();
        if SILENT.contains(&name) || ["rom", "teaming", "link"].contains(&name) {
            continue;
        }
        let advice = LEFT_OUT.iter().find(|(known, _)| *known == name).map(|(_, advice)| *advice);
        notes.push(format!("<{name}> is left out: {}", advice.unwrap_or("no key here means the same")));
    }
    if child(interface, "driver").is_some_and(|driver| driver.children().any(|node| node.is_element())) {
        notes.push("the offloads in <driver> are left out: set them in the guest (ethtool -K)".to_owned());
    }
    let source = child(interface, "source").into_iter().flat_map(|source| {
        ["network", "bridge", "dev"].into_iter().filter_map(move |key| Some((key, source.attribute(key)?)))
    });
    notes.extend(source.take(1).map(|(key, value)| {
        format!("<source {key}='{value}'> is left out: the switch's uplink leads there (docs/uplinks.md)")
    }));
    notes
}

/// A rate of so many KiB/s, as a host file has it.
fn rate(kib: u64) -> Option<String> {
    let bits = kib.checked_mul(RATE_BITS).map(|bits| format!("{bits}bit/s"))?;
    bits.parse::<Rate>().ok().map(|rate| rate.to_string())
}

/// `<inbound floor>`, what a domain gets at least. Here it is of an uplink's class, which other ports share: no port's own key.
fn floor_note(inbound: Node<'_, '_>, name: &str) -> Option<String> {
    let floor = inbound.attribute("floor")?;
    let value = whole(floor, "").ok().and_then(rate).unwrap_or("RATE".to_owned());
    Some(format!(
        "<inbound floor='{floor}'> is left out: reserve it in an [[io_class]] of the uplink, with reservation_of = \"{name}={value}\", and \
         give the uplink its inward_rate (docs/io-control.md)"
    ))
}

/// `<inbound>` or `<outbound>`: rates in KiB/s, the burst in KiB.
fn shape(limits: Node<'_, '_>, keys: [&'static str; 3]) -> Result<Vec<(&'static str, String)>, String> {
    let direction = limits.tag_name().name();
    let mut values = Vec::new();
    for (name, key) in ["average", "peak", "burst"].into_iter().zip(keys) {
        let Some(text) = limits.attribute(name) else { continue };
        let number = whole(text, &format!("<{direction} {name}>"))?;
        let value = if name == "burst" { Some(format!("{number}KiB")) } else { rate(number) };
        values.push((key, quoted(&value.ok_or(format!("<{direction} {name}='{text}'> is beyond 10Tbit/s"))?)));
    }
    Ok(values)
}

/// `<vlan>`: one tag means an access port, unless it is declared as a trunk.
fn vlans(vlan: Node<'_, '_>) -> Result<Vec<(&'static str, String)>, String> {
    let mut ids = Vec::new();
    let mut native = None;
    for tag in vlan.children().filter(|node| node.has_tag_name("tag")) {
        let id = whole(tag.attribute("id").unwrap_or_default(), "<tag id>")?;
        ids.push(id.to_string());
        match tag.attribute("nativeMode") {
            None => {}
            Some("untagged") => native = Some(id),
            Some(other) => return Err(format!("<tag nativeMode='{other}'>: a native VLAN is untagged here")),
        }
    }
    let is_trunk = vlan.attribute("trunk") == Some("yes") || ids.len() > 1 || native.is_some();
    Ok(match (is_trunk, ids.pop()) {
        (false, Some(id)) => vec![("vlan", id)],
        (_, last) => {
            ids.extend(last);
            let native = native.map(|id| ("native", id.to_string()));
            std::iter::once(("trunk", quoted(&ids.join(",")))).chain(native).collect()
        }
    })
}

pub(crate) fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|node| node.has_tag_name(name))
}

/// A whole number above 0.
fn whole(text: &str, what: &str) -> Result<u64, String> {
    let number = text.trim().parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{what}: {text:?} is no whole number above 0"))
}

/// A text as TOML writes it: JSON's escapes are valid in TOML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
#[path = "import_test.rs"]
mod tests;
