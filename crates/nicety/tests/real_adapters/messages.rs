//! Cost of a frame for user-mode guests: messages whose answer they wait for, and reads of descriptors.

use std::fs;

use nicety_guests::{
    Guest,
    uml::{UmlConfig, UmlKernel},
};

use crate::stage::{HOST, Stage, answered_each_once, ping, port, quiet, sh, well};

/// Frames that the guest sends; it receives as many.
const ECHOES: u64 = 500;

/// A guest with one processor at the single port of a daemon.
fn one(adapter: &str, more: &str, words: &[&str]) -> (Stage, Guest) {
    let mut port = port(adapter, 1);
    port.more = more.to_owned();
    let stage = Stage::with(vec![port]);
    let mut machine = UmlConfig::new(&well(UmlKernel::lay(&mut |line| eprintln!("{line}"))));
    machine.append.extend(words.iter().map(|&word| word.to_owned()));
    let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine, 1)));
    ping(&mut guest, "", HOST);
    (stage, guest)
}

fn echoes(guest: &mut Guest) {
    answered_each_once(guest, "", ECHOES, HOST);
}

/// Messages that the guest has sent, messages that it has waited for, and register accesses that the daemon has seen.
#[derive(Debug)]
struct Counts {
    messages: u64,
    waits: u64,
    reads: u64,
    writes: u64,
    /// That the adapter has raised.
    interrupts: u64,
}

impl Counts {
    fn of(stage: &Stage, guest: &mut Guest) -> Counts {
        let text = sh(guest, "cd /sys/module/vfio_user/parameters; cat messages waits");
        let numbers: Vec<u64> = text.lines().map(|line| well(line.parse())).collect();
        let report = stage.report("vm1");
        let number = |key: &str| report[key].as_u64().unwrap_or_else(|| panic!("no {key} in {report}"));
        let (reads, writes) = (number("register_reads"), number("register_writes"));
        Counts { messages: numbers[0], waits: numbers[1], reads, writes, interrupts: number("interrupts") }
    }

    fn since(&self, before: &Counts) -> Counts {
        Counts {
            messages: self.messages - before.messages,
            waits: self.waits - before.waits,
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            interrupts: self.interrupts - before.interrupts,
        }
    }

    /// Each frame that is sent rings: there is a write for each.
    fn rings(&self) -> bool {
        self.writes >= ECHOES
    }

    /// The guest writes this many masks for each interrupt, and its watchdogs a little. The number of interrupts depends on the host's
    /// load, so two guests' writes cannot be compared.
    fn only_unmasks(&self, masks: u64) -> bool {
        self.writes <= masks * self.interrupts + ECHOES / 2
    }
}

#[test]
fn a_user_mode_guest_waits_for_vmxnet3s_commands_and_not_for_doorbells_and_masks() {
    for words in [&["vfio_user.msix=0", "vfio_user.msi=0"][..], &[]] {
        let (stage, mut guest) = one("vmxnet3", "doorbells = \"trapped\"\n", words);
        let before = Counts::of(&stage, &mut guest);
        echoes(&mut guest);
        let now = Counts::of(&stage, &mut guest).since(&before);
        println!("{words:?}: {ECHOES} echoes, {now:?}");
        assert!(now.writes >= ECHOES, "each frame rings: {now:?}");
        // Only reads need an answer; in addition there may be a few commands for the network's own changes.
        assert!(now.waits <= now.reads + 20, "{now:?}");

        let before = Counts::of(&stage, &mut guest);
        sh(&mut guest, "for n in $(seq 25); do ip link set eth0 promisc on; ip link set eth0 promisc off; done");
        let now = Counts::of(&stage, &mut guest).since(&before);
        println!("{words:?}: 50 changes of the filter, {now:?}");
        assert!(now.waits >= now.reads + 50, "each command is waited for: {now:?}");
        quiet(&mut guest);
    }
}

/// The messages of a guest's echoes with trapped doorbells, and with mapped ones.
fn trapped_and_mapped(adapter: &str, words: &[&str]) -> [Counts; 2] {
    ["trapped", "mapped"].map(|doorbells| {
        let (stage, mut guest) = one(adapter, &format!("doorbells = \"{doorbells}\"\n"), words);
        let before = Counts::of(&stage, &mut guest);
        echoes(&mut guest);
        let now = Counts::of(&stage, &mut guest).since(&before);
        println!("{adapter}, {words:?}, {doorbells}: {ECHOES} echoes, {now:?}");
        quiet(&mut guest);
        now
    })
}

#[test]
fn an_intel_chips_tails_are_no_messages_where_its_ring_pages_are_mapped() {
    for adapter in ["e1000e", "igb"] {
        for words in [&["vfio_user.msix=0", "vfio_user.msi=0"][..], &[]] {
            let [trapped, mapped] = trapped_and_mapped(adapter, words);
            assert!([&trapped, &mapped].iter().all(|now| now.waits <= now.reads + 20), "{trapped:?}, {mapped:?}");
            // IMS and IAM, without MSI-X: igb_irq_enable.
            let masks = if adapter == "igb" && !words.is_empty() { 2 } else { 1 };
            assert!(trapped.rings() && mapped.only_unmasks(masks), "{adapter}, {words:?}: {trapped:?}, {mapped:?}");
        }
    }
}

/// The rest is EIMS, which the guest's client does not post to a device with a mapped part, as QEMU does not.
#[test]
fn a_virtual_functions_tails_are_no_messages_where_its_ring_pages_are_mapped() {
    for adapter in ["igbvf", "ixgbevf"] {
        let [trapped, mapped] = trapped_and_mapped(adapter, &[]);
        assert!(trapped.waits <= trapped.reads + 20, "{adapter}: {trapped:?}");
        assert!(trapped.rings() && mapped.only_unmasks(1), "{adapter}: {trapped:?}, {mapped:?}");
    }
}

#[test]
fn a_user_mode_guest_posts_to_a_device_of_which_nothing_can_be_mapped() {
    let (stage, mut guest) = one("e1000", "", &[]);
    let before = Counts::of(&stage, &mut guest);
    echoes(&mut guest);
    let now = Counts::of(&stage, &mut guest).since(&before);
    println!("{ECHOES} echoes, {now:?}");
    assert!(now.writes >= ECHOES, "{now:?}");
    assert!(now.waits <= now.reads + 20, "{now:?}");
}

#[test]
fn a_user_mode_guest_moves_a_frame_through_an_ne2000s_port_in_one_message_and_waits_for_what_it_reads() {
    let (stage, mut guest) = one("ne2k_pci", "", &[]);
    let before = Counts::of(&stage, &mut guest);
    // A frame of 1514 bytes in each direction: 379 accesses to the data port out, and as many in.
    let text = sh(&mut guest, &format!("/usr/bin/ping -n -q -c {ECHOES} -i 0.002 -s 1472 {HOST}"));
    assert!(text.contains(&format!("{ECHOES} received")), "{text}");
    let now = Counts::of(&stage, &mut guest).since(&before);
    let per_echo = |count: u64| count as f64 / ECHOES as f64;
    println!("{:.1} messages an echo, {:.1} waited for; {now:?}", per_echo(now.messages), per_echo(now.waits));
    assert!(per_echo(now.messages) < 80.0 && per_echo(now.waits) < 30.0, "{now:?}");
    quiet(&mut guest);
}

#[test]
fn a_user_mode_guest_waits_for_what_it_reads_of_a_pcnet_and_for_what_stops_it() {
    let (stage, mut guest) = one("pcnet", "", &[]);
    let before = Counts::of(&stage, &mut guest);
    echoes(&mut guest);
    let now = Counts::of(&stage, &mut guest).since(&before);
    let per_echo = |count: u64| count as f64 / ECHOES as f64;
    println!("{:.1} messages an echo, {:.1} waited for; {now:?}", per_echo(now.messages), per_echo(now.waits));
    assert!(now.writes >= 2 * ECHOES, "RAP and CSR0 for each frame: {now:?}");
    assert!(now.waits <= now.reads + 20, "{now:?}");

    // The driver stops the chip to set a filter, and must wait until it has stopped.
    let before = Counts::of(&stage, &mut guest);
    sh(&mut guest, "for n in $(seq 5); do ip link set eth0 promisc on; ip link set eth0 promisc off; done");
    let now = Counts::of(&stage, &mut guest).since(&before);
    println!("10 changes of the filter, {now:?}");
    assert!(now.waits >= now.reads + 10, "{now:?}");
    quiet(&mut guest);
}

/// `read` calls of the guest's kernel so far.
fn descriptor_reads(guest: &Guest) -> u64 {
    let text = well(fs::read_to_string(format!("/proc/{}/io", guest.process())));
    let count = text.lines().find_map(|line| line.strip_prefix("syscr: "));
    well(count.unwrap_or_else(|| panic!("no syscr in {text}")).parse())
}

#[test]
fn a_user_mode_guest_reads_the_queue_that_rang_however_many_virtio_net_offers() {
    let per_frame = [1, 8].map(|queues| {
        let (_stage, mut guest) = one("virtio-net", &format!("queues = {queues}\n"), &[]);
        let offered = sh(&mut guest, "grep -o 'input\\.[0-9]*' /proc/interrupts | wc -l");
        assert_eq!(offered.trim(), queues.to_string(), "queues that have a descriptor");
        let before = descriptor_reads(&guest);
        echoes(&mut guest);
        let reads = (descriptor_reads(&guest) - before) as f64 / (2 * ECHOES) as f64;
        println!("{queues} queue pairs: {reads:.2} reads a frame");
        quiet(&mut guest);
        reads
    });
    assert!(per_frame[0] > 0.5, "interrupts are read, or nothing is counted: {per_frame:?}");
    assert!(per_frame[1] < 1.5 * per_frame[0], "eight pairs cost as many as one: {per_frame:?}");
}
