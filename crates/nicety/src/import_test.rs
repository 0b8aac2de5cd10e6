use super::*;

/// A domain with an interface of these elements, in addition to address and model.
fn domain(more: &str) -> String {
    format!(
        "<domain type='kvm'><name>web 1</name><devices><interface type='vhostuser'>\
         <mac address='52:54:00:12:34:01'/><model type='virtio'/>{more}</interface></devices></domain>"
    )
}

fn text(more: &str) -> String {
    import(&domain(more)).unwrap().text
}

fn has(more: &str, expected: &[&str]) {
    let text = text(more);
    for line in expected {
        assert!(text.lines().any(|has| has == *line), "{more}: no {line} in\n{text}");
    }
}

#[test]
fn an_interface_becomes_a_port_with_libvirt_s_bandwidth_each_way() {
    let bandwidth = "<source type='unix' path='/run/nicety/web.sock' mode='client'/><driver queues='4'/><mtu size='9000'/>\
                     <bandwidth><inbound average='1000' peak='5000' burst='1024'/><outbound average='12500'/></bandwidth>";
    let expected = "[[port]]\nname = \"web-1\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:12:34:01\"\n\
                    socket = \"/run/nicety/web.sock\"\nqueues = 4\nmtu = 9000\n\
                    receive_average = \"8.192Mbit/s\"\nreceive_peak = \"40.96Mbit/s\"\nreceive_burst = \"1024KiB\"\n\
                    send_average = \"102.4Mbit/s\"\n";
    assert_eq!(text(bandwidth), expected);
    let policy = Host::parse(expected, Path::new("/host.toml")).unwrap().ports.remove(0).policy;
    assert_eq!(policy.receive.unwrap().to_string(), "average 8.192Mbit/s, peak 40.96Mbit/s, burst 1048576 bytes");
}

#[test]
fn where_qemu_is_to_listen_the_port_connects_if_it_can() {
    let source = "<source type='unix' path='/run/web.sock' mode='server'/>";
    has(source, &["socket = \"/run/web.sock\"", "role = \"connect\""]);
    assert!(import(&domain(source)).unwrap().notes.is_empty());
    let other = import(&domain(source).replace("'virtio'", "'e1000'")).unwrap();
    assert!(!other.text.contains("role"), "{}", other.text);
    assert_eq!(other.notes, ["web-1: the daemon listens at its socket: <source> needs mode='client'"]);
    assert!(!text(&source.replace("server", "client")).contains("role"));
}

#[test]
fn several_interfaces_with_vlans_are_ports_with_numbers() {
    let second = "</interface><interface type='bridge'><mac address='52:54:00:12:34:02'/><model type='e1000e'/>\
                  <vlan trunk='yes'><tag id='42'/><tag id='47' nativeMode='untagged'/></vlan>";
    has(
        &format!("<vlan><tag id='7'/></vlan>{second}"),
        &[
            "name = \"web-1-1\"",
            "vlan = 7",
            "name = \"web-1-2\"",
            "socket = \"web-1-2.sock\"",
            "trunk = \"42,47\"",
            "native = 47",
        ],
    );
    has("<port isolated='yes'/>", &["private = \"isolated\""]);
}

/// I/O control keeps here what libvirt promises a domain. Its table is not a port's.
#[test]
fn a_guaranteed_rate_and_a_filter_are_told_with_the_keys_that_do_the_same() {
    let more = "<filterref filter='clean-traffic'/><bandwidth><inbound average='2000' floor='1000'/><outbound average='1'/></bandwidth>";
    let expected = [
        "web-1: <filterref> is left out: see forged_transmits, dhcp_guard, and arp_guard with bound_ips",
        "web-1: <inbound floor='1000'> is left out: reserve it in an [[io_class]] of the uplink, with reservation_of = \
         \"web-1=8.192Mbit/s\", and give the uplink its inward_rate (docs/io-control.md)",
    ];
    assert_eq!(import(&domain(more)).unwrap().notes, expected);
    let host = format!(
        "[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\nrate = \"1Gbit/s\"\ninward_rate = \"1Gbit/s\"\n[[io_class]]\nuplink = \"tap0\"\n\
         name = \"vm\"\nreservation = \"8.192Mbit/s\"\nreservation_of = \"web-1=8.192Mbit/s\"\n{}arp_guard = true\nbound_ips = \"192.0.2.7\"\n\
         dhcp_guard = true\nforged_transmits = \"reject\"\n",
        text(more)
    );
    let mistakes = Host::parse(&host, Path::new("/host.toml")).map(|_| ()).map_err(|errors| errors.to_string());
    assert_eq!(mistakes, Ok(()), "{host}");
}

/// Interfaces as `virsh dumpxml` of libvirt 9 prints them: a passed-through function, a model that nobody has here, and one that is.
#[test]
fn what_can_be_a_port_is_imported_and_each_other_interface_is_told_with_what_to_do() {
    let xml = "<domain type='kvm'><name>db</name><devices>\
         <interface type='hostdev' managed='yes'><mac address='52:54:00:00:00:01'/>\
           <source><address type='pci' domain='0x0000' bus='0x07' slot='0x10' function='0x1'/></source></interface>\
         <interface type='user'><mac address='52:54:00:00:00:02'/><model type='usb-net'/></interface>\
         <interface type='network'><mac address='52:54:00:00:00:03'/><source network='lan' portgroup='web servers'/>\
           <model type='e1000e'/><link state='down'/><rom bar='on' file='/usr/lib/ipxe/qemu/efi-e1000e.rom'/>\
           <alias name='net2'/><address type='pci' bus='0x01'/></interface>\
         <interface type='bridge'><mac address='52:54:00:00:00:04'/><source bridge='br0'/><model type='virtio'/>\
           <teaming type='persistent'/><rom file='/x.rom'/><boot order='1'/><coalesce><rx/></coalesce></interface>\
         <interface type='bridge'><mac address='52:54:00:00:00:05'/><model type='e1000'/><vlan><tag id='9999'/></vlan></interface>\
         </devices></domain>";
    let Imported { text, notes, refused } = import(xml).unwrap();
    assert_eq!(
        text,
        "[[port]]\nname = \"db-3\"\nadapter = \"e1000e\"\nmac = \"52:54:00:00:00:03\"\nsocket = \"db-3.sock\"\n\
         rom = \"/usr/lib/ipxe/qemu/efi-e1000e.rom\"\nlink_state = \"disable\"\nport_group = \"web-servers\"\n\n\
         [[port]]\nname = \"db-4\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:00:00:04\"\nsocket = \"db-4.sock\"\n\
         standby = true\n"
    );
    let begin = |number: u8| format!("<interface> {number} is not imported: ");
    assert_eq!(refused.len(), 3, "{refused:#?}");
    for (line, number, what, todo) in [
        (&refused[0], 1, "type='hostdev'", "leave it in the domain"),
        (&refused[1], 2, "<model type='usb-net'/>", "choose one that `nicety adapters` lists"),
        (&refused[2], 5, "9999", "1 to 4094"),
    ] {
        assert!(line.starts_with(&begin(number)) && line.contains(what) && line.contains(todo), "{line}");
    }
    let expected = [
        "db-3: <source network='lan'> is left out: the switch's uplink leads there (docs/uplinks.md)",
        "db-3: the host file needs a [[port_group]] with name = \"web-servers\", once: `virsh net-dumpxml lan` shows its VLAN and bandwidth",
        "db-4: <boot> is left out: `nicety attach` gives the boot order where the port has an option ROM (rom)",
        "db-4: <coalesce> is left out: set it in the guest (ethtool -C)",
        "db-4: <source bridge='br0'> is left out: the switch's uplink leads there (docs/uplinks.md)",
        "db-4: virtio-net's option ROM is the VMM's: keep <rom> in the domain",
    ];
    assert_eq!(notes, expected);
}

#[test]
fn where_no_interface_can_be_a_port_all_are_named() {
    let two = domain("")
        .replace("'virtio'", "'usb-net'")
        .replace("</devices>", "<interface type='hostdev'><mac address='52:54:00:12:34:09'/></interface></devices>");
    let error = import(&two).unwrap_err();
    let lines: Vec<&str> = error.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("usb-net") && lines[1].contains("hostdev"), "{error}");
    assert!(import(&domain("<link state='up'/><rom enabled='no'/>")).unwrap().notes.is_empty());
}

#[test]
fn what_cannot_be_a_port_is_refused_and_named() {
    let one = |limits: &str| format!("<bandwidth>{limits}</bandwidth>");
    for (more, expected) in [
        (
            one("<inbound average='0'/>"),
            "<interface> 1 is not imported: <inbound average>: \"0\" is no whole number above 0",
        ),
        (one("<outbound average='-1'/>"), "<outbound average>: \"-1\" is no whole number above 0"),
        (one("<outbound average='1.5'/>"), "\"1.5\" is no whole number"),
        (one("<outbound average='99999999999'/>"), "<outbound average='99999999999'> is beyond 10Tbit/s"),
        (one("<outbound average='2' peak='1'/>"), "8.192kbit/s is less than send_average"),
        (one("<outbound peak='1'/>"), "there is no send_average"),
        (one("<outbound average='1' burst='1'/>"), "1KiB is too small"),
        ("<vlan><tag id='4095'/></vlan>".to_owned(), "4095 is not from 1 to 4094"),
        ("<vlan><tag id='1' nativeMode='tagged'/></vlan>".to_owned(), "a native VLAN is untagged here"),
        ("<driver queues='99'/>".to_owned(), "queue pairs"),
    ] {
        let error = import(&domain(&more)).unwrap_err();
        assert!(error.contains(expected), "{more}: {error}");
    }
    for (xml, expected) in [
        ("<domain", "it is no XML that can be read"),
        ("", "it is no XML that can be read"),
        ("<domain/>", "it has no <interface>"),
        ("<interface/>", "it has no <mac"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><interface/>", "it is no XML that can be read"),
    ] {
        let error = import(xml).unwrap_err();
        assert!(error.contains(expected), "{xml}: {error}");
    }
    let unknown = import(&domain("").replace("'virtio'", "'spapr-vlan'")).unwrap_err();
    assert!(unknown.contains("there is no adapter for <model type='spapr-vlan'/>"), "{unknown}");
    assert!(import(&domain("").replace("12:34:01", "12:34")).unwrap_err().contains("port.mac"));
}
