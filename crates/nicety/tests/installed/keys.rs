//! Each key of the host file under the packaged unit: as it is shipped, or with the drop-in that `nicety serve --check` prints.

use std::collections::BTreeSet;

use nicety_guests::{Guest, Suite};
use nicety_host::Form;
use toml::{Table, Value};

use crate::system::{DAEMON, SOON, booted, contains, logs, run};
use crate::well;

/// What the unit allows as it is shipped.
const SHIPPED: &str = include_str!("keys.toml");

/// An entry of a host file.
fn port(name: &str, last: u8, keys: &str) -> String {
    let adapter = if keys.contains("role = \"connect\"") { "virtio-net" } else { "e1000" };
    format!("[[port]]\nname = \"{name}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:4e:04:0{last}\"\n{keys}\n")
}

/// A host file whose other keys the unit allows.
fn host(daemon: &str, rest: &str) -> String {
    let own = |key: &str, value: &str| {
        let is_there = daemon.lines().any(|line| line.starts_with(&format!("{key} = ")));
        if is_there { String::new() } else { format!("{key} = \"{value}\"\n") }
    };
    let [control, state] = [own("control", "/run/nicety/keys.sock"), own("state", "/var/lib/nicety/keys.state")];
    format!("[daemon]\n{control}{state}{daemon}\n{rest}")
}

/// Keys that the unit does not allow as it is shipped, and that do not disturb each other.
struct Forbidden {
    host: String,
    /// Shell, beforehand.
    before: &'static str,
    /// The beginnings of the sentences of `--check`, one for each key.
    whys: &'static [&'static str],
    /// The drop-in's lines.
    drop_in: &'static [&'static str],
    /// Words of the journal when the unit starts without the drop-in.
    without: &'static str,
    /// Shell, with the drop-in: each line shows a key in force.
    seen: &'static [&'static str],
}

const KEY: &str = "printf 0123456789abcdef0123456789abcdef >/etc/nicety/ft.key; chown root:nicety /etc/nicety/ft.key; chmod 640 /etc/nicety/ft.key";

/// Its certificates are their own CA (`certificate`).
const ETCD: &str = "etcd = \"https://127.0.0.1:2379\"\netcd_user = \"nicety\"\netcd_password = \"/etc/nicety/etcd.password\"\n\
                    etcd_ca = \"/etc/nicety/etcd.pem\"\netcd_certificate = \"/etc/nicety/etcd.pem\"\netcd_key = \"/etc/nicety/etcd.key\"\n";

/// Writes a certificate and its key into the guest.
fn certificate(guest: &mut Guest) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    write(guest, "/etc/nicety/etcd.pem", &made.cert.pem());
    write(guest, "/etc/nicety/etcd.key", &made.signing_key.serialize_pem());
}

/// A VM that is to be protected: other daemons are listened to for one. Its QEMU and its peer are not there.
fn protected(folder: &str) -> String {
    format!(
        "[[port]]\nname = \"vm9\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:4e:03:09\"\nsocket = \"{folder}/vm9.sock\"\n\
         [[vm]]\nname = \"web\"\nports = \"vm9\"\nqmp = \"{folder}/web.qmp\"\npeer = \"unix:{folder}/elsewhere.sock\"\n"
    )
}

fn tcp() -> Forbidden {
    let vm = port("vm1", 1, "socket = \"/run/nicety/vm1.sock\"") + &protected("/run/nicety");
    Forbidden {
        host: host(
            "page = \"127.0.0.1:80\"",
            &format!("[ft]\nlisten = \"127.0.0.1:7001\"\nkey = \"/etc/nicety/ft.key\"\n{ETCD}{vm}"),
        ),
        before: "printf secret >/etc/nicety/etcd.password; chown root:nicety /etc/nicety/etcd.*; chmod 640 /etc/nicety/etcd.*",
        whys: &["daemon.page = ", "ft.listen = ", "ft.etcd: "],
        drop_in: &[
            "AmbientCapabilities=CAP_NET_BIND_SERVICE",
            "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
            "IPAddressAllow=localhost",
            "RestrictAddressFamilies=AF_INET",
        ],
        without: "the page is not served",
        seen: &[
            "printf 'GET / HTTP/1.1\\r\\nhost: 127.0.0.1\\r\\nconnection: close\\r\\n\\r\\n' >request; \
             bash -c 'exec 3<>/dev/tcp/127.0.0.1/80; cat request >&3; head -n1 <&3' | grep 'HTTP/1.1 200'",
            "ss -ltn | grep -F 127.0.0.1:7001",
        ],
    }
}

fn tunnel() -> Forbidden {
    let uplink = "[[uplink]]\nkind = \"vxlan\"\naddress = \"127.0.0.1\"\nudp_port = 4790\npeers = \"127.0.0.2\"\ntrunk = \"10\"\n\
                  vnis = \"10=5010\"\nmtu = 1550\n";
    let flows = "[[flow_export]]\nname = \"watch\"\ncollector = \"udp:127.0.0.1:4739\"\ndomain = 7\nports = \"vm1\"\n\
                 groups = \"web\"\nuplinks = \"vxlan\"\nsampling = 100\nactive_timeout = \"60s\"\nidle_timeout = \"15s\"\n\
                 memory = \"1MiB\"\n[[port_group]]\nname = \"web\"\nvlan = 10\n";
    let ports = [
        port("vm1", 1, "socket = \"/run/nicety/vm1.sock\"\nvlan = 10"),
        port("vm2", 2, "socket = \"/run/nicety/vm2.sock\"\nport_group = \"web\""),
    ];
    Forbidden {
        host: host("", &format!("{uplink}{flows}{}", ports.concat())),
        before: "",
        whys: &["flow_export watch: collector: ", "uplink vxlan: peers: "],
        drop_in: &["IPAddressAllow=localhost", "RestrictAddressFamilies=AF_INET"],
        without: "binding a UDP socket to 127.0.0.1:4790",
        seen: &[
            "ss -lun | grep -F 127.0.0.1:4790",
            // A collector comes: the templates reach it.
            "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Proto => \"udp\", LocalAddr => \"127.0.0.1:4739\") or die; alarm 40; \
             $s->recv($d, 2000); print unpack(\"n\", $d)' | grep -x 10",
            "nicety ports vxlan --control /run/nicety/keys.sock | grep VXLAN",
        ],
    }
}

fn fabric() -> Forbidden {
    Forbidden {
        host: host(
            "",
            &format!(
                "[fabric]\nname = \"prod\"\nhost = \"node-1\"\ntunnel = \"fabric\"\n{ETCD}\
                 [[uplink]]\nkind = \"vxlan\"\nname = \"fabric\"\naddress = \"127.0.0.1\"\n"
            ),
        ),
        before: "printf secret >/etc/nicety/etcd.password; chown root:nicety /etc/nicety/etcd.*; chmod 640 /etc/nicety/etcd.*",
        whys: &["uplink fabric: [fabric] tunnel: ", "fabric.etcd: "],
        drop_in: &[
            "IPAddressAllow=any",
            "IPAddressAllow=localhost",
            "RestrictAddressFamilies=AF_INET",
            "RestrictAddressFamilies=AF_INET AF_INET6",
        ],
        without: "binding a UDP socket to 127.0.0.1:4789",
        seen: &["ss -lun | grep -F 127.0.0.1:4789"],
    }
}

fn folders() -> Forbidden {
    let listens = "[[uplink]]\nkind = \"pair\"\nname = \"near\"\nsocket = \"/srv/vms/near.sock\"\nvlan = 11\n\
                   [[uplink]]\nkind = \"stream\"\nname = \"far\"\nsocket = \"/srv/vms/far.sock\"\nvlan = 12\n\
                   [[uplink]]\nkind = \"capture\"\nname = \"all\"\nfile = \"/srv/vms/all.pcapng\"\nvlan = 13\n";
    let ft = "[ft]\nlisten = \"unix:/srv/vms/ft.sock\"\nkey = \"/etc/nicety/ft.key\"\nlease = \"/srv/my 5% more\"\n";
    let daemon = "control = \"/srv/vms/control.sock\"\nstate = \"/srv/vms/host.state\"\npage = \"/srv/vms/page.sock\"\nfolders = \"/srv/my 5% more\"";
    let vm = port("vm1", 1, "socket = \"/srv/vms/vm1.sock\"") + &protected("/srv/vms");
    Forbidden {
        host: host(daemon, &format!("{listens}{ft}{vm}")),
        before: "install -d -o nicety -g nicety /srv/vms '/srv/my 5% more'",
        whys: &[
            "daemon.control = ",
            "daemon.state = ",
            "daemon.page: ",
            "ft.listen: ",
            "ft.lease: ",
            "port vm1: socket: ",
            "uplink near: socket: ",
            "uplink far: socket: ",
            "uplink all: file: ",
            "daemon.folders: ",
        ],
        drop_in: &["ReadWritePaths=\"-/srv/my 5%% more\"", "ReadWritePaths=/srv/vms"],
        without: "Read-only file system",
        seen: &[
            "for name in control page ft vm1 near far; do test -S /srv/vms/$name.sock || exit 1; done",
            "test -s /srv/vms/all.pcapng",
            "nicety port set vm1 mtu_limit=1400 --control /srv/vms/control.sock; test -s /srv/vms/host.state",
            "nicety uplink add more kind=capture vlan=14 'file=/srv/my 5% more/more.pcapng' --control /srv/vms/control.sock; \
             test -s '/srv/my 5% more/more.pcapng'",
        ],
    }
}

fn home() -> Forbidden {
    let connects = "[[uplink]]\nkind = \"pair\"\nname = \"near\"\nsocket = \"/home/you/near.sock\"\nrole = \"connect\"\nvlan = 11\n\
                    [[uplink]]\nkind = \"stream\"\nname = \"far\"\nsocket = \"/home/you/far.sock\"\nrole = \"connect\"\nvlan = 12\n";
    let ft = "[ft]\nkey = \"/home/you/ft.key\"\n";
    let ports = [
        port("vm1", 1, "socket = \"/home/vms/vm1.sock\"\nrom = \"/home/you/e1000.rom\""),
        port("vm2", 2, "socket = \"/home/you/vmm.sock\"\nrole = \"connect\""),
        port("vm3", 3, "socket = \"/tmp/vms/vm3.sock\""),
    ];
    Forbidden {
        host: host("", &format!("{connects}{ft}{}", ports.concat())),
        before: "install -d /home/you; install -d -o nicety -g nicety /home/vms /tmp/vms; cp /etc/nicety/e1000.rom /home/you; \
                 install -m 640 -g nicety /etc/nicety/ft.key /home/you",
        whys: &[
            "ft.key: ",
            "port vm1: socket: ",
            "port vm1: rom: ",
            "port vm2: socket: ",
            "port vm3: socket: ",
            "uplink near: socket: ",
            "uplink far: socket: ",
        ],
        drop_in: &["BindPaths=/home/vms", "BindPaths=/tmp/vms", "BindReadOnlyPaths=/home/you", "ProtectHome=tmpfs"],
        without: "ft.key",
        seen: &[
            "test -S /home/vms/vm1.sock",
            "test -S /tmp/vms/vm3.sock",
            "nicety ports vm2 --control /run/nicety/keys.sock",
        ],
    }
}

fn accounts() -> Forbidden {
    let ports = [
        port("vm1", 1, "socket = \"/run/nicety/vm1.sock\"\nowner = \"daemon\""),
        port("vm2", 2, "socket = \"/run/nicety/vm2.sock\"\ngroup = \"bin\""),
    ];
    let sockets = "[sockets]\nowner = \"games\"\ngroup = \"tty\"\n";
    Forbidden {
        host: host(
            "control_owner = \"games\"\ncontrol_group = \"tty\"",
            &format!("{sockets}{}{}", ports.concat(), port("vm3", 3, "socket = \"/run/nicety/vm3.sock\"")),
        ),
        before: "",
        whys: &["port vm1: owner = ", "port vm2: owner = ", "port vm3: owner = ", "daemon: control: owner = "],
        drop_in: &["AmbientCapabilities=CAP_CHOWN", "CapabilityBoundingSet=CAP_CHOWN"],
        without: "cannot be given to user games",
        seen: &[
            "stat -c '%U:%G' /run/nicety/vm1.sock | grep daemon:tty",
            "stat -c '%U:%G' /run/nicety/vm2.sock | grep games:bin",
            "stat -c '%U:%G' /run/nicety/vm3.sock | grep games:tty",
            "stat -c '%U:%G' /run/nicety/keys.sock | grep games:tty",
        ],
    }
}

fn group() -> Forbidden {
    Forbidden {
        host: host("", &port("vm1", 1, "socket = \"/run/nicety/vm1.sock\"\ngroup = \"bin\"")),
        before: "",
        whys: &["port vm1: group = "],
        drop_in: &["SupplementaryGroups=bin"],
        without: "bin",
        seen: &["stat -c '%U:%G %a' /run/nicety/vm1.sock | grep 'nicety:bin 660'"],
    }
}

/// Not tried in the guest: a user-mode kernel has no AF_XDP (CONFIG_XDP_SOCKETS), which is what is said there. `unit_test.rs` has the drop-in.
const XDP: &str = "[[uplink]]\nkind = \"xdp\"\ninterface = \"wire0\"\n";

/// The keys that a host file has, with their tables.
fn keys(text: &str) -> BTreeSet<(String, String)> {
    let mut keys = BTreeSet::new();
    let table: Table = text.parse().unwrap();
    for (name, value) in &table {
        let entries = match value {
            Value::Array(entries) => entries.clone(),
            one => vec![one.clone()],
        };
        let names = entries.iter().flat_map(|entry| entry.as_table().unwrap().keys().cloned());
        keys.extend(names.map(|key| (name.clone(), key)));
    }
    keys
}

#[test]
fn each_key_of_the_host_file_is_tried_under_the_packaged_unit() {
    let cases = [tcp(), tunnel(), fabric(), folders(), home(), accounts(), group()];
    let all: Vec<String> = [SHIPPED, XDP].map(str::to_owned).into_iter().chain(cases.map(|case| case.host)).collect();
    let tried: BTreeSet<_> = all.iter().flat_map(|text| keys(text)).collect();
    let known = nicety_host::KINDS.into_iter();
    let known = known.flat_map(|kind| kind.keys.iter().map(|key| (kind.name.to_owned(), key.name.to_owned())));
    let untried: Vec<_> = known.filter(|key| !tried.contains(key)).collect();
    assert!(untried.is_empty(), "write a case for {untried:?}: in keys.toml if the unit allows it as it is");
    // Each kind of uplink opens other things.
    let is_kind = |key: &&nicety_host::Key| key.name == "kind";
    let uplink = nicety_host::KINDS.into_iter().find(|kind| kind.name == "uplink").unwrap();
    let Form::Words(kinds) = &uplink.keys.iter().find(is_kind).unwrap().form else {
        panic!("kind is one of some words")
    };
    let is_tried = |kind: &str| all.iter().any(|text| text.contains(&format!("kind = \"{kind}\"")));
    let untried: Vec<_> = kinds.iter().filter(|kind| **kind != "none" && !is_tried(kind)).collect();
    assert!(untried.is_empty(), "write a case for an uplink of kind {untried:?}");
}

/// Writes a file in the guest.
fn write(guest: &mut Guest, path: &str, text: &str) {
    let first = format!("rm -f {path}");
    run(guest, &first);
    let lines: Vec<&str> = text.lines().collect();
    for piece in lines.chunks(60) {
        run(guest, &format!("cat >>{path} <<'END_OF_FILE'\n{}\nEND_OF_FILE", piece.join("\n")));
    }
}

/// Whether what runs has all that this host file has: `nicety export`.
#[track_caller]
fn runs(guest: &mut Guest, text: &str) {
    let host: Table = text.parse().unwrap();
    let control = host["daemon"]["control"].as_str().unwrap();
    let exported: Table = run(guest, &format!("nicety export --control {control}")).parse().unwrap();
    let name = |entry: &Value| entry.get("name").or(entry.get("kind")).cloned();
    for (table, value) in &host {
        let (wanted, found) = (entries(value), entries(&exported[table]));
        for entry in wanted {
            let same =
                found.iter().find(|found| name(found) == name(&entry)).unwrap_or_else(|| panic!("{table} {entry}"));
            for (key, value) in entry.as_table().unwrap() {
                assert_eq!(same.get(key), Some(value), "{table}.{key}");
            }
        }
    }
}

fn entries(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_else(|| vec![value.clone()])
}

/// An HTTP request by perl, which each Debian has. It prints the answer.
const REQUEST: &str = r#"use IO::Socket::UNIX; $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die "$!\n"; $n = length($ARGV[2]);
print $s "$ARGV[1] HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: $n\r\n\r\n$ARGV[2]"; print <$s>"#;

const RESTART: &str = "systemctl reset-failed nicety 2>/dev/null; systemctl restart nicety";

/// An HTTP request by a user.
fn asks(user: &str, control: &str, line: &str, body: &str) -> String {
    let user = format!("--reuid {user} --regid $(id -g {user}) --init-groups");
    format!("setpriv {user} perl /tmp/request.pl /run/nicety/{control}.sock '{line}' '{body}' 2>&1")
}

const TAP: &str = "{\"kind\":\"tap\",\"name\":\"evil0\",\"vlan\":99}";

/// Without keys for the control socket only root and the daemon's user connect.
fn closed_as_installed(guest: &mut Guest) {
    run(guest, &format!("usermod --append --groups nicety daemon; {RESTART}"));
    let denied = well(guest.run(&asks("daemon", "switch0", "GET /v1/ports", ""), SOON));
    assert!(denied.code != 0 && denied.text.contains("Permission denied"), "{}", denied.text);
    contains(&run(guest, &asks("root", "switch0", "POST /v1/uplinks", TAP)), "HTTP/1.1 201");
    run(guest, "ip link show evil0; nicety uplink remove evil0");
}

/// A user who may connect and has no right to change: the acceptor names nothing for him, and the daemon refuses.
fn refuses(guest: &mut Guest) {
    contains(&run(guest, &asks("nobody", "keys", "GET /v1/ports", "")), "HTTP/1.1 200");
    let host = "{\"text\":\"[[uplink]]\\nkind = \\\"tap\\\"\\nname = \\\"evil0\\\"\\n\"}";
    let port =
        "{\"name\":\"evil\",\"adapter\":\"e1000\",\"mac\":\"52:54:00:4e:05:01\",\"socket\":\"/run/nicety/evil.sock\"}";
    for (line, body) in [
        ("POST /v1/uplinks", TAP),
        ("POST /v1/ports", port),
        ("PATCH /v1/ports/vm1?cut_off=true", "{\"socket\":\"/run/nicety/evil.sock\"}"),
        ("PUT /v1/host", host),
    ] {
        contains(&run(guest, &asks("nobody", "keys", line, body)), "HTTP/1.1 403 Forbidden");
    }
    run(guest, "! test -e /run/nicety/evil.sock; ! ip link show evil0 2>/dev/null");
    let named = "journalctl --sync; journalctl -u nicety --no-pager | grep -E ' names |no user has named' | grep evil | grep -v 'user 0 ' || true";
    assert_eq!(run(guest, named).trim(), "", "it is refused before anything is opened");
}

fn as_shipped(guest: &mut Guest) {
    write(guest, "/etc/nicety/host.toml", SHIPPED);
    let checked = well(guest.run("nicety serve --check /etc/nicety/host.toml 2>&1", SOON));
    assert!(!checked.text.contains("does not allow"), "{}", checked.text);
    assert_eq!(checked.code, 0, "{}", checked.text);
    run(guest, &format!("{RESTART} || {{ journalctl -u nicety --no-pager | tail -n 30; exit 1; }}"));
    runs(guest, SHIPPED);
    let nicety = "nicety() { command nicety \"$@\" --control /run/nicety/keys.sock; }";
    for seen in [
        "for n in 0 1 2 3 4 5 6; do ip link show tap$n >/dev/null || exit 1; done; test $(ls -d /sys/class/net/tap0/queues/tx-* | wc -l) = 2",
        "for name in vm1 keys page; do stat -c '%U:%G %a' /run/nicety/$name.sock | grep -x 'nicety:nicety 666' || exit 1; done",
        "test -S /run/nicety/near.sock && test -S /run/nicety/ft.sock && test -s /var/lib/nicety/all.pcapng",
        &format!("test $(cat /proc/{DAEMON}/task/*/comm | grep -c '^worker') = 2"),
        "journalctl -u nicety --no-pager | grep -F 'sandbox = \"off\"'",
        "! command nicety ports --all | grep keys.sock",
        "perl /tmp/request.pl /run/nicety/page.sock 'GET /' '' | head -n1 | grep 200",
        // The group that may change.
        "setpriv --reuid daemon --regid daemon --clear-groups nicety port set vm2 buffer=3MiB --control /run/nicety/keys.sock; \
         nicety port set vm2 buffer=1MiB; test -s /var/lib/nicety/keys.state",
        "nicety uplink add more kind=capture vlan=99 file=/var/lib/nicety/more.pcapng; test -s /var/lib/nicety/more.pcapng",
    ] {
        run(guest, &format!("set -e; {nicety}; {seen}"));
    }
}

fn with_drop_in(guest: &mut Guest, case: &Forbidden) {
    let Forbidden { host, before, whys, drop_in, without, seen } = case;
    println!("{whys:?}");
    run(
        guest,
        &format!(
            "systemctl stop nicety; rm -rf /etc/systemd/system/nicety.service.d /var/lib/nicety/*; systemctl daemon-reload; {before}"
        ),
    );
    write(guest, "/etc/nicety/host.toml", host);
    let checked = well(guest.run("nicety serve --check /etc/nicety/host.toml", SOON));
    let printed = checked.text;
    assert_eq!(checked.code, 1, "{printed}");
    // Standard error comes last here.
    let (printed, _) = printed.split_once("\nnicety: ").unwrap_or((&printed, ""));
    for why in *whys {
        assert!(printed.contains(&format!("\n  {why}")), "{why}: {printed}");
    }
    let (_, script) = printed.split_once("\nThis drop-in allows it, as root:\n").unwrap_or_else(|| panic!("{printed}"));
    let (_, lines) = script.split_once("\n[Service]\n").unwrap();
    assert_eq!(lines.split_once("\nEND\n").unwrap().0.lines().collect::<Vec<_>>(), *drop_in);
    // Without it.
    run(guest, "date +%s >since");
    let started = well(guest.run(RESTART, SOON));
    assert_ne!(started.code, 0, "{}", started.text);
    let since = "nicety --since @$(cat since)";
    logs(guest, since, "does not allow all that the host file asks for");
    logs(guest, since, without);
    // With what was printed, as it was printed.
    write(guest, "drop-in.sh", script);
    let applied = well(guest.run("systemctl reset-failed nicety; sh -e drop-in.sh 2>&1", SOON));
    assert_eq!(applied.code, 0, "{}{}", applied.text, run(guest, "journalctl -u nicety --no-pager | tail -n 30"));
    run(guest, "nicety serve --check /etc/nicety/host.toml >checked 2>&1 || { cat checked; exit 1; }");
    runs(guest, host);
    for seen in *seen {
        run(guest, &format!("set -e; {seen} || {{ journalctl -u nicety --no-pager | tail -n 20; exit 1; }}"));
    }
}

/// An option ROM by PCI Firmware 3.0 section 5.1, for 8086:100e.
fn rom() -> String {
    let mut rom = vec![0_u8; 512];
    rom[..3].copy_from_slice(&[0x55, 0xaa, 1]);
    rom[0x18] = 0x40;
    rom[0x40..0x48].copy_from_slice(b"PCIR\x86\x80\x0e\x10");
    (rom[0x4a], rom[0x50], rom[0x55]) = (0x18, 1, 0x80);
    let octal: String = rom.iter().map(|byte| format!("\\{byte:o}")).collect();
    format!("printf '{octal}' >/etc/nicety/e1000.rom")
}

#[test]
fn keys_take_effect_under_the_packaged_unit_as_it_is_or_with_the_drop_in_that_check_prints() {
    let mut guest = booted(Suite::Trixie);
    let guest = &mut guest;
    run(guest, "apt-get -q install -y ./1.deb 2>&1; chmod 666 /dev/net/tun");
    run(guest, KEY);
    run(guest, &rom());
    certificate(guest);
    write(guest, "/tmp/request.pl", REQUEST);
    closed_as_installed(guest);
    as_shipped(guest);
    refuses(guest);
    for case in [tcp(), tunnel(), fabric(), folders(), home(), accounts(), group()] {
        with_drop_in(guest, &case);
    }
    println!("processors: {:?}", guest.cpu_time());
}
