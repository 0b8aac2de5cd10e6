//! Prometheus's own checker, `promtool` of Debian's package, takes the metrics, the alerts and the dashboard's queries.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nicety_guests::Layer;
use rustix::process::Signal;
use serde_json::Value;

use crate::book::root;
use crate::python::skipped;
use crate::scratch::{Ended, HOST, Scratch, Served, TIMEOUT};

/// `promtool` with these arguments. `None`, and a line that says so, if it cannot be installed.
fn promtool(args: &[&str]) -> Option<Command> {
    match Layer::lay("prometheus", &["prometheus"], &mut |_| {}) {
        Ok(layer) => {
            let mut command = layer.program("usr/bin/promtool");
            command.args(args);
            Some(command)
        }
        Err(error) => {
            skipped("promtool", &error.to_string());
            None
        }
    }
}

#[test]
fn promtool_takes_the_metrics_of_a_daemon() {
    let Some(promtool) = promtool(&["check", "metrics"]) else { return };
    let scratch = Scratch::with(&(HOST.to_owned() + "vlan = 10\n[uplink]\nkind = \"null\"\nrate = \"1Gbit/s\"\n"));
    let daemon = Served::start(&scratch);
    let (head, metrics) = scratch.get("/metrics");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let pid = daemon.pid();
    assert!(
        metrics.contains(
            r#"nicety_port_info{port="vm2",adapter="virtio-net",mac="52:54:00:12:34:02",group="",vlan="10"} 1"#
        ),
        "{metrics}"
    );
    let value = |name: &str| -> f64 {
        let line =
            metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {metrics}"));
        line.trim().parse().unwrap()
    };
    // proc(5): the unit of VmRSS is 1024 bytes.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")).unwrap();
    let resident = resident.parse::<f64>().unwrap() * 1024.0;
    assert!((resident / value("process_resident_memory_bytes") - 1.0).abs() < 0.5, "{resident}: {metrics}");
    is_taken(promtool, &metrics);
    assert_eq!(daemon.end(Signal::TERM), Some(0));
}

fn is_taken(mut promtool: Command, metrics: &str) {
    let mut child = promtool.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let checked = Ended::of(&child.wait_with_output().unwrap());
    assert_eq!((checked.code, checked.out.as_str(), checked.err.as_str()), (Some(0), "", ""));
}

/// Names of the metrics in a text.
fn families(metrics: &str) -> Vec<&str> {
    metrics.lines().filter(|line| line.starts_with("# TYPE ")).collect()
}

#[test]
fn the_page_gives_the_metrics_of_the_control_socket_to_whom_it_may() {
    let Some(promtool) = promtool(&["check", "metrics"]) else { return };
    let scratch = Scratch::new();
    let page = scratch.path().join("page.sock");
    let host = format!("[daemon]\npage = \"{}\"\n{HOST}", page.display());
    std::fs::write(scratch.path().join("host.toml"), host).unwrap();
    let daemon = Served::start(&scratch);
    let get = |host: &str| {
        let mut stream = UnixStream::connect(&page).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    };
    let (head, metrics) = get("localhost");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert_eq!(families(&metrics), families(&scratch.get("/metrics").1));
    assert!(metrics.contains("nicety_port_up{port=\"vm2\"} 0"), "{metrics}");
    is_taken(promtool, &metrics);
    let (head, body) = get("rebound.example");
    assert!(head.starts_with("HTTP/1.1 421 ") && !body.contains("nicety_"), "{head}: {body}");
    assert_eq!(daemon.end(Signal::TERM), Some(0));
}

#[test]
fn promtool_takes_the_scrape_example_of_the_book() {
    let Some(mut check) = promtool(&["check", "config", "prometheus.yml"]) else { return };
    let page = std::fs::read_to_string(root().join("docs/page.md")).unwrap();
    let example = page.split_once("```yaml\n").and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    assert!(example.contains("scrape_configs:") && example.contains("127.0.0.1:8642"), "{example}");
    let scratch = Scratch::new();
    std::fs::write(scratch.path().join("prometheus.yml"), example).unwrap();
    check.current_dir(scratch.path());
    let checked = Ended::soon(check);
    assert!(checked.code == Some(0) && checked.out.contains("SUCCESS"), "{checked:?}");
}

#[test]
fn promtool_takes_the_alerts_and_they_fire_when_they_should() {
    let rules = root().join("docs/alerts.yml").canonicalize().unwrap();
    let rules: &Path = &rules;
    let Some(mut check) = promtool(&["check", "rules", "--lint-fatal"]) else { return };
    check.arg(rules);
    let checked = Ended::soon(check);
    assert!(checked.code == Some(0) && checked.out.contains("SUCCESS"), "{checked:?}");
    let scratch = Scratch::new();
    let cases = include_str!("alerts_test.yml").replace("RULES", rules.to_str().unwrap());
    std::fs::write(scratch.path().join("cases.yml"), cases).unwrap();
    let mut test = promtool(&["test", "rules", "cases.yml"]).unwrap();
    test.current_dir(scratch.path());
    let tested = Ended::soon(test);
    assert!(tested.code == Some(0) && tested.out.contains("SUCCESS"), "{tested:?}");
}

/// A daemon that has all that the dashboard shows: uplinks, a team, classes of both, exports of flows, one of which loses records, and
/// frames that are dropped.
const SHOWN: &str = r#"
[[uplink]]
kind = "stream"
name = "world"
socket = "world.sock"
rate = "10Gbit/s"

[[io_class]]
name = "vm"
uplink = "world"

[[uplink]]
kind = "pair"
name = "left"
socket = "left.sock"
rate = "10Gbit/s"

[[uplink]]
kind = "pair"
name = "right"
socket = "right.sock"
rate = "10Gbit/s"

[[team]]
name = "both"
members = "left,right"
mode = "active-standby"
vlan = 20

[[io_class]]
name = "vm"
uplink = "both"

[[flow_export]]
name = "noc"
collector = "udp:127.0.0.1:9"

# Nobody listens there: records wait until there is no room for more.
[[flow_export]]
name = "away"
collector = "tcp:127.0.0.1:9"
memory = "16KiB"
"#;

/// Flows of which each has one record. More than [`SHOWN`]'s collector that is away lets wait (32,768), and than the table has room for.
const FLOWS: u32 = 34_000;

/// The dashboard.
fn dashboard() -> Value {
    let text = std::fs::read_to_string(root().join("docs/grafana.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The queries of the dashboard, with values in place of Grafana's variables.
fn queries() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    let plain = |text: String| text.replace("$__rate_interval", "4m").replace("$instance", ".*").replace("$port", ".*");
    expressions.map(plain).collect()
}

/// The series of two scrapes of a daemon, a minute apart, for `promtool test rules`.
fn input_series(first: &str, second: &str) -> String {
    let samples = |text: &str| -> Vec<(String, String)> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.rsplit_once(' ').unwrap()).map(|(name, value)| (name.into(), value.into())).collect()
    };
    let before = samples(first);
    let mut text = String::new();
    for (name, now) in samples(second).iter().filter(|(_, value)| value != "+Inf") {
        let then = before.iter().find(|(known, _)| known == name).map_or("_", |(_, value)| value);
        let scraped = "instance=\"host\",job=\"nicety\"";
        let name = match name.split_once('{') {
            Some((family, labels)) => format!("{family}{{{scraped},{labels}"),
            None => format!("{name}{{{scraped}}}"),
        };
        text += &format!("      - {{series: '{name}', values: '{then} {now}'}}\n");
    }
    text
}

#[test]
fn each_query_of_the_dashboard_finds_something_at_a_daemon_that_serves() {
    let Some(mut test) = promtool(&["test", "rules", "queries.yml"]) else { return };
    let scratch = Scratch::with(&format!("{HOST}{SHOWN}"));
    let daemon = Served::by(&scratch, "exec \"$0\" serve --keeper");
    let upgraded = scratch.run(&["upgrade"]);
    assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
    // QEMU's stream: the length of each frame in four bytes before it. Nobody is at the ports.
    let mut world = UnixStream::connect(scratch.path().join("world.sock")).unwrap();
    let mut frame = vec![0xff; 60];
    frame[6..14].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 9, 0x88, 0xb5]);
    let flow = |station: u32| {
        let mut frame = frame.clone();
        frame[8..12].copy_from_slice(&station.to_be_bytes());
        [&60u32.to_be_bytes()[..], &frame].concat()
    };
    world.write_all(&(1..=FLOWS).flat_map(flow).collect::<Vec<u8>>()).unwrap();
    let end = Instant::now() + TIMEOUT;
    while !scratch.get("/metrics").1.contains("nicety_flow_port_records_lost_total{export=\"away\",port=\"world\"}") {
        assert!(Instant::now() < end, "{}", scratch.get("/metrics").1);
        std::thread::sleep(Duration::from_millis(10));
    }
    let drops = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("nicety_port_drops_total{")).map(str::to_owned).collect()
    };
    // A rate takes two samples.
    let mut scraped_after_a_drop = |before: &str| {
        world.write_all(&[&60u32.to_be_bytes()[..], &frame].concat()).unwrap();
        let end = Instant::now() + TIMEOUT;
        loop {
            let text = scratch.get("/metrics").1;
            if drops(&text) != drops(before) {
                return text;
            }
            assert!(Instant::now() < end, "{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let first = scraped_after_a_drop("");
    let second = scraped_after_a_drop(&first);
    let queries = queries();
    assert!(queries.len() > 30);
    let found = |query: &String| {
        let expected = "exp_samples: [{labels: '{}', value: 1}]";
        format!("      - {{expr: 'count({query}) > bool 0', eval_time: 1m, {expected}}}\n")
    };
    let text = format!(
        "evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n{}    promql_expr_test:\n{}",
        input_series(&first, &second),
        queries.iter().map(found).collect::<String>()
    );
    std::fs::write(scratch.path().join("queries.yml"), &text).unwrap();
    test.current_dir(scratch.path());
    let tested = Ended::soon(test);
    assert!(tested.code == Some(0) && tested.out.contains("SUCCESS"), "{tested:?}");
    // Such a test fails if a metric has another name.
    std::fs::write(scratch.path().join("queries.yml"), text.replace("count(nicety_build_info", "count(nicety_build"))
        .unwrap();
    let mut test = promtool(&["test", "rules", "queries.yml"]).unwrap();
    test.current_dir(scratch.path());
    assert_eq!(Ended::soon(test).code, Some(1));
    assert_eq!(daemon.end(Signal::TERM), Some(0));
}

/// The dashboard's JSON model: grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model.
#[test]
fn the_dashboard_has_the_form_that_grafana_imports_and_names_its_data_source_by_a_variable() {
    let dashboard = dashboard();
    for key in ["title", "uid", "schemaVersion", "panels", "templating", "time", "refresh", "annotations"] {
        assert!(!dashboard[key].is_null(), "{key}");
    }
    // Grafana gives an imported dashboard its number.
    assert!(dashboard["id"].is_null() && dashboard["schemaVersion"].as_u64() >= Some(36));
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<&str> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "instance", "port"]);
    assert_eq!((&variables[0]["type"], &variables[0]["query"]), (&"datasource".into(), &"prometheus".into()));
    let source = serde_json::json!({ "type": "prometheus", "uid": "${datasource}" });
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids: Vec<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), panels.len());
    let mut places = Vec::new();
    for panel in panels {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{panel}");
        places.push((x, y, w, h));
        if panel["type"] == "row" {
            continue;
        }
        assert!(["stat", "table", "timeseries"].contains(&panel["type"].as_str().unwrap()), "{panel}");
        assert_eq!(panel["datasource"], source, "{panel}");
        let targets = panel["targets"].as_array().unwrap();
        let letters: Vec<&str> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert_eq!(letters, ["A", "B"][..letters.len()], "{panel}");
        assert!(targets.iter().all(|target| target["datasource"] == source), "{panel}");
    }
    for (number, (x, y, w, h)) in places.iter().enumerate() {
        let overlaps = |(x2, y2, w2, h2): &(u64, u64, u64, u64)| {
            x < &(x2 + w2) && x2 < &(x + w) && y < &(y2 + h2) && y2 < &(y + h)
        };
        assert!(!places[..number].iter().any(overlaps), "a panel lies over another: {x}, {y}");
    }
}
