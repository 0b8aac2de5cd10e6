//! A chip as data.

use std::sync::LazyLock;

use nicety_adapter::interrupts::Interrupts;
use nicety_pci::{Bar, Builder, Function, Identity, Pin};

use super::{Mac, Own, Wired};
use crate::about::About;
use crate::intel::eeprom::Image;
use crate::intel::pages::Pages;
use crate::intel::phy::{Phy, Rules};
use crate::intel::registers::Table;
use crate::settings::{CreateError, Settings};

/// PCI vendor number.
pub const INTEL: u16 = 0x8086;
/// Bytes of BAR 0.
const WINDOW_BYTES: u32 = 0x2_0000;
/// Class of an Ethernet controller.
pub const CLASS: u32 = 0x02_0000;

/// Differences between chips of one kind.
#[derive(Debug)]
pub struct Model {
    /// Description, with its name in host files and its PCI identity.
    pub about: About,
    /// PCI revision.
    pub revision: u8,
    /// PCI subsystem, whose vendor is Intel.
    pub subsystem: u16,
    /// Its registers.
    pub registers: &'static Table,
    /// Queues each way with registers.
    pub queues: usize,
    /// MSI-X vectors; 0 if it has no MSI-X.
    pub vectors: u16,
    /// The pages of its registers that a guest may map.
    pub pages: Option<&'static LazyLock<Pages>>,
    /// Factory contents of its nonvolatile memory.
    pub nvm: Image,
    /// Its PHY.
    pub phy: Rules,
}

impl Model {
    /// Its PCI function: BAR 0, INTx, the ROM, and `more`.
    pub fn function(
        &self,
        settings: &Settings,
        more: impl FnOnce(Builder) -> Builder,
    ) -> Result<Function, CreateError> {
        settings.check(&self.about)?;
        settings.check_rom(&self.about)?;
        let (subsystem_vendor, subsystem) = settings.subsystem.unwrap_or((INTEL, self.subsystem));
        let (vendor, device) = self.about.pci;
        let identity = Identity { vendor, device, revision: self.revision, class: CLASS, subsystem_vendor, subsystem };
        let plain = Function::builder(identity).interrupt_pin(Pin::A).bar(0, Bar::memory(WINDOW_BYTES.into()));
        let mut builder = more(plain);
        if let Some(rom) = &settings.rom {
            builder = builder.rom(rom.size());
        }
        builder.build().map_err(|error| CreateError::Description { adapter: self.about.name, why: error.to_string() })
    }
}

impl<O: Own, const N: usize> Mac<O, N>
where
    Self: Wired,
{
    /// A chip of a model after power-on.
    pub fn new(model: &'static Model, settings: &Settings, function: Function, interrupts: Interrupts, own: O) -> Self {
        let mut this = Self {
            queues: model.queues,
            pages: model.pages,
            rom: settings.rom.clone(),
            phy: Phy::new(model.phy),
            link_up: false,
            ..Self::bare(&model.about, function, model.registers, interrupts, own)
        };
        this.clear_chip();
        this
    }
}
