//! Traces of the register accesses of guests' drivers (`nicety serve --record DIR`, docs/traces.md).
//!
//! A port's thread adds events to its list under a short lock. The recording's thread takes the lists ten times a second, formats
//! the events and writes them. Without a recording there is no [`Recorder`], and each recording point costs one branch.
//!
//! A port's files are bounded. `vm1.trace` keeps the beginning. Once it is full, `vm1.trace.1` and `vm1.trace.2` are overwritten
//! in turn. So the beginning and the end of a long night are kept.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use nicety_adapter::trace::{Access, Event, Made, Region, TimedEvent, Trace};
use nicety_adapter::{Adapter, NotedError, Time, tape};
use nicety_adapters::{Entry, Settings};
use nicety_host::{regular, trace_files};
use rustix::fs::{Access as Right, AtFlags, CWD, accessat};
use rustix::io::Errno;
use tracing::warn;

use crate::clock::Clock;

/// The interval at which waiting events are written.
const INTERVAL: Duration = Duration::from_millis(100);
/// Most events that wait; further ones are counted as lost. 10 MB.
const WAITING_MAX: usize = 1 << 16;
/// Most bytes of adapters' calls that wait.
const CALLS_MAX: usize = 64 << 20;
/// Most bytes of one file.
const FILE_MAX: u64 = 32 << 20;

/// The ports that are recorded, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All ports, each in a file of its name in this folder.
    Folder(PathBuf),
    /// Like [`Target::Folder`], with all that the ports' adapters hear: the frames offered to them, and the guest memory that they read.
    Calls(PathBuf),
    /// One port, in this file. Its later parts have `.1` and `.2` at the end.
    Port {
        /// The port's name.
        name: String,
        /// The file.
        file: PathBuf,
    },
}

impl Target {
    /// The files of a port, in the order of writing. `None` if it is not recorded.
    fn files(&self, port: &str) -> Option<[PathBuf; 3]> {
        match self {
            Self::Folder(folder) | Self::Calls(folder) => Some(trace_files(folder, port)),
            Self::Port { name, file } => (name == port).then(|| {
                ["", ".1", ".2"].map(|part| {
                    let mut path = OsString::from(file);
                    path.push(part);
                    path.into()
                })
            }),
        }
    }

    /// The folder of its files.
    fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) | Self::Calls(folder) => folder,
            Self::Port { file, .. } => match file.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            },
        }
    }
}

/// Reasons why traces cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The folder's path, or a part of it, is not a folder.
    #[error(
        "recording to {path}: {other} is not a folder; name a folder with --record DIR, which is made if it is not there"
    )]
    NotAFolder {
        /// The requested folder.
        path: PathBuf,
        /// The part that is not a folder.
        other: PathBuf,
    },
    /// Another error.
    #[error("recording to {path}: {source}; name a folder with --record DIR in which files can be made")]
    System {
        /// The folder or file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl RecordError {
    fn of(path: &Path, source: std::io::Error) -> Self {
        Self::System { path: path.to_owned(), source }
    }

    /// The error for a folder that cannot be used.
    fn of_folder(path: &Path, source: std::io::Error) -> Self {
        let other = path.ancestors().find(|above| above.metadata().is_ok_and(|there| !there.is_dir()));
        match other {
            Some(other) => Self::NotAFolder { path: path.to_owned(), other: other.to_owned() },
            None => Self::of(path, source),
        }
    }
}

/// The recorder of one port.
#[derive(Debug)]
pub struct Recorder {
    clock: Clock,
    /// Its adapter's calls are recorded, too.
    calls: bool,
    waiting: Mutex<Waiting>,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct Waiting {
    records: Vec<(Option<Time>, What)>,
    /// Bytes of adapters' calls among them.
    bytes: usize,
    lost: u64,
}

/// The content of a line, before it is text.
#[derive(Debug)]
enum What {
    Event(Event),
    /// Becomes a mark. The worker formats no text.
    GuestError(NotedError),
}

/// Wakes the thread early.
#[derive(Debug, Default)]
struct Bell {
    stop: Mutex<bool>,
    rung: Condvar,
}

/// A daemon's recording: all recorders, and the thread that writes the files.
#[derive(Debug)]
pub struct Recording {
    target: Target,
    clock: Clock,
    bell: Arc<Bell>,
    /// Outputs that have not begun. Their files keep their old content.
    waiting: Vec<Output>,
    begun: bool,
    outputs: Arc<Mutex<Vec<Output>>>,
    thread: Option<JoinHandle<()>>,
}

/// Checks whether traces of these ports can be recorded, without making any. [`Recording::start`] and [`Recording::port`] make the
/// same checks first.
pub(crate) fn check<'a>(target: &Target, ports: impl Iterator<Item = &'a str>) -> Result<(), RecordError> {
    check_folder(target.folder())?;
    ports.filter_map(|port| target.files(port)).try_for_each(|files| check_file(&files[0]).map(drop))
}

/// Checks that files can be made in the folder, or that the folder can be made.
fn check_folder(folder: &Path) -> Result<(), RecordError> {
    let absolute = std::path::absolute(folder).map_err(|source| RecordError::of(folder, source))?;
    let there = absolute.ancestors().find(|above| above.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    if !there.metadata().is_ok_and(|there| there.is_dir()) {
        return Err(RecordError::of_folder(folder, Errno::NOTDIR.into()));
    }
    let may = accessat(CWD, there, Right::WRITE_OK | Right::EXEC_OK, AtFlags::EACCESS);
    may.map_err(|errno| RecordError::of(folder, errno.into()))
}

/// Checks that a trace's first file can be written. Returns true if it does not exist yet.
fn check_file(file: &Path) -> Result<bool, RecordError> {
    match regular::open_no_link(file, OpenOptions::new().write(true)) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(RecordError::of(file, error)),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Recorder {
    /// Records an event with the current time.
    pub fn note(&self, event: Event) {
        self.add(What::Event(event));
    }

    /// Records a mistake of the guest's driver, as a mark.
    pub fn guest_error(&self, error: &NotedError) {
        self.add(What::GuestError(*error));
    }

    fn add(&self, what: What) {
        let record = (Some(self.clock.now()), what);
        let cost = if let What::Event(Event::Call(entry)) = &record.1 { entry.cost() } else { 0 };
        let mut waiting = lock(&self.waiting);
        // A tape cannot be played past a loss.
        if waiting.records.len() >= WAITING_MAX || waiting.bytes + cost > CALLS_MAX {
            waiting.lost += 1;
            return;
        }
        waiting.records.push(record);
        let before = waiting.bytes;
        waiting.bytes += cost;
        if waiting.records.len() == WAITING_MAX / 2 || (before < CALLS_MAX / 4) != (waiting.bytes < CALLS_MAX / 4) {
            self.bell.rung.notify_one();
        }
    }

    /// Puts a recorder around a port's adapter, if all that it hears is recorded.
    pub fn around(this: &Arc<Self>, adapter: Box<dyn Adapter>) -> Box<dyn Adapter> {
        if !this.calls {
            return adapter;
        }
        let recorder = Arc::clone(this);
        let sink = move |entry| recorder.note(Event::Call(Box::new(entry)));
        Box::new(tape::Recorder::new(adapter, Box::new(sink)))
    }

    /// Records an access to a vfio region.
    pub fn access(&self, write: bool, region: u32, offset: u64, data: &[u8]) {
        let region = match region {
            6 => Region::Rom,
            7 => Region::Config,
            bar => Region::Bar(bar as u8),
        };
        self.note(Event::Access(Access::of(write, region, offset, data)));
    }
}

impl Recording {
    /// Starts a recording. Makes the folder if it is missing.
    pub fn start(target: Target, clock: Clock) -> Result<Self, RecordError> {
        let folder = target.folder();
        check_folder(folder)?;
        std::fs::create_dir_all(folder).map_err(|source| RecordError::of_folder(folder, source))?;
        let bell = Arc::new(Bell::default());
        let outputs: Arc<Mutex<Vec<Output>>> = Arc::default();
        let (watch, all) = (Arc::clone(&bell), Arc::clone(&outputs));
        let thread = nicety_sandbox::spawn(nicety_sandbox::Kind::Traces, "traces", 0, move || write_all(&watch, &all));
        let thread = thread.map_err(|source| RecordError::of(folder, source))?;
        Ok(Self { target, clock, bell, waiting: Vec::new(), begun: false, outputs, thread: Some(thread) })
    }

    /// The recorder of a port; `None` if it is not recorded. On return its first file exists and is writable. If the recording has begun, an older file of that
    /// name has been replaced.
    pub fn port(
        &mut self,
        name: &str,
        entry: &'static Entry,
        settings: &Settings,
    ) -> Result<Option<Arc<Recorder>>, RecordError> {
        let Some(files) = self.target.files(name) else { return Ok(None) };
        let (clock, bell) = (self.clock, Arc::clone(&self.bell));
        let calls = matches!(self.target, Target::Calls(_));
        let recorder = Arc::new(Recorder { clock, calls, waiting: Mutex::default(), bell });
        let mut output = Output::open(files, name, entry, &recorder)?;
        output.made = calls.then(|| settings.into());
        self.waiting.push(output);
        if self.begun {
            self.begin()?;
        }
        Ok(Some(recorder))
    }

    /// Replaces older traces. Writes the events so far and all later ones.
    pub fn begin(&mut self) -> Result<(), RecordError> {
        self.begun = true;
        while let Some(mut output) = self.waiting.pop() {
            output.remove_older()?;
            let begun = output.begin().and_then(|()| output.flush());
            begun.map_err(|source| RecordError::of(&output.files[0], source))?;
            lock(&self.outputs).push(output);
        }
        Ok(())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        for output in self.waiting.iter().filter(|output| output.new) {
            let _not_removed = std::fs::remove_file(&output.files[0]);
        }
        *lock(&self.bell.stop) = true;
        self.bell.rung.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the recording's thread had panicked");
        }
    }
}

fn write_all(bell: &Bell, outputs: &Mutex<Vec<Output>>) {
    let mut stop = false;
    while !stop {
        let waited = bell.rung.wait_timeout(lock(&bell.stop), INTERVAL);
        stop = *waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        lock(outputs).iter_mut().for_each(Output::drain);
    }
}

/// Restricts a file to its owner. An existing file may have had a wider mode.
fn keep_to_owner(file: &File) -> std::io::Result<()> {
    let open = file.metadata()?.permissions().mode() & 0o077 != 0;
    if open { file.set_permissions(Permissions::from_mode(0o600)) } else { Ok(()) }
}

/// A port's files.
#[derive(Debug)]
struct Output {
    recorder: Arc<Recorder>,
    name: String,
    entry: &'static Entry,
    /// With calls: a player makes its adapter with them.
    made: Option<Made>,
    files: [PathBuf; 3],
    /// Whether the first file is new.
    new: bool,
    /// `None` before the output has begun and after an error. Events are then discarded.
    file: Option<File>,
    /// Most bytes of one file.
    most: u64,
    part: u64,
    written: u64,
    records: Vec<(Option<Time>, What)>,
    text: String,
}

impl Output {
    /// Checks whether the first file can be written. Its content stays.
    fn open(
        files: [PathBuf; 3],
        name: &str,
        entry: &'static Entry,
        recorder: &Arc<Recorder>,
    ) -> Result<Self, RecordError> {
        let new = check_file(&files[0])?;
        if new {
            let made = regular::open_no_link(&files[0], OpenOptions::new().write(true).create_new(true).mode(0o600));
            made.map_err(|source| RecordError::of(&files[0], source))?;
        }
        let (recorder, name) = (Arc::clone(recorder), name.to_owned());
        let (records, text, file, most) = (Vec::new(), String::new(), None, FILE_MAX);
        Ok(Self { recorder, name, entry, made: None, files, new, file, most, part: 0, written: 0, records, text })
    }

    /// Removes the later parts of an older trace. They would look like parts of this one.
    fn remove_older(&self) -> Result<(), RecordError> {
        self.files[1..].iter().try_for_each(|file| match std::fs::remove_file(file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(RecordError::of(file, error)),
            _ => Ok(()),
        })
    }

    /// Starts the next part, in the next file.
    fn begin(&mut self) -> std::io::Result<()> {
        let turn = if self.part == 0 { 0 } else { 1 + (self.part as usize - 1) % 2 };
        let path = &self.files[turn];
        self.part += 1;
        let mut options = OpenOptions::new();
        let file = regular::open_no_link(path, options.write(true).create(true).truncate(true).mode(0o600))?;
        if let Err(error) = keep_to_owner(&file) {
            warn!(port = self.name, "others may read its trace {}: {error}", path.display());
        }
        self.file = Some(file);
        self.text = Trace::header(&self.name, self.entry.about.name, (self.part > 1).then_some(self.part), self.made);
        self.written = self.text.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(self.text.as_bytes())?;
        }
        self.text.clear();
        Ok(())
    }

    /// Writes the waiting events.
    fn drain(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        let lost = {
            let mut waiting = lock(&self.recorder.waiting);
            std::mem::swap(&mut records, &mut waiting.records);
            waiting.bytes = 0;
            std::mem::take(&mut waiting.lost)
        };
        if lost > 0 {
            records.push((None, What::Event(Event::Lost(lost))));
        }
        let mut done = Ok(());
        if self.file.is_some() {
            let lines = records.drain(..).map(|(at, what)| match what {
                What::Event(event) => TimedEvent { at, event },
                What::GuestError(NotedError { number, error, .. }) => {
                    TimedEvent { at, event: Event::Mark(format!("guest error {number}: {error}")) }
                }
            });
            done = lines.into_iter().try_for_each(|record| self.line(&record)).and_then(|()| self.flush());
        }
        if let Err(error) = done {
            warn!(port = self.name, "its trace {} ends here: {error}", self.files[0].display());
            self.file = None;
        }
        records.clear();
        self.records = records;
    }

    fn line(&mut self, record: &TimedEvent) -> std::io::Result<()> {
        let begin = self.text.len();
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{record}");
        if let Event::Access(access) = &record.event
            && let Some(register) = (self.entry.register)(access.region, access.offset)
        {
            let _ = write!(self.text, "  # {register}");
        }
        self.text.push('\n');
        let bytes = (self.text.len() - begin) as u64;
        if self.written + bytes > self.most {
            let line = self.text.split_off(begin);
            self.flush()?;
            self.begin()?;
            self.text.push_str(&line);
        }
        self.written += bytes;
        Ok(())
    }
}

#[cfg(test)]
#[path = "recorder_test.rs"]
mod tests;
