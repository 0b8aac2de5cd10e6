//! Host files with mistakes, and one without.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::Signal;

use crate::book::root;
use crate::scratch::{HOST, Scratch, Served};

#[test]
fn a_bad_host_file_shows_every_mistake_with_its_line_and_ends_with_2() {
    let bad = "[switch]\nageing = \"5\"\n[[port]]\nname = \"vm 1\"\nadaptor = \"e1000\"\nmac = \"01:00:5e:00:00:01\"\nsocket = \"a\"\n";
    let scratch = Scratch::with(bad);
    for args in [&["serve"][..], &["serve", "--check"], &["attach", "vm1"], &["ports"]] {
        let ended = scratch.run(args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{args:?}: {ended:?}");
        let starts = [
            "host.toml:2: switch.ageing: \"5\": its unit must be s (allowed: \"10s\" to \"1000000s\")",
            "host.toml:3: port.adapter: it is missing from this [[port]]",
            "host.toml:4: port.name: \"vm 1\" has a ' '",
            "host.toml:5: port.adaptor: there is no such key in [[port]]; did you mean \"adapter\"?",
            "host.toml:6: port.mac: 01:00:5e:00:00:01 is not the address of one station",
            "5 mistakes in the host file",
        ];
        let lines: Vec<&str> = ended.err.lines().collect();
        assert_eq!(lines.len(), starts.len(), "{}", ended.err);
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(&format!("nicety: {start}")), "{line}");
        }
    }
}

#[test]
fn a_host_file_that_is_not_there_or_no_toml_ends_with_2() {
    let scratch = Scratch::new();
    let absent = scratch.run(&["serve", "other.toml"]);
    assert_eq!(absent.code, Some(2));
    assert!(
        absent.err.starts_with("nicety: there is no host file other.toml: write one (docs/host-file.md"),
        "{}",
        absent.err
    );
    let no_toml = [
        ("[[port]\nname = \n", "host.toml:1: "),
        ("hello world\n", "host.toml:1: key with no value, expected `=`, in `hello world` (allowed: TOML: [switch]"),
        ("[switch]\nname = \"a\"\nname = \"b\"\n", "host.toml:3: duplicate key, in `name = \"b\"`"),
    ];
    let yaml = Scratch::with("port:\n  - name: vm1\n    adapter: e1000\n").run(&["serve"]);
    let lines: Vec<&str> = yaml.err.lines().collect();
    assert!(
        lines[1].starts_with("nicety: host.toml:2: ") && lines[1].ends_with("in `- name: vm1`"),
        "one for each line: {yaml:?}"
    );
    assert!(lines[0].contains("allowed: TOML") && lines[3].starts_with("nicety: 3 mistakes"), "{yaml:?}");
    for (text, message) in no_toml {
        let ended = Scratch::with(text).run(&["serve"]);
        assert_eq!(ended.code, Some(2));
        assert!(ended.err.starts_with(&format!("nicety: {message}")), "{}", ended.err);
    }
    let binary = Scratch::with("");
    std::fs::write(binary.path().join("host.toml"), b"\n\n\xff\xfe").unwrap();
    assert!(binary.run(&["serve"]).err.starts_with("nicety: host.toml:3: it is not UTF-8 text"));
    let message = |name: &str| {
        let ended = scratch.run(&["serve", name]);
        assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
        ended.err
    };
    std::os::unix::fs::symlink("loop", scratch.path().join("loop")).unwrap();
    assert!(
        message("loop").starts_with("nicety: the host file loop cannot be read: Too many levels of symbolic links")
    );
    assert!(message(".").starts_with("nicety: the host file . cannot be read: Is a directory"));
    let long = std::fs::File::create(scratch.path().join("long")).unwrap();
    long.set_len((4 << 20) + 1).unwrap();
    assert!(message("long").starts_with("nicety: the host file long has more than 4194304 bytes: is it another file?"));
    assert_eq!(
        message("/dev/zero"),
        "nicety: the host file /dev/zero cannot be read: it is a device, and must be a file\n"
    );
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_and_not_waited_for() {
    let scratch = Scratch::with(&HOST.replace("socket = \"vm1.sock\"", "socket = \"vm1.sock\"\nrom = \"pipe\""));
    scratch.pipe("pipe");
    let ended = scratch.run(&["serve"]);
    let message =
        format!("port vm1: the option ROM {}/pipe cannot be used: it is a pipe, and must", scratch.path().display());
    assert!(ended.code == Some(1) && ended.err.contains(&message), "{ended:?}");
    assert_eq!(scratch.sockets(), [""; 0], "no socket is left behind");
    for args in [
        &["serve", "pipe"][..],
        &["serve", "--check", "pipe"],
        &["ports", "--host", "pipe"],
        &["attach", "vm1", "--host", "pipe"],
    ] {
        let ended = scratch.run(args);
        assert_eq!(
            (ended.code, ended.err.as_str()),
            (Some(2), "nicety: the host file pipe cannot be read: it is a pipe, and must be a file\n"),
            "{args:?}"
        );
    }
    let scratch = Scratch::with(HOST);
    std::fs::create_dir(scratch.path().join("traces")).unwrap();
    scratch.pipe("traces/vm2.trace");
    let ended = scratch.run(&["serve", "--record", "traces"]);
    let message = "recording to traces/vm2.trace: it is a pipe, and must be a file; name a folder with --record DIR";
    assert!(ended.code == Some(1) && ended.err.contains(message), "{ended:?}");
    scratch.pipe("folder");
    let ended = scratch.run(&["serve", "--record", "folder"]);
    assert!(ended.code == Some(1) && ended.err.contains("folder is not a folder"), "{ended:?}");
}

#[test]
fn check_says_what_the_host_file_asks_for() {
    let scratch = Scratch::with(&format!("{HOST}group = \"0\"\n[uplink]\nkind = \"null\"\nrate = \"100Mbit/s\"\n"));
    let dir = scratch.path().display();
    let ended = scratch.run(&["serve", "--check"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        ended.out,
        format!(
            "switch lan, 32768 addresses, ageing 300s; uplink null, 100Mbit/s both ways; 1 worker; control {dir}/nicety-lan.sock\n\
             port vm1  e1000       52:54:00:12:34:01  1MiB  {dir}/vm1.sock\n\
             port vm2  virtio-net  52:54:00:12:34:02  1MiB  {dir}/vm2.sock  group 0, mode 0660\n\
             can be eavesdropped on: vm1, vm2; by vm1, vm2 (mac_changes, forged_transmits)\n"
        )
    );
    assert_eq!((ended.err.as_str(), scratch.sockets().len()), ("", 0));
}

#[test]
fn check_names_mirrors_with_their_ports_and_their_rate() {
    let mirror =
        "[[mirror]]\nname = \"watch\"\nports = \"vm1\"\ndirection = \"ingress\"\nto = \"null\"\nrate = \"2Gbit/s\"\n";
    let scratch = Scratch::with(&format!("{HOST}[uplink]\nkind = \"null\"\n{mirror}"));
    let ended = scratch.run(&["serve", "--check"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("\nmirror watch: copies of vm1 (ingress) to null, at most 2Gbit/s\n"), "{}", ended.out);
}

#[test]
fn check_shows_what_is_set_and_warns_of_what_cannot_work() {
    // An uplink without VLANs of its own carries those of ports.
    let uplink = "[[uplink]]\nkind = \"pair\"\nsocket = \"a\"\ntrunk = \"20\"\n[[uplink]]\nkind = \"stream\"\nsocket = \"b\"\n\
                  rate = \"1Gbit/s\"\ntrunk = \"20\"\n";
    let group = "[[port_group]]\nname = \"web\"\nvlan = 10\nsend_average = \"10Mbit/s\"\nsend_burst = \"64KiB\"\n";
    let scratch = Scratch::with(&format!("{HOST}port_group = \"web\"\n{uplink}{group}"));
    let ended = scratch.run(&["serve", "--check"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("stream ") && ended.out.contains("(listen), 1Gbit/s both ways"), "{}", ended.out);
    let row = ended.out.lines().find(|line| line.starts_with("port vm2")).unwrap();
    assert!(row.contains("  port_group web, ") && row.contains("vlan 10") && row.contains("10Mbit/s"), "{row}");
    let message: Vec<&str> = ended.err.lines().collect();
    assert!(message[0].starts_with("warning: port vm1 has no VLAN, and no uplink and no other port"), "{message:?}");
    assert!(
        message[1].starts_with("warning: port vm2 is in VLAN 10, which no uplink and no other port carries"),
        "{message:?}"
    );
    assert!(message[2].starts_with("warning: uplinks pair and stream both carry VLAN 20"), "{message:?}");
}

/// The error of `serve` and `serve --check` for a host file that cannot be served, in one folder.
fn refused(scratch: &Scratch, more: &[&str]) -> String {
    let check = scratch.run(&[&["serve", "--check"], more].concat());
    let serve = scratch.run(&[&["serve"], more].concat());
    let says = |ended: &crate::scratch::Ended| (ended.code, ended.out.clone(), ended.err.clone());
    assert_eq!(says(&check), says(&serve));
    assert!(check.code == Some(1) && check.out.is_empty(), "{check:?}");
    assert_eq!(scratch.sockets(), [""; 0], "nothing is made");
    check.err
}

#[test]
fn check_says_all_that_serve_would_say() {
    let host = HOST
        .replace("\"vm1.sock\"", "\"absent/vm1.sock\"\nrom = \"pxe.rom\"\ngroup = \"no-such-group\"")
        .replace("\"vm2.sock\"", "\"file/vm2.sock\"");
    let scratch = Scratch::with(&format!("{host}[uplink]\nkind = \"capture\"\nfile = \"absent/all.pcapng\"\n"));
    std::fs::write(scratch.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink("/no/where", scratch.path().join("link")).unwrap();
    let dir = scratch.path().display();
    assert_eq!(
        refused(&scratch, &["--record", "file/traces"]),
        format!(
            "nicety: recording to file/traces: file is not a folder; name a folder with --record DIR, which is made if it is not there\n\
             nicety: port vm1: the option ROM {dir}/pxe.rom cannot be used: No such file or directory (os error 2); name another with \
             rom = \"FILE\", or leave rom out\n\
             nicety: port vm2: the socket {dir}/file/vm2.sock has no folder: make {dir}/file or choose another path\n\
             nicety: the uplink: writing a capture to {dir}/absent/all.pcapng: No such file or directory (os error 2); \
             check its directory and rights, or choose another file\n"
        )
    );
    let scratch = Scratch::with(&HOST.replace("\"vm1.sock\"", "\"absent/vm1.sock\""));
    let absent = scratch.path().join("absent");
    let message = refused(&scratch, &[]);
    assert!(
        message.ends_with(&format!("has no folder: make {} or choose another path\n", absent.display())),
        "{message}"
    );
    let message = refused(&Scratch::with(&format!("{HOST}group = \"no-such-group\"\n")), &[]);
    assert!(message.starts_with("nicety: port vm2: there is no group \"no-such-group\" on this machine"), "{message}");
    let message = refused(&Scratch::with(&format!("{HOST}[uplink]\nkind = \"tap\"\nname = \"lo\"\n")), &[]);
    // Without a tap driver, that is the first error.
    let known = message.starts_with("nicety: the uplink: lo is the loopback device, not a tap: ");
    assert!(known || message.starts_with("nicety: the uplink: /dev/net/tun"), "{message}");
    for (file, why) in [(".", "Is a directory (os error 21)"), ("/proc/version", "Input/output error (os error 5)")] {
        let message = refused(&Scratch::with(&format!("{HOST}[uplink]\nkind = \"capture\"\nfile = \"{file}\"\n")), &[]);
        // Users other than root may not even try to write to a file of the kernel's.
        assert!(message.contains(why) || message.contains("Permission denied"), "{message}");
    }
    let scratch = Scratch::with(&HOST.replace("\"vm1.sock\"", "\"~/vm1.sock\""));
    let ended = scratch.run(&["serve", "--check"]);
    assert!(ended.code == Some(2) && ended.err.contains("no shell reads this file"), "{ended:?}");
}

#[test]
fn check_says_what_serve_would_say_of_the_key_and_the_page() {
    let ft = |keys: &str| Scratch::with(&format!("{HOST}[ft]\nkey = \"ft.key\"\n{keys}"));
    let scratch = ft("");
    let key = scratch.path().join("ft.key");
    let make = |key: &Path| format!("head -c 32 /dev/urandom > {}\n", key.display());
    let missing =
        format!("nicety: [ft] key {}: No such file or directory (os error 2); copy the key of", key.display());
    let message = refused(&scratch, &[]);
    assert!(message.starts_with(&missing) && message.ends_with(&make(&key)), "{message}");
    std::fs::write(&key, [7; 15]).unwrap();
    let short = format!(
        "nicety: [ft] key {}: a key has at least 32 random bytes, and this one has 15: make one with head -c 32 /dev/urandom\n",
        key.display()
    );
    assert_eq!(refused(&scratch, &[]), short);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let scratch = ft(&format!("listen = \"{at}\"\n"));
    std::fs::write(scratch.path().join("ft.key"), [7; 32]).unwrap();
    assert_eq!(
        refused(&scratch, &[]),
        format!(
            "nicety: [ft] listen {at}: Address already in use (os error 98); end who listens there, or name another place\n"
        )
    );
    let scratch = Scratch::with(&format!("{HOST}[daemon]\npage = \"{at}\"\n"));
    let instead = "[daemon] page in the host file names another place\n";
    assert_eq!(
        refused(&scratch, &[]),
        format!("nicety: the page at http://{at}/: Address already in use (os error 98); {instead}")
    );
    let folder = scratch.path().join("absent");
    let scratch = Scratch::with(&format!("{HOST}[daemon]\npage = \"{}/page\"\n", folder.display()));
    let absent = folder.display();
    assert_eq!(
        refused(&scratch, &[]),
        format!(
            "nicety: the page at {absent}/page: the socket {absent}/page has no folder: make {absent} or choose another path; {instead}"
        )
    );
}

#[test]
fn check_beside_a_daemon_that_serves_the_page_says_that_it_is_taken_and_is_content() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = free.local_addr().unwrap();
    drop(free);
    let scratch = Scratch::with(&format!("{HOST}[daemon]\npage = \"{at}\"\n"));
    let served = Served::start(&scratch);
    let ended = scratch.run(&["serve", "--check"]);
    let note = format!("note: the page at http://{at}/ is served now: `nicety serve` begins when that has ended\n");
    assert!(ended.code == Some(0) && ended.err.contains(&note), "{ended:?}");
    let second = scratch.run(&["serve"]);
    assert!(second.code == Some(1) && second.err.contains(" already: process "), "{second:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn the_folder_of_a_control_socket_that_the_file_names_is_not_made() {
    let scratch = Scratch::with(&format!("{HOST}[daemon]\ncontrol = \"nodir/c.sock\"\n"));
    let nodir = scratch.path().join("nodir");
    let message = refused(&scratch, &[]);
    let expected =
        format!("nicety: the control socket: the socket {0}/c.sock has no folder: make {0} or", nodir.display());
    assert!(message.starts_with(&expected), "{message}");
    assert!(!nodir.exists());
}

#[test]
fn check_beside_a_daemon_that_runs_says_what_is_taken_and_is_content() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let (dir, pid) = (scratch.path().display(), served.pid());
    let ended = scratch.run(&["serve", "--check"]);
    let message = format!(
        "note: a daemon serves {dir}/host.toml already: process {pid}, which answers at {dir}/nicety-lan.sock; end it first (kill {pid})\n\
         note: {dir}/vm1.sock is served now: `nicety serve` begins when that has ended\n\
         note: {dir}/vm2.sock is served now: `nicety serve` begins when that has ended\n"
    );
    assert_eq!((ended.code, ended.err), (Some(0), message));
    assert!(ended.out.starts_with("switch lan, "), "{}", ended.out);
    // The check has not connected to any port.
    assert_eq!(scratch.run(&["port", "set", "vm1", "buffer=2MiB"]).code, Some(0));
    let lines = served.lines_until("changed: ~ port vm1");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn sockets_are_for_whom_the_host_file_says() {
    let host = format!(
        "{HOST}mode = \"0666\"\nopen_to_everybody = true\n[sockets]\ngroup = \"GID\"\n[daemon]\ncontrol_mode = \"0660\"\n"
    );
    let ours = rustix::process::getegid().as_raw();
    let scratch = Scratch::with(&host.replace("GID", &ours.to_string()));
    let served = Served::start(&scratch);
    let of = |name: &str| {
        let found = std::fs::metadata(scratch.path().join(name)).unwrap();
        (found.mode() & 0o7777, found.gid())
    };
    assert_eq!([of("vm1.sock"), of("vm2.sock"), of("nicety-lan.sock")], [(0o660, ours), (0o666, ours), (0o660, ours)]);
    let attach = scratch.run(&["attach", "vm1"]).err;
    let note = format!(
        "the socket is for its owner and group {ours}: QEMU must run as the user who runs `nicety serve`, or in that group"
    );
    assert!(attach.contains(&note), "{attach}");
    // The daemon's sockets have other access rights than this file asks for.
    std::fs::write(scratch.path().join("host.toml"), HOST).unwrap();
    let attach = scratch.run(&["attach", "vm1"]).err;
    assert!(attach.contains(&format!("serves vm1 for group {ours}, mode 0660 (not mode 0600): ")), "{attach}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_folder_too_deep_for_the_control_socket_is_said_with_the_key_that_names_another() {
    let scratch = Scratch::new();
    // The ports' sockets fit in this folder, nicety-lan.sock does not.
    let rest = 96 - scratch.path().as_os_str().len() - 1;
    let deep = scratch.path().join("x".repeat(rest));
    std::fs::create_dir(&deep).unwrap();
    std::fs::write(deep.join("host.toml"), HOST).unwrap();
    let host = deep.join("host.toml").display().to_string();
    let message = format!(
        "the control socket {}/nicety-lan.sock would have 112 bytes, and the system's limit is 107: name a shorter path with \
         [daemon] control in the host file\n",
        deep.display()
    );
    for args in [
        &["serve", &host][..],
        &["serve", "--check", &host],
        &["ports", "--host", &host],
        &["try", "--port", "vm1", "--host", &host, "--", "true"],
    ] {
        let ended = scratch.run(args);
        assert_eq!(
            (ended.code, ended.out.as_str(), ended.err.as_str()),
            (Some(2), "", format!("nicety: {message}").as_str()),
            "{args:?}"
        );
    }
    let attach = scratch.run(&["attach", "vm1", "--host", &host]);
    assert!(attach.code == Some(0) && attach.err.ends_with(&format!("note: {message}")), "{attach:?}");
    std::fs::write(deep.join("host.toml"), format!("{HOST}[daemon]\ncontrol = \"c.sock\"\n")).unwrap();
    assert_eq!(scratch.run(&["serve", "--check", &host]).code, Some(0));
}

#[test]
fn a_capture_is_not_written_over_the_host_file_a_socket_or_somebodys_notes() {
    let capture = |file: &str| format!("{HOST}[uplink]\nkind = \"capture\"\nfile = \"{file}\"\n");
    for (file, record, message) in [
        ("host.toml", None, "host.toml:18: uplink.file: "),
        ("vm1.sock", None, "host.toml:8: port.socket: "),
        ("nicety-lan.sock", None, "host.toml:18: uplink.file: "),
        ("traces/vm2.trace.1", Some("traces"), "host.toml:18: uplink.file: "),
    ] {
        let scratch = Scratch::with(&capture(file));
        for check in [Some("--check"), None] {
            let record = record.map(|folder| ["--record", folder]);
            let args: Vec<&str> = ["serve"].into_iter().chain(check).chain(record.into_iter().flatten()).collect();
            let ended = scratch.run(&args);
            assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{args:?}: {ended:?}");
            assert!(ended.err.starts_with(&format!("nicety: {message}")), "{}", ended.err);
        }
        let names: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names, ["host.toml"], "{file}: nothing else is left");
        assert_eq!(std::fs::read_to_string(scratch.path().join("host.toml")).unwrap(), capture(file));
    }
    let scratch = Scratch::with(&capture("notes.txt"));
    let notes = scratch.path().join("notes.txt");
    std::fs::write(&notes, "mine").unwrap();
    let ended = scratch.run(&["serve"]);
    let last = ended.err.lines().last().unwrap();
    let sentence = format!("nicety: the uplink: writing a capture to {}: that is no capture (pcapng)", notes.display());
    assert!(ended.code == Some(1) && last.starts_with(&sentence), "{ended:?}");
    assert_eq!(std::fs::read_to_string(notes).unwrap(), "mine");
}

#[test]
fn an_option_rom_that_is_none_names_its_file() {
    let scratch = Scratch::with(&HOST.replace("socket = \"vm1.sock\"", "socket = \"vm1.sock\"\nrom = \"pxe.rom\""));
    let absent = scratch.run(&["serve"]);
    assert_eq!(absent.code, Some(1));
    assert!(absent.err.contains("pxe.rom cannot be used: No such file"), "{}", absent.err);
    std::fs::write(scratch.path().join("pxe.rom"), [0; 512]).unwrap();
    assert!(scratch.run(&["serve"]).err.contains("pxe.rom cannot be used: no option ROM"));
    // An image according to PCI Firmware 3.0 §5.1, for Broadcom's BCM5751, 14e4:1677.
    let mut rom = vec![0; 512];
    rom[..3].copy_from_slice(&[0x55, 0xaa, 1]);
    rom[0x18] = 0x40;
    rom[0x40..0x48].copy_from_slice(b"PCIR\xe4\x14\x77\x16");
    rom[0x4a] = 0x18;
    rom[0x50] = 1;
    rom[0x55] = 0x80;
    std::fs::write(scratch.path().join("pxe.rom"), rom).unwrap();
    let message = format!(
        "port vm1: the option ROM {}/pxe.rom cannot be used: option ROM is for 14e4:1677, and e1000 is 8086:100e; name \
         another with rom = \"FILE\", or leave rom out\n",
        scratch.path().display()
    );
    let foreign = scratch.run(&["serve"]);
    assert!(foreign.code == Some(1) && foreign.err.ends_with(&message), "{foreign:?}");
}

#[test]
fn the_reference_knows_every_key() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/host-file.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, ports) = page.split_once("\n### What a port may do\n").unwrap();
    for kind in nicety_host::KINDS {
        let (_, rest) = page.split_once(&format!("## `{}`", kind.heading)).expect(kind.heading);
        let section = rest.split("\n## ").next().unwrap();
        // A group's keys are a port's, and are explained there.
        let refers = section.contains("(#what-a-port-may-do). A port's own keys");
        let of_ports = if refers { ports } else { "" };
        for key in kind.keys {
            assert!(
                [section, of_ports].concat().contains(&format!("| `{}` |", key.name)),
                "{}.{}",
                kind.name,
                key.name
            );
        }
    }
}

#[test]
fn the_reference_names_no_key_that_is_not_there() {
    let page = std::fs::read_to_string(root().join("docs/host-file.md")).unwrap();
    let mut kind = None;
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let heading = heading.trim_matches('`');
            kind = nicety_host::KINDS.into_iter().find(|kind| kind.heading == heading);
        }
        let Some(name) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next()) else { continue };
        let kind = kind.unwrap_or_else(|| panic!("{line} stands in no table's section"));
        assert!(kind.keys.iter().any(|key| key.name == name), "{}.{name}", kind.name);
    }
}
