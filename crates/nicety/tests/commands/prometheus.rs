//! Prometheus's own checker, `promtool` of Debian's package, takes the metrics and the alerts.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use nicety_guests::Layer;
use rustix::process::Signal;

use crate::book::root;
use crate::python::skipped;
use crate::scratch::{Ended, HOST, Scratch, Served};

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
