//! The user-mode kernel in the cache: built once for each `guests/uml/`, and shared by every clone that has the same.
//!
//! ```text
//! $XDG_CACHE_HOME/nicety/uml-FINGERPRINT/   linux, stamp.json    what guests run
//!                        uml-source/        the package's archive, 166 MB: another driver needs no download
//!                        uml-build/         tree, objects: another driver is built in seconds
//! ```

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use serde::{Deserialize, Serialize};

use super::{
    super::{
        error::{Error, file},
        root::{Lock, cache, remove_folder},
    },
    build::{apply, build, changes_fingerprint, files_fingerprint},
    source::{PACKAGE, Source, TakenBack},
    tools::Tools,
};

/// Raised when what is built changes otherwise than by `guests/uml/`.
const LAYOUT: u32 = 1;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Stamp {
    source: String,
    release: String,
    seconds: f64,
}

/// A user-mode kernel.
#[derive(Debug, Clone)]
pub struct UmlKernel {
    program: PathBuf,
    stamp: Stamp,
}

impl UmlKernel {
    /// Builds the kernel if it is not there yet; `progress` gets a line for each step. The first time takes some minutes, 166 MB
    /// from the mirror and 1.3 GB of disk.
    ///
    /// # Errors
    /// See [`Error`]; each says what to do. What was downloaded and compiled by then is used by the next attempt.
    pub fn lay(progress: &mut dyn FnMut(&str)) -> Result<UmlKernel, Error> {
        let cache = cache()?;
        if let Some(kernel) = UmlKernel::find(&cache) {
            return Ok(kernel);
        }
        // Laying tools takes the lock for itself.
        let path = env::var_os("PATH").unwrap_or_default();
        let tools = Tools::lay(&path, &cache.join("uml-tools"), progress)?;
        tools.check_headers()?;
        let _lock = Lock::take(&cache, progress)?;
        if let Some(kernel) = UmlKernel::find(&cache) {
            return Ok(kernel);
        }
        lay_into(&cache, &tools, progress)
    }

    /// Removes the kernel, its source and what was built, so that the next [`UmlKernel::lay`] begins anew.
    ///
    /// # Errors
    /// [`Error::NoCache`], or [`Error::File`] if something cannot be removed.
    pub fn remove(progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let cache = cache()?;
        let _lock = Lock::take(&cache, progress)?;
        let own = [name(), "uml-source".into(), "uml-build".into(), "uml-tools".into()];
        own.iter().try_for_each(|name| remove_folder(&cache.join(name)))
    }

    fn find(cache: &Path) -> Option<UmlKernel> {
        let folder = cache.join(name());
        let stamp = serde_json::from_slice(&fs::read(folder.join("stamp.json")).ok()?).ok()?;
        Some(UmlKernel { program: folder.join("linux"), stamp })
    }

    /// A kernel that somebody else built.
    ///
    /// # Errors
    /// [`Error::Run`] if it does not tell its version.
    pub fn at(program: &Path) -> Result<UmlKernel, Error> {
        let doing = || format!("asking {} for its version", program.display());
        let failed = |said: String| Error::Run { doing: doing(), said };
        let output = Command::new(program).arg("--version").output().map_err(|error| failed(error.to_string()))?;
        let release = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let looks_like_one =
            release.starts_with(|c: char| c.is_ascii_digit()) && !release.contains(char::is_whitespace);
        if !looks_like_one || !output.status.success() {
            return Err(failed("it is no user-mode kernel".into()));
        }
        let stamp = Stamp { source: "somebody's own".into(), release, seconds: 0.0 };
        Ok(UmlKernel { program: program.to_owned(), stamp })
    }

    /// The kernel: a program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its release, as `uname -r` says it.
    pub fn release(&self) -> &str {
        &self.stamp.release
    }

    /// The package and version of its source.
    pub fn source(&self) -> &str {
        &self.stamp.source
    }

    /// How long it took to build.
    pub fn seconds(&self) -> f64 {
        self.stamp.seconds
    }
}

/// The kernel's folder name: another driver, configuration or source makes another kernel, so that clones do not fight.
fn name() -> String {
    let recipe = format!("{LAYOUT} {PACKAGE} {:016x}", files_fingerprint());
    format!("uml-{:016x}", super::super::root::fingerprint(recipe.as_bytes()))
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn lay_into(cache: &Path, tools: &Tools, progress: &mut dyn FnMut(&str)) -> Result<UmlKernel, Error> {
    let begin = Instant::now();
    let source = Source::bring(&cache.join("uml-source"), progress)?;
    let work = cache.join("uml-build");
    let (tree, out) = (work.join("tree"), work.join("out"));
    let files = work.join("files");
    // A tree keeps what was done to it: other changes, or some that failed half-way, are taken back first.
    let (unpacked, applied) = (work.join("unpacked"), work.join("applied"));
    let same = |path: &Path, text: &str| fs::read_to_string(path).is_ok_and(|have| have == text);
    let origin = format!("{LAYOUT} {}", source.version);
    let changes = format!("{:016x}", changes_fingerprint());
    let (origin_fits, changes_fit) = (same(&unpacked, &origin), same(&applied, &changes));
    let mut taken_back = None;
    if origin_fits && !changes_fit {
        // Whoever is stopped half-way leaves a tree that is not trusted.
        let _ = fs::remove_file(&unpacked);
        taken_back = source.restore(&tree, &names_in(&files), tools).unwrap_or(None);
    }
    if !origin_fits || (!changes_fit && taken_back.is_none()) {
        remove_folder(&work)?;
        fs::create_dir_all(&work).map_err(file("make the folder", &work))?;
        source.unpack(&tree, tools, progress)?;
    }
    fs::write(&unpacked, &origin).map_err(file("write", &unpacked))?;
    let _ = fs::remove_file(&applied);
    apply(&tree, &files, tools)?;
    taken_back.into_iter().for_each(TakenBack::keep_ages);
    fs::write(&applied, &changes).map_err(file("write", &applied))?;
    let linux = build(&tree, &files, &out, tools, progress)?;
    let release = out.join("include/config/kernel.release");
    let release = fs::read_to_string(&release).map_err(file("read", release))?.trim().to_owned();

    let (laying, place) = (cache.join(format!("{}.laying", name())), cache.join(name()));
    remove_folder(&laying)?;
    fs::create_dir_all(&laying).map_err(file("make the folder", &laying))?;
    fs::copy(&linux, laying.join("linux")).map_err(file("copy", linux))?;
    let stamp = Stamp { source: source.version, release, seconds: begin.elapsed().as_secs_f64() };
    let text = serde_json::to_vec_pretty(&stamp)
        .map_err(|error| Error::Run { doing: "writing the stamp".into(), said: error.to_string() })?;
    fs::write(laying.join("stamp.json"), text).map_err(file("write", laying.join("stamp.json")))?;
    remove_folder(&place)?;
    fs::rename(&laying, &place).map_err(file("rename to its final name", &place))?;
    progress(&format!("built in {:.0} s: {}", stamp.seconds, place.display()));
    Ok(UmlKernel { program: place.join("linux"), stamp })
}
