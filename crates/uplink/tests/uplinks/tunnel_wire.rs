//! A tunnel's frames on the wire: Wireshark's dissector (`tshark` of Debian's package) judges what leaves, and a peer's IP fragments come in.

use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use nicety_adapter::{Counters, Reason, Time};
use nicety_guests::Tool;
use nicety_uplink::VXLAN_PORT;
use pcap_file::pcap::{PcapPacket, PcapWriter};
use tempfile::TempDir;

use crate::common::*;
use crate::tap::{inside_as, ip};
use crate::vxlan::{MTU, arrived, datagram, tagged, tcp_both_ways};
use crate::wired::{FAR, OWN, SOON, Wired};

/// The ends of a tunnel over IPv6.
const OWN6: &str = "fd00::1";
const FAR6: &str = "fd00::2";

/// The fields of a frame that are judged. Fields of the outer headers come first.
const FIELDS: [&str; 10] = [
    "vxlan.flags",
    "vxlan.vni",
    "udp.checksum.status",
    "tcp.checksum.status",
    "tcp.checksum",
    "ip.checksum.status",
    "ip.flags.mf",
    "ip.frag_offset",
    "ipv6.fraghdr.offset",
    "_ws.malformed",
];
/// `PROTO_CHECKSUM_E_GOOD` of Wireshark's epan/proto.h.
const GOOD: &str = "1";
/// Zero has two forms in one's complement (RFC 1071 section 1, RFC 1624 section 3), and each verifies. Where a sum is zero we write this one,
/// which tshark calls bad in TCP. [`tcp_both_ways`] verifies these segments, too.
const OTHER_ZERO: &str = "0xffff";

/// Has tshark read these frames. Returns the fields of each, several of one name with commas between them.
fn read(program: &Tool, folder: &Path, frames: &[Vec<u8>]) -> Vec<[String; FIELDS.len()]> {
    let file = folder.join("wire.pcap");
    let mut capture = PcapWriter::new(File::create(&file).unwrap()).unwrap();
    for frame in frames {
        capture.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, frame)).unwrap();
    }
    drop(capture);
    let mut command = program.command();
    command.args(["-n", "-r"]).arg(&file).env("HOME", folder).env_remove("XDG_CONFIG_HOME");
    for preference in
        ["ip.defragment:FALSE", "ip.check_checksum:TRUE", "udp.check_checksum:TRUE", "tcp.check_checksum:TRUE"]
    {
        command.args(["-o", preference]);
    }
    command.args(["-T", "fields", "-E", "separator=;"]);
    FIELDS.iter().for_each(|field| _ = command.args(["-e", field]));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let fields = |line: &str| {
        let fields: Vec<String> = line.split(';').map(str::to_owned).collect();
        fields.try_into().unwrap_or_else(|_| panic!("{line}"))
    };
    String::from_utf8(output.stdout).unwrap().lines().map(fields).collect()
}

/// The faults of a frame that should be as RFC 7348 says, in network 5010, if it is VXLAN at all.
fn wrong(fields: &[String; FIELDS.len()]) -> Vec<&'static str> {
    let [flags, vni, udp, tcp, tcp_sum, ip, more, offset, fragment6, malformed] = fields.each_ref().map(String::as_str);
    let all = |list: &str, good: &[&str]| list.is_empty() || list.split(',').all(|value| good.contains(&value));
    let is_vxlan = !flags.is_empty();
    let checks = [
        ("network", !is_vxlan || (flags, vni) == ("0x0800", "5010")),
        ("outer checksum", !is_vxlan || udp.split(',').next() == Some(GOOD)),
        ("inner checksum", !is_vxlan || all(tcp, &[GOOD]) || tcp_sum == OTHER_ZERO),
        ("checksum of IPv4", all(ip, &[GOOD])),
        ("fragment", all(more, &["0", "False"]) && all(offset, &["0"]) && fragment6.is_empty()),
        ("malformed", malformed.is_empty()),
    ];
    checks.into_iter().filter(|(_, is_good)| !is_good).map(|(what, _)| what).collect()
}

/// A frame with some of its bytes changed.
fn changed(frame: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = frame.to_vec();
    change(&mut frame);
    frame
}

/// TCP goes both ways through a tunnel between these ends, and tshark finds nothing wrong with what was on the wire. `headers`: bytes of
/// Ethernet and IP before UDP.
fn tshark_judges(program: &Tool, (own, far): (&str, &str), headers: usize) {
    let wired = tcp_both_ways(own, far);
    let folder = TempDir::new().unwrap();
    let mut frames = wired.seen.clone();
    let (whole, carried) = (frames.len(), wired.judged().len());
    // It does see what is wrong.
    let (udp_checksum, flags) = (headers + 6, headers + 8);
    // The inner checksum stands behind UDP, VXLAN, Ethernet and IPv4.
    let inner_checksum = headers + 8 + 8 + 14 + 20 + 16;
    let is_judged = |frame: &&Vec<u8>| frame.get(inner_checksum..inner_checksum + 2) != Some(&[0xff; 2]);
    let longest = frames.iter().filter(is_judged).max_by_key(|frame| frame.len()).unwrap().clone();
    let last = longest.len() - 1;
    frames.push(changed(&longest, |frame| frame[udp_checksum..][..2].fill(0)));
    frames.push(changed(&longest, |frame| frame[last] ^= 1));
    frames.push(changed(&longest, |frame| frame[flags] = 0));
    let found = read(program, folder.path(), &frames);
    assert_eq!(found.len(), frames.len());
    let judged: Vec<_> = found.iter().map(wrong).collect();
    let bad: Vec<_> = judged[..whole].iter().zip(&found).filter(|(wrong, _)| !wrong.is_empty()).take(5).collect();
    assert!(bad.is_empty(), "{FIELDS:?} {bad:#?}");
    let dissected = found[..whole].iter().filter(|fields| !fields[0].is_empty());
    let with_tcp = dissected.clone().filter(|fields| fields[3] == GOOD).count();
    assert_eq!(dissected.count(), carried, "tshark finds VXLAN in each datagram");
    assert!(with_tcp > 2000, "{with_tcp}");
    let outer = "outer checksum";
    assert_eq!(judged[whole..], [vec![outer], vec![outer, "inner checksum"], vec!["network", outer]], "{found:?}");
}

/// Runs a test with tshark in a namespace of its own, if tshark can be laid.
fn with_tshark(test: &str, act: impl FnOnce(&Tool)) {
    // Laid before: the namespace has no network.
    match Tool::tshark(&mut |_| {}) {
        Ok(program) if inside_as(&format!("tunnel_wire::{test}")) => act(&program),
        Ok(_) => {}
        Err(error) => {
            // Written directly: the test harness hides the output of passing tests.
            let _stdout_closed = writeln!(std::io::stdout(), "\nSKIPPED tunnel_wire::{test}: no tshark: {error}");
        }
    }
}

#[test]
fn tshark_finds_nothing_wrong_with_a_tunnel_over_ipv4() {
    with_tshark("tshark_finds_nothing_wrong_with_a_tunnel_over_ipv4", |program| {
        tshark_judges(program, (OWN, FAR), 14 + 20);
    });
}

#[test]
fn tshark_finds_nothing_wrong_with_a_tunnel_over_ipv6() {
    with_tshark("tshark_finds_nothing_wrong_with_a_tunnel_over_ipv6", |program| {
        tshark_judges(program, (OWN6, FAR6), 14 + 40);
    });
}

fn is_fragment(frame: &[u8]) -> bool {
    match frame[12..14] {
        // More fragments, or an offset.
        [8, 0] => frame[20] & 0x3f != 0 || frame[21] != 0,
        // A fragment header.
        [0x86, 0xdd] => frame[20] == 44,
        _ => false,
    }
}

/// A peer sends datagrams that are longer than its own MTU.
fn fragments_come_in(own: &str, far: &str) {
    let mut wired = Wired::new(own, far, MTU);
    let (own, far): (IpAddr, IpAddr) = (own.parse().unwrap(), far.parse().unwrap());
    let peer = wired.far.run(|| {
        ip("link set under0 mtu 1280");
        UdpSocket::bind((far, 0)).unwrap()
    });
    let (fits, too_long, longest) = (tcp(&payload(1300)), tcp(&payload(1465 - 54)), tcp(&payload(60_000)));
    let mut counters = Counters::default();
    let (mut found, mut wanted) = (Vec::new(), Vec::new());
    // The next one is sent when the one before has come.
    for (sent, frame) in [&fits, &too_long, &longest, &fits].into_iter().enumerate() {
        let cut = |wired: &Wired| wired.seen.iter().filter(|frame| is_fragment(frame)).count();
        let before = cut(&wired);
        peer.send_to(&datagram(frame), (own, VXLAN_PORT)).unwrap();
        let end = Instant::now() + SOON;
        while found.len() + counters.transmit_drops[Reason::TooLong as usize] as usize <= sent {
            assert!(Instant::now() < end, "frame {sent} of {} bytes does not come", frame.len());
            wired.pass();
            // Linux's device sends frames of its own, too.
            let frames = arrived(&mut wired.tunnel, &mut counters, Time::ZERO);
            found.extend(frames.into_iter().filter(|frame| frame[..12] == fits[..12]));
        }
        let pieces = datagram(frame).len().div_ceil(1280 - 8);
        assert!(cut(&wired) - before >= pieces, "{} fragments", cut(&wired) - before);
        if frame.len() < 1400 {
            wanted.push(tagged(frame, 10));
        }
    }
    assert_eq!(found, wanted);
    assert_eq!(counters.transmit_drops[Reason::TooLong as usize], 2);
    assert_eq!(counters.transmit_drops.iter().sum::<u64>(), 2);
}

#[test]
fn fragments_of_a_peer_are_a_frame_again_that_comes_in_unless_it_is_too_long() {
    if inside_as("tunnel_wire::fragments_of_a_peer_are_a_frame_again_that_comes_in_unless_it_is_too_long") {
        fragments_come_in(OWN, FAR);
    }
}

#[test]
fn fragments_of_a_peer_over_ipv6_are_a_frame_again_that_comes_in_unless_it_is_too_long() {
    if inside_as("tunnel_wire::fragments_of_a_peer_over_ipv6_are_a_frame_again_that_comes_in_unless_it_is_too_long") {
        fragments_come_in(OWN6, FAR6);
    }
}
