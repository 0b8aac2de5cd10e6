//! A card's functions from their host's point of view: what it sets, what it sees of what they may not do.

#[path = "../../../daemon/tests/function/mod.rs"]
mod function;

use std::time::Instant;

use function::{BYTES, FRAMES, Guest, NOWHERE};
use nicety_frame::Mac;
use nicety_vfio_user::Client;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::scratch::{Scratch, Served, TIMEOUT};

/// Three functions: two as they are by default, and one with all values set.
const HOST: &str = "\
[switch]
name = \"lan\"

[uplink]
kind = \"null\"
name = \"up0\"
rate = \"1Gbit/s\"

[[card]]
name = \"nic0\"
chip = \"82599\"
uplink = \"up0\"

[[port]]
name = \"vm1\"
adapter = \"ixgbevf\"
mac = \"52:54:00:12:34:01\"
socket = \"vm1.sock\"
card = \"nic0\"
function = 0

[[port]]
name = \"vm3\"
adapter = \"ixgbevf\"
mac = \"52:54:00:12:34:03\"
socket = \"vm3.sock\"
card = \"nic0\"
function = 5
vlan = 7
qos = 3
send_average = \"500Mbit/s\"
min_rate = \"200Mbit/s\"
spoofchk = false
trust = true
link_state = \"disable\"
query_rss = true

[[port]]
name = \"vm2\"
adapter = \"ixgbevf\"
mac = \"52:54:00:12:34:02\"
socket = \"vm2.sock\"
card = \"nic0\"
function = 1
";

const SHOWN: &str = "\
FUNCTION  PORT  MAC                VLAN  QOS  RATE       MIN-RATE   SPOOFCHK  TRUST  STATE    QUERY-RSS  CONDITION  SPOOFED
nic0/0    vm1   52:54:00:12:34:01  -     -    -          -          on        off    auto     off        waiting    0
nic0/1    vm2   52:54:00:12:34:02  -     -    -          -          on        off    auto     off        waiting    0
nic0/5    vm3   52:54:00:12:34:03  7     3    500Mbit/s  200Mbit/s  off       on     disable  on         waiting    0
";

fn address(number: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0x12, 0x34, number])
}

/// A bare guest at this port, which sends to the other one.
fn guest(scratch: &Scratch, number: u8, other: u8) -> Guest {
    let client = Client::connect(scratch.path().join(format!("vm{number}.sock"))).unwrap();
    let mut guest = Guest::new(client, address(number), address(other));
    sent(&mut guest);
    guest
}

/// Waits until all that this guest has posted is sent.
fn sent(guest: &mut Guest) {
    let end = Instant::now() + TIMEOUT;
    while !guest.has_sent() {
        assert!(Instant::now() < end, "its frames are not sent");
        std::thread::yield_now();
    }
}

fn json_of(scratch: &Scratch, words: &[&str]) -> Value {
    let ended = scratch.run(words);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{words:?}: {ended:?}");
    serde_json::from_str(&ended.out).unwrap()
}

#[test]
fn functions_are_shown_in_the_order_of_their_card_with_what_their_host_lets_them_do() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let shown = scratch.run(&["vf", "show"]);
    assert_eq!((shown.code, shown.out.as_str()), (Some(0), SHOWN), "{shown:?}");
    assert_eq!(scratch.run(&["vf", "show", "nic0"]).out, SHOWN);
    let all = json_of(&scratch, &["vf", "show", "--json"]);
    let names: Vec<&str> =
        all["functions"].as_array().unwrap().iter().filter_map(|port| port["name"].as_str()).collect();
    assert_eq!((&all["version"], names), (&1.into(), vec!["vm1", "vm2", "vm3"]));
    let one = json_of(&scratch, &["vf", "show", "nic0/5", "--json"]);
    let function = json!({
        "card": "nic0", "function": 5, "trust": true, "spoofchk": false, "link_state": "disable", "query_rss": true,
        "min_rate": "200Mbit/s",
    });
    assert_eq!(one["functions"].as_array().map(Vec::len), Some(1));
    assert_eq!(one["functions"][0]["function"], function);
    for words in [&["vf", "show", "nic0/6"][..], &["vf", "set", "nic0/6", "trust", "on"]] {
        let unknown = scratch.run(words);
        let message =
            "nicety: there is no function \"nic0/6\"; did you mean \"nic0/0\"? (there are nic0/0, nic0/1, nic0/5)";
        assert!(unknown.code == Some(2) && unknown.err.starts_with(message), "{unknown:?}");
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// Frames of this port that were dropped as spoofed.
fn spoofed(scratch: &Scratch, function: &str) -> u32 {
    let shown = scratch.run(&["vf", "show", function]).out;
    shown.split_whitespace().last().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{shown}"))
}

/// Frames that a port has taken.
fn taken(scratch: &Scratch, port: &str) -> u64 {
    let report = json_of(scratch, &["ports", port, "--json"]);
    let queues = report["ports"][0]["receive"].as_array().unwrap().iter();
    queues.filter_map(|queue| queue["frames"].as_u64()).sum()
}

#[test]
fn spoofed_frames_are_dropped_and_shown_until_the_host_lets_them_pass_and_again_from_when_it_does_not() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let [mut vm, mut other] = [(1, 2), (2, 1)].map(|(number, other)| guest(&scratch, number, other));
    assert_eq!(spoofed(&scratch, "nic0/0"), 0, "its own address");
    vm.write_frame(address(9), address(2));
    let mut send = || {
        vm.send();
        sent(&mut vm);
        spoofed(&scratch, "nic0/0")
    };
    assert_eq!(send(), FRAMES);
    let set = |value: &str| {
        let set = scratch.run(&["vf", "set", "nic0/0", "spoofchk", value]);
        assert_eq!(set.code, Some(0), "{set:?}");
        set.out
    };
    assert_eq!(set("off"), "~ port vm1: spoofchk (not set) → false\n");
    let (before, end) = (taken(&scratch, "vm2"), Instant::now() + TIMEOUT);
    assert_eq!(send(), FRAMES, "none is dropped");
    while taken(&scratch, "vm2") == before {
        assert!(Instant::now() < end, "they do not come");
        // Buffers.
        other.send();
        sent(&mut other);
    }
    assert_eq!(set("on"), "~ port vm1: spoofchk false → true\n");
    assert_eq!(send(), 2 * FRAMES);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// Frames of a capture file that have these bytes.
fn left(scratch: &Scratch, bytes: &[u8]) -> usize {
    let file = std::fs::read(scratch.path().join("out.pcapng")).unwrap();
    file.windows(bytes.len()).filter(|window| *window == bytes).count()
}

/// The first example of docs/virtual-functions.md, beside a function without a VLAN. `ip link set DEV vf 0 vlan 10 qos 3` has the card tag
/// what the function sends (igb_set_vmvir, ixgbe_set_vmvir).
#[test]
fn a_function_s_frames_leave_with_its_vlan_s_tag_beside_those_of_a_function_without_one() {
    let scratch = Scratch::with(&HOST.replace("kind = \"null\"", "kind = \"capture\"\nfile = \"out.pcapng\""));
    let served = Served::start(&scratch);
    let [mut vm, mut other] = [(1, 2), (2, 1)].map(|(number, other)| guest(&scratch, number, other));
    let set = |words: &str| {
        let all: Vec<&str> = ["vf", "set", "nic0/0"].into_iter().chain(words.split(' ')).collect();
        let set = scratch.run(&all);
        assert_eq!((set.code, set.err.as_str()), (Some(0), ""), "{set:?}");
        set.out
    };
    assert_eq!(
        set("vlan 10 qos 3 rate 500"),
        "~ port vm1: qos (not set) → 3, send_average (not set) → 500Mbit/s, vlan (not set) → 10\n"
    );
    let addresses = |from, to| [address(to).0, address(from).0].concat();
    let of_both = |tag: &[u8]| {
        let own = [&addresses(1, 9), tag, &[0x88, 0xb5]].concat();
        let plain = [&addresses(2, 9)[..], &[0x88, 0xb5]].concat();
        [own, plain].map(|bytes| left(&scratch, &bytes))
    };
    vm.write_frame(address(1), address(9));
    other.write_frame(address(2), address(9));
    let before = taken(&scratch, "vm2");
    let mut sends = |tag: &[u8], count: usize| {
        [&mut vm, &mut other].into_iter().for_each(|guest| {
            guest.send();
            sent(guest);
        });
        let end = Instant::now() + TIMEOUT;
        while of_both(tag) != [FRAMES as usize, count * FRAMES as usize] {
            assert!(Instant::now() < end, "{tag:x?}: {:?}", of_both(tag));
            std::thread::yield_now();
        }
    };
    sends(&[0x81, 0, 0x60, 10], 1);
    assert_eq!(taken(&scratch, "vm2"), before, "no frame of the VLAN");
    assert_eq!(set("vlan 20"), "~ port vm1: qos 3 → (not set), vlan 10 → 20\n");
    sends(&[0x81, 0, 0, 20], 2);
    assert_eq!(set("vlan 20 qos 5"), "~ port vm1: qos (not set) → 5\n");
    sends(&[0x81, 0, 0xa0, 20], 3);
    assert_eq!(set("vlan 0"), "~ port vm1: qos 5 → (not set), vlan 20 → (not set)\n");
    sends(&[], 4);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// A driver may cause as many refusals as it likes.
const REFUSALS: u32 = 4 * FRAMES;

#[test]
fn an_access_to_memory_that_is_not_mapped_is_logged_once_a_second_and_counted_each_time() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let mut vm = guest(&scratch, 1, 2);
    let clean = scratch.run(&["ports", "vm1"]).out;
    assert!(!clean.contains("refused"), "{clean}");
    let began = Instant::now();
    for _ in 0..REFUSALS / FRAMES {
        vm.post(FRAMES, NOWHERE);
        sent(&mut vm);
    }
    let access = format!("a read of {BYTES} bytes at {NOWHERE:#x}");
    let line = served.line("its adapter was refused");
    let said = format!("its adapter was refused {access}: no memory is mapped there for it (refused so far: ");
    assert!(line.contains("WARN") && line.contains("port=\"vm1\"") && line.contains(&said), "{line}");
    let shown = scratch.run(&["ports", "vm1"]).out;
    let counted =
        format!("{REFUSALS} reads and 0 writes of guest memory, where nothing is mapped for it; the last {access}\n");
    assert!(shown.contains(&counted), "{shown}");
    let (_, metrics) = scratch.get("/metrics");
    for (direction, count) in [("read", REFUSALS), ("write", 0)] {
        let sample = format!("nicety_port_refused_dma_total{{port=\"vm1\",direction=\"{direction}\"}} {count}\n");
        assert!(metrics.contains(&sample), "{metrics}");
    }
    served.signal(Signal::TERM);
    let lines = served.lines_until("ending");
    let more = lines.iter().filter(|line| line.contains("its adapter was refused")).count();
    assert!(more as u64 <= began.elapsed().as_secs(), "{lines:#?}");
}
