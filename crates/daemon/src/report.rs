//! The reports of a running daemon for `nicety ports` and the control socket.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use nicety_adapter::trace::{Region, RegisterName};
use nicety_adapter::{ErrorPlace, GuestError, NotedError, QUEUES, QueueCounters, Reason};
use nicety_plane::State;
use nicety_switch::{Interest, Wanted};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::daemon::PortView;
use crate::host::{Role, policy_words};
use crate::sharing::{Memory, SHARE_MEMORY};
use crate::trace::vlan;

/// The condition of a port, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// No VM has connected; or the uplink has no peer.
    Waiting,
    /// A VM is attached; its driver has not started the adapter.
    Attached,
    /// The guest's driver, or the uplink, works.
    Up,
    /// Its state was saved, and it is stopped.
    Saved,
    /// It, or one of its queues, cannot work: the sentence says what to do.
    Broken,
    /// It has failed by a defect of the daemon; it passes no frames any more.
    Failed,
}

/// One queue, one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueReport {
    /// Its number.
    pub queue: usize,
    /// Packets as the guest sees them: one TSO packet is one.
    pub packets: u64,
    /// Frames as the wire would see them.
    pub frames: u64,
    /// Bytes, without frame check sequences.
    pub bytes: u64,
}

/// How a port was made, beside its adapter, address and socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeOf {
    /// The maximum of queue pairs; nothing if the adapter chose.
    pub queues: Option<u16>,
    /// The largest MTU in bytes; nothing if there is no limit.
    pub mtu: Option<u16>,
    /// Whether it has an option ROM.
    pub rom: bool,
    /// Whether its PCI subsystem is VMware's.
    #[serde(default)]
    pub vmware_subsystem: bool,
    /// Whether it stands by for another port of the same VM.
    #[serde(default)]
    pub standby: bool,
    /// Whether it listens at its socket, or connects to the VMM that does.
    #[serde(default)]
    pub role: Role,
    /// Whether its doorbells are mapped.
    pub mapped: bool,
    /// Its receive buffer in bytes.
    pub buffer: u32,
    /// Who may connect: `group libvirt-qemu, mode 0660`; empty if it is the daemon that connects, or does not say.
    #[serde(default)]
    pub access: String,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Its adapter; nothing for an uplink.
    pub adapter: Option<String>,
    /// Its address; nothing for an uplink.
    pub mac: Option<String>,
    /// Where a VMM connects, or listens; nothing for an uplink.
    #[schema(value_type = Option<String>)]
    pub socket: Option<PathBuf>,
    /// The rest of its configuration; nothing for an uplink.
    pub made_of: Option<MadeOf>,
    /// Its port group, if it is in one.
    #[serde(default)]
    pub port_group: Option<String>,
    /// Where its policy differs from the default: the host file's keys and their values, its group's included.
    #[serde(default)]
    pub policy: BTreeMap<String, String>,
    /// The multicasts that it is sent, if ports are snooped: `239.1.2.3 (VLAN 10)`, `all of VLAN 10 (a router is there)`, `all`.
    #[serde(default)]
    pub multicasts: Vec<String>,
    /// Who is at its other end, as LLDP says: `core1, port 1/1`.
    #[serde(default)]
    pub neighbour: Option<String>,
    /// How it is.
    pub condition: Condition,
    /// The same in a sentence, with what to do if something is wrong.
    pub sentence: String,
    /// When and why the last VMM was disconnected, in the words of the log; nothing if a later VMM closed its connection by itself.
    pub last_end: Option<String>,
    /// The features that the guest's driver has enabled.
    pub features: Vec<String>,
    /// Guest → wire, by queue; unused queues are left out.
    pub transmit: Vec<QueueReport>,
    /// Wire → guest, by queue; unused queues are left out.
    pub receive: Vec<QueueReport>,
    /// Dropped frames from this port, by reason.
    pub transmit_drops: BTreeMap<String, u64>,
    /// Frames for this port that did not reach its guest, by reason.
    pub receive_drops: BTreeMap<String, u64>,
    /// Interrupts that the adapter raised.
    pub interrupts: u64,
    /// Interrupt descriptors that were written.
    pub signals: u64,
    /// Register reads by the guest.
    pub register_reads: u64,
    /// Register writes by the guest.
    pub register_writes: u64,
    /// Accesses of a wrong width, to a hole, or while the adapter was not in D0.
    pub bad_accesses: u64,
    /// Protocol violations by the guest's driver.
    pub guest_errors: u64,
    /// The last protocol violations and bad accesses, oldest first: at most 32. Only in the report of a single port.
    #[serde(default)]
    pub last_guest_errors: Vec<GuestErrorReport>,
    /// Frames in the receive buffer.
    pub backlog_frames: u64,
    /// Bytes of the receive buffer in use.
    pub backlog_bytes: u64,
    /// Bytes of the VM's memory that the daemon's writes touched first: the daemon's memory control group pays for them.
    #[serde(default)]
    pub allocated_bytes: u64,
}

/// A mistake of the guest's driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestErrorReport {
    /// Its number, from 1: of several equal ones in a row, the last one's.
    pub number: u64,
    /// Its time in microseconds since the daemon's start, as in a trace.
    pub microseconds: u64,
    /// Its time in milliseconds since 1970-01-01 00:00 UTC.
    pub unix_milliseconds: u64,
    /// How many came in a row with the same place, value and expectation.
    pub times: u64,
    /// The register and its offset, the access, or the queue and the descriptor's index.
    pub place: String,
    /// The value found there, in hexadecimal; nothing for a read.
    pub value: Option<String>,
    /// What the device expected, in the words of its data sheet.
    pub expected: String,
}

impl GuestErrorReport {
    /// The report of a noted error. `register` names the register at an offset, `epoch` is the start of the daemon's clock.
    fn of(
        noted: &NotedError,
        register: impl Fn(Region, u64) -> Option<RegisterName>,
        epoch: Duration,
    ) -> GuestErrorReport {
        let NotedError { number, at, times, error: GuestError { place, value, expected } } = *noted;
        let (mut named, mut found) = (place.to_string(), Some(format!("{value:#x}")));
        if let ErrorPlace::Access { write, region, offset, .. } = place {
            found = found.filter(|_| write);
            if let Some(name) = register(region, offset) {
                named = format!("{named} ({name})");
            }
        }
        let wall = epoch + Duration::from_nanos(at.0);
        GuestErrorReport {
            number,
            microseconds: at.0 / 1_000,
            unix_milliseconds: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
            times,
            place: named,
            value: found,
            expected: expected.to_owned(),
        }
    }
}

/// One address that the switch has learned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressReport {
    /// The address.
    pub address: String,
    /// The port that last sent from it.
    pub port: String,
    /// How many seconds ago.
    pub silent_seconds: u64,
}

/// The condition of a port, and the sentence that explains it.
///
/// `blank`: the VM's shared memory was empty when the driver was up, without even a ring. Then QEMU has mapped it privately
/// (`share=off`), and the driver's writes go to private pages. If the VM has sent a frame all the same, the memory is shared.
pub fn condition(name: &str, state: &State, blank: bool, memory: Memory, is_uplink: bool) -> (Condition, String) {
    if let Some(cause) = &state.failed {
        let sentence =
            format!("a defect in the daemon ended this port, and the log has the backtrace: report it ({cause})");
        return (Condition::Failed, sentence);
    }
    if is_uplink {
        return match &state.vacant {
            Some(why) => (Condition::Waiting, why.clone()),
            None => (Condition::Up, "the way out of the switch".to_owned()),
        };
    }
    if !state.attached {
        let sentence = format!("waits for a VM: `nicety attach {name}` says how to start one");
        return (Condition::Waiting, sentence);
    }
    if state.stopped {
        let sentence = format!(
            "its state was saved, and it stands still until its VMM goes; `nicety port restore {name} FILE` lets it go on"
        );
        return (Condition::Saved, sentence);
    }
    if state.damaged {
        let sentence =
            "the VMM has taken away memory that it had shared: restart the VM, and leave its memory file alone";
        return (Condition::Broken, sentence.to_owned());
    }
    if memory.is_unshared(state) || (memory != Memory::Unused && blank && state.sent == 0) {
        return (Condition::Broken, SHARE_MEMORY.to_owned());
    }
    if let [stall, more @ ..] = state.stalls.as_slice() {
        let all =
            if more.is_empty() { String::new() } else { format!("; {} queues stand still in all", more.len() + 1) };
        return (Condition::Broken, format!("{stall}{all}"));
    }
    if !state.driven {
        return (Condition::Attached, "a VM is attached; its driver has not started the adapter".to_owned());
    }
    if memory.is_empty(state) {
        let sentence = "its driver is up, but no memory is mapped for the adapter: in the VM's IOMMU the driver has mapped none yet";
        return (Condition::Attached, sentence.to_owned());
    }
    if state.held {
        return (
            Condition::Up,
            "its driver is up; what it sends waits in the guest, for the uplink is full".to_owned(),
        );
    }
    (Condition::Up, "a VM is attached, and its driver is up".to_owned())
}

fn queues(counters: &[QueueCounters; QUEUES]) -> Vec<QueueReport> {
    let used = counters.iter().enumerate().filter(|(_, counters)| counters.packets > 0);
    used.map(|(queue, &QueueCounters { packets, frames, bytes })| QueueReport { queue, packets, frames, bytes })
        .collect()
}

fn drops(counters: &[u64; Reason::ALL.len()]) -> BTreeMap<String, u64> {
    let all = Reason::ALL.iter().zip(counters);
    all.filter(|(_, count)| **count > 0).map(|(reason, &count)| (reason.name().to_owned(), count)).collect()
}

/// A duration in words.
fn rounded(span: Duration) -> String {
    match span.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// A group of multicasts that a port gets, with its VLAN.
fn multicast(wanted: &Wanted) -> String {
    let vlan = vlan(wanted.fid);
    match wanted.interest {
        Interest::Group(group) => format!("{group} ({vlan})"),
        Interest::Router => format!("all of {vlan} (a router is there)"),
        Interest::Everything => "all".to_owned(),
    }
}

impl PortReport {
    /// The report of a port.
    pub fn of(view: &PortView) -> Self {
        let PortView { spec, name, id: _, policy, wanted, neighbour, state, signals, blank, last_end, absence, epoch } =
            view;
        let memory = spec.as_ref().map_or(Memory::Unused, |spec| Memory::of(spec.entry.about));
        let (condition, mut sentence) = condition(name, state, *blank, memory, spec.is_none());
        let connects = spec.as_ref().filter(|spec| spec.role == Role::Connect);
        if let (Condition::Waiting, Some(spec)) = (condition, connects) {
            let absence = absence.clone().unwrap_or_else(|| format!("connecting to {}", spec.socket.display()));
            sentence = format!("{absence}; `nicety attach {name}` says how to start a VM that listens there");
        }
        let last_end = last_end.as_ref().map(|(ago, why)| format!("{} ago: {why}", rounded(*ago)));
        if let (Condition::Waiting, Some(last_end)) = (condition, &last_end) {
            sentence = format!("{sentence}; {last_end}");
        }
        let counters = &state.counters;
        let register = |region, offset| spec.as_ref().and_then(|spec| (spec.entry.register)(region, offset));
        Self {
            name: name.clone(),
            adapter: spec.as_ref().map(|spec| spec.entry.about.name.to_owned()),
            mac: spec.as_ref().map(|spec| spec.settings.mac.to_string()),
            socket: spec.as_ref().map(|spec| spec.socket.clone()),
            made_of: spec.as_ref().map(|spec| MadeOf {
                queues: spec.settings.queues,
                mtu: spec.settings.mtu,
                rom: spec.settings.rom.is_some(),
                vmware_subsystem: spec.settings.subsystem.is_some(),
                standby: spec.settings.standby,
                role: spec.role,
                mapped: spec.mapped,
                buffer: spec.buffer_bytes,
                access: if spec.role == Role::Listen { spec.access.to_string() } else { String::new() },
            }),
            port_group: spec.as_ref().and_then(|spec| spec.group.clone()),
            policy: policy_words(policy),
            neighbour: neighbour.as_ref().map(|neighbour| format!("{}, port {}", neighbour.system, neighbour.port)),
            multicasts: wanted.iter().map(multicast).collect(),
            condition,
            sentence,
            last_end,
            features: state.features.iter().map(|&feature| feature.to_owned()).collect(),
            transmit: queues(&counters.transmit),
            receive: queues(&counters.receive),
            transmit_drops: drops(&counters.transmit_drops),
            receive_drops: drops(&counters.receive_drops),
            interrupts: counters.interrupts,
            signals: *signals,
            register_reads: counters.reads,
            register_writes: counters.writes,
            bad_accesses: counters.bad_accesses(),
            guest_errors: counters.guest_errors(),
            last_guest_errors: counters
                .errors()
                .iter()
                .map(|noted| GuestErrorReport::of(noted, register, *epoch))
                .collect(),
            backlog_frames: state.backlog_frames as u64,
            backlog_bytes: state.backlog_bytes,
            allocated_bytes: state.allocated_bytes,
        }
    }
}

#[cfg(test)]
#[path = "report_test.rs"]
mod tests;
