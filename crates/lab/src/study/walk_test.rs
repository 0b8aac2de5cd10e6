use std::cell::Cell;
use std::collections::BTreeMap;

use super::super::results::tests::{Scratch, head, head_of, here};
use super::super::{Options, Study};
use super::*;
use crate::bench::Percentile;
use crate::methods;
use crate::plan::Load;
use crate::record::Taken;
use crate::report;
use crate::series::Series;

/// A rig without guests. Rates follow from the adapter's name, with a ripple.
struct Fake<'a> {
    /// The adapter whose guest panics.
    panics: &'static str,
    runs: u32,
    /// Requests the end in this run.
    stops: Option<(u32, &'a AtomicBool)>,
    ripple: f64,
    /// Of the CPU per gigabit.
    cost_ripple: f64,
    made: Cell<u32>,
    /// Stolen time of each run as the rig marks it, in percent.
    stolen: Option<f64>,
}

impl Fake<'_> {
    fn new() -> Fake<'static> {
        Fake { panics: "", runs: 0, stops: None, ripple: 0.01, cost_ripple: 0.0, made: Cell::new(0), stolen: None }
    }
}

const LAST_WORDS: &str =
    "the guest ended while it ran `iperf`; its console ended with\nKernel panic - not syncing: <0>\n---[ end ]---";

impl Rig for Fake<'_> {
    fn run(&mut self, round: u32, subject: &Subject, load: &Load, stop: &AtomicBool) -> Result<Taken, BenchError> {
        let round = if subject.is_native() { 0 } else { round };
        self.runs += 1;
        self.made.set(self.runs);
        if self.stops.is_some_and(|(at, _)| at == self.runs) {
            stop.store(true, Ordering::Relaxed);
        }
        if subject.adapter == self.panics {
            return Err(BenchError::Failed(LAST_WORDS.to_owned()));
        }
        let base = match subject.adapter.as_str() {
            "e1000-82545em" => 1_000.0,
            "e1000e" => 1_200.0,
            _ => 2_000.0,
        };
        let value = base * (1.0 + self.ripple * f64::from(round % 3));
        let name = if load.name == "stream" { "mbit" } else { "transactions" };
        let mut series = Series::default();
        (1..=4).for_each(|second| series.push(f64::from(second), value));
        let latency = (name == "transactions")
            .then(|| vec![Percentile { percent: 50.0, us: 100.0 }, Percentile { percent: 99.0, us: 900.0 }]);
        let mut figures = BTreeMap::from([(name.to_owned(), value)]);
        if name == "mbit" {
            figures.insert("cpu".to_owned(), 1.0 + self.cost_ripple * f64::from(round % 3));
        }
        if load.name == "scp" {
            let stable = subject.adapter != "pcnet";
            figures = [("megabytes".to_owned(), 10.0), ("stable".to_owned(), f64::from(u8::from(stable)))].into();
        }
        Ok(Taken { figures, series: Some(series), latency, steal_percent: self.stolen, ..Taken::default() })
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

fn method() -> &'static dyn Method {
    methods::find("vmxnet3-iperf").unwrap()
}

fn begin(scratch: &Scratch, options: &Options) -> Results {
    Results::begin(&scratch.0.join("vmxnet3-iperf"), &scratch.0, head(options)).unwrap()
}

fn quick() -> Options {
    Options { length: Some(Length::Quick), ..Options::default() }
}

fn go(rig: &mut Fake<'_>, results: &mut Results, stop: &AtomicBool) -> End {
    run(method(), rig, results, &mut Progress::silent(), stop).unwrap()
}

#[test]
fn a_guest_that_panics_costs_its_own_row_whose_reason_has_its_last_words_and_the_rest_goes_on() {
    let scratch = Scratch::new("panics");
    let mut results = begin(&scratch, &quick());
    let mut rig = Fake { panics: "e1000e", ..Fake::new() };
    // Two loads, each given up after its second failure.
    assert_eq!(go(&mut rig, &mut results, &AtomicBool::new(false)), End::Done { failed: 4 });
    let study = Study::read(&scratch.0.join("vmxnet3-iperf")).unwrap();
    assert_eq!(study, results.study);
    for subject in &study.head.plan.subjects {
        let counted = study.counted().filter(|run| run.subject == *subject).count();
        assert_eq!(counted, if subject.adapter == "e1000e" { 0 } else { 6 }, "{subject}");
    }
    assert_eq!(study.failed().next().unwrap().failure.as_deref(), Some(LAST_WORDS));
    let page = report::study::page(&study);
    assert!(page.contains("Kernel panic - not syncing: &lt;0&gt;\n---[ end ]---"), "the last words, escaped");
    assert!(page.contains("4 runs failed, of e1000e by nicety: see below."));
    assert!(!page.contains("<script"), "it needs no JavaScript");
}

#[test]
fn an_interruption_loses_the_run_in_progress_alone_and_the_resumed_study_is_the_whole_one() {
    let scratch = Scratch::new("resumed");
    let (stop, folder) = (AtomicBool::new(false), scratch.0.join("vmxnet3-iperf"));
    let mut results = begin(&scratch, &quick());
    let mut rig = Fake { stops: Some((8, &stop)), ..Fake::new() };
    assert_eq!(go(&mut rig, &mut results, &stop), End::Stopped);
    assert_eq!(Study::read(&folder).unwrap().runs.len(), 7);
    drop(results);
    let mut results = Results::resume(&folder, &Options::default(), &here()).unwrap();
    let mut rig = Fake::new();
    assert_eq!(go(&mut rig, &mut results, &AtomicBool::new(false)), End::Done { failed: 0 });
    let items: Vec<Item> = results.study.runs.iter().map(RunRecord::item).collect();
    assert_eq!((items, rig.runs), (results.study.head.plan.items(), 30 - 7));
}

/// A hypervisor that takes time is when packets are late: of several tries one that is stable would come.
#[test]
fn a_disturbed_run_is_made_again_but_one_that_was_not_stable_stays() {
    let scratch = Scratch::new("disturbed");
    let method = methods::find("kvm-scp").unwrap();
    let options = Options {
        adapters: vec!["pcnet".to_owned(), "e1000".to_owned()],
        repeat: Some(1),
        guests: Some(crate::method::Guests::Uml),
        ..Options::default()
    };
    let begun = head_of(method, &options);
    let mut results = Results::begin(&scratch.0.join("kvm-scp"), &scratch.0, begun).unwrap();
    let mut rig = Fake { stolen: Some(50.0), ..Fake::new() };
    let end = run(method, &mut rig, &mut results, &mut Progress::silent(), &AtomicBool::new(false)).unwrap();
    assert_eq!(end, End::Done { failed: 0 });
    for subject in &results.study.head.plan.subjects {
        let runs: Vec<&RunRecord> = results.study.runs.iter().filter(|run| run.subject == *subject).collect();
        let (kept, again) = (runs.iter().filter(|run| !run.discarded), runs.iter().filter(|run| run.discarded));
        let marks: Vec<&[String]> = kept.map(|run| run.marks.as_slice()).collect();
        assert_eq!(marks, [[DISTURBED.to_owned()].as_slice()], "{subject}: {runs:?}");
        assert_eq!(again.count(), if subject.adapter == "pcnet" { 0 } else { 2 }, "{subject}: {runs:?}");
        // What the rig marks counts, not the time of boot and settling.
        assert!(runs.iter().all(|run| run.steal_percent == Some(50.0)), "{runs:?}");
    }
    let cell = crate::study::figures::cell(
        &results.study,
        &Subject::new("pcnet", crate::method::Server::Nicety),
        "scp",
        "stable",
    );
    assert_eq!(cell.samples, [(0, 0.0)]);
}

#[test]
fn a_study_ends_when_its_intervals_are_as_narrow_as_asked_and_else_says_which_are_not() {
    let options = Options {
        adapters: vec!["e1000e".to_owned(), "vmxnet3".to_owned()],
        confidence: Some(0.05),
        repeat: Some(9),
        ..Options::default()
    };
    let scratch = Scratch::new("narrow");
    let end = go(&mut Fake::new(), &mut begin(&scratch, &options), &AtomicBool::new(false));
    assert_eq!(end, End::Confident { after: 7, failed: 0 }, "no interval before the seventh round");
    let scratch = Scratch::new("wide");
    let end = go(&mut Fake { ripple: 0.2, ..Fake::new() }, &mut begin(&scratch, &options), &AtomicBool::new(false));
    let End::NotConfident { wide, failed: 0 } = end else { panic!("{end:?}") };
    assert!(wide.contains(&"vmxnet3 by nicety, stream: Throughput".to_owned()), "{wide:?}");
    // A load's other figures count too: its costs ripple, its throughput does not.
    let scratch = Scratch::new("costs");
    let mut rig = Fake { ripple: 0.0, cost_ripple: 0.2, ..Fake::new() };
    let mut results = begin(&scratch, &options);
    let end = go(&mut rig, &mut results, &AtomicBool::new(false));
    let End::NotConfident { wide, failed: 0 } = end else { panic!("{end:?}") };
    assert!(wide.iter().all(|said| said.ends_with(", stream: CPU per gigabit")) && wide.len() > 1, "{wide:?}");
    let page = report::study::page(&results.study);
    let rule = "ends when the interval of each figure in the tables reaches at most 5 % of its median to either side";
    assert!(page.contains(rule) && page.contains("9 rounds, of at most 9; "), "{page}");
    assert!(page.contains(&format!("Not reached: {} intervals are wider.", wide.len())), "{page}");
}

#[test]
fn each_adapter_of_ours_stands_beside_qemu_s_own_model_of_it() {
    let scratch = Scratch::new("peers");
    let options =
        Options { adapters: vec!["e1000e".to_owned(), "vmxnet3".to_owned()], repeat: Some(3), ..Options::default() };
    let mut results = begin(&scratch, &options);
    go(&mut Fake::new(), &mut results, &AtomicBool::new(false));
    let table = report::study::table(&results.study);
    let column = |row: &str| {
        table.lines().find(|line| line.trim_start().starts_with(row)).and_then(|line| line.split_whitespace().last())
    };
    // The fake's rates follow from the adapter alone.
    assert_eq!(
        (column("vmxnet3 by nicety "), column("vmxnet3 by nicety-stream")),
        (Some("1.00"), Some("1.00")),
        "{table}"
    );
    assert_eq!((column("vmxnet3 by qemu"), column("native")), (Some("–"), Some("–")), "{table}");
    assert!(report::study::page(&results.study).contains("÷ QEMU's own"));
}

#[test]
fn the_page_has_our_ratios_beside_the_document_s() {
    let scratch = Scratch::new("page");
    let mut results = begin(&scratch, &quick());
    go(&mut Fake::new(), &mut results, &AtomicBool::new(false));
    let table = report::study::table(&results.study);
    let row = table.lines().find(|line| line.trim_start().starts_with("vmxnet3 by nicety")).unwrap();
    // 2000 ÷ 1000 and 2000 ÷ 1200 in each round; source-documents 1: 1.69 and 2.48.
    assert!(row.contains("2.00 (document 1.69)") && row.contains("1.67 (document 2.48)"), "{row}");
    let page = report::study::page(&results.study);
    assert!(page.contains("Throughput: vmxnet3 has 2.00\u{a0}× what e1000-82545em has"), "{page}");
    // Each row's runs over time, for both loads, and its latencies: five rows with three rounds.
    assert_eq!(
        (page.matches("<figure class=\"panel\">").count(), page.matches("<path class=\"run ours\"").count()),
        (15, 4 * 3 * 3)
    );
    for command in ["iperf -s -w 64k -l 128k", "iperf -c RIGHT -P 16 -w 64k -l 128k -t 2 "] {
        assert!(page.contains(command), "{command}");
    }
}

/// Document 1 asks how long until a kernel is *loaded*: `vmxnet3-iperf` shows the seconds of a boot by PXE to a *loaded* kernel.
#[test]
fn the_seconds_of_a_network_boot_beside_other_figures_are_those_to_a_loaded_kernel() {
    let scratch = Scratch::new("loaded");
    let mut boots = head(&Options::default());
    boots.plan = Options::default().plan(methods::find("boot").unwrap()).unwrap();
    let mut boot = Results::begin(&scratch.0.join("boot"), &scratch.0, boots).unwrap();
    for item in boot.study.head.plan.items() {
        let times = [("running", 9.5), ("loaded", 4.25), ("lease", 1.5)];
        let figures = times.into_iter().map(|(name, seconds)| (name.to_owned(), seconds)).collect();
        boot.keep(RunRecord::new(&item, Ok(Taken { figures, ..Taken::default() }))).unwrap();
    }
    let study = begin(&scratch, &quick()).study;
    let folder = scratch.0.join("vmxnet3-iperf");
    report::study::write(&study, &folder).unwrap();
    let page = std::fs::read_to_string(folder.join("index.html")).unwrap();
    assert!(page.contains("To a loaded kernel: BIOS with iPXE in the adapter&#39;s option ROM</th>"), "{page}");
    assert!(page.contains(">4.25 s</td>") && !page.contains(">9.50 s</td>"), "{page}");
}
