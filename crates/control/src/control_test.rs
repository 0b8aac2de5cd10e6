use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, mpsc};
use std::time::Instant;

use nicety_daemon::fabric::HostReport;
use nicety_daemon::protection::VmRole;
use nicety_daemon::report::{AddressReport, Condition, GuestErrorReport, MadeOf, QueueReport};
use nicety_daemon::saved::{PortState, SaveError};
use nicety_host::{List, kind_of};
use nicety_vfio_user::SavedInterrupts;
use tempfile::TempDir;

use super::api::{AddressList, DaemonView, FlowExportList, PortList, Problem, Restored, VmList, WishWord};
use super::body::{Changer, Large};
use super::*;
use axum::extract::FromRequest;

#[path = "fake_test.rs"]
mod fake;

pub(crate) use fake::{Fake, fabric};

/// A VM that runs here and is not protected, and one that is not here.
fn vms() -> Vec<VmReport> {
    let absent =
        VmReport { name: "db".into(), state: "absent".into(), peer: "host2:7001".into(), ..VmReport::default() };
    let why_not = Some("the twin's host is silent".to_owned());
    let web = VmReport { name: "web".into(), role: VmRole::Owner, state: "alone".into(), why_not, ..absent.clone() };
    vec![absent, web]
}

/// One whose collector is away, with a reason that is no markup.
fn flow_exports() -> Vec<FlowExportReport> {
    vec![FlowExportReport {
        name: "noc".into(),
        collector: "tcp:10.0.0.9:4739".into(),
        of: Some(vec!["vm0".into()]),
        sampling: 10,
        records: 40_000,
        templates: 3,
        lost: 1,
        lost_by_port: BTreeMap::from([("vm0".into(), 1)]),
        displaced: 2,
        away: Some("<b>".into()),
    }]
}

fn state() -> PortState {
    let content = (1_u64, vec![0xff_u8; 300], SavedInterrupts::default());
    PortState::from_bytes(&nicety_adapter::snapshot::encode("nicety-port", 1, &content)).unwrap()
}

/// The bytes in reports, as a daemon notes them.
pub(crate) fn carried(ports: &[PortReport], note: &mut NoteBytes<'_>) {
    for port in ports {
        let sum = |queues: &[QueueReport]| queues.iter().map(|queue| queue.bytes).sum();
        note(&port.name, None, [sum(&port.transmit), sum(&port.receive)]);
        let mut classes = BTreeMap::<&str, [u64; 2]>::new();
        for (way, of) in [&port.io_classes, &port.inward_classes].into_iter().enumerate() {
            of.iter().for_each(|class| classes.entry(&class.name).or_default()[way] = class.bytes);
        }
        classes.into_iter().for_each(|(class, bytes)| note(&port.name, Some(class), bytes));
    }
}

pub(crate) fn port(name: &str) -> PortReport {
    PortReport {
        name: name.to_owned(),
        adapter: Some("e1000".into()),
        mac: Some("52:54:00:12:34:01".into()),
        socket: Some("/run/vm.sock".into()),
        made_of: Some(MadeOf {
            queues: None,
            mtu: None,
            rom: false,
            vmware_subsystem: false,
            standby: false,
            device_state: false,
            role: Default::default(),
            mapped: false,
            buffer: 1 << 20,
            access: "mode 0600".into(),
        }),
        port_group: None,
        function: None,
        origin: None,
        policy: BTreeMap::new(),
        multicasts: Vec::new(),
        workers: Vec::new(),
        members: None,
        io_classes: Vec::new(),
        inward_classes: Vec::new(),
        mirror: None,
        mirrored_to: Vec::new(),
        not_kept: None,
        neighbour: None,
        condition: Condition::Up,
        sentence: "a VM is attached, and its driver is up".into(),
        last_end: None,
        features: vec!["tso4".into()],
        transmit: Vec::new(),
        receive: Vec::new(),
        transmit_drops: BTreeMap::new(),
        receive_drops: BTreeMap::from([("no-buffer".to_owned(), 3)]),
        taken: 0,
        interrupts: 1,
        signals: 1,
        register_reads: 2,
        register_writes: 3,
        bad_accesses: 0,
        guest_errors: 0,
        last_guest_errors: vec![GuestErrorReport {
            number: 3,
            microseconds: 5_000_000,
            unix_milliseconds: 1_700_000_005_000,
            times: 1,
            place: "TDT (bar0 0x3818)".into(),
            value: Some("0x200".into()),
            expected: "a tail within the ring (TDT below TDLEN / 16)".into(),
        }],
        refused_dma_reads: 0,
        refused_dma_writes: 0,
        last_refused_dma: None,
        memory_changes: 0,
        backlog_frames: 0,
        backlog_bytes: 0,
        allocated_bytes: 0,
    }
}

/// The path of the default control socket. Its folder is made later.
fn below(dir: &TempDir) -> PathBuf {
    dir.path().join("nicety/switch0.sock")
}

fn start(dir: &TempDir, inspect: Arc<dyn Inspect>) -> Result<Control, ControlError> {
    let text = "[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";
    let host = Host::parse(text, Path::new("/etc/host.toml")).unwrap();
    Control::start(prepare(&host, &below(dir))?, Path::new("/etc/host.toml"), inspect)
}

/// A control socket in this test's own folder. Dropping it removes both.
struct Scratch {
    dir: TempDir,
    control: Control,
}

impl Scratch {
    fn new(ports: usize) -> Self {
        let dir = TempDir::new().unwrap();
        let control = start(&dir, Arc::new(Fake(ports))).unwrap();
        Self { dir, control }
    }

    fn path(&self) -> PathBuf {
        below(&self.dir)
    }

    /// Sends these bytes, closes the client's half, and returns the reply.
    fn raw(&self, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.path()).unwrap();
        // The server may answer a long request and close before the whole request is written.
        let _ = stream.write_all(request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// The problem in the answer to a request.
    fn problem(&self, head: &str, body: &str) -> Problem {
        let length = body.len();
        let reply = self.raw(
            format!("{head} HTTP/1.1\r\nhost: n\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
                .as_bytes(),
        );
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {reply:?}"));
        assert!(head.contains("content-type: application/problem+json"), "{head}");
        let problem: Problem = serde_json::from_str(body).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {} ", problem.status)), "{head}");
        problem
    }
}

#[test]
fn a_client_gets_what_it_asks_for() {
    let scratch = Scratch::new(2);
    let host = PathBuf::from("/etc/host.toml");
    // Guest errors are listed for a single port only.
    let brief = |name| PortReport { last_guest_errors: Vec::new(), ..port(name) };
    let ports = vec![brief("vm0"), brief("vm1")];
    assert_eq!(ask(&scratch.path(), Ask::Ports).unwrap(), Reply::Ports(PortList { host: host.clone(), ports }));
    let one = ask(&scratch.path(), Ask::Port { name: "vm1".into() }).unwrap();
    assert_eq!(one, Reply::Port(Box::new(port("vm1"))));
    let none = ask(&scratch.path(), Ask::Port { name: "vm9".into() }).unwrap_err();
    assert_eq!(none.to_string(), "there is no port \"vm9\"; did you mean \"vm0\"? (there are: vm0, vm1)");
    let none = ask(&scratch.path(), Ask::Port { name: "gate/way ü?".into() }).unwrap_err();
    assert_eq!(none.to_string(), "there is no port \"gate/way ü?\" (there are: vm0, vm1)");
    let learned = ask(&scratch.path(), Ask::Addresses).unwrap();
    assert!(matches!(learned, Reply::Addresses(AddressList { addresses, more: 0 }) if addresses.len() == 1));
    let Reply::Version(daemon) = ask(&scratch.path(), Ask::Version).unwrap() else { panic!() };
    let (program, pid) = (nicety_version::BUILD.to_owned(), std::process::id());
    assert_eq!(daemon, DaemonView { program, pid, host, starting: false, after_restart: Vec::new(), waiting: None });
}

#[test]
fn a_port_is_saved_as_bytes_and_restored_from_them() {
    let scratch = Scratch::new(2);
    let Reply::Saved(saved) = ask(&scratch.path(), Ask::Save { name: "vm0".into() }).unwrap() else { panic!() };
    assert_eq!(PortState::from_bytes(&saved), Ok(state()));
    let restore = |name: &str, state: &[u8]| {
        ask(&scratch.path(), Ask::Restore { name: name.into(), state: state.to_vec() })
            .map_err(|error| error.to_string())
    };
    assert_eq!(restore("vm0", &saved), Ok(Reply::Restored(Restored { name: "vm0".into() })));
    let damaged = Err("the saved state is damaged or cut short".to_owned());
    assert_eq!([restore("vm0", &saved[..99]), restore("vm0", b"")], [damaged.clone(), damaged]);
    assert!(restore("vm1", &saved).unwrap_err().starts_with("the port is in use"));
    let kind = |head: &str| {
        let Problem { r#type, status, .. } = scratch.problem(head, "");
        (status, r#type.trim_start_matches("/v1/problems/").to_owned())
    };
    assert_eq!(kind("POST /v1/ports/vm1/save"), (409, "not-saved".to_owned()));
    assert_eq!(kind("POST /v1/ports/vm9/save"), (404, "no-such-port".to_owned()));
    assert_eq!(kind("POST /v1/ports/vm0/restore"), (422, "no-state".to_owned()));
    assert_eq!(kind("GET /v1/ports/vm0/save"), (405, "method-not-allowed".to_owned()), "it stops the port");
}

#[test]
fn vms_are_listed_and_a_wish_is_fulfilled_or_refused_with_a_sentence() {
    let scratch = Scratch::new(0);
    assert_eq!(ask(&scratch.path(), Ask::Vms).unwrap(), Reply::Vms(VmList { vms: vms() }));
    let flows = Reply::FlowExports(FlowExportList { flow_exports: flow_exports() });
    assert_eq!(ask(&scratch.path(), Ask::FlowExports).unwrap(), flows);
    let wish = |name: &str, wish| {
        ask(&scratch.path(), Ask::Wish { name: name.into(), wish }).map_err(|error| error.to_string())
    };
    let web = Ok(Reply::Vm(Box::new(vms()[1].clone())));
    assert_eq!([wish("web", WishWord::Stop), wish("web", WishWord::Protect)], [web.clone(), web]);
    let refused = "the VM is not protected: the twin's host is silent";
    assert_eq!(wish("web", WishWord::Failover), Err(refused.to_owned()));
    assert_eq!(wish("mail", WishWord::Stop), Err("there is no [[vm]] \"mail\" (there are: db, web)".to_owned()));
    let problem = |head: &str| {
        let Problem { r#type, status, detail, .. } = scratch.problem(head, "");
        (status, r#type.trim_start_matches("/v1/problems/").to_owned(), detail)
    };
    assert_eq!(problem("POST /v1/vms/web/failover"), (409, "not-protected".to_owned(), refused.to_owned()));
    let elsewhere = "the VM db does not run here: ask at the other host";
    assert_eq!(problem("POST /v1/vms/db/stop"), (409, "not-protected".to_owned(), elsewhere.to_owned()));
    let (status, kind, detail) = problem("POST /v1/vms/mail/stop");
    assert_eq!((status, kind.as_str()), (404, "no-such"), "{detail}");
    let (status, kind, detail) = problem("POST /v1/vms/web/restart");
    assert_eq!((status, kind.as_str()), (400, "malformed-request"), "{detail}");
    assert!(detail.contains("protect") && detail.contains("stop") && detail.contains("failover"), "{detail}");
    assert_eq!(problem("GET /v1/vms/web/stop").0, 405, "it changes the VM");
}

/// A daemon whose restore of `vm1` lasts until it is told to go on.
struct Slow {
    begun: mpsc::Sender<()>,
    goes_on: Mutex<mpsc::Receiver<()>>,
}

impl Inspect for Slow {
    fn is_ready(&self) -> bool {
        true
    }

    fn ports(&self) -> Vec<PortReport> {
        Fake(2).ports()
    }

    fn carried(&self, note: &mut NoteBytes<'_>) {
        Fake(2).carried(note);
    }

    fn addresses(&self) -> AddressList {
        Fake(2).addresses()
    }

    fn restart(&self, name: &str) -> Result<(), RestartError> {
        Fake(2).restart(name)
    }

    fn save(&self, name: &str) -> Result<PortState, SaveError> {
        Fake(2).save(name)
    }

    fn restore(&self, name: &str, _: PortState) -> Result<(), SaveError> {
        if name == "vm1" {
            self.begun.send(()).unwrap();
            self.goes_on.lock().unwrap().recv().unwrap();
        }
        Ok(())
    }
}

/// Parsing a long body takes many times its size in memory, so there is one at a time. A connection ends after a minute, but the work for
/// it goes on.
#[test]
fn a_long_body_whose_client_has_gone_keeps_its_turn_until_the_work_with_it_is_done() {
    // It is dropped last: it waits for the work, which ends when `go` is dropped.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let ((begun, has_begun), (go, goes_on)) = (mpsc::channel(), mpsc::channel());
    let served = Arc::new(Served {
        host: PathBuf::from("/etc/host.toml"),
        inspect: Arc::new(Slow { begun, goes_on: Mutex::new(goes_on) }),
        changers: Changers::new(&Access::default(), None),
        waits: Notify::new(),
        paused: tokio::sync::watch::Sender::new(false),
        handed_over: std::sync::Mutex::default(),
        large: Arc::new(Semaphore::new(1)),
    });
    runtime.block_on(async {
        let request = axum::extract::Request::new(axum::body::Body::from(state().to_bytes()));
        let body = Large::from_request(request, &served).await.map_err(|problem| problem.detail.clone()).unwrap();
        let of = Ok(axum::extract::Path("vm1".to_owned()));
        let work = routes::restore_port(axum::extract::State(Arc::clone(&served)), Changer(None), of, body);
        assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err(), "the client is gone");
        has_begun.recv_timeout(TIMEOUT * 9).unwrap();
        assert_eq!(served.large.available_permits(), 0, "its bytes are still there");
        go.send(()).unwrap();
        // The next one has its turn.
        let next = tokio::time::timeout(TIMEOUT * 9, served.large.acquire()).await;
        assert!(next.is_ok());
    });
}

#[test]
fn who_asks_before_the_ports_are_there_is_told_so_and_of_no_ports() {
    let dir = TempDir::new().unwrap();
    let _control = start(&dir, Arc::new(Soon::default())).unwrap();
    for early in [Ask::Ports, Ask::Port { name: "vm1".into() }, Ask::Addresses, Ask::Export] {
        let error = ask(&below(&dir), early).unwrap_err();
        assert!(matches!(error, AskError::Starting(_)), "{error}");
        assert_eq!(error.to_string(), "the daemon is still starting: ask again in a moment");
    }
    assert!(matches!(ask(&below(&dir), Ask::Version).unwrap(), Reply::Version(DaemonView { starting: true, .. })));
}

#[test]
fn the_wire_is_http_and_json() {
    let scratch = Scratch::new(0);
    let reply = scratch.raw(b"GET /v1/ports HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"), "{reply}");
    assert!(reply.ends_with("\r\n\r\n{\"host\":\"/etc/host.toml\",\"ports\":[]}"), "{reply}");
}

#[test]
fn the_openapi_document_names_every_path_and_type() {
    let scratch = Scratch::new(0);
    let reply = scratch.raw(b"GET /v1/openapi.json HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n");
    let (_, body) = reply.split_once("\r\n\r\n").unwrap();
    let document: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    assert_eq!(
        paths,
        [
            "/v1/addresses",
            "/v1/captures",
            "/v1/cards",
            "/v1/cards/{name}",
            "/v1/cards/{name}/reset",
            "/v1/classes",
            "/v1/classes/{uplink}/{name}",
            "/v1/classes/{uplink}/{name}/ports/{port}",
            "/v1/confirm",
            "/v1/daemon",
            "/v1/fabric",
            "/v1/fabric/places/{mac}",
            "/v1/flow_exports",
            "/v1/flow_exports/{name}",
            "/v1/groups",
            "/v1/groups/{name}",
            "/v1/host",
            "/v1/host/plan",
            "/v1/host/saved",
            "/v1/metrics",
            "/v1/mirrors",
            "/v1/mirrors/{name}",
            "/v1/openapi.json",
            "/v1/ports",
            "/v1/ports/{name}",
            "/v1/ports/{name}/restart",
            "/v1/ports/{name}/restore",
            "/v1/ports/{name}/save",
            "/v1/teams",
            "/v1/teams/{name}",
            "/v1/threads",
            "/v1/trace",
            "/v1/undo",
            "/v1/upgrade",
            "/v1/uplinks",
            "/v1/uplinks/{name}",
            "/v1/vms",
            "/v1/vms/{name}/{wish}"
        ]
    );
    let named = |reference: &str| document.pointer(reference.trim_start_matches('#')).is_some();
    let references: Vec<&str> = body.split("\"$ref\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(references.len() > 50 && references.iter().all(|reference| named(reference)), "{references:?}");
    let port = &document["components"]["schemas"]["PortReport"]["properties"];
    let whole = serde_json::to_value(self::port("vm0")).unwrap();
    assert!(whole.as_object().unwrap().keys().all(|key| port.get(key).is_some()), "{port}");
}

/// The schemas of the served OpenAPI document.
fn schemas() -> serde_json::Value {
    let scratch = Scratch::new(0);
    let reply = scratch.raw(b"GET /v1/openapi.json HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n");
    let (_, body) = reply.split_once("\r\n\r\n").unwrap();
    let document: serde_json::Value = serde_json::from_str(body).unwrap();
    document["components"]["schemas"].clone()
}

#[test]
fn each_key_of_a_port_group_or_uplink_has_its_schema_and_each_schema_its_key() {
    let schemas = schemas();
    for (list, new, change) in [
        (List::Ports, "NewPort", "PortChange"),
        (List::Groups, "NewGroup", "GroupChange"),
        (List::Uplinks, "NewUplink", "UplinkChange"),
        (List::Cards, "NewCard", "CardChange"),
        (List::Teams, "NewTeam", "TeamChange"),
        (List::Mirrors, "NewMirror", "MirrorChange"),
        (List::FlowExports, "NewFlowExport", "FlowExportChange"),
        (List::Classes, "NewClass", "ClassChange"),
    ] {
        let keys: Vec<&str> = kind_of(list).keys.iter().map(|key| key.name).collect();
        let properties = |name: &str| -> Vec<String> {
            let properties = schemas[name]["properties"].as_object().unwrap();
            assert!(properties.values().all(|schema| !schema["description"].as_str().unwrap().is_empty()), "{name}");
            assert_eq!(schemas[name]["additionalProperties"], false, "{name}");
            properties.keys().cloned().collect()
        };
        let sorted = |mut keys: Vec<&str>| {
            keys.sort_unstable();
            keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>()
        };
        let mut found = properties(new);
        found.sort();
        assert_eq!(found, sorted(keys.clone()), "{new}");
        let mut found = properties(change);
        found.sort();
        assert_eq!(found, sorted(keys.into_iter().filter(|key| !list.names().contains(key)).collect()), "{change}");
    }
    // By docs/host-file.md.
    let port = &schemas["NewPort"];
    assert_eq!(port["required"], serde_json::json!(["name", "adapter", "mac", "socket"]));
    let vlan = &port["properties"]["vlan"];
    assert_eq!((&vlan["minimum"], &vlan["maximum"]), (&1.into(), &4094.into()));
    assert_eq!(vlan["type"], serde_json::json!(["integer", "null"]));
    assert_eq!(port["properties"]["mode"]["enum"], serde_json::json!(["0600", "0660", "0666", null]));
    assert_eq!(port["properties"]["standby"]["type"], serde_json::json!(["boolean", "null"]));
    assert_eq!(port["properties"]["socket"]["maxLength"], 107);
    assert!(port["properties"]["send_average"]["pattern"].as_str().unwrap().contains("Mbit/s"));
    assert_eq!(schemas["NewUplink"]["required"], serde_json::json!(["kind"]));
    assert_eq!(schemas["UplinkChange"].get("required"), None);
}

#[test]
fn a_reply_longer_than_a_sockets_buffer_arrives_whole() {
    let scratch = Scratch::new(1023);
    let Reply::Ports(PortList { ports, .. }) = ask(&scratch.path(), Ask::Ports).unwrap() else { panic!() };
    assert_eq!(ports.len(), 1023);
}

#[test]
fn what_is_no_request_is_answered_with_a_problem_of_its_kind() {
    let scratch = Scratch::new(1);
    let kind = |head: &str, body: &str| {
        let Problem { r#type, status, .. } = scratch.problem(head, body);
        (status, r#type.trim_start_matches("/v1/problems/").to_owned())
    };
    let is = |status: u16, kind: &str| (status, kind.to_owned());
    assert_eq!(kind("GET /", ""), is(404, "not-found"));
    assert_eq!(kind("GET /v2/ports", ""), is(404, "not-found"));
    assert_eq!(kind("GET /v1/ports/vm9", ""), is(404, "no-such-port"));
    assert_eq!(kind("GET /v1/ports/%ff", ""), is(400, "malformed-request"));
    assert_eq!(kind("DELETE /v1/ports", ""), is(405, "method-not-allowed"));
    assert_eq!(kind("POST /v1/ports/vm1/restart", ""), is(409, "not-restarted"));
    assert_eq!(kind("POST /v1/ports/vm7/restart", ""), is(404, "no-such-port"));
    // This daemon serves no host file.
    assert_eq!(kind("GET /v1/host", ""), is(409, "refused"));
    assert_eq!(kind("POST /v1/ports", "{}"), is(409, "refused"));
}

#[test]
fn garbage_and_half_a_request_harm_nobody() {
    let scratch = Scratch::new(1);
    for request in [
        b"\n".as_slice(),
        b"hello\n",
        b"\0\xff\xfe\n",
        b"{\"version\":1,\"request\":\"ports\"}\n",
        b"GET /v1/ports HTTP/1.1\r\n",
        b"GET /v1/ports HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"",
        b"POST /v1/ports HTTP/1.1\r\nhost: n\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/ports HTTP/1.1\r\nhost: n\r\ncontent-length: 99\r\n\r\n{",
        b"POST /v1/ports HTTP/1.1\r\nhost: n\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        &[b"GET /".as_slice(), &[b'a'; 100_000], b" HTTP/1.1\r\n\r\n"].concat(),
        &[b'x'; 1_000_000],
    ] {
        let reply = scratch.raw(request);
        assert!(!reply.contains(" 200 "), "{reply}");
        assert!(ask(&scratch.path(), Ask::Version).is_ok());
    }
}

#[test]
fn a_body_that_is_too_large_is_refused_before_it_has_come() {
    let scratch = Scratch::new(1);
    let head =
        format!("PUT /v1/host HTTP/1.1\r\nhost: n\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", REQUEST_MAX + 1);
    let mut client = UnixStream::connect(scratch.path()).unwrap();
    client.write_all(head.as_bytes()).unwrap();
    let begun = Instant::now();
    let piece = vec![b' '; 1 << 20];
    while client.write_all(&piece).is_ok() && begun.elapsed() < TIMEOUT * 9 {}
    assert!(begun.elapsed() < TIMEOUT * 9, "it is read no further");
    assert!(ask(&scratch.path(), Ask::Version).is_ok());
}

#[test]
fn a_client_that_sends_a_body_that_is_too_large_reads_the_answer() {
    let scratch = Scratch::new(1);
    for (path, most) in [("PUT /v1/host", REQUEST_MAX), ("POST /v1/trace", 256 << 10)] {
        let mut client = UnixStream::connect(scratch.path()).unwrap();
        let head =
            format!("{path} HTTP/1.1\r\nhost: n\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", most + (4 << 20));
        client.write_all(head.as_bytes()).unwrap();
        client.write_all(&vec![b' '; most + (4 << 20)]).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains(&most.to_string()), "{path}: {answer}");
    }
}

#[test]
fn a_host_file_is_read_when_the_one_before_it_has_gone() {
    let scratch = Scratch::new(1);
    let begun = Instant::now();
    let mut first = UnixStream::connect(scratch.path()).unwrap();
    first.write_all(b"PUT /v1/host HTTP/1.1\r\nhost: n\r\nconnection: close\r\ncontent-length: 9\r\n\r\n{").unwrap();
    // Clients are served in order. The daemon waits for the first one as long as a body may take. Then it finds no host file to
    // change.
    assert_eq!(scratch.problem("PUT /v1/host", "{}").status, 409);
    assert!(begun.elapsed() >= TIMEOUT, "{:?}", begun.elapsed());
    let mut answer = String::new();
    let _reset = first.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

#[test]
fn who_says_nothing_or_half_is_hung_up_on_after_a_second() {
    let scratch = Scratch::new(1);
    for half in ["", "GET /v1/ports HTTP/1.1\r\nho", "POST /v1/ports HTTP/1.1\r\nhost: n\r\ncontent-length: 9\r\n\r\n{"]
    {
        let mut silent = UnixStream::connect(scratch.path()).unwrap();
        let begun = Instant::now();
        silent.write_all(half.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _reset = silent.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(begun.elapsed() >= TIMEOUT && begun.elapsed() < TIMEOUT * 9, "{half:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn however_many_say_nothing_or_take_no_answer_the_next_one_is_answered() {
    let scratch = Scratch::new(1000);
    let come = |say: &[u8]| {
        let mut client = UnixStream::connect(scratch.path()).unwrap();
        client.write_all(say).unwrap();
        client
    };
    // Three times as many as may connect at once. One after another they would take a second each.
    let silent: Vec<UnixStream> = (0..2 * clients::CONNECTIONS_MAX).map(|_| come(b"GET /v1/po")).collect();
    let mut unread = come(b"GET /v1/ports HTTP/1.1\r\nhost: n\r\n\r\n");
    let begun = Instant::now();
    assert!(ask(&scratch.path(), Ask::Ports).is_ok());
    assert!(begun.elapsed() < TIMEOUT * 9, "{:?}", begun.elapsed());
    let mut first = &silent[0];
    assert_eq!(first.read(&mut [0; 1]).unwrap_or(0), 0, "it made room");
    // The server had begun to answer this client, which was perhaps too slow.
    assert!(unread.read(&mut [0; 1]).unwrap() > 0);
}

#[test]
fn ten_thousand_requests_are_answered_on_few_connections_and_on_many() {
    let scratch = Scratch::new(1);
    let mut client = UnixStream::connect(scratch.path()).unwrap();
    let mut answered = 0;
    for _ in 0..100 {
        // A hundred requests at once, and their answers.
        let many = b"GET /v1/addresses HTTP/1.1\r\nhost: n\r\n\r\n".repeat(100);
        client.write_all(&many).unwrap();
        let mut received = Vec::new();
        while received.windows(4).filter(|four| four == b" 200").count() < 100 {
            let mut piece = [0; 65536];
            let count = client.read(&mut piece).unwrap();
            assert!(count > 0, "it ended after {answered}");
            received.extend_from_slice(&piece[..count]);
        }
        answered += 100;
    }
    assert_eq!(answered, 10_000);
    for _ in 0..1000 {
        assert!(ask(&scratch.path(), Ask::Version).is_ok());
    }
}

#[test]
fn who_may_change_is_told_by_user_and_group() {
    let peer = |uid, gid| Some(nicety_socket::PeerCredentials { pid: 1, uid, gid });
    let owner = nicety_socket::Account { id: 4242, name: "keeper".into() };
    let access = Access { owner: Some(owner), group: None, mode: 0o660 };
    let changers = Changers::new(&access, Some((5151, "keepers".into())));
    let us = rustix::process::geteuid().as_raw();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for (who, may) in [
        (peer(0, 0), true),
        (peer(us, 9999), true),
        (peer(4242, 9999), true),
        (peer(7777, 5151), true),
        (peer(7777, 9999), false),
        (None, false),
    ] {
        assert_eq!(runtime.block_on(changers.include(who)), Ok(may), "{who:?}");
    }
    let answer = changers.refusal(peer(7777, 9999));
    assert_eq!(
        answer,
        "user 7777 may read, and not change: be root, the daemon's user or the socket's owner, or be in group keepers"
    );
    // A user whose second group counts: root is in group 0.
    let none = Changers::new(&Access::default(), None);
    assert_eq!(runtime.block_on(none.include(peer(7777, 0))), Ok(false));
    assert!(Changers::new(&Access::default(), None).refusal(None).contains("control_change_group"));
}

/// As with a directory service behind nsswitch.conf(5) that has gone.
#[test]
fn a_user_whose_groups_the_system_does_not_tell_is_answered_in_time_and_others_meanwhile() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let served = Served {
        host: PathBuf::from("/etc/host.toml"),
        inspect: Arc::new(Fake(1)),
        changers: Changers::new(&Access::default(), Some((5151, "keepers".into()))),
        waits: Notify::new(),
        paused: tokio::sync::watch::Sender::new(false),
        handed_over: std::sync::Mutex::default(),
        large: Arc::new(Semaphore::new(1)),
    };
    let peer = |uid| Some(nicety_socket::PeerCredentials { pid: 1, uid, gid: 9999 });
    runtime.block_on(async {
        let unanswered = Arc::clone(&served.changers.look_ups).acquire_owned().await.unwrap();
        let begun = Instant::now();
        let (late, ours) = tokio::join!(served.is_changer(peer(7777)), async {
            (served.is_changer(peer(0)).await.is_ok(), begun.elapsed())
        });
        let (late, waited) = (late.unwrap_err(), begun.elapsed());
        assert_eq!((late.status, late.r#type.as_str()), (503, "/v1/problems/groups-unknown"));
        assert_eq!(late.detail, "the system did not tell the groups of user 7777 (process 1) within 2s");
        assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(20), "{waited:?}");
        assert!(ours.0 && ours.1 < waited, "root waits for nobody: {ours:?}");
        drop(unanswered);
        assert_eq!(served.is_changer(peer(7777)).await.unwrap_err().status, 403, "this user has no account");
    });
}

#[test]
fn a_name_is_one_part_of_a_path_whatever_is_in_it() {
    let scratch = Scratch::new(1);
    for name in [".", "..", "../vm0", "vm0/restart", "vm0?cut_off=true", "vm0#x", "", "%76m0"] {
        let error = ask(&scratch.path(), Ask::Port { name: name.into() }).unwrap_err();
        assert!(matches!(error, AskError::Refused(_)), "{name:?}: {error}");
    }
}

#[test]
fn it_is_its_owners_only_and_gone_at_the_end() {
    let scratch = Scratch::new(0);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(scratch.path().parent().unwrap()), mode(&scratch.path())), (0o700, 0o600));
    let second = start(&scratch.dir, Arc::new(Fake(0))).unwrap_err();
    assert!(second.to_string().contains("is served by another process"), "{second}");
    let path = scratch.path();
    let waiting = UnixStream::connect(&path).unwrap();
    let Scratch { dir: _dir, control } = scratch;
    drop(control);
    drop(waiting);
    assert!(!path.exists());
    assert!(matches!(ask(&path, Ask::Version), Err(AskError::Nobody(_))));
}

#[test]
fn a_daemon_that_refuses_a_long_request_before_it_is_whole_is_heard() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("e.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    const TIMES: usize = 20;
    let server = std::thread::spawn(move || {
        let body = r#"{"type":"/v1/problems/may-only-read","title":"t","status":403,"detail":"no"}"#;
        for _ in 0..TIMES {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 100]).unwrap();
            let head = format!("HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + body).as_bytes()).unwrap();
        }
    });
    for _ in 0..TIMES {
        let long = Ask::Restore { name: "vm1".into(), state: vec![7; 8 << 20] };
        let error = ask(&path, long).unwrap_err();
        assert!(matches!(error, AskError::Refused(_)), "{error}");
    }
    server.join().unwrap();
}

#[test]
fn what_is_no_daemon_is_said_to_be_none() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("f.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(matches!(ask(&path, Ask::Ports), Err(AskError::Foreign { .. })));
    other.join().unwrap();
}

#[test]
fn a_daemon_that_hangs_is_not_waited_for_for_ever_whether_it_takes_connections_or_not() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("h.sock");
    let listener = nicety_socket::Listener::bind(&path).unwrap();
    // Clients that have disconnected stay in the queue until it is full.
    let answer: Vec<String> = (0..8)
        .map(|_| client::ask_within(&path, Ask::Version, Duration::from_millis(50)).unwrap_err().to_string())
        .collect();
    let (at, us) = (path.display(), std::process::id());
    let silent = format!("process {us} has the socket {at}, took the question, and sent no whole answer within 50ms");
    let full = format!("somebody has the socket {at}, and takes no connection: its queue was full for 50ms");
    assert_eq!((&answer[0], &answer[7]), (&silent, &full), "what was seen, and no guess why");
    drop(listener);
}

#[test]
fn what_is_no_socket_or_no_place_for_one_is_said() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(ask(&file, Ask::Version), Err(AskError::NoSocket(_))));
    let long = ask(&dir.path().join("x".repeat(120)), Ask::Version).unwrap_err();
    assert!(matches!(long, AskError::System { .. }) && long.to_string().contains("File name too long"), "{long}");
}
