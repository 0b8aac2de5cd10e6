//! `[[flow_export]]`: flows of some ports, told to a collector by IPFIX.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use super::around::Around;
use super::form::Form;
use super::names::name;
use super::quantity::{Bytes, Seconds};
use super::walk::{Key, Kind, Section, Walk, within};

/// Most exports: a frame is counted for each.
pub const FLOW_EXPORTS_MAX: usize = 4;
/// Most names in a list.
const NAMES_MAX: usize = 64;
/// One frame in so many at least.
const SAMPLING_MAX: u32 = 1_000_000;
const ACTIVE: (Seconds, Seconds) = (Seconds(1), Seconds(86_400));
const IDLE: (Seconds, Seconds) = (Seconds(1), Seconds(3600));
const MEMORY: (Bytes, Bytes) = (Bytes(16 << 10), Bytes(256 << 20));

/// The collector of a host's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// `udp:10.0.0.9:4739`.
    Udp(SocketAddr),
    /// `tcp:[fd00::9]:4739`.
    Tcp(SocketAddr),
}

/// A text that is no collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a collector is udp: or tcp: with an IP address and a port behind it, such as udp:10.0.0.9:4739")]
pub struct NoCollector;

impl FromStr for Collector {
    type Err = NoCollector;

    fn from_str(text: &str) -> Result<Self, NoCollector> {
        let (protocol, place) = text.split_once(':').ok_or(NoCollector)?;
        let place: SocketAddr = place.parse().map_err(|_| NoCollector)?;
        match protocol {
            _ if place.port() == 0 => Err(NoCollector),
            "udp" => Ok(Self::Udp(place)),
            "tcp" => Ok(Self::Tcp(place)),
            _ => Err(NoCollector),
        }
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(place) => write!(f, "udp:{place}"),
            Self::Tcp(place) => write!(f, "tcp:{place}"),
        }
    }
}

impl Collector {
    /// Its address.
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Udp(place) | Self::Tcp(place) => *place,
        }
    }
}

pub(super) static FLOW_EXPORT: Kind = Kind {
    heading: "[[flow_export]]",
    name: "flow_export",
    keys: &[
        Key::new("name", Form::Name, "1 to 64 letters, digits, -, _ and ., a letter or digit first; no other export's")
            .required(),
        Key::new("collector", Form::Collector, "\"udp:ADDRESS:PORT\" or \"tcp:ADDRESS:PORT\"").required(),
        Key::new("domain", Form::Number(1, u32::MAX), "a number from 1 to 4294967295"),
        Key::new("ports", Form::UplinkNames(NAMES_MAX), "the names of at most 64 ports with commas between them"),
        Key::new(
            "groups",
            Form::UplinkNames(NAMES_MAX),
            "the names of at most 64 port groups with commas between them",
        ),
        Key::new(
            "uplinks",
            Form::UplinkNames(NAMES_MAX),
            "the names of at most 64 uplinks that are in no team, and of teams, with commas between them",
        ),
        Key::new("sampling", Form::Number(1, SAMPLING_MAX), "a number from 1 (every frame) to 1000000"),
        Key::new("active_timeout", Form::Seconds(ACTIVE.0, ACTIVE.1), "from \"1s\" to \"86400s\""),
        Key::new("idle_timeout", Form::Seconds(IDLE.0, IDLE.1), "from \"1s\" to \"3600s\""),
        Key::new("memory", Form::Bytes(MEMORY.0, MEMORY.1), "from \"16KiB\" to \"256MiB\""),
    ],
    several: false,
};

/// An export of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowExportConfig {
    /// Its name.
    pub name: String,
    /// The collector.
    pub collector: Collector,
    /// The observation domain: tells exports apart that come from one address.
    pub domain: u32,
    /// The ports whose flows are counted, with those of the groups, by name and once each. `None`: all ports.
    pub ports: Option<Vec<String>>,
    /// The uplinks and teams whose flows are counted.
    pub uplinks: Vec<String>,
    /// One frame in so many is counted.
    pub sampling: u32,
    /// A flow is reported after this time although it goes on.
    pub active: Seconds,
    /// A flow without frames for this time is reported.
    pub idle: Seconds,
    /// The memory for the flows of each port.
    pub memory: Bytes,
}

impl FlowExportConfig {
    /// Whether the flows of a port are counted.
    pub fn has_port(&self, name: &str) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.iter().any(|port| port == name))
    }
}

/// Reads all exports of flows.
pub(super) fn flow_exports(walk: &mut Walk, sections: Vec<Section<'_>>, around: &Around<'_>) -> Vec<FlowExportConfig> {
    if let Some(section) = sections.get(FLOW_EXPORTS_MAX) {
        let what =
            format!("a switch has at most {FLOW_EXPORTS_MAX} exports of flows: each of them counts a frame again");
        walk.note(section.line, "flow_export", what, String::new());
    }
    let mut exports: Vec<FlowExportConfig> = Vec::new();
    for section in sections {
        let Some(export) = flow_export(walk, section, around) else { continue };
        let line = |key: &str| walk.place(section, key).unwrap_or(section.line);
        if exports.iter().any(|other| other.name == export.name) {
            let line = line("name");
            walk.wrong(section, "name", line, format!("there is an export of flows {:?} already", export.name));
        } else if let Some(other) =
            exports.iter().find(|other| other.collector == export.collector && other.domain == export.domain)
        {
            let line = line("domain");
            let what = format!(
                "export {} has domain {} at {} already, and a collector takes two exports of one domain for one: give this one another",
                other.name, other.domain, other.collector
            );
            walk.wrong(section, "domain", line, what);
        }
        exports.push(export);
    }
    exports
}

fn flow_export(walk: &mut Walk, section: Section<'_>, around: &Around<'_>) -> Option<FlowExportConfig> {
    let name = name(walk, section)?.value;
    let collector = walk.parsed::<Collector>(section, "collector");
    let ports = around.named_ports(walk, section);
    let uplinks = around.named_uplinks(walk, section);
    let domain = walk.integer(section, "domain").map(|found| found.value);
    let sampling = walk.integer(section, "sampling").map(|found| found.value);
    let active = walk.parsed::<Seconds>(section, "active_timeout");
    let active = active.filter(|found| within(walk, section, "active_timeout", found, ACTIVE));
    let idle = walk.parsed::<Seconds>(section, "idle_timeout");
    let idle = idle.filter(|found| within(walk, section, "idle_timeout", found, IDLE));
    let memory = walk.parsed::<Bytes>(section, "memory");
    let memory = memory.filter(|found| within(walk, section, "memory", found, MEMORY));
    // A file that names uplinks alone means no port.
    let ports = ports.or_else(|| (!uplinks.is_empty()).then(Vec::new));
    Some(FlowExportConfig {
        name,
        collector: collector?.value,
        domain: domain.unwrap_or(1),
        ports,
        uplinks,
        sampling: sampling.unwrap_or(1),
        active: active.map_or(Seconds(60), |found| found.value),
        idle: idle.map_or(Seconds(15), |found| found.value),
        memory: memory.map_or(Bytes(2 << 20), |found| found.value),
    })
}

#[cfg(test)]
#[path = "flow_export_test.rs"]
mod tests;
