//! Real devices: their descriptions for the builder, and dumps of their configuration space, each with its source.

use nicety_pci::{Bar, Capability, Express, ExpressKind, Function, Identity, Msi, MsixCapability, Pin, Power};

/// Intel 82574L as a VMware guest sees it: `!pcicam 3 0 0 x` in the HyperDbg debugger's manual, page `!pcicam`.
pub const VMWARE_82574L: &str = "
00: 86 80 d3 10 07 00 10 00 00 00 00 02 10 00 00 00
10: 00 00 a0 fe 00 00 a2 fe 01 40 00 00 00 00 a4 fe
20: 00 00 00 00 00 00 00 00 00 00 00 00 ad 15 d0 07
30: 00 00 ff ff c8 00 00 00 00 00 00 00 ff 01 00 00
a0: 11 00 04 00 03 00 00 00 03 20 00 00 00 00 00 00
c0: 00 00 00 00 00 00 00 00 01 d0 22 c8 00 20 00 14
d0: 05 e0 80 00 00 00 00 00 00 00 00 00 00 00 00 00
e0: 10 a0 01 00 c1 8c 00 00 00 00 00 00 02 06 00 00
f0: 00 00 02 02 00 00 00 00 00 00 00 00 00 00 00 00";

/// A Dell's 82540EM, revision 2: `lspci -xxx` in Roland Dreier's post about e1000 and MSI to the Linux kernel's list, 2004.
pub const DELL_82540EM: &str = "
00: 86 80 0e 10 17 01 30 02 02 00 00 02 10 40 00 00
10: 00 00 fe fc 00 00 00 00 41 df 00 00 00 00 00 00
20: 00 00 00 00 00 00 00 00 00 00 00 00 28 10 51 01
30: 00 00 00 00 dc 00 00 00 00 00 00 00 09 01 ff 00
d0: 00 00 00 00 00 00 00 00 00 00 00 00 01 e4 22 c8
e0: 00 20 00 1b 07 f0 02 00 00 00 40 04 00 00 00 00
f0: 05 00 80 00 00 00 00 00 00 00 00 00 00 00 00 00";

/// virtio-net, transitional: pciutils, tests/cap-vendor-virtio, device 00:09.0.
pub const VIRTIO_NET: &str = "
00: f4 1a 00 10 07 05 10 00 00 00 00 02 00 00 00 00
10: 61 c0 00 00 00 60 bd fe 00 00 a0 fe 00 00 00 00
20: 00 00 00 00 00 00 00 00 00 00 00 00 f4 1a 01 00
30: 00 00 b8 fe 84 00 00 00 00 00 00 00 0a 01 00 00
40: 09 00 10 01 02 00 00 00 00 00 00 00 00 10 00 00
50: 09 40 10 03 02 00 00 00 00 10 00 00 00 10 00 00
60: 09 50 10 04 02 00 00 00 00 20 00 00 00 10 00 00
70: 09 60 14 02 02 00 00 00 00 30 00 00 00 00 04 00
80: 00 10 00 00 11 70 02 80 01 00 00 00 01 08 00 00";

/// Intel 82576: pciutils, tests/cap-pcie-2, device 01:00.0. Rows that are left out are zero, up to 0x480.
pub const INTEL_82576: &str = "
00: 86 80 c9 10 07 04 10 00 01 00 00 02 10 00 80 00
10: 00 00 80 e0 00 00 00 e0 21 10 00 00 00 00 84 e0
20: 00 00 00 00 00 00 00 00 00 00 00 00 86 80 3c a0
30: 00 00 80 c7 40 00 00 00 00 00 00 00 0b 01 00 00
40: 01 50 23 c8 00 20 00 1a 00 00 00 00 00 00 00 00
50: 05 70 80 01 00 00 00 00 00 00 00 00 00 00 00 00
70: 11 a0 09 80 03 00 00 00 03 20 00 00 00 00 00 00
a0: 10 00 02 00 c2 8c 00 10 30 28 19 00 41 6c 03 00
b0: 42 00 41 10 00 00 00 00 00 00 00 00 00 00 00 00
c0: 00 00 00 00 1f 00 00 00 00 00 00 00 00 00 00 00
e0: 03 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
100: 01 00 01 14 00 00 00 00 00 00 00 00 11 20 06 00
110: 00 20 00 00 00 20 00 00 00 00 00 00 00 00 00 00
140: 03 00 01 15 e0 46 2b ff ff 21 1b 00 00 00 00 00
150: 0e 00 01 16 00 01 00 00 00 00 00 00 00 00 00 00
160: 10 00 01 00 00 00 00 00 09 00 00 00 08 00 08 00
170: 01 00 00 00 80 01 02 00 00 00 ca 10 53 05 00 00
180: 01 00 00 00 04 00 84 d2 00 00 00 00 00 00 00 00
190: 04 00 86 d2 00 00 00 00 00 00 00 00 00 00 00 00";

/// The bytes of a dump; omitted rows are zero.
pub fn parse(dump: &str, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for line in dump.lines().filter(|line| !line.is_empty()) {
        let (offset, row) = line.split_once(':').expect("a row has an offset");
        let offset = usize::from_str_radix(offset, 16).expect("hexadecimal offset");
        for (index, byte) in row.split_whitespace().enumerate() {
            bytes[offset + index] = u8::from_str_radix(byte, 16).expect("hexadecimal byte");
        }
    }
    bytes
}

fn network(vendor: u16, device: u16, revision: u8, subsystem_vendor: u16, subsystem: u16) -> Identity {
    Identity { vendor, device, revision, class: 0x02_0000, subsystem_vendor, subsystem }
}

fn msix(vectors: u16, bar: u8, pba_offset: u32) -> Capability {
    Capability::Msix(MsixCapability { vectors, table_bar: bar, table_offset: 0, pba_bar: bar, pba_offset })
}

fn power(control: u16, data: u8, capabilities: u16) -> Capability {
    Capability::Power(Power { capabilities, control, data })
}

pub fn vmware_82574l() -> Function {
    Function::builder(network(0x8086, 0x10d3, 0, 0x15ad, 0x07d0))
        .interrupt_pin(Pin::A)
        .bar(0, Bar::memory(128 << 10))
        .bar(1, Bar::memory(128 << 10))
        .bar(2, Bar::io(32))
        .bar(3, Bar::memory(16 << 10))
        .rom(64 << 10)
        .capability_at(0xc8, power(0x2000, 0x14, 0xc822))
        .capability_at(0xd0, Capability::Msi(Msi { vectors: 1, maskable: false }))
        .capability_at(
            0xe0,
            Capability::Express(Express {
                version: 1,
                kind: ExpressKind::Endpoint,
                device_capabilities: 0x8cc1,
                device_control: 0,
                device_status: 0,
                link_capabilities: 0x0602,
                link_status: 0x0202,
                device_capabilities_2: 0,
            }),
        )
        .capability_at(0xa0, msix(5, 3, 0x2000))
        .build()
        .expect("the 82574L can be described")
}

pub fn dell_82540em() -> Function {
    Function::builder(network(0x8086, 0x100e, 2, 0x1028, 0x0151))
        .interrupt_pin(Pin::A)
        .status(0x0220)
        .timing(0xff, 0)
        .bar(0, Bar::memory(128 << 10))
        .bar(2, Bar::io(64))
        .capability_at(0xdc, power(0x2000, 0x1b, 0xc822))
        .capability_at(0xe4, Capability::Raw { id: 7, body: vec![2, 0, 0, 0, 0x40, 4], writable: vec![0x7f] })
        .capability_at(0xf0, Capability::Msi(Msi { vectors: 1, maskable: false }))
        .build()
        .expect("the 82540EM can be described")
}

pub fn virtio_net() -> Function {
    let structure = |kind: u8, offset: u32, length: u32, rest: &[u8]| {
        let mut body = vec![kind, 2, 0, 0, 0];
        body.extend(offset.to_le_bytes());
        body.extend(length.to_le_bytes());
        body.extend(rest);
        Capability::Vendor { body, writable: Vec::new() }
    };
    Function::builder(network(0x1af4, 0x1000, 0, 0x1af4, 1))
        .interrupt_pin(Pin::A)
        .bar(0, Bar::io(32))
        .bar(1, Bar::memory(4 << 10))
        .bar(2, Bar::memory(512 << 10))
        .rom(256 << 10)
        .capability_at(0x84, msix(3, 1, 0x800))
        .capability_at(0x70, structure(2, 0x3000, 0x4_0000, &0x1000_u32.to_le_bytes()))
        .capability_at(0x60, structure(4, 0x2000, 0x1000, &[]))
        .capability_at(0x50, structure(3, 0x1000, 0x1000, &[]))
        .capability_at(0x40, structure(1, 0, 0x1000, &[]))
        .build()
        .expect("virtio-net can be described")
}

pub fn intel_82576() -> Function {
    let dump = parse(INTEL_82576, 0x480);
    let body = |from: usize, to: usize| dump[from..to].to_vec();
    Function::builder(network(0x8086, 0x10c9, 1, 0x8086, 0xa03c))
        .interrupt_pin(Pin::A)
        .bar(0, Bar::memory(128 << 10))
        .bar(1, Bar::memory(4 << 20))
        .bar(2, Bar::io(32))
        .bar(3, Bar::memory(16 << 10))
        .rom(4 << 20)
        .capability(power(0x2000, 0x1a, 0xc823))
        .capability_at(0x50, Capability::Msi(Msi { vectors: 1, maskable: true }))
        .capability_at(0x70, msix(10, 3, 0x2000))
        .capability_at(
            0xa0,
            Capability::Express(Express {
                device_capabilities: 0x1000_8cc2,
                device_status: 0x10,
                link_capabilities: 0x0003_6c41,
                link_status: 0x1041,
                device_capabilities_2: 0x1f,
                ..Express::default()
            }),
        )
        .extended(1, 1, body(0x104, 0x12c))
        .extended_at(0x140, 3, 1, body(0x144, 0x14c))
        .extended_at(0x150, 14, 1, body(0x154, 0x158))
        .extended_at(0x160, 16, 1, body(0x164, 0x1a0))
        .build()
        .expect("the 82576 can be described")
}

/// All of the devices above, with their names.
pub fn all() -> Vec<(&'static str, Function)> {
    vec![
        ("82574L", vmware_82574l()),
        ("82540EM", dell_82540em()),
        ("virtio-net", virtio_net()),
        ("82576", intel_82576()),
    ]
}
