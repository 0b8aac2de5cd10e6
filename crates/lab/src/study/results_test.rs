use super::*;
use crate::bench::Percentile;
use crate::method::Own;
use crate::methods;
use crate::plan::Length;
use crate::record::Taken;
use crate::results::tests::lost;
use crate::series::Series;

/// A folder of this test alone, removed at its end.
pub(crate) struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("nicety-study-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn head(options: &Options) -> Head {
    head_of(methods::find("vmxnet3-iperf").unwrap(), options)
}

pub(crate) fn head_of(method: &dyn methods::Method, options: &Options) -> Head {
    let plan = options.plan(method).unwrap();
    Head {
        format: FORMAT.to_owned(),
        version: VERSION,
        command: format!("nicety lab run {}", method.about().name),
        options: options.clone(),
        plan,
        host: Host::here(),
        optimised: true,
        accelerator: None,
        programs: BTreeMap::from([("nicety".to_owned(), "as begun".to_owned())]),
        notes: Vec::new(),
    }
}

/// This machine with the program of [`head`].
pub(crate) fn here() -> Here {
    let Head { host, optimised, programs, .. } = head(&Options::default());
    Here { host, optimised, programs }
}

fn quick() -> Options {
    Options { length: Some(Length::Quick), seconds: Some(2), ..Options::default() }
}

fn record(head: &Head, number: usize) -> RunRecord {
    let item = head.plan.items()[number].clone();
    let figures = BTreeMap::from([("mbit".to_owned(), 1.25 + number as f64)]);
    RunRecord::new(&item, Ok(Taken { figures, ..Taken::default() }))
}

#[test]
fn each_run_is_on_the_disk_when_it_has_ended_and_a_torn_line_costs_that_run_alone() {
    let scratch = Scratch::new("torn");
    let (folder, head) = (scratch.0.join("vmxnet3-iperf"), head(&quick()));
    let mut results = Results::begin(&folder, &scratch.0, head.clone()).unwrap();
    for number in 0..3 {
        results.keep(record(&head, number)).unwrap();
        assert_eq!(Study::read(&folder).unwrap(), results.study, "after run {number}");
    }
    drop(results);
    // A power failure in the middle of the third line.
    let path = folder.join(RUNS);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 10]).unwrap();
    assert_eq!(Study::read(&folder).unwrap().runs.len(), 2);
    let mut results = Results::resume(&folder, &Options::default(), &here()).unwrap();
    assert_eq!(results.study.runs.len(), 2);
    results.keep(record(&head, 2)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn what_is_there_is_not_begun_again_and_the_remedies_are_named() {
    let scratch = Scratch::new("taken");
    let folder = scratch.0.join("vmxnet3-iperf");
    let nothing = Results::resume(&folder, &quick(), &here()).unwrap_err().to_string();
    assert!(nothing.contains("vmxnet3-iperf has no results of a lab; `nicety lab run METHOD"), "{nothing}");
    drop(Results::begin(&folder, &scratch.0, head(&quick())).unwrap());
    let taken = Results::begin(&folder, &scratch.0, head(&quick())).unwrap_err().to_string();
    let go_on = format!("go on with --resume {}, or name another folder with --report DIR", scratch.0.display());
    assert!(taken.contains(&go_on), "{taken}");
}

#[test]
fn other_options_than_at_the_beginning_are_refused_by_name() {
    let scratch = Scratch::new("options");
    let folder = scratch.0.join("vmxnet3-iperf");
    let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
    let begun = Options { adapters: of(&["e1000e", "e1000-82545em"]), ..quick() };
    drop(Results::begin(&folder, &scratch.0, head(&begun)).unwrap());
    for same in [
        Options::default(),
        begun.clone(),
        Options { repeat: Some(3), seed: Some(1), ..Options::default() },
        Options { adapters: of(&["e1000-82545em", "e1000e"]), ..Options::default() },
        Options { adapters: of(&["native", "e1000-82545em", "e1000e", "e1000e"]), ..Options::default() },
    ] {
        Results::resume(&folder, &same, &here()).unwrap();
    }
    let none = Options::default();
    for (other, message) in [
        (
            Options { seconds: Some(5), ..none.clone() },
            "--resume: --seconds 5 differs from the beginning, which had 2: ",
        ),
        (Options { repeat: Some(9), ..none.clone() }, "--repeat 9 differs from the beginning, which had 3"),
        (Options { seed: Some(2), ..none.clone() }, "--seed 2 differs from the beginning, which had 1"),
        (Options { length: Some(Length::Full), ..none.clone() }, "--quick or --full: full differs"),
        (Options { guests: Some(crate::method::Guests::Qemu), ..none.clone() }, "--guests qemu differs"),
        (
            Options { confidence: Some(0.05), ..none.clone() },
            "--confidence 5% differs from the beginning, which had none",
        ),
        (Options { loads: of(&["ping"]), ..none.clone() }, "--loads ping differs from the beginning, which had none"),
        (Options { adapters: of(&["vmxnet3"]), ..none.clone() }, "--adapters vmxnet3 differs"),
        (Options { adapters: of(&["e1000e"]), ..none }, "--adapters e1000e differs"),
    ] {
        let error = Results::resume(&folder, &other, &here()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn an_image_is_gone_on_with_by_its_own_user_and_key() {
    let scratch = Scratch::new("key");
    let folder = scratch.0.join("kvm-scp");
    let own = |key: Option<&str>| Own { image: "/disk".into(), user: "anna".to_owned(), key: key.map(PathBuf::from) };
    let options = |key| Options { own: Some(own(key)), length: Some(Length::Quick), ..Options::default() };
    let begun = head_of(methods::find("kvm-scp").unwrap(), &options(Some("/a")));
    drop(Results::begin(&folder, &scratch.0, begun).unwrap());
    Results::resume(&folder, &options(Some("/a")), &here()).unwrap();
    Results::resume(&folder, &Options::default(), &here()).unwrap();
    let error = Results::resume(&folder, &options(Some("/b")), &here()).unwrap_err().to_string();
    let message =
        "--image /disk --ssh anna with --key /b differs from the beginning, which had /disk --ssh anna with --key /a";
    assert!(error.contains(message), "{error}");
    let error = Results::resume(&folder, &options(None), &here()).unwrap_err().to_string();
    assert!(error.contains("--image /disk --ssh anna without --key differs"), "{error}");
}

#[test]
fn guests_with_kvm_do_not_go_on_with_runs_of_a_translator() {
    let scratch = Scratch::new("accelerator");
    let begun = Head { accelerator: Some("kvm".to_owned()), ..head(&quick()) };
    let mut results = Results::begin(&scratch.0.join("vmxnet3-iperf"), &scratch.0, begun).unwrap();
    results.same_accelerator(Some(Accel::Kvm)).unwrap();
    let error = results.same_accelerator(Some(Accel::Tcg)).unwrap_err().to_string();
    let message = "--resume: the accelerator of QEMU's guests was kvm at the beginning, and is tcg here: ";
    assert!(error.starts_with(message), "{error}");
    // User-mode guests have none, and results of an earlier Nicety do not say.
    results.study.head.accelerator = None;
    results.same_accelerator(Some(Accel::Tcg)).unwrap();
}

#[test]
fn facts_of_the_beginning_stay_when_a_study_goes_on() {
    let scratch = Scratch::new("notes");
    let folder = scratch.0.join("vmxnet3-iperf");
    let mut results = Results::begin(&folder, &scratch.0, head(&quick())).unwrap();
    let notes = |of: &[&str]| of.iter().map(|note| (*note).to_owned()).collect::<Vec<String>>();
    results.note(notes(&["kernel 6.12", "vmxnet2 is left out: nicety-uio is not there"])).unwrap();
    drop(results);
    let mut results = Results::resume(&folder, &Options::default(), &here()).unwrap();
    // The rig's facts again, of which one is new.
    results.note(notes(&["kernel 6.12", "iperf 2.2"])).unwrap();
    let kept = Study::read(&folder).unwrap().head.notes;
    assert_eq!(kept, notes(&["kernel 6.12", "vmxnet2 is left out: nicety-uio is not there", "iperf 2.2"]));
}

#[test]
fn results_of_another_program_or_format_are_refused_with_a_sentence() {
    let scratch = Scratch::new("version");
    let folder = scratch.0.join("vmxnet3-iperf");
    drop(Results::begin(&folder, &scratch.0, head(&quick())).unwrap());
    let path = folder.join(HEAD);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(nicety_version::BUILD, "0.0.9 (000000000000)")).unwrap();
    let error = Results::resume(&folder, &Options::default(), &here()).unwrap_err().to_string();
    let sentence =
        format!("these results are of nicety 0.0.9 (000000000000), and this is {}: figures", nicety_version::BUILD);
    assert!(error.contains(&sentence), "{error}");
    Study::read(&folder).expect("an older program's results can be read");
    for (text, why) in [
        (text.replace("\"version\": 1,", "\"version\": 2,"), "results of version 2, and this program reads version 1"),
        (text.replace(FORMAT, "else"), "this is no lab.json of nicety"),
        ("{}".to_owned(), "this is no lab.json of nicety"),
    ] {
        fs::write(&path, text).unwrap();
        let error = Study::read(&folder).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_full_disk_loses_the_run_in_progress_and_says_how_to_go_on() {
    let scratch = Scratch::new("full");
    let head = head(&quick());
    // /dev/full answers each write with ENOSPC: full(4).
    let file = File::options().append(true).open("/dev/full").unwrap();
    let study = Study { head: head.clone(), runs: vec![record(&head, 0)] };
    let mut results = Results { folder: scratch.0.clone(), file, study };
    let error = results.keep(record(&head, 1)).unwrap_err();
    assert!(matches!(error, ResultsError::NoSpace(_)), "{error}");
    assert!(
        error.to_string().contains("what was measured before is kept: free some, then go on with --resume"),
        "{error}"
    );
    assert_eq!(results.study.runs.len(), 1);
}

/// A run with all that a record can have.
fn whole_record(head: &Head) -> RunRecord {
    let series = Series { until_seconds: vec![0.5, 1.0], values: vec![900.0, 950.5] };
    RunRecord {
        date: "2026-11-30T08:00:01Z".to_owned(),
        took_seconds: 2.5,
        steal_percent: Some(0.25),
        others_percent: Some(1.5),
        discarded: true,
        marks: vec!["disturbed: the hypervisor took 6 %".to_owned()],
        lines: BTreeMap::from([("storage".to_owned(), series.clone())]),
        series: Some(series),
        latency: Some(vec![Percentile { percent: 99.0, us: 12.5 }]),
        texts: BTreeMap::from([("lspci".to_owned(), "00:04.0 Ethernet controller".to_owned())]),
        ..record(head, 0)
    }
}

/// The head on a host that is always the same.
fn fixed_head() -> Head {
    let host = Host {
        cpu_model: "Example CPU <9>".to_owned(),
        cores: 2,
        kernel: "6.12.0-example".to_owned(),
        date: "2026-11-30T08:00:00Z".to_owned(),
        steal_percent: None,
        nicety_version: "0.1.0 (000000000000)".to_owned(),
        memory_bytes: Some(16 << 30),
        hypervisor: Some("none".to_owned()),
        governor: Some("performance".to_owned()),
        machine: Some("0123456789abcdef".to_owned()),
        processors: Some(2),
    };
    let notes = vec!["A guest has one processor.".to_owned()];
    Head { host, accelerator: Some("tcg".to_owned()), notes, ..head(&quick()) }
}

/// Only `NICETY_GOLDEN=write` makes the files of a new version.
#[test]
fn a_folder_of_each_released_version_is_read_and_keeps_every_member() {
    let of = |version: u32| -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "tests", "golden", &format!("lab-v{version}")].iter().collect()
    };
    if !of(VERSION).exists() && std::env::var_os("NICETY_GOLDEN").is_some_and(|what| what == "write") {
        let head = fixed_head();
        let mut results = Results::begin(&of(VERSION), &of(VERSION), head.clone()).unwrap();
        let failed = RunRecord::new(&head.plan.items()[1], Err("the guest's console ended".to_owned()));
        for record in [whole_record(&head), record(&head, 0), failed] {
            results.keep(record).unwrap();
        }
    }
    for version in 1..=VERSION {
        let study = Study::read(&of(version)).unwrap();
        assert_eq!((study.runs.len(), study.counted().count(), study.failed().count()), (3, 1, 1), "version {version}");
        let text = |name: &str| fs::read_to_string(of(version).join(name)).unwrap();
        let value = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
        let of_head = lost(&value(&text(HEAD)), &serde_json::to_value(&study.head).unwrap(), HEAD);
        let of_runs = text(RUNS)
            .lines()
            .zip(&study.runs)
            .zip(1..)
            .flat_map(|((line, run), number)| {
                lost(&value(line), &serde_json::to_value(run).unwrap(), &format!("{RUNS}:{number}"))
            })
            .collect::<Vec<_>>();
        assert_eq!([of_head, of_runs].concat(), Vec::<String>::new(), "version {version}");
    }
}
