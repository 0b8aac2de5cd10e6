//! Packages installed beside the guests' root, each set in a folder of its own: programs that a benchmark needs on the host.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    command::run,
    cpio::Archive,
    error::{Error, file},
    image::{add, libraries_of},
    root::{LIBRARIES, Lock, cache, fingerprint, open_mirror, remove_folder, unpack},
};

/// Raise this when the content of a layer changes in another way than by the list of packages.
const LAYOUT: u32 = 1;
/// Folders that take space and that no program needs.
const NOT_NEEDED: &[&str] =
    &["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/include", "var"];

/// The packages' loader.
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";

/// Packages with all their dependencies, unpacked under the cache and run by their own loader.
#[derive(Debug, Clone)]
pub struct Layer {
    folder: PathBuf,
}

impl Layer {
    /// Installs packages of trixie (`name/bookworm` for that suite) under this name if they are missing. `progress` gets a line for each
    /// step.
    ///
    /// # Errors
    /// See [`Error`]; each names its remedy.
    pub fn lay(name: &str, packages: &[&str], progress: &mut dyn FnMut(&str)) -> Result<Layer, Error> {
        Layer::lay_with(name, packages, &[], progress)
    }

    /// Like [`Layer::lay`]. These programs (`usr/bin/xz`) can also be started by their path, by a shell or by each other, without
    /// [`Layer::program`].
    pub(super) fn lay_with(
        name: &str,
        packages: &[&str],
        programs: &[&str],
        progress: &mut dyn FnMut(&str),
    ) -> Result<Layer, Error> {
        let cache = cache()?;
        let mut recipe = format!("{LAYOUT} {packages:?} {NOT_NEEDED:?}");
        let mut packages = packages.to_vec();
        if !programs.is_empty() {
            packages.push("patchelf");
            // The programs name their folder, so a moved cache needs new ones.
            recipe += &format!(" {programs:?} {}", cache.display());
        }
        let place = cache.join(format!("{name}-{:016x}", fingerprint(recipe.as_bytes())));
        if place.is_dir() {
            return Ok(Layer { folder: place });
        }
        let _lock = Lock::take(&cache, progress)?;
        if place.is_dir() {
            return Ok(Layer { folder: place });
        }
        let laying = place.with_extension("laying");
        remove_folder(&laying)?;
        fs::create_dir_all(&laying).map_err(file("make the folder", &laying))?;
        let downloads = cache.join(format!("apt-{name}"));
        let apt = open_mirror(&downloads, progress)?;
        let debs = apt.closure(&packages)?;
        let bytes: u64 = debs.iter().map(|deb| deb.bytes).sum();
        progress(&format!("bringing {} packages, {} MB", debs.len(), bytes / 1_000_000));
        apt.bring_closure(&packages)?;
        progress(&format!("unpacking {} packages", debs.len()));
        debs.iter().try_for_each(|deb| unpack(&apt.archives().join(&deb.file), &laying))?;
        NOT_NEEDED.iter().try_for_each(|path| remove_folder(&laying.join(path)))?;
        let laid = Layer { folder: laying.clone() };
        programs.iter().try_for_each(|program| laid.make_startable(program, &place))?;
        fs::rename(&laying, &place).map_err(file("rename to its final name", &place))?;
        remove_folder(&downloads)?;
        Ok(Layer { folder: place })
    }

    /// Writes the loader and the libraries of the final folder into a program: the machine's own loader would take the machine's libraries.
    fn make_startable(&self, program: &str, place: &Path) -> Result<(), Error> {
        let mut patch = self.program("usr/bin/patchelf");
        // DT_RPATH and not DT_RUNPATH, which does not reach the libraries' own libraries (ld.so(8)).
        patch.arg("--set-interpreter").arg(place.join(LOADER)).arg("--force-rpath");
        patch.arg("--set-rpath").arg(place.join(LIBRARIES)).arg(self.path(program));
        run(&mut patch, || format!("preparing {program}"))
    }

    /// Programs of the layer (`usr/bin/xz`), further files, and the libraries of all of them, as an initramfs archive. It is unpacked after
    /// a guest's own ([`GuestConfig::archive`](super::GuestConfig::archive)).
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Unexpected`] if one of them is missing, or lacks a library.
    pub fn archive(&self, files: &[&str]) -> Result<Vec<u8>, Error> {
        let mut all: BTreeSet<String> = files.iter().map(|&name| name.to_owned()).collect();
        for name in files {
            if !is_program(&self.folder.join(name)) {
                continue;
            }
            all.extend(libraries_of(&self.folder, name)?.iter().map(|library| format!("{LIBRARIES}/{library}")));
        }
        let (mut archive, mut folders) = (Archive::new(), BTreeSet::new());
        for name in &all {
            let above = name.match_indices('/').filter_map(|(end, _)| name.get(..end));
            above.filter(|folder| folders.insert((*folder).to_owned())).for_each(|folder| archive.folder(folder));
            add(&mut archive, &self.folder.join(name), name)?;
        }
        Ok(archive.finish())
    }

    /// Folder of the packages' libraries.
    pub fn libraries(&self) -> PathBuf {
        self.folder.join(LIBRARIES)
    }

    /// A file of the layer (`usr/lib/...`).
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.join(path)
    }

    /// A program of the layer (`usr/bin/xz`), run by the layer's own loader with the layer's own libraries.
    pub fn program(&self, path: impl AsRef<Path>) -> Command {
        let mut command = Command::new(self.folder.join(LOADER));
        command.env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
        command.arg("--library-path").arg(self.libraries()).arg(self.folder.join(path));
        command
    }
}

/// Whether a file is an ELF object (elf(5), `EI_MAG0`). One that cannot be read is left to whoever takes it.
fn is_program(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    read.is_err() || magic == *b"\x7fELF"
}
