use super::*;

/// Programs as libpcap 1.10.3 compiles them for Ethernet (`tcpdump -ddd -y EN10MB EXPRESSION`).
const ICMP: &[Raw] =
    &[(40, 0, 0, 12), (21, 0, 3, 2048), (48, 0, 0, 23), (21, 0, 1, 1), (6, 0, 0, 262_144), (6, 0, 0, 0)];
/// `tcp port 443 and host 10.0.0.1`
const HTTPS: &[Raw] = &[
    (40, 0, 0, 12),
    (21, 15, 0, 34525),
    (21, 0, 14, 2048),
    (48, 0, 0, 23),
    (21, 0, 12, 6),
    (40, 0, 0, 20),
    (69, 10, 0, 8191),
    (177, 0, 0, 14),
    (72, 0, 0, 14),
    (21, 2, 0, 443),
    (72, 0, 0, 16),
    (21, 0, 5, 443),
    (32, 0, 0, 26),
    (21, 2, 0, 167_772_161),
    (32, 0, 0, 30),
    (21, 0, 1, 167_772_161),
    (6, 0, 0, 262_144),
    (6, 0, 0, 0),
];
/// `vlan 10 and ip`
const VLAN: &[Raw] = &[
    (40, 0, 0, 12),
    (21, 2, 0, 33024),
    (21, 1, 0, 34984),
    (21, 0, 6, 37120),
    (40, 0, 0, 14),
    (84, 0, 0, 4095),
    (21, 0, 3, 10),
    (40, 0, 0, 16),
    (21, 0, 1, 2048),
    (6, 0, 0, 262_144),
    (6, 0, 0, 0),
];
/// `greater 100`
const GREATER: &[Raw] = &[(128, 0, 0, 0), (53, 0, 1, 100), (6, 0, 0, 262_144), (6, 0, 0, 0)];

/// An IPv4 frame with this protocol and these ports, from 10.0.0.1 to 10.0.0.2.
fn ipv4(protocol: u8, ports: [u16; 2]) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[23] = protocol;
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..36].copy_from_slice(&ports[0].to_be_bytes());
    frame[36..38].copy_from_slice(&ports[1].to_be_bytes());
    frame
}

fn wants(raw: &[Raw], frame: &[u8]) -> bool {
    Program::new(raw).unwrap().wants(frame)
}

#[test]
fn programs_of_libpcap_want_what_their_words_say() {
    let (ping, https, http) = (ipv4(1, [0, 0]), ipv4(6, [443, 2000]), ipv4(6, [80, 2000]));
    assert_eq!([&ping, &https, &http].map(|frame| wants(ICMP, frame)), [true, false, false]);
    assert_eq!([&ping, &https, &http].map(|frame| wants(HTTPS, frame)), [false, true, false]);
    let tagged = |id: u8| [&ping[..12], &[0x81, 0, 0xe0, id], &ping[12..]].concat();
    assert_eq!([ping.clone(), tagged(10), tagged(11)].map(|frame| wants(VLAN, &frame)), [false, true, false]);
    assert_eq!([99, 100, 101].map(|length| wants(GREATER, &vec![0; length])), [false, true, true]);
}

#[test]
fn a_frame_that_is_shorter_than_what_is_asked_of_it_is_not_wanted() {
    let https = ipv4(6, [443, 2000]);
    assert!((0..35).all(|length| !wants(HTTPS, &https[..length])));
    assert!(!wants(ICMP, &[]));
}

#[test]
fn every_operation_does_what_it_is_named_for() {
    // Load A with 7 and X with 3, do the operation with X, return A.
    let of = |operation: u16| {
        let program = [(0, 0, 0, 7), (1, 0, 0, 3), (4 | 8 | operation, 0, 0, 0), (0x16, 0, 0, 0)];
        Program::new(&program).unwrap().run(&[])
    };
    let results = [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0].map(of);
    let sums = [10, 4, 21, 2, 7, 3, 56, 0, 7u32.wrapping_neg(), 1, 4];
    assert_eq!(results, sums.map(Some));
    // X is 0: a division by zero ends the run.
    assert_eq!(Program::new(&[(4 | 8 | 0x30, 0, 0, 0), (0x16, 0, 0, 0)]).unwrap().run(&[]), None);
    // Memory, and moves between A and X.
    let moved = [
        (0, 0, 0, 9),
        (2, 0, 0, 15),
        (0x61, 0, 0, 15),
        (0x87, 0, 0, 0),
        (0x07, 0, 0, 0),
        (0x03, 0, 0, 1),
        (0x60, 0, 0, 1),
        (0x16, 0, 0, 0),
    ];
    assert_eq!(Program::new(&moved).unwrap().run(&[]), Some(9));
}

#[test]
fn programs_that_could_go_wrong_are_refused() {
    let end = (6, 0, 0, 0);
    for (program, error) in [
        (vec![], BpfError::Length(0)),
        (vec![end; 4097], BpfError::Length(4097)),
        (vec![(0, 0, 0, 1)], BpfError::End),
        (vec![(5, 0, 0, 1), end], BpfError::Jump(0)),
        (vec![(5, 0, 0, u32::MAX), end], BpfError::Jump(0)),
        (vec![(0x15, 0, 1, 0), end], BpfError::Jump(0)),
        (vec![(2, 0, 0, 16), end], BpfError::Word(0)),
        (vec![(0x60, 0, 0, 16), end], BpfError::Word(0)),
        (vec![(0x34, 0, 0, 0), end], BpfError::Operand(0)),
        (vec![(0x64, 0, 0, 32), end], BpfError::Operand(0)),
        (vec![(0xb4, 0, 0, 1), end], BpfError::Unknown(0)),
        (vec![(0xffff, 0, 0, 1), end], BpfError::Unknown(0)),
        (vec![(0x21, 0, 0, 1), end], BpfError::Unknown(0)),
    ] {
        assert_eq!(Program::new(&program).unwrap_err(), error, "{program:?}");
    }
}
