//! The fabric that the host is in: a line at the top, what needs attention, and a table of the other hosts.

use std::fmt::Write as _;

use nicety_chart::Escaped;
use nicety_daemon::fabric::{Connection, FabricReport};

use super::describe::{TABLE_END, begin_table, number, plural};

/// One line.
pub(super) fn line(main: &mut String, fabric: &FabricReport) {
    let state = fabric.connection.words();
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

/// The other hosts, and what has come from each and gone there.
pub(super) fn table(main: &mut String, fabric: &FabricReport) {
    begin_table(main, "Other hosts of the fabric");
    main.push_str(
        "<th scope=\"col\">host</th><th scope=\"col\" class=\"state\">state</th><th scope=\"col\" class=\"wide\">address</th>\
         <th scope=\"col\" class=\"n\">ports</th><th scope=\"col\" class=\"n\">addresses</th>\
         <th scope=\"col\" class=\"n\">from it, frames</th><th scope=\"col\" class=\"n wide\">bytes</th>\
         <th scope=\"col\" class=\"n\">to it, frames</th><th scope=\"col\" class=\"n wide\">bytes</th>\
         <th scope=\"col\" class=\"n\">dropped</th></tr></thead><tbody>",
    );
    for host in &fabric.hosts {
        let (sign, class, state) = match (host.is_reached, host.gone_in_seconds) {
            (false, _) => ("▲", "broken", "not reached"),
            (true, Some(_)) => ("◐", "", "its key has vanished"),
            (true, None) => ("●", "up", "reached"),
        };
        let _ = write!(
            main,
            "<tr data-key=\"{0}\"><th scope=\"row\"><bdi>{0}</bdi></th><td class=\"state {class}\"><span aria-hidden=\"true\">{sign}</span> \
             <span>{state}</span></td><td class=\"wide\">{1}</td>",
            Escaped(&host.name),
            Escaped(&host.address),
        );
        let (from, to) = (host.transmit, host.receive);
        number(main, "", host.ports as u64);
        number(main, "", u64::from(host.addresses));
        number(main, "", from.frames);
        number(main, "wide", from.bytes);
        number(main, "", to.frames);
        number(main, "wide", to.bytes);
        number(main, "", from.dropped + to.dropped);
        main.push_str("</tr>");
    }
    main.push_str(TABLE_END);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fabric_says_how_it_stands_what_is_refused_and_which_hosts_it_has() {
        let mut fabric = crate::tests::fabric();
        let mut page = String::new();
        line(&mut page, &fabric);
        assert!(page.contains("host <bdi>node-1</bdi>, connected; 2 other hosts, 0 groups here."), "{page}");
        assert_eq!(wrong(&fabric).count(), 0);
        let mut main = String::new();
        table(&mut main, &fabric);
        assert!(main.contains("<bdi>node-2</bdi>") && main.contains("<span>reached</span>"), "{main}");
        assert!(main.contains("class=\"state broken\"") && main.contains("<span>not reached</span>"), "{main}");
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
