//! A daemon for bare guests.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nicety_adapters::find;
use nicety_daemon::daemon::{Daemon, PortSpec, PortView};
use nicety_host::PortConfig;
use nicety_switch::Limits;
use tempfile::TempDir;

/// Most time for any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A daemon with ports `vm1` and upwards.
pub struct Stage {
    pub daemon: Daemon,
    dir: TempDir,
}

impl Stage {
    pub fn new(workers: usize, adapters: &[&str]) -> Stage {
        let dir = TempDir::new().unwrap();
        nicety_sandbox::begin_for_tests();
        let daemon = Daemon::start(Limits::default(), workers).unwrap();
        let stage = Stage { daemon, dir };
        for (number, adapter) in (1..).zip(adapters) {
            stage.daemon.open(stage.spec(number, adapter)).unwrap();
        }
        stage
    }

    /// The specification of a port.
    pub fn spec(&self, number: u8, adapter: &str) -> PortSpec {
        PortSpec::plain(PortConfig::new(
            &format!("vm{number}"),
            find(adapter).unwrap(),
            nicety_frame::Mac([0x52, 0x54, 0, 0, 0, number]),
            self.socket(number.into()),
        ))
    }

    pub fn socket(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("vm{number}.sock"))
    }

    pub fn view(&self, number: usize) -> PortView {
        self.daemon.views().into_iter().find(|view| view.name == format!("vm{number}")).unwrap()
    }

    /// Frames that a guest took.
    pub fn taken(&self, number: usize) -> u64 {
        self.view(number).state.counters.taken().packets
    }

    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !done() {
            assert!(Instant::now() < end, "{what}: not within {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.daemon.stop();
    }
}
