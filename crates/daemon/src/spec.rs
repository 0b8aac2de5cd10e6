//! The specification of a port: a key of the host file is in its configuration, and nowhere else in this crate.

use std::sync::OnceLock;

use nicety_adapters::Settings;
use nicety_host::PortConfig;
use nicety_pci::Rom;
use nicety_socket::Access;

/// A port's configuration, with what was read and looked up for it.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// Its keys.
    pub config: PortConfig,
    /// The option ROM of its file.
    pub rom: Option<Rom>,
    /// The accounts that may connect.
    pub access: Access,
}

impl PortSpec {
    /// The specification of a port that names no option ROM and nobody who may connect.
    pub fn plain(config: PortConfig) -> Self {
        Self { config, rom: None, access: Access::default() }
    }

    /// The settings that create its adapter.
    pub fn settings(&self) -> Settings {
        self.config.settings(self.rom.clone())
    }

    /// Whether its doorbells are mapped by this process.
    pub fn is_mapped(&self) -> bool {
        self.config.is_mapped(processors())
    }

    /// Its receive buffer in bytes.
    pub fn buffer_bytes(&self) -> u32 {
        u32::try_from(self.config.buffer.0).unwrap_or(u32::MAX)
    }
}

/// Processors that this process may use, as at the first call: the answer is in three files of its control group, which take longer to
/// read than the rest of a port's specification. The first call is that of the first worker's making: later threads may open no files.
pub(crate) fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}
