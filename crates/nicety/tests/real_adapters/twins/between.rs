//! A link between two daemons that the test cuts, in one direction or both, or slows down. A process in between as a router would be: what
//! is cut waits there, as packets that are sent again and again do.

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::stage::well;

/// Time between two looks at what is to be done.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes of a piece.
const PIECE: usize = 16 << 10;

/// One direction.
#[derive(Default)]
struct Direction {
    is_cut: AtomicBool,
    /// Bytes per second of each connection; 0: as many as come.
    rate: AtomicU64,
    /// Bytes that passed.
    passed: AtomicU64,
}

/// See the module's page. Directions are named after the host that sends.
#[derive(Clone)]
pub struct Between {
    from: [Arc<Direction>; 2],
}

impl Between {
    /// Listens at `to-a` and `to-b` of this folder, for the daemons at `a.ft` and `b.ft`.
    pub fn new(folder: &Path) -> Between {
        let between = Between { from: Default::default() };
        for (host, name) in super::NAMES.into_iter().enumerate() {
            let listener = well(UnixListener::bind(folder.join(format!("to-{name}"))));
            let (own, to) = (between.clone(), folder.join(format!("{name}.ft")));
            thread::spawn(move || own.accept(&listener, host, &to));
        }
        between
    }

    fn accept(&self, listener: &UnixListener, to: usize, path: &PathBuf) {
        for caller in listener.incoming() {
            let Ok(caller) = caller else { return };
            // A daemon that is not there: the caller's connection ends.
            let Ok(called) = UnixStream::connect(path) else { continue };
            let (Ok(caller_too), Ok(called_too)) = (caller.try_clone(), called.try_clone()) else { continue };
            let [forth, back] = [&self.from[1 - to], &self.from[to]].map(Arc::clone);
            thread::spawn(move || carry(&caller, &called, &forth));
            thread::spawn(move || carry(&called_too, &caller_too, &back));
        }
    }

    /// Cuts what this host sends, or joins it again.
    pub fn cut(&self, host: usize, is_cut: bool) {
        self.from[host].is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Slows down what this host sends, to bytes per second for each connection.
    pub fn slow(&self, host: usize, rate: u64) {
        self.from[host].rate.store(rate, Ordering::Relaxed);
    }

    /// Bytes that this host has sent.
    pub fn passed(&self, host: usize) -> u64 {
        self.from[host].passed.load(Ordering::Relaxed)
    }
}

fn carry(mut from: &UnixStream, mut to: &UnixStream, way: &Direction) {
    let mut piece = vec![0; PIECE];
    loop {
        while way.is_cut.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
        }
        let count = from.read(&mut piece).unwrap_or(0);
        // Cut while it waited for them.
        while way.is_cut.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
        }
        if count == 0 || to.write_all(&piece[..count]).is_err() {
            break;
        }
        way.passed.fetch_add(count as u64, Ordering::Relaxed);
        let rate = way.rate.load(Ordering::Relaxed);
        if rate > 0 {
            thread::sleep(Duration::from_secs_f64(count as f64 / rate as f64));
        }
    }
    let _ended = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}
