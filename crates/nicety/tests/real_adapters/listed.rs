//! The `lspci -vv` output for each chip.

use nicety_adapters::{Entry, REGISTRY};
use nicety_guests::{Guest, Layer};

use crate::{
    stage::{Stage, port, quiet, sh, well},
    user_mode::{machine, take},
};

/// Most functions of a user-mode kernel's PCI host (`MAX_DEVICES` in virt-pci.c).
const FUNCTIONS: usize = 8;
/// Expected entries of a chip, from its datasheet: 317453 (8254x), 318694 (82574), 320961 (82576 and its functions), 331520 (82599's functions), 19436 (PCnet-PCI II), RTL8139C,
/// RTL8029AS.
const LISTED: [(&str, &[&str]); 12] = [
    ("e1000", &["66MHz+", "DEVSEL=medium", "[size=128K]", "[dc] Power Management version 2", "DSI+"]),
    ("e1000-82545em", &["66MHz+", "DEVSEL=medium", "[size=128K]", "[dc] Power Management version 2", "DSI+"]),
    ("e1000-82544gc", &["66MHz+", "DEVSEL=medium", "[size=128K]", "[dc] Power Management version 2", "DSI+"]),
    (
        "e1000e",
        &[
            "[c8] Power Management version 2",
            "[d0] MSI: Enable- Count=1/1 Maskable- 64bit+",
            "[e0] Express (v1) Endpoint",
            "LnkCap:\tPort #0, Speed 2.5GT/s, Width x1",
            "[a0] MSI-X: Enable+ Count=5 Masked-",
        ],
    ),
    (
        "igb",
        &[
            "[40] Power Management version 3",
            "[50] MSI: Enable- Count=1/1 Maskable+ 64bit+",
            "[70] MSI-X: Enable+ Count=25 Masked-",
            "[a0] Express (v2) Endpoint",
            "Device Serial Number 52-54-00-ff-ff-4e-03-05",
            "[160 v1] Single Root I/O Virtualization (SR-IOV)",
            "Initial VFs: 8, Total VFs: 8, Number of VFs: 0",
            "VF offset: 128, stride: 2, Device ID: 10ca",
        ],
    ),
    ("igbvf", &["[70] MSI-X: Enable+ Count=3 Masked-", "[a0] Express (v2) Endpoint", "[size=16K]"]),
    ("ixgbevf", &["[70] MSI-X: Enable+ Count=3 Masked-", "[a0] Express (v2) Endpoint", "[size=16K]"]),
    ("pcnet", &["Cap-", "FastB2B+", "(1500ns min, 63750ns max)", "I/O ports", "[size=32]"]),
    ("vlance", &["Cap-", "FastB2B+", "(1500ns min, 63750ns max)", "I/O ports", "[size=32]"]),
    ("ne2k_pci", &["Cap-", "DEVSEL=medium", "I/O ports", "[size=32]"]),
    ("rtl8139", &["FastB2B+", "(8000ns min, 16000ns max)", "I/O ports", "[size=256]"]),
    ("rtl8139-plain", &["FastB2B+", "(8000ns min, 16000ns max)", "I/O ports", "[size=256]"]),
];

#[test]
fn lspci_lists_every_chip_with_its_own_capabilities_and_its_driver() {
    let layer = well(Layer::lay("pciutils", &["pciutils"], &mut |line| eprintln!("{line}")));
    let functions =
        REGISTRY.iter().filter(|entry| entry.about.in_linux() && entry.about.transports.contains(&"vfio-user"));
    let functions: Vec<&Entry> = functions.collect();
    let stage = Stage::new(&functions.iter().map(|entry| entry.about.name).collect::<Vec<_>>());
    for (from, some) in functions.chunks(FUNCTIONS).enumerate() {
        let numbers = (from * FUNCTIONS + 1..).take(some.len());
        let machine = numbers.fold(machine(1), |machine, number| stage.served.attach(machine, &format!("vm{number}")));
        let mut guest = stage.ready(Guest::boot(&stage.root, machine));
        take(&mut guest, &layer, &["usr/bin/lspci"]);
        let text = sh(&mut guest, "lspci -vv 2>/dev/null");
        for (list, entry) in text.split("\n\n").zip(some) {
            let about = entry.about;
            let identity = format!("{:04x}:{:04x}", about.pci.0, about.pci.1);
            // Linux binds one driver to virtio's PCI function, and another to the network device on it.
            let driver = if about.linux.driver == "virtio_net" { "virtio-pci" } else { about.linux.driver };
            let driver = format!("Kernel driver in use: {driver}");
            let own = LISTED.iter().find(|(name, _)| *name == about.name).map_or(&[][..], |(_, listed)| listed);
            for listed in own.iter().copied().chain([&*identity, &driver]) {
                assert!(list.contains(listed), "{}: no `{listed}` in\n{list}", about.name);
            }
            println!("{}: {} facts of its list", about.name, own.len() + 2);
        }
        quiet(&mut guest);
    }
}

#[test]
fn an_intel_chip_has_vmwares_subsystem_where_the_port_says_so_and_its_driver_takes_its_eeprom() {
    let functions = REGISTRY.iter().filter(|entry| entry.about.vmware_subsystem.is_some());
    let ports: Vec<_> = functions.zip(1..).map(|(entry, number)| (entry.about, number)).collect();
    assert_eq!(ports.len(), 4);
    let vmwares = ports.iter().map(|(about, number)| {
        let mut port = port(about.name, *number);
        port.more = "subsystem = \"vmware\"\n".to_owned();
        port
    });
    let stage = Stage::with(vmwares.collect());
    let machine = ports.iter().fold(machine(1), |machine, (_, n)| stage.served.attach(machine, &format!("vm{n}")));
    let mut guest = stage.ready(Guest::boot(&stage.root, machine));
    for ((about, _), interface) in ports.iter().zip(0..) {
        let device = format!("/sys/class/net/eth{interface}/device");
        let text = sh(&mut guest, &format!("cd {device}; cat device subsystem_vendor subsystem_device"));
        let (vendor, subsystem) = about.vmware_subsystem.unwrap();
        assert_eq!(text, format!("{:#06x}\n{vendor:#06x}\n{subsystem:#06x}\n", about.pci.1), "{}", about.name);
        // Words 0x0b and 0x0c of the EEPROM, as the driver reads them.
        let bytes = sh(&mut guest, &format!("ethtool -e eth{interface} offset 0x16 length 4 raw on | od -An -tx2"));
        assert_eq!(bytes.trim(), format!("{subsystem:04x} {vendor:04x}"), "{}", about.name);
    }
    quiet(&mut guest);
}
