use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nicety_control::api::ThreadReport;
use nicety_daemon::report::{PortReport, QueueReport};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;

fn port(name: &str, bytes: u64, drops: u64) -> PortReport {
    let report = serde_json::json!({
        "name": name, "adapter": "e1000", "mac": "52:54:00:12:34:01", "socket": "/run/vm1.sock", "made_of": null,
        "condition": "up", "sentence": "a VM is attached, and its driver is up", "last_end": null, "features": ["tso4"],
        "transmit": [], "receive": [], "transmit_drops": {}, "receive_drops": {}, "interrupts": 0, "signals": 0,
        "register_reads": 0, "register_writes": 0, "bad_accesses": 0, "guest_errors": 0, "backlog_frames": 3,
        "backlog_bytes": 1500,
    });
    let report: PortReport = serde_json::from_value(report).unwrap();
    let queue = |queue, bytes: u64| QueueReport { queue, packets: bytes / 1000, frames: bytes / 1000, bytes };
    PortReport {
        transmit: vec![queue(0, bytes)],
        receive: vec![queue(0, bytes / 10), queue(1, bytes / 10)],
        receive_drops: BTreeMap::from([("buffer-full".to_owned(), drops)]),
        ..report
    }
}

/// Two samples, two seconds apart.
fn page() -> Page {
    let begin = Instant::now();
    let thread = |name: &str, cpu_ns| ThreadReport { name: name.to_owned(), cpu_ns };
    let sample =
        |seconds, ports, threads| Sample { at: begin + Duration::from_secs(seconds), ports, threads, fabric: None };
    let first = sample(
        0,
        vec![port("vm1", 0, 0), port("vm2", 5000, 7), port("a-port-with-a-long-name", 0, 0)],
        vec![thread("control", 0), thread("worker0", 5)],
    );
    let second = sample(
        2,
        vec![port("vm1", 2_000_000, 0), port("vm2", 250_005_000, 47), port("a-port-with-a-long-name", 0, 0)],
        vec![thread("control", 20_000_000), thread("worker0", 1_500_000_005)],
    );
    let daemon = DaemonView {
        program: "1.0".to_owned(),
        pid: 4711,
        host: "/etc/host.toml".into(),
        starting: false,
        after_restart: Vec::new(),
        waiting: None,
    };
    let mut page = Page::new(daemon, first);
    page.next(second);
    page
}

/// The page as a terminal of 80 columns shows it.
fn shown(page: &Page) -> Vec<String> {
    shown_by(page, 14)
}

/// The same of a terminal with this many lines.
fn shown_by(page: &Page, lines: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(80, lines)).unwrap();
    terminal.draw(|frame| page.draw(frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content.chunks(80).map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>());
    lines.map(|line| line.trim_end().to_owned()).take_while(|line| !line.is_empty()).collect()
}

#[test]
fn a_page_shows_rates_of_each_port_and_the_workers_share() {
    assert_eq!(
        shown(&page()),
        [
            "nicety top  process 4711  3 ports, most traffic first  /etc/host.toml",
            "CPU  worker0 75 %  control 1 %",
            "PORT             STATE     TX bit/s   TX f/s  RX bit/s   RX f/s   DROP/s   WAIT",
            "vm2              up           1.00G     125k      200M    25.0k       20      3",
            "vm1              up           8.00M    1.00k     1.60M      200        0      3",
            "a-port-with-a-l… up               0        0         0        0        0      3",
        ]
    );
}

#[test]
fn ports_are_sorted_by_any_column_either_way() {
    let mut page = page();
    let names = |page: &Page| page.rows.iter().map(|row| row.report.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&page), ["vm2", "vm1", "a-port-with-a-long-name"], "by traffic");
    page.key(KeyCode::Char('r'));
    assert_eq!(names(&page), ["a-port-with-a-long-name", "vm1", "vm2"]);
    assert!(shown(&page)[0].contains("3 ports, least traffic first  "), "{:?}", shown(&page));
    page.key(KeyCode::Right);
    assert_eq!(names(&page), ["a-port-with-a-long-name", "vm1", "vm2"]);
    page.key(KeyCode::Right);
    page.key(KeyCode::Right);
    assert_eq!(names(&page), ["vm2", "vm1", "a-port-with-a-long-name"], "by what they send");
    assert!(shown(&page)[2].contains("▼TX bit/s"), "{:?}", shown(&page));
    page.key(KeyCode::Char('r'));
    assert_eq!(names(&page), ["a-port-with-a-long-name", "vm1", "vm2"]);
    for _ in 0..20 {
        page.key(KeyCode::Right);
    }
    assert!(shown(&page)[2].ends_with("▼WAIT"), "{:?}", shown(&page));
    for _ in 0..20 {
        page.key(KeyCode::Left);
    }
    assert_eq!(names(&page), ["vm2", "vm1", "a-port-with-a-long-name"], "by traffic again");
}

#[test]
fn one_port_is_shown_whole_and_the_way_back_is_there() {
    let mut page = page();
    page.key(KeyCode::Enter);
    assert_eq!(shown(&page).len(), 6, "none is chosen");
    page.key(KeyCode::Down);
    page.key(KeyCode::Enter);
    assert_eq!(
        shown(&page)[2..],
        [
            "vm2: a VM is attached, and its driver is up",
            "  adapter    e1000",
            "  address    52:54:00:12:34:01",
            "  features   tso4",
            "  TX         1.00 Gbit/s, 125k frames/s",
            "  RX         200 Mbit/s, 25.0k frames/s",
            "  queue      TX 0: 1.00 Gbit/s, 125k frames/s",
            "  queue      RX 0: 100 Mbit/s, 12.5k frames/s",
            "  queue      RX 1: 100 Mbit/s, 12.5k frames/s",
            "  dropped    receive buffer-full: 47, 20/s",
            "  backlog    3 frames, 1.50 kB",
            "Esc goes back",
        ]
    );
    page.key(KeyCode::Esc);
    assert_eq!(shown(&page).len(), 6);
}

/// A page of a thousand ports, of which every tenth carries traffic: the same everywhere.
fn thousand() -> Page {
    let begin = Instant::now();
    let sample = |seconds, bytes| Sample {
        at: begin + Duration::from_secs(seconds),
        ports: (0..1000)
            .map(|number| port(&format!("vm{number}"), if number % 10 == 0 { bytes } else { 0 }, 0))
            .collect(),
        threads: Vec::new(),
        fabric: None,
    };
    let mut page = Page::new(page().daemon, sample(0, 0));
    page.next(sample(1, 1000));
    page
}

#[test]
fn of_a_thousand_ports_a_screen_shows_some_and_says_how_many_are_above_and_below() {
    let mut page = thousand();
    let name = |line: &String| line.split(' ').next().unwrap().to_owned();
    let screen = shown_by(&page, 24);
    assert_eq!(screen.len(), 24);
    assert_eq!([&screen[3], &screen[4], &screen[22]].map(name), ["vm0", "vm10", "vm190"]);
    assert_eq!(screen[23], "980 more below");
    page.key(KeyCode::PageDown);
    page.key(KeyCode::PageDown);
    let screen = shown_by(&page, 24);
    assert_eq!((name(&screen[22]), screen[23].as_str()), ("vm380".to_owned(), "19 more above, 961 more below"));
    page.key(KeyCode::End);
    let screen = shown_by(&page, 24);
    assert_eq!((name(&screen[22]), screen[23].as_str()), ("vm999".to_owned(), "980 more above"));
    page.key(KeyCode::Up);
    assert_eq!(shown_by(&page, 24)[23], "980 more above", "the screen moves only where it must");
    page.key(KeyCode::Home);
    assert_eq!(shown_by(&page, 24)[23], "980 more below");
    for lines in 0..8 {
        shown_by(&page, lines);
    }
    // A small screen: the selected port is on it, and the marks.
    (0..5).for_each(|_| page.key(KeyCode::Down));
    let screen = shown_by(&page, 6);
    assert_eq!((name(&screen[4]), screen[5].as_str()), ("vm50".to_owned(), "4 more above, 994 more below"));
}

#[test]
fn ports_with_equal_traffic_keep_their_order_either_way() {
    let mut page = thousand();
    let names = |page: &Page| page.rows.iter().map(|row| row.report.name.clone()).collect::<Vec<_>>();
    let numbers = |is_busy: bool| (0..1000).filter(move |number| (number % 10 == 0) == is_busy);
    let expected = |busy_first: bool| {
        let names = numbers(busy_first).chain(numbers(!busy_first)).map(|number| format!("vm{number}"));
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&page), expected(true));
    page.key(KeyCode::Char('r'));
    assert_eq!(names(&page), expected(false));
    let same = Sample { at: page.now.at + Duration::from_secs(1), ..page.now.clone() };
    page.next(same);
    let order: Vec<String> = (0..1000).map(|number| format!("vm{number}")).collect();
    assert_eq!(names(&page), order, "nobody carries anything: the daemon's order");
}

#[test]
fn a_selected_port_stays_selected_and_on_the_screen_whatever_the_order() {
    let mut page = thousand();
    page.key(KeyCode::End);
    assert_eq!(page.chosen.as_deref(), Some("vm999"));
    for keys in [&[KeyCode::Char('r')][..], &[KeyCode::Right], &[KeyCode::Char('r')], &[KeyCode::Left]] {
        keys.iter().for_each(|key| page.key(*key));
        assert!(shown_by(&page, 24).iter().any(|line| line.starts_with("vm999 ")), "{keys:?}");
    }
}

#[test]
fn a_screen_of_forty_columns_shows_both_rates_and_the_column_that_sorts() {
    let mut page = page();
    let narrow = |page: &Page| {
        let mut terminal = Terminal::new(TestBackend::new(40, 8)).unwrap();
        terminal.draw(|frame| page.draw(frame.area(), frame.buffer_mut())).unwrap();
        let buffer = terminal.backend().buffer();
        buffer.content[80..120].iter().map(|cell| cell.symbol()).collect::<String>()
    };
    assert_eq!(narrow(&page), "PORT        STATE     TX bit/s  RX bit/s");
    (0..7).for_each(|_| page.key(KeyCode::Right));
    assert_eq!(narrow(&page), "PORT         TX bit/s  RX bit/s  ▼DROP/s", "the state gives way");
}

#[test]
fn a_switch_without_ports_says_how_to_get_one() {
    let none = Sample { at: Instant::now(), ports: Vec::new(), threads: Vec::new(), fabric: None };
    let mut page = Page::new(page().daemon, none);
    for key in [KeyCode::Down, KeyCode::PageUp, KeyCode::End, KeyCode::Enter] {
        page.key(key);
    }
    let screen = shown(&page);
    assert_eq!(screen[0], "nicety top  process 4711  0 ports  /etc/host.toml");
    assert!(screen[2].starts_with("this switch has no ports yet: `nicety port add NAME"), "{screen:?}");
}

#[test]
fn a_daemon_that_is_gone_is_said_and_one_that_comes_back_counts_anew() {
    let mut page = page();
    page.fails("no daemon answers at /run/x.sock".to_owned());
    assert_eq!(shown(&page)[0], "no answer: no daemon answers at /run/x.sock");
    let mut sample = page.now.clone();
    sample.at += Duration::from_secs(1);
    sample.ports = vec![port("vm1", 10, 0)];
    page.next(sample);
    assert!(shown(&page)[3].starts_with("vm1              up               0 "), "{:?}", shown(&page));
}

#[test]
fn in_a_fabric_the_other_hosts_are_shown_with_what_comes_from_them_and_goes_there() {
    let mut page = page();
    page.key(KeyCode::Char('f'));
    assert!(shown(&page)[2].starts_with("PORT "), "the host is in no fabric");
    let fabric = crate::ports::fabric::tests::fabric;
    page.before.fabric = Some(fabric(2));
    let mut later = fabric(2);
    later.hosts[0].transmit.bytes += 2_500_000;
    later.hosts[0].transmit.frames += 2_000;
    later.hosts[1].receive.dropped += 4;
    page.now.fabric = Some(later);
    let lines = shown(&page);
    let summary = "FABRIC  prod: connected  2 other hosts  from them 10.0 Mbit/s  to them 0 bit/s";
    assert_eq!((lines[2].as_str(), lines[3].starts_with("PORT ")), (summary, true));
    page.key(KeyCode::Char('f'));
    let hosts = [
        "HOST    ADDRESSES  FROM bit/s  FROM f/s  TO bit/s  TO f/s  DROP/s",
        "node-2          3       10.0M     1.00k         0       0       0",
        "node-3          3           0         0         0       0       2",
    ];
    assert_eq!(shown(&page)[3..], hosts);
    page.key(KeyCode::Down);
    assert_eq!(shown(&page)[3..], [hosts[0], hosts[2]]);
    page.key(KeyCode::Esc);
    assert!(shown(&page)[3].starts_with("PORT "), "{:?}", shown(&page));
}
