//! Packets in the form that receivers get: whole, segmented, tagged, untagged, with computed and verified checksums. smoltcp checks them.

use std::sync::Arc;

use nicety_adapter::{
    Batch, Checked, Checksum, DraftError, Edit, Frames, HEAD_BYTES, Offload, Pick, PortId, Reason, Scratch, Segment,
    SegmentKind, Short, Unfolded, Wants,
};
use nicety_frame::{Tag, Tci, vlan};
use nicety_memory::{Map, Rights, Span};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol, Ipv4Address, Ipv4Packet,
    Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

const PAYLOAD: usize = 5000;

/// A TCP packet built by smoltcp, with complete checksums.
fn tcp(payload: &[u8]) -> Vec<u8> {
    let (source, target) = (Ipv4Address::new(10, 0, 0, 1), Ipv4Address::new(10, 0, 0, 2));
    let tcp = TcpRepr {
        src_port: 1000,
        dst_port: 2000,
        control: TcpControl::Psh,
        seq_number: TcpSeqNumber(7),
        ack_number: Some(TcpSeqNumber(9)),
        window_len: 100,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload,
    };
    let ip = Ipv4Repr {
        src_addr: source,
        dst_addr: target,
        next_header: IpProtocol::Tcp,
        payload_len: tcp.buffer_len(),
        hop_limit: 64,
    };
    let ethernet = EthernetRepr {
        src_addr: EthernetAddress([2, 0, 0, 0, 0, 1]),
        dst_addr: EthernetAddress([2, 0, 0, 0, 0, 2]),
        ethertype: EthernetProtocol::Ipv4,
    };
    let mut bytes = vec![0; 14 + 20 + tcp.buffer_len()];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    ethernet.emit(&mut frame);
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &ChecksumCapabilities::default());
    let mut segment = TcpPacket::new_unchecked(packet.payload_mut());
    tcp.emit(&mut segment, &IpAddress::Ipv4(source), &IpAddress::Ipv4(target), &ChecksumCapabilities::default());
    bytes
}

/// The same packet with the pseudo-header's sum in the checksum field, as a driver passes it to its adapter.
fn partial(payload: &[u8]) -> Vec<u8> {
    let mut bytes = tcp(payload);
    let sum: u32 = 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 6 + (bytes.len() as u32 - 34);
    let sum = (sum & 0xffff) + (sum >> 16);
    bytes[50..52].copy_from_slice(&(sum as u16).to_be_bytes());
    bytes
}

/// Checks a frame like a receiver's stack, and returns its TCP payload.
fn judged(frame: &[u8]) -> Vec<u8> {
    let frame = EthernetFrame::new_checked(frame).expect("an Ethernet frame");
    let ip = Ipv4Packet::new_checked(frame.payload()).expect("an IPv4 packet");
    assert!(ip.verify_checksum(), "the header's checksum");
    let tcp = TcpPacket::new_checked(ip.payload()).expect("a TCP segment");
    assert!(tcp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()), "the TCP checksum");
    tcp.payload().to_vec()
}

/// A delivered frame, the state of its checksum, and the removed tag.
type Delivered = (Vec<u8>, Checked, Option<u16>);

struct Sender {
    batch: Batch,
}

impl Sender {
    /// Drafts a frame from guest memory in pieces of `step` bytes.
    fn new(frame: &[u8], step: usize, offload: Offload, tag: Option<u16>) -> Self {
        let map = Arc::new(Map::private(1 << 20).unwrap());
        map.write(0x100, frame).unwrap();
        let mut batch = Batch::new();
        batch.start(&map, PortId(0), 0);
        let mut draft = batch.draft(0).unwrap();
        for (i, piece) in frame.chunks(step).enumerate() {
            draft.push(0x100 + (i * step) as u64, piece.len() as u32).unwrap();
        }
        if let Some(control) = tag {
            assert!(draft.tag(Tag::customer(Tci(control))));
        }
        draft.finish(offload, 0).unwrap();
        Self { batch }
    }

    /// Delivers pieces into separate buffers of `buffer` bytes each.
    fn deliver(&self, wants: Wants, edit: Edit, buffer: u32) -> Result<Vec<Delivered>, Reason> {
        let target = Map::private(1 << 20).unwrap();
        let pick = Pick { edit, ..Pick::whole(0) };
        let picks = [pick];
        let frames = Frames::new(&self.batch, &picks);
        let unfolded = Unfolded::new(&frames, pick, wants)?;
        let mut scratch = Scratch::new();
        let mut out = Vec::new();
        for index in 0..unfolded.count() {
            let len = unfolded.len(index);
            let mut spans: Vec<Span> = Vec::new();
            for at in 0..len.div_ceil(buffer) {
                let add = |span| {
                    spans.push(span);
                    true
                };
                target.translate(u64::from(at) * u64::from(buffer + 5), buffer, Rights::WRITE, add).unwrap();
            }
            let mut piece = unfolded.piece(index, &mut scratch).unwrap();
            assert_eq!(piece.len(), len, "the announced length");
            let checked = piece.write(&target, &spans);
            let tag = piece.tag.map(|tag| tag.0);
            let mut bytes = Vec::new();
            for span in spans {
                let mut part = vec![0; span.len() as usize];
                target.read_span(span, &mut part);
                bytes.extend(part);
            }
            bytes.truncate(len as usize);
            out.push((bytes, checked, tag));
        }
        Ok(out)
    }
}

impl Sender {
    /// The frame in one step, if it needs no more.
    fn short(&self, wants: &Wants, edit: Edit) -> Option<Delivered> {
        let picks = [Pick { edit, ..Pick::whole(0) }];
        let short = Short::of(&Frames::new(&self.batch, &picks), picks[0], wants)?;
        assert!(std::ptr::eq(short.packet(), &raw const self.batch.packets()[0]));
        Some((short.bytes().to_vec(), short.checked(), None))
    }
}

fn payload() -> Vec<u8> {
    (0..PAYLOAD).map(|i| (i * 7 + i / 251) as u8).collect()
}

const CHECKSUM: Checksum = Checksum::Partial { start: 34, field: 50 };
const PLAIN: Wants =
    Wants { frame_max: 1514, tcp4: false, tcp6: false, udp: false, partial: false, strip: 0, verify: true };

#[test]
fn a_large_packet_reaches_a_plain_receiver_as_frames_whose_checksums_hold() {
    for (step, buffer) in [(100_000, 2048), (4096, 256), (1447, 1000), (77, 33)] {
        let offload =
            Offload { checksum: CHECKSUM, segment: Some(Segment { kind: SegmentKind::Tcp, mss: 1448, headers: 54 }) };
        let sender = Sender::new(&partial(&payload()), step, offload, None);
        assert_eq!(sender.batch.packets()[0].frames(), 4);
        let pieces = sender.deliver(PLAIN, Edit::Keep, buffer).unwrap();
        assert_eq!(pieces.iter().map(|p| p.0.len()).collect::<Vec<_>>(), [1502, 1502, 1502, 710]);
        let joined: Vec<u8> = pieces.iter().flat_map(|p| judged(&p.0)).collect();
        assert_eq!(joined, payload(), "pieces of {step} bytes into buffers of {buffer}");
        assert!(pieces.iter().all(|p| p.1 == Checked::Good));
    }
}

#[test]
fn a_large_packet_stays_whole_for_a_receiver_that_can_take_it() {
    let segment = Some(Segment { kind: SegmentKind::Tcp, mss: 1448, headers: 54 });
    let sender = Sender::new(&partial(&payload()), 4096, Offload { checksum: CHECKSUM, segment }, None);
    let wants = Wants { tcp4: true, partial: true, ..PLAIN };
    let pieces = sender.deliver(wants, Edit::Keep, 65536).unwrap();
    assert_eq!(pieces.len(), 1);
    assert_eq!(pieces[0].0, partial(&payload()));
}

#[test]
fn a_partial_checksum_is_made_on_the_way_or_left_to_who_can() {
    let sender = Sender::new(&partial(&payload()[..999]), 200, Offload { checksum: CHECKSUM, segment: None }, None);
    let pieces = sender.deliver(PLAIN, Edit::Keep, 300).unwrap();
    assert_eq!(judged(&pieces[0].0), payload()[..999]);
    let pieces = sender.deliver(Wants { partial: true, ..PLAIN }, Edit::Keep, 300).unwrap();
    assert_eq!(pieces[0].0, partial(&payload()[..999]));
}

#[test]
fn a_whole_frame_is_verified_and_a_damaged_one_is_told() {
    for len in [0, 1, 5, 100, 999] {
        let mut frame = tcp(&payload()[..len]);
        frame.resize(frame.len().max(60), 0xaa);
        let good = Sender::new(&frame, 64, Offload::default(), None).deliver(PLAIN, Edit::Keep, 128).unwrap();
        assert_eq!((good[0].1, &good[0].0), (Checked::Good, &frame), "{len} bytes and padding");
        frame[47] ^= 1;
        let bad = Sender::new(&frame, 64, Offload::default(), None).deliver(PLAIN, Edit::Keep, 128).unwrap();
        assert_eq!(bad[0].1, Checked::Bad, "{len} bytes, one of them wrong");
    }
}

#[test]
fn tags_come_and_go_and_checksums_follow_them() {
    let offload = Offload { checksum: Checksum::Partial { start: 38, field: 54 }, segment: None };
    let bytes = partial(&payload()[..999]);
    let sender = Sender::new(&bytes, 200, offload, Some(0x2005));
    let kept = sender.deliver(PLAIN, Edit::Keep, 300).unwrap();
    assert_eq!(&kept[0].0[12..18], [0x81, 0, 0x20, 5, 8, 0]);
    let mut untagged = kept[0].0.clone();
    untagged.drain(12..16);
    assert_eq!(judged(&untagged), payload()[..999]);
    for (wants, edit, tag) in [(Wants { strip: 0x8100, ..PLAIN }, Edit::Keep, Some(0x2005)), (PLAIN, Edit::Untag, None)]
    {
        let pieces = sender.deliver(wants, edit, 300).unwrap();
        assert_eq!(pieces[0].2, tag);
        assert_eq!(judged(&pieces[0].0), payload()[..999]);
    }
    let plain = Sender::new(&bytes, 200, Offload { checksum: CHECKSUM, segment: None }, None);
    let pieces = plain.deliver(PLAIN, Edit::Tag(Tag::customer(Tci(7))), 300).unwrap();
    assert_eq!(&pieces[0].0[12..16], [0x81, 0, 0, 7]);
    let pieces = plain.deliver(Wants { strip: 0x8100, ..PLAIN }, Edit::Tag(Tag::customer(Tci(7))), 300).unwrap();
    assert_eq!(pieces[0].2, Some(7));
}

#[test]
fn every_edit_of_every_stack_of_tags_for_every_receiver() {
    let (c, d, s) = (Tag::customer(Tci(0x2005)), Tag::customer(Tci(0x0007)), Tag::service(Tci(0xe064)));
    let priority = Tag::customer(Tci(0x6000));
    let stacks = [vec![], vec![c], vec![s], vec![priority], vec![s, c], vec![c, d]];
    let tso = |headers| Some(Segment { kind: SegmentKind::Tcp, mss: 1448, headers });
    for (stack, segmented, uncut) in
        stacks.iter().flat_map(|stack| [(stack, false, false), (stack, true, false), (stack, true, true)])
    {
        let bytes = if segmented { partial(&payload()) } else { partial(&payload()[..999]) };
        let shift = 4 * stack.len() as u16;
        let mut tagged = bytes.clone();
        tagged.splice(12..12, stack.iter().flat_map(|tag| tag.to_bytes()));
        let checksum = Checksum::Partial { start: 34 + shift, field: 50 + shift };
        let offload = Offload { checksum, segment: if segmented { tso(54 + shift) } else { None } };
        let sender = Sender::new(&tagged, 700, offload, None);
        for edit in [Edit::Keep, Edit::Untag, Edit::Tag(d), Edit::Tag(s), Edit::Retag(d), Edit::Retag(s)] {
            let mut edited = stack.clone();
            match edit {
                Edit::Keep => {}
                Edit::Untag => drop(edited.drain(..1.min(stack.len()))),
                Edit::Tag(tag) => edited.insert(0, tag),
                Edit::Retag(tag) => drop(edited.splice(..1.min(stack.len()), [tag])),
            }
            let picks = [Pick { edit, ..Pick::whole(0) }];
            assert_eq!(Frames::new(&sender.batch, &picks).outer_tag(picks[0]), edited.first().copied());
            for strip in [0, 0x8100, 0x88a8] {
                let (mut left, mut told) = (edited.clone(), None);
                if left.first().is_some_and(|tag| tag.tpid == strip) {
                    told = Some(left.remove(0).tci.0);
                }
                let wants = Wants { strip, tcp4: uncut, ..PLAIN };
                let pieces = sender.deliver(wants, edit, 900).unwrap();
                assert_eq!(pieces.len(), if segmented && !uncut { 4 } else { 1 });
                let mut whole = Vec::new();
                for (frame, _, tag) in &pieces {
                    let tags: Vec<Tag> = vlan::stack(frame).collect();
                    let frame = [&frame[..12], &frame[12 + 4 * tags.len()..]].concat();
                    assert_eq!((&tags, *tag), (&left, told), "{stack:?} {edit:?} {strip:#x}");
                    whole.extend(if uncut { frame[54..].to_vec() } else { judged(&frame) });
                }
                assert_eq!(whole, payload()[..whole.len()]);
                assert_eq!(whole.len(), if segmented { PAYLOAD } else { 999 });
            }
        }
    }
}

#[test]
fn a_short_frame_in_one_step_is_what_unfolding_gives_and_any_other_is_left_to_that() {
    let mut damaged = tcp(&payload()[..40]);
    damaged[60] ^= 1;
    // The last one but one just fits into a private head, which has room for a tag besides; the last one does not.
    let frames: Vec<Vec<u8>> = [
        vec![3; 13],
        vec![3; 14],
        vec![3; 60],
        damaged,
        tcp(&[]),
        tcp(&payload()[..40]),
        tcp(&payload()[..HEAD_BYTES - 54]),
        tcp(&payload()[..HEAD_BYTES - 53]),
    ]
    .into();
    let partial = Offload { checksum: CHECKSUM, segment: None };
    let offloads = [Offload::default(), Offload { checksum: Checksum::Verified, segment: None }, partial];
    let (mut taken, mut left) = (0, 0);
    for (frame, offload) in frames.iter().flat_map(|frame| offloads.map(|offload| (frame, offload))) {
        let is_partial = offload == partial;
        // Only a transport header has a checksum field.
        if is_partial && frame.get(12..14) != Some(&[8, 0]) {
            continue;
        }
        for tag in [None, Some(0x2005)].into_iter().filter(|tag| tag.is_none() || frame.len() >= 14) {
            let offload = if tag.is_some() { offload.behind_tag() } else { offload };
            let sender = Sender::new(frame, 50, offload, tag);
            let len = frame.len() + if tag.is_some() { 4 } else { 0 };
            for (frame_max, strip, verify) in [1514, 70, 20]
                .into_iter()
                .flat_map(|most| [0, 0x8100, 0x88a8].map(|strip| (most, strip)))
                .flat_map(|(most, strip)| [false, true].map(|verify| (most, strip, verify)))
            {
                let wants = Wants { frame_max, strip, verify, ..PLAIN };
                for edit in [Edit::Keep, Edit::Untag, Edit::Tag(Tag::customer(Tci(7)))] {
                    let is_changed = edit != Edit::Keep || is_partial || strip != 0 && tag.is_some();
                    let fits = frame.len() <= HEAD_BYTES && (14..=frame_max as usize).contains(&len);
                    let short = sender.short(&wants, edit);
                    assert_eq!(short.is_some(), fits && !is_changed, "{len} bytes, {offload:?}, {wants:?}, {edit:?}");
                    let Some(short) = short else {
                        left += 1;
                        continue;
                    };
                    taken += 1;
                    assert_eq!(sender.deliver(wants, edit, 2048).unwrap(), [short], "{offload:?}, {wants:?}");
                }
            }
        }
    }
    assert!(taken > 100 && left > 100, "{taken} and {left}");
}

#[test]
fn what_a_receiver_can_never_take_has_a_reason() {
    let long = Sender::new(&tcp(&payload()), 4096, Offload::default(), None);
    assert_eq!(long.deliver(PLAIN, Edit::Keep, 300).unwrap_err(), Reason::TooLong);
    let short = Sender::new(&[1; 13], 4096, Offload::default(), None);
    assert_eq!(short.deliver(PLAIN, Edit::Keep, 300).unwrap_err(), Reason::TooShort);
}

#[test]
fn a_draft_that_is_given_up_leaves_no_trace_and_limits_hold() {
    let map = Arc::new(Map::private(0x1000).unwrap());
    let mut batch = Batch::new();
    batch.start(&map, PortId(0), 0);
    let mut draft = batch.draft(0).unwrap();
    draft.push(0, 0x800).unwrap();
    assert!(matches!(draft.push(0x1_0000, 4), Err(DraftError::Fault(_))));
    drop(draft);
    let mut draft = batch.draft(0).unwrap();
    draft.push(0, 200).unwrap();
    let mut error = None;
    for _ in 0..300 {
        error = error.or(draft.push(0x10, 1).err());
    }
    assert_eq!(error, Some(DraftError::TooManyPieces));
    drop(draft);
    let mut draft = batch.draft(0).unwrap();
    let mut error = None;
    for _ in 0..40 {
        error = error.or(draft.push(0, 0x1000).err());
    }
    assert_eq!(error, Some(DraftError::TooLong));
    drop(draft);
    assert!(batch.is_empty());
    for i in 0..64 {
        let mut draft = batch.draft(0).unwrap();
        draft.push(0, 64).unwrap();
        draft.finish_plain(i);
    }
    assert!(batch.draft(0).is_none());
}
