//! The page of one port.

use std::fmt::Write as _;
use std::time::Instant;

use nicety_chart::Escaped;
use nicety_daemon::report::{PortReport, QueueReport};

use super::describe::{
    CLASS_WAYS, Charted, LINK_WAYS, PORT_WAYS, TABLE_END, begin_table, chart, count, drops, from_path, link, made,
    number, plural, state, whole,
};
use super::history::Series;
use super::host::classes;
use super::shown::Shown;
use super::view::{View, spans};

/// The page of the port whose name a path has. `None`: there is no such port.
pub(super) fn page(shown: &Shown, part: &str, view: &View) -> Option<String> {
    let name = from_path(part)?;
    let now = Instant::now();
    let mut history = shown.history.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let ports = history.look(shown.inspect.as_ref(), now);
    let port = ports.iter().find(|port| port.name == name)?;
    let (word, sign) = state(port.condition);
    let mut main = String::new();
    let _ = write!(
        main,
        "<header><p><a href=\"/\">All ports</a></p><h1><bdi>{}</bdi></h1><p class=\"{word}\"><span aria-hidden=\"true\">{sign}</span> {word}: <bdi>{}</bdi></p><p class=\"soft\">{}</p></header>",
        Escaped(&port.name),
        Escaped(&port.sentence),
        made()
    );
    let (limits, span) = (shown.limits(), view.span);
    let _ = write!(main, "<section aria-labelledby=\"rates\"><h2 id=\"rates\">The last {}</h2>", span.words());
    spans(&mut main, &View { span, ..View::default() });
    main.push_str("<div class=\"panels\">");
    let ways = if port.adapter.is_some() { PORT_WAYS } else { LINK_WAYS };
    let mut add = |id: String, heading: String, series: Series, ways| {
        let limits = limits.get(&series);
        main.push_str(&chart(&history, &Charted { id, heading, series, ways, span, limits }));
    };
    add("chart-port".to_owned(), name.clone(), Series::port(&name), ways);
    for (number, class) in classes(port).into_iter().enumerate() {
        add(format!("chart-class{number}"), format!("Class {class}"), Series::class(&name, class), CLASS_WAYS);
    }
    main.push_str("</div></section>");
    facts(&mut main, port);
    main.push_str("<section aria-labelledby=\"queues\"><h2 id=\"queues\">Queues</h2>");
    queues(&mut main, port, ways);
    main.push_str("</section><section aria-labelledby=\"drops\"><h2 id=\"drops\">Drops</h2>");
    drops(&mut main, &[port], &history.dropped_lately(&ports, now).0);
    main.push_str("</section>");
    Some(whole(&format!("{}: {}", port.name, shown.switch), &main))
}

fn facts(main: &mut String, port: &PortReport) {
    main.push_str("<section aria-labelledby=\"facts\"><h2 id=\"facts\">About it</h2><dl>");
    let mut fact = |name: &str, html: String| {
        if !html.is_empty() {
            let _ = write!(main, "<dt>{name}</dt><dd>{html}</dd>");
        }
    };
    let plain = |text: &Option<String>| text.as_ref().map(|text| Escaped(text).to_string()).unwrap_or_default();
    fact("Adapter", plain(&port.adapter));
    fact("Address", plain(&port.mac));
    fact("Socket", plain(&port.socket.as_ref().map(|path| path.display().to_string())));
    fact("Port group", plain(&port.port_group));
    let policy: Vec<String> = port.policy.iter().map(|(key, value)| format!("{key} {value}")).collect();
    fact("Policy", Escaped(&policy.join(", ")).to_string());
    fact("Neighbour", plain(&port.neighbour));
    fact("Multicasts", Escaped(&port.multicasts.join(", ")).to_string());
    if let Some(mirror) = &port.mirror {
        let of: Vec<String> = mirror.of.iter().map(|name| link(name)).collect();
        let (name, direction, rate) = (Escaped(&mirror.name), &mirror.direction, &mirror.rate);
        fact(
            "Mirror",
            format!("{name}: copies of {} ({direction}), at most {rate}; nothing else comes here", of.join(", ")),
        );
    }
    fact("Mirrored to", port.mirrored_to.iter().map(|name| link(name)).collect::<Vec<_>>().join(", "));
    let members = port.members.iter().flatten();
    let members: Vec<String> =
        members.map(|member| format!("{}: {}", link(&member.uplink), Escaped(&member.state))).collect();
    fact("Members", members.join("<br>"));
    fact("Features", Escaped(&port.features.join(", ")).to_string());
    fact("Last end", plain(&port.last_end));
    if port.adapter.is_some() {
        fact("Interrupts", format!("{} raised, {} written", count(port.interrupts), count(port.signals)));
        fact(
            "Registers",
            format!("{}, {}", plural(port.register_reads, "read"), plural(port.register_writes, "write")),
        );
        let command = format!(": <code>nicety ports {}</code> shows the last ones", Escaped(&port.name));
        let more = if port.guest_errors > 0 { &command } else { "" };
        fact("Guest errors", count(port.guest_errors) + more);
    }
    if port.backlog_frames > 0 {
        fact("Waiting", format!("{}, {}", plural(port.backlog_frames, "frame"), plural(port.backlog_bytes, "byte")));
    }
    main.push_str("</dl></section>");
}

fn queues(main: &mut String, port: &PortReport, ways: [&str; 2]) {
    if port.transmit.is_empty() && port.receive.is_empty() {
        main.push_str("<p class=\"soft\">None has carried a frame.</p>");
        return;
    }
    begin_table(main, "Queues");
    main.push_str(
        "<th scope=\"col\">queue</th><th scope=\"col\" class=\"n\">packets</th><th scope=\"col\" class=\"n\">frames</th><th scope=\"col\" class=\"n\">bytes</th></tr></thead><tbody>",
    );
    for (way, queues) in ways.into_iter().zip([&port.transmit, &port.receive]) {
        for QueueReport { queue, packets, frames, bytes } in queues {
            let _ = write!(main, "<tr data-key=\"{way} {queue}\"><th scope=\"row\">{way}, queue {queue}</th>");
            for value in [packets, frames, bytes] {
                number(main, "queue", *value);
            }
            main.push_str("</tr>");
        }
    }
    main.push_str(TABLE_END);
}
