//! The guest's console: connected to this terminal for a shell, or to standard output and error for a command.
//!
//! Each line is a socket whose other end is a serial console of the guest. So the terminal's settings (echo, Ctrl-C) are the
//! guest's own, and the host needs no pseudo-terminal.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::SIGWINCH;
use signal_hook::iterator::Signals;

/// Precedes [`TERMINAL`].
const OPEN: &str = "exec 4<>/dev/tty0\n";
/// In the guest, on a terminal: the second line reports new sizes, and the program leads a session, for Ctrl-C.
const TERMINAL: &str = r#"stty -F /dev/tty0 sane
stty -F /dev/ttyS2 -echo
while read -r rows cols; do stty -F /dev/tty0 rows "$rows" cols "$cols"; done </dev/ttyS2 4>&- &
setsid -c sh "$FILES/program" </dev/tty0 >/dev/tty0 2>&1 4>&-
code=$?
stty -F /dev/tty0 sane
exit $code"#;
/// In the guest, without a terminal: bytes pass unchanged. A change of a line's settings waits until its output is written.
const STREAMS: &str = r#"exec 4<>/dev/tty0 5<>/dev/ttyS2
stty -F /dev/tty0 raw -echo
stty -F /dev/ttyS2 raw -echo
sh "$FILES/program" </dev/null >/dev/tty0 2>/dev/ttyS2 4>&- 5>&-
code=$?
stty -F /dev/tty0 raw
stty -F /dev/ttyS2 raw
exit $code"#;

/// Our ends of the guest's lines.
pub struct Console {
    terminal: bool,
    first: UnixStream,
    second: UnixStream,
    raw: Option<Raw>,
    readers: Vec<JoinHandle<()>>,
}

impl Console {
    /// A console, and the guest's ends of its lines. A command uses the terminal if there is one; `None` for a shell without one.
    pub fn new(shell: bool) -> io::Result<Option<(Console, Vec<OwnedFd>)>> {
        let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
        if shell && !terminal {
            return Ok(None);
        }
        let (first, console) = UnixStream::pair()?;
        let (second, other) = UnixStream::pair()?;
        let console_of = Console { terminal, first, second, raw: None, readers: Vec::new() };
        Ok(Some((console_of, vec![console.into(), other.into()])))
    }

    /// The guest's script: runs `$FILES/program` on these lines, and exits with its code.
    pub fn script(&self) -> String {
        match (self.terminal, size()) {
            // Set before the program reads it, on a line that stays open: a line forgets its size when it closes.
            (true, Some((rows, columns))) => format!("{OPEN}stty -F /dev/tty0 rows {rows} cols {columns}\n{TERMINAL}"),
            (true, None) => format!("{OPEN}{TERMINAL}"),
            (false, _) => STREAMS.to_owned(),
        }
    }

    /// Begins to copy bytes. `stop` becomes true when the reader of the output has gone.
    pub fn begin(&mut self, stop: &Arc<AtomicBool>) -> io::Result<()> {
        self.readers.push(carry(self.first.try_clone()?, io::stdout(), stop));
        if !self.terminal {
            self.readers.push(carry(self.second.try_clone()?, io::stderr(), stop));
            return Ok(());
        }
        self.raw = Some(Raw::begin()?);
        // These threads may block for ever; they end with this process.
        let _ = carry(Keys(Arc::clone(stop)), self.first.try_clone()?, stop);
        let mut sizes = self.second.try_clone()?;
        let mut changes = Signals::new([SIGWINCH])?;
        thread::spawn(move || {
            for _ in changes.forever() {
                if let Some((rows, columns)) = size() {
                    let _ = writeln!(sizes, "{rows} {columns}");
                }
            }
        });
        Ok(())
    }

    /// Waits until all output of the ended guest is written, and restores the terminal.
    pub fn finish(self) {
        for reader in self.readers {
            let _ = reader.join();
        }
    }
}

/// Copies bytes until either end closes. `stop` becomes true if the reader closed.
fn carry(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        loop {
            let read = match from.read(&mut bytes) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            let Some(read) = bytes.get(..read).filter(|read| !read.is_empty()) else { return };
            if to.write_all(read).and_then(|()| to.flush()).is_err() {
                stop.store(true, Ordering::Relaxed);
                return;
            }
        }
    })
}

/// Input from the keyboard. In raw mode no key ends it: so its end means that the terminal is gone, and with it the reader of the
/// output.
struct Keys(Arc<AtomicBool>);

impl Read for Keys {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = io::stdin().read(bytes);
        let gone = match &read {
            Ok(read) => *read == 0,
            Err(error) => error.kind() != io::ErrorKind::Interrupted,
        };
        self.0.fetch_or(gone, Ordering::Relaxed);
        read
    }
}

/// The terminal's rows and columns, if it knows them.
fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_row > 0).then_some((size.ws_row, size.ws_col))
}

/// This terminal in raw mode: each key goes to the guest. Dropping it restores the settings.
struct Raw(Termios);

impl Raw {
    fn begin() -> io::Result<Raw> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
