//! `nicety serve`: a host file's ports, until SIGTERM or Ctrl-C.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nicety_daemon::attach::is_same;
use nicety_daemon::control::{self, Ask, Control, ControlError, Inspect, Reply};
use nicety_daemon::daemon::Daemon;
use nicety_daemon::descriptors;
use nicety_daemon::host::{Host, ReadError, UplinkKind, did_you_mean};
use nicety_daemon::report::Soon;
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::cli::Serve;
use crate::exit::{Exit, Failure};
use crate::output;

/// How much is logged.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// What it is logged as: by the crates that log.
const TARGETS: [&str; 2] = ["nicety", "nicety_daemon"];

/// The person's folder for sockets, if the system has one.
fn runtime_dir() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute())
}

/// Where the daemon of a host file is asked.
pub fn control_of(host: &Host) -> Result<PathBuf, Failure> {
    host.control(runtime_dir().as_deref()).map_err(Failure::with(Exit::Usage))
}

/// Runs it.
pub fn run(args: &Serve) -> Result<(), Failure> {
    let host = Host::read(&args.host)?;
    let socket = control_of(&host)?;
    host.leaves_room(&args.host, &socket, args.record.as_deref()).map_err(ReadError::Wrong)?;
    if args.check {
        return output::print(&summary(&host, &socket));
    }
    log()?;
    descriptors::provide(host.ports.len(), host.daemon.workers).map_err(Failure::with(Exit::Failed))?;
    let soon = Arc::new(Soon::default());
    let control = Control::start(&socket, &host.path, Arc::clone(&soon) as Arc<dyn Inspect>);
    let control = control.map_err(|error| unheld(error, &host, &socket))?;
    let ready = |daemon: &Arc<Daemon>| {
        soon.runs(daemon);
        let (file, version) = (host.path.display(), env!("CARGO_PKG_VERSION"));
        let (switch, ports, control) = (&host.switch.name, host.ports.len(), socket.display());
        info!(switch, ports, %control, %file, version, "all sockets are ready");
    };
    let served = nicety_daemon::serve::serve(&host, args.record.as_deref(), ready).map_err(Failure::with(Exit::Failed));
    drop(control);
    served.map(|_signal| ())
}

fn log() -> Result<(), Failure> {
    let asked = std::env::var("NICETY_LOG").ok().filter(|asked| !asked.is_empty());
    let asked = asked.unwrap_or_else(|| "info".to_owned());
    let wrong = |why: String| Failure::new(Exit::Usage, format!("NICETY_LOG={asked}: {why} (such as: info)"));
    if let Some(word) = asked.split(',').map(str::trim).find(|word| !is_directive(word)) {
        let levels = LEVELS.join(", ");
        return Err(wrong(format!("{word:?} is no level{}; there are: {levels}", did_you_mean(word, LEVELS))));
    }
    if let Some(target) = asked.split(',').map(str::trim).find_map(unheard) {
        let (meant, targets) = (did_you_mean(target, TARGETS), TARGETS.join(", "));
        return Err(wrong(format!("nothing is logged as {target:?}{meant}; there are: {targets}")));
    }
    let filter = EnvFilter::try_new(&asked).map_err(|error| wrong(error.to_string()))?;
    let terminal = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal);
    // A daemon outlives its terminal, and what cannot be written would be reported with `eprintln!`, which panics.
    log.with_target(false).log_internal_errors(false).try_init().map_err(|error| Failure::new(Exit::Failed, error))
}

/// A level, or a part of the program with one. The filter would take any other word for a part that there is not, and be silent.
fn is_directive(word: &str) -> bool {
    let level = word.to_lowercase();
    LEVELS.contains(&level.as_str()) || word.contains(['=', '[']) || word.starts_with("nicety")
}

/// The part of the program that a word of a filter names, if it is none of those that log. Their modules are not looked at.
fn unheard(word: &str) -> Option<&str> {
    let (target, level) = word.split_once('=').map_or((word, None), |(target, level)| (target.trim(), Some(level)));
    let is_level = level.is_none() && LEVELS.contains(&target.to_lowercase().as_str());
    let heard = |known: &str| {
        known.starts_with(target) || target.strip_prefix(known).is_some_and(|rest| rest.starts_with("::"))
    };
    // A filter by spans and fields has other signs.
    let plain = target.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ':'));
    (plain && !is_level && !TARGETS.iter().any(|known| heard(known))).then_some(target)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_that_logs_is_known_to_the_filter() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut logging = Vec::new();
        for folder in std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
            let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else { continue };
            let needs = manifest.split("[dependencies]").nth(1).unwrap_or("").split("\n[").next().unwrap_or("");
            if needs.lines().any(|line| line.starts_with("tracing.") || line.starts_with("log.")) {
                let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap();
                logging.push(name.trim_matches('"').replace('-', "_"));
            }
        }
        logging.sort();
        assert_eq!(logging, TARGETS);
    }

    #[test]
    fn a_word_of_a_filter_that_names_nobody_who_logs_is_found() {
        for heard in
            ["info", "WARN", "nicety", "nicety=debug", "nicety_d", "nicety_daemon::worker=trace", "[span]=debug", ""]
        {
            assert_eq!(unheard(heard), None, "{heard}");
        }
        for (word, target) in [
            ("nicety_daemonn=debug", "nicety_daemonn"),
            ("nicety_daemon:worker=debug", "nicety_daemon:worker"),
            ("nicety_vfio_user = debug", "nicety_vfio_user"),
            ("info=debug", "info"),
        ] {
            assert_eq!(unheard(word), Some(target));
        }
    }
}
