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
    let lines: Vec<String> = lacks.lines().into_iter().map(str::to_owned).collect();
    let with = format!("{SHIPPED}\n[Service]\n{}\n", lines.join("\n"));
    let still = super::lacks(&host, &Unit::from_text("nicety.service", &with));
    assert!(lines.is_empty() || still.is_none(), "{still:?}");
    lines
}

const FT: &str = "[ft]\nlisten = \"unix:/run/nicety/ft.sock\"\nkey = \"/etc/nicety/ft.key\"\n";

const TUNNEL: &str = "[[uplink]]\nkind = \"vxlan\"\nvnis = \"10=5010\"\n";

/// A port, and its VM with these keys.
fn vm(keys: &str) -> String {
    format!("{}\n[[vm]]\nname = \"web\"\nports = \"vm1\"\n{keys}\n", port(SOCKET).replace("e1000", "virtio-net"))
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
        (
            "",
            format!(
                "{FT}lease = \"/var/lib/nicety\"\n{}",
                vm("qmp = \"/run/qemu/vm1.qmp\"\npeer = \"unix:/run/nicety/far.sock\"")
            ),
        ),
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
        (
            "page = \"127.0.0.1:80\"",
            String::new(),
            &[
                "AmbientCapabilities=CAP_NET_BIND_SERVICE",
                "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
                "IPAddressAllow=localhost",
                inet,
            ][..],
        ),
        ("page = \"[::1]:8642\"", String::new(), &["IPAddressAllow=localhost", "RestrictAddressFamilies=AF_INET6"]),
        ("", format!("{ft}listen = \"127.0.0.1:7001\"\n"), &["IPAddressAllow=localhost", inet]),
        ("", format!("{ft}listen = \"10.0.0.1:7001\"\n"), &["IPAddressAllow=any", both]),
        ("", format!("{ft}listen = \"[fd00::1]:7001\"\n"), &["IPAddressAllow=any", both]),
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
        (
            "",
            format!("{TUNNEL}address = \"10.0.0.1\"\npeers = \"10.0.0.2,10.0.0.3\"\n"),
            &["IPAddressAllow=10.0.0.2", "IPAddressAllow=10.0.0.3", inet],
        ),
        (
            "",
            format!("{TUNNEL}address = \"fd00::1\"\npeers = \"fd00::2\"\nudp_port = 80\n"),
            &[
                "AmbientCapabilities=CAP_NET_BIND_SERVICE",
                "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
                "IPAddressAllow=fd00::2",
                "RestrictAddressFamilies=AF_INET6",
            ],
        ),
        ("", port("socket = \"/srv/vms/vm1.sock\""), &["ReadWritePaths=/srv/vms"]),
        ("", port("socket = \"/home/you/vm1.sock\""), &["BindPaths=/home/you", "ProtectHome=tmpfs"]),
        ("", port("socket = \"/tmp/vms/vm1.sock\""), &["BindPaths=/tmp/vms"]),
        ("", port("socket = \"/srv/my 5% vms/vm1.sock\""), &["ReadWritePaths=\"/srv/my 5%% vms\""]),
        (
            "",
            port(&format!("{SOCKET}\nowner = \"daemon\"")),
            &["AmbientCapabilities=CAP_CHOWN", "CapabilityBoundingSet=CAP_CHOWN"],
        ),
        ("folders = \"/srv/captures\"", String::new(), &["ReadWritePaths=-/srv/captures"]),
        ("", format!("{FT}lease = \"/mnt/shared\"\n"), &["ReadWritePaths=-/mnt/shared"]),
        ("", format!("{FT}etcd = \"http://10.0.0.5:2379\"\n"), &["IPAddressAllow=10.0.0.5", inet]),
        (
            "",
            format!("{FT}etcd = \"https://10.0.0.5:2379,https://etcd2:2379\"\netcd_ca = \"/home/you/ca.pem\"\n"),
            &[
                "BindReadOnlyPaths=/home/you",
                "IPAddressAllow=10.0.0.5",
                "IPAddressAllow=any",
                "ProtectHome=tmpfs",
                inet,
                both,
            ],
        ),
        (
            "",
            format!("{FT}lease = \"/var/lib/nicety\"\n{}", vm("qmp = \"/home/you/vm1.qmp\"\npeer = \"10.0.0.2:7001\"")),
            &["BindReadOnlyPaths=/home/you", "IPAddressAllow=10.0.0.2", "ProtectHome=tmpfs", inet],
        ),
        ("", "[[uplink]]\nkind = \"capture\"\nfile = \"/srv/all.pcapng\"\n".to_owned(), &["ReadWritePaths=/srv"]),
    ] {
        assert_eq!(lines(daemon, &rest), wanted, "{daemon} {rest}");
    }
}

#[test]
fn a_socket_s_group_must_be_one_of_the_unit_s_user() {
    let unit = |more: &str| {
        Unit::from_text(
            "a.service",
            &format!("[Service]\nUser=daemon\nGroup=daemon\nRuntimeDirectory=nicety\nStateDirectory=nicety\n{more}"),
        )
    };
    let host = host("", &port(&format!("{SOCKET}\ngroup = \"bin\"")));
    let found = lacks(&host, &unit("")).unwrap();
    let (why, lines) =
        ("port vm1: group = \"bin\": daemon is not in it".into(), vec!["SupplementaryGroups=bin".into()]);
    assert_eq!(found.all, [Lack { why, lines }]);
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
    assert!(found.lines().is_empty(), "{found:?}");
    assert_eq!(found.all.len(), 3, "control, state, socket: {found:?}");
    let why = &found.all[0].why;
    assert!(why.contains("/etc/nicety/nicety-switch0.sock") && why.ends_with("name a place in /run/nicety"), "{why}");
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

/// The reasons why a unit with these settings does not serve this socket.
fn whys(settings: &str, socket: &str) -> Vec<String> {
    let unit = Unit::from_text("nicety@lan.service", &format!("{SHIPPED}\n[Service]\n{settings}\n"));
    let found = lacks(&host("", &port(&format!("socket = \"{socket}\""))), &unit);
    found.into_iter().flat_map(|lacks| lacks.all).map(|lack| lack.why).collect()
}

#[test]
fn an_admin_s_own_settings_are_read_as_systemd_reads_them() {
    for settings in [
        "ReadWritePaths=-/srv/vms",
        "ReadWritePaths='/srv/vms' /srv/other",
        "ReadWritePaths=/srv",
        "ProtectSystem=full",
        "ProtectSystem=no",
        "ProtectSystem=False",
        "BindPaths=/data:/srv",
        "StateDirectory=x\nReadWritePaths=\nReadWritePaths=/srv/%p\nReadWritePaths=/srv/vms",
        "ReadOnlyPaths=/srv\nReadWritePaths=/srv/vms",
    ] {
        assert_eq!(whys(settings, "/srv/vms/vm1.sock"), [""; 0], "{settings}");
    }
    for (settings, socket, why) in [
        ("ReadWritePaths=/srv\nReadWritePaths=", "/srv/vms/vm1.sock", "read-only for the unit (ProtectSystem=)"),
        ("ReadWritePaths=/srv\nReadOnlyPaths=/srv/vms", "/srv/vms/vm1.sock", "read-only for the unit (ReadOnlyPaths=)"),
        ("ProtectHome=read-only", "/home/you/vm1.sock", "read-only for the unit (ProtectHome=)"),
        ("InaccessiblePaths=/run/nicety/secret", "/run/nicety/secret/vm1.sock", "does not see"),
        ("PrivateTmp=disconnected", "/tmp/vms/vm1.sock", "does not see /tmp/vms (PrivateTmp=)"),
    ] {
        let found = whys(settings, socket);
        assert!(found.len() == 1 && found[0].contains(why), "{settings}: {found:?}");
    }
    assert_eq!(whys("ReadWritePaths=/srv/%i /srv/%p", "/srv/lan/vm1.sock"), [""; 0]);
}

#[test]
fn a_folder_that_the_unit_s_user_may_not_enter_or_write_to_is_named() {
    let place = tempfile::tempdir().unwrap();
    let (shut, open) = (place.path().join("shut"), place.path().join("shut/open"));
    fs::create_dir_all(&open).unwrap();
    let mode =
        |path: &Path, mode| fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    let unit = Unit::from_text("a.service", "[Service]\nUser=daemon\n");
    let whys = |folder: &Path| {
        let socket = format!("socket = \"{}\"", folder.join("vm1.sock").display());
        let found = lacks(&host("", &port(&socket)), &unit).map(|lacks| lacks.all).unwrap_or_default();
        let found = found.into_iter().filter(|lack| lack.why.starts_with("port vm1"));
        found.map(|Lack { why, lines }| (why, lines.len())).collect::<Vec<_>>()
    };
    mode(place.path(), 0o755);
    mode(&shut, 0o755);
    mode(&open, 0o777);
    assert_eq!(whys(&open), []);
    let why = |does: &str, folder: &Path| {
        let folder = folder.display();
        [(format!("port vm1: socket: user daemon may not {does} {folder}: change its owner or mode (chown, chmod)"), 0)]
    };
    mode(&open, 0o755);
    assert_eq!(whys(&open), why("write to", &open));
    mode(&shut, 0o700);
    assert_eq!(whys(&open), why("enter", &shut));
}

#[test]
fn a_file_that_the_unit_s_user_may_not_read_is_named() {
    let place = tempfile::tempdir().unwrap();
    let key = place.path().join("ft.key");
    fs::write(&key, [7; 32]).unwrap();
    let mode =
        |path: &Path, mode| fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    mode(place.path(), 0o755);
    let unit = Unit::from_text("a.service", "[Service]\nUser=daemon\n");
    let whys = || {
        let ft = format!("[ft]\nkey = \"{}\"\n", key.display());
        let found = lacks(&host("", &ft), &unit).map(|lacks| lacks.all).unwrap_or_default();
        found.into_iter().map(|lack| lack.why).filter(|why| why.starts_with("ft.key")).collect::<Vec<_>>()
    };
    mode(&key, 0o644);
    assert_eq!(whys(), [""; 0]);
    mode(&key, 0o600);
    let shown = key.display();
    let why = format!("ft.key: user daemon may not read {shown}: change its group or mode (chgrp, chmod)");
    assert_eq!(whys(), [why]);
}

#[test]
fn a_process_is_the_unit_s_by_its_control_group() {
    let of = |groups: &str| is_in_groups(groups, "nicety@lan.service");
    // cgroups(7): version 2, and version 1.
    assert!(of("0::/system.slice/system-nicety.slice/nicety@lan.service\n"));
    assert!(of("12:pids:/system.slice/nicety@lan.service\n1:name=systemd:/system.slice/nicety@lan.service\n"));
    assert!(
        !of("0::/user.slice/user-0.slice/session-1.scope\n") && !of("0::/system.slice/nicety.service\n") && !of("")
    );
}

#[test]
fn drop_ins_of_all_services_and_of_set_property_count() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("usr/lib/systemd/system/nicety.service", SHIPPED);
    let of = || Unit::of(Path::new("/etc/nicety/host.toml"), root.path()).unwrap();
    write("run/systemd/system/service.d/10-all.conf", "[Service]\nReadWritePaths=/srv\n");
    assert!(of().keeps_read_only(Path::new("/srv")).is_none());
    // A unit's own one of that name takes its place.
    write("etc/systemd/system/nicety.service.d/10-all.conf", "[Service]\n");
    assert!(of().keeps_read_only(Path::new("/srv")).is_some());
    write(
        "etc/systemd/system.control/nicety.service.d/50-IPAddressAllow.conf",
        "[Service]\nIPAddressAllow=localhost\n",
    );
    assert!(of().words("IPAddressAllow").eq(["localhost"]));
}
