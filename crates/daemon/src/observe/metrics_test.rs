use std::collections::{BTreeMap, BTreeSet};

use nicety_adapter::{Counters, PortId};
use nicety_plane::{ClassState, State};

use super::*;

#[path = "../../tests/fabric_report/mod.rs"]
mod fabric_report;
use fabric_report::{fabric, other};

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
        remark: None,
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
    Facts {
        ports: vec![uplink, team],
        vms: vms(),
        fabric: None,
        tunnels: Vec::new(),
        addresses: 7,
        threads,
        process,
        times,
        captures: 2,
        flow_exports: flow_exports(),
        wakes: vec![5, 6],
        pauses: vec![("lan".to_owned(), 2_500_000), ("gone".to_owned(), 1)],
        change: (true, false),
    }
}

#[test]
fn a_tunnel_has_counters_for_each_other_host_which_has_its_name_in_the_fabric() {
    let passed = Passed { frames: 45, bytes: 65_000, dropped: 2 };
    let to = |last| std::net::IpAddr::from([192, 0, 2, last]);
    let came = Traffic { transmit: passed, ..Traffic::default() };
    let went = Traffic { receive: passed, ..Traffic::default() };
    let tunnel = TunnelTraffic { port: "tunnel".to_owned(), peers: vec![(to(2), came)] };
    // Its peers are in its host file.
    let plain = TunnelTraffic { port: "other".to_owned(), peers: vec![(to(2), went), (to(3), went)] };
    let text = text(&Facts { fabric: Some(fabric(vec![other(2)])), tunnels: vec![tunnel, plain], ..facts() });
    for line in [
        "nicety_fabric_host_reached{fabric=\"prod\",host=\"node-2\"} 1",
        "nicety_fabric_host_ports{fabric=\"prod\",host=\"node-2\"} 2",
        "nicety_fabric_host_addresses{fabric=\"prod\",host=\"node-2\"} 3",
        "nicety_tunnel_peers{port=\"other\"} 2",
        "nicety_tunnel_transmit_frames_total{port=\"tunnel\",peer=\"192.0.2.2\",host=\"node-2\"} 45",
        "nicety_tunnel_transmit_bytes_total{port=\"tunnel\",peer=\"192.0.2.2\",host=\"node-2\"} 65000",
        "nicety_tunnel_receive_frames_total{port=\"tunnel\",peer=\"192.0.2.2\",host=\"node-2\"} 0",
        "nicety_tunnel_receive_bytes_total{port=\"other\",peer=\"192.0.2.3\",host=\"\"} 65000",
        "nicety_tunnel_drops_total{port=\"tunnel\",peer=\"192.0.2.2\",host=\"node-2\",direction=\"transmit\"} 2",
        "nicety_tunnel_drops_total{port=\"other\",peer=\"192.0.2.2\",host=\"\",direction=\"receive\"} 2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!super::text(&facts()).contains("nicety_tunnel"), "a host without a tunnel");
}

/// One whose collector is there, and one that is away.
fn flow_exports() -> Vec<FlowExportReport> {
    let near = FlowExportReport {
        name: "near".to_owned(),
        collector: "udp:10.0.0.9:4739".to_owned(),
        of: None,
        sampling: 1,
        records: 40,
        templates: 2,
        lost: 0,
        lost_by_port: BTreeMap::new(),
        displaced: 3,
        away: None,
    };
    let away = Some("it does not answer".to_owned());
    let lost_by_port = BTreeMap::from([("vm1".to_owned(), 5), ("vm2".to_owned(), 1)]);
    let far = FlowExportReport {
        name: "far".to_owned(),
        records: 0,
        lost: 7,
        lost_by_port,
        displaced: 0,
        away,
        ..near.clone()
    };
    vec![near, far]
}

#[test]
fn an_export_of_flows_has_its_counters_and_whether_its_collector_is_there() {
    let text = text(&facts());
    for line in [
        "nicety_flow_collector_up{export=\"near\"} 1",
        "nicety_flow_collector_up{export=\"far\"} 0",
        "nicety_flow_records_total{export=\"near\"} 40",
        "nicety_flow_templates_total{export=\"near\"} 2",
        "nicety_flow_records_lost_total{export=\"far\"} 7",
        "nicety_flow_port_records_lost_total{export=\"far\",port=\"vm1\"} 5",
        "nicety_flow_port_records_lost_total{export=\"far\",port=\"vm2\"} 1",
        "nicety_flows_displaced_total{export=\"near\"} 3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let without = super::text(&Facts { flow_exports: Vec::new(), ..facts() });
    assert!(!without.contains("nicety_flow"), "{without}");
}

/// One that runs here, protected; and a twin whose owner has never made a copy.
fn vms() -> Vec<VmReport> {
    let owner = VmReport {
        name: "web".to_owned(),
        role: VmRole::Owner,
        protected: true,
        epoch: 12,
        lag_epochs: 1,
        stop_median_microseconds: Some(5_600),
        stop_most_microseconds: Some(18_700),
        stream_bytes: 1000,
        wire_bytes: 1100,
        gate_packets: 3,
        gate_bytes: 4500,
        takeovers: 1,
        takeover_microseconds: Some(1_250_000),
        ..VmReport::default()
    };
    let twin = VmReport { name: "db".to_owned(), role: VmRole::Twin, ..VmReport::default() };
    vec![owner, twin]
}

#[test]
fn a_vm_has_its_role_and_only_times_that_were_measured() {
    let text = text(&facts());
    let of_vms: Vec<&str> = text.lines().filter(|line| line.starts_with("nicety_vm_")).collect();
    assert_eq!(
        of_vms,
        [
            r#"nicety_vm_role{vm="web",role="owner"} 1"#,
            r#"nicety_vm_role{vm="web",role="twin"} 0"#,
            r#"nicety_vm_role{vm="web",role="absent"} 0"#,
            r#"nicety_vm_role{vm="db",role="owner"} 0"#,
            r#"nicety_vm_role{vm="db",role="twin"} 1"#,
            r#"nicety_vm_role{vm="db",role="absent"} 0"#,
            r#"nicety_vm_protected{vm="web"} 1"#,
            r#"nicety_vm_protected{vm="db"} 0"#,
            r#"nicety_vm_epoch{vm="web"} 12"#,
            r#"nicety_vm_epoch{vm="db"} 0"#,
            r#"nicety_vm_lag_epochs{vm="web"} 1"#,
            r#"nicety_vm_lag_epochs{vm="db"} 0"#,
            r#"nicety_vm_gate_packets{vm="web"} 3"#,
            r#"nicety_vm_gate_packets{vm="db"} 0"#,
            r#"nicety_vm_gate_bytes{vm="web"} 4500"#,
            r#"nicety_vm_gate_bytes{vm="db"} 0"#,
            r#"nicety_vm_stream_bytes_total{vm="web"} 1000"#,
            r#"nicety_vm_stream_bytes_total{vm="db"} 0"#,
            r#"nicety_vm_wire_bytes_total{vm="web"} 1100"#,
            r#"nicety_vm_wire_bytes_total{vm="db"} 0"#,
            r#"nicety_vm_takeovers_total{vm="web"} 1"#,
            r#"nicety_vm_takeovers_total{vm="db"} 0"#,
            r#"nicety_vm_stop_median_seconds{vm="web"} 0.0056"#,
            r#"nicety_vm_stop_max_seconds{vm="web"} 0.0187"#,
            r#"nicety_vm_last_takeover_seconds{vm="web"} 1.25"#,
        ]
    );
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
        "nicety_change_waiting 1",
        "nicety_change_not_undone 0",
        r#"nicety_port_upgrade_pause_seconds{port="lan"} 0.0025"#,
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
fn a_port_that_was_removed_after_an_upgrade_has_no_pause_any_more() {
    assert!(!text(&facts()).contains("\"gone\""));
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
