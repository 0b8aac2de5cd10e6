//! Lists the files of `uml/`, so that the kernel's builder embeds all of them and none can be forgotten.

use std::{env, fmt::Write, fs, io, path::Path};

fn main() -> io::Result<()> {
    let missing = |name: &str| io::Error::other(format!("cargo sets no {name}"));
    let own = env::var("CARGO_MANIFEST_DIR").map_err(|_| missing("CARGO_MANIFEST_DIR"))?;
    let out = env::var("OUT_DIR").map_err(|_| missing("OUT_DIR"))?;
    let folder = fs::canonicalize(Path::new(&own).join("uml"))?;
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut names = fs::read_dir(&folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<Vec<String>>>()?;
    // Files only for human readers do not affect the kernel.
    names.retain(|name| !name.ends_with(".md") && !name.starts_with('.'));
    names.sort();
    let mut text = "&[\n".to_owned();
    for name in names {
        let path = folder.join(&name);
        let _ = writeln!(text, "    ({name:?}, include_bytes!({:?})),", path.display().to_string());
    }
    text.push_str("]\n");
    fs::write(Path::new(&out).join("uml_files.rs"), text)
}
