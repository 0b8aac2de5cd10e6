//! A guest's first serial port, for typing as a person does: firmware waits there for commands.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use super::error::{Error, tail};

/// Interval between two attempts to connect.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum size of unread output, in bytes.
const KEPT_BYTES: usize = 64 << 10;

/// A guest's serial port (see the module's page). The machine's side is [`GuestConfig::terminal`](super::GuestConfig::terminal).
#[derive(Debug)]
pub struct Terminal {
    stream: UnixStream,
    unread: String,
}

impl Terminal {
    /// Connects. The machine starts then.
    ///
    /// # Errors
    /// [`Error::Run`] if no process listens there within `limit`.
    pub fn open(socket: &Path, limit: Duration) -> Result<Terminal, Error> {
        let end = Instant::now() + limit;
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => return Ok(Terminal { stream, unread: String::new() }),
                Err(_) if Instant::now() < end => std::thread::sleep(POLL_INTERVAL),
                Err(error) => return Err(failed("connecting to a serial port", error.to_string())),
            }
        }
    }

    /// Waits until the machine has printed `text`. Returns the output before it.
    ///
    /// # Errors
    /// [`Error::Run`] with the end of its output if `text` does not come within `limit`, or the machine ends.
    pub fn wait(&mut self, text: &str, limit: Duration) -> Result<String, Error> {
        let (end, mut chunk) = (Instant::now() + limit, [0; 4096]);
        loop {
            if let Some(at) = self.unread.find(text) {
                let rest = self.unread.split_off(at + text.len());
                let mut output = std::mem::replace(&mut self.unread, rest);
                output.truncate(at);
                return Ok(output);
            }
            let late = |why: &str| {
                failed(
                    &format!("waiting for `{text}` on a serial port"),
                    format!("{why}; it said\n{}", tail(&self.unread, 40)),
                )
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late(&format!("not within {limit:?}")));
            }
            self.stream.set_read_timeout(Some(left)).map_err(|error| late(&error.to_string()))?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(late("the machine has ended")),
                Ok(count) => self.take(chunk.get(..count).unwrap_or_default()),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(late(&error.to_string())),
            }
        }
    }

    /// Types a line.
    ///
    /// # Errors
    /// [`Error::Run`] if the machine has ended.
    pub fn enter(&mut self, line: &str) -> Result<(), Error> {
        let typed = self.stream.write_all(format!("{line}\n").as_bytes());
        typed.map_err(|error| failed(&format!("typing `{line}`"), error.to_string()))
    }

    /// Types a line and waits for the prompt after it. Returns the output between them.
    ///
    /// # Errors
    /// Those of [`Terminal::wait`].
    pub fn command(&mut self, line: &str, prompt: &str, limit: Duration) -> Result<String, Error> {
        self.enter(line)?;
        self.wait(prompt, limit)
    }

    fn take(&mut self, bytes: &[u8]) {
        self.unread.extend(String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control() || *c == '\n'));
        if self.unread.len() > KEPT_BYTES {
            let cut = (self.unread.len() - KEPT_BYTES / 2..).find(|&at| self.unread.is_char_boundary(at));
            self.unread.drain(..cut.unwrap_or_default());
        }
    }
}

fn failed(doing: &str, said: String) -> Error {
    Error::Run { doing: doing.to_owned(), said }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_up_to_a_text_is_given_once_and_a_silence_ends_in_an_error() {
        let (own, mut its) = UnixStream::pair().expect("a pair");
        let mut terminal = Terminal { stream: own, unread: String::new() };
        its.write_all(b"one\r\n=> two\r\n=> ").expect("room");
        let moment = Duration::from_millis(1);
        assert_eq!(terminal.wait("=> ", moment).ok().as_deref(), Some("one\n"));
        assert_eq!(terminal.wait("=> ", moment).ok().as_deref(), Some("two\n"));
        its.write_all("ä".repeat(KEPT_BYTES).as_bytes()).expect("room");
        let error = terminal.wait("=> ", Duration::from_millis(50)).map_err(|error| error.to_string());
        assert!(error.is_err_and(|text| text.contains("not within 50ms")));
        assert!(terminal.unread.len() <= KEPT_BYTES);
        drop(its);
        assert!(
            terminal.wait("=> ", Duration::from_secs(10)).is_err_and(|error| error.to_string().contains("has ended"))
        );
    }
}
