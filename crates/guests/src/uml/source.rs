//! The kernel's source: Debian's package, kept packed in the cache, and the tree to build.

use std::{
    ffi::OsStr,
    fs,
    fs::File,
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    super::{
        apt::Deb,
        command::run,
        error::{Error, file},
        root::{fingerprint, open_mirror, remove_folder, unpack},
    },
    tools::Tools,
};

/// The kernel that `crates/guests/uml/` is written for.
pub(super) const PACKAGE: &str = "linux-source-7.3";
/// The newest version, used when the mirror no longer has that one.
const NEWEST: &str = "linux-source/trixie-backports";
/// Files that a user-mode kernel does not need, half of the tree. Everything that Kconfig or make reads stays.
const NOT_NEEDED: &[&str] = &[
    "*/Documentation/*/*",
    "*/sound/*.[ch]",
    "*/drivers/gpu/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/drivers/staging/*.[ch]",
    "*/drivers/infiniband/*.[ch]",
    "*/drivers/net/wireless/*.[ch]",
    "*/boot/dts/*",
    "*/tools/testing/*",
    "*/tools/perf/*",
];

/// Contents of an unpacked tree: the source, less a list of files. With another list, the tree may lack what a new configuration needs.
pub(super) fn origin(layout: u32, version: &str) -> String {
    format!("{layout} {version} {:016x}", fingerprint(format!("{NOT_NEEDED:?}").as_bytes()))
}

/// The packed source.
pub(super) struct Source {
    /// Debian's name and version, `linux-source-7.3 7.3.4-1~bpo13+1`.
    pub version: String,
    archive: PathBuf,
}

impl Source {
    /// Downloads it into `folder` if it is missing.
    pub fn bring(folder: &Path, progress: &mut dyn FnMut(&str)) -> Result<Source, Error> {
        if let Some(source) = Source::find(folder) {
            return Ok(source);
        }
        remove_folder(folder)?;
        let downloads = folder.join("apt");
        let apt = open_mirror(&downloads, progress)?;
        let wanted = |debs: Vec<Deb>| debs.into_iter().find(|deb| deb.name().starts_with("linux-source-"));
        let deb = match apt.closure(&[PACKAGE]).map(wanted) {
            Ok(Some(deb)) => deb,
            Ok(None) | Err(_) => apt.closure(&[NEWEST]).map(wanted)?.ok_or_else(|| Error::Unexpected {
                what: format!("the mirror has neither {PACKAGE} nor {NEWEST}"),
                path: folder.to_owned(),
            })?,
        };
        progress(&format!(
            "bringing the kernel's source ({} {}, {} MB)",
            deb.name(),
            deb.version(),
            deb.bytes / 1_000_000
        ));
        apt.bring_alone(&[deb.name()])?;
        let unpacked = folder.join("unpacked");
        unpack(&apt.archives().join(&deb.file), &unpacked)?;
        let name = format!("{}.tar.xz", deb.name());
        let (from, to) = (unpacked.join("usr/src").join(&name), folder.join(&name));
        fs::rename(&from, &to).map_err(file("find the source's archive", from))?;
        remove_folder(&unpacked)?;
        remove_folder(&downloads)?;
        let version = folder.join("version");
        fs::write(&version, format!("{} {}", deb.name(), deb.version())).map_err(file("write", version))?;
        Source::find(folder)
            .ok_or_else(|| Error::Unexpected { what: format!("there is no {name}"), path: folder.to_owned() })
    }

    fn find(folder: &Path) -> Option<Source> {
        let version = fs::read_to_string(folder.join("version")).ok()?;
        let archive = folder.join(format!("{}.tar.xz", version.split(' ').next()?));
        archive.is_file().then_some(Source { version, archive })
    }

    /// Unpacks it beside `tree` and renames.
    pub fn unpack(&self, tree: &Path, tools: &Tools, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
        progress(&format!("unpacking {}", self.version));
        let fresh = tree.with_extension("unpacking");
        remove_folder(&fresh)?;
        fs::create_dir_all(&fresh).map_err(file("make the folder", &fresh))?;
        let mut tar = tools.command("tar");
        tar.args(["--wildcards", "--strip-components=1"]);
        tar.args(NOT_NEEDED.iter().map(|pattern| format!("--exclude={pattern}")));
        tar.arg("-C").arg(&fresh).args([OsStr::new("-xJf"), self.archive.as_os_str()]);
        run(&mut tar, || format!("unpacking {}", self.archive.display()))?;
        fs::rename(&fresh, tree).map_err(file("rename to its final name", tree))?;
        let mark = unpacked_mark(tree);
        fs::write(&mark, "").map_err(file("write", mark))
    }

    /// Reverts the changes made to an unpacked tree. `added` are names of files that the archive does not contain. `None` if it is
    /// impossible, and the tree must be unpacked anew.
    pub fn restore(&self, tree: &Path, added: &[String], tools: &Tools) -> Result<Option<Reverted>, Error> {
        let Ok(unpacked) = fs::metadata(unpacked_mark(tree)).and_then(|meta| meta.modified()) else { return Ok(None) };
        let (mut changed, mut folders) = (Vec::new(), vec![tree.to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(file("read the folder", &folder))?.flatten() {
                let Ok(meta) = entry.metadata() else { continue };
                if meta.is_dir() {
                    folders.push(entry.path());
                } else if meta.modified().is_ok_and(|modified| modified > unpacked) {
                    changed.push(entry.path());
                }
            }
        }
        let mut reverted = Reverted(Vec::new());
        for path in &changed {
            reverted.0.push(Earlier::read(path).map_err(file("read", path))?);
            fs::remove_file(path).map_err(file("remove", path))?;
        }
        let ours = |path: &Path| path.file_name().is_some_and(|name| added.iter().any(|added| name == added.as_str()));
        let theirs: Vec<&Path> =
            changed.iter().filter(|path| !ours(path)).filter_map(|p| p.strip_prefix(tree).ok()).collect();
        if theirs.is_empty() {
            return Ok(Some(reverted));
        }
        let top = self.version.split(' ').next().unwrap_or_default();
        let mut tar = tools.command("tar");
        tar.args(["--touch", "--strip-components=1", "-C"])
            .arg(tree)
            .args([OsStr::new("-xJf"), self.archive.as_os_str()]);
        tar.args(theirs.iter().map(|path| Path::new(top).join(path)));
        Ok(run(&mut tar, || "restoring the kernel's own files".to_owned()).is_ok().then_some(reverted))
    }
}

/// The state of files before they were reverted.
pub(super) struct Reverted(Vec<Earlier>);

struct Earlier {
    path: PathBuf,
    content: Vec<u8>,
    modified: SystemTime,
}

impl Earlier {
    fn read(path: &Path) -> io::Result<Earlier> {
        Ok(Earlier { path: path.to_owned(), content: fs::read(path)?, modified: fs::metadata(path)?.modified()? })
    }
}

impl Reverted {
    /// Call this after the changes were made again. A file with its earlier content gets its earlier time, so that make does not rebuild
    /// everything that includes it. For a header that would be the whole kernel.
    pub fn restore_times(self) {
        for Earlier { path, content, modified } in self.0 {
            if fs::read(&path).is_ok_and(|now| now == content) {
                // If this fails, make rebuilds more than necessary.
                let _ = File::options().write(true).open(&path).and_then(|file| file.set_modified(modified));
            }
        }
    }
}

/// A file beside a tree. Its time is that of the unpacking.
fn unpacked_mark(tree: &Path) -> PathBuf {
    tree.with_extension("unpacked")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's build stops at a driver that is configured and was not unpacked, after most of its time.
    #[test]
    fn no_driver_that_is_configured_is_left_out_of_the_tree() {
        let config = include_str!("../../uml/config");
        let is_on = |option: &str| config.lines().any(|line| line == format!("CONFIG_{option}=y"));
        for (option, folder) in [
            ("SCSI", "scsi"),
            ("INFINIBAND", "infiniband"),
            ("DRM", "gpu"),
            ("STAGING", "staging"),
            ("WLAN", "net/wireless"),
        ] {
            let is_left_out = NOT_NEEDED.iter().any(|pattern| pattern.starts_with(&format!("*/drivers/{folder}/")));
            assert!(!(is_on(option) && is_left_out), "CONFIG_{option}");
        }
    }
}
