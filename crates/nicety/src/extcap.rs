//! Wireshark's interface to external capture programs (doc/extcap.adoc of Wireshark 4): a link to this program in its extcap folder
//! lists the ports of running daemons, and captures from them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Parser, ValueEnum};
use nicety_control::api::{CaptureRequest, PortList, StageWord};
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::live::capture::DROPS;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::answer::failure;
use crate::capture::{TICK, compiled, copy};
use crate::cli::Stage;
use crate::exit::{Exit, Failure};
use crate::find::Search;
use crate::output;

/// What Wireshark says.
#[derive(Debug, Parser)]
#[command(name = "nicety", disable_help_subcommand = true)]
struct Words {
    #[arg(long)]
    extcap_interfaces: bool,
    #[arg(long)]
    extcap_dlts: bool,
    #[arg(long)]
    extcap_config: bool,
    #[arg(long)]
    capture: bool,
    #[arg(long, num_args = 0..=1)]
    extcap_version: Option<Option<String>>,
    #[arg(long)]
    extcap_interface: Option<String>,
    #[arg(long)]
    extcap_capture_filter: Option<String>,
    #[arg(long)]
    fifo: Option<PathBuf>,
    #[arg(long, default_value = BOTH)]
    stage: String,
}

/// The value for both stages.
const BOTH: &str = "both";

/// Whether this command line comes from Wireshark.
pub fn is_asked(words: &[OsString]) -> bool {
    let first = words.get(1).and_then(|word| word.to_str());
    first.is_some_and(|word| word == "--capture" || word.starts_with("--extcap-"))
}

/// Answers Wireshark's request.
pub fn run(words: &[OsString]) -> Result<ExitCode, Failure> {
    let words = Words::try_parse_from(words).map_err(Failure::with(Exit::Usage))?;
    if words.capture {
        return capture(&words).map(|()| ExitCode::SUCCESS);
    }
    let mut text = String::new();
    if words.extcap_interfaces {
        text = interfaces();
    } else if words.extcap_dlts {
        text.push_str("dlt {number=1}{name=EN10MB}{display=Ethernet}\n");
    } else if words.extcap_config {
        text.push_str("arg {number=0}{call=--stage}{display=Side of the switch}{type=selector}\n");
        for (value, display) in [
            (BOTH, "Both"),
            ("ingress", "Frames as they come in from the port"),
            ("egress", "Frames as they are offered to the port"),
        ] {
            let usual = value == BOTH;
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "value {{arg=0}}{{value={value}}}{{display={display}}}{{default={usual}}}");
        }
    } else if let Some(filter) = &words.extcap_capture_filter {
        // Wireshark expects the error's text, or nothing for a valid filter.
        text = compiled(filter).err().map(|failure| failure.message).unwrap_or_default();
    }
    output::print(&text).map(|()| ExitCode::SUCCESS)
}

/// Possible sources of a capture: the name for Wireshark; then its daemon's control socket, its name there, and a description.
fn sources() -> BTreeMap<String, (PathBuf, String, String)> {
    let search = Search::new();
    let mut found = Vec::new();
    for running in &search.running {
        let Ok(Reply::Ports(PortList { ports, .. })) = control::ask(&running.control, Ask::Ports) else { continue };
        let mut names: Vec<String> = ports.into_iter().map(|port| port.name).collect();
        if !names.iter().any(|name| name == DROPS) {
            names.push(DROPS.to_owned());
        }
        found.extend(names.into_iter().map(|name| (name, running)));
    }
    let is_once = |name: &str| found.iter().filter(|(other, _)| other == name).count() == 1;
    let place = |(name, running): &(String, &crate::find::Running)| {
        let value = if is_once(name) { format!("nicety-{name}") } else { format!("nicety-{name}-{}", running.pid) };
        let what = if name == DROPS { "what is dropped" } else { name };
        let display = format!("Nicety {what} ({})", running.host.display());
        (value, (running.control.clone(), name.clone(), display))
    };
    found.iter().map(place).collect()
}

fn interfaces() -> String {
    let mut text = format!("extcap {{version={}}}\n", env!("CARGO_PKG_VERSION"));
    for (value, (_, _, display)) in sources() {
        // A brace would end the value.
        let display = display.replace(['{', '}'], "");
        let _ = writeln!(text, "interface {{value={value}}}{{display={display}}}");
    }
    text
}

fn capture(words: &Words) -> Result<(), Failure> {
    let missing = |what: &str| Failure::new(Exit::Usage, format!("{what} is missing"));
    let interface = words.extcap_interface.as_ref().ok_or_else(|| missing("--extcap-interface"))?;
    let fifo = words.fifo.as_ref().ok_or_else(|| missing("--fifo"))?;
    let (control, of, _) = sources()
        .remove(interface)
        .ok_or_else(|| Failure::new(Exit::Missing, format!("no daemon that runs has {interface}")))?;
    let filter = words.extcap_capture_filter.as_deref().filter(|words| !words.is_empty());
    let filter = filter.map(compiled).transpose()?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&ended)).map_err(Failure::with(Exit::Failed))?;
    }
    let stage = Some(words.stage.as_str()).filter(|word| *word != BOTH);
    let stage = stage.map(|word| Stage::from_str(word, false).map(StageWord::from)).transpose();
    let stage = stage.map_err(Failure::with(Exit::Usage))?;
    let source =
        control::capture(&control, &CaptureRequest { of, stage, filter, snap: None }, TICK).map_err(failure)?;
    let target = OpenOptions::new().write(true).open(fifo);
    let target = target.map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", fifo.display())))?;
    copy(source, target, None, &ended).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wiresharks_words_are_told_from_a_persons() {
        let asked = |words: &[&str]| is_asked(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(asked(&["nicety", "--extcap-interfaces", "--extcap-version=4.4"]));
        assert!(asked(&["nicety", "--capture", "--extcap-interface", "nicety-vm1", "--fifo", "/tmp/fifo"]));
        assert!(!asked(&["nicety", "try", "e1000", "--capture", "file", "--", "x", "--extcap-dlts"]));
        assert!(!asked(&["nicety"]));
    }
}
