//! The SR-IOV capability (82576 datasheet, 9.6.4; PCI Express 4.0, 9.3.3), with which a host would create virtual functions. It is
//! writable as on the chip, and creates none: a transport serves one function.

use nicety_pci::{Builder, Function};

/// Offset of the capability.
pub const PLACE: u16 = 0x160;
/// Its identifier and version.
pub const ID: u16 = 0x10;
const VERSION: u8 = 1;
/// Bytes before the body.
const HEADER: usize = 4;
const BODY: usize = 0x3c;

/// Offsets in the capability.
const CONTROL: usize = 0x08;
const INITIAL_VFS: usize = 0x0c;
const TOTAL_VFS: usize = 0x0e;
const NUM_VFS: usize = 0x10;
const FIRST: usize = 0x14;
const STRIDE: usize = 0x16;
const DEVICE: usize = 0x1a;
const PAGE_SIZES: usize = 0x1c;
const PAGE_SIZE: usize = 0x20;
const BARS: usize = 0x24;

/// Virtual functions that the chip has.
pub const VFS: u16 = 8;
/// PCI device number of a virtual function.
pub const VF_DEVICE: u16 = 0x10ca;
/// VF Enable, VF Memory Space Enable, ARI Capable Hierarchy.
const CONTROL_WRITABLE: u16 = 1 | 1 << 3 | 1 << 4;
/// Pages of 4, 8, 64, 256 KiB, 1 and 4 MiB.
const PAGES: u32 = 0x553;
/// BARs 0 (registers) and 3 (MSI-X): 16 KiB each, 64 bits wide.
const VF_BARS: [usize; 2] = [0, 3];
const VF_BAR_BYTES: u32 = 16 << 10;
const WIDE: u32 = 4;

/// The body after a reset, and its writable bits.
fn body() -> (Vec<u8>, Vec<u8>) {
    let (mut reset, mut writable) = (vec![0; BODY], vec![0; BODY]);
    let mut put = |at: usize, value: u32, mask: u32, bytes: usize| {
        let range = at - HEADER..at - HEADER + bytes;
        reset[range.clone()].copy_from_slice(&value.to_le_bytes()[..bytes]);
        writable[range].copy_from_slice(&mask.to_le_bytes()[..bytes]);
    };
    put(CONTROL, 0, CONTROL_WRITABLE.into(), 2);
    put(INITIAL_VFS, VFS.into(), 0, 2);
    put(TOTAL_VFS, VFS.into(), 0, 2);
    put(NUM_VFS, 0, 0xffff, 2);
    put(FIRST, 0x80, 0, 2);
    put(STRIDE, 2, 0, 2);
    put(DEVICE, VF_DEVICE.into(), 0, 2);
    put(PAGE_SIZES, PAGES, 0, 4);
    put(PAGE_SIZE, 1, PAGES, 4);
    for bar in VF_BARS {
        put(BARS + 4 * bar, WIDE, !(VF_BAR_BYTES - 1), 4);
        put(BARS + 4 * (bar + 1), 0, !0, 4);
    }
    (reset, writable)
}

/// Adds it to a function's description.
pub fn describe(builder: Builder) -> Builder {
    builder.extended_writable_at(PLACE, ID, VERSION, body())
}

/// A driver has written to configuration space: a number of virtual functions above the chip's becomes 0 (CVE-2024-26327).
pub fn bound(function: &mut Function) {
    let at = u64::from(PLACE) + NUM_VFS as u64;
    let mut asked = [0; 2];
    function.config_read(at, &mut asked);
    if u16::from_le_bytes(asked) > VFS {
        // Only this capability has these bytes, so the write resets nothing.
        let _ = function.config_write(at, &[0; 2]);
    }
}
