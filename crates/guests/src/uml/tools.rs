//! The programs that a kernel's build runs: the machine's own, and the private root's where the machine lacks one.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::super::{
    error::{Error, file},
    layer::Layer,
    namespace::shell_words,
};

/// Programs that the machine itself must have: a compiler is useless without its system.
const REQUIRED: &[(&str, &str)] = &[("gcc", "gcc"), ("make", "make"), ("ld", "binutils")];
/// Programs that are installed where they are missing, and their packages.
const LAID: &[&str] = &["flex", "bison", "bc", "cpio", "m4", "xz"];
const PACKAGES: &[&str] = &["flex", "bison", "bc", "cpio", "m4", "xz-utils"];

/// Search path of a build's programs.
#[derive(Debug, Clone)]
pub struct Tools {
    path: OsString,
    settings: Vec<(&'static str, OsString)>,
}

impl Tools {
    /// Looks for every program in `path` (usually `PATH`), and installs the missing ones. `wrappers` is a folder for scripts that start
    /// them; the scripts are rewritten.
    ///
    /// # Errors
    /// [`Error::Program`] if there is no compiler, and those of [`Layer::lay`].
    pub fn lay(path: &OsStr, wrappers: &Path, progress: &mut dyn FnMut(&str)) -> Result<Tools, Error> {
        let found = |program: &str| env::split_paths(path).any(|folder| executable(&folder.join(program)));
        if let Some(&(program, package)) = REQUIRED.iter().find(|(program, _)| !found(program)) {
            return Err(Error::Program { program, package });
        }
        let missing: Vec<&str> = LAID.iter().copied().filter(|program| !found(program)).collect();
        if missing.is_empty() {
            return Ok(Tools { path: path.to_owned(), settings: Vec::new() });
        }
        progress(&format!("this machine has no {}: using the private root's", missing.join(", ")));
        let layer = Layer::lay("build-tools", PACKAGES, progress)?;
        fs::create_dir_all(wrappers).map_err(file("make the folder", wrappers))?;
        for program in &missing {
            wrap(&layer, program, &wrappers.join(program))?;
        }
        let folders = std::iter::once(wrappers.to_owned()).chain(env::split_paths(path));
        let joined = env::join_paths(folders)
            .map_err(|error| Error::Run { doing: "making a PATH".into(), said: error.to_string() })?;
        // m4 and bison look for their files where Debian would have installed them.
        let mut settings = Vec::new();
        if missing.contains(&"m4") {
            settings.push(("M4", wrappers.join("m4").into()));
        }
        if missing.contains(&"bison") {
            settings.push(("BISON_PKGDATADIR", layer.path("usr/share/bison").into()));
        }
        Ok(Tools { path: joined, settings })
    }

    /// A command that runs a program with these tools.
    pub fn command(&self, program: &str) -> Command {
        // `Command` looks a name up in the PATH that it sets, if it sets one.
        let mut command = Command::new(program);
        command
            .env("PATH", &self.path)
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .env("LC_ALL", "C");
        for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARCH", "CROSS_COMPILE", "KBUILD_OUTPUT", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Checks that the compiler finds the C library's headers; `gcc` only recommends their package.
    pub(crate) fn check_headers(&self) -> Result<(), Error> {
        let mut command = self.command("gcc");
        command.args(["-E", "-x", "c", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let failed = |error| Error::Run { doing: "running gcc".into(), said: format!("{error}") };
        let mut child = command.spawn().map_err(failed)?;
        // A compiler that ends early reports it by its status.
        let _ = child.stdin.take().map(|mut input| input.write_all(b"#include <stdio.h>\n#include <sys/mman.h>\n"));
        let status = child.wait().map_err(failed)?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::Program { program: "the C library's headers", package: "libc6-dev" })
        }
    }
}

/// Writes a script that runs a program of the layer under its own name. Whole, by its last name only: another process may write or run
/// the same one.
fn wrap(layer: &Layer, program: &str, to: &Path) -> Result<(), Error> {
    let command = layer.program(Path::new("usr/bin").join(program));
    let text = format!("#!/bin/sh\nunset LD_PRELOAD LD_LIBRARY_PATH\nexec {} \"$@\"\n", shell_words(&command));
    let begun = to.with_extension(std::process::id().to_string());
    let _ = fs::remove_file(&begun);
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(&begun);
    let written = opened.and_then(|mut script| script.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&begun, to)).map_err(file("write", to))
}

fn executable(path: &PathBuf) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_compiler_is_told_which_package_has_it() {
        let error = Tools::lay(OsStr::new("/nowhere"), Path::new("/nowhere"), &mut |_| {}).map(drop);
        let text = error.map_err(|error| error.to_string());
        assert!(
            text.as_ref().is_err_and(|text| text.contains("`gcc`") && text.contains("install the package `gcc`")),
            "{text:?}"
        );
    }
}
