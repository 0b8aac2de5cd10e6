//! The script in libvirt's folder of hooks that calls this program.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use nicety_daemon::attach::quoted;
use nicety_daemon::whole::Whole;

use crate::cli::HookLibvirt;
use crate::exit::{Exit, Failure};
use crate::output;

/// Name of the script.
const NAME: &str = "nicety";
/// The beginning of each such script, by which it is known again.
const BEGIN: &str =
    "#!/bin/sh\n# Written by `nicety hook libvirt --install`. `nicety hook libvirt --remove` removes it.\n";
/// Everybody may read it, and its owner may change it.
const MODE: u32 = 0o755;

/// The kind of file at a path.
enum There {
    Nothing,
    Script,
    /// Something that this program has not written.
    Other,
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(Exit::Failed, format!("{}: {error}", path.display()))
}

fn look(path: &Path) -> Result<There, Failure> {
    let meta = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(There::Nothing),
        meta => meta.map_err(failed(path))?,
    };
    if !meta.is_file() {
        return Ok(There::Other);
    }
    let bytes = fs::read(path).map_err(failed(path))?;
    Ok(if bytes.starts_with(BEGIN.as_bytes()) { There::Script } else { There::Other })
}

/// The failure for something that this program has not written.
fn other(path: &Path) -> Failure {
    let what = format!(
        "{} is there already, and this program has not written it: it stays. Move it away, or name another folder with --hooks",
        path.display()
    );
    Failure::new(Exit::Failed, what)
}

/// The script's text. `program`: this program's path.
fn text(program: &Path, args: &HookLibvirt) -> Result<String, Failure> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(failed(path));
    let program = quoted(&program.to_string_lossy());
    // When the package is removed the script stays. Without the program every start of a VM would fail, also of those without our ports.
    let mut text = format!("{BEGIN}[ -x {program} ] || exit 0\nexec {program} hook libvirt");
    let mut word = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = write!(text, " {name} {}", quoted(value));
    };
    let paths = [("--host", &args.which.host), ("--control", &args.which.control), ("--sockets", &args.sockets)];
    for (name, path) in paths {
        if let Some(path) = path {
            word(name, &absolute(path)?.to_string_lossy());
        }
    }
    if args.wait.0 > 0 {
        word("--wait", &args.wait.to_string());
    }
    Ok(text + " -- \"$@\"\n")
}

/// Writes the script. One of an earlier call is replaced.
pub fn install(args: &HookLibvirt) -> Result<(), Failure> {
    let path = place(&args.hooks);
    if matches!(look(&path)?, There::Other) {
        return Err(other(&path));
    }
    let program = std::env::current_exe().map_err(Failure::with(Exit::Failed))?;
    let text = text(&program, args)?;
    fs::create_dir_all(&args.hooks).map_err(failed(&args.hooks))?;
    // libvirt may call it at any moment: it is never there without its mode.
    Whole::begin_with(&path, MODE).and_then(|script| script.finish(text.as_bytes())).map_err(failed(&path))?;
    output::print(&format!("wrote {}\n", path.display()))?;
    output::tell(
        "note: libvirt looks for hooks when it starts or reloads: `systemctl reload libvirtd`, or virtqemud where that one runs",
    );
    Ok(())
}

/// Removes the script.
pub fn remove(hooks: &Path) -> Result<(), Failure> {
    let path = place(hooks);
    match look(&path)? {
        There::Nothing => output::print(&format!("{} is not there\n", path.display())),
        There::Other => Err(other(&path)),
        There::Script => {
            fs::remove_file(&path).map_err(failed(&path))?;
            output::print(&format!("removed {}\n", path.display()))
        }
    }
}

fn place(hooks: &Path) -> PathBuf {
    hooks.join(NAME)
}
