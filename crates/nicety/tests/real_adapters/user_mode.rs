//! The same drivers in user-mode kernels, at the host's own speed; and ends of guests and daemons that are not clean.

use std::path::Path;

use nicety_adapters::{About, Entry, REGISTRY};
use nicety_guests::{
    Guest, Layer, Root,
    uml::{End, Endurance, UmlConfig, UmlKernel},
};
use nicety_trials::scope::{few, in_linux as entries, is_full};

use crate::{
    drivers::{carry, restart_interface_and_driver},
    stage::{FLOOD, HOST, LATER, Stage, TAP, address, amount, ping, pinged, quiet, send, sh, side_by_side, well},
};

/// Removes the driver from its device, and binds it again: its functions are built in, so it cannot be unloaded.
const GO: &str = "device=$(readlink -f /sys/class/net/eth0/device); driver=$(readlink -f $device/driver); \
                  echo \"${device##*/} $driver\" >/tmp/device; echo ${device##*/} >$driver/unbind";
const COME: &str = "read device driver </tmp/device; echo $device >$driver/bind";

fn both(adapter: &str) -> (Stage, Guest, Guest) {
    both_on(adapter, 1)
}

/// Two guests with `cpus` processors each.
fn both_on(adapter: &str, cpus: u32) -> (Stage, Guest, Guest) {
    println!("{adapter}, {cpus} processors");
    let stage = Stage::new(&[adapter, adapter]);
    let machine = machine(cpus);
    let start = |number| well(Guest::start(&stage.root, stage.at_port(machine.clone(), number)));
    let (mut left, mut right) = (start(1), start(2));
    for guest in [&mut left, &mut right] {
        stage.ready(guest.wait_ready());
        assert_eq!(sh(guest, "nproc"), format!("{cpus}\n"));
    }
    println!("answered after {:.2} and {:.2} s", left.boot_time().as_secs_f64(), right.boot_time().as_secs_f64());
    (stage, left, right)
}

/// Floods the host from the guest, in the background.
pub fn flood(guest: &mut Guest) {
    sh(guest, &format!("({FLOOD} {HOST} >/dev/null 2>&1 &); (nc {HOST} 9 </dev/zero >/dev/null 2>&1 &)"));
}

#[test]
fn a_user_mode_kernel_carries_over_every_adapter() {
    for entry in entries() {
        carry([entry.about.name; 2], both(entry.about.name));
    }
}

#[test]
fn linux_takes_every_chip_for_what_it_is_with_its_speed_and_it_carries_to_virtio_net_and_back() {
    let served = |entry: &&Entry| entry.about.transports.contains(&"vfio-user") && entry.about.in_linux();
    let chips: Vec<&About> = REGISTRY.iter().filter(served).map(|entry| entry.about).collect();
    let names: Vec<&str> = chips.iter().map(|about| about.name).chain(["virtio-net"]).collect();
    let stage = Stage::new(&names);
    let numbers = (1..).take(names.len());
    let mut guests: Vec<Guest> =
        numbers.map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)))).collect();
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    let peer = guests.len() as u8;
    let mut other = guests.remove(chips.len());
    for (number, (about, guest)) in (1..).zip(chips.iter().zip(&mut guests)) {
        // The device of a virtio driver is a function's child.
        let seen = sh(
            guest,
            "cd /sys/class/net/eth0; d=$(readlink -f device); case $d in */virtio[0-9]*) d=${d%/*};; esac
            cat $d/vendor $d/device; cat speed duplex 2>/dev/null || true",
        );
        let (vendor, device) = about.pci;
        let identity = format!("{vendor:#06x}\n{device:#06x}\n");
        // A driver may show no speed, or half duplex; the registry then says so.
        let others = [identity.clone(), format!("{identity}{}\nhalf\n", about.link_mbps)];
        let as_told = about.link_unless.is_some() && others.contains(&seen);
        assert!(as_told || seen == format!("{identity}{}\nfull\n", about.link_mbps), "{}: {seen}", about.name);
        let info = sh(guest, "ethtool -i eth0");
        assert!(info.starts_with(&format!("driver: {}\n", about.linux.driver)), "{info}");
        ping(guest, "", &address(peer));
        send(guest, &mut other, &address(peer), amount(about.name, 8));
        send(&mut other, guest, &address(number), amount(about.name, 8));
        println!("{}: {}", about.name, seen.replace('\n', " "));
        quiet(guest);
    }
}

#[test]
fn a_hundred_megabytes_come_whole_over_every_adapter() {
    for entry in few() {
        let (_stage, mut left, mut right) = both(entry.about.name);
        // Half of the guest's memory: three times in each direction.
        for _ in 0..3 {
            send(&mut left, &mut right, &address(2), amount(entry.about.name, 100));
        }
        send(&mut right, &mut left, &address(1), amount(entry.about.name, 100));
    }
}

#[test]
fn a_driver_in_a_user_mode_kernel_leaves_its_device_under_traffic_and_comes_back() {
    for entry in entries() {
        restart_interface_and_driver(both(entry.about.name), (GO, COME));
    }
}

/// Puts programs of a host layer at their paths in the guest, with the libraries that the guest lacks.
pub fn take(guest: &mut Guest, layer: &Layer, paths: &[&str]) {
    let mount = format!("mkdir /layer; mount -t hostfs -o {} none /layer", layer.path("").display());
    let lacking = "cd /layer/usr/lib/x86_64-linux-gnu; for f in *.so.*; do [ -e /usr/lib/x86_64-linux-gnu/$f ] || ln -s $PWD/$f \
                   /usr/lib/x86_64-linux-gnu/; done";
    let links: Vec<String> = paths.iter().map(|path| format!("ln -s /layer/{path} /{path}")).collect();
    sh(guest, &format!("{mount} && {lacking}; {}", links.join("; ")));
}

/// A guest on the kernel for `cpus` processors.
pub fn machine(cpus: u32) -> UmlConfig {
    let mut say = |line: &str| eprintln!("{line}");
    let kernel = if cpus > 1 { UmlKernel::lay_smp(&mut say) } else { UmlKernel::lay(&mut say) };
    UmlConfig { cpus, ..UmlConfig::new(&well(kernel)) }
}

/// Runs `count` guests at a port of this adapter. Each ends in the middle of traffic, as `end` says, and must leave nothing behind.
/// `cargo run --release -p nicety-lab --example endurance` does the same with more of them.
fn lives(adapter: &str, cpus: u32, end: End, count: u32) {
    let entry = nicety_adapters::find(adapter).unwrap_or_else(|| panic!("{adapter} is registered"));
    let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    let mut endurance = well(Endurance::start(root, program, entry, machine(cpus)));
    for _ in 0..count {
        well(endurance.live(end));
    }
}

#[test]
fn user_mode_guests_that_power_off_under_traffic_are_gone_and_leave_nothing() {
    for entry in few() {
        lives(entry.about.name, 1, End::PowerOff, if is_full() { 20 } else { 3 });
    }
}

#[test]
fn the_next_user_mode_guest_gets_the_port_of_one_that_was_killed_under_traffic() {
    for entry in few() {
        lives(entry.about.name, 1, End::GuestKilled, 5);
    }
}

#[test]
fn a_user_mode_guest_outlives_a_daemon_that_is_killed_under_traffic() {
    for entry in few() {
        lives(entry.about.name, 1, End::DaemonKilled, 2);
    }
}

#[test]
#[ignore = "only with --full: with one processor in the usual run"]
fn user_mode_guests_with_two_processors_live_and_end_as_those_with_one() {
    for entry in few() {
        for (end, count) in [(End::PowerOff, 1), (End::GuestKilled, 1), (End::DaemonKilled, 1)] {
            lives(entry.about.name, 2, end, count);
        }
    }
}

/// The drivers of these adapters use the best interrupts that they find.
#[test]
fn a_driver_has_the_interrupts_that_it_finds() {
    ["vmxnet3", "e1000e"].into_iter().for_each(check_interrupts);
}

fn check_interrupts(adapter: &str) {
    let hidden: [(&[&str], &str); 3] =
        [(&[], "MSIX"), (&["vfio_user.msix=0"], "MSI"), (&["vfio_user.msix=0", "vfio_user.msi=0"], "INTx")];
    for (words, kind) in hidden {
        let stage = Stage::new(&[adapter]);
        let mut machine = machine(1);
        machine.append.extend(words.iter().map(|&word| word.to_owned()));
        let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine, 1)));
        ping(&mut guest, "", HOST);
        sh(&mut guest, &format!("/usr/bin/ping -n -q -f -c 500 {HOST} >/dev/null"));
        let lines = sh(&mut guest, "grep eth0 /proc/interrupts");
        let chip = match kind {
            "INTx" => "vfio-user INTx".to_owned(),
            other => format!("UM-virtual-PCI-{other}-"),
        };
        assert!(lines.lines().all(|line| line.contains(&chip)), "{adapter}, {kind}: {lines}");
        quiet(&mut guest);
    }
}

/// Registers, NVM, interrupt, loopback, link: QEMU's own e1000 fails the first and the fourth, its e1000e the third as well.
#[test]
fn every_e1000_and_the_e1000e_pass_every_self_test_of_their_drivers() {
    side_by_side(&["e1000", "e1000-82545em", "e1000-82544gc", "e1000e"], |adapter| {
        let stage = Stage::new(&[adapter]);
        let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine(1), 1)));
        let text = well(guest.succeed("ethtool -t eth0 offline", LATER));
        assert!(text.contains("The test result is PASS"), "{adapter}: {text}");
        ping(&mut guest, "", HOST);
    });
}

/// Frames to an unknown address, which the switch floods: 20 pings of the host.
#[test]
fn a_frame_for_another_address_reaches_the_guest_only_while_its_interface_is_promiscuous() {
    const FRAMES: u64 = 20;
    let all: Vec<_> = entries().into_iter().map(|entry| entry.about).collect();
    let alone = |about: &&About| {
        let adapter = about.name;
        let mut stage = Stage::new(&[adapter]);
        let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine(1), 1)));
        ping(&mut guest, "", HOST);
        let stranger = address(77);
        well(stage.namespace.run(&format!("arp -i {TAP} -s {stranger} 52:54:00:aa:bb:cc"), LATER));
        let mut count = |stage: &mut Stage, promiscuous: &str| {
            let received = "cat /sys/class/net/eth0/statistics/rx_packets";
            sh(&mut guest, &format!("ip link set eth0 promisc {promiscuous}"));
            ping(&mut guest, "", HOST);
            let before: u64 = well(sh(&mut guest, received).trim().parse());
            // There is no answer.
            let send = format!("ping -q -c {FRAMES} -i 0.05 -W 1 {stranger} || true");
            let text = well(stage.namespace.run(&send, LATER));
            assert!(text.contains(&format!("{FRAMES} packets transmitted")), "{text}");
            ping(&mut guest, "", HOST);
            let after: u64 = well(sh(&mut guest, received).trim().parse());
            after - before
        };
        let [off, on] = ["off", "on"].map(|promiscuous| count(&mut stage, promiscuous));
        println!("{adapter}: {off} and, promiscuous, {on} of {FRAMES}");
        // A virtual function cannot be: its card would show it the frames of its neighbours.
        let shown = if about.promiscuous { on >= FRAMES } else { on < FRAMES / 2 };
        assert!(off < FRAMES / 2 && shown, "{adapter}: {off}, {on}");
        quiet(&mut guest);
    };
    all.chunks(4).for_each(|some| side_by_side(some, alone));
}

#[test]
fn a_user_mode_guest_has_several_adapters_that_carry_at_the_same_time() {
    let adapters = ["e1000", "vmxnet3", "e1000", "virtio-net"];
    let stage = Stage::new(&adapters);
    let names = (1..=adapters.len()).map(|number| format!("vm{number}"));
    let machine = names.fold(machine(1), |machine, name| stage.served.attach(machine, &name));
    let mut guest = stage.ready(Guest::boot(&stage.root, machine));
    let drivers = sh(&mut guest, "for eth in /sys/class/net/eth*; do basename $(readlink $eth/device/driver); done");
    let mut drivers: Vec<&str> = drivers.lines().collect();
    drivers.sort_unstable();
    assert_eq!(drivers, ["e1000", "e1000", "virtio_net", "vmxnet3"]);
    // Each interface answers only for its own address, since all are on one switch.
    sh(
        &mut guest,
        "for word in arp_ignore=1 arp_announce=2; do echo ${word#*=} >/proc/sys/net/ipv4/conf/all/${word%=*}; done",
    );
    for number in 0..4u8 {
        let up = format!("ip address add {}/24 dev eth{number}; ip link set eth{number} up", address(number + 1));
        sh(&mut guest, &up);
        sh(&mut guest, &format!("until has_carrier eth{number}; do rest; done"));
        ping(&mut guest, &format!("-I eth{number}"), HOST);
    }
    let flood = format!("/usr/bin/ping -q -n -f -c 2000 -w 30 -I eth$n {HOST} >/tmp/$n");
    let text = sh(&mut guest, &format!("for n in 0 1 2 3; do {flood} & done; wait; cat /tmp/[0-3]"));
    // A flood may send a request more than it was told to.
    let counts = text.lines().filter(|line| line.contains(" packets transmitted, ")).map(pinged);
    let whole = counts.filter(|&[sent, answered, _]| sent >= 2000 && answered == sent);
    assert_eq!(whole.count(), 4, "{text}");
    quiet(&mut guest);
}
