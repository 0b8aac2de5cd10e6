//! Embedded guests over real sockets: each adapter carries traffic under each load, and no process is left behind.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nicety_lab::bench::{Bench, BenchError, Outcome};
use nicety_lab::embedded::{Embedded, Layout, Party, Place, Program, Rig};
use nicety_lab::method::{Contestant, Item, Load, Server};
use nicety_trials::scope::entries;

fn program() -> Program {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_nicety"));
    Program { path, hidden: vec!["guest".into()], serve: vec!["serve".into()] }
}

fn bench() -> Embedded {
    Embedded::new(program())
}

fn item(adapter: &str, load: Load) -> Item {
    Item { round: 0, contestant: Contestant::new(adapter, Server::Nicety), load }
}

/// Of a run.
const DURATION: Duration = Duration::from_millis(400);

/// Waits with a bound until these processes have ended.
fn wait_gone(pids: &[u32]) {
    let end = Instant::now() + Duration::from_secs(20);
    while let Some(pid) = pids.iter().find(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
        assert!(Instant::now() < end, "process {pid} is still there");
        std::thread::yield_now();
    }
}

/// The daemons have logged, and logged nothing that a person would have to examine.
fn check_no_warnings(bench: &Embedded) {
    let log = bench.logs();
    assert!(log.contains(" INFO "), "{log}");
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains(" WARN ") || line.contains(" ERROR ")).collect();
    assert_eq!(warnings, Vec::<&str>::new());
}

#[test]
fn every_adapter_carries_every_load_over_real_sockets_without_a_warning_and_leaves_no_process() {
    let mut bench = bench();
    let cancel = AtomicBool::new(false);
    let mut pids = Vec::new();
    for adapter in entries().into_iter().map(|entry| entry.about.name) {
        for load in Load::ALL {
            let measured = bench.run(&item(adapter, load), DURATION, &cancel);
            let measured = measured.unwrap_or_else(|error| panic!("{adapter}, {load}: {error}"));
            let carried = match measured.outcome {
                Outcome::Bulk { payload_bytes, .. } => payload_bytes,
                Outcome::Transactions { count, .. } => count,
            };
            // The amount depends on the machine and on its load.
            assert!(carried > 0, "{adapter}, {load}: nothing in {DURATION:?}");
            assert!(measured.usage.interrupts.is_some_and(|n| n > 0), "{adapter}, {load}: guests sleep and are woken");
            pids.extend(bench.pids());
        }
    }
    assert!(!pids.is_empty());
    check_no_warnings(&bench);
    drop(bench);
    wait_gone(&pids);
}

#[test]
fn a_run_that_is_cancelled_ends_within_half_a_second_or_so_and_leaves_no_process() {
    let mut bench = bench();
    let cancel = Arc::new(AtomicBool::new(false));
    let warm = bench.run(&item("vmxnet3", Load::GuestToGuest), Duration::from_millis(100), &cancel);
    assert!(warm.is_ok(), "{warm:?}");
    let pids = bench.pids();
    assert!(!pids.is_empty());
    let asked = Arc::clone(&cancel);
    let run = std::thread::spawn(move || {
        let result = bench.run(&item("vmxnet3", Load::GuestToGuest), Duration::from_secs(60), &cancel);
        (matches!(result, Err(BenchError::Cancelled)), bench)
    });
    asked.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let (cancelled, bench) = run.join().expect("the run");
    assert!(cancelled);
    assert!(began.elapsed() < Duration::from_secs(20), "it does not run to its end");
    drop(bench);
    wait_gone(&pids);
}

#[test]
fn a_guest_that_shall_send_so_many_frames_a_second_sends_no_more_by_any_adapter() {
    let (cancel, span) = (AtomicBool::new(false), Duration::from_millis(300));
    for adapter in entries().into_iter().map(|entry| entry.about.name) {
        let layout = Layout { guests: vec![Place::new(adapter)], ..Layout::default() };
        let mut rig = Rig::start(&program(), &layout, &cancel).unwrap_or_else(|error| panic!("{adapter}: {error}"));
        let guest = Party::Guest(0);
        let frames = rig.trickle(guest, 60, 100, span).and_then(|()| rig.flooded(guest, span, &cancel));
        let frames = frames.unwrap_or_else(|error| panic!("{adapter}: {error}"));
        // One at once, and one more each 10 ms; fewer if the machine is busy.
        assert!((2..=31).contains(&frames), "{adapter}: {frames}");
    }
}
