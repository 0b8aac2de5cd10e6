//! The receive filter, bit by bit (manual, 13.4.22 "RCTL" and 13.5.1 "MTA").

use nicety_adapter::Reason;

use crate::bench::*;

/// RCTL.MO, two bits.
const MO: u32 = 12;
const VFE: u32 = 1 << 18;
const CFIEN: u32 = 1 << 19;
const CFI: u32 = 1 << 20;
/// The multicast table: 128 words.
const MTA: u64 = 0x5200;
const VFTA: u64 = 0x5600;

/// Whether a frame takes a buffer. If not, it is counted as filtered, and nothing else changes.
fn passes(b: &mut Bench, frame: &[u8]) -> bool {
    let filtered = |b: &Bench| b.counters.receive_drops[Reason::Filtered as usize];
    let (head, before) = (b.r(RDH), filtered(b));
    b.bring_one(frame);
    let passed = b.r(RDH) != head;
    assert_eq!(filtered(b) - before, u64::from(!passed));
    // The ring has as many buffers as before.
    let head = b.r(RDH);
    b.w(RDT, (head + 255) % 256);
    passed
}

/// Fills every word of the table with `fill`, and flips one bit.
fn set_table(b: &mut Bench, fill: u32, word: u64, bit: u32) {
    for at in 0..128 {
        b.w(MTA + at * 4, if at == word { fill ^ 1 << bit } else { fill });
    }
}

#[test]
fn multicast_offset_chooses_twelve_bits_of_the_address_and_each_has_its_bit_in_the_table() {
    // Bits 47:32 are the last two bytes, the last one on top: 5634 and fb00. MO 0 takes 47:36, MO 1 46:35, MO 2 45:34, MO 3 43:32.
    // The upper seven of these twelve bits select the table's word, the lower five the bit. The first address is the example of
    // e1000_hw.c (e1000_hash_mc_addr), whose comment has the digits of MO 2 in another order than its code.
    let cases = [
        ([0x01, 0xaa, 0x00, 0x12, 0x34, 0x56], [(0x563, 43, 3), (0xac6, 86, 6), (0x58d, 44, 13), (0x634, 49, 20)]),
        ([0x01, 0x00, 0x5e, 0x00, 0x00, 0xfb], [(0xfb0, 125, 16), (0xf60, 123, 0), (0xec0, 118, 0), (0xb00, 88, 0)]),
    ];
    let mut b = Bench::opened();
    for (address, places) in cases {
        let frame = [&address[..], &PEER, &[0x88, 0xb5], &[0; 50]].concat();
        for (offset, (hash, word, bit)) in (0..4).zip(places) {
            assert_eq!(hash, word << 5 | u64::from(bit), "this table is right");
            b.w(RCTL, RCTL_LINUX | offset << MO);
            set_table(&mut b, 0, word, bit);
            assert!(passes(&mut b, &frame), "MO {offset}: {hash:#05x} is in the table");
            set_table(&mut b, 0xffff_ffff, word, bit);
            assert!(!passes(&mut b, &frame), "MO {offset}: only {hash:#05x} is not in the table");
        }
    }
}

#[test]
fn the_canonical_form_indicator_must_match_if_it_is_compared() {
    let mut b = Bench::opened();
    // VLAN 5, priority 3, without and with the indicator; and an untagged frame.
    let [plain, indicated] =
        [0x60, 0x70].map(|high| ethernet(0x8100, &[&[high, 5, 0x88, 0xb5], &payload(100)[..]].concat()));
    let untagged = ethernet(0x88b5, &payload(100));
    b.w(VFTA, 1 << 5);
    for with in [0, VFE] {
        for (compared, wanted) in [(0, 0), (0, CFI), (CFIEN, 0), (CFIEN, CFI)] {
            b.w(RCTL, RCTL_LINUX | with | compared | wanted);
            let what = format!("VFE {with:#x}, CFIEN {compared:#x}, CFI {wanted:#x}");
            assert_eq!(passes(&mut b, &plain), compared == 0 || wanted == 0, "{what}: CFI is 0");
            assert_eq!(passes(&mut b, &indicated), compared == 0 || wanted != 0, "{what}: CFI is 1");
            assert!(passes(&mut b, &untagged), "{what}: there is none");
        }
    }
    // The identifier is looked up in this mode too.
    b.w(RCTL, RCTL_LINUX | VFE | CFIEN);
    b.w(VFTA, 0);
    assert!(!passes(&mut b, &plain));
}
