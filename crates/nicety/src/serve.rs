//! `nicety serve`: serves a host file's ports until SIGTERM or Ctrl-C.

use std::cell::OnceCell;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use nicety_control::api::DaemonView;
use nicety_control::{self as control, Ask, Bound, Control, ControlError, Inspect, Page, Recent, Reply, Soon};
use nicety_daemon::attach::is_same;
use nicety_daemon::daemon::Daemon;
use nicety_daemon::descriptors;
use nicety_daemon::fatal::fatal;
use nicety_daemon::handover::path_of;
use nicety_daemon::handover::take::Taking;
use nicety_daemon::live::Live;
use nicety_daemon::live::state::{Begin, Found};
use nicety_daemon::live::texts::Texts;
use nicety_daemon::protection::Terms;
use nicety_daemon::recorder::Target;
use nicety_daemon::registry::{Entry, Registry};
use nicety_daemon::serve::{Before, OpenedAhead, ServeError};
use nicety_daemon::signals::Ended;
use nicety_daemon::{sandbox, serve, signals};
use nicety_host::{
    AccessConfig, Eavesdropping, FlowExportConfig, Host, MirrorConfig, PortConfig, ReadError, Role, TunnelConfig,
    UplinkConfig, UplinkKind, in_one_line, link_words, policy_words,
};
use nicety_keeper::{Begins, Group, Holder, KeptBy, Opener, Start, give_administration_up};
use nicety_sandbox::Folders;
use nicety_socket::{ListenError, Listener, Place};
use nicety_uplink::{VxlanSettings, inner_mtu};
use tracing::{info, warn};

use crate::cli::Serve;
use crate::exit::{Exit, Failure};
use crate::find::control_of;
use crate::unit::{self, Lacks, Unit};
use crate::warnings::warnings;
use crate::{log, opens, output};

/// Runs it. After the log has started, a failure is written at its end.
pub fn run(args: &Serve) -> Result<ExitCode, Failure> {
    if args.opens {
        return opens::run(args);
    }
    if args.keeper {
        return keep(args);
    }
    if !args.kept {
        return begin(args, Begin::new(Host::read(&args.host)?), Vec::new(), None, Vec::new(), None);
    }
    let (kept, begins) = KeptBy::begin().map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("no keeper has started this process: {error}; start `nicety serve --keeper`"),
        )
    })?;
    let mut kept = Kept::new(kept)?;
    match begins {
        Begins::First(mut groups) => {
            let is_first = groups.is_empty();
            let (what, note, follows) = begin_again(args, &mut groups)?;
            kept.follows = follows;
            // After a kill VMs wait.
            let lacks = is_first.then(|| unit_lacks(&what.host)).flatten().map(|lacks| lacks.line());
            begin(args, what, note.into_iter().chain(lacks).collect(), Some(kept), groups, None)
        }
        Begins::Heir(channel) => {
            let taking = Taking::begin(channel).map_err(Failure::with(Exit::Failed))?;
            match taking.host() {
                Ok(host) => begin(args, host, Vec::new(), Some(kept), Vec::new(), Some(taking)),
                Err(errors) => {
                    let failure = Failure::from(ReadError::Wrong(errors));
                    taking.refuse(&failure.message);
                    Err(failure)
                }
            }
        }
    }
}

/// The keeper of this process.
struct Kept {
    by: KeptBy,
    holder: Arc<Holder>,
    /// Opens what this process has given the rights for up. `None`: the keeper is of an earlier version.
    opener: Option<Arc<Opener>>,
    /// A daemon of this keeper was killed, and this one serves what that one served.
    follows: bool,
}

impl Kept {
    fn new(by: KeptBy) -> Result<Self, Failure> {
        let failed = Failure::with(Exit::Failed);
        let holder = Arc::new(by.holder().map_err(&failed)?);
        let opener = by.opener().map_err(&failed)?.map(Arc::new);
        if let Some(opener) = &opener {
            nicety_sandbox::sockets_are_made_elsewhere();
            nicety_socket::made_by(Arc::clone(opener));
        }
        Ok(Self { by, holder, opener, follows: false })
    }

    /// Gives up the rights with which the keeper opens for this process: no thread has started yet. And a line for the log.
    fn give_up(&self) -> Option<String> {
        let kept = self.opener.as_ref().and_then(|_| give_administration_up().err());
        kept.map(|error| format!("the daemon keeps CAP_NET_ADMIN, which its keeper has for it: {error}"))
    }
}

/// The state of a killed daemon, if one has served with this keeper; else the host file. And a line for the log, and whether it is the former.
fn begin_again(args: &Serve, groups: &mut Vec<Group>) -> Result<(Begin, Option<String>, bool), Failure> {
    let why = match Texts::take(groups) {
        None => return Ok((Begin::new(Host::read(&args.host)?), None, false)),
        Some(Ok(texts)) => match texts.begin() {
            Ok(begin) => return Ok((begin, texts.unapplied(), true)),
            Err(errors) => in_one_line(&errors),
        },
        Some(Err(why)) => why,
    };
    let note =
        format!("this program does not understand what the killed daemon served, and serves the host file: {why}");
    Ok((Begin::new(Host::read(&args.host)?), Some(note), false))
}

/// Becomes the keeper: starts the daemon as a child, with the same arguments.
fn keep(args: &Serve) -> Result<ExitCode, Failure> {
    let program = std::env::current_exe().map_err(Failure::with(Exit::Failed))?;
    let arguments = vec!["serve".into(), args.host.clone().into()];
    let status = nicety_keeper::keep(&Start { program, arguments }).map_err(Failure::with(Exit::Failed))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(Exit::Failed as u8);
    Ok(ExitCode::from(code))
}

/// Begins to serve: anew, or with the ports of a daemon that this one replaces. `notes` are warnings for the log.
fn begin(
    args: &Serve,
    mut begin: Begin,
    mut notes: Vec<String>,
    kept: Option<Kept>,
    mut groups: Vec<Group>,
    taking: Option<Taking>,
) -> Result<ExitCode, Failure> {
    if !args.check
        && let Err(why) = begin.with_fabric()
    {
        notes.push(format!("the fabric's groups as they were last known are not in force: {why}"));
    }
    let host = &begin.host;
    let socket = taking.as_ref().and_then(Taking::control_path).map_or_else(|| control_of(host), Ok)?;
    host.leaves_room(&args.host, &socket, args.record.as_deref()).map_err(ReadError::Wrong)?;
    let asked = log::filter::asked()?;
    // Another daemon's queues of interfaces come with its other parts.
    let holder = kept.as_ref().map(|kept| &*kept.holder);
    let mut opened = match &taking {
        None if !args.check => serve::open_ahead(host, holder, &mut groups),
        _ => OpenedAhead::default(),
    };
    notes.append(&mut opened.notes);
    notes.extend(kept.as_ref().and_then(Kept::give_up));
    // Threads are confined from their start on: the log's is the first.
    if host.daemon.sandbox && !args.check {
        nicety_sandbox::begin().map_err(unconfined)?;
    }
    let recent = host.daemon.page.is_some().then(Arc::<Recent>::default);
    let log = log::start(asked, recent.clone())?;
    let recent = recent.unwrap_or_default();
    for note in notes {
        warn!("{note}");
    }
    if !host.daemon.sandbox && !args.check {
        warn!("the daemon's threads are not confined: sandbox = \"off\"");
    }
    if let Some(taking) = taking {
        let done = Heir { begin: &begin, socket: &socket, recent: &recent }.serve(taking, kept);
        return Ok(match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                log.end(&failure);
                failure.exit.into()
            }
        });
    }
    let prepared = Prepared::new(&begin, &socket, args, kept, groups, opened);
    let done = prepared
        .and_then(|prepared| if args.check { prepared.tell(&socket) } else { prepared.serve(&socket, &recent) });
    Ok(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            log.end(&failure);
            failure.exit.into()
        }
    })
}

/// The needs of this host file that its unit does not allow.
pub fn unit_lacks(host: &Host) -> Option<Lacks> {
    let unit = Unit::of(&host.path, Path::new("/"))?;
    unit::lacks(host, &unit)
}

/// The checked resources of a host file: `--check` ends with them, and serving begins with them.
struct Prepared<'a> {
    begin: &'a Begin,
    host: &'a Host,
    control: control::Prepared,
    ports: serve::Prepared<'a>,
    record: Option<&'a Path>,
    kept: Option<Kept>,
}

impl<'a> Prepared<'a> {
    fn new(
        begin: &'a Begin,
        socket: &Path,
        args: &'a Serve,
        kept: Option<Kept>,
        groups: Vec<Group>,
        opened: OpenedAhead,
    ) -> Result<Self, Failure> {
        let record = args.record.as_deref();
        let target = args.record.clone().map(if args.calls { Target::Calls } else { Target::Folder });
        let host = &begin.host;
        descriptors::provide(host.ports.len(), host.daemon.workers).map_err(Failure::with(Exit::Failed))?;
        let (control, ports) = if args.check {
            let control = control::check(host, socket);
            let is_beside = control.as_ref().is_ok_and(|control| control.served);
            (control, serve::check(host, target, is_beside))
        } else {
            let (holder, opener) = kept.as_ref().map(|kept| (Arc::clone(&kept.holder), kept.opener.clone())).unzip();
            let follows = kept.as_ref().is_some_and(|kept| kept.follows);
            let before = Before { opened, holder, opener: opener.flatten(), groups, follows };
            (control::prepare(host, socket), serve::prepare_from(host, target, before))
        };
        // Without the page VMs have their networks all the same.
        if let Ok(control::Prepared { page: Err(why), .. }) = &control
            && !args.check
        {
            warn!("the page is not served: {why}; `nicety serve --check` says what allows it");
        }
        match (control, ports) {
            (Ok(control), Ok(ports)) => {
                let control = control.accepted_by(kept.as_ref().and_then(|kept| kept.opener.clone()));
                Ok(Self { begin, host, control, ports, record, kept })
            }
            (Err(error), Ok(_)) => Err(Failure::new(Exit::Failed, error)),
            (Ok(_), Err(errors)) => Err(Failure::new(Exit::Failed, errors)),
            (Err(error), Err(errors)) => Err(Failure::new(Exit::Failed, format!("{error}\n{errors}"))),
        }
    }

    /// Reports the host file's contents, and obstacles that may be temporary.
    fn tell(self, socket: &Path) -> Result<(), Failure> {
        if self.control.served {
            let now = unheld(ListenError::InUse(socket.to_owned()).into(), self.host, socket);
            output::tell(format_args!("note: {}", now.message));
        }
        let page = self.host.daemon.page.iter().filter(|_| matches!(self.control.page, Ok(Place::Served)));
        let page = page.map(|page| format!("the page at {page}"));
        for served in page.chain(self.ports.served.iter().map(|path| path.display().to_string())) {
            output::tell(format_args!("note: {served} is served now: `nicety serve` begins when that has ended"));
        }
        if !matches!(self.begin.found, Found::Nothing) {
            output::tell(format_args!("note: {}", self.begin.found));
        }
        let undone = self.begin.undone().filter(|_| !matches!(self.begin.found, Found::Unconfirmed(..)));
        if let Some(undone) = undone.filter(|_| !self.control.served) {
            output::tell(format_args!("note: nobody has confirmed this, and a start undoes it: {undone}"));
        }
        if let Err(why) = &self.control.page {
            output::tell(format_args!("warning: the page is not served: {why}"));
        }
        for warning in warnings(self.host) {
            output::tell(format_args!("warning: {warning}"));
        }
        output::print(&summary(self.host, socket))?;
        match unit_lacks(&self.begin.file) {
            Some(lacks) => {
                // Lines to paste: without the program's name before each.
                output::print(&format!("\n{lacks}\n"))?;
                Err(Failure::new(
                    Exit::Failed,
                    format!("this host file cannot be served under {} as it is", lacks.unit),
                ))
            }
            None => Ok(()),
        }
    }

    fn serve(self, socket: &Path, recent: &Arc<Recent>) -> Result<(), Failure> {
        let soon = Arc::new(Soon::default());
        let page_fails = self.control.page.is_err();
        let control = Control::start(self.control, &self.host.path, Arc::clone(&soon) as Arc<dyn Inspect>);
        let mut control = control.map_err(|error| unheld(error, self.host, socket))?;
        let bound = if page_fails { Ok(None) } else { Bound::take(self.host) };
        let bound = bound.map_err(Failure::with(Exit::Failed))?;
        let mut page = start_page(bound, self.host, &soon, recent).map_err(Failure::with(Exit::Failed))?;
        let mut entry = None;
        report_kept_changes(self.begin);
        let ready = |daemon: &Arc<Daemon>| {
            let live = live(daemon, self.begin, &mut control, page.as_mut(), self.kept)?;
            page_in_force(&live, !page_fails);
            soon.runs(&live);
            entry = enter(self.host, &control);
            confine(&sandbox::folders(self.host, socket, self.record))?;
            tell_ready(self.host, socket);
            Ok(live)
        };
        let served = fatal(|| signals::serve(self.ports, ready)).map_err(Failure::with(Exit::Failed));
        if let Ok(Ended::HandedOver) = served {
            // Its socket's file is the successor's now.
            page.take().into_iter().for_each(Page::hand_over);
        }
        drop(page);
        ended(served, entry, control)
    }
}

/// A daemon that takes over the ports of another.
struct Heir<'a> {
    begin: &'a Begin,
    socket: &'a Path,
    /// The last lines of the log, for the page.
    recent: &'a Arc<Recent>,
}

impl Heir<'_> {
    fn serve(self, mut taking: Taking, kept: Option<Kept>) -> Result<(), Failure> {
        let Self { begin, socket, recent } = self;
        let (host, soon) = (&begin.host, Arc::new(Soon::default()));
        let (mut control, mut entry, mut page, taken) = (None, None, None, OnceCell::new());
        let (page_socket, mut left) = match taking.page() {
            Some(socket) if !Bound::is_at_place(host, &socket) => (None, Some(socket)),
            socket => (socket, None),
        };
        // One that the daemon before does not serve is bound before this process is confined.
        let new_page = page_socket.is_none().then(|| Bound::take(host));
        let prepared = || -> Result<_, String> {
            descriptors::provide(host.ports.len(), host.daemon.workers).map_err(|error| error.to_string())?;
            let control = control::again(host, socket).map_err(|error| error.to_string())?;
            let control = control.accepted_by(kept.as_ref().and_then(|kept| kept.opener.clone()));
            let daemon = taking.start(host)?;
            if let Some(kept) = &kept {
                daemon.keep_by(Arc::clone(&kept.holder));
                kept.opener.iter().for_each(|opener| daemon.open_by(Arc::clone(opener)));
            }
            confine(&sandbox::folders(host, socket, None)).map_err(|error| error.to_string())?;
            Ok((control, daemon))
        };
        let (prepared, daemon) = prepared().map_err(|why| {
            taking.refuse(&why);
            Failure::new(Exit::Failed, why)
        })?;
        let start = || {
            let _set_once = taken.set(taking.take(&daemon, host).map_err(ServeError::HandOver)?);
            Ok(daemon)
        };
        let ready = |daemon: &Arc<Daemon>| {
            let Some(taken) = taken.get() else { return Err(std::io::Error::other("no ports were taken")) };
            let inspect = Arc::clone(&soon) as Arc<dyn Inspect>;
            let socket_fd = taken.control.try_clone()?;
            let served = Control::go_on(prepared, socket_fd, &host.path, inspect).map_err(std::io::Error::other)?;
            let served = control.insert(served);
            let bound = new_page.unwrap_or_else(|| Bound::go_on(host, page_socket));
            page = page_again(bound, host, &soon, recent);
            let live = live(daemon, begin, served, page.as_mut(), kept)?;
            page_in_force(&live, page.is_some() || host.daemon.page.is_none());
            if control_of(host).is_ok_and(|wanted| wanted != *socket) {
                live.is_not_in_force("daemon.control");
            }
            left.take().into_iter().for_each(remove);
            soon.runs(&live);
            entry = enter(host, served);
            taken.tell();
            tell_ready(host, socket);
            Ok(live)
        };
        let served = fatal(|| signals::serve_by(start, ready)).map_err(Failure::with(Exit::Failed));
        if let Ok(Ended::HandedOver) = served {
            page.take().into_iter().for_each(Page::hand_over);
        }
        drop(page);
        match control {
            Some(control) => ended(served, entry, control),
            None => served.map(|_ended| ()),
        }
    }
}

/// The interface for changes. With a keeper, the daemon can be upgraded.
fn live(
    daemon: &Arc<Daemon>,
    begin: &Begin,
    control: &mut Control,
    page: Option<&mut Page>,
    kept: Option<Kept>,
) -> std::io::Result<Arc<Live>> {
    daemon.protect_vms(Terms::default()).map_err(std::io::Error::other)?;
    let Begin { host, file, state, .. } = begin;
    let live = Live::new(Arc::clone(daemon), host.clone(), file.clone(), state.clone());
    let live = Arc::new(match (kept, control.socket()) {
        (Some(Kept { by, .. }), Some(socket)) => {
            by.serves().map_err(std::io::Error::other)?;
            live.with_keeper(by, socket, page.and_then(Page::socket), std::env::current_exe()?)
        }
        _ => live,
    });
    Daemon::begin_fabric(&live)?;
    Ok(live)
}

/// Serves the page, if the host file wants that.
fn start_page(
    bound: Option<Bound>,
    host: &Host,
    soon: &Arc<Soon>,
    recent: &Arc<Recent>,
) -> Result<Option<Page>, ControlError> {
    let start = |bound| Page::start(bound, host, Arc::clone(soon) as Arc<dyn Inspect>, Arc::clone(recent));
    bound.map(start).transpose()
}

/// Goes on with the page of a daemon that this one replaces, or begins with it. Without it the ports are served all the same.
fn page_again(
    bound: Result<Option<Bound>, ControlError>,
    host: &Host,
    soon: &Arc<Soon>,
    recent: &Arc<Recent>,
) -> Option<Page> {
    let page = bound.and_then(|bound| start_page(bound, host, soon, recent));
    page.unwrap_or_else(|error| {
        warn!("the page is not served: {error}; `nicety serve --check` says whether its unit allows it");
        None
    })
}

/// Closes the socket of a page that was elsewhere, and removes its file.
fn remove(socket: OwnedFd) {
    let listener = path_of(&socket).and_then(|path| Listener::go_on(socket, path).ok());
    listener.into_iter().for_each(|mut listener| listener.own());
}

/// Reports a page that the host file asks for, and that is not served.
fn page_in_force(live: &Live, is_so: bool) {
    if !is_so {
        live.is_not_in_force("daemon.page");
    }
}

/// Lists the daemon, if the host file wants that.
fn enter(host: &Host, control: &Control) -> Option<Entry> {
    let entry = host.daemon.listed.then(|| Registry::here().enter(&host.switch.name, control.path()))?;
    entry.map_err(|error| warn!("`nicety ports` finds this daemon by its host file alone: {error}")).ok()
}

fn tell_ready(host: &Host, socket: &Path) {
    let (file, version) = (host.path.display(), nicety_version::BUILD);
    let (switch, ports, control) = (&host.switch.name, host.ports.len(), socket.display());
    info!(switch, ports, %control, %file, version, "all sockets are ready");
}

/// Removes what the daemon has made, unless another one uses it.
fn ended(served: Result<Ended, Failure>, entry: Option<Entry>, control: Control) -> Result<(), Failure> {
    if let Ok(Ended::HandedOver) = served {
        let _never_dropped = ManuallyDrop::new((entry, control));
        return Ok(());
    }
    // Before the socket: the successor's entry has the same name.
    drop(entry);
    drop(control);
    served.map(|_ended| ())
}

/// The error that this kernel cannot confine threads at all.
fn unconfined(why: std::io::Error) -> Failure {
    let words = format!("this kernel cannot confine the daemon's threads (seccomp): {why}; {}", nicety_sandbox::REMEDY);
    Failure::new(Exit::Failed, words)
}

/// Confines the rest of the process, now that everything is open.
fn confine(folders: &Folders) -> std::io::Result<()> {
    for folder in folders.missing() {
        warn!(
            "{} does not exist, and stays out of the daemon's reach: make that folder, and restart the daemon",
            folder.display()
        );
    }
    if let Some(lacks) = nicety_sandbox::confine(folders, u8::MAX)? {
        warn!("{lacks}");
    }
    Ok(())
}

/// Reports the live changes that were kept, and whether they were applied.
fn report_kept_changes(begin: &Begin) {
    match &begin.found {
        Found::Nothing => {}
        found @ Found::Taken(..) => info!("{found}"),
        found => warn!("{found}"),
    }
    if let Err(error) = begin.set_aside() {
        warn!("{} cannot be set aside: {error}", begin.state.path().display());
    }
    if let Some(undone) = begin.undone() {
        if !matches!(begin.found, Found::Unconfirmed(..)) {
            warn!("undone by this start, for nobody had confirmed it: {undone}");
        }
        if let Err(error) = begin.note_undone() {
            warn!("the next start says that again: {error}");
        }
    }
}

/// The error that there is no control socket. If a daemon has it, the error names that daemon.
fn unheld(error: ControlError, host: &Host, socket: &Path) -> Failure {
    let served = error.is_taken().then(|| control::ask(socket, Ask::Version).ok()).flatten();
    let Some(Reply::Version(DaemonView { pid, host: served, .. })) = served else {
        return Failure::new(Exit::Failed, error);
    };
    let (what, socket, served) = (served.display(), socket.display(), is_same(&host.path, &served));
    let message = if served {
        format!("a daemon serves {what} already: process {pid}, which answers at {socket}; end it first (kill {pid})")
    } else {
        format!(
            "the control socket {socket} is that of process {pid}, a daemon that serves {what}: if both are to be served, give their \
             switches different names, or name another control socket with [daemon] control"
        )
    };
    Failure::new(Exit::Failed, message)
}

/// An uplink's settings as text, for a person to check.
fn uplink(config @ UplinkConfig { name, kind, rate, .. }: &UplinkConfig) -> String {
    let what = match kind {
        UplinkKind::Tap { name, queues: 1 } => format!("tap {name}"),
        UplinkKind::Tap { name, queues } => format!("tap {name}, {queues} queues"),
        UplinkKind::Xdp { interface, queues: 1 } => format!("queue 0 of {interface} by AF_XDP"),
        UplinkKind::Xdp { interface, queues } => format!("{queues} queues of {interface} by AF_XDP"),
        UplinkKind::Pair { socket, role } => format!("pair {} ({role})", socket.display()),
        UplinkKind::Stream { socket, role } => format!("stream {} ({role})", socket.display()),
        UplinkKind::Vxlan(TunnelConfig { settings: VxlanSettings { address, port, mtu, .. }, .. }) => {
            format!("VXLAN from {address}, UDP port {port}, guests' MTU at most {}", inner_mtu(*mtu, *address))
        }
        UplinkKind::Capture { file } => format!("capture {}", file.display()),
        UplinkKind::Null => "null".to_owned(),
        UplinkKind::Querier => "querier".to_owned(),
    };
    let named = if name == kind.name() { String::new() } else { format!(" {name}:") };
    let team = config.team.iter().map(|team| format!(", in team {team}")).collect::<String>();
    let rate = rate.map(|rate| format!(", {rate} both ways")).unwrap_or_default();
    let mut policy = policy_words(&serve::policy(config));
    // Its kind tells the rest.
    policy.extend(link_words(config).into_iter().filter(|(key, _)| !["rate", "queues"].contains(&key.as_str())));
    let policy: String = policy.into_iter().map(|(key, value)| format!(", {key} {value}")).collect();
    format!("uplink{named} {what}{rate}{team}{policy}")
}

/// A port's group and policy, by the host file's keys.
fn policy(port: &PortConfig) -> String {
    let group = port.group.iter().map(|group| format!("port_group {group}"));
    let function = port.function.iter().map(|function| format!("card {}, function {}", function.card, function.number));
    let words = policy_words(&port.policy).into_iter().map(|(key, value)| format!("{key} {value}"));
    group.chain(function).chain(words).collect::<Vec<_>>().join(", ")
}

/// Contents of a host file, for a person to check.
fn summary(host: &Host, control: &Path) -> String {
    let uplinks: Vec<String> = host.uplinks.iter().map(uplink).collect();
    let uplink = if uplinks.is_empty() { "no uplink".to_owned() } else { uplinks.join(", ") };
    let page = host.daemon.page.iter().map(|page| format!("; page {page}")).collect::<String>();
    let head = format!(
        "switch {}, {} addresses, ageing {}; {uplink}; {}; control {}{page}\n",
        host.switch.name,
        host.switch.addresses,
        host.switch.ageing,
        output::count(host.daemon.workers as u64, "worker"),
        control.display()
    );
    let rows = host.ports.iter().map(|port| {
        vec![
            format!("port {}", port.name),
            port.entry.about.name.to_owned(),
            port.mac.to_string(),
            port.buffer.to_string(),
            port.socket.display().to_string(),
            match port.role {
                Role::Connect => "connects there".to_owned(),
                Role::Listen if port.access == AccessConfig::default() => String::new(),
                Role::Listen => port.access.to_string(),
            },
            policy(port),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return format!("{head}no ports yet: `nicety port add` adds them while it serves\n");
    }
    let mirrors: String = host.mirrors.iter().map(mirror).collect();
    let flows: String = host.flow_exports.iter().map(flow_export).collect();
    format!("{head}{}{mirrors}{flows}{}\n", output::columns(&rows), Eavesdropping::among(&host.ports))
}

/// The line of an export of flows.
fn flow_export(export: &FlowExportConfig) -> String {
    let FlowExportConfig { name, collector, ports, uplinks, sampling, .. } = export;
    let ports = ports.as_ref().map_or("all ports".to_owned(), |ports| ports.join(", "));
    let of: Vec<&str> = [&*ports].into_iter().chain(uplinks.iter().map(String::as_str)).collect();
    let of: Vec<&str> = of.into_iter().filter(|one| !one.is_empty()).collect();
    let sampled = if *sampling > 1 { format!(", one frame in {sampling}") } else { String::new() };
    format!("flows {name}: of {} to {collector}{sampled}\n", of.join(", "))
}

/// A mirror's line.
fn mirror(mirror: &MirrorConfig) -> String {
    let MirrorConfig { name, ports, uplinks, direction, to, rate } = mirror;
    let (of, direction) = ([&ports[..], uplinks].concat().join(", "), direction.word());
    format!("mirror {name}: copies of {of} ({direction}) to {to}, at most {rate}\n")
}
