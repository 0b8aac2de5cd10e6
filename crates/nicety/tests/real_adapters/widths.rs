//! Registers under a kernel's accesses of every width, and under its block copies, as drivers make them
//! (`crates/guests/uml/virt-pci-selftest.c`).

use nicety_guests::Guest;

use crate::{
    stage::{HOST, Stage, ping, quiet, sh},
    user_mode::machine,
};

/// The result for a range of registers: `SLOT BAR OFFSET LENGTH`, with ` w` if they may be written.
fn tried(guest: &mut Guest, registers: &str) -> String {
    sh(guest, &format!("echo {registers} >/sys/module/um_pci/parameters/selftest"));
    let line = sh(guest, "dmesg | grep um_pci: | tail -n 1");
    line.rsplit_once(" at ").unwrap_or_else(|| panic!("{line}")).1.trim().to_owned()
}

#[test]
fn a_kernel_finds_registers_alike_by_accesses_of_one_to_eight_bytes_and_by_block_copies() {
    let all: [(&str, &[(&str, &str)]); 2] = [
        (
            "e1000",
            &[
                // Filters and addresses.
                ("0 0 0x5200 1024", "0x5200: read alike: block 1 2 4 8"),
                // Packet buffer memory; then the pattern that was left there.
                ("0 0 0x10000 4096 w", "0x10000: read alike: block 1 2 4 8; written and found: set 4 8 block"),
                ("0 0 0x10000 4096", "0x10000: read alike: block 1 2 4 8"),
            ],
        ),
        (
            "vmxnet3",
            &[
                // Masks and doorbells. Of the other registers all except ICR, which is cleared when it is read.
                ("0 0 0 4096", "0x0: read alike: block 1 2 4 8"),
                ("0 1 0 56", "0x0: read alike: block 1 2 4 8"),
                ("0 1 64 128", "0x40: read alike: block 1 2 4 8"),
                // The MSI-X table, and in it the message of an unused vector.
                ("0 2 0 1024", "0x0: read alike: block 1 2 4 8"),
                ("0 2 0x3f8 4 w", "0x3f8: read alike: block 1 2 4; written and found: set 1 2 4 block"),
            ],
        ),
    ];
    for (adapter, registers) in all {
        println!("{adapter}");
        let stage = Stage::new(&[adapter]);
        let mut machine = machine(1);
        machine.append.push("vfio_user.msix=0".into());
        let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine, 1)));
        for (registers, found) in registers {
            assert_eq!(tried(&mut guest, registers), *found);
        }
        ping(&mut guest, "", HOST);
        quiet(&mut guest);
    }
}
