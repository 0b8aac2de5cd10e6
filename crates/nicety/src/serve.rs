//! `nicety serve`: a host file's ports, until SIGTERM or Ctrl-C.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use nicety_daemon::attach::is_same;
use nicety_daemon::control::{self, Ask, Control, ControlError, Inspect, Reply};
use nicety_daemon::daemon::Daemon;
use nicety_daemon::descriptors;
use nicety_daemon::host::{Host, ReadError, UplinkKind};
use nicety_daemon::report::Soon;
use tracing::info;

use crate::cli::Serve;
use crate::exit::{Exit, Failure};
use crate::{log, output};

/// The person's folder for sockets, if the system has one.
fn runtime_dir() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute())
}

/// Where the daemon of a host file is asked.
pub fn control_of(host: &Host) -> Result<PathBuf, Failure> {
    host.control(runtime_dir().as_deref()).map_err(Failure::with(Exit::Usage))
}

/// Runs it. A failure that comes when there is a log is told at the log's end.
pub fn run(args: &Serve) -> Result<ExitCode, Failure> {
    let host = Host::read(&args.host)?;
    let socket = control_of(&host)?;
    host.leaves_room(&args.host, &socket, args.record.as_deref()).map_err(ReadError::Wrong)?;
    let asked = log::filter::asked()?;
    if args.check {
        output::print(&summary(&host, &socket))?;
        return Ok(ExitCode::SUCCESS);
    }
    let log = log::start(asked)?;
    Ok(match serve(&host, &socket, args.record.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            log.end(failure.message);
            failure.exit.into()
        }
    })
}

fn serve(host: &Host, socket: &Path, record: Option<&Path>) -> Result<(), Failure> {
    descriptors::provide(host.ports.len(), host.daemon.workers).map_err(Failure::with(Exit::Failed))?;
    let soon = Arc::new(Soon::default());
    let control = Control::start(socket, &host.path, Arc::clone(&soon) as Arc<dyn Inspect>);
    let control = control.map_err(|error| unheld(error, host, socket))?;
    let ready = |daemon: &Arc<Daemon>| {
        soon.runs(daemon);
        let (file, version) = (host.path.display(), env!("CARGO_PKG_VERSION"));
        let (switch, ports, control) = (&host.switch.name, host.ports.len(), socket.display());
        info!(switch, ports, %control, %file, version, "all sockets are ready");
    };
    let served = nicety_daemon::serve::serve(host, record, ready).map_err(Failure::with(Exit::Failed));
    drop(control);
    served.map(|_signal| ())
}

/// Why there is no control socket. If a daemon has it, that says who it is.
fn unheld(error: ControlError, host: &Host, socket: &Path) -> Failure {
    let served = error.is_taken().then(|| control::ask(socket, Ask::Version).ok()).flatten();
    let Some(Reply::Version { pid, host: served, .. }) = served else { return Failure::new(Exit::Failed, error) };
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

/// What a host file asks for, for a person to check.
fn summary(host: &Host, control: &Path) -> String {
    let uplink = match host.uplink.as_ref().map(|uplink| (&uplink.kind, uplink.rate)) {
        None => "no uplink".to_owned(),
        Some((kind, rate)) => {
            let kind = match kind {
                UplinkKind::Tap { name } => format!("tap {name}"),
                UplinkKind::Pair { socket, role } => format!("pair {} ({role})", socket.display()),
                UplinkKind::Stream { socket, role } => format!("stream {} ({role})", socket.display()),
                UplinkKind::Capture { file } => format!("capture {}", file.display()),
                UplinkKind::Null => "null".to_owned(),
            };
            let rate = rate.map(|rate| format!(", {rate} both ways")).unwrap_or_default();
            format!("uplink {kind}{rate}")
        }
    };
    let head = format!(
        "switch {}, {} addresses, ageing {}; {uplink}; {}; control {}\n",
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
        ]
    });
    head + &output::columns(&rows.collect::<Vec<_>>())
}
