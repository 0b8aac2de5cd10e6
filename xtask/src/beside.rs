//! Steps that run beside the tests in a process of their own: builds keep the processors busy while tests wait.

use std::{
    env, fs,
    fs::File,
    io,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Mutex,
};

use crate::{
    command::{lock, with_amount},
    tally::Tally,
};

struct Beside {
    child: Child,
    /// File for its output, which is shown when it has ended.
    output: PathBuf,
}

static BESIDE: Mutex<Option<Beside>> = Mutex::new(None);

/// Starts these steps. [`finish`] returns their result.
///
/// # Errors
/// This program could not be started again.
pub fn start(steps: &[&str]) -> io::Result<()> {
    let output = env::temp_dir().join(format!("nicety-xtask-beside-{}", std::process::id()));
    let file = File::create(&output)?;
    let mut command = with_amount(Command::new(env::current_exe()?));
    command.args(["test", "--part", "--only"]).args(steps);
    let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    *lock(&BESIDE) = Some(Beside { child, output });
    Ok(())
}

/// Waits until no step runs beside the tests.
pub fn wait() {
    if let Some(beside) = lock(&BESIDE).as_mut() {
        // Waiting for our own child cannot fail. If it did, the output would lack its last line, and that counts as a failure.
        _ = beside.child.wait();
    }
}

/// Waits for the steps, shows their output, and returns their tally.
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
