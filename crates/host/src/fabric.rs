//! `[fabric]`: this host is one of several with one switch (docs/fabric.md).

use std::path::Path;

use nicety_etcd::ENDPOINTS_MAX;

use super::etcd::{self, EtcdConfig, etcd};
use super::fabric_groups::FabricGroups;
use super::form::Form;
use super::names;
use super::tunnel::TunnelConfig;
use super::uplink::{UplinkConfig, UplinkKind};
use super::walk::{Key, Kind, Section, Walk};

/// The system's name of this machine (proc_sys_kernel(5)).
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// `[fabric]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// The fabric's name.
    pub name: String,
    /// This host's name in it, if the file says. See [`FabricConfig::host`].
    pub own: Option<String>,
    /// The uplink that is its tunnel to the other hosts.
    pub tunnel: String,
    /// The etcd by which the hosts agree.
    pub etcd: EtcdConfig,
}

impl FabricConfig {
    /// This host's name in the fabric: the one in the file, else the machine's.
    ///
    /// # Errors
    /// The machine's name cannot be used. A sentence.
    pub fn host(&self) -> Result<String, String> {
        if let Some(own) = &self.own {
            return Ok(own.clone());
        }
        let wrong = |why: &str| format!("{why}: name this host by [fabric] host");
        let name = std::fs::read_to_string(HOSTNAME).map_err(|error| wrong(&format!("{HOSTNAME}: {error}")))?;
        let name = name.trim();
        match names::mistake(name) {
            None => Ok(name.to_owned()),
            Some(what) => Err(wrong(&format!("this machine's name cannot be a host's in a fabric, as {what}"))),
        }
    }
}

const NAME: &str = "1 to 64 letters, digits, -, _ and ., a letter or digit first";

pub(super) static FABRIC: Kind = Kind {
    heading: "[fabric]",
    name: "fabric",
    keys: &[
        Key::new("name", Form::Name, NAME).required(),
        Key::new("host", Form::Name, "1 to 64 letters, digits, -, _ and ., a letter or digit first; no other host's"),
        Key::new("tunnel", Form::UplinkName, "the name of an uplink with kind = \"vxlan\"").required(),
        Key::new(
            "etcd",
            Form::EtcdEndpoints(ENDPOINTS_MAX),
            "at most 16 servers of one etcd with commas between them, such as \"https://etcd1:2379,https://etcd2:2379\"",
        )
        .required(),
        etcd::KEYS[0],
        etcd::KEYS[1],
        etcd::KEYS[2],
        etcd::KEYS[3],
        etcd::KEYS[4],
    ],
    several: false,
};

/// Reads the table. `None`: it has mistakes.
pub(super) fn fabric(walk: &mut Walk, section: Section<'_>, dir: &Path) -> Option<FabricConfig> {
    let name = names::name(walk, section).map(|found| found.value);
    let own = names::of_key(walk, section, "host").map(|found| found.value);
    let tunnel = walk.string(section, "tunnel").map(|found| found.value.to_owned());
    let etcd = etcd(walk, section, dir);
    Some(FabricConfig { name: name?, own, tunnel: tunnel?, etcd: etcd? })
}

/// The fabric's tunnel is among the uplinks, and gets its groups' networks. They are none while nobody knows the groups.
pub(super) fn carried(
    walk: &mut Walk,
    section: Section<'_>,
    tunnel: &str,
    uplinks: &mut [UplinkConfig],
    groups: Option<&FabricGroups>,
) {
    let Some(line) = walk.place(section, "tunnel") else { return };
    let Some(uplink) = uplinks.iter_mut().find(|uplink| uplink.name == tunnel) else {
        let what = format!("there is no uplink {tunnel:?}: write an [[uplink]] with kind = \"vxlan\" and this name");
        walk.wrong(section, "tunnel", line, what);
        return;
    };
    let UplinkKind::Vxlan(config) = &mut uplink.kind else {
        let what = format!("uplink {tunnel} is no tunnel: its kind is {:?}", uplink.kind.name());
        walk.wrong(section, "tunnel", line, what);
        return;
    };
    config.is_fabric = true;
    config.settings.networks = groups.map(|groups| groups.networks().collect()).unwrap_or_default();
    config.vnis = TunnelConfig::vnis_text(&config.settings.networks);
    uplink.vlan = FabricGroups::vlan(&config.settings.networks);
}

#[cfg(test)]
#[path = "fabric_test.rs"]
mod tests;
