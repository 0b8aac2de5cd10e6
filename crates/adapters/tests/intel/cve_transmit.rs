//! Faults of other models on the transmit side, each by its report's number, for every chip of the family.

use nicety_adapter::Budget;
use nicety_memory::count;

use crate::bench::*;
use crate::chip::*;

fn segment(payload_len: usize) -> Vec<u8> {
    ethernet(0x0800, &ipv4(6, &tcp(&payload(payload_len))))
}

/// QEMU's e1000 never left the loop over a buffer when the headers and a segment were no longer than the bytes that it already
/// held.
#[test]
fn cve_2021_20257_contexts_of_any_header_and_segment_lengths_end() {
    each(|chip| {
        chip.put(TX_DATA, &segment(8000));
        for headers in [0, 1, 13, 14, 53, 54, 55, 255] {
            for mss in [0, 1, 54, 1448, 0xffff] {
                chip.context(Cut { headers, mss, ..TCP4 });
                for (len, end) in [(54, 0), (1, 0), (0, 0), (4096, 0), (headers, EOP), (4096, EOP), (54, EOP), (0, EOP)]
                {
                    chip.data(TX_DATA, len, end, true, 3);
                }
                count::take();
                chip.run();
                chip.assert_empty();
                assert!(count::take() < 2000, "{}: headers {headers}, segments {mss}", chip.name);
            }
        }
    });
}

#[test]
fn cve_2021_20257_a_packet_without_an_end_is_given_up() {
    each(|chip| {
        chip.context(TCP4);
        for _ in 0..RING - 2 {
            chip.data(TX_DATA, 4096, 0, true, 3);
        }
        assert_eq!(chip.run(), 0, "{}", chip.name);
        assert!(chip.batch.len() <= Budget::TURN.packets);
        chip.assert_empty();
    });
}

/// QEMU's e1000e and vmxnet3 asserted that a packet has no more pieces than their list.
#[test]
fn cve_2020_16092_a_packet_of_more_pieces_than_any_list_has_is_dropped_or_sent() {
    each(|chip| {
        chip.put(TX_DATA, &segment(1000));
        for pieces in [2, 17, 64, 65, 128, 254] {
            for n in 0..pieces {
                chip.data(TX_DATA + n, 1, if n + 1 == pieces { EOP } else { 0 }, false, 0);
            }
            let sent = chip.run();
            chip.assert_empty();
            let dropped: u64 = chip.counters.transmit_drops.iter().sum();
            assert_eq!(sent as u64 + dropped, 1, "{}: {pieces} pieces are one packet", chip.name);
            chip.counters.transmit_drops.fill(0);
        }
    });
}

/// QEMU's model asserted that a packet with a checksum request has a payload.
#[test]
fn cve_2024_3567_a_checksum_of_what_a_packet_does_not_have_is_not_made() {
    each(|chip| {
        chip.put(TX_DATA, &segment(64));
        // At any offset, and beyond the end; as TCP, and (82576) as SCTP.
        for place in [0, 13, 34, 54, 127] {
            for len in [0, 1, 14, 20, 34, 35, 54, 60] {
                chip.context(Cut { link: place, network: 255, headers: 255, mss: 0 });
                if chip.is_igb() {
                    let at = TX_RING + (chip.next + RING - 1) % RING * 16 + 8;
                    chip.put(at, &(0x2020_0000_u32 | 2 << 11 | 1 << 10).to_le_bytes());
                }
                chip.data(TX_DATA, len, EOP, false, 3);
                chip.data(TX_DATA, len, EOP, true, 3);
                chip.run();
                chip.assert_empty();
            }
        }
    });
}

/// QEMU cut packets into empty fragments without end: its vmxnet3's code, which its e1000e shares.
#[test]
fn cve_2016_6834_buffers_and_segments_of_no_bytes_make_no_frames_without_end() {
    each(|chip| {
        chip.put(TX_DATA, &segment(3000));
        chip.context(Cut { mss: 0, ..TCP4 });
        for _ in 0..60 {
            chip.data(TX_DATA, 0, 0, true, 3);
        }
        chip.data(TX_DATA, 3054, EOP, true, 3);
        chip.context(Cut { mss: 1, ..TCP4 });
        chip.data(TX_DATA, 3054, EOP, true, 3);
        let frames = chip.run_frames();
        chip.assert_empty();
        assert!(frames <= 3000 + 1, "{}: {frames} frames of two packets of 3000 bytes", chip.name);
    });
}

/// QEMU believed an IP header's length beyond the end of the packet: its vmxnet3's code, which its e1000e shares.
#[test]
fn cve_2016_6835_headers_that_say_they_are_longer_than_their_packet_are_not_read_there() {
    each(|chip| {
        // The packet is at the end of memory: reads beyond it must fail.
        let end = 16 << 20;
        for first in [0x4f_u8, 0x40, 0x60, 0x00] {
            for len in [15, 20, 33, 34, 40, 54] {
                let mut packet = segment(64);
                packet[14] = first;
                packet.truncate(len);
                chip.put(end - len as u64, &packet);
                for cut in [false, true] {
                    chip.context(Cut { network: 60, headers: 114, ..TCP4 });
                    chip.data(end - len as u64, len as u32, EOP, cut, 3);
                }
            }
        }
        chip.run_frames();
        chip.assert_empty();
    });
}

/// QEMU's 8139C+ sent the bytes after a packet whose header named a greater length.
#[test]
fn cve_2015_5165_lengths_in_headers_beyond_a_packet_let_nothing_else_out() {
    each(|chip| {
        let mut all = 0;
        for (first, total) in [(0x45_u8, 0xffff_u16), (0x4f, 0xffff), (0x45, 1400), (0x4f, 0), (0x45, 0)] {
            let mut packet = segment(64);
            packet[14] = first;
            packet[16..18].copy_from_slice(&total.to_be_bytes());
            // A secret follows the packet.
            chip.put(TX_DATA, &[packet.clone(), vec![0xa5; 4096]].concat());
            for (segmented, options) in [(false, 1), (false, 3), (true, 3)] {
                chip.context(TCP4);
                chip.data(TX_DATA, packet.len() as u32, EOP, segmented, options);
                let tail = chip.next as u32;
                chip.w(TDT, tail);
                for _ in 0..8 {
                    let more = chip.fetch().more;
                    for sent in cut(&chip.batch) {
                        all += 1;
                        assert!(sent.len() <= packet.len(), "{}: {first:#x}, {total}", chip.name);
                        assert!(
                            !sent.windows(2).any(|pair| pair == [0xa5, 0xa5]),
                            "{}: {first:#x}, {total}",
                            chip.name
                        );
                    }
                    chip.complete();
                    if !more {
                        break;
                    }
                }
            }
            chip.assert_empty();
        }
        assert!(all >= 5, "{}: {all}", chip.name);
    });
}

/// Rings that change while their frames are in flight: the class of a report on virtio-pci.
#[test]
fn cve_2026_5747_rings_that_move_between_fetch_and_completion_are_not_written_where_they_were() {
    each(|chip| {
        let other = TX_RING + 0x8000;
        for (register, value) in [(TDBAL, other as u32), (TDLEN, 128), (TDH, 3), (TCTL, 0)] {
            let mut chip = Chip::opened(chip.name);
            chip.put(TX_DATA, &segment(64));
            for _ in 0..32 {
                chip.data(TX_DATA, 118, EOP, false, 0);
            }
            let tail = chip.next as u32;
            chip.w(TDT, tail);
            chip.fetch();
            assert_eq!(chip.batch.len(), 32);
            chip.w(register, value);
            chip.put(other, &[0xaa; 4096]);
            let before = chip.get(TX_RING, 4096);
            chip.complete();
            assert_eq!(chip.get(TX_RING, 4096), before, "{}: {register:#x}", chip.name);
            assert!(chip.get(other, 4096).iter().all(|byte| *byte == 0xaa), "{}: {register:#x}", chip.name);
        }
        // Disabled and enabled again at another address, the ring works.
        chip.open_rings(RING as u32);
        chip.put(TX_DATA, &segment(64));
        chip.data(TX_DATA, 118, EOP, false, 0);
        assert_eq!(chip.run(), 1, "{}", chip.name);
    });
}
