//! The reports of a running daemon for `nicety ports` and the control socket.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use nicety_adapter::trace::{Region, RegisterName};
use nicety_adapter::{ErrorPlace, GuestError, NotedError, QUEUES, QueueCounters, Reason, count};
use nicety_host::{FunctionConfig, LinkState, MirrorConfig, PortConfig, Role, Transport, policy_words};
use nicety_memory::Refusal;
use nicety_plane::{ClassState, Loop, MemberState, State};
use nicety_switch::{Interest, Wanted};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::daemon::{MemberViews, PortSpec, PortView};
use crate::observe::trace::vlan;
use crate::sharing::{Memory, SHARE_MEMORY};

/// The condition of a port, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// No VM is connected, or the uplink has no peer.
    Waiting,
    /// A VM is attached; its driver has not started the adapter.
    Attached,
    /// The guest's driver, or the uplink, works.
    Up,
    /// Its state was saved. It stands still until it is restored, or its VM disconnects.
    Saved,
    /// The port, or one of its queues, cannot work. The sentence says what to do.
    Broken,
    /// A defect of the daemon has ended the port. It passes no frames.
    Failed,
    /// The uplink, the team, or the port of a fabric's group carries nothing until it is told to. The sentence says how.
    Blocked,
}

/// Traffic of one queue in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueReport {
    /// Number of the queue, from 0.
    pub queue: usize,
    /// Packets as the guest sees them. A TSO packet counts once.
    pub packets: u64,
    /// Frames as a wire would carry them. A TSO packet counts as many frames.
    pub frames: u64,
    /// Bytes, without frame check sequences.
    pub bytes: u64,
}

/// Configuration of a port, beside its adapter, address and socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeOf {
    /// Maximum of queue pairs. `null`: the adapter's default.
    pub queues: Option<u16>,
    /// MTU in bytes that the adapter announces. `null`: none.
    pub mtu: Option<u16>,
    /// Whether the adapter has an option ROM.
    pub rom: bool,
    /// Whether the adapter's PCI subsystem is VMware's.
    #[serde(default)]
    pub vmware_subsystem: bool,
    /// Whether the adapter stands by for another one of the same VM.
    #[serde(default)]
    pub standby: bool,
    /// Whether the port's state goes with a guest that a VMM moves.
    #[serde(default)]
    pub device_state: bool,
    /// Whether the port listens at its socket, or connects to the VMM that listens there.
    #[serde(default)]
    pub role: Role,
    /// Whether the adapter's doorbells are mapped into the guest.
    pub mapped: bool,
    /// Size of the receive buffer in bytes.
    pub buffer: u32,
    /// Users who may connect, such as `group libvirt-qemu, mode 0660`. Empty if the daemon connects.
    #[serde(default)]
    pub access: String,
}

impl MadeOf {
    fn of(spec: &PortSpec) -> Self {
        let config = &spec.config;
        Self {
            queues: config.queues,
            mtu: config.mtu,
            rom: spec.rom.is_some(),
            vmware_subsystem: config.is_vmwares,
            standby: config.standby,
            device_state: config.device_state && config.transport() == Transport::VhostUser,
            role: config.role,
            mapped: spec.is_mapped(),
            buffer: spec.buffer_bytes(),
            access: if config.role == Role::Listen { spec.access.to_string() } else { String::new() },
        }
    }
}

/// The place of a port on a card, and what the host lets its function do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionReport {
    /// Name of the card.
    pub card: String,
    /// Number of the function, from 0.
    pub function: u16,
    /// Whether it may change its address, have more of them, and receive all multicast frames.
    pub trust: bool,
    /// Whether it may send only from its own address, unless it is trusted.
    pub spoofchk: bool,
    /// Its link: `auto` is the card's, `enable` is up, `disable` is down.
    pub link_state: String,
    /// Whether its driver may ask how frames are spread over its queues.
    pub query_rss: bool,
    /// At least this rate of the card's uplink. `null`: no promise.
    #[serde(default)]
    pub min_rate: Option<String>,
}

impl FunctionReport {
    fn of(function: &FunctionConfig, link: LinkState) -> Self {
        let FunctionConfig { card, number, trusted, checks_source, queries_rss, is_vepa: _, min_rate } = function;
        Self {
            card: card.clone(),
            function: *number,
            trust: *trusted,
            spoofchk: *checks_source,
            link_state: link.word().to_owned(),
            query_rss: *queries_rss,
            min_rate: min_rate.map(|rate| rate.to_string()),
        }
    }
}

/// A member of a team of uplinks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberReport {
    /// Name of the uplink.
    pub uplink: String,
    /// Whether frames that come in by it are taken.
    pub collects: bool,
    /// Whether frames leave by it.
    pub distributes: bool,
    /// Its state in a few words: `active`, `stands by`, `no carrier`, and of LACP the partner.
    pub state: String,
}

/// A class of an uplink with I/O control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClassReport {
    /// Name of the class.
    pub name: String,
    /// Packets that left. A segmented packet counts once.
    pub packets: u64,
    /// Bytes that left, with the headers of all segments.
    pub bytes: u64,
    /// Packets that wait.
    pub waiting: u64,
    /// Packets that were dropped because no room was left, or, of what comes in, to tell their sender of congestion.
    pub dropped: u64,
    /// Packets that came in and whose sender was told of congestion by a mark (ECN).
    #[serde(default)]
    pub marked: u64,
}

impl ClassReport {
    fn of(state: &ClassState) -> Self {
        let ClassState { name, packets, bytes, dropped, waiting, marked } = state;
        Self {
            name: name.clone(),
            packets: *packets,
            bytes: *bytes,
            waiting: *waiting,
            dropped: *dropped,
            marked: *marked,
        }
    }
}

/// A mirror, at the port that gets its copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MirrorReport {
    /// Name of the mirror.
    pub name: String,
    /// Names of the ports, uplinks and teams whose frames it copies.
    pub of: Vec<String>,
    /// The frames that are copied: `ingress` come from these ports into the switch, `egress` go to them, `both`.
    pub direction: String,
    /// The most that it copies, such as `1Gbit/s`.
    pub rate: String,
}

impl MirrorReport {
    fn of(mirror: &MirrorConfig) -> Self {
        let MirrorConfig { name, ports, uplinks, direction, to: _, rate } = mirror;
        let (direction, rate) = (direction.word().to_owned(), rate.to_string());
        Self { name: name.clone(), of: ports.iter().chain(uplinks).cloned().collect(), direction, rate }
    }
}

/// State and counters of a port, an uplink or a team of uplinks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortReport {
    /// Name of the port or uplink.
    pub name: String,
    /// Name of the adapter. `null`: an uplink.
    pub adapter: Option<String>,
    /// MAC address. `null`: an uplink.
    pub mac: Option<String>,
    /// Path of the socket at which a VMM connects, or listens. `null`: an uplink.
    #[schema(value_type = Option<String>)]
    pub socket: Option<PathBuf>,
    /// Further configuration. `null`: an uplink.
    pub made_of: Option<MadeOf>,
    /// Name of the port group. `null`: none.
    #[serde(default)]
    pub port_group: Option<String>,
    /// Its place on a card. `null`: it is no function of one.
    #[serde(default)]
    pub function: Option<FunctionReport>,
    /// Program that has made the port for a VM, such as a hook. `null`: a person has.
    #[serde(default)]
    pub origin: Option<String>,
    /// Keys of the policy that differ from the default, and their values, as in the host file: a group's too, of a port that is no function
    /// `link_state`, and of an uplink its rates, `lldp` and `queues`.
    #[serde(default)]
    pub policy: BTreeMap<String, String>,
    /// Multicast groups that the port gets, if the switch snoops: `239.1.2.3 (VLAN 10)`, `all of VLAN 10 (a router is there)`, `all`.
    #[serde(default)]
    pub multicasts: Vec<String>,
    /// Neighbour that announces itself by LLDP, such as `core1, port 1/1`. `null`: unknown.
    #[serde(default)]
    pub neighbour: Option<String>,
    /// Workers that serve it, from 0: queue pair N is served by the one at place N modulo their number. Empty: it is a team.
    #[serde(default)]
    pub workers: Vec<usize>,
    /// Members of a team of uplinks. `null`: it is none.
    #[serde(default)]
    pub members: Option<Vec<MemberReport>>,
    /// Classes of an uplink with I/O control, or of a team: the sums of its members'. Empty: it has none.
    #[serde(default)]
    pub io_classes: Vec<ClassReport>,
    /// Classes of what comes in by an uplink with `inward_rate`. Empty: it has none.
    #[serde(default)]
    pub inward_classes: Vec<ClassReport>,
    /// Mirror whose copies it gets, and nothing else. `null`: it is no mirror's port.
    #[serde(default)]
    pub mirror: Option<MirrorReport>,
    /// Ports and uplinks that get copies of its frames.
    #[serde(default)]
    pub mirrored_to: Vec<String>,
    /// Reason why its VM would lose its adapter if the daemon were killed now. `null`: it would not, or there is no keeper.
    #[serde(default)]
    pub not_kept: Option<String>,
    /// Condition of the port, in a word.
    pub condition: Condition,
    /// Condition in a sentence, with a remedy if something is wrong.
    pub sentence: String,
    /// When and why the last VMM was disconnected, in the words of the log. `null`: it disconnected by itself.
    pub last_end: Option<String>,
    /// Features that the guest's driver has enabled.
    pub features: Vec<String>,
    /// Traffic from the guest, by queue. Unused queues are left out.
    pub transmit: Vec<QueueReport>,
    /// Traffic to the guest, by queue. Unused queues are left out.
    pub receive: Vec<QueueReport>,
    /// Dropped frames from the guest, by reason.
    pub transmit_drops: BTreeMap<String, u64>,
    /// Dropped frames for the guest, by reason.
    pub receive_drops: BTreeMap<String, u64>,
    /// Frames from the guest, or from beyond the uplink, that were for the switch itself: LACP, LLDP, a probe for loops. They are no drops.
    #[serde(default)]
    pub taken: u64,
    /// Interrupts that the adapter raised.
    pub interrupts: u64,
    /// Writes to interrupt descriptors.
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
    /// Reads of guest memory that the adapter was refused, because nothing is mapped there for it. Translations of a descriptor ring or
    /// a buffer count once.
    #[serde(default)]
    pub refused_dma_reads: u64,
    /// Writes of guest memory that the adapter was refused.
    #[serde(default)]
    pub refused_dma_writes: u64,
    /// The last of both. `null`: none was refused.
    #[serde(default)]
    pub last_refused_dma: Option<RefusedDmaReport>,
    /// Maps and unmaps of memory by its VMM. Behind an IOMMU, each mapping that the driver makes and takes back.
    #[serde(default)]
    pub memory_changes: u64,
    /// Frames in the receive buffer.
    pub backlog_frames: u64,
    /// Bytes of the receive buffer in use.
    pub backlog_bytes: u64,
    /// Bytes of the VM's memory that the daemon has touched first. They are charged to the daemon's memory control group.
    #[serde(default)]
    pub allocated_bytes: u64,
}

/// An access to guest memory that an adapter was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedDmaReport {
    /// `read`: from guest memory. `write`: to guest memory.
    pub direction: String,
    /// First bus address, in hexadecimal: behind an IOMMU a device address, not a physical one.
    pub address: String,
    /// Bytes.
    pub bytes: u32,
}

impl From<Refusal> for RefusedDmaReport {
    fn from(Refusal { address, len, write }: Refusal) -> Self {
        let direction = if write { "write" } else { "read" };
        Self { direction: direction.to_owned(), address: format!("{address:#x}"), bytes: len }
    }
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
    /// Number of errors in a row with this place, value and expectation.
    pub times: u64,
    /// The register and its offset, the access, or the queue and the descriptor's index.
    pub place: String,
    /// The value found there, in hexadecimal; nothing for a read.
    pub value: Option<String>,
    /// The device's expectation, in the words of its data sheet.
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

/// An address that the switch has learned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressReport {
    /// MAC address.
    pub address: String,
    /// Name of the port that last sent from this address.
    pub port: String,
    /// Seconds since a frame came from this address.
    pub silent_seconds: u64,
}

/// A guest that works takes its frames within this time, however busy it is.
const STARVED: Duration = Duration::from_secs(10);

/// The sentence of a guest's port that is up and lacks nothing.
pub const DRIVEN: &str = "a VM is attached, and its driver is up";

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
        return match (&state.vacant, &state.remark) {
            (Some(why), _) => (Condition::Waiting, why.clone()),
            (None, Some(remark)) => (Condition::Up, format!("the way out of the switch; {remark}")),
            (None, None) => (Condition::Up, "the way out of the switch".to_owned()),
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
    if let Some(why) = state.receive_block {
        return (Condition::Up, format!("its driver is up, but the adapter receives nothing: {why}"));
    }
    if state.misplaced > 0 && state.received == 0 {
        let sentence = format!(
            "its driver is up and has received nothing: {} for it {} dropped, because its receive buffers lie where no memory is or \
             have no length; its guest errors have the addresses",
            count(state.misplaced, "frame"),
            if state.misplaced == 1 { "was" } else { "were" }
        );
        return (Condition::Up, sentence);
    }
    if state.backlog_frames > 0 && state.received == 0 {
        let sentence =
            "its driver is up and has received nothing: frames wait, and it has posted no receive buffers for them";
        return (Condition::Up, sentence.to_owned());
    }
    if state.held {
        return (
            Condition::Up,
            "its driver is up; what it sends waits in the guest, for the uplink is full".to_owned(),
        );
    }
    (Condition::Up, DRIVEN.to_owned())
}

fn queues(counters: &[QueueCounters; QUEUES]) -> Vec<QueueReport> {
    let used = counters.iter().enumerate().filter(|(_, counters)| counters.packets > 0);
    used.map(|(queue, &QueueCounters { packets, frames, bytes })| QueueReport { queue, packets, frames, bytes })
        .collect()
}

fn drops(counters: &[u64; Reason::ALL.len()]) -> BTreeMap<String, u64> {
    let all = Reason::ALL.iter().zip(counters);
    all.filter(|(reason, count)| **count > 0 && **reason != Reason::Taken)
        .map(|(reason, &count)| (reason.name().to_owned(), count))
        .collect()
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

/// The condition of a port that is viewed, and the sentence that explains it.
pub fn condition_of(view: &PortView) -> (Condition, String) {
    let PortView { spec, name, state, blank, starved, members, in_loop, .. } = view;
    if view.blocked && state.failed.is_none() {
        return (Condition::Blocked, of_blocked(name, members.is_some(), in_loop.as_ref()));
    }
    let waits = spec.as_ref().filter(|spec| spec.config.waits_for_group && state.failed.is_none());
    if let Some(group) = waits.and_then(|spec| spec.config.group.as_deref()) {
        let sentence = format!(
            "its port group {group} is not known yet, and it carries nothing until the fabric has it: `nicety fabric status`"
        );
        return (Condition::Blocked, sentence);
    }
    let (condition, mut sentence) = unblocked(spec.as_ref(), name, state, *blank, members.as_ref());
    let is_starved = *starved >= STARVED && state.received > 0 && state.receive_block.is_none();
    if is_starved && spec.is_some() && condition == Condition::Up {
        let time = rounded(*starved);
        sentence = format!(
            "its driver is up, but frames have waited for {time}: it posts no receive buffers for them, or its guest stands still"
        );
    }
    match in_loop {
        Some(Loop { name, .. }) => {
            (condition, format!("{sentence}; {name} leads into the same network, and is blocked"))
        }
        None => (condition, sentence),
    }
}

/// A sentence with the command by which a blocked uplink or team carries frames again.
fn of_blocked(name: &str, is_team: bool, found: Option<&Loop>) -> String {
    let list = if is_team { "team" } else { "uplink" };
    let told = format!("`nicety {list} set {name} blocked=false`");
    match found {
        Some(Loop { other, spared: Some(what), .. }) => format!(
            "it leads into a network that {what} {other} carries, and frames went round, for another host has an uplink there, \
             too: keep one of these uplinks, and take the VLAN away from the others; this one carries nothing until {told}"
        ),
        Some(Loop { other, .. }) => format!(
            "it leads into the network of {other}, and frames went round: it carries nothing until {told}; part the two first"
        ),
        None if is_team => format!("it carries nothing until {told}"),
        None => format!("it carries nothing until {told}, or a team takes it"),
    }
}

fn unblocked(
    spec: Option<&PortSpec>,
    name: &str,
    state: &State,
    blank: bool,
    members: Option<&MemberViews>,
) -> (Condition, String) {
    if let Some(members) = members {
        return of_team(members);
    }
    let memory = spec.map_or(Memory::Unused, |spec| Memory::of(spec.config.entry.about));
    condition(name, state, blank, memory, spec.is_none())
}

/// The condition of a team, with a sentence about each member.
fn of_team(members: &MemberViews) -> (Condition, String) {
    let active = members.iter().filter(|(_, state)| state.distributes).count();
    let each: Vec<String> = members.iter().map(|(name, state)| format!("{name}: {}", state.words)).collect();
    let condition = if active > 0 { Condition::Up } else { Condition::Waiting };
    (
        condition,
        format!(
            "a way out of the switch by {active} of {}: {}",
            count(members.len() as u64, "uplink"),
            each.join("; ")
        ),
    )
}

impl MemberReport {
    fn of((uplink, state): &(String, MemberState)) -> Self {
        let MemberState { collects, distributes, words } = state.clone();
        Self { uplink: uplink.clone(), collects, distributes, state: words }
    }
}

/// The link of a port that is no function, if it is not the usual one.
fn link_word(config: &PortConfig) -> Option<(String, String)> {
    let is_shown = config.function.is_none() && config.link != LinkState::Auto;
    is_shown.then(|| ("link_state".to_owned(), config.link.word().to_owned()))
}

/// The sentence of a port, which ends with how its last connection ended if it waits.
fn sentence_of(view: &PortView, condition: Condition, sentence: String, last_end: Option<&String>) -> String {
    if condition != Condition::Waiting {
        return sentence;
    }
    let connects = view.spec.as_ref().filter(|spec| spec.config.role == Role::Connect);
    let sentence = connects.map_or(sentence, |spec| {
        let absence = || format!("connecting to {}", spec.config.socket.display());
        let absence = view.absence.clone().unwrap_or_else(absence);
        format!("{absence}; `nicety attach {}` says how to start a VM that listens there", view.name)
    });
    last_end.map_or_else(|| sentence.clone(), |last_end| format!("{sentence}; {last_end}"))
}

impl PortReport {
    /// The report of a port.
    pub fn of(view: &PortView) -> Self {
        let PortView {
            spec,
            name,
            id: _,
            policy,
            link,
            wanted,
            neighbour,
            state,
            signals,
            blank: _,
            starved: _,
            last_end,
            absence: _,
            epoch,
            workers,
            members,
            mirror,
            mirrored_by,
            not_kept,
            blocked: _,
            in_loop: _,
        } = view;
        let config = spec.as_ref().map(|spec| &spec.config);
        let last_end = last_end.as_ref().map(|(ago, why)| format!("{} ago: {why}", rounded(*ago)));
        let (condition, sentence) = condition_of(view);
        let sentence = sentence_of(view, condition, sentence, last_end.as_ref());
        let counters = &state.counters;
        let register = |region, offset| config.and_then(|config| (config.entry.register)(region, offset));
        Self {
            name: name.clone(),
            adapter: config.map(|config| config.entry.about.name.to_owned()),
            mac: config.map(|config| config.mac.to_string()),
            socket: config.map(|config| config.socket.clone()),
            made_of: spec.as_ref().map(MadeOf::of),
            port_group: config.and_then(|config| config.group.clone()),
            function: config.and_then(|config| Some(FunctionReport::of(config.function.as_ref()?, config.link))),
            origin: config.and_then(|config| config.origin.clone()),
            policy: policy_words(policy).into_iter().chain(link.clone()).chain(config.and_then(link_word)).collect(),
            neighbour: neighbour.as_ref().map(|neighbour| format!("{}, port {}", neighbour.system, neighbour.port)),
            multicasts: wanted.iter().map(multicast).collect(),
            workers: workers.clone(),
            members: members.as_ref().map(|members| members.iter().map(MemberReport::of).collect()),
            io_classes: state.classes.iter().map(ClassReport::of).collect(),
            inward_classes: state.inward_classes.iter().map(ClassReport::of).collect(),
            mirror: mirror.as_ref().map(MirrorReport::of),
            mirrored_to: mirrored_by.iter().map(|mirror| mirror.to.clone()).collect(),
            not_kept: not_kept.clone(),
            condition,
            sentence,
            last_end,
            // An adapter keeps its registers when its VMM has gone: these would be features of the last VM's driver.
            features: state.features.iter().filter(|_| state.attached).map(|&feature| feature.to_owned()).collect(),
            transmit: queues(&counters.transmit),
            receive: queues(&counters.receive),
            transmit_drops: drops(&counters.transmit_drops),
            receive_drops: drops(&counters.receive_drops),
            taken: counters.transmit_drops[Reason::Taken as usize],
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
            refused_dma_reads: state.refused.reads,
            refused_dma_writes: state.refused.writes,
            last_refused_dma: state.refused.last.map(RefusedDmaReport::from),
            memory_changes: state.memory_changes,
            backlog_frames: state.backlog_frames as u64,
            backlog_bytes: state.backlog_bytes,
            allocated_bytes: state.allocated_bytes,
        }
    }
}

#[cfg(test)]
#[path = "report_test.rs"]
mod tests;
