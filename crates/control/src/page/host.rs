//! The page of the host.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use nicety_chart::Escaped;
use nicety_daemon::report::{Condition, PortReport};

use super::describe::{count, drops, link, number, rate, spark, state, vlan, whole};
use super::history::{History, Total};
use super::serve::Shown;

/// Most addresses that are listed.
const ADDRESSES_MOST: usize = 200;

pub(super) fn page(shown: &Shown) -> String {
    let now = Instant::now();
    let mut history = shown.history.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let ports = history.look(shown.inspect.as_ref(), now);
    let (guests, links): (Vec<&PortReport>, Vec<&PortReport>) = ports.iter().partition(|port| port.adapter.is_some());
    let mut main = String::new();
    let _ = write!(
        main,
        "<header><h1>{}</h1><p>{}</p><p class=\"soft\">{} · Nicety {}</p></header>",
        Escaped(&shown.switch),
        summary(&guests, &links),
        Escaped(&shown.file.display().to_string()),
        Escaped(nicety_version::BUILD)
    );
    attention(&mut main, &ports);
    picture(&mut main, &guests, &links);
    main.push_str("<section aria-labelledby=\"ports\"><h2 id=\"ports\">Ports</h2>");
    table(&mut main, "Ports", &guests, &history, now);
    main.push_str("</section><section aria-labelledby=\"uplinks\"><h2 id=\"uplinks\">Uplinks and teams</h2>");
    table(&mut main, "Uplinks and teams", &links, &history, now);
    classes(&mut main, &links);
    main.push_str("</section><section aria-labelledby=\"drops\"><h2 id=\"drops\">Drops</h2>");
    drops(&mut main, &ports.iter().collect::<Vec<_>>());
    main.push_str("</section>");
    drop(history);
    addresses(&mut main, shown);
    whole(&format!("{}: Nicety", shown.switch), &main)
}

/// How many there are, and how many of them work.
fn summary(guests: &[&PortReport], links: &[&PortReport]) -> String {
    let up = guests.iter().filter(|port| port.condition == Condition::Up).count();
    let plural = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    format!("{}, {up} of them up; {}.", plural(guests.len(), "port"), plural(links.len(), "uplink"))
}

/// The ports that cannot work, with what to do.
fn attention(main: &mut String, ports: &[PortReport]) {
    let is_wrong = |port: &&PortReport| matches!(port.condition, Condition::Broken | Condition::Failed);
    let wrong: Vec<&PortReport> = ports.iter().filter(is_wrong).collect();
    if wrong.is_empty() {
        return;
    }
    main.push_str(
        "<section class=\"attention\" aria-labelledby=\"attention\"><h2 id=\"attention\">Needs attention</h2><ul>",
    );
    for port in wrong {
        let _ = write!(main, "<li>{}: {}</li>", link(&port.name), Escaped(&port.sentence));
    }
    main.push_str("</ul></section>");
}

/// The host as a picture: ports by group at one side of the switch, uplinks and teams at the other.
fn picture(main: &mut String, guests: &[&PortReport], links: &[&PortReport]) {
    main.push_str("<section aria-labelledby=\"picture\"><h2 id=\"picture\">The host</h2><div class=\"picture\"><div class=\"guests\">");
    let mut groups = BTreeMap::<&str, Vec<&PortReport>>::new();
    for port in guests {
        groups.entry(port.port_group.as_deref().unwrap_or_default()).or_default().push(port);
    }
    for (group, ports) in &groups {
        let name = if group.is_empty() { "no group" } else { group };
        let _ = write!(main, "<div class=\"box\"><h3>{}</h3><ul class=\"chips\">", Escaped(name));
        ports.iter().for_each(|port| chip(main, port));
        main.push_str("</ul></div>");
    }
    if groups.is_empty() {
        main.push_str("<p class=\"soft\">No port.</p>");
    }
    main.push_str("</div><div class=\"switch\" aria-hidden=\"true\"><span>switch</span></div><div class=\"links\">");
    let members: Vec<&str> =
        links.iter().flat_map(|link| link.members.iter().flatten()).map(|member| member.uplink.as_str()).collect();
    for port in links.iter().filter(|link| !members.contains(&link.name.as_str())) {
        let kind = if port.members.is_some() { "team" } else { "uplink" };
        let _ = write!(main, "<div class=\"box\"><h3>{kind}</h3><ul class=\"chips\">");
        chip(main, port);
        for member in port.members.iter().flatten() {
            let sign = if member.distributes { "●" } else { "○" };
            let words = if member.distributes { "used" } else { "not used" };
            let _ = write!(
                main,
                "<li class=\"chip member\"><span aria-hidden=\"true\">{sign}</span> {}<small>{words}: {}</small></li>",
                link(&member.uplink),
                Escaped(&member.state)
            );
        }
        main.push_str("</ul></div>");
    }
    if links.is_empty() {
        main.push_str("<p class=\"soft\">No uplink: the ports reach each other alone.</p>");
    }
    main.push_str("</div></div></section>");
}

/// A port in the picture. What blocks it is said in words.
fn chip(main: &mut String, port: &PortReport) {
    let (word, sign) = state(port.condition);
    let mut notes = vec![word.to_owned()];
    notes.extend(Some(vlan(port)).filter(|vlan| !vlan.is_empty()));
    notes.extend(port.mirror.as_ref().map(|mirror| format!("mirror {}", mirror.name)));
    notes.extend(port.policy.get("private").map(|part| format!("private: {part}")));
    notes.extend((port.backlog_frames > 0).then(|| format!("{} wait", count(port.backlog_frames))));
    let _ = write!(
        main,
        "<li class=\"chip {word}\"><span aria-hidden=\"true\">{sign}</span> {}<small>{}</small></li>",
        link(&port.name),
        Escaped(&notes.join(" · "))
    );
}

fn table(main: &mut String, label: &str, ports: &[&PortReport], history: &History, now: Instant) {
    if ports.is_empty() {
        main.push_str("<p class=\"soft\">None.</p>");
        return;
    }
    let _ = write!(
        main,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\"><table><thead><tr><th scope=\"col\">name</th><th scope=\"col\">state</th>\
         <th scope=\"col\">adapter</th><th scope=\"col\">network</th><th scope=\"col\"><span class=\"sent-key\">sends</span></th>\
         <th scope=\"col\"><span class=\"got-key\">gets</span></th><th scope=\"col\">2 minutes</th>\
         <th scope=\"col\" class=\"n\">frames sent</th><th scope=\"col\" class=\"n\">frames got</th><th scope=\"col\" class=\"n\">dropped</th></tr></thead><tbody>"
    );
    for port in ports {
        let (word, sign) = state(port.condition);
        let total = Total::of(port);
        let network: Vec<String> = [port.port_group.clone().unwrap_or_default(), vlan(port)]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect();
        let kind = match (&port.adapter, &port.members) {
            (Some(adapter), _) => adapter.as_str(),
            (None, Some(_)) => "team",
            (None, None) => "uplink",
        };
        let _ = write!(
            main,
            "<tr data-port=\"{0}\"><th scope=\"row\">{1}</th><td class=\"{word}\"><span aria-hidden=\"true\">{sign}</span> {word}</td><td>{2}</td><td>{3}</td>",
            Escaped(&port.name),
            link(&port.name),
            Escaped(kind),
            Escaped(&network.join(", "))
        );
        for way in [0, 1] {
            let rate = history.rate(&port.name, way, now).map_or_else(|| "–".to_owned(), rate);
            let _ = write!(main, "<td class=\"rate\">{rate}</td>");
        }
        main.push_str("<td>");
        spark(main, history, &port.name, now);
        main.push_str("</td>");
        number(main, "sent", total.frames[0]);
        number(main, "got", total.frames[1]);
        number(main, "dropped", total.drops);
        main.push_str("</tr>");
    }
    main.push_str("</tbody></table></div>");
}

/// The classes of uplinks with I/O control.
fn classes(main: &mut String, links: &[&PortReport]) {
    let all = |port: &PortReport| port.io_classes.len() + port.inward_classes.len();
    if links.iter().all(|port| all(port) == 0) {
        return;
    }
    main.push_str(
        "<h3>Classes</h3><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Classes\"><table><thead><tr><th scope=\"col\">uplink</th><th scope=\"col\">class</th><th scope=\"col\">way</th>\
         <th scope=\"col\" class=\"n\">packets</th><th scope=\"col\" class=\"n\">bytes</th><th scope=\"col\" class=\"n\">wait</th><th scope=\"col\" class=\"n\">dropped</th></tr></thead><tbody>",
    );
    for port in links {
        for (way, classes) in [("out", &port.io_classes), ("in", &port.inward_classes)] {
            for class in classes {
                let _ = write!(
                    main,
                    "<tr><th scope=\"row\">{}</th><td>{}</td><td>{way}</td>",
                    link(&port.name),
                    Escaped(&class.name)
                );
                for value in [class.packets, class.bytes, class.waiting, class.dropped] {
                    number(main, "class", value);
                }
                main.push_str("</tr>");
            }
        }
    }
    main.push_str("</tbody></table></div>");
}

fn addresses(main: &mut String, shown: &Shown) {
    let list = shown.inspect.addresses();
    let all = list.addresses.len() + list.more;
    main.push_str("<section aria-labelledby=\"addresses\"><h2 id=\"addresses\">Addresses</h2>");
    if list.addresses.is_empty() {
        main.push_str("<p class=\"soft\">The switch has learned none.</p></section>");
        return;
    }
    let _ = write!(
        main,
        "<details><summary>{} learned</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Addresses\"><table><thead><tr><th scope=\"col\">address</th><th scope=\"col\">port</th><th scope=\"col\" class=\"n\">seconds ago</th></tr></thead><tbody>",
        count(all as u64)
    );
    for learned in list.addresses.iter().take(ADDRESSES_MOST) {
        let _ =
            write!(main, "<tr><th scope=\"row\">{}</th><td>{}</td>", Escaped(&learned.address), link(&learned.port));
        number(main, "age", learned.silent_seconds);
        main.push_str("</tr>");
    }
    main.push_str("</tbody></table></div>");
    if all > ADDRESSES_MOST {
        let _ = write!(
            main,
            "<p class=\"soft\">And {} more: <code>nicety ports --addresses</code>.</p>",
            count((all - ADDRESSES_MOST) as u64)
        );
    }
    main.push_str("</details></section>");
}
