//! I/O control that is changed in one direction leaves what waits in the other under its limit.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nicety_host::Host;
use nicety_ioc::Class;
use nicety_vfio_user::Client;

use super::*;
use crate::serve;

const SOON: Duration = Duration::from_secs(60);
/// The longest frame: of shorter ones several go at once.
const LEN: usize = 1514;

/// A host whose uplink `x` has a card with one function, and a class with a limit.
fn host(folder: &Path, min_rate: &str, inward: &str) -> Host {
    let text = format!(
        r#"
[[uplink]]
name = "x"
kind = "stream"
socket = "x"
rate = "1Gbit/s"
inward_rate = "{inward}"
[[uplink]]
name = "y"
kind = "stream"
socket = "y"
[[card]]
name = "nic0"
chip = "82576"
uplink = "x"
[[port]]
name = "vm1"
adapter = "igbvf"
mac = "52:54:00:00:00:01"
socket = "vm1.sock"
card = "nic0"
function = 0
min_rate = "{min_rate}"
[[io_class]]
uplink = "x"
name = "slow"
network = "10.0.0.0/8"
limit = "1Mbit/s"
"#
    );
    let mut host = Host::parse(&text, &folder.join("host.toml")).unwrap();
    // So little that the second frame's time is far away: three hours for each.
    host.io_classes[0].terms.limit = nicety_adapter::Rate::new(1);
    host
}

/// Sends a broadcast from this network to a stream.
fn send(stream: &mut UnixStream, first: u8) {
    // QEMU's length, Ethernet, IPv4.
    let mut frame = vec![0, 0, (LEN >> 8) as u8, LEN as u8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7, 8, 0];
    frame.extend([0x45, 0, 5, 0xdc, 0, 0, 0, 0, 64, 17, 0, 0, first, 0, 0, 1, 255, 255, 255, 255]);
    frame.resize(4 + LEN, 0);
    stream.write_all(&frame).unwrap();
}

/// Packets of both classes that have passed, and those of the limited one that wait.
type Counts = ([u64; 2], u64);

/// Waits until the uplink's counts are these, outward and inward.
fn wait(daemon: &Daemon, outward: Counts, inward: Counts) {
    let end = Instant::now() + SOON;
    loop {
        let view = daemon.views().into_iter().find(|view| view.name == "x").unwrap();
        let found = [&view.state.classes, &view.state.inward_classes].map(|classes| match &classes[..] {
            [rest, slow] => ([rest.packets, slow.packets], slow.waiting),
            _ => panic!("{classes:?}"),
        });
        if found == [outward, inward] {
            return;
        }
        assert!(Instant::now() < end, "{found:?}, and not {outward:?} outward, {inward:?} inward");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_direction_whose_control_stays_goes_on_undisturbed_when_the_other_s_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    nicety_sandbox::begin_for_tests();
    let of = |min_rate, inward| host(folder.path(), min_rate, inward);
    let daemon = serve::start(serve::prepare(&of("10Mbit/s", "900Mbit/s"), None).unwrap()).unwrap();
    let _vmm = Client::connect(folder.path().join("vm1.sock")).unwrap();
    let [mut x, mut y] = ["x", "y"].map(|name| UnixStream::connect(folder.path().join(name)).unwrap());
    // The first frame of the limited class goes, the others wait.
    [&mut x, &mut y].into_iter().for_each(|stream| send(stream, 10));
    wait(&daemon, ([0, 1], 0), ([0, 1], 0));
    for waiting in 1..=4 {
        [&mut x, &mut y].into_iter().for_each(|stream| send(stream, 10));
        wait(&daemon, ([0, 1], waiting), ([0, 1], waiting));
    }
    // A limit that begins anew lets one frame go. A frame of the other class shows that the uplink was served after the change.
    let mut others = 0;
    let mut changed = |min_rate, inward, outward, inward_left| {
        daemon.set_io_control(&of(min_rate, inward));
        [&mut x, &mut y].into_iter().for_each(|stream| send(stream, 192));
        others += 1;
        wait(&daemon, ([others, 5 - outward], outward), ([others, 5 - inward_left], inward_left));
    };
    changed("10Mbit/s", "900Mbit/s", 4, 4);
    changed("20Mbit/s", "900Mbit/s", 3, 4);
    changed("20Mbit/s", "800Mbit/s", 3, 3);
    changed("30Mbit/s", "800Mbit/s", 2, 3);
    changed("30Mbit/s", "700Mbit/s", 2, 2);
}

/// A TCP segment to this port (RFC 9293), in IPv4.
fn segment(port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 9]);
    frame.extend(40_000u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 255, 255, 0, 0, 0, 0]);
    frame
}

#[test]
fn a_greedy_guest_that_sends_to_iscsi_s_port_has_no_part_of_what_is_reserved_for_it() {
    let of = |keys: &str| {
        let guest = |n| {
            format!(
                "[[port]]\nname = \"vm{n}\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:0{n}\"\nsocket = \"{n}.sock\"\n"
            )
        };
        let text = format!(
            "[[uplink]]\nname = \"up\"\nkind = \"null\"\nrate = \"100Mbit/s\"\n{}{}[[io_class]]\nuplink = \"up\"\n\
             name = \"iscsi\"\nreservation = \"60Mbit/s\"\n{keys}\n",
            guest(1),
            guest(2)
        );
        let host = Host::parse(&text, Path::new("/h")).unwrap();
        let names = [("vm1".to_owned(), 1), ("vm2".to_owned(), 2), ("up".to_owned(), 3)];
        let outward = io_control::control(&host, &host.uplinks[0], &names).outward;
        let classifier = nicety_ioc::Classifier::new(&outward);
        let map = std::sync::Arc::new(nicety_memory::Map::private(4096).unwrap());
        let mut batch = nicety_adapter::Batch::new();
        batch.start(&map, nicety_adapter::PortId(1), 0);
        let frame = segment(3260);
        let mut draft = batch.draft(frame.len()).unwrap();
        draft.pad_to(frame.len());
        draft.head_mut().copy_from_slice(&frame);
        draft.finish_plain(0);
        let class = |port| classifier.of(port, &batch, &batch.packets()[0], nicety_adapter::Pick::whole(0));
        [1, 2, 3].map(|port| outward[usize::from(class(port))].name.clone())
    };
    assert_eq!(of("ports = \"vm1\"\ntransport_ports = \"3260\""), ["iscsi", "vm", "vm"]);
    // A file that names nobody: no guest has it, and what another uplink brings has.
    assert_eq!(of(""), ["vm", "vm", "iscsi"]);
}

/// IEEE 802.1Q-2018, 6.9.3: the priority of a frame without a tag is its port's. Ports without a VLAN have none.
#[test]
fn a_class_by_priority_has_the_frames_without_a_tag_of_ports_with_this_priority() {
    let port = |name: &str, keys: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nadapter = \"igbvf\"\nsocket = \"{name}\"\nmac = \"52:54:00:00:00:0{}\"\n{keys}\n",
            &name[1..]
        )
    };
    let class = |pcp| format!("[[io_class]]\nuplink = \"x\"\nname = \"c{pcp}\"\npcp = {pcp}\n");
    let function = |number: u32, keys: &str| format!("card = \"nic\"\nfunction = {number}\n{keys}");
    let ports = [
        ("p1", function(0, "vlan = 7\nqos = 5")),
        ("p2", function(1, "vlan = 7")),
        ("p3", function(2, "")),
        ("p4", function(3, "vlan = 8\nqos = 5")),
    ];
    let ports = ports.map(|(name, keys)| port(name, &format!("{keys}\ntrust_marks = true"))).concat();
    let up = "[[card]]\nname = \"nic\"\nchip = \"82576\"\n\
              [[uplink]]\nname = \"x\"\nkind = \"pair\"\nsocket = \"x\"\nrole = \"listen\"\nrate = \"1Gbit/s\"\ninward_rate = \"1Gbit/s\"\ntrust_marks = true\n";
    let host = Host::parse(&format!("{up}{ports}{}{}", class(5), class(0)), Path::new("host.toml")).unwrap();
    let names: Vec<_> = host.ports.iter().map(|port| port.name.clone()).zip(1..).collect();
    let control = super::io_control::control(&host, host.uplink("x").unwrap(), &names);
    let untagged = |classes: &[Class]| -> Vec<Vec<u16>> {
        classes.iter().flat_map(|class| &class.matches).map(|rule| rule.untagged.clone()).collect()
    };
    assert_eq!(untagged(&control.outward), [vec![1u16, 4], vec![2]]);
    let inward = untagged(&control.inward.unwrap().classes);
    assert!(inward.len() == 2 && inward.iter().all(Vec::is_empty), "what comes in has no port's priority: {inward:?}");
}
