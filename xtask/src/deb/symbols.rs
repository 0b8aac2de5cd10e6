//! The package `nicety-dbgsym`: line tables of the programs, where gdb looks for them by a program's build ID, as debhelper's
//! `dh_strip` makes it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{Commit, Order, PROGRAMS, Tree, succeeded};
use crate::command::output;

/// Makes the package in this folder. Returns its path.
pub fn package(order: &Order, programs: &Path, version: &str, commit: &Commit) -> Result<PathBuf> {
    let tree = Tree::new(order.into.join(format!("nicety-dbgsym_{version}_amd64")))?;
    let mut all = Vec::new();
    for name in PROGRAMS {
        let program = programs.join(name);
        let notes = output(Command::new("readelf").arg("--notes").arg(&program))?;
        let id = build_id(&notes).with_context(|| format!("{name} has no build ID"))?;
        let (folder, file) = id.split_at(2);
        let place = tree.place(&format!("usr/lib/debug/.build-id/{folder}/{file}.debug"))?;
        let mut objcopy = Command::new("objcopy");
        objcopy.args(["--only-keep-debug", "--compress-debug-sections"]).args([&program, &place]);
        succeeded(&mut objcopy)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o644))?;
        all.push(id.to_owned());
    }
    symlink("nicety", tree.place("usr/share/doc/nicety-dbgsym")?)?;
    let (sums, kib) = tree.sums()?;
    let text = format!(
        "Package: nicety-dbgsym\nVersion: {version}\nArchitecture: amd64\nMaintainer: {}\nInstalled-Size: {kib}\n\
         Depends: nicety (= {version})\nSection: debug\nPriority: optional\nAuto-Built-Package: debug-symbols\n\
         Build-Ids: {}\nDescription: debug symbols for nicety\n",
        commit.author,
        all.join(" "),
    );
    tree.file("DEBIAN/control", text.as_bytes(), 0o644)?;
    tree.file("DEBIAN/md5sums", sums.as_bytes(), 0o644)?;
    tree.pack(commit, order.level)
}

/// The build ID in readelf's text.
fn build_id(notes: &str) -> Option<&str> {
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "))?.trim();
    (id.len() > 2 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_s_build_id_is_read_from_its_notes() {
        // readelf of binutils 2.40.
        let notes = "Displaying notes found in: .note.gnu.build-id\n  Owner                Data size \tDescription\n  \
                     GNU                  0x00000014\tNT_GNU_BUILD_ID (unique build ID bitstring)\n    \
                     Build ID: c150d272a90c1e76339691febbd614a1f2c94ad8\n";
        assert_eq!(build_id(notes), Some("c150d272a90c1e76339691febbd614a1f2c94ad8"));
        assert_eq!(build_id("Displaying notes found in: .note.ABI-tag\n"), None);
    }
}
