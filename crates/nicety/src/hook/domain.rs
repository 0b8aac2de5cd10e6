//! A libvirt domain as a hook gets it on stdin ("Domain XML format", sections "General metadata" and "Network interfaces"): which ports it
//! needs.
//!
//! A port is an `<interface type='vhostuser'>`, read as [`import`] reads it. QEMU reaches other adapters by vfio-user, for which libvirt
//! has no element, and some keys of a port have no element either. Both are in the domain's metadata, by the keys of the host file:
//! ```xml
//! <metadata>
//!   <nicety:ports xmlns:nicety='urn:nicety:domain'>
//!     <nicety:port mac='52:54:00:12:34:01' port_group='web'/>
//!     <nicety:port mac='52:54:00:12:34:02' adapter='e1000' socket='/run/nicety/web1-b.sock'/>
//!   </nicety:ports>
//! </metadata>
//! ```
//! The first of these adds to the interface of its address, the second is a port of its own.

use std::path::Path;

use nicety_frame::Mac;
use nicety_host::{Document, List};
use roxmltree::{Document as Xml, Node};
use toml::{Table, Value};

use crate::change::parsed;
use crate::import::{self, RINGS, child, plain};

/// Namespace of the metadata.
pub const NAMESPACE: &str = "urn:nicety:domain";
/// Beginning of the origin of each port that this hook makes.
const ORIGIN: &str = "hook libvirt, domain ";
/// Longest domain name in an origin, in characters: the rest is the prefix and the UUID.
const NAME_SHOWN_MAX: usize = 120;
/// Keys that the interface has, and the metadata may not contradict.
const OF_INTERFACE: [&str; 4] = ["adapter", "socket", "role", "origin"];

/// A domain, and the ports that it needs.
#[derive(Debug)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its UUID: it stays when the domain is renamed or migrated.
    pub uuid: String,
    /// Its ports. A port without a name in the metadata has [the usual one](Domain::usual).
    pub ports: Vec<Table>,
    /// The names that the metadata gives.
    pub named: Vec<String>,
}

/// Whether a port's origin is this hook, for the domain of this UUID.
pub fn is_of(origin: Option<&str>, uuid: &str) -> bool {
    origin.and_then(|origin| origin.strip_prefix(ORIGIN)?.rsplit_once(", ")).is_some_and(|(_, of)| of == uuid)
}

/// A text value of a port's table.
pub fn text<'a>(port: &'a Table, key: &str) -> &'a str {
    port.get(key).and_then(Value::as_str).unwrap_or_default()
}

impl Domain {
    /// The usual name of its port of this number, if it has several.
    pub fn usual(name: &str, number: usize) -> String {
        format!("{}-{number}", plain(name))
    }

    /// Reads a domain. With `sockets` only ports whose sockets are in that folder count: the others are those of another switch. Relative
    /// paths start at `/`.
    ///
    /// # Errors
    /// What is wrong with the domain, in a sentence.
    pub fn parse(xml: &str, sockets: Option<&Path>) -> Result<Self, String> {
        let xml = Xml::parse(xml).map_err(|error| format!("stdin has no XML that can be read: {error}"))?;
        let root = xml.root_element();
        let element = |name: &str| child(root, name).and_then(|node| node.text()).map(str::trim).unwrap_or_default();
        let (name, uuid) = (element("name").to_owned(), element("uuid").to_owned());
        if !root.has_tag_name("domain") || name.is_empty() || uuid.is_empty() {
            return Err("stdin has no <domain> with <name> and <uuid>, as libvirt gives it to a hook".to_owned());
        }
        let added = metadata(root)?;
        let devices = child(root, "devices").into_iter().flat_map(|devices| devices.children());
        let interfaces = devices.filter(|node| node.has_tag_name("interface") && node.attribute("type") == Some(RINGS));
        let mut found: Vec<Needed<'_, '_>> = interfaces.map(|node| (Some(node), Table::new())).collect();
        for values in added {
            let mac = mac_of(text(&values, "mac"))?;
            let its = |(node, _): &&mut Needed<'_, '_>| node.and_then(address).is_some_and(|address| address == mac);
            match found.iter_mut().find(its) {
                Some((_, more)) => more.extend(values),
                None => found.push((None, values)),
            }
        }
        let given = found.iter().filter_map(|(_, values)| values.get("name")?.as_str().map(str::to_owned));
        let (named, several) = (given.collect(), found.len() > 1);
        let ports = (1..).zip(found).map(|(number, needed)| {
            let usual = if several { Self::usual(&name, number) } else { plain(&name) };
            let port = port(needed, &usual).map_err(|why| format!("port {number} of domain {name}: {why}"))?;
            Ok(whole(port, origin(&name, &uuid)))
        });
        let mut ports = ports.collect::<Result<Vec<_>, String>>()?;
        if let Some(folder) = sockets {
            ports.retain(|port| Path::new(text(port, "socket")).parent() == Some(folder));
        }
        Ok(Self { name, uuid, ports, named })
    }
}

/// A port: the interface, if it has one, and values of the metadata.
type Needed<'a, 'input> = (Option<Node<'a, 'input>>, Table);

/// The origin of a domain's ports.
fn origin(name: &str, uuid: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { '-' } else { c }).take(NAME_SHOWN_MAX).collect();
    format!("{ORIGIN}{name}, {uuid}")
}

fn mac_of(text: &str) -> Result<Mac, String> {
    text.parse().map_err(|error| format!("<nicety:port mac='{text}'>: {error}; it takes the port's address"))
}

fn address(interface: Node<'_, '_>) -> Option<Mac> {
    child(interface, "mac")?.attribute("address")?.parse().ok()
}

/// The ports of the metadata, by the keys of the host file.
fn metadata(domain: Node<'_, '_>) -> Result<Vec<Table>, String> {
    let all = child(domain, "metadata").into_iter().flat_map(|metadata| metadata.children());
    let ours = all.filter(|node| node.tag_name().namespace() == Some(NAMESPACE));
    let mut ports = Vec::new();
    for element in ours {
        if element.tag_name().name() != "ports" {
            let name = element.tag_name().name();
            return Err(format!("<metadata> has <nicety:{name}>: write <nicety:ports> with a <nicety:port> for each"));
        }
        for port in element.children().filter(Node::is_element) {
            if port.tag_name().name() != "port" || port.tag_name().namespace() != Some(NAMESPACE) {
                let name = port.tag_name().name();
                return Err(format!("<nicety:ports> has <{name}>: it takes <nicety:port> alone"));
            }
            let values: Vec<(String, String)> =
                port.attributes().map(|key| (key.name().to_owned(), key.value().to_owned())).collect();
            let values = parsed(List::Ports, &values).into_iter();
            ports.push(values.filter_map(|(key, value)| Some((key, Value::try_from(value).ok()?))).collect());
        }
    }
    Ok(ports)
}

/// A port's table. `usual`: its name, unless the metadata has one.
fn port((interface, values): Needed<'_, '_>, usual: &str) -> Result<Table, String> {
    let name = values.get("name").and_then(Value::as_str).unwrap_or(usual).to_owned();
    let Some(interface) = interface else {
        if values.contains_key("origin") {
            return Err("<nicety:port> has origin, which the hook itself writes: leave it out".to_owned());
        }
        return Ok([(String::from("name"), Value::String(name))].into_iter().chain(values).collect());
    };
    if let Some(key) = OF_INTERFACE.into_iter().find(|key| values.contains_key(*key)) {
        return Err(format!("<nicety:port> has {key}, which its <interface> says: leave it out"));
    }
    let model = child(interface, "model").and_then(|model| model.attribute("type")).unwrap_or_default();
    if !model.starts_with("virtio") {
        return Err(format!(
            "<interface type='{RINGS}'> has <model type='{model}'/>: QEMU has virtio alone there. Other adapters are a <nicety:port> of \
             <metadata>, and what `nicety attach --format libvirt` prints"
        ));
    }
    let text = import::port(interface, &name)?.text;
    let table: Table = text.parse().map_err(|error| format!("it makes no port: {error}"))?;
    let mut table = table.get("port").and_then(|ports| ports.get(0)?.as_table()).cloned().unwrap_or_default();
    table.extend(values);
    Ok(table)
}

/// A port's table as a running host has it: with absolute paths.
fn whole(mut port: Table, origin: String) -> Table {
    let name = text(&port, "name").to_owned();
    port.insert("origin".to_owned(), Value::String(origin));
    Document::default().with(List::Ports, port, Path::new("/")).entry(List::Ports, &name)
}

#[cfg(test)]
#[path = "domain_test.rs"]
mod tests;
