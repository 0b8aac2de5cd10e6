//! A daemon with one port, and the log of that port.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use nicety_adapters::find;
use nicety_daemon::daemon::{Daemon, PortSpec};
use nicety_daemon::report::{Condition, PortReport};
use nicety_host::PortConfig;
use nicety_switch::Limits;
use tempfile::TempDir;

/// Most time for any step of these tests: a step that takes longer hangs.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// The burst of lines of a kind for a port (docs/operating.md). After it a port waits for each line.
pub const LINES: u64 = 8;
const PAUSE_SECONDS: u64 = 60;

/// The log of all daemons in this process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Keeps what daemons of this process log from now on.
pub fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).init());
}

/// The log's lines about a port.
pub fn lines_of(port: &str) -> Vec<String> {
    let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    let port = format!("port=\"{port}\"");
    log.lines().filter(|line| line.contains(&port)).map(str::to_owned).collect()
}

/// A daemon with one port.
pub struct Stage {
    pub daemon: Daemon,
    pub name: String,
    begun: Instant,
    place: TempDir,
}

impl Stage {
    pub fn new(name: &str, adapter: &str, workers: usize) -> Self {
        let begun = Instant::now();
        keep();
        nicety_sandbox::begin_for_tests();
        let (daemon, place) = (Daemon::start(Limits::default(), workers).unwrap(), TempDir::new().unwrap());
        // Tests run in parallel, and share a log.
        let stage = Self { daemon, name: format!("{name}{workers}"), begun, place };
        let spec = PortSpec::plain(PortConfig::new(
            &stage.name,
            find(adapter).unwrap(),
            nicety_frame::Mac([2, 0, 0, 0, 0, 1]),
            stage.socket(),
        ));
        stage.daemon.open(spec).unwrap();
        stage
    }

    pub fn socket(&self) -> PathBuf {
        self.place.path().join("socket")
    }

    /// The most lines of a kind that are possible by now.
    pub fn most_lines(&self) -> u64 {
        LINES + self.begun.elapsed().as_secs() / PAUSE_SECONDS
    }

    pub fn report(&self) -> PortReport {
        self.daemon.views().iter().map(PortReport::of).next().unwrap()
    }

    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !done() {
            assert!(Instant::now() < end, "{what}: not within {TIMEOUT:?}: {:?}", self.report());
            std::thread::yield_now();
        }
    }

    pub fn until_is(&self, condition: Condition) {
        self.until(&format!("{condition:?}"), || self.report().condition == condition);
    }
}
