//! The page of the host.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Instant;

use nicety_chart::Escaped;
use nicety_daemon::fabric::FabricReport;
use nicety_daemon::live::confirm::WaitingChange;
use nicety_daemon::protection::VmReport;
use nicety_daemon::report::{Condition, PortReport};

use super::blocked::Blocked;
use super::describe::{
    CLASS_WAYS, Charted, LINK_WAYS, TABLE_END, begin_table, chart, count, drops, lines, link, made, number, plural,
    spark, whole,
};
use super::fabric;
use super::flows;
use super::history::{Addresses, History, Series};
use super::limits::Limits;
use super::picture::{of_themselves, picture};
use super::ports::{self, Guests};
use super::ring::Span;
use super::shown::Shown;
use super::view::{View, spans};
use super::vms;

/// Most charts of uplinks. Each uplink's own page has its chart.
const CHARTS_MAX: usize = 8;

/// The sections, by identifier and heading.
const SECTIONS: [(&str, &str); 11] = [
    ("picture", "The host"),
    ("blocked", "Blocked"),
    ("ports", "Ports"),
    // Only if the host file has some.
    ("vms", "Protected VMs"),
    ("uplinks", "Uplinks and teams"),
    // The same.
    ("flows", "Exports of flows"),
    // Only if the fabric has other hosts.
    ("fabric", "Other hosts of the fabric"),
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

pub(super) fn page(shown: &Shown, view: &View) -> String {
    let now = Instant::now();
    let mut history = shown.history.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let ports = history.look(shown.inspect.as_ref(), now);
    let addresses = history.addresses(shown.inspect.as_ref(), now);
    let vms = shown.inspect.vms();
    let (guests, links): (Vec<&PortReport>, Vec<&PortReport>) = ports.iter().partition(|port| port.adapter.is_some());
    let (lately, since) = history.dropped_lately(&ports, now);
    let blocked = Blocked::all(&ports, &lately, since);
    let limits = shown.limits();
    let guests = Guests::new(guests, &blocked, &history, view);
    let mut main = String::new();
    let exports = shown.inspect.flow_exports();
    let fabric = shown.inspect.fabric();
    let others = fabric.as_ref().filter(|fabric| !fabric.hosts.is_empty());
    let there = SECTIONS.iter().filter(|(id, _)| match *id {
        "vms" => !vms.is_empty(),
        "flows" => !exports.is_empty(),
        "fabric" => others.is_some(),
        _ => true,
    });
    let contents: Vec<String> = there.map(|(id, heading)| format!("<a href=\"#{id}\">{heading}</a>")).collect();
    let _ = write!(
        main,
        "<header><h1>{}</h1><p>{}</p><p class=\"soft\">{} · {} · Nicety {}</p><nav aria-label=\"On this page\">{}</nav></header>",
        Escaped(&shown.switch),
        summary(&guests.all, &links),
        made(),
        Escaped(&shown.file.display().to_string()),
        Escaped(nicety_version::BUILD),
        contents.join(" ")
    );
    let waiting = shown.inspect.live().and_then(|live| live.waiting());
    fabric.iter().for_each(|fabric| fabric::line(&mut main, fabric));
    attention(&mut main, &ports, &vms, fabric.as_ref(), waiting.as_ref());
    section(&mut main, "picture", |main| picture(main, &guests, &links));
    section(&mut main, "blocked", |main| Blocked::list(main, &blocked));
    section(&mut main, "ports", |main| ports::section(main, &guests, &history));
    if !vms.is_empty() {
        section(&mut main, "vms", |main| vms::table(main, &vms));
    }
    section(&mut main, "uplinks", |main| {
        charts(main, &links, &history, &limits, view);
        ports::table(main, &ports::LINKS, &links, &history, view);
        class_table(main, &links, &history, view.span);
    });
    if !exports.is_empty() {
        section(&mut main, "flows", |main| flows::table(main, &exports));
    }
    if let Some(fabric) = others {
        section(&mut main, "fabric", |main| fabric::table(main, fabric));
    }
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
fn charts(main: &mut String, links: &[&PortReport], history: &History, limits: &Limits, view: &View) {
    let all = of_themselves(links);
    if all.is_empty() {
        return;
    }
    spans(main, view);
    main.push_str("<div class=\"panels\">");
    for (number, port) in all.into_iter().take(CHARTS_MAX).enumerate() {
        let (series, span) = (Series::port(&port.name), view.span);
        let limits = limits.get(&series);
        let (id, heading) = (format!("chart{number}"), port.name.clone());
        main.push_str(&chart(history, &Charted { id, heading, series, ways: LINK_WAYS, span, limits }));
    }
    main.push_str("</div>");
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

/// The ports that cannot work, the VMs that would end with this host, what is wrong with the fabric, and a change that waits to be
/// confirmed, with what to do.
fn attention(
    main: &mut String,
    ports: &[PortReport],
    vms: &[VmReport],
    fabric: Option<&FabricReport>,
    waiting: Option<&WaitingChange>,
) {
    let is_wrong =
        |port: &&PortReport| matches!(port.condition, Condition::Broken | Condition::Failed | Condition::Blocked);
    let wrong: Vec<&PortReport> = ports.iter().filter(is_wrong).collect();
    let is_well = fabric.is_none_or(|fabric| fabric::wrong(fabric).next().is_none());
    if wrong.is_empty() && vms::unprotected(vms).next().is_none() && is_well && waiting.is_none() {
        return;
    }
    main.push_str(
        "<section data-key=\"attention\" class=\"attention\" aria-labelledby=\"attention\"><h2 id=\"attention\">Needs attention</h2><ul>",
    );
    if let Some(waiting) = waiting {
        let _ = write!(main, "<li data-key=\"waiting\">{}</li>", Escaped(&waiting.to_string()));
    }
    for port in wrong {
        let (name, sentence) = (Escaped(&port.name), Escaped(&port.sentence));
        let _ = write!(main, "<li data-key=\"{name}\">{}: {sentence}</li>", link(&port.name));
    }
    vms::unprotected(vms).for_each(|vm| vms::attention(main, vm));
    fabric.into_iter().for_each(|fabric| fabric::attention(main, fabric));
    main.push_str("</ul></section>");
}

/// The names of an uplink's classes, each once.
pub(super) fn classes(port: &PortReport) -> BTreeSet<&str> {
    port.io_classes.iter().chain(&port.inward_classes).map(|class| class.name.as_str()).collect()
}

/// The classes of uplinks with I/O control.
fn class_table(main: &mut String, links: &[&PortReport], history: &History, span: Span) {
    if links.iter().all(|port| classes(port).is_empty()) {
        return;
    }
    main.push_str("<h3>Classes</h3>");
    begin_table(main, "Classes");
    let _ = write!(
        main,
        "<th scope=\"col\">uplink</th><th scope=\"col\">class</th><th scope=\"col\">way</th>\
         <th scope=\"col\" class=\"n\">rate</th><th scope=\"col\">{0}</th><th scope=\"col\" class=\"n\">packets</th><th scope=\"col\" class=\"n\">bytes</th>\
         <th scope=\"col\" class=\"n\">wait</th><th scope=\"col\" class=\"n\">dropped</th><th scope=\"col\" class=\"n\">marked</th></tr></thead><tbody>",
        span.brief()
    );
    for port in links {
        for (way, classes) in [&port.io_classes, &port.inward_classes].into_iter().enumerate() {
            for class in classes {
                let series = Series::class(&port.name, &class.name);
                let rate = history.rate(&series, way).map_or_else(|| "–".to_owned(), ports::aligned);
                let _ = write!(
                    main,
                    "<tr data-key=\"{2} {0} {1}\"><th scope=\"row\">{3}</th><td>{1}</td><td>{0}</td><td class=\"n rate\">{rate}</td><td>",
                    CLASS_WAYS[way],
                    Escaped(&class.name),
                    Escaped(&port.name),
                    link(&port.name)
                );
                spark(main, history, &series, span, CLASS_WAYS);
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
        let page = page(&shown(Arc::new(Fake(3)), recent), &View::default());
        for (id, heading) in SECTIONS {
            assert!(page.contains(&format!("<h2 id=\"{id}\">{heading}</h2>")), "{id}");
        }
        assert_eq!(page.matches("+ port &lt;img src=x&gt;").count(), 2, "as a change, and as a line");
        assert!(!page.contains("<img") && page.contains("2023-11-14 22:13:25"));
        assert!(page.contains("3 ports, 3 of them up; 0 uplinks."), "{page}");
        assert!(page.contains(">VM <bdi>web</bdi> is not protected: the twin&#39;s host is silent</li>"), "{page}");
        assert!(page.contains("<td class=\"n drop\" data-value=\"9\">9</td>"), "three ports with 3 each");
        assert!(page.contains("<span>away: &lt;b&gt;</span></td><td>tcp:10.0.0.9:4739</td>"), "{page}");
        assert!(page.contains("<td class=\"n \" data-value=\"40000\">"), "{page}");
    }

    #[test]
    fn a_change_that_waits_needs_attention_and_its_text_becomes_no_markup() {
        let mut main = String::new();
        attention(&mut main, &[], &[], None, None);
        assert_eq!(main, "");
        let changes = vec!["+ port <b>".to_owned()];
        let waiting =
            WaitingChange { by: "user 0 (process 7)".to_owned(), changes, seconds_left: 42, not_undone: None };
        attention(&mut main, &[], &[], None, Some(&waiting));
        let sentence = "<li data-key=\"waiting\">a change by user 0 (process 7) waits to be confirmed (+ port &lt;b&gt;), and is undone in 42 s;";
        assert!(main.contains(sentence), "{main}");
        let stands = WaitingChange { not_undone: Some("vm1.sock is served".to_owned()), ..waiting };
        main.clear();
        attention(&mut main, &[], &[], None, Some(&stands));
        assert!(main.contains("; it could not be undone, and stands: vm1.sock is served; "), "{main}");
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
            history.note_reports(&ports, begin + Duration::from_secs(second));
        }
        let (guests, links): (Vec<&PortReport>, Vec<&PortReport>) =
            ports.iter().partition(|port| port.adapter.is_some());
        let (mut page, view) = (String::new(), View::default());
        let guests = Guests::new(guests, &[], &history, &view);
        picture(&mut page, &guests, &links);
        charts(&mut page, &links, &history, &Limits::default(), &view);
        ports::section(&mut page, &guests, &history);
        ports::table(&mut page, &ports::LINKS, &links, &history, &view);
        class_table(&mut page, &links, &history, view.span);
        let tags: Vec<&str> = page.split('<').filter_map(|part| part.split('>').next()).collect();
        let must = |tag: &&&str| {
            let roles = ["role=\"img\"", "role=\"list\"", "role=\"group\"", "role=\"search\"", "<nav", "tabindex"];
            tag.starts_with("table") || roles.iter().any(|role| tag.contains(role))
        };
        let named = |tag: &&&str| {
            let names = ["aria-label=\"", "aria-labelledby=\""].map(|key| tag.split_once(key));
            names.into_iter().flatten().any(|(_, name)| !name.starts_with('"'))
        };
        let all: Vec<&&str> = tags.iter().filter(must).collect();
        // Two groups and their lists, one of an uplink, a chart, the filter, three tables that scroll, a small picture in each of their rows.
        assert_eq!(all.len(), 2 + 2 + 1 + 1 + 1 + 3 * 2 + 4, "{all:#?}");
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
                bytes: *turn * 1_000_000_000 + (*turn * 7919 + number * 104_729) % 97 * 10_000_000,
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
            history.note_reports(&ports, at(second));
            let (view, mut page) = (View::default(), String::new());
            let guests = Guests::new(ports.iter().collect(), &[], &history, &view);
            picture(&mut page, &guests, &[]);
            ports::section(&mut page, &guests, &history);
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
        // Two counts of frames for each port, each as text and as exact value. Of 512 rates 370 differ in the three digits that are shown.
        assert_eq!(elements, 4 * 256 + 370);
        assert!(bytes <= 128 * 256, "{bytes} bytes");
    }

    /// Ports of which the first ones carry traffic.
    struct Some64([&'static str; 4], usize, usize, Mutex<u64>);

    impl Inspect for Some64 {
        fn is_ready(&self) -> bool {
            true
        }

        fn ports(&self) -> Vec<PortReport> {
            let Self(names, all, busy, turn) = self;
            let mut turn = turn.lock().unwrap();
            *turn += 1;
            let port = |number: usize| {
                let mut port =
                    port(&names.get(number).map_or_else(|| format!("vm{number}"), |name| (*name).to_owned()));
                let bytes = if number < *busy { *turn * 1_000_000 } else { 7 };
                port.transmit = vec![QueueReport { queue: 0, packets: 1, frames: 1, bytes }];
                port.receive_drops.clear();
                port
            };
            (0..*all).map(port).collect()
        }

        fn carried(&self, note: &mut nicety_daemon::daemon::NoteBytes<'_>) {
            crate::tests::carried(&self.ports(), note);
        }

        fn addresses(&self) -> crate::api::AddressList {
            crate::api::AddressList { addresses: Vec::new(), more: 0 }
        }

        fn restart(&self, name: &str) -> Result<(), nicety_daemon::daemon::RestartError> {
            Err(nicety_daemon::daemon::RestartError::Missing(name.to_owned()))
        }

        fn save(&self, name: &str) -> Result<nicety_daemon::saved::PortState, nicety_daemon::saved::SaveError> {
            Err(nicety_daemon::saved::SaveError::Missing(name.to_owned()))
        }

        fn restore(
            &self,
            name: &str,
            _: nicety_daemon::saved::PortState,
        ) -> Result<(), nicety_daemon::saved::SaveError> {
            Err(nicety_daemon::saved::SaveError::Missing(name.to_owned()))
        }
    }

    /// The page of such a daemon after two looks.
    fn seen(names: [&'static str; 4], all: usize, busy: usize, query: &str) -> (Shown, String) {
        let shown = shown(Arc::new(Some64(names, all, busy, Mutex::default())), Arc::default());
        let early = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
        shown.history.lock().unwrap().look(shown.inspect.as_ref(), early);
        let page = page(&shown, &View::parse(Some(query)).unwrap());
        (shown, page)
    }

    const NAMES: [&str; 4] = ["vm0", "vm1", "vm2", "vm3"];

    #[test]
    fn a_daemon_without_protected_vms_and_exports_of_flows_shows_none() {
        let page = seen(NAMES, 1, 1, "").1;
        assert!(!page.contains("Protected VMs") && !page.contains("#vms") && !page.contains("attention"), "{page}");
        assert!(!page.contains("Exports of flows") && !page.contains("#flows"), "{page}");
    }

    #[test]
    fn idle_ports_are_folded_and_found_by_the_filter() {
        let rows = |page: &str| page.matches("<tr data-key=\"vm").count();
        let page = seen(NAMES, 64, 14, "").1;
        assert_eq!(rows(&page), 14);
        assert!(page.contains("64 ports, 64 of them up") && page.contains(">Show 50 idle ports</a>"), "{page}");
        assert!(page.contains(">50 idle</a>"), "in the picture: {page}");
        let page = seen(NAMES, 64, 14, "show=all").1;
        assert!(rows(&page) == 64 && page.contains(">Fold idle ports</a>"), "{page}");
        let page = seen(NAMES, 64, 14, "q=vm63").1;
        assert!(rows(&page) == 1 && page.contains(">1 of 64 ports</span>"), "{page}");
        let page = seen(NAMES, 64, 14, "q=<b>").1;
        assert!(rows(&page) == 0 && page.contains("No port has <bdi>&lt;b&gt;</bdi>"), "{page}");
        // Three idle ports are not worth a link.
        assert_eq!(rows(&seen(NAMES, 17, 14, "").1), 17);
        let sorted = seen(NAMES, 20, 14, "sort=-sends").1;
        assert!(sorted.contains("aria-sort=\"ascending\"><a data-view href=\"?sort=sends\">"), "{sorted}");
    }

    #[test]
    fn a_page_of_a_thousand_ports_has_a_bound_and_says_what_is_not_on_it() {
        let begin = Instant::now();
        let busy = seen(NAMES, 1000, 1000, "").1;
        println!("1000 busy ports: {} bytes, made in {:?}", busy.len(), begin.elapsed());
        assert_eq!(busy.matches("<tr data-key=\"vm").count(), 256);
        assert!(busy.contains(">Show 744 ports more</a>") && busy.contains(">936 more</a>"), "{}", busy.len());
        assert!(busy.len() < 400_000, "{} bytes", busy.len());
        let idle = seen(NAMES, 1000, 10, "").1;
        assert!(idle.len() < 60_000 && idle.contains(">Show 990 idle ports</a>"), "{} bytes", idle.len());
    }

    #[test]
    fn no_name_of_a_port_breaks_the_page() {
        let long: &'static str = Box::leak("n".repeat(64).into_boxed_str());
        let names = ["<script>alert(1)</script>", "\" onload=\"x", long, "\u{202e}שלום ../x"];
        let (shown, page) = seen(names, 8, 4, "");
        assert!(!page.contains("<script>a") && !page.contains("\" onload=\""), "{page}");
        for name in names {
            let path = crate::page::describe::in_path(name);
            let link = format!("<a href=\"/ports/{path}\"><bdi>{}</bdi></a>", Escaped(name));
            assert_eq!(page.matches(&link).count(), 2, "in the picture and in the table: {link}");
            let own = crate::page::port::page(&shown, &path, &View::default()).unwrap();
            assert!(own.contains(&format!("<h1><bdi>{}</bdi></h1>", Escaped(name))), "{own}");
            assert!(!own.contains("<script>a") && !own.contains("\" onload=\""), "{own}");
        }
    }

    #[test]
    fn the_chart_of_an_uplink_has_its_rate_as_a_line_with_a_name() {
        let text = "[[uplink]]\nkind = \"null\"\nname = \"up\"\nrate = \"10Gbit/s\"\n";
        let host = Host::parse(text, std::path::Path::new("/etc/host.toml")).unwrap();
        let mut up = port("up");
        up.adapter = None;
        let (view, mut page) = (View::default(), String::new());
        charts(&mut page, &[&up], &History::default(), &Limits::of(&host), &view);
        assert!(page.contains("<line class=\"level link\"") && page.contains(">link 10 Gbit/s</text>"), "{page}");
        assert!(page.contains("over the last five minutes: ") && page.contains("; link 10 Gbit/s</title>"), "{page}");
        assert!(page.contains("<a data-view href=\"?span=hour\">Last hour</a>"), "{page}");
    }
}
