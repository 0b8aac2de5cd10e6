//! Records what unmodified Linux drivers do to our adapters, and keeps it as the simulation's test data.
//!
//! ```console
//! $ cargo run -p nicety-lab --example record_traces [-- FOLDER [ADAPTER]]
//! ```
//! In QEMU, at a daemon that records, each driver is probed, brought up, asked, taken down and removed. The adapters whose costs
//! the tests count (`LOADED`) have every kernel and bulk traffic both ways; the others have the newest kernel and no bulk. `keep.rs`
//! says which part is kept, and why. Takes some six minutes where guests are translated. FOLDER is crates/trials/tests/traces
//! unless another is named; ADAPTER records only that one.

#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../help/mod.rs"]
mod help;
mod keep;
mod life;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

use nicety_adapters::{Entry, REGISTRY};
use nicety_guests::{Kernel, Root};

use crate::life::Length;

/// Folder in which the simulation looks for traces.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../trials/tests/traces");
/// Adapters whose costs an exchange and a load have (`tests/counts/linux.rs` of the simulation).
const LOADED: [&str; 3] = ["e1000", "vmxnet3", "virtio-net"];

fn main() -> ExitCode {
    help::on_request(include_str!("main.rs"));
    let folder = env::args_os().nth(1).map_or_else(|| PathBuf::from(FOLDER), PathBuf::from);
    let only = env::args().nth(2);
    match record(&folder, only.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn record(folder: &Path, only: Option<&str>) -> Result<(), Box<dyn std::error::Error>> {
    let program = daemon::program(None)?;
    let root = Root::lay(&mut |line| eprintln!("{line}"))?;
    let chosen = |entry: &&Entry| only.map_or(entry.about.in_linux(), |name| name == entry.about.name);
    for entry in REGISTRY.iter().filter(chosen) {
        let (kernels, length) = match LOADED.contains(&entry.about.name) {
            true => (&Kernel::ALL[..], Length::Whole),
            false => (&[Kernel::V6_12][..], Length::Short),
        };
        for &kernel in kernels {
            eprintln!("{} under kernel {kernel}", entry.about.name);
            let life = life::live(&root, &program, entry, kernel, length)?;
            let text = keep::kept(entry, &origin(&root, entry, kernel), &life)?;
            let path = folder.join(format!("{}-linux-{kernel}.trace", entry.about.name));
            std::fs::write(&path, text).map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        }
    }
    Ok(())
}

/// The driver's and QEMU's packages and versions, for the first lines of the file.
fn origin(root: &Root, entry: &Entry, kernel: Kernel) -> String {
    let package = |start: &str| {
        let found = root.packages().iter().find(|package| package.name.starts_with(start));
        found.map_or_else(|| "?".to_owned(), |package| format!("{} {}", package.name, package.version))
    };
    format!(
        "# {}'s driver in {}, in {}.\n",
        entry.about.name,
        package(&format!("linux-image-{kernel}.")),
        package("qemu-system-x86")
    )
}
