//! A PCI function of `uio_pci_generic`, as a driver's bus: configuration space and I/O ports through sysfs' files, interrupts
//! through `/dev/uioN` (Linux, Documentation/driver-api/uio-howto.rst; Documentation/PCI/sysfs-pci.rst).

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nicety_adapter::{Bus, BusError, InterruptKind};
use nicety_drivers::config;
use nicety_memory::Map;

use crate::Fallible;

const DEVICES: &str = "/sys/bus/pci/devices";
/// Number of BARs of a function.
const BARS: usize = 6;
/// Flag in a line of `resource`: the BAR is I/O ports (Linux, include/linux/ioport.h, `IORESOURCE_IO`).
const IORESOURCE_IO: u64 = 0x100;

/// See the module's documentation.
pub struct UioBus {
    config: File,
    bars: Vec<Option<File>>,
    uio: File,
    memory: Arc<Map>,
}

impl UioBus {
    /// Opens a function by its address, such as 0000:00:04.0.
    pub fn open(address: &str, memory: Arc<Map>) -> Fallible<Self> {
        let device = Path::new(DEVICES).join(address);
        if !device.exists() {
            return Err(format!("{} is not there: `lspci -D` shows the addresses", device.display()).into());
        }
        let uio = uio_of(&device, address)?;
        let file = |(bar, io): (usize, bool)| io.then(|| open(&device.join(format!("resource{bar}")))).transpose();
        let bars = ports(&device)?.into_iter().enumerate().map(file).collect::<Fallible<_>>()?;
        Ok(Self { config: open(&device.join("config"))?, bars, uio: open(&uio)?, memory })
    }

    /// PCI vendor and device.
    pub fn identity(&mut self) -> Fallible<(u16, u16)> {
        Ok((config::read16(self, 0)?, config::read16(self, 2)?))
    }

    /// Becomes readable when the function interrupts.
    pub fn interrupt(&self) -> BorrowedFd<'_> {
        self.uio.as_fd()
    }

    /// Consumes the interrupt. The kernel has masked it in the function's command register.
    pub fn take(&mut self) -> std::io::Result<()> {
        self.uio.read_exact(&mut [0; 4])
    }

    fn bar(&self, bar: u8) -> Result<&File, BusError> {
        let file = self.bars.get(usize::from(bar)).and_then(Option::as_ref);
        file.ok_or_else(|| BusError(format!("BAR {bar} is not I/O ports: this program drives no others")))
    }
}

fn open(path: &Path) -> Fallible<File> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|error| format!("{}: {error}{}", path.display(), hint(&error)).into())
}

fn hint(error: &std::io::Error) -> &'static str {
    if error.kind() == std::io::ErrorKind::PermissionDenied { " (it takes root)" } else { "" }
}

/// The function's `/dev/uioN`.
fn uio_of(device: &Path, address: &str) -> Fallible<PathBuf> {
    let name = std::fs::read_dir(device.join("uio")).ok().and_then(|mut all| all.next()?.ok());
    let name = name.ok_or_else(|| {
        format!(
            "{address} is not bound to uio_pci_generic; run\n  modprobe uio_pci_generic\n  echo uio_pci_generic >{0}/driver_override\n  \
             [ ! -e {0}/driver ] || echo {address} >{0}/driver/unbind\n  echo {address} >/sys/bus/pci/drivers_probe",
            device.display()
        )
    })?;
    Ok(Path::new("/dev").join(name.file_name()))
}

/// Whether each BAR is I/O ports: each line of `resource` is begin, end and flags.
fn ports(device: &Path) -> Fallible<Vec<bool>> {
    let path = device.join("resource");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let flags = |line: &str| u64::from_str_radix(line.split_whitespace().nth(2)?.trim_start_matches("0x"), 16).ok();
    Ok(text.lines().take(BARS).map(|line| flags(line).unwrap_or(0) & IORESOURCE_IO != 0).collect())
}

fn bus(error: std::io::Error) -> BusError {
    BusError(error.to_string())
}

impl Bus for UioBus {
    fn config_read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), BusError> {
        self.config.read_exact_at(data, offset.into()).map_err(bus)
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) -> Result<(), BusError> {
        self.config.write_all_at(data, offset.into()).map_err(bus)
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.bar(bar)?.read_exact_at(data, offset).map_err(bus)
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.bar(bar)?.write_all_at(data, offset).map_err(bus)
    }

    fn memory(&self) -> &Arc<Map> {
        &self.memory
    }

    fn interrupts(&mut self, kind: InterruptKind) -> Result<(), BusError> {
        if kind != InterruptKind::Intx {
            return Err(BusError("uio_pci_generic knows INTx alone".to_owned()));
        }
        self.unmask_line()
    }

    fn unmask_line(&mut self) -> Result<(), BusError> {
        config::set(self, config::COMMAND, config::COMMAND_NO_INTX, false)
    }
}
