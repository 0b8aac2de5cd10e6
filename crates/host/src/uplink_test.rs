use std::path::{Path, PathBuf};

use super::{Lldp, UplinkKind};
use crate::tests::{PORT, error, parse};
use crate::{Host, Role};

#[test]
fn a_tap_has_one_queue_or_more_and_their_rate_is_that_of_all() {
    let tap = |more: &str| format!("[uplink]\nkind = \"tap\"\nname = \"tap0\"\n{more}");
    let queues = |more: &str| Host::parse(&tap(more), Path::new("/etc/host.toml")).unwrap().uplinks[0].queues();
    assert_eq!([queues(""), queues("queues = 1"), queues("queues = 16")], [1, 1, 16]);
    for (more, says) in [
        ("queues = 17", "4: uplink.queues: "),
        ("queues = 0", "4: uplink.queues: "),
        ("queues = 2\nlldp = \"send\"", "5: uplink.lldp: it does not go with several queues"),
    ] {
        let message = error(&tap(more));
        assert!(message.starts_with(says), "{message}");
    }
    for (more, one_sends) in [("", false), ("inward_rate = \"1Gbit/s\"", false), ("rate = \"1Gbit/s\"", true)] {
        let host = Host::parse(&tap(&format!("queues = 2\n{more}")), Path::new("/etc/host.toml")).unwrap();
        assert_eq!(host.sends_by_one_queue(&host.uplinks[0]), one_sends, "{more}");
        let mut other = host.uplinks[0].clone();
        (other.rate, other.inward) = (None, None);
        assert!(host.uplinks[0].is_same_link(&other), "rates change while it is open");
    }
    let pair = error("[uplink]\nkind = \"pair\"\nsocket = \"a\"\nqueues = 2");
    assert!(pair.starts_with("4: uplink.queues: it does not belong to this kind of uplink"), "{pair}");
    let team = "[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\nqueues = 2\n[[team]]\nname = \"up\"\nmembers = \"tap0\"\nmode = \"802.3ad\"\n";
    let message = error(team);
    assert!(message.contains("uplink tap0 has several queues, which are a team already"), "{message}");
}

#[test]
fn an_uplink_has_the_keys_of_its_kind() {
    let uplink = |text: &str| error(&format!("{PORT}[uplink]\n{text}"));
    assert!(uplink("kind = \"tab\"").starts_with("7: uplink.kind: \"tab\" is not known; did you mean \"tap\"?"));
    assert!(uplink("kind = \"tap\"").starts_with("6: uplink.name: it is missing from this [uplink]"));
    assert!(uplink("kind = \"pair\"").starts_with("6: uplink.socket: it is missing"));
    assert!(uplink("kind = \"capture\"").starts_with("6: uplink.file: it is missing"));
    assert!(uplink("kind = \"none\"\nname = \"tap0\"").starts_with("8: uplink.name: it does not belong to this kind"));
    assert!(uplink("kind = \"none\"\nrate = \"1Gbit/s\"").contains("there is nothing to pace without an uplink"));
    assert!(uplink("kind = \"querier\"\nrate = \"1Gbit/s\"").contains("a querier has nothing to pace"));
    assert!(uplink("kind = \"querier\"\nsnooping = true").contains("a querier needs to hear what hosts say"));
    assert!(uplink("kind = \"null\"\nlldp = true").contains("it is true or false, not a text"));
    assert!(uplink("kind = \"querier\"\nlldp = \"send\"").contains("a querier has no neighbour"));
    for (word, sends, receives) in [("send", true, false), ("receive", false, true), ("both", true, true)] {
        let host = parse(&format!("{PORT}[uplink]\nkind = \"null\"\nlldp = {word:?}")).unwrap();
        assert_eq!(host.uplinks[0].lldp, Lldp { sends, receives });
    }
    for name in ["", "sixteen-letters-", "a/b", "a b", ".."] {
        let message = uplink(&format!("kind = \"tap\"\nname = {name:?}"));
        assert!(message.contains("cannot be an interface's name"), "{message}");
    }
    let none = parse(&format!("{PORT}[uplink]\nkind = \"none\"")).unwrap();
    assert_eq!(none.uplinks, []);
    let capture = parse(&format!("{PORT}[uplink]\nkind = \"capture\"\nfile = \"all.pcapng\"")).unwrap();
    assert_eq!(capture.uplinks[0].kind, UplinkKind::Capture { file: "/etc/nicety/all.pcapng".into() });
}

#[test]
fn a_pair_or_a_stream_listens_unless_it_is_to_connect() {
    let socket = PathBuf::from("/etc/nicety/up.sock");
    let stream = |role| UplinkKind::Stream { socket: socket.clone(), role };
    let pair = |role| UplinkKind::Pair { socket: socket.clone(), role };
    let kinds: [(&str, &dyn Fn(Role) -> UplinkKind); 2] = [("stream", &stream), ("pair", &pair)];
    for (name, kind) in kinds {
        let text = |text: &str| format!("{PORT}[uplink]\nkind = \"{name}\"\n{text}");
        let uplink =
            |role: &str| parse(&text(&format!("socket = \"up.sock\"\n{role}"))).unwrap().uplinks.remove(0).kind;
        assert_eq!(uplink(""), kind(Role::Listen));
        assert_eq!(uplink("role = \"listen\""), kind(Role::Listen));
        assert_eq!(uplink("role = \"connect\""), kind(Role::Connect));
        assert_eq!(
            error(&text("socket = \"up.sock\"\nrole = \"conect\"")),
            "9: uplink.role: \"conect\" is not known; did you mean \"connect\"? \
             (allowed: with kind = \"pair\" or \"stream\": \"listen\" or \"connect\")"
        );
        let message = error(&text(""));
        assert!(message.starts_with("6: uplink.socket: it is missing"), "{message}");
    }
    let message = error(&format!("{PORT}[uplink]\nkind = \"tap\"\nname = \"tap0\"\nrole = \"connect\""));
    assert!(message.starts_with("9: uplink.role: it does not belong to this kind"), "{message}");
}

#[test]
fn there_may_be_several_uplinks_each_with_a_name_of_its_own() {
    let pair = |name: &str, socket: &str| format!("[[uplink]]\nkind = \"pair\"\nsocket = \"{socket}\"\n{name}\n");
    let text = format!("{PORT}{}{}", pair("", "a.sock"), pair("name = \"far\"\nprivate = \"isolated\"", "b.sock"));
    let host = parse(&text).unwrap();
    let names: Vec<&str> = host.uplinks.iter().map(|uplink| uplink.name.as_str()).collect();
    assert_eq!((names, host.uplink("far").unwrap().private), (vec!["pair", "far"], nicety_switch::Private::Isolated));
    let message = error(&format!("{PORT}{}{}", pair("", "a.sock"), pair("", "b.sock")));
    assert!(message.starts_with("11: uplink.name: \"pair\" is the uplink of line 7 already"), "{message}");
    let message = error(&format!("{PORT}{}", pair("name = \"vm1\"", "a.sock")));
    assert!(message.starts_with("2: port.name: \"vm1\" is the uplink of line 9 already"), "{message}");
}

#[test]
fn an_af_xdp_uplink_names_its_interface_and_its_queues() {
    let text = "[uplink]\nkind = \"xdp\"\ninterface = \"eth0\"\nqueues = 2\n";
    let host = parse(text).unwrap();
    assert_eq!(host.uplinks[0].kind, UplinkKind::Xdp { interface: "eth0".to_owned(), queues: 2 });
    assert_eq!((host.uplinks[0].name.as_str(), host.uplinks[0].queues()), ("xdp", 2));
    let error =
        |text: String| parse(&text).unwrap_err().list.iter().map(|error| error.what.clone()).collect::<Vec<_>>();
    let told = format!("{text}lldp = \"both\"\n");
    assert_eq!(error(told), ["it does not go with several queues: leave it away, or `queues`"]);
    assert_eq!(error(text.replace("eth0", "eth/0")), ["\"eth/0\" cannot be an interface's name"]);
    assert_eq!(error(text.replace("interface = \"eth0\"\n", "")), ["it is missing from this [uplink]"]);
    assert_eq!(error(text.replace("xdp", "null")).len(), 2, "neither key is another kind's");
}
