//! `nicety upgrade`: replaces a running daemon under its VMs.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use nicety_control::api::{DaemonView, HostText, UpgradeRequest};
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::handover::{Loss, Upgraded};
use nicety_daemon::live::plan::Change;
use nicety_host::Host;

use crate::answer::{failure, odd};
use crate::cli::Upgrade;
use crate::exit::{Exit, Failure};
use crate::find::socket;
use crate::output;
use crate::unit::{Lacks, Running};

/// Replaces it, and says how long nothing moved.
pub fn run(args: &Upgrade) -> Result<(), Failure> {
    let program = args.program.as_ref().map(std::path::absolute).transpose();
    let program = program.map_err(Failure::with(Exit::Usage))?;
    let socket = socket(&args.which, None)?;
    let without = Vec::from_iter(BTreeSet::from_iter(args.without.iter().cloned()));
    match control::ask(&socket, Ask::Upgrade(UpgradeRequest { program, without })).map_err(failure)? {
        Reply::Upgraded(upgraded) if args.json => {
            output::print(&(serde_json::to_string_pretty(&upgraded).map_err(Failure::with(Exit::Failed))? + "\n"))?;
            let why = forbidden(&socket).map(|lacks| format!("{SERVES}: {lacks}"));
            why.map_or(Ok(()), |why| Err(Failure::new(Exit::Failed, why)))
        }
        Reply::Upgraded(upgraded) => {
            let lacks = not_in_force(&socket);
            output::print(&words(&upgraded, &lacks))?;
            let Some(lacks) = forbidden(&socket) else { return Ok(()) };
            lacks.print()?;
            Err(Failure::new(Exit::Failed, format!("{SERVES}, because {} does not allow it", lacks.unit)))
        }
        other => Err(odd(&other)),
    }
}

const SERVES: &str = "the new program serves, and not all that the host file asks for is in force";

/// The things that the host file asks for and the unit does not allow. `None`: it allows all, or no unit has started the daemon.
fn forbidden(socket: &Path) -> Option<Lacks> {
    let daemon = Running::at(socket)?;
    daemon.lacks(&Host::read(&daemon.host).ok()?)
}

/// The parts of the host file that are not in force: keys that take a restart, and changes that were not applied.
fn not_in_force(socket: &Path) -> Vec<String> {
    let Ok(Reply::Version(DaemonView { host, mut after_restart, .. })) = control::ask(socket, Ask::Version) else {
        return Vec::new();
    };
    let Ok(text) = std::fs::read_to_string(&host) else { return after_restart };
    let asked = HostText { text, path: Some(host), agreed: Vec::new(), cut_off: false };
    if let Ok(Reply::Plan(plan)) = control::ask(socket, Ask::Plan(asked)) {
        let known = |change: &Change| after_restart.iter().any(|key| key.starts_with(&format!("{}.", change.object)));
        let changes = plan.changes.iter().filter(|change| !known(change)).map(|change| change.to_string());
        let changes: Vec<String> = changes.collect();
        after_restart.extend(changes.into_iter().map(|change| format!("{change} (`nicety apply`)")));
    }
    after_restart
}

fn words(upgraded: &Upgraded, lacks: &[String]) -> String {
    let Upgraded { build, stopped_ns, ports, steps: _, without } = upgraded;
    let pause = |ns: u64| format!("{:.1} ms", Duration::from_nanos(ns).as_secs_f64() * 1e3);
    let rows: Vec<Vec<String>> = ports.iter().map(|port| vec![port.name.clone(), pause(port.stopped_ns)]).collect();
    let ports = output::count(rows.len() as u64, "port");
    let lacks = if lacks.is_empty() {
        String::new()
    } else {
        format!("; not in force, of what the host file asks for: {}", lacks.join(", "))
    };
    let lost: String =
        without.iter().map(|Loss { name, loses }| format!("{name}: went on without its VM: {loses}\n")).collect();
    let (pause, pauses) = (pause(*stopped_ns), output::columns(&rows));
    format!("nicety {build} serves now; nothing moved for {pause} ({ports}){lacks}\n{pauses}{lost}")
}
