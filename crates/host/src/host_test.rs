use std::path::Path;

use super::io_class::tests::{GUESTS, class};
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
fn a_port_is_pinned_to_a_worker_that_there_is() {
    let text = |workers: u8, worker: u8| format!("[daemon]\nworkers = {workers}\n{PORT}worker = {worker}\n");
    let host = Host::parse(&text(2, 1), Path::new("/etc/host.toml")).unwrap();
    assert_eq!(host.ports[0].worker, Some(1));
    let message = error(&text(2, 2));
    assert!(message.contains("port.worker: the daemon has 2 workers: workers are counted from 0"), "{message}");
}

#[test]
fn several_workers_serve_the_queue_pairs_of_a_virtio_port_that_has_no_rates_and_no_log() {
    let port = PORT.replace("e1000", "virtio-net");
    let text = |keys: &str| format!("[daemon]\nworkers = 4\n{port}{keys}");
    let workers = |keys: &str| parse(&text(keys)).unwrap().ports[0].workers;
    assert_eq!(["", "workers = 1\n", "workers = 4\n", "queues = 2\nworkers = 2\n"].map(workers), [1, 1, 4, 2]);
    for (keys, what) in [
        ("workers = 5\n", "port.workers: the daemon has 4 workers"),
        ("queues = 2\nworkers = 3\n", "port.workers: it has 2 queue pairs, which are dealt to the workers"),
        ("workers = 2\nsend_average = \"1Gbit/s\"\n", "port.workers: a port with rates"),
        ("workers = 2\nft_peer = \"host2:4711\"\n", "port.workers: a port with a log (ft_peer) has one worker"),
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
fn an_unknown_key_names_the_one_that_was_meant_and_all_that_there_are() {
    assert_eq!(
        port_error("adaptor_ = \"e1000\""),
        "6: port.adaptor_: there is no such key in [[port]]; did you mean \"adapter\"? \
         (allowed: name, adapter, mac, socket, role, doorbells, buffer, queues, mtu, rom, subsystem, standby, worker, workers, ft_peer, owner, group, mode, \
         open_to_everybody, port_group, bound_macs, bound_ips, card, function, trust, spoofchk, link_state, query_rss, qos, min_rate, vlan, trunk, native, qinq, private, community, promiscuous, mac_changes, forged_transmits, address_limit, bpdu_guard, dhcp_guard, arp_guard, ra_guard, multicast_router_guard, mtu_limit, log_refusals, snooping, lldp, trust_marks, broadcast_limit, multicast_limit, unknown_limit, send_average, send_peak, send_burst, receive_average, receive_peak, receive_burst)"
    );
    assert_eq!(
        error(&format!("{PORT}[uplnk]\nkind = \"null\"\n")),
        "6: uplnk: there is no such table; did you mean \"uplink\"? (allowed: [switch], [uplink], [[team]], [[card]], [[io_class]], [[mirror]], [daemon], [ft], [sockets], [[port_group]], [[port]])"
    );
    assert_eq!(
        error(&format!("workers = 2\n{PORT}")),
        "1: workers: there is no such table (allowed: [switch], [uplink], [[team]], [[card]], [[io_class]], [[mirror]], [daemon], [ft], [sockets], [[port_group]], [[port]])"
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
             (allowed: a table of name, adapter, mac, socket, role, doorbells, buffer, queues, mtu, rom, subsystem, standby, worker, workers, ft_peer, owner, group, mode, \
         open_to_everybody, port_group, bound_macs, bound_ips, card, function, trust, spoofchk, link_state, query_rss, qos, min_rate, vlan, trunk, native, qinq, private, community, promiscuous, mac_changes, forged_transmits, address_limit, bpdu_guard, dhcp_guard, arp_guard, ra_guard, multicast_router_guard, mtu_limit, log_refusals, snooping, lldp, trust_marks, broadcast_limit, multicast_limit, unknown_limit, send_average, send_peak, send_burst, receive_average, receive_peak, receive_burst)"
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

/// An image (PCI Firmware 3.0 §5.1) whose header names one device, like iPXE's.
fn option_rom(vendor: u16, device: u16) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[..3].copy_from_slice(&[0x55, 0xaa, 1]);
    bytes[0x18] = 0x40;
    bytes[0x40..0x44].copy_from_slice(b"PCIR");
    bytes[0x44..0x46].copy_from_slice(&vendor.to_le_bytes());
    bytes[0x46..0x48].copy_from_slice(&device.to_le_bytes());
    bytes[0x4a] = 0x18;
    bytes[0x50] = 1;
    bytes[0x55] = 0x80;
    bytes
}

#[test]
fn an_option_rom_of_one_chip_is_shown_as_the_chips_that_have_the_same_driver() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pxe.rom");
    let shown = |adapter: &str, device| {
        std::fs::write(&path, option_rom(0x8086, device)).unwrap();
        read_rom(&path, nicety_adapters::find(adapter).unwrap().about).map(|rom| rom.ids()).map_err(|error| error.why)
    };
    assert_eq!(shown("e1000", 0x100e), Ok((0x8086, 0x100e)));
    assert_eq!(shown("e1000-82545em", 0x100e), Ok((0x8086, 0x100f)));
    assert_eq!(shown("e1000-82544gc", 0x100e), Ok((0x8086, 0x1008)));
    assert!(shown("vmxnet3", 0x100e).unwrap_err().ends_with("for 8086:100e, and vmxnet3 is 15ad:07b0"));
    assert!(shown("e1000-82545em", 0x10d3).unwrap_err().contains("for 8086:10d3"), "another family's");
    // iPXE's ROM of a driver for many devices names none.
    std::fs::write(&path, option_rom(0, 0)).unwrap();
    let about = nicety_adapters::find("ne2k_pci").unwrap().about;
    assert_eq!(read_rom(&path, about).map(|rom| rom.ids()).map_err(|error| error.why), Ok((0x10ec, 0x8029)));
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

pub(super) const FOUR: &str = "\
[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\n[[uplink]]\nkind = \"pair\"\nname = \"a\"\nsocket = \"a.sock\"\n\
[[uplink]]\nkind = \"stream\"\nname = \"b\"\nsocket = \"b.sock\"\n[[uplink]]\nkind = \"null\"\n";

#[test]
fn a_team_has_its_members_and_their_rule() {
    let lacp = "[[team]]\nname = \"up\"\nmembers = \"b, tap0\"\nmode = \"802.3ad\"\nlacp_rate = \"fast\"\nmin_links = 2\nsystem = \"02:00:00:00:00:0a\"\ntrunk = \"all\"\n";
    let standby = "[[team]]\nname = \"spare\"\nmembers = \"a\"\nmode = \"active-standby\"\nprimary = \"a\"\nfail_back = \"30s\"\n";
    let host = Host::parse(&format!("{FOUR}{lacp}{standby}"), Path::new("/etc/host.toml")).unwrap();
    let [up, spare] = &host.teams[..] else { panic!("{:?}", host.teams) };
    assert_eq!((up.name.as_str(), &up.members[..]), ("up", &["b".to_owned(), "tap0".to_owned()][..]));
    let wanted = LacpConfig {
        is_active: true,
        is_fast: true,
        min_links: 2,
        system_priority: 32_768,
        key: 1,
        hash: TransmitHash::Layer34,
        system: Some(Mac([2, 0, 0, 0, 0, 10])),
    };
    assert_eq!(up.mode, TeamMode::Lacp(wanted));
    assert!(matches!(up.vlan, Vlan::Trunk { .. }));
    assert_eq!(spare.mode, TeamMode::Standby { primary: 0, fail_back: Seconds(30) });
    let teams: Vec<Option<&str>> = host.uplinks.iter().map(|uplink| uplink.team.as_deref()).collect();
    assert_eq!(teams, [Some("up"), Some("spare"), Some("up"), None]);
}

#[test]
fn a_team_that_cannot_work_is_refused_with_the_reason() {
    let of = |team: &str| {
        let text = format!("{FOUR}[[team]]\nname = \"up\"\nmembers = \"a\"\nmode = \"802.3ad\"\n{team}");
        let errors = Host::parse(&text, Path::new("/etc/host.toml")).unwrap_err();
        errors.list.into_iter().map(|error| format!("{}: {}", error.key, error.what)).collect::<Vec<_>>().join("\n")
    };
    let second =
        |members: &str| format!("[[team]]\nname = \"two\"\nmode = \"active-standby\"\nmembers = \"{members}\"\n");
    assert_eq!(of(&second("b,a")), "team.members: uplink a is in team up already, and can be in one");
    assert_eq!(of(&second("b,b")), "team.members: uplink b is named twice");
    assert_eq!(of(&second("")), "team.members: it has no member: name one or more uplinks");
    assert_eq!(of(&second("tap1")), "team.members: there is no uplink \"tap1\"; did you mean \"tap0\"?");
    assert_eq!(of(&second("null")), "team.members: uplink null is no link to a neighbour: its kind is \"null\"");
    let load = FOUR.replace("name = \"a\"", "name = \"a\"\nrate = \"1Gbit/s\"");
    let load = format!("{load}[[team]]\nname = \"up\"\nmembers = \"a\"\nmode = \"load\"\n");
    let host = Host::parse(&load, Path::new("/etc/host.toml")).unwrap();
    assert_eq!(host.teams[0].mode, TeamMode::Load(vec!["1Gbit/s".parse().unwrap()]));
    let errors = Host::parse(&load.replace("\"a\"\nmode", "\"a,b\"\nmode"), Path::new("/etc/host.toml")).unwrap_err();
    let wanted = "uplink b has no rate, and nobody knows when it is full: give each member its rate";
    assert_eq!(errors.list[0].what, wanted);
    assert_eq!(of("min_links = 2"), "team.min_links: the team has 1 members, and would never use one");
    assert_eq!(of("system = \"01:80:c2:00:00:02\""), "team.system: 01:80:c2:00:00:02 is no station's address");
    assert_eq!(of("primary = \"a\""), "team.primary: it does not belong to this mode");
    assert_eq!(of(&(second("b") + "primary = \"a\"")), "team.primary: \"a\" is no member; did you mean \"b\"?");
    assert_eq!(of(&(second("b") + "hash = \"layer2\"")), "team.hash: it does not belong to this mode");
    assert_eq!(
        of(&second("b").replace("two", "tap0")),
        "team.name: \"tap0\" is the uplink of line 3 already: choose another name"
    );
    assert_eq!(
        of(&second("b").replace("two", "up")),
        "team.name: \"up\" is the team of line 15 already: choose another name"
    );
    let text = format!("{FOUR}vlan = 7\n[[team]]\nname = \"up\"\nmembers = \"b\"\nmode = \"802.3ad\"\n")
        .replace("socket = \"b.sock\"", "socket = \"b.sock\"\nvlan = 7");
    let errors = Host::parse(&text, Path::new("/etc/host.toml")).unwrap_err();
    assert_eq!(errors.list[0].what, "this uplink is a member of team up: say it there");
}

/// A card and a port at its function 0.
const CARD: &str = "[[card]]\nname = \"nic\"\nchip = \"82576\"\n[[port]]\nname = \"vm1\"\nadapter = \"igbvf\"\n\
                    mac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\ncard = \"nic\"\nfunction = 0\n";

fn function(number: u8, more: &str) -> String {
    format!(
        "[[port]]\nname = \"f{number}\"\nadapter = \"igbvf\"\nmac = \"52:54:00:00:00:0{number}\"\nsocket = \"f{number}\"\n{more}\n"
    )
}

#[test]
fn a_port_at_a_card_s_function_has_what_ip_link_sets_with_linux_s_defaults() {
    let host = parse(CARD).unwrap();
    let [card] = &host.cards[..] else { panic!("{:?}", host.cards) };
    assert_eq!((card.entry.about.name, card.functions, &card.uplink), ("igbvf", 8, &None));
    let its = host.ports[0].function.clone().unwrap();
    // igb_vf_configure: spoof check on, trust off.
    let usual = FunctionConfig {
        card: "nic".into(),
        number: 0,
        trusted: false,
        checks_source: true,
        queries_rss: false,
        is_vepa: false,
        min_rate: None,
    };
    assert_eq!(its, usual);
    assert!(!host.ports[0].policy.forged_transmits, "the switch checks what it sends");
    let all = "trust = true\nlink_state = \"disable\"\nquery_rss = true\nvlan = 7\nqos = 5\n";
    let host = parse(&format!("{CARD}{all}")).unwrap();
    let its = host.ports[0].function.clone().unwrap();
    assert_eq!((its.trusted, host.ports[0].link, its.queries_rss), (true, LinkState::Disable, true));
    assert_eq!((host.ports[0].policy.priority, host.ports[0].policy.forged_transmits), (5, true));
    assert!(parse(&format!("{CARD}spoofchk = false\n")).unwrap().ports[0].policy.forged_transmits);
    let up = "[uplink]\nkind = \"null\"\nname = \"wan\"\n";
    let host = parse(&format!("{up}{}", CARD.replace("82576\"", "82576\"\nfunctions = 2\nuplink = \"wan\""))).unwrap();
    assert_eq!((host.cards[0].functions, host.cards[0].uplink.as_deref()), (2, Some("wan")));
}

#[test]
fn the_link_of_any_port_can_be_down() {
    let link = |line: &str| parse(&format!("{PORT}{line}\n")).unwrap().ports[0].link;
    assert_eq!(link(""), LinkState::Auto);
    assert_eq!(link("link_state = \"disable\""), LinkState::Disable);
    let wrong = "6: port.link_state: \"down\" is not known (allowed: \"auto\", \"enable\" or \"disable\")";
    assert_eq!(port_error("link_state = \"down\""), wrong);
}

#[test]
fn the_priority_in_a_guest_s_tags_counts_if_somebody_trusts_the_guest() {
    let counts = |text: &str| !parse(text).unwrap().ports[0].policy.regenerates;
    let tagged = format!("{CARD}vlan = 7\n");
    assert!(!counts(&tagged));
    assert!(counts(&format!("{tagged}trust_marks = true\n")));
    assert!(counts(&format!("{tagged}trust = true\n")));
    let up = "[[uplink]]\nkind = \"null\"\nname = \"up\"\nrate = \"1Gbit/s\"\n";
    let name = parse(CARD).unwrap().ports[0].name.clone();
    let class = |keys: &str| format!("{up}{tagged}[[io_class]]\nname = \"voice\"\nuplink = \"up\"\n{keys}\n");
    assert!(counts(&class(&format!("pcp = 5\nports = \"{name}\""))), "a class believes it");
    assert!(!counts(&class(&format!("dscp = 46\nports = \"{name}\""))), "its code point, not its priority");
}

#[test]
fn a_class_by_priority_that_names_no_ports_has_frames_of_trusted_functions_too_and_one_by_code_point_has_not() {
    let up = "[[uplink]]\nkind = \"null\"\nname = \"up\"\nrate = \"1Gbit/s\"\n";
    let with = |function: &str, keys: &str| {
        format!("{up}{CARD}vlan = 7\n{function}\n[[io_class]]\nname = \"voice\"\nuplink = \"up\"\n{keys}\n")
    };
    let host = parse(&with("trust = true", "pcp = 5")).unwrap();
    let classes = host.outward_classes_of(host.uplink("up").unwrap());
    assert_eq!(classes[1].ports, Some(vec![host.ports[0].name.clone()]));
    assert!(error(&with("trust = true", "dscp = 46")).contains("each guest chooses this itself"));
    assert!(error(&with("trust = false", "pcp = 5")).contains("each guest chooses this itself"));
}

/// `ip link set DEV vf N vlan ID [qos PRIORITY]`: 0 by default.
#[test]
fn a_vlan_that_is_set_or_taken_away_has_the_usual_priority_unless_the_change_names_one() {
    let port: toml::Table = "vlan = 7\nqos = 5".parse().unwrap();
    let set = |key: &str, value: Option<i64>| (key.to_owned(), value.map(toml::Value::Integer));
    let of = |port: &toml::Table, values: &[(String, Option<toml::Value>)]| crate::with_usual_priority(port, values);
    for vlan in [None, Some(20)] {
        assert_eq!(of(&port, &[set("vlan", vlan)]), [set("vlan", vlan), set("qos", None)]);
        let both = [set("vlan", vlan), set("qos", Some(3))];
        assert_eq!(of(&port, &both), both);
    }
    assert_eq!(of(&port, &[set("qos", Some(3))]), [set("qos", Some(3))]);
    assert_eq!(of(&toml::Table::new(), &[set("vlan", Some(20))]), [set("vlan", Some(20))], "it has none");
}

#[test]
fn a_card_that_cannot_be_and_a_port_that_it_does_not_have_are_refused_with_the_reason() {
    let with = |more: &str| error(&format!("{CARD}{more}"));
    assert_eq!(
        with(&function(2, "card = \"nic\"\nfunction = 0")),
        "17: port.function: function 0 of card nic is that of line 10 already (allowed: with card: a whole number from 0, below its functions)"
    );
    assert!(
        with(&function(2, "card = \"nic\"\nfunction = 8"))
            .contains("card nic has 8 functions, from 0 on: there is no 8")
    );
    assert!(
        with(&function(2, "card = \"nik\"\nfunction = 1")).contains("there is no card \"nik\"; did you mean \"nic\"?")
    );
    assert!(with(&function(2, "card = \"nic\"")).contains("port.function: it is missing"));
    assert!(with(&function(2, "function = 1")).contains("only a port at a card's function has this"));
    let other = function(2, "card = \"nic\"\nfunction = 1").replace("igbvf", "ixgbevf");
    assert!(with(&other).contains("its functions are igbvf, and this port's adapter is ixgbevf"));
    assert!(with("qos = 3\n").contains("port.qos: there is no vlan, in whose tag it would be"));
    let card = |lines: &str| error(&CARD.replace("82576\"", &format!("82576\"\n{lines}")));
    assert!(card("functions = 9").contains("an 82576 has at most 8 functions, not 9"));
    assert!(card("uplink = \"wan\"").contains("there is no uplink or team \"wan\""));
    assert!(with("[[card]]\nname = \"nic\"\nchip = \"82599\"\n").contains("there is a card \"nic\" already"));
    assert!(card("bridge = \"vepa\"").contains("card.bridge: there is no uplink, to which all would go"));
    let up = "[[uplink]]\nkind = \"null\"\nname = \"wan\"\n";
    let vepa = format!("{up}{}", CARD.replace("82576\"", "82576\"\nbridge = \"vepa\""));
    assert_eq!(parse(&vepa).unwrap().ports[0].policy.private, Private::Vepa);
    assert!(error(&format!("{vepa}private = \"isolated\"\n")).contains("it reaches the uplink alone"));
    assert!(error(&format!("{}{vepa}", up.replace("wan", "lan"))).contains("there are 2 uplinks and teams"));
    let many: String = (0..4).map(|number| format!("[[card]]\nname = \"x{number}\"\nchip = \"82599\"\n")).collect();
    assert!(with(&many).contains("with this card there are 264 functions, more than 256: give the cards fewer"));
    parse(&many).unwrap();
}

/// Two functions of a card behind a link of a gigabit, and a third port.
fn functions_at(first: &str, second: &str, more: &str) -> String {
    let [first, second] = [(1, first), (2, second)]
        .map(|(number, least)| function(number, &format!("card = \"nic\"\nfunction = {number}\n{least}")));
    format!(
        "[[uplink]]\nname = \"up\"\nkind = \"null\"\nrate = \"1Gbit/s\"\n\
         [[card]]\nname = \"nic\"\nchip = \"82576\"\nuplink = \"up\"\n{first}{second}{}{more}",
        function(3, "")
    )
}

#[test]
fn a_function_s_minimum_rate_is_its_port_s_reservation_in_the_class_of_its_frames() {
    let classes = |first: &str, second: &str, more: &str| {
        let host = parse(&functions_at(first, second, more)).unwrap();
        host.outward_classes_of(&host.uplinks[0])
    };
    assert!(classes("", "", "").is_empty(), "nobody has one: no I/O control");
    let mbit = |rate: u64| nicety_uplink::Rate::new(rate * 1_000_000);
    let of = |port: &str, rate| (port.to_owned(), mbit(rate).unwrap());
    let [vm] = &classes("min_rate = \"300Mbit/s\"", "min_rate = \"450Mbit/s\"", "")[..] else { panic!() };
    assert_eq!((vm.name.as_str(), vm.terms.reservation), ("vm", mbit(750)), "75 % of the link may be reserved");
    assert_eq!(vm.minimums, [of("f1", 300), of("f2", 450)]);
    // A class that has all frames of the second, and one that has some of the first's.
    let more = class("a", "ports = \"f1\"\nvlan = 7") + &class("b", "ports = \"f2,f3\"\nreservation = \"300Mbit/s\"");
    let [vm, a, b] = &classes("min_rate = \"100Mbit/s\"", "min_rate = \"200Mbit/s\"", &more)[..] else { panic!() };
    assert_eq!((vm.minimums.clone(), vm.terms.reservation), (vec![of("f1", 100)], mbit(100)));
    assert_eq!((a.minimums.len(), a.terms.reservation), (0, None));
    assert_eq!((b.minimums.clone(), b.terms.reservation), (vec![of("f2", 200)], mbit(300)), "within the class's own");
    let host = parse(&functions_at("min_rate = \"100Mbit/s\"", "", "")).unwrap();
    assert!(host.classes_of(&host.uplinks[0]).is_empty(), "inward there is none");
}

#[test]
fn minimum_rates_that_cannot_be_kept_are_refused_with_the_arithmetic() {
    let of = |first: &str, second: &str, more: &str| {
        let errors = Host::parse(&functions_at(first, second, more), Path::new("/h")).unwrap_err();
        let [error] = &errors.list[..] else { panic!("{errors}") };
        format!("{}: {}", error.key, error.what)
    };
    let [most, one] = ["min_rate = \"500Mbit/s\"", "min_rate = \"251Mbit/s\""];
    assert_eq!(
        of(most, one, ""),
        "port.min_rate: 500Mbit/s + 251Mbit/s = 751Mbit/s are reserved on up, and 75 % of its slowest link may be: 750Mbit/s of the 1Gbit/s of up"
    );
    assert_eq!(
        of(most, "", &class("nfs", "reservation = \"300Mbit/s\"")),
        "port.min_rate: 300Mbit/s + 500Mbit/s = 800Mbit/s are reserved on up, and 75 % of its slowest link may be: 750Mbit/s of the 1Gbit/s of up"
    );
    assert_eq!(
        of(most, "", &class("vm", "limit = \"400Mbit/s\"")),
        "port.min_rate: with it 500Mbit/s are reserved for ports of class vm, which may send 400Mbit/s (limit)"
    );
    assert_eq!(
        of(most, "", &class("vm", "port_limit = \"400Mbit/s\"")),
        "port.min_rate: a port of class vm may send at most 400Mbit/s (port_limit)"
    );
    let shaped = format!("{most}\nsend_average = \"400Mbit/s\"");
    assert_eq!(of(&shaped, "", ""), "port.min_rate: it may send at most 400Mbit/s (send_average)");
    let error = |text: String| Host::parse(&text, Path::new("/h")).unwrap_err().list[0].what.clone();
    let text = functions_at(most, "", "");
    assert_eq!(
        error(text.replace("rate = \"1Gbit/s\"\n", "")),
        "uplink up has no rate, and a reservation is a part of it: give it the link's rate"
    );
    assert_eq!(error(text.replace("uplink = \"up\"\n", "")), "card nic has no uplink, of which it would be a part");
    let queues = text.replace("kind = \"null\"\nrate = \"1Gbit/s\"", "kind = \"tap\"\nqueues = 2");
    assert_eq!(error(queues), "uplink up has no rate, and a reservation is a part of it: give it the link's rate");
    assert!(error(function(1, most)).contains("only a port at a card's function has this"));
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

#[test]
fn a_function_s_address_changes_while_its_vm_runs_and_another_port_s_does_not() {
    let same = |one: &str, other: &str| parse(one).unwrap().ports[0].is_same_adapter(&parse(other).unwrap().ports[0]);
    let other = "52:54:00:12:34:99";
    assert!(same(CARD, &CARD.replace("52:54:00:12:34:01", other)));
    assert!(!same(PORT, &PORT.replace("52:54:00:12:34:01", other)));
    let alone = CARD.split("card =").next().unwrap();
    assert!(same(CARD, alone), "it becomes a card of its own");
}

#[test]
fn a_mirror_has_its_ports_and_a_port_that_is_its_own() {
    let up = |name: &str| format!("[[uplink]]\nname = \"{name}\"\nkind = \"null\"\n");
    let mirror = |name: &str, more: &str| format!("[[mirror]]\nname = \"{name}\"\n{more}\n");
    let file = |mirrors: &str| format!("{}{}{GUESTS}{mirrors}", up("up"), up("out"));
    let path = Path::new("/etc/nicety/host.toml");
    let host = Host::parse(
        &file(
            &(mirror(
                "one",
                "groups = \"storage\"\nuplinks = \"up\"\nto = \"vm2\"\ndirection = \"egress\"\nrate = \"2Gbit/s\"",
            ) + &mirror("two", "ports = \"vm1,vm1\"\nto = \"out\"")),
        ),
        path,
    )
    .unwrap();
    let [one, two] = &host.mirrors[..] else { panic!("two mirrors") };
    assert_eq!(
        (&one.ports[..], &one.uplinks[..], one.to.as_str()),
        (&["vm1".to_owned()][..], &["up".to_owned()][..], "vm2")
    );
    assert_eq!((one.direction, one.rate.to_string()), (MirrorDirection::Egress, "2Gbit/s".to_owned()));
    assert_eq!(
        (&two.ports[..], two.direction, two.rate.to_string()),
        (&["vm1".to_owned()][..], MirrorDirection::Both, "1Gbit/s".to_owned())
    );
    let error = |mirrors: &str| {
        let errors = Host::parse(&file(mirrors), path).unwrap_err();
        errors.list[0].to_string().split(" (allowed").next().unwrap().to_owned()
    };
    let one = |more: &str| mirror("m", more);
    for (mirrors, what) in [
        (one("to = \"vm2\""), "mirror.ports: mirror \"m\" has no frames: say whose, by ports, groups or uplinks"),
        (one("ports = \"vm1\""), "mirror.to: it is missing from this [[mirror]]"),
        (one("ports = \"vm3\"\nto = \"vm2\""), "mirror.ports: there is no port \"vm3\"; did you mean \"vm1\"?"),
        (
            one("groups = \"storag\"\nto = \"vm2\""),
            "mirror.groups: there is no port group \"storag\"; did you mean \"storage\"?",
        ),
        (
            one("uplinks = \"u\"\nto = \"vm2\""),
            "mirror.uplinks: there is no uplink and no team \"u\"; did you mean \"up\"?",
        ),
        (
            one("ports = \"vm1\"\nto = \"ou\""),
            "mirror.to: there is no port and no uplink \"ou\"; did you mean \"out\"?",
        ),
        (one("ports = \"vm1,vm2\"\nto = \"vm2\""), "mirror.to: vm2 would get copies of what it gets: a loop"),
        (one("uplinks = \"up\"\nto = \"up\""), "mirror.to: up would get copies of what it gets: a loop"),
        (
            one("ports = \"vm1\"\nto = \"vm2\"") + &mirror("n", "ports = \"vm2\"\nto = \"out\""),
            "mirror.to: mirror n copies the frames of vm2: copies are not copied again",
        ),
        (
            one("ports = \"vm1\"\nto = \"out\"") + &mirror("n", "uplinks = \"up\"\nto = \"out\""),
            "mirror.to: out gets the copies of mirror m already, and gets nothing else",
        ),
        (
            one("ports = \"vm1\"\nto = \"out\"") + &one("uplinks = \"up\"\nto = \"vm2\""),
            "mirror.name: there is a mirror \"m\" already",
        ),
        (
            one("ports = \"vm1\"\nto = \"up\"") + &class("nfs", ""),
            "mirror.to: uplink up has I/O control, and would have copies alone: leave its classes and inward_rate out",
        ),
        (
            one("ports = \"vm1\"\nto = \"t1\"") + &teamed(),
            "mirror.to: uplink t1 is a member of team both: copies go to an uplink that is in no team",
        ),
        (
            one("ports = \"vm1\"\nto = \"both\"") + &teamed(),
            "mirror.to: both is a team: copies go to a port, or to an uplink that is in no team",
        ),
        (
            one("uplinks = \"t1\"\nto = \"vm2\"") + &teamed(),
            "mirror.uplinks: uplink t1 is a member of team both: name the team",
        ),
        (
            one("ports = \"vm1\"\nto = \"q\"") + "[[uplink]]\nname = \"q\"\nkind = \"querier\"\n",
            "mirror.to: uplink q is a querier, which reads no copies",
        ),
        (
            one("ports = \"vm1\"\nto = \"vm2\"\nrate = \"0Mbit/s\""),
            "mirror.rate: `0Mbit/s` is no rate: it must be more than 0, such as 100Mbit/s",
        ),
    ] {
        assert_eq!(error(&mirrors), what);
    }
    let its_own = |number| {
        let uplink = format!("[[uplink]]\nname = \"o{number}\"\nkind = \"null\"\n");
        mirror(&format!("m{number}"), &format!("ports = \"vm1\"\nto = \"o{number}\"")) + &uplink
    };
    let many: String = (0..17).map(its_own).collect();
    assert_eq!(error(&many), "mirror: a switch has at most 16 mirrors");
    let team = one("uplinks = \"both\"\nto = \"vm2\"") + &teamed();
    assert_eq!(Host::parse(&file(&team), path).unwrap().mirrors[0].uplinks, ["both"]);
}

/// A team of one uplink.
fn teamed() -> String {
    "[[uplink]]\nname = \"t1\"\nkind = \"pair\"\nsocket = \"t1.sock\"\n[[team]]\nname = \"both\"\nmembers = \"t1\"\nmode = \"802.3ad\"\n"
        .to_owned()
}

#[test]
fn the_page_is_for_this_machine_alone() {
    let page = |text: &str| parse(&format!("[daemon]\npage = \"{text}\"\n")).map(|host| host.daemon.page.unwrap());
    for (text, shown) in [
        ("127.0.0.1:8642", "http://127.0.0.1:8642/"),
        ("127.9.9.9:1", "http://127.9.9.9:1/"),
        ("[::1]:65535", "http://[::1]:65535/"),
        ("/run/nicety/page.sock", "/run/nicety/page.sock"),
    ] {
        assert_eq!(page(text).unwrap().to_string(), shown);
    }
    for (text, why) in [
        ("0.0.0.0:8642", "0.0.0.0 is not this machine alone: the page asks nobody who they are."),
        ("192.0.2.1:80", "192.0.2.1 is not this machine alone"),
        ("[::]:80", ":: is not this machine alone"),
        ("localhost:8642", "\"localhost:8642\" is no address with a port, and no absolute path"),
        ("127.0.0.1", "\"127.0.0.1\" is no address with a port"),
        ("127.0.0.1:0", "port 0 is none"),
        ("page.sock", "\"page.sock\" is no address with a port, and no absolute path"),
    ] {
        let error = page(text).unwrap_err().list[0].to_string();
        assert!(error.starts_with(&format!("daemon.page: {why}")), "{error}");
    }
    let long = format!("/{}", "x".repeat(200));
    assert!(page(&long).unwrap_err().list[0].to_string().contains("has 201 bytes, and the system's limit is 107"));
    let taken = parse("[daemon]\ncontrol = \"/run/nicety/one.sock\"\npage = \"/run/nicety/one.sock\"\n").unwrap_err();
    assert!(taken.list[0].to_string().starts_with("daemon.page: "), "{taken}");
    assert_eq!(parse("[daemon]\n").unwrap().daemon.page, None, "off by default");
}
