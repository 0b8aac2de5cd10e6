//! Two real QEMUs, protected by COLO as `nicety-qmp` drives it. Threads carry the stream from one UNIX socket to the other.

use std::{
    io::{Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nicety_guests::{Accel, Guest, GuestConfig, Kernel, Launch, Machine, Root};
use nicety_qmp::{
    Colo, Dialogue, Facts, Inquiry, Limits, Monitor, News, Phase, Role, Settings, StepLimits, converse, differences,
};
use rustix::event::{PollFd, Timespec, poll};

use crate::stage::{SOON, well};

/// Longest wait of one poll.
const POLL: Duration = Duration::from_millis(50);

/// A QEMU with its monitor and its end of a protection.
struct End {
    guest: Guest,
    monitor: Monitor,
    colo: Option<Colo>,
    news: Vec<News>,
    /// Its monitor has closed the connection.
    has_ended: bool,
}

/// A guest whose processor runs its firmware, which waits for a disk that does not come. It boots no kernel: so it starts at once.
fn config(socket: &Path, more: &[&str]) -> GuestConfig {
    let mut config = GuestConfig { accel: Accel::Tcg, memory_mib: 64, ..GuestConfig::new(Kernel::V6_12) };
    config.start = nicety_guests::Start::Network;
    config.devices.extend(["-qmp".to_owned(), format!("unix:{},server=on,wait=off", socket.display())]);
    config.devices.extend(more.iter().map(|word| (*word).to_owned()));
    config
}

fn connected(path: &Path) -> UnixStream {
    let end = Instant::now() + SOON;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < end, "{}: {error}", path.display()),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

impl End {
    fn start(root: &Root, folder: &Path, name: &str, more: &[&str]) -> End {
        let socket = folder.join(format!("{name}.qmp"));
        let launch: Launch = well(config(&socket, more).launch(root));
        let guest = well(Guest::launch(launch));
        let monitor = Monitor::new(
            connected(&socket).into(),
            socket.display().to_string(),
            Limits { greeting: SOON, ..Limits::default() },
            Instant::now(),
        );
        End { guest, monitor, colo: None, news: Vec::new(), has_ended: false }
    }

    /// Turns until there is nothing to do at once. A closed monitor stays closed: its end was killed, or ends.
    fn turn(&mut self) {
        let Some(colo) = &mut self.colo else { return };
        self.has_ended |= converse(&mut self.monitor, colo, Instant::now()).is_err();
        while let Some(news) = colo.news() {
            self.news.push(news);
        }
    }

    /// What its QEMU runs.
    fn facts(&mut self) -> Facts {
        let (mut inquiry, end) = (Inquiry::new(SOON), Instant::now() + SOON);
        while inquiry.result().is_none() {
            well(converse(&mut self.monitor, &mut inquiry, Instant::now()));
            assert!(Instant::now() < end, "no facts");
            thread::sleep(Duration::from_millis(1));
        }
        well(inquiry.result().cloned().unwrap_or_else(|| Err("no facts".to_owned())))
    }

    /// The sentence of its failure.
    fn failure(&self) -> String {
        let failure = |news: &News| match news {
            News::Failed(why) => Some(why.clone()),
            _ => None,
        };
        self.news.iter().find_map(failure).unwrap_or_default()
    }

    fn colo(&mut self) -> &mut Colo {
        self.colo.as_mut().unwrap_or_else(|| panic!("it has begun"))
    }

    fn phase(&self) -> Option<Phase> {
        self.colo.as_ref().map(Colo::phase)
    }

    /// The times that its VM has stood still for checkpoints.
    fn stops(&self) -> Vec<Duration> {
        let stop = |news: &News| match news {
            News::Checkpoint { stood_still, .. } => Some(*stood_still),
            _ => None,
        };
        self.news.iter().filter_map(stop).collect()
    }
}

/// Turns these ends, as a thread that serves many would, until `done`.
#[track_caller]
fn turn_until(what: &str, ends: &mut [&mut End], mut done: impl FnMut(&mut [&mut End]) -> bool) {
    let end = Instant::now() + SOON;
    loop {
        ends.iter_mut().for_each(|end| end.turn());
        if done(ends) {
            return;
        }
        let said: Vec<_> =
            ends.iter().map(|end| (end.phase(), end.news.iter().rev().take(3).collect::<Vec<_>>())).collect();
        assert!(Instant::now() < end, "not {what}: {said:?}");
        let now = Instant::now();
        let at = |end: &&mut End| {
            let colo = end.colo.as_ref().and_then(Colo::wake_at);
            [end.monitor.wake_at(), colo].into_iter().flatten().min()
        };
        let wait = ends.iter().filter_map(at).min().map_or(POLL, |at| at.saturating_duration_since(now).min(POLL));
        let mut fds: Vec<_> =
            ends.iter().map(|end| PollFd::from_borrowed_fd(end.monitor.as_fd(), end.monitor.events())).collect();
        let wait = Timespec::try_from(wait).unwrap_or_else(|_| panic!("a short time"));
        _ = poll(&mut fds, Some(&wait));
    }
}

/// Carries a migration stream from a socket where the primary connects to the one where the secondary listens.
#[derive(Clone, Default)]
struct Carrier {
    bytes: Arc<AtomicU64>,
    /// It carries nothing more, and closes nothing.
    is_silent: Arc<AtomicBool>,
}

fn pump(mut from: UnixStream, mut to: UnixStream, carrier: &Carrier, is_counted: bool) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        while carrier.is_silent.load(Ordering::Relaxed) {
            thread::sleep(POLL);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        if is_counted {
            carrier.bytes.fetch_add(count as u64, Ordering::Relaxed);
        }
    }
    _ = to.shutdown(std::net::Shutdown::Both);
    _ = from.shutdown(std::net::Shutdown::Both);
}

impl Carrier {
    fn new(from: &Path, to: &Path) -> Carrier {
        let listener = well(UnixListener::bind(from));
        let (carrier, to) = (Carrier::default(), to.to_owned());
        let own = carrier.clone();
        thread::spawn(move || {
            let Ok((near, _)) = listener.accept() else { return };
            let Ok(far) = UnixStream::connect(to) else { return };
            let back = (well(far.try_clone()), well(near.try_clone()));
            let other = own.clone();
            thread::spawn(move || pump(back.0, back.1, &other, false));
            pump(near, far, &own, true);
        });
        carrier
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

fn settings(at: &Path, delay_ms: u32) -> Settings {
    Settings { uri: format!("unix:{}", at.display()), delay_ms, limits: StepLimits::default() }
}

/// Two QEMUs, and where they meet.
struct Pair {
    folder: tempfile::TempDir,
    primary: End,
    secondary: End,
    carrier: Carrier,
}

impl Pair {
    fn path(folder: &tempfile::TempDir, name: &str) -> PathBuf {
        folder.path().join(name)
    }

    fn new(root: &Root) -> Pair {
        Pair::with(root, &[])
    }

    /// The secondary has further arguments.
    fn with(root: &Root, more: &[&str]) -> Pair {
        let folder = well(tempfile::tempdir());
        let primary = End::start(root, folder.path(), "primary", &[]);
        let secondary = End::start(root, folder.path(), "secondary", &[&["-incoming", "defer"], more].concat());
        let carrier = Carrier::new(&Pair::path(&folder, "a"), &Pair::path(&folder, "b"));
        Pair { folder, primary, secondary, carrier }
    }

    /// Begins to protect the primary's VM.
    fn begin(&mut self, delay_ms: u32) {
        let now = Instant::now();
        self.secondary.colo = Some(Colo::secondary(settings(&Pair::path(&self.folder, "b"), delay_ms), now));
        turn_until("listening", &mut [&mut self.secondary], |ends| ends[0].news.contains(&News::Listening));
        let now = Instant::now();
        self.primary.colo = Some(Colo::primary(settings(&Pair::path(&self.folder, "a"), delay_ms), now));
    }

    /// Protects the primary's VM.
    fn protect(&mut self, delay_ms: u32) {
        self.begin(delay_ms);
        turn_until("synchronized", &mut [&mut self.primary, &mut self.secondary], |ends| {
            ends.iter().all(|end| end.phase() == Some(Phase::Running))
        });
    }

    /// Waits for so many checkpoints at both ends.
    fn checkpoints(&mut self, count: u64) {
        let want = [self.primary.colo().checkpoints() + count, self.secondary.colo().checkpoints() + count];
        turn_until("checkpoints", &mut [&mut self.primary, &mut self.secondary], |ends| {
            ends.iter_mut().zip(want).all(|(end, want)| end.colo().checkpoints() >= want)
        });
    }
}

#[test]
fn qemus_colo_makes_checkpoints_and_the_secondary_goes_on_when_the_primary_is_killed() {
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    let mut pair = Pair::new(&root);
    let facts = [pair.primary.facts(), pair.secondary.facts()];
    assert_eq!((facts[0].refusals(Role::Primary), facts[1].refusals(Role::Secondary)), (vec![], vec![]));
    assert_eq!(differences(&facts[0], &facts[1]), Vec::<String>::new());
    pair.protect(50);
    let (bytes, begin) = (pair.carrier.bytes(), Instant::now());
    pair.checkpoints(20);
    let kilobytes = (pair.carrier.bytes() - bytes) / 1024 / 20;
    let mut stops = pair.primary.stops();
    stops.sort();
    let synchronized = pair.primary.news.iter().find(|news| matches!(news, News::Synchronized { .. }));
    println!(
        "{synchronized:?}; 20 checkpoints in {:?}, {kilobytes} KB each; stood still {:?} at the median, {:?} at most",
        begin.elapsed(),
        stops[stops.len() / 2],
        stops[stops.len() - 1]
    );
    let Pair { primary, mut secondary, .. } = pair;
    drop(primary);
    turn_until("broken", &mut [&mut secondary], |ends| ends[0].news.contains(&News::Broken));
    let begin = Instant::now();
    secondary.colo().fail_over(begin);
    turn_until("alone", &mut [&mut secondary], |ends| ends[0].phase() == Some(Phase::Alone));
    println!("the secondary goes on after {:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(1));
    secondary.colo().quit();
    turn_until("ending", &mut [&mut secondary], |ends| ends[0].has_ended);
    let why = News::Shutdown { is_guests: false, reason: "host-qmp-quit".into() };
    assert!(secondary.news.contains(&why), "{:?}", secondary.news.last());
    drop(secondary.guest);
}

#[test]
fn a_primary_whose_secondary_is_killed_goes_on_and_takes_a_new_one_and_makes_a_checkpoint_when_it_is_asked() {
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    let mut pair = Pair::new(&root);
    pair.protect(60_000);
    let begin = Instant::now();
    pair.primary.colo().checkpoint();
    pair.checkpoints(1);
    println!("a checkpoint that was asked for: {:?}", begin.elapsed());
    // An owner that is started again finds COLO running.
    let again = |role, at: &str| Colo::adopted(role, settings(&Pair::path(&pair.folder, at), 60_000), Instant::now());
    let colos = [again(Role::Primary, "a"), again(Role::Secondary, "b")];
    let Pair { mut primary, mut secondary, .. } = pair;
    [primary.colo, secondary.colo] = colos.map(Some);
    turn_until("adopted", &mut [&mut primary, &mut secondary], |ends| {
        ends.iter_mut().all(|end| end.colo().checkpoints() > 0)
    });
    drop(secondary);
    // A primary reads from its stream only while it makes a checkpoint.
    primary.colo().checkpoint();
    turn_until("broken", &mut [&mut primary], |ends| ends[0].news.contains(&News::Broken));
    let begin = Instant::now();
    primary.colo().fail_over(begin);
    turn_until("alone", &mut [&mut primary], |ends| ends[0].phase() == Some(Phase::Alone));
    println!("the primary goes on after {:?}", begin.elapsed());
    let mut pair = Pair::new(&root);
    pair.primary = primary;
    pair.protect(50);
    pair.checkpoints(3);
}

/// QEMU fences nothing: with a silent link each end would go on. The lease's owner does, and the other QEMU is ended.
#[test]
fn either_end_goes_on_when_the_link_is_silent() {
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    for survivor in [Role::Primary, Role::Secondary] {
        let mut pair = Pair::new(&root);
        pair.protect(50);
        pair.checkpoints(3);
        // In the middle of a checkpoint, if the host is fast enough.
        turn_until("standing", &mut [&mut pair.primary, &mut pair.secondary], |ends| {
            ends[0].colo().standing_since().is_some()
        });
        pair.carrier.is_silent.store(true, Ordering::Relaxed);
        let silence = Duration::from_millis(300);
        turn_until("silent", &mut [&mut pair.primary, &mut pair.secondary], |ends| {
            ends.iter_mut().all(|end| end.colo().last_checkpoint().is_some_and(|last| last.elapsed() > silence))
        });
        let Pair { primary, secondary, carrier, folder } = pair;
        let (mut end, other) = if survivor == Role::Primary { (primary, secondary) } else { (secondary, primary) };
        let stood = end.colo().standing_since().is_some();
        let begin = Instant::now();
        end.colo().fail_over(begin);
        turn_until("alone", &mut [&mut end], |ends| ends[0].phase() == Some(Phase::Alone));
        println!("{survivor:?} (stood still: {stood}) goes on after {:?}", begin.elapsed());
        assert!(begin.elapsed() < StepLimits::default().failover, "without yank");
        assert_eq!(end.facts().status, "running");
        drop((other, folder));
        carrier.is_silent.store(false, Ordering::Relaxed);
    }
}

#[test]
fn a_first_synchronization_that_does_not_come_through_is_ended_and_the_vm_goes_on() {
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    let folder = well(tempfile::tempdir());
    let mut primary = End::start(&root, folder.path(), "primary", &[]);
    // It accepts, and reads nothing.
    let silent = folder.path().join("silent");
    let _listener = well(UnixListener::bind(&silent));
    let mut slow = settings(&silent, 50);
    slow.limits.synchronize = Duration::from_secs(1);
    primary.colo = Some(Colo::primary(slow, Instant::now()));
    turn_until("given up", &mut [&mut primary], |ends| ends[0].phase() == Some(Phase::Failed));
    let why = primary.failure();
    assert!(why.contains("has not ended within 1s") && why.contains("the link is slower"), "{why}");
    let facts = primary.facts();
    assert_eq!(
        (facts.status.as_str(), facts.refusals(Role::Primary)),
        ("running", vec![]),
        "it may be protected again"
    );
    primary.colo = Some(Colo::primary(settings(&folder.path().join("nobody"), 50), Instant::now()));
    turn_until("refused", &mut [&mut primary], |ends| ends[0].phase() == Some(Phase::Failed));
    println!("{:?}", primary.news);
    assert!(primary.news.iter().any(|news| matches!(news, News::Failed(why) if why.contains("No such file"))));
}

#[test]
fn twins_that_differ_are_told_before_and_by_qemus_own_words_in_between() {
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    let mut pair = Pair::with(&root, &["-smp", "2"]);
    let found = differences(&pair.primary.facts(), &pair.secondary.facts());
    assert!(found.iter().any(|sentence| sentence.contains("smp.cpus differs: 1 at the primary, 2 at")), "{found:?}");
    pair.begin(50);
    turn_until("refused", &mut [&mut pair.primary, &mut pair.secondary], |ends| {
        ends.iter().all(|end| end.phase() == Some(Phase::Failed))
    });
    let [here, there] = [pair.primary.failure(), pair.secondary.failure()];
    println!("{here}\n{there}");
    assert!(there.contains("load of migration failed") && there.contains("command lines"), "{there}");
    assert!(here.contains("the first synchronization failed"), "{here}");
    assert_eq!(pair.primary.facts().status, "running", "the VM goes on");
}
