//! `boot`: seconds from power-on to a running kernel by PXE, for each adapter and firmware: the other factor of "VMXNET3 vs E1000E and E1000".

use std::collections::BTreeMap;

use nicety_adapters::REGISTRY;
use nicety_guests::{Accel, Error};

use super::rig::{Measurement, Run, Stay, rig};
use super::{About, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::BenchError;
use crate::method::{Guests, Server};
use crate::real::network_boot::{Bios, NetworkBoot};
use crate::results::Direction;

/// Names of the loads.
const ROM: &str = "ipxe-rom";
const UEFI: &str = "uefi";
/// About how long a boot takes where all is translated, in seconds: BIOS and UEFI.
const SECONDS: [u32; 2] = [20, 40];
const QUICK: [&str; 2] = ["e1000e", "vmxnet3"];

const FIGURES: [Figure; 3] = [
    Figure::new("running", "To a running kernel", "s", Direction::Lower),
    Figure::new("loaded", "To a loaded kernel", "s", Direction::Lower),
    Figure::new("lease", "To a DHCP lease", "s", Direction::Lower),
];

/// The method (see the module's page).
#[derive(Debug)]
pub struct Boot;

impl Method for Boot {
    fn about(&self) -> About {
        About {
            name: "boot",
            document: Some((1, "VMXNET3 vs E1000E and E1000")),
            line: "seconds from power-on to a running kernel by PXE, per adapter and firmware (iPXE's option ROM, UEFI)",
            needs: "QEMU's guests and firmware: Debian packages, 260 MB once",
            guests: &[Guests::Qemu],
            overhead_seconds: 1.0,
            memory_mib: None,
            disk_bytes: 40_000_000,
        }
    }

    fn field(&self, _guests: Guests, length: Length) -> Vec<Subject> {
        // Without DMA, firmware moves two bytes by a message: a kernel would take an hour.
        let boots = REGISTRY.iter().map(|entry| entry.about).filter(|about| about.boot.rom.is_some() && about.dma);
        let chosen = boots.filter(|about| length != Length::Quick || QUICK.contains(&about.name));
        let subjects = |about: &'static nicety_adapters::About| {
            let qemus = about.qemu.filter(|_| length != Length::Quick).map(|_| Server::Qemu);
            [Some(Server::Nicety), qemus].into_iter().flatten().map(|server| Subject::new(about.name, server))
        };
        chosen.flat_map(subjects).collect()
    }

    /// A boot takes as long as it does: `seconds` are for the estimate alone.
    fn loads(&self, _guests: Guests, _length: Length, _seconds: Option<u32>) -> Vec<Load> {
        let load = |name: &str, title: &str, seconds, first: &str| Load {
            name: name.to_owned(),
            title: title.to_owned(),
            seconds,
            commands: vec![
                "outside: dnsmasq (DHCP, TFTP), busybox httpd".to_owned(),
                format!("machine: {first}; kernel and initramfs by HTTP; boot"),
            ],
        };
        let [rom, uefi] = SECONDS;
        vec![
            load(ROM, "BIOS with iPXE in the adapter's option ROM", rom, "iPXE's option ROM"),
            load(UEFI, "UEFI, which loads iPXE by TFTP", uefi, "UEFI's PXE, iPXE by TFTP"),
        ]
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let mut tables = Vec::new();
        for load in loads {
            for (figure, title, about) in [
                (
                    "running",
                    "To a running kernel",
                    "From power-on to the kernel's first line. The document says which adapters can boot so, and not how long it takes.",
                ),
                (
                    "loaded",
                    "To a loaded kernel",
                    "The same without the time in which the kernel unpacks itself, which no adapter changes.",
                ),
                ("lease", "To a DHCP lease", "Firmware's start, its driver, and four frames."),
            ] {
                tables.push(Table {
                    title: format!("{title}: {}", if load.name == ROM { "iPXE's ROM" } else { "UEFI" }),
                    load: load.name.clone(),
                    figure,
                    bases: &["e1000", "e1000e"],
                    document: &[],
                    about,
                });
            }
        }
        tables
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { program, say, .. } = opening;
        Ok(rig(Booting(NetworkBoot::open(&program.path, say)?)))
    }
}

#[derive(Debug)]
struct Booting(NetworkBoot);

impl Measurement for Booting {
    type Layout = Bios;
    type Guests = ();
    const STAY: Stay = Stay::Study;

    fn layout(load: &str) -> Option<Bios> {
        [(ROM, Bios::Rom), (UEFI, Bios::Uefi)].into_iter().find(|(name, _)| *name == load).map(|known| known.1)
    }

    fn boot(&mut self, _: &Run<'_, Bios>) -> Result<(), BenchError> {
        Ok(())
    }

    fn measure(&mut self, _: &mut (), run: &Run<'_, Bios>) -> Result<Taken, BenchError> {
        let booted = self.0.boot(run.subject, run.layout, run.stop)?;
        let times = [("running", booted.running), ("loaded", booted.loaded), ("lease", booted.lease)];
        let figures: BTreeMap<String, f64> =
            times.into_iter().map(|(name, time)| (name.to_owned(), time.as_secs_f64())).collect();
        Ok(Taken { figures, ..Taken::default() })
    }

    fn accelerator(&self) -> Option<Accel> {
        Some(self.0.accelerator())
    }

    fn notes(&self) -> Vec<String> {
        self.0.notes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_adapter_with_an_option_rom_and_dma_boots_and_the_others_have_no_row() {
        let rows = Boot.field(Guests::Qemu, Length::Full);
        let has = |name: &str, server| rows.contains(&Subject::new(name, server));
        assert!(has("e1000e", Server::Nicety) && has("e1000e", Server::Qemu) && has("vmxnet3", Server::Qemu));
        assert!(!rows.iter().any(|row| row.adapter == "vmxnet2"), "no firmware has a driver of a vmxnet");
        assert!(!rows.iter().any(|row| row.adapter == "ne2k_pci"));
    }
}
