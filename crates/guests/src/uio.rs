//! `nicety-uio` in a guest: the program that drives an adapter without a Linux driver, from user space over `uio_pci_generic`.
//! The guest's interface is a tap.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Duration,
};

use super::{
    cpio::Archive,
    error::{Error, file},
    guest::Guest,
    qemu::GuestConfig,
};
use crate::folder::Folder;

/// Name of the program, on the host and in the guest.
const NAME: &str = "nicety-uio";
/// The driver requested by name. A flexible adapter identifies itself as a pcnet until this driver has morphed it.
const DRIVER: &str = "vmxnet";
/// The drivers that a kernel needs for the program. A user-mode kernel has them built in.
const KERNEL_DRIVERS: [&str; 2] = ["uio_pci_generic", "tun"];
/// The program uses four huge pages. A user-mode kernel has none.
const HUGE_PAGES: &str = "hugepages=4";
/// File for its messages, and then its exit code.
const LOG: &str = "/tmp/uio";
/// Time limit of each step, in a guest without KVM.
const SLACK: Duration = Duration::from_secs(30);

/// The program, located beside `nicety`.
#[derive(Debug, Clone)]
pub struct Uio {
    program: PathBuf,
}

/// The tap that the program makes in a guest.
#[derive(Debug, Clone, Copy)]
pub struct Tap<'a> {
    /// Its name.
    pub name: &'a str,
    /// The adapter's MAC address, which the tap gets too.
    pub mac: &'a str,
    /// The guest's address on the tap, `10.9.1.1/24`.
    pub address: &'a str,
}

impl Uio {
    /// The adapters that it drives. Linux drives a flexible one too, but only in its initial pcnet personality, which the vlance's row
    /// covers.
    pub const DRIVES: [&str; 3] = ["vmxnet", "vmxnet2", "flexible"];

    /// The program in the folder of `nicety`; a build puts both there.
    ///
    /// # Errors
    /// [`Error::NoUio`] if it is missing.
    pub fn beside(nicety: &Path) -> Result<Uio, Error> {
        let program = nicety.with_file_name(NAME);
        if program.is_file() { Ok(Uio { program }) } else { Err(Error::NoUio { program }) }
    }

    /// The program's file.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Prepares a guest in QEMU: the program, the kernel's drivers and no others, huge pages. The initramfs archive is written to `folder`,
    /// followed by `archives`.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Folder`].
    pub fn in_qemu(&self, config: GuestConfig, folder: &Folder, archives: &[u8]) -> Result<GuestConfig, Error> {
        let mut archive = Archive::new();
        let content = fs::read(&self.program).map_err(file("read", &self.program))?;
        archive.file(&format!("bin/{NAME}"), 0o755, &content);
        let archive = [&archive.finish(), archives].concat();
        let mut config = GuestConfig {
            drivers: KERNEL_DRIVERS.map(str::to_owned).into(),
            archive: Some(folder.write("uio.cpio", archive)?),
            ..config
        };
        config.append.push(HUGE_PAGES.to_owned());
        Ok(config)
    }

    /// Makes the program available in a running user-mode guest, which mounts the host's folder.
    ///
    /// # Errors
    /// Those of [`Guest::succeed_unless`].
    pub fn in_user_mode(&self, guest: &mut Guest, stop: &AtomicBool) -> Result<(), Error> {
        let folder = self.program.parent().unwrap_or(Path::new("/"));
        let folder = fs::canonicalize(folder).map_err(file("find", folder))?;
        let mount = format!(
            "mkdir /host && mount -t hostfs -o {} none /host && ln -s /host/{NAME} /bin",
            quoted(&folder.display().to_string())
        );
        guest.succeed_unless(&mount, SLACK, stop).map(drop)
    }

    /// Rebinds the guest's network function of this number (from 1) from its driver to `uio_pci_generic`. Returns its PCI address.
    ///
    /// # Errors
    /// Those of [`Guest::succeed_unless`].
    pub fn hand_over(guest: &mut Guest, number: u8, stop: &AtomicBool) -> Result<String, Error> {
        let find = format!(
            "cd /sys/bus/pci; f=$(for d in devices/*; do case $(cat $d/class) in 0x02*) echo ${{d##*/}};; esac; done | sed -n {number}p)"
        );
        let give = "echo uio_pci_generic >devices/$f/driver_override; [ ! -e devices/$f/driver ] || echo $f >devices/$f/driver/unbind; \
                    echo $f >drivers_probe; [ -d devices/$f/uio ] && echo $f";
        let address = guest.succeed_unless(&format!("{find}; {give}"), SLACK, stop)?;
        Ok(address.trim().to_owned())
    }

    /// Starts the program for a function after [`Uio::hand_over`], and brings its tap up.
    ///
    /// # Errors
    /// [`Error::Command`] with its messages if it does not drive the adapter.
    pub fn start(guest: &mut Guest, pci: &str, tap: Tap<'_>, stop: &AtomicBool) -> Result<(), Error> {
        let Tap { name, mac, address } = tap;
        let run = format!(
            "rm -f {LOG}; [ -e /dev/net/tun ] || {{ mkdir -p /dev/net; mknod /dev/net/tun c 10 200; }}; \
             ({NAME} {pci} {name} {DRIVER} >{LOG} 2>&1; echo $? >>{LOG}) >/dev/null 2>&1 &"
        );
        guest.succeed_unless(&run, SLACK, stop)?;
        // Once it drives the adapter, the program asks for the interface to be brought up.
        let up = format!("ip link set {name} address {mac} up");
        let wait = format!(
            "until [ -s {LOG} ]; do rest; done; cat {LOG}; grep -Fqx '{pci}: run `{up}`' {LOG} && {up} && ip addr add {address} dev {name}"
        );
        guest.succeed_unless(&wait, SLACK, stop).map(drop)
    }

    /// Ends the program, as a person would.
    ///
    /// # Errors
    /// [`Error::Command`] with its messages if its exit code is not 0.
    pub fn stop(guest: &mut Guest, stop: &AtomicBool) -> Result<(), Error> {
        let end = format!(
            "killall {NAME}; until grep -qx '[0-9]*' {LOG}; do rest; done; cat {LOG}; [ \"$(tail -n 1 {LOG})\" = 0 ]"
        );
        guest.succeed_unless(&end, SLACK, stop).map(drop)
    }
}

/// Quotes text as one word for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_beside_nicety_is_named_with_what_builds_it() {
        let folder = Folder::new().unwrap();
        let nicety = folder.path().join("nicety");
        let error = Uio::beside(&nicety).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} is not there", folder.join(NAME))), "{error}");
        assert!(error.contains("`cargo build -p nicety`"), "{error}");
        // A folder of that name is not the program.
        fs::create_dir(folder.path().join(NAME)).unwrap();
        assert!(matches!(Uio::beside(&nicety), Err(Error::NoUio { .. })));
    }

    #[test]
    fn a_guest_in_qemu_gets_the_program_both_drivers_and_huge_pages() {
        let folder = Folder::new().unwrap();
        folder.write(NAME, b"a program").unwrap();
        let uio = Uio::beside(&folder.path().join("nicety")).unwrap();
        let config = uio.in_qemu(GuestConfig::new(crate::Kernel::V6_12), &folder, b"behind it").unwrap();
        assert!(config.command_line().ends_with("nicety.modules=uio_pci_generic,tun hugepages=4"));
        let archive = fs::read(config.archive.unwrap()).unwrap();
        let text = String::from_utf8_lossy(&archive);
        assert!(text.contains("bin/nicety-uio\0") && text.contains("a program") && text.ends_with("behind it"));
    }

    #[test]
    fn a_folder_of_any_name_is_one_word() {
        for name in ["/plain", "/with space", "/it's", "/a$b`c"] {
            let output = std::process::Command::new("sh").args(["-c", &format!("printf %s {}", quoted(name))]).output();
            assert_eq!(String::from_utf8_lossy(&output.unwrap().stdout), name);
        }
    }
}
