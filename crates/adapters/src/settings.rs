//! Settings with which an adapter is created, and the reasons why it cannot be.

use nicety_adapter::trace::Made;
use nicety_frame::Mac;
use nicety_pci::Rom;

use crate::about::About;

/// Settings that a port gives its adapter when it is created.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The permanent address.
    pub mac: Mac,
    /// The largest MTU in bytes on this port. Adapters whose devices announce an MTU announce it (virtio-net).
    pub mtu: Option<u16>,
    /// Maximum number of queue pairs, for adapters with several; `None`: the adapter's default.
    pub queues: Option<u16>,
    /// Option ROM for network boot.
    pub rom: Option<Rom>,
    /// PCI subsystem vendor and device instead of the chip's, for adapters with [`vmware_subsystem`](crate::about::About).
    pub subsystem: Option<(u16, u16)>,
    /// The adapter is a standby for another adapter of the guest with the same address. For adapters that can announce it
    /// (virtio-net).
    pub standby: bool,
}

impl From<&Settings> for Made {
    fn from(settings: &Settings) -> Self {
        let Settings { mac, mtu, queues, rom: _, subsystem, standby } = settings;
        Self { mac: *mac, mtu: *mtu, queues: *queues, subsystem: *subsystem, standby: *standby }
    }
}

impl From<Made> for Settings {
    fn from(Made { mac, mtu, queues, subsystem, standby }: Made) -> Self {
        Self { mac, mtu, queues, rom: None, subsystem, standby }
    }
}

impl Settings {
    /// Settings with this address and defaults for the rest.
    pub fn new(mac: Mac) -> Self {
        Self { mac, mtu: None, queues: None, rom: None, subsystem: None, standby: false }
    }

    /// Checks what no adapter takes: an address that is no station's, and more queues than it has.
    pub(crate) fn check(&self, about: &About) -> Result<(), CreateError> {
        if !self.mac.is_unicast() || self.mac == Mac::ZERO {
            return Err(CreateError::Address(self.mac));
        }
        match self.queues {
            Some(asked) if !(1..=about.queues).contains(&asked) => {
                Err(CreateError::Queues { adapter: about.name, asked, most: about.queues })
            }
            _ => Ok(()),
        }
    }

    /// Checks that the option ROM, if there is one, is for this adapter.
    pub(crate) fn check_rom(&self, about: &About) -> Result<(), CreateError> {
        let (vendor, device) = about.pci;
        let checked = self.rom.as_ref().map_or(Ok(()), |rom| rom.expect(vendor, device));
        checked.map_err(|error| CreateError::Rom(error.to_string()))
    }
}

/// Why an adapter could not be created with these settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// A multicast or zero address.
    #[error("{0} is not the address of one station: its first byte must be even, and not all bytes zero")]
    Address(Mac),
    /// More queues than the device has.
    #[error("{adapter} has 1 to {most} queue pairs, not {asked}")]
    Queues {
        /// The adapter.
        adapter: &'static str,
        /// Queue pairs requested.
        asked: u16,
        /// Queue pairs that the adapter supports.
        most: u16,
    },
    /// The option ROM is for another device.
    #[error("the option ROM does not fit: {0}")]
    Rom(String),
    /// An internal error in the device's own description.
    #[error("{adapter} cannot be described: {why}")]
    Description {
        /// The adapter.
        adapter: &'static str,
        /// The error.
        why: String,
    },
}
