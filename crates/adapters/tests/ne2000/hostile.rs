//! Hostile guests: the classes of faults of other models of this chip.

use nicety_adapter::Reason;

use crate::bench::*;

/// Page numbers for tests: around the ends of packet memory, and at the ends of eight bits.
const PAGES: [u8; 10] = [0, 1, 0x3f, 0x40, 0x41, 0x4c, 0x7f, 0x80, 0x81, 0xff];

/// PSTART, PSTOP, BNRY and CURR.
fn place(b: &mut Bench, [start, stop, boundary, current]: [u8; 4]) {
    b.outb(start, EN0_STARTPG);
    b.outb(stop, EN0_STOPPG);
    b.outb(boundary, EN0_BOUNDARY);
    b.outb(0x62, E8390_CMD);
    b.outb(current, EN1_CURPAG);
    b.outb(0x22, E8390_CMD);
}

fn rings() -> impl Iterator<Item = [u8; 4]> {
    PAGES.into_iter().flat_map(|start| {
        PAGES.into_iter().flat_map(move |stop| {
            PAGES
                .into_iter()
                .flat_map(move |boundary| PAGES.into_iter().map(move |current| [start, stop, boundary, current]))
        })
    })
}

#[test]
fn cve_2015_5278_no_ring_makes_a_reception_go_on_for_ever() {
    // QEMU's ne2000_receive copied zero bytes without end into a ring that ended before its beginning.
    let mut b = Bench::opened();
    let long = frame(MAC, PEER, 1514, 1);
    let mut refused = 0;
    for ring in rings() {
        place(&mut b, ring);
        for _ in 0..12 {
            refused += u64::from(!b.arrive(&long));
        }
        let [start, stop, _, current] = ring;
        let makes_sense = 0x40 <= start && start < stop && stop <= 0x80 && (start..stop).contains(&current);
        assert_eq!(b.nic.stall(0).is_none(), makes_sense, "{ring:x?}");
    }
    let counters = &b.counters;
    assert_eq!(counters.taken().frames + counters.receive_drops.iter().sum::<u64>() + refused, 120_000);
}

#[test]
fn cve_2015_5279_a_frame_longer_than_the_ring_writes_nothing_outside_of_it() {
    let mut b = Bench::opened();
    let marks: Vec<u8> = (0..0x4000_u32).map(|at| (at * 7) as u8 | 1).collect();
    for (start, stop) in [(0x40, 0x41), (0x40, 0x43), (0x7d, 0x80), (0x50, 0x56), (0x50, 0x57)] {
        // Remote DMA wraps at the ring's end: a ring at the end of packet memory lets it write all of the memory.
        place(&mut b, [0x7f, 0x80, 0x7f, 0x7f]);
        b.remote(0x12, 0x4000, 0x4000);
        marks.chunks(4).for_each(|piece| b.bar_write(0, NE_DATAPORT, piece));
        place(&mut b, [start, stop, start, start]);
        (0..4).for_each(|_| _ = b.arrive(&vec![0; 1514]));
        (0..4).for_each(|_| _ = b.arrive(&frame(MAC, PEER, 1514, 0xff)));
        (0..4).for_each(|_| _ = b.arrive(&frame(MAC, PEER, 300, 0xff)));
        place(&mut b, [0x7f, 0x80, 0x7f, 0x7f]);
        let after = b.block_input(0x4000, 0x4000);
        let ring = usize::from(start - 0x40) << 8..usize::from(stop - 0x40) << 8;
        for (at, (now, mark)) in after.iter().zip(&marks).enumerate() {
            assert!(ring.contains(&at) || now == mark, "{at:#x} is not of pages {start:#x} to {stop:#x}");
        }
    }
}

#[test]
fn cve_2018_10839_no_length_of_a_frame_is_taken_for_another() {
    // QEMU's ne2000_receive kept the size in an int, and added to it.
    let mut b = Bench::opened();
    for len in [14, 59, 1514, 1515, 4096, 16_384, 16_385, 32_768, 65_535, 66_047] {
        b.arrive(&frame(MAC, PEER, len, 0));
        match b.only() {
            Some((_, came)) => assert_eq!(came.len(), len.max(60)),
            None => assert!(len > 1514, "{len}"),
        }
    }
    assert_eq!((b.counters.taken().frames, b.counters.receive_drops[Reason::TooLong as usize]), (3, 7));
}

#[test]
fn cve_2016_2841_pages_out_of_range_send_and_receive_nothing_that_is_not_packet_memory() {
    let mut b = Bench::opened();
    for page in 0..=0xff {
        for len in [0, 1, 13, 14, 60, 255, 256, 1514, 1518, 1519, 1523, 0x4000, 0xffff] {
            b.trigger_send(len, page);
            let within = (0x40..0x80).contains(&page) && usize::from(page) * 256 + len <= 0x8000;
            let sends = within && (14..=1522).contains(&len);
            assert_eq!(b.turn().len(), usize::from(sends), "{len} bytes of page {page:#x}");
            assert_eq!(b.inb(EN0_ISR) & (ENISR_TX | ENISR_TX_ERR), if sends { ENISR_TX } else { ENISR_TX_ERR });
            b.outb(0xff, EN0_ISR);
        }
    }
    let counters = &b.counters;
    assert_eq!(counters.transmitted().frames + counters.transmit_drops.iter().sum::<u64>(), 256 * 13);
}

/// Other models in loopback received a frame while they still sent it.
#[test]
fn cve_2021_3416_and_cve_2025_12464_frames_of_any_length_in_loopback_come_back_to_nobody() {
    let mut b = Bench::opened();
    for mode in [0x02, 0x04, 0x06] {
        b.outb(mode, EN0_TXCR);
        let current = b.current();
        for len in [0, 1, 13, 14, 59, 60, 1514, 1522, 0xffff] {
            b.trigger_send(len, TX_PAGE);
            assert!(b.turn().is_empty(), "{len} bytes in loopback {mode:#x}");
            assert_eq!(b.current(), current);
            b.outb(0xff, EN0_ISR);
        }
        assert!(b.arrive(&frame(MAC, PEER, 60, 0)), "dropped: nobody waits for a loopback's end");
        assert_eq!(b.current(), current, "nor does the wire reach a chip in loopback");
    }
    b.outb(0, EN0_TXCR);
    assert_eq!(b.send(&frame(PEER, MAC, 60, 0)).len(), 1);
}

/// The range of remote DMA (RTL8029AS, "Remote DMA"; QEMU's ne2000.c, ne2000_mem_readw and similar functions, has the same
/// addresses): the PROM, sixteen KiB from 0x4000, and nothing else.
struct Reached {
    prom: Vec<u8>,
    memory: Vec<u8>,
}

impl Reached {
    fn read(&self, at: u16) -> u8 {
        match at {
            0..0x20 => self.prom[usize::from(at)],
            0x4000..0x8000 => self.memory[usize::from(at) - 0x4000],
            _ => 0xff,
        }
    }

    fn write(&mut self, at: u16, value: u8) {
        if (0x4000..0x8000).contains(&at) {
            self.memory[usize::from(at) - 0x4000] = value;
        }
    }
}

/// DP8390D, 7.0: the address counts up, and at PSTOP continues at PSTART. 10.3, CR: RD 1 reads, 2 writes, 3 sends a packet of the
/// ring (which this chip does not support), 4 and up end the transfer.
#[test]
fn remote_dma_over_every_ring_and_any_address_reaches_packet_memory_in_its_order_and_nothing_else() {
    const BYTES: u16 = 0x400;
    let mut b = Bench::opened();
    let everything = [0x7f, 0x80, 0x7f, 0x7f];
    place(&mut b, everything);
    let mut reached = Reached { prom: b.block_input(0, 0x20), memory: b.block_input(0x4000, 0x4000) };
    let mut value = 0_u8;
    for [start, stop, _, _] in rings().step_by(100) {
        b.outb(start, EN0_STARTPG);
        b.outb(stop, EN0_STOPPG);
        for page in PAGES {
            for command in [0x0a, 0x12, 0x1a, 0x02, 0x22] {
                // Word mode: bit 0 of the address is ignored.
                let mut at = u16::from(page) << 8 | 0xfe;
                b.remote(command, at | 1, 0xffff);
                for _ in 0..BYTES / 4 {
                    value = value.wrapping_mul(5).wrapping_add(7);
                    let written = [value, !value, value ^ 0x55, value >> 1];
                    b.bar_write(0, NE_DATAPORT, &written);
                    let read = b.r(NE_DATAPORT).to_le_bytes();
                    for index in 0..4 {
                        match command {
                            0x0a => assert_eq!(read[index], reached.read(at), "{at:#x} of {start:#x} to {stop:#x}"),
                            _ => assert_eq!(read[index], 0xff, "{command:#x} reads nothing"),
                        }
                        if command == 0x12 {
                            reached.write(at, written[index]);
                        }
                        if matches!(command, 0x0a | 0x12) {
                            let next = u32::from(at) + 1;
                            at = if next == u32::from(stop) << 8 { u16::from(start) << 8 } else { next as u16 };
                        }
                    }
                }
                let [low, high] = [b.inb(EN0_RSARLO), b.inb(EN0_RSARHI)];
                assert_eq!(u16::from_le_bytes([low, high]) & !1, at, "CRDA after {command:#x}");
                b.outb(0x22, E8390_CMD);
            }
        }
        place(&mut b, everything);
        assert!(b.block_input(0x4000, 0x4000) == reached.memory, "{start:#x} to {stop:#x}");
        assert!(b.block_input(0, 0x20) == reached.prom, "the PROM is not written");
    }
}

#[test]
fn a_ring_is_moved_in_mid_packet_and_every_frame_is_taken_dropped_or_refused() {
    let mut b = Bench::opened();
    let (mut brought, mut refused) = (0, 0);
    for (number, ring) in rings().enumerate() {
        let sent = frame(MAC, PEER, 60 + number % 1455, number as u8);
        refused += u64::from(!b.arrive(&sent));
        place(&mut b, ring);
        refused += u64::from(!b.arrive(&sent));
        brought += 2;
    }
    let counters = &b.counters;
    assert_eq!(counters.taken().frames + counters.receive_drops.iter().sum::<u64>() + refused, brought);
    b.reset();
    b.init(true);
    assert!(b.arrive(&frame(MAC, PEER, 1514, 7)));
    assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 1514, 7))), "as new");
}

#[test]
fn a_ring_of_one_page_holds_no_frame_and_no_look_at_it_is_a_fault() {
    let mut b = Bench::opened();
    assert!(b.arrive(&frame(MAC, PEER, 60, 0)));
    for (start, stop) in [(RX_PAGE, RX_PAGE + 1), (STOP_PAGE - 1, STOP_PAGE), (RX_PAGE + 1, RX_PAGE + 2)] {
        b.outb(0x22, E8390_CMD);
        b.outb(start, EN0_STARTPG);
        b.outb(stop, EN0_STOPPG);
        b.outb(start, EN0_BOUNDARY);
        b.outb(0x62, E8390_CMD);
        b.outb(start, EN1_CURPAG);
        assert_eq!(b.inb(EN1_CURPAG), start, "it has been told of a frame, and looks");
        b.outb(0x22, E8390_CMD);
        b.outb(ENISR_RX, EN0_ISR);
        b.arrive(&frame(MAC, PEER, 60, 1));
    }
}

/// DP8390D, 10.3: TBCR0 and TBCR1, PSTART and PSTOP.
#[test]
fn a_drivers_mistakes_are_listed_with_place_value_and_expectation() {
    let mut b = Bench::opened();
    b.trigger_send(2000, TX_PAGE);
    assert!(b.turn().is_empty());
    b.outb(0x21, E8390_CMD);
    b.outb(0x60, EN0_STARTPG);
    b.outb(0x50, EN0_STOPPG);
    b.outb(0x22, E8390_CMD);
    b.arrive(&frame(MAC, PEER, 60, 0));
    let said: Vec<String> = b.counters.errors().iter().map(ToString::to_string).collect();
    assert_eq!(said[0], "TBCR0: 0x7d0; expected a length of 14 to 1522 bytes (TBCR0, TBCR1)");
    assert!(said[1].starts_with("PSTART: 0x6050"), "{said:?}");
    assert!(said[1].contains("PSTART below PSTOP"), "{said:?}");
    assert_eq!(said.len(), 2);
}

/// DP8390D, 10.3: PSTART, PSTOP, CURR and BNRY are pages of packet memory.
#[test]
fn a_ring_without_pages_or_with_a_boundary_elsewhere_is_told_in_words() {
    let said = |b: &Bench| b.counters.errors().iter().last().map(ToString::to_string).unwrap_or_default();
    let mut b = Bench::opened();
    assert_eq!(b.nic.receive_block(), None);
    assert!(b.arrive(&[0xff; 60]));
    assert_eq!(said(&b), "");
    b.outb(STOP_PAGE + 3, EN0_BOUNDARY);
    b.arrive(&[0xff; 60]);
    assert!(said(&b).contains("BNRY") && said(&b).contains("a page of the ring"), "{}", said(&b));
    b.outb(0x10, EN0_STARTPG);
    assert_eq!(
        b.nic.receive_block(),
        Some("the ring's pages (PSTART, PSTOP, CURR) lie where no packet memory is"),
        "before any frame"
    );
}
