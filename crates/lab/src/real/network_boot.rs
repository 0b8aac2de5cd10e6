//! A machine in QEMU that boots from the network: DHCP, TFTP and HTTP on the host's side of a tap, and the firmware's own drivers.
//!
//! ```text
//! firmware ── adapter ── daemon's switch (or QEMU) ── tap ── namespace: dnsmasq, httpd
//! ```

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nicety_adapters::About;
use nicety_guests::{
    Accel, Error, Firmware, Folder, Guest, GuestConfig, Image, Kernel, Namespace, Port, Root, Served, Start,
};

use crate::method::Server;
use crate::subject::Subject;

const UPLINK: &str = "n0";
const HOST: &str = "10.9.6.254";
const GUEST: &str = "10.9.6.1";
const MAC: &str = "52:54:00:4e:06:01";
const KERNEL: Kernel = Kernel::V6_12;
/// UEFI needs more than a guest does.
const MEMORY_MIB: u32 = 512;
/// The boot file in DHCP for all clients except iPXE, by TFTP: iPXE as a UEFI program.
const PROGRAM: &str = "ipxe.efi";
/// A file that the script requests when kernel and initramfs are loaded.
const MARK: &str = "mark";
/// First word of the kernel (init/version.c, `linux_banner`).
const BANNER: &str = "Linux version ";
/// Time limit of a boot, where all is translated.
const LIMIT: Duration = Duration::from_secs(480);
/// Interval between two looks at logs and console.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The firmware that boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bios {
    /// QEMU's BIOS with iPXE in the adapter's option ROM.
    Rom,
    /// UEFI (OVMF), with the driver in the adapter's option ROM, or its own.
    Uefi,
}

/// Times since power-on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Booted {
    /// Until the first DHCP lease was acknowledged.
    pub lease: Duration,
    /// Until kernel and initramfs were loaded.
    pub loaded: Duration,
    /// Until the kernel's first line on the console.
    pub running: Duration,
}

/// The network with its servers (see the module's page). Dropping it ends them.
pub struct NetworkBoot {
    root: Root,
    firmware: Firmware,
    namespace: Namespace,
    program: PathBuf,
    folder: Folder,
    accel: Accel,
}

impl fmt::Debug for NetworkBoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkBoot").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// Whether the guest sees QEMU's PCI function, not the daemon's.
fn is_qemus(about: &About) -> bool {
    !about.transports.contains(&"vfio-user")
}

fn failed(doing: &str, said: impl ToString) -> Error {
    Error::Run { doing: doing.to_owned(), said: said.to_string() }
}

impl NetworkBoot {
    /// Lays firmware, kernel and servers.
    ///
    /// # Errors
    /// Those of [`Root::lay`], [`Firmware::lay`] and [`Namespace::open`]; each names its remedy.
    pub fn open(program: &Path, say: &mut dyn FnMut(&str)) -> Result<NetworkBoot, Error> {
        let root = Root::lay(say)?;
        let firmware = Firmware::lay(say)?;
        let accel = Accel::Auto.resolve(&root)?;
        let mut namespace = Namespace::open(&root)?;
        namespace.tap(UPLINK, Some(&format!("{HOST}/24")))?;
        let (program, folder) = (program.to_owned(), Folder::new()?);
        let mut boot = NetworkBoot { root, firmware, namespace, program, folder, accel };
        boot.offer()?;
        boot.serve()?;
        Ok(boot)
    }

    fn offered(&self, name: &str) -> PathBuf {
        self.folder.path().join("www").join(name)
    }

    /// The files for TFTP and HTTP: a kernel, an initramfs, iPXE and its script.
    fn offer(&self) -> Result<(), Error> {
        let config = self.config();
        let script = format!(
            "#!ipxe\nkernel http://{HOST}/vmlinuz initrd=initrd {}\ninitrd --name initrd http://{HOST}/initrd\n\
             imgfetch --name {MARK} tftp://{HOST}/{MARK} && imgfree {MARK}\nboot\n",
            config.command_line()
        );
        let image = Image::of(&self.root, KERNEL)?;
        let copy = |from: &Path, name: &str| fs::copy(from, self.offered(name)).map(drop);
        let made = fs::create_dir(self.offered(""))
            .and_then(|()| fs::write(self.offered(MARK), "here"))
            .and_then(|()| fs::write(self.offered("boot.ipxe"), script))
            .and_then(|()| copy(image.compressed(), "vmlinuz"))
            .and_then(|()| copy(&self.firmware.ipxe_for_uefi(), PROGRAM));
        made.map_err(|error| failed("offering a kernel", error))?;
        let mut pack = self.root.program("usr/bin/zstd");
        let packed = pack.arg("-q").arg(image.initramfs()).arg("-o").arg(self.offered("initrd")).output();
        match packed {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(failed("packing the initramfs", String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(failed("packing the initramfs", error)),
        }
    }

    /// Serves DHCP, TFTP and HTTP on the host's side of the tap.
    fn serve(&mut self) -> Result<(), Error> {
        let mut dhcp = self.firmware.dnsmasq();
        dhcp.args([format!("--interface={UPLINK}"), "--bind-interfaces".into(), "--dhcp-authoritative".into()]);
        dhcp.args(["--dhcp-range=10.9.6.0,static".to_owned(), format!("--dhcp-host={MAC},{GUEST}")]);
        dhcp.args(["--dhcp-userclass=set:ipxe,iPXE".into(), format!("--dhcp-boot=tag:ipxe,http://{HOST}/boot.ipxe")]);
        dhcp.arg(format!("--dhcp-boot=tag:!ipxe,{PROGRAM}"));
        dhcp.args(["--enable-tftp".into(), format!("--tftp-root={}", self.offered("").display())]);
        self.namespace.start(&dhcp, &self.folder.path().join("dhcp.log"))?;
        let mut http = Command::new(self.root.busybox());
        http.args(["httpd", "-f", "-p", &format!("{HOST}:80"), "-h"]).arg(self.offered(""));
        self.namespace.start(&http, Path::new("/dev/null")).map(drop)
    }

    /// The log of DHCP and TFTP, from this byte on.
    fn dhcp_log(&self, from: usize) -> String {
        let text = fs::read(self.folder.path().join("dhcp.log")).unwrap_or_default();
        String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned()
    }

    fn config(&self) -> GuestConfig {
        // The kernel then says its first line.
        let append = vec!["loglevel=6".to_owned()];
        let (start, memory_mib) = (Start::Network, MEMORY_MIB);
        let entrance = self.namespace.entrance();
        GuestConfig {
            accel: self.accel,
            start,
            memory_mib,
            boot_limit: LIMIT,
            append,
            entrance,
            ..GuestConfig::new(KERNEL)
        }
    }

    /// Boots a subject's machine until its kernel runs, and ends it.
    ///
    /// # Errors
    /// It does not come so far; the text has the end of its console, and of DHCP's log.
    pub fn boot(&mut self, subject: &Subject, bios: Bios, stop: &AtomicBool) -> Result<Booted, Error> {
        let entry = nicety_adapters::find(&subject.adapter)
            .ok_or_else(|| failed("booting", format!("there is no adapter {}", subject.adapter)))?;
        let about = entry.about;
        let kind = if bios == Bios::Rom { "pxe" } else { "efi" };
        let rom = about.boot.rom.map(|name| self.root.option_rom(&format!("{kind}-{name}.rom")));
        let (mut config, served) = if subject.server == Some(Server::Qemu) {
            let model = about.qemu.ok_or_else(|| failed("booting", "QEMU has no such adapter"))?;
            let tap = format!("tap,ifname={UPLINK},script=no,downscript=no");
            (self.config().adapter(&format!("{model},mac={MAC}"), &tap), None)
        } else {
            let mut port = Port::new("guest", entry, MAC);
            if let Some(rom) = rom.filter(|_| !is_qemus(about)) {
                port.more = format!("rom = \"{}\"\n", rom.display());
            }
            let served = Served::start(&self.program, &mut self.namespace, vec![port], Some(UPLINK))?;
            (served.attach(self.config(), "guest"), Some(served))
        };
        for device in &mut config.devices {
            if device.contains("vfio-user-pci") {
                *device = device.replacen('{', "{\"bootindex\":1,", 1);
            } else if device.contains(",netdev=") {
                // QEMU writes the device's number into a ROM that it has chosen itself. For virtio-net UEFI has a driver of its own.
                let own = if is_qemus(about) && bios == Bios::Uefi { ",romfile=" } else { "" };
                *device = device.replace(",romfile=", own) + ",bootindex=1";
            }
        }
        let folder = Folder::new()?;
        if bios == Bios::Uefi {
            config = self.firmware.uefi(config, folder.path())?;
        }
        let booted = self.watch(config, stop);
        match served {
            Some(served) => {
                let log = served.log();
                let ended = served.stop(&mut self.namespace);
                let booted = booted.map_err(|error| match error {
                    Error::Stopped => Error::Stopped,
                    other => failed("booting", format!("{other}\nthe daemon said\n{log}")),
                })?;
                ended.map(|()| booted)
            }
            None => booted,
        }
    }

    /// Starts a machine and notes when it has come how far.
    fn watch(&self, config: GuestConfig, stop: &AtomicBool) -> Result<Booted, Error> {
        let from = fs::metadata(self.folder.path().join("dhcp.log")).map_or(0, |known| known.len() as usize);
        let begun = Instant::now();
        let guest = Guest::start(&self.root, config)?;
        let (mut lease, mut loaded) = (None, None);
        loop {
            let (at, console) = (begun.elapsed(), guest.console());
            if loaded.is_none() {
                let log = self.dhcp_log(from);
                if log.contains(&format!("DHCPACK({UPLINK}) {GUEST}")) {
                    lease.get_or_insert(at);
                }
                if log.contains(&format!("/{MARK} to {GUEST}")) {
                    loaded = Some(at);
                }
            }
            if let (Some(lease), Some(loaded), true) = (lease, loaded, console.contains(BANNER)) {
                return Ok(Booted { lease, loaded, running: at });
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            if at > LIMIT || !runs(&guest) {
                let came = match (lease, loaded) {
                    (_, Some(_)) => "its kernel does not start",
                    (Some(_), None) => "it has a lease and loads no kernel",
                    (None, None) => "it asks for no lease",
                };
                let said = format!("{came}; its console ended with\n{console}\nDHCP said\n{}", self.dhcp_log(from));
                return Err(failed("booting", said));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// The accelerator of the machines.
    pub fn accelerator(&self) -> Accel {
        self.accel
    }

    /// Facts for the report.
    pub fn notes(&self) -> Vec<String> {
        let version = |name: &str| self.root.version(name).unwrap_or("of unknown version").to_owned();
        let runs = match self.accel {
            Accel::Kvm => "KVM",
            _ => {
                "QEMU's translator (TCG), for there is no KVM: all of firmware and kernel is slower for it, and a transfer by polling most"
            }
        };
        vec![
            format!(
                "Machines: QEMU {} (q35), one processor, {MEMORY_MIB} MiB, run by {runs}. The firmware is QEMU's BIOS with iPXE of ipxe-qemu {}, or \
                 UEFI (OVMF), which loads iPXE by TFTP.",
                version("qemu-system-x86"),
                version("ipxe-qemu"),
            ),
            format!(
                "Power-on is QEMU's start. Lease: dnsmasq's first DHCPACK. Loaded: iPXE has kernel {KERNEL} and its initramfs, by HTTP. Running: \
                 the kernel's first line on the console, after it has unpacked itself.",
            ),
        ]
    }
}

/// Whether its process is there.
fn runs(guest: &Guest) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", guest.process()))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
}
