//! Messages and their answers, word for word as Linux's vf.c sends them and igb_main.c answers.

use nicety_adapter::Reason;

use crate::bench::{Dice, ethernet, payload, to};
use crate::guest::*;

/// The address as the words of a message.
const LOW: u32 = 0x1200_5452;
const HIGH: u32 = 0x5634;
/// E1000_VT_MSGTYPE_.
const GRANTED: u32 = 0xa000_0000;
const REFUSED: u32 = 0x6000_0000;

#[test]
fn a_reset_ends_at_once_and_its_message_is_answered_with_the_address_and_without_cts() {
    let mut g = Guest::new(true);
    g.ask(CTRL, 1 << 26);
    assert_eq!(g.r(CTRL) & 1 << 26, 0);
    let first = g.r(V2PMAILBOX);
    assert_eq!((first & RSTI, first & RSTD), (0, RSTD));
    assert_eq!(g.r(V2PMAILBOX) & (RSTI | RSTD), 0, "RSTD is cleared by its read");
    g.send_message(&[1]);
    let bits = g.r(V2PMAILBOX);
    assert_eq!(bits & (PFSTS | PFACK | REQ | ACK | VFU), PFSTS | PFACK);
    assert_eq!(g.r(V2PMAILBOX), 0, "both bits are cleared by their read");
    assert_eq!(g.read_message()[..3], [0x8000_0001, LOW, HIGH]);
}

#[test]
fn every_other_message_has_cts_in_its_answer() {
    let mut g = Guest::ready(true);
    let answers: [(&[u32], u32); 10] = [
        (&[2, LOW, HIGH], GRANTED | 2),
        (&[2, 0, 0], REFUSED | 2),
        (&[2, 1, 0], REFUSED | 2),
        (&[1 << 16 | 2, 0, 0], GRANTED | 1 << 16 | 2),
        (&[3, 0], GRANTED | 3),
        (&[1 << 16 | 4, 5], GRANTED | 1 << 16 | 4),
        (&[4, 5], GRANTED | 4),
        (&[5, 1522], GRANTED | 5),
        (&[2 << 16 | 6], GRANTED | 6),
        (&[99], REFUSED | 99),
    ];
    for (message, answer) in answers {
        assert_eq!(g.exchange(message)[0], answer, "{message:x?}");
    }
    // Unicast: "flags left unprocessed" in igb_set_vf_promisc.
    assert_eq!(g.exchange(&[1 << 16 | 6])[0], REFUSED | 1 << 16 | 6);
}

#[test]
fn before_its_reset_message_a_function_is_refused_without_cts_and_then_ignored_for_two_seconds() {
    let mut g = Guest::new(true);
    assert_eq!(g.exchange(&[5, 1522])[0], 0x4000_0005);
    g.ask(CTRL, 1 << 26);
    g.r(V2PMAILBOX);
    g.send_message(&[5, 1522]);
    assert_eq!(g.r(V2PMAILBOX) & (PFACK | PFSTS), PFACK, "read, not answered");
    g.now = g.now.after_ns(2_000_000_001);
    assert_eq!(g.exchange(&[5, 1522])[0], 0x4000_0005);
    // igb_rcv_ack_from_vf: its acknowledgement of that gets a bare NACK.
    assert_eq!(g.r(VMBMEM), 0x4000_0000);
    assert_eq!(g.r(V2PMAILBOX) & PFSTS, PFSTS);
}

#[test]
fn an_untrusted_function_keeps_its_address_and_gets_no_others() {
    let mut g = Guest::ready(false);
    assert_eq!(g.exchange(&[2, 0x0100_0002, 0x0900])[0], REFUSED | 2);
    assert_eq!(g.exchange(&[2 << 16 | 2, 0x0100_0002, 0x0900])[0], REFUSED | 2 << 16 | 2);
    g.open();
    g.bring_one(&to([2, 0, 0, 1, 0, 9], 100));
    assert_eq!((g.dropped(Reason::Filtered), g.written(0)[2] & 1), (1, 0));
}

#[test]
fn a_trusted_function_gets_frames_for_three_more_addresses_until_they_are_cleared() {
    let mut g = Guest::opened();
    for last in 1..=3 {
        assert_eq!(g.exchange(&[2 << 16 | 2, 2, last << 8])[0], GRANTED | 2 << 16 | 2);
    }
    assert_eq!(g.exchange(&[2 << 16 | 2, 2, 4 << 8])[0], REFUSED | 2 << 16 | 2, "no space: igb_set_vf_mac_filter");
    (1..=4).for_each(|last| _ = g.bring_one(&to([2, 0, 0, 0, 0, last], 100)));
    assert_eq!((g.counters.receive[0].frames, g.dropped(Reason::Filtered)), (3, 1));
    g.exchange(&[1 << 16 | 2, 0, 0]);
    g.bring_one(&to([2, 0, 0, 0, 0, 1], 100));
    assert_eq!(g.dropped(Reason::Filtered), 2);
}

/// igb_ndo_set_vf_trust notes it. Only a function that loses an address must learn so: by a reset of its driver.
#[test]
fn a_change_of_trust_stops_no_queue_and_is_told_only_to_a_driver_that_loses_an_address_by_it() {
    let mut g = Guest::opened();
    let all = [(false, "off"), (true, "on"), (false, "off again")];
    for (trusted, what) in all {
        g.host_sets(|policy| policy.trusted = trusted);
        assert_eq!(g.r(V2PMAILBOX), 0, "{what}: no message");
        g.bring_one(&crate::bench::frame(100));
        assert_eq!(g.send_plain(&crate::bench::frame(100)).len(), 1, "{what}: its queues run on");
    }
    assert_eq!((g.counters.receive[0].frames, g.exchange(&[5, 1522])[0]), (3, GRANTED | 5));
    g.host_sets(|policy| policy.trusted = true);
    assert_eq!(g.exchange(&[2 << 16 | 2, 2, 1 << 8])[0], GRANTED | 2 << 16 | 2);
    g.host_sets(|policy| policy.trusted = false);
    assert_eq!((g.r(VMBMEM), g.r(V2PMAILBOX)), (0x100, PFSTS), "E1000_PF_CONTROL_MSG without CTS");
    g.bring_one(&to([2, 0, 0, 0, 0, 1], 100));
    g.bring_one(&crate::bench::frame(100));
    assert_eq!((g.dropped(Reason::Filtered), g.counters.receive[0].frames), (1, 4), "its own address, from now on");
    // Its state is that of a running function that has not reset yet.
    let mut other = Guest::new(false);
    g.hand_over(&mut other);
    other.restored();
    other.answer();
    assert_eq!(other.send_plain(&crate::bench::frame(100)).len(), 1);
    assert_eq!(other.exchange(&[1])[..3], [0x8000_0001, LOW, HIGH]);
}

#[test]
fn an_address_and_a_vlan_that_the_host_sets_at_once_stop_no_queue() {
    let mut g = Guest::opened();
    assert_eq!(g.exchange(&[1 << 16 | 4, 5])[0], GRANTED | 1 << 16 | 4);
    let new = [2, 0, 0, 0, 0, 9];
    g.host_sets(|policy| (policy.address, policy.tagged) = (nicety_frame::Mac(new), true));
    assert_eq!(g.r(V2PMAILBOX), 0, "no message: igb_ndo_set_vf_mac, igb_enable_port_vlan");
    let tagged = ethernet(0x8100, &[&[0, 5, 0x88, 0xb5][..], &payload(100)].concat());
    g.bring_one(&tagged);
    g.bring_one(&to(new, 100));
    assert_eq!((g.dropped(Reason::Filtered), g.counters.receive[0].frames), (1, 1));
    assert_eq!(g.exchange(&[1 << 16 | 4, 5])[0], REFUSED | 1 << 16 | 4);
}

#[test]
fn multicast_frames_pass_by_their_hash_and_all_of_them_if_there_were_more_than_thirty() {
    let mut g = Guest::opened();
    let mdns = to([1, 0, 0x5e, 0, 0, 0xfb], 100);
    let other = to([1, 0, 0x5e, 0, 0, 0x16], 100);
    g.bring_one(&mdns);
    assert_eq!(g.dropped(Reason::Filtered), 1);
    // e1000_hash_mc_addr_vf: byte 4 >> 4 | byte 5 << 4.
    assert_eq!(g.exchange(&[1 << 16 | 3, 0xfb << 4])[0], GRANTED | 1 << 16 | 3);
    g.bring_one(&mdns);
    g.bring_one(&other);
    assert_eq!((g.counters.receive[0].frames, g.dropped(Reason::Filtered)), (1, 2));
    assert_eq!(g.exchange(&[31 << 16 | 3, 0])[0], GRANTED | 31 << 16 | 3);
    g.bring_one(&other);
    assert_eq!(g.counters.receive[0].frames, 2);
    g.exchange(&[3]);
    g.bring_one(&other);
    assert_eq!(g.dropped(Reason::Filtered), 3);
    g.exchange(&[2 << 16 | 6]);
    g.bring_one(&other);
    assert_eq!((g.counters.receive[0].frames, g.r(VFMPRC)), (3, 3));
}

#[test]
fn a_vlan_passes_once_it_is_added_and_its_tag_is_stripped() {
    let mut g = Guest::opened();
    let tagged = ethernet(0x8100, &[&[0, 5, 0x88, 0xb5][..], &payload(100)].concat());
    g.bring_one(&tagged);
    assert_eq!(g.dropped(Reason::Filtered), 1);
    // VLAN 0, as Linux's 8021q adds it, leaves the tags.
    assert_eq!(g.exchange(&[1 << 16 | 4, 0])[0], GRANTED | 1 << 16 | 4);
    assert_eq!(g.exchange(&[1 << 16 | 4, 5])[0], GRANTED | 1 << 16 | 4);
    g.bring_one(&tagged);
    let [_, _, status, rest] = g.written(0);
    assert_eq!((status & 0xb, rest >> 16, rest & 0xffff), (0xb, 5, tagged.len() as u32 - 4), "DD, EOP, VP");
    g.exchange(&[4, 5]);
    g.bring_one(&tagged);
    assert_eq!(g.dropped(Reason::Filtered), 2);
    assert_eq!(g.exchange(&[4, 0])[0], GRANTED | 4, "VLAN 0 stays");
}

#[test]
fn thirty_one_vlans_fit() {
    let mut g = Guest::ready(true);
    for id in 1..=31 {
        assert_eq!(g.exchange(&[1 << 16 | 4, id])[0], GRANTED | 1 << 16 | 4, "{id}");
    }
    assert_eq!(g.exchange(&[1 << 16 | 4, 32])[0], REFUSED | 1 << 16 | 4);
}

#[test]
fn the_link_is_in_status_and_a_change_is_a_message_once_the_mailbox_is_free() {
    let mut g = Guest::opened();
    g.open_msix();
    // FD, LU, 1000 Mbit/s.
    assert_eq!(g.r(STATUS) & 0xc3, 0x83);
    g.link(false);
    assert_eq!((g.r(STATUS) & 2, g.r(VMBMEM), g.r(V2PMAILBOX) & PFSTS), (0, 0x2000_0100, PFSTS));
    assert_eq!(g.messages(), [2]);
    // In the middle of a message it waits.
    g.w(V2PMAILBOX, VFU);
    g.w(VMBMEM, 5);
    g.link(true);
    assert_eq!((g.r(VMBMEM), g.r(V2PMAILBOX) & PFSTS), (5, 0));
    g.ask(V2PMAILBOX, REQ);
    assert_eq!(g.r(VMBMEM), GRANTED | 5, "the answer is not overwritten");
    g.r(V2PMAILBOX);
    g.w(V2PMAILBOX, ACK);
    g.answer();
    assert_eq!((g.r(VMBMEM), g.r(V2PMAILBOX) & PFSTS, g.r(STATUS) & 2), (0x2000_0100, PFSTS, 2));
}

/// igb_obtain_mbx_lock_pf: PFU cannot be set while VFU is. There the word is lost after 10 ms, here it waits.
#[test]
fn a_reset_of_its_physical_function_waits_while_its_driver_holds_the_mailbox() {
    let mut g = Guest::ready(true);
    // The silence after a reset is over.
    g.now = g.now.after_ns(2_000_000_001);
    g.w(V2PMAILBOX, VFU);
    g.w(VMBMEM, 1 << 16 | 4);
    g.host_resets();
    assert_eq!((g.r(VMBMEM), g.r(V2PMAILBOX)), (1 << 16 | 4, VFU));
    g.w(VMBMEM + 4, 5);
    g.ask(V2PMAILBOX, REQ);
    assert_eq!(g.r(V2PMAILBOX), PFSTS | PFACK);
    assert_eq!(g.read_message()[..2], [0x4001_0004, 5], "its own words, refused without CTS");
    assert_eq!((g.r(VMBMEM), g.r(V2PMAILBOX)), (0x4000_0000, PFSTS), "igb_rcv_ack_from_vf");
}

#[test]
fn a_reset_of_its_physical_function_waits_until_its_driver_has_read_an_answer_and_ends_a_wait_for_none() {
    let mut g = Guest::ready(true);
    g.send_message(&[1 << 16 | 4, 5]);
    g.host_resets();
    assert_eq!(g.r(V2PMAILBOX), PFSTS | PFACK);
    assert_eq!(g.read_message()[..2], [GRANTED | 1 << 16 | 4, 5]);
    assert_eq!((g.r(VMBMEM), g.r(V2PMAILBOX)), (0x100, PFSTS));
    // In the silence after a reset a message gets no answer.
    let mut g = Guest::ready(true);
    g.w(V2PMAILBOX, VFU);
    g.host_resets();
    g.send_words(&[1 << 16 | 4, 5]);
    assert_eq!((g.r(VMBMEM), g.r(V2PMAILBOX)), (0x100, PFSTS | PFACK));
}

#[test]
fn a_reset_takes_back_what_was_granted_and_stops_the_rings() {
    let mut g = Guest::opened();
    g.exchange(&[2 << 16 | 2, 2, 1 << 8]);
    g.exchange(&[1 << 16 | 4, 5]);
    g.bring_one(&to([2, 0, 0, 0, 0, 1], 100));
    assert_eq!(g.r(VFGPRC), 1);
    g.ask(CTRL, 1 << 26);
    g.bring_one(&crate::bench::frame(100));
    assert_eq!((g.dropped(Reason::ReceiverOff), g.r(RXDCTL) & ENABLE), (1, 0));
    assert_eq!(g.r(VFGPRC), 1, "counters go on");
    g.r(V2PMAILBOX);
    assert_eq!(g.exchange(&[1])[0], 0x8000_0001);
    g.open();
    g.bring_one(&to([2, 0, 0, 0, 0, 1], 100));
    assert_eq!(g.dropped(Reason::Filtered), 1);
    g.bring_one(&crate::bench::frame(100));
    assert_eq!(g.r(VFGPRC), 2);
}

#[test]
fn what_was_granted_and_what_was_asked_is_saved() {
    let mut g = Guest::opened();
    g.exchange(&[2 << 16 | 2, 2, 1 << 8]);
    g.w(V2PMAILBOX, VFU);
    g.w(VMBMEM, 99);
    g.w(V2PMAILBOX, REQ);
    let mut other = Guest::new(true);
    g.hand_over(&mut other);
    other.restored();
    other.answer();
    assert_eq!(other.r(VMBMEM), REFUSED | 99);
    other.bring_one(&to([2, 0, 0, 0, 0, 1], 100));
    assert_eq!(other.counters.receive[0].frames, 1);
}

/// A driver that asks nonsense, resets in the middle of a message, and is moved.
#[test]
fn whatever_a_driver_asks_it_gets_no_more_than_its_limits_and_its_state_can_be_saved() {
    for seed in 0..20 {
        let (mut dice, mut g) = (Dice(seed), Guest::new(seed % 2 == 0));
        for step in 0..2_000 {
            match dice.below(16) {
                0 => g.ask(CTRL, 1 << 26),
                1 => g.link(dice.below(2) == 0),
                2 => g.ask(V2PMAILBOX, dice.roll() as u32),
                3 => g.now = g.now.after_ns(dice.below(3_000_000_000)),
                4 => g.send_words(&[1]),
                5 => {
                    let mut other = Guest::new(seed % 2 == 0);
                    g.hand_over(&mut other);
                    other.restored();
                    other.answer();
                    g = other;
                }
                _ => {
                    let kind = dice.below(8) as u32 | (dice.below(4) as u32) << 16;
                    let words: Vec<u32> = (0..dice.below(16)).map(|_| dice.roll() as u32).collect();
                    g.send_words(&[&[kind][..], &words].concat());
                }
            }
            let bits = g.r(V2PMAILBOX);
            assert_eq!(bits & (REQ | ACK | RSTI), 0, "seed {seed}, step {step}");
            assert_eq!(g.r(V2PMAILBOX) & (PFSTS | PFACK | RSTD), 0, "seed {seed}, step {step}: cleared by reading");
        }
        // Still a working function.
        g.w(V2PMAILBOX, 0);
        let reply = g.exchange(&[1]);
        let is_station = reply[1] & 1 == 0 && reply[1..3] != [0, 0];
        // igb_set_vf_mac keeps the address that a trusted function has set.
        let is_right = if seed % 2 == 0 { is_station } else { reply[1..3] == [LOW, HIGH] };
        assert!(reply[0] == 0x8000_0001 && is_right, "seed {seed}: {reply:x?}");
        assert_eq!(g.exchange(&[1 << 16 | 4, 5])[0], GRANTED | 1 << 16 | 4, "seed {seed}");
    }
}
