//! Wireshark's dissector, `tshark` of Debian's package, judges the LACPDUs that a team's link sends: none malformed, and the fields as the
//! host file and the partner say.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nicety_guests::Tool;
use pcap_file::pcap::{PcapPacket, PcapWriter};
use rustix::process::Signal;

use crate::python::skipped;
use crate::scratch::{Ended, HOST, Scratch, Served};

const SOON: Duration = Duration::from_secs(60);
/// Slow protocols (IEEE 802.3-2018, annex 57A): their address and their type.
const SLOW: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 2];
const TYPE: [u8; 2] = [0x88, 0x09];
const PARTNER: [u8; 6] = [2, 0, 0, 0, 0, 0x99];

/// A partner's first LACPDU (IEEE 802.1AX-2014, figure 6-7): it is active, asks for a short timeout, and aggregates; it knows no partner.
fn lacpdu() -> Vec<u8> {
    let actor = [&[1, 20, 0, 200][..], &PARTNER, &[0, 9, 0, 5, 0, 3, 0x07, 0, 0, 0]].concat();
    let partner = [&[2, 20][..], &[0; 18]].concat();
    let collector = [&[3, 16][..], &[0; 14]].concat();
    [&SLOW[..], &PARTNER, &TYPE, &[1, 1], &actor, &partner, &collector, &[0; 52]].concat()
}

/// Its marker (section 6.5.3.3): of port 3, transaction 0x01020304. The TLV has 16 octets; IEEE 802.3-2000 and Linux write 0x16, which tshark
/// calls malformed. The answer has the length of the question.
fn marker() -> Vec<u8> {
    let information = [&[1, 16, 0, 3][..], &PARTNER, &[1, 2, 3, 4, 0, 0]].concat();
    let mut frame = [&SLOW[..], &PARTNER, &TYPE, &[2, 1], &information].concat();
    frame.resize(124, 0);
    frame
}

/// The next frame of a stream: QEMU's form, a length and the bytes.
fn frame(link: &mut UnixStream) -> Vec<u8> {
    let mut len = [0; 4];
    link.read_exact(&mut len).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(len) as usize];
    link.read_exact(&mut frame).unwrap();
    frame
}

#[test]
fn tshark_reads_a_team_s_lacpdus_and_its_answer_to_a_marker_as_they_are_meant() {
    let program = match Tool::tshark(&mut |_| {}) {
        Ok(tshark) => tshark,
        Err(error) => return skipped("tshark", &error.to_string()),
    };
    let uplink = "[[uplink]]\nname = \"a\"\nkind = \"stream\"\nsocket = \"a.sock\"\n";
    let team = "[[team]]\nname = \"up\"\nmembers = \"a\"\nmode = \"802.3ad\"\nlacp_rate = \"fast\"\nsystem_priority = 100\nkey = 7\n\
                system = \"02:4e:00:00:00:07\"\n";
    let scratch = Scratch::with(&format!("{HOST}{uplink}{team}"));
    let daemon = Served::start(&scratch);
    let mut link = UnixStream::connect(scratch.path().join("a.sock")).unwrap();
    link.set_read_timeout(Some(SOON)).unwrap();
    let send = |frame: Vec<u8>| {
        let mut link = &link;
        link.write_all(&[&(frame.len() as u32).to_be_bytes()[..], &frame].concat()).unwrap();
    };
    send(lacpdu());
    send(marker());
    // The answers: a LACPDU that knows the partner, and the marker's.
    let file = scratch.path().join("link.pcap");
    let mut capture = PcapWriter::new(File::create(&file).unwrap()).unwrap();
    let (mut knows, mut answers, end) = (false, false, Instant::now() + SOON);
    while !(knows && answers) {
        assert!(Instant::now() < end, "LACPDU with the partner {knows}, marker {answers}");
        let frame = frame(&mut link);
        knows |= frame.len() == 124 && frame[12..15] == [0x88, 0x09, 1] && frame[40..46] == PARTNER;
        answers |= frame.len() == 124 && frame[12..15] == [0x88, 0x09, 2];
        capture.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, &frame)).unwrap();
    }
    drop(capture);
    assert_eq!(daemon.end(Signal::TERM), Some(0));
    let tshark = |args: &[&str]| {
        let mut command = program.command();
        command.args(["-n", "-r"]).arg(&file).args(args).env("HOME", scratch.path()).env_remove("XDG_CONFIG_HOME");
        Ended::soon(command)
    };
    let all = tshark(&["-V"]);
    assert_eq!(all.code, Some(0), "{all:?}");
    let wrong = tshark(&["-Y", "_ws.malformed || _ws.unreassembled || _ws.expert || _ws.short"]);
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(0), ""), "{}", all.out);
    let fields = |filter: &str, names: &[&str]| {
        // A marker has several fields of one name: the first counts.
        let mut args = vec!["-Y", filter, "-T", "fields", "-E", "separator= ", "-E", "occurrence=f"];
        names.iter().for_each(|name| args.extend(["-e", name]));
        let ended = tshark(&args);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out.lines().last().unwrap_or_else(|| panic!("no frame of {filter}: {}", all.out)).to_owned()
    };
    let actor = ["sys_priority", "sysid", "key", "port_priority", "port"].map(|name| format!("lacp.actor.{name}"));
    let actor: Vec<&str> = actor.iter().map(String::as_str).collect();
    assert_eq!(fields("lacp", &actor), "100 02:4e:00:00:00:07 7 128 1", "{}", all.out);
    let partner = ["sys_priority", "sysid", "key", "port_priority", "port", "state"];
    let partner = partner.map(|name| format!("lacp.partner.{name}"));
    let partner: Vec<&str> = partner.iter().map(String::as_str).collect();
    assert_eq!(fields("lacp.partner.key == 9", &partner), "200 02:00:00:00:00:99 9 5 3 0x07", "{}", all.out);
    // Active, a short timeout, aggregation, not defaulted (section 6.4.2.3, Actor_State).
    let state = fields("lacp.partner.key == 9", &["lacp.actor.state"]);
    let state = u8::from_str_radix(state.trim_start_matches("0x"), 16).unwrap();
    assert_eq!(state & 0x47, 0x07, "{}", all.out);
    let marker = ["marker.tlvType", "marker.requesterPort", "marker.requesterSystem", "marker.requesterTransId"];
    assert_eq!(fields("marker", &marker), "0x02 3 02:00:00:00:00:99 16909060", "{}", all.out);
}
