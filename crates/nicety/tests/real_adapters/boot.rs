//! Booting over the network: iPXE in the e1000's option ROM, DHCP and HTTP through the switch.

use std::{fs, process::Command, time::Duration};

use nicety_lab::real::{Folder, Guest, GuestConfig, Image, Kernel, Port, Start};

use crate::stage::{HOST, Stage, TAP, address, ping, port, well};

/// The firmware, two transfers of megabytes by polling, and a kernel that unpacks itself, all translated.
const BOOT_LIMIT: Duration = Duration::from_secs(240);

#[test]
fn a_guest_boots_by_ipxe_from_the_e1000s_rom_with_dhcp_and_http_through_the_switch() {
    let root = well(nicety_lab::real::Root::lay(&mut |line| eprintln!("{line}")));
    let rom = root.option_rom("pxe-e1000.rom");
    let with_rom = Port { more: format!("rom = \"{}\"\n", rom.display()), ..port("e1000", 1) };
    let mut stage = Stage::with(vec![with_rom]);
    let mut config = GuestConfig { start: Start::Network, boot_limit: BOOT_LIMIT, ..stage.config(Kernel::V6_12, 1) };
    let place = config.devices.iter_mut().find(|word| word.contains("vfio-user-pci"));
    let place = place.unwrap_or_else(|| panic!("the port is a vfio-user function"));
    *place = place.replacen('{', "{\"bootindex\":1,", 1);

    let folder = well(Folder::new());
    serve_files(&folder, &Image::of(&root, Kernel::V6_12).unwrap_or_else(|error| panic!("{error}")), &config);
    serve(&mut stage, &folder);
    let mut guest = well(Guest::start(&root, config));
    if let Err(error) = guest.wait_ready() {
        panic!("{error}\nthe daemon said\n{}\nDHCP said\n{}", stage.served.log(), read(&folder, "dhcp.log"));
    }
    println!("the kernel's init answered after {:.1} s", guest.boot_time().as_secs_f64());
    let line = well(guest.succeed("cat /proc/cmdline", Duration::from_secs(30)));
    assert!(line.contains("nicety.booted=network"), "{line}");
    let dhcp = read(&folder, "dhcp.log");
    assert!(dhcp.contains(&format!("sending ACK to {}", address(1))), "{dhcp}");
    ping(&mut guest, "", HOST);
}

fn read(folder: &Folder, name: &str) -> String {
    fs::read_to_string(folder.path().join(name)).unwrap_or_default()
}

/// What HTTP offers: a script, a kernel, an initramfs.
fn serve_files(folder: &Folder, image: &Image, config: &GuestConfig) {
    let www = folder.path().join("www");
    well(fs::create_dir(&www));
    let script = format!(
        "#!ipxe\nkernel http://{HOST}/vmlinuz initrd=initrd {} nicety.booted=network\ninitrd --name initrd http://{HOST}/initrd\nboot\n",
        config.command_line()
    );
    well(fs::write(www.join("boot.ipxe"), script));
    well(fs::copy(image.compressed(), www.join("vmlinuz")));
    well(fs::copy(image.initramfs(), www.join("initrd")));
}

/// DHCP and HTTP on the host's side of the tap, by busybox.
fn serve(stage: &mut Stage, folder: &Folder) {
    let path = |name: &str| folder.path().join(name);
    let lease = address(1);
    let settings = format!(
        "start {lease}\nend {lease}\ninterface {TAP}\nlease_file {}\npidfile {}\nboot_file http://{HOST}/boot.ipxe\n\
         siaddr {HOST}\nopt subnet 255.255.255.0\nopt router {HOST}\n",
        path("leases").display(),
        path("pid").display()
    );
    well(fs::write(path("udhcpd.conf"), settings));
    well(fs::write(path("leases"), ""));
    let busybox = stage.root.busybox();
    let mut dhcp = Command::new(&busybox);
    dhcp.args(["udhcpd", "-f"]).arg(path("udhcpd.conf"));
    well(stage.namespace.start(&dhcp, &path("dhcp.log")));
    let mut http = Command::new(&busybox);
    http.args(["httpd", "-f", "-p", &format!("{HOST}:80"), "-h"]).arg(path("www"));
    well(stage.namespace.start(&http, &path("http.log")));
}
