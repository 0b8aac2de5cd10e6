//! A reader's choice of view: a filter, an order, idle ports, the time of charts. It is the query of the address, so that the page needs
//! no script for it, and a choice can be kept as a bookmark.

use std::fmt::Write as _;

use nicety_daemon::report::PortReport;

use super::describe::{from_path, in_path, state, vlan};
use super::history::{History, Series, Total};
use super::ring::Span;

/// Longest filter in bytes.
pub(super) const FILTER_MAX: usize = 100;

/// A column by which ports are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// The order of the host file.
    #[default]
    File,
    Name,
    State,
    Adapter,
    Network,
    Sends,
    Gets,
    FramesSent,
    FramesGot,
    Dropped,
}

impl Sort {
    const WORDS: [(Self, &str); 9] = [
        (Self::Name, "name"),
        (Self::State, "state"),
        (Self::Adapter, "adapter"),
        (Self::Network, "network"),
        (Self::Sends, "sends"),
        (Self::Gets, "gets"),
        (Self::FramesSent, "frames-sent"),
        (Self::FramesGot, "frames-got"),
        (Self::Dropped, "dropped"),
    ];

    /// Whether it is of numbers: then the largest is first.
    fn is_number(self) -> bool {
        matches!(self, Self::Sends | Self::Gets | Self::FramesSent | Self::FramesGot | Self::Dropped)
    }

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(sort, _)| *sort == self).map_or("file", |(_, word)| word)
    }
}

/// See the module's page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    /// Words that a port must have.
    pub filter: String,
    pub sort: Sort,
    /// Whether the order is the other way round.
    pub reversed: bool,
    /// Whether idle ports are shown, and all rows of a long table.
    pub all: bool,
    pub span: Span,
}

impl View {
    /// Reads a query. A key that the page does not know is left out.
    ///
    /// # Errors
    /// A sentence about a value that is none.
    pub fn parse(query: Option<&str>) -> Result<Self, String> {
        let mut view = Self::default();
        for part in query.unwrap_or_default().split('&') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value =
                from_path(&value.replace('+', " ")).ok_or_else(|| format!("{key} in the address is no UTF-8 text"))?;
            match (key, value.as_str()) {
                ("q", filter) if filter.len() > FILTER_MAX => {
                    return Err(format!(
                        "q in the address has {} bytes: a filter has at most {FILTER_MAX}",
                        filter.len()
                    ));
                }
                ("q", filter) => filter.trim().clone_into(&mut view.filter),
                ("sort" | "show" | "span", "") => {}
                ("sort", word) => view.sort_by(word)?,
                ("show", "all") => view.all = true,
                ("span", "hour") => view.span = Span::Hour,
                ("show", _) => return Err("show in the address is all, or left out".to_owned()),
                ("span", _) => return Err("span in the address is hour, or left out".to_owned()),
                _ => {}
            }
        }
        Ok(view)
    }

    fn sort_by(&mut self, word: &str) -> Result<(), String> {
        let (word, reversed) = word.strip_prefix('-').map_or((word, false), |word| (word, true));
        let found = Sort::WORDS.iter().find(|(_, known)| *known == word);
        let Some((sort, _)) = found else {
            let words: Vec<&str> = Sort::WORDS.iter().map(|(_, word)| *word).collect();
            return Err(format!("sort in the address is one of {}, or one of them behind a -", words.join(", ")));
        };
        (self.sort, self.reversed) = (*sort, reversed);
        Ok(())
    }

    /// The query of this choice, safe in an attribute.
    pub fn query(&self) -> String {
        let mut parts = Vec::new();
        if !self.filter.is_empty() {
            parts.push(format!("q={}", in_path(&self.filter)));
        }
        parts.extend(self.others().map(|(name, value)| format!("{name}={value}")));
        format!("?{}", parts.join("&amp;"))
    }

    /// The keys but the filter's, with their values.
    fn others(&self) -> impl Iterator<Item = (&'static str, String)> {
        let sign = if self.reversed { "-" } else { "" };
        let sort = (self.sort != Sort::File).then(|| ("sort", format!("{sign}{}", self.sort.word())));
        let show = self.all.then(|| ("show", "all".to_owned()));
        let span = (self.span == Span::Hour).then(|| ("span", "hour".to_owned()));
        [sort, show, span].into_iter().flatten()
    }

    /// All but the filter, as hidden fields of the filter's form.
    pub fn hidden(&self) -> String {
        let mut fields = String::new();
        for (name, value) in self.others() {
            let _ = write!(fields, "<input type=\"hidden\" name=\"{name}\" value=\"{value}\">");
        }
        fields
    }

    /// The same with this order; the other way round if it has it already.
    pub fn sorted(&self, sort: Sort) -> Self {
        Self { sort, reversed: self.sort == sort && !self.reversed, ..self.clone() }
    }

    /// The value of `aria-sort` at this column.
    pub fn order(&self, sort: Sort) -> Option<&'static str> {
        let is_descending = sort.is_number() != self.reversed;
        (self.sort == sort).then_some(if is_descending { "descending" } else { "ascending" })
    }

    /// Whether a port has all words of the filter: in its name, state, adapter, group, VLAN or mirror.
    pub fn takes(&self, port: &PortReport) -> bool {
        let text = [
            port.name.as_str(),
            state(port.condition).0,
            port.adapter.as_deref().unwrap_or_default(),
            port.port_group.as_deref().unwrap_or_default(),
            &vlan(port),
            port.mac.as_deref().unwrap_or_default(),
            port.mirror.as_ref().map(|mirror| mirror.name.as_str()).unwrap_or_default(),
        ]
        .join("\n")
        .to_lowercase();
        self.filter.to_lowercase().split_whitespace().all(|word| text.contains(word))
    }

    /// Puts ports into the order. Equal ones keep that of the host file.
    pub fn arrange(&self, ports: &mut Vec<&PortReport>, history: &History) {
        let rate = |port: &PortReport, way| history.rate(&Series::port(&port.name), way).unwrap_or(0.0);
        let text =
            |of: fn(&PortReport) -> String| move |one: &&PortReport, other: &&PortReport| of(one).cmp(&of(other));
        let number = |of: fn(Total) -> u64| {
            move |one: &&PortReport, other: &&PortReport| of(Total::of(other)).cmp(&of(Total::of(one)))
        };
        match self.sort {
            Sort::File => {}
            Sort::Name => ports.sort_by_key(|port| natural(&port.name)),
            Sort::State => ports.sort_by(text(|port| state(port.condition).0.to_owned())),
            Sort::Adapter => ports.sort_by(text(|port| port.adapter.clone().unwrap_or_default())),
            Sort::Network => ports.sort_by(text(network)),
            Sort::Sends => ports.sort_by(|one, other| rate(other, 0).total_cmp(&rate(one, 0))),
            Sort::Gets => ports.sort_by(|one, other| rate(other, 1).total_cmp(&rate(one, 1))),
            Sort::FramesSent => ports.sort_by(number(|total| total.frames[0])),
            Sort::FramesGot => ports.sort_by(number(|total| total.frames[1])),
            Sort::Dropped => ports.sort_by(number(|total| total.drops)),
        }
        if self.reversed {
            ports.reverse();
        }
    }
}

/// The group and VLAN of a port.
pub(super) fn network(port: &PortReport) -> String {
    let parts = [port.port_group.clone().unwrap_or_default(), vlan(port)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// A name as people sort it: `vm9` before `vm10`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(digits);
        let end = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
        let (number, behind) = behind.split_at(end);
        parts.push((word.to_lowercase(), number.parse().unwrap_or(u64::MAX)));
        rest = behind;
    }
    parts
}

/// Links to the other time that charts show.
pub(super) fn spans(page: &mut String, view: &View) {
    page.push_str("<nav class=\"spans\" aria-label=\"Time that charts show\">");
    for (span, words) in [(Span::Minutes, "Last five minutes"), (Span::Hour, "Last hour")] {
        let current = if span == view.span { " aria-current=\"true\"" } else { "" };
        let query = View { span, ..view.clone() }.query();
        let _ = write!(page, "<a data-view href=\"{query}\"{current}>{words}</a>");
    }
    page.push_str("</nav>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_and_written_and_a_value_that_is_none_is_named() {
        let read = |query: &str| View::parse(Some(query)).unwrap();
        assert_eq!(View::parse(None), Ok(View::default()));
        assert_eq!((read("").query(), read("utm=1&q=").query()), ("?".to_owned(), "?".to_owned()));
        let view = read("q=vlan+10%22%3C&sort=-sends&show=all&span=hour");
        assert_eq!((view.filter.as_str(), view.sort, view.reversed, view.all), ("vlan 10\"<", Sort::Sends, true, true));
        let query = view.query();
        assert_eq!(query, "?q=vlan%2010%22%3C&amp;sort=-sends&amp;show=all&amp;span=hour");
        assert_eq!(read(&query.replace("&amp;", "&")[1..]), view);
        for (query, why) in [
            ("sort=size", "sort in the address is one of name, state,"),
            ("show=none", "show in the address is all,"),
            ("span=day", "span in the address is hour,"),
            ("q=%ff", "q in the address is no UTF-8"),
            (&format!("q={}", "a".repeat(101)), "q in the address has 101 bytes"),
        ] {
            assert!(View::parse(Some(query)).unwrap_err().starts_with(why), "{query}");
        }
    }

    #[test]
    fn a_filter_looks_at_all_that_names_a_port_and_an_order_can_be_turned_round() {
        let mut ports = ["vm10", "vm9", "Web"].map(crate::tests::port);
        ports[0].policy.insert("vlan".to_owned(), "10".to_owned());
        ports[1].port_group = Some("storage".to_owned());
        let shown = |query: &str| -> Vec<&str> {
            let view = View::parse(Some(query)).unwrap();
            let mut all: Vec<&PortReport> = ports.iter().filter(|port| view.takes(port)).collect();
            view.arrange(&mut all, &History::default());
            all.iter().map(|port| port.name.as_str()).collect()
        };
        assert_eq!((shown(""), shown("q=vlan+10")), (vec!["vm10", "vm9", "Web"], vec!["vm10"]));
        assert_eq!((shown("q=STOR"), shown("q=e1000+web"), shown("q=none")), (vec!["vm9"], vec!["Web"], vec![]));
        assert_eq!((shown("sort=name"), shown("sort=-name")), (vec!["vm9", "vm10", "Web"], vec!["Web", "vm10", "vm9"]));
        assert_eq!(shown("sort=sends"), ["vm10", "vm9", "Web"], "equal ones stay in the file's order");
        let view = View::default().sorted(Sort::Sends);
        assert_eq!((view.order(Sort::Sends), view.order(Sort::Name)), (Some("descending"), None));
        assert_eq!(view.sorted(Sort::Sends).order(Sort::Sends), Some("ascending"));
    }
}
