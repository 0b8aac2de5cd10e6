//! The state of the fabric, for reports.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use nicety_fabric::{Name, Namesake, Place, Report};
use nicety_host::FabricConfig;
use nicety_uplink::{Passed, Traffic};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How this host stands with etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = FabricConnection)]
pub enum Connection {
    /// It has this host, and all changes are heard.
    Connected,
    /// It is out of reach. The last known state is in force, and nothing can be changed.
    Away,
    /// It is out of reach, and the lease of this host has ended: other hosts take it for gone.
    Forgotten,
    /// Another host has this one's name or its tunnel's address.
    Refused,
    /// This host has left the fabric.
    Left,
    /// The daemon starts, or hands its ports over.
    Waiting,
}

impl Connection {
    /// In some words, for a person.
    pub fn words(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Away => "etcd is out of reach",
            Self::Forgotten => "etcd is out of reach, and other hosts take this one for gone",
            Self::Refused => "refused",
            Self::Left => "left",
            Self::Waiting => "starting",
        }
    }
}

/// What has passed one way between this host and another one, since the tunnel reaches it: frames of guests, without the tunnel's headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TunnelPassedReport)]
pub struct PassedReport {
    /// Frames as a wire would see them.
    pub frames: u64,
    /// Their bytes, without frame check sequences.
    pub bytes: u64,
    /// Frames that the tunnel has dropped.
    pub dropped: u64,
}

impl From<Passed> for PassedReport {
    fn from(Passed { frames, bytes, dropped }: Passed) -> Self {
        Self { frames, bytes, dropped }
    }
}

/// Another host of the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = FabricHostReport)]
pub struct HostReport {
    /// Its name.
    pub name: String,
    /// Its tunnel's address.
    pub address: String,
    /// The MTU of its network between hosts, in bytes.
    pub mtu: u16,
    /// The version of its program.
    pub version: String,
    /// For how long this host has known this start of its daemon, in seconds.
    pub known_seconds: u64,
    /// Its key has vanished while etcd was out of reach: it is believed gone after so many seconds. `null`: its key is there.
    pub gone_in_seconds: Option<u64>,
    /// Its ports with an address in the groups that this host has ports in.
    #[serde(default)]
    pub ports: usize,
    /// Its addresses in these groups.
    pub addresses: u32,
    /// Whether frames are sent to it. If not, `refused` says why.
    pub is_reached: bool,
    /// Came from it by the tunnel: it transmits.
    #[serde(default)]
    pub transmit: PassedReport,
    /// Went to it.
    #[serde(default)]
    pub receive: PassedReport,
}

/// A group of the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = FabricGroupReport)]
pub struct GroupReport {
    /// Its name.
    pub name: String,
    /// Its VXLAN network identifier. `null`: the configuration in force does not have it.
    pub vni: Option<u32>,
    /// Addresses at this host.
    pub own: usize,
    /// Addresses at other hosts.
    pub told: usize,
    /// Other hosts with an address in it.
    pub hosts: usize,
    /// Whether this host hears its changes.
    pub is_in_touch: bool,
}

/// A port of another host that has the name of one of this host's ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = FabricNamesakeReport)]
pub struct NamesakeReport {
    /// The name.
    pub port: String,
    /// The other host.
    pub host: String,
    /// Whether all addresses of the other port are this one's, too. Then their guest moves, or a twin stands by.
    pub has_same_address: bool,
}

impl From<Namesake> for NamesakeReport {
    fn from(Namesake { port, host, has_same_address }: Namesake) -> Self {
        Self { port: port.to_string(), host: host.to_string(), has_same_address }
    }
}

/// For a person: a sentence.
impl fmt::Display for NamesakeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, host, has_same_address } = self;
        write!(f, "port {port} is also on host {host}, ")?;
        f.write_str(if *has_same_address {
            "with the same address: its guest moves, or a twin stands by"
        } else {
            "with another address: a port's name is unique in a fabric, so rename one of the two"
        })
    }
}

/// The fabric of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FabricReport {
    /// Its name.
    pub fabric: String,
    /// This host's name in it.
    pub host: String,
    /// The uplink that is its tunnel.
    pub tunnel: String,
    /// The tunnel's address.
    pub address: String,
    /// The largest MTU that guests may have, in bytes: that of the narrowest network between hosts, less what the tunnel adds.
    pub guest_mtu: u32,
    /// How this host stands with etcd.
    pub connection: Connection,
    /// Why it is not connected. `null`: it is.
    pub why_not: Option<String>,
    /// For how long etcd has been out of reach, in seconds. `null`: it is not.
    pub away_seconds: Option<u64>,
    /// The version of the configuration in force: the revision of its key. `null`: there is none yet.
    pub config: Option<i64>,
    /// A newer version that is not in force yet, and why. `null`: there is none.
    #[serde(default)]
    pub waits: Option<String>,
    /// The highest revision of etcd that was heard of.
    pub revision: i64,
    /// All other hosts.
    pub hosts: Vec<HostReport>,
    /// The groups that this host has ports in.
    pub groups: Vec<GroupReport>,
    /// Addresses that other hosts claim, in these groups.
    pub claims: usize,
    /// Open watches.
    pub watches: usize,
    /// Refused configurations and keys: a sentence each.
    pub refused: Vec<String>,
    /// Ports of other hosts with a name of this host's ports.
    #[serde(default)]
    pub namesakes: Vec<NamesakeReport>,
}

/// Where an address is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlaceReport {
    /// The group.
    pub group: String,
    /// The host.
    pub host: String,
    /// The port.
    pub port: String,
    /// The number of its claim: the highest counts. 0: it is not claimed yet.
    pub sequence: u64,
    /// Whether frames go there.
    pub is_current: bool,
}

impl FabricReport {
    /// This host is in this fabric, by this name and with this address of its tunnel. Without a report its thread does not answer.
    pub(super) fn new(
        (config, host): (&FabricConfig, &str),
        (address, mtu): (IpAddr, u16),
        report: Option<(Report, BTreeMap<Name, usize>, Vec<Namesake>)>,
        traffic: &[(IpAddr, Traffic)],
    ) -> Self {
        let mut this = Self {
            fabric: config.name.clone(),
            host: host.to_owned(),
            tunnel: config.tunnel.clone(),
            address: address.to_string(),
            guest_mtu: nicety_uplink::inner_mtu(mtu, address),
            connection: Connection::Waiting,
            why_not: Some("the daemon starts, or hands its ports over".to_owned()),
            away_seconds: None,
            config: None,
            waits: None,
            revision: 0,
            hosts: Vec::new(),
            groups: Vec::new(),
            claims: 0,
            watches: 0,
            refused: Vec::new(),
            namesakes: Vec::new(),
        };
        if let Some((report, ports, namesakes)) = report {
            this.namesakes = namesakes.into_iter().map(NamesakeReport::from).collect();
            let narrowest = report.hosts.iter().filter(|host| host.is_reached).map(|host| host.mtu).chain([mtu]).min();
            this.guest_mtu = nicety_uplink::inner_mtu(narrowest.unwrap_or(mtu), address);
            this.fill(report, &ports, traffic);
        }
        this
    }

    fn fill(&mut self, report: Report, ports: &BTreeMap<Name, usize>, traffic: &[(IpAddr, Traffic)]) {
        let Report { connection, config, waits, revision, hosts, groups, watches, claims, refused } = report;
        use nicety_fabric::Connection as Known;
        (self.connection, self.why_not, self.away_seconds) = match connection {
            Known::Connected => (Connection::Connected, None, None),
            Known::Away { since, why, is_forgotten } => {
                let word = if is_forgotten { Connection::Forgotten } else { Connection::Away };
                (word, Some(why), Some(since.as_secs()))
            }
            Known::Refused { why } => (Connection::Refused, Some(why), None),
            Known::Left => (Connection::Left, Some("it was taken out".to_owned()), None),
        };
        (self.config, self.waits, self.revision) = (config, waits, revision);
        (self.watches, self.claims, self.refused) = (watches, claims, refused);
        let passed = |host: &nicety_fabric::HostReport| {
            let of = traffic.iter().find(|(address, _)| *address == host.address).filter(|_| host.is_reached);
            of.map(|(_, traffic)| *traffic).unwrap_or_default()
        };
        let host = |host: nicety_fabric::HostReport| HostReport {
            transmit: passed(&host).transmit.into(),
            receive: passed(&host).receive.into(),
            ports: ports.get(&host.name).copied().unwrap_or(0),
            name: host.name.to_string(),
            address: host.address.to_string(),
            mtu: host.mtu,
            version: host.version,
            known_seconds: host.known_for.as_secs(),
            gone_in_seconds: host.gone_in.map(|time| time.as_secs()),
            addresses: host.addresses,
            is_reached: host.is_reached,
        };
        self.hosts = hosts.into_iter().map(host).collect();
        let group = |group: nicety_fabric::GroupReport| GroupReport {
            name: group.name.to_string(),
            vni: group.vni,
            own: group.own,
            told: group.told,
            hosts: group.hosts,
            is_in_touch: group.is_in_touch,
        };
        self.groups = groups.into_iter().map(group).collect();
    }
}

impl From<Place> for PlaceReport {
    fn from(place: Place) -> Self {
        let Place { group, host, port, sequence, is_current } = place;
        Self { group: group.to_string(), host: host.to_string(), port: port.to_string(), sequence, is_current }
    }
}

fn time(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes} min {} s", seconds % 60),
        _ => format!("{hours} h {minutes} min"),
    }
}

/// For a person: some lines.
impl fmt::Display for FabricReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fabric, host, address, tunnel, .. } = self;
        writeln!(f, "fabric {fabric}: this is host {host}, at {address} (uplink {tunnel})")?;
        match (self.connection, &self.why_not, self.away_seconds) {
            (Connection::Connected, ..) => writeln!(f, "etcd: connected, at revision {}", self.revision)?,
            (Connection::Away | Connection::Forgotten, why, since) => {
                let why = why.as_deref().unwrap_or("?");
                let forgotten =
                    if self.connection == Connection::Forgotten { "; other hosts take this one for gone" } else { "" };
                let since = time(since.unwrap_or(0));
                writeln!(
                    f,
                    "etcd: out of reach for {since}{forgotten}: {why}; what is known stays in force, and nothing can be changed"
                )?;
            }
            (_, why, _) => writeln!(f, "etcd: {}", why.as_deref().unwrap_or("?"))?,
        }
        match self.config {
            Some(version) => write!(f, "configuration: version {version}")?,
            None => write!(f, "configuration: none yet")?,
        }
        self.waits.iter().try_for_each(|sentence| write!(f, "; {sentence}"))?;
        writeln!(f)?;
        writeln!(f, "tunnel: guests have an MTU of at most {}", self.guest_mtu)?;
        for group in &self.groups {
            let vni = group.vni.map_or_else(|| "not in the configuration".to_owned(), |vni| format!("VNI {vni}"));
            let GroupReport { name, own, told, hosts, .. } = group;
            writeln!(
                f,
                "group {name}: {vni}; {own} addresses here, {told} at other hosts; {hosts} other hosts have it"
            )?;
        }
        for one in &self.hosts {
            let HostReport { name, address, mtu, version, addresses, transmit, receive, .. } = one;
            let known = time(one.known_seconds);
            write!(
                f,
                "host {name}: {address}, MTU {mtu}, version {version}, known for {known}, {addresses} addresses; {} frames came from it, {} went there",
                transmit.frames, receive.frames
            )?;
            if transmit.dropped + receive.dropped > 0 {
                write!(f, ", {} were dropped", transmit.dropped + receive.dropped)?;
            }
            if let Some(seconds) = one.gone_in_seconds {
                write!(f, "; its key has vanished: it is believed gone in {}", time(seconds))?;
            }
            writeln!(f, "{}", if one.is_reached { "" } else { "; nothing is sent to it" })?;
        }
        self.namesakes.iter().try_for_each(|namesake| writeln!(f, "{namesake}"))?;
        self.refused.iter().try_for_each(|sentence| writeln!(f, "refused: {sentence}"))
    }
}
