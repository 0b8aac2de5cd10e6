use std::path::Path;

use super::{Collector, NoCollector};
use crate::io_classes::tests::GUESTS;
use crate::{Bytes, Host, Seconds};

const PATH: &str = "/etc/nicety/host.toml";
const TO: &str = "collector = \"udp:10.0.0.9:4739\"\n";

/// Two guests, an uplink, a team of one, and these exports.
fn parsed(exports: &str) -> Result<Host, String> {
    let links = "[[uplink]]\nname = \"up\"\nkind = \"null\"\n[[uplink]]\nname = \"t1\"\nkind = \"pair\"\nsocket = \"t1.sock\"\n\
                 [[team]]\nname = \"both\"\nmembers = \"t1\"\nmode = \"802.3ad\"\n";
    let host = Host::parse(&format!("{links}{GUESTS}{exports}"), Path::new(PATH));
    host.map_err(|errors| errors.list[0].to_string().split(" (allowed").next().unwrap().to_owned())
}

fn export(name: &str, more: &str) -> String {
    format!("[[flow_export]]\nname = \"{name}\"\n{more}\n")
}

#[test]
fn an_export_has_its_collector_and_usual_terms() {
    let host = parsed(&export("one", TO)).unwrap();
    let [one] = &host.flow_exports[..] else { panic!("one export") };
    assert_eq!((one.name.as_str(), one.collector.to_string().as_str()), ("one", "udp:10.0.0.9:4739"));
    assert_eq!((one.domain, one.sampling, one.memory), (1, 1, Bytes(2 << 20)));
    assert_eq!((one.active, one.idle), (Seconds(60), Seconds(15)));
    assert!(one.has_port("vm1") && one.has_port("vm2") && one.uplinks.is_empty(), "all ports and no uplink");
    let all = "collector = \"tcp:[fd00::9]:4740\"\ndomain = 7\nports = \"vm2\"\ngroups = \"storage\"\nuplinks = \"up,both\"\n\
               sampling = 100\nactive_timeout = \"300s\"\nidle_timeout = \"30s\"\nmemory = \"4MiB\"";
    let host = parsed(&export("two", all)).unwrap();
    let two = &host.flow_exports[0];
    assert_eq!(two.collector, Collector::Tcp("[fd00::9]:4740".parse().unwrap()));
    assert_eq!(two.ports.as_deref(), Some(&["vm1".to_owned(), "vm2".to_owned()][..]), "vm1 is in the group");
    assert_eq!(two.uplinks, ["both", "up"]);
    assert_eq!((two.domain, two.sampling, two.memory), (7, 100, Bytes(4 << 20)));
    assert_eq!((two.active, two.idle), (Seconds(300), Seconds(30)));
}

#[test]
fn an_export_of_uplinks_alone_counts_no_port() {
    let host = parsed(&export("one", &format!("{TO}uplinks = \"up\""))).unwrap();
    assert!(!host.flow_exports[0].has_port("vm1"));
}

#[test]
fn a_collector_is_a_protocol_an_address_and_a_port() {
    for text in ["udp:10.0.0.9:4739", "tcp:[fd00::9]:1", "tcp:127.0.0.1:65535"] {
        assert_eq!(text.parse::<Collector>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "udp",
        "10.0.0.9:4739",
        "udp:10.0.0.9",
        "udp:10.0.0.9:0",
        "sctp:10.0.0.9:4739",
        "udp:flows:4739",
        "udp:fd00::9:1",
    ] {
        assert_eq!(text.parse::<Collector>(), Err(NoCollector), "{text}");
    }
}

#[test]
fn an_export_that_cannot_be_is_refused_with_the_reason() {
    let one = |more: &str| export("one", &format!("{TO}{more}"));
    for (exports, what) in [
        (export("one", ""), "flow_export.collector: it is missing from this [[flow_export]]"),
        (format!("[[flow_export]]\n{TO}"), "flow_export.name: it is missing from this [[flow_export]]"),
        (
            export("one", "collector = \"10.0.0.9:4739\""),
            "flow_export.collector: \"10.0.0.9:4739\": a collector is udp: or tcp: with an IP address and a port behind it, such as \
             udp:10.0.0.9:4739",
        ),
        (one("ports = \"vm3\""), "flow_export.ports: there is no port \"vm3\"; did you mean \"vm1\"?"),
        (
            one("groups = \"storag\""),
            "flow_export.groups: there is no port group \"storag\"; did you mean \"storage\"?",
        ),
        (
            one("uplinks = \"bot\""),
            "flow_export.uplinks: there is no uplink and no team \"bot\"; did you mean \"both\"?",
        ),
        (one("uplinks = \"t1\""), "flow_export.uplinks: uplink t1 is a member of team both: name the team"),
        (one("sampling = 0"), "flow_export.sampling: 0 is not from 1 to 1000000"),
        (one("domain = 0"), "flow_export.domain: 0 is not from 1 to 4294967295"),
        (one("active_timeout = \"0s\""), "flow_export.active_timeout: 0s is too small"),
        (one("idle_timeout = \"3601s\""), "flow_export.idle_timeout: 3601s is too large"),
        (one("memory = \"1KiB\""), "flow_export.memory: 1KiB is too small"),
        (one("memory = \"1GiB\""), "flow_export.memory: 1GiB is too large"),
        (one("") + &one("domain = 2"), "flow_export.name: there is an export of flows \"one\" already"),
        (
            one("") + &export("two", TO),
            "flow_export.domain: export one has domain 1 at udp:10.0.0.9:4739 already, and a collector takes two exports of one domain \
             for one: give this one another",
        ),
    ] {
        assert_eq!(parsed(&exports).unwrap_err(), what);
    }
    let many: String = (1..=5).map(|number| export(&format!("e{number}"), &format!("{TO}domain = {number}"))).collect();
    let most = "flow_export: a switch has at most 4 exports of flows: each of them counts a frame again";
    assert_eq!(parsed(&many).unwrap_err(), most);
}
