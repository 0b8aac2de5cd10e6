//! A folder for sockets and logs that goes when it is dropped.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use super::error::{Error, file};

/// A folder whose path is short enough for a socket's, removed when dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one in `XDG_RUNTIME_DIR`, or else among temporary files, for this user alone.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn new() -> Result<Folder, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let short = env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|path| path.is_dir())
            .unwrap_or_else(env::temp_dir);
        let path = short.join(format!("nicety-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        // An earlier process with this id may have been killed.
        remove(&path);
        let mut maker = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut maker, 0o700);
        maker.create(&path).map_err(file("make the folder", &path))?;
        Ok(Folder(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A path in it, as text.
    pub fn join(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    let _ = fs::remove_dir_all(path);
}
