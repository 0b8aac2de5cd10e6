use std::path::Path;

use super::TransportPorts;
use crate::quantity::Bytes;
use crate::team::tests::FOUR;
use crate::{Host, InwardConfig};

pub(crate) const GUESTS: &str = "[[port_group]]\nname = \"storage\"\n[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:01\"\nsocket = \"1.sock\"\nport_group = \"storage\"\n[[port]]\nname = \"vm2\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:02\"\nsocket = \"2.sock\"\n";

pub(crate) fn class(name: &str, more: &str) -> String {
    format!("[[io_class]]\nname = \"{name}\"\nuplink = \"up\"\n{more}\n")
}

const UP: &str = "[[uplink]]\nname = \"up\"\nkind = \"null\"\nrate = \"10Gbit/s\"\n";

#[test]
fn classes_have_their_frames_and_what_they_are_promised() {
    let text = format!(
        "{UP}{GUESTS}{}{}{}{}",
        class("management", "vlan = 7\nreservation = \"500Mbit/s\"\nshares = 20\nmark_pcp = 6"),
        class("iscsi", "reservation = \"2Gbit/s\"\nlimit = \"4Gbit/s\"\nport_shares = 10"),
        class("vm", "shares = 100\nport_limit = \"1Gbit/s\""),
        class("voice", "dscp = 46\ngroups = \"storage\"\nnetwork = \"10.0.0.0/8\""),
    );
    let host = Host::parse(&text, Path::new("/etc/nicety/host.toml")).unwrap();
    let classes = host.classes_of(&host.uplinks[0]);
    let names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
    assert_eq!(names, ["vm", "management", "iscsi", "voice"], "that of the rest is first");
    let [vm, management, iscsi, voice] = &classes[..] else { panic!() };
    let rate = |bits| nicety_uplink::Rate::new(bits);
    assert_eq!((vm.terms.shares, vm.each.limit), (100, rate(1_000_000_000)));
    assert_eq!((management.vlan, management.mark_pcp, management.terms.is_urgent), (Some(7), Some(6), true));
    assert_eq!(
        (iscsi.transport, iscsi.terms.is_urgent, iscsi.each.shares),
        (Some(TransportPorts(3260, 3260)), false, 10)
    );
    assert_eq!((iscsi.terms.reservation, iscsi.terms.limit), (rate(2_000_000_000), rate(4_000_000_000)));
    assert_eq!((voice.ports.clone(), voice.dscp), (Some(vec!["vm1".to_owned()]), Some(46)));
    let single = class(
        "nfs",
        "reservation = \"2Gbit/s\"\nport_shares = 20\nshares_of = \"vm1=80\"\nreservation_of = \"vm2 = 1.5Gbit/s, vm1=500Mbit/s\"\nlimit_of = \"vm1=1Gbit/s\"",
    );
    let known = Host::parse(&format!("{UP}{GUESTS}{single}"), Path::new("/h")).unwrap();
    let nfs = known.classes_of(&known.uplinks[0]).pop().unwrap();
    let terms = |shares, reservation, limit| nicety_ioc::Terms { shares, reservation, limit, is_urgent: false };
    let of = |port: &str| nfs.single.iter().find(|(name, _)| name == port).unwrap().1;
    assert_eq!(of("vm1"), terms(80, rate(500_000_000), rate(1_000_000_000)));
    assert_eq!((of("vm2"), nfs.single.len()), (terms(20, rate(1_500_000_000), None), 2));
    let trusting = GUESTS.replacen("[[port]]", "trust_marks = true\n[[port]]", 1);
    let marks = class("voice", "dscp = 46\nmark_pcp = 5\nmark_dscp = 46") + &class("vm", "mark_dscp = 0");
    let of = |up: &str| {
        let known = Host::parse(&format!("{up}{trusting}{marks}"), Path::new("/h")).unwrap();
        let [outward, inward] = [known.outward_classes_of(&known.uplinks[0]), known.classes_of(&known.uplinks[0])];
        assert_eq!((outward[0].mark_dscp, outward[1].mark_pcp, outward[1].mark_dscp), (Some(0), Some(5), Some(46)));
        (outward[1].ports.clone(), inward[1].ports.clone())
    };
    assert_eq!(of(UP), (Some(vec!["vm1".to_owned()]), Some(Vec::new())), "what comes in is not believed");
    let believed = UP.replace("rate", "trust_marks = true\nrate");
    assert_eq!(of(&believed), (Some(vec!["vm1".to_owned()]), None));
    let inward = UP.replace("null", "pair\"\nsocket = \"u\"\ninward_rate = \"9Gbit/s\"\nreceive_buffer = \"8MiB");
    let host = Host::parse(&format!("{inward}{GUESTS}"), Path::new("/etc/nicety/host.toml")).unwrap();
    assert_eq!(
        host.uplinks[0].inward,
        Some(InwardConfig { rate: rate(9_000_000_000).unwrap(), buffer: Bytes(8 << 20) })
    );
    assert_eq!(host.classes_of(&host.uplinks[0]).len(), 1, "one class, of all frames");
    let errors = Host::parse(&inward.replace("9Gbit", "11Gbit"), Path::new("/h")).unwrap_err();
    assert!(errors.list[0].what.starts_with("11Gbit/s is above the uplink's rate of 10Gbit/s"), "{errors}");
    let errors = Host::parse(&inward.replace("8MiB", "65MiB"), Path::new("/h")).unwrap_err();
    assert_eq!(errors.list[0].what, "65MiB is too large");
    let errors = Host::parse(&UP.replace("null\"", "null\"\ninward_rate = \"1Gbit/s\""), Path::new("/h")).unwrap_err();
    assert_eq!(errors.list[0].what, "nothing comes in by this kind of uplink");
    let none = Host::parse(&format!("{UP}{GUESTS}"), Path::new("/etc/nicety/host.toml")).unwrap();
    assert!(none.classes_of(&none.uplinks[0]).is_empty(), "no I/O control");
}

#[test]
fn a_class_with_more_than_the_rest_has_frames_of_those_guests_alone_whose_word_counts() {
    let reserved = "reservation = \"1Gbit/s\"";
    let ports = |guests: &str, classes: &str| {
        let known = Host::parse(&format!("{UP}{guests}{classes}"), Path::new("/h")).unwrap();
        let [outward, inward] = [known.outward_classes_of(&known.uplinks[0]), known.classes_of(&known.uplinks[0])];
        [outward, inward].map(|classes| classes[1].ports.clone().map(|ports| ports.join(",")))
    };
    let some = |names: &str| Some(names.to_owned());
    assert_eq!(
        ports(GUESTS, &class("iscsi", reserved)),
        [some("up"), some("")],
        "what other uplinks bring is no guest's"
    );
    assert_eq!(ports(GUESTS, &class("nfs", "shares = 51")), [some("up"), some("")]);
    assert_eq!(ports(GUESTS, &class("nfs", "shares = 50\nlimit = \"1Gbit/s\"")), [None, None], "nobody gains by it");
    let few = class("nfs", "shares = 50") + &class("vm", "shares = 10");
    assert_eq!(ports(GUESTS, &few), [some("up"), some("")]);
    // A guest that is held to a limit in class vm would be free of it here.
    for (limit, free) in [
        ("limit = \"5Gbit/s\"", "limit = \"6Gbit/s\""),
        ("port_limit = \"1Gbit/s\"", "port_limit = \"2Gbit/s\""),
        ("limit_of = \"vm2=1Gbit/s\"", "limit_of = \"vm1=1Gbit/s\""),
    ] {
        let vm = class("vm", limit);
        assert_eq!(ports(GUESTS, &(class("nfs", free) + &vm)), [some("up"), some("")], "{limit}");
        assert_eq!(ports(GUESTS, &(class("nfs", limit) + &vm)), [None, None], "{limit}");
        assert_eq!(ports(GUESTS, &(class("nfs", "limit = \"1Gbit/s\"") + &vm)), [None, None], "{limit}");
    }
    let named = class("iscsi", &format!("{reserved}\nports = \"vm2\"\ntransport_ports = \"3260\""));
    assert_eq!(ports(GUESTS, &named), [some("vm2"), some("vm2")]);
    let trusted = GUESTS.replacen("[[port]]", "trust_marks = true\n[[port]]", 1);
    assert_eq!(ports(&trusted, &class("iscsi", reserved)), [some("vm1,up"), some("vm1")]);
    let vlan = GUESTS.replacen("[[port]]", "vlan = 10\n[[port]]", 1);
    let management = class("management", &format!("vlan = 10\n{reserved}"));
    assert_eq!(ports(&vlan, &management), [some("vm1,up"), some("vm1")], "a port's VLAN is the operator's word");
}

#[test]
fn reservations_are_kept_of_what_comes_in_too_or_refused() {
    let up = UP.replace("null", "pair\"\nsocket = \"u\"\ninward_rate = \"9Gbit/s");
    let parse = |classes: &str| Host::parse(&format!("{up}{GUESTS}{classes}"), Path::new("/h"));
    let text = reserved("iscsi", "5Gbit/s") + &reserved("nfs", "2Gbit/s") + &class("vm", "");
    let errors = parse(&text).unwrap_err();
    let [error] = &errors.list[..] else { panic!("{errors}") };
    assert_eq!(
        (error.key.as_str(), error.what.as_str()),
        (
            "io_class.reservation",
            "5Gbit/s + 2Gbit/s = 7Gbit/s are reserved on up, and 75 % of what comes in may be: 6.75Gbit/s of the 9Gbit/s of up (inward_rate)"
        )
    );
    assert!(parse(&text.replace("5Gbit", "4.75Gbit")).is_ok());
}

/// The only mistake of these classes.
fn of(classes: &str) -> String {
    let text = format!("{UP}{GUESTS}{classes}");
    let errors = Host::parse(&text, Path::new("/etc/nicety/host.toml")).unwrap_err();
    let [error] = &errors.list[..] else { panic!("{errors}") };
    format!("{}: {}", error.key, error.what)
}

fn reserved(name: &str, rate: &str) -> String {
    class(name, &format!("reservation = \"{rate}\""))
}

#[test]
fn classes_that_cannot_be_kept_are_refused_with_the_reason() {
    assert_eq!(
        of(&(reserved("iscsi", "5Gbit/s") + &reserved("nfs", "2Gbit/s") + &reserved("vm", "600Mbit/s"))),
        "io_class.reservation: 5Gbit/s + 2Gbit/s + 600Mbit/s = 7.6Gbit/s are reserved on up, and 75 % of its slowest link may be: 7.5Gbit/s of the 10Gbit/s of up"
    );
    assert_eq!(of(&class("nfs", "shares = 0")), "io_class.shares: 0 is not from 1 to 100");
    assert_eq!(of(&class("nfs", "mark_dscp = 64")), "io_class.mark_dscp: 64 is not from 0 to 63");
    assert_eq!(of(&class("nfs", "port_shares = 101")), "io_class.port_shares: 101 is not from 1 to 100");
    assert_eq!(
        of(&(class("a", "vlan = 5") + &class("b", "vlan = 5"))),
        "io_class.name: a frame may be of this class and of \"a\", by the same keys: give them values that no frame has together"
    );
    let overlap = class("a", "transport_ports = \"3000-3300\"") + &class("iscsi", "");
    assert!(of(&overlap).starts_with("io_class.name: a frame may be of this class and of \"a\""));
    assert!(
        of(&(class("a", "network = \"10.0.0.0/8\"") + &class("b", "network = \"10.1.0.0/16\"")))
            .contains("by the same keys")
    );
    assert!(of(&(class("a", "ports = \"vm1\"") + &class("b", "groups = \"storage\""))).contains("by the same keys"));
    assert_eq!(
        of(&(class("nfs", "") + &class("nfs", "vlan = 7"))),
        "io_class.name: up has a class \"nfs\" already: choose another name"
    );
    assert!(of(&class("mine", "shares = 5")).starts_with("io_class.name: class \"mine\" has no frames: say which"));
    assert!(of(&class("vm", "vlan = 5")).starts_with("io_class.vlan: \"vm\" is the class of all frames"));
    assert_eq!(
        of(&class("a", "dscp = 46")),
        "io_class.dscp: each guest chooses this itself: name the ports or groups that are trusted, or give them trust_marks = true"
    );
    assert_eq!(of(&class("a", "ports = \"vm3\"")), "io_class.ports: there is no port \"vm3\"; did you mean \"vm1\"?");
    assert_eq!(
        of(&class("nfs", "").replace("\"up\"", "\"ip\"")),
        "io_class.uplink: there is no uplink and no team \"ip\"; did you mean \"up\"?"
    );
    assert_eq!(
        of(&class("nfs", "reservation = \"2Gbit/s\"\nlimit = \"1Gbit/s\"")),
        "io_class.limit: 2Gbit/s are reserved, and only 1Gbit/s may be sent"
    );
    assert_eq!(of(&class("nfs", "limit = \"999kbit/s\"")), "io_class.limit: 999kbit/s is too small");
    assert_eq!(
        of(&class("nfs", "reservation = \"1Gbit/s\"\nport_reservation = \"600Mbit/s\"")),
        "io_class.port_reservation: 2 × 600Mbit/s = 1.2Gbit/s are reserved for its ports, and for the class: 1Gbit/s"
    );
}

#[test]
fn terms_of_single_ports_that_cannot_be_kept_are_refused_with_the_reason() {
    for (single, message) in [
        ("shares_of = \"vm1=0\"", "io_class.shares_of: 0 is not from 1 to 100"),
        ("shares_of = \"vm1\"", "io_class.shares_of: \"vm1\": write a port, = and its value"),
        ("shares_of = \"vm1=5,vm1=6\"", "io_class.shares_of: vm1 is there twice"),
        ("limit_of = \"vm3=1Gbit/s\"", "io_class.limit_of: there is no port \"vm3\"; did you mean \"vm1\"?"),
        ("limit_of = \"vm1=999kbit/s\"", "io_class.limit_of: 999kbit/s is too small"),
        ("ports = \"vm1\"\nshares_of = \"vm2=5\"", "io_class.shares_of: vm2 is none of the class's ports and groups"),
        (
            "reservation = \"1Gbit/s\"\nreservation_of = \"vm1=1Gbit/s\"\nlimit_of = \"vm1=10Mbit/s\"",
            "io_class.limit_of: 1Gbit/s are reserved for vm1, and only 10Mbit/s may be sent",
        ),
        (
            "reservation = \"2Gbit/s\"\nport_limit = \"1Gbit/s\"\nreservation_of = \"vm2=1100Mbit/s\"",
            "io_class.reservation_of: 1.1Gbit/s are reserved for vm2, and only 1Gbit/s may be sent",
        ),
        (
            "reservation = \"1Gbit/s\"\nport_reservation = \"300Mbit/s\"\nreservation_of = \"vm1=800Mbit/s\"",
            "io_class.reservation_of: 800Mbit/s + 300Mbit/s = 1.1Gbit/s are reserved for its ports, and for the class: 1Gbit/s",
        ),
    ] {
        assert_eq!(of(&class("nfs", single)), message, "{single}");
    }
}

#[test]
fn a_class_has_its_reservation_of_a_link_with_a_rate_and_its_place_beside_the_team() {
    assert_eq!(
        of(&class("nfs", "delay = \"low\"")),
        "io_class.delay: frames come first up to the class's reservation, and it has none"
    );
    let unpaced = format!("{}{}", UP.replace("rate = \"10Gbit/s\"\n", ""), reserved("nfs", "1Gbit/s"));
    let errors = Host::parse(&unpaced, Path::new("/h")).unwrap_err();
    assert_eq!(
        errors.list[0].what,
        "uplink up has no rate, and a reservation is a part of it: give it the link's rate"
    );
    let team = format!(
        "{FOUR}[[team]]\nname = \"lan\"\nmembers = \"a,b\"\nmode = \"802.3ad\"\n{}",
        class("nfs", "").replace("\"up\"", "\"a\"")
    );
    let errors = Host::parse(&team, Path::new("/h")).unwrap_err();
    assert_eq!(errors.list[0].what, "uplink a is a member of team lan: name the team");
    let queues = format!("[[uplink]]\nname = \"up\"\nkind = \"tap\"\nqueues = 2\n{}", class("nfs", ""));
    let host = Host::parse(&queues, Path::new("/h")).unwrap();
    assert!(host.sends_by_one_queue(&host.uplinks[0]), "the classes are the tap's, not each queue's");
}

#[test]
fn a_port_s_terms_change_in_their_place_and_others_stay() {
    let entry: toml::Table = "shares_of = \"vm1=80, vm2 = 10,vm10=5\"\nlimit_of = \"vm1=1Gbit/s\"".parse().unwrap();
    let with = |port: &str, term: &str, value: Option<toml::Value>| {
        let [(key, value)] = &crate::with_port_terms(&entry, port, &[(term.to_owned(), value)])[..] else { panic!() };
        (key.clone(), value.as_ref().and_then(toml::Value::as_str).map(str::to_owned))
    };
    let shares = |text: &str| ("shares_of".to_owned(), Some(text.to_owned()));
    assert_eq!(with("vm2", "shares", Some(7.into())), shares("vm1=80,vm2=7,vm10=5"));
    assert_eq!(with("vm3", "shares", Some("7".into())), shares("vm1=80,vm2 = 10,vm10=5,vm3=7"));
    assert_eq!(with("vm1", "shares", None), shares("vm2 = 10,vm10=5"));
    assert_eq!(with("vm3", "shares", None), shares("vm1=80,vm2 = 10,vm10=5"));
    assert_eq!(with("vm1", "limit", None), ("limit_of".to_owned(), None));
    let reservation = ("reservation_of".to_owned(), Some("vm1=2Gbit/s".to_owned()));
    assert_eq!(with("vm1", "reservation", Some("2Gbit/s".into())), reservation);
}
