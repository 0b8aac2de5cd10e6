//! An 82599's function under its driver: offsets and bits are those of Linux's drivers/net/ethernet/intel/ixgbevf (regs.h, defines.h,
//! mbx.h), sequences those of its vf.c and ixgbevf_main.c, and answers those of ixgbe_sriov.c.

use nicety_adapter::family::Family;
use nicety_adapter::snapshot::RestoreError;
use nicety_adapter::{Event, Outbox, Queue, Reason, Reset};
use nicety_adapters::intel::vf::family::{FunctionPolicy, PhysicalFunction, ixgbe};
use nicety_frame::Mac;

use crate::bench::{Bench, Dice, MAC, Wire, adapter, cut, ethernet, frame, ipv4, payload, tcp, to};

const VFCTRL: u64 = 0x0000;
const VFLINKS: u64 = 0x0010;
const VTEICR: u64 = 0x0100;
const VTEICS: u64 = 0x0104;
const VTEIMS: u64 = 0x0108;
const VTEIAC: u64 = 0x0110;
const VTEIAM: u64 = 0x0114;
const VTIVAR: u64 = 0x0120;
const VTIVAR_MISC: u64 = 0x0140;
const VFMBMEM: u64 = 0x0200;
const VFMAILBOX: u64 = 0x02fc;
const VFPSRTYPE: u64 = 0x0300;
const VFRXDCTL: u64 = 0x1028;
const VFGPRC: u64 = 0x101c;
const VFGORC_LSB: u64 = 0x1020;
const VFMPRC: u64 = 0x1034;
const VFGPTC: u64 = 0x201c;
const VFGOTC_LSB: u64 = 0x2020;

const REQ: u32 = 1;
const ACK: u32 = 2;
const VFU: u32 = 4;
const PFSTS: u32 = 0x10;
const PFACK: u32 = 0x20;
const RSTD: u32 = 0x80;

const GRANTED: u32 = 0xa000_0000;
const REFUSED: u32 = 0x6000_0000;
/// The address as the words of a message.
const LOW: u32 = 0x1200_5452;
const HIGH: u32 = 0x5634;

const RING: u64 = 256;
const ENABLE: u32 = 1 << 25;
const VME: u32 = 1 << 30;
const TX_DATA: u64 = 0x10_0000;

fn transmit_ring(queue: u64) -> u64 {
    0x1_0000 + queue * 0x4000
}

fn receive_ring(queue: u64) -> u64 {
    0x2_0000 + queue * 0x4000
}

fn buffer(queue: u64, index: u64) -> u64 {
    0x20_0000 + queue * 0x8_0000 + index * 2048
}

struct Driver {
    family: PhysicalFunction,
}

type Guest = Bench<Driver>;

impl Guest {
    fn new(trusted: bool) -> Self {
        let family =
            ixgbe::card(vec![FunctionPolicy { trusted, queries_rss: trusted, ..FunctionPolicy::free(Mac(MAC)) }]);
        let mut this = Self::around(adapter("ixgbevf"), Driver { family });
        this.config_write(4, &[6, 0]);
        this
    }

    /// The host changes the function's policy.
    fn host_sets(&mut self, change: impl FnOnce(&mut FunctionPolicy)) {
        let mut policy = self.own.family.policy(0).unwrap();
        change(&mut policy);
        if let Some(answer) = self.own.family.set_policy(0, policy) {
            self.call(|nic, cx| nic.notice(Event::Answer(answer), cx));
        }
    }

    /// The host resets the card.
    fn host_resets(&mut self) {
        let answer = self.own.family.reset(0);
        self.call(|nic, cx| nic.notice(Event::Answer(answer), cx));
    }

    /// ixgbevf_reset_hw_vf, and the version.
    fn ready(trusted: bool, version: u32) -> Self {
        let mut this = Self::new(trusted);
        this.exchange(&[1]);
        assert_eq!(this.exchange(&[8, version])[0], GRANTED | 8);
        this
    }

    fn opened() -> Self {
        let mut this = Self::ready(true, 8);
        this.open(0, ENABLE);
        this
    }

    /// ixgbevf_configure_tx_ring, ixgbevf_configure_rx_ring.
    fn open(&mut self, queue: u64, rxdctl: u32) {
        let ring = |at: u64, base: u64| {
            [(at, base as u32), (at + 4, 0), (at + 8, RING as u32 * 16), (at + 0x10, 0), (at + 0x18, 0)]
        };
        let (send, receive) = (0x2000 + queue * 0x40, 0x1000 + queue * 0x40);
        for (register, value) in ring(send, transmit_ring(queue)).into_iter().chain(ring(receive, receive_ring(queue)))
        {
            self.w(register, value);
        }
        self.w(send + 0x28, ENABLE | 8 << 16 | 1 << 8 | 32);
        for index in 0..RING {
            self.put64(receive_ring(queue) + index * 16, buffer(queue, index));
            self.put64(receive_ring(queue) + index * 16 + 8, 0);
        }
        // IXGBE_SRRCTL_DROP_EN, ADV_ONEBUF, 2 KiB, headers of 256 bytes.
        self.w(receive + 0x14, 1 << 28 | 0x0200_0000 | 256 << 2 | 2);
        self.w(receive + 0x28, rxdctl);
        self.w(receive + 0x18, RING as u32 - 1);
    }

    /// ixgbevf_configure_msix: vector 0 for queues, 1 for other causes.
    fn open_msix(&mut self) {
        self.config_write(0x73, &[0x80]);
        self.w(VTIVAR, 0x8080_8080);
        self.w(VTIVAR_MISC, 0x81);
        self.r(VTEICR);
        for register in [VTEIAM, VTEIAC, VTEIMS] {
            self.w(register, 3);
        }
    }

    fn answer(&mut self) {
        if !self.out.stalled.contains(Outbox::ASK) {
            return;
        }
        self.out.stalled.remove(Outbox::ASK);
        while let Some(ask) = self.call(|nic, _| nic.ask()) {
            let answer = self.own.family.answer(0, &ask);
            self.call(|nic, cx| nic.notice(Event::Answer(answer), cx));
        }
    }

    /// ixgbevf_write_mbx_vf_legacy, ixgbevf_read_mbx_vf_legacy: what is read of VFMAILBOX comes back with VFU.
    fn exchange(&mut self, words: &[u32]) -> [u32; 16] {
        let bits = self.r(VFMAILBOX);
        self.w(VFMAILBOX, bits | VFU);
        assert_eq!(self.r(VFMAILBOX) & VFU, VFU);
        for (at, word) in (VFMBMEM..).step_by(4).zip(words) {
            self.w(at, *word);
        }
        self.w(VFMAILBOX, REQ);
        self.answer();
        let bits = self.r(VFMAILBOX);
        assert_eq!(bits & (PFACK | PFSTS | REQ | ACK), PFACK | PFSTS, "the message was read and answered");
        self.w(VFMAILBOX, bits | VFU);
        let words = std::array::from_fn(|n| self.r(VFMBMEM + 4 * n as u64));
        self.w(VFMAILBOX, ACK);
        self.answer();
        words
    }

    fn send(&mut self, descriptors: &[[u32; 4]]) -> Vec<Wire> {
        for (at, words) in (transmit_ring(0)..).step_by(16).zip(descriptors) {
            self.put(at, &words.map(u32::to_le_bytes).concat());
        }
        self.w(0x2018, descriptors.len() as u32);
        self.fetch_all(0, cut)
    }

    fn written(&self, queue: u64, index: u64) -> [u32; 4] {
        [0, 4, 8, 12].map(|at| self.get32(receive_ring(queue) + index * 16 + at))
    }
}

#[test]
fn a_reset_is_answered_with_the_address_and_the_filter_type_and_every_other_message_with_cts() {
    let mut g = Guest::new(true);
    assert_eq!(g.exchange(&[8, 8])[0], 0x4000_0008, "before RESET: no CTS");
    g.w(VFCTRL, 1 << 26);
    g.answer();
    assert_eq!(g.r(VFMAILBOX), RSTD);
    assert_eq!(g.exchange(&[1])[..4], [0x8000_0001, LOW, HIGH, 0]);
    // ixgbe_mbox_api_17 and none of its features; _20, _14, _15, _16; _13.
    assert_eq!(g.exchange(&[8, 8])[0], GRANTED | 8);
    assert_eq!(g.exchange(&[0x12, 3])[..2], [GRANTED | 0x12, 0]);
    for version in [1, 5, 6, 7, 9, 0x104] {
        assert_eq!(g.exchange(&[8, version])[0], REFUSED | 8, "{version}");
    }
    for version in [0, 2, 3, 4] {
        assert_eq!(g.exchange(&[8, version])[0], GRANTED | 8, "{version}");
    }
    assert_eq!(g.exchange(&[9, 0, 0, 9, 9])[..5], [GRANTED | 9, 2, 2, 0, 0]);
    assert_eq!(g.exchange(&[0x12, 3])[0], REFUSED | 0x12, "from 1.7 on");
    let answers: [(&[u32], u32); 9] = [
        (&[2, LOW, HIGH], GRANTED | 2),
        (&[2, 0, 0], REFUSED | 2),
        (&[6, 0, 0], GRANTED | 6),
        (&[3, 0], GRANTED | 3),
        (&[1 << 16 | 4, 5], GRANTED | 1 << 16 | 4),
        (&[5, 9728], GRANTED | 5),
        (&[5, 9729], REFUSED | 5),
        (&[0x10, 0], GRANTED | 0x10),
        (&[0x0d, 0], REFUSED | 0x0d),
    ];
    for (message, answer) in answers {
        assert_eq!(g.exchange(message)[0], answer, "{message:x?}");
    }
}

#[test]
fn in_the_first_version_there_are_no_long_frames_and_no_questions() {
    let mut g = Guest::ready(true, 0);
    let refused: [&[u32]; 6] = [&[5, 1519], &[9], &[0x0a], &[0x0b], &[0x0c, 1], &[0x10]];
    for message in refused {
        assert_eq!(g.exchange(message)[0], REFUSED | message[0], "{message:x?}");
    }
    assert_eq!(g.exchange(&[5, 1518])[0], GRANTED | 5);
}

#[test]
fn an_untrusted_function_may_repeat_its_address_and_gets_multicast_for_all_multicast() {
    let mut g = Guest::ready(false, 4);
    assert_eq!(g.exchange(&[2, LOW, HIGH])[0], GRANTED | 2);
    assert_eq!(g.exchange(&[2, 2, 0x0900])[0], REFUSED | 2);
    assert_eq!(g.exchange(&[1 << 16 | 6, 2, 0x0900])[0], REFUSED | 1 << 16 | 6);
    assert_eq!(g.exchange(&[0x0c, 2])[..2], [GRANTED | 0x0c, 1]);
    assert_eq!(g.exchange(&[0x0a])[0], REFUSED | 0x0a, "rss_query_enabled is off");
}

#[test]
fn a_trusted_function_gets_more_addresses_all_multicast_frames_and_the_hash() {
    let mut g = Guest::opened();
    for (index, last) in [(1, 1), (2, 2), (3, 3)] {
        assert_eq!(g.exchange(&[index << 16 | 6, 2, last << 8])[0], GRANTED | index << 16 | 6);
    }
    assert_eq!(g.exchange(&[4 << 16 | 6, 2, 4 << 8])[0], REFUSED | 4 << 16 | 6, "no space");
    (1..=3).for_each(|last| _ = g.bring_one(&to([2, 0, 0, 0, 0, last], 100)));
    assert_eq!(g.counters.receive[0].frames, 3);
    // ixgbe_set_vf_macvlan: index 1 is the first of a new list.
    g.exchange(&[1 << 16 | 6, 2, 5 << 8]);
    g.bring_one(&to([2, 0, 0, 0, 0, 5], 100));
    g.bring_one(&to([2, 0, 0, 0, 0, 2], 100));
    assert_eq!((g.counters.receive[0].frames, g.dropped(Reason::Filtered)), (4, 1));
    assert_eq!(g.exchange(&[0x0c, 2])[..2], [GRANTED | 0x0c, 2]);
    g.bring_one(&to([1, 0, 0x5e, 0, 0, 1], 100));
    assert_eq!((g.counters.receive[0].frames, g.r(VFMPRC)), (5, 1));
    assert_eq!(g.exchange(&[0x0c, 3])[0], REFUSED | 0x0c, "promiscuous: not with an 82599");
    // Entries 0, 1, 0, 1 of two bits; the key of the RSS specification.
    assert_eq!(g.exchange(&[0x0a])[1..9], [0x4444_4444; 8]);
    assert_eq!(g.exchange(&[0x0b])[1..3], [0xda56_5a6d, 0xc20e_5b25]);
}

#[test]
fn a_packet_goes_out_behind_its_context_and_is_counted_with_36_bits() {
    let mut g = Guest::opened();
    let out = frame(100);
    g.put(TX_DATA, &out);
    // CC; DEXT, IFCS, EOP, RS.
    let data = [TX_DATA as u32, 0, 0x2b30_0000 | 100, 100 << 14 | 0x80];
    assert_eq!(g.send(&[[14 << 9, 0, 0x2020_0000, 0], data]), [out]);
    assert_eq!(g.get(transmit_ring(0) + 16 + 12, 1)[0] & 1, 1, "DD");
    assert_eq!((g.r(VFGPTC), g.r(VFGOTC_LSB), g.r(VFGOTC_LSB + 4)), (1, 104, 0));
    g.bring_one(&frame(214));
    assert_eq!((g.r(VFGPRC), g.r(VFGORC_LSB)), (1, 218));
    assert_eq!((g.r(VFGPRC), g.r(VFGORC_LSB)), (1, 218), "reading clears nothing");
}

/// 82599 datasheet, 8.3.5.4 to 8.3.5.6 (VFRDH, VFRDT) and 8.3.5.9 (VFTDH, VFTDT): each queue's, beside the other one.
#[test]
fn a_head_or_tail_beyond_one_of_its_rings_is_a_guest_error_and_told_in_words() {
    let said = |g: &Guest| g.counters.errors().iter().last().unwrap().to_string();
    let mut g = Guest::opened();
    assert_eq!(g.nic.receive_block(), None);
    for (register, name) in [(0x1018, "tail within the ring (RDT"), (0x1010, "head within the ring (RDH")] {
        g.w(register, RING as u32);
        assert_eq!(g.nic.receive_block(), Some("RDH or RDT lies beyond its receive ring (RDLEN)"));
        assert_eq!(g.bring_one(&frame(100)).refused(), 1);
        let stall = g.nic.stall(0).map(|stall| (stall.queue, stall.why));
        assert_eq!(stall, Some((Queue::Receive(0), "its head or tail lies beyond its end")));
        assert!(said(&g).ends_with(&format!("expected a {name} below RDLEN / 16)")), "{}", said(&g));
        g.w(register, 3);
    }
    g.w(0x1018, 9);
    assert_eq!(g.bring_one(&frame(100)).refused(), 0);
    assert_eq!((g.nic.stall(0).map(|stall| stall.why), g.nic.receive_block()), (None, None));
    for (register, name) in [(0x2018, "tail within the ring (TDT"), (0x2010, "head within the ring (TDH")] {
        g.w(register, RING as u32);
        assert_eq!(g.fetch_all(0, cut), [] as [Wire; 0]);
        let stall = g.nic.stall(1).map(|stall| (stall.queue, stall.why));
        assert_eq!(stall, Some((Queue::Transmit(0), "its head or tail lies beyond its end")));
        assert!(said(&g).ends_with(&format!("expected a {name} below TDLEN / 16)")), "{}", said(&g));
        g.w(register, 0);
    }
    // Queue 1 alone: queue 0 receives its flows, and the flows of the other one wait.
    g.open(1, ENABLE);
    g.w(VFPSRTYPE, 1 << 29);
    g.w(0x1058, RING as u32);
    let flow = |number: u8| ethernet(0x0800, &ipv4(6, &[&[number], &tcp(&payload(20))[1..]].concat()));
    let refused: u64 = (0..16).map(|number| g.bring_one(&flow(number)).refused()).sum();
    assert!((3..=13).contains(&refused), "{refused}");
    assert_eq!(g.nic.stall(2).map(|stall| stall.queue), Some(Queue::Receive(1)));
    assert!(said(&g).starts_with("RDT[1]"), "{}", said(&g));
    assert_eq!(g.nic.receive_block(), None, "it receives by the other queue");
}

/// ixgbevf_update_stats reads VFGPRC and the others between the rings' registers: in the pages that a guest may map.
#[test]
fn the_pages_of_its_rings_show_its_counters_and_no_mailbox_or_cause_is_in_them() {
    let mut g = Guest::opened();
    g.bring_one(&frame(214));
    let (place, offsets, shown) = g.pci(|face, _| {
        let offsets = face.doorbells();
        let mut words = vec![0; offsets.len()];
        assert!(face.shown(&mut words));
        (face.mappable().unwrap(), offsets, words)
    });
    assert_eq!((place.bar, place.offset, place.len, place.usual), (0, 0x1000, 0x2000, false));
    let word = |register: u64| {
        let at = offsets.iter().position(|&offset| place.offset + u64::from(offset) == register);
        at.map(|at| shown[at])
    };
    assert_eq!((word(VFGPRC), word(VFGORC_LSB), word(VFGPTC)), (Some(1), Some(218), Some(0)));
    assert_eq!((word(0x1018), word(0x2018)), (Some(255), Some(0)), "tails");
    assert_eq!([VFMAILBOX, VTEICR, VTEIMS].map(word), [None; 3]);
    let tails = offsets.iter().map(|offset| offset % 0x40 == 0x18).skip_while(|is_tail| !is_tail);
    assert!(tails.eq([true; 16]), "the tails of 8 queues each way come last");
}

#[test]
fn checksum_errors_lie_in_the_two_highest_bits() {
    let mut g = Guest::opened();
    let good = ethernet(0x0800, &ipv4(6, &tcp(&payload(50))));
    let mut bad = good.clone();
    bad[24] ^= 1;
    for frame in [&good, &bad] {
        g.bring_one(frame);
    }
    // IXGBE_RXDADV_ERR_IPE, IXGBE_RXD_STAT_IPCS.
    let status = [0, 1].map(|index| g.written(0, index)[2]);
    assert_eq!(status.map(|status| (status & 0x43, status >> 31)), [(0x43, 0), (0x43, 1)]);
    assert_eq!(status[0] & 0x3fe0_0000, 0);
}

#[test]
fn with_two_queues_flows_are_spread_and_each_has_its_hash() {
    let mut g = Guest::opened();
    g.open(1, ENABLE);
    g.w(VFPSRTYPE, 1 << 29);
    for flow in 0..16 {
        let mut segment = tcp(&payload(20));
        segment[0] = flow;
        g.bring_one(&ethernet(0x0800, &ipv4(6, &segment)));
    }
    let frames = [0, 1].map(|queue| g.counters.receive[queue].frames);
    assert!(frames[0] > 2 && frames[1] > 2 && frames[0] + frames[1] == 16, "{frames:?}");
    // RSS type 1: TCP over IPv4. The table's entry is the hash's lowest bit.
    for queue in 0..2 {
        let [information, hash, ..] = g.written(queue, 0);
        assert_eq!((information & 0xf, u64::from(hash & 1)), (1, queue));
    }
    g.w(VFPSRTYPE, 0);
    let before = g.counters.receive[0].frames;
    for flow in 0..16 {
        let mut segment = tcp(&payload(20));
        segment[0] = flow;
        g.bring_one(&ethernet(0x0800, &ipv4(6, &segment)));
    }
    assert_eq!(g.counters.receive[0].frames, before + 16);
}

#[test]
fn a_queue_strips_tags_by_its_own_bit_and_a_tag_does_not_count_towards_the_length() {
    let mut g = Guest::ready(true, 4);
    assert_eq!(g.exchange(&[5, 1518])[0], GRANTED | 5);
    g.open(0, ENABLE | VME);
    g.exchange(&[1 << 16 | 4, 5]);
    let tagged = |len: usize| ethernet(0x8100, &[&[0, 5, 0x88, 0xb5][..], &payload(len - 18)].concat());
    g.bring_one(&tagged(1518));
    let [_, _, status, rest] = g.written(0, 0);
    assert_eq!((status & 0xb, rest), (0xb, 5 << 16 | 1514));
    g.w(VFRXDCTL, ENABLE);
    g.bring_one(&tagged(1518));
    assert_eq!(g.written(0, 1)[3], 1518);
    g.bring_one(&tagged(1519));
    assert_eq!(g.dropped(Reason::TooLong), 1);
}

#[test]
fn the_link_is_in_vflinks_and_interrupts_come_by_their_vectors() {
    let mut g = Guest::opened();
    g.open_msix();
    assert_eq!(g.r(VFLINKS), 1 << 30 | 3 << 28, "up, 10 Gbit/s");
    g.bring_one(&frame(100));
    assert_eq!(g.messages(), [0]);
    assert_eq!((g.r(VTEICR), g.r(VTEIMS)), (0, 2));
    g.w(VTEIMS, 1);
    g.link(false);
    assert_eq!((g.r(VFLINKS), g.r(VFMBMEM), g.messages()), (0, 0x2000_0100, vec![1]));
    g.w(VTEICS, 1);
    assert_eq!(g.messages(), [0]);
}

#[test]
fn it_goes_on_in_another_place() {
    let mut g = Guest::opened();
    g.exchange(&[1 << 16 | 6, 2, 1 << 8]);
    let mut other = Guest::new(true);
    g.hand_over(&mut other);
    other.restored();
    other.bring_one(&to([2, 0, 0, 0, 0, 1], 100));
    assert_eq!(other.counters.receive[0].frames, 1);
    assert_eq!(other.exchange(&[0x12, 1])[0], GRANTED | 0x12, "the version was saved");
}

/// Other addresses: words of a message, and as an address.
const OTHER: ([u32; 2], [u8; 6]) = ([2, 0x0900], [2, 0, 0, 0, 0, 9]);
const THIRD: ([u32; 2], [u8; 6]) = ([2, 0x0a00], [2, 0, 0, 0, 0, 10]);

#[test]
fn an_address_that_the_host_sets_is_in_force_at_once_and_its_driver_learns_it_with_the_next_reset() {
    let mut g = Guest::opened();
    g.host_sets(|policy| policy.address = Mac(OTHER.1));
    assert_eq!(g.r(VFMAILBOX), 0, "no message: ixgbe_ndo_set_vf_mac");
    g.bring_one(&to(OTHER.1, 100));
    g.bring_one(&to(MAC, 100));
    assert_eq!((g.counters.receive[0].frames, g.dropped(Reason::Filtered)), (1, 1));
    assert_eq!(g.exchange(&[1])[..4], [0x8000_0001, OTHER.0[0], OTHER.0[1], 0]);
}

/// ixgbe_set_vf_mac stores it, and ixgbe_vf_reset_msg answers it.
#[test]
fn an_address_that_a_trusted_function_has_set_outlives_its_reset_and_not_the_host_s_trust() {
    let mut g = Guest::ready(true, 4);
    assert_eq!(g.exchange(&[2, OTHER.0[0], OTHER.0[1]])[0], GRANTED | 2);
    g.w(VFCTRL, 1 << 26);
    g.answer();
    g.r(VFMAILBOX);
    assert_eq!(g.exchange(&[1])[..3], [0x8000_0001, OTHER.0[0], OTHER.0[1]]);
    // A function-level reset, and a kill of the daemon.
    g.call(|nic, cx| nic.reset(Reset::Function, cx));
    g.answer();
    g.config_write(4, &[6, 0]);
    assert_eq!(g.exchange(&[1])[..3], [0x8000_0001, OTHER.0[0], OTHER.0[1]]);
    g.call(|nic, cx| nic.notice(Event::Lost, cx));
    assert_eq!(g.exchange(&[1])[..3], [0x8000_0001, OTHER.0[0], OTHER.0[1]]);
    g.open(0, ENABLE);
    g.bring_one(&to(OTHER.1, 100));
    assert_eq!(g.counters.receive[0].frames, 1);
    g.host_sets(|policy| policy.address = Mac(THIRD.1));
    assert_eq!(g.exchange(&[1])[1..3], THIRD.0, "the host's is the last");
    g.exchange(&[2, OTHER.0[0], OTHER.0[1]]);
    g.host_sets(|policy| policy.trusted = false);
    assert_eq!((g.r(VFMBMEM), g.r(VFMAILBOX) & PFSTS), (0x100, PFSTS));
    assert_eq!(g.exchange(&[1])[1..3], THIRD.0);
}

/// An 82599 forces the link down by a reset (ixgbe_set_vf_link_state), after which ixgbevf comes up within ten seconds of its last one, and
/// DPDK's driver when its application restarts it. Here LINKS shows it.
#[test]
fn a_link_that_is_forced_down_stops_frames_and_no_queue_and_comes_up_at_once() {
    let mut g = Guest::ready(true, 4);
    g.open(0, ENABLE);
    g.call(|nic, cx| nic.notice(Event::Link(false), cx));
    assert_eq!((g.r(VFMBMEM), g.r(VFLINKS) >> 30 & 1), (0x2000_0100, 0), "ixgbe_ping_all_vfs, with CTS");
    g.w(VFMAILBOX, ACK);
    g.answer();
    g.bring_one(&to(MAC, 100));
    assert_eq!((g.counters.receive[0].frames, g.dropped(Reason::ReceiverOff)), (0, 1));
    // A driver that starts meanwhile: ixgbevf_up_complete keeps the answer until its next reset.
    g.exchange(&[1]);
    g.exchange(&[8, 4]);
    assert_eq!(g.exchange(&[0x10, 7])[..2], [GRANTED | 0x10, 1]);
    g.open(0, ENABLE);
    g.call(|nic, cx| nic.notice(Event::Link(true), cx));
    assert_eq!((g.r(VFMBMEM), g.r(VFLINKS) >> 30 & 1), (0x2000_0100, 1));
    g.bring_one(&to(MAC, 100));
    assert_eq!(g.counters.receive[0].frames, 1);
}

/// Linux's PF clears CTS, so that the driver asks for all multicast frames again (ixgbe_ndo_set_vf_trust): here it has asked.
#[test]
fn a_change_of_trust_stops_no_queue_and_all_multicast_frames_come_while_it_is_trusted() {
    let mut g = Guest::ready(false, 4);
    g.open(0, ENABLE);
    let multicast = to([1, 0, 0x5e, 0, 0, 0x16], 100);
    assert_eq!(g.exchange(&[0xc, 2])[..2], [GRANTED | 0xc, 1], "IXGBEVF_XCAST_MODE_MULTI");
    for (trusted, frames) in [(true, 2), (false, 3), (true, 5), (false, 6)] {
        g.host_sets(|policy| policy.trusted = trusted);
        assert_eq!(g.r(VFMAILBOX), 0, "no message");
        g.bring_one(&multicast);
        g.bring_one(&to(MAC, 100));
        assert_eq!(g.counters.receive[0].frames, frames, "trust: {trusted}");
    }
    assert_eq!(g.exchange(&[9])[0], GRANTED | 9, "it is clear to send");
    // A driver that does not want them any more, or has reset, does not get them.
    g.exchange(&[0xc, 1]);
    g.host_sets(|policy| policy.trusted = true);
    g.bring_one(&multicast);
    assert_eq!(g.dropped(Reason::Filtered), 3);
}

#[test]
fn a_port_s_vlan_ends_the_function_s_own_and_is_told_with_the_queues() {
    let mut g = Guest::opened();
    let tagged = ethernet(0x8100, &[&[0, 5, 0x88, 0xb5][..], &payload(100)].concat());
    g.exchange(&[1 << 16 | 4, 5]);
    g.bring_one(&tagged);
    assert_eq!(g.counters.receive[0].frames, 1);
    g.host_sets(|policy| policy.tagged = true);
    assert_eq!(g.r(VFMAILBOX), 0, "no message: ixgbe_enable_port_vlan");
    g.bring_one(&tagged);
    assert_eq!(g.dropped(Reason::Filtered), 1);
    assert_eq!(g.exchange(&[1 << 16 | 4, 5])[0], REFUSED | 1 << 16 | 4);
    assert_eq!(g.exchange(&[9])[..5], [GRANTED | 9, 2, 2, 1, 0]);
    g.host_sets(|policy| policy.tagged = false);
    assert_eq!(g.exchange(&[1 << 16 | 4, 5])[0], GRANTED | 1 << 16 | 4);
    g.bring_one(&tagged);
    assert_eq!(g.counters.receive[0].frames, 2);
}

#[test]
fn a_reset_in_the_middle_of_an_answer_takes_the_answer_away() {
    let mut g = Guest::ready(true, 4);
    g.w(VFMAILBOX, VFU);
    g.w(VFMBMEM, 9);
    g.w(VFMAILBOX, REQ);
    g.answer();
    g.w(VFCTRL, 1 << 26);
    g.answer();
    assert_eq!(g.r(VFMAILBOX), RSTD, "neither PFSTS nor PFACK");
    assert_eq!(g.exchange(&[9])[0], 0x4000_0009, "not ready");
    let words = g.exchange(&[1]);
    assert_eq!((words[0], &words[3..]), (0x8000_0001, &[0; 13][..]), "ixgbe_vf_clear_mbx");
}

/// Each message gets one answer, whatever it says, and the last one says that a function has no more than it may.
#[test]
fn a_flood_of_nonsense_is_answered_word_for_word_and_grants_no_more_than_the_limits() {
    for trusted in [false, true] {
        let (mut g, mut dice) = (Guest::ready(trusted, 4), Dice(7));
        for _ in 0..20_000 {
            let mut words: [u32; 16] = std::array::from_fn(|_| dice.roll() as u32);
            // Mostly numbers of messages that there are, with all their own bits.
            words[0] &= if dice.roll() & 7 == 0 { 0x3fff_ffff } else { 0x00ff_001f };
            let asked = words[0];
            let answer = g.exchange(&words)[0];
            if asked == 1 {
                assert_eq!(answer, 0x8000_0001);
            } else {
                assert!([GRANTED | asked, REFUSED | asked].contains(&answer), "{asked:x}: {answer:x}");
            }
        }
        assert_eq!(g.exchange(&[1])[0], 0x8000_0001);
        g.exchange(&[8, 4]);
        (1..=40).for_each(|id| _ = g.exchange(&[1 << 16 | 4, id]));
        let granted = (1..=9).filter(|index| g.exchange(&[2 << 16 | 6, 2, index << 8])[0] >> 31 != 0).count();
        assert_eq!(granted, if trusted { 3 } else { 0 });
    }
}

#[test]
fn a_function_that_comes_from_a_host_that_let_it_have_other_addresses_is_told() {
    let moved = |grant: &[u32], change: fn(&mut FunctionPolicy)| {
        let mut g = Guest::new(true);
        g.exchange(&[1]);
        g.exchange(&[8, 4]);
        g.exchange(grant);
        let mut other = Guest::new(true);
        other.host_sets(change);
        g.hand_over(&mut other);
        other.restored();
        other.answer();
        // A message without CTS waits for it, or it is ready as before.
        (other.r(VFMBMEM) == 0x100, other.exchange(&[9])[0] == GRANTED | 9)
    };
    assert_eq!(moved(&[9], |policy| policy.trusted = false), (false, true), "it has nothing of another's");
    assert_eq!(moved(&[1 << 16 | 6, 2, 1 << 8], |policy| policy.trusted = false), (true, false));
    assert_eq!(moved(&[2, OTHER.0[0], OTHER.0[1]], |policy| policy.trusted = false), (true, false));
    assert_eq!(moved(&[9], |policy| (policy.trusted, policy.address) = (false, Mac(OTHER.1))), (true, false));
    assert_eq!(moved(&[1 << 16 | 4, 5], |policy| policy.tagged = true), (false, true), "as a port's VLAN that is set");
    assert_eq!(moved(&[1 << 16 | 6, 2, 1 << 8], |policy| policy.tagged = true), (false, true));
    // IXGBEVF_XCAST_MODE_MULTI is for everybody, ALLMULTI for whom the host trusts.
    assert_eq!(moved(&[12, 1], |policy| policy.trusted = false), (false, true));
    assert_eq!(moved(&[12, 2], |policy| policy.trusted = false), (false, true));
}

/// A number of a saved state.
fn leb128(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Its family judges a state by its counts. RCTL's bits: UPE, which nobody grants, and MPE.
#[test]
fn a_state_whose_registers_grant_more_than_it_says_is_refused() {
    let mut g = Guest::ready(true, 4);
    g.exchange(&[1 << 16 | 4, 31]);
    let state = g.nic.save();
    let (control, vlans) = (0x0404_8002, 1 << 31 | 1);
    for (was, is) in [(control, control | 8), (control, control | 0x10), (vlans, vlans | 1 << 30)] {
        let [was, is] = [was, is].map(leb128);
        let found: Vec<usize> = (0..state.len()).filter(|at| state[*at..].starts_with(&was)).collect();
        assert_eq!(found.len(), 1, "{was:x?} is RCTL or the VLANs' table");
        let changed = [&state[..found[0]], &is, &state[found[0] + was.len()..]].concat();
        assert_eq!(adapter("ixgbevf").restore(&changed), Err(RestoreError::Impossible("mailbox")), "{is:x?}");
    }
    assert_eq!(adapter("ixgbevf").restore(&state), Ok(()));
}

/// The words of a message that it is about to send stay, and what it asks is refused.
#[test]
fn a_function_that_is_moved_while_its_driver_holds_the_mailbox_is_reset_and_its_message_is_whole() {
    let mut g = Guest::ready(true, 4);
    g.exchange(&[1 << 16 | 6, 2, 1 << 8]);
    g.w(VFMAILBOX, VFU);
    g.w(VFMBMEM, 9);
    let mut other = Guest::new(true);
    other.host_sets(|policy| policy.trusted = false);
    g.hand_over(&mut other);
    other.restored();
    other.answer();
    assert_eq!((other.r(VFMBMEM), other.r(VFMAILBOX)), (9, VFU));
    other.w(VFMAILBOX, REQ);
    other.answer();
    assert_eq!(other.r(VFMBMEM), 0x4000_0009, "it is not clear to send");
    other.bring_one(&to([2, 0, 0, 0, 0, 1], 100));
    assert_eq!(other.counters.receive[0].frames, 0);
}

/// ixgbe_obtain_mbx_lock_pf: PFU cannot be set while VFU is. There the word is lost, here it waits.
#[test]
fn a_reset_of_the_card_waits_until_its_driver_has_read_the_answer_to_its_message() {
    let mut g = Guest::ready(true, 4);
    g.w(VFMAILBOX, VFU);
    g.w(VFMBMEM, 9);
    g.w(VFMAILBOX, REQ);
    g.answer();
    g.host_resets();
    assert_eq!((g.r(VFMBMEM), g.r(VFMAILBOX)), (GRANTED | 9, PFSTS | PFACK));
    g.w(VFMAILBOX, VFU);
    assert_eq!(g.r(VFMBMEM), GRANTED | 9);
    g.w(VFMAILBOX, ACK);
    g.answer();
    assert_eq!((g.r(VFMBMEM), g.r(VFMAILBOX)), (0x4000_0000, PFSTS), "ixgbe_rcv_ack_from_vf: it resets");
    // Once it has, there is nothing more to tell it.
    g.exchange(&[1]);
    assert_eq!((g.r(VFMBMEM) & 0xff, g.r(VFMAILBOX)), (1, 0));
}

/// ixgbevf_check_mac_link_vf: as e1000_check_for_link_vf, see `killed.rs`.
#[test]
fn after_a_kill_of_the_daemon_its_driver_is_interrupted_and_finds_a_nack_instead_of_a_link() {
    let mut g = Guest::opened();
    g.open_msix();
    g.messages();
    let kept = g.nic.save();
    g.nic = adapter("ixgbevf");
    g.nic.restore(&kept).unwrap();
    g.call(|nic, cx| nic.notice(Event::Lost, cx));
    assert_eq!(g.messages(), [0, 1, 2], "ixgbevf_msix_other sets get_link_status");
    assert_eq!(g.r(VFMAILBOX) & (PFSTS | RSTD), PFSTS | RSTD);
    for expected in [0, 0x4000_0000] {
        g.w(VFMAILBOX, VFU);
        assert_eq!(g.r(VFMBMEM) & 0x6000_0000, expected);
        g.w(VFMAILBOX, ACK);
        g.answer();
    }
    g.w(VFCTRL, 1 << 26);
    g.answer();
    assert_eq!(g.r(VFMAILBOX) & RSTD, RSTD);
    assert_eq!(g.exchange(&[1])[0], 0x8000_0001);
}
