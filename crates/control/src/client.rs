//! The client of the control socket: one connection, one request, one answer.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use nicety_daemon::fabric::FabricReport;
use nicety_daemon::handover::Upgraded;
use nicety_daemon::live::Changed;
use nicety_daemon::live::confirm::Settled;
use nicety_daemon::live::plan::Plan;
use nicety_daemon::protection::VmReport;
use nicety_daemon::report::PortReport;
use nicety_daemon::trace::FrameTrace;
use nicety_frame::Mac;
use nicety_host::List;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::api::{
    AddressList, CaptureRequest, CardReset, DaemonView, Exported, FlowExportList, HostText, PlaceList, PortList,
    PortValues, Problem, Restarted, Restored, ThreadList, TraceRequest, UpgradeRequest, VmList, WishWord,
};
use exchange::Exchange;

mod exchange;

/// The time that a client waits for its answer: other clients may be served first.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for changes: they may close and open a thousand ports.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);

/// Reasons why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No daemon serves the socket.
    #[error(
        "no daemon answers at {0}: start one with `nicety serve`, or name the socket of one that runs: --control SOCKET"
    )]
    Nobody(PathBuf),
    /// The path is not a socket.
    #[error("{0} is no socket: a daemon says where its control socket is when it starts")]
    NoSocket(PathBuf),
    /// The server does not answer.
    #[error("{process} has the socket {path}, took the question, and sent no whole answer within {timeout:?}")]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The server: `process 4711`.
        process: String,
        /// The time that the client waited.
        timeout: Duration,
    },
    /// The server does not accept connections.
    #[error("somebody has the socket {path}, and takes no connection: its queue was full for {timeout:?}")]
    Full {
        /// The socket.
        path: PathBuf,
        /// The time that the client waited.
        timeout: Duration,
    },
    /// The socket belongs to another user.
    #[error(
        "{0} is another user's, and not for this one: its owner may ask, and whom [daemon] control_group in the host file names"
    )]
    NotAllowed(PathBuf),
    /// The server does not speak this protocol.
    #[error("what answers at {path} is no nicety daemon of this version: {why}")]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// The error in the answer.
        why: String,
    },
    /// The daemon is still starting.
    #[error("{0}")]
    Starting(Box<Problem>),
    /// The daemon refused.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// A system call failed.
    #[error("asking the daemon at {path}: {error}")]
    System {
        /// The socket.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

impl AskError {
    /// Whether the daemon may have done what was asked: the request was sent, and no answer came that says otherwise.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Silent { .. } | Self::Foreign { .. } | Self::System { .. } => true,
            Self::Nobody(_)
            | Self::NoSocket(_)
            | Self::Full { .. }
            | Self::NotAllowed(_)
            | Self::Starting(_)
            | Self::Refused(_) => false,
        }
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// All ports.
    Ports,
    /// One port.
    Port {
        /// Its name.
        name: String,
    },
    /// The addresses that the switch has learned.
    Addresses,
    /// Restart a failed port.
    Restart {
        /// Its name.
        name: String,
    },
    /// The VMs that are protected, or are to be.
    Vms,
    /// The exports of flows.
    FlowExports,
    /// Show the fabric.
    Fabric,
    /// Show where an address of the fabric is.
    Places {
        /// The address.
        mac: Mac,
    },
    /// Something wanted of a VM's protection.
    Wish {
        /// The VM.
        name: String,
        /// The administrator's wish for the VM.
        wish: WishWord,
    },
    /// Reset a card.
    ResetCard {
        /// Its name.
        name: String,
    },
    /// Replace the daemon by another program.
    Upgrade(UpgradeRequest),
    /// Save and stop a port.
    Save {
        /// Its name.
        name: String,
    },
    /// Restore a port from a saved state.
    Restore {
        /// Its name.
        name: String,
        /// The result of [`Ask::Save`].
        state: Vec<u8>,
    },
    /// The daemon's version and process.
    Version,
    /// The running state as a host file.
    Export,
    /// The daemon's threads.
    Threads,
    /// The path of a frame.
    Trace(TraceRequest),
    /// The changes that applying a host file would make.
    Plan(HostText),
    /// Apply a host file.
    Apply(HostText),
    /// A change that is undone unless it is confirmed in time.
    ToConfirm {
        /// The change.
        change: Box<Ask>,
        /// The time.
        seconds: u32,
    },
    /// Confirm the change that waits.
    Confirm,
    /// Undo the change that waits to be confirmed.
    Undo,
    /// Report that the host file was written.
    Saved(HostText),
    /// Add an entry.
    Add {
        /// Its list.
        list: List,
        /// Its values.
        values: PortValues,
        /// Whether an attached VM may lose its networks.
        cut_off: bool,
    },
    /// Change values of an entry.
    Set {
        /// Its list.
        list: List,
        /// Its name.
        name: String,
        /// The values.
        values: PortValues,
        /// Whether an attached VM may lose its adapter.
        cut_off: bool,
    },
    /// Change terms that a port has of its own inside a class.
    SetPortTerms {
        /// The class: `UPLINK/CLASS`.
        class: String,
        /// The port's name.
        port: String,
        /// The terms.
        values: PortValues,
        /// Whether an attached VM may lose its adapter.
        cut_off: bool,
    },
    /// Remove an entry.
    Remove {
        /// Its list.
        list: List,
        /// Its name.
        name: String,
        /// Whether an attached VM may lose its adapter.
        cut_off: bool,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// All ports.
    Ports(PortList),
    /// One port.
    Port(Box<PortReport>),
    /// Addresses.
    Addresses(AddressList),
    /// The port was restarted.
    Restarted(Restarted),
    /// The VMs.
    Vms(VmList),
    /// The exports of flows.
    FlowExports(FlowExportList),
    /// The fabric.
    Fabric(Box<FabricReport>),
    /// The places of an address in the fabric.
    Places(PlaceList),
    /// A VM after what was wanted.
    Vm(Box<VmReport>),
    /// The card was reset.
    CardReset(CardReset),
    /// Another daemon serves now.
    Upgraded(Upgraded),
    /// A port's state.
    Saved(Vec<u8>),
    /// The port continues.
    Restored(Restored),
    /// The daemon itself.
    Version(DaemonView),
    /// The running state.
    Exported(Exported),
    /// The daemon's threads.
    Threads(ThreadList),
    /// The path of the frame.
    Traced(FrameTrace),
    /// The changes that would be made.
    Plan(Plan),
    /// The changes that were made.
    Changed(Box<Changed>),
    /// The change that waits no more.
    Settled(Settled),
}

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

/// A request of one connection. The content type of an empty body is left out.
fn request(method: &str, path: &str, kind: &str, body: Vec<u8>) -> axum::http::Result<Request<Body>> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header(header::HOST, "nicety").header(header::CONNECTION, "close");
    let request = if body.is_empty() { request } else { request.header(header::CONTENT_TYPE, kind) };
    request.body(Body::from(body))
}

/// A request with a JSON body.
fn with(method: &str, path: &str, body: &impl Serialize) -> io::Result<Request<Body>> {
    request(method, path, JSON, serde_json::to_vec(body)?).map_err(io::Error::other)
}

impl Ask {
    fn request(&self) -> io::Result<Request<Body>> {
        let plain = |method, path: &str| request(method, path, JSON, Vec::new()).map_err(io::Error::other);
        let port = |name: &str| format!("/v1/ports/{}", escaped(name));
        match self {
            Self::Ports => plain("GET", "/v1/ports"),
            Self::Port { name } => plain("GET", &port(name)),
            Self::Addresses => plain("GET", "/v1/addresses"),
            Self::Restart { name } => plain("POST", &(port(name) + "/restart")),
            Self::Vms => plain("GET", "/v1/vms"),
            Self::FlowExports => plain("GET", "/v1/flow_exports"),
            Self::Fabric => plain("GET", "/v1/fabric"),
            Self::Places { mac } => plain("GET", &format!("/v1/fabric/places/{mac}")),
            Self::Wish { name, wish } => {
                let word = match wish {
                    WishWord::Protect => "protect",
                    WishWord::Stop => "stop",
                    WishWord::Failover => "failover",
                };
                plain("POST", &format!("/v1/vms/{}/{word}", escaped(name)))
            }
            Self::ResetCard { name } => plain("POST", &format!("/v1/cards/{}/reset", escaped(name))),
            Self::Upgrade(request) => with("POST", "/v1/upgrade", request),
            Self::Save { name } => plain("POST", &(port(name) + "/save")),
            Self::Restore { name, state } => {
                request("POST", &(port(name) + "/restore"), BYTES, state.clone()).map_err(io::Error::other)
            }
            Self::Version => plain("GET", "/v1/daemon"),
            Self::Export => plain("GET", "/v1/host"),
            Self::Threads => plain("GET", "/v1/threads"),
            Self::Trace(request) => with("POST", "/v1/trace", request),
            Self::Plan(text) => with("POST", "/v1/host/plan", text),
            Self::Saved(text) => with("POST", "/v1/host/saved", text),
            Self::Apply(text) => with("PUT", "/v1/host", text),
            Self::ToConfirm { change, seconds } => {
                let mut request = change.request()?;
                let before = request.uri().to_string();
                let sign = if before.contains('?') { '&' } else { '?' };
                *request.uri_mut() = format!("{before}{sign}confirm={seconds}").parse().map_err(io::Error::other)?;
                Ok(request)
            }
            Self::Confirm => plain("POST", "/v1/confirm"),
            Self::Undo => plain("POST", "/v1/undo"),
            // Only what takes uplinks or ports from their networks asks.
            Self::Add { list: list @ (List::Teams | List::Mirrors), values, cut_off } => {
                with("POST", &format!("{}?cut_off={cut_off}", place(*list)), values)
            }
            Self::Add { list, values, .. } => with("POST", place(*list), values),
            Self::Set { list, name, values, cut_off } => {
                with("PATCH", &format!("{}?cut_off={cut_off}", entry(*list, name)), values)
            }
            Self::SetPortTerms { class, port, values, cut_off } => {
                let class = entry(List::Classes, class);
                with("PATCH", &format!("{class}/ports/{}?cut_off={cut_off}", escaped(port)), values)
            }
            Self::Remove { list, name, cut_off } => {
                plain("DELETE", &format!("{}?cut_off={cut_off}", entry(*list, name)))
            }
        }
    }

    fn reply(&self, body: &[u8]) -> serde_json::Result<Reply> {
        fn read<T: DeserializeOwned>(body: &[u8]) -> serde_json::Result<T> {
            serde_json::from_slice(body)
        }
        Ok(match self {
            Self::Ports => Reply::Ports(read(body)?),
            Self::Port { .. } => Reply::Port(read(body)?),
            Self::Addresses => Reply::Addresses(read(body)?),
            Self::Restart { .. } => Reply::Restarted(read(body)?),
            Self::Vms => Reply::Vms(read(body)?),
            Self::FlowExports => Reply::FlowExports(read(body)?),
            Self::Fabric => Reply::Fabric(Box::new(read(body)?)),
            Self::Places { .. } => Reply::Places(read(body)?),
            Self::Wish { .. } => Reply::Vm(Box::new(read(body)?)),
            Self::ResetCard { .. } => Reply::CardReset(read(body)?),
            Self::Upgrade(_) => Reply::Upgraded(read(body)?),
            Self::Save { .. } => Reply::Saved(body.to_vec()),
            Self::Restore { .. } => Reply::Restored(read(body)?),
            Self::Version => Reply::Version(read(body)?),
            Self::Export => Reply::Exported(read(body)?),
            Self::Threads => Reply::Threads(read(body)?),
            Self::Trace(_) => Reply::Traced(read(body)?),
            Self::Plan(_) | Self::Saved(_) => Reply::Plan(read(body)?),
            Self::ToConfirm { change, .. } => change.reply(body)?,
            Self::Confirm | Self::Undo => Reply::Settled(read(body)?),
            Self::Apply(_) | Self::Add { .. } | Self::Set { .. } | Self::SetPortTerms { .. } | Self::Remove { .. } => {
                Reply::Changed(read(body)?)
            }
        })
    }

    fn changes(&self) -> bool {
        !matches!(
            self,
            Self::Ports
                | Self::Port { .. }
                | Self::Addresses
                | Self::Vms
                | Self::FlowExports
                | Self::Fabric
                | Self::Places { .. }
                | Self::Version
                | Self::Export
                | Self::Threads
                | Self::Trace(_)
                | Self::Plan(_)
        )
    }
}

/// The path of a list.
fn place(list: List) -> &'static str {
    match list {
        List::Ports => "/v1/ports",
        List::Groups => "/v1/groups",
        List::Uplinks => "/v1/uplinks",
        List::Cards => "/v1/cards",
        List::Teams => "/v1/teams",
        List::Mirrors => "/v1/mirrors",
        List::FlowExports => "/v1/flow_exports",
        List::Classes => "/v1/classes",
    }
}

/// The path of an entry. A class has two names, `UPLINK/CLASS`.
fn entry(list: List, name: &str) -> String {
    let (first, second) = match name.split_once('/') {
        Some((uplink, class)) if list == List::Classes => (uplink, format!("/{}", escaped(class))),
        _ => (name, String::new()),
    };
    format!("{}/{}{second}", place(list), escaped(first))
}

/// A name as a part of a path (RFC 3986, section 2.1).
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let part = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    // A part that consists of dots would be a path step.
    if name.chars().all(|c| c == '.') { name.replace('.', "%2E") } else { name.bytes().map(part).collect() }
}

/// Sends a request to the daemon with this control socket.
pub fn ask(path: &Path, ask: Ask) -> Result<Reply, AskError> {
    let timeout = if ask.changes() { CHANGE_TIMEOUT } else { CLIENT_TIMEOUT };
    ask_within(path, ask, timeout)
}

/// Like [`ask`], with this timeout for connecting, and again for the whole answer.
pub fn ask_within(path: &Path, ask: Ask, timeout: Duration) -> Result<Reply, AskError> {
    let request = ask.request().map_err(|error| foreign(path, error.to_string()))?;
    let exchange = Exchange::begin(path, request, timeout)?;
    let status = exchange.status();
    let body = exchange.body()?;
    if (200..300).contains(&status) {
        return ask.reply(&body).map_err(|error| foreign(path, error.to_string()));
    }
    Err(refused(path, status, &body))
}

/// Starts a capture. The reader yields pcapng block by block until the daemon ends. A read that waits for longer than `tick`
/// fails with [`io::ErrorKind::WouldBlock`].
pub fn capture(path: &Path, request: &CaptureRequest, tick: Duration) -> Result<impl Read + use<>, AskError> {
    let request = with("POST", "/v1/captures", request).map_err(|error| foreign(path, error.to_string()))?;
    let exchange = Exchange::begin(path, request, CLIENT_TIMEOUT)?;
    match exchange.status() {
        200 => Ok(exchange.reader(tick)),
        status => Err(refused(path, status, &exchange.body()?)),
    }
}

fn foreign(path: &Path, why: String) -> AskError {
    AskError::Foreign { path: path.to_owned(), why }
}

/// The error for an answer without success.
fn refused(path: &Path, status: u16, body: &[u8]) -> AskError {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) if problem.is_starting() => AskError::Starting(Box::new(problem)),
        Ok(problem) => AskError::Refused(Box::new(problem)),
        Err(error) => foreign(path, format!("status {status}: {error}")),
    }
}
