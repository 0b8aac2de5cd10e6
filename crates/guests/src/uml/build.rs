//! Builds a user-mode kernel from a source tree: `crates/guests/uml/` is added to it, and make does the rest.

use std::{
    fs,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use super::{
    super::{
        command::run,
        error::{Error, file, tail},
        root::fingerprint,
    },
    tools::Tools,
};

/// `crates/guests/uml/`: additions to the kernel, its configuration, and `apply`, which adds them.
pub(super) const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/uml_files.rs"));
/// Interval between two progress reports of a build.
const REPORT_EVERY: Duration = Duration::from_secs(20);

/// A fingerprint of every byte of `crates/guests/uml/`.
pub(super) fn files_fingerprint() -> u64 {
    let mut bytes = Vec::new();
    for (name, content) in FILES {
        bytes.extend_from_slice(format!("{name} {} ", content.len()).as_bytes());
        bytes.extend_from_slice(content);
    }
    fingerprint(&bytes)
}

/// `apply`, and the changes that it makes to the kernel's own files.
fn scripts() -> impl Iterator<Item = &'static (&'static str, &'static [u8])> {
    FILES.iter().filter(|(name, _)| *name == "apply" || name.starts_with("changes-"))
}

/// A fingerprint of the changes that `apply` makes to the kernel's own files. When it differs, these changes are reverted first. It does
/// not cover files that `apply` only adds, because make detects by itself what to rebuild for them.
pub(super) fn changes_fingerprint() -> u64 {
    fingerprint(&scripts().flat_map(|(_, content)| *content).copied().collect::<Vec<u8>>())
}

/// Adds `crates/guests/uml/` to the source in `tree`. `files` is a folder for its copy, which may exist from an earlier build.
pub(super) fn apply(tree: &Path, files: &Path, tools: &Tools) -> Result<(), Error> {
    lay_files(files)?;
    let mut apply = tools.command("sh");
    apply.arg(files.join("apply")).arg(tree).stdout(Stdio::null());
    run(&mut apply, || format!("adding crates/guests/uml to the kernel in {}", tree.display()))
}

/// The purpose of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Guests with one processor.
    OneProcessor,
    /// Guests with up to eight processors.
    SeveralProcessors,
    /// Guests whose boots can be repeated.
    VirtualTime,
}

impl Kind {
    /// Its build folder.
    fn out(self) -> &'static str {
        match self {
            Kind::OneProcessor => "out",
            Kind::SeveralProcessors => "out-smp",
            Kind::VirtualTime => "out-time",
        }
    }

    /// Its configuration: `crates/guests/uml/config` and additions.
    fn config(self) -> String {
        let config = FILES.iter().find(|(name, _)| *name == "config").map_or(&b""[..], |(_, content)| content);
        let config = String::from_utf8_lossy(config).into_owned();
        match self {
            Kind::OneProcessor => config,
            Kind::SeveralProcessors => config + "CONFIG_SMP=y\nCONFIG_NR_CPUS=8\n",
            // The host's /dev/random is no part of a boot that can be repeated.
            Kind::VirtualTime => config.replace("CONFIG_UML_RANDOM=y\n", "CONFIG_UML_TIME_TRAVEL_SUPPORT=y\n"),
        }
    }
}

/// Builds a kernel in the folder `work` from the source in its `tree`, and returns its path there. After an earlier build, make rebuilds
/// only what has changed.
pub(super) fn build(work: &Path, kind: Kind, tools: &Tools, progress: &mut dyn FnMut(&str)) -> Result<PathBuf, Error> {
    let (tree, out) = (&work.join("tree"), &work.join(kind.out()));
    fs::create_dir_all(out).map_err(file("make the folder", out))?;
    let config = out.with_extension("config");
    fs::write(&config, kind.config()).map_err(file("write", &config))?;
    make(tree, out, &[&format!("KCONFIG_ALLCONFIG={}", config.display()), "allnoconfig"], tools, progress)?;
    check_config(&kind.config(), &out.join(".config"))?;
    let cpus = thread::available_parallelism().map_or(2, usize::from);
    progress(&format!("building the user-mode kernel on {cpus} processors (the first time takes some minutes)"));
    make(tree, out, &[&format!("-j{cpus}"), "linux"], tools, progress)?;
    Ok(out.join("linux"))
}

/// Writes only the files that differ, so that make does not rebuild for the others.
fn lay_files(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(file("make the folder", folder))?;
    for (name, content) in FILES {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|have| have == *content) {
            continue;
        }
        fs::write(&path, content).map_err(file("write", path))?;
    }
    Ok(())
}

/// Checks that the kernel's configuration contains every setting of the fragment. make silently drops a setting whose dependencies are
/// missing.
fn check_config(asked: &str, config: &Path) -> Result<(), Error> {
    let made = fs::read_to_string(config).map_err(file("read", config))?;
    let missing = missing(asked, &made);
    if missing.is_empty() {
        return Ok(());
    }
    let said = format!("this kernel does not take {}; see crates/guests/uml/config", missing.join(", "));
    Err(Error::Run { doing: "configuring the user-mode kernel".into(), said })
}

/// The settings of a fragment that are missing in a configuration.
pub(crate) fn missing(asked: &str, made: &str) -> Vec<String> {
    let set = |line: &&str| line.starts_with("CONFIG_") && line.contains('=');
    let have: Vec<&str> = made.lines().filter(set).collect();
    asked.lines().map(str::trim).filter(set).filter(|line| !have.contains(line)).map(str::to_owned).collect()
}

fn make(tree: &Path, out: &Path, words: &[&str], tools: &Tools, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let log = out.with_extension("log");
    let complaints = File::create(&log).map_err(file("write", &log))?;
    let mut command = tools.command("make");
    command.arg("-C").arg(tree).args(["ARCH=um", &format!("O={}", out.display())]).args(words);
    // User and host names are fixed, so that the same files give the same kernel.
    command.env("KBUILD_BUILD_USER", "nicety").env("KBUILD_BUILD_HOST", "lab");
    command.stdout(Stdio::piped()).stderr(complaints);
    let failed = |said: String| Error::Run { doing: format!("make {}", words.join(" ")), said };
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let (mut compiled, mut reported) = (0u32, Instant::now());
    let output = child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).split(b'\n'));
    for line in output.map_while(Result::ok) {
        compiled += u32::from(line.starts_with(b"  CC "));
        if compiled > 0 && reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            let files = if compiled == 1 { "file" } else { "files" };
            progress(&format!("{compiled} {files} compiled"));
        }
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return Ok(());
    }
    let said = tail(&fs::read_to_string(&log).unwrap_or_default(), 12);
    Err(failed(format!("{status}\n{said}\n(all of it: {})", log.display())))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, process::Command};

    use super::*;
    use crate::folder::Folder;

    #[test]
    fn the_folder_has_what_the_builder_runs() {
        for name in ["apply", "changes-pci", "changes-time", "changes-um", "changes-virtio", "config"] {
            assert!(FILES.iter().any(|(have, content)| *have == name && !content.is_empty()), "{name}");
        }
    }

    /// Each file and line that `apply` looks for.
    fn anchors() -> Vec<(String, String)> {
        let lines = scripts().flat_map(|(_, content)| str::from_utf8(content).unwrap().lines());
        let changes = lines.filter_map(|line| line.strip_prefix("change ")?.strip_suffix("' <<'END'"));
        let parts = changes.map(|change| {
            let (place, line) = change.split_once('\'').unwrap();
            // A shell writes a quote within quotes like this.
            (place.split(' ').next().unwrap().to_owned(), line.replace(r"'\''", "'"))
        });
        parts.collect()
    }

    /// A tree with the files of those lines. The files contain only those lines, without the missing ones.
    fn bare_tree(folder: &Path, anchors: &[(String, String)], missing: &[(String, String)]) -> PathBuf {
        let (tree, mut texts) = (folder.join("tree"), BTreeMap::from([("Makefile", String::new())]));
        texts.insert("arch/um/drivers/virt-pci.h", "struct um_pci_ops {\n".into());
        for wanted @ (path, anchor) in anchors {
            let text = texts.entry(path).or_default();
            if !missing.contains(wanted) && !text.lines().any(|line| line == anchor) {
                text.extend([anchor, "\n"]);
            }
        }
        for (path, text) in texts {
            fs::create_dir_all(tree.join(path).parent().unwrap()).unwrap();
            fs::write(tree.join(path), text).unwrap();
        }
        tree
    }

    fn files_of(tree: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(tree).unwrap().map(|entry| entry.unwrap().path());
        let inside = entries.map(|path| match path.is_dir() {
            true => files_of(&path),
            false => BTreeMap::from([(path.clone(), fs::read(&path).unwrap())]),
        });
        inside.flatten().collect()
    }

    fn apply_to(folder: &Path, tree: &Path) -> (bool, String) {
        let files = folder.join("files");
        lay_files(&files).unwrap();
        let output = Command::new("sh").arg(files.join("apply")).arg(tree).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    #[test]
    fn a_tree_takes_the_changes_once_however_often_they_are_applied() {
        let folder = Folder::new().unwrap();
        let tree = bare_tree(folder.path(), &anchors(), &[]);
        assert_eq!(apply_to(folder.path(), &tree), (true, String::new()));
        let once = files_of(&tree);
        assert!(once.keys().any(|path| path.ends_with("arch/um/drivers/vfio_user_kern.c")));
        assert_eq!(apply_to(folder.path(), &tree), (true, String::new()));
        assert_eq!(files_of(&tree), once);
    }

    #[test]
    fn a_tree_that_lacks_lines_is_left_as_it_is_and_each_of_them_is_named() {
        let all = anchors();
        assert!(all.len() > 40, "{}", all.len());
        // The first line, one in the middle, and the last. `apply` must notice the last one before it makes any change.
        let missing = [0, all.len() / 2, all.len() - 1].map(|place| all[place].clone());
        let folder = Folder::new().unwrap();
        let tree = bare_tree(folder.path(), &all, &missing);
        let before = files_of(&tree);
        let (well, said) = apply_to(folder.path(), &tree);
        assert!(!well);
        for (path, line) in &missing {
            let expected = format!("{path}: expected once, and found 0 times, the line: {line}\n");
            assert!(said.contains(&expected), "{expected}{said}");
        }
        assert!(said.ends_with("3 changes do not fit this kernel; nothing was changed\n"), "{said}");
        assert_eq!(files_of(&tree), before);
    }

    #[test]
    fn each_file_for_the_kernel_names_its_licence() {
        for (name, content) in FILES {
            let first = String::from_utf8_lossy(content).lines().take(2).collect::<String>();
            let named = first.contains("SPDX-License-Identifier: GPL-2.0-only");
            assert!(named || *name == "GPL-2.0-only.txt", "{name}: {first}");
        }
    }

    #[test]
    fn a_kernel_for_several_processors_is_the_same_and_more() {
        let (one, several) = (Kind::OneProcessor.config(), Kind::SeveralProcessors.config());
        assert!(several.starts_with(&one) && several.contains("CONFIG_SMP=y") && !one.contains("CONFIG_SMP"));
        assert!(one.ends_with('\n'));
        assert_ne!(Kind::OneProcessor.out(), Kind::SeveralProcessors.out());
    }

    #[test]
    fn a_kernel_in_virtual_time_has_no_randomness_of_the_host() {
        let (usual, virtual_time) = (Kind::OneProcessor.config(), Kind::VirtualTime.config());
        assert!(usual.contains("CONFIG_UML_RANDOM") && !virtual_time.contains("CONFIG_UML_RANDOM"));
        assert!(virtual_time.contains("\nCONFIG_UML_TIME_TRAVEL_SUPPORT=y\n"));
    }

    #[test]
    fn a_setting_that_the_kernel_drops_is_named() {
        let asked = "# text\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=\"null\"\n\nCONFIG_D=y\n";
        assert_eq!(missing(asked, "CONFIG_A=y\n# CONFIG_D is not set\nCONFIG_C=\"null\"\n"), ["CONFIG_D=y"]);
        assert!(missing(asked, "CONFIG_D=y\nCONFIG_A=y\nCONFIG_C=\"null\"\n").is_empty());
    }
}
