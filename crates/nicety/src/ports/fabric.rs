//! The fabric below the table of `nicety ports`: the other hosts, a line each.

use std::path::Path;

use nicety_control::{self as control, Ask, AskError, Reply};
use nicety_daemon::fabric::FabricReport;

use super::table::{align_right, short};
use crate::answer::{failure, odd};
use crate::exit::Failure;
use crate::output::columns;

/// Hosts that are shown. `--long` shows all.
const SHOWN_MAX: usize = 16;
/// Columns of texts, before those of numbers.
const TEXTS: usize = 2;

/// The fabric of a daemon's host. `None`: the host is in none.
pub fn of(socket: &Path) -> Result<Option<FabricReport>, Failure> {
    match control::ask(socket, Ask::Fabric) {
        Ok(Reply::Fabric(report)) => Ok(Some(*report)),
        Ok(other) => Err(odd(&other)),
        Err(AskError::Refused(_)) => Ok(None),
        Err(error) => Err(failure(error)),
    }
}

/// Its state, and a line for each other host. Frames are those of guests, by the tunnel.
pub fn table(fabric: &FabricReport, is_long: bool) -> String {
    let (name, host, state) = (&fabric.fabric, &fabric.host, fabric.connection.words());
    let mut text = format!("\nfabric {name}: host {host}, {state}");
    let shown = if is_long { fabric.hosts.len() } else { SHOWN_MAX.min(fabric.hosts.len()) };
    if shown == 0 {
        return text + "; it knows no other host\n";
    }
    text.push('\n');
    let mut rows =
        vec![["HOST", "ADDRESS", "PORTS", "ADDRESSES", "FROM IT", "TO IT", "DROPPED"].map(str::to_owned).to_vec()];
    rows.extend(fabric.hosts.iter().take(shown).map(|host| {
        let (from, to) = (host.transmit, host.receive);
        let numbers = [host.ports as u64, host.addresses.into(), from.frames, to.frames, from.dropped + to.dropped];
        [host.name.clone(), host.address.clone()].into_iter().chain(numbers.map(short)).collect()
    }));
    align_right(&mut rows, TEXTS);
    text += &columns(&rows);
    match fabric.hosts.len() - shown {
        0 => {}
        more => text += &format!("and {more} more: nicety ports --long\n"),
    }
    text
}

#[cfg(test)]
#[path = "../../../daemon/tests/fabric_report/mod.rs"]
mod fabric_report;

#[cfg(test)]
pub mod tests {
    use nicety_daemon::fabric::{Connection, HostReport, PassedReport};

    use super::*;

    /// A host that knows so many others.
    pub fn fabric(others: u64) -> FabricReport {
        let host = |number: u64| HostReport {
            transmit: PassedReport { frames: 45 * number, bytes: 65_000 * number, dropped: number },
            receive: PassedReport { frames: 7, bytes: 420, dropped: 0 },
            ..fabric_report::other(number + 2)
        };
        fabric_report::fabric((0..others).map(host).collect())
    }

    #[test]
    fn each_other_host_has_a_line_with_what_came_from_it_and_went_there() {
        assert_eq!(
            table(&fabric(2), false),
            "
fabric prod: host node-1, connected
HOST    ADDRESS    PORTS  ADDRESSES  FROM IT  TO IT  DROPPED
node-2  192.0.2.2      2          3        0      7        0
node-3  192.0.2.3      2          3       45      7        1
"
        );
        let alone = FabricReport { connection: Connection::Away, ..fabric(0) };
        assert_eq!(table(&alone, false), "\nfabric prod: host node-1, etcd is out of reach; it knows no other host\n");
    }

    #[test]
    fn of_many_hosts_the_first_are_shown() {
        let text = table(&fabric(20), false);
        assert!(text.ends_with("\nand 4 more: nicety ports --long\n"), "{text}");
        assert_eq!(table(&fabric(20), true).lines().count(), 23);
    }
}
