//! The fabric that the host is in: a line at the top, and what needs attention.

use std::fmt::Write as _;

use nicety_chart::Escaped;
use nicety_daemon::fabric::{Connection, FabricReport};

use super::describe::plural;

/// One line.
pub(super) fn line(main: &mut String, fabric: &FabricReport) {
    let state = match fabric.connection {
        Connection::Connected => "connected",
        Connection::Away => "etcd is out of reach",
        Connection::Forgotten => "etcd is out of reach, and other hosts take this one for gone",
        Connection::Refused => "refused",
        Connection::Left => "left",
        Connection::Waiting => "starting",
    };
    let (name, host, others) =
        (Escaped(&fabric.fabric), Escaped(&fabric.host), plural(fabric.hosts.len() as u64, "other host"));
    let _ = write!(
        main,
        "<p data-key=\"fabric\">Fabric <bdi>{name}</bdi>: host <bdi>{host}</bdi>, {state}; {others}, {} here.</p>",
        plural(fabric.groups.len() as u64, "group")
    );
}

/// The sentences about what is wrong.
pub(super) fn wrong(fabric: &FabricReport) -> impl Iterator<Item = &str> {
    let is_wrong = !matches!(fabric.connection, Connection::Connected | Connection::Waiting);
    fabric.why_not.as_deref().filter(|_| is_wrong).into_iter().chain(fabric.refused.iter().map(String::as_str))
}

/// These among what needs attention.
pub(super) fn attention(main: &mut String, fabric: &FabricReport) {
    for why in wrong(fabric) {
        let _ = write!(
            main,
            "<li data-key=\"fabric {0}\">Fabric <bdi>{1}</bdi>: {0}</li>",
            Escaped(why),
            Escaped(&fabric.fabric)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fabric_says_how_it_stands_and_what_is_refused() {
        let mut fabric = FabricReport {
            fabric: "prod".to_owned(),
            host: "node-1".to_owned(),
            tunnel: "tunnel".to_owned(),
            address: "192.0.2.1".to_owned(),
            guest_mtu: 1450,
            connection: Connection::Connected,
            why_not: None,
            away_seconds: None,
            config: Some(7),
            revision: 9,
            hosts: Vec::new(),
            groups: Vec::new(),
            claims: 0,
            watches: 2,
            refused: Vec::new(),
        };
        let mut page = String::new();
        line(&mut page, &fabric);
        assert!(page.contains("host <bdi>node-1</bdi>, connected; 0 other hosts, 0 groups here."), "{page}");
        assert_eq!(wrong(&fabric).count(), 0);
        fabric.connection = Connection::Away;
        fabric.why_not = Some("no <etcd>".to_owned());
        fabric.refused.push("host/x: odd".to_owned());
        let mut list = String::new();
        attention(&mut list, &fabric);
        assert!(
            list.contains("Fabric <bdi>prod</bdi>: no &lt;etcd&gt;</li>") && list.contains(": host/x: odd</li>"),
            "{list}"
        );
    }
}
