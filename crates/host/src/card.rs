//! `[[card]]`: a network card whose functions are ports, each behind a socket of its own. The physical function is the host's: the keys
//! of a port at a function are what `ip link set DEV vf N` sets.

use std::collections::HashMap;

use nicety_adapters::{Card, Entry, find};
use nicety_uplink::Rate;

use super::errors::did_you_mean;
use super::form::{Form, words};
use super::names::{Ways, earlier, name};
use super::walk::{Found, Key, Kind, Section, Walk};

/// Most functions of all cards together.
pub const FUNCTIONS_MAX: u32 = 256;
/// Most functions of the card that has most.
const CARD_FUNCTIONS_MAX: u32 = 64;

/// A card.
#[derive(Clone, Debug)]
pub struct CardConfig {
    /// Its name, unique.
    pub name: String,
    /// The adapter that each of its functions is.
    pub entry: &'static Entry,
    /// Number of its functions.
    pub functions: u16,
    /// The uplink or team whose carrier is the functions' link. Without one the link is always up.
    pub uplink: Option<String>,
    /// Whether all that a function sends goes to the uplink (VEPA), and not to other functions at once (VEB).
    pub is_vepa: bool,
}

/// A port's place on a card, and what the host lets its function do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionConfig {
    /// The card's name.
    pub card: String,
    /// The function's number, from 0.
    pub number: u16,
    /// Whether it may change its address, have more of them, and receive all multicast frames.
    pub trusted: bool,
    /// Whether it may send only from its own address. Not if it is trusted.
    pub checks_source: bool,
    /// Whether its driver may ask how frames are spread over its queues.
    pub queries_rss: bool,
    /// Whether all that it sends goes to the uplink.
    pub is_vepa: bool,
    /// The minimum rate: at least this much of the card's uplink, whenever frames of it wait there.
    pub min_rate: Option<Rate>,
}

/// The link of a port's adapter, by the words of `ip link set DEV vf N state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// Up; of a function, its card's.
    #[default]
    Auto,
    /// Up, whatever a card's link is.
    Enable,
    /// Down.
    Disable,
}

impl LinkState {
    /// Its word.
    pub fn word(self) -> &'static str {
        LINK_STATES.iter().find(|(_, state)| *state == self).map_or("auto", |(word, _)| word)
    }
}

/// The chips, each with the adapter that its functions are.
const CHIPS: [(&str, &str); 2] = [("82576", "igbvf"), ("82599", "ixgbevf")];
const BRIDGES: [(&str, bool); 2] = [("veb", false), ("vepa", true)];
const LINK_STATES: [(&str, LinkState); 3] =
    [("auto", LinkState::Auto), ("enable", LinkState::Enable), ("disable", LinkState::Disable)];

pub(super) static CARD: Kind = Kind {
    heading: "[[card]]",
    name: "card",
    keys: &[
        Key::new("name", Form::Name, "1 to 64 letters, digits, -, _ and ., a letter or digit first; no other card's")
            .required(),
        Key::new("chip", Form::Words(&words(&CHIPS)), "\"82576\" or \"82599\"").required(),
        Key::new(
            "functions",
            Form::Number(1, CARD_FUNCTIONS_MAX),
            "a whole number from 1 to 8 (82576) or 64 (82599); 256 of all cards together",
        ),
        Key::new("uplink", Form::UplinkName, "the name of an uplink that is in no team, or of a team"),
        Key::new("bridge", Form::Words(&words(&BRIDGES)), "\"veb\", or \"vepa\" with one uplink or team"),
    ],
    several: false,
};

/// The key of a port's link.
pub(super) const LINK_STATE: Key =
    Key::new("link_state", Form::Words(&words(&LINK_STATES)), "\"auto\", \"enable\" or \"disable\"");

/// The keys of a port at a function of a card.
pub(super) const FUNCTION_KEYS: [Key; 7] = [
    Key::new("card", Form::Name, "the name of a [[card]]; with function"),
    Key::new(
        "function",
        Form::Number(0, CARD_FUNCTIONS_MAX - 1),
        "with card: a whole number from 0, below its functions",
    ),
    Key::new("trust", Form::Flag, "with card: true or false"),
    Key::new("spoofchk", Form::Flag, "with card: true or false"),
    Key::new("query_rss", Form::Flag, "with card: true or false"),
    Key::new("qos", Form::Number(0, 7), "with card and vlan: a whole number from 0 to 7"),
    Key::new(
        "min_rate",
        Form::Rate,
        "with card, whose uplink has a rate: an amount per second, not more than send_average; all reservations within 75 % of the link",
    ),
];

/// The cards of a file, and which of their functions ports have.
#[derive(Debug, Default)]
pub(super) struct Cards {
    /// With the name as the file has it.
    list: Vec<CardConfig>,
    /// The line of the port, by card and function.
    taken: HashMap<(String, u16), usize>,
    /// Functions of all cards.
    functions: u32,
}

impl Cards {
    pub(super) fn into_list(self) -> Vec<CardConfig> {
        self.list
    }
}

/// Reads a card.
/// `outs`: the number of ways out of the switch.
pub(super) fn card(walk: &mut Walk, section: Section<'_>, outs: usize, ways: &Ways, cards: &mut Cards) {
    let named = name(walk, section).filter(|found| {
        let known = cards.list.iter().any(|card| card.name == found.value);
        if known {
            let what = format!("there is a card {:?} already: choose another name", found.value);
            walk.wrong(section, "name", found.line, what);
        }
        !known
    });
    let chip = walk.word(section, "chip", &CHIPS);
    let uplink = uplink(walk, section, ways);
    let functions = walk.integer(section, "functions");
    let bridge = walk.word(section, "bridge", &BRIDGES);
    let is_vepa = bridge.as_ref().is_some_and(|found| found.value);
    if let Some(found) = bridge.filter(|found| found.value && outs != 1) {
        let what = match outs {
            0 => "there is no uplink, to which all would go".to_owned(),
            _ => format!("there are {outs} uplinks and teams, and each frame would go to all of them"),
        };
        walk.wrong(section, "bridge", found.line, what);
    }
    let Some((entry, Card { functions: most, .. })) = chip.as_ref().and_then(|chip| card_of(chip.value)) else {
        return;
    };
    let chip_name = CHIPS.iter().find(|(_, adapter)| *adapter == entry.about.name).map_or("", |(chip, _)| chip);
    if let Some(found) = functions.as_ref().filter(|found| found.value > u32::from(most)) {
        let what = format!("an {chip_name} has at most {most} functions, not {}", found.value);
        walk.wrong(section, "functions", found.line, what);
    }
    let number = functions.as_ref().map_or(most, |found| most.min(found.value as u16));
    cards.functions += u32::from(number);
    if cards.functions > FUNCTIONS_MAX {
        let line = functions.map_or(section.line, |found| found.line);
        let what = format!(
            "with this card there are {} functions, more than {FUNCTIONS_MAX}: give the cards fewer",
            cards.functions
        );
        walk.wrong(section, "functions", line, what);
    }
    let Some(Found { value: name, .. }) = named else { return };
    cards.list.push(CardConfig { name, entry, functions: number, uplink, is_vepa });
}

fn card_of(adapter: &str) -> Option<(&'static Entry, Card)> {
    let entry = find(adapter)?;
    Some((entry, entry.card?))
}

fn uplink(walk: &mut Walk, section: Section<'_>, ways: &Ways) -> Option<String> {
    let Found { value: wanted, line } = walk.string(section, "uplink")?;
    let mut names = ways.uplinks.iter().chain(&ways.teams).map(|found| found.value.as_str());
    if !names.clone().any(|known| known == wanted) {
        let what = format!("there is no uplink or team {wanted:?}{}", did_you_mean(wanted, &mut names));
        walk.wrong(section, "uplink", line, what);
        return None;
    }
    if ways.members.iter().any(|member| member == wanted) {
        walk.wrong(section, "uplink", line, format!("uplink {wanted} is a member of a team: name the team"));
        return None;
    }
    Some(wanted.to_owned())
}

/// The values of a change to a port. A VLAN that is set, or taken away, has the usual priority unless the change names one, as by
/// `ip link set DEV vf N vlan ID [qos PRIORITY]`.
pub fn with_usual_priority(
    port: &toml::Table,
    values: &[(String, Option<toml::Value>)],
) -> Vec<(String, Option<toml::Value>)> {
    let names = |wanted: &str| values.iter().any(|(key, _)| key == wanted);
    let resets = names("vlan") && !names("qos") && port.contains_key("qos");
    values.iter().cloned().chain(resets.then(|| ("qos".to_owned(), None))).collect()
}

/// Reads the priority of the tags that a function's frames get.
pub(super) fn priority(walk: &mut Walk, section: Section<'_>, is_tagged: bool) -> u8 {
    let Some(found) = walk.integer(section, "qos") else { return 0 };
    if !is_tagged {
        walk.wrong(section, "qos", found.line, "there is no vlan, in whose tag it would be");
    }
    found.value as u8
}

/// Reads a port's link.
pub(super) fn link_state(walk: &mut Walk, section: Section<'_>) -> LinkState {
    walk.word(section, LINK_STATE.name, &LINK_STATES).map(|found| found.value).unwrap_or_default()
}

/// Reads a port's place on a card. `adapter` is the port's.
pub(super) fn function(
    walk: &mut Walk,
    section: Section<'_>,
    adapter: Option<&Entry>,
    cards: &mut Cards,
) -> Option<FunctionConfig> {
    let Some(Found { value: card, line }) = walk.string(section, "card") else {
        for key in &FUNCTION_KEYS[1..] {
            if let Some(line) = walk.place(section, key.name) {
                walk.wrong(section, key.name, line, "there is no card: only a port at a card's function has this");
            }
        }
        return None;
    };
    let flag = |walk: &mut Walk, key, usual| walk.boolean(section, key).map_or(usual, |found| found.value);
    let (trusted, checks_source) = (flag(walk, "trust", false), flag(walk, "spoofchk", true));
    let queries_rss = flag(walk, "query_rss", false);
    let min_rate = walk.parsed::<Rate>(section, "min_rate");
    let number = walk.integer(section, "function");
    if walk.place(section, "function").is_none() {
        walk.missing(section, "function");
    }
    let Some(its) = cards.list.iter().find(|known| known.name == card) else {
        let names = cards.list.iter().map(|known| known.name.as_str());
        walk.wrong(section, "card", line, format!("there is no card {card:?}{}", did_you_mean(card, names)));
        return None;
    };
    if let Some(entry) = adapter.filter(|entry| entry.about.name != its.entry.about.name) {
        let what =
            format!("its functions are {}, and this port's adapter is {}", its.entry.about.name, entry.about.name);
        walk.wrong(section, "card", line, what);
    }
    let number = number?;
    if number.value >= u32::from(its.functions) {
        let what = format!("card {card} has {} functions, from 0 on: there is no {}", its.functions, number.value);
        walk.wrong(section, "function", number.line, what);
        return None;
    }
    let at = number.value as u16;
    if let Some(first) = earlier(&mut cards.taken, (card.to_owned(), at), number.line) {
        let what = format!("function {at} of card {card} is that of {} already", walk.at(first));
        walk.wrong(section, "function", number.line, what);
        return None;
    }
    let (card, is_vepa, has_uplink) = (card.to_owned(), its.is_vepa, its.uplink.is_some());
    if is_vepa {
        for key in ["private", "community"] {
            if let Some(line) = walk.place(section, key) {
                walk.wrong(section, key, line, "its card's bridge is \"vepa\": it reaches the uplink alone");
            }
        }
    }
    if let Some(Found { line, .. }) = min_rate.as_ref().filter(|_| !has_uplink) {
        walk.wrong(section, "min_rate", *line, format!("card {card} has no uplink, of which it would be a part"));
    }
    let min_rate = min_rate.map(|found| found.value);
    Some(FunctionConfig { card, number: at, trusted, checks_source, queries_rss, is_vepa, min_rate })
}

#[cfg(test)]
#[path = "card_test.rs"]
pub(super) mod tests;
