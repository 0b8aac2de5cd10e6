//! The log as records of systemd's journal, by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL): a datagram for each record, with
//! a priority and a field for each value. It is used if standard error is the journal (`JOURNAL_STREAM`, systemd.exec(5)).
//!
//! Not `tracing-journald`: it sends from the thread that logs, which would wait for a journal that hangs.

use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_peer::unacknowledged;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrUnix, sendto};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::{Lines, write_all};

/// The journal's socket for records.
const SOCKET: &str = "/run/systemd/journal/socket";
/// A longer message is cut: a datagram must fit into the socket's buffer, 208 KiB by default (socket(7), `wmem_default`).
const MESSAGE_BYTES: usize = 64 << 10;

/// Longest wait at the end for the journal to read what was sent. It reads at once, unless the host is busy. systemd gives the unit twice
/// that time to end (`TimeoutStopSec=`).
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two looks whether the journal has read everything.
const READ_PAUSE: Duration = Duration::from_millis(1);

/// Priorities of syslog(3).
const ERROR: u8 = 3;
const WARNING: u8 = 4;
const INFO: u8 = 6;
const DEBUG: u8 = 7;

/// Whether standard error is connected to the journal.
pub fn is_stderr() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(found) = fstat(std::io::stderr()) else { return false };
    is_stream(&stream, found.st_dev, found.st_ino)
}

/// Whether a value of `JOURNAL_STREAM` names this file, by device and inode in decimal.
fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    stream.split_once(':').is_some_and(|(dev, ino)| dev.parse() == Ok(device) && ino.parse() == Ok(inode))
}

/// Sends records to the journal, however long it takes. Returns how many bytes were taken: all or none. And what tells whether they were read.
pub fn sender() -> std::io::Result<(impl FnMut(&[u8]) -> usize + Send + 'static, Unread)> {
    let socket = UnixDatagram::unbound()?;
    let unread = Unread {
        records: socket.try_clone()?.into(),
        text: std::io::stderr().as_fd().try_clone_to_owned()?,
        journal: SocketAddrUnix::new(SOCKET)?,
    };
    // The address is given with each record: a journal that was restarted gets the next one.
    let send = move |record: &[u8]| {
        let is_text = record.starts_with(FAILURE_PREFIX.as_bytes());
        if is_text { write_all(std::io::stderr(), record) } else { socket.send_to(record, SOCKET).unwrap_or(0) }
    };
    Ok((send, unread))
}

/// What the journal has not read yet.
///
/// The journal looks up a record's unit by its sender's process, when it reads the record (systemd's journald-context.c). A process that has
/// ended by then has no unit. The journal keeps this answer for a second, and uses it for the text on standard error too. So
/// `journalctl -u` and `systemctl status` would show neither (systemd issue 2913). A process that ends waits until the journal is done with
/// both.
#[derive(Debug)]
pub struct Unread {
    records: OwnedFd,
    text: OwnedFd,
    journal: SocketAddrUnix,
}

impl Unread {
    /// Waits until the journal is done with everything, at most this long.
    ///
    /// The journal may still look up a record's unit after it has read the record. It handles messages one after another. So an empty message
    /// is sent behind the records: once that is read, the journal is done with them. It ignores an empty message (systemd's
    /// journald-server.c, `server_process_datagram`).
    pub fn wait(&self, limit: Duration) {
        let end = Instant::now() + limit;
        wait_until(end, || !self.is_some());
        wait_until(end, || sendto(&self.records, &[], SendFlags::DONTWAIT, &self.journal) != Err(Errno::AGAIN));
        wait_until(end, || !self.is_some());
    }

    fn is_some(&self) -> bool {
        [&self.records, &self.text].iter().any(|socket| unacknowledged(socket).is_ok_and(|bytes| bytes > 0))
    }
}

fn wait_until(end: Instant, is_so: impl Fn() -> bool) {
    while !is_so() && Instant::now() < end {
        std::thread::sleep(READ_PAUSE);
    }
}

/// A record as the protocol has it.
pub fn record(priority: u8, message: &str, fields: &[(String, String)]) -> Vec<u8> {
    let mut end = message.len().min(MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let mut record = Vec::new();
    put(&mut record, "MESSAGE", message[..end].trim_end());
    put(&mut record, "PRIORITY", &priority.to_string());
    put(&mut record, "SYSLOG_IDENTIFIER", "nicety");
    for (name, value) in fields {
        put(&mut record, name, value);
    }
    record
}

/// Before each line of a failure: its priority, as the journal takes it from a service's standard error (sd-daemon(3)).
const FAILURE_PREFIX: &str = "<3>";

/// A text for standard error, with the priority of an error: the reason for a process's end, or a panic. Of standard error the journal
/// knows the unit also if it knows nothing of the process.
pub fn failure(words: &str) -> String {
    words.lines().map(|line| format!("{FAILURE_PREFIX}{line}\n")).collect()
}

/// The record that reports missing records.
pub fn left_out(words: &str) -> Vec<u8> {
    record(WARNING, words, &[])
}

/// A value with a newline has its length before it, in eight bytes, little-endian.
fn put(record: &mut Vec<u8>, name: &str, value: &str) {
    record.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        record.push(b'\n');
        record.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        record.push(b'=');
    }
    record.extend_from_slice(value.as_bytes());
    record.push(b'\n');
}

/// A field's name in the journal: capitals, digits and underscores, the first one a letter. Elsewhere `pid` is the VMM's process; the
/// journal has a `_PID` of its own, which is the daemon's.
fn name_of(field: &str) -> String {
    match field {
        "pid" => "VM_PID".to_owned(),
        "file" => "HOST_FILE".to_owned(),
        _ => field.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect(),
    }
}

/// An event's values.
#[derive(Debug, Default)]
pub(super) struct Values {
    message: String,
    /// The other values, as a line on standard error has them.
    shown: String,
    fields: Vec<(String, String)>,
}

impl Visit for Values {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned(), format!("{value:?}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let value = format!("{value:?}");
        self.add(field, value.clone(), value);
    }
}

impl Values {
    /// The message with its values, as a line on standard error has them.
    pub(super) fn line(&self) -> String {
        format!("{}{}", self.message, self.shown)
    }

    fn add(&mut self, field: &Field, value: String, shown: String) {
        if field.name() == "message" {
            self.message = value;
            return;
        }
        // Writing to a `String` cannot fail.
        let _ = write!(self.shown, " {}={shown}", field.name());
        self.fields.push((name_of(field.name()), value));
    }
}

/// Logs events as records.
#[derive(Debug)]
pub struct Records(pub Arc<Lines>);

impl<S: Subscriber> Layer<S> for Records {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut values = Values::default();
        event.record(&mut values);
        let priority = match *event.metadata().level() {
            Level::ERROR => ERROR,
            Level::WARN => WARNING,
            Level::INFO => INFO,
            Level::DEBUG | Level::TRACE => DEBUG,
        };
        self.0.push_record(record(priority, &values.line(), &values.fields));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use tracing::{debug, warn};
    use tracing_subscriber::layer::SubscriberExt;

    use super::super::{Form, Log};
    use super::*;

    #[test]
    fn a_record_is_as_the_protocol_has_it() {
        let fields = [("PORT".to_owned(), "vm1".to_owned())];
        let plain = record(WARNING, "it broke", &fields);
        assert_eq!(plain, b"MESSAGE=it broke\nPRIORITY=4\nSYSLOG_IDENTIFIER=nicety\nPORT=vm1\n");
        // The example of the protocol's page has the same form.
        let long = record(ERROR, "a\nb", &[]);
        assert_eq!(long, b"MESSAGE\n\x03\0\0\0\0\0\0\0a\nb\nPRIORITY=3\nSYSLOG_IDENTIFIER=nicety\n");
        let cut = record(INFO, &"ü".repeat(MESSAGE_BYTES), &[]);
        assert!(cut.len() < MESSAGE_BYTES + 100 && std::str::from_utf8(&cut).is_ok());
    }

    #[test]
    fn an_event_s_values_are_fields_and_stay_in_the_message() {
        let (send, sent) = std::sync::mpsc::channel();
        let write = move |record: &[u8]| send.send(record.to_vec()).map_or(0, |()| record.len());
        let log = Log::start(write, Form::Journal).unwrap();
        let records = tracing_subscriber::registry().with(Records(Arc::clone(&log.0)));
        tracing::subscriber::with_default(records, || {
            warn!(port = "vm1", pid = Some(4711), "{}", "the VMM is disconnected");
            debug!(socket = %"/run/a b", "ready");
        });
        log.end("why it ended\nin two lines");
        let texts: Vec<String> = sent.iter().map(|record| String::from_utf8(record).unwrap()).collect();
        let tail = "SYSLOG_IDENTIFIER=nicety\n";
        assert_eq!(
            texts,
            [
                format!(
                    "MESSAGE=the VMM is disconnected port=\"vm1\" pid=4711\nPRIORITY=4\n{tail}PORT=vm1\nVM_PID=4711\n"
                ),
                format!("MESSAGE=ready socket=/run/a b\nPRIORITY=7\n{tail}SOCKET=/run/a b\n"),
                "<3>why it ended\n<3>in two lines\n".to_owned(),
            ]
        );
    }

    /// A journal's socket, and what a process has that sends to it.
    fn journal(text: OwnedFd) -> (tempfile::TempDir, UnixDatagram, UnixDatagram, Unread) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (far, near) = (UnixDatagram::bind(&path).unwrap(), UnixDatagram::unbound().unwrap());
        near.connect(&path).unwrap();
        let records = near.try_clone().unwrap().into();
        (folder, far, near, Unread { records, text, journal: SocketAddrUnix::new(&path).unwrap() })
    }

    #[test]
    fn the_end_waits_until_the_journal_is_done_with_records_and_text_but_not_for_ever() {
        let (mut stream, mut read) = UnixStream::pair().unwrap();
        let (_folder, far, near, unread) = journal(stream.try_clone().unwrap().into());
        near.send(b"MESSAGE=it broke\n").unwrap();
        stream.write_all(b"<3>why\n").unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unread.wait(READ_TIMEOUT);
                done.send(()).unwrap();
            });
            let goes_on = || is_done.recv_timeout(Duration::from_millis(50)).is_err();
            assert_eq!(far.recv(&mut [0; 64]).unwrap(), 17);
            assert!(goes_on(), "the text is not read");
            read.read_exact(&mut [0; 7]).unwrap();
            assert!(goes_on(), "the journal may not be done with them");
            assert_eq!(far.recv(&mut [0; 64]).unwrap(), 0, "it says nothing");
            is_done.recv_timeout(READ_TIMEOUT / 2).unwrap();
        });
    }

    #[test]
    fn the_end_does_not_wait_for_ever_for_a_journal_that_reads_nothing_and_not_at_all_for_none() {
        let (_folder, far, near, unread) = journal(File::open("/").unwrap().into());
        near.set_nonblocking(true).unwrap();
        // The socket is full, so the empty message does not fit.
        while near.send(b"nobody reads it").is_ok() {}
        let (begun, limit) = (Instant::now(), Duration::from_millis(100));
        unread.wait(limit);
        assert!(begun.elapsed() >= limit);
        drop(far);
        let begun = Instant::now();
        unread.wait(READ_TIMEOUT);
        assert!(begun.elapsed() < READ_TIMEOUT);
    }

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        assert!(is_stream("9:12345", 9, 12345));
        assert!(!is_stream("9:12345", 9, 1) && !is_stream("12345", 9, 12345) && !is_stream("", 0, 0));
    }
}
