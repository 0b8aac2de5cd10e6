//! The section *Blocked*, in a sentence each: links that nobody uses, frames that wait, ports whose frames are dropped now.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use nicety_chart::Escaped;
use nicety_daemon::report::{Condition, DRIVEN, PortReport};

use super::describe::{CLASS_WAYS, count, link, plural};
use super::reasons::sentence;

/// Most sentences.
const MAX: usize = 40;
/// Drops by which nobody misses a frame: a guest's own filter, frames that no bridge forwards, copies of floods on a link that its team
/// does not use, and frames of a mirror's port.
const HARMLESS: [&str; 4] = ["filtered", "mirror-port", "policy", "unused-link"];

/// A sentence. Its key stays while its numbers change.
pub(super) struct Blocked {
    pub port: String,
    key: String,
    html: String,
}

impl Blocked {
    /// All of them. `lately`: drops by port and reason since so long ago.
    pub fn all(ports: &[PortReport], lately: &BTreeMap<(String, String), u64>, since: Duration) -> Vec<Self> {
        sentences(ports, lately, since)
    }

    /// The section.
    pub fn list(main: &mut String, all: &[Self]) {
        if all.is_empty() {
            main.push_str("<p class=\"soft\">Nobody, as far as the daemon sees.</p>");
            return;
        }
        main.push_str("<ul class=\"blocked\">");
        for Self { key, html, .. } in all.iter().take(MAX) {
            let _ = write!(main, "<li data-key=\"{}\">{html}</li>", Escaped(key));
        }
        if all.len() > MAX {
            let _ = write!(main, "<li class=\"soft\">And {} more.</li>", count((all.len() - MAX) as u64));
        }
        main.push_str("</ul>");
    }
}

fn sentences(ports: &[PortReport], lately: &BTreeMap<(String, String), u64>, since: Duration) -> Vec<Blocked> {
    let mut all = Vec::new();
    let mut add = |port: &str, what: &str, html: String| {
        all.push(Blocked { port: port.to_owned(), key: format!("{port} {what}"), html });
    };
    let members: Vec<&str> =
        ports.iter().flat_map(|port| port.members.iter().flatten()).map(|member| member.uplink.as_str()).collect();
    for port in ports {
        let name = link(&port.name);
        // A port without a VM waits for it: nobody is blocked. Of a team each member that is not used has its own sentence.
        let is_told = port.members.is_some() || members.contains(&port.name.as_str());
        let waits = port.condition == Condition::Waiting && port.adapter.is_none() && !is_told;
        let stands =
            matches!(port.condition, Condition::Saved | Condition::Blocked | Condition::Broken | Condition::Failed);
        // Up, and what the guest is to get or sends does not pass.
        let hampers = port.condition == Condition::Up && port.adapter.is_some() && port.sentence != DRIVEN;
        if waits || stands || hampers {
            add(&port.name, "state", format!("{name}: {}", Escaped(&port.sentence)));
        }
        for member in port.members.iter().flatten().filter(|member| !member.distributes || !member.collects) {
            let way = match (member.collects, member.distributes) {
                (false, false) => "is not used",
                (true, _) => "only takes frames",
                (false, true) => "only sends frames",
            };
            let of = ports.iter().find(|port| port.name == member.uplink && port.condition == Condition::Waiting);
            let why = of.map(|port| format!("; it {}", Escaped(&port.sentence))).unwrap_or_default();
            let uplink = link(&member.uplink);
            let html = format!("{uplink} {way} by team {name}: {}{why}", Escaped(&member.state));
            add(&port.name, &format!("uses {}", member.uplink), html);
        }
        if port.backlog_frames > 0 {
            let (frames, bytes) = (plural(port.backlog_frames, "frame"), count(port.backlog_bytes));
            let wait = if port.backlog_frames == 1 { "waits" } else { "wait" };
            add(&port.name, "waits", format!("{name}: {frames} ({bytes} bytes) {wait} until it takes them"));
        }
        for (way, classes) in CLASS_WAYS.into_iter().zip([&port.io_classes, &port.inward_classes]) {
            for class in classes.iter().filter(|class| class.waiting > 0) {
                let (class_name, packets) = (Escaped(&class.name), plural(class.waiting, "packet"));
                let wait = if class.waiting == 1 { "waits" } else { "wait" };
                let html = format!("{name}, class {class_name}: {packets} {wait}, {way}");
                add(&port.name, &format!("{way} {}", class.name), html);
            }
        }
    }
    // Frames for a port without a VM are dropped, and nobody misses them.
    let waits = |name: &str| ports.iter().any(|port| port.name == name && port.condition == Condition::Waiting);
    let blocks = |port: &str, reason: &str| !waits(port) && !HARMLESS.contains(&reason);
    let mut drops: Vec<_> = lately.iter().filter(|((port, reason), _)| blocks(port, reason)).collect();
    drops.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for ((port, reason), number) in drops {
        let is_uplink = ports.iter().any(|of| of.name == *port && of.adapter.is_none());
        let first = meaning(reason, is_uplink);
        let mirror = ports.iter().find(|of| of.name == *port).and_then(|of| of.mirror.as_ref());
        let copies = mirror.map(|mirror| format!(" (copies by mirror {})", Escaped(&mirror.name))).unwrap_or_default();
        let (name, number, seconds) = (link(port), plural(*number, "frame"), since.as_secs().max(1));
        let as_reason = format!("<a href=\"#drop-{reason}\">{reason}</a>: {}", Escaped(first));
        add(port, reason, format!("{name}: {number}{copies} dropped in {seconds} s as {as_reason}"));
    }
    all
}

/// The first sentence about a reason; of an uplink's drop the one about uplinks, if there is one.
fn meaning(reason: &str, is_uplink: bool) -> &'static str {
    let whole = sentence(reason);
    let own = whole.split_once("On the uplink").filter(|_| is_uplink);
    let own = own.map_or(whole, |(_, own)| own.trim_start_matches([',', ':', ' ']));
    own.split_once(". ").map_or(own, |(first, _)| first)
}

#[cfg(test)]
mod tests {
    use nicety_daemon::report::MemberReport;

    use super::*;

    #[test]
    fn a_drop_at_an_uplink_has_the_words_for_uplinks() {
        assert_eq!(meaning("link-down", false), "transmit: the guest's link is down (link_state)");
        assert_eq!(meaning("link-down", true), "receive: the tap is down or deleted, or there is no peer");
        let looped = "transmit: the frame had left by another uplink, and came in by this one";
        assert_eq!([false, true].map(|is_uplink| meaning("looped", is_uplink)), [looped; 2]);
    }

    #[test]
    fn links_that_are_not_used_waiting_frames_and_present_drops_are_told_and_working_ports_are_not() {
        let works = crate::tests::port("vm1");
        assert!(sentences(std::slice::from_ref(&works), &BTreeMap::new(), Duration::ZERO).is_empty());
        let (mut slow, mut team) = (crate::tests::port("vm2"), crate::tests::port("up"));
        (slow.backlog_frames, slow.backlog_bytes) = (1200, 90_000);
        let member = |uplink: &str, used: bool, state: &str| MemberReport {
            uplink: uplink.to_owned(),
            collects: used,
            distributes: used,
            state: state.to_owned(),
        };
        team.members = Some(vec![member("l0", true, "active"), member("l1", false, "no carrier")]);
        let mut waiting = crate::tests::port("vm3");
        waiting.condition = Condition::Waiting;
        let (mut looped, mut deaf) = (crate::tests::port("l9"), crate::tests::port("vm5"));
        (looped.condition, looped.adapter, looped.sentence) =
            (Condition::Blocked, None, "it carries nothing".to_owned());
        deaf.sentence = "its driver is up, but the adapter receives nothing: RDT is outside".to_owned();
        let mut watcher = crate::tests::port("vm4");
        let mirror = nicety_daemon::report::MirrorReport {
            name: "watch".to_owned(),
            of: vec!["vm1".to_owned()],
            direction: "both".to_owned(),
            rate: "1Gbit/s".to_owned(),
        };
        watcher.mirror = Some(mirror);
        let drops =
            [("vm2", "forged-transmit", 31), ("vm2", "filtered", 900), ("vm3", "no-vm", 7), ("vm4", "mirror-limit", 1)];
        let lately = drops.map(|(port, reason, count)| ((port.to_owned(), reason.to_owned()), count)).into();
        let all = sentences(&[works, slow, team, waiting, watcher, looped, deaf], &lately, Duration::from_secs(90));
        let keys: Vec<&str> = all.iter().map(|blocked| blocked.key.as_str()).collect();
        assert_eq!(
            keys,
            ["vm2 waits", "up uses l1", "l9 state", "vm5 state", "vm2 forged-transmit", "vm4 mirror-limit"]
        );
        let all: Vec<String> = all.into_iter().map(|blocked| blocked.html).collect();
        let all = all.join("\n");
        assert!(
            all.contains("l1</bdi></a> is not used by team <a href=\"/ports/up\"><bdi>up</bdi></a>: no carrier"),
            "{all}"
        );
        assert!(all.contains("vm5</bdi></a>: its driver is up, but the adapter receives nothing: RDT"), "{all}");
        assert!(all.contains("1,200 frames (90,000 bytes) wait"), "{all}");
        assert!(all.contains("31 frames dropped in 90 s as <a href=\"#drop-forged-transmit\">"), "{all}");
        assert!(all.contains("1 frame (copies by mirror watch) dropped in 90 s as"), "{all}");
        assert!(["l0", "vm1", "vm3"].iter().all(|works| !all.contains(works)), "{all}");
    }
}
