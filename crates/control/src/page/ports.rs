//! Tables of ports: what is shown of them, in which order, and what of the daemon's many ports is folded.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nicety_chart::Escaped;
use nicety_daemon::report::{Condition, PortReport};

use super::blocked::Blocked;
use super::describe::{LINK_WAYS, PORT_WAYS, TABLE_END, begin_table, count, link, number, plural, rate, spark, state};
use super::history::{History, Series, Total};
use super::view::{FILTER_MAX, Sort, View, network};

/// Fewer idle ports are shown: a link in their place would save nothing.
const FOLDED_MIN: usize = 4;
/// Most rows, unless the reader asks for all.
const ROWS_MAX: usize = 256;

/// The ports that VMs use, as a reader has chosen to see them.
pub(super) struct Guests<'a> {
    pub all: Vec<&'a PortReport>,
    pub view: &'a View,
    /// Names of those that are idle and not shown.
    folded: BTreeSet<&'a str>,
}

impl<'a> Guests<'a> {
    pub fn new(all: Vec<&'a PortReport>, blocked: &[Blocked], history: &History, view: &'a View) -> Self {
        let blocked: BTreeSet<&str> = blocked.iter().map(|blocked| blocked.port.as_str()).collect();
        let is_idle = |port: &&&PortReport| {
            let rests = matches!(port.condition, Condition::Up | Condition::Attached | Condition::Waiting);
            rests && !blocked.contains(port.name.as_str()) && history.is_quiet(&Series::port(&port.name))
        };
        let mut folded = BTreeSet::new();
        if !view.all && view.filter.is_empty() {
            folded = all.iter().filter(is_idle).map(|port| port.name.as_str()).collect();
        }
        if folded.len() < FOLDED_MIN {
            folded.clear();
        }
        Self { all, view, folded }
    }

    /// Whether a port is idle and not shown.
    pub fn folds(&self, port: &PortReport) -> bool {
        self.folded.contains(port.name.as_str())
    }

    /// The query of the page with all of them.
    pub fn unfolded(&self) -> String {
        View { all: true, ..self.view.clone() }.query()
    }
}

/// The filter, the table, and what is not in it.
pub(super) fn section(main: &mut String, guests: &Guests<'_>, history: &History) {
    let Guests { all, view, folded } = guests;
    if all.is_empty() {
        main.push_str("<p class=\"soft\">None.</p>");
        return;
    }
    let mut rows: Vec<&PortReport> =
        all.iter().copied().filter(|port| !guests.folds(port) && view.takes(port)).collect();
    view.arrange(&mut rows, history);
    let found = rows.len();
    if !view.all {
        rows.truncate(ROWS_MAX);
    }
    form(main, view, found + folded.len(), all.len());
    if rows.is_empty() && !view.filter.is_empty() {
        let query = View { filter: String::new(), ..(*view).clone() }.query();
        let filter = Escaped(&view.filter);
        let _ = write!(
            main,
            "<p class=\"soft\">No port has <bdi>{filter}</bdi>: <a data-view href=\"{query}\">show all</a>.</p>"
        );
        return;
    }
    if !rows.is_empty() {
        table(main, &GUESTS, &rows, history, view);
    }
    rest(main, guests, found - rows.len());
}

/// The links to what the table does not show, or away from it.
fn rest(main: &mut String, guests: &Guests<'_>, cut: usize) {
    let mut link = |query: &str, words: &str, why: &str| {
        let _ = write!(
            main,
            "<p class=\"rest\" data-key=\"rest {why}\"><a data-view href=\"{query}\">{words}</a> <span class=\"soft\">{why}</span></p>"
        );
    };
    if cut > 0 {
        link(
            &guests.unfolded(),
            &format!("Show {} more", plural(cut as u64, "port")),
            "A filter or an order finds one sooner.",
        );
    }
    if !guests.folded.is_empty() {
        let words = format!("Show {} idle ports", count(guests.folded.len() as u64));
        link(&guests.unfolded(), &words, "They have sent nothing for five minutes, or wait for a VM.");
    }
    if guests.view.all {
        let query = View { all: false, ..guests.view.clone() }.query();
        link(&query, "Fold idle ports", "Those that have sent nothing for five minutes, or wait for a VM.");
    }
}

/// The filter. It is a form: it needs no script.
fn form(main: &mut String, view: &View, found: usize, all: usize) {
    let (filter, hidden) = (Escaped(&view.filter), view.hidden());
    let of = match view.filter.is_empty() {
        true => String::new(),
        false => format!("{} of {}", count(found as u64), plural(all as u64, "port")),
    };
    let _ = write!(
        main,
        "<form class=\"filter\" role=\"search\" aria-label=\"Ports\" action=\"/\" method=\"get\"><label for=\"filter\">Filter</label>\
         <input id=\"filter\" name=\"q\" type=\"search\" value=\"{filter}\" maxlength=\"{FILTER_MAX}\" placeholder=\"name, state, adapter, group, VLAN\" \
         autocomplete=\"off\" spellcheck=\"false\" autocapitalize=\"off\">{hidden}<button>Filter</button><span class=\"soft\">{of}</span></form>"
    );
}

/// A head of a table. With an order it is a link.
fn head(main: &mut String, view: Option<&View>, sort: Sort, class: &str, words: &str) {
    let Some(view) = view else {
        let _ = write!(main, "<th scope=\"col\" class=\"{class}\">{words}</th>");
        return;
    };
    let order = view.order(sort);
    let aria = order.map(|order| format!(" aria-sort=\"{order}\"")).unwrap_or_default();
    let sign = match order {
        Some("ascending") => " <span aria-hidden=\"true\">▲</span>",
        Some(_) => " <span aria-hidden=\"true\">▼</span>",
        None => "",
    };
    let query = view.sorted(sort).query();
    let _ =
        write!(main, "<th scope=\"col\" class=\"{class}\"{aria}><a data-view href=\"{query}\">{words}{sign}</a></th>");
}

/// A rate whose number and unit each have a column.
pub(super) fn aligned(bits: f64) -> String {
    let text = rate(bits);
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    format!("{number} <span class=\"unit\">{unit}</span>")
}

/// The heads of a table of ports.
pub(super) struct Heads {
    /// The table's name.
    label: &'static str,
    /// The words of both directions.
    ways: [&'static str; 2],
    /// Whether its heads choose the order.
    sorts: bool,
}

/// The heads of guests' ports.
const GUESTS: Heads = Heads { label: "Ports", ways: PORT_WAYS, sorts: true };
/// The heads of uplinks and teams.
pub(super) const LINKS: Heads = Heads { label: "Uplinks and teams", ways: LINK_WAYS, sorts: false };

/// A table of ports.
pub(super) fn table(main: &mut String, heads: &Heads, ports: &[&PortReport], history: &History, view: &View) {
    let Heads { label, ways: [sends, gets], sorts } = *heads;
    if ports.is_empty() {
        main.push_str("<p class=\"soft\">None.</p>");
        return;
    }
    begin_table(main, label);
    let order = sorts.then_some(view);
    let way = |class: &str, words: &str| format!("<span class=\"{class}-key\">{words}</span>");
    head(main, order, Sort::Name, "", "name");
    head(main, order, Sort::State, "state", "state");
    head(main, order, Sort::Sends, "n", &way("sent", sends));
    head(main, order, Sort::Gets, "n", &way("got", gets));
    let _ = write!(main, "<th scope=\"col\" class=\"wide\">{}</th>", view.span.brief());
    head(main, order, Sort::FramesSent, "n wide", &format!("frames: {sends}"));
    head(main, order, Sort::FramesGot, "n wide", &format!("frames: {gets}"));
    head(main, order, Sort::Dropped, "n", "dropped");
    head(main, order, Sort::Adapter, "wide", "adapter");
    head(main, order, Sort::Network, "wide", "network");
    main.push_str("</tr></thead><tbody>");
    ports.iter().for_each(|port| row(main, port, history, [sends, gets], view));
    main.push_str(TABLE_END);
}

fn row(main: &mut String, port: &PortReport, history: &History, ways: [&str; 2], view: &View) {
    let (word, sign) = state(port.condition);
    let (total, series) = (Total::of(port), Series::port(&port.name));
    let kind = match (&port.adapter, &port.members) {
        (Some(adapter), _) => adapter.as_str(),
        (None, Some(_)) => "team",
        (None, None) => "uplink",
    };
    let _ = write!(
        main,
        "<tr data-key=\"{0}\"><th scope=\"row\">{1}</th><td class=\"state {word}\"><span aria-hidden=\"true\">{sign}</span> <span class=\"word\">{word}</span></td>",
        Escaped(&port.name),
        link(&port.name),
    );
    for way in [0, 1] {
        let rate = history.rate(&series, way).map_or_else(|| "–".to_owned(), aligned);
        let _ = write!(main, "<td class=\"n rate\">{rate}</td>");
    }
    main.push_str("<td class=\"wide\">");
    spark(main, history, &series, view.span, ways);
    main.push_str("</td>");
    number(main, "sent wide", total.frames[0]);
    number(main, "got wide", total.frames[1]);
    number(main, "dropped", total.drops);
    let (kind, network) = (Escaped(kind), network(port));
    let _ = write!(main, "<td class=\"wide\">{kind}</td><td class=\"wide\">{}</td></tr>", Escaped(&network));
}
