use std::path::{Path, PathBuf};

use super::*;

/// A valid port. Each test adds its mistake.
pub(super) const PORT: &str =
    "[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";

pub(super) fn parse(text: &str) -> Result<Host, HostErrors> {
    Host::parse(text, Path::new("/etc/nicety/host.toml"))
}

pub(super) fn errors(text: &str) -> Vec<String> {
    let errors = parse(text).expect_err(text);
    errors.list.iter().map(|error| format!("{}: {error}", error.line)).collect()
}

/// The only mistake of a text.
pub(super) fn error(text: &str) -> String {
    let all = errors(text);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.into_iter().next().unwrap()
}

/// The only mistake when a line is added to a valid port.
fn port_error(line: &str) -> String {
    error(&format!("{PORT}{line}\n"))
}

/// The only mistake when a line of a valid port is replaced.
pub(super) fn replaced(key: &str, line: &str) -> String {
    let lines: Vec<&str> = PORT.lines().map(|old| if old.starts_with(key) { line } else { old }).collect();
    error(&lines.join("\n"))
}

#[test]
fn ten_lines_are_a_host() {
    let host = parse(
        "[uplink]\nkind = \"tap\"\nname = \"tap0\"\n\n[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n",
    )
    .unwrap();
    let usual = SwitchConfig { name: "switch0".into(), addresses: 32_768, ageing: Seconds(300), port_addresses: 1024 };
    assert_eq!(host.switch, usual);
    assert_eq!(
        host.uplinks,
        [UplinkConfig {
            name: "tap0".into(),
            kind: UplinkKind::Tap { name: "tap0".into(), queues: 1 },
            rate: None,
            vlan: Default::default(),
            private: Default::default(),
            snooping: false,
            lldp: Lldp::default(),
            trust_marks: false,
            inward: None,
            blocked: false,
            in_loop: None,
            team: None,
        }]
    );
    assert_eq!(host.daemon, DaemonConfig::default());
    let [port] = &host.ports[..] else { panic!("{:?}", host.ports) };
    assert_eq!((port.name.as_str(), port.entry.about.name), ("vm1", "e1000"));
    assert_eq!(port.mac.0, [0x52, 0x54, 0, 0x12, 0x34, 1]);
    assert_eq!(port.socket, Path::new("/etc/nicety/vm1.sock"), "relative to the host file's folder");
    assert_eq!((port.doorbells, port.is_mapped(2), port.buffer), (None, false, Bytes(1 << 20)));
    assert_eq!((port.queues, port.mtu, port.rom.as_deref()), (None, None, None));
    assert_eq!(port.transport(), Transport::VfioUser);
}

#[test]
fn every_key_is_taken() {
    let host = parse(
        r#"
        [switch]
        name = "lan"
        addresses = 1024
        ageing = "60s"
        port_addresses = 64
        [uplink]
        kind = "pair"
        socket = "/run/nicety/wire.sock"
        rate = "100Mbit/s"
        [daemon]
        workers = 2
        control = "control.sock"
        [[port]]
        name = "vm-1.a_b"
        adapter = "virtio-net"
        mac = "52-54-00-12-34-01"
        socket = "/run/nicety/vm1.sock"
        doorbells = "trapped"
        buffer = "512KiB"
        queues = 4
        mtu = 9000
        [[port]]
        name = "vm2"
        adapter = "e1000"
        mac = "52:54:00:12:34:02"
        socket = "vm2.sock"
        rom = "pxe.rom"
        "#,
    )
    .unwrap();
    assert_eq!(
        host.switch,
        SwitchConfig { name: "lan".into(), addresses: 1024, ageing: Seconds(60), port_addresses: 64 }
    );
    let uplink = &host.uplinks[0];
    assert_eq!(uplink.kind, UplinkKind::Pair { socket: "/run/nicety/wire.sock".into(), role: Role::Listen });
    assert_eq!(uplink.rate.as_ref().unwrap().to_string(), "100Mbit/s");
    assert_eq!(host.daemon.workers, 2);
    assert_eq!(host.control(Some(Path::new("/run/user/7"))).unwrap(), Path::new("/etc/nicety/control.sock"));
    let vm1 = host.port("vm-1.a_b").unwrap();
    assert_eq!((vm1.buffer, vm1.queues, vm1.mtu), (Bytes(512 << 10), Some(4), Some(9000)));
    assert_eq!(vm1.transport(), Transport::VhostUser);
    assert_eq!(host.port("vm2").unwrap().rom.as_deref(), Some(Path::new("/etc/nicety/pxe.rom")));
    assert!(host.port("vm3").is_none());
}

#[test]
fn a_virtio_port_may_connect_and_then_nobody_is_told_who_may() {
    let connects = PORT.replace("e1000", "virtio-net") + "role = \"connect\"\n";
    let roles = |text: &str| parse(text).unwrap().ports.iter().map(|port| port.role).collect::<Vec<_>>();
    let listens = connects.replace("connect", "listen").replace("vm1", "vm2").replace(":01\"", ":02\"");
    let without_role = PORT.replace("vm1", "vm3").replace(":01\"", ":03\"");
    let roles = roles(&format!("{connects}standby = true\n{listens}{without_role}"));
    assert_eq!(roles, [Role::Connect, Role::Listen, Role::Listen]);
    // Settings for listening sockets do not apply to this port.
    let host = parse(&format!("[sockets]\nmode = \"0660\"\n{connects}{listens}")).unwrap();
    let access: Vec<_> = host.ports.iter().map(|port| port.access.mode()).collect();
    assert_eq!(access, [0o600, 0o660]);
    for key in ["owner = \"root\"", "group = \"root\"", "mode = \"0660\"", "open_to_everybody = false"] {
        let message = error(&format!("{connects}{key}\n"));
        let name = key.split(' ').next().unwrap();
        let why = "with role = \"connect\" the socket is the VMM's, which says who may connect: leave this out";
        assert!(message.starts_with(&format!("7: port.{name}: {why} (allowed: ")), "{message}");
    }
    for adapter in ["e1000", "vmxnet3", "virtio-net-pci"] {
        for role in ["connect", "listen"] {
            let message = error(&format!("{}role = \"{role}\"\n", PORT.replace("e1000", adapter)));
            let why =
                format!("6: port.role: {adapter} is reached by vfio-user, where a VMM always connects: leave this out");
            assert!(message.starts_with(&why), "{message}");
        }
    }
    let message = error(&connects.replace("\"connect\"", "\"server\""));
    assert_eq!(message, "6: port.role: \"server\" is not known (allowed: \"listen\" or \"connect\", for virtio-net)");
    let twice = error(&format!("{connects}{}", listens.replace("vm2.sock", "vm1.sock")));
    assert!(twice.contains("is the socket of line 5 already"), "{twice}");
}

#[test]
fn a_standby_may_have_the_address_of_the_port_that_it_stands_by_for_and_nobody_else_s() {
    let standby = PORT.replace("e1000", "virtio-net").replace("\"vm1", "\"vm1-standby") + "standby = true\n";
    for text in [format!("{PORT}{standby}"), format!("{standby}{PORT}")] {
        let host = parse(&text).unwrap();
        assert!(host.port("vm1-standby").unwrap().standby && !host.port("vm1").unwrap().standby);
    }
    let again = standby.replace("vm1-", "vm2-");
    assert!(error(&format!("{standby}{again}")).contains("is the address of line 4 already"));
    assert_eq!(
        port_error("standby = true"),
        "6: port.standby: e1000 cannot tell its driver that it stands by: only virtio can (allowed: true or false; true for a virtio \
         adapter)"
    );
}

#[test]
fn the_control_socket_is_in_the_persons_runtime_folder_or_beside_the_host_file() {
    let host = parse(&format!("[switch]\nname = \"lan\"\n{PORT}")).unwrap();
    assert_eq!(host.control(Some(Path::new("/run/user/7"))).unwrap(), Path::new("/run/user/7/nicety/lan.sock"));
    assert_eq!(host.control(None).unwrap(), Path::new("/etc/nicety/nicety-lan.sock"));
}

#[test]
fn a_place_that_is_too_deep_for_the_control_socket_is_refused_with_the_key_that_names_another() {
    let host = parse(&format!("[switch]\nname = \"lan\"\n{PORT}")).unwrap();
    // sun_path of unix(7) has 108 bytes, with a NUL at the end.
    let deep = |length: usize| PathBuf::from(format!("/{}", "x".repeat(length - 1 - "/nicety/lan.sock".len())));
    assert!(host.control(Some(&deep(107))).is_ok());
    assert_eq!(
        host.control(Some(&deep(108))).unwrap_err().to_string(),
        format!(
            "the control socket {}/nicety/lan.sock would have 108 bytes, and the system's limit is 107: name a shorter path \
             with [daemon] control in the host file",
            deep(108).display()
        )
    );
}

#[test]
fn a_port_is_pinned_to_a_worker_that_there_is() {
    let text = |workers: u8, worker: u8| format!("[daemon]\nworkers = {workers}\n{PORT}worker = {worker}\n");
    let host = Host::parse(&text(2, 1), Path::new("/etc/host.toml")).unwrap();
    assert_eq!(host.ports[0].worker, Some(1));
    let message = error(&text(2, 2));
    assert!(message.contains("port.worker: the daemon has 2 workers: workers are counted from 0"), "{message}");
}

#[test]
fn several_workers_serve_the_queue_pairs_of_a_virtio_port_that_has_no_rates() {
    let port = PORT.replace("e1000", "virtio-net");
    let text = |keys: &str| format!("[daemon]\nworkers = 4\n{port}{keys}");
    let workers = |keys: &str| parse(&text(keys)).unwrap().ports[0].workers;
    assert_eq!(["", "workers = 1\n", "workers = 4\n", "queues = 2\nworkers = 2\n"].map(workers), [1, 1, 4, 2]);
    for (keys, what) in [
        ("workers = 5\n", "port.workers: the daemon has 4 workers"),
        ("queues = 2\nworkers = 3\n", "port.workers: it has 2 queue pairs, which are dealt to the workers"),
        ("workers = 2\nsend_average = \"1Gbit/s\"\n", "port.workers: a port with rates"),
    ] {
        let all = errors(&text(keys));
        assert!(all.iter().any(|message| message.contains(what)), "{all:#?}");
    }
    let message = error(&format!("[daemon]\nworkers = 2\n{PORT}workers = 2\n"));
    assert!(message.contains("port.workers: e1000's queues share its registers"), "{message}");
    let mirror =
        "[[mirror]]\nname = \"m\"\nuplinks = [\"wire\"]\nto = \"vm1\"\n[uplink]\nkind = \"null\"\nname = \"wire\"\n";
    let all = errors(&text(&format!("workers = 2\n{mirror}")));
    let what = "port vm1 has 2 workers: copies go to a port with one";
    assert!(all.iter().any(|message| message.contains(what)), "{all:#?}");
}

#[test]
fn a_port_names_the_program_that_has_made_it_in_one_line() {
    let origin = |text: &str| parse(&format!("{PORT}origin = {text:?}\n")).unwrap().ports.remove(0).origin;
    for text in ["hook libvirt, domain wëb, 7", &"é".repeat(200)] {
        assert_eq!(origin(text).as_deref(), Some(text));
    }
    assert_eq!(parse(PORT).unwrap().ports[0].origin, None);
    for (text, what) in [
        (String::new(), "port.origin: it is empty: leave it out"),
        ("é".repeat(201), "port.origin: it has 201 characters"),
        ("a\nb".to_owned(), "port.origin: \"a\\nb\" has a control character"),
    ] {
        let said = port_error(&format!("origin = {text:?}"));
        assert!(said.contains(what), "{said}");
    }
    assert!(port_error("origin = 7").contains("port.origin: it is a number, not a text in quotes"));
}

#[test]
fn an_unknown_key_names_the_one_that_was_meant_and_all_that_there_are() {
    assert_eq!(
        port_error("adaptor_ = \"e1000\""),
        "6: port.adaptor_: there is no such key in [[port]]; did you mean \"adapter\"? \
         (allowed: name, adapter, mac, socket, role, doorbells, buffer, queues, mtu, rom, subsystem, standby, device_state, worker, workers, owner, group, mode, \
         open_to_everybody, port_group, bound_macs, bound_ips, card, function, trust, spoofchk, link_state, query_rss, qos, min_rate, origin, vlan, trunk, native, qinq, private, community, promiscuous, mac_changes, forged_transmits, address_limit, bpdu_guard, dhcp_guard, arp_guard, ra_guard, multicast_router_guard, mtu_limit, log_refusals, snooping, lldp, trust_marks, broadcast_limit, multicast_limit, unknown_limit, send_average, send_peak, send_burst, receive_average, receive_peak, receive_burst)"
    );
    assert_eq!(
        error(&format!("{PORT}[uplnk]\nkind = \"null\"\n")),
        "6: uplnk: there is no such table; did you mean \"uplink\"? (allowed: [switch], [uplink], [[team]], [[card]], [[io_class]], [[mirror]], [[flow_export]], [daemon], [ft], [fabric], [sockets], [[port_group]], [[port]], [[vm]])"
    );
    assert_eq!(
        error(&format!("workers = 2\n{PORT}")),
        "1: workers: there is no such table (allowed: [switch], [uplink], [[team]], [[card]], [[io_class]], [[mirror]], [[flow_export]], [daemon], [ft], [fabric], [sockets], [[port_group]], [[port]], [[vm]])"
    );
    // A key with terminal control characters is quoted.
    assert!(port_error("\"\\u001b[2J\" = 1").starts_with("6: port.\"\\u{1b}[2J\": there is no such key"));
}

#[test]
fn no_byte_of_the_file_plays_tricks_with_a_terminal() {
    // An escape sequence in a line that is not TOML, and in values: an amount, an adapter, two sockets with one path, a path that
    // is too long.
    assert!(error("\u{1b}[2J=\"x\"").ends_with(", in `\\u{1b}[2J=\"x\"` (allowed: TOML: [switch] or [[port]] begins a table, and name = \"vm1\" is a key in it, once)"));
    let twice = PORT.replace("vm1.sock", "\\u001b[2J");
    let other = twice.replace("vm1", "vm2").replace(":01\"", ":02\"");
    for text in [
        "a = \"\u{9b}2J\"\u{1b}\u{202e}".to_owned(),
        "[[\u{7}port]]".to_owned(),
        format!("{PORT}\u{1b}[2J = 1\n"),
        format!("{PORT}\"\\u001b\" = 1\n\"\\u001b\" = 1\n"),
        format!("{PORT}[uplink]\nkind = \"null\"\nrate = \"\\u001b[2J\"\n"),
        format!("[switch]\nageing = \"\\u001b[2J\"\n{PORT}"),
        PORT.replace("\"e1000\"", "\"\\u001b[2J\""),
        format!("{twice}{other}"),
        PORT.replace("vm1.sock", &"\\u001b".repeat(108)),
    ] {
        let messages = errors(&text);
        assert!(
            messages.iter().all(|line| !line.contains(|c: char| c.is_control() || c == '\u{202e}')),
            "{messages:?}"
        );
    }
}

#[test]
fn an_unknown_adapter_names_the_one_that_was_meant_and_all_that_there_are() {
    let message = replaced("adapter", "adapter = \"e100\"");
    let start = "3: port.adapter: there is no adapter \"e100\"; did you mean \"e1000\"? (allowed: e1000, ";
    assert!(message.starts_with(start), "{message}");
}

#[test]
fn a_missing_key_is_said_at_its_ports_heading() {
    for key in ["name", "adapter", "mac", "socket"] {
        let message = replaced(key, "");
        assert!(
            message.starts_with(&format!("1: port.{key}: it is missing from this [[port]] (allowed: ")),
            "{message}"
        );
    }
    assert!(error(&format!("{PORT}\n[uplink]\nrate = \"1Gbit/s\"\n")).starts_with("7: uplink.kind: it is missing"));
}

#[test]
fn a_value_of_another_type_is_said_to_be_one() {
    assert!(replaced("name", "name = 1").starts_with("2: port.name: it is a number, not a text in quotes"));
    assert!(port_error("mtu = \"1500\"").starts_with("6: port.mtu: it is a text, not a whole number"));
    assert!(port_error("mtu = 1500.5").starts_with("6: port.mtu: it is a fraction, not a whole number"));
    assert!(port_error("queues = [1]").starts_with("6: port.queues: it is a list, not a whole number"));
    assert!(port_error("buffer = 65536").starts_with("6: port.buffer: it is a number, not a text in quotes"));
    assert!(port_error("rom = true").starts_with("6: port.rom: it is true or false, not a text"));
    assert_eq!(error(&format!("uplink = \"tap\"\n{PORT}")), "1: uplink: it is a text, not a table: write [uplink]");
}

#[test]
fn the_wrong_brackets_are_said() {
    let message = error(&PORT.replace("[[port]]", "[port]"));
    assert_eq!(message, "1: port: there may be several: write [[port]]");
    assert_eq!(error(&format!("{PORT}[[switch]]\nname = \"a\"\n")), "6: switch: there is only one: write [switch]");
}

#[test]
fn addresses_are_of_one_station_and_of_one_port() {
    let message = replaced("mac", "mac = \"52:54:00:12:34\"");
    assert!(
        message.starts_with("4: port.mac: \"52:54:00:12:34\": a MAC address has 6 parts, this one has 5"),
        "{message}"
    );
    assert!(replaced("mac", "mac = \"52:54:00:12:34:zz\"").contains("part 6"));
    for group in ["01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"] {
        let message = replaced("mac", &format!("mac = \"{group}\""));
        assert!(message.starts_with(&format!("4: port.mac: {group} is not the address of one station")), "{message}");
    }
    let twice = format!("{PORT}{}", PORT.replace("vm1", "vm2").replace("52:54:00:12:34:01", "52-54-00-12-34-01"));
    assert!(error(&twice).starts_with("9: port.mac: 52:54:00:12:34:01 is the address of line 4 already"));
}

#[test]
fn names_and_sockets_are_each_of_one_port() {
    let other = PORT.replace(":01\"", ":02\"");
    let messages = errors(&format!("{PORT}{other}"));
    assert!(messages[0].starts_with("7: port.name: \"vm1\" is the port of line 2 already"), "{messages:?}");
    assert!(
        messages[1].starts_with("10: port.socket: /etc/nicety/vm1.sock is the socket of line 5 already"),
        "{messages:?}"
    );
    assert_eq!(messages.len(), 2);
    // The same file written differently, and other users of sockets.
    let other = other.replace("\"vm1\"", "\"vm2\"").replace("vm1.sock", ".//vm1.sock");
    assert!(error(&format!("{PORT}{other}")).starts_with("10: port.socket: "));
    let messages = error(&format!("{PORT}[daemon]\ncontrol = \"/etc/nicety/vm1.sock\"\n"));
    assert!(messages.starts_with("5: port.socket: /etc/nicety/vm1.sock is the socket of line 7 already"), "{messages}");
}

#[test]
fn what_is_there_twice_is_seen_on_one_line_too() {
    let port = |number: u8, socket: &str| {
        format!(
            "{{name = \"vm{number}\", adapter = \"e1000\", mac = \"02:00:00:00:00:0{number}\", socket = \"{socket}\"}}"
        )
    };
    assert!(parse(&format!("port = [{}, {}]", port(1, "a"), port(2, "b"))).is_ok());
    let messages = errors(&format!("port = [{}, {}]", port(1, "a"), port(1, "a")));
    let keys: Vec<&str> = messages.iter().map(|line| line.split(": ").nth(1).unwrap()).collect();
    assert_eq!(keys, ["port.name", "port.mac", "port.socket"], "{messages:?}");
}

#[test]
fn no_port_has_the_name_of_the_uplink() {
    for (uplink, name, line) in [
        ("kind = \"null\"\nrate = \"1Gbit/s\"", "null", 2),
        ("kind = \"tap\"\nname = \"tap7\"", "tap7", 3),
        ("kind = \"pair\"\nsocket = \"peer.sock\"", "pair", 2),
        ("kind = \"stream\"\nsocket = \"peer.sock\"", "stream", 2),
        ("kind = \"capture\"\nfile = \"all.pcapng\"", "capture", 2),
    ] {
        let port = PORT.replace("\"vm1\"", &format!("\"{name}\""));
        let text = format!("[uplink]\n{uplink}\n{port}");
        let message = format!("5: port.name: {name:?} is the uplink of line {line} already: choose another name");
        assert!(error(&text).starts_with(&message), "{}", error(&text));
        // The uplink may be anywhere in the file, but must have that name.
        assert!(error(&format!("{port}[uplink]\n{uplink}\n")).starts_with("2: port.name: "));
        assert!(parse(&port).is_ok());
        assert!(parse(&format!("{port}[uplink]\nkind = \"none\"\n")).is_ok());
        assert!(parse(&text.replace(&format!("name = {name:?}\nadapter"), "name = \"vm1\"\nadapter")).is_ok());
    }
}

#[test]
fn a_socket_path_that_the_system_cannot_take_is_refused_with_its_length() {
    // "/etc/nicety/" has 12 bytes.
    assert!(parse(&PORT.replace("vm1.sock", &"s".repeat(95))).is_ok());
    let message = replaced("socket", &format!("socket = \"{}\"", "s".repeat(96)));
    assert!(message.contains("has 108 bytes, and the system's limit is 107: choose a shorter folder"), "{message}");
    assert!(replaced("socket", "socket = \"\"").starts_with("5: port.socket: \"\" is no path"));
    for (text, shown) in [("a\\u0000b", "a\\0b"), ("a\\u001b[2Jb", "a\\u{1b}[2Jb"), ("a\\nb", "a\\nb")] {
        let message = replaced("socket", &format!("socket = \"{text}\""));
        assert!(message.starts_with(&format!("5: port.socket: \"{shown}\" has control characters")), "{message}");
    }
}

#[test]
fn names_are_plain() {
    for (name, why) in [
        ("", "it is empty"),
        ("vm 1", "\"vm 1\" has a ' '"),
        ("vm/1", "\"vm/1\" has a '/'"),
        ("../vm", "\"../vm\" has a '/'"),
        ("-vm", "\"-vm\" does not begin with a letter or digit"),
        ("..", "\"..\" does not begin with a letter or digit"),
        ("vmé", "\"vmé\" has a 'é'"),
    ] {
        let message = replaced("name", &format!("name = {name:?}"));
        assert!(message.starts_with(&format!("2: port.name: {why} (allowed: 1 to 64 letters")), "{message}");
    }
    assert!(replaced("name", &format!("name = \"{}\"", "n".repeat(65))).contains("it has 65 characters"));
}

#[test]
fn amounts_have_units_and_ranges() {
    let message = port_error("buffer = \"1MB\"");
    assert_eq!(
        message,
        "6: port.buffer: \"1MB\": its unit must be B, KiB, MiB or GiB (allowed: \"64KiB\" to \"1GiB\")"
    );
    assert!(port_error("buffer = \"63KiB\"").starts_with("6: port.buffer: 63KiB is too small"));
    assert!(port_error("buffer = \"2GiB\"").starts_with("6: port.buffer: 2GiB is too large"));
    assert!(error(&format!("[switch]\nageing = \"5\"\n{PORT}")).starts_with("2: switch.ageing: \"5\": its unit"));
    assert!(error(&format!("[switch]\nageing = \"1s\"\n{PORT}")).starts_with("2: switch.ageing: 1s is too small"));
    assert!(error(&format!("[switch]\naddresses = 8\n{PORT}")).contains("8 is not from 64 to 4194304"));
    for workers in ["0", "65", "-1", "99999999999999999999"] {
        let message = error(&format!("[daemon]\nworkers = {workers}\n{PORT}"));
        assert!(message.starts_with(&format!("2: daemon.workers: {workers} is not from 1 to 64")), "{message}");
    }
    let message = error(&format!("[uplink]\nkind = \"null\"\nrate = \"100Mbps\"\n{PORT}"));
    assert!(message.starts_with("3: uplink.rate: `100Mbps` is no rate: write a number and bit/s"), "{message}");
}

#[test]
fn a_port_asks_of_its_adapter_only_what_it_has() {
    assert!(port_error("queues = 2").starts_with("6: port.queues: e1000 has one queue pair, not 2"));
    assert!(port_error("queues = 0").starts_with("6: port.queues: 0 is not from 1"));
    assert!(port_error("mtu = 67").starts_with("6: port.mtu: 67 is not from 68"));
    assert_eq!(
        port_error("mtu = 9000"),
        "6: port.mtu: e1000 does not tell its driver an MTU: leave this out, and set it in the guest (at most 16110) \
         (allowed: for an adapter that announces an MTU, such as virtio-net: a whole number from 68 to 65535)"
    );
    let vmxnet3 = PORT.replace("e1000", "vmxnet3");
    assert!(error(&format!("{vmxnet3}mtu = 9000\n")).contains("vmxnet3 does not tell its driver an MTU"));
    assert!(port_error("doorbells = \"maped\"").contains("\"maped\" is not known; did you mean \"mapped\"?"));
    assert!(port_error("subsystem = \"vmare\"").contains("\"vmare\" is not known; did you mean \"vmware\"?"));
    assert!(port_error("doorbells = \"mapped\"").contains("e1000 cannot have its doorbells mapped"));
    let virtio = PORT.replace("e1000", "virtio-net");
    assert!(error(&format!("{virtio}queues = 17\n")).contains("virtio-net has at most 16 queue pairs, not 17"));
    assert!(error(&format!("{virtio}rom = \"a.rom\"\n")).contains("virtio-net's PCI function"));
    assert!(
        error(&format!("{virtio}doorbells = \"mapped\"\n")).contains("virtio-net cannot have its doorbells mapped")
    );
    assert!(
        error(&format!("{virtio}subsystem = \"vmware\"\n"))
            .contains("VMware has no PCI subsystem of its own for virtio-net: leave this out")
    );
}

#[test]
fn vmxnet3_has_its_doorbells_mapped_unless_they_shall_be_trapped_or_there_is_one_processor() {
    let port = PORT.replace("e1000", "vmxnet3");
    for (key, with_one, with_two) in
        [("", false, true), ("doorbells = \"mapped\"\n", true, true), ("doorbells = \"trapped\"\n", false, false)]
    {
        let port = &parse(&format!("{port}{key}")).unwrap().ports[0];
        assert_eq!((port.is_mapped(1), port.is_mapped(2)), (with_one, with_two), "{key}");
    }
}

#[test]
fn a_switch_may_have_no_ports_yet() {
    for text in ["", "port = []\n", "[switch]\nname = \"lan\"\n[uplink]\nkind = \"null\"\n"] {
        assert!(parse(text).unwrap().ports.is_empty(), "{text}");
    }
}

#[test]
fn an_entry_of_the_ports_that_is_no_table_is_a_mistake_of_its_own() {
    let port = "{name = \"vm1\", adapter = \"e1000\", mac = \"52:54:00:12:34:01\", socket = \"vm1.sock\"}";
    let message = |entry: u8, what: &str| {
        format!(
            "port: entry {entry} of the list is {what}, not a table: write [[port]] for each \
             (allowed: a table of name, adapter, mac, socket, role, doorbells, buffer, queues, mtu, rom, subsystem, standby, device_state, worker, workers, owner, group, mode, \
         open_to_everybody, port_group, bound_macs, bound_ips, card, function, trust, spoofchk, link_state, query_rss, qos, min_rate, origin, vlan, trunk, native, qinq, private, community, promiscuous, mac_changes, forged_transmits, address_limit, bpdu_guard, dhcp_guard, arp_guard, ra_guard, multicast_router_guard, mtu_limit, log_refusals, snooping, lldp, trust_marks, broadcast_limit, multicast_limit, unknown_limit, send_average, send_peak, send_burst, receive_average, receive_peak, receive_burst)"
        )
    };
    assert_eq!(error("port = [\"a\"]"), format!("1: {}", message(1, "a text")));
    assert_eq!(error("port = [3]"), format!("1: {}", message(1, "a number")));
    assert_eq!(error(&format!("port = [[{port}]]")), format!("1: {}", message(1, "a list")));
    let mixed = errors(&format!("port = [\"a\", 3,\n{port},\ntrue]"));
    let (first, second, last) = (message(1, "a text"), message(2, "a number"), message(4, "true or false"));
    assert_eq!(mixed, [format!("1: {first}"), format!("1: {second}"), format!("3: {last}")]);
    assert_eq!(parse(&format!("port = [{port}]")).unwrap().ports.len(), 1);
}

#[test]
fn more_ports_than_the_switch_has_are_refused() {
    let port = |n: usize| {
        PORT.replace("vm1", &format!("vm{n}")).replace("12:34:01", &format!("12:{:02x}:{:02x}", n >> 8, n & 0xff))
    };
    let text = |count| (0..count).map(port).collect::<String>();
    assert_eq!(parse(&text(1023)).unwrap().ports.len(), 1023);
    assert!(error(&text(1024)).contains("a switch has at most 1023 ports besides its uplink"));
}

#[test]
fn what_is_no_toml_is_said_with_its_line_and_nothing_else_is() {
    let messages = errors("[[port]]\nname = \"vm1\nadapter = e1000\n[switch\n");
    assert!(messages.len() >= 2, "all of them at once: {messages:?}");
    assert!(messages[0].starts_with("2: "), "{messages:?}");
    assert!(messages.iter().all(|line| !line.contains("missing from this")), "{messages:?}");
    assert!(port_error("name = \"again\"").starts_with("6: "), "a key that is there twice");
}

#[test]
fn all_mistakes_come_at_once_sorted_by_line_and_print_a_line_each() {
    let text = "[[port]]\nname = \"vm 1\"\nadapter = \"e100\"\nmac = \"1\"\nsocket = \"a\"\nmtu = 1\n[switch]\nageing = \"x\"\nnme = \"a\"\n";
    let errors = parse(text).unwrap_err();
    let lines: Vec<usize> = errors.list.iter().map(|error| error.line).collect();
    assert_eq!(lines, [2, 3, 4, 6, 8, 9]);
    let shown = errors.to_string();
    assert_eq!(shown.lines().count(), 6);
    assert!(shown.lines().all(|line| line.starts_with("/etc/nicety/host.toml:")), "{shown}");
}

#[test]
fn a_file_is_read_with_its_own_name_in_errors_and_absolute_paths_in_the_host() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let path = dir.join("host.toml");
    std::fs::write(&path, PORT).unwrap();
    assert_eq!(Host::read(&path).unwrap().ports[0].socket, dir.join("vm1.sock"));
    std::fs::write(&path, b"[switch]\nname = \"\xff\"\n").unwrap();
    let message = Host::read(&path).unwrap_err().to_string();
    assert_eq!(message, format!("{}:2: it is not UTF-8 text", path.display()));
    std::fs::write(&path, vec![b'#'; (4 << 20) + 1]).unwrap();
    assert!(matches!(Host::read(&path), Err(ReadError::Long { .. })));
    assert!(matches!(Host::read(&dir.join("absent")), Err(ReadError::Missing { .. })));
    std::fs::write(&path, b"[switch]\nname\0 = 1\n").unwrap();
    let message = Host::read(&path).unwrap_err().to_string();
    assert_eq!(message, format!("{}:2: it is no text, it has a zero byte: is it another file?", path.display()));
    assert!(matches!(Host::read(dir), Err(ReadError::Io { .. })));
}
