//! Lays what real guests are made of, and says what was laid. `cargo xtask guests` runs this.
//!
//! `--again` removes it first, so that today's packages are brought. `--boot` boots a guest with each kernel. `--tests` lays what only
//! the tests need, too: a kernel for several processors, U-Boot with more drivers, and programs of this machine, such as Chromium.

mod help;

use std::{env, process::ExitCode, time::Instant};

use nicety_guests::{
    Accel, Error, Firmware, Guest, GuestConfig, Image, Kernel, Root, Tool,
    uml::{UmlConfig, UmlKernel},
};

fn main() -> ExitCode {
    help::on_request(include_str!("guests.rs"));
    let mut again = false;
    let mut boot = false;
    let mut tests = false;
    for argument in env::args().skip(1) {
        match argument.as_str() {
            "--again" => again = true,
            "--boot" => boot = true,
            "--tests" => tests = true,
            other => {
                eprintln!("`{other}` is not known: --again, --boot, --tests");
                return ExitCode::from(2);
            }
        }
    }
    match lay(again, boot, tests) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn lay(again: bool, boot: bool, tests: bool) -> Result<(), Error> {
    let begin = Instant::now();
    let mut progress = |line: &str| eprintln!("{:6.1} s  {line}", begin.elapsed().as_secs_f64());
    if again {
        Root::remove(&mut progress)?;
        UmlKernel::remove(&mut progress)?;
    }
    let root = Root::lay(&mut progress)?;
    Firmware::lay(&mut progress)?;
    let user_mode = UmlKernel::lay(&mut progress)?;
    if tests {
        Tool::lay_all(&mut progress)?;
        UmlKernel::lay_smp(&mut progress)?;
        if std::env::var_os("NICETY_FULL").is_some_and(|value| value == "1") {
            UmlKernel::lay_virtual_time(&mut progress)?;
        }
        Firmware::more_of_u_boot(GuestConfig::new(Kernel::V6_12), &mut progress)?;
    }
    println!("{} MB in {}, laid in {:.0} s", root.size() / 1_000_000, root.folder().display(), root.seconds());
    for package in ["qemu-system-x86", "seabios", "ipxe-qemu", "busybox-static", "netperf", "iperf3", "ethtool"] {
        println!("  {package} {}", root.version(package).unwrap_or("is missing"));
    }
    for kernel in Kernel::ALL {
        let image = Image::of(&root, kernel)?;
        let megabytes = |path| std::fs::metadata(path).map_or(0.0, |meta| meta.len() as f64 / 1e6);
        let name = root.packages().iter().find(|p| p.name.starts_with(&format!("linux-image-{kernel}.")));
        println!(
            "  kernel {kernel}: {}, image {:.0} MB, initramfs {:.0} MB",
            name.map_or("is missing", |package| package.version.as_str()),
            megabytes(image.kernel()),
            megabytes(image.initramfs())
        );
    }
    println!(
        "  kernel {} in user mode, from {}, built in {:.0} s: {}",
        user_mode.release(),
        user_mode.source(),
        user_mode.seconds(),
        user_mode.program().display()
    );
    if !boot {
        return Ok(());
    }
    let guest = Guest::boot(&root, UmlConfig::new(&user_mode))?;
    println!("  kernel {} in user mode answered after {:.2} s", user_mode.release(), guest.boot_time().as_secs_f64());
    let accel = Accel::Auto.resolve(&root)?;
    println!(
        "  guests run by {}",
        if accel == Accel::Kvm { "KVM" } else { "translation (TCG): no KVM that boots a stock kernel" }
    );
    for kernel in Kernel::ALL {
        let guest = Guest::boot(&root, GuestConfig { accel, ..GuestConfig::new(kernel) })?;
        println!("  kernel {kernel} answered after {:.1} s", guest.boot_time().as_secs_f64());
    }
    Ok(())
}
