use super::*;

const UUID: &str = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0";

/// A domain with these elements in its metadata and its devices.
fn domain(metadata: &str, devices: &str) -> String {
    format!(
        "<domain type='kvm' id='7'><name>web 1</name><uuid>{UUID}</uuid><metadata>\
         <other:place xmlns:other='urn:other'><interface type='vhostuser'/></other:place>{metadata}</metadata>\
         <devices>{devices}</devices></domain>"
    )
}

fn interface(last: u8, more: &str) -> String {
    format!(
        "<interface type='vhostuser'><mac address='52:54:00:12:34:0{last}'/>\
         <source type='unix' path='/run/nicety/web{last}.sock' mode='client'><reconnect enabled='yes' timeout='1'/></source>\
         <model type='virtio'/>{more}</interface>"
    )
}

fn ports(metadata: &str, devices: &str) -> Vec<String> {
    let metadata = format!("<nicety:ports xmlns:nicety='{NAMESPACE}'>{metadata}</nicety:ports>");
    let domain = Domain::parse(&domain(&metadata, devices), None).unwrap();
    assert_eq!((domain.name.as_str(), domain.uuid.as_str()), ("web 1", UUID));
    domain.ports.iter().map(|port| toml::to_string(port).unwrap()).collect()
}

const ORIGIN: &str = "origin = \"hook libvirt, domain web 1, 4dea22b3-1d52-d8f3-2516-782e98ab3fa0\"\n";

#[test]
fn an_interface_over_vhost_user_is_a_port_that_names_its_domain_and_others_are_none() {
    let others = "<interface type='bridge'><mac address='52:54:00:00:00:01'/><source bridge='br0'/><model type='e1000'/></interface>";
    let all = ports("", &(others.to_owned() + &interface(1, "<driver queues='4'/><mtu size='9000'/>")));
    let expected = format!(
        "adapter = \"virtio-net\"\nmac = \"52:54:00:12:34:01\"\nmtu = 9000\nname = \"web-1\"\n{ORIGIN}queues = 4\n\
         socket = \"/run/nicety/web1.sock\"\n"
    );
    assert_eq!(all, [expected]);
    let none = Domain::parse(&domain("", others), None).unwrap();
    assert!(none.ports.is_empty(), "{none:?}");
}

#[test]
fn metadata_adds_keys_to_an_interface_and_ports_of_other_adapters() {
    let metadata = "<nicety:port mac='52:54:00:12:34:02' port_group='web' buffer='2MiB'/>\
                    <nicety:port mac='52:54:00:12:34:09' adapter='e1000' socket='/run/nicety/web9.sock' vlan='7'/>\
                    <nicety:port name='lonely' mac='52:54:00:12:34:08' adapter='igb' socket='/run/nicety/web8.sock'/>";
    let all = ports(metadata, &(interface(1, "") + &interface(2, "")));
    let has = |port: usize, lines: &[&str]| {
        for line in lines {
            assert!(all[port].lines().any(|has| has == *line), "{line}: {}", all[port]);
        }
    };
    assert_eq!(all.len(), 4);
    has(0, &["name = \"web-1-1\""]);
    has(1, &["name = \"web-1-2\"", "port_group = \"web\"", "buffer = \"2MiB\"", "socket = \"/run/nicety/web2.sock\""]);
    has(
        2,
        &["name = \"web-1-3\"", "adapter = \"e1000\"", "vlan = 7", "socket = \"/run/nicety/web9.sock\"", ORIGIN.trim()],
    );
    has(3, &["name = \"lonely\"", "adapter = \"igb\""]);
    let metadata = format!("<nicety:ports xmlns:nicety='{NAMESPACE}'>{metadata}</nicety:ports>");
    let named = Domain::parse(&domain(&metadata, &(interface(1, "") + &interface(2, ""))), None).unwrap().named;
    assert_eq!(named, ["lonely"]);
}

#[test]
fn every_generation_of_virtio_is_the_same_rings() {
    for model in ["virtio", "virtio-transitional", "virtio-non-transitional"] {
        let listens = interface(1, "").replace("'virtio'", &format!("'{model}'")).replace("'client'", "'server'");
        let all = ports("", &listens);
        assert!(all[0].contains("adapter = \"virtio-net\"") && all[0].contains("role = \"connect\""), "{}", all[0]);
    }
}

#[test]
fn with_a_folder_only_sockets_in_it_count() {
    let other = interface(2, "").replace("/run/nicety/", "/run/openvswitch/");
    let xml = domain("", &(interface(1, "") + &other));
    let domain = Domain::parse(&xml, Some(Path::new("/run/nicety"))).unwrap();
    let names: Vec<&str> = domain.ports.iter().map(|port| text(port, "name")).collect();
    assert_eq!(names, ["web-1-1"]);
}

#[test]
fn what_is_wrong_with_a_domain_is_said_with_what_to_do() {
    let metadata = |inner: &str| format!("<nicety:ports xmlns:nicety='{NAMESPACE}'>{inner}</nicety:ports>");
    let one = interface(1, "");
    for (xml, why) in [
        (String::new(), "stdin has no XML that can be read: "),
        ("<domain><name>".to_owned(), "stdin has no XML that can be read: "),
        (domain("", "").replace("<uuid>", "<id>").replace("</uuid>", "</id>"), "no <domain> with <name> and <uuid>"),
        (domain("", "").replace("domain", "network"), "no <domain> with <name> and <uuid>"),
        (domain("", &one.replace("<model type='virtio'/>", "<model type='e1000'/>")), "QEMU has virtio alone there"),
        (domain("", &one.replace("<model type='virtio'/>", "")), "QEMU has virtio alone there"),
        (domain("", &one.replace("<mac address='52:54:00:12:34:01'/>", "")), "it has no <mac address='…'/>"),
        (domain("", &interface(1, "<driver queues='many'/>")), "<driver queues>: \"many\" is no whole number above 0"),
        (domain(&metadata("<nicety:prot mac='52:54:00:12:34:01'/>"), &one), "<nicety:ports> has <prot>"),
        (
            domain(&format!("<nicety:port xmlns:nicety='{NAMESPACE}'/>"), &one),
            "<metadata> has <nicety:port>: write <nicety:ports>",
        ),
        (domain(&metadata("<nicety:port adapter='e1000'/>"), &one), "it takes the port's address"),
        (domain(&metadata("<nicety:port mac='52:54:00'/>"), &one), "it takes the port's address"),
        (
            domain(&metadata("<nicety:port mac='52:54:00:12:34:01' socket='/run/other.sock'/>"), &one),
            "<nicety:port> has socket, which its <interface> says",
        ),
        (
            domain(&metadata("<nicety:port mac='52:54:00:12:34:05' origin='me'/>"), &one),
            "<nicety:port> has origin, which the hook itself writes",
        ),
    ] {
        let said = Domain::parse(&xml, None).unwrap_err();
        assert!(said.contains(why), "{xml}: {said}");
    }
}

#[test]
fn an_origin_is_known_by_the_uuid_whatever_the_name() {
    for name in ["web1", "web, 2", "a\nb", &"long".repeat(100)] {
        let origin = origin(name, UUID);
        assert!(is_of(Some(&origin), UUID) && origin.chars().count() <= 200, "{origin}");
        assert!(!is_of(Some(&origin), "4dea22b3-1d52-d8f3-2516-782e98ab3fa1"));
        let host = format!(
            "[[port]]\nname = \"a\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"a\"\norigin = {origin:?}\n"
        );
        assert!(nicety_host::Host::parse(&host, Path::new("/host.toml")).is_ok(), "{host}");
    }
    for other in [None, Some(UUID), Some("hook proxmox, VM 7"), Some("hook libvirt, domain web1")] {
        assert!(!is_of(other, UUID), "{other:?}");
    }
}
