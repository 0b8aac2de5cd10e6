//! A guest of an 8254x or an 82574 that makes random writes: every call ends, nothing panics, every fetched frame is counted.

use nicety_adapter::{Budget, Edit, Event, Frames, Pick, Reset, Scratch, Set, Unfolded, Wants};

use crate::bench::*;

/// Ten thousand steps with an opened chip. `hot` are the registers with effects, which are written more often than others; `own` is
/// a further step of the chip's own.
pub fn storm(model: &str, seed: u64, mut b: Bench, hot: &[u64], own: impl Fn(&mut Bench, &mut Dice)) {
    let mut dice = Dice(seed);
    let frame = ethernet(0x0800, &ipv4(6, &tcp(&payload(1400))));
    let sender = plain_batch(&[&frame, &frame[..200]]);
    for step in 0..10_000 {
        match dice.below(16) {
            0..=6 => {
                let hot = hot[dice.below(hot.len() as u64) as usize];
                let offset = if dice.below(8) == 0 { dice.below(0x2_0100) } else { hot };
                let value = match dice.below(4) {
                    0 => dice.roll() as u32,
                    1 => dice.below(300) as u32,
                    2 => (dice.below(16) << 16) as u32,
                    _ => 1 << dice.below(32),
                };
                b.w(offset, value);
            }
            7 | 8 => {
                let bytes: Vec<u8> = (0..16).flat_map(|_| dice.roll().to_le_bytes()).collect();
                let at = [TX_RING, RX_RING, 0, TX_DATA][dice.below(4) as usize] + dice.below(256) * 16;
                b.put(at, &bytes);
            }
            9 => {
                let (address, lower) = (TX_DATA + dice.below(4096), dice.roll() as u32);
                let upper = dice.roll() as u32;
                b.descriptor(dice.below(256), address, lower & 0xff0f_0fff, upper);
            }
            10 | 11 => {
                let before = b.counters.transmitted().packets;
                let progress = b.fetch();
                assert!(b.batch.len() <= Budget::TURN.packets);
                let sent = b.counters.transmitted().packets - before;
                assert_eq!(sent, b.batch.len() as u64, "step {step} of seed {seed}");
                assert!(!(progress.more && progress.armed));
                cut_all(&b);
                if dice.below(4) != 0 {
                    b.complete();
                }
            }
            12 => drop(b.bring(&sender, Edit::Keep)),
            13 => {
                b.now = b.now.after_ns(dice.below(1 << 20));
                b.tick();
            }
            14 => match dice.below(40) {
                0 => b.call(|nic, cx| nic.reset(Reset::Bus, cx)),
                1 => b.command(dice.roll() as u16),
                2 => b.call(|nic, cx| nic.notice(Event::Memory, cx)),
                3..=6 => b.link(dice.below(2) == 0),
                7 => {
                    b.start(model);
                    b.w(CTRL, 0x241);
                    b.open_transmit(TX_RING, 256);
                    b.open_receive(RX_RING, 256, RCTL_LINUX, 2048);
                }
                8 => own(&mut b, &mut dice),
                _ => b.command(7),
            },
            _ => {
                let mut data = [0; 8];
                let len = [1, 2, 4, 8][dice.below(4) as usize];
                b.bar_read(dice.below(5) as u8, dice.below(0x2_0100), &mut data[..len]);
            }
        }
        b.out.work = Set::default();
    }
    b.hand_over(&mut Bench::of(model));
}

/// Every packet of the batch can be delivered, or has a drop reason.
fn cut_all(b: &Bench) {
    let mut scratch = Scratch::new();
    for pick in (0..b.batch.len() as u16).map(Pick::whole) {
        let picks = [pick];
        let frames = Frames::new(&b.batch, &picks);
        let wants = Wants { frame_max: 1514, verify: true, ..Wants::default() };
        if let Ok(unfolded) = Unfolded::new(&frames, pick, wants) {
            assert!(unfolded.piece(0, &mut scratch).is_some());
        }
    }
}
