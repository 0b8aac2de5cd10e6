//! What `lspci -vv` lists of each chip, as on hardware.
use nicety_adapters::{About, Entry, REGISTRY};
use nicety_guests::{Guest, Layer};

use crate::{
    stage::{Stage, sh, well},
    user_mode::{machine, take},
};

#[test]
fn lspci_lists_every_chip_as_on_hardware() {
    let layer = well(Layer::lay("pciutils", &["pciutils"], &mut |line| eprintln!("{line}")));
    let served = |entry: &&Entry| entry.about.transports.contains(&"vfio-user");
    let chips: Vec<&About> = REGISTRY.iter().filter(served).map(|entry| entry.about).collect();
    let stage = Stage::new(&chips.iter().map(|about| about.name).collect::<Vec<_>>());
    // One guest with all of them: each has a bus of its own.
    let machine =
        (1..=chips.len()).fold(machine(1), |machine, number| stage.served.attach(machine, &format!("vm{number}")));
    let mut guest = stage.ready(Guest::boot(&stage.root, machine));
    take(&mut guest, &layer, &["usr/bin/lspci"]);
    println!("{}", sh(&mut guest, "lspci -vv"));
}
