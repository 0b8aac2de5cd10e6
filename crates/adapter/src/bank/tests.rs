//! Tables with the features that devices of a family need: hundreds of rows, a block for each queue, narrow and mixed widths, ports,
//! pages, indirect registers.

use super::*;
use crate::trace::{Region as Traced, RegisterName};

crate::register_names! {
    enum Reg { CTRL, CAUSE, COUNT, BASE[16], TAIL[16], HASH[600], LOW[4], HIGH[4], ID[6], MASK, STATUS, DATA, INDEX, FILE[128] }
}

const MEMORY: u8 = 0;
const PORTS: u8 = 1;
const FILE: u8 = 2;

const REGIONS: &[Region] = &[
    Region { bars: &[0, 3], len: 0x1_0000, reads: Widths::ANY, writes: Widths::DWORD, hole: 0 },
    Region { bars: &[1], len: 0x20, reads: Widths::ANY, writes: Widths::ANY, hole: !0 },
    Region { bars: &[], len: 0x100, reads: Widths::WORD, writes: Widths::WORD, hole: 0 },
];

const BLOCKS: &[Block<Reg>] = &[
    Block {
        region: MEMORY,
        base: 0,
        stride: 0x1000,
        count: 1,
        rows: &[
            Row::rw(Reg::CTRL, 0x00, 0x00ff_ffff, 0x0100_0001, "1"),
            Row::rw(Reg::CAUSE, 0x08, 0, 0, "2").write_clears(0xff),
            Row::rw(Reg::COUNT, 0x10, 0, 0, "3").read_clears(!0),
            Row::rw(Reg::HASH, 0x200, !0, 0, "4").times(600),
        ],
    },
    Block {
        region: MEMORY,
        base: 0x1000,
        stride: 8,
        count: 4,
        rows: &[Row::rw(Reg::LOW, 0x1000, !0, 0, "5"), Row::rw(Reg::HIGH, 0x1004, 0x8000_ffff, 0, "5")],
    },
    Block {
        region: MEMORY,
        base: 0xc000,
        stride: 0x40,
        count: 16,
        rows: &[Row::rw(Reg::BASE, 0xc000, !0x7f, 0, "6"), Row::rw(Reg::TAIL, 0xc018, 0xffff, 0, "6")],
    },
    Block {
        region: PORTS,
        base: 0,
        stride: 0x20,
        count: 1,
        rows: &[
            Row::rw(Reg::ID, 0, 0xff, 0x20, "7").wide(1).times(6),
            Row::rw(Reg::MASK, 8, 0xffff, 0, "8").wide(2),
            Row::rw(Reg::STATUS, 10, 0, 0, "9").wide(2).write_clears(0xffff),
            Row::port(Reg::DATA, 0x10, 4, "10"),
            Row::rw(Reg::INDEX, 0x14, 0x7f, 0, "11").wide(1),
        ],
    },
    Block {
        region: FILE,
        base: 0,
        stride: 0x100,
        count: 1,
        rows: &[Row::rw(Reg::FILE, 0, 0xffff, 7, "12").wide(2).times(128)],
    },
];

static TABLE: Table<Reg> = Table {
    regions: REGIONS,
    blocks: BLOCKS,
    aliases: &[
        Alias { region: MEMORY, from: 0x04, to: 0x00, len: 4 },
        Alias { region: MEMORY, from: 0x2800, to: 0xc000, len: 0x40 },
    ],
};

/// Reads like an adapter, and counts the parts without a register.
fn read(bank: &mut Bank<Reg>, region: u8, offset: u64, len: usize) -> (u64, u32) {
    let (mut data, mut bad) = ([0; 8], 0);
    for part in bank.table().parts(region, offset, len, Direction::Read) {
        let value = part.place.map_or(part.hole, |place| bank.read(&place));
        bad += u32::from(part.place.is_none());
        part.put(value, &mut data[..len]);
    }
    (u64::from_le_bytes(data), bad)
}

fn write(bank: &mut Bank<Reg>, region: u8, offset: u64, data: &[u8]) -> u32 {
    let mut bad = 0;
    for part in bank.table().parts(region, offset, data.len(), Direction::Write) {
        bad += u32::from(part.place.is_none());
        let value = bank.merge(&part, data);
        part.place.map(|place| bank.write(&place, value));
    }
    bad
}

#[test]
fn a_good_table_is_found_good_and_a_bad_one_is_not() {
    assert_eq!(TABLE.check(), Ok(()));
    static HIDDEN: Table<Reg> = Table {
        regions: REGIONS,
        blocks: &[Block {
            region: MEMORY,
            base: 0,
            stride: 0x100,
            count: 1,
            rows: &[Row::rw(Reg::CTRL, 0, 0, 0, "1"), Row::rw(Reg::CAUSE, 2, 0, 0, "1")],
        }],
        aliases: &[],
    };
    assert!(HIDDEN.check().is_err());
    static BEYOND: Table<Reg> = Table {
        regions: REGIONS,
        blocks: &[Block { region: PORTS, base: 0x10, stride: 0x20, count: 1, rows: &[] }],
        aliases: &[],
    };
    assert!(BEYOND.check().is_err());
    static MANY: Table<Reg> = Table {
        regions: REGIONS,
        blocks: &[Block {
            region: MEMORY,
            base: 0,
            stride: 0x100,
            count: 1,
            rows: &[Row::rw(Reg::LOW, 0, 0, 0, "1").times(5)],
        }],
        aliases: &[],
    };
    assert!(MANY.check().is_err(), "the family has four of them");
}

#[test]
fn every_register_of_hundreds_is_found_at_each_of_its_bytes() {
    let mut count = 0;
    for (region, offset, place) in TABLE.places() {
        for byte in 0..u64::from(place.row.width) {
            let found = TABLE.find(region, u64::from(offset) + byte).unwrap();
            assert_eq!((found.name, found.index, found.slot), (place.name, place.index, place.slot));
        }
        count += 1;
    }
    assert_eq!(count, Reg::SLOTS);
    for hole in [0x0c, 0x14, 0x1ff, 0xb60, 0x1020, 0xc004, 0xc01c, 0xc400, 0xffff, 0x1_0000, u64::MAX] {
        assert!(TABLE.find(MEMORY, hole).is_none(), "{hole:#x}");
    }
}

#[test]
fn a_queues_block_and_an_alias_reach_the_queues_own_slots() {
    let mut bank = Bank::new(&TABLE);
    write(&mut bank, MEMORY, 0xc000 + 5 * 0x40 + 0x18, &9_u32.to_le_bytes());
    assert_eq!(bank.of(Reg::TAIL)[5], 9);
    assert_eq!(bank.of(Reg::TAIL).iter().filter(|tail| **tail != 0).count(), 1);
    write(&mut bank, MEMORY, 0x2818, &7_u32.to_le_bytes());
    assert_eq!(bank[Reg::TAIL], 7, "the first queue's, where it lay in older chips");
    bank.of_mut(Reg::HIGH)[3] = 0x8000_1234;
    assert_eq!(read(&mut bank, MEMORY, 0x101c, 4), (0x8000_1234, 0));
    let name = |offset| TABLE.name(Traced::Bar(0), offset);
    assert_eq!(name(0xc158), Some(RegisterName { word: "TAIL", index: Some(5) }));
    assert_eq!(name(0x04), Some(RegisterName { word: "CTRL", index: None }));
    assert_eq!(TABLE.name(Traced::Bar(3), 0x08).unwrap().word, "CAUSE", "two BARs, one region");
    assert_eq!(TABLE.name(Traced::Bar(2), 0x08), None);
    assert_eq!(TABLE.name(Traced::Rom, 0x08), None);
}

#[test]
fn masks_say_what_is_stored_and_what_reading_and_writing_clear() {
    let mut bank = Bank::new(&TABLE);
    assert_eq!(read(&mut bank, MEMORY, 0, 4), (0x0100_0001, 0));
    write(&mut bank, MEMORY, 0, &[0xff; 4]);
    assert_eq!(bank[Reg::CTRL], 0x01ff_ffff);
    bank[Reg::CAUSE] = 0x1f;
    write(&mut bank, MEMORY, 8, &[0x05, 0, 0, 0]);
    assert_eq!(bank[Reg::CAUSE], 0x1a);
    bank[Reg::COUNT] = 3;
    assert_eq!(bank.peek(&TABLE.find(MEMORY, 0x10).unwrap()), 3);
    assert_eq!((read(&mut bank, MEMORY, 0x10, 4), read(&mut bank, MEMORY, 0x10, 4)), ((3, 0), (0, 0)));
}

#[test]
fn an_access_is_cut_into_registers_of_any_width_and_its_rest_is_bad() {
    let mut bank = Bank::new(&TABLE);
    // Two registers of two bytes, in one dword.
    bank[Reg::STATUS] = 0x00ff;
    assert_eq!(write(&mut bank, PORTS, 8, &[0x34, 0x12, 0x0f, 0]), 0);
    assert_eq!((bank[Reg::MASK], bank[Reg::STATUS]), (0x1234, 0x00f0));
    assert_eq!(read(&mut bank, PORTS, 8, 4), (0x00f0_1234, 0));
    // One byte of one register: the other byte keeps its value, and clears nothing.
    assert_eq!(write(&mut bank, PORTS, 9, &[0x55]), 0);
    bank[Reg::STATUS] = 0xffff;
    assert_eq!(write(&mut bank, PORTS, 11, &[0x80]), 0);
    assert_eq!((bank[Reg::MASK], bank[Reg::STATUS]), (0x5534, 0x7fff));
    // Single bytes, followed by a hole of two.
    assert_eq!(read(&mut bank, PORTS, 4, 4), (0xffff_2020, 1));
    // Half a dword cannot be written where only dwords can be, but it can be read.
    assert_eq!(write(&mut bank, MEMORY, 0, &[0, 0]), 1);
    assert_eq!(read(&mut bank, MEMORY, 1, 2), (0x0000, 0));
    assert_eq!(read(&mut bank, MEMORY, 0x1_0000, 4), (0xffff_ffff, 1), "beyond the window");
    assert_eq!(read(&mut bank, MEMORY, 0xc004, 8), (0, 2), "within it");
    assert_eq!(read(&mut bank, MEMORY, u64::MAX - 1, 4).1, 3);
    assert_eq!(read(&mut bank, FILE, 4, 2), (7, 0));
    assert_eq!(read(&mut bank, FILE, 4, 1), (0, 1), "only words");
}

#[test]
fn a_port_stores_nothing_and_is_told_the_width() {
    let bank = Bank::new(&TABLE);
    let widths: Vec<(Reg, usize)> = [1, 2, 4]
        .into_iter()
        .flat_map(|len| bank.table().parts(PORTS, 0x10, len, Direction::Read))
        .filter_map(|part| part.place.map(|place| (place.name, part.bytes.len())))
        .collect();
    assert_eq!(widths, [(Reg::DATA, 1), (Reg::DATA, 2), (Reg::DATA, 4)]);
    let mut bank = bank;
    assert_eq!(write(&mut bank, PORTS, 0x10, &[1, 2, 3, 4]), 0);
    assert_eq!(bank[Reg::DATA], 0);
}

#[test]
fn saved_values_are_the_tables_and_what_no_register_holds_is_refused() {
    let mut bank = Bank::new(&TABLE);
    (bank[Reg::CTRL], bank[Reg::COUNT]) = (0x0123_4567, 5);
    bank.of_mut(Reg::HASH)[599] = 1;
    let saved = bank.save();
    assert_eq!(saved.len(), Reg::SLOTS - 1, "all but the port");
    let mut other = Bank::new(&TABLE);
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
    other.reset(|region| region == PORTS);
    assert_eq!(other[Reg::CTRL], 0x0123_4567);
    other.reset(|region| region == MEMORY);
    assert_eq!((other[Reg::CTRL], other.of(Reg::HASH)[599]), (0x0100_0001, 0));
    let before = other.save();
    let mut fixed = saved.clone();
    fixed[0] ^= 0x0100_0000;
    assert!(other.restore(&fixed).is_err(), "a bit that nobody can change");
    assert!(other.restore(&saved[1..]).is_err());
    let byte = TABLE.places().filter(|(_, _, place)| !place.row.port).position(|(_, _, place)| place.name == Reg::ID);
    let mut wide = saved.clone();
    wide[byte.unwrap()] = 0x1ff;
    assert!(other.restore(&wide).is_err(), "more than its width holds");
    assert_eq!(other.save(), before);
}

#[test]
fn a_models_rows_are_anothers_with_differences() {
    const ALL: [Row<Reg>; 3] =
        [Row::rw(Reg::CTRL, 0, 1, 0, "1"), Row::rw(Reg::CAUSE, 4, 2, 0, "1"), Row::rw(Reg::COUNT, 8, 3, 0, "1")];
    const LESS: [Row<Reg>; 2] = without(&ALL, &[4]);
    const OTHER: [Row<Reg>; 2] = changed(LESS, &[Row::rw(Reg::COUNT, 8, 7, 0, "1")]);
    assert_eq!(OTHER.map(|row| (row.name, row.write)), [(Reg::CTRL, 1), (Reg::COUNT, 7)]);
}

#[test]
fn a_region_without_registers_is_a_hole_throughout() {
    static LATE: Table<Reg> = Table {
        regions: REGIONS,
        blocks: &[Block {
            region: MEMORY,
            base: 0x1000,
            stride: 8,
            count: 4,
            rows: &[Row::rw(Reg::LOW, 0x1000, !0, 0, "5")],
        }],
        aliases: &[],
    };
    let mut bank = Bank::new(&LATE);
    assert_eq!(read(&mut bank, PORTS, 0, 4), (0xffff_ffff, 1));
    assert_eq!(write(&mut bank, PORTS, 0x18, &[0; 4]), 1);
}
