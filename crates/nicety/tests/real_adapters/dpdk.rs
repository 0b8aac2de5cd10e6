//! DPDK's poll-mode drivers in a guest: independent drivers for the same chips, through `uio_pci_generic`. An engine of DPDK's own
//! answers echo requests with them.

use std::time::{Duration, Instant};

use nicety_guests::{Folder, Guest, GuestConfig, Kernel, Layer};
use nicety_trials::scope::{is_asked, is_full};

use crate::stage::{LATER, SOON, Stage, TAP, address, change, pinged, port, quiet, sh, well};

/// Packages of testpmd, and of the drivers that it loads.
const PACKAGES: &[&str] = &[
    "libc6",
    "dpdk-dev",
    "librte-net-e1000-25",
    "librte-net-ixgbe25",
    "librte-net-vmxnet3-25",
    "librte-net-virtio25",
    "librte-mempool-ring25",
    "librte-bus-pci25",
];
const TESTPMD: &str = "usr/bin/dpdk-testpmd";
/// Paths of the drivers.
const DRIVERS: [&str; 6] = [
    "usr/lib/x86_64-linux-gnu/librte_bus_pci.so.25",
    "usr/lib/x86_64-linux-gnu/librte_mempool_ring.so.25",
    "usr/lib/x86_64-linux-gnu/librte_net_e1000.so.25",
    "usr/lib/x86_64-linux-gnu/librte_net_ixgbe.so.25",
    "usr/lib/x86_64-linux-gnu/librte_net_vmxnet3.so.25",
    "usr/lib/x86_64-linux-gnu/librte_net_virtio.so.25",
];
/// DPDK's driver for each adapter; the last one only in a full run. Not virtio-net over vhost-user: QEMU does not pass the filters
/// on to such a port, so it would also answer for others.
const TAKEN: [(&str, &str); 8] = [
    ("e1000", "net_e1000_em"),
    ("e1000e", "net_e1000_em"),
    ("igb", "net_e1000_igb"),
    ("igbvf", "net_e1000_igb_vf"),
    ("ixgbevf", "net_ixgbe_vf"),
    ("vmxnet3", "net_vmxnet3"),
    ("virtio-net-pci", "net_virtio"),
    ("e1000-82545em", "net_e1000_em"),
];
/// Requests to each adapter, in a normal and in a full run.
const REQUESTS: [u64; 2] = [300, 20_000];
/// Counters that stay the same for so long count frames that the driver has polled.
const AT_REST: Duration = Duration::from_millis(500);
/// Time limit until testpmd runs and has answered.
const ANSWERED: Duration = Duration::from_secs(180);
/// Binds every network function to `uio_pci_generic`, and provides memory in huge pages.
const HAND_OVER: &str = "chmod 755 /; mkdir -p /dev/hugepages /var/run; mount -t hugetlbfs none /dev/hugepages; cd /sys/bus/pci; for f in devices/*; do \
                         case $(cat $f/class) in 0x0200*) echo uio_pci_generic >$f/driver_override; [ ! -e $f/driver ] || echo \
                         ${f##*/} >$f/driver/unbind; echo ${f##*/} >drivers_probe;; esac; done; ls -d \
                         drivers/uio_pci_generic/0000:* | wc -l";

#[test]
fn dpdk_s_poll_mode_drivers_in_a_guest_answer_every_request_and_count_as_the_switch_does() {
    let taken = TAKEN.get(..TAKEN.len() - usize::from(!is_full())).unwrap_or_default();
    let names: Vec<&str> = taken.iter().map(|(adapter, _)| *adapter).collect();
    let mut stage = Stage::new(&names);
    let folder = well(Folder::new());
    let mut guest = polling(&stage, &folder, taken.len() as u8, "");
    let requests = REQUESTS[usize::from(is_full())];
    for (number, adapter) in (1..).zip(&names) {
        ask(&mut stage, &mut guest, &address(number), &port(adapter, number).mac, requests);
    }
    let counted = |number: u8| {
        let name = format!("vm{number}");
        [stage.received(&name), stage.sent(&name)]
    };
    let all = || -> Vec<_> { (1..).take(taken.len()).map(counted).collect() };
    let mut before = all();
    // Ping may send one request more than it waits for: the driver polls it, and answers it, before it is told to end.
    let end = Instant::now() + SOON;
    loop {
        std::thread::sleep(AT_REST);
        let now = all();
        if now == before {
            break;
        }
        assert!(Instant::now() < end, "frames go on without a request: {before:?}, then {now:?}");
        before = now;
    }
    let output = ended(&mut guest);
    for ((number, before), (adapter, driver)) in (1..).zip(before).zip(taken) {
        let after = counted(number);
        let own = statistics(&output, &port(adapter, number).mac, driver);
        println!("{adapter}: {driver} counted {own:?} frames in and out, the switch {after:?}");
        // The driver answers each frame that it polls. One that came before it began to poll lay in its ring, neither counted nor
        // answered: the switch has sent it, and no answer has come.
        let answered = before[1];
        for direction in [0, 1] {
            assert!(
                answered >= requests && (answered..=after[direction]).contains(&own[direction]),
                "{before:?}, {own:?}"
            );
        }
        // The driver reads registers that only later chips have.
        let report = stage.report(&format!("vm{number}"));
        println!("{adapter}: accesses to what it has not: {}", report["bad_accesses"]);
        assert_eq!(report["guest_errors"], 0, "{report}");
    }
    quiet(&mut guest);
}

/// Cards whose functions DPDK has by interrupt, and its drivers.
const CARDS: [(&str, &str, &str); 2] = [("82576", "igbvf", "net_e1000_igb_vf"), ("82599", "ixgbevf", "net_ixgbe_vf")];
/// VFIO passes MSI-X on, where `uio_pci_generic` has no interrupt for a function without INTx. It needs an IOMMU.
const IOMMU: [&str; 4] = ["-device", "intel-iommu,caching-mode=on,intremap=off", "-cpu", "max"];

/// The mailbox's message of a reset comes by MSI-X, on vector 0 of these drivers: igbvf_mbx_process in DPDK's igb_ethdev.c, ixgbevf_mbx_process
/// in its ixgbe_ethdev.c. They look into the mailbox at no other time.
#[test]
fn dpdk_s_drivers_hear_of_their_card_s_reset_by_an_interrupt_and_go_on_after_it() {
    let cards: Vec<_> = CARDS.into_iter().filter(|(_, adapter, _)| is_asked(adapter)).collect();
    if cards.is_empty() {
        return;
    }
    let tables: String = (cards.iter())
        .map(|(chip, adapter, _)| format!("[[card]]\nname = \"{adapter}\"\nchip = \"{chip}\"\nuplink = \"{TAP}\"\n"))
        .collect();
    let seat = |(number, (_, adapter, _)): (u8, &(&str, &str, &str))| {
        let more = format!("card = \"{adapter}\"\nfunction = 1\n");
        nicety_guests::Port { more, ..port(adapter, number) }
    };
    let mut stage = Stage::beside((1..).zip(&cards).map(seat).collect(), &tables);
    let folder = well(Folder::new());
    let config = GuestConfig {
        drivers: ["vfio-pci", "vfio_iommu_type1"].map(str::to_owned).into(),
        append: ["hugepages=64", "intel_iommu=on"].map(str::to_owned).into(),
        devices: IOMMU.map(str::to_owned).into(),
        ..GuestConfig::new(Kernel::V6_12)
    };
    let unsafe_interrupts = "echo 1 >/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts; ";
    let hand_over = format!("{unsafe_interrupts}{}", HAND_OVER.replace("uio_pci_generic", "vfio-pci"));
    let mut guest = polling_by(&stage, &folder, cards.len() as u8, "", config, &hand_over);
    for (number, (_, adapter, _)) in (1..).zip(&cards) {
        ask(&mut stage, &mut guest, &address(number), &port(adapter, number).mac, 20);
    }
    // A change by the host stops no queue: an application that polls need not restart its port.
    for (number, (_, adapter, _)) in (1..).zip(&cards) {
        for value in ["trust on", "state disable", "state enable", "state auto", "trust off"] {
            change(&mut stage, &format!("vf set {adapter}/1 {value}"));
            let (requests, least) = if value == "state disable" { (1, 0) } else { (SINGLE, SINGLE - 1) };
            let answered = single(&mut stage, &address(number), requests);
            assert_eq!(answered >= least.max(1), least > 0, "{adapter}, {value}: {answered}\n{}", ended(&mut guest));
        }
    }
    assert_eq!(sh(&mut guest, "grep -c 'reset event' /tmp/said || true"), "0\n");
    let typed = |guest: &mut Guest, words: &str, until: &str| {
        let made = guest.succeed(&format!("printf '{words}' >/tmp/typed; until {until}; do rest; done"), LATER);
        made.unwrap_or_else(|error| panic!("{error}\n{}", sh(guest, "tail -n 30 /tmp/said")));
    };
    for (number, (_, adapter, _)) in (0..).zip(&cards) {
        change(&mut stage, &format!("card reset {adapter}"));
        typed(&mut guest, "", &format!("grep -q 'Port {number}: reset event' /tmp/said"));
    }
    let again = "stop\nport stop all\nport reset all\nport start all\nset promisc all off\nstart\n";
    typed(&mut guest, again, "[ $(grep -c '^testpmd> start' /tmp/said) -ge 2 ] || [ -s /tmp/ended ]");
    for (number, (_, adapter, _)) in (1..).zip(&cards) {
        ask(&mut stage, &mut guest, &address(number), &port(adapter, number).mac, 20);
    }
    let output = ended(&mut guest);
    for (number, (_, adapter, driver)) in (1..).zip(&cards) {
        println!("{adapter}: {driver} counted {:?} frames", statistics(&output, &port(adapter, number).mac, driver));
        let report = stage.report(&format!("vm{number}"));
        let refused = (&report["refused_dma_reads"], &report["refused_dma_writes"], &report["guest_errors"]);
        assert_eq!(refused, (&0.into(), &0.into(), &0.into()), "{report}");
    }
    quiet(&mut guest);
}

/// The filters of the 82576 by DPDK's flow rules: Linux's igb does not expose them (`ethtool -N` is the i350's in igb_main.c).
#[test]
#[ignore = "only with --full: adapters/intel has the filters in the usual run"]
fn frames_arrive_on_the_queue_that_an_igb_s_filter_names() {
    if !is_asked("igb") {
        return;
    }
    let mut stage = Stage::new(&["igb"]);
    let folder = well(Folder::new());
    let mut guest = polling(&stage, &folder, 1, "--rxq=2 --txq=2 --disable-rss");
    let to = address(1);
    ask(&mut stage, &mut guest, &to, &port("igb", 1).mac, 20);
    let queues = |stage: &Stage| -> [u64; 2] {
        let report = stage.report("vm1");
        [0, 1].map(|number: u64| {
            let mut queues = report["receive"].as_array().into_iter().flatten();
            queues.find(|queue| queue["queue"] == number).and_then(|queue| queue["frames"].as_u64()).unwrap_or(0)
        })
    };
    // Probes go to consecutive ports: the filter matches one of them.
    let probes = format!("\"$busybox\" traceroute -n -q 16 -w 1 -m 1 {to} >/dev/null || true");
    let flow = format!("eth / ipv4 dst is {to} proto is 17 / udp dst is 33440");
    let filters = [
        ("EtherType", "eth type is 0x0806", format!("\"$busybox\" arping -q -c 3 -I {TAP} {to} || true"), 3..=4),
        ("flow", flow.as_str(), probes, 1..=1),
        (
            "SYN",
            "eth / ipv4 / tcp flags spec 0x02 flags mask 0x02",
            format!("\"$busybox\" nc -w 2 {to} 9200 </dev/null || true"),
            1..=4,
        ),
    ];
    for (number, (name, pattern, frames, expected)) in filters.into_iter().enumerate() {
        let moved = |stage: &mut Stage| {
            let before = queues(stage);
            well(stage.namespace.run(&frames, LATER));
            let after = queues(stage);
            [after[0] - before[0], after[1] - before[1]]
        };
        let without = moved(&mut stage);
        let rule = format!("flow create 0 ingress pattern {pattern} / end actions queue index 1 / end");
        let made = format!("until grep -q 'Flow rule #{number} created' /tmp/said; do rest; done");
        let typed = guest.succeed(&format!("echo '{rule}' >/tmp/typed; {made}"), SOON);
        typed.unwrap_or_else(|error| panic!("{error}\n{}", sh(&mut guest, "tail -n 5 /tmp/said")));
        let with = moved(&mut stage);
        println!("igb, a filter by {name}: by queue {without:?} before, {with:?} with it");
        assert!(without[1] == 0 && without[0] >= *expected.start(), "{name}, before: {without:?}");
        assert!(expected.contains(&with[1]), "{name}, with the filter: {with:?}");
    }
    let before = queues(&stage);
    let output = ended(&mut guest);
    let own = output.split("RX Port= 0/Queue= 1").nth(1).and_then(|text| text.split("RX-packets:").nth(1));
    let own: Option<u64> = own.and_then(|text| text.split_whitespace().next()?.parse().ok());
    assert_eq!(own, Some(before[1]), "what testpmd counted on the second queue: {output}");
    quiet(&mut guest);
}

/// Pings from the host's side of the tap. The ARP entry is static, because the engine answers ARP requests for every address.
fn ask(stage: &mut Stage, guest: &mut Guest, to: &str, mac: &str, requests: u64) {
    let ping = asking(stage);
    let ready = format!(
        "\"$busybox\" arp -s {to} {mac}; for n in $(\"$busybox\" seq 10); do ! {ping} -n -q -c 1 -W 1 {to} >/dev/null || break; done"
    );
    let text = stage.namespace.run(&format!("{ready}; {ping} -n -q -f -w 150 -c {requests} {to}"), ANSWERED);
    // With a deadline `ping` asks until `requests` were answered.
    let (answered, text) = match text {
        Ok(text) => (pinged(&text)[1], text),
        Err(error) => (0, error.to_string()),
    };
    assert!(answered >= requests, "{to}: {text}\n{}", ended(guest));
}

/// Requests that are sent one after another, each answered or given up after a second.
const SINGLE: u64 = 5;

/// Number of answers to so many requests, to an address that the namespace knows.
fn single(stage: &mut Stage, to: &str, requests: u64) -> u64 {
    let ping = asking(stage);
    let each = format!("for n in $(\"$busybox\" seq {requests}); do {ping} -n -q -c 1 -W 1 {to} || true; done");
    let text = well(stage.namespace.run(&each, LATER));
    text.matches(" 1 received").count() as u64
}

/// `ping` of the root, as words of a shell in the namespace.
fn asking(stage: &Stage) -> String {
    let ping = stage.root.program("usr/bin/ping");
    let words: Vec<_> = std::iter::once(ping.get_program()).chain(ping.get_args()).collect();
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A guest with an adapter at each of the first ports, bound by testpmd, with these options.
fn polling(stage: &Stage, folder: &Folder, ports: u8, options: &str) -> Guest {
    let config = GuestConfig {
        drivers: vec!["uio_pci_generic".into()],
        append: vec!["hugepages=64".into()],
        // DPDK needs SSE 4.2, which QEMU's default processor lacks.
        devices: ["-cpu", "max"].map(str::to_owned).into(),
        ..GuestConfig::new(Kernel::V6_12)
    };
    polling_by(stage, folder, ports, options, config, HAND_OVER)
}

/// The same in this machine. `hand_over` binds the functions, and says how many.
fn polling_by(stage: &Stage, folder: &Folder, ports: u8, options: &str, config: GuestConfig, hand_over: &str) -> Guest {
    let layer = well(Layer::lay("dpdk", PACKAGES, &mut |line| eprintln!("{line}")));
    let archive = well(layer.archive(&[&[TESTPMD], &DRIVERS[..]].concat()));
    let archive = Some(well(folder.write("dpdk.cpio", archive)));
    let config = GuestConfig { cpus: 2, memory_mib: 768, archive, ..config };
    let config = (1..=ports).fold(config, |config, number| stage.served.attach(config, &format!("vm{number}")));
    let mut guest = stage.ready(Guest::boot(&stage.root, config));
    assert_eq!(sh(&mut guest, hand_over), format!("{ports}\n"));
    let drivers = DRIVERS.map(|path| format!("-d /{path}")).join(" ");
    let engine =
        "-i --cmdline-file=/tmp/first --forward-mode=icmpecho --port-topology=loop --nb-cores=1 --total-num-mbufs=8192";
    let testpmd =
        format!("/{TESTPMD} -l 0,1 --no-telemetry {drivers} -- {engine} {options} </tmp/typed >/tmp/said 2>&1");
    // Not promiscuous: a frame to an address that the switch has not learnt reaches all ports, and only one must answer.
    let first = "printf 'set promisc all off\\nstart\\n' >/tmp/first; mkfifo /tmp/typed; (sleep 7200 >/tmp/typed &)";
    sh(&mut guest, &format!("{first}; ({testpmd}; echo $? >/tmp/ended) >/dev/null 2>&1 &"));
    // Frames before the driver runs are counted nowhere.
    let forwards = "until grep -q '^testpmd> start' /tmp/said || [ -s /tmp/ended ]; do rest; done";
    well(guest.succeed(forwards, ANSWERED));
    guest
}

/// Ends testpmd. Returns its output, with its counters of the ports.
fn ended(guest: &mut Guest) -> String {
    let typed = "show port info all\nshow port stats all\nquit\n";
    let output = guest.succeed(
        &format!(
            "[ -s /tmp/ended ] || printf '{typed}' >/tmp/typed; until [ -s /tmp/ended ]; do rest; done; cat /tmp/said /tmp/ended"
        ),
        LATER,
    );
    output.unwrap_or_else(|error| panic!("{error}\n{}", sh(guest, "tail -n 40 /tmp/said")))
}

/// Frames in and out of the port with this address. The port must have this driver.
fn statistics(output: &str, mac: &str, driver: &str) -> [u64; 2] {
    let mut about = output.split("Infos for port ").skip(1);
    let about = about.find(|text| text.to_lowercase().contains(&format!("mac address: {mac}")));
    let about = about.unwrap_or_else(|| panic!("no port {mac}: {output}"));
    assert!(about.contains(&format!("Driver name: {driver}\n")), "{about}");
    let number = about.split_whitespace().next().unwrap_or_default();
    let counts = output.split_once(&format!("NIC statistics for port {number} "));
    let (_, counts) = counts.unwrap_or_else(|| panic!("no statistics of port {number}: {output}"));
    let count = |name: &str| counts.split_once(name).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    ["RX-packets:", "TX-packets:"].map(|name| count(name).unwrap_or_else(|| panic!("no {name} {counts}")))
}
