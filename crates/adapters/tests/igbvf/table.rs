//! The registers against the offsets of Linux's igbvf, regs.h.

use nicety_adapter::bank::Names;
use nicety_adapters::intel::igbvf::registers::{VF82576, WINDOW};

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

#[test]
fn registers_are_where_linux_expects_them() {
    assert_eq!(VF82576.check(), Ok(()));
    for (name, offset) in LINUX {
        let found =
            VF82576.places().find(|(region, at, place)| (*region, *at, place.name.word()) == (WINDOW, offset, name));
        assert!(found.is_some(), "{name}");
    }
}
