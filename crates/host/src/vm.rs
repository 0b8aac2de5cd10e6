//! `[[vm]]`: VMs that are copied to a twin on another host.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::errors::did_you_mean;
use super::form::Form;
use super::lease::{LeasePlace, lease_file};
use super::names::{earlier, name};
use super::paths::Paths;
use super::peer::{ListenAddress, PeerAddress};
use super::port::{PortConfig, Transport};
use super::quantity::Milliseconds;
use super::tolerance::ToleranceConfig;
use super::walk::{Found, Key, Kind, Section, Walk, within};

/// Most ports of a VM.
const PORTS_MAX: usize = 64;
/// The range of the time between two copies.
const CHECKPOINT: (Milliseconds, Milliseconds) = (Milliseconds(5), Milliseconds(10_000));

/// A VM that is copied to a twin on another host, again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Its name, the same on both hosts.
    pub name: String,
    /// Its ports, in the order of the file: each is a vhost-user port of this host file, and no other VM's.
    pub ports: Vec<String>,
    /// QEMU's control socket (QMP).
    pub qmp: PathBuf,
    /// The daemon of the other host: its `[ft] listen`.
    pub peer: PeerAddress,
    /// Time from the end of one copy to the begin of the next one.
    pub checkpoint: Duration,
}

impl VmConfig {
    /// The usual time between two copies.
    pub const CHECKPOINT: Duration = Duration::from_millis(50);
}

pub(super) static VM: Kind = Kind {
    heading: "[[vm]]",
    name: "vm",
    keys: &[
        Key::new(
            "name",
            Form::Name,
            "1 to 64 letters, digits, -, _ and ., a letter or digit first; no other vm's, and the same on both hosts",
        )
        .required(),
        Key::new(
            "ports",
            Form::UplinkNames(PORTS_MAX),
            "the names of 1 to 64 virtio-net ports with commas between them, each in one vm",
        )
        .required(),
        Key::new("qmp", Form::Socket, "a path of QEMU's control socket (QMP), of at most 107 bytes").required(),
        Key::new(
            "peer",
            Form::PeerAddress,
            "an IP address or a host's name, and a TCP port, such as \"host2:7001\", or a socket, \"unix:/run/ft.sock\": the other host's [ft] listen",
        )
        .required(),
        Key::new("checkpoint", Form::Milliseconds(CHECKPOINT.0, CHECKPOINT.1), "\"5ms\" to \"10s\""),
    ],
    several: false,
};

/// Facts of the rest of the file that a VM's table refers to.
pub(super) struct Beside<'a, 'b> {
    /// `[ft]`, if there is one.
    pub(super) ft: Option<Section<'a>>,
    /// The same, if it has no mistake.
    pub(super) tolerance: Option<&'b ToleranceConfig>,
    pub(super) ports: &'b [PortConfig],
    /// The folder of the host file.
    pub(super) dir: &'b Path,
}

/// Reads all VMs.
pub(super) fn vms(
    walk: &mut Walk,
    sections: Vec<Section<'_>>,
    beside: &Beside<'_, '_>,
    paths: &mut Paths,
) -> Vec<VmConfig> {
    if let Some(first) = sections.first() {
        needs_ft(walk, *first, beside);
    }
    let (mut names, mut taken) = (HashMap::new(), HashMap::new());
    let read = |section| vm(walk, section, beside, (&mut names, &mut taken), paths);
    sections.into_iter().filter_map(read).collect()
}

/// Both hosts meet at `[ft]`, and the lease says which of them owns a VM.
fn needs_ft(walk: &mut Walk, section: Section<'_>, beside: &Beside<'_, '_>) {
    let Some(ft) = beside.ft else {
        let what = "there is no [ft], by which the two hosts meet: write [ft] with listen, key, and lease or etcd";
        walk.note(section.line, "vm", what.to_owned(), String::new());
        return;
    };
    if walk.place(ft, "listen").is_none() {
        walk.wrong(
            ft,
            "listen",
            ft.line,
            "it is missing from this [ft], and the other host of a [[vm]] connects there",
        );
    }
    if walk.place(ft, "lease").or(walk.place(ft, "etcd")).is_none() {
        let what = "neither lease nor etcd is in this [ft]: say where both hosts find the lease of a [[vm]]";
        walk.wrong(ft, "lease", ft.line, what);
    }
}

type Lines = HashMap<String, usize>;

fn vm(
    walk: &mut Walk,
    section: Section<'_>,
    beside: &Beside<'_, '_>,
    (names, taken): (&mut Lines, &mut Lines),
    paths: &mut Paths,
) -> Option<VmConfig> {
    let name = name(walk, section).filter(|found| {
        let first = earlier(names, found.value.clone(), found.line);
        if let Some(first) = first {
            let what = format!("{:?} is {} already: choose another name", found.value, walk.whose("vm", first));
            walk.wrong(section, "name", found.line, what);
        }
        first.is_none()
    });
    if let (Some(Found { value, line }), Some(LeasePlace::Folder(folder))) =
        (&name, beside.tolerance.and_then(|tolerance| tolerance.lease.as_ref()))
    {
        paths.lease(walk, section, *line, &lease_file(folder, value));
    }
    let ports = ports(walk, section, beside, taken);
    let qmp = paths.socket(walk, section, "qmp", beside.dir);
    let peer = peer(walk, section, beside);
    let checkpoint = walk
        .parsed::<Milliseconds>(section, "checkpoint")
        .filter(|found| within(walk, section, "checkpoint", found, CHECKPOINT));
    Some(VmConfig {
        name: name?.value,
        ports,
        qmp: qmp?,
        peer: peer?,
        checkpoint: checkpoint.map_or(VmConfig::CHECKPOINT, |found| found.value.duration()),
    })
}

/// Reads its ports. QEMU copies what its front ends save, so each port has one.
fn ports(walk: &mut Walk, section: Section<'_>, beside: &Beside<'_, '_>, taken: &mut Lines) -> Vec<String> {
    let mut ports = Vec::new();
    for Found { value: wanted, line } in walk.list::<String>(section, "ports", PORTS_MAX) {
        let names = || beside.ports.iter().map(|port| port.name.as_str());
        let what = match beside.ports.iter().find(|port| port.name == wanted) {
            None if wanted.is_empty() => "it has no port: name one or more".to_owned(),
            None => format!("there is no port {wanted:?}{}", did_you_mean(&wanted, names())),
            Some(_) if ports.contains(&wanted) => format!("port {wanted} is named twice"),
            Some(port) if port.transport() != Transport::VhostUser => format!(
                "port {wanted} has adapter {:?}, whose state QEMU cannot copy: a protected VM has virtio-net",
                port.entry.about.name
            ),
            Some(port) if !port.device_state => format!(
                "port {wanted} has device_state = false, and a protected VM needs its state: leave that key out there"
            ),
            Some(_) => match earlier(taken, wanted.clone(), line) {
                None => {
                    ports.push(wanted);
                    continue;
                }
                Some(first) => {
                    format!("port {wanted} is in another vm already ({}), and can be in one", walk.at(first))
                }
            },
        };
        walk.wrong(section, "ports", line, what);
    }
    ports
}

fn peer(walk: &mut Walk, section: Section<'_>, beside: &Beside<'_, '_>) -> Option<PeerAddress> {
    let Found { value, line } = walk.parsed::<PeerAddress>(section, "peer")?;
    let peer = value.within(beside.dir);
    let is_own = match (&peer, beside.tolerance.and_then(|tolerance| tolerance.listen.as_ref())) {
        (PeerAddress::Address(peer), Some(ListenAddress::Address(own))) => peer == own,
        (PeerAddress::Unix(peer), Some(ListenAddress::Unix(own))) => peer == own,
        _ => false,
    };
    if is_own {
        walk.wrong(section, "peer", line, format!("{peer} is this host's own [ft] listen: name the other host's"));
    }
    Some(peer)
}

#[cfg(test)]
#[path = "vm_test.rs"]
mod tests;
