//! Words and small pictures that several pages have.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use nicety_chart::{Escaped, Level, Linear, Mark, Panel, fixed, stairs};
use nicety_daemon::report::{Condition, PortReport};

use super::history::{History, Series};
use super::limits::Limit;
use super::recent::Line;
use super::ring::{Span, Step};

/// The state of a port: its word, and a sign that needs no colour.
pub(super) fn state(condition: Condition) -> (&'static str, &'static str) {
    match condition {
        Condition::Up => ("up", "●"),
        Condition::Attached => ("attached", "◐"),
        Condition::Waiting => ("waiting", "○"),
        Condition::Saved => ("saved", "◌"),
        Condition::Blocked => ("blocked", "▲"),
        Condition::Broken => ("broken", "▲"),
        Condition::Failed => ("failed", "✖"),
    }
}

/// `2.41 Gbit/s`, with three significant digits.
pub(super) fn rate(bits: f64) -> String {
    let units = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")];
    let (scale, unit) = units.into_iter().find(|(scale, _)| bits >= *scale * 0.9995).unwrap_or((1.0, "bit/s"));
    let value = bits / scale;
    let decimals = match value {
        _ if scale == 1.0 || value >= 99.95 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{} {unit}", fixed(value, decimals))
}

/// `1,234,567`: exact.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 frame`, `1,234 frames`.
pub(super) fn plural(number: u64, what: &str) -> String {
    format!("{} {what}{}", count(number), if number == 1 { "" } else { "s" })
}

/// A cell with an exact number.
pub(super) fn number(page: &mut String, class: &str, value: u64) {
    let _ = write!(page, "<td class=\"n {class}\" data-value=\"{value}\">{}</td>", count(value));
}

/// The VLAN of a port, in a few characters; empty on the flat network.
pub(super) fn vlan(port: &PortReport) -> String {
    let of = |key: &str| port.policy.get(key);
    match (of("vlan"), of("trunk"), of("qinq")) {
        (Some(vlan), ..) => format!("VLAN {vlan}"),
        (_, Some(trunk), _) => format!("trunk {trunk}"),
        (.., Some(service)) => format!("QinQ {service}"),
        _ => String::new(),
    }
}

/// The words of both directions: of a port, and of an uplink.
pub(super) const PORT_WAYS: [&str; 2] = ["sends", "gets"];
pub(super) const LINK_WAYS: [&str; 2] = ["comes in", "goes out"];
/// Classes of an uplink: out of it, and in by it.
pub(super) const CLASS_WAYS: [&str; 2] = ["goes out", "comes in"];

/// Width and height of a small picture in its own units.
const SPARK: (f64, f64) = (120.0, 20.0);

/// A small picture of both directions, lately. Its text alternative is the highest rates.
pub(super) fn spark(page: &mut String, history: &History, series: &Series, span: Span, [first, second]: [&str; 2]) {
    let ways = [0, 1].map(|way| history.coarse(series, way, span));
    let highest = |steps: &[Step]| steps.iter().map(|(_, _, rate)| *rate).fold(0.0, f64::max);
    let peaks = [highest(&ways[0]), highest(&ways[1])];
    let most = peaks[0].max(peaks[1]);
    if most <= 0.0 {
        page.push_str("<svg class=\"spark\" role=\"img\" aria-label=\"no traffic\"></svg>");
        return;
    }
    let words = format!("at most: {first} {}, {second} {}", rate(peaks[0]), rate(peaks[1]));
    let (wide, high) = SPARK;
    let _ = write!(
        page,
        "<svg class=\"spark\" viewBox=\"0 -1 {wide} {:.0}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{words}\">",
        high + 2.0
    );
    for (class, steps) in ["sent", "got"].into_iter().zip(&ways) {
        let _ = write!(page, "<path class=\"{class}\" d=\"{}\"/>", spark_path(steps, most, span));
    }
    page.push_str("</svg>");
}

/// Steps as a path. Equal values in a row are one line.
fn spark_path(steps: &[Step], most: f64, span: Span) -> String {
    let (wide, high) = SPARK;
    let (across, up) =
        (|at: f64| (at / span.seconds() as f64 * wide).round(), |rate: f64| (high * (1.0 - rate / most)).round());
    let mut path = String::new();
    let (mut level, mut end) = (None, 0.0);
    for (from, to, rate) in steps {
        let height = up(*rate);
        match level {
            None => _ = write!(path, "M{} {height}", across(*from)),
            Some(before) if before != height => _ = write!(path, "H{end}V{height}"),
            Some(_) => {}
        }
        (level, end) = (Some(height), across(*to));
    }
    if level.is_some() {
        let _ = write!(path, "H{end}");
    }
    path
}

/// A limit that is so many times as high as the traffic's peak is outside the chart: to scale, it would hide the traffic.
const OUTSIDE: f64 = 20.0;

/// The axis reaches so far above the highest level that the level's name stands above its line, not in the traffic.
const ABOVE: f64 = 1.15;

/// The largest value of a chart's axis: a little above the highest level inside, else a round number above the peak. It rarely changes.
fn top(peak: f64, levels: &[Limit]) -> f64 {
    let inside = levels.iter().map(|limit| limit.bits).filter(|bits| peak <= 0.0 || *bits <= peak * OUTSIDE);
    let level = inside.fold(0.0, f64::max);
    // A little beyond a link's rate (a burst, or the clock) is inside, too.
    if level > 0.0 && peak <= level * ABOVE {
        return level * ABOVE;
    }
    let peak = peak.max(1000.0);
    let power = 10_f64.powf(peak.log10().floor());
    let round = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0].map(|part| part * power);
    round.into_iter().find(|value| *value >= peak).unwrap_or(peak)
}

/// A chart's place on the page, and what it shows.
pub(super) struct Charted<'a> {
    /// Unique on the page.
    pub id: String,
    pub heading: String,
    pub series: Series,
    pub ways: [&'a str; 2],
    pub span: Span,
    /// The highest first.
    pub limits: &'a [Limit],
}

/// The chart of a series, both ways.
pub(super) fn chart(history: &History, of: &Charted<'_>) -> String {
    let Charted { id, heading, series, ways, span, limits } = of;
    let lines = [0, 1].map(|way| history.steps(series, way, *span));
    let highest = |steps: &[Step]| steps.iter().map(|(_, _, rate)| *rate).fold(0.0, f64::max);
    let peak = highest(&lines[0]).max(highest(&lines[1]));
    let top = top(peak, limits);
    // Whole units of the largest rate.
    let units = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")];
    let (unit, word) = units.into_iter().find(|(unit, _)| top >= *unit).unwrap_or((1.0, "bit/s"));
    let (scale, time) = (Linear::up_to(top / unit), Linear::up_to(span.seconds() as f64));
    let (mut paths, mut key, mut words) = (String::new(), String::new(), Vec::new());
    for (way, class) in ["sent", "got"].into_iter().enumerate() {
        let steps = &lines[way];
        let path = stairs(steps.iter().map(|(from, to, rate)| (*from, *to, rate / unit)), &time, &scale);
        if !path.is_empty() {
            let _ = write!(paths, "<path class=\"{class}\" d=\"{path}\"/>");
        }
        let now = history.rate(series, way).map_or_else(|| "no rate yet".to_owned(), rate);
        let most = rate(highest(steps));
        let _ = write!(key, "<span class=\"{class}-key\">{}</span> {now}, at most {most} ", ways[way]);
        words.push(format!("{} {now}, at most {most}", ways[way]));
    }
    words.extend(limits.iter().map(|limit| limit.words.clone()));
    let level = |limit: &Limit| Level { place: limit.bits / top, text: limit.words.clone(), class: limit.kind };
    let levels: Vec<Level> = limits.iter().map(level).collect();
    let mark = |place: f64, text: &str| -> Mark { (place, text.to_owned()) };
    let (begin, middle) = match span {
        Span::Minutes => ("5 min ago", "2.5 min"),
        Span::Hour => ("60 min ago", "30 min"),
    };
    let panel = Panel {
        id: id.clone(),
        heading: format!("{heading}, {word}"),
        title: format!("{heading} over the last {}: {}", span.words(), words.join("; ")),
        across: vec![mark(0.0, begin), mark(0.5, middle), mark(1.0, "now")],
        up: scale.marks(),
        lines: paths,
    };
    let forgotten = if history.is_forgotten(series) {
        " <span class=\"soft\">Too many ports: no history is kept.</span>"
    } else {
        ""
    };
    format!("<div>{}<p class=\"key\">{}{forgotten}</p></div>", panel.with_levels(&levels), key.trim_end())
}

/// Begins a table with this name. It scrolls by itself if it is wider than the page, by keyboard too. Its head follows.
pub(super) fn begin_table(page: &mut String, name: &str) {
    let _ = write!(
        page,
        "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{name}, scrolls\"><table aria-label=\"{name}\"><thead><tr>"
    );
}

/// Ends a table and its body.
pub(super) const TABLE_END: &str = "</tbody></table></div>";

/// The drops of some ports: each reason with its count, how many of them lately, where, and the book's sentence.
pub(super) fn drops(page: &mut String, ports: &[&PortReport], lately: &BTreeMap<(String, String), u64>) {
    let mut sums = BTreeMap::<&str, (u64, Vec<(u64, &str)>)>::new();
    for port in ports {
        for (reason, number) in port.transmit_drops.iter().chain(&port.receive_drops) {
            let (sum, at) = sums.entry(reason).or_default();
            *sum += number;
            at.push((*number, &port.name));
        }
    }
    if sums.is_empty() {
        page.push_str("<p class=\"soft\">No frame was dropped.</p>");
        return;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, (sum, _))| std::cmp::Reverse(*sum));
    let where_head = if ports.len() > 1 { "<th scope=\"col\">where</th>" } else { "" };
    begin_table(page, "Drops by reason");
    let _ = write!(
        page,
        "<th scope=\"col\">reason</th><th scope=\"col\" class=\"n\">frames</th><th scope=\"col\" class=\"n\">2 minutes</th>{where_head}<th scope=\"col\">means, and what to do</th></tr></thead><tbody>"
    );
    for (reason, (sum, mut at)) in sums {
        let _ = write!(page, "<tr id=\"drop-{reason}\"><th scope=\"row\">{reason}</th>");
        number(page, "drop", sum);
        let names: Vec<&str> = at.iter().map(|(_, name)| *name).collect();
        let here = |(port, of): &&(String, String)| of == reason && names.contains(&port.as_str());
        number(page, "lately", lately.keys().filter(here).map(|key| lately[key]).sum());
        if ports.len() > 1 {
            at.sort_unstable_by(|one, other| other.cmp(one));
            let first: Vec<String> = at.iter().take(3).map(|(_, name)| link(name)).collect();
            let more = if at.len() > 3 { format!(" and {} more", at.len() - 3) } else { String::new() };
            let _ = write!(page, "<td>{}{more}</td>", first.join(", "));
        }
        let _ = write!(page, "<td class=\"words\">{}</td></tr>", Escaped(super::reasons::sentence(reason)));
    }
    page.push_str(TABLE_END);
}

/// A port's name as a link to its page.
pub(super) fn link(name: &str) -> String {
    // Isolated: a name that is written from right to left turns nothing round beside it.
    format!("<a href=\"/ports/{}\"><bdi>{}</bdi></a>", in_path(name), Escaped(name))
}

/// A name as a part of a path (RFC 3986, section 2.1).
pub(super) fn in_path(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// The name in a path.
pub(super) fn from_path(part: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        bytes.push(match byte {
            b'%' => u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?,
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Date and time of day in UTC: `2026-11-26 14:03:09`. By Howard Hinnant's *chrono-compatible low-level date algorithms*, `civil_from_days`.
pub(super) fn utc(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, of_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// Lines of the log, the newest first, as a list with this name.
pub(super) fn lines(page: &mut String, name: &str, lines: &[Line]) {
    let _ = write!(page, "<ol class=\"log\" role=\"list\" aria-label=\"{name}\">");
    for Line { unix_ms, level, is_change: _, text } in lines {
        let _ =
            write!(page, "<li class=\"{level}\">{} <b>{level}</b> <span>{}</span></li>", time(*unix_ms), Escaped(text));
    }
    page.push_str("</ol>");
}

/// A moment, for people and for programs.
fn time(unix_ms: u64) -> String {
    let words = utc(unix_ms);
    format!("<time datetime=\"{}Z\">{words}</time>", words.replace(' ', "T"))
}

/// The moment at which a page is made.
pub(super) fn made() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("<span id=\"made\">As of {} UTC</span>", time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
}

/// A whole page around its main part.
pub(super) fn whole(title: &str, main: &str) -> String {
    let title = Escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><link rel=\"icon\" href=\"data:,\"><link rel=\"stylesheet\" href=\"/page.css\"><script src=\"/page.js\" defer></script></head>\
         <body><a class=\"skip\" href=\"#main\">To the content</a><header class=\"bar\"><a class=\"kicker\" href=\"/\">Nicety</a>\
         <span id=\"status\" role=\"status\">A still: <a href=\"\">reload</a> for newer numbers.</span>\
         <button id=\"pause\" type=\"button\" hidden aria-pressed=\"false\">Pause</button></header>\n<main id=\"main\" tabindex=\"-1\">{main}</main></body></html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        for (bits, text) in [
            (0.0, "0 bit/s"),
            (999.0, "999 bit/s"),
            (1000.0, "1.00 kbit/s"),
            (2.412e9, "2.41 Gbit/s"),
            (45.67e6, "45.7 Mbit/s"),
            (123.4e9, "123 Gbit/s"),
        ] {
            assert_eq!(rate(bits), text);
        }
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn times_are_as_the_calendar_has_them() {
        // date -u -d @SECONDS '+%F %T'
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_700_000_005, "2023-11-14 22:13:25"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(utc(seconds * 1000), text);
        }
    }

    #[test]
    fn a_small_picture_joins_equal_steps() {
        let steps = [(0.0, 6.0, 10.0), (6.0, 15.0, 10.0), (15.0, 22.5, 0.0), (22.5, 30.0, 5.0)];
        assert_eq!(spark_path(&steps, 10.0, Span::Minutes), "M0 0H6V20H9V10H12");
        assert_eq!(spark_path(&[], 1.0, Span::Hour), "");
    }

    #[test]
    fn an_axis_reaches_a_level_that_is_near_and_else_a_round_number() {
        let limits = |bits: &[f64]| -> Vec<Limit> {
            bits.iter().map(|bits| Limit { kind: "link", words: String::new(), bits: *bits }).collect()
        };
        for (peak, levels, most) in [
            (0.0, &[1e10, 1e9][..], 1.15e10),
            (6e8, &[1e10, 1e9], 1.15e10),
            (1e6, &[1e10, 1e9], 1e6),
            (6e7, &[1e10, 1e9], 1.15e9),
            (1.05e10, &[1e10], 1.15e10),
            (1.2e10, &[1e10], 1.5e10),
            (7e6, &[], 8e6),
            (0.0, &[], 1000.0),
        ] {
            let found = top(peak, &limits(levels));
            assert!((found / most - 1.0).abs() < 1e-9, "{peak} {levels:?}: {found}");
        }
    }

    #[test]
    fn a_name_comes_back_from_a_path() {
        for name in ["vm1", "tap#7", "a/b", "é%"] {
            assert_eq!(from_path(&in_path(name)).as_deref(), Some(name));
        }
        assert_eq!((from_path("%4"), from_path("%zz"), from_path("%ff")), (None, None, None));
    }
}
