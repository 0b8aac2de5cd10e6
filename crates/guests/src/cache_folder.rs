//! The folder that clones share.

use std::{env, path::PathBuf};

/// Its path: `$XDG_CACHE_HOME/nicety`, or `$HOME/.cache/nicety`. It may not exist yet. `None`: neither variable names an absolute path.
pub(super) fn path() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let named = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    Some(named?.join("nicety"))
}
