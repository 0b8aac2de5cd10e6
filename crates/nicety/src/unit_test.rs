use super::*;
use nicety_host::Host;

/// The package's unit.
const SHIPPED: &str = include_str!("../../../xtask/deb/nicety.service");

fn shipped() -> Unit {
    Unit::from_text("nicety.service", SHIPPED)
}

/// A host file in /etc/nicety, with the keys that the package's example has.
fn host(daemon: &str, rest: &str) -> Host {
    let text = format!(
        "[daemon]\ncontrol = \"/run/nicety/switch0.sock\"\nstate = \"/var/lib/nicety/host.state\"\n{daemon}\n{rest}"
    );
    Host::parse(&text, Path::new("/etc/nicety/host.toml")).unwrap()
}

fn port(keys: &str) -> String {
    format!("[[port]]\nname = \"vm1\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:12:34:01\"\n{keys}\n")
}

const SOCKET: &str = "socket = \"/run/nicety/vm1.sock\"";

/// The drop-in's lines for a host file. With them the unit allows all.
#[track_caller]
fn lines(daemon: &str, rest: &str) -> Vec<String> {
    let host = host(daemon, rest);
    let Some(lacks) = lacks(&host, &shipped()) else { return Vec::new() };
    let with = format!("{SHIPPED}\n[Service]\n{}\n", lacks.lines.join("\n"));
    let still = super::lacks(&host, &Unit::from_text("nicety.service", &with));
    assert!(lacks.lines.is_empty() || still.is_none(), "{still:?}");
    lacks.lines
}

#[test]
fn the_shipped_unit_allows_these_keys_as_it_is() {
    for (daemon, rest) in [
        ("", port(SOCKET)),
        ("page = \"/run/nicety/page.sock\"", String::new()),
        ("folders = \"/var/lib/nicety\"", String::new()),
        ("", "[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\nqueues = 4\n".to_owned()),
        ("", "[[uplink]]\nkind = \"capture\"\nfile = \"/var/lib/nicety/all.pcapng\"\n".to_owned()),
        ("", "[[uplink]]\nkind = \"stream\"\nsocket = \"/srv/vms/qemu.sock\"\nrole = \"connect\"\n".to_owned()),
        ("", "[[uplink]]\nkind = \"querier\"\n[[uplink]]\nkind = \"null\"\n".to_owned()),
        ("", port("socket = \"/srv/vms/vm1.sock\"\nrole = \"connect\"")),
        ("", format!("[ft]\nlisten = \"unix:/run/nicety/ft.sock\"\nkey = \"/etc/nicety/ft.key\"\n{}", port(SOCKET))),
    ] {
        assert_eq!(lines(daemon, &rest), [""; 0], "{daemon} {rest}");
    }
}

#[test]
fn what_the_shipped_unit_does_not_allow_has_a_drop_in_with_which_it_does() {
    let ft = "[ft]\nkey = \"/etc/nicety/ft.key\"\n";
    let inet = "RestrictAddressFamilies=AF_INET";
    let both = "RestrictAddressFamilies=AF_INET AF_INET6";
    for (daemon, rest, wanted) in [
        ("page = \"127.0.0.1:8642\"", String::new(), &["IPAddressAllow=localhost", inet][..]),
        ("page = \"[::1]:8642\"", String::new(), &["IPAddressAllow=localhost", "RestrictAddressFamilies=AF_INET6"]),
        ("", format!("{ft}listen = \"127.0.0.1:7001\"\n"), &["IPAddressAllow=localhost", inet]),
        ("", format!("{ft}listen = \"10.0.0.1:7001\"\n"), &["IPAddressAllow=any", both]),
        (
            "",
            format!("{ft}{}", port(&format!("{SOCKET}\nft_peer = \"10.0.0.2:7001\""))),
            &["IPAddressAllow=10.0.0.2", inet],
        ),
        (
            "",
            format!("{ft}{}", port(&format!("{SOCKET}\nft_peer = \"[fd00::2]:7001\""))),
            &["IPAddressAllow=fd00::2", "RestrictAddressFamilies=AF_INET6"],
        ),
        ("", format!("{ft}{}", port(&format!("{SOCKET}\nft_peer = \"host2:7001\""))), &["IPAddressAllow=any", both]),
        (
            "",
            "[[uplink]]\nkind = \"xdp\"\ninterface = \"eth0\"\n".to_owned(),
            &[
                "AmbientCapabilities=CAP_BPF",
                "AmbientCapabilities=CAP_NET_RAW",
                "CapabilityBoundingSet=CAP_BPF",
                "CapabilityBoundingSet=CAP_NET_RAW",
                "LimitMEMLOCK=infinity",
                "RestrictAddressFamilies=AF_XDP",
                "SystemCallFilter=bpf",
            ],
        ),
        ("", port("socket = \"/srv/vms/vm1.sock\""), &["ReadWritePaths=/srv/vms"]),
        ("", port("socket = \"/home/you/vm1.sock\""), &["BindPaths=/home/you", "ProtectHome=tmpfs"]),
        ("", port("socket = \"/tmp/vms/vm1.sock\""), &["BindPaths=/tmp/vms"]),
        (
            "",
            port(&format!("{SOCKET}\nowner = \"daemon\"")),
            &["AmbientCapabilities=CAP_CHOWN", "CapabilityBoundingSet=CAP_CHOWN"],
        ),
        ("folders = \"/srv/captures\"", String::new(), &["ReadWritePaths=/srv/captures"]),
        ("", "[[uplink]]\nkind = \"capture\"\nfile = \"/srv/all.pcapng\"\n".to_owned(), &["ReadWritePaths=/srv"]),
    ] {
        assert_eq!(lines(daemon, &rest), wanted, "{daemon} {rest}");
    }
}

#[test]
fn a_socket_s_group_must_be_one_of_the_unit_s_user() {
    let unit = |more: &str| Unit::from_text("a.service", &format!("[Service]\nUser=daemon\nGroup=daemon\n{more}"));
    let host = host("", &port(&format!("{SOCKET}\ngroup = \"bin\"")));
    let found = lacks(&host, &unit("")).unwrap();
    assert_eq!(
        (&found.why[..], &found.lines[..]),
        (
            &["port vm1: group = \"bin\": daemon is not in it".to_owned()][..],
            &["SupplementaryGroups=bin".to_owned()][..]
        )
    );
    assert!(lacks(&host, &unit("SupplementaryGroups=adm bin")).is_none());
}

#[test]
fn what_would_lie_beside_the_host_file_is_to_be_placed_elsewhere_and_that_folder_is_not_opened() {
    let host = Host::parse(
        "[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n",
        Path::new("/etc/nicety/host.toml"),
    )
    .unwrap();
    let found = lacks(&host, &shipped()).unwrap();
    assert!(found.lines.is_empty(), "{found:?}");
    assert_eq!(found.why.len(), 3, "control, state, socket: {found:?}");
    assert!(
        found.why[0].contains("/etc/nicety/nicety-switch0.sock")
            && found.why[0].ends_with("name a place in /run/nicety")
    );
}

#[test]
fn a_unit_is_found_by_the_host_file_that_it_serves_and_read_with_its_drop_ins() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("usr/lib/systemd/system/nicety.service", SHIPPED);
    let template = SHIPPED.replace("/etc/nicety/host.toml", "/etc/nicety/%i.toml");
    write("usr/lib/systemd/system/nicety@.service", &template);
    let of = |host: &str| Unit::of(Path::new(host), root.path());
    assert_eq!(of("/etc/nicety/host.toml").unwrap().name, "nicety.service");
    assert_eq!(of("/etc/nicety/lan.toml").unwrap().name, "nicety@lan.service");
    assert!(of("/home/you/host.toml").is_none() && of("/etc/nicety/a/b.toml").is_none());
    assert!(!of("/etc/nicety/host.toml").unwrap().has_family("AF_XDP"));
    // The admin's file replaces the one of the same name, all are read by name, and an empty value takes back.
    write("usr/lib/systemd/system/nicety.service.d/a.conf", "[Service]\nRestrictAddressFamilies=AF_XDP\n");
    assert!(of("/etc/nicety/host.toml").unwrap().has_family("AF_XDP"));
    write("etc/systemd/system/nicety.service.d/a.conf", "[Service]\nIPAddressDeny=\n");
    let unit = of("/etc/nicety/host.toml").unwrap();
    assert!(!unit.has_family("AF_XDP") && unit.words("IPAddressDeny").next().is_none());
    write("etc/systemd/system/nicety@.service.d/b.conf", "[Service]\nSupplementaryGroups=bin\n");
    write("etc/systemd/system/nicety@lan.service.d/c.conf", "[Service]\nRestrictAddressFamilies=\\\n  AF_XDP\n");
    let unit = of("/etc/nicety/lan.toml").unwrap();
    assert!(unit.has_family("AF_XDP") && unit.words("SupplementaryGroups").eq(["bin"]));
}

#[test]
fn a_drop_in_is_printed_complete() {
    let host = host("", &port("socket = \"/srv/vms/vm1.sock\""));
    let text = lacks(&host, &shipped()).unwrap().to_string();
    assert_eq!(
        text,
        "nicety.service does not allow all that this host file asks for\n  \
         port vm1: socket: /srv/vms is read-only for the unit (ProtectSystem=)\n\
         This drop-in allows it, as root:\n\
         mkdir -p /etc/systemd/system/nicety.service.d\n\
         cat >>/etc/systemd/system/nicety.service.d/host-file.conf <<'END'\n[Service]\nReadWritePaths=/srv/vms\nEND\n\
         systemctl daemon-reload && systemctl restart nicety.service"
    );
}
