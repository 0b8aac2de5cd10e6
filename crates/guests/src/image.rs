//! A guest's initramfs: its first process, busybox, the drivers of one kernel, and the measurement programs with their libraries.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    cpio::Archive,
    error::{Error, file},
    kernel::Kernel,
    root::{LIBRARIES, Root, fingerprint},
};

/// The guest's first process.
const INIT: &str = concat!("#!/bin/busybox sh\n", include_str!("../control"), include_str!("../init"),);
/// Raise this when an image changes in another way than by its init.
const LAYOUT: u32 = 2;
/// Programs beside busybox that a measurement or a conformance check runs in the guest.
const PROGRAMS: &[&str] =
    &["usr/bin/netperf", "usr/bin/netserver", "usr/bin/iperf3", "usr/sbin/ethtool", "usr/bin/ping"];
/// A library that no program names and the loader does not list. glibc opens it when a thread is cancelled (`pthread_cancel`), as
/// iperf3's are, and ends the program if it is missing. libc6 depends on its package, libgcc-s1.
const OPENED_LATER: &str = "libgcc_s.so.1";
const FOLDERS: &[&str] = &[
    "bin",
    "sbin",
    "dev",
    "proc",
    "sys",
    "tmp",
    "run",
    "etc",
    "lib",
    "lib64",
    "lib/modules",
    "usr",
    "usr/bin",
    "usr/sbin",
    "usr/lib",
    LIBRARIES,
];

/// A kernel and an initramfs for QEMU to boot.
#[derive(Debug, Clone)]
pub struct Image {
    kernel: PathBuf,
    compressed: PathBuf,
    initramfs: PathBuf,
}

impl Image {
    /// The image with this kernel. It is built on first use, then shared by every clone with the same first process.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Unexpected`] if the root is damaged or the disk is full.
    pub fn of(root: &Root, kernel: Kernel) -> Result<Image, Error> {
        let laid = root.kernel(kernel);
        let initramfs = initramfs(root, kernel.version(), Some(&laid))?;
        Ok(Image { kernel: laid.join("vmlinux"), compressed: laid.join("vmlinuz"), initramfs })
    }

    /// The uncompressed kernel.
    pub fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// The kernel as its package contains it, for boot loaders.
    pub fn compressed(&self) -> &Path {
        &self.compressed
    }

    /// The initramfs.
    pub fn initramfs(&self) -> &Path {
        &self.initramfs
    }
}

/// An initramfs with the drivers of an installed kernel, or without drivers for a kernel that has them built in.
pub(super) fn initramfs(root: &Root, name: &str, kernel: Option<&Path>) -> Result<PathBuf, Error> {
    let name = format!("{name}-{LAYOUT}-{:016x}.cpio", fingerprint(INIT.as_bytes()));
    let folder = root.folder().join("images");
    let initramfs = folder.join(&name);
    if initramfs.exists() {
        return Ok(initramfs);
    }
    let _lock = root.lock()?;
    if !initramfs.exists() {
        fs::create_dir_all(&folder).map_err(file("make the folder", &folder))?;
        let fresh = folder.join(format!("{name}.new"));
        fs::write(&fresh, build(root, kernel)?).map_err(file("write", &fresh))?;
        fs::rename(&fresh, &initramfs).map_err(file("rename to its final name", &initramfs))?;
    }
    Ok(initramfs)
}

fn build(root: &Root, kernel: Option<&Path>) -> Result<Vec<u8>, Error> {
    let tree = root.tree();
    let mut archive = Archive::new();
    FOLDERS.iter().for_each(|folder| archive.folder(folder));
    archive.device("dev/console", 5, 1);
    archive.file("init", 0o755, INIT.as_bytes());
    add(&mut archive, &tree.join("usr/bin/busybox"), "bin/busybox")?;
    for applet in applets(&tree.join("usr/bin/busybox"))? {
        archive.link(&format!("bin/{applet}"), "busybox");
    }
    let mut libraries = BTreeSet::from([OPENED_LATER.to_owned()]);
    for program in PROGRAMS {
        add(&mut archive, &tree.join(program), program)?;
        libraries.extend(libraries_of(&tree, program)?);
    }
    add(&mut archive, &tree.join("usr/lib64/ld-linux-x86-64.so.2"), "lib64/ld-linux-x86-64.so.2")?;
    for library in libraries {
        add(&mut archive, &tree.join(LIBRARIES).join(&library), &format!("{LIBRARIES}/{library}"))?;
    }
    archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n");
    archive.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n");
    kernel.map_or(Ok(()), |laid| add_drivers(&mut archive, laid))?;
    Ok(archive.finish())
}

fn add_drivers(archive: &mut Archive, laid: &Path) -> Result<(), Error> {
    let release = fs::read_to_string(laid.join("release")).map_err(file("read", laid.join("release")))?;
    let modules = format!("lib/modules/{}", release.trim());
    archive.folder(&modules);
    let from = laid.join("modules");
    let mut names: Vec<String> = fs::read_dir(&from)
        .map_err(file("read the folder", &from))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    for name in names {
        add(archive, &from.join(&name), &format!("{modules}/{name}"))?;
    }
    Ok(())
}

/// Adds an executable file. Symbolic links are followed.
pub(super) fn add(archive: &mut Archive, from: &Path, to: &str) -> Result<(), Error> {
    archive.file(to, 0o755, &fs::read(from).map_err(file("read", from))?);
    Ok(())
}

/// The names of busybox's commands. busybox is static, so it runs on the host as in the guest.
fn applets(busybox: &Path) -> Result<Vec<String>, Error> {
    let output = Command::new(busybox).arg("--list").output().map_err(file("run", busybox))?;
    let names = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .filter(|n| n != "busybox" && n != "ping")
        .collect::<Vec<_>>();
    if names.iter().any(|name| name == "sh") {
        return Ok(names);
    }
    Err(Error::Unexpected { what: "busybox lists no sh".into(), path: busybox.to_owned() })
}

/// The shared libraries of a program, as its own packages' loader finds them.
pub(super) fn libraries_of(tree: &Path, program: &str) -> Result<Vec<String>, Error> {
    let loader = tree.join("usr/lib64/ld-linux-x86-64.so.2");
    let mut command = Command::new(&loader);
    command.arg("--library-path").arg(tree.join(LIBRARIES)).arg("--list").arg(tree.join(program));
    let output = command.env_remove("LD_PRELOAD").output().map_err(file("run", &loader))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains("not found") || !output.status.success() {
        return Err(Error::Unexpected {
            what: format!("{program} lacks a library: {}", text.trim()),
            path: tree.to_owned(),
        });
    }
    Ok(needed(&text))
}

/// The names before `=>` in the loader's list, without the loader itself.
fn needed(list: &str) -> Vec<String> {
    let names = list.lines().filter_map(|line| line.split_once("=>")).map(|(name, _)| name.trim());
    names.filter(|name| !name.contains('/')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_list_names_the_libraries_to_take_along() {
        let list = "\tlinux-vdso.so.1 (0x00007f0)\n\tlibsctp.so.1 => /r/usr/lib/libsctp.so.1 (0x7)\n\
                    \tlibc.so.6 => /r/libc.so.6 (0x7)\n\t/lib64/ld-linux-x86-64.so.2 => /r/ld-linux-x86-64.so.2 (0x7)\n";
        assert_eq!(needed(list), ["libsctp.so.1", "libc.so.6"]);
    }
}
