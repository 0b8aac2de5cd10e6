//! The log of `nicety serve` on standard error, or in systemd's journal if standard error is that (`journald.rs`). Logging never waits for the
//! log's reader: a line goes to a buffer, and a separate thread writes the buffer. A line that does not fit is left out whole; the log then reports how many lines are missing at that
//! place.
//!
//! Not `tracing-appender`: it does not report the lines that it loses, prints errors on stdout (`println!`, which panics if that is
//! closed), and brings more crates.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use nicety_control::Recent;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::warn;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::SubscriberBuilder;
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::{Exit, Failure};
use crate::output;

pub mod filter;
mod journald;
mod recent;

use journald::Unread;

/// Most bytes of lines that are not written yet.
const ROOM_BYTES: usize = 1 << 20;
/// Bytes written at once: a pipe takes no more without splitting them (pipe(7), `PIPE_BUF`).
const PART_BYTES: usize = 4096;
/// Longest wait for unwritten lines at the end or in a panic.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The log. Dropping it writes the remaining lines, if they are read soon. The journal has then read them.
#[derive(Debug)]
pub struct Log(Arc<Lines>, Option<Unread>);

/// Starts the log at the requested levels, on standard error. `recent` gets its lines too.
pub fn start(asked: Targets, recent: Option<Arc<Recent>>) -> Result<Log, Failure> {
    let kept = recent::Kept(recent);
    let failed = Failure::with(Exit::Failed);
    let (log, begun) = if journald::is_stderr() {
        let (send, unread) = journald::sender().map_err(&failed)?;
        let mut log = Log::start(send, Form::Journal).map_err(failed)?;
        log.1 = Some(unread);
        let records = journald::Records(Arc::clone(&log.0));
        (log, tracing_subscriber::registry().with(records).with(kept).with(asked).try_init())
    } else {
        let colours = use_colours(io::stderr().is_terminal(), std::env::var_os("NO_COLOR").as_deref());
        let write = |bytes: &[u8]| write_all(io::stderr(), bytes);
        let log = Log::start(write, Form::Text { colours }).map_err(failed)?;
        let formatted = format(Arc::clone(&log.0), colours).with_max_level(LevelFilter::TRACE).finish();
        (log, formatted.with(kept).with(asked).try_init())
    };
    begun.map_err(|error| Failure::new(Exit::Failed, error))?;
    // The hook does not join the thread: that could wait for a reader too.
    let lines = Arc::clone(&log.0);
    std::panic::set_hook(Box::new(move |panic| {
        let (thread, trace) = (std::thread::current(), Backtrace::force_capture());
        let is_captured = trace.status() == BacktraceStatus::Captured;
        // The names of its functions are read from files, which most threads may not open.
        let trace = if is_captured { nicety_sandbox::aside(move || format!("\n{trace}")) } else { None };
        let trace = trace.unwrap_or_default();
        lines.push_always(format_args!("thread {:?} {panic}{trace}", thread.name().unwrap_or("?")));
        // The panic may end the program.
        lines.wait();
    }));
    Ok(log)
}

/// Writes on standard error why a command ends. In the journal it is an error.
pub fn tell_end(failure: &Failure) {
    let words = failure.to_string();
    if journald::is_stderr() { output::tell(journald::failure(&words).trim_end()) } else { output::tell(words) }
}

/// Colours are used on a terminal, unless `NO_COLOR` is set and not empty (no-color.org).
fn use_colours(terminal: bool, no_color: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty)
}

/// Format of a line.
fn format<W>(writer: W, colours: bool) -> SubscriberBuilder<DefaultFields, Format, LevelFilter, W>
where
    W: for<'a> tracing_subscriber::fmt::MakeWriter<'a> + 'static,
{
    // Without this, write errors would be reported with `eprintln!`.
    tracing_subscriber::fmt().with_writer(writer).with_ansi(colours).with_target(false).log_internal_errors(false)
}

/// The form of what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text { colours: bool },
    Journal,
}

impl Default for Form {
    fn default() -> Self {
        Self::Text { colours: false }
    }
}

/// The line that reports missing lines, independent of the log's levels.
fn left_out(count: u64, form: Form) -> Vec<u8> {
    let (lines, were) = (output::count(count, "line"), if count == 1 { "was" } else { "were" });
    let colours = match form {
        Form::Text { colours } => colours,
        Form::Journal => return journald::left_out(&format!("{lines} {were} left out: the journal took no more")),
    };
    let line = Arc::new(Lines::default());
    let log = format(Arc::clone(&line), colours).with_max_level(LevelFilter::WARN).finish();
    tracing::subscriber::with_default(log, || warn!("{lines} {were} left out: standard error took no more"));
    match line.state().parts.pop_front() {
        Some(Part::Lines(line)) => line,
        _ => Vec::new(),
    }
}

impl Log {
    /// Starts a thread that calls `write`, for the journal once a record. `write` returns how many of the given bytes were written.
    fn start(write: impl FnMut(&[u8]) -> usize + Send + 'static, form: Form) -> Result<Log, io::Error> {
        let lines = Arc::new(Lines { form, ..Lines::default() });
        let written = Arc::clone(&lines);
        let mut out = Out { write, form, left_out: 0, torn: false };
        // The thread is not joined: it may wait for a reader that never comes.
        nicety_sandbox::spawn(nicety_sandbox::Kind::Log, "log", 256 << 10, move || {
            written.take(|part| match part {
                Part::Lines(lines) => out.lines(lines),
                Part::Record(record) => out.record(record),
                Part::LeftOut(count) => out.leave_out(*count),
            });
        })?;
        Ok(Log(lines, None))
    }

    /// Ends the log, with a text that is not a log line.
    pub fn end(self, words: impl Display) {
        self.0.push_always(words);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.0.change(|state| state.ends = true);
        self.0.wait();
        self.1.iter().for_each(|unread| unread.wait(journald::READ_TIMEOUT));
    }
}

/// Destination of lines. It may refuse them for a time, such as a disk that is full.
struct Out<W> {
    write: W,
    form: Form,
    /// Lines left out and not reported yet.
    left_out: u64,
    /// The last line was cut.
    torn: bool,
}

impl<W: FnMut(&[u8]) -> usize> Out<W> {
    fn lines(&mut self, lines: &[u8]) {
        // Missing lines are reported before the next line.
        let done = if self.tell() { self.put(lines) } else { 0 };
        self.left_out += lines[done..].iter().filter(|byte| **byte == b'\n').count() as u64;
    }

    fn record(&mut self, record: &[u8]) {
        if !self.tell() || self.put(record) < record.len() {
            self.left_out += 1;
        }
    }

    fn leave_out(&mut self, count: u64) {
        self.left_out += count;
        self.tell();
    }

    /// Reports missing lines, if there are any. False if the report could not be written either.
    fn tell(&mut self) -> bool {
        if self.left_out == 0 {
            return true;
        }
        let mut line = if self.torn { vec![b'\n'] } else { Vec::new() };
        line.extend(left_out(self.left_out, self.form));
        let reported = self.put(&line) == line.len();
        if reported {
            self.left_out = 0;
        }
        reported
    }

    /// Writes as much as possible. Returns the number of bytes written.
    fn put(&mut self, bytes: &[u8]) -> usize {
        let done = (self.write)(bytes);
        if let Some(last) = bytes[..done].last() {
            self.torn = *last != b'\n';
        }
        done
    }
}

/// An item to write.
#[derive(Debug)]
enum Part {
    /// Whole lines.
    Lines(Vec<u8>),
    /// A record for the journal.
    Record(Vec<u8>),
    /// Number of lines without room.
    LeftOut(u64),
}

#[derive(Debug, Default)]
struct State {
    parts: VecDeque<Part>,
    /// Bytes of lines, with those that are being written.
    bytes: usize,
    /// Whether the thread has work, or is about to check for work.
    busy: bool,
    ends: bool,
}

impl State {
    fn push(&mut self, line: &[u8]) {
        self.bytes += line.len();
        match self.parts.back_mut() {
            Some(Part::Lines(lines)) if lines.len() + line.len() <= PART_BYTES => lines.extend_from_slice(line),
            _ => self.parts.push_back(Part::Lines(line.to_vec())),
        }
    }

    fn push_record(&mut self, record: Vec<u8>) {
        self.bytes += record.len();
        self.parts.push_back(Part::Record(record));
    }

    fn leave_out(&mut self) {
        match self.parts.back_mut() {
            Some(Part::LeftOut(count)) => *count += 1,
            _ => self.parts.push_back(Part::LeftOut(1)),
        }
    }
}

/// Lines logged and not written yet.
#[derive(Debug, Default)]
struct Lines {
    form: Form,
    state: Mutex<State>,
    work: Condvar,
    all_written: Condvar,
}

impl Lines {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes the state and gives the thread work. Wakes it only if it sleeps.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let sleeps = !std::mem::replace(&mut state.busy, true);
        drop(state);
        if sleeps {
            self.work.notify_one();
        }
    }

    /// Adds a text, even if the buffer is full.
    fn push_always(&self, words: impl Display) {
        let line = format!("{words}\n");
        self.change(|state| match self.form {
            Form::Text { .. } => state.push(line.as_bytes()),
            Form::Journal => state.push(journald::failure(&line).as_bytes()),
        });
    }

    /// Adds a record for the journal, if there is room.
    fn push_record(&self, record: Vec<u8>) {
        self.change(|state| {
            if state.bytes + record.len() <= ROOM_BYTES { state.push_record(record) } else { state.leave_out() }
        });
    }

    /// Waits until all is written, at most [`TIMEOUT`].
    fn wait(&self) {
        let _timed_out = self.all_written.wait_timeout_while(self.state(), TIMEOUT, |state| state.busy);
    }

    /// The thread's loop: writes lines until the log ends.
    fn take(&self, mut write: impl FnMut(&Part)) {
        let mut state = self.state();
        loop {
            if let Some(part) = state.parts.pop_front() {
                drop(state);
                write(&part);
                state = self.state();
                if let Part::Lines(bytes) | Part::Record(bytes) = part {
                    state.bytes -= bytes.len();
                }
                continue;
            }
            state.busy = false;
            self.all_written.notify_all();
            if state.ends {
                return;
            }
            state = self.work.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

/// Each call is one line: `fmt` writes an event with one `write_all`.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.change(|state| if state.bytes + line.len() <= ROOM_BYTES { state.push(line) } else { state.leave_out() });
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the bytes, however long it takes. Returns how many were written: a disk may be full.
fn write_all(out: impl AsFd, bytes: &[u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        let written = match rustix::io::write(&out, &bytes[done..]) {
            // Another process that shares the terminal or pipe may have set O_NONBLOCK.
            Err(Errno::AGAIN) => poll(&mut [PollFd::new(&out, PollFlags::OUT)], None).map(|_ready| 0),
            Ok(0) => break,
            written => written,
        };
        match written {
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    done
}

#[cfg(test)]
#[path = "log_test.rs"]
mod tests;
