//! `nicety upgrade`: replaces a running daemon under its VMs.

use std::time::Duration;

use nicety_control::api::UpgradeRequest;
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::handover::{Loss, Upgraded};

use crate::answer::{failure, odd};
use crate::change::socket;
use crate::cli::Upgrade;
use crate::exit::{Exit, Failure};
use crate::output;

/// Replaces it, and says how long nothing moved.
pub fn run(args: &Upgrade) -> Result<(), Failure> {
    let program = args.program.as_ref().map(std::path::absolute).transpose();
    let program = program.map_err(Failure::with(Exit::Usage))?;
    let socket = socket(&args.which, None)?;
    match control::ask(&socket, Ask::Upgrade(UpgradeRequest { program, without: args.without.clone() }))
        .map_err(failure)?
    {
        Reply::Upgraded(upgraded) if args.json => {
            output::print(&(serde_json::to_string_pretty(&upgraded).map_err(Failure::with(Exit::Failed))? + "\n"))
        }
        Reply::Upgraded(upgraded) => output::print(&words(&upgraded)),
        other => Err(odd(&other)),
    }
}

fn words(upgraded: &Upgraded) -> String {
    let Upgraded { build, stopped_ns, ports, steps: _, without } = upgraded;
    let pause = |ns: u64| format!("{:.1} ms", Duration::from_nanos(ns).as_secs_f64() * 1e3);
    let rows: Vec<Vec<String>> = ports.iter().map(|port| vec![port.name.clone(), pause(port.stopped_ns)]).collect();
    let ports = output::count(rows.len() as u64, "port");
    let lost: String =
        without.iter().map(|Loss { name, loses }| format!("{name}: went on without its VM: {loses}\n")).collect();
    let pauses = output::columns(&rows);
    format!("nicety {build} serves now; nothing moved for {} ({ports})\n{pauses}{lost}", pause(*stopped_ns))
}
