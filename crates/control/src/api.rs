//! The types of the control socket. The OpenAPI document at `/v1/openapi.json` is made from them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nicety_daemon::fabric::PlaceReport;
use nicety_daemon::flows::FlowExportReport;
use nicety_daemon::live::confirm::WaitingChange;
use nicety_daemon::live::plan::Change;
use nicety_daemon::live::{ChangeError, Changed};
use nicety_daemon::protection::{VmReport, Wish};
use nicety_daemon::report::{AddressReport, PortReport};
use nicety_host::{HostError, List};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A running daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DaemonView {
    /// The program's version and commit.
    pub program: String,
    /// The daemon's process identifier.
    pub pid: u32,
    /// Path of the host file that the daemon serves.
    #[schema(value_type = String)]
    pub host: PathBuf,
    /// Whether the daemon is still starting. Until it has started it shows no ports.
    pub starting: bool,
    /// Changed keys of the host file that take effect when the daemon is restarted, such as `daemon.workers`.
    #[serde(default)]
    pub after_restart: Vec<String>,
    /// The change that waits to be confirmed. `null`: none does.
    #[serde(default)]
    pub waiting: Option<WaitingChange>,
}

/// All ports and uplinks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortList {
    /// Path of the host file that the daemon serves.
    #[schema(value_type = String)]
    pub host: PathBuf,
    /// Uplinks first, then ports.
    pub ports: Vec<PortReport>,
}

/// The VMs that are copied to twins on other hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmList {
    /// The VMs of the host file, by name.
    pub vms: Vec<VmReport>,
}

/// The exports of flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowExportList {
    /// Those of the host file, in its order.
    pub flow_exports: Vec<FlowExportReport>,
}

/// The places of an address in the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlaceList {
    /// In each group that the daemon's host has ports in: the host and port that claim the address, several while it moves.
    pub places: Vec<PlaceReport>,
}

/// A wish for a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WishWord {
    /// Take a twin, if one is offered.
    Protect,
    /// End the protection, and take no twin.
    Stop,
    /// Have the twin go on with the VM.
    Failover,
}

impl From<WishWord> for Wish {
    fn from(word: WishWord) -> Self {
        match word {
            WishWord::Protect => Self::Protect,
            WishWord::Stop => Self::Stop,
            WishWord::Failover => Self::FailOver,
        }
    }
}

/// The addresses that the switch has learned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressList {
    /// At most 65,536 addresses, in no order.
    pub addresses: Vec<AddressReport>,
    /// Number of addresses that are left out.
    #[serde(default)]
    pub more: usize,
}

/// CPU time of the daemon's threads of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThreadReport {
    /// Name of the threads, such as `worker0` or `control`.
    pub name: String,
    /// CPU time in nanoseconds since the daemon started.
    pub cpu_ns: u64,
}

/// The daemon's threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThreadList {
    /// Sorted by name. Empty if the system does not count CPU time.
    pub threads: Vec<ThreadReport>,
}

/// A host file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostText {
    /// Text of the host file, in TOML.
    pub text: String,
    /// Absolute path of the host file. Relative paths in the text begin at its folder. If left out: the path of the daemon's own
    /// host file.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^/")]
    pub path: Option<PathBuf>,
    /// Lines of the plan that are allowed to cut VMs off. The request is refused if another line does.
    #[serde(default)]
    pub agreed: Vec<String>,
    /// Allow the whole plan to cut VMs off.
    #[serde(default)]
    pub cut_off: bool,
}

/// The running configuration as a host file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exported {
    /// Text of the host file, in TOML. All its paths are absolute.
    pub text: String,
}

/// The keys of a `[[port]]`, `[[port_group]]`, `[[uplink]]` or `[[card]]`, as the host file has them; a key that is null gets its default.
/// Their schemas are in `schemas.rs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PortValues(pub BTreeMap<String, serde_json::Value>);

/// The frames to capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Name of a port, an uplink or a port group; or `drops` for all dropped frames.
    pub of: String,
    /// Capture on this side of the switch only. If left out: on both.
    #[serde(default)]
    pub stage: Option<StageWord>,
    /// A program in classic BPF: code, jump if true, jump if false, and operand of each instruction. Frames for which it returns 0
    /// are left out. `tcpdump -ddd -y EN10MB EXPRESSION` prints one.
    #[serde(default)]
    #[schema(schema_with = super::schemas::filter)]
    pub filter: Option<Vec<(u16, u8, u8, u32)>>,
    /// Maximum bytes of each frame. If left out: all.
    #[serde(default)]
    pub snap: Option<u32>,
}

/// A frame to trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// Name of the port or uplink that the frame comes in from.
    pub port: String,
    /// Bytes of the frame in hexadecimal, from the destination address on, without the frame check sequence. At most 66,047 bytes.
    #[schema(pattern = "^([0-9a-fA-F]{2})+$", max_length = 132_094)]
    pub frame: String,
}

/// A side of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StageWord {
    /// Frames as they come in from a port.
    Ingress,
    /// Frames as they are offered to a port, with the switch's changes.
    Egress,
}

/// A program that is to replace the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// Its whole path. `null`: the path at which the running daemon was started.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub program: Option<PathBuf>,
    /// Ports that go on without their VMs, whose connections are closed. The refusal of an upgrade names a port whose VM is in the way,
    /// and what that VM would lose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
}

/// A port that was restarted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Restarted {
    /// Name of the port.
    pub name: String,
}

/// A card that was reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CardReset {
    /// Name of the card.
    pub name: String,
}

/// A port that was restored, and works on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Restored {
    /// Name of the port.
    pub name: String,
}

/// A mistake in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mistake {
    /// Line of the mistake in the text of the host file, counted from 1. It is 0 if the request has no such text.
    pub line: usize,
    /// Entry that has the mistake, such as `port vm1`. Empty if the request has the text of a host file.
    #[serde(default)]
    pub of: String,
    /// Key that has the mistake, such as `port.adapter`.
    pub key: String,
    /// Description of the mistake.
    pub what: String,
    /// Allowed values of the key.
    pub allowed: String,
}

impl From<&HostError> for Mistake {
    fn from(HostError { line, of, key, what, allowed }: &HostError) -> Self {
        let (of, key) = (of.clone(), key.clone());
        Self { line: *line, of, key, what: what.clone(), allowed: allowed.clone() }
    }
}

/// The reason why a request failed (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Kind of problem, as a relative reference such as `/v1/problems/no-such-port`.
    pub r#type: String,
    /// Kind of problem, in a few words.
    pub title: String,
    /// HTTP status code of the answer.
    pub status: u16,
    /// Description of this problem for a person.
    pub detail: String,
    /// Mistakes in the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<Mistake>,
    /// Lines of the plan that would cut VMs off. Send them in `agreed` to allow it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts_off: Vec<String>,
    /// Changes that were made before the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<Box<Changed>>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}

/// A kind of problem: status code, end of the type, title.
type Kind = (u16, &'static str, &'static str);

/// The request is malformed.
pub(super) const MALFORMED: Kind = (400, "malformed-request", "the request is not what this daemon understands");
/// The user may only read.
pub(super) const FORBIDDEN: Kind = (403, "may-only-read", "this user may read, and not change");
/// There is no such port.
pub(super) const NO_SUCH_PORT: Kind = (404, "no-such-port", "there is no port of this name");
/// There is no such group or uplink.
pub(super) const NO_SUCH: Kind = (404, "no-such", "there is none of this name");
/// There is nothing at this path.
pub(super) const NOT_FOUND: Kind = (404, "not-found", "there is nothing at this path");
/// The path exists, but not for this method.
pub(super) const NOT_ALLOWED: Kind = (405, "method-not-allowed", "this cannot be done with what is at this path");
/// The name is taken.
pub(super) const EXISTS: Kind = (409, "port-exists", "there is a port of this name already");
/// VMs would lose something.
pub(super) const CUTS_OFF: Kind = (409, "cuts-off", "VMs would be cut off");
/// A restart of a port that works.
pub(super) const NOT_RESTARTED: Kind = (409, "not-restarted", "the port was not restarted");
/// A VM whose protection cannot be as is wanted.
pub(super) const NOT_PROTECTED: Kind = (409, "not-protected", "the VM's protection is not as wanted");
/// The daemon was not replaced.
pub(super) const NOT_UPGRADED: Kind = (409, "not-upgraded", "the daemon was not upgraded");
/// A port that cannot be saved or restored now.
pub(super) const NOT_SAVED: Kind = (409, "not-saved", "the port was neither saved nor restored");
/// The limit of captures is reached.
pub(super) const TOO_MANY: Kind = (409, "too-many-captures", "there are as many captures as there may be");
/// Another change waits to be confirmed.
pub(super) const WAITS: Kind = (409, "change-waits", "another change waits to be confirmed");
/// There is nothing to confirm.
pub(super) const NOTHING_WAITS: Kind = (409, "nothing-waits", "no change waits to be confirmed");
/// The change that waits stands.
pub(super) const NOT_UNDONE: Kind = (409, "not-undone", "the change was not undone");
/// The change is impossible.
pub(super) const REFUSED: Kind = (409, "refused", "it cannot be done");
/// This machine lacks something: a folder, a file, an account, a free socket.
pub(super) const LACKING: Kind = (409, "lacking", "this machine lacks what it needs");
/// The body did not arrive in time.
pub(super) const TOO_LATE: Kind = (408, "too-late", "the request was not whole in time");
/// The body is too large.
pub(super) const TOO_LARGE: Kind = (413, "too-large", "the request's body is too large");
/// The result is not a valid host file.
pub(super) const WRONG: Kind = (422, "wrong-values", "it makes no host file");
/// The body is not a state of this port.
pub(super) const NO_STATE: Kind = (422, "no-state", "it is no state of this port");
/// Only a part was done.
pub(super) const HALFWAY: Kind = (500, "halfway", "not all was done");
/// The daemon is parsing another host file or state.
pub(super) const BUSY: Kind = (503, "busy", "the daemon is busy with another host file or state");
/// The system's databases of accounts answer late: nsswitch.conf(5) lists them.
pub(super) const GROUPS_UNKNOWN: Kind = (503, "groups-unknown", "the user's groups are not known now");
/// The daemon is starting.
pub(super) const STARTING: Kind = (503, "starting", "the daemon is still starting");

impl Problem {
    pub(super) fn new((status, kind, title): Kind, detail: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            r#type: format!("/v1/problems/{kind}"),
            title: title.to_owned(),
            status,
            detail: detail.into(),
            mistakes: Vec::new(),
            cuts_off: Vec::new(),
            changed: None,
        })
    }

    /// Whether the request was valid, and something else prevented the change.
    pub fn is_right(&self) -> bool {
        let prevented =
            [LACKING, TOO_MANY, NOT_UPGRADED, NOT_PROTECTED, WAITS, NOTHING_WAITS, NOT_UNDONE].map(|(_, kind, _)| kind);
        prevented.iter().any(|kind| self.r#type.ends_with(kind))
    }

    /// Whether another client has added or removed this port meanwhile.
    pub fn is_overtaken(&self) -> bool {
        [EXISTS.1, NO_SUCH_PORT.1].iter().any(|kind| self.r#type.ends_with(kind))
    }

    /// Whether another change waits to be confirmed, and this one may be made when that is over.
    pub fn is_waiting(&self) -> bool {
        self.r#type.ends_with(WAITS.1)
    }

    /// Whether the daemon is still starting.
    pub fn is_starting(&self) -> bool {
        self.r#type.ends_with(STARTING.1)
    }
}

impl From<ChangeError> for Box<Problem> {
    fn from(error: ChangeError) -> Self {
        let detail = error.to_string();
        match error {
            ChangeError::Missing(List::Ports, ..) => Problem::new(NO_SUCH_PORT, detail),
            ChangeError::Missing(..) => Problem::new(NO_SUCH, detail),
            ChangeError::Exists(..) => Problem::new(EXISTS, detail),
            ChangeError::Wrong(errors) => {
                let mut problem = Problem::new(WRONG, detail);
                problem.mistakes = errors.list.iter().map(Mistake::from).collect();
                problem
            }
            ChangeError::CutsOff(changes) => {
                let mut problem = Problem::new(CUTS_OFF, detail);
                problem.cuts_off = changes.iter().map(Change::to_string).collect();
                problem
            }
            ChangeError::Refused(_) => Problem::new(REFUSED, detail),
            ChangeError::Lacking(_) => Problem::new(LACKING, detail),
            ChangeError::Waits(_) => Problem::new(WAITS, detail),
            ChangeError::NothingWaits(_) => Problem::new(NOTHING_WAITS, detail),
            ChangeError::NotUndone(_) => Problem::new(NOT_UNDONE, detail),
            ChangeError::UndoneBut(_) => Problem::new(HALFWAY, detail),
            ChangeError::Halfway { changed, .. } => {
                let mut problem = Problem::new(HALFWAY, detail);
                problem.changed = Some(changed);
                problem
            }
        }
    }
}
