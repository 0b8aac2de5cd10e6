//! A network adapter driven from a guest's user space: one of this project's drivers over `uio_pci_generic`, with a tap as the
//! interface. For adapters without a driver in current kernels: VMware's vmxnet and enhanced vmxnet.
//!
//! ```text
//! stack ─ tap ─► Tap::fetch ─► Driver::transmit ─► adapter
//! stack ◄─ tap ◄─ Tap::deliver ◄─ Driver::receive ◄─ adapter ◄── /dev/uioN
//! ```

mod bus;
mod dma;
mod forward;

use std::error::Error;
use std::process::ExitCode;

use nicety_drivers::{Arena, Driver, Made, Vmxnet};
use nicety_uplink::Tap;

use bus::UioBus;
use forward::Forward;

/// A result whose error is a sentence for people.
type Fallible<T> = Result<T, Box<dyn Error>>;

const USAGE: &str = "usage: nicety-uio PCI-ADDRESS TAP [DRIVER]
  PCI-ADDRESS  such as 0000:00:04.0 (lspci -D), bound to uio_pci_generic
  TAP          the interface to make, or one that is there
  DRIVER       such as vmxnet; else the one for the device's PCI identity";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (address, tap, driver) = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [address, tap] => (address, tap, None),
        [address, tap, driver] => (address, tap, Some(driver)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(address, tap, driver) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nicety-uio: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(address: &str, tap: &str, name: Option<&str>) -> Fallible<()> {
    let memory = dma::Memory::new()?;
    let mut bus = UioBus::open(address, memory.map)?;
    let driver = driver(name, &mut bus, memory.arena)?;
    let mut forward = Forward::open(driver, bus, Tap::open(tap)?)?;
    println!("{}: run `ip link set {} address {} up`", address, forward.tap_name(), forward.mac());
    forward.run_until_signal()
}

/// The driver of this name, or the one for the device.
fn driver(name: Option<&str>, bus: &mut UioBus, arena: Arena) -> Fallible<Box<dyn Driver>> {
    // A flexible adapter has the identity of a pcnet until this driver has switched it.
    if name == Some("vmxnet") {
        return Ok(Box::new(Vmxnet::new(arena)));
    }
    let entry = match name {
        Some(name) => nicety_drivers::DRIVERS.iter().find(|entry| entry.name == name),
        None => nicety_drivers::find(bus.identity()?),
    };
    match entry.map(|entry| (entry.make)(arena)) {
        Some(Made::Pci(driver)) => Ok(driver),
        Some(Made::Rings(_)) => Err("this driver is for vhost-user's rings, not for a PCI function".into()),
        None => {
            let names: Vec<_> = nicety_drivers::DRIVERS.iter().map(|entry| entry.name).collect();
            Err(format!("there is no such driver; there are: {}", names.join(", ")).into())
        }
    }
}
