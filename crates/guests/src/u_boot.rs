//! U-Boot for QEMU's `pc` with the drivers that Debian's build leaves out, from Debian's source package. It is built once as
//! `$XDG_CACHE_HOME/nicety/u-boot-FINGERPRINT/u-boot.rom` and shared by every clone.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use super::{
    command::run,
    error::{Error, file},
    root::{Lock, cache, fingerprint, open_mirror, remove_folder},
    uml::{Tools, missing},
};

/// Raise this when the result changes in another way than by the lists below.
const LAYOUT: u32 = 1;
const PACKAGE: &str = "u-boot";
/// The configuration for QEMU's `pc`, and the changes to it. Some options are turned off because they need headers of more libraries.
const BASE: &str = "qemu-x86_defconfig";
const MORE: &str = "CONFIG_PCNET=y\nCONFIG_RTL8139=y\n# CONFIG_EFI_LOADER is not set\n# CONFIG_TOOLS_KWBIMAGE is not set\n\
    # CONFIG_TOOLS_LIBCRYPTO is not set\n# CONFIG_TOOLS_MKEFICAPSULE is not set\n";
/// Drivers to fix. Each change is a line that the driver has exactly once, and its replacement.
const CHANGES: &[(&str, &[(&str, &str)])] = &[
    // The driver takes the chip's memory address and uses that number as a port for its registers. This works only where ports lie in
    // memory. On a PC it finds nothing, not even QEMU's own model. The change gives it the chip's ports.
    (
        "drivers/net/rtl8139.c",
        &[
            (
                "dm_pci_read_config32(dev, PCI_BASE_ADDRESS_1, &iobase);",
                "dm_pci_read_config32(dev, PCI_BASE_ADDRESS_0, &iobase);",
            ),
            (
                "priv->ioaddr = (unsigned long)bus_to_phys(dev, iobase);",
                "priv->ioaddr = (unsigned long)dm_pci_io_to_phys(dev, iobase);",
            ),
        ],
    ),
    // When it finds no frame, the driver reports a frame of no bytes, so U-Boot (eth_rx) frees that frame. The driver then writes back the
    // status that it had read, and a frame that arrived in between is lost.
    (
        "drivers/net/pcnet.c",
        &[("if ((lp->status & 0x8000) != 0)\n\t\treturn 0;", "if ((lp->status & 0x8000) != 0)\n\t\treturn -EAGAIN;")],
    ),
];
/// Parts of the image with their offsets, or none to follow the part before (arch/x86/dts/u-boot.dtsi): U-Boot, its device tree, and the
/// code that the processor runs first. U-Boot's own binman does the same, but needs Python with more packages.
const PARTS: &[(&str, Option<usize>)] = &[
    ("u-boot-nodtb.bin", Some(0)),
    ("dts/dt.dtb", None),
    ("u-boot-x86-start16.bin", Some(IMAGE_BYTES - 0x800)),
    ("u-boot-x86-reset16.bin", Some(IMAGE_BYTES - 0x10)),
];
const IMAGE_BYTES: usize = 1 << 20;

/// The image, built if it is missing. `progress` gets a line for each step. It takes 33 MB from the mirror, and 75 s of one
/// processor.
///
/// # Errors
/// See [`Error`]; each names its remedy.
pub(super) fn lay(progress: &mut dyn FnMut(&str)) -> Result<PathBuf, Error> {
    let cache = cache()?;
    let recipe = format!("{LAYOUT} {PACKAGE} {BASE} {MORE} {CHANGES:?} {PARTS:?}");
    let place = cache.join(format!("u-boot-{:016x}", fingerprint(recipe.as_bytes())));
    let image = place.join("u-boot.rom");
    if image.is_file() {
        return Ok(image);
    }
    // Installing the tools takes the same lock, so this comes first.
    let tools = Tools::lay(&env::var_os("PATH").unwrap_or_default(), &cache.join("uml-tools"), progress)?;
    tools.check_headers()?;
    let _lock = Lock::take(&cache, progress)?;
    if image.is_file() {
        return Ok(image);
    }
    let laying = place.with_extension("laying");
    remove_folder(&laying)?;
    let tree = laying.join("tree");
    fs::create_dir_all(&tree).map_err(file("make the folder", &tree))?;
    unpack_source(&laying, &tree, &tools, progress)?;
    for (driver, changes) in CHANGES {
        change(&tree.join(driver), changes)?;
    }
    let parts = build(&tree, &tools, progress)?;
    remove_folder(&tree)?;
    let built = laying.join("u-boot.rom");
    fs::write(&built, join(&parts)?).map_err(file("write", &built))?;
    remove_folder(&place)?;
    fs::rename(&laying, &place).map_err(file("rename to its final name", &place))?;
    Ok(image)
}

/// Unpacks the upstream source, as Debian distributes it.
fn unpack_source(laying: &Path, tree: &Path, tools: &Tools, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
    if Command::new("bzip2").arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return Err(Error::Program { program: "bzip2", package: "bzip2" });
    }
    let downloads = laying.join("apt");
    let apt = open_mirror(&downloads, progress)?;
    progress("bringing U-Boot's source, 33 MB");
    let archive = apt.bring_source(PACKAGE)?;
    let mut tar = tools.command("tar");
    tar.arg("-xf").arg(&archive).arg("--strip-components=1").arg("-C").arg(tree);
    run(&mut tar, || format!("unpacking {}", archive.display()))?;
    remove_folder(&downloads)
}

/// Makes each change of a file. Fails unless each line occurs exactly once.
fn change(path: &Path, changes: &[(&str, &str)]) -> Result<(), Error> {
    let mut text = fs::read_to_string(path).map_err(file("read", path))?;
    for (from, to) in changes {
        if text.matches(from).count() != 1 {
            let what = format!("U-Boot's source does not have once: {from}");
            return Err(Error::Unexpected { what, path: path.to_owned() });
        }
        text = text.replace(from, to);
    }
    fs::write(path, text).map_err(file("write", path))
}

/// Builds [`PARTS`] in the tree. Returns their bytes.
fn build(tree: &Path, tools: &Tools, progress: &mut dyn FnMut(&str)) -> Result<Vec<Vec<u8>>, Error> {
    let base = tree.join("configs").join(BASE);
    let config = fs::read_to_string(&base).map_err(file("read", &base))? + MORE;
    let own = tree.join("configs/nicety_defconfig");
    fs::write(&own, config).map_err(file("write", &own))?;
    let make = |words: &[&str]| {
        let mut make = tools.command("make");
        // These parts need neither of the two, and both need more Python packages than most machines have.
        make.arg("-C").arg(tree).args(["CONFIG_PYLIBFDT=", "PYTHON3=false"]).args(words).stdout(Stdio::null());
        run(&mut make, || format!("make {} for U-Boot", words.join(" ")))
    };
    make(&["nicety_defconfig"])?;
    let config = tree.join(".config");
    let missing = missing(MORE, &fs::read_to_string(&config).map_err(file("read", &config))?);
    if !missing.is_empty() {
        return Err(Error::Unexpected { what: format!("U-Boot does not take {}", missing.join(", ")), path: config });
    }
    let cpus = thread::available_parallelism().map_or(2, usize::from);
    progress(&format!("building U-Boot on {cpus} processors"));
    let jobs = format!("-j{cpus}");
    let words: Vec<&str> = std::iter::once(jobs.as_str()).chain(PARTS.iter().map(|(name, _)| *name)).collect();
    make(&words)?;
    let part = |name: &str| fs::read(tree.join(name)).map_err(file("read", tree.join(name)));
    PARTS.iter().map(|(name, _)| part(name)).collect()
}

/// Places [`PARTS`] in an image that ends at the top of the processor's address space.
fn join(parts: &[Vec<u8>]) -> Result<Vec<u8>, Error> {
    let mut image = vec![0xff; IMAGE_BYTES];
    let mut free = 0;
    for ((name, at), bytes) in PARTS.iter().zip(parts) {
        let begin = at.unwrap_or(free);
        free = begin.saturating_add(bytes.len());
        match image.get_mut(begin..free) {
            Some(place) if PARTS.iter().all(|(_, next)| next.is_none_or(|next| next <= begin || free <= next)) => {
                place.copy_from_slice(bytes);
            }
            _ => return Err(Error::Run { doing: "making U-Boot's image".into(), said: format!("no room for {name}") }),
        }
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn an_image_has_each_part_at_its_place_and_one_that_is_too_long_is_refused() {
        let mut parts = vec![vec![1; 100], vec![2; 20], vec![3; 112], vec![4; 16]];
        let image = join(&parts).unwrap();
        assert_eq!(image.len(), IMAGE_BYTES);
        let counts = [1, 2, 3, 4].map(|part| image.iter().filter(|&&byte| byte == part).count());
        assert_eq!(counts, [100, 20, 112, 16]);
        assert_eq!((image[119], image[120], image[0xf_f800], image[0xf_fff0]), (2, 0xff, 3, 4));
        for (part, bytes) in [(3, 17), (2, 0x7f1), (1, 0xf_f800 - 99)] {
            let good = std::mem::replace(&mut parts[part], vec![0; bytes]);
            let error = join(&parts).unwrap_err().to_string();
            assert!(error.contains(PARTS[part].0), "{error}");
            parts[part] = good;
        }
    }

    #[test]
    fn a_source_that_lacks_a_line_or_has_it_twice_is_left_as_it_is() {
        let folder = Folder::new().unwrap();
        let path = folder.write("driver.c", "one\ntwo\ntwo\n").unwrap();
        for from in ["three", "two"] {
            let error = change(&path, &[("one", "1"), (from, "2")]).unwrap_err().to_string();
            assert!(error.contains(&format!("does not have once: {from}")), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\ntwo\n");
        }
        change(&path, &[("one", "1")]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\ntwo\ntwo\n");
    }
}
