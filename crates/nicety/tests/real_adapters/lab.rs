//! `nicety lab run` on real guests: guests that die, hang and panic; Ctrl-C, and going on.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use nicety_guests::{Layer, Root};
use nicety_lab::{
    method::{Contestant, Guests, Server},
    real::{
        Pairs,
        native::{FAR, Native},
        network_boot::{Bios, NetworkBoot},
    },
    subject::Subject,
};
use nicety_trials::scope::is_full;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::stage::{SOON, well};

/// Longest wait for a run to end, and for a guest that is asked in vain.
const PATIENCE: Duration = Duration::from_secs(120);

/// A lab in a folder of its own, whose guests have their files there.
struct Lab {
    folder: TempDir,
    method: &'static str,
    child: Child,
}

fn lab(folder: &Path, method: &str, words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
    command.args(["lab", "run", method]).args(words).current_dir(folder);
    command.env("NICETY_LAB_LOCK", folder.join("lab.lock"));
    command.env("TMPDIR", folder).env_remove("XDG_RUNTIME_DIR").stdout(Stdio::piped()).stderr(Stdio::piped());
    well(command.spawn())
}

/// The runs that count, without one that is still being written. A run whose processors were stolen is kept as well, and made again.
fn counted(text: &str) -> Vec<serde_json::Value> {
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| well(serde_json::from_str::<serde_json::Value>(line)))
        .filter(|run| run["discarded"] != true)
        .collect()
}

impl Lab {
    fn start(words: &[&str]) -> Lab {
        Lab::of("vmxnet3-iperf", words)
    }

    fn of(method: &'static str, words: &[&str]) -> Lab {
        let folder = well(TempDir::new());
        let child = lab(folder.path(), method, words);
        Lab { folder, method, child }
    }

    fn runs(&self) -> Vec<serde_json::Value> {
        let runs = self.folder.path().join("nicety-lab").join(self.method).join("runs.jsonl");
        counted(&fs::read_to_string(runs).unwrap_or_default())
    }

    fn wait_for_runs(&mut self, count: usize) {
        let end = Instant::now() + PATIENCE;
        while self.runs().len() < count {
            assert!(
                Instant::now() < end && self.child.try_wait().is_ok_and(|ended| ended.is_none()),
                "{:?}",
                self.runs()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its processes: guests, daemons and the lab itself.
    fn processes(&self) -> Vec<(Pid, String)> {
        let folder = self.folder.path().display().to_string();
        let here = |process: PathBuf| {
            let read =
                |name: &str| String::from_utf8_lossy(&fs::read(process.join(name)).unwrap_or_default()).into_owned();
            let number: i32 = process.file_name()?.to_str()?.parse().ok()?;
            let words = read("cmdline");
            let ours = words.contains(&folder) || read("environ").contains(&format!("TMPDIR={folder}"));
            (ours && !words.is_empty()).then_some((Pid::from_raw(number)?, words))
        };
        well(fs::read_dir("/proc")).filter_map(|entry| here(entry.ok()?.path())).collect()
    }

    /// Sends a signal to all guests.
    fn signal_guests(&self, signal: Signal) {
        let guests = self.processes().into_iter().filter(|(_, words)| words.contains("uml_dir="));
        // A process of a guest that ends meanwhile is no error.
        let sent = guests.filter(|(pid, _)| kill_process(*pid, signal).is_ok()).count();
        assert!(sent > 0, "no guest runs");
    }

    /// Exit code, standard output and standard error.
    fn ended(self) -> (Option<i32>, String, String, TempDir) {
        let output = well(self.child.wait_with_output());
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code(), text(output.stdout), text(output.stderr), self.folder)
    }
}

#[test]
fn a_guest_that_dies_and_one_that_hangs_cost_their_runs_with_their_last_words_and_the_others_go_on() {
    // A run lasts so long that on a loaded machine too this test finds its guests before they have gone.
    let words = ["--quick", "--seconds", "3", "--adapters", "e1000e", "--repeat", "3", "--seed", "3"];
    let mut lab = Lab::start(&words);
    let latency = |lab: &mut Lab, done: usize| {
        // The guests of e1000e run between its stream and its request-response.
        let streams =
            |lab: &Lab| lab.runs().iter().filter(|run| run["adapter"] == "e1000e" && run["load"] == "stream").count();
        while streams(lab) < done {
            let runs = lab.runs().len();
            lab.wait_for_runs(runs + 1);
        }
    };
    latency(&mut lab, 1);
    lab.signal_guests(Signal::KILL);
    latency(&mut lab, 2);
    lab.signal_guests(Signal::STOP);
    // Three rounds of two rows and two loads, and one load is given up after its second failure.
    lab.wait_for_runs(11);
    let runs = lab.runs();
    let (code, out, err, folder) = lab.ended();
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(err.ends_with("nicety: 2 runs failed; the report says why\n"), "{err}");
    let failures: Vec<&str> = runs.iter().filter_map(|run| run["failure"].as_str()).collect();
    let [died, hung] = failures.as_slice() else { panic!("{failures:?}") };
    assert!(died.contains("ended while it ran `") && died.contains("its console ended with"), "{died}");
    assert!(hung.contains("did not answer `") && hung.contains("its console ended with"), "{hung}");
    assert_eq!(runs.iter().filter(|run| run["adapter"] == "native" && run["failure"].is_null()).count(), 6);
    let page = well(fs::read_to_string(folder.path().join("nicety-lab/vmxnet3-iperf/index.html")));
    assert!(page.contains("2 runs failed, of e1000e by nicety: see below."), "{page}");
}

#[test]
fn ctrl_c_ends_all_at_once_and_keeps_what_was_measured_and_a_resumed_lab_makes_the_rest() {
    let mut lab = Lab::start(&["--quick", "--adapters", "vmxnet3"]);
    lab.wait_for_runs(3);
    let begin = Instant::now();
    well(kill_process(Pid::from_child(&lab.child), Signal::INT));
    well(lab.child.wait());
    assert!(begin.elapsed() < SOON / 6, "{:?}", begin.elapsed());
    assert_eq!(lab.processes(), [], "nothing of it runs");
    let before = lab.runs();
    let (code, _, err, folder) = lab.ended();
    let message = "go on with: nicety lab run vmxnet3-iperf --resume nicety-lab\n";
    assert!(code == Some(130) && err.ends_with(message) && (3..12).contains(&before.len()), "{before:?} {err}");
    assert!(folder.path().join("nicety-lab/index.html").exists());
    let other = lab_in(folder, &["--resume", "nicety-lab", "--seconds", "7"]);
    let (code, _, err, folder) = other.ended();
    assert!(code == Some(2) && err.contains("--seconds 7 differs from the beginning, which had none"), "{err}");
    let (code, _, err, folder) = lab_in(folder, &["--resume", "nicety-lab"]).ended();
    assert_eq!(code, Some(0), "{err}");
    let whole = well(fs::read_to_string(folder.path().join("nicety-lab/vmxnet3-iperf/runs.jsonl")));
    let whole = counted(&whole);
    assert_eq!((whole.len(), &whole[..before.len()]), (12, before.as_slice()));
    let left: Vec<_> = well(fs::read_dir(folder.path())).map(|entry| well(entry).file_name()).collect();
    assert_eq!(left.len(), 2, "the lock and the report, no socket and no log: {left:?}");
}

fn lab_in(folder: TempDir, words: &[&str]) -> Lab {
    let child = lab(folder.path(), "vmxnet3-iperf", words);
    Lab { folder, method: "vmxnet3-iperf", child }
}

/// Runs of a method with this one adapter, one round of one second, and the page.
fn one_round(method: &str, words: &[&str]) -> (Vec<serde_json::Value>, String) {
    let folder = well(TempDir::new());
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
    command.args(["lab", "run", method, "--quick", "--repeat", "1"]).args(words).current_dir(folder.path());
    command.env("NICETY_LAB_LOCK", folder.path().join("lab.lock"));
    let output = well(command.env("TMPDIR", folder.path()).env_remove("XDG_RUNTIME_DIR").output());
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    let read =
        |name: &str| fs::read_to_string(folder.path().join("nicety-lab").join(method).join(name)).unwrap_or_default();
    assert_eq!(output.status.code(), Some(0), "{err}{}", read("runs.jsonl"));
    (counted(&read("runs.jsonl")), read("index.html"))
}

#[test]
fn a_link_without_a_virtual_machine_carries_the_first_packet_already() {
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    // The kernel looks late at some links only: each is another chance.
    for _ in 0..4 {
        let mut native = well(Native::open(&root));
        let mut ping = Command::new(root.busybox());
        ping.args(["ping", "-c", "1", "-W", "30", FAR]);
        let (said, _) = well(native.run(&ping, PATIENCE, &AtomicBool::new(false), &mut |_| Ok(())));
        assert!(said.contains("1 packets received"), "{said}");
    }
}

#[test]
fn four_guests_share_one_uplink_and_each_one_s_share_and_response_time_is_known() {
    let (runs, page) = one_round("ten-gig", &["--adapters", "vmxnet3", "--seconds", "1"]);
    let figure = |load: &str, figure: &str| {
        let here = |run: &&serde_json::Value| run["adapter"] == "vmxnet3" && run["load"] == load;
        runs.iter().find(here).and_then(|run| run["figures"][figure].as_f64())
    };
    for load in ["one-1500", "one-9000", "four", "four-two-workers"] {
        assert!(figure(load, "mbit").is_some_and(|mbit| mbit > 1.0), "{load}: {runs:?}");
    }
    for load in ["four", "four-two-workers"] {
        let (total, lowest) = (figure(load, "mbit").unwrap(), figure(load, "lowest").unwrap());
        assert!(lowest > 0.0 && lowest * 4.0 <= total, "{load}: {runs:?}");
        assert!(figure(load, "jain").is_some_and(|jain| (0.25..=1.0).contains(&jain)), "{load}: {runs:?}");
        assert!(figure(load, "slowest") >= figure(load, "p50"), "{load}: {runs:?}");
    }
    assert!(page.contains("Jain") && page.contains("Latencies"), "{page}");
}

#[test]
fn a_guest_reads_its_iscsi_disk_while_three_others_send() {
    let (runs, page) = one_round("iscsi-mix", &["--adapters", "vmxnet3", "--seconds", "1"]);
    let (natively, runs): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run["adapter"] == "native");
    let mut loads: Vec<_> = runs.iter().filter_map(|run| run["load"].as_str()).collect();
    loads.sort_unstable();
    assert_eq!(loads, ["alone", "mix", "mix-full", "mix-io-control", "mix-random"], "{runs:?}");
    for run in &natively {
        let has_link = ["mix", "mix-full", "mix-random"].contains(&run["load"].as_str().unwrap());
        assert_eq!(run["figures"]["others"].as_f64().is_some_and(|mbit| mbit > 0.0), has_link, "{run}");
    }
    for run in &runs {
        let figure = |name: &str| run["figures"][name].as_f64();
        assert!(
            figure("p99") >= figure("p50") && run["latency"].as_array().is_some_and(|known| known.len() == 5),
            "{run}"
        );
        let apart = figure("daemon_cpu_seconds").zip(figure("vmm_cpu_seconds")).map(|(daemon, vmm)| daemon + vmm);
        assert!(figure("cpu_seconds").zip(apart).is_some_and(|(all, apart)| (all - apart).abs() < 1e-6), "{run}");
        assert!(figure("storage") > Some(0.0) && figure("iops") > Some(0.0), "{run}");
        assert_eq!(figure("others").is_some(), run["load"] != "alone", "{run}");
    }
    assert!(page.contains("The three others") && page.contains("iscsistart"), "{page}");
}

#[test]
fn the_generator_s_frames_come_through_dpdk_s_testpmd_open_vswitch_and_the_kernel_s_bridge_too() {
    let peers = ["nicety-adaptive", "testpmd-io", "ovs-dpdk", "bridge"];
    let (runs, _) = one_round("pps", &["--adapters", &peers.join(","), "--seconds", "1"]);
    for peer in peers {
        let of: Vec<_> = runs.iter().filter(|run| run["adapter"] == peer).collect();
        assert_eq!(of.len(), 3, "{peer}: {runs:?}");
        // A peer that polls on a processor of its own may stand still for a whole run on a machine with two.
        let through = of.iter().filter_map(|run| run["figures"]["through"].as_f64());
        assert!(through.fold(0.0, f64::max) > 100.0, "{of:?}");
    }
}

#[test]
fn guests_of_two_hosts_reach_each_other_by_a_tunnel_by_the_kernel_s_and_without_one() {
    let (runs, page) = one_round("vxlan", &["--seconds", "1"]);
    let rows = ["nicety-vxlan", "kernel-vxlan", "nicety-pair"];
    assert_eq!(runs.len(), 2 * rows.len(), "{runs:?}");
    for run in &runs {
        assert!(rows.contains(&run["adapter"].as_str().unwrap_or_default()), "{run}");
        let figure = |name: &str| run["figures"][name].as_f64();
        assert!(figure("mbit") > Some(1.0) && figure("daemon_cpu") > Some(0.0), "{run}");
        // Guests and daemons are a part of all that runs. The kernel counts both in ticks.
        assert!(figure("machine_cpu") > figure("cpu").map(|cpu| cpu * 0.8), "{run}");
    }
    assert!(page.contains("Throughput: vmxnet3") && page.contains("kernel-vxlan"), "{page}");
}

#[test]
fn a_vm_goes_on_at_its_twin_under_a_checked_connection_and_its_copies_and_outage_are_known() {
    let (runs, page) = one_round("ft-vm", &["--adapters", "off,on-50ms", "--seconds", "1"]);
    let figure = |row: &str, load: &str, figure: &str| {
        let run = runs.iter().find(|run| run["adapter"] == row && run["load"] == load);
        run.and_then(|run| run["figures"][figure].as_f64())
    };
    for (load, name) in [("receive", "throughput"), ("transmit", "throughput"), ("latency-bound", "round_trip")] {
        assert!(["off", "on-50ms"].iter().all(|row| figure(row, load, name) > Some(0.0)), "{load}: {runs:?}");
        let of_copies = ["stop_p50", "link"].map(|name| figure("on-50ms", load, name));
        assert!(of_copies.iter().all(|figure| *figure > Some(0.0)), "{load}: {runs:?}");
    }
    // An answer waits for the next copy, 25 ms on average, where without a twin it comes at once.
    assert!(figure("on-50ms", "ping", "round_trip") > figure("off", "ping", "round_trip"), "{runs:?}");
    // The ping's outage is counted beyond its usual silence, so on a busy machine it may be 0.
    let outages = ["outage_worst", "tcp_outage_worst"].map(|name| figure("on-50ms", "kill-vmm", name));
    assert!(outages[0] >= Some(0.0) && outages[1] > Some(0.0), "{runs:?}");
    assert_eq!(figure("on-50ms", "kill-vmm", "wrong_bytes"), Some(0.0), "{runs:?}");
    assert!(page.contains("Outage, worst: The VM") && page.contains("kill 1: ping silent for"), "{page}");
}

#[test]
#[ignore = "only with --full: four boots, and two bonds that select nothing for 8 s"]
fn four_links_that_linux_bonds_carry_many_streams_and_one_stream_stays_on_one() {
    let (runs, page) = one_round("aggregation", &["--adapters", "vmxnet3", "--seconds", "2"]);
    let figure = |load: &str, figure: &str| {
        let run = runs.iter().find(|run| run["load"] == load);
        run.and_then(|run| run["figures"][figure].as_f64()).unwrap_or_else(|| panic!("{load}: {runs:?}"))
    };
    // A link has 50 Mbit/s, with a bucket of 64 KiB, which is more in 2 s than 2 %.
    assert!(figure("four-flow", "mbit") < 55.0, "{runs:?}");
    assert!(figure("four", "mbit") > 55.0 && figure("four", "mbit") < 220.0, "{runs:?}");
    assert!(figure("one", "mbit") < 550.0, "{runs:?}");
    for load in ["four-rr", "one-rr"] {
        assert!(figure(load, "p50") > 0.0 && figure(load, "transactions") > 0.0, "{load}: {runs:?}");
    }
    assert!(page.contains("Share of the links") && page.contains("bonding driver"), "{page}");
}

#[test]
fn a_machine_s_way_from_power_on_over_a_lease_and_a_loaded_kernel_to_a_running_one_is_timed() {
    // UEFI takes twice as long under translation: only a full run has it, and QEMU's own adapter.
    let full = is_full();
    let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
    let mut boot = well(NetworkBoot::open(program, &mut |line| eprintln!("{line}")));
    let stop = AtomicBool::new(false);
    let mut try_it = |adapter: &str, server, bios| {
        let booted = well(boot.boot(&Subject::new(adapter, server), bios, &stop));
        println!("{adapter}, {bios:?}: {booted:?}");
        assert!(Duration::from_millis(100) < booted.lease && booted.lease < booted.loaded, "{booted:?}");
        assert!(booted.loaded < booted.running, "{booted:?}");
    };
    try_it("vmxnet3", Server::Nicety, Bios::Rom);
    if full {
        try_it("e1000e", Server::Qemu, Bios::Rom);
        try_it("vmxnet3", Server::Nicety, Bios::Uefi);
        try_it("virtio-net", Server::Nicety, Bios::Rom);
        try_it("virtio-net", Server::Qemu, Bios::Uefi);
    }
}

#[test]
fn a_guest_that_panics_gives_its_console_s_last_lines() {
    let mut say = |line: &str| eprintln!("{line}");
    let layer = well(Layer::lay("iperf", &["iperf"], &mut say));
    let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
    let mut pairs = well(Pairs::open(Guests::Uml, program, layer, &["usr/bin/iperf"], &mut say));
    let stop = AtomicBool::new(false);
    let mut standing = well(pairs.boot(&Contestant::new("e1000e", Server::Nicety), &stop));
    well(standing.warm(&stop));
    // Its memory ends (Documentation/admin-guide/sysctl/vm.rst, panic_on_oom).
    let panics = "echo 2 >/proc/sys/vm/panic_on_oom; tail /dev/zero";
    let error = standing.pair.left.succeed(panics, SOON).unwrap_err().to_string();
    assert!(error.contains("its console ended with") && error.contains("Kernel panic - not syncing: "), "{error}");
    well(pairs.end(standing));
}

/// Figures of a row's only run.
fn figure(runs: &[serde_json::Value], server: Option<&str>, load: &str, figure: &str) -> f64 {
    let run = runs.iter().find(|run| run["server"].as_str() == server && run["load"] == load);
    let run = run.unwrap_or_else(|| panic!("no run of {server:?}, {load}: {runs:?}"));
    run["figures"][figure].as_f64().unwrap_or_else(|| panic!("{run}"))
}

#[test]
fn qemu_s_own_model_and_no_machine_at_all_copy_a_file_over_a_link_of_the_same_rate() {
    let mut lab = Lab::of("kvm-scp", &["--adapters", "rtl8139", "--repeat", "1", "--seconds", "2"]);
    lab.wait_for_runs(3);
    let runs = lab.runs();
    let (code, out, err, _folder) = lab.ended();
    assert_eq!(code, Some(0), "{out}{err}");
    for server in [Some("nicety"), Some("qemu"), None] {
        let rate = figure(&runs, server, "scp", "megabytes");
        // 100 Mbit/s carry 11.96 MB/s of TCP payload: 1448 bytes of each frame of 1514 (RFC 9293, with timestamps). A copy of 25 MB may
        // begin with a full bucket of 64 KiB. How far it stays below is the machine's load: no test judges that.
        assert!(rate > 0.0 && rate < 12.1, "{server:?}: {rate} MB/s");
        assert_eq!(figure(&runs, server, "scp", "stable"), 1.0, "{server:?}");
    }
}
