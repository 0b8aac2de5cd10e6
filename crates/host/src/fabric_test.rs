use std::net::IpAddr;
use std::path::Path;

use nicety_switch::Vlan;

use super::*;
use crate::{EtcdUser, Host, PortConfig};

const TUNNEL: &str = "[[uplink]]\nkind = \"vxlan\"\nname = \"tunnel\"\naddress = \"192.0.2.1\"\n";
const FABRIC: &str =
    "[fabric]\nname = \"prod\"\nhost = \"node-1\"\ntunnel = \"tunnel\"\netcd = \"http://etcd1:2379\"\n";
const PORT: &str = "[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:01\"\nsocket = \"vm1.sock\"\nport_group = \"web\"\n";
const WEB: &str = "format = 1\n[[port_group]]\nname = \"web\"\nvni = 5010\nvlan = 10\nmac_changes = \"reject\"\n";

fn host(text: &str) -> Result<Host, String> {
    Host::parse(text, Path::new("/etc/host.toml")).map_err(|errors| errors.to_string())
}

fn with(text: &str, groups: &str) -> Result<Host, String> {
    let groups = FabricGroups::parse(groups).unwrap();
    let host = Host::parse_with(text, Path::new("/etc/host.toml"), Some(&groups));
    host.map_err(|errors| errors.to_string())
}

fn port(host: &Host) -> &PortConfig {
    host.port("vm1").unwrap()
}

fn tunnel(host: &Host) -> &TunnelConfig {
    let UplinkKind::Vxlan(tunnel) = &host.uplink("tunnel").unwrap().kind else { panic!() };
    tunnel
}

#[test]
fn a_host_says_which_fabric_it_is_in_and_where_that_agrees() {
    let found = host(&format!("{TUNNEL}{FABRIC}etcd_user = \"node-1\"\netcd_password = \"password\"\n")).unwrap();
    let fabric = found.fabric.unwrap();
    assert_eq!((fabric.name.as_str(), fabric.tunnel.as_str()), ("prod", "tunnel"));
    assert_eq!(fabric.host().as_deref(), Ok("node-1"));
    let user = EtcdUser { name: "node-1".to_owned(), password: "/etc/password".into() };
    assert_eq!((fabric.etcd.user, fabric.etcd.endpoints[0].to_string()), (Some(user), "http://etcd1:2379".to_owned()));
    // The machine's own name is the usual one.
    let found = host(&format!("{TUNNEL}{}", FABRIC.replace("host = \"node-1\"\n", ""))).unwrap();
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(found.fabric.unwrap().host(), Ok(own.trim().to_owned()));
}

#[test]
fn a_table_that_cannot_be_used_is_refused_with_its_line_and_the_remedy() {
    for (text, why) in [
        (
            FABRIC.to_owned(),
            "4: fabric.tunnel: there is no uplink \"tunnel\": write an [[uplink]] with kind = \"vxlan\"",
        ),
        (
            format!("[[uplink]]\nkind = \"null\"\nname = \"tunnel\"\n{FABRIC}"),
            "7: fabric.tunnel: uplink tunnel is no tunnel: its kind is \"null\"",
        ),
        (
            format!("{TUNNEL}{}", FABRIC.replace("etcd = \"http://etcd1:2379\"\n", "")),
            "5: fabric.etcd: it is missing from this [fabric]",
        ),
        (format!("{TUNNEL}{}", FABRIC.replace("\"prod\"", "\"a/b\"")), "6: fabric.name: \"a/b\" has a '/'"),
        (format!("{TUNNEL}{}", FABRIC.replace("node-1", "-x")), "7: fabric.host: \"-x\" does not begin with a letter"),
        (
            format!("{TUNNEL}{}", FABRIC.replace("http:", "https:")),
            "9: fabric.etcd: https://etcd1:2379 has TLS: name the CA that signed its certificate by etcd_ca",
        ),
        (
            format!("{TUNNEL}peers = \"192.0.2.2\"\n{FABRIC}"),
            "5: uplink.peers: this uplink is [fabric] tunnel: the fabric knows its hosts, and its groups say which VLANs go \
             there; leave peers out",
        ),
        (format!("{TUNNEL}vnis = \"10=5010\"\n{FABRIC}"), "5: uplink.vnis: this uplink is [fabric] tunnel"),
        (format!("{TUNNEL}trunk = \"10\"\n{FABRIC}"), "5: uplink.trunk: this uplink is [fabric] tunnel"),
        // Without a fabric a tunnel has its networks of its own.
        (TUNNEL.to_owned(), "1: uplink.vnis: it is missing from this [uplink]"),
    ] {
        let error = host(&text).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_port_whose_group_is_not_known_yet_carries_nothing_and_then_has_the_group_s_policy() {
    let text = format!("{TUNNEL}{FABRIC}{PORT}");
    let waiting = host(&text).unwrap();
    assert!(port(&waiting).waits_for_group && port(&waiting).policy.blocked);
    assert_eq!(tunnel(&waiting).settings.networks, []);
    let known = with(&text, WEB).unwrap();
    let policy = &port(&known).policy;
    assert!(!port(&known).waits_for_group && !policy.blocked && !policy.mac_changes);
    assert_eq!(policy.vlan, Vlan::Access(nicety_switch::VlanId::new(10).unwrap()));
    let wanted: IpAddr = "192.0.2.1".parse().unwrap();
    assert_eq!((tunnel(&known).settings.address, tunnel(&known).vnis.as_str()), (wanted, "10=5010"));
    let Vlan::Trunk { allowed, native: None } = &known.uplink("tunnel").unwrap().vlan else { panic!() };
    assert_eq!(allowed.to_string(), "10");
    // All of that is changed while the daemon serves.
    assert!(port(&waiting).is_same_adapter(port(&known)));
    assert!(waiting.uplink("tunnel").unwrap().is_same_link(known.uplink("tunnel").unwrap()));
    // A group that the fabric does not have, or has no more.
    assert!(port(&with(&text, "format = 1").unwrap()).waits_for_group);
    // The document is the host file's own, and a change of it keeps the groups.
    assert_eq!(known.document, waiting.document);
    assert_eq!(port(&known.changed(&known.document).unwrap()).policy.vlan, policy.vlan);
    assert_eq!(known.port_table("vm1")["vlan"].as_integer(), Some(10));
    assert!(known.tables().iter().any(|(name, _)| name == "fabric.port_group.web"));
    let error = with(&format!("{text}vlan = 20\n"), WEB).unwrap_err();
    assert!(
        error.contains("port vm1: vlan: its port group is the fabric's, and has the VLAN: leave this out"),
        "{error}"
    );
    // Without a fabric it is a mistake.
    assert!(host(PORT).unwrap_err().contains("there is no port group \"web\""));
}

#[test]
fn a_group_that_the_host_file_has_as_well_is_refused() {
    let text = format!("{TUNNEL}{FABRIC}{PORT}[[port_group]]\nname = \"web\"\nvlan = 10\n");
    assert!(!port(&host(&text).unwrap()).waits_for_group);
    let error = with(&text, WEB).unwrap_err();
    let what = "port group web: name: the fabric has a port group \"web\", too: choose another name for one of them";
    assert!(error.contains(what), "{error}");
}

#[test]
fn groups_that_take_another_one_s_vlan_are_left_out_of_the_step_before() {
    let groups = |all: &[(&str, u32, u16)]| {
        let group = |(name, vni, vlan): &(&str, u32, u16)| {
            format!("[[port_group]]\nname = \"{name}\"\nvni = {vni}\nvlan = {vlan}\n")
        };
        let text: String = all.iter().map(group).collect();
        FabricGroups::parse(&format!("format = 1\n{text}")).unwrap()
    };
    let old = groups(&[("web", 1, 10), ("db", 2, 20), ("log", 3, 30)]);
    let names = |groups: &FabricGroups| groups.tables().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let step = groups(&[("web", 1, 20), ("db", 2, 10), ("log", 3, 31)]).step_from(&old).unwrap();
    assert_eq!(names(&step), ["port_group.log"]);
    assert_eq!((step.has("web"), step.has("log"), step.networks().count()), (false, true, 1));
    // A group that is new, and takes the VLAN that another one gives up.
    let step = groups(&[("web", 1, 11), ("new", 4, 10)]).step_from(&old).unwrap();
    assert_eq!(names(&step), ["port_group.web"]);
    assert!(groups(&[("web", 1, 11), ("db", 5, 20), ("new", 4, 12)]).step_from(&old).is_none());
}

#[test]
fn groups_that_cannot_be_a_fabric_s_are_refused_with_their_names() {
    let group = |keys: &str| format!("format = 1\n[[port_group]]\nname = \"web\"\n{keys}");
    for (text, why) in [
        (group("vlan = 10\n"), "the group \"web\" has no vni"),
        (group("vni = 5010\n"), "port group web: vlan: it is missing from this [[port_group]]"),
        (
            group("vni = 5010\ntrunk = \"10\"\n"),
            "port group web: trunk: a group of a fabric is one network, and has one VLAN: write vlan = NUMBER",
        ),
        (
            format!("{}{}", group("vni = 5010\nvlan = 10\n"), "[[port_group]]\nname = \"db\"\nvni = 5020\nvlan = 10\n"),
            "port group db: vlan: VLAN 10 is that of group \"web\" already: each group of a fabric has its own",
        ),
        (group("vni = 5010\nvlan = 10\nvalue = 1\n"), "there is no such key in [[port_group]]"),
        (format!("{WEB}[switch]\nname = \"x\"\n"), "switch: there is no such table"),
        ("format = 2".to_owned(), "format = 2 is of a newer version of this program"),
        ("format = ".to_owned(), "the text is not TOML"),
    ] {
        let error = FabricGroups::parse(&text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

const CLASSES: &str = "[[io_class]]\nname = \"management\"\nvlan = 10\nreservation = \"100Mbit/s\"\n\
                       [[io_class]]\nname = \"slow\"\ngroups = \"web\"\nlimit = \"2Gbit/s\"\n";

#[test]
fn a_class_of_the_fabric_is_on_the_tunnel_of_each_host_before_the_host_s_own() {
    let tunnel = TUNNEL.to_owned() + "rate = \"1Gbit/s\"\n";
    let own = "[[io_class]]\nuplink = \"tunnel\"\nname = \"own\"\nports = \"vm1\"\nshares = 7\n";
    let text = format!("{tunnel}{FABRIC}{PORT}{own}");
    let both = with(&text, &format!("{WEB}{CLASSES}")).unwrap();
    let names: Vec<(&str, &str)> =
        both.io_classes.iter().map(|class| (class.uplink.as_str(), class.name.as_str())).collect();
    assert_eq!(names, [("tunnel", "management"), ("tunnel", "slow"), ("tunnel", "own")]);
    assert_eq!(both.io_classes[1].ports.as_deref(), Some(&["vm1".to_owned()][..]), "the group's ports here");
    // The host's file stays its own.
    assert_eq!(both.document, host(&text).unwrap().document);
    let tables: Vec<String> = both.tables().into_iter().map(|(name, _)| name).collect();
    assert!(
        ["fabric.io_class.management", "io_class.tunnel.own"].iter().all(|name| tables.contains(&(*name).to_owned()))
    );
    // A group that takes another VLAN for a moment leaves the classes.
    let groups = |text: &str| FabricGroups::parse(text).unwrap();
    let (old, new) = (groups(&format!("{WEB}{CLASSES}")), format!("{}{CLASSES}", WEB.replace("web", "db")));
    let step = groups(&new.replace("groups = \"web\"", "groups = \"db\"")).step_from(&old).unwrap();
    let between = Host::parse_with(&text, Path::new("/etc/host.toml"), Some(&step)).unwrap();
    assert_eq!(between.io_classes.len(), 3);
    // Without a fabric there are none.
    assert_eq!(with("", &format!("{WEB}{CLASSES}")).unwrap().io_classes, []);
}

#[test]
fn a_class_of_the_fabric_that_does_not_fit_a_host_is_refused_there_by_its_name() {
    let text = format!("{TUNNEL}{FABRIC}{PORT}");
    let error = with(&text, &format!("{WEB}{CLASSES}")).unwrap_err();
    let why =
        "the fabric's class management: reservation: uplink tunnel has no rate, and a reservation is a part of it";
    assert!(error.contains(why), "{error}");
    let own = "[[io_class]]\nuplink = \"tunnel\"\nname = \"slow\"\nports = \"vm1\"\n";
    let slow = CLASSES.split_inclusive("100Mbit/s\"\n").nth(1).unwrap();
    let error = with(&format!("{text}{own}"), &format!("{WEB}{slow}")).unwrap_err();
    let why = "class tunnel/slow: name: the fabric has a class \"slow\" on this tunnel, too: choose another name for one of them";
    assert!(error.contains(why), "{error}");
}

#[test]
fn classes_that_cannot_be_a_fabric_s_are_refused_with_their_names() {
    let class = |keys: &str| format!("{WEB}[[io_class]]\nname = \"iscsi\"\n{keys}");
    let two = |one: &str, other: &str| format!("{}[[io_class]]\nname = \"b\"\n{other}", class(one));
    for (text, why) in [
        (class("uplink = \"tap0\"\n"), "class tap0/iscsi: uplink: there is no such key in [[io_class]]"),
        (class("ports = \"vm1\"\n"), "class iscsi: ports: there is no such key in [[io_class]]"),
        (class("port_reservation = \"1Mbit/s\"\n"), "port_reservation: there is no such key in [[io_class]]"),
        (class("groups = \"wbe\"\n"), "class iscsi: groups: there is no port group \"wbe\"; did you mean \"web\"?"),
        (class("dscp = 46\n"), "class iscsi: dscp: each guest chooses this itself: name the groups that are trusted"),
        (
            class("delay = \"low\"\n"),
            "class iscsi: delay: frames come first up to the class's reservation, and it has none",
        ),
        (
            format!("{WEB}[[io_class]]\nname = \"x\"\n"),
            "class \"x\" has no frames: say which, by one or more of groups, vlan, pcp, dscp, network, transport_ports",
        ),
        (two("vlan = 10\n", "vlan = 10\n"), "a frame may be of this class and of \"iscsi\", by the same keys"),
        (two("groups = \"web\"\n", "groups = \"web\"\n"), "a frame may be of this class and of \"iscsi\""),
        (two("", "vlan = 10\n").replace("\"b\"", "\"iscsi\""), "has a class \"iscsi\" already: choose another name"),
    ] {
        let error = FabricGroups::parse(&text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}
