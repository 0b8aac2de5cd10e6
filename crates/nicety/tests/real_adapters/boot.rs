//! Network boot over every adapter: a lease, a kernel and its initramfs through the switch, with the drivers of independent
//! firmware.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use nicety_adapters::{About, UBoot};
use nicety_frame::crc::fcs;
use nicety_guests::{Firmware, Folder, Guest, GuestConfig, Image, Kernel, Port, Root, Start, Terminal};
use nicety_trials::scope::{in_linux as entries, is_usual};

use crate::stage::{HOST, SOON, Stage, TAP, address, ping, port, well};

/// Time limit of a boot: the firmware, two transfers of megabytes by polling, and a kernel that unpacks itself, all translated.
const BOOT_LIMIT: Duration = Duration::from_secs(480);
/// Time limit of a transfer by U-Boot, which waits for each block's round trip.
const LOAD_LIMIT: Duration = Duration::from_secs(300);
/// Addresses at which U-Boot stores the packed kernel and its initramfs: the latter above the 64 MiB from KERNEL_AT on, into which
/// the kernel unpacks itself.
const KERNEL_AT: &str = "0x1000000";
/// See [`KERNEL_AT`].
const INITRAMFS_AT: &str = "0x8000000";
/// Enough for UEFI, and for U-Boot, which keeps two files beside the kernel that it starts.
const MEMORY_MIB: u32 = 512;
/// U-Boot's prompt, at the end of each answer. A checksum's line begins with `==> `.
const PROMPT: &str = "\n=> ";
/// A file that a script requests to show that it runs.
const MARK: &str = "mark";
/// A file of a megabyte, the first one of a kernel.
const PART: &str = "part";
/// The boot file in DHCP for all clients except iPXE, by TFTP: iPXE as a UEFI program.
const PROGRAM: &str = "ipxe.efi";

/// The adapter over which the usual scope starts a kernel with a firmware; over the others it transfers a [`PART`] of one, or by U-Boot a
/// small file. The kernel unpacks itself under translation, which takes longer than all of the firmware's work.
const BIOS_KERNEL: &str = "vmxnet3";
const UEFI_KERNEL: &str = "e1000";
const U_BOOT_KERNEL: &str = "virtio-net";

/// The end of an option ROM's name whose driver may stop in a transfer of megabytes, with QEMU's own adapter as well: iPXE's pcnet32.c,
/// pcnet32_poll, looks for completed transmit descriptors only after a received frame (it tests 0x0500 of CSR0: RINT and IDON, not TINT),
/// and pcnet32_process_tx_packets takes a full ring for an empty one. After sixteen frames without a received one it never sends again.
const STOPS: &str = "-pcnet.rom";

/// The firmware's driver for an adapter.
#[derive(Clone, Debug)]
enum Rom {
    /// The firmware has a driver of its own.
    No,
    /// An option ROM of `ipxe-qemu` that the daemon shows the guest.
    Daemon(String),
    /// QEMU's own ROM for the device of a vhost-user port. QEMU must choose it itself: only then does it write the device's number
    /// into it.
    Qemu,
}

/// The ROM with iPXE for a BIOS.
fn bios(about: &About) -> Option<Rom> {
    about.boot.rom.map(|name| if is_qemus(about) { Rom::Qemu } else { Rom::Daemon(format!("pxe-{name}.rom")) })
}

/// The ROM with UEFI's driver: for virtio-net UEFI has its own.
fn uefi(about: &About) -> Option<Rom> {
    about.boot.rom.map(|name| if is_qemus(about) { Rom::No } else { Rom::Daemon(format!("efi-{name}.rom")) })
}

/// Whether the guest sees QEMU's PCI function, not the daemon's.
fn is_qemus(about: &About) -> bool {
    !about.transports.contains(&"vfio-user")
}

#[test]
fn every_adapter_boots_a_guest_by_ipxe_in_its_bios_option_rom_with_dhcp_and_http_through_the_switch() {
    every(bios, &[BIOS_KERNEL, "pcnet", "igb"], |adapter, rom| {
        Boot::new(adapter, rom, BIOS_KERNEL).starts(|config, _| config)
    });
}

#[test]
fn every_adapter_boots_a_guest_by_uefi_with_pxe_and_http_through_the_switch() {
    let start = |adapter, rom| {
        let boot = Boot::new(adapter, rom, UEFI_KERNEL);
        boot.starts(|config, boot| well(boot.firmware.uefi(config, boot.folder.path())));
        let text = boot.dhcp_log();
        assert!(text.contains(&format!("/{PROGRAM} to {}", address(1))), "sent by TFTP: {text}");
    };
    every(uefi, &[UEFI_KERNEL, "rtl8139", "e1000e", "virtio-net-pci"], start);
}

#[test]
fn u_boot_takes_a_lease_and_a_kernel_by_tftp_through_the_switch_and_starts_it() {
    every(
        |about| about.boot.u_boot,
        &[U_BOOT_KERNEL, "rtl8139", "e1000"],
        |adapter, driver| Boot::new(adapter, Rom::No, U_BOOT_KERNEL).boot_with_u_boot(driver),
    );
}

/// Runs `test` for the `usual` adapters, in a full run for each adapter for which `has` returns a value. One after another. The three
/// tests together have an adapter of each family in the usual scope.
fn every<T>(has: impl Fn(&About) -> Option<T>, usual: &[&str], test: impl Fn(&'static str, T)) {
    for entry in entries().into_iter().filter(|entry| !is_usual() || usual.contains(&entry.about.name)) {
        match has(entry.about) {
            Some(with) => test(entry.about.name, with),
            None => println!("{}: no firmware boots by it so", entry.about.name),
        }
    }
}

/// A stage with one port, and the host's services for a guest that boots there.
struct Boot {
    firmware: Firmware,
    stage: Stage,
    folder: Folder,
    adapter: &'static str,
    has_kernel: bool,
    /// Whether megabytes are transferred. Without DMA, firmware moves two bytes per access, and in QEMU each access is a message: a
    /// kernel would take an hour. The script by HTTP then only requests a mark.
    carries_much: bool,
    config: GuestConfig,
}

impl Boot {
    /// `usual`: the adapter with which a kernel is started in the usual scope.
    fn new(adapter: &'static str, rom: Rom, usual: &str) -> Boot {
        let firmware = well(Firmware::lay(&mut |line| eprintln!("{line}")));
        let root = well(Root::lay(&mut |line| eprintln!("{line}")));
        let more = match &rom {
            Rom::Daemon(rom) => format!("rom = \"{}\"\n", root.option_rom(rom).display()),
            Rom::Qemu | Rom::No => String::new(),
        };
        let stage = Stage::with(vec![Port { more, ..port(adapter, 1) }]);
        let config = stage.config(Kernel::V6_12, 1);
        let mut config =
            GuestConfig { start: Start::Network, boot_limit: BOOT_LIMIT, memory_mib: MEMORY_MIB, ..config };
        for device in &mut config.devices {
            if device.contains("vfio-user-pci") {
                *device = device.replacen('{', "{\"bootindex\":1,", 1);
            } else if device.contains("virtio-net-pci") {
                let own = if matches!(rom, Rom::Qemu) { "" } else { "romfile=," };
                *device = device.replace("romfile=,", own) + ",bootindex=1";
            }
        }
        let folder = well(Folder::new());
        let has_kernel = !is_usual() || adapter == usual;
        let has_dma = nicety_adapters::find(adapter).is_some_and(|entry| entry.about.dma);
        let carries_much = has_dma && !matches!(&rom, Rom::Daemon(name) if name.ends_with(STOPS));
        let mut boot = Boot { firmware, stage, folder, adapter, has_kernel, carries_much, config };
        boot.offer();
        boot.serve();
        boot
    }

    /// Path of a file that the host offers.
    fn offered(&self, name: &str) -> PathBuf {
        self.folder.path().join("www").join(name)
    }

    /// Makes the files for TFTP and HTTP: iPXE's script, and what it fetches: a kernel and an initramfs, or a part of one.
    fn offer(&self) {
        well(fs::create_dir(self.offered("")));
        let script = if self.starts_kernel() {
            format!(
                "#!ipxe\nkernel http://{HOST}/vmlinuz initrd=initrd {}\ninitrd --name initrd http://{HOST}/initrd\nboot\n",
                self.command_line()
            )
        } else {
            let part = if self.carries_much { format!("imgfetch http://{HOST}/{PART}\n") } else { String::new() };
            format!("#!ipxe\n{part}imgfetch tftp://{HOST}/{MARK}\n")
        };
        well(fs::write(self.offered(MARK), "here"));
        well(fs::write(self.offered("boot.ipxe"), script));
        well(fs::copy(self.firmware.ipxe_for_uefi(), self.offered(PROGRAM)));
        let image = Image::of(&self.stage.root, Kernel::V6_12).unwrap_or_else(|error| panic!("{error}"));
        let kernel = well(fs::read(image.compressed()));
        well(fs::write(self.offered(PART), &kernel[..1 << 20]));
        if !self.starts_kernel() {
            return;
        }
        well(fs::write(self.offered("vmlinuz"), kernel));
        // Packed to a third, for a client that fetches it block by block.
        let mut pack = self.stage.root.program("usr/bin/zstd");
        let packed = pack.arg("-q").arg(image.initramfs()).arg("-o").arg(self.offered("initrd")).status();
        assert!(well(packed).success());
    }

    /// Serves DHCP, TFTP and HTTP on the host's side of the tap.
    fn serve(&mut self) {
        let mut dhcp = self.firmware.dnsmasq();
        dhcp.args([format!("--interface={TAP}"), "--bind-interfaces".into(), "--dhcp-authoritative".into()]);
        dhcp.arg(format!("--dhcp-range={},static", address(0)));
        dhcp.arg(format!("--dhcp-host={},{}", port(self.adapter, 1).mac, address(1)));
        dhcp.args(["--dhcp-userclass=set:ipxe,iPXE".into(), format!("--dhcp-boot=tag:ipxe,http://{HOST}/boot.ipxe")]);
        dhcp.arg(format!("--dhcp-boot=tag:!ipxe,{PROGRAM}"));
        dhcp.args(["--enable-tftp".into(), format!("--tftp-root={}", self.offered("").display())]);
        well(self.stage.namespace.start(&dhcp, &self.folder.path().join("dhcp.log")));
        let mut http = Command::new(self.stage.root.busybox());
        http.args(["httpd", "-f", "-v", "-p", &format!("{HOST}:80"), "-h"]).arg(self.offered(""));
        well(self.stage.namespace.start(&http, &self.folder.path().join("http.log")));
    }

    /// The log of DHCP and TFTP.
    fn dhcp_log(&self) -> String {
        fs::read_to_string(self.folder.path().join("dhcp.log")).unwrap_or_default()
    }

    /// Whether a whole kernel is transferred and started.
    fn starts_kernel(&self) -> bool {
        self.carries_much && self.has_kernel
    }

    /// The words of everyone who takes part in a boot, for a failure, and the counters of the port.
    fn all_logs(&self, guest: &Guest) -> String {
        let served = &self.stage.served;
        let http = fs::read_to_string(self.folder.path().join("http.log")).unwrap_or_default();
        [
            ("the guest", guest.console()),
            ("the daemon", served.log()),
            ("its status", served.ask().unwrap_or_default().to_string()),
            ("DHCP and TFTP", self.dhcp_log()),
            ("HTTP", http),
        ]
        .map(|(who, text)| format!("{who}:\n{text}\n"))
        .concat()
    }

    /// Starts the machine that `machine` makes of this configuration. Waits until the transferred kernel answers, or its script has
    /// requested the mark.
    fn starts(&self, machine: impl FnOnce(GuestConfig, &Boot) -> GuestConfig) {
        let begun = Instant::now();
        let mut guest = well(Guest::start(&self.stage.root, machine(self.config.clone(), self)));
        if self.starts_kernel() {
            return self.runs(&mut guest);
        }
        while !self.dhcp_log().contains(&format!("/{MARK} to {}", address(1))) {
            assert!(begun.elapsed() < BOOT_LIMIT, "{}: no script\n{}", self.adapter, self.all_logs(&guest));
            std::thread::sleep(Duration::from_millis(100));
        }
        println!("{}: its script ran after {:.1} s", self.adapter, begun.elapsed().as_secs_f64());
    }

    /// U-Boot at its prompt, with a lease through this driver.
    fn u_boot(&self, UBoot { device, in_debians }: UBoot) -> (Guest, Terminal) {
        let socket = self.folder.path().join("serial.sock");
        let config = GuestConfig { terminal: Some(socket.clone()), ..self.config.clone() };
        let config = match in_debians {
            true => self.firmware.u_boot(config),
            false => well(Firmware::more_of_u_boot(config, &mut |line| eprintln!("{line}"))),
        };
        let guest = well(Guest::start(&self.stage.root, config));
        let mut prompt = well(Terminal::open(&socket, SOON));
        well(prompt.wait("autoboot", SOON));
        self.command(&mut prompt, "");
        self.command(&mut prompt, "virtio scan");
        self.command(&mut prompt, &format!("setenv autoload no; setenv ethact {device}"));
        let text = self.command(&mut prompt, "dhcp");
        assert!(text.contains(&format!("DHCP client bound to address {}", address(1))), "{device}: {text}");
        (guest, prompt)
    }

    /// U-Boot's answer to a command.
    fn command(&self, prompt: &mut Terminal, line: &str) -> String {
        match prompt.command(line, PROMPT, LOAD_LIMIT) {
            Ok(text) => text,
            Err(error) => {
                panic!("{error}\nthe daemon said\n{}\nDHCP said\n{}", self.stage.served.log(), self.dhcp_log())
            }
        }
    }

    /// Loads a file with U-Boot, and compares its checksum.
    fn load(&self, prompt: &mut Terminal, at: &str, name: &str) {
        let text = self.command(prompt, &format!("tftpboot {at} {HOST}:{name}"));
        let bytes = well(fs::read(self.offered(name)));
        assert!(text.contains(&format!("Bytes transferred = {} ", bytes.len())), "{text}");
        let text = self.command(prompt, &format!("crc32 {at} ${{filesize}}"));
        assert!(text.contains(&format!("==> {:08x}", fcs(&bytes))), "{name} is another: {text}");
    }

    /// U-Boot loads a kernel and its initramfs through this driver, and starts it; over an adapter of which the usual scope starts no
    /// kernel it loads a small file.
    fn boot_with_u_boot(&self, driver: UBoot) {
        let (mut guest, mut prompt) = self.u_boot(driver);
        if !self.starts_kernel() {
            return self.load(&mut prompt, KERNEL_AT, MARK);
        }
        self.load(&mut prompt, KERNEL_AT, "vmlinuz");
        self.command(&mut prompt, "setenv kernel_size ${filesize}");
        self.load(&mut prompt, INITRAMFS_AT, "initrd");
        self.command(&mut prompt, &format!("setenv bootargs {}", self.command_line()));
        well(prompt.enter(&format!("zboot {KERNEL_AT} ${{kernel_size}} {INITRAMFS_AT} ${{filesize}}")));
        well(prompt.wait("Starting kernel", SOON));
        // From here on the kernel's console goes to the log, and does not wait for a reader.
        drop(prompt);
        self.runs(&mut guest);
    }

    /// The kernel's command line, with a mark that QEMU does not set.
    fn command_line(&self) -> String {
        format!("{} nicety.booted=network", self.config.command_line())
    }

    /// Checks that the kernel came over the network, and works over the same adapter.
    fn runs(&self, guest: &mut Guest) {
        if let Err(error) = guest.wait_ready() {
            panic!("{}: {error}\n{}", self.adapter, self.all_logs(guest));
        }
        println!("{}: the kernel's init answered after {:.1} s", self.adapter, guest.boot_time().as_secs_f64());
        let line = well(guest.succeed("cat /proc/cmdline", SOON));
        assert!(line.contains("nicety.booted=network"), "{line}");
        let text = self.dhcp_log();
        assert!(text.contains(&format!("DHCPACK({TAP}) {}", address(1))), "{text}");
        ping(guest, "", HOST);
    }
}
