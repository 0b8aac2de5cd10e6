use super::super::tests::{PORT, error, parse};
use super::*;

fn policy(more: &str) -> Policy {
    parse(&format!("{PORT}{more}")).unwrap().ports.remove(0).policy
}

fn id(number: u16) -> VlanId {
    VlanId::new(number).unwrap()
}

#[test]
fn a_port_that_says_nothing_may_do_all() {
    let policy = policy("");
    assert!(policy.is_plain());
    assert_eq!((policy.transmit, policy.receive), (None, None));
}

#[test]
fn a_port_has_its_groups_values_where_it_has_none_of_its_own() {
    let group = "[[port_group]]\nname = \"web\"\nvlan = 10\nforged_transmits = \"reject\"\nmac_changes = \"reject\"\nbpdu_guard = true\nmtu_limit = 1500\nlog_refusals = true\nsnooping = true\nlldp = \"receive\"\n\
                 send_average = \"100Mbit/s\"\nsend_burst = \"1MiB\"\nbroadcast_limit = 100\n";
    let own = "port_group = \"web\"\nmac_changes = \"accept\"\nsend_peak = \"200Mbit/s\"\nvlan = 20\n";
    // The order of tables does not matter.
    for text in [format!("{group}{PORT}{own}"), format!("{PORT}{own}{group}")] {
        let policy = parse(&text).unwrap().ports.remove(0).policy;
        assert_eq!(policy.vlan, Vlan::Access(id(20)));
        assert_eq!((policy.forged_transmits, policy.mac_changes, policy.promiscuous), (false, true, false));
        assert_eq!((policy.guards.bpdu, policy.guards.arp, policy.storm.broadcast), (true, false, Some(100)));
        let shape = policy.transmit.unwrap();
        assert_eq!(shape.to_string(), "average 100Mbit/s, peak 200Mbit/s, burst 1048576 bytes");
        assert_eq!(policy.receive, None);
        assert!(policy.snooping && policy.lldp && policy.log);
        assert_eq!(policy.mtu, Some(1500));
        assert_eq!(policy.addresses, [Mac([0x52, 0x54, 0, 0x12, 0x34, 1])]);
    }
}

#[test]
fn trunks_provider_ports_and_private_vlans_are_said_in_a_line_each() {
    let trunk = |allowed: VlanSet, native| Vlan::Trunk { allowed, native };
    let vlan_of = |more| policy(more).vlan;
    assert_eq!(vlan_of("trunk = \"10,20-22\"\n"), trunk([10, 20, 21, 22].map(id).into_iter().collect(), None));
    assert_eq!(vlan_of("trunk = \"10\"\nnative = 1\n"), trunk([1, 10].map(id).into_iter().collect(), Some(id(1))));
    assert_eq!(vlan_of("trunk = \"all\"\n"), trunk(VlanSet::all(), None));
    assert_eq!(vlan_of("qinq = 100\n"), Vlan::Service(id(100)));
    assert_eq!(policy("vlan = 1\nprivate = \"isolated\"\n").private, Private::Isolated);
    assert_eq!(policy("vlan = 1\ncommunity = 7\n").private, Private::Community(7));
    let uplink = parse(&format!("[uplink]\nkind = \"null\"\ntrunk = \"10-12\"\n{PORT}")).unwrap().uplinks.remove(0);
    assert_eq!(uplink.vlan, trunk([10, 11, 12].map(id).into_iter().collect(), None));
}

#[test]
fn a_port_s_own_addresses_are_bound_to_it_and_its_group_says_for_what() {
    let group = "[[port_group]]\nname = \"web\"\narp_guard = true\nforged_transmits = \"reject\"\n";
    let own = "port_group = \"web\"\nbound_macs = \"02-00-00-00-00-07, 02:00:00:00:00:08\"\nbound_ips = \"192.0.2.7, FE80::7\"\n";
    let policy = parse(&format!("{group}{PORT}{own}")).unwrap().ports.remove(0).policy;
    let macs = ["52:54:00:12:34:01", "02:00:00:00:00:07", "02:00:00:00:00:08"].map(|mac| mac.parse().unwrap());
    assert_eq!(policy.addresses, macs);
    assert_eq!(policy.ip, ["192.0.2.7", "fe80::7"].map(|ip| ip.parse::<IpAddr>().unwrap()));
}

#[test]
fn what_cannot_be_is_refused_with_its_line_and_what_may_stand_there() {
    for (more, expected) in [
        ("vlan = 0", "0 is not from 1 to 4094"),
        ("vlan = 4095", "4095 is not from 1 to 4094"),
        ("vlan = \"ten\"", "it is a text, not a whole number"),
        ("trunk = \"10,4095\"", "`4095` is no VLAN"),
        ("trunk = \"30-20\"", "`30-20` is no VLAN"),
        ("trunk = \"\"", "`` is no VLAN"),
        ("vlan = 1\ntrunk = \"2\"", "there is vlan already"),
        ("trunk = \"2\"\nqinq = 3", "there is trunk already"),
        ("native = 1", "there is no trunk"),
        ("private = \"open\"", "\"open\" is not known"),
        ("private = \"isolated\"\ncommunity = 1", "there is private already"),
        ("community = 0", "0 is not from 1 to 65535"),
        ("promiscuous = true", "it is true or false, not a text"),
        ("forged_transmits = \"deny\"", "\"deny\" is not known"),
        ("address_limit = 65", "65 is not from 1 to 64"),
        ("bpdu_guard = \"yes\"", "it is a text, not true or false"),
        ("multicast_router_guard = 1", "it is a number, not true or false"),
        ("mtu_limit = 67", "67 is not from 68 to 65535"),
        ("mtu_limit = \"1500\"", "it is a text, not a whole number"),
        ("log_refusals = 1", "it is a number, not true or false"),
        ("forged_transmits = \"reject\"\nbound_macs = \"52:54:00:12:34\"", "\"52:54:00:12:34\": "),
        ("forged_transmits = \"reject\"\nbound_macs = \"\"", "\"\": "),
        ("mac_changes = \"reject\"\nbound_macs = \"01:00:5e:00:00:01\"", "is not the address of one station"),
        ("mac_changes = \"reject\"\nbound_macs = \"52:54:00:12:34:01\"", "is the address of line 4 already"),
        ("mac_changes = \"reject\"\nbound_macs = \"02:00:00:00:00:01, 02:00:00:00:00:01\"", "is the address of line"),
        ("bound_macs = \"02:00:00:00:00:01\"", "the port accepts mac_changes and forged_transmits"),
        ("arp_guard = true\nbound_ips = \"10.0.0.256\"", "\"10.0.0.256\": invalid IP address"),
        ("arp_guard = true\nbound_ips = \"10.0.0.1/24\"", "\"10.0.0.1/24\": invalid IP address"),
        ("arp_guard = true\nbound_ips = [\"10.0.0.1\"]", "it is a list, not a text"),
        ("arp_guard = true\nbound_ips = \"::\"", ":: is not the address of one station"),
        ("arp_guard = true\nbound_ips = \"224.0.0.1\"", "224.0.0.1 is not the address of one station"),
        ("arp_guard = true\nbound_ips = \"10.0.0.1,10.0.0.1\"", "10.0.0.1 stands there twice"),
        ("bound_ips = \"10.0.0.1\"", "there is no arp_guard = true"),
        ("arp_guard = false\nbound_ips = \"10.0.0.1\"", "there is no arp_guard = true"),
        ("snooping = \"on\"", "it is a text, not true or false"),
        ("lldp = \"both\"", "\"both\" is not known"),
        ("broadcast_limit = 0", "0 is not from 1 to"),
        ("send_average = \"0Mbit/s\"", "0Mbit/s"),
        ("send_average = \"-5Mbit/s\"", "-5Mbit/s"),
        ("receive_average = \"11Tbit/s\"", "11Tbit/s"),
        ("send_average = \"2Gbit/s\"\nsend_peak = \"1Gbit/s\"", "1Gbit/s is less than send_average, which is 2Gbit/s"),
        ("receive_peak = \"1Gbit/s\"", "there is no receive_average"),
        ("send_burst = \"1MiB\"", "there is no send_average"),
        ("send_average = \"1Gbit/s\"\nsend_burst = \"1KiB\"", "1KiB is too small"),
        ("send_average = \"1Gbit/s\"\nsend_burst = \"2GiB\"", "2GiB is too large"),
        ("port_group = \"web\"", "there is no port group \"web\""),
    ] {
        let message = error(&format!("{PORT}{more}\n"));
        let last = PORT.lines().count() + more.lines().count();
        assert!(message.starts_with(&format!("{last}: ")) && message.contains(expected), "{more}: {message}");
    }
    let many = |one: &str, count| vec![one; count].join(",");
    let macs = format!("{PORT}mac_changes = \"reject\"\nbound_macs = \"{}\"\n", many("02:00:00:00:00:01", 64));
    assert!(error(&macs).contains("these are 64, more than 63"));
    let ips = format!("{PORT}arp_guard = true\nbound_ips = \"{}\"\n", many("10.0.0.1", 65));
    assert!(error(&ips).contains("these are 65, more than 64"));
    let text = PORT.replace("e1000", "virtio-net") + "mtu = 9000\nmtu_limit = 1500\n";
    assert!(error(&text).contains("port.mtu_limit: 1500 is less than mtu, 9000, which the VM is told"));
    let other = PORT.replace("vm1", "vm2").replace("34:01", "34:02");
    let claimed = format!("{PORT}mac_changes = \"reject\"\nbound_macs = \"52:54:00:12:34:02\"\n{other}");
    assert!(error(&claimed).contains("52:54:00:12:34:02 is the address of line"), "two ports claim it");
    let group = "[[port_group]]\nname = \"web\"\n";
    assert!(error(&format!("{group}bound_ips = \"10.0.0.1\"\n{PORT}")).contains("there is no such key"));
    assert!(error(&format!("{group}{group}{PORT}")).contains("there is a port group \"web\" already"));
    assert!(error(&format!("[[port_group]]\nvlan = 1\n{PORT}")).contains("it is missing from this [[port_group]]"));
    let wrong = format!("{group}send_average = \"1Gbit/s\"\n{PORT}port_group = \"web\"\nsend_peak = \"1Mbit/s\"\n");
    assert!(error(&wrong).contains("1Mbit/s is less than send_average"));
}

#[test]
fn a_policy_is_told_by_the_keys_that_make_it() {
    assert_eq!(policy_words(&policy("")), BTreeMap::new());
    for keys in [
        "vlan = 10\nprivate = \"isolated\"\nforged_transmits = \"reject\"\nmac_changes = \"reject\"\n",
        "trunk = \"10,20-22\"\nnative = 20\ncommunity = 7\npromiscuous = \"accept\"\naddress_limit = 4\n",
        "trunk = \"all\"\nbpdu_guard = true\ndhcp_guard = true\narp_guard = true\nra_guard = true\nmulticast_router_guard = true\n",
        "arp_guard = true\nbound_ips = \"192.0.2.7,fe80::7\"\nmtu_limit = 1500\nlog_refusals = true\n",
        "forged_transmits = \"reject\"\nbound_macs = \"02:00:00:00:00:07,02:00:00:00:00:08\"\n",
        "qinq = 100\nbroadcast_limit = 1\nmulticast_limit = 2\nunknown_limit = 3\n",
        "send_average = \"100Mbit/s\"\nsend_peak = \"200Mbit/s\"\nsend_burst = \"1MiB\"\nreceive_average = \"1Gbit/s\"\n",
    ] {
        let made = policy(keys);
        let words = policy_words(&made);
        let text: String = words
            .iter()
            .map(|(key, value)| match value.parse::<u32>() {
                Ok(number) => format!("{key} = {number}\n"),
                Err(_) if value == "true" => format!("{key} = true\n"),
                Err(_) => format!("{key} = \"{value}\"\n"),
            })
            .collect();
        assert_eq!(policy(&text), made, "{text}");
    }
}
