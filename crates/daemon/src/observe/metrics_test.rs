use std::collections::BTreeSet;

use nicety_adapter::{Counters, PortId};
use nicety_plane::{ClassState, State};

use super::*;

/// An uplink whose name needs escaping. It sent two frames in a packet on queue 1, and dropped three.
fn facts() -> Facts {
    let mut counters = Counters::default();
    counters.sent(1, 2, 3000);
    counters.receive_drops[Reason::BufferFull as usize] = 3;
    counters.receive_throttled_ns = 2_500_000_000;
    let state = State {
        attached: true,
        driven: true,
        sent: 1,
        received: 0,
        misplaced: 0,
        counters,
        features: Vec::new(),
        stalls: Vec::new(),
        receive_block: None,
        backlog_frames: 4,
        starved_since: None,
        backlog_bytes: 5000,
        shared_bytes: 0,
        absent_bytes: 0,
        allocated_bytes: 0,
        refused: nicety_memory::Refused { reads: 2, writes: 1, last: None },
        memory_changes: 0,
        held: false,
        stopped: false,
        damaged: false,
        classes: vec![ClassState {
            name: "iscsi".to_owned(),
            packets: 2,
            bytes: 3000,
            dropped: 0,
            waiting: 4,
            marked: 0,
        }],
        inward_classes: Vec::new(),
        vacant: None,
        failed: None,
    };
    let name = "a\"\\".to_owned();
    let vlan = Vlan::Trunk { allowed: "10,20-30".parse().unwrap(), native: None };
    let (policy, epoch) = (Policy { vlan, ..Policy::default() }, Duration::from_secs(1_700_000_000));
    let uplink = PortView { signals: 6, ..PortView::new(&name, PortId(0), &policy, state, epoch) };
    let team = PortView { name: "lan".to_owned(), id: PortId(9), members: Some(Vec::new()), ..uplink.clone() };
    let mut times = Histogram { sum_ns: 64_000, ..Histogram::default() };
    (times.buckets[0], times.buckets[2]) = (10, 5);
    *times.buckets.last_mut().unwrap() = 1;
    let threads = BTreeMap::from([("worker0".to_owned(), Duration::from_millis(1500))]);
    let process = Some(Process {
        cpu: Duration::from_millis(1250),
        resident_bytes: 4096,
        virtual_bytes: 8192,
        open_files: 17,
        open_files_most: None,
        start_seconds: 1_700_000_000.25,
    });
    Facts { ports: vec![uplink, team], addresses: 7, threads, process, times, captures: 2, wakes: vec![5, 6] }
}

#[test]
fn values_have_their_labels() {
    let text = text(&facts());
    for line in [
        r#"nicety_port_info{port="a\"\\",adapter="(uplink)",mac="",group="",vlan="10,20-30"} 1"#,
        r#"nicety_port_up{port="a\"\\"} 1"#,
        r#"nicety_port_broken{port="a\"\\"} 0"#,
        r#"nicety_port_throttled_seconds_total{port="a\"\\",direction="transmit"} 0"#,
        r#"nicety_port_throttled_seconds_total{port="a\"\\",direction="receive"} 2.5"#,
        r#"nicety_io_class_bytes_total{port="a\"\\",way="out",class="iscsi"} 3000"#,
        r#"nicety_io_class_waiting_frames{port="a\"\\",way="out",class="iscsi"} 4"#,
        r#"nicety_team_class_bytes_total{port="lan",way="out",class="iscsi"} 3000"#,
        r#"nicety_team_class_waiting_frames{port="lan",way="out",class="iscsi"} 4"#,
        "process_cpu_seconds_total 1.25",
        "process_resident_memory_bytes 4096",
        "process_virtual_memory_bytes 8192",
        "process_open_fds 17",
        "process_max_fds +Inf",
        "process_start_time_seconds 1700000000.25",
        r#"nicety_port_transmit_packets_total{port="a\"\\",queue="0"} 0"#,
        r#"nicety_port_transmit_frames_total{port="a\"\\",queue="1"} 2"#,
        r#"nicety_team_transmit_frames_total{port="lan"} 2"#,
        r#"nicety_port_drops_total{port="a\"\\",direction="receive",reason="buffer-full"} 3"#,
        r#"nicety_port_refused_dma_total{port="a\"\\",direction="read"} 2"#,
        r#"nicety_port_refused_dma_total{port="a\"\\",direction="write"} 1"#,
        r#"nicety_port_waiting_bytes{port="a\"\\"} 5000"#,
        r#"nicety_port_signals_total{port="a\"\\"} 6"#,
        "nicety_switch_addresses 7",
        "nicety_captures 2",
        r#"nicety_worker_wakes_total{worker="1"} 6"#,
        r#"nicety_thread_cpu_seconds_total{thread="worker0"} 1.5"#,
        r#"nicety_frame_duration_seconds_bucket{le="0.000001"} 10"#,
        r#"nicety_frame_duration_seconds_bucket{le="0.000005"} 15"#,
        r#"nicety_frame_duration_seconds_bucket{le="0.1"} 15"#,
        r#"nicety_frame_duration_seconds_bucket{le="+Inf"} 16"#,
        "nicety_frame_duration_seconds_sum 0.000064",
        "nicety_frame_duration_seconds_count 16",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn every_metric_has_one_help_and_a_type_and_a_name_with_its_unit() {
    let text = text(&facts());
    let (mut names, mut kind, mut name) = (BTreeSet::new(), "", "");
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", family, help] => {
                assert!(names.insert(family) && help.ends_with('.'), "{line}");
                name = family;
            }
            ["#", "TYPE", family, its] => {
                assert_eq!((family, its == "counter"), (name, family.ends_with("_total")), "{line}");
                kind = its;
            }
            _ => {
                let sample = line.split(['{', ' ']).next().unwrap();
                let ending = sample.strip_prefix(name).unwrap_or_else(|| panic!("{line} stands below {name}"));
                let allowed: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(allowed.contains(&ending), "{line}");
            }
        }
    }
}

/// The words between two signs of a text.
fn quoted<'a>(text: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split(close).next())
}

#[test]
fn the_alerts_name_metrics_conditions_and_reasons_that_are_there() {
    let page = text(&facts());
    let families: BTreeSet<&str> = quoted(&page, "# TYPE ", ' ').collect();
    let rules = include_str!("../../../../docs/alerts.yml");
    let rules: Vec<&str> = rules.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let rules = rules.join("\n");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let named: BTreeSet<&str> = rules
        .split(|c: char| !is_word(c))
        .filter(|word| word.starts_with("nicety_") || word.starts_with("process_"))
        .collect();
    assert!(named.len() > 8 && named.is_subset(&families), "{:?}", named.difference(&families));
    let reasons: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    let named: BTreeSet<&str> = ["reason=\"", "reason=~\""]
        .iter()
        .flat_map(|open| quoted(&rules, open, '"'))
        .flat_map(|all| all.split('|'))
        .collect();
    assert!(named.len() > 8 && named.is_subset(&reasons), "{:?}", named.difference(&reasons));
}
