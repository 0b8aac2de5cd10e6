//! The page of the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Instant;

use nicety_chart::Escaped;
use nicety_daemon::report::{Condition, PortReport};

use super::blocked;
use super::describe::{
    CLASS_WAYS, LINK_WAYS, PORT_WAYS, TABLE_END, begin_table, chart, count, drops, lines, link, made, number, plural,
    rate, spark, state, vlan, whole,
};
use super::history::{Addresses, History, Series, Total};
use super::serve::Shown;

/// Most charts of uplinks. Each uplink's own page has its chart.
const CHARTS_MOST: usize = 8;

/// The sections, by identifier and heading.
const SECTIONS: [(&str, &str); 8] = [
    ("picture", "The host"),
    ("blocked", "Blocked"),
    ("ports", "Ports"),
    ("uplinks", "Uplinks and teams"),
    ("drops", "Drops"),
    ("changes", "Last changes"),
    ("log", "Log"),
    ("addresses", "Addresses"),
];

fn section(main: &mut String, id: &str, content: impl FnOnce(&mut String)) {
    let heading = SECTIONS.iter().find(|(known, _)| *known == id).map_or("", |(_, heading)| heading);
    let _ = write!(main, "<section data-key=\"{id}\" aria-labelledby=\"{id}\"><h2 id=\"{id}\">{heading}</h2>");
    content(main);
    main.push_str("</section>");
}

pub(super) fn page(shown: &Shown) -> String {
    let now = Instant::now();
    let mut history = shown.history.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let ports = history.look(shown.inspect.as_ref(), now);
    let addresses = history.addresses(shown.inspect.as_ref(), now);
    let (guests, links): (Vec<&PortReport>, Vec<&PortReport>) = ports.iter().partition(|port| port.adapter.is_some());
    let (lately, since) = history.dropped_lately(&ports, now);
    let mut main = String::new();
    let contents: Vec<String> =
        SECTIONS.iter().map(|(id, heading)| format!("<a href=\"#{id}\">{heading}</a>")).collect();
    let _ = write!(
        main,
        "<header><h1>{}</h1><p>{}</p><p class=\"soft\">{} · {} · Nicety {}</p><nav aria-label=\"On this page\">{}</nav></header>",
        Escaped(&shown.switch),
        summary(&guests, &links),
        made(),
        Escaped(&shown.file.display().to_string()),
        Escaped(nicety_version::BUILD),
        contents.join(" ")
    );
    attention(&mut main, &ports);
    section(&mut main, "picture", |main| picture(main, &guests, &links));
    section(&mut main, "blocked", |main| blocked::list(main, &ports, &lately, since));
    section(&mut main, "ports", |main| table(main, "Ports", &guests, &history, PORT_WAYS));
    section(&mut main, "uplinks", |main| {
        charts(main, &links, &history, now);
        table(main, "Uplinks and teams", &links, &history, LINK_WAYS);
        class_table(main, &links, &history);
    });
    section(&mut main, "drops", |main| drops(main, &ports.iter().collect::<Vec<_>>(), &lately));
    drop(history);
    let (changes, log) = (shown.recent.changes(), shown.recent.lines());
    section(&mut main, "changes", |main| match changes.is_empty() {
        true => main.push_str("<p class=\"soft\">None since this daemon has started.</p>"),
        false => lines(main, "Last changes", &changes),
    });
    section(&mut main, "log", |main| lines(main, "Log", &log));
    section(&mut main, "addresses", |main| addresses_list(main, &addresses));
    whole(&format!("{}: Nicety", shown.switch), &main)
}

/// Charts of uplinks and teams. A team's members are in its own.
fn charts(main: &mut String, links: &[&PortReport], history: &History, now: Instant) {
    let all = of_themselves(links);
    if all.is_empty() {
        return;
    }
    main.push_str("<div class=\"panels\">");
    for (number, port) in all.into_iter().take(CHARTS_MOST).enumerate() {
        let id = format!("chart{number}");
        main.push_str(&chart(history, &Series::port(&port.name), LINK_WAYS, (&id, &port.name), now));
    }
    main.push_str("</div>");
}

/// Uplinks that are no members of a team, and teams.
fn of_themselves<'a>(links: &[&'a PortReport]) -> Vec<&'a PortReport> {
    let members: Vec<&str> =
        links.iter().flat_map(|link| link.members.iter().flatten()).map(|member| member.uplink.as_str()).collect();
    links.iter().copied().filter(|link| !members.contains(&link.name.as_str())).collect()
}

/// Numbers of ports, of those that are up, of uplinks and of teams.
fn summary(guests: &[&PortReport], links: &[&PortReport]) -> String {
    let up = guests.iter().filter(|port| port.condition == Condition::Up).count();
    let plural = |number: usize, what: &str| plural(number as u64, what);
    let teams = links.iter().filter(|link| link.members.is_some()).count();
    let teams_words = if teams > 0 { format!(", {}", plural(teams, "team")) } else { String::new() };
    format!(
        "{}, {up} of them up; {}{teams_words}.",
        plural(guests.len(), "port"),
        plural(links.len() - teams, "uplink")
    )
}

/// The ports that cannot work, with what to do.
fn attention(main: &mut String, ports: &[PortReport]) {
    let is_wrong =
        |port: &&PortReport| matches!(port.condition, Condition::Broken | Condition::Failed | Condition::Blocked);
    let wrong: Vec<&PortReport> = ports.iter().filter(is_wrong).collect();
    if wrong.is_empty() {
        return;
    }
    main.push_str(
        "<section data-key=\"attention\" class=\"attention\" aria-labelledby=\"attention\"><h2 id=\"attention\">Needs attention</h2><ul>",
    );
    for port in wrong {
        let (name, sentence) = (Escaped(&port.name), Escaped(&port.sentence));
        let _ = write!(main, "<li data-key=\"{name}\">{}: {sentence}</li>", link(&port.name));
    }
    main.push_str("</ul></section>");
}

/// The host as a picture: ports by group at one side of the switch, uplinks and teams at the other.
fn picture(main: &mut String, guests: &[&PortReport], links: &[&PortReport]) {
    main.push_str("<div class=\"picture\"><div class=\"guests\" role=\"group\" aria-label=\"Ports by group\">");
    let mut groups = BTreeMap::<&str, Vec<&PortReport>>::new();
    for port in guests {
        groups.entry(port.port_group.as_deref().unwrap_or_default()).or_default().push(port);
    }
    // Those without a group come last.
    let (without, named): (Vec<_>, Vec<_>) = groups.iter().partition(|(group, _)| group.is_empty());
    for (group, ports) in named.into_iter().chain(without) {
        let name = if group.is_empty() { "no group" } else { group };
        begin_box(main, &format!("group {group}"), name, &format!("Ports: {name}"));
        ports.iter().for_each(|port| chip(main, port));
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
                "<li data-key=\"{}\" class=\"chip member\"><span aria-hidden=\"true\">{sign}</span> {}<small>{words}: {}</small></li>",
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

fn table(main: &mut String, label: &str, ports: &[&PortReport], history: &History, [sends, gets]: [&str; 2]) {
    if ports.is_empty() {
        main.push_str("<p class=\"soft\">None.</p>");
        return;
    }
    begin_table(main, label);
    let _ = write!(
        main,
        "<th scope=\"col\">name</th><th scope=\"col\">state</th>\
         <th scope=\"col\">adapter</th><th scope=\"col\">network</th><th scope=\"col\"><span class=\"sent-key\">{sends}</span></th>\
         <th scope=\"col\"><span class=\"got-key\">{gets}</span></th><th scope=\"col\">2 minutes</th>\
         <th scope=\"col\" class=\"n\">frames: {sends}</th><th scope=\"col\" class=\"n\">frames: {gets}</th><th scope=\"col\" class=\"n\">dropped</th></tr></thead><tbody>"
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
            "<tr data-key=\"{0}\"><th scope=\"row\">{1}</th><td class=\"{word}\"><span aria-hidden=\"true\">{sign}</span> {word}</td><td>{2}</td><td>{3}</td>",
            Escaped(&port.name),
            link(&port.name),
            Escaped(kind),
            Escaped(&network.join(", "))
        );
        for way in [0, 1] {
            let rate = history.rate(&Series::port(&port.name), way).map_or_else(|| "–".to_owned(), rate);
            let _ = write!(main, "<td class=\"rate\">{rate}</td>");
        }
        main.push_str("<td>");
        spark(main, history, &Series::port(&port.name), [sends, gets]);
        main.push_str("</td>");
        number(main, "sent", total.frames[0]);
        number(main, "got", total.frames[1]);
        number(main, "dropped", total.drops);
        main.push_str("</tr>");
    }
    main.push_str(TABLE_END);
}

/// The names of an uplink's classes, each once.
pub(super) fn classes(port: &PortReport) -> BTreeSet<&str> {
    port.io_classes.iter().chain(&port.inward_classes).map(|class| class.name.as_str()).collect()
}

/// The classes of uplinks with I/O control.
fn class_table(main: &mut String, links: &[&PortReport], history: &History) {
    if links.iter().all(|port| classes(port).is_empty()) {
        return;
    }
    main.push_str("<h3>Classes</h3>");
    begin_table(main, "Classes");
    main.push_str(
        "<th scope=\"col\">uplink</th><th scope=\"col\">class</th><th scope=\"col\">way</th>\
         <th scope=\"col\">rate</th><th scope=\"col\">2 minutes</th><th scope=\"col\" class=\"n\">packets</th><th scope=\"col\" class=\"n\">bytes</th>\
         <th scope=\"col\" class=\"n\">wait</th><th scope=\"col\" class=\"n\">dropped</th><th scope=\"col\" class=\"n\">marked</th></tr></thead><tbody>",
    );
    for port in links {
        for (way, classes) in [&port.io_classes, &port.inward_classes].into_iter().enumerate() {
            for class in classes {
                let series = Series::class(&port.name, &class.name);
                let rate = history.rate(&series, way).map_or_else(|| "–".to_owned(), rate);
                let _ = write!(
                    main,
                    "<tr data-key=\"{2} {0} {1}\"><th scope=\"row\">{3}</th><td>{1}</td><td>{0}</td><td class=\"rate\">{rate}</td><td>",
                    CLASS_WAYS[way],
                    Escaped(&class.name),
                    Escaped(&port.name),
                    link(&port.name)
                );
                spark(main, history, &series, CLASS_WAYS);
                main.push_str("</td>");
                for value in [class.packets, class.bytes, class.waiting, class.dropped, class.marked] {
                    number(main, "class", value);
                }
                main.push_str("</tr>");
            }
        }
    }
    main.push_str(TABLE_END);
}

fn addresses_list(main: &mut String, Addresses { first, all }: &Addresses) {
    if first.is_empty() {
        main.push_str("<p class=\"soft\">The switch has learned none.</p>");
        return;
    }
    let _ = write!(main, "<details aria-label=\"Addresses\"><summary>{} learned</summary>", count(*all as u64));
    begin_table(main, "Addresses");
    main.push_str(
        "<th scope=\"col\">address</th><th scope=\"col\">port</th><th scope=\"col\" class=\"n\">silent, s</th></tr></thead><tbody>",
    );
    for learned in first {
        let _ =
            write!(main, "<tr><th scope=\"row\">{}</th><td>{}</td>", Escaped(&learned.address), link(&learned.port));
        number(main, "age", learned.silent_seconds);
        main.push_str("</tr>");
    }
    main.push_str(TABLE_END);
    if *all > first.len() {
        let _ = write!(
            main,
            "<p class=\"soft\">And {} more: <code>nicety ports --addresses</code>.</p>",
            count((*all - first.len()) as u64)
        );
    }
    main.push_str("</details>");
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use nicety_daemon::report::QueueReport;
    use nicety_host::Host;

    use super::*;
    use crate::Inspect;
    use crate::page::recent::{Line, Recent};
    use crate::tests::{Fake, port};

    fn shown(inspect: Arc<dyn Inspect>, recent: Arc<Recent>) -> Shown {
        let host = Host::parse("", std::path::Path::new("/etc/host.toml")).unwrap();
        Shown::new(&host, inspect, recent)
    }

    #[test]
    fn every_section_is_there_and_no_text_of_a_guest_or_a_log_becomes_markup() {
        let recent = Arc::<Recent>::default();
        let text = "user 0 changed: + port <img src=x>".to_owned();
        recent.push(Line { unix_ms: 1_700_000_005_000, level: "info", is_change: true, text });
        let page = page(&shown(Arc::new(Fake(3)), recent));
        for (id, heading) in SECTIONS {
            assert!(page.contains(&format!("<h2 id=\"{id}\">{heading}</h2>")), "{id}");
        }
        assert_eq!(page.matches("+ port &lt;img src=x&gt;").count(), 2, "as a change, and as a line");
        assert!(!page.contains("<img") && page.contains("2023-11-14 22:13:25"));
        assert!(page.contains("3 ports, 3 of them up; 0 uplinks."), "{page}");
        assert!(page.contains("<td class=\"n drop\" data-value=\"9\">9</td>"), "three ports with 3 each");
    }

    #[test]
    fn all_that_can_be_chosen_or_is_a_picture_a_table_or_a_list_has_a_name() {
        let class = nicety_daemon::report::ClassReport {
            name: "storage".to_owned(),
            packets: 0,
            bytes: 0,
            waiting: 0,
            dropped: 0,
            marked: 0,
        };
        let (mut guest, mut quiet, mut link) = (port("vm1"), port("vm2"), port("up"));
        (guest.port_group, quiet.port_group) = (Some("web".to_owned()), None);
        (link.adapter, link.io_classes) = (None, vec![class]);
        let (begin, mut history) = (Instant::now(), History::default());
        let mut ports = [guest, quiet, link];
        for second in 0..10 {
            let carried = QueueReport { queue: 0, packets: 1, frames: 1, bytes: second * 1000 };
            (ports[0].transmit, ports[2].receive) = (vec![carried], vec![carried]);
            (ports[1].transmit, ports[1].receive) = (Vec::new(), Vec::new());
            history.note(&ports, begin + Duration::from_secs(second));
        }
        let (guests, links): (Vec<&PortReport>, Vec<&PortReport>) =
            ports.iter().partition(|port| port.adapter.is_some());
        let (mut page, now) = (String::new(), begin + Duration::from_secs(10));
        picture(&mut page, &guests, &links);
        charts(&mut page, &links, &history, now);
        table(&mut page, "Ports", &guests, &history, PORT_WAYS);
        table(&mut page, "Uplinks and teams", &links, &history, LINK_WAYS);
        class_table(&mut page, &links, &history);
        let tags: Vec<&str> = page.split('<').filter_map(|part| part.split('>').next()).collect();
        let must = |tag: &&&str| {
            let roles = ["role=\"img\"", "role=\"list\"", "role=\"group\"", "tabindex"];
            tag.starts_with("table") || roles.iter().any(|role| tag.contains(role))
        };
        let named = |tag: &&&str| {
            let names = ["aria-label=\"", "aria-labelledby=\""].map(|key| tag.split_once(key));
            names.into_iter().flatten().any(|(_, name)| !name.starts_with('"'))
        };
        let all: Vec<&&str> = tags.iter().filter(must).collect();
        // Two groups and their lists, one of an uplink, a chart, three tables that scroll, a small picture in each of their rows.
        assert_eq!(all.len(), 2 + 2 + 1 + 1 + 3 * 2 + 4, "{all:#?}");
        assert!(all.iter().all(named), "{all:#?}");
        assert!(page.contains("aria-label=\"at most: sends 8.00 kbit/s, gets 0 bit/s\""), "{page}");
        assert_eq!(page.matches("aria-label=\"no traffic\"").count(), 2, "of the quiet port and the class");
    }

    /// Ports that all carry traffic that changes all the time.
    struct Busy(Mutex<u64>);

    impl Busy {
        fn ports(&self) -> Vec<PortReport> {
            let mut turn = self.0.lock().unwrap();
            *turn += 1;
            let queue = |number: u64| QueueReport {
                queue: 0,
                packets: *turn * 1_000_000,
                frames: *turn * 1_000_000,
                bytes: *turn * 1_000_000_000 + (*turn * 7919 + number * 104_729) % 97 * 40_000_000,
            };
            let port = |number| {
                let mut port = port(&format!("vm{number}"));
                (port.transmit, port.receive) = (vec![queue(number)], vec![queue(number + 13)]);
                port.port_group = Some(format!("group{}", number / 32));
                port
            };
            (0..256).map(port).collect()
        }
    }

    /// Bytes of the main part's text that differ between two pages: an element's text or path is written again if it differs.
    fn changed(before: &str, after: &str) -> (usize, usize) {
        let parts = |page: &str| page.split(['<', '>']).map(str::to_owned).collect::<Vec<String>>();
        let (before, after) = (parts(before), parts(after));
        assert_eq!(before.len(), after.len(), "the same elements");
        let differ = before.iter().zip(&after).filter(|(one, other)| one != other);
        differ.fold((0, 0), |(count, bytes), (_, new)| (count + 1, bytes + new.len()))
    }

    #[test]
    fn an_update_of_256_busy_ports_is_small_and_changes_few_elements() {
        let (busy, begin) = (Busy(Mutex::default()), Instant::now());
        let mut history = History::default();
        let at = |second: u64| begin + Duration::from_secs(second);
        let mut page_at = |second: u64| {
            let ports = busy.ports();
            history.note(&ports, at(second));
            let guests: Vec<&PortReport> = ports.iter().collect();
            let mut page = String::new();
            picture(&mut page, &guests, &[]);
            table(&mut page, "Ports", &guests, &history, PORT_WAYS);
            page
        };
        (0..=120).for_each(|second| _ = page_at(second));
        let (full, next) = (page_at(121), page_at(122));
        let (elements, bytes) = changed(&full, &next);
        println!(
            "256 ports: {} bytes a page, {elements} elements and {bytes} bytes of them differ after a second",
            full.len()
        );
        assert!(full.len() < 500_000, "{} bytes", full.len());
        // Two rates and two counts of frames, each with its exact value, and two lines of a small picture.
        assert!(elements <= 256 * 8, "{elements} elements");
    }
}
