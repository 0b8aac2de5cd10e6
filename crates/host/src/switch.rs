//! `[switch]`.

use super::form::Form;
use super::names;
use super::quantity::Seconds;
use super::walk::{Key, Kind, Section, Walk, within};

/// The range of the ageing time (IEEE 802.1Q-2018, table 8-6).
const AGEING: (Seconds, Seconds) = (Seconds(10), Seconds(1_000_000));

/// `[switch]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Its name.
    pub name: String,
    /// The size of its address table.
    pub addresses: usize,
    /// The time after which it forgets an address that sends nothing.
    pub ageing: Seconds,
    /// Most addresses of one port that is not an uplink.
    pub port_addresses: u32,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self { name: "switch0".to_owned(), addresses: 32_768, ageing: Seconds(300), port_addresses: 1024 }
    }
}

pub(super) static SWITCH: Kind = Kind {
    heading: "[switch]",
    name: "switch",
    keys: &[
        Key::new("name", Form::Name, "1 to 64 letters, digits, -, _ and ., a letter or digit first"),
        Key::new("addresses", Form::Number(64, 4_194_304), "a whole number from 64 to 4194304"),
        Key::new("ageing", Form::Seconds(AGEING.0, AGEING.1), "\"10s\" to \"1000000s\""),
        Key::new("port_addresses", Form::Number(1, 4_194_304), "a whole number from 1 to 4194304"),
    ],
    several: false,
};

pub(super) fn switch(walk: &mut Walk, section: Section<'_>) -> SwitchConfig {
    let usual = SwitchConfig::default();
    let name = names::name(walk, section).map_or(usual.name, |found| found.value);
    let addresses = walk.integer(section, "addresses");
    let ageing =
        walk.parsed::<Seconds>(section, "ageing").filter(|found| within(walk, section, "ageing", found, AGEING));
    let each = walk.integer(section, "port_addresses");
    SwitchConfig {
        name,
        port_addresses: each.map_or(usual.port_addresses, |found| found.value),
        addresses: addresses.map_or(usual.addresses, |found| found.value as usize),
        ageing: ageing.map_or(usual.ageing, |found| found.value),
    }
}
