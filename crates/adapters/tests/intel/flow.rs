//! PAUSE frames, and counters of lost and overlong frames (317453, 3.7, 13.4.22, 13.7; 82576, 8.18), for every chip.

use nicety_adapter::{Event, Reason, Time};

use crate::bench::*;
use crate::chip::*;

const CTRL_RFCE: u32 = 1 << 27;
const FCAL: u64 = 0x28;
const FCAH: u64 = 0x2c;
const FCT: u64 = 0x30;
const FCTTV: u64 = 0x170;
const MPC: u64 = 0x4010;
const RLEC: u64 = 0x4040;
const XONRXC: u64 = 0x4048;
const XONTXC: u64 = 0x404c;
const XOFFRXC: u64 = 0x4050;
const XOFFTXC: u64 = 0x4054;
const FCRUC: u64 = 0x4058;
const GPRC: u64 = 0x4074;
const GPTC: u64 = 0x4080;
const GORCL: u64 = 0x4088;
const GORCH: u64 = 0x408c;
const RNBC: u64 = 0x40a0;
const ROC: u64 = 0x40ac;
const TPR: u64 = 0x40d0;
const TPT: u64 = 0x40d4;
const GROUP: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x01];

/// Runs a test with flow control set up as Linux does for every chip (e1000e_setup_link_generic).
fn each_with_flow_control(test: impl Fn(&mut Chip)) {
    each(|chip| {
        chip.w(FCT, 0x8808);
        chip.w(FCAH, 0x0100);
        chip.w(FCAL, 0x00c2_8001);
        chip.w(FCTTV, 0x0680);
        let control = chip.r(CTRL);
        chip.w(CTRL, control | CTRL_RFCE);
        test(chip);
    });
}

/// As e1000e_update_stats of Linux reads it: frames arrive between the two reads.
#[test]
fn bytes_that_arrive_between_the_reads_of_a_counters_halves_are_in_the_next_reading() {
    each(|chip| {
        let octets = |chip: &mut Chip| {
            let low = chip.r(GORCL);
            chip.bring_one(&ethernet(0x88b5, &payload(86)));
            (low, chip.r(GORCH))
        };
        assert_eq!(octets(chip), (0, 0), "{}", chip.name);
        assert_eq!(octets(chip), (104, 0), "{}: 100 bytes and the check sequence", chip.name);
        assert_eq!((chip.r(GORCH), chip.r(GORCL)), (0, 0), "{}: the high half alone clears both", chip.name);
    });
}

fn control(to: [u8; 6], opcode: u16, quanta: u16) -> Vec<u8> {
    let mut frame = [&to[..], &PEER, &[0x88, 0x08], &opcode.to_be_bytes(), &quanta.to_be_bytes()].concat();
    frame.resize(60, 0);
    frame
}

fn send_one(chip: &mut Chip) -> usize {
    chip.put(TX_DATA, &ethernet(0x88b5, &payload(86)));
    chip.data(TX_DATA, 100, EOP, false, 0);
    chip.run()
}

#[test]
fn a_pause_stops_the_transmitter_for_its_quanta_and_an_xon_starts_it_again() {
    each_with_flow_control(|chip| {
        let from = chip.now;
        chip.bring_one(&control(GROUP, 1, 1000));
        assert_eq!((chip.r(XOFFRXC), chip.r(GPRC), chip.r(TPR), chip.r(RDH)), (1, 0, 1, 0), "{}", chip.name);
        assert_eq!(send_one(chip), 0, "{}", chip.name);
        // A quantum is 512 bits, which take 512 ns.
        let until = from.after_ns(512_000);
        assert_eq!(chip.out.wake, Some(until), "{}", chip.name);
        chip.now = Time(until.0 - 1);
        chip.tick();
        assert_eq!(chip.run(), 0, "{}", chip.name);
        chip.now = until;
        chip.out.work = nicety_adapter::Set::default();
        chip.tick();
        assert!(chip.out.work.contains(0), "{}", chip.name);
        assert_eq!(chip.run(), 1, "{}", chip.name);
        chip.bring_one(&control(GROUP, 1, 0xffff));
        assert_eq!(send_one(chip), 0, "{}", chip.name);
        chip.bring_one(&control(GROUP, 1, 0));
        chip.tick();
        assert_eq!((chip.run(), chip.r(XONRXC)), (1, 1), "{}", chip.name);
    });
}

#[test]
fn the_longest_pause_lasts_a_thirtieth_of_a_second_and_a_reset_ends_it() {
    each_with_flow_control(|chip| {
        chip.bring_one(&control(GROUP, 1, 0xffff));
        chip.now = chip.now.after_ns(33_553_920);
        assert_eq!(send_one(chip), 1, "{}", chip.name);
        chip.bring_one(&control(GROUP, 1, 0xffff));
        let control = chip.r(CTRL);
        chip.w(CTRL, control | 1 << 26);
        chip.w(CTRL, control);
        chip.open_rings(RING as u32);
        assert_eq!(send_one(chip), 1, "{}", chip.name);
    });
}

#[test]
fn a_pause_of_another_guest_s_stops_nobody() {
    each_with_flow_control(|chip| {
        // To the station itself: the only kind that a switch forwards.
        chip.bring_one(&control(MAC, 1, 0xffff));
        assert_eq!((chip.r(XOFFRXC), chip.r(RDH)), (1, 1), "{}: counted, and received, for DPF is clear", chip.name);
        assert_eq!(send_one(chip), 1, "{}", chip.name);
        let receive = chip.r(RCTL);
        chip.w(RCTL, receive | 1 << 22);
        chip.bring_one(&control(MAC, 1, 0xffff));
        assert_eq!((chip.r(XOFFRXC), chip.r(RDH)), (1, 1), "{}: DPF", chip.name);
        // Without RFCE no PAUSE stops it.
        let own = chip.r(CTRL);
        chip.w(CTRL, own & !CTRL_RFCE);
        chip.bring_one(&control(GROUP, 1, 0xffff));
        assert_eq!((send_one(chip), chip.r(XOFFRXC)), (1, 1), "{}", chip.name);
        // A PAUSE for another station is an ordinary frame.
        chip.bring_one(&control([2, 0, 0, 0, 0, 7], 1, 0xffff));
        assert_eq!((chip.r(XOFFRXC), chip.r(FCRUC), chip.r(RDH)), (0, 0, 2), "{}", chip.name);
    });
}

#[test]
fn a_control_frame_of_another_kind_is_counted_and_received_if_the_driver_asks_for_it() {
    each_with_flow_control(|chip| {
        chip.bring_one(&control(MAC, 0x0101, 5));
        assert_eq!((chip.r(FCRUC), chip.r(RDH)), (1, 0), "{}", chip.name);
        let receive = chip.r(RCTL);
        chip.w(RCTL, receive | 1 << 23);
        chip.bring_one(&control(MAC, 0x0101, 5));
        assert_eq!((chip.r(FCRUC), chip.r(RDH), chip.r(XOFFRXC)), (1, 1, 0), "{}", chip.name);
        assert_eq!((chip.r(GPRC), chip.r(TPR)), (0, 2), "{}", chip.name);
    });
}

#[test]
fn a_pause_that_finds_no_descriptor_is_counted_once() {
    each_with_flow_control(|chip| {
        let receive = chip.r(RCTL);
        chip.w(RCTL, receive | 1 << 4);
        chip.w(RDT, 0);
        let refused = chip.bring_one(&control(GROUP, 1, 9));
        assert_eq!(refused.refused(), 1, "{}", chip.name);
        assert_eq!(chip.r(XOFFRXC), 0, "{}", chip.name);
        chip.w(RDT, 5);
        chip.bring_one(&control(GROUP, 1, 9));
        assert_eq!((chip.r(XOFFRXC), chip.r(RDH)), (1, 1), "{}", chip.name);
    });
}

#[test]
fn software_sends_an_xoff_or_an_xon_which_no_pause_holds_back() {
    each_with_flow_control(|chip| {
        chip.bring_one(&control(GROUP, 1, 0xffff));
        for (quanta, counter) in [(0x0680, XOFFTXC), (0, XONTXC)] {
            chip.w(FCTTV, quanta.into());
            let transmit = chip.r(TCTL);
            chip.w(TCTL, transmit | 1 << 22);
            assert!(chip.out.work.contains(0), "{}", chip.name);
            chip.fetch();
            let expected = [&GROUP[..], &MAC, &control(GROUP, 1, quanta)[12..]].concat();
            assert_eq!(cut(&chip.batch), [expected], "{}", chip.name);
            chip.complete();
            assert_eq!((chip.r(counter), chip.r(TPT), chip.r(GPTC)), (1, 1, 0), "{}", chip.name);
            assert_eq!(chip.r(TCTL), transmit, "{}: SWXOFF clears itself", chip.name);
            chip.fetch();
            assert!(chip.batch.is_empty(), "{}: once", chip.name);
        }
        assert_eq!((chip.r(TDH), chip.counters.transmitted().packets), (0, 2), "{}", chip.name);
    });
}

#[test]
fn an_xoff_in_loopback_stops_its_own_sender_for_a_while_and_no_longer() {
    each_with_flow_control(|chip| {
        chip.w(FCTTV, 0xffff);
        let (receive, transmit) = (chip.r(RCTL), chip.r(TCTL));
        chip.w(RCTL, receive | LOOPBACK);
        chip.w(TCTL, transmit | 1 << 22);
        assert_eq!(chip.run(), 0, "{}: nothing leaves", chip.name);
        assert_eq!((chip.r(XOFFTXC), chip.r(XOFFRXC)), (1, 1), "{}", chip.name);
        send_one(chip);
        assert_eq!(chip.r(TDH), 0, "{}", chip.name);
        chip.now = chip.now.after_ns(33_553_920);
        chip.run();
        assert_eq!(chip.r(TDH), 1, "{}", chip.name);
    });
}

#[test]
fn a_frame_that_finds_no_descriptor_is_an_event_and_one_that_the_port_then_loses_is_missed() {
    each(|chip| {
        chip.w(RDT, 0);
        chip.bring_one(&ethernet(0x88b5, &payload(100)));
        assert_eq!((chip.r(RNBC), chip.r(MPC)), (1, 0), "{}: it waits in the port", chip.name);
        for frames in [1, 2] {
            chip.call(|nic, cx| nic.notice(Event::Missed(frames), cx));
        }
        assert_eq!((chip.r(MPC), chip.r(MPC)), (3, 0), "{}", chip.name);
        // Frames lost before a reset are not counted for the driver.
        chip.call(|nic, cx| nic.notice(Event::Missed(1), cx));
        let control = chip.r(CTRL);
        chip.w(CTRL, control | 1 << 26);
        assert_eq!(chip.r(MPC), 0, "{}", chip.name);
    });
}

#[test]
fn a_frame_that_is_too_long_is_an_error_of_length_if_it_is_for_this_station() {
    each(|chip| {
        let receive = chip.r(RCTL);
        chip.w(RCTL, receive & !PROMISCUOUS);
        let mut long = ethernet(0x88b5, &payload(1600));
        chip.bring_one(&long);
        assert_eq!((chip.r(ROC), chip.r(RLEC)), (1, 1), "{}", chip.name);
        long[..6].copy_from_slice(&[2, 0, 0, 0, 0, 7]);
        chip.bring_one(&long);
        assert_eq!((chip.r(ROC), chip.r(RLEC)), (0, 0), "{}", chip.name);
        assert_eq!(chip.counters.receive_drops[Reason::Filtered as usize], 1, "{}", chip.name);
    });
}
