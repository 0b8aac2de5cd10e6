//! `rom`: the file of an option ROM.

use std::path::{Path, PathBuf};

use nicety_adapters::{About, REGISTRY};
use nicety_pci::Rom;

use super::regular;

/// The reason why an option ROM's file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the option ROM {path} cannot be used: {why}; name another with rom = \"FILE\", or leave rom out")]
pub struct RomFileError {
    /// The file.
    pub path: PathBuf,
    /// The error.
    pub why: String,
}

/// Reads an option ROM for this adapter.
pub(super) fn read(path: &Path, about: &About) -> Result<Rom, RomFileError> {
    let wrong = |why: String| RomFileError { path: path.to_owned(), why };
    // Read one byte more than a ROM may have, so that a longer file is refused and not truncated.
    let bytes = regular::read_most(path, (16 << 20) + 1).map_err(|error| wrong(error.to_string()))?;
    let mut rom = Rom::new(bytes).map_err(|error| wrong(error.to_string()))?;
    let (vendor, device) = about.pci;
    if let Err(error) = rom.expect(vendor, device) {
        // iPXE's driver serves several chips. Its ROM's header names one of them, or none, as in Debian's pxe-ne2k_pci.rom.
        let kin =
            |other: &About| about.boot.rom.is_some() && other.boot.rom == about.boot.rom && other.pci == rom.ids();
        if rom.ids() != (0, 0) && !REGISTRY.iter().any(|entry| kin(entry.about)) {
            return Err(wrong(format!("{error}, and {} is {vendor:04x}:{device:04x}", about.name)));
        }
        rom.patch_ids(vendor, device);
    }
    Ok(rom)
}

#[cfg(test)]
#[path = "rom_test.rs"]
mod tests;
