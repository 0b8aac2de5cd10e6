//! The lab's commands as far as they need no guests: lists, plans, refusals.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::scratch::{Ended, Scratch};

#[test]
fn the_list_names_each_method_of_the_documents() {
    let list = Scratch::new().run(&["lab", "list"]);
    assert_eq!(list.code, Some(0), "{list:?}");
    let line = |name: &str| list.out.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name).to_owned();
    let iperf = line("vmxnet3-iperf");
    assert!(iperf.contains("iperf 2") && iperf.contains("user-mode guests"), "{iperf}");
    assert!(line("aggregation").contains("802.3ad") && !list.out.contains("not yet"), "{list:?}");
}

#[test]
fn on_a_narrow_terminal_the_list_folds_what_a_method_measures_and_needs() {
    let scratch = Scratch::new();
    let mut script = Command::new("timeout");
    let inside = format!("stty cols 80 rows 24; {} lab list", env!("CARGO_BIN_EXE_nicety"));
    script.args(["-k", "5", "60", "script", "-q", "-c", &inside, "/dev/null"]).current_dir(scratch.path());
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let keys = script.stdin.take();
    let shown = String::from_utf8(script.wait_with_output().unwrap().stdout).unwrap();
    drop(keys);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(shown.lines().any(|line| line.starts_with("vmxnet3-iperf  1 ")), "{shown}");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let piped = scratch.run(&["lab", "list"]).out;
    let measures = piped.lines().find_map(|line| line.strip_prefix("vmxnet3-iperf ")).unwrap();
    let (_, needs) = measures.rsplit_once("  ").unwrap();
    assert!(words(&shown).contains(&format!("needs: {}", words(needs))), "{shown}");
}

#[test]
fn a_dry_run_shows_the_document_s_commands_and_makes_nothing() {
    let scratch = Scratch::new();
    let plan = scratch.run(&["lab", "run", "vmxnet3-iperf", "--full", "--dry-run"]);
    assert_eq!(plan.code, Some(0), "{plan:?}");
    for part in [
        "right guest: iperf -s -w 64k -l 128k\n",
        "left guest: iperf -c RIGHT -P 16 -w 64k -l 128k -t 30 ",
        "vmxnet3 by nicety, vmxnet3 by nicety-stream, vmxnet3 by qemu",
        "native",
        "rounds    10 from seed 1\n",
        " runs, which take about ",
        // Root, kernel, iperf; eleven rows and more, two loads, ten rounds.
        "disk      1.65 GB with guests and programs, which are laid once; results: about ",
    ] {
        assert!(plan.out.contains(part), "{part}: {}", plan.out);
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// End of the message about a folder without results.
const WRITES_SOME: &str = " has no results of a lab; `nicety lab run METHOD --report DIR` writes some into DIR\n";

#[test]
fn the_plan_of_an_image_shows_its_own_ssh_server_and_user() {
    let scratch = Scratch::new();
    let words = ["lab", "run", "kvm-scp", "--image", "disk.img", "--ssh", "anna", "--dry-run"];
    let with_image = |image: &[u8]| {
        std::fs::write(scratch.path().join("disk.img"), image).unwrap();
        scratch.run(&words)
    };
    // A VMDK, which no BIOS boots from as it is.
    let foreign = with_image(b"KDMV\x01");
    assert!(foreign.code == Some(2) && foreign.err.contains("`qemu-img convert -O qcow2 IMAGE NEW`"), "{foreign:?}");
    assert_eq!(with_image(b"QFI\xfb").code, Some(0));
    // A boot sector ends with 55 AA.
    let plan = with_image(&[&[0; 510][..], &[0x55, 0xaa]].concat());
    assert_eq!(plan.code, Some(0), "{plan:?}");
    for part in ["guest: the image's own ssh server, which lets anna in\n", "outside: scp -v anna@GUEST:/tmp/file FILE"]
    {
        assert!(plan.out.contains(part), "{part}: {}", plan.out);
    }
    assert!(!plan.out.contains("sshd"), "{}", plan.out);
}

#[test]
fn what_cannot_be_measured_is_refused_before_any_guest_is_laid() {
    let scratch = Scratch::new();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["vmxnet3-iper"], 2, "there is no method \"vmxnet3-iper\"; did you mean \"vmxnet3-iperf\"?"),
        (
            &["vmxnet3-iperf", "--adapters", "e1001e"],
            2,
            "--adapters: vmxnet3-iperf has no \"e1001e\"; did you mean \"e1000e\"?",
        ),
        (
            &["ft-vm", "--loads", "ping,kill-vm"],
            2,
            "--loads: ft-vm has no load \"kill-vm\" with these options; did you mean \"kill-vmm\"?; there are receive, ",
        ),
        (
            &["ft-vm", "--quick", "--loads", "kill-daemon"],
            2,
            "--loads: ft-vm has no load \"kill-daemon\" with these options",
        ),
        (&["kvm-scp", "--guests", "embedded"], 2, "--guests embedded: kvm-scp runs under uml, qemu"),
        (&["vmxnet3-iperf", "--seconds", "0"], 2, "--seconds: a run may last from 1 to 3600 whole seconds"),
        (&["vmxnet3-iperf", "--repeat", "-1"], 2, "--repeat: from 1 to 1000 rounds are possible"),
        (&["vmxnet3-iperf", "--confidence", "90%"], 2, "--confidence: from 0.1% to 50% are possible"),
        (&["vmxnet3-iperf", "--confidence", "five"], 2, "write a share in percent, such as 5%"),
        (&["vmxnet3-iperf", "--confidence", "5%", "--quick"], 2, "--confidence needs intervals"),
        (&["vmxnet3-iperf", "--quick", "--full"], 2, "cannot be used with"),
        (&["kvm-scp", "--image", "/", "--ssh", "root"], 2, "--image /: it is a folder, not a file"),
        (&["vmxnet3-iperf", "--resume", "nowhere"], 2, "nowhere/vmxnet3-iperf has no results of a lab"),
    ];
    for (words, code, message) in cases {
        let mut command = scratch.command(&[&["lab", "run"], *words].concat());
        let ended = Ended::of(
            &command.env_remove("HOME").env_remove("XDG_CACHE_HOME").env("TMPDIR", scratch.path()).output().unwrap(),
        );
        assert_eq!((ended.code, ended.out.as_str()), (Some(*code), ""), "{words:?}: {}", ended.err);
        assert!(ended.err.contains(message), "{words:?}: {}", ended.err);
    }
    let ended = scratch.run(&["lab", "report", "nowhere"]);
    assert!(ended.code == Some(1) && ended.err == format!("nicety: nowhere{WRITES_SOME}"), "{ended:?}");
}

#[test]
fn a_missing_part_is_named_and_leaves_no_results() {
    let scratch = Scratch::new();
    let mut command = scratch.command(&["lab", "run", "vmxnet3-iperf", "--quick"]);
    let ended = Ended::of(&command.env("XDG_CACHE_HOME", "/proc/nope").env("TMPDIR", scratch.path()).output().unwrap());
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.err.contains("cannot make the folder /proc/nope/nicety: No such file or directory"), "{}", ended.err);
    assert!(!scratch.path().join("nicety-lab").exists());
}

/// The program alone, without the driver beside it.
#[test]
fn a_row_whose_driver_is_missing_is_left_out_before_the_first_run_with_the_remedy() {
    let scratch = Scratch::new();
    let alone = scratch.path().join("nicety");
    let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
    if std::fs::hard_link(program, &alone).is_err() {
        std::fs::copy(program, &alone).unwrap();
    }
    let mut command = Command::new(&alone);
    command.args(["lab", "run", "vmxnet3-iperf", "--quick", "--adapters", "vmxnet2"]).current_dir(scratch.path());
    command.env("NICETY_LAB_LOCK", scratch.path().join("lock")).env("XDG_CACHE_HOME", "/proc/nope");
    let ended = Ended::of(&command.output().unwrap());
    let plan = |adapters: &str| {
        let mut command = Command::new(&alone);
        command.args(["lab", "run", "vmxnet3-iperf", "--quick", "--dry-run", "--adapters", adapters]);
        Ended::of(&command.current_dir(scratch.path()).output().unwrap())
    };
    let both = plan("vmxnet2,vmxnet3");
    for part in [
        "rows      vmxnet3 by nicety, vmxnet2 by nicety (left out), native\n",
        "left out  ",
        // Two rows, two loads, three rounds.
        "time      12 runs, ",
    ] {
        assert!(both.code == Some(0) && both.out.contains(part), "{part}: {both:?}");
    }
    let remedy = "nicety-uio is not there, which drives adapters that Linux has no driver for: `cargo build -p nicety`";
    assert!(ended.code == Some(3) && ended.err.contains(remedy), "{ended:?}");
    assert!(!scratch.path().join("nicety-lab").exists(), "no run is made");
}

#[test]
fn a_second_lab_on_this_machine_says_that_there_is_a_first() {
    let scratch = Scratch::new();
    let mut held = File::create(scratch.lab_lock()).unwrap();
    held.lock().unwrap();
    held.write_all(b"process 77: nicety lab run kvm-scp\n").unwrap();
    let mut command = scratch.command(&["lab", "run", "vmxnet3-iperf", "--quick"]);
    // The folder for temporary files is another one than the first lab's.
    std::fs::create_dir(scratch.path().join("tmp")).unwrap();
    let ended = Ended::of(&command.env("TMPDIR", scratch.path().join("tmp")).output().unwrap());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let message =
        "nicety: another lab runs on this machine (process 77: nicety lab run kvm-scp); two at once would disturb";
    assert!(ended.err.starts_with(message), "{}", ended.err);
    let compared = scratch.run(&["compare", "--adapters", "e1000", "--seconds", "0.1", "--repeat", "1"]);
    assert!(compared.code == Some(1) && compared.err.starts_with(message), "{compared:?}");
}

/// A study of seven rounds, with these throughputs of vmxnet3. Its plan is that of a real one.
fn study(scratch: &Scratch, folder: &str, mbit: impl IntoIterator<Item = f64>) {
    let place = scratch.path().join(folder).join("vmxnet3-iperf");
    std::fs::create_dir_all(&place).unwrap();
    let subject = serde_json::json!({ "adapter": "vmxnet3", "server": "nicety" });
    let load = serde_json::json!({ "name": "stream", "title": "16 streams", "seconds": 2, "commands": [] });
    let head = serde_json::json!({
        "format": "nicety-lab", "version": 1, "command": "nicety lab run vmxnet3-iperf",
        "options": { "guests": null, "length": null, "seconds": null, "repeat": null, "confidence": null, "seed": null },
        "plan": {
            "method": "vmxnet3-iperf", "guests": "uml", "length": "usual", "subjects": [subject], "loads": [load],
            "repeat": 7, "confidence": null, "seed": 1, "overhead_seconds": 1.5,
        },
        "host": {
            "cpu_model": "Example", "cores": 2, "kernel": "6.12", "date": "2026-11-26T04:19:04Z", "steal_percent": null,
            "nicety_version": "0.1.0",
        },
        "optimised": true, "notes": [],
    });
    std::fs::write(place.join("lab.json"), head.to_string()).unwrap();
    let line = |(round, mbit): (usize, f64)| {
        let figures = serde_json::json!({ "mbit": mbit });
        let run = serde_json::json!({
            "round": round, "adapter": "vmxnet3", "server": "nicety", "load": "stream", "date": "2026-11-26T04:19:04Z",
            "took_seconds": 2.5, "steal_percent": 0.0, "figures": figures,
        });
        format!("{run}\n")
    };
    std::fs::write(place.join("runs.jsonl"), mbit.into_iter().enumerate().map(line).collect::<String>()).unwrap();
}

#[test]
fn a_script_learns_by_the_exit_code_whether_a_figure_is_worse() {
    let scratch = Scratch::new();
    study(&scratch, "before", [100.0, 101.0, 99.0, 102.0, 98.0, 100.5, 99.5]);
    study(&scratch, "after", [80.0, 81.0, 79.0, 82.0, 78.0, 80.5, 79.5]);
    study(&scratch, "noise", [99.0, 102.0, 98.5, 101.0, 100.0, 97.5, 101.5]);
    let worse = scratch.run(&["lab", "diff", "before", "after"]);
    assert_eq!((worse.code, worse.err.as_str()), (Some(4), "nicety: 1 figure worse\n"), "{worse:?}");
    assert!(worse.out.lines().any(|line| line.contains("0.80 [") && line.ends_with("  worse")), "{}", worse.out);
    let better = scratch.run(&["lab", "diff", "after/vmxnet3-iperf", "before/vmxnet3-iperf"]);
    assert!(better.code == Some(0) && better.out.contains("  better\n"), "{better:?}");
    let same = scratch.run(&["lab", "diff", "before", "noise"]);
    assert!(same.code == Some(0) && same.out.contains("  no difference shown\n"), "{same:?}");
    study(&scratch, "broken", [100.0; 7]);
    let runs = scratch.path().join("broken/vmxnet3-iperf/runs.jsonl");
    let text = std::fs::read_to_string(&runs).unwrap();
    std::fs::write(&runs, text.replace("\"figures\":{\"mbit\":100.0}", "\"failure\":\"the guest ended\"")).unwrap();
    let broken = scratch.run(&["lab", "diff", "before", "broken"]);
    assert_eq!((broken.code, broken.err.as_str()), (Some(4), "nicety: 1 figure worse\n"), "{broken:?}");
    assert!(broken.out.contains("  failed  –      worse: the second failed\n"), "{}", broken.out);
    assert!(!broken.out.contains("too few runs"), "{}", broken.out);
    study(&scratch, "few", [100.0; 2]);
    let unknown = scratch.run(&["lab", "diff", "few", "few"]);
    let advice = "\nToo few runs to say: 7 rounds give intervals (--repeat 7).\n";
    assert!(unknown.code == Some(5) && unknown.out.ends_with(advice), "{unknown:?}");
    assert_eq!(unknown.err, "nicety: no figure could be judged: there are too few runs\n");
    study(&scratch, "empty", []);
    let gone = scratch.run(&["lab", "diff", "before", "empty"]);
    assert!(gone.code == Some(5) && gone.out.contains("  not in both\n"), "{gone:?}");
    assert_eq!(gone.err, "nicety: the second result lacks 1 figure of the first\n");
    let more = scratch.run(&["lab", "diff", "empty", "before"]);
    assert!(
        more.code == Some(5) && more.err.ends_with("no figure could be judged: neither result has one\n"),
        "{more:?}"
    );
    std::fs::create_dir(scratch.path().join("two")).unwrap();
    for of in ["vmxnet3-iperf", "kvm-scp"] {
        study(&scratch, "noise", [99.0, 102.0, 98.5, 101.0, 100.0, 97.5, 101.5]);
        std::fs::rename(scratch.path().join("noise/vmxnet3-iperf"), scratch.path().join("two").join(of)).unwrap();
    }
    let head = scratch.path().join("two/kvm-scp/lab.json");
    let text = std::fs::read_to_string(&head).unwrap();
    std::fs::write(&head, text.replace("\"method\":\"vmxnet3-iperf\"", "\"method\":\"kvm-scp\"")).unwrap();
    let alone = scratch.run(&["lab", "diff", "two", "before"]);
    assert!(
        alone.code == Some(5) && alone.err.ends_with("\nnicety: the second result lacks 1 method of the first\n"),
        "{alone:?}"
    );
    let nothing = scratch.run(&["lab", "diff", "before", "nowhere"]);
    assert_eq!((nothing.code, nothing.err), (Some(1), format!("nicety: nowhere{WRITES_SOME}")));
}

/// Runs a method of the lab, whose results lie in the scratch folder.
fn lab(scratch: &Scratch, method: &str, words: &[&str]) -> Ended {
    let mut command = scratch.command(&[&["lab", "run", method], words].concat());
    Ended::of(&command.env("TMPDIR", scratch.path()).output().unwrap())
}

/// The options of one round with embedded guests.
fn one_round<'a>(adapters: &'a str, seconds: &'a str) -> [&'a str; 9] {
    ["--guests", "embedded", "--quick", "--adapters", adapters, "--seconds", seconds, "--repeat", "1"]
}

/// A program that was changed and not committed has the version of the one before.
#[test]
fn a_lab_does_not_go_on_with_another_program_or_on_another_machine() {
    let scratch = Scratch::new();
    let lab = |words: &[&str]| lab(&scratch, "vmxnet3-iperf", words);
    let words = one_round("vmxnet3", "1");
    let done = lab(&words);
    assert_eq!(done.code, Some(0), "{done:?}");
    let head = scratch.path().join("nicety-lab/vmxnet3-iperf/lab.json");
    let text = std::fs::read_to_string(&head).unwrap();
    let begun: serde_json::Value = serde_json::from_str(&text).unwrap();
    let refused = |change: &dyn Fn(&mut serde_json::Value), message: &str| {
        let mut other = begun.clone();
        change(&mut other);
        std::fs::write(&head, other.to_string()).unwrap();
        for dry in [&["--resume", "nicety-lab"][..], &["--resume", "nicety-lab", "--dry-run"]] {
            let ended = lab(dry);
            assert!(ended.code == Some(2) && ended.err.contains(message), "{message}: {ended:?}");
            assert!(ended.err.contains("begin again in another folder with --report DIR"), "{ended:?}");
        }
    };
    let was = "0".repeat(64);
    refused(
        &|head| head["programs"]["nicety"] = was.as_str().into(),
        "the program nicety (its SHA-256) was 000000000000 at",
    );
    let built = begun["optimised"].as_bool().unwrap();
    refused(&|head| head["optimised"] = (!built).into(), "--resume: the build was with");
    refused(&|head| head["host"]["cpu_model"] = "Other".into(), "the processor was Other at the beginning, and is ");
    let cores = begun["host"]["cores"].as_u64().unwrap() + 1;
    refused(&|head| head["host"]["cores"] = cores.into(), "the number of processors that this program may use was ");
    std::fs::write(&head, text).unwrap();
    assert_eq!(lab(&["--resume", "nicety-lab"]).code, Some(0));
}

#[test]
fn a_choice_cites_figures_of_this_machine_or_says_that_there_are_none() {
    let scratch = Scratch::new();
    let none = scratch.run(&["choose"]);
    assert_eq!(none.code, Some(0), "{none:?}");
    assert!(
        none.out.starts_with("Take virtio-net.\n") && none.out.contains("There are no results of the lab"),
        "{}",
        none.out
    );
    study(&scratch, "nicety-lab", [100.0; 7]);
    let others = scratch.run(&["choose"]);
    assert!(others.out.contains("The results are of another machine"), "its processor is an example: {}", others.out);
    let of_method = scratch.run(&["choose", "--results", "nicety-lab/vmxnet3-iperf"]);
    assert!(of_method.out.contains("The results are of another machine"), "{of_method:?}");
    // The report of `nicety compare`, by its folder.
    let words =
        ["compare", "--adapters", "e1000e,virtio-net", "--repeat", "1", "--seconds", "0.1", "--report", "compared"];
    let compared = scratch.run(&words);
    assert_eq!(compared.code, Some(0), "{compared:?}");
    let cited = scratch.run(&["choose", "linux", "--results", "compared"]);
    assert!(cited.out.contains("Measured on this machine (compare, load guest-to-guest, "), "{cited:?}");
    assert!(cited.out.contains("These figures have no intervals yet"), "{cited:?}");
    let typo = scratch.run(&["choose", "linux", "--results", "nosuch"]);
    assert_eq!((typo.code, typo.out.as_str()), (Some(2), ""), "{typo:?}");
    assert_eq!(typo.err, format!("nicety: --results: nosuch{WRITES_SOME}"));
    let old = scratch.run(&["choose", "windows", "--version", "Server 2012", "--in-box"]);
    assert!(old.out.starts_with("Take igb.\n") && old.out.contains("\nvmxnet3 "), "{}", old.out);
    let markdown = scratch.run(&["choose", "--markdown", "--results", "compared"]);
    let head = "\n| Adapter | Throughput, Mbit/s | CPU per gigabit, CPU-s/Gbit | Latency, median, µs | Needs | Why |\n|---|---:|---:|---:|---|---|\n| virtio-net | ";
    assert!(markdown.out.contains(head) && markdown.out.contains("\n| e1000e | "), "{}", markdown.out);
    let wrong = scratch.run(&["choose", "windows", "--version", "95"]);
    assert!(wrong.code == Some(2) && wrong.err.contains("no release of Windows that is known here"), "{wrong:?}");
}

#[test]
fn a_run_is_on_the_disk_with_its_page_and_a_finished_lab_has_nothing_to_resume() {
    let scratch = Scratch::new();
    let lab = |words: &[&str]| lab(&scratch, "vmxnet3-iperf", words);
    let words = one_round("vmxnet3", "1");
    let done = lab(&words);
    assert_eq!(done.code, Some(0), "{done:?}");
    let folder = scratch.path().join("nicety-lab/vmxnet3-iperf");
    assert!(done.out.ends_with(&format!("\nReport: {}\n", folder.join("index.html").display())), "{}", done.out);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let (runs, page) = (read("runs.jsonl"), read("index.html"));
    assert_eq!(runs.lines().count(), 4, "the adapter and the native row, two loads each: {runs}");
    let native = runs.lines().find(|line| line.contains("\"native\"") && line.contains("\"latency\"")).unwrap();
    assert!(native.contains("\"p99\":") && !native.contains("\"cpu\""), "{native}");
    let ours = runs.lines().find(|line| line.contains("\"vmxnet3\"") && line.contains("\"stream\"")).unwrap();
    let ours: serde_json::Value = serde_json::from_str(ours).unwrap();
    let cpu = |name: &str| ours["figures"][name].as_f64().unwrap();
    assert!(cpu("daemon_cpu") > 0.0 && cpu("vmm_cpu") > 0.0, "{ours}");
    assert!((cpu("cpu") - cpu("daemon_cpu") - cpu("vmm_cpu")).abs() < 1e-9, "together and apart: {ours}");
    assert!(runs.contains("\"mbit\":") && runs.contains("\"transactions\":"), "{runs}");
    let remark = "embedded guests&#39; own program, not iperf: 16 streams, writes of 128 KB, buffers of 64 KB";
    assert!(page.contains(remark), "each row says which program ran");
    let front = std::fs::read_to_string(scratch.path().join("nicety-lab/index.html")).unwrap();
    assert!(front.contains("<a href=\"vmxnet3-iperf/index.html\">"), "{front}");
    let taken = lab(&words);
    assert!(
        taken.code == Some(1) && taken.err.contains("has results already: go on with --resume nicety-lab"),
        "{taken:?}"
    );
    let resumed = lab(&["--resume", "nicety-lab"]);
    assert_eq!((resumed.code, read("runs.jsonl")), (Some(0), runs.clone()), "{resumed:?}");
    // The folder that the run's last line names, too.
    let resumed = lab(&["--resume", "nicety-lab/vmxnet3-iperf"]);
    assert_eq!((resumed.code, read("runs.jsonl")), (Some(0), runs), "{resumed:?}");
    assert!(resumed.out.ends_with(&format!("\nReport: {}\n", folder.join("index.html").display())), "{}", resumed.out);
    let other = self::lab(&scratch, "messages", &["--resume", "nicety-lab/vmxnet3-iperf"]);
    let message = "--resume nicety-lab/vmxnet3-iperf: these are results of vmxnet3-iperf, not of messages";
    assert!(other.code == Some(2) && other.err.contains(message), "{other:?}");
    let again = scratch.run(&["lab", "report", "nicety-lab"]);
    assert_eq!((again.code, read("index.html")), (Some(0), page), "{again:?}");
}

/// A lab of embedded guests, one round of one second each. Returns its runs and its page.
fn embedded_lab(method: &str, adapters: &str) -> (Vec<serde_json::Value>, String) {
    lab_of_seconds(method, adapters, "1")
}

/// The same, with runs of so many seconds.
fn lab_of_seconds(method: &str, adapters: &str, seconds: &str) -> (Vec<serde_json::Value>, String) {
    let scratch = Scratch::new();
    let done = lab(&scratch, method, &one_round(adapters, seconds));
    assert_eq!(done.code, Some(0), "{done:?}");
    let folder = scratch.path().join("nicety-lab").join(method);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    (read("runs.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect(), read("index.html"))
}

#[test]
fn messages_shows_what_a_frame_costs_with_each_adapter_and_an_emulated_one_costs_more_of_them() {
    let (runs, page) = embedded_lab("messages", "e1000,virtio-net");
    let of = |adapter: &str, load: &str, figure: &str| {
        let run = runs.iter().find(|run| run["adapter"] == adapter && run["load"] == load).unwrap();
        run["figures"][figure].as_f64().unwrap_or_else(|| panic!("{adapter}, {load}: no {figure}: {run}"))
    };
    assert_eq!(runs.len(), 6, "two adapters, three workloads");
    // Each exchange of the 82540EM reads ICR for its interrupt (its manual, 13.4.17); virtio has no register to read.
    assert!(of("e1000", "request-response", "reads") > 0.2, "{runs:?}");
    assert_eq!(of("virtio-net", "request-response", "reads"), 0.0);
    assert!(of("e1000", "request-response", "read_ns") > 0.0 && of("virtio-net", "transmit", "copy_ns") > 0.0);
    for run in &runs {
        let part = |name: &str| run["figures"][name].as_f64().unwrap();
        let sum: f64 = ["read_ns", "write_ns", "interrupt_ns", "copy_ns", "rest_ns"].map(part).iter().sum();
        assert!((sum / part("cpu_ns") - 1.0).abs() < 1e-6, "the stack is the measured time: {run}");
        assert!((part("both_ns") / (part("cpu_ns") + part("guest_ns")) - 1.0).abs() < 1e-6, "{run}");
    }
    // A full frame of TCP has at least 1500 bytes; those that acknowledge them have fewer.
    assert!((500.0..1_600.0).contains(&of("virtio-net", "transmit", "copied")), "{runs:?}");
    for part in ["What a frame costs: transmit", "class=\"bar part4\"", "register reads", "Instructions "] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn pairs_is_a_field_of_cells_in_which_each_adapter_meets_each_other_and_its_own_kind() {
    let (runs, page) = embedded_lab("pairs", "e1000e,vmxnet3");
    let met: Vec<(&str, &str)> =
        runs.iter().map(|run| (run["adapter"].as_str().unwrap(), run["load"].as_str().unwrap())).collect();
    for from in ["e1000e", "vmxnet3"] {
        for to in ["e1000e", "vmxnet3"] {
            for begin in ["stream-to", "rr-to"] {
                assert!(met.contains(&(from, &format!("{begin}-{to}"))), "{from}, {to}: {met:?}");
            }
        }
    }
    assert_eq!(runs.len(), 12, "two adapters and the native row, four loads");
    assert!(runs.iter().all(|run| run["failure"].is_null()), "{runs:?}");
    let natively = |figure: &str| {
        met.iter().zip(&runs).filter(|((row, _), run)| *row == "native" && run["figures"][figure].is_number()).count()
    };
    assert_eq!(
        (natively("mbit"), natively("transactions")),
        (1, 1),
        "a link without adapters has one figure: {runs:?}"
    );
    assert!(page.contains("<table class=\"heat\">") && page.contains("style=\"--heat: 62%\""), "{page}");
}

#[test]
fn pps_finds_a_rate_at_which_no_frame_is_lost_and_the_latency_below_it() {
    let (runs, page) = embedded_lab("pps", "virtio-net,e1000e");
    assert_eq!(runs.len(), 6, "two adapters, three sizes");
    for run in &runs {
        let figure = |name: &str| run["figures"][name].as_f64();
        assert!(figure("through").is_some_and(|rate| rate > 100.0), "{run}");
        // On a machine that does much else a frame may be lost at each rate.
        let rate = figure("loss_free").unwrap_or_else(|| panic!("a search that found none counts as 0: {run}"));
        assert_eq!(rate == 0.0, run["marks"].to_string().contains("no rate without loss found, "), "{run}");
        if rate > 0.0 {
            assert!(rate > 10.0 && figure("p50_at_50") <= figure("p99_at_50"), "{run}");
            assert!(figure("p50_at_90").is_some_and(|us| us > 0.0), "{run}");
        }
    }
    let loss_free = runs.iter().filter(|run| run["figures"]["loss_free"].as_f64() > Some(0.0)).count();
    assert!(loss_free >= 2, "{runs:?}");
    assert!(page.contains("Loss-free rate: 64 bytes"), "{page}");
}

#[test]
fn qos_over_time_draws_four_ports_at_a_full_link_each_way_with_and_without_io_control() {
    let (runs, page) = lab_of_seconds("qos-over-time", "virtio-net", "3");
    let loads: BTreeSet<&str> = runs.iter().filter_map(|run| run["load"].as_str()).collect();
    assert_eq!(loads, BTreeSet::from(["inward", "inward-without", "outward", "outward-without"]));
    let mut drawn = 0;
    for run in &runs {
        assert!(run["failure"].is_null(), "{run}");
        if run["adapter"] == "native" && !run["load"].as_str().unwrap().ends_with("-without") {
            assert!(run["marks"].to_string().contains("a plain link has no I/O control"), "{run}");
        }
        // On a machine that does much else a port may begin when the others end.
        let Some(mbit) = run["figures"]["mbit"].as_f64() else { continue };
        // 1 Gbit/s of frames with their Ethernet header is 964 Mbit/s of payload.
        assert!(mbit > 1.0 && mbit < 1_000.0, "{run}");
        for line in ["storage", "first", "second", "other", "reserved"] {
            let rates = run["lines"][line]["values"].as_array().unwrap();
            assert!(!rates.is_empty() && rates.iter().all(|rate| rate.as_f64().unwrap() >= 0.0), "{run}");
        }
        drawn += 1;
    }
    assert!(drawn > 0, "{runs:?}");
    for part in ["<h3>Over time: ", "class=\"run part0\"", "class=\"run part4\"", "the document&#39;s divided by 10"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

/// In its own mount namespace the report's folder is a disk of four pages (tmpfs(5), `size`).
#[test]
fn a_full_disk_ends_a_lab_and_keeps_the_runs_before() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path().join("disk")).unwrap();
    let within = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-Urm", "sh", "-c", script, env!("CARGO_BIN_EXE_nicety")]).current_dir(scratch.path());
        command.env("TMPDIR", scratch.path()).env("NICETY_LAB_LOCK", scratch.lab_lock()).output()
    };
    let mount = "mount -t tmpfs -o size=16k none disk";
    if !within(mount).is_ok_and(|output| output.status.success()) {
        // Writes past the harness, which captures the output of tests that pass.
        let _stdout_closed =
            writeln!(std::io::stdout(), "\nSKIPPED lab::a_full_disk_ends_a_lab_and_keeps_the_runs_before: no mounts");
        return;
    }
    let lab = "\"$0\" lab run vmxnet3-iperf --guests embedded --quick --adapters vmxnet3 --seconds 1 --repeat 20 --report disk/lab";
    let ended =
        Ended::of(&within(&format!("{mount}; {lab} >out; code=$?; cat disk/lab/*/runs.jsonl; exit $code")).unwrap());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let message = "there is no disk space left for disk/lab/vmxnet3-iperf/runs.jsonl; what was measured before is kept";
    assert!(ended.err.contains(message), "{}", ended.err);
    let runs: Vec<serde_json::Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).expect("whole lines")).collect();
    assert!((2..40).contains(&runs.len()), "{}", ended.out);
}

/// A lab under embedded guests in a folder of its own, for one round of one second.
fn short(scratch: &Scratch, method: &str, adapters: &str) -> Ended {
    let words = ["--guests", "embedded", "--quick", "--seconds", "1", "--repeat", "1", "--adapters", adapters];
    let mut command = scratch.command(&[&["lab", "run", method, "--report", method], &words[..]].concat());
    Ended::of(&command.env("TMPDIR", scratch.path()).output().unwrap())
}

#[test]
fn embedded_guests_have_the_document_s_streams_sockets_and_link_and_a_page_stands_in_front_of_several_reports() {
    let scratch = Scratch::new();
    let done = short(&scratch, "esx-netperf", "vmxnet3");
    assert_eq!(done.code, Some(0), "{done:?}");
    let runs = std::fs::read_to_string(scratch.path().join("esx-netperf/esx-netperf/runs.jsonl")).unwrap();
    let runs: Vec<serde_json::Value> = runs.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (shape, mut rates) = ("netperf: 3 streams, writes of 64 KB, buffers of 64 KB", 0);
    for run in &runs {
        let Some(mbit) = run["figures"]["mbit"].as_f64() else { continue };
        // 1 Gbit/s of frames with their Ethernet header: 949 Mbit/s of payload, and a bucket's worth at the beginning.
        assert!((1.0..1_000.0).contains(&mbit), "{run}");
        rates += 1;
    }
    assert_eq!((rates, runs.len()), (8, 10), "the adapter and the native row: {runs:?}");
    for row in ["vmxnet3", "native"] {
        let exchanges = runs.iter().find(|run| run["adapter"] == row && run["load"] == "1g-rr").unwrap();
        assert!(exchanges["latency"].as_array().is_some_and(|known| known.len() == 5), "a distribution: {exchanges}");
    }
    assert!(runs.iter().any(|run| run["marks"].to_string().contains(shape)), "{runs:?}");
    let compared = short(&scratch, "compare", "vmxnet3,e1000e");
    assert_eq!(compared.code, Some(0), "{compared:?}");
    assert!(compared.out.contains("Throughput: guest to guest, Mbit/s"), "{}", compared.out);
    let report = scratch.run(&["lab", "report", "esx-netperf", "compare"]);
    assert_eq!(report.code, Some(0), "{report:?}");
    let front = std::fs::read_to_string(scratch.path().join("esx-netperf/index.html")).unwrap();
    for part in [
        "<a href=\"esx-netperf/index.html\">esx-netperf</a>",
        "<a href=\"../compare/compare/index.html\">compare</a>",
        "Which adapter for whom",
        "<th scope=\"row\">Linux of today</th><td>virtio-net<span",
        "Measured on ",
    ] {
        assert!(front.contains(part), "{part}: {front}");
    }
}

#[test]
fn results_of_another_version_are_not_gone_on_with_and_those_of_another_format_are_not_read() {
    let scratch = Scratch::new();
    study(&scratch, "old", [100.0; 7]);
    let resume = |scratch: &Scratch| {
        let mut command = scratch.command(&["lab", "run", "vmxnet3-iperf", "--resume", "old"]);
        Ended::of(&command.env("TMPDIR", scratch.path()).output().unwrap())
    };
    let head = scratch.path().join("old/vmxnet3-iperf/lab.json");
    let text = std::fs::read_to_string(&head).unwrap();
    std::fs::write(&head, text.replace("\"nicety_version\":\"0.1.0\"", "\"nicety_version\":\"0.0.9\"")).unwrap();
    let ended = resume(&scratch);
    let message = "these results are of nicety 0.0.9, and this is ";
    assert!(ended.code == Some(2) && ended.err.contains(message), "{ended:?}");
    std::fs::write(&head, text.replace("\"version\":1", "\"version\":7")).unwrap();
    let ended = resume(&scratch);
    assert!(
        ended.code == Some(2) && ended.err.contains("results of version 7, and this program reads version 1"),
        "{ended:?}"
    );
    let shown = scratch.run(&["lab", "report", "old/vmxnet3-iperf"]);
    assert!(shown.code == Some(1) && shown.err.contains("results of version 7"), "{shown:?}");
}

#[test]
fn a_method_whose_results_cannot_be_read_is_named_and_the_others_go_on() {
    let scratch = Scratch::new();
    study(&scratch, "good", [100.0; 7]);
    study(&scratch, "mixed", [100.0; 7]);
    let other = scratch.path().join("mixed/kvm-scp");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("lab.json"), r#"{"format":"nicety-lab","version":7}"#).unwrap();
    let why = "mixed/kvm-scp/lab.json: results of version 7, and this program reads version 1: the nicety that wrote them \
               reads them\n";
    let end = format!("left out: {why}nicety: 1 method's result cannot be read\n");
    let shown = scratch.run(&["lab", "report", "mixed"]);
    assert_eq!((shown.code, shown.err.as_str()), (Some(1), end.as_str()), "{shown:?}");
    assert!(shown.out.starts_with("Report: ") && scratch.path().join("mixed/index.html").exists(), "{shown:?}");
    let compared = scratch.run(&["lab", "diff", "good", "mixed"]);
    assert_eq!((compared.code, compared.err.as_str()), (Some(1), end.as_str()), "{compared:?}");
    assert!(compared.out.contains("  no difference shown\n"), "{compared:?}");
    std::fs::remove_dir_all(scratch.path().join("mixed/vmxnet3-iperf")).unwrap();
    let alone = scratch.run(&["lab", "report", "mixed"]);
    assert_eq!((alone.code, alone.err), (Some(1), format!("nicety: {why}")));
}

#[test]
fn a_lab_that_goes_on_says_what_is_left_and_a_dry_run_of_it_changes_nothing() {
    let scratch = Scratch::new();
    let lab = |words: &[&str]| lab(&scratch, "vmxnet3-iperf", words);
    let words = one_round("vmxnet3", "1");
    let done = lab(&words);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.err.contains("4 runs, which take about "), "{}", done.err);
    // An interruption in the middle of the fourth line.
    let path = scratch.path().join("nicety-lab/vmxnet3-iperf/runs.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let torn = &text[..text.len() - 10];
    std::fs::write(&path, torn).unwrap();
    let plan = lab(&["--resume", "nicety-lab", "--dry-run"]);
    assert_eq!(plan.code, Some(0), "{plan:?}");
    for part in
        ["guests    embedded; ", "rows      vmxnet3 by nicety", "time      1 of 4 runs are left, which take about "]
    {
        assert!(plan.out.contains(part), "{part}: {}", plan.out);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), torn);
    let refused = lab(&["--resume", "nicety-lab", "--dry-run", "--seconds", "9"]);
    assert!(refused.code == Some(2) && refused.err.contains("--seconds 9 differs"), "{refused:?}");
    let resumed = lab(&["--resume", "nicety-lab"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert!(resumed.err.contains("there already: 3 runs\n1 of 4 runs are left, which take about "), "{}", resumed.err);
    let again = lab(&["--resume", "nicety-lab", "--dry-run"]);
    assert!(again.out.contains("time      all 4 runs are there\n"), "{again:?}");
}
