//! The fabric as a person and a program see it at one host: `nicety ports`, `top`, `trace`, `fabric status` and the metrics.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::etcd_servers::addresses;
use crate::{GROUPS, Host, carried, mac, until};

/// The frame's digits: from one address to another, of IPv4.
fn frame(from: &str, to: &str) -> String {
    format!("{}{}0800{}", to.replace(':', ""), from.replace(':', ""), "00".repeat(46))
}

fn metrics(host: &Host) -> String {
    let mut stream = UnixStream::connect(host.dir.join("nicety-switch0.sock")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: nicety\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The value of a metric with these labels.
fn value(metrics: &str, sample: &str) -> f64 {
    let found = metrics.lines().find_map(|line| line.strip_prefix(sample)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("{sample}: {metrics}"))
}

#[test]
fn each_other_host_is_seen_with_its_traffic_and_a_frame_is_followed_to_its_port_there() {
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let ends @ [_, far, last] = &addresses();
    let start = |number: usize, name: &str, ports: &[(&str, &str, u8)]| {
        Host::start(place.path(), name, &ends[number], &cluster, ports)
    };
    let one = start(0, "one", &[("vmxnet3", "web", 1)]);
    let other = start(1, "other", &[("vmxnet3", "web", 2)]);
    let third = start(2, "third", &[("e1000", "web", 3), ("e1000", "db", 4)]);
    let (mut a, mut b, _c) = (one.guest("vmxnet3", 1), other.guest("vmxnet3", 2), third.guest("e1000", 3));
    until("the guests are known", || one.place(2).is_some() && one.place(3).is_some() && other.place(1).is_some());
    let bytes = carried(&mut a, &mut b);
    assert!(bytes > 100_000, "{bytes}");

    let shown = one.says(&["ports"]);
    println!("{shown}");
    let head = "\nfabric prod: host one, connected\nHOST ";
    assert!(shown.contains(head), "{shown}");
    let row = |name: &str| {
        let line =
            shown.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{shown}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("other")[..4], ["other", far, "1", "1"]);
    assert_eq!(row("third")[..4], ["third", last, "1", "1"], "of its two ports one is in a group of this host");
    // More frames went than came: most of what comes back are acknowledgements.
    let report: Value = serde_json::from_str(&one.says(&["ports", "--json"])).unwrap();
    let host = |name: &str| {
        let hosts = report["fabric"]["hosts"].as_array().unwrap();
        hosts.iter().find(|host| host["name"] == name).unwrap().clone()
    };
    let (to, from) = (&host("other")["receive"], &host("other")["transmit"]);
    assert!(to["bytes"].as_u64().unwrap() > bytes && to["dropped"] == 0, "{to}");
    assert!((1..to["bytes"].as_u64().unwrap()).contains(&from["bytes"].as_u64().unwrap()), "{from}");
    // The sum over all hosts is what the tunnel has carried.
    let tunnel = one.port("tunnel");
    let sum = |way: &str| -> u64 {
        let report = one.report();
        let passed = report.hosts.iter().map(|host| if way == "to" { host.receive } else { host.transmit });
        passed.map(|passed| passed.frames).sum()
    };
    let carried_by =
        [&tunnel.transmit, &tunnel.receive].map(|queues| queues.iter().map(|queue| queue.frames).sum::<u64>());
    // A broadcast goes to each host, and is one frame of the port.
    assert!(sum("from") >= carried_by[0] && sum("to") >= carried_by[1], "{carried_by:?} {}", one.report());
    let of_tunnel = one.says(&["ports", "tunnel"]);
    assert!(of_tunnel.contains(head) && !one.says(&["ports", "vm1"]).contains(head), "{of_tunnel}");
    let status = one.says(&["fabric", "status"]);
    assert!(status.contains(" frames came from it, "), "{status}");

    let top = one.says(&["top", "--once"]);
    println!("{top}");
    assert!(top.contains("\nFABRIC  prod: connected  2 other hosts  from them "), "{top}");
    assert!(top.lines().any(|line| line.starts_with("third ")), "{top}");

    let trace = one.says(&["trace", "vm1", &frame(&mac(1), &mac(2))]);
    println!("{trace}");
    let end = format!("in network 5010 to other ({far}): its port vm2 (port group web) has the destination\n");
    assert!(trace.ends_with(&end), "{trace}");
    let trace: Value = serde_json::from_str(&one.says(&["trace", "vm1", &frame(&mac(1), &mac(3)), "--json"])).unwrap();
    let there = &trace["receivers"][0]["hosts"][0];
    assert_eq!([&there["host"], &there["port"], &there["group"]], ["third", "vm3", "web"]);
    let all = one.says(&["trace", "vm1", &frame(&mac(1), "ff:ff:ff:ff:ff:ff")]);
    assert!(all.contains("in network 5010 to ") && all.contains(", as all hosts with this network"), "{all}");
    // Nobody else is in the group.
    let none = third.says(&["trace", "vm4", &frame(&mac(4), "ff:ff:ff:ff:ff:ff")]);
    assert!(none.contains("no other host has network 5020: dropped there, no-receiver"), "{none}");

    let text = metrics(&one);
    let labels = format!("{{port=\"tunnel\",peer=\"{far}\",host=\"other\"}}");
    let went = value(&text, &format!("nicety_tunnel_receive_bytes_total{labels}"));
    assert!(went > bytes as f64, "{went}");
    assert!(value(&text, &format!("nicety_tunnel_transmit_frames_total{labels}")) > 0.0);
    assert_eq!(value(&text, "nicety_tunnel_peers{port=\"tunnel\"}"), 2.0);
    assert_eq!(value(&text, "nicety_fabric_host_ports{fabric=\"prod\",host=\"third\"}"), 1.0);
    assert_eq!(value(&text, "nicety_fabric_host_reached{fabric=\"prod\",host=\"third\"}"), 1.0);
}
