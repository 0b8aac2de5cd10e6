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
    let notes =
        import(&domain("<filterref filter='clean-traffic'/><bandwidth><inbound average='1' floor='1'/></bandwidth>"));
    assert_eq!(notes.unwrap().notes.len(), 2);
}

#[test]
fn what_cannot_be_a_port_is_refused_and_named() {
    let one = |limits: &str| format!("<bandwidth>{limits}</bandwidth>");
    for (more, expected) in [
        (one("<inbound average='0'/>"), "<interface> 1: <inbound average>: \"0\" is no whole number above 0"),
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
