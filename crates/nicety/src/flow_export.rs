//! `nicety flow-export`: the exports of flows of a running daemon.

use nicety_control::api::FlowExportList as Listed;
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::flows::FlowExportReport;
use nicety_host::List;
use serde_json::json;

use crate::answer::{failure, odd};
use crate::change;
use crate::cli::{FlowExportCommand, FlowExportList};
use crate::exit::{Exit, Failure};
use crate::find::socket;
use crate::output;

/// Runs it.
pub fn run(command: &FlowExportCommand) -> Result<(), Failure> {
    match command {
        FlowExportCommand::List(args) => list(args),
        FlowExportCommand::Change(change) => change::list(List::FlowExports, change),
    }
}

fn list(args: &FlowExportList) -> Result<(), Failure> {
    let exports = match control::ask(&socket(&args.which, None)?, Ask::FlowExports).map_err(failure)? {
        Reply::FlowExports(Listed { flow_exports }) => flow_exports,
        other => return Err(odd(&other)),
    };
    if args.json {
        let text = serde_json::to_string_pretty(&json!({ "version": control::VERSION, "flow_exports": exports }));
        return output::print(&(text.map_err(Failure::with(Exit::Failed))? + "\n"));
    }
    if exports.is_empty() {
        let what = "no flows are exported: `nicety flow-export add NAME collector=udp:ADDRESS:PORT` begins\n";
        return output::print(what);
    }
    output::print(&table(&exports))
}

fn table(exports: &[FlowExportReport]) -> String {
    let heading =
        ["NAME", "COLLECTOR", "OF", "ONE IN", "RECORDS", "LOST", "LOST OF", "DISPLACED", "TEMPLATES", "STATE"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(exports.iter().map(|export| {
        let FlowExportReport { name, collector, sampling, records, templates, lost, displaced, .. } = export;
        let words = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>();
        let mut row = vec![name.clone(), collector.clone(), export.ports()];
        row.extend(words(&[(*sampling).into(), *records, *lost]));
        row.push(export.losers());
        row.extend(words(&[*displaced, *templates]));
        row.push(export.state());
        row
    }));
    output::columns(&rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_export_says_what_it_counts_and_whether_its_collector_gets_it() {
        let all = FlowExportReport {
            name: "noc".to_owned(),
            collector: "udp:10.0.0.9:4739".to_owned(),
            of: None,
            sampling: 1,
            records: 40,
            templates: 2,
            lost: 0,
            lost_by_port: BTreeMap::new(),
            displaced: 3,
            away: None,
        };
        let lost = [("tap0", 1), ("vm1", 3), ("vm2", 2), ("vm3", 1)];
        let some = FlowExportReport {
            name: "far".to_owned(),
            of: Some(vec!["vm1".to_owned(), "tap0".to_owned()]),
            sampling: 10,
            lost: 7,
            lost_by_port: lost.map(|(port, lost)| (port.to_owned(), lost)).into(),
            away: Some("Connection refused (os error 111)".to_owned()),
            ..all.clone()
        };
        let expected = "\
NAME  COLLECTOR          OF         ONE IN  RECORDS  LOST  LOST OF                       DISPLACED  TEMPLATES  STATE
noc   udp:10.0.0.9:4739  all ports  1       40       0     -                             3          2          sending
far   udp:10.0.0.9:4739  vm1, tap0  10      40       7     vm1 3, vm2 2, tap0 1, 1 more  3          2          away: Connection refused (os error 111)
";
        assert_eq!(table(&[all, some]), expected);
    }
}
