//! Independent vhost-user front ends, as many as are available, with every kind of ring that they have: QEMU with one to eight
//! queue pairs, and DPDK's virtio-user; both also as the listening side, to which the daemon connects; and Debian's user-mode
//! kernel. Our own build of that kernel is in `user_mode.rs`, the crate `vhost`'s front end in the tests of `nicety-vhost-user`.

use std::{
    fs,
    io::Write,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nicety_guests::{
    Folder, Guest, Kernel, Layer,
    uml::{UmlConfig, UmlKernel},
};
use nicety_lab::packets::PACKAGES;
use nicety_trials::scope::is_full;

use crate::stage::{IN_HAND, LATER, Stage, TWO_WORKERS, address, ping, pinged, port, quiet, send, sh, usual, well};

/// Most queue pairs of a port.
const PAIRS: u8 = 8;
/// Time limit until testpmd has answered.
const ANSWERED: Duration = Duration::from_secs(60);

/// A guest in QEMU whose device has eight queue pairs; its driver uses one, two and so on. The pairs are dealt to so many of two workers.
fn every_count_of_pairs(words: &str, workers: u8) {
    let mut ports = [port("virtio-net", 1), port("e1000", 2)];
    ports[0].more = format!("queues = {PAIRS}\nworkers = {workers}\n");
    let stage = Stage::with_two_workers(ports.into());
    let mut config = stage.config(Kernel::V6_12, 1);
    config.cpus = 2;
    for word in &mut config.devices {
        *word = word.replace("vhost-user,", &format!("vhost-user,queues={PAIRS},"));
        *word = word.replace("virtio-net-pci,", &format!("virtio-net-pci,mq=on,vectors={},{words}", 2 * PAIRS + 2));
    }
    let start = |config| well(Guest::start(&stage.root, config));
    let (mut guest, mut peer) = (start(config), start(stage.config(Kernel::V6_12, 2)));
    [&mut guest, &mut peer].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
    // In a normal run one more than there are workers, all, and one.
    let counts = (1..=PAIRS).filter(|pairs| is_full() || [workers + 1, PAIRS].contains(pairs));
    for pairs in counts.chain([1]) {
        sh(&mut guest, &format!("ethtool -L eth0 combined {pairs}"));
        ping(&mut guest, "", &address(2));
        // Three connections each way: by which pairs they go is chance.
        for _ in 0..3 {
            send(&mut guest, &mut peer, &address(2), usual(4));
            send(&mut peer, &mut guest, &address(1), usual(4));
        }
    }
    let report = stage.report("vm1");
    let used = |way: &str| {
        let queues = report[way].as_array().into_iter().flatten();
        queues.filter(|queue| queue["frames"].as_u64().is_some_and(|frames| frames > 0)).count()
    };
    println!("{words:?}: frames by {} queues out, {} in", used("transmit"), used("receive"));
    assert!(used("transmit") > 1, "{report}");
    // Pairs are dealt in turn.
    let frames = |part: u64| {
        let queues = ["transmit", "receive"].map(|way| report[way].as_array().cloned().unwrap_or_default());
        let own = queues.into_iter().flatten().filter(|queue| queue["queue"].as_u64().unwrap_or_default() % 2 == part);
        own.filter_map(|queue| queue["frames"].as_u64()).sum::<u64>()
    };
    println!("{workers} workers: frames of even and of odd pairs: {:?}", [0, 1].map(frames));
    assert!(frames(1) > u64::from(usual(1000)), "{report}");
    assert_eq!(report["guest_errors"], 0, "{report}");
    [&mut guest, &mut peer].into_iter().for_each(quiet);
}

#[test]
fn qemu_s_guest_carries_with_one_to_eight_pairs_of_split_rings() {
    every_count_of_pairs("", 1);
}

#[test]
fn qemu_s_guest_carries_with_one_to_eight_pairs_of_packed_rings_that_are_dealt_to_two_workers() {
    every_count_of_pairs("packed=on,", 2);
}

/// The package with a kernel that runs with the libraries of every Debian from 12 on; and that kernel's modules for virtio-net, in
/// the order of loading.
const DEBIAN_S: &[&str] = &["user-mode-linux/bookworm"];
const MODULES: [&str; 3] = ["net/core/failover.ko", "drivers/net/net_failover.ko", "drivers/net/virtio_net.ko"];

#[test]
fn debian_s_user_mode_kernel_carries() {
    let layer = well(Layer::lay("user-mode-linux", DEBIAN_S, &mut |line| eprintln!("{line}")));
    let kernel = well(UmlKernel::at(&layer.path("usr/bin/linux.uml")));
    let modules = layer.path(format!("usr/lib/uml/modules/{}/kernel", kernel.release()));
    let stage = Stage::new(&["virtio-net", "virtio-net"]);
    let boot = |number: u8| {
        let machine = stage.served.attach(UmlConfig::new(&kernel), &format!("vm{number}"));
        let mut guest = stage.ready(Guest::boot(&stage.root, machine));
        sh(&mut guest, &format!("mkdir /host; mount -t hostfs -o {} none /host", modules.display()));
        MODULES.iter().for_each(|module| drop(sh(&mut guest, &format!("insmod /host/{module}"))));
        sh(&mut guest, &format!("ip addr add {}/24 dev eth0; ip link set eth0 up", address(number)));
        guest
    };
    let (mut guest, mut peer) = (boot(1), boot(2));
    ping(&mut guest, "", &address(2));
    ping(&mut guest, "-s 1472 -M do", &address(2));
    send(&mut guest, &mut peer, &address(2), usual(64));
    send(&mut peer, &mut guest, &address(1), usual(64));
    println!("Linux {}: {} MB each way", kernel.release(), usual(64));
    [&mut guest, &mut peer].into_iter().for_each(quiet);
    let report = stage.report("vm1");
    assert_eq!(report["guest_errors"], 0, "{report}");
}

/// testpmd at a port; it ends when this is dropped.
struct Testpmd(Child);

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _status = self.0.wait();
    }
}

impl Testpmd {
    /// Answers echo requests with a virtio-user device of these options, at the stage's first port. `engine`: arguments for testpmd
    /// itself.
    fn start(stage: &Stage, layer: &Layer, folder: &Folder, words: &str, engine: &[&str]) -> Testpmd {
        let log = well(fs::File::create(folder.path().join("said")));
        let mut command: Command = layer.program("usr/bin/dpdk-testpmd");
        // Shared configuration is locked, and a second process would end at once; tests run side by side.
        command.args(["-l", "0,1", "--no-huge", "-m", "512", "--no-telemetry", "--no-pci", "--no-shconf"]);
        command.arg("--log-level=pmd.net.virtio.*:info");
        for driver in ["mempool_ring", "bus_vdev", "net_virtio"] {
            command.arg("-d").arg(layer.libraries().join(format!("dpdk/pmds-25.0/librte_{driver}.so")));
        }
        let socket = stage.served.socket("vm1.sock");
        let mac = port("virtio-net", 1).mac;
        command.args(["--vdev", &format!("net_virtio_user0,path={},mac={mac},{words}", socket.display())]);
        command.args(["--", "-i", "--auto-start", "--forward-mode=icmpecho", "--port-topology=loop", "--nb-cores=1"]);
        command.args(["--total-num-mbufs=8192"]).args(engine);
        command.stdin(Stdio::piped()).stdout(well(log.try_clone())).stderr(log);
        Testpmd(well(command.spawn()))
    }

    fn quit(mut self) {
        let mut input = self.0.stdin.take().unwrap_or_else(|| panic!("it has an input"));
        well(input.write_all(b"quit\n"));
        let end = Instant::now() + ANSWERED;
        while well(self.0.try_wait()).is_none() {
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Options of a virtio-user, and its message about the receive path chosen (DPDK's virtio_ethdev.c, `set_rxtx_funcs`).
const KINDS: [(&str, &[&str], &str); 6] = [
    ("queues=1,in_order=0", &[], "using mergeable buffer Rx path"),
    ("queues=1,in_order=0,mrg_rxbuf=0", &[], "using standard Rx path"),
    ("queues=1,in_order=1", &[], "using inorder Rx path"),
    ("queues=1,in_order=0,mrg_rxbuf=0,vectorized=1", &["--rx-offloads=0"], "using vectorized Rx path"),
    ("queues=1,packed_vq=1", &[], "using packed ring mergeable buffer Rx path"),
    (
        "queues=4,packed_vq=1,mrg_rxbuf=0",
        &["--rxq=4", "--txq=4", "--disable-rss"],
        "using packed ring standard Rx path",
    ),
];

/// Requests of each size, in a normal and in a full run.
const REQUESTS: [u32; 2] = [1500, 5000];

#[test]
fn dpdk_s_virtio_user_answers_every_request_over_split_packed_ordered_and_vectorised_rings() {
    let layer = well(Layer::lay("packets", PACKAGES, &mut |line| eprintln!("{line}")));
    let mut first = port("virtio-net", 1);
    first.more = format!("queues = 4\n{TWO_WORKERS}");
    let mut stage = Stage::with_two_workers(vec![first]);
    let ping = stage.root.program("usr/bin/ping");
    let program: Vec<_> = std::iter::once(ping.get_program()).chain(ping.get_args()).collect();
    let program = program.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let (to, requests) = (address(1), REQUESTS[usize::from(is_full())]);
    // In a normal run those without mergeable buffers: the other front ends have them.
    let kinds = KINDS.into_iter().filter(|(words, ..)| is_full() || words.contains("mrg_rxbuf=0"));
    for (words, engine, path) in kinds {
        let folder = well(Folder::new());
        let testpmd = Testpmd::start(&stage, &layer, &folder, words, engine);
        let log = || fs::read_to_string(folder.path().join("said")).unwrap_or_default();
        let ready = format!(
            "\"$busybox\" arp -s {to} {}; for n in $(\"$busybox\" seq 30); do ! {program} -n -q -c 1 -W 1 {to} >/dev/null || break; done",
            port("virtio-net", 1).mac
        );
        // Small and full packets, many times around each ring; ping reports damaged answers.
        let asked = |size| format!("{program} -n -q -f -w 40 -c {requests} -s {size} {to}");
        let text = stage.namespace.run(&format!("{ready}; {}; {}", asked(18), asked(1400)), ANSWERED + LATER);
        let text = text.unwrap_or_else(|error| panic!("{words}: {error}\n{}", log()));
        // With a deadline `ping` asks until the count was answered.
        let counts = text.lines().filter_map(|line| line.split_once(" packets transmitted, ")?.1.split(' ').next());
        let answered: Vec<u32> =
            counts.filter_map(|count| count.parse().ok()).filter(|&count| count >= requests).collect();
        let damaged = ["wrong data", "duplicates"].iter().any(|word| text.contains(word));
        assert!(answered.len() == 2 && !damaged, "{words}: {text}\n{}", log());
        testpmd.quit();
        assert!(log().contains(path), "{words}: {}", log());
        stage.wait_until("nobody is there", || stage.report("vm1")["condition"] == "waiting");
        println!("{words}: {path}");
    }
    let report = stage.report("vm1");
    assert_eq!(report["guest_errors"], 0, "{report}");
}

/// A virtio-user that listens: with one pair of split rings, in order, mergeable and vectorised, and with four pairs of packed
/// rings.
const LISTENING: [(&str, &[&str]); 4] = [
    ("server=1,queues=1,in_order=1", &[]),
    ("server=1,queues=1,in_order=0", &[]),
    ("server=1,queues=1,in_order=0,mrg_rxbuf=0,vectorized=1", &["--rx-offloads=0"]),
    ("server=1,queues=4,packed_vq=1", &["--rxq=4", "--txq=4", "--disable-rss"]),
];
/// Number of times that the daemon is killed under each.
const KILLS: u64 = 2;
/// Fewest answers between two kills.
const BETWEEN: u64 = 500;

#[test]
#[ignore = "only with --full: a guest of QEMU listens in the usual run"]
fn a_virtio_user_that_listens_is_found_again_by_a_daemon_that_was_killed_under_traffic() {
    let layer = well(Layer::lay("packets", PACKAGES, &mut |line| eprintln!("{line}")));
    let mut first = port("virtio-net", 1);
    first.more = format!("queues = 4\nrole = \"connect\"\n{TWO_WORKERS}");
    let mut stage = Stage::with_two_workers(vec![first]);
    let to = address(1);
    well(stage.namespace.run(&format!("\"$busybox\" arp -s {to} {}", port("virtio-net", 1).mac), ANSWERED));
    stage.wait_log("nobody listens there");
    for (words, engine) in LISTENING {
        let folder = well(Folder::new());
        let testpmd = Testpmd::start(&stage, &layer, &folder, words, engine);
        let log = || fs::read_to_string(folder.path().join("said")).unwrap_or_default();
        let (mut ping, answers) = (stage.root.program("usr/bin/ping"), folder.path().join("answers"));
        ping.args(["-n", "-q", "-f", "-s", "1400", &to]);
        let ping = well(stage.namespace.start(&ping, &answers));
        for _ in 0..KILLS {
            stage.wait_more_or("answers", BETWEEN, || stage.sent("vm1"), log);
            well(stage.served.kill_and_restart(&mut stage.namespace));
        }
        stage.wait_more_or("answers", BETWEEN, || stage.sent("vm1"), log);
        well(stage.namespace.signal(ping, "INT", ANSWERED));
        let [sent, answered, twice] = pinged(&fs::read_to_string(&answers).unwrap_or_default());
        println!(
            "{words}: {KILLS} daemons killed, {} of {sent} requests lost, {twice} answered twice",
            sent - answered
        );
        assert!(twice <= KILLS * IN_HAND, "{twice} answered twice");
        assert!(answered > (KILLS + 1) * BETWEEN / 2 && 2 * answered > sent, "{answered} of {sent}\n{}", log());
        let report = stage.report("vm1");
        assert_eq!((&report["condition"], &report["guest_errors"]), (&"up".into(), &0.into()), "{report}\n{}", log());
        testpmd.quit();
        let nobody =
            || stage.report("vm1")["sentence"].as_str().is_some_and(|why| why.contains(": nobody listens there; "));
        stage.wait_until("nobody listens there", nobody);
    }
}

#[test]
fn a_guest_in_qemu_that_listens_goes_on_when_the_daemon_was_killed() {
    let ports = [1, 2]
        .map(|number| port("virtio-net", number))
        .map(|port| nicety_guests::Port { more: "role = \"connect\"\n".into(), ..port });
    let mut stage = Stage::with(ports.into());
    let start = |number, words| {
        let mut config = stage.config(Kernel::V6_12, number);
        for word in &mut config.devices {
            *word = word.replace("reconnect-ms=1000", "server=on,wait=off");
            *word = word.replace("virtio-net-pci,", &format!("virtio-net-pci,{words}"));
        }
        well(Guest::start(&stage.root, config))
    };
    let (mut split, mut packed) = (start(1, ""), start(2, "packed=on,"));
    [&mut split, &mut packed].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
    for _ in 0..KILLS {
        send(&mut split, &mut packed, &address(2), 4);
        send(&mut packed, &mut split, &address(1), 4);
        well(stage.served.kill_and_restart(&mut stage.namespace));
    }
    ping(&mut split, "", &address(2));
    send(&mut split, &mut packed, &address(2), 4);
    for (guest, name) in [(&mut split, "vm1"), (&mut packed, "vm2")] {
        let report = stage.report(name);
        assert_eq!((&report["condition"], &report["guest_errors"]), (&"up".into(), &0.into()), "{report}");
        quiet(guest);
    }
}
