//! Installs a kernel from its Debian package: the uncompressed image inside bzImage (Documentation/arch/x86/boot.rst, fields
//! `setup_sects`, `payload_offset`, `payload_length`), and network drivers with their dependencies (`.modinfo`).

use std::{
    collections::BTreeMap,
    fs,
    fs::File,
    path::{Path, PathBuf},
};

use super::{
    super::{
        command::run,
        error::{Error, file},
        kernel::Kernel,
    },
    Root,
};

/// Installs a kernel's image and drivers from its unpacked package into `to`: `vmlinux` (uncompressed, for QEMU),
/// `vmlinuz` (as the package contains it, for boot loaders), `release`, `modules/`.
pub(super) fn lay(root: &Root, kernel: Kernel, unpacked: &Path, to: &Path) -> Result<(), Error> {
    let modules = to.join("modules");
    fs::create_dir_all(&modules).map_err(file("make the folder", &modules))?;
    let release = release(unpacked)?;
    let image = unpacked.join("boot").join(format!("vmlinuz-{release}"));
    extract_image(root, &image, &to.join("vmlinux"))?;
    fs::copy(&image, to.join("vmlinuz")).map_err(file("write", to.join("vmlinuz")))?;
    fs::write(to.join("release"), &release).map_err(file("write", to.join("release")))?;

    let tree = ["usr/lib/modules", "lib/modules"]
        .map(|folder| unpacked.join(folder).join(&release))
        .into_iter()
        .find(|p| p.exists());
    let tree = tree.ok_or_else(|| Error::Unexpected {
        what: "the kernel's package has no modules".into(),
        path: unpacked.to_owned(),
    })?;
    let (mut files, mut folders) = (BTreeMap::new(), vec![tree.join("kernel")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(file("read the folder", &folder))?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(name) = module_name(&path) {
                files.insert(name, path);
            }
        }
    }
    let builtin =
        fs::read_to_string(tree.join("modules.builtin")).map_err(file("read", tree.join("modules.builtin")))?;
    let builtin: Vec<String> = builtin.lines().filter_map(|line| module_name(Path::new(line))).collect();
    lay_drivers(root, &kernel.drivers(), &files, &builtin, &modules)
}

/// Installs a kernel's drivers and all their dependencies, and writes `modules.dep` and `modules.alias` as depmod(8) would.
fn lay_drivers(
    root: &Root,
    drivers: &[&str],
    files: &BTreeMap<String, PathBuf>,
    builtin: &[String],
    to: &Path,
) -> Result<(), Error> {
    let mut direct: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut aliases = String::new();
    let mut wanted: Vec<String> = drivers.iter().map(|name| name.replace('-', "_")).collect();
    while let Some(name) = wanted.pop() {
        if direct.contains_key(&name) || builtin.contains(&name) {
            continue;
        }
        let Some(path) = files.get(&name) else {
            return Err(Error::Unexpected {
                what: format!("the kernel's package has no driver {name}"),
                path: to.to_owned(),
            });
        };
        let laid = to.join(format!("{name}.ko"));
        unpack(root, path, &laid)?;
        let bytes = fs::read(&laid).map_err(file("read", &laid))?;
        let depends = module_facts(&bytes, "depends")
            .flat_map(|list| list.split(',').map(|d| d.replace('-', "_")).collect::<Vec<_>>());
        let depends: Vec<String> = depends.filter(|d| !d.is_empty()).collect();
        for alias in module_facts(&bytes, "alias") {
            aliases.push_str(&format!("alias {alias} {name}\n"));
        }
        wanted.extend(depends.iter().cloned());
        direct.insert(name, depends);
    }
    let mut dependencies = String::new();
    for name in direct.keys() {
        let mut order = Vec::new();
        load_order(name, &direct, &mut order);
        // depmod's order: the module, then its dependencies, in reverse loading order.
        let line: Vec<String> = order.iter().rev().skip(1).map(|n| format!(" {n}.ko")).collect();
        dependencies.push_str(&format!("{name}.ko:{}\n", line.concat()));
    }
    fs::write(to.join("modules.dep"), dependencies).map_err(file("write", to.join("modules.dep")))?;
    fs::write(to.join("modules.alias"), aliases).map_err(file("write", to.join("modules.alias")))
}

/// Appends `name` after all its dependencies. Modules cannot depend on each other in a cycle: the kernel's build refuses that.
fn load_order(name: &str, direct: &BTreeMap<String, Vec<String>>, order: &mut Vec<String>) {
    for needed in direct.get(name).into_iter().flatten() {
        if !order.contains(needed) && direct.contains_key(needed) {
            load_order(needed, direct, order);
        }
    }
    order.push(name.to_owned());
}

/// The kernel's full release, from the file names in the package.
fn release(unpacked: &Path) -> Result<String, Error> {
    let boot = unpacked.join("boot");
    let names = fs::read_dir(&boot).map_err(file("read the folder", &boot))?.flatten();
    names
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned()))
        .next()
        .ok_or_else(|| Error::Unexpected { what: "the kernel's package has no image".into(), path: boot })
}

/// The kernel's name of a module file: `.../ne2k-pci.ko.xz` → `ne2k_pci`.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let stem =
        name.strip_suffix(".ko.xz").or_else(|| name.strip_suffix(".ko.zst")).or_else(|| name.strip_suffix(".ko"))?;
    Some(stem.replace('-', "_"))
}

/// The values of `key=value` strings in a module. `.modinfo` is a sequence of them, each ended by a NUL.
fn module_facts<'a>(module: &'a [u8], key: &'a str) -> impl Iterator<Item = String> + 'a {
    module
        .split(|byte| *byte == 0)
        .filter_map(move |field| field.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
        .filter_map(|value| String::from_utf8(value.to_vec()).ok())
}

/// The compressed kernel in a bzImage, located by the fields of its setup header.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at.checked_add(4)?)?.try_into().ok()?));
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let sectors = match image.get(0x1f1)? {
        0 => 4,
        given => usize::from(*given),
    };
    let start = (sectors + 1).checked_mul(512)?.checked_add(usize::try_from(word(0x248)?).ok()?)?;
    let end = start.checked_add(usize::try_from(word(0x24c)?).ok()?)?;
    image.get(start..end)
}

/// Writes the uncompressed kernel of a bzImage. QEMU boots it through its PVH entry, without decompressing it under emulation.
fn extract_image(root: &Root, image: &Path, to: &Path) -> Result<(), Error> {
    let bytes = fs::read(image).map_err(file("read", image))?;
    let unexpected =
        |what: &str| Error::Unexpected { what: format!("{}: {what}", image.display()), path: to.to_owned() };
    let payload = payload(&bytes).ok_or_else(|| unexpected("no bzImage"))?;
    // The kernel's build appends the uncompressed size, in four bytes, to the output of both compressors.
    let compressed = payload.get(..payload.len().saturating_sub(4)).unwrap_or_default();
    let suffix = match compressed {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zst",
        _ => return Err(unexpected("compressed neither with xz nor with zstd")),
    };
    let packed = to.with_extension(suffix);
    fs::write(&packed, compressed).map_err(file("write", &packed))?;
    unpack(root, &packed, to)?;
    fs::remove_file(&packed).map_err(file("remove", &packed))?;
    let mut magic = [0; 4];
    File::open(to).and_then(|mut f| std::io::Read::read_exact(&mut f, &mut magic)).map_err(file("read", to))?;
    if &magic == b"\x7fELF" { Ok(()) } else { Err(unexpected("what it unpacks to is no ELF file")) }
}

/// Unpacks `.xz` and `.zst` with the root's own programs, and copies other files.
fn unpack(root: &Root, from: &Path, to: &Path) -> Result<(), Error> {
    let program = match from.extension().and_then(|e| e.to_str()) {
        Some("xz") => "usr/bin/xz",
        Some("zst") => "usr/bin/zstd",
        _ => return fs::copy(from, to).map(drop).map_err(file("write", to)),
    };
    let output = File::create(to).map_err(file("write", to))?;
    run(root.program(program).arg("-dc").arg(from).stdout(output), || format!("unpacking {}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_a_module_are_the_nul_ended_strings_of_its_modinfo() {
        let module = b"\x7fELF..\0license=GPL\0depends=mii,8390\0alias=pci:v000010ECd00008029sv*sd*bc*sc*i*\0alias=pci:x\0nodepends=1\0";
        assert_eq!(module_facts(module, "depends").collect::<Vec<_>>(), ["mii,8390"]);
        assert_eq!(module_facts(module, "alias").count(), 2);
    }

    #[test]
    fn a_module_is_loaded_after_everything_that_it_needs() {
        let direct: BTreeMap<String, Vec<String>> = [("a", vec!["b", "c"]), ("b", vec!["c"]), ("c", vec![])]
            .into_iter()
            .map(|(n, d)| (n.to_owned(), d.into_iter().map(str::to_owned).collect()))
            .collect();
        let mut order = Vec::new();
        load_order("a", &direct, &mut order);
        assert_eq!(order, ["c", "b", "a"]);
    }

    #[test]
    fn a_truncated_or_lying_boot_header_is_no_image() {
        assert_eq!(payload(&[]), None);
        let mut image = vec![0; 0x250];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x250].fill(0xff);
        assert_eq!(payload(&image), None);
        image.resize(4096, 7);
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&32u32.to_le_bytes());
        assert_eq!(payload(&image), Some(&[7u8; 32][..]));
    }

    #[test]
    fn modules_are_named_as_the_kernel_names_them() {
        assert_eq!(
            module_name(Path::new("kernel/drivers/net/ethernet/8390/ne2k-pci.ko.xz")).as_deref(),
            Some("ne2k_pci")
        );
        assert_eq!(module_name(Path::new("modules.dep")), None);
    }
}
