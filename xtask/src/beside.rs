//! Steps that run in a process of their own, beside the tests: builds keep the processors busy while tests wait.

use std::{
    env, fs,
    fs::File,
    io,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Mutex,
};

use crate::{lock, tally::Tally, told_how_much};

struct Beside {
    child: Child,
    /// Its output, shown when it has ended.
    output: PathBuf,
}

static BESIDE: Mutex<Option<Beside>> = Mutex::new(None);

/// Starts these steps; [`finish`] has their result.
///
/// # Errors
/// This program cannot be started again.
pub fn start(steps: &[&str]) -> io::Result<()> {
    let output = env::temp_dir().join(format!("nicety-xtask-beside-{}", std::process::id()));
    let file = File::create(&output)?;
    let mut command = told_how_much(Command::new(env::current_exe()?));
    command.args(["test", "--part", "--only"]).args(steps);
    let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    *lock(&BESIDE) = Some(Beside { child, output });
    Ok(())
}

/// Waits until nothing runs beside any more.
pub fn wait() {
    if let Some(beside) = lock(&BESIDE).as_mut() {
        // A child of ours can be waited for; if not, its output has no last line, and that is a failure.
        _ = beside.child.wait();
    }
}

/// Waits for the steps, shows what they printed, and counts it.
pub fn finish() -> Tally {
    wait();
    let Some(beside) = lock(&BESIDE).take() else { return Tally::default() };
    let text = fs::read(&beside.output).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    _ = fs::remove_file(&beside.output);
    print!("{text}");
    Tally::of_report(&text)
        .unwrap_or_else(|| Tally::of_one("the steps beside the tests: they ended without a sum", false))
}
