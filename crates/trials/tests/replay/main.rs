//! Every server answers an unmodified Linux driver as the recorded server in QEMU did: the traces in `tests/traces`, played in the
//! simulation.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nicety_adapter::trace::{Access, Event, Trace};
use nicety_adapters::find;
use nicety_trials::replay::{TRAFFIC, replay};

/// The trace of this adapter with the newer kernel.
fn read(adapter: &str) -> (String, Trace) {
    let name = format!("{adapter}-linux-6.12.trace");
    let path = folder().join(&name);
    let trace = parse(&path);
    (name, trace)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

fn parse(path: &Path) -> Trace {
    let text = std::fs::read_to_string(path).unwrap();
    Trace::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A trace has no accesses to rings that a VMM reaches by other paths, only kicks.
#[test]
fn every_adapter_of_which_there_is_a_trace_answers_linux_s_driver_from_probe_to_removal_as_the_recorded_server_did() {
    let mut adapters = BTreeSet::new();
    for file in std::fs::read_dir(folder()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "trace") {
            continue;
        }
        let (trace, name) = (parse(&path), path.file_name().unwrap().display());
        let coverage = replay(&trace).unwrap_or_else(|difference| panic!("{name}, {difference}"));
        println!("{name}: {coverage:?}");
        if find(&trace.adapter).unwrap().about.transports.contains(&"vfio-user") {
            assert!(coverage.compared >= 100, "{name}: {coverage:?}");
            assert!(coverage.traffic * 5 <= coverage.compared, "{name}: too much is left out: {coverage:?}");
        }
        adapters.insert(trace.adapter);
    }
    assert!(adapters.len() >= 3, "{adapters:?}");
}

/// Changes the recorded value of every `stride`th read, one at a time: a replay that missed the change would prove nothing. Returns
/// the number of changes found.
fn noticed(adapter: &str, stride: usize) -> usize {
    let (name, trace) = read(adapter);
    let entry = find(adapter).unwrap();
    let reads = trace.records.iter().enumerate().filter_map(|(index, (_, record))| match record.event {
        Event::Access(access @ Access { write: false, .. }) if access.has_value() => Some((index, access)),
        _ => None,
    });
    let mut noticed = 0;
    for (index, access) in reads.step_by(stride) {
        let register = (entry.register)(access.region, access.offset);
        if register.is_some_and(|register| TRAFFIC.iter().any(|(_, words)| words.contains(&register.word))) {
            continue;
        }
        let mut other = trace.clone();
        let (line, record) = &mut other.records[index];
        let line = *line;
        record.event = Event::Access(Access { value: access.value ^ 1, ..access });
        let difference = replay(&other).expect_err(&format!("{name}, line {line} was changed"));
        assert_eq!((difference.line, difference.register), (line, register), "{name}");
        noticed += 1;
    }
    noticed
}

#[test]
fn any_value_of_vmxnet3_s_that_was_recorded_otherwise_is_a_difference_at_its_line_and_register() {
    let (_, trace) = read("vmxnet3");
    assert_eq!(noticed("vmxnet3", 1), replay(&trace).unwrap().compared);
}

#[test]
fn values_of_the_e1000_s_that_were_recorded_otherwise_are_differences_at_their_lines_and_registers() {
    let found = noticed("e1000", 41);
    assert!(found >= 20, "{found} only");
}

#[test]
fn a_difference_names_line_phase_register_and_both_values() {
    let text = "nicety-trace 1\nadapter e1000\nmark probe\nW bar0 0x00d0 4 0x00000004\nR bar0 0x00d0 4 0x00000005\n";
    let difference = replay(&Trace::parse(text).unwrap()).unwrap_err();
    let text = "line 5, in `probe`: read of bar0 0x00d0 (IMS): recorded 0x00000005, answered 0x00000004";
    assert_eq!(difference.to_string(), text);
}
