//! Words and small pictures that several pages have.

use std::fmt::Write as _;
use std::time::Instant;

use nicety_chart::{Escaped, HIGH, Linear, Mark, Panel, WIDE, fixed, stairs};
use nicety_daemon::report::{Condition, PortReport};

use super::history::{History, SHOWN, Step};

/// The state of a port: its word, and a sign that needs no colour.
pub(super) fn state(condition: Condition) -> (&'static str, &'static str) {
    match condition {
        Condition::Up => ("up", "●"),
        Condition::Attached => ("attached", "◐"),
        Condition::Waiting => ("waiting", "○"),
        Condition::Saved => ("saved", "◌"),
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

/// A small line of what a port sends and gets lately.
pub(super) fn spark(page: &mut String, history: &History, name: &str, now: Instant) {
    let ways = [0, 1].map(|way| history.steps(name, way, now));
    let most = ways.iter().flatten().map(|(_, _, rate)| *rate).fold(0.0, f64::max);
    if most <= 0.0 {
        page.push_str("<svg class=\"spark\" aria-hidden=\"true\"></svg>");
        return;
    }
    let (time, scale) = (Linear::up_to(SHOWN.as_secs_f64()), Linear::up_to(most));
    let _ = write!(
        page,
        "<svg class=\"spark\" viewBox=\"0 -40 {WIDE} {:.0}\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
        HIGH + 80.0
    );
    for (class, steps) in ["sent", "got"].into_iter().zip(ways) {
        let _ = write!(page, "<path class=\"{class}\" d=\"{}\"/>", stairs(steps.into_iter(), &time, &scale));
    }
    page.push_str("</svg>");
}

/// The chart of a port's rates over the last two minutes.
pub(super) fn chart(history: &History, name: &str, way: usize, now: Instant) -> String {
    let (heading, class) = [("Sent by its guest, or come in by the uplink", "sent"), ("Got", "got")][way];
    let steps = history.steps(name, way, now);
    let most = steps.iter().map(|(_, _, rate): &Step| *rate).fold(0.0, f64::max);
    // Whole units of the largest rate.
    let unit = [1e9, 1e6, 1e3].into_iter().find(|unit| most >= *unit).unwrap_or(1.0);
    let words = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")];
    let word = words.into_iter().find(|(scale, _)| *scale == unit).map_or("", |(_, word)| word);
    let scale = Linear::up_to((most / unit).max(1.0));
    let time = Linear::up_to(SHOWN.as_secs_f64());
    let line = stairs(steps.iter().map(|(from, to, rate)| (*from, *to, rate / unit)), &time, &scale);
    let ago = |place: f64, text: &str| -> Mark { (place, text.to_owned()) };
    let now_words = steps.last().map_or_else(|| "no rate yet".to_owned(), |(_, _, bits)| rate(*bits));
    Panel {
        id: format!("chart-{class}"),
        heading: format!("{heading}, {word}: {now_words}"),
        title: format!("{heading}, over the last two minutes: now {now_words}, at most {}", rate(most)),
        across: vec![ago(0.0, "2 min ago"), ago(0.5, "1 min"), ago(1.0, "now")],
        up: scale.marks(),
        lines: format!("<path class=\"run {class}\" d=\"{line}\"/>"),
    }
    .svg()
}

/// The drops of some ports: each reason with its count, where, and the book's sentence.
pub(super) fn drops(page: &mut String, ports: &[&PortReport]) {
    let mut sums = std::collections::BTreeMap::<&str, (u64, Vec<(u64, &str)>)>::new();
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
    let _ = write!(
        page,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Drops by reason\"><table class=\"drops\"><thead><tr><th scope=\"col\">reason</th><th scope=\"col\" class=\"n\">frames</th>{where_head}<th scope=\"col\">means, and what to do</th></tr></thead><tbody>"
    );
    for (reason, (sum, mut at)) in sums {
        let _ = write!(page, "<tr id=\"drop-{reason}\"><th scope=\"row\">{reason}</th>");
        number(page, "drop", sum);
        if ports.len() > 1 {
            at.sort_unstable_by(|one, other| other.cmp(one));
            let first: Vec<String> = at.iter().take(3).map(|(_, name)| link(name)).collect();
            let more = if at.len() > 3 { format!(" and {} more", at.len() - 3) } else { String::new() };
            let _ = write!(page, "<td>{}{more}</td>", first.join(", "));
        }
        let _ = write!(page, "<td class=\"words\">{}</td></tr>", Escaped(super::reasons::sentence(reason)));
    }
    page.push_str("</tbody></table></div>");
}

/// A port's name as a link to its page.
pub(super) fn link(name: &str) -> String {
    format!("<a href=\"/ports/{}\">{}</a>", in_path(name), Escaped(name))
}

/// A name as a part of a path (RFC 3986, section 2.1).
fn in_path(name: &str) -> String {
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

/// A whole page around its main part.
pub(super) fn whole(title: &str, main: &str) -> String {
    let title = Escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><link rel=\"icon\" href=\"data:,\"><link rel=\"stylesheet\" href=\"/page.css\"><script src=\"/page.js\" defer></script></head>\
         <body><a class=\"skip\" href=\"#main\">To the content</a><div class=\"bar\"><span class=\"kicker\">Nicety</span>\
         <span id=\"status\" role=\"status\">A still: reload for newer numbers.</span>\
         <button id=\"pause\" type=\"button\" hidden aria-pressed=\"false\">Pause</button></div>\n<main id=\"main\">{main}</main></body></html>\n"
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
    fn a_name_comes_back_from_a_path() {
        for name in ["vm1", "tap#7", "a/b", "é%"] {
            assert_eq!(from_path(&in_path(name)).as_deref(), Some(name));
        }
        assert_eq!((from_path("%4"), from_path("%zz"), from_path("%ff")), (None, None, None));
    }
}
