//! The keys of an uplink that is a tunnel to other hosts (`kind = "vxlan"`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use nicety_frame::Vni;
use nicety_switch::{Vlan, VlanId};
use nicety_uplink::{Network, VXLAN_PORT, VxlanSettings, is_tunnel_end};

use super::form::Form;
use super::walk::{Found, Key, Section, Walk};

/// Most peers that a host file names.
const PEERS_MAX: usize = 256;
/// Most VLANs with a network.
const VNIS_MAX: usize = 1024;
/// The least MTU of the network between hosts: IPv6's (RFC 8200 section 5).
const MTU_MIN: u32 = 1280;
/// The word for frames without a tag.
const UNTAGGED: &str = "untagged";

pub(super) const KEYS: [Key; 5] = [
    Key::new(
        "address",
        Form::Ip,
        "with kind = \"vxlan\": this host's IPv4 or IPv6 address on the network between hosts",
    ),
    Key::new("udp_port", Form::Number(1, u16::MAX as u32), "with kind = \"vxlan\": a whole number from 1 to 65535"),
    Key::new(
        "peers",
        Form::Ips(PEERS_MAX),
        "with kind = \"vxlan\": at most 256 addresses of other hosts with commas between them, such as \"192.0.2.2,192.0.2.3\"",
    ),
    Key::new(
        "vnis",
        Form::Vnis(VNIS_MAX),
        "with kind = \"vxlan\": VLANs, or untagged, each with its VXLAN network identifier: \"10=5010,20=5020\"",
    ),
    Key::new(
        "mtu",
        Form::Number(MTU_MIN, u16::MAX as u32),
        "with kind = \"vxlan\": bytes: a whole number from 1280 to 65535",
    ),
];

/// A tunnel to other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelConfig {
    /// The tunnel's settings.
    pub settings: VxlanSettings,
    /// The other hosts that the host file names.
    pub peers: Vec<IpAddr>,
    /// The VLANs of the switch and their networks, as a host file has them.
    pub vnis: String,
    /// Whether it carries a fabric, which knows peers and networks.
    pub is_fabric: bool,
}

impl TunnelConfig {
    /// The default of `mtu`: Ethernet's.
    pub const MTU: u16 = 1500;

    /// Networks as a host file has them.
    pub(super) fn vnis_text(networks: &[Network]) -> String {
        let vlan = |network: &Network| network.vlan.map_or_else(|| UNTAGGED.to_owned(), |vlan| vlan.to_string());
        let texts: Vec<String> = networks.iter().map(|network| format!("{}={}", vlan(network), network.vni)).collect();
        texts.join(",")
    }

    /// The peers as a host file has them.
    pub(super) fn peers_text(&self) -> String {
        self.peers.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",")
    }
}

/// A VLAN, or frames without a tag, and its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VlanVni(Network);

/// The text is no VLAN with a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum VlanVniError {
    #[error("write VLAN=VNI, such as 10=5010, or untagged=VNI")]
    Form,
    #[error("{0:?} is no VLAN: a number from 1 to 4094, or untagged")]
    Vlan(String),
    #[error("{0:?} is no VXLAN network identifier: a number from 1 to {max}", max = Vni::MAX)]
    Vni(String),
}

impl FromStr for VlanVni {
    type Err = VlanVniError;

    fn from_str(text: &str) -> Result<Self, VlanVniError> {
        let (vlan, vni) = text.split_once('=').ok_or(VlanVniError::Form)?;
        let (vlan, vni) = (vlan.trim(), vni.trim());
        let vni = vni.parse().ok().and_then(Vni::new).ok_or_else(|| VlanVniError::Vni(vni.to_owned()))?;
        if vlan == UNTAGGED {
            return Ok(Self(Network { vlan: None, vni }));
        }
        let id = vlan.parse().ok().and_then(VlanId::new).ok_or_else(|| VlanVniError::Vlan(vlan.to_owned()))?;
        Ok(Self(Network { vlan: Some(id.number()), vni }))
    }
}

/// Reads a tunnel, of an uplink with these VLANs. `None`: it has mistakes.
pub(super) fn tunnel(walk: &mut Walk, section: Section<'_>, vlan: &Vlan) -> Option<TunnelConfig> {
    let port = walk.integer(section, "udp_port").and_then(|found| u16::try_from(found.value).ok());
    let mtu = walk.integer(section, "mtu").and_then(|found| u16::try_from(found.value).ok());
    let (networks, vnis) = networks(walk, section, vlan);
    let Found { value: address, line } = walk.parsed::<IpAddr>(section, "address")?;
    if !is_tunnel_end(address) {
        let what = format!("{address} cannot be the end of a tunnel: give an address of one host, not link-local");
        walk.wrong(section, "address", line, what);
    }
    let peers = peers(walk, section, address);
    let (port, mtu) = (port.unwrap_or(VXLAN_PORT), mtu.unwrap_or(TunnelConfig::MTU));
    Some(TunnelConfig { settings: VxlanSettings { address, port, mtu, networks }, peers, vnis, is_fabric: false })
}

fn peers(walk: &mut Walk, section: Section<'_>, own: IpAddr) -> Vec<IpAddr> {
    let mut peers = Vec::new();
    for Found { value: peer, line } in walk.list::<IpAddr>(section, "peers", PEERS_MAX) {
        let what = if peer == own {
            format!("{peer} is this host's own address: name the others")
        } else if peer.is_ipv4() != own.is_ipv4() {
            format!("{peer} and this host's address {own} are of different families: all are IPv4, or all IPv6")
        } else if !is_tunnel_end(peer) {
            format!("{peer} cannot be the end of a tunnel: give an address of one host, not link-local")
        } else if peers.contains(&peer) {
            format!("{peer} stands there twice")
        } else {
            peers.push(peer);
            continue;
        };
        walk.wrong(section, "peers", line, what);
    }
    peers
}

/// The networks, of which each VLAN has one. A VLAN whose frames leave without a tag is that of frames without one.
fn networks(walk: &mut Walk, section: Section<'_>, vlan: &Vlan) -> (Vec<Network>, String) {
    let (mut networks, mut texts): (Vec<Network>, Vec<String>) = (Vec::new(), Vec::new());
    let mut vlans: BTreeMap<Vni, String> = BTreeMap::new();
    if let (Vlan::Service(_), Some(line)) = (vlan, walk.place(section, "vnis")) {
        walk.wrong(section, "qinq", line, "a service VLAN does not go through a tunnel: use vlan, or trunk");
        return (networks, String::new());
    }
    for Found { value: VlanVni(Network { vlan: number, vni }), line } in walk.list::<VlanVni>(section, "vnis", VNIS_MAX)
    {
        let name = number.map_or_else(|| UNTAGGED.to_owned(), |number| format!("VLAN {number}"));
        let id = number.and_then(VlanId::new);
        let network = Network { vlan: if leaves_untagged(vlan, id) { None } else { number }, vni };
        let what = if let Some(other) = vlans.get(&vni) {
            format!("{vni} is the network of {other} already, and now of {name}: each has one of its own")
        } else if networks.iter().any(|other| other.vlan == network.vlan) {
            format!("{name} has a network already")
        } else if !carries(vlan, id) {
            format!("{name} does not go by this uplink: name it in its trunk, or leave it out here")
        } else {
            vlans.insert(vni, name);
            networks.push(network);
            texts.push(format!("{}={vni}", number.map_or_else(|| UNTAGGED.to_owned(), |number| number.to_string())));
            continue;
        };
        walk.wrong(section, "vnis", line, what);
    }
    (networks, texts.join(","))
}

/// Whether frames of a VLAN leave without a tag by an uplink with these VLANs.
fn leaves_untagged(vlan: &Vlan, id: Option<VlanId>) -> bool {
    match vlan {
        Vlan::Access(own) => id == Some(*own),
        Vlan::Trunk { native, .. } => id.is_some() && id == *native,
        Vlan::Flat | Vlan::Service(_) => false,
    }
}

/// Whether an uplink with these VLANs carries a VLAN, or frames that have none.
fn carries(vlan: &Vlan, id: Option<VlanId>) -> bool {
    match (vlan, id) {
        (Vlan::Flat, _) => true,
        (Vlan::Access(own), Some(id)) => *own == id,
        (Vlan::Trunk { allowed, .. }, Some(id)) => allowed.contains(id),
        (Vlan::Access(_) | Vlan::Trunk { .. } | Vlan::Service(_), _) => false,
    }
}

#[cfg(test)]
#[path = "tunnel_test.rs"]
mod tests;
