use std::collections::BTreeSet;

use nicety_adapter::{Counters, PortId};
use nicety_plane::State;

use super::*;

/// An uplink whose name needs escaping. It sent two frames in a packet on queue 1, and dropped three.
fn facts() -> Facts {
    let mut counters = Counters::default();
    counters.sent(1, 2, 3000);
    counters.receive_drops[Reason::BufferFull as usize] = 3;
    let state = State {
        attached: true,
        driven: true,
        sent: 1,
        counters,
        features: Vec::new(),
        stalls: Vec::new(),
        backlog_frames: 4,
        backlog_bytes: 5000,
        shared_bytes: 0,
        absent_bytes: 0,
        allocated_bytes: 0,
        held: false,
        stopped: false,
        damaged: false,
        vacant: None,
        failed: None,
    };
    let name = "a\"\\".to_owned();
    let uplink = PortView {
        spec: None,
        name,
        id: PortId(0),
        policy: nicety_switch::Policy::default(),
        wanted: Vec::new(),
        neighbour: None,
        state,
        signals: 6,
        blank: false,
        last_end: None,
        absence: None,
        epoch: Duration::from_secs(1_700_000_000),
    };
    let mut times = Histogram { sum_ns: 64_000, ..Histogram::default() };
    (times.buckets[0], times.buckets[2]) = (10, 5);
    *times.buckets.last_mut().unwrap() = 1;
    let threads = BTreeMap::from([("worker0".to_owned(), Duration::from_millis(1500))]);
    Facts { ports: vec![uplink], addresses: 7, threads, times, captures: 2 }
}

#[test]
fn values_have_their_labels() {
    let text = text(&facts());
    for line in [
        r#"nicety_port_info{port="a\"\\",adapter="(uplink)",mac=""} 1"#,
        r#"nicety_port_transmit_packets_total{port="a\"\\",queue="0"} 0"#,
        r#"nicety_port_transmit_frames_total{port="a\"\\",queue="1"} 2"#,
        r#"nicety_port_drops_total{port="a\"\\",direction="receive",reason="buffer-full"} 3"#,
        r#"nicety_port_waiting_bytes{port="a\"\\"} 5000"#,
        r#"nicety_port_signals_total{port="a\"\\"} 6"#,
        "nicety_switch_addresses 7",
        "nicety_captures 2",
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
