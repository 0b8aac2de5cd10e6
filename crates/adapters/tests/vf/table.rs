//! The registers against the offsets of Linux's igbvf and ixgbevf, regs.h.

use nicety_adapter::bank::Names;
use nicety_adapters::intel::vf::registers::{VF82576, VF82599, WINDOW};

const LINUX: [(&str, u32); 28] = [
    ("CTRL", 0x0),
    ("STATUS", 0x8),
    ("VMBMEM", 0x800),
    ("V2PMAILBOX", 0xc40),
    ("VFGPRC", 0xf10),
    ("VFGPTC", 0xf14),
    ("VFGORC", 0xf18),
    ("VFGOTC", 0xf34),
    ("VFMPRC", 0xf3c),
    ("VFGPRLBC", 0xf40),
    ("VFGPTLBC", 0xf44),
    ("VFGORLBC", 0xf48),
    ("VFGOTLBC", 0xf50),
    ("EICS", 0x1520),
    ("EIMS", 0x1524),
    ("EIMC", 0x1528),
    ("EIAC", 0x152c),
    ("EIAM", 0x1530),
    ("EICR", 0x1580),
    ("EITR", 0x1680),
    ("IVAR", 0x1700),
    ("IVAR_MISC", 0x1740),
    ("RDBAL", 0x2800),
    ("SRRCTL", 0x280c),
    ("RXCTL", 0x2814),
    ("RXDCTL", 0x2828),
    ("TXCTL", 0x3814),
    ("TXDCTL", 0x3828),
];

/// The counters between queue 0's registers are found by their aliases.
const LINUX_82599: [(&str, u32); 26] = [
    ("CTRL", 0x0),
    ("STATUS", 0x8),
    ("VFLINKS", 0x10),
    ("FRTIMER", 0x48),
    ("EICR", 0x100),
    ("EICS", 0x104),
    ("EIMS", 0x108),
    ("EIMC", 0x10c),
    ("EIAC", 0x110),
    ("EIAM", 0x114),
    ("IVAR", 0x120),
    ("IVAR_MISC", 0x140),
    ("VTRSCINT", 0x180),
    ("VMBMEM", 0x200),
    ("V2PMAILBOX", 0x2fc),
    ("PSRTYPE", 0x300),
    ("EITR", 0x820),
    ("RDBAL", 0x1000),
    ("SRRCTL", 0x1014),
    ("RXDCTL", 0x1028),
    ("TDWBAL", 0x2038),
    ("VFGPRC", 0x101c),
    ("VFGORCH", 0x1024),
    ("VFMPRC", 0x1034),
    ("VFGPTC", 0x201c),
    ("VFGOTCH", 0x2024),
];

#[test]
fn an_82599_s_are_where_linux_expects_them() {
    assert_eq!(VF82599.check(), Ok(()));
    for (name, offset) in LINUX_82599 {
        assert_eq!(VF82599.find(WINDOW, offset.into()).map(|place| place.name.word()), Some(name), "{offset:#x}");
    }
    // The last queue's tail.
    assert_eq!(VF82599.find(WINDOW, 0x21d8).map(|place| (place.name.word(), place.index)), Some(("TDT", 7)));
}

#[test]
fn registers_are_where_linux_expects_them() {
    assert_eq!(VF82576.check(), Ok(()));
    for (name, offset) in LINUX {
        let found =
            VF82576.places().find(|(region, at, place)| (*region, *at, place.name.word()) == (WINDOW, offset, name));
        assert!(found.is_some(), "{name}");
    }
}
