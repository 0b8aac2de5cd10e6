//! `nicety capture` of a daemon with embedded guests, read by another library than the one that wrote it.

mod station;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use station::{Process, Station, serve};

const HOST: &str = "\
[[port_group]]
name = \"web\"
vlan = 10

[[port]]
name = \"vm1\"
adapter = \"e1000\"
mac = \"52:54:00:12:34:01\"
socket = \"vm1.sock\"
port_group = \"web\"

[[port]]
name = \"vm2\"
adapter = \"virtio-net\"
mac = \"52:54:00:12:34:02\"
socket = \"vm2.sock\"
trunk = \"10\"

[[port]]
name = \"vm3\"
adapter = \"vmxnet3\"
mac = \"52:54:00:12:34:03\"
socket = \"vm3.sock\"
port_group = \"web\"
";

/// A daemon of [`HOST`] in a folder.
fn daemon(dir: &Path) -> Process {
    std::fs::write(dir.join("host.toml"), HOST).unwrap();
    let daemon = serve(dir);
    let begin = Instant::now();
    // Until it has opened its ports, the daemon answers that it is starting.
    while !nicety(dir, &["ports"]).stderr(Stdio::null()).status().unwrap().success() {
        assert!(begin.elapsed() < Duration::from_secs(60), "no daemon");
        std::thread::sleep(Duration::from_millis(10));
    }
    daemon
}

/// Guests at vm1 and at vm2.
fn stations(dir: &Path) -> (Station, Station) {
    let path = |name: &str| dir.join(name).display().to_string();
    let e1000 = Station::start(&json!({ "vfio-user": { "driver": "e1000", "socket": path("vm1.sock") } }), 1);
    (e1000, Station::start(&json!({ "vhost-user": { "socket": path("vm2.sock") } }), 2))
}

fn nicety(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
    command.args(args).current_dir(dir).env_remove("XDG_RUNTIME_DIR").stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A running capture.
struct Running {
    child: Child,
    messages: BufReader<ChildStderr>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.spawn().unwrap();
        let mut messages = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        messages.read_line(&mut line).unwrap();
        assert!(line.starts_with("capturing "), "{line}");
        Running { child, messages }
    }

    /// The capture's last messages, and its exit code.
    fn end(mut self, signal: Option<Signal>) -> (String, Option<i32>) {
        if let Some(signal) = signal {
            kill_process(Pid::from_child(&self.child), signal).unwrap();
        }
        let code = self.child.wait().unwrap().code();
        (self.messages.lines().map_while(Result::ok).collect::<Vec<_>>().join("\n"), code)
    }
}

/// A frame in a file: its interface's name, its direction, its comment, its bytes.
#[derive(Debug)]
struct Seen {
    interface: String,
    inbound: bool,
    comment: String,
    frame: Vec<u8>,
}

fn read(path: &Path) -> Vec<Seen> {
    let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
    let (mut names, mut seen) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(interface) => {
                names.extend(interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                }))
            }
            Block::EnhancedPacket(packet) => {
                let mut one = Seen {
                    interface: names[packet.interface_id as usize].clone(),
                    inbound: false,
                    comment: String::new(),
                    frame: packet.data.to_vec(),
                };
                for option in packet.options {
                    match option {
                        EnhancedPacketOption::Flags(flags) => one.inbound = flags == 1,
                        EnhancedPacketOption::Comment(comment) => one.comment = comment.into_owned(),
                        _ => {}
                    }
                }
                seen.push(one);
            }
            _ => {}
        }
    }
    seen
}

#[test]
fn what_passes_two_ports_and_what_is_dropped_is_in_the_files_with_ways_edits_and_reasons() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let daemon = daemon(dir);
    let (mut e1000, virtio) = stations(dir);
    let web = Running::start(nicety(dir, &["capture", "web", "-w", "web.pcapng"]));
    let trunk = Running::start(nicety(dir, &["capture", "vm2", "--stage", "egress", "-w", "trunk.pcapng"]));
    let drops = Running::start(nicety(dir, &["capture", "drops", "-c", "1", "-w", "drops.pcapng"]));
    // The guest sends a broadcast to find the address; no VM is at vm3, and vm2's guest knows no tags.
    e1000.asked(&json!({ "send": { "to": virtio.address, "seconds": 0.1 } }));
    let (messages, code) = drops.end(None);
    assert_eq!((messages.as_str(), code), ("1 frame", Some(0)));
    for capture in [web, trunk] {
        let (messages, code) = capture.end(Some(Signal::INT));
        assert!(code == Some(0) && messages.ends_with("frames"), "{messages}");
    }
    let frames = |name: &str| {
        let mut frames = BTreeMap::new();
        for seen in read(&dir.join(name)) {
            assert_eq!(seen.frame[..6], [0xff; 6], "a question for an address: {seen:?}");
            frames.entry((seen.interface, seen.inbound, seen.comment)).or_insert(seen.frame[12..16].to_vec());
        }
        frames.into_iter().collect::<Vec<_>>()
    };
    let expected = |lines: &[(&str, bool, &str, [u8; 4])]| {
        let line = |(port, inbound, comment, bytes): &(&str, bool, &str, [u8; 4])| {
            ((port.to_string(), *inbound, comment.to_string()), bytes.to_vec())
        };
        lines.iter().map(line).collect::<Vec<_>>()
    };
    // ARP: type 0x0806, hardware type 1. After a tag: VLAN 10.
    let (plain, tagged) = ([8, 6, 0, 1], [0x81, 0, 0, 10]);
    let dropped = ("vm3", false, "from vm1; dropped: no-vm", plain);
    assert_eq!(frames("drops.pcapng"), expected(&[dropped]));
    assert_eq!(frames("web.pcapng"), expected(&[("vm1", true, "to vm2 and 1 more", plain), dropped]));
    assert_eq!(frames("trunk.pcapng"), expected(&[("vm2", false, "from vm1; tag 10 was put in", tagged)]));
    drop((e1000, virtio, daemon));
}

#[test]
fn the_next_frame_of_a_port_is_traced_with_what_became_of_it() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let daemon = daemon(dir);
    let (mut e1000, virtio) = stations(dir);
    let mut trace = nicety(dir, &["trace", "vm1", "--next", ""]);
    let mut trace = trace.stdout(Stdio::piped()).spawn().unwrap();
    // The capture may begin a moment after its message, but the guest asks for an address more than once.
    let mut messages = String::new();
    BufReader::new(trace.stderr.take().unwrap()).read_line(&mut messages).unwrap();
    assert_eq!(messages, "waiting for a frame of vm1: Ctrl-C ends it\n");
    while trace.try_wait().unwrap().is_none() {
        e1000.asked(&json!({ "send": { "to": virtio.address, "seconds": 0.1 } }));
    }
    let output = trace.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "arrives    at vm1 (e1000, port group web): ",
        "fetched    at once: what it sends is not shaped\n",
        ": it is known there\n",
        "looked up  its destination is a broadcast: to all ports of the VLAN\n",
        "delivered  to vm2, tag 10 put in: its adapter gets it, and has filters of its own\n",
        "delivered  to vm3: dropped there: no-vm\n",
        "in fact    to vm2 and 1 more\n",
    ] {
        assert!(text.contains(line), "{line:?}: {text}");
    }
    drop((e1000, virtio, daemon));
}

#[test]
fn filters_are_read_by_tcpdump_and_a_missing_one_or_a_wrong_filter_is_told() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let daemon = daemon(dir);
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let filtered = |expression: &str| {
        let mut command = nicety(dir, &["capture", "vm1", "--filter", expression, "-w", "vm1.pcapng"]);
        command.env("PATH", &bin);
        command
    };
    let ended = |mut command: Command| {
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, messages) = ended(filtered("arp"));
    assert!(
        code == Some(3) && messages.starts_with("nicety: tcpdump, which reads filters, cannot be run ("),
        "{messages}"
    );
    // Output of libpcap 1.10.3.
    let tcpdump = "#!/bin/sh\n[ \"$*\" = '-ddd -y EN10MB -- udp or arp' ] || { echo \"syntax error in $5\" >&2; exit 1; }\n\
                   printf '4\\n40 0 0 12\\n21 0 1 2054\\n6 0 0 262144\\n6 0 0 0\\n'\n";
    std::fs::write(bin.join("tcpdump"), tcpdump).unwrap();
    std::fs::set_permissions(bin.join("tcpdump"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, messages) = ended(filtered("foo"));
    assert_eq!((code, messages.as_str()), (Some(2), "nicety: --filter \"foo\": syntax error in foo\n"));
    assert!(!dir.join("vm1.pcapng").exists(), "nothing was begun");
    let path = |name: &str| dir.join(name).display().to_string();
    let capture = Running::start(filtered("udp or arp"));
    let mut e1000 = Station::start(&json!({ "vfio-user": { "driver": "e1000", "socket": path("vm1.sock") } }), 1);
    e1000.asked(&json!({ "send": { "to": [10, 0, 0, 2], "seconds": 0.1 } }));
    capture.end(Some(Signal::TERM));
    assert!(read(&dir.join("vm1.pcapng")).iter().all(|seen| seen.frame[12..14] == [8, 6]));
    drop((e1000, daemon));
}

#[test]
fn what_is_not_there_a_terminal_and_an_ending_daemon_are_told() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let mut daemon = daemon(dir);
    let output = nicety(dir, &["capture", "vm9", "-w", "vm9.pcapng"]).output().unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    let expected = "nicety: there is no port, uplink or port group \"vm9\"; did you mean \"vm1\"? (ports: vm1, vm2, vm3; or `drops`)\n";
    assert_eq!((output.status.code(), messages.as_str()), (Some(2), expected));
    assert!(!dir.join("vm9.pcapng").exists());
    let capture = Running::start(nicety(dir, &["capture", "vm1", "-w", "vm1.pcapng"]));
    kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
    daemon.0.wait().unwrap();
    let (messages, code) = capture.end(None);
    assert_eq!((messages.as_str(), code), ("0 frames\nnote: the daemon ended, or the capture with it", Some(0)));
}
