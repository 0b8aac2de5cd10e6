//! `nicety fabric status`: the fabric as a daemon knows it.

use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::fabric::Connection;
use serde_json::json;

use crate::answer::{failure, odd};
use crate::cli::Which;
use crate::exit::{Exit, Failure};
use crate::find::socket;
use crate::output;

/// Prints it. An error if this host is not connected.
pub fn show(as_json: bool, which: &Which) -> Result<(), Failure> {
    let report = match control::ask(&socket(which, None)?, Ask::Fabric).map_err(failure)? {
        Reply::Fabric(report) => report,
        other => return Err(odd(&other)),
    };
    if as_json {
        let all = json!({ "version": control::VERSION, "fabric": report });
        let text = serde_json::to_string_pretty(&all).map_err(Failure::with(Exit::Failed))?;
        output::print(&(text + "\n"))?;
    } else {
        output::print(&report.to_string())?;
    }
    if report.connection == Connection::Connected {
        return Ok(());
    }
    let why = report.why_not.unwrap_or_default();
    Err(Failure::new(Exit::Failed, format!("this host is not connected to its fabric: {why}")))
}
