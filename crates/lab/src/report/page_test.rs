//! Tests of the page: its text, its markup, and the promises of its style sheet for a telephone, the dark mode and paper.

use super::*;
use crate::results::sample;

#[test]
fn the_page_needs_nothing_but_itself() {
    for results in [sample::embedded(), sample::two_servers(), sample::linked(), sample::user_space(), sample::quick()]
    {
        let page = page(&results);
        for outside in ["<script", "<link", "<img", "<iframe", "src=", "http:", "https:", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        for (_, rest) in page.match_indices("href=\"").map(|(at, _)| page.split_at(at + 6)) {
            let to = rest.split('"').next().unwrap();
            match to.strip_prefix('#') {
                Some(id) => assert_eq!(page.matches(&format!(" id=\"{id}\"")).count(), 1, "#{id}"),
                None => assert!(["results.json", "results.csv"].contains(&to), "{to}"),
            }
        }
    }
}

#[test]
fn every_id_is_there_once_and_every_section_can_be_pointed_at() {
    for results in [sample::embedded(), sample::two_servers(), sample::linked(), sample::user_space(), sample::quick()]
    {
        let page = page(&results);
        let ids: Vec<&str> = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        let mut once = ids.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), ids.len(), "{ids:?}");
        assert!(!page.contains("<h2>") && !page.contains("<h3>"), "a heading has no anchor");
        assert!(results.tests().iter().all(|test| ids.contains(&test.name())));
    }
}

#[test]
fn the_page_opens_with_the_answer_and_ends_with_method_and_host() {
    let page = page(&sample::embedded());
    let order = [
        "<h1>Choose virtio-net if the guest has a driver for it</h1>",
        "<p class=\"part\">Choice</p>",
        "<p class=\"part\">Cost</p>",
        "<p class=\"part\">Risk</p>",
        "<th scope=\"row\">virtio-net</th><td>paravirtual</td>",
        "<th scope=\"row\">e1000</th><td>emulated</td>",
        "The best first, by the geometric mean of its rates",
        "virtio-net sent 2.00\u{a0}× as much as e1000 (95\u{a0}% interval 2.00\u{2060}–\u{2060}2.00).",
        "<h2 id=\"figures\">All figures",
        "<svg",
        "<h2 id=\"latency\">",
        "<h2 id=\"method\">How it was measured",
        "<code>nicety compare --seed 1</code>",
        "<h2 id=\"host\">The host",
        "<dt>Frequency governor</dt><dd>performance</dd>",
        "<dt>Memory</dt><dd>16.0 GiB</dd>",
        "<dt>Hypervisor</dt><dd>none</dd>",
    ];
    let places: Vec<usize> = order.iter().map(|part| page.find(part).unwrap_or_else(|| panic!("{part}"))).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(!page.contains("Otherwise"), "it reads as advice for the slowest");
}

#[test]
fn every_test_has_a_chart_with_a_name_and_a_table_beside_it_and_every_load_its_course() {
    let page = page(&sample::two_servers());
    // Two adapters: four loads over time, and the latencies.
    assert_eq!(page.matches("role=\"img\" aria-labelledby=").count(), Test::ALL.len() + 2 * 4 + 2);
    assert_eq!(page.matches("<h4>Over time</h4>").count(), 4);
    // And the first page's two, all figures, the ratios, the runs.
    assert_eq!(page.matches("<table").count(), Test::ALL.len() + 5);
    assert!(page.contains("<summary>Linux of today: what each adapter needs, and why it is chosen or not</summary>"));
    let why = "virtio_net, in Linux since 2.6.25. Chosen. virtio-net is made for virtual machines: it needs few messages per frame.";
    assert!(page.contains(why), "{page}");
    assert!(page.contains("QEMU does not count it"));
    let linked = super::page(&sample::linked());
    assert!(linked.contains("<td>Nicety, stream ÷ QEMU</td>") && linked.contains("class=\"linked\""));
    let alone = super::page(&sample::embedded());
    assert!(!alone.contains("id=\"qemu\"") && !alone.contains("÷ QEMU"));
}

#[test]
fn what_is_worse_than_qemus_own_is_marked_in_its_table_and_named_in_a_sentence() {
    let mut results = sample::two_servers();
    let rows = results.rows.iter_mut().filter(|row| row.adapter == "e1000" && row.test == Test::BulkTransmit);
    for row in rows.filter(|row| row.server == crate::method::Server::Nicety) {
        row.samples.iter_mut().for_each(|sample| sample.value /= 3.0);
    }
    let page = page(&results);
    let worse = "<td class=\"n worse\">0.50 ×<span class=\"word\">▼ worse</span>";
    assert_eq!(page.matches(worse).count(), 1);
    assert!(page.contains("Worse: e1000 in bulk transmit (0.50 ×)."), "{page}");
    assert!(page.contains("0.67 ×<span class=\"word\">better</span>"), "less CPU time is better");
    assert!(page.contains("1.00 ×<span class=\"word\">no difference shown</span>"));
    assert!(!super::page(&sample::two_servers()).contains("worse\">"));
}

#[test]
fn a_user_space_driver_is_named_wherever_its_figures_are() {
    let results = sample::user_space();
    let page = page(&results);
    let marked = "<th scope=\"row\">vmxnet<span class=\"driver\">user-space driver</span></th><td>Nicety</td>";
    assert_eq!(page.matches(marked).count(), 1 + Test::ALL.len(), "all figures, and each test's table");
    assert!(page.contains("<th scope=\"row\">vmxnet</th><td>QEMU</td>"), "who does not serve it has no driver");
    assert_eq!(page.matches("<figcaption>vmxnet, user-space driver</figcaption>").count(), 5);
    let name = ">vmxnet</text><text class=\"name driver\" x=\"-8\" y=";
    assert_eq!(page.matches(name).count(), Test::ALL.len());
    assert_eq!(page.matches(">user-space driver</text>").count(), Test::ALL.len());
    let mut alone = results.clone();
    alone.rows.retain(|row| row.server == crate::method::Server::Nicety);
    let alone = super::page(&alone);
    assert_eq!(alone.matches(">vmxnet, user-space driver</text>").count(), Test::ALL.len(), "a row has one line");
    assert_eq!(page.matches("<td>vmxnet</td><td>Nicety, user-space driver</td>").count(), 7 * 4);
    assert!(page.contains("Rows marked &quot;user-space driver&quot; are not ranked with the others"));
    assert!(!page.contains("e1000, user-space") && !super::page(&sample::two_servers()).contains("user-space"));
}

#[test]
fn text_from_outside_cannot_become_markup() {
    let mut results = sample::two_servers();
    let evil = "<script>alert(\"1\")</script>&'";
    for text in [&mut results.host.kernel, &mut results.host.cpu_model, &mut results.method.command] {
        *text = evil.to_owned();
    }
    (results.host.governor, results.host.hypervisor) = (Some(evil.to_owned()), Some(evil.to_owned()));
    results.method.notes = vec![evil.to_owned()];
    for run in &mut results.runs {
        (run.adapter, run.failure) = (format!("{evil}{}", run.adapter), Some(evil.to_owned()));
    }
    for row in &mut results.rows {
        (row.adapter, row.absent) = (format!("{evil}{}", row.adapter), Some(evil.to_owned()));
    }
    let page = page(&results);
    assert!(!page.contains("<script") && page.contains("class=\"run ours\""));
}

#[test]
fn elements_are_closed_in_the_order_in_which_they_are_opened() {
    for results in [sample::embedded(), sample::two_servers(), sample::linked(), sample::user_space(), sample::quick()]
    {
        let page = page(&results);
        let mut open: Vec<&str> = Vec::new();
        for tag in page.split('<').skip(1) {
            let name = tag.split(['>', ' ', '/']).find(|name| !name.is_empty()).unwrap_or_default();
            let itself = tag.split('>').next().is_some_and(|tag| tag.ends_with('/'));
            let single = itself || matches!(name, "!doctype" | "meta" | "br");
            match tag.starts_with('/') {
                true => assert_eq!(open.pop(), Some(name)),
                false if !single => open.push(name),
                false => {}
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }
}

#[test]
fn a_quick_comparison_promises_no_interval() {
    let page = page(&sample::quick());
    assert_eq!((page.matches("no interval").count(), page.matches("95 % interval").count()), (1, 0), "it is said once");
    assert!(page.contains("Fewer than 7 runs give no interval: no difference is proved"));
    assert!(!page.contains("class=\"whisker\"") && !page.contains("class=\"range\""));
}

#[test]
fn a_figure_of_a_loaded_machine_has_its_mark_in_tables_and_charts_and_one_line_explains_it() {
    let results = sample::loaded();
    let page = page(&results);
    let [own, costs] = [true, false].map(|is_own| {
        results.rows.iter().filter(|row| row.loaded && is_own == (row.test == Test::GuestToGuest)).count()
    });
    assert_eq!((own, costs), (1, 0), "costs are taken over the runs with the peer outside");
    // The overview, the choice's table, all figures, the test's table, its chart; and the line.
    assert_eq!(
        (page.matches("3090†").count(), page.matches('†').count()),
        (5, 7),
        "and the choice's CPU time, which names no load"
    );
    assert!(page.contains("<p class=\"about\">† Other processes took more than 10 % of the processors"));
    assert!(!super::page(&sample::embedded()).contains('†'));
    let json = serde_json::to_value(&results).unwrap();
    let marked = |row: &&serde_json::Value| row["loaded"] == true;
    assert_eq!(json["rows"].as_array().unwrap().iter().filter(marked).count(), 1);
    let run = json["runs"].as_array().unwrap().iter().find(|run| run["others_percent"] == 10.5).unwrap();
    assert_eq!((&run["adapter"], &run["load"]), (&"virtio-net".into(), &"guest-to-guest".into()));
}

/// The colour `name` in each of the style sheet's palettes: light, dark, print.
fn palettes(name: &str) -> Vec<[f64; 3]> {
    let colour = |text: &str| {
        let digits = text.trim().strip_prefix('#').unwrap();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        [byte(0), byte(2), byte(4)].map(|part| f64::from(part) / 255.0)
    };
    let named = format!("--{name}: ");
    let found: Vec<[f64; 3]> =
        STYLE.split(&named).skip(1).map(|rest| colour(rest.split(';').next().unwrap())).collect();
    assert_eq!(found.len(), 3, "--{name} in light, dark and print");
    found
}

/// WCAG 2.2, "contrast ratio" and "relative luminance": the contrast of two colours in grey.
fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
    let luminance = |colour: [f64; 3]| {
        let linear = |part: f64| if part <= 0.040_45 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) };
        let [red, green, blue] = colour.map(linear);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    };
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn fills_differ_in_grey_dots_and_lines_from_the_paper_and_text_can_be_read() {
    assert_eq!((contrast([0.0; 3], [1.0; 3]) * 10.0).round(), 210.0);
    for (names, least) in [
        (["ours-fill", "theirs-fill"], 3.0),
        (["ours-fill", "linked-fill"], 3.0),
        (["linked-fill", "theirs-fill"], 3.0),
        (["ours", "paper"], 4.5),
        (["linked", "paper"], 4.5),
        (["theirs", "paper"], 4.5),
        (["worse", "paper"], 4.5),
        (["soft", "paper"], 4.5),
        (["ink", "paper"], 7.0),
    ] {
        for (palette, (one, other)) in palettes(names[0]).into_iter().zip(palettes(names[1])).enumerate() {
            let ratio = contrast(one, other);
            assert!(ratio >= least, "palette {palette}: {names:?} {ratio:.2}");
        }
    }
    for (class, fill) in [("ours", "--ours"), ("linked", "--linked"), ("theirs", "--theirs")] {
        assert!(STYLE.contains(&format!(".chart .{class} .dot {{ fill: var({fill}); }}")));
    }
    assert!(!STYLE.contains("opacity"), "what is half transparent has less contrast than its colour");
}

#[test]
fn no_text_of_a_chart_is_scaled_or_smaller_than_eleven_pixels() {
    let sizes: Vec<f64> = STYLE
        .lines()
        .filter(|line| line.contains(".chart ") && line.contains("font-size:"))
        .map(|line| line.split("font-size: ").nth(1).unwrap().split("px").next().unwrap().parse().unwrap())
        .collect();
    assert!(sizes.len() >= 4 && sizes.iter().all(|size| *size >= 11.0), "{sizes:?}");
    let page = page(&sample::two_servers());
    // Only stretched pictures have a view box, and they contain lines only.
    for stretched in page.split("viewBox=").skip(1).map(|rest| rest.split("</svg>").next().unwrap()) {
        assert!(stretched.contains("<path") && !stretched.contains("<text"));
    }
    assert!(
        page.split("<svg class=\"chart\"").skip(1).all(|rest| !rest.split('>').next().unwrap().contains("viewBox"))
    );
}

#[test]
fn on_paper_charts_are_as_many_beside_and_below_each_other_as_can_be_read() {
    let all = |guests, servers| sample::every_adapter(guests, servers);
    let servers = crate::method::Server::ALL;
    for (results, columns) in [
        (sample::two_servers(), 2),
        (all(Guests::Embedded, &servers[..1]), 2),
        (all(Guests::Qemu, &servers[..2]), 3),
        (all(Guests::Uml, &servers[..]), 3),
    ] {
        let (zoom, across) = on_paper(&results);
        let (height, points) = (chart::height(&results) * zoom, 11.0 * zoom * 0.75);
        assert!(across == columns && points >= 4.9, "{across} columns, text of {points:.1} points");
        assert!(height + CHART_HEAD <= SHEET, "a chart fits a sheet: {height:.0}");
    }
}

#[test]
fn tables_scroll_with_their_first_column_in_sight_and_on_paper_show_every_column() {
    let page = page(&sample::two_servers());
    assert_eq!(page.matches("<table").count(), page.matches("<div class=\"scroll\" role=\"region\"").count());
    let rule = ".scroll tr > :first-child { position: sticky; left: 0;";
    assert!(STYLE.contains(rule));
    let (_, print) = STYLE.split_once("@media print").unwrap();
    for rule in ["size: portrait", ".scroll { overflow: visible; }", "white-space: normal"] {
        assert!(print.contains(rule), "{rule}");
    }
}
