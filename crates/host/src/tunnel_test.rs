use std::net::IpAddr;

use nicety_frame::Vni;
use nicety_uplink::{Network, VXLAN_PORT, VxlanSettings};

use super::{TunnelConfig, VlanVni};
use crate::tests::{errors, parse};
use crate::{UplinkKind, link_words};

/// An uplink with these lines, from line 2 on: `kind` is the second.
fn text(lines: &str) -> String {
    format!("[uplink]\nkind = \"vxlan\"\n{lines}\n")
}

fn tunnel(lines: &str) -> TunnelConfig {
    match parse(&text(lines)).unwrap().uplinks.remove(0).kind {
        UplinkKind::Vxlan(tunnel) => tunnel,
        other => panic!("{other:?}"),
    }
}

fn network(vlan: Option<u16>, vni: u32) -> Network {
    Network { vlan, vni: Vni::new(vni).unwrap() }
}

#[test]
fn a_tunnel_has_an_address_peers_and_a_network_for_each_vlan() {
    let address = IpAddr::from([192, 0, 2, 1]);
    let whole =
        "address = \"192.0.2.1\"\npeers = \"192.0.2.2, 192.0.2.3\"\ntrunk = \"10,20\"\nvnis = \"10=5010, 20 = 5020\"";
    let settings = VxlanSettings {
        address,
        port: VXLAN_PORT,
        mtu: 1500,
        networks: vec![network(Some(10), 5010), network(Some(20), 5020)],
    };
    let peers = vec![IpAddr::from([192, 0, 2, 2]), IpAddr::from([192, 0, 2, 3])];
    let wanted = TunnelConfig { settings, peers, vnis: "10=5010,20=5020".to_owned(), is_fabric: false };
    assert_eq!(tunnel(whole), wanted);
    let other = tunnel(&format!("{whole}\nudp_port = 8472\nmtu = 9000").replace("192.0.2.1", "192.0.2.9"));
    assert_eq!((other.settings.port, other.settings.mtu), (8472, 9000));
    let host = parse(&text(whole)).unwrap();
    assert_eq!(host.uplinks[0].name, "vxlan");
    let words = link_words(&host.uplinks[0]);
    assert_eq!((words["peers"].as_str(), words["vnis"].as_str()), ("192.0.2.2,192.0.2.3", "10=5010,20=5020"));
    assert_eq!(words.len(), 2);
}

#[test]
fn frames_that_leave_without_a_tag_have_their_vlan_s_network() {
    let networks = |lines: &str| tunnel(&format!("address = \"fd00::1\"\n{lines}")).settings.networks;
    assert_eq!(networks("vnis = \"untagged=5000,10=5010\""), [network(None, 5000), network(Some(10), 5010)]);
    assert_eq!(networks("vlan = 10\nvnis = \"10=5010\""), [network(None, 5010)]);
    let native = networks("trunk = \"20\"\nnative = 10\nvnis = \"10=5010,20=5020\"");
    assert_eq!(native, [network(None, 5010), network(Some(20), 5020)]);
}

#[test]
fn the_peers_and_networks_of_a_tunnel_change_while_it_is_open_and_what_it_is_does_not() {
    let uplink = |lines: &str| parse(&text(lines)).unwrap().uplinks.remove(0);
    let one = uplink("address = \"192.0.2.1\"\nvnis = \"10=5010\"");
    assert!(one.is_same_link(&uplink("address = \"192.0.2.1\"\nvnis = \"10=5010\"\npeers = \"192.0.2.2\"")));
    assert!(one.is_same_link(&uplink("address = \"192.0.2.1\"\nvnis = \"10=5011\"")));
    for other in
        ["address = \"192.0.2.2\"\nvnis = \"10=5010\"", "address = \"192.0.2.1\"\nvnis = \"10=5010\"\nmtu = 9000"]
    {
        assert!(!one.is_same_link(&uplink(other)), "{other}");
    }
}

#[test]
fn each_mistake_of_a_tunnel_is_named() {
    let cases: &[(&str, &[&str])] = &[
        ("", &["1: uplink.address: it is missing", "1: uplink.vnis: it is missing"]),
        (
            "address = \"0.0.0.0\"\nvnis = \"10=1\"",
            &["3: uplink.address: 0.0.0.0 cannot be the end of a tunnel: give an address of one host, not link-local"],
        ),
        ("address = \"host1\"\nvnis = \"10=1\"", &["3: uplink.address: \"host1\": invalid IP address syntax"]),
        (
            "address = \"192.0.2.1\"\nvnis = \"10=1\"\npeers = \"192.0.2.1,fd00::2,224.0.0.1,192.0.2.2,192.0.2.2\"",
            &[
                "5: uplink.peers: 192.0.2.1 is this host's own address: name the others",
                "5: uplink.peers: fd00::2 and this host's address 192.0.2.1 are of different families: all are IPv4, or all IPv6",
                "5: uplink.peers: 224.0.0.1 cannot be the end of a tunnel",
                "5: uplink.peers: 192.0.2.2 stands there twice",
            ],
        ),
        (
            "address = \"192.0.2.1\"\nvnis = \"10,10=0,0=5,4095=6,x=7\"",
            &[
                "4: uplink.vnis: \"10\": write VLAN=VNI, such as 10=5010, or untagged=VNI",
                "4: uplink.vnis: \"10=0\": \"0\" is no VXLAN network identifier: a number from 1 to 16777215",
                "4: uplink.vnis: \"0=5\": \"0\" is no VLAN: a number from 1 to 4094, or untagged",
                "4: uplink.vnis: \"4095=6\": \"4095\" is no VLAN",
                "4: uplink.vnis: \"x=7\": \"x\" is no VLAN",
            ],
        ),
        (
            "address = \"192.0.2.1\"\ntrunk = \"10,20\"\nvnis = \"10=1,20=1,10=3,30=4,untagged=5\"",
            &[
                "5: uplink.vnis: 1 is the network of VLAN 10 already, and now of VLAN 20: each has one of its own",
                "5: uplink.vnis: VLAN 10 has a network already",
                "5: uplink.vnis: VLAN 30 does not go by this uplink: name it in its trunk, or leave it out here",
                "5: uplink.vnis: untagged does not go by this uplink",
            ],
        ),
        (
            "address = \"192.0.2.1\"\nqinq = 10\nvnis = \"10=1\"",
            &["5: uplink.qinq: a service VLAN does not go through a tunnel: use vlan, or trunk"],
        ),
        ("address = \"192.0.2.1\"\nvnis = \"10=1\"\nmtu = 1279", &["5: uplink.mtu: 1279 is not from 1280 to 65535"]),
        ("address = \"192.0.2.1\"\nvnis = \"10=1\"\nudp_port = 0", &["5: uplink.udp_port: 0 is not from 1 to 65535"]),
        ("address = \"192.0.2.1\"\nvnis = \"10=1\"\nlldp = \"both\"", &["5: uplink.lldp: a tunnel has no neighbour"]),
        (
            "address = \"192.0.2.1\"\nvnis = \"10=1\"\nsocket = \"a.sock\"",
            &["5: uplink.socket: it does not belong to this kind of uplink"],
        ),
    ];
    for (lines, wanted) in cases {
        let found = errors(&text(lines));
        assert_eq!(found.len(), wanted.len(), "{lines}: {found:?}");
        for (found, wanted) in found.iter().zip(*wanted) {
            assert!(found.starts_with(wanted), "{found}, not {wanted}");
        }
    }
    let other = errors(
        "[uplink]\nkind = \"null\"\naddress = \"192.0.2.1\"\npeers = \"192.0.2.2\"\nvnis = \"10=1\"\nmtu = 1500\nudp_port = 1",
    );
    assert_eq!(other.len(), 5, "{other:?}");
    let team = "[[uplink]]\nkind = \"vxlan\"\naddress = \"192.0.2.1\"\nvnis = \"10=1\"\n[[team]]\nname = \"up\"\nmembers = \"vxlan\"\nmode = \"802.3ad\"\n";
    assert!(errors(team)[0].contains("uplink vxlan is no link to a neighbour: its kind is \"vxlan\""));
}

#[test]
fn an_identifier_has_24_bits_and_is_not_0() {
    let vni = |text: &str| format!("10={text}").parse::<VlanVni>().map_err(|error| error.to_string());
    assert_eq!(vni("16777215"), Ok(VlanVni(Network { vlan: Some(10), vni: Vni::new(16_777_215).unwrap() })));
    for text in ["0", "16777216", "-1", "", "ten"] {
        let error = vni(text).unwrap_err();
        assert_eq!(error, format!("{text:?} is no VXLAN network identifier: a number from 1 to 16777215"));
    }
}
