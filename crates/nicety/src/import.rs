//! `nicety import`: the interfaces of a libvirt domain as ports of a host file
//! (libvirt's "Domain XML format", sections "Network interfaces" and "Quality of service").

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;

use nicety_daemon::host::Host;
use nicety_uplink::Rate;
use roxmltree::{Document, Node};

use crate::cli::Import;
use crate::exit::{Exit, Failure};
use crate::output;

/// Longest XML that is read, in bytes: libvirt's own limit for a message.
const MOST: u64 = 32 << 20;
/// Libvirt's unit of rates, KiB/s, in bits per second.
const RATE_BITS: u64 = 8 * 1024;
/// Models with another name here.
const MODELS: [(&str, &str); 3] =
    [("virtio", "virtio-net"), ("virtio-non-transitional", "virtio-net"), ("virtio-transitional", "virtio-net-pci")];

/// Result of an import.
#[derive(Debug, Default)]
struct Imported {
    /// `[[port]]` tables.
    text: String,
    /// Settings that are not imported.
    notes: Vec<String>,
}

/// Runs it.
pub fn run(args: &Import) -> Result<(), Failure> {
    let mut xml = String::new();
    let read = match args.file.to_str() {
        Some("-") => std::io::stdin().lock().take(MOST).read_to_string(&mut xml),
        _ => std::fs::File::open(&args.file).and_then(|file| file.take(MOST).read_to_string(&mut xml)),
    };
    let of = |error| Failure::new(Exit::Failed, format!("{}: {error}", args.file.display()));
    read.map_err(of)?;
    let wrong = |what| Failure::new(Exit::Usage, format!("{}: {what}", args.file.display()));
    let Imported { text, notes } = import(&xml).map_err(wrong)?;
    output::print(&text)?;
    for note in notes {
        output::tell(format_args!("note: {note}"));
    }
    Ok(())
}

/// The ports of a domain, or of one `<interface>`. The error describes the mistake.
fn import(xml: &str) -> Result<Imported, String> {
    let document = Document::parse(xml).map_err(|error| format!("it is no XML that can be read: {error}"))?;
    let domain = document.root_element();
    let interfaces: Vec<Node<'_, '_>> = domain.descendants().filter(|node| node.has_tag_name("interface")).collect();
    if interfaces.is_empty() {
        return Err("it has no <interface>: give what `virsh dumpxml DOMAIN` prints".to_owned());
    }
    let vm = child(domain, "name").and_then(|name| name.text()).unwrap_or("vm").trim();
    let vm: String = vm.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    let mut imported = Imported::default();
    for (number, interface) in (1..).zip(&interfaces) {
        let name = if interfaces.len() == 1 { vm.clone() } else { format!("{vm}-{number}") };
        port(*interface, &name, &mut imported).map_err(|what| format!("<interface> {number}: {what}"))?;
    }
    let checked = Host::parse(&imported.text, Path::new("/host.toml"));
    let mistakes = |error: &_| format!("as a host file it has a mistake: {error}");
    checked.map_err(|errors| errors.list.iter().map(mistakes).collect::<Vec<_>>().join("\n"))?;
    Ok(imported)
}

fn port(interface: Node<'_, '_>, name: &str, imported: &mut Imported) -> Result<(), String> {
    let attribute = |element: &str, key: &str| child(interface, element).and_then(|node| node.attribute(key));
    let mac = attribute("mac", "address").ok_or("it has no <mac address='…'/>")?;
    let model = attribute("model", "type").ok_or("it has no <model type='…'/>")?;
    let adapter = MODELS.iter().find(|(model_name, _)| *model_name == model).map_or(model, |(_, adapter)| adapter);
    let entry = nicety_adapters::find(adapter).ok_or(format!("there is no adapter for <model type='{model}'/>"))?;
    let source = child(interface, "source").filter(|source| source.attribute("type") == Some("unix"));
    let usual = format!("{name}.sock");
    let socket = source.and_then(|source| source.attribute("path")).unwrap_or(&usual);
    let mut values =
        vec![("name", quoted(name)), ("adapter", quoted(adapter)), ("mac", quoted(mac)), ("socket", quoted(socket))];
    let mut note = |what: String| imported.notes.push(format!("{name}: {what}"));
    let listens = source.is_some_and(|source| source.attribute("mode") == Some("server"));
    if listens && entry.about.transports.contains(&"vhost-user") {
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
    if attribute("port", "isolated") == Some("yes") {
        values.push(("private", quoted("isolated")));
    }
    if let Some(vlan) = child(interface, "vlan") {
        values.extend(vlans(vlan)?);
    }
    if let Some(filter) = attribute("filterref", "filter") {
        note(format!("the filter {filter} is left out: see forged_transmits, arp_guard and dhcp_guard"));
    }
    if let Some(bandwidth) = child(interface, "bandwidth") {
        for (direction, keys) in [
            ("inbound", ["receive_average", "receive_peak", "receive_burst"]),
            ("outbound", ["send_average", "send_peak", "send_burst"]),
        ] {
            let Some(limits) = child(bandwidth, direction) else { continue };
            values.extend(shape(limits, keys)?);
            if limits.attribute("floor").is_some() {
                note("<inbound floor> is left out: no port is guaranteed a share".to_owned());
            }
        }
    }
    let begin = if imported.text.is_empty() { "" } else { "\n" };
    let _infallible = writeln!(imported.text, "{begin}[[port]]");
    for (key, value) in values {
        let _infallible = writeln!(imported.text, "{key} = {value}");
    }
    Ok(())
}

/// `<inbound>` or `<outbound>`: rates in KiB/s, the burst in KiB.
fn shape(limits: Node<'_, '_>, keys: [&'static str; 3]) -> Result<Vec<(&'static str, String)>, String> {
    let direction = limits.tag_name().name();
    let mut values = Vec::new();
    for (name, key) in ["average", "peak", "burst"].into_iter().zip(keys) {
        let Some(text) = limits.attribute(name) else { continue };
        let number = whole(text, &format!("<{direction} {name}>"))?;
        let rate = || {
            let bits = number.checked_mul(RATE_BITS).map(|bits| format!("{bits}bit/s"));
            bits.and_then(|bits| bits.parse::<Rate>().ok()).map(|rate| rate.to_string())
        };
        let value = if name == "burst" { Some(format!("{number}KiB")) } else { rate() };
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

fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
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
