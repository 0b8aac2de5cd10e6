//! `nicety trace`: a running switch's decisions about a frame.

use std::io::Write;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::scratch::{Ended, Scratch, Served};

const HOST: &str = "\
[switch]
name = \"lan\"

[[port_group]]
name = \"web\"
vlan = 10
forged_transmits = \"reject\"
bpdu_guard = true
broadcast_limit = 100

[[port]]
name = \"vm1\"
adapter = \"e1000\"
mac = \"52:54:00:12:34:01\"
socket = \"vm1.sock\"
port_group = \"web\"
send_average = \"100Mbit/s\"

[[port]]
name = \"vm2\"
adapter = \"virtio-net\"
mac = \"52:54:00:12:34:02\"
socket = \"vm2.sock\"
trunk = \"10\"

[[port]]
name = \"vm3\"
adapter = \"e1000\"
mac = \"52:54:00:12:34:03\"
socket = \"vm3.sock\"
vlan = 20

[[uplink]]
kind = \"null\"
trunk = \"10,20\"
";

/// A broadcast ARP request.
const ASKS: &str = "ffffffffffff 525400123401 0806 0001";

/// It belongs to VLAN 10 and, with its tag, to the flat network.
#[test]
fn a_vlan_s_frame_that_comes_in_by_an_uplink_without_vlans_is_followed_in_both_networks() {
    let scratch = Scratch::with(&HOST.replace("trunk = \"10,20\"\n", "").replace("vlan = 20\n", ""));
    let served = Served::start(&scratch);
    let traced = scratch.run(&["trace", "null", "ffffffffffff 525400123409 8100000a 0806"]);
    let expected = "\
VLAN       VLAN 10: ports here are in it
learns     52:54:00:12:34:09 at null: it is new
looked up  its destination is a broadcast: to all ports of the VLAN
VLAN       the flat network: without VLANs
learns     52:54:00:12:34:09 at null: it is new
looked up  its destination is a broadcast: to all ports of the VLAN
delivered  to vm1, its tag taken out: dropped there: no-vm
delivered  to vm2: dropped there: no-vm
delivered  to vm3: dropped there: no-vm
";
    assert!(traced.code == Some(0) && traced.out.ends_with(expected), "{traced:?}");
    let sent = scratch.run(&["trace", "vm3", "ffffffffffff 525400123403 8100000a 0806"]);
    let expected = "\
VLAN       the flat network: without VLANs
learns     52:54:00:12:34:03 at vm3: it is new
looked up  its destination is a broadcast: to all ports of the VLAN
passes by  vm1, vm2: not in this VLAN
delivered  to null: it goes out
";
    assert!(sent.code == Some(0) && sent.out.ends_with(expected), "{sent:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn each_step_of_a_frame_is_told_and_nothing_changes_by_it() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let before = scratch.run(&["ports", "--addresses"]);
    let traced = scratch.run(&["trace", "vm1", ASKS]);
    let expected = "\
arrives    at vm1 (e1000, port group web): 16 bytes, 52:54:00:12:34:01 → ff:ff:ff:ff:ff:ff, ARP
fetched    no VM is attached that could send it; what follows is as if one had
policy     bpdu_guard let it through
VLAN       VLAN 10: an access port of VLAN 10
policy     its source is the port's own (forged transmits are rejected)
learns     52:54:00:12:34:01 at vm1: it is new
looked up  its destination is a broadcast: to all ports of the VLAN; storm control (100/s) lets it through
passes by  vm3: not in this VLAN
delivered  to null, tag 10 put in: it goes out
delivered  to vm2, tag 10 put in: dropped there: no-vm
";
    assert_eq!((traced.code, traced.out.as_str(), traced.err.as_str()), (Some(0), expected, ""));
    let forged = scratch.run(&["trace", "vm1", &ASKS.replace("3401", "3409")]);
    let end = "\
policy     refused: its source is not an address of the port
dropped    forged-transmit
";
    assert!(forged.code == Some(0) && forged.out.ends_with(end), "{forged:?}");
    let guarded = scratch.run(&["trace", "vm1", "0180c2000000 525400123401 0026 424203"]);
    assert!(guarded.out.ends_with("policy     refused: bpdu-guard\ndropped    bpdu-guard\n"), "{guarded:?}");
    let tagged = scratch.run(&["trace", "null", "ffffffffffff 525400123409 8100001e 0806"]);
    let refused =
        "VLAN       refused: the port is a trunk of 10,20, and the frame's tag is none of it\ndropped    vlan\n";
    assert!(tagged.out.ends_with(refused), "{tagged:?}");
    let json = scratch.run(&["trace", "vm1", "--json", ASKS]);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    let receiver = |port: &str, dropped| json!({ "port": port, "dropped": dropped, "hosts": [] });
    let receivers = json!([receiver("null", Value::Null), receiver("vm2", json!("no-vm"))]);
    assert_eq!((&json["receivers"], &json["dropped"]), (&receivers, &Value::Null));
    assert_eq!(json["steps"][3], json!({ "stage": "vlan", "what": "VLAN 10: an access port of VLAN 10" }));
    let after = scratch.run(&["ports", "--addresses"]);
    assert_eq!((after.out, after.err), (before.out, before.err));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_frame_comes_from_a_file_or_stdin_and_what_is_none_is_said() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let bytes = [&[0xff; 6][..], &[0x52, 0x54, 0, 0x12, 0x34, 1, 8, 6, 0, 1]].concat();
    let mut file = pcap_file::pcap::PcapWriter::new(Vec::new()).unwrap();
    let packet = pcap_file::pcap::PcapPacket::new(std::time::Duration::ZERO, 60, &bytes);
    file.write_packet(&packet).unwrap();
    let file = file.into_writer();
    std::fs::write(scratch.path().join("asks.pcap"), &file).unwrap();
    std::fs::write(scratch.path().join("asks.txt"), ASKS).unwrap();
    let words = scratch.run(&["trace", "vm1", ASKS]).out;
    let from_file = scratch.run(&["trace", "vm1", "asks.pcap"]);
    assert_eq!((from_file.code, from_file.out.as_str()), (Some(0), words.as_str()), "{from_file:?}");
    assert_eq!(from_file.err, "note: the frame had 60 bytes, and the first 16 of them are there\n");
    assert_eq!(scratch.run(&["trace", "vm1", "asks.txt"]).out, words);
    let mut child = scratch.command(&["trace", "vm1", "-"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&file).unwrap();
    assert_eq!(Ended::of(&child.wait_with_output().unwrap()).out, words);
    for (args, message) in [
        (&["trace", "vm9", ASKS][..], "there is no port \"vm9\"; did you mean"),
        (&["trace", "vm1", "asks.pcapng"], "asks.pcapng: it is no pcap or pcapng file, and no hexadecimal digits"),
        (&["trace", "vm1", "fff"], "no hexadecimal digits, two for each byte"),
        (&["trace", "vm1", ""], "there is no whole frame in it"),
        (&["trace", "vm1"], "<FRAME>"),
        (&["trace", "vm1", ASKS, "--next", "arp"], "cannot be used with"),
    ] {
        let ended = scratch.run(args);
        assert!(ended.code == Some(2) && ended.err.contains(message), "{args:?}: {ended:?}");
    }
    let runt = scratch.run(&["trace", "vm1", "ffff"]);
    assert!(runt.code == Some(0) && runt.out.ends_with("dropped    too-short\n"), "{runt:?}");
    let long = "00".repeat(70_000);
    std::fs::write(scratch.path().join("long.txt"), long).unwrap();
    let long = scratch.run(&["trace", "vm1", "long.txt"]);
    assert!(long.code == Some(2) && long.err.contains("a frame of 70000 bytes is none"), "{long:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}
