//! Tests of the loop, with a bench without guests.

use super::*;
use crate::bench::fake::{FakeBench, Fault};
use crate::method::{Options, Server};
use crate::results::Test;

fn compare(bench: &mut FakeBench, cancel: &AtomicBool) -> Result<Results, RunError> {
    let plan = Plan::new(&Options::default(), bench).unwrap();
    run(&plan, bench, "nicety compare", &mut Progress::silent(), cancel)
}

fn compare_with(faults: Vec<Fault>) -> (FakeBench, Result<Results, RunError>) {
    let mut bench = FakeBench { faults, ..FakeBench::two_servers() };
    let results = compare(&mut bench, &AtomicBool::new(false));
    (bench, results)
}

#[test]
fn every_run_becomes_a_sample_of_its_row() {
    let (bench, results) = compare_with(Vec::new());
    let results = results.unwrap();
    assert_eq!(bench.ran.len(), 112);
    assert_eq!(results.runs.len(), 112);
    assert_eq!(results.rows.len(), 4 * Test::ALL.len());
    let row = results.row("virtio-net", Test::BulkTransmit, Server::Nicety).unwrap();
    assert_eq!(row.samples.iter().map(|sample| sample.round).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    // 1000 × 2 × 1.5, and 3 % more in the middle round of seven.
    assert!((row.median.unwrap() - 3_090.0).abs() < 0.1);
    let interval = row.interval.unwrap();
    assert!((interval.low - 3_000.0).abs() < 0.1 && (interval.high - 3_180.0).abs() < 0.1);
    let qemu = results.row("virtio-net", Test::BulkTransmit, Server::Qemu).unwrap();
    assert!((row.ratio_to(qemu).unwrap().median - 1.5).abs() < 1e-6);
    assert_eq!(qemu.counts.unwrap().register_reads_per_frame, None);
    assert_eq!(row.counts.unwrap().register_reads_per_frame, Some(0.1));
    let reads = results.row("virtio-net", Test::ReadsPerFrame, Server::Qemu).unwrap();
    assert_eq!(reads.absent.as_deref(), Some("QEMU does not count it"));
}

#[test]
fn who_does_not_serve_an_adapter_has_rows_without_figures_if_the_adapter_was_chosen() {
    let run_of = |adapter: &str| {
        let mut bench = FakeBench::linked();
        let options = Options { adapters: vec![adapter.to_owned()], ..Options::default() };
        let plan = Plan::new(&options, &bench).unwrap();
        run(&plan, &mut bench, "nicety compare", &mut Progress::silent(), &AtomicBool::new(false)).unwrap()
    };
    let virtio = run_of("virtio-net");
    let row = virtio.row("virtio-net", Test::GuestToGuest, Server::Qemu).unwrap();
    assert_eq!((row.median, row.absent.as_deref()), (None, Some("QEMU has none")));
    assert!(virtio.row("virtio-net", Test::BulkTransmit, Server::Qemu).is_none(), "nobody ran that load");
    let reads = virtio.row("virtio-net", Test::ReadsPerFrame, Server::NicetyStream).unwrap();
    assert_eq!(reads.median, Some(0.1), "over the runs from guest to guest");
    assert!(run_of("e1000").row("virtio-net", Test::GuestToGuest, Server::Qemu).is_none());
}

#[test]
fn a_stop_during_a_run_ends_the_comparison_with_that_run() {
    let cancel = AtomicBool::new(false);
    let mut bench = FakeBench { faults: vec![Fault::CancelAt(5)], ..FakeBench::two_servers() };
    assert_eq!(compare(&mut bench, &cancel).unwrap_err(), RunError::Cancelled);
    assert_eq!(bench.ran.len(), 6);
}

#[test]
fn a_stop_before_the_first_run_runs_nothing() {
    let mut bench = FakeBench::two_servers();
    assert_eq!(compare(&mut bench, &AtomicBool::new(true)).unwrap_err(), RunError::Cancelled);
    assert!(bench.ran.is_empty());
}

#[test]
fn a_single_failed_run_costs_one_sample_and_the_interval_and_is_recorded() {
    let failed = BenchError::Failed("the guest stopped answering".to_owned());
    let (_, results) = compare_with(vec![Fault::On("round 4: e1000 by qemu, bulk receive".to_owned(), failed)]);
    let results = results.unwrap();
    let row = results.row("e1000", Test::BulkReceive, Server::Qemu).unwrap();
    assert_eq!(row.samples.iter().map(|sample| sample.round).collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6]);
    assert!(row.median.is_some() && row.interval.is_none() && row.absent.is_none());
    let failures: Vec<&Run> = results.runs.iter().filter(|run| run.failure.is_some()).collect();
    assert_eq!(failures.len(), 1);
    assert_eq!((failures[0].round, failures[0].failure.as_deref()), (3, Some("the guest stopped answering")));
}

#[test]
fn a_load_that_fails_twice_in_a_row_is_given_up_and_the_others_go_on() {
    let failed = BenchError::Failed("the guest stopped answering".to_owned());
    let (bench, results) = compare_with(vec![Fault::On("e1000 by qemu, guest to guest".to_owned(), failed)]);
    let results = results.unwrap();
    let row = results.row("e1000", Test::GuestToGuest, Server::Qemu).unwrap();
    assert_eq!((row.median, row.absent.as_deref()), (None, Some("the guest stopped answering")));
    assert_eq!(bench.ran.len(), 112 - 5);
    assert!(results.row("e1000", Test::GuestToGuest, Server::Nicety).unwrap().interval.is_some());
}

#[test]
fn an_impossible_load_is_tried_once() {
    let impossible = BenchError::Impossible("this adapter cannot".to_owned());
    let (bench, results) =
        compare_with(vec![Fault::On("virtio-net by nicety, request-response".to_owned(), impossible)]);
    assert_eq!(bench.ran.len(), 112 - 6);
    let results = results.unwrap();
    for test in [Test::RequestResponse, Test::RrP50, Test::RrP99] {
        assert_eq!(
            results.row("virtio-net", test, Server::Nicety).unwrap().absent.as_deref(),
            Some("this adapter cannot")
        );
    }
}

#[test]
fn a_fatal_error_and_failure_of_everything_are_errors_that_say_why() {
    let (bench, results) =
        compare_with(vec![Fault::On("round 1".to_owned(), BenchError::Fatal("no /dev/kvm".to_owned()))]);
    assert_eq!((results.unwrap_err().to_string(), bench.ran.len()), ("no /dev/kvm".to_owned(), 1));
    let (bench, results) = compare_with(vec![Fault::On("round".to_owned(), BenchError::Failed("no guest".to_owned()))]);
    assert_eq!(results.unwrap_err().to_string(), "no run gave a figure; the last one failed so: no guest");
    assert_eq!(bench.ran.len(), 32, "each of 16 loads twice");
}
