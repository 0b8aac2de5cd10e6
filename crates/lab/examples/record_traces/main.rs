//! Records what unmodified Linux drivers do to our adapters, and keeps it as the simulation's test data.
//!
//! ```console
//! $ cargo run -p nicety-lab --example record_traces [-- FOLDER [ADAPTER]]
//! ```
//! Every adapter under every kernel, in QEMU, at a daemon that records: the driver is probed, brought up, asked, loaded
//! both ways, taken down and removed. What is kept of it, and why, is `keep.rs`. Takes some five minutes where guests are
//! translated. FOLDER is crates/trials/tests/traces unless another is named; ADAPTER records only that one.

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

/// Folder in which the simulation looks for traces.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../trials/tests/traces");

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
    for entry in REGISTRY.iter().filter(|entry| only.is_none_or(|name| name == entry.about.name)) {
        for kernel in Kernel::ALL {
            eprintln!("{} under kernel {kernel}", entry.about.name);
            let life = life::live(&root, &program, entry, kernel)?;
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
