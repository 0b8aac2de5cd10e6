//! The paths of the API. Each handler reads, or makes changes through [`Live`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use nicety_daemon::capture::{Program, Scope, Stage};
use nicety_daemon::daemon::RestartError;
use nicety_daemon::fabric::FabricReport;
use nicety_daemon::live::confirm::{CONFIRM_MAX, Confirm, Terms};
use nicety_daemon::live::plan::Plan;
use nicety_daemon::live::{ChangeError, Changed, Consent, Live};
use nicety_daemon::metrics::CONTENT_TYPE;
use nicety_daemon::protection::VmReport;
use nicety_daemon::report::PortReport;
use nicety_daemon::saved::{PortState, SaveError};
use nicety_daemon::trace::FrameTrace;
use nicety_daemon::usage;
use nicety_frame::Mac;
use nicety_host::{Host, did_you_mean};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tracing::info;
use utoipa::{IntoParams, OpenApi};

use super::api::{
    AddressList, CaptureRequest, DaemonView, Exported, FORBIDDEN, FlowExportList, GROUPS_UNKNOWN, HALFWAY, HostText,
    MALFORMED, NO_STATE, NO_SUCH, NO_SUCH_PORT, NOT_ALLOWED, NOT_FOUND, NOT_PROTECTED, NOT_RESTARTED, NOT_SAVED,
    PlaceList, PortList, PortValues, Problem, REFUSED, Restarted, Restored, STARTING, StageWord, TOO_MANY, ThreadList,
    ThreadReport, TraceRequest, VmList, WishWord,
};
use super::beside::{Answer, beside};
use super::body::{Changer, Large, Small};
use super::schemas::Binary;
use super::served::{GroupsUnknown, LOOK_UP, Peer, Served};
use super::stream::{Endless, Place, Stream};
use super::{NAMES_MAX, STARTING_SENTENCE, no_port};

mod confirm;
pub(super) mod lists;
mod problems;
mod upgrade;

impl IntoResponse for Box<Problem> {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self)).into_response();
        let kind = header::HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

/// The document.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Nicety",
        description = "Reads the state of a running daemon, and changes it. Served on the daemon's control socket. Each answer without \
                       success is a problem (RFC 9457). With a keeper each connection has one request (`Connection: close`).",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    paths(
        daemon,
        upgrade::upgrade,
        confirm::confirm,
        confirm::undo,
        ports,
        port,
        lists::add_port,
        lists::set_port,
        lists::remove_port,
        lists::add_group,
        lists::set_group,
        lists::remove_group,
        lists::add_uplink,
        lists::set_uplink,
        lists::remove_uplink,
        lists::add_card,
        lists::set_card,
        lists::remove_card,
        lists::reset_card,
        lists::add_team,
        lists::set_team,
        lists::remove_team,
        lists::add_mirror,
        lists::set_mirror,
        lists::remove_mirror,
        flow_exports,
        lists::add_flow_export,
        lists::set_flow_export,
        lists::remove_flow_export,
        lists::add_class,
        lists::set_class,
        lists::remove_class,
        lists::set_port_terms,
        restart_port,
        save_port,
        restore_port,
        vms,
        wish,
        fabric,
        fabric_places,
        addresses,
        threads,
        capture,
        trace,
        metrics,
        export,
        plan,
        saved,
        apply,
        openapi,
    ),
    // WishWord is in a path: only bodies' types are found by themselves.
    components(schemas(Problem, Plan, WishWord)),
    tags(
        (name = "daemon", description = "The daemon itself: version, threads, metrics, this document."),
        (name = "ports", description = "Ports, one for each virtual adapter. Uplinks are shown as ports too."),
        (name = "vms", description = "VMs that are copied to twins on other hosts."),
        (name = "fabric", description = "The fabric: one switch on many hosts."),
        (name = "port groups", description = "Port groups: policies that several ports share."),
        (name = "uplinks", description = "Uplinks: the switch's connections to other networks."),
        (name = "cards", description = "Cards: network cards whose virtual functions are ports."),
        (name = "teams", description = "Teams: several uplinks as one port of the switch."),
        (name = "mirrors", description = "Mirrors: copies of some ports' frames, at another port."),
        (name = "flow exports", description = "Exports of flows: counts of some ports' frames, told to a collector by IPFIX."),
        (name = "classes", description = "Classes of I/O control: what each kind of frames keeps of an uplink or a team."),
        (name = "host file", description = "The host file, as a whole."),
        (name = "frames", description = "Captures, traces of single frames, and learned addresses."),
    )
)]
pub(super) struct Document;

/// All routes.
pub(super) fn router(served: Arc<Served>) -> Router {
    Router::new()
        .route("/v1/daemon", get(daemon))
        .route("/v1/upgrade", post(upgrade::upgrade))
        .route("/v1/confirm", post(confirm::confirm))
        .route("/v1/undo", post(confirm::undo))
        .route("/v1/ports", get(ports).post(lists::add_port))
        .route("/v1/ports/{name}", get(port).patch(lists::set_port).delete(lists::remove_port))
        .route("/v1/ports/{name}/restart", post(restart_port))
        .route("/v1/ports/{name}/save", post(save_port))
        .route("/v1/ports/{name}/restore", post(restore_port))
        .route("/v1/groups", post(lists::add_group))
        .route("/v1/groups/{name}", patch(lists::set_group).delete(lists::remove_group))
        .route("/v1/uplinks", post(lists::add_uplink))
        .route("/v1/uplinks/{name}", patch(lists::set_uplink).delete(lists::remove_uplink))
        .route("/v1/cards", post(lists::add_card))
        .route("/v1/cards/{name}", patch(lists::set_card).delete(lists::remove_card))
        .route("/v1/cards/{name}/reset", post(lists::reset_card))
        .route("/v1/mirrors", post(lists::add_mirror))
        .route("/v1/mirrors/{name}", patch(lists::set_mirror).delete(lists::remove_mirror))
        .route("/v1/flow_exports", get(flow_exports).post(lists::add_flow_export))
        .route("/v1/flow_exports/{name}", patch(lists::set_flow_export).delete(lists::remove_flow_export))
        .route("/v1/teams", post(lists::add_team))
        .route("/v1/teams/{name}", patch(lists::set_team).delete(lists::remove_team))
        .route("/v1/classes", post(lists::add_class))
        .route("/v1/classes/{uplink}/{name}", patch(lists::set_class).delete(lists::remove_class))
        .route("/v1/classes/{uplink}/{name}/ports/{port}", patch(lists::set_port_terms))
        .route("/v1/vms", get(vms))
        .route("/v1/vms/{name}/{wish}", post(wish))
        .route("/v1/fabric", get(fabric))
        .route("/v1/fabric/places/{mac}", get(fabric_places))
        .route("/v1/addresses", get(addresses))
        .route("/v1/threads", get(threads))
        .route("/v1/captures", post(capture))
        .route("/v1/trace", post(trace))
        .route("/v1/metrics", get(metrics))
        .route("/metrics", get(metrics))
        .route("/v1/host", get(export).put(apply))
        .route("/v1/host/plan", post(plan))
        .route("/v1/host/saved", post(saved))
        .route("/v1/openapi.json", get(openapi))
        .fallback(|| async {
            Problem::new(NOT_FOUND, "there is nothing at this path: GET /v1/openapi.json lists what there is")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(NOT_ALLOWED, "this path knows other methods: GET /v1/openapi.json lists them")
        })
        .with_state(served)
}

/// The query of a change.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CutOff {
    /// Allow the change to cut an attached VM off.
    #[serde(default)]
    cut_off: bool,
    /// Undo the change after so many seconds, unless it is confirmed before. If left out: it stays.
    #[serde(default)]
    #[param(minimum = 1, maximum = 86400)]
    confirm: Option<u32>,
}

/// The query of a host file that is applied. Its body says what may be cut off.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ToConfirm {
    /// Undo the change after so many seconds, unless it is confirmed before. If left out: it stays.
    #[serde(default)]
    #[param(minimum = 1, maximum = 86400)]
    confirm: Option<u32>,
}

/// A body as JSON.
fn json<T: DeserializeOwned>(body: &[u8]) -> Answer<T> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::new(MALFORMED, format!("the body is not the JSON that is wanted: {error}")))
}

fn name_in(path: Result<Path<String>, PathRejection>) -> Answer<String> {
    path.map(|Path(name)| name).map_err(|rejection| Problem::new(MALFORMED, rejection.body_text()))
}

fn terms_in(peer: Peer, query: Result<Query<CutOff>, QueryRejection>) -> Answer<Terms> {
    let Query(CutOff { cut_off, confirm }) =
        query.map_err(|rejection| Problem::new(MALFORMED, rejection.body_text()))?;
    let consent = if cut_off { Consent::All } else { Consent::Nothing };
    Ok(Terms { consent, confirm: confirm_in(peer, confirm)? })
}

/// The time within which a change is to be confirmed.
fn confirm_in(peer: Peer, confirm: Option<u32>) -> Answer<Option<Confirm>> {
    let one = |seconds: u32| match seconds {
        1..=CONFIRM_MAX => Ok(Confirm { within: Duration::from_secs(seconds.into()), by: who(peer) }),
        _ => {
            let what = format!("confirm={seconds}: a change waits to be confirmed for 1 s to {CONFIRM_MAX} s");
            Err(Problem::new(MALFORMED, what))
        }
    };
    confirm.map(one).transpose()
}

impl Served {
    fn ready(&self) -> Answer<()> {
        if self.inspect.is_ready() { Ok(()) } else { Err(Problem::new(STARTING, STARTING_SENTENCE)) }
    }

    /// Refuses a client that may not make changes.
    pub(super) async fn is_changer(&self, peer: Peer) -> Answer<()> {
        match self.changers.include(peer).await {
            Ok(true) => self.ready(),
            Ok(false) => Err(Problem::new(FORBIDDEN, self.changers.refusal(peer))),
            Err(GroupsUnknown) => {
                let why = format!("the system did not tell the groups of {} within {LOOK_UP:?}", who(peer));
                Err(Problem::new(GROUPS_UNKNOWN, why))
            }
        }
    }
}

/// The client, for the log.
fn who(peer: Peer) -> String {
    peer.map_or_else(|| "somebody".to_owned(), |peer| format!("user {} (process {})", peer.uid, peer.pid))
}

/// Logs a client's change: the client, the plan, and whether the change was kept.
pub(super) fn logged(served: &Served, peer: Peer, done: Result<Changed, ChangeError>) -> Answer<Changed> {
    let say = |changed: &Changed, halfway: bool| {
        let plan = changed.plan.changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let kept = match (&changed.waiting, &changed.not_kept) {
            (Some(waiting), _) => {
                served.waits.notify_one();
                format!("undone in {} s unless it is confirmed", waiting.seconds_left)
            }
            (None, None) => "kept".to_owned(),
            (None, Some(why)) => format!("not kept: {why}"),
        };
        let half = if halfway { " (not all was done)" } else { "" };
        info!("{} changed: {plan}{half}; {kept}", who(peer));
    };
    match &done {
        Ok(changed) if changed.plan.is_empty() => {}
        Ok(changed) => say(changed, false),
        Err(ChangeError::Halfway { changed, .. }) => say(changed, true),
        Err(_) => {}
    }
    Ok(done?)
}

type Daemon = State<Arc<Served>>;

/// Get the daemon's version, process and host file
#[utoipa::path(get, operation_id = "get_daemon", tag = "daemon", path = "/v1/daemon", responses((status = 200, description = "The daemon", body = DaemonView)))]
pub(super) async fn daemon(State(served): Daemon) -> impl IntoResponse {
    axum::Json(DaemonView {
        program: nicety_version::BUILD.to_owned(),
        pid: std::process::id(),
        host: served.host.clone(),
        starting: !served.inspect.is_ready(),
        after_restart: served.inspect.live().map(|live| live.after_restart()).unwrap_or_default(),
        waiting: served.inspect.live().and_then(|live| live.waiting()),
    })
}

/// List all uplinks and ports
#[utoipa::path(get, operation_id = "list_ports", tag = "ports", path = "/v1/ports", responses(
    (status = 200, description = "The ports", body = PortList),
    problems::Starting,
))]
pub(super) async fn ports(State(served): Daemon) -> Answer<axum::Json<PortList>> {
    served.ready()?;
    let mut ports = served.inspect.ports();
    // The list of all ports stays short: guests choose how long these are.
    ports.iter_mut().for_each(|port| port.last_guest_errors = Vec::new());
    Ok(axum::Json(PortList { host: served.host.clone(), ports }))
}

/// Get a port or an uplink
#[utoipa::path(get, operation_id = "get_port", tag = "ports", path = "/v1/ports/{name}", params(("name" = String, Path, description = "Name of the port")), responses(
    (status = 200, description = "The port", body = PortReport),
    problems::Named, problems::Starting,
))]
pub(super) async fn port(
    State(served): Daemon,
    path: Result<Path<String>, PathRejection>,
) -> Answer<axum::Json<PortReport>> {
    served.ready()?;
    let name = name_in(path)?;
    let mut ports = served.inspect.ports();
    match ports.iter().position(|port| port.name == name) {
        Some(index) => Ok(axum::Json(ports.swap_remove(index))),
        None => Err(Problem::new(NO_SUCH_PORT, no_port(&name, &ports))),
    }
}

/// List the VMs that are protected, or are to be
#[utoipa::path(get, operation_id = "list_vms", tag = "vms", path = "/v1/vms", responses(
    (status = 200, description = "The VMs", body = VmList),
    problems::Starting,
))]
pub(super) async fn vms(State(served): Daemon) -> Answer<axum::Json<VmList>> {
    served.ready()?;
    Ok(axum::Json(VmList { vms: served.inspect.vms() }))
}

/// Protect a VM, end its protection, or have its twin go on with it
#[utoipa::path(post, operation_id = "wish_for_vm", tag = "vms", path = "/v1/vms/{name}/{wish}",
    params(("name" = String, Path, description = "Name of the VM"), ("wish" = WishWord, Path, description = "What is wanted")),
    responses(
    (status = 200, description = "The VM after that", body = VmReport),
    problems::Named, problems::Changing, problems::Starting,
))]
pub(super) async fn wish(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Result<Path<(String, WishWord)>, PathRejection>,
) -> Answer<axum::Json<VmReport>> {
    let Path((name, word)) = path.map_err(|rejection| Problem::new(MALFORMED, rejection.body_text()))?;
    beside(move || {
        let report = || served.inspect.vms().into_iter().find(|vm| vm.name == name);
        if report().is_none() {
            let vms: Vec<_> = served.inspect.vms().into_iter().map(|vm| vm.name).collect();
            let there = if vms.is_empty() {
                "the host file has none".to_owned()
            } else {
                format!("there are: {}", vms.join(", "))
            };
            return Err(Problem::new(NO_SUCH, format!("there is no [[vm]] {name:?} ({there})")));
        }
        served.inspect.wish(&name, word.into()).map_err(|why| Problem::new(NOT_PROTECTED, why))?;
        info!("{} asked of VM {name}: {word:?}", who(peer));
        report().map(axum::Json).ok_or_else(|| Problem::new(NO_SUCH, "the VM has gone meanwhile"))
    })
    .await
}

const NO_FABRIC: &str = "the host file has no [fabric]: docs/fabric.md says how hosts have one switch";

/// Show the fabric that the host is in
#[utoipa::path(get, operation_id = "get_fabric", tag = "fabric", path = "/v1/fabric", responses(
    (status = 200, description = "The fabric, as this host knows it", body = FabricReport),
    problems::Named, problems::Starting,
))]
pub(super) async fn fabric(State(served): Daemon) -> Answer<axum::Json<FabricReport>> {
    served.ready()?;
    beside(move || served.inspect.fabric().map(axum::Json).ok_or_else(|| Problem::new(NO_SUCH, NO_FABRIC))).await
}

/// Show where an address of the fabric is
#[utoipa::path(get, operation_id = "list_fabric_places", tag = "fabric", path = "/v1/fabric/places/{mac}",
    params(("mac" = String, Path, description = "The MAC address")), responses(
    (status = 200, description = "Its places, of which frames go to the current one", body = PlaceList),
    problems::Named, problems::Starting,
))]
pub(super) async fn fabric_places(
    State(served): Daemon,
    path: Result<Path<String>, PathRejection>,
) -> Answer<axum::Json<PlaceList>> {
    served.ready()?;
    let text = name_in(path)?;
    let mac: Mac = text.parse().map_err(|error| Problem::new(MALFORMED, format!("{text:?} is no address: {error}")))?;
    let places = beside(move || served.inspect.places(mac).ok_or_else(|| Problem::new(NO_SUCH, NO_FABRIC))).await?;
    Ok(axum::Json(PlaceList { places }))
}

/// Restart a failed port
///
/// The port is opened as new, with counters of 0.
#[utoipa::path(post, operation_id = "restart_port", tag = "ports", path = "/v1/ports/{name}/restart", params(("name" = String, Path, description = "Name of the port")), responses(
    (status = 200, description = "The port was restarted", body = Restarted),
    problems::Named, problems::Changing, problems::Starting,
))]
pub(super) async fn restart_port(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Result<Path<String>, PathRejection>,
) -> Answer<axum::Json<Restarted>> {
    let name = name_in(path)?;
    beside(move || match served.inspect.restart(&name) {
        Ok(()) => {
            info!("{} restarted port {name}", who(peer));
            Ok(axum::Json(Restarted { name }))
        }
        Err(RestartError::Missing(name)) => Err(Problem::new(NO_SUCH_PORT, no_port(&name, &served.inspect.ports()))),
        Err(why @ (RestartError::NotFailed(_) | RestartError::Capture(_))) => {
            Err(Problem::new(NOT_RESTARTED, why.to_string()))
        }
        Err(why) => Err(Problem::new(HALFWAY, why.to_string())),
    })
    .await
}

/// Save a port's state, and stop the port
///
/// The port stands still until it is restored, or its VMM disconnects.
#[utoipa::path(post, operation_id = "save_port", tag = "ports", path = "/v1/ports/{name}/save", params(("name" = String, Path, description = "Name of the port")), responses(
    (status = 200, description = "The port's state", body = inline(Binary), content_type = "application/octet-stream"),
    problems::Named, problems::Changing, problems::Starting,
))]
pub(super) async fn save_port(
    State(served): Daemon,
    _: Changer,
    path: Result<Path<String>, PathRejection>,
) -> Answer<Response> {
    let name = name_in(path)?;
    let state = beside(move || served.inspect.save(&name).map_err(|error| not_saved(error, &served))).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], state.to_bytes()).into_response())
}

/// Restore a port from a saved state
///
/// The port works on from this state. Its VM is attached and has not started the adapter, or the port was saved before.
#[utoipa::path(post, operation_id = "restore_port", tag = "ports", path = "/v1/ports/{name}/restore", params(("name" = String, Path, description = "Name of the port")),
    request_body(content = inline(Binary), content_type = "application/octet-stream", description = "A port's saved state"), responses(
    (status = 200, description = "The port was restored", body = Restored),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(super) async fn restore_port(
    State(served): Daemon,
    _: Changer,
    path: Result<Path<String>, PathRejection>,
    body: Large,
) -> Answer<axum::Json<Restored>> {
    let name = name_in(path)?;
    beside(move || {
        let restored = PortState::from_bytes(body.bytes()).map_err(SaveError::State);
        let restored = restored.and_then(|state| served.inspect.restore(&name, state));
        restored.map_err(|error| not_saved(error, &served))?;
        Ok(axum::Json(Restored { name }))
    })
    .await
}

fn not_saved(error: SaveError, served: &Served) -> Box<Problem> {
    let detail = error.to_string();
    match error {
        SaveError::Missing(name) => Problem::new(NO_SUCH_PORT, no_port(&name, &served.inspect.ports())),
        SaveError::State(_) => Problem::new(NO_STATE, detail),
        SaveError::Late => Problem::new(HALFWAY, detail),
        _ => Problem::new(NOT_SAVED, detail),
    }
}

/// List the exports of flows
#[utoipa::path(get, operation_id = "list_flow_exports", tag = "flow exports", path = "/v1/flow_exports", responses(
    (status = 200, description = "The exports", body = FlowExportList),
    problems::Starting,
))]
pub(super) async fn flow_exports(State(served): Daemon) -> Answer<axum::Json<FlowExportList>> {
    served.ready()?;
    Ok(axum::Json(FlowExportList { flow_exports: served.inspect.flow_exports() }))
}

/// List the addresses that the switch has learned
#[utoipa::path(get, operation_id = "list_addresses", tag = "frames", path = "/v1/addresses", responses(
    (status = 200, description = "The addresses", body = AddressList),
    problems::Starting,
))]
pub(super) async fn addresses(State(served): Daemon) -> Answer<axum::Json<AddressList>> {
    served.ready()?;
    Ok(axum::Json(served.inspect.addresses()))
}

/// List the daemon's threads and their CPU time
#[utoipa::path(get, operation_id = "list_threads", tag = "daemon", path = "/v1/threads", responses(
    (status = 200, description = "The threads", body = ThreadList),
    problems::Failing,
))]
pub(super) async fn threads() -> Answer<axum::Json<ThreadList>> {
    beside(|| {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let threads = usage::threads().into_iter().map(|(name, time)| ThreadReport { name, cpu_ns: ns(time) });
        Ok(axum::Json(ThreadList { threads: threads.collect() }))
    })
    .await
}

/// Capture frames as pcapng
///
/// Captures the frames of a port, an uplink or a port group, or all dropped frames. The answer goes on until the reader
/// disconnects.
#[utoipa::path(post, operation_id = "capture", tag = "frames", path = "/v1/captures", request_body = CaptureRequest, responses(
    (status = 200, description = "pcapng, with an interface for each port", body = inline(Binary), content_type = "application/octet-stream"),
    problems::Capturing,
    problems::Named, problems::Bodied, problems::Starting,
))]
pub(super) async fn capture(
    State(served): Daemon,
    // Reading other users' frames needs more rights than reading counters.
    _: Changer,
    Small(body): Small,
) -> Answer<Response> {
    let live = served.live()?;
    let CaptureRequest { of, stage, filter, snap } = json(&body)?;
    let filter = filter.map(|raw| Program::new(&raw)).transpose();
    let filter = filter.map_err(|error| Problem::new(MALFORMED, error.to_string()))?;
    let stage = stage.map(|word| match word {
        StageWord::Ingress => Stage::Ingress,
        StageWord::Egress => Stage::Egress,
    });
    let snap = snap.unwrap_or(u32::MAX);
    let place = Place::take(live.captures()).ok_or_else(|| Problem::new(TOO_MANY, "end one of them first"))?;
    let (whose, scope) = (Arc::clone(&live), Scope { ports: None, stage, drops: false, filter, snap });
    let capture = beside(move || {
        whose.capture(&of, scope).map_err(|error| match error {
            ChangeError::Missing(_, of, _) => Problem::new(NO_SUCH_PORT, nothing_of(&of, &whose)),
            error => error.into(),
        })
    })
    .await?;
    let mut response = axum::body::Body::new(Stream::new(live, capture, place)).into_response();
    let kind = header::HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.extensions_mut().insert(Endless);
    Ok(response)
}

/// Trace what the switch would do with a frame
///
/// Nothing is sent, learned or counted.
#[utoipa::path(post, operation_id = "trace", tag = "frames", path = "/v1/trace", request_body = TraceRequest, responses(
    (status = 200, description = "The path of the frame", body = FrameTrace),
    problems::Refusing, problems::Failing,
    problems::Named, problems::Bodied, problems::Starting,
))]
pub(super) async fn trace(State(served): Daemon, Small(body): Small) -> Answer<axum::Json<FrameTrace>> {
    let live = served.live()?;
    let TraceRequest { port, frame } = json(&body)?;
    let frame = bytes_of(&frame).ok_or_else(|| {
        Problem::new(MALFORMED, "the frame is no text of hexadecimal digits, two for each byte: ffffffffffff5254…")
    })?;
    beside(move || match FrameTrace::of(live.daemon(), &port, &frame) {
        Some(Ok(trace)) => Ok(axum::Json(trace)),
        Some(Err(why)) => Err(Problem::new(MALFORMED, why)),
        None => Err(Problem::new(NO_SUCH_PORT, no_port(&port, &served.inspect.ports()))),
    })
    .await
}

/// Decodes hexadecimal digits.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digit = |c: char| c.to_digit(16).map(|digit| digit as u8);
    let digits: Vec<u8> = digits.chars().map(digit).collect::<Option<_>>()?;
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// The answer to a capture request for an unknown name.
fn nothing_of(of: &str, live: &Live) -> String {
    let names = live.daemon().names();
    let listed: Vec<&str> = names.values().map(String::as_str).take(NAMES_MAX).collect();
    let meant = did_you_mean(of, names.values().map(String::as_str));
    format!("there is no port, uplink or port group {of:?}{meant} (ports: {}; or `drops`)", listed.join(", "))
}

/// Get the running configuration as a host file
#[utoipa::path(get, operation_id = "get_host_file", tag = "host file", path = "/v1/host", responses(
    (status = 200, description = "The host file", body = Exported),
    problems::Refusing,
    problems::Starting,
))]
pub(super) async fn export(State(served): Daemon) -> Answer<axum::Json<Exported>> {
    let live = served.live()?;
    beside(move || Ok(axum::Json(Exported { text: live.export() }))).await
}

/// Plan the changes that applying a host file would make
#[utoipa::path(post, operation_id = "plan_host_file", tag = "host file", path = "/v1/host/plan", request_body = HostText, responses(
    (status = 200, description = "The plan", body = Plan),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(super) async fn plan(State(served): Daemon, _: Changer, body: Large) -> Answer<axum::Json<Plan>> {
    let live = served.live()?;
    beside(move || {
        let text: HostText = json(body.bytes())?;
        Ok(axum::Json(live.plan(&understood(&text, &live)?)))
    })
    .await
}

/// Note that the daemon's host file was written
///
/// The answer has the differences between the file and the running configuration.
#[utoipa::path(post, operation_id = "note_host_file", tag = "host file", path = "/v1/host/saved", request_body = HostText, responses(
    (status = 200, description = "The plan", body = Plan),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(super) async fn saved(State(served): Daemon, _: Changer, body: Large) -> Answer<axum::Json<Plan>> {
    let live = served.live()?;
    beside(move || {
        let text: HostText = json(body.bytes())?;
        Ok(axum::Json(live.saved(&understood(&text, &live)?)?))
    })
    .await
}

/// Apply a host file
///
/// The daemon serves this host file afterwards. All of it is applied, or nothing.
#[utoipa::path(put, operation_id = "apply_host_file", tag = "host file", path = "/v1/host", params(ToConfirm), request_body = HostText, responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(super) async fn apply(
    State(served): Daemon,
    Changer(peer): Changer,
    query: Result<Query<ToConfirm>, QueryRejection>,
    body: Large,
) -> Answer<axum::Json<Changed>> {
    let live = served.live()?;
    let Query(ToConfirm { confirm }) = query.map_err(|rejection| Problem::new(MALFORMED, rejection.body_text()))?;
    let confirm = confirm_in(peer, confirm)?;
    beside(move || {
        let mut text: HostText = json(body.bytes())?;
        let host = understood(&text, &live)?;
        let agreed = std::mem::take(&mut text.agreed);
        let consent = if text.cut_off { Consent::All } else { Consent::These(agreed) };
        logged(&served, peer, live.apply(&host, Terms { consent, confirm })).map(axum::Json)
    })
    .await
}

/// Get metrics for Prometheus
///
/// The same is at `/metrics`.
#[utoipa::path(get, operation_id = "get_metrics", tag = "daemon", path = "/v1/metrics", responses(
    (status = 200, description = "Prometheus's text format", body = String, content_type = "text/plain"),
    problems::Refusing,
    problems::Starting,
))]
pub(super) async fn metrics(State(served): Daemon) -> Answer<impl IntoResponse> {
    let live = served.live()?;
    let text = super::metrics::text(live).await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text))
}

/// Get this document
#[utoipa::path(get, operation_id = "get_openapi", tag = "daemon", path = "/v1/openapi.json", responses((status = 200, description = "OpenAPI 3.1, made from the program's own types", body = serde_json::Value)))]
pub(super) async fn openapi() -> impl IntoResponse {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    let text = DOCUMENT.get_or_init(|| Document::openapi().to_json().unwrap_or_default());
    ([(header::CONTENT_TYPE, "application/json")], text.as_str())
}

impl Served {
    fn live(&self) -> Answer<Arc<Live>> {
        self.ready()?;
        self.inspect.live().ok_or_else(|| Problem::new(REFUSED, "this daemon serves no host file"))
    }
}

fn understood(text: &HostText, live: &Live) -> Answer<Host> {
    let path = text.path.as_deref().unwrap_or(live.path());
    if !path.is_absolute() {
        return Err(Problem::new(MALFORMED, "the path of a host file must be absolute"));
    }
    Ok(Host::parse(&text.text, path).map_err(ChangeError::Wrong)?)
}

/// A number without a fraction, if JSON wrote it with one, and if that is exact.
fn whole(number: &serde_json::Number) -> Option<i64> {
    const EXACT: f64 = (1u64 << 53) as f64;
    let value = number.as_f64().filter(|value| number.is_f64() && value.fract() == 0.0 && value.abs() < EXACT)?;
    Some(value as i64)
}

/// Converts JSON values to TOML.
fn values(PortValues(values): PortValues) -> Answer<Vec<(String, Option<toml::Value>)>> {
    // JSON has null, which TOML has not, and numbers beyond 64 bits.
    let wrong = |key: &str| {
        Problem::new(MALFORMED, format!("{key:?}: no value of a host file: it has a null or too large a number in it"))
    };
    let values = values.into_iter().map(|(key, value)| {
        let value = match value {
            serde_json::Value::Null => None,
            // JSON has one kind of numbers: 10.0 is as whole as 10 (JSON Schema, "integer").
            serde_json::Value::Number(number) if whole(&number).is_some() => whole(&number).map(toml::Value::from),
            value => Some(toml::Value::try_from(value).map_err(|_| wrong(&key))?),
        };
        Ok((key, value))
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_is_one_however_json_writes_it() {
        let found = |text: &str| values(serde_json::from_str(text).unwrap()).unwrap().remove(0).1;
        for text in [r#"{"vlan":10}"#, r#"{"vlan":10.0}"#, r#"{"vlan":1e1}"#] {
            assert_eq!(found(text), Some(toml::Value::Integer(10)), "{text}");
        }
        assert_eq!(found(r#"{"vlan":1.5}"#), Some(toml::Value::Float(1.5)));
    }

    #[test]
    fn a_null_within_a_value_is_refused_with_its_key() {
        let found = |text: &str| values(serde_json::from_str(text).unwrap());
        assert_eq!(found(r#"{"rate":null}"#).unwrap(), [("rate".to_owned(), None)]);
        let refused = found(r#"{"vlan":[1,null]}"#).unwrap_err();
        assert_eq!(
            (refused.status, &*refused.detail),
            (400, "\"vlan\": no value of a host file: it has a null or too large a number in it")
        );
    }
}
