//! The host as a picture.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nicety_chart::Escaped;
use nicety_daemon::report::PortReport;

use super::describe::{count, link, plural, state, vlan};
use super::ports::Guests;

/// Most ports of a group in the picture.
const CHIPS_MAX: usize = 64;

/// Uplinks that are no members of a team, and teams.
pub(super) fn of_themselves<'a>(links: &[&'a PortReport]) -> Vec<&'a PortReport> {
    let members: Vec<&str> =
        links.iter().flat_map(|link| link.members.iter().flatten()).map(|member| member.uplink.as_str()).collect();
    links.iter().copied().filter(|link| !members.contains(&link.name.as_str())).collect()
}

/// The host as a picture: ports by group at one side of the switch, uplinks and teams at the other.
pub(super) fn picture(main: &mut String, guests: &Guests<'_>, links: &[&PortReport]) {
    main.push_str("<div class=\"picture\"><div class=\"guests\" role=\"group\" aria-label=\"Ports by group\">");
    let mut groups = BTreeMap::<&str, Vec<&PortReport>>::new();
    for port in &guests.all {
        groups.entry(port.port_group.as_deref().unwrap_or_default()).or_default().push(port);
    }
    // Those without a group come last.
    let (without, named): (Vec<_>, Vec<_>) = groups.iter().partition(|(group, _)| group.is_empty());
    for (group, ports) in named.into_iter().chain(without) {
        let name = if group.is_empty() { "no group" } else { group };
        begin_box(main, &format!("group {group}"), name, &format!("Ports: {name}"));
        let shown: Vec<&&PortReport> = ports.iter().filter(|port| !guests.folds(port)).collect();
        let most = if guests.view.all { shown.len() } else { CHIPS_MAX };
        shown.iter().take(most).for_each(|port| chip(main, port));
        let (idle, more) = (ports.len() - shown.len(), shown.len().saturating_sub(most));
        for (key, number, word) in [("more", more, "more"), ("idle", idle, "idle")] {
            if number > 0 {
                // A port's name has no blank.
                let (number, query) = (count(number as u64), guests.unfolded());
                let _ = write!(
                    main,
                    "<li data-key=\"{key} ports\" class=\"chip rest\"><a data-view href=\"{query}\">{number} {word}</a><small>not shown</small></li>"
                );
            }
        }
        main.push_str("</ul></div>");
    }
    if groups.is_empty() {
        main.push_str("<p class=\"soft\">No port.</p>");
    }
    main.push_str(
        "</div><div class=\"switch\" aria-hidden=\"true\"><span>switch</span></div>\
         <div class=\"links\" role=\"group\" aria-label=\"Uplinks and teams\">",
    );
    for port in of_themselves(links) {
        let kind = if port.members.is_some() { "team" } else { "uplink" };
        begin_box(main, &port.name, kind, &format!("{kind} {}", port.name));
        chip(main, port);
        for member in port.members.iter().flatten() {
            let sign = if member.distributes { "●" } else { "○" };
            let words = if member.distributes { "used" } else { "not used" };
            let _ = write!(
                main,
                "<li data-key=\"{}\" class=\"chip member\"><span aria-hidden=\"true\">{sign}</span> {}<small>{words}: <bdi>{}</bdi></small></li>",
                Escaped(&member.uplink),
                link(&member.uplink),
                Escaped(&member.state)
            );
        }
        main.push_str("</ul></div>");
    }
    if links.is_empty() {
        main.push_str("<p class=\"soft\">No uplink: the ports reach each other alone.</p>");
    }
    main.push_str("</div></div>");
}

/// Begins a box of the picture, whose list has this name. Safari takes a list without marks for none unless it has the role.
fn begin_box(main: &mut String, key: &str, heading: &str, list: &str) {
    let (key, heading, list) = (Escaped(key), Escaped(heading), Escaped(list));
    let _ = write!(
        main,
        "<div class=\"box\" data-key=\"{key}\"><h3>{heading}</h3><ul class=\"chips\" role=\"list\" aria-label=\"{list}\">"
    );
}

/// A port in the picture. What blocks it is said in words.
fn chip(main: &mut String, port: &PortReport) {
    let (word, sign) = state(port.condition);
    let mut notes = vec![word.to_owned()];
    notes.extend(Some(vlan(port)).filter(|vlan| !vlan.is_empty()));
    notes.extend(port.mirror.as_ref().map(|mirror| format!("mirror {}", mirror.name)));
    notes.extend(port.policy.get("private").map(|part| format!("private: {part}")));
    notes.extend((port.backlog_frames > 0).then(|| format!("{} waiting", plural(port.backlog_frames, "frame"))));
    let _ = write!(
        main,
        "<li data-key=\"{}\" class=\"chip {word}\"><span aria-hidden=\"true\">{sign}</span> {}<small>{}</small></li>",
        Escaped(&port.name),
        link(&port.name),
        Escaped(&notes.join(" · "))
    );
}
