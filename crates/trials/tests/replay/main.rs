//! Every server answers an unmodified Linux driver as the recorded server in QEMU did: the traces in `tests/traces`, played in the
//! simulation.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nicety_adapter::trace::{Event, Trace};
use nicety_adapters::{REGISTRY, find};
use nicety_trials::replay::replay;

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
    let (mut adapters, mut differences) = (BTreeSet::new(), Vec::new());
    for file in std::fs::read_dir(folder()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "trace") {
            continue;
        }
        let (trace, name) = (parse(&path), path.file_name().unwrap().display());
        let coverage = match replay(&trace) {
            Ok(coverage) => coverage,
            Err(difference) => {
                differences.push(format!("{name}, {difference}"));
                continue;
            }
        };
        println!("{name}: {coverage}");
        if find(&trace.adapter).unwrap().about.transports.contains(&"vfio-user") {
            let compared = coverage.compared.len();
            assert!(compared >= 100, "{name}: {coverage}");
            assert!(coverage.traffic * 5 <= compared, "{name}: too much is left out: {coverage}");
        }
        adapters.insert(trace.adapter);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let known = REGISTRY.iter().map(|entry| entry.about).filter(|about| about.in_linux());
    assert_eq!(adapters, known.map(|about| about.name.to_owned()).collect());
}

/// Changes the recorded value of every `stride`th read that is compared, one at a time: a replay that missed the change would prove
/// nothing. Returns the number of changes found, and of all reads that are compared.
fn noticed(adapter: &str, stride: usize) -> (usize, usize) {
    let (name, trace) = read(adapter);
    let entry = find(adapter).unwrap();
    let compared = replay(&trace).unwrap().compared;
    let mut noticed = 0;
    for line in compared.iter().step_by(stride) {
        let mut other = trace.clone();
        let (_, record) = other.records.iter_mut().find(|(at, _)| at == line).unwrap();
        let Event::Access(access) = &mut record.event else { panic!("{name}, line {line} is no access") };
        access.value ^= 1;
        let register = (entry.register)(access.region, access.offset);
        let difference = replay(&other).expect_err(&format!("{name}, line {line} was changed"));
        assert_eq!((difference.line, difference.register), (*line, register), "{name}");
        noticed += 1;
    }
    (noticed, compared.len())
}

#[test]
fn any_value_of_vmxnet3_s_that_was_recorded_otherwise_is_a_difference_at_its_line_and_register() {
    let (_, trace) = read("vmxnet3");
    let is_read = |event: &Event| matches!(event, Event::Access(access) if !access.write && access.has_value());
    let reads = trace.records.iter().filter(|(_, record)| is_read(&record.event)).count();
    assert_eq!(noticed("vmxnet3", 1), (reads, reads));
}

#[test]
fn values_of_every_family_that_were_recorded_otherwise_are_differences_at_their_lines_and_registers() {
    let short = ["e1000e", "igb", "pcnet", "ne2k_pci", "rtl8139", "rtl8139-plain", "virtio-net-pci"];
    for (adapter, stride, least) in [("e1000", 41, 20)].into_iter().chain(short.map(|adapter| (adapter, 11, 10))) {
        let (found, all) = noticed(adapter, stride);
        println!("{adapter}: {found} of {all}");
        assert!(found >= least, "{adapter}: {found} only");
    }
}

#[test]
fn a_difference_names_line_phase_register_and_both_values() {
    let text = "nicety-trace 2\nadapter e1000\nmark probe\nW bar0 0x00d0 4 0x00000004\nR bar0 0x00d0 4 0x00000005\n";
    let difference = replay(&Trace::parse(text).unwrap()).unwrap_err();
    let text = "line 5, in `probe`: read of bar0 0x00d0 (IMS): recorded 0x00000005, answered 0x00000004";
    assert_eq!(difference.to_string(), text);
}
