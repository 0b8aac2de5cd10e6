//! An option ROM's image (PCI Firmware 3.0 §5.1, PCI 3.0 §6.3). It is checked when it is loaded, so that a guest's firmware accepts it.

/// Reasons why an image is no option ROM for the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RomError {
    /// Too short for a header, or over 16 MiB.
    #[error("an option ROM has 32 bytes to 16 MiB; this file has {0}")]
    Size(usize),
    /// The image at that offset does not begin with 55 AA.
    #[error("no option ROM: the image at {0:#x} does not begin with 55 AA")]
    Signature(usize),
    /// The image's data structure is not at the offset in its header.
    #[error("no PCI option ROM: the image at {0:#x} has no PCIR structure")]
    DataStructure(usize),
    /// An image's length is more than the file has, or zero.
    #[error("option ROM: the image at {0:#x} says it has {1} bytes, and the file ends before")]
    Length(usize, usize),
    /// The ROM is for other hardware.
    #[error("option ROM is for {vendor:04x}:{device:04x}")]
    Ids {
        /// The vendor in its first image.
        vendor: u16,
        /// The device in its first image.
        device: u16,
    },
}

/// Offsets in the file of an image and of its PCI data structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Image {
    start: usize,
    len: usize,
    pcir: usize,
    code_type: u8,
}

/// A checked option ROM, padded with ones to a power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rom {
    bytes: Vec<u8>,
    images: Vec<Image>,
}

const LARGEST: usize = 16 << 20;
const SMALLEST_REGION: usize = 2048;
/// Code type of an image for PC-compatible firmware: the only one with a checksum (PCI Firmware 3.0 §5.1.3).
const PC_COMPATIBLE: u8 = 0;

impl Rom {
    /// Takes a file's bytes, checking each image of the chain.
    ///
    /// # Errors
    /// The fault of the first invalid image.
    pub fn new(mut bytes: Vec<u8>) -> Result<Self, RomError> {
        if bytes.len() < 32 || bytes.len() > LARGEST {
            return Err(RomError::Size(bytes.len()));
        }
        let images = images(&bytes)?;
        let size = bytes.len().next_power_of_two().max(SMALLEST_REGION);
        bytes.resize(size, 0xff);
        Ok(Self { bytes, images })
    }

    /// Size of the region it needs: a power of two, at least 2 KiB ([`crate::Builder::rom`]).
    #[must_use]
    pub fn size(&self) -> u32 {
        // At most 16 MiB.
        self.bytes.len() as u32
    }

    /// The vendor and device in the first image.
    #[must_use]
    pub fn ids(&self) -> (u16, u16) {
        self.images.first().map_or((0, 0), |image| image.ids(&self.bytes))
    }

    /// Whether the ROM is for that device: by the first image's IDs, or its list of further devices.
    ///
    /// # Errors
    /// The device that the ROM is for.
    pub fn expect(&self, vendor: u16, device: u16) -> Result<(), RomError> {
        let (its_vendor, its_device) = self.ids();
        let listed = self.images.first().is_some_and(|image| image.lists(&self.bytes, device));
        if its_vendor == vendor && (its_device == device || listed) {
            return Ok(());
        }
        Err(RomError::Ids { vendor: its_vendor, device: its_device })
    }

    /// Puts another device's IDs into every image. In images with a checksum (PC-compatible ones), byte 6 compensates the difference;
    /// iPXE's and QEMU's ROMs reserve it for that.
    pub fn patch_ids(&mut self, vendor: u16, device: u16) {
        for image in &self.images {
            let ids = (u32::from(device) << 16 | u32::from(vendor)).to_le_bytes();
            let Some(place) = self.bytes.get_mut(image.pcir + 4..image.pcir + 8) else { continue };
            let sum = |bytes: &[u8]| bytes.iter().fold(0_u8, |sum, &byte| sum.wrapping_add(byte));
            let difference = sum(&ids).wrapping_sub(sum(place));
            place.copy_from_slice(&ids);
            let checksum = self.bytes.get_mut(image.start + 6).filter(|_| image.code_type == PC_COMPATIBLE);
            if let Some(byte) = checksum {
                *byte = byte.wrapping_sub(difference);
            }
        }
    }

    /// Reads the region; bytes beyond it are ones.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let from = usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..));
        for (byte, &stored) in data.iter_mut().zip(from.unwrap_or(&[])) {
            *byte = stored;
        }
    }
}

impl Image {
    fn ids(&self, bytes: &[u8]) -> (u16, u16) {
        let at = |offset| word(bytes, offset).unwrap_or(0);
        (at(self.pcir + 4), at(self.pcir + 6))
    }

    /// Whether the device list of revision 3 has the device: 16-bit IDs up to a zero, at an offset from the data structure.
    fn lists(&self, bytes: &[u8], device: u16) -> bool {
        let list = word(bytes, self.pcir + 8).unwrap_or(0);
        let revision = bytes.get(self.pcir + 12).copied().unwrap_or(0);
        if list == 0 || revision < 3 {
            return false;
        }
        let end = self.start + self.len;
        let entries = bytes.get(self.pcir + usize::from(list)..end).unwrap_or(&[]);
        let (entries, _) = entries.as_chunks();
        let mut ids = entries.iter().map(|entry| u16::from_le_bytes(*entry));
        ids.by_ref().take_while(|&id| id != 0).any(|id| id == device)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_le_bytes(*two))
}

/// Walks the chain of images. Each contains its length and a mark of the last one.
fn images(bytes: &[u8]) -> Result<Vec<Image>, RomError> {
    let mut found = Vec::new();
    let mut start = 0;
    loop {
        let here = bytes.get(start..).unwrap_or(&[]);
        if here.get(..2) != Some(&[0x55, 0xaa]) {
            return Err(RomError::Signature(start));
        }
        let wrong = RomError::DataStructure(start);
        let offset = usize::from(word(here, 0x18).ok_or(wrong.clone())?);
        let data = here.get(offset..).filter(|data| data.len() >= 0x18).ok_or(wrong.clone())?;
        if data.get(..4) != Some(b"PCIR") {
            return Err(wrong);
        }
        let len = usize::from(word(data, 0x10).unwrap_or(0)) * 512;
        let (code_type, indicator) = (data[0x14], data[0x15]);
        if len == 0 || len > here.len() || offset + 0x18 > len {
            return Err(RomError::Length(start, len));
        }
        found.push(Image { start, len, pcir: start + offset, code_type });
        if indicator & 0x80 != 0 {
            return Ok(found);
        }
        start += len;
    }
}
