//! `[[mirror]]`: copies of some ports' frames, at a port or an uplink that gets nothing else.

use nicety_uplink::Rate;

use super::around::Around;
use super::errors::did_you_mean;
use super::form::{Form, words};
use super::io_class::IoClassConfig;
use super::names::name;
use super::uplink::UplinkKind;
use super::walk::{Found, Key, Kind, Section, Walk};

/// Most mirrors.
pub const MIRRORS_MAX: usize = 16;
/// Most names in a list.
const NAMES_MAX: usize = 64;
/// Bits per second of the copies, if the file says nothing.
const RATE: u64 = 1_000_000_000;

/// The frames of a port that are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MirrorDirection {
    /// Frames that come from the port into the switch.
    Ingress,
    /// Frames that the switch offers the port.
    Egress,
    /// Both.
    #[default]
    Both,
}

const DIRECTIONS: [(&str, MirrorDirection); 3] =
    [("ingress", MirrorDirection::Ingress), ("egress", MirrorDirection::Egress), ("both", MirrorDirection::Both)];

impl MirrorDirection {
    /// The word of the host file.
    pub fn word(self) -> &'static str {
        DIRECTIONS.into_iter().find(|(_, direction)| *direction == self).map_or("", |(word, _)| word)
    }

    /// Whether frames are copied that come from the port.
    pub fn has_ingress(self) -> bool {
        self != Self::Egress
    }

    /// Whether frames are copied that the port gets.
    pub fn has_egress(self) -> bool {
        self != Self::Ingress
    }
}

pub(super) static MIRROR: Kind = Kind {
    heading: "[[mirror]]",
    name: "mirror",
    keys: &[
        Key::new("name", Form::Name, "1 to 64 letters, digits, -, _ and ., a letter or digit first; no other mirror's")
            .required(),
        Key::new("to", Form::UplinkName, "the name of a port, or of an uplink that is in no team; once").required(),
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
        Key::new("direction", Form::Words(&words(&DIRECTIONS)), "\"ingress\", \"egress\" or \"both\""),
        Key::new("rate", Form::Rate, "an amount per second, such as \"1Gbit/s\""),
    ],
    several: false,
};

/// A mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    /// Its name.
    pub name: String,
    /// The ports whose frames are copied, with those of the groups, by name and once each.
    pub ports: Vec<String>,
    /// The uplinks and teams whose frames are copied.
    pub uplinks: Vec<String>,
    /// The frames that are copied.
    pub direction: MirrorDirection,
    /// The port or the uplink that gets the copies, and nothing else.
    pub to: String,
    /// The most that is copied.
    pub rate: Rate,
}

impl MirrorConfig {
    fn has(&self, name: &str) -> bool {
        self.ports.iter().chain(&self.uplinks).any(|source| source == name)
    }
}

/// Reads all mirrors.
pub(super) fn mirrors(
    walk: &mut Walk,
    sections: Vec<Section<'_>>,
    around: &Around<'_>,
    classes: &[IoClassConfig],
) -> Vec<MirrorConfig> {
    if let Some(section) = sections.get(MIRRORS_MAX) {
        walk.note(section.line, "mirror", format!("a switch has at most {MIRRORS_MAX} mirrors"), String::new());
    }
    let mut mirrors: Vec<(Section<'_>, MirrorConfig)> = Vec::new();
    for section in sections {
        let Some(mirror) = mirror(walk, section, around, classes) else { continue };
        let line = |key: &str| walk.place(section, key).unwrap_or(section.line);
        if mirrors.iter().any(|(_, other)| other.name == mirror.name) {
            let line = line("name");
            walk.wrong(section, "name", line, format!("there is a mirror {:?} already", mirror.name));
        } else if let Some((_, other)) = mirrors.iter().find(|(_, other)| other.to == mirror.to) {
            let line = line("to");
            let what = format!("{} gets the copies of mirror {} already, and gets nothing else", mirror.to, other.name);
            walk.wrong(section, "to", line, what);
        }
        mirrors.push((section, mirror));
    }
    for (section, mirror) in &mirrors {
        let Some((_, source)) = mirrors.iter().find(|(_, other)| other.has(&mirror.to)) else { continue };
        let line = walk.place(*section, "to").unwrap_or(section.line);
        let what = if source.name == mirror.name {
            format!("{} would get copies of what it gets: a loop", mirror.to)
        } else {
            format!("mirror {} copies the frames of {}: copies are not copied again", source.name, mirror.to)
        };
        walk.wrong(*section, "to", line, what);
    }
    mirrors.into_iter().map(|(_, mirror)| mirror).collect()
}

fn mirror(
    walk: &mut Walk,
    section: Section<'_>,
    around: &Around<'_>,
    classes: &[IoClassConfig],
) -> Option<MirrorConfig> {
    let name = name(walk, section)?.value;
    let to = to(walk, section, around, classes);
    if ["ports", "groups", "uplinks"].iter().all(|key| walk.place(section, key).is_none()) {
        let what = format!("mirror {name:?} has no frames: say whose, by ports, groups or uplinks");
        walk.wrong(section, "ports", section.line, what);
    }
    let ports = around.named_ports(walk, section).unwrap_or_default();
    let uplinks = around.named_uplinks(walk, section);
    let direction = walk.word(section, "direction", &DIRECTIONS).map(|found| found.value);
    let rate = walk.parsed::<Rate>(section, "rate").map(|found| found.value);
    Some(MirrorConfig {
        name,
        ports,
        uplinks,
        direction: direction.unwrap_or_default(),
        to: to?,
        rate: rate.or(Rate::new(RATE))?,
    })
}

/// The port or the uplink that gets the copies.
fn to(walk: &mut Walk, section: Section<'_>, around: &Around<'_>, classes: &[IoClassConfig]) -> Option<String> {
    let Found { value: wanted, line } = walk.string(section, "to")?;
    if let Some(port) = around.ports.iter().find(|port| port.name == wanted) {
        if port.workers > 1 {
            let what = format!("port {wanted} has {} workers: copies go to a port with one", port.workers);
            walk.wrong(section, "to", line, what);
            return None;
        }
        return Some(wanted.to_owned());
    }
    let uplink = around.uplinks.iter().find(|uplink| uplink.name == wanted);
    let what = match uplink {
        None if around.teams.iter().any(|team| team.name == wanted) => {
            format!("{wanted} is a team: copies go to a port, or to an uplink that is in no team")
        }
        None => {
            let names = around.ports.iter().map(|port| port.name.as_str());
            let names = names.chain(around.uplinks.iter().map(|uplink| uplink.name.as_str()));
            format!("there is no port and no uplink {wanted:?}{}", did_you_mean(wanted, names))
        }
        Some(uplink) => {
            let has_classes = uplink.inward.is_some() || classes.iter().any(|class| class.uplink == wanted);
            if let Some(team) = &uplink.team {
                format!("uplink {wanted} is a member of team {team}: copies go to an uplink that is in no team")
            } else if uplink.queues() > 1 {
                format!("uplink {wanted} has several queues: copies take one")
            } else if uplink.kind == UplinkKind::Querier {
                format!("uplink {wanted} is a querier, which reads no copies")
            } else if has_classes {
                format!(
                    "uplink {wanted} has I/O control, and would have copies alone: leave its classes and inward_rate out"
                )
            } else {
                return Some(wanted.to_owned());
            }
        }
    };
    walk.wrong(section, "to", line, what);
    None
}

#[cfg(test)]
#[path = "mirror_test.rs"]
mod tests;
