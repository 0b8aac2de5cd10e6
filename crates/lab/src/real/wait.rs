//! Running a program in a private network until its end.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nicety_guests::{Error, Folder, Namespace, Process};

/// Interval between two looks at a running program.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit of ending a program.
const SLACK: Duration = Duration::from_secs(10);

/// Looks at a running program at short intervals. Its error ends the program.
pub type Watch<'a> = &'a mut dyn FnMut(Duration) -> Result<(), String>;

/// The words of a command for a shell.
pub(crate) fn quoted(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| format!("'{}'", word.display())).collect::<Vec<_>>().join(" ")
}

/// A folder for files of programs, with a file for each one's output.
#[derive(Debug)]
pub struct Outputs {
    folder: Folder,
    count: u32,
}

impl Outputs {
    /// An empty folder.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn new() -> Result<Outputs, Error> {
        Ok(Outputs { folder: Folder::new()?, count: 0 })
    }

    /// The folder, for further files.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// A file for the output of another program.
    pub fn file(&mut self) -> PathBuf {
        self.count += 1;
        self.folder.path().join(format!("log{}", self.count))
    }

    /// Starts a program. `doing` names it in errors.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&mut self, namespace: &mut Namespace, command: &Command, doing: String) -> Result<Running, Error> {
        let log = self.file();
        let process = namespace.start(command, &log)?;
        Ok(Running { process, log, doing })
    }
}

/// A program that was started.
#[derive(Debug)]
pub struct Running {
    process: Process,
    log: PathBuf,
    doing: String,
}

impl Running {
    /// Waits for the program's end. Returns its output and duration.
    ///
    /// # Errors
    /// It does not end within `limit`, `watch` objects, or `stop` became true. It is ended then.
    pub fn wait(
        self,
        namespace: &mut Namespace,
        limit: Duration,
        stop: &AtomicBool,
        watch: Watch<'_>,
    ) -> Result<(String, Duration), Error> {
        let Running { process, log, doing } = self;
        let begin = Instant::now();
        let said = || fs::read_to_string(&log).unwrap_or_default();
        let failed = |why: String| Error::Run { doing: doing.clone(), said: format!("{why}\n{}", said()) };
        while process.runs() {
            let objection = if stop.load(Ordering::Relaxed) {
                Some(Error::Stopped)
            } else if begin.elapsed() > limit {
                Some(failed(format!("no end within {limit:?}")))
            } else {
                watch(begin.elapsed()).err().map(failed)
            };
            if let Some(error) = objection {
                namespace.signal(process, "KILL", SLACK)?;
                return Err(error);
            }
            thread::sleep(POLL_INTERVAL);
        }
        let (said, elapsed) = (said(), begin.elapsed());
        // A file that cannot be removed goes with its folder.
        let _ = fs::remove_file(&log);
        Ok((said, elapsed))
    }
}
