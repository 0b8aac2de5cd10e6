//! A frame's trace in words: the decisions of the ports and the switch, step by step, for a person. Its end is at a port of this host, or
//! beyond a tunnel at one of another host.

mod beyond;

use std::collections::BTreeMap;
use std::fmt;

use nicety_adapter::{Edit, PortId, Reason, Time, count};
use nicety_frame::ethernet::{TYPE_MIN, ethertype};
use nicety_frame::{L4Kind, Layout, Mac};
use nicety_plane::{Intake, Prospect, Trace, TraceError};
use nicety_switch::{Policy, Step, Vlan};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::daemon::{Daemon, PortView};
use beyond::Beyond;

/// Most names of ports that one step lists.
const NAMES_MAX: usize = 8;
/// The first filtering identifier of service VLANs ([`nicety_switch::Learned::fid`]).
const SERVICE: u16 = 4096;

/// The subject of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TraceStage {
    /// Port at which the frame comes in.
    Arrives,
    /// Time at which the port fetches the frame.
    Fetched,
    /// Policy of the sender's port.
    Policy,
    /// VLAN of the frame.
    Vlan,
    /// Address that the switch learns from the frame.
    Learns,
    /// Destination, as the switch knows it.
    LookedUp,
    /// Ports that do not get the frame.
    PassesBy,
    /// Port that gets the frame.
    Delivered,
    /// Other hosts to which a tunnel sends the frame.
    Tunnel,
    /// Drop of the frame, with the reason.
    Dropped,
}

/// One step of a frame's path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceStep {
    /// Subject of the step.
    pub stage: TraceStage,
    /// Description of the step.
    pub what: String,
}

/// A port that a frame is sent to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceReceiver {
    /// Name of the port.
    pub port: String,
    /// Reason for which the port drops the frame. `null`: it does not.
    pub dropped: Option<String>,
    /// Hosts to which the port sends it, if it is a tunnel.
    #[serde(default)]
    pub hosts: Vec<TraceHost>,
}

/// Another host to which a tunnel sends a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceHost {
    /// Its name in the fabric. `null`: it is in none, or not known there.
    pub host: Option<String>,
    /// Its tunnel's address.
    pub address: String,
    /// The port of that host that has the destination, as far as this host knows. `null`: it does not know one.
    pub port: Option<String>,
    /// The port group of that port.
    pub group: Option<String>,
}

impl fmt::Display for TraceHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "{host} ({})", self.address),
            None => f.write_str(&self.address),
        }
    }
}

/// The path of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FrameTrace {
    /// Steps in order.
    pub steps: Vec<TraceStep>,
    /// Ports to which the switch sends the frame.
    pub receivers: Vec<TraceReceiver>,
    /// Reason for which the frame reaches no port. `null`: it does.
    pub dropped: Option<String>,
}

impl FrameTrace {
    /// The path of a frame that comes in from a port or an uplink now. Changes nothing. `None` if there is no such port. The error is a
    /// sentence for a person.
    pub fn of(daemon: &Daemon, port: &str, frame: &[u8]) -> Option<Result<Self, String>> {
        let views = daemon.views();
        let from = views.iter().find(|view| view.name == port)?;
        Some(match daemon.trace(from.id, frame) {
            Ok((trace, now)) => Ok(Words { daemon, views: &views, from, frame, now }.of(&trace)),
            Err(TraceError::Missing) => return None,
            Err(TraceError::Length(bytes)) => Err(format!("a frame of {} is none", count(bytes as u64, "byte"))),
            Err(TraceError::Memory(error)) => Err(error.to_string()),
        })
    }
}

/// The facts from which the words are made.
struct Words<'a> {
    daemon: &'a Daemon,
    views: &'a [PortView],
    from: &'a PortView,
    frame: &'a [u8],
    now: Time,
}

impl Words<'_> {
    fn of(&self, trace: &Trace) -> FrameTrace {
        let mut steps = vec![self.arrives(), self.fetched(trace.intake)];
        let mut aside = BTreeMap::<Reason, Vec<PortId>>::new();
        for step in &trace.steps {
            match step {
                Step::Receiver(port, Err(reason)) => {
                    // A port may be excluded twice: as the port at which the address was last heard, and in the flood.
                    let ports = aside.entry(*reason).or_default();
                    if !ports.contains(port) {
                        ports.push(*port);
                    }
                }
                // The port's own step tells more.
                Step::Receiver(_, Ok(_)) => {}
                step => steps.extend(self.step(step)),
            }
        }
        // A frame from outside may belong to a VLAN and to the flat network: a port of either gets it.
        let gets_it = |port: &PortId| trace.receivers.iter().any(|(receiver, ..)| receiver == port);
        aside.values_mut().for_each(|ports| ports.retain(|port| !gets_it(port)));
        aside.retain(|_, ports| !ports.is_empty());
        steps.extend(aside.iter().map(|(reason, ports)| self.passes_by(*reason, ports)));
        let mut receivers = Vec::new();
        for (port, edit, prospect) in &trace.receivers {
            steps.push(self.delivered(*port, *edit, prospect));
            let mut receiver = TraceReceiver { port: self.name(*port).to_owned(), dropped: None, hosts: Vec::new() };
            match prospect {
                Prospect::Dropped(reason) => receiver.dropped = Some(reason.name().to_owned()),
                Prospect::Offered { .. } | Prospect::Waits(_) => {
                    let view = self.view(*port);
                    if let Some(beyond) = view.and_then(|view| Beyond::of(self.daemon, view, self.frame, *edit)) {
                        steps.push(beyond.step);
                        receiver.dropped = beyond.dropped.map(|reason| reason.name().to_owned());
                        receiver.hosts = beyond.hosts;
                    }
                }
            }
            receivers.push(receiver);
        }
        let dropped = trace.dropped.map(|reason| reason.name().to_owned());
        steps.extend(dropped.iter().map(|reason| trace_step(TraceStage::Dropped, reason.clone())));
        FrameTrace { steps, receivers, dropped }
    }

    fn view(&self, port: PortId) -> Option<&PortView> {
        self.views.iter().find(|view| view.id == port)
    }

    fn name(&self, port: PortId) -> &str {
        self.view(port).map_or("(a port that has gone)", |view| view.name.as_str())
    }

    fn arrives(&self) -> TraceStep {
        let spec = self.from.spec.as_ref();
        let kind = spec.map_or("an uplink", |spec| spec.config.entry.about.name);
        let group = spec.and_then(|spec| spec.config.group.as_ref());
        let group = group.map(|group| format!(", port group {group}")).unwrap_or_default();
        trace_step(TraceStage::Arrives, format!("at {} ({kind}{group}): {}", self.from.name, frame_words(self.frame)))
    }

    fn fetched(&self, intake: Intake) -> TraceStep {
        let shape = self.from.policy.transmit.filter(|_| self.from.spec.is_some());
        trace_step(
            TraceStage::Fetched,
            match (intake, shape) {
                (Intake::Fetches, None) => "at once: what it sends is not shaped".to_owned(),
                (Intake::Fetches, Some(shape)) => format!("at once: its bucket has tokens ({shape})"),
                (Intake::Nobody, _) => "no VM is attached that could send it; what follows is as if one had".to_owned(),
                (Intake::Failed, _) => "the port has failed; what follows is as if it worked".to_owned(),
                (Intake::Held, _) => "later: an uplink is full, and the frame waits in the guest".to_owned(),
                (Intake::Tokens(at), shape) => {
                    let wait_us = at.0.saturating_sub(self.now.0).div_ceil(1000);
                    let shape = shape.map(|shape| format!(" ({shape})")).unwrap_or_default();
                    format!("in {wait_us} µs: its bucket is empty, and the frame waits in the guest{shape}")
                }
            },
        )
    }

    fn step(&self, step: &Step) -> Option<TraceStep> {
        let policy = &self.from.policy;
        Some(match *step {
            Step::Guards(Some(reason)) => trace_step(TraceStage::Policy, format!("refused: {}", reason.name())),
            Step::Guards(None) => {
                let guards = guards(policy);
                if guards.is_empty() {
                    return None;
                }
                trace_step(TraceStage::Policy, format!("{} let it through", guards.join(", ")))
            }
            Step::Vlan(Ok(fid)) if fid != 0 && policy.vlan == Vlan::Flat => {
                trace_step(TraceStage::Vlan, format!("{}: ports here are in it", vlan(fid)))
            }
            Step::Vlan(Ok(fid)) => trace_step(TraceStage::Vlan, format!("{}: {}", vlan(fid), kind(&policy.vlan))),
            Step::Vlan(Err(_)) => {
                let what = format!("refused: the port is {}, and the frame's tag is none of it", kind(&policy.vlan));
                trace_step(TraceStage::Vlan, what)
            }
            Step::Source(Ok(())) => {
                let own = match (policy.forged_transmits, policy.address_limit) {
                    (true, None) => return None,
                    (false, _) => "its source is the port's own (forged transmits are rejected)".to_owned(),
                    (true, Some(limit)) => format!("its source is one of the {limit} that may send"),
                };
                trace_step(TraceStage::Policy, own)
            }
            Step::Source(Err(Reason::AddressLimit)) => {
                trace_step(TraceStage::Policy, "refused: as many other addresses as may have sent".to_owned())
            }
            Step::Source(Err(_)) => {
                trace_step(TraceStage::Policy, "refused: its source is not an address of the port".to_owned())
            }
            Step::Learns { address, at, before } => {
                let before = match before {
                    None => "it is new".to_owned(),
                    Some(port) if port == at => "it is known there".to_owned(),
                    Some(port) => format!("it moves from {}", self.name(port)),
                };
                trace_step(TraceStage::Learns, format!("{address} at {}: {before}", self.name(at)))
            }
            Step::LearnsNothing(address) => {
                trace_step(TraceStage::Learns, format!("nothing: {address}, its source, is a group's address"))
            }
            Step::Reserved(address) => {
                trace_step(TraceStage::LookedUp, format!("{address} is for the next bridge: it goes no further"))
            }
            Step::Found(port) => {
                trace_step(TraceStage::LookedUp, format!("its destination was heard at {}", self.name(port)))
            }
            Step::Floods { kind, goes } => {
                let (what, limit) = match kind {
                    Reason::BroadcastStorm => ("a broadcast", policy.storm.broadcast),
                    Reason::MulticastStorm => ("a group's address", policy.storm.multicast),
                    _ => ("not known", policy.storm.unknown),
                };
                let storm = match (limit, goes) {
                    (None, _) => String::new(),
                    (Some(limit), true) => format!("; storm control ({limit}/s) lets it through"),
                    (Some(limit), false) => format!("; storm control ({limit}/s) refuses it"),
                };
                trace_step(TraceStage::LookedUp, format!("its destination is {what}: to all ports of the VLAN{storm}"))
            }
            Step::Snooped { report: true } => trace_step(
                TraceStage::LookedUp,
                "it is a report, or could be: of ports with snooping to routers' alone".to_owned(),
            ),
            Step::Snooped { report: false } => trace_step(
                TraceStage::LookedUp,
                "the group is known: of ports with snooping to its members' and routers' alone".to_owned(),
            ),
            Step::Receiver(..) => return None,
        })
    }

    fn passes_by(&self, reason: Reason, ports: &[PortId]) -> TraceStep {
        let mut names = ports.iter().take(NAMES_MAX).map(|port| self.name(*port)).collect::<Vec<_>>().join(", ");
        if ports.len() > NAMES_MAX {
            names.push_str(&format!(" and {} more", ports.len() - NAMES_MAX));
        }
        let why = match reason {
            Reason::Vlan => "not in this VLAN",
            Reason::NoReceiver => "nobody there has joined the group",
            Reason::PrivateVlan => "of another part of the private VLAN",
            Reason::MacChanged => "its destination is not an address of the port (MAC changes are rejected)",
            other => other.name(),
        };
        trace_step(TraceStage::PassesBy, format!("{names}: {why}"))
    }

    fn delivered(&self, port: PortId, edit: Edit, prospect: &Prospect) -> TraceStep {
        let view = self.view(port);
        let is_uplink = view.is_some_and(|view| view.spec.is_none());
        let edit = match edit {
            Edit::Keep => String::new(),
            Edit::Untag => ", its tag taken out".to_owned(),
            Edit::Tag(tag) => format!(", {tag} put in"),
            Edit::Retag(tag) => format!(", {tag} in place of its own"),
        };
        let shape = view.and_then(|view| view.policy.receive).filter(|_| !is_uplink);
        let what = match (prospect, shape) {
            (Prospect::Offered { .. }, _) if is_uplink => "it goes out".to_owned(),
            (Prospect::Offered { driven: false }, _) => {
                "the guest's driver has not started the adapter, which takes nothing".to_owned()
            }
            (Prospect::Offered { driven: true }, None) => "its adapter gets it, and has filters of its own".to_owned(),
            (Prospect::Offered { driven: true }, Some(shape)) => {
                format!("its bucket has tokens ({shape}); its adapter gets it, and has filters of its own")
            }
            (Prospect::Waits(0), shape) => {
                let shape = shape.map(|shape| format!(" ({shape})")).unwrap_or_default();
                format!("it waits in the receive buffer: the bucket is empty{shape}")
            }
            (Prospect::Waits(others), _) => format!("it waits in the receive buffer, behind {others}"),
            (Prospect::Dropped(reason), _) => format!("dropped there: {}", reason.name()),
        };
        trace_step(TraceStage::Delivered, format!("to {}{edit}: {what}", self.name(port)))
    }
}

fn trace_step(stage: TraceStage, what: String) -> TraceStep {
    TraceStep { stage, what }
}

/// The enabled guards, by the host file's keys.
fn guards(policy: &Policy) -> Vec<&'static str> {
    let guards = policy.guards;
    [
        (guards.bpdu, "bpdu_guard"),
        (guards.dhcp_server, "dhcp_guard"),
        (guards.arp, "arp_guard"),
        (guards.router_advertisement, "ra_guard"),
        (guards.multicast_router, "multicast_router_guard"),
        (policy.mtu.is_some(), "mtu_limit"),
    ]
    .into_iter()
    .filter_map(|(on, name)| on.then_some(name))
    .collect()
}

/// A VLAN by its filtering identifier.
pub(crate) fn vlan(fid: u16) -> String {
    match fid {
        0 => "the flat network".to_owned(),
        fid if fid >= SERVICE => format!("service VLAN {}", fid - SERVICE),
        fid => format!("VLAN {fid}"),
    }
}

fn kind(vlan: &Vlan) -> String {
    match vlan {
        Vlan::Flat => "without VLANs".to_owned(),
        Vlan::Access(id) => format!("an access port of VLAN {id}"),
        Vlan::Trunk { allowed, native: None } => format!("a trunk of {allowed}"),
        Vlan::Trunk { allowed, native: Some(native) } => format!("a trunk of {allowed}, native {native}"),
        Vlan::Service(id) => format!("a customer's port of service VLAN {id}"),
    }
}

/// `60 bytes, 52:54:00:12:34:01 → ff:ff:ff:ff:ff:ff, VLAN tag 10, ARP`
fn frame_words(frame: &[u8]) -> String {
    let bytes = frame.len();
    let Some([a, b, c, d, e, f, g, h, i, j, k, l]) = frame.first_chunk() else { return count(bytes as u64, "byte") };
    let (target, source) = (Mac([*a, *b, *c, *d, *e, *f]), Mac([*g, *h, *i, *j, *k, *l]));
    let layout = Layout::parse(frame);
    let tags: String = layout.tags.iter().flatten().map(|tag| format!(", VLAN {tag}")).collect();
    let kind = match (layout.ethertype, layout.l4.map(|l4| l4.kind)) {
        (ethertype::IPV4, Some(L4Kind::Tcp)) | (ethertype::IPV6, Some(L4Kind::Tcp)) => "TCP".to_owned(),
        (ethertype::IPV4, Some(L4Kind::Udp)) | (ethertype::IPV6, Some(L4Kind::Udp)) => "UDP".to_owned(),
        (ethertype::IPV4, None) => "IPv4".to_owned(),
        (ethertype::IPV6, None) => "IPv6".to_owned(),
        (ethertype::ARP, _) => "ARP".to_owned(),
        (other, _) if other < TYPE_MIN => "without a type".to_owned(),
        (other, _) => format!("type {other:#06x}"),
    };
    format!("{bytes} bytes, {source} → {target}{tags}, {kind}")
}
