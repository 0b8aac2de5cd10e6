use super::*;

const UUID: &str = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0";
const OTHER: &str = "00000000-1d52-d8f3-2516-782e98ab3fa0";

/// A port's table with these further keys.
fn port(name: &str, last: u8, more: &str) -> String {
    format!(
        "name = \"{name}\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:12:34:0{last}\"\nsocket = \"/run/nicety/{last}.sock\"\n{more}\n"
    )
}

fn made_for(uuid: &str) -> String {
    format!("origin = \"hook libvirt, domain web1, {uuid}\"")
}

fn host(ports: &[String]) -> Host {
    let text: String = ports.iter().map(|port| format!("[[port]]\n{port}")).collect();
    Host::parse(&text, Path::new("/etc/nicety/host.toml")).unwrap()
}

fn domain(ports: &[String]) -> Domain {
    let ports = ports.iter().map(|port| format!("{port}{}\n", made_for(UUID)).parse().unwrap()).collect();
    Domain { name: "web1".to_owned(), uuid: UUID.to_owned(), ports, named: Vec::new() }
}

/// The steps, each in a word and a name.
fn shown(running: &[String], wanted: &[String]) -> Vec<String> {
    let (running, domain) = (host(running), domain(wanted));
    let all = steps(&running, &domain).unwrap();
    let after = after(&running, &all).unwrap();
    assert_eq!(steps(&after, &domain).unwrap(), [], "a second call has nothing to do");
    let one = |step: &Step| match step {
        Step::Remove(name) => format!("- {name}"),
        Step::Set(name, values) => {
            let values = values.iter().map(|(key, value)| format!("{key}={}", value.as_ref().map_or("", |_| "…")));
            format!("~ {name} {}", values.collect::<Vec<_>>().join(" "))
        }
        Step::Add(port) => format!("+ {}", text(port, "name")),
    };
    all.iter().map(one).collect()
}

#[test]
fn what_is_missing_is_added_what_is_otherwise_is_set_and_what_is_over_is_removed() {
    let (a, b) = (port("web1-1", 1, ""), port("web1-2", 2, ""));
    assert_eq!(shown(&[], &[a.clone(), b.clone()]), ["+ web1-1", "+ web1-2"]);
    let ours = made_for(UUID);
    // A call was killed after the first port.
    assert_eq!(shown(&[port("web1-1", 1, &ours)], &[a.clone(), b.clone()]), ["+ web1-2"]);
    let all = [port("web1-1", 1, &ours), port("web1-2", 2, &ours)];
    assert!(shown(&all, &[a.clone(), b]).is_empty());
    let before = [port("web1-1", 1, &format!("mtu = 9000\nqueues = 2\n{ours}"))];
    assert_eq!(shown(&before, &[port("web1-1", 1, "queues = 4")]), ["~ web1-1 mtu= queues=…"]);
}

/// The usual names depend on how many interfaces there are: libvirt plugs them into VMs that run.
#[test]
fn a_port_keeps_its_name_when_interfaces_come_and_go_and_a_new_one_gets_a_name_that_is_free() {
    let ours = made_for(UUID);
    let (one, both) = (port("web1", 1, &ours), [port("web1-1", 1, &ours), port("web1-2", 2, &ours)]);
    let wanted = |all: &[u8]| {
        let numbers = (1..).zip(all).map(|(number, last)| port(&format!("web1-{number}"), *last, ""));
        numbers.collect::<Vec<_>>()
    };
    // A second one comes, behind the first and before it.
    assert_eq!(shown(std::slice::from_ref(&one), &wanted(&[1, 2])), ["+ web1-2"]);
    assert_eq!(shown(&[one], &wanted(&[2, 1])), ["+ web1-1"]);
    assert_eq!(shown(&both, &[port("web1", 1, "")]), ["- web1-2"]);
    assert_eq!(shown(&both, &[port("web1", 2, "")]), ["- web1-1"]);
    assert_eq!(shown(&both, &wanted(&[3, 1, 2])), ["+ web1-3"]);
    // The same socket with another address is another port.
    let other = port("web1-1", 1, "").replace("34:01", "34:07");
    assert_eq!(shown(&both, &[other, port("web1-2", 2, "")]), ["~ web1-1 mac=…"]);
    // A name in the metadata counts.
    let named = Domain { named: vec!["www".to_owned()], ..domain(&[port("www", 1, ""), port("web1-2", 2, "")]) };
    let all = steps(&host(&both), &named).unwrap();
    assert!(matches!(&all[..], [Step::Remove(gone), Step::Add(_)] if gone == "web1-1"), "{all:?}");
}

#[test]
fn ports_of_others_stay_and_one_that_an_administrator_has_written_for_the_domain_is_taken() {
    let (own, foreign) = (port("mine", 1, ""), port("db", 2, &made_for(OTHER)));
    assert!(shown(&[own.clone(), foreign.clone()], &[port("web1", 1, "")]).is_empty(), "another name, the same socket");
    assert!(shown(std::slice::from_ref(&own), &[port("mine", 1, "")]).is_empty());
    assert!(shown(&[own.clone(), foreign.clone()], &[]).is_empty());
    let refused = |running: &[String], wanted: String| steps(&host(running), &domain(&[wanted])).unwrap_err();
    let said = refused(std::slice::from_ref(&own), port("mine", 3, ""));
    let expected = "domain web1 needs port mine at /run/nicety/3.sock for 52:54:00:12:34:03; the daemon has port mine, which no hook has made, \
                    at /run/nicety/1.sock for 52:54:00:12:34:01: remove that one, or give this one another name or socket \
                    (<nicety:port mac='52:54:00:12:34:03' name='…'/>)";
    assert_eq!(said, expected);
    let said = refused(std::slice::from_ref(&foreign), port("db", 2, ""));
    assert!(
        said.contains(&format!("the daemon has port db, made by hook libvirt, domain web1, {OTHER}, at ")),
        "{said}"
    );
    let said = refused(std::slice::from_ref(&foreign), port("web1", 2, ""));
    assert!(said.contains("needs port web1 at /run/nicety/2.sock"), "{said}");
    let said = refused(&[port("other", 1, "").replace("34:01", "34:07")], port("web1", 1, ""));
    assert!(said.contains("the daemon has port other"), "{said}");
}

#[test]
fn what_would_be_no_host_file_is_refused_before_anything_is_done() {
    let running = host(&[port("mine", 1, "")]);
    for (wanted, why) in [
        (port("web1", 2, "").replace("34:02", "34:01"), "52:54:00:12:34:01 is the address of port mine already"),
        (port("web1", 2, "queues = 17"), "queues: virtio-net has at most 16 queue pairs, not 17"),
        (port("web1", 2, "").replace("virtio-net", "ne3000"), "there is no adapter \"ne3000\""),
        (port("web1", 2, "port_group = \"web\""), "port_group"),
        (port("web1", 2, "colour = \"red\""), "colour: there is no such key"),
        (port("-web", 2, ""), "does not begin with a letter or digit"),
    ] {
        let all = steps(&running, &domain(&[wanted])).unwrap();
        let said = after(&running, &all).unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
    }
}
