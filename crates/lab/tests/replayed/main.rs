//! Real kernels whose boots can be repeated: user-mode Linux with unmodified drivers, in virtual time that we serve (docs/lab.md). They need
//! a kernel of their own kind, so they run with `NICETY_FULL=1` only: `cargo xtask test --full`, or
//! `NICETY_FULL=1 cargo test -p nicety-lab --test replayed`.

use std::{fs, path::PathBuf, sync::Arc};

use nicety_adapters::REGISTRY;
use nicety_guests::{Archive, Folder, Root, uml::UmlKernel};

mod calendar;
mod host;
mod outside;
mod survives;

use host::{Boot, Event, Machine, boot};
use nicety_lab::replay::{End, Role};
use outside::{Outside, Peer, Recorded, Responder};
use survives::World;

const SECOND_NS: u64 = 1_000_000_000;

/// The first lines of a guest's first process. It has no console to read from.
const BEGIN: &str = r#"#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec >/dev/console 2>&1 </dev/null
ip link set lo up
up() { # NUMBER: brings an adapter up, with the address 10.0.NUMBER.2
    ip address add "10.0.$1.2/24" dev "eth$1"
    ip link set "eth$1" up
    until [ "$(cat /sys/class/net/eth$1/carrier)" = 1 ]; do usleep 10000; done
}
"#;
const END: &str = "\necho done\npoweroff -f\n";
/// An echo over TCP both ways, and a web server for the outside.
const TCP: &str = "up 0
head -c 100000 /dev/urandom > /www/file
httpd -h /www
cat /www/file /www/file > /tmp/there
nc 10.0.0.1 7 < /tmp/there > /tmp/back
cmp /tmp/there /tmp/back && echo equal
sleep 3
";

/// The kernel, and whether these tests run at all.
struct Guests {
    kernel: UmlKernel,
    folder: Folder,
}

impl Guests {
    fn new() -> Option<Guests> {
        if std::env::var_os("NICETY_FULL").is_none_or(|value| value != "1") {
            println!("left out: it needs NICETY_FULL=1");
            return None;
        }
        let kernel = UmlKernel::lay_virtual_time(&mut |line| eprintln!("{line}")).unwrap();
        Some(Guests { kernel, folder: Folder::new().unwrap() })
    }

    fn initramfs(&self, commands: &str) -> PathBuf {
        let root = Root::lay(&mut |line| eprintln!("{line}")).unwrap();
        let mut archive = Archive::new();
        ["bin", "dev", "proc", "sys", "tmp", "www"].iter().for_each(|name| archive.folder(name));
        archive.device("dev/console", 5, 1);
        archive.device("dev/null", 1, 3);
        archive.file("bin/busybox", 0o755, &fs::read(root.busybox()).unwrap());
        archive.link("bin/sh", "busybox");
        archive.file("init", 0o755, [BEGIN, commands, END].concat().as_bytes());
        self.folder.write("initramfs", archive.finish()).unwrap()
    }

    fn boot(&self, adapters: &[&str], commands: &str, seed: u64, outside: Box<dyn Outside>) -> Boot {
        let initramfs = self.initramfs(commands);
        let (kernel, until_ns) = (self.kernel.program(), 600 * SECOND_NS);
        boot(&Machine { kernel, initramfs: &initramfs, adapters, seed, until_ns }, outside).unwrap()
    }
}

/// The files in a web server's answers. The lines before a file have its time.
fn files(answers: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let file = |answer: &Vec<u8>| {
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        answer[end.map_or(0, |end| end + 4)..].to_vec()
    };
    answers.iter().map(file).collect()
}

/// Adapters that this kernel has no driver for, or that are no PCI function.
const WITHOUT_DRIVER: [&str; 3] = ["vmxnet", "vmxnet2", "virtio-net"];

/// The first event in which two boots differ, with the events before it.
fn difference(one: &Boot, other: &Boot) -> Option<String> {
    let place = one.events.iter().zip(&other.events).position(|(one, other)| one != other);
    let place = match place {
        None if one.events.len() == other.events.len() => return None,
        place => place.unwrap_or(one.events.len().min(other.events.len())),
    };
    let before = &one.events[place.saturating_sub(6)..place];
    let (one, other) = (one.events.get(place), other.events.get(place));
    Some(format!("event {place}: {one:?}, and {other:?}, after {before:#?}"))
}

fn summary(boot: &Boot) -> String {
    let interrupts = boot.events.iter().filter(|(_, event)| matches!(event, Event::Interrupt(..))).count();
    let end_ns = boot.events.last().map_or(0, |(time, _)| *time);
    format!(
        "{} messages, {interrupts} interrupts, {} frames sent, {} received, {:.3} s",
        boot.messages(),
        boot.sent().len(),
        boot.received().len(),
        end_ns as f64 / 1e9
    )
}

#[test]
fn a_guest_pings_twice_to_the_same_bytes_and_nanoseconds() {
    let Some(guests) = Guests::new() else { return };
    let adapters = ["virtio-net-pci", "e1000e", "vmxnet3"];
    let commands = "up 0; up 1; up 2; for n in 0 1 2; do ping -c 5 -i 0.2 10.0.$n.1; done; cat /proc/interrupts";
    let boot = |seed| guests.boot(&adapters, commands, seed, Box::new(Responder::new(50_000)));
    let (one, other) = (boot(1), boot(1));
    println!("{}", summary(&one));
    assert_eq!(one.console.matches("5 packets received").count(), 3, "{}", one.console);
    assert!(one.console.contains("\ndone\r\n"), "{}", one.console);
    assert_eq!(difference(&one, &other), None);
    assert_eq!(one.console, other.console);
    // Randomness is what else could differ, and it does with another seed.
    assert!(difference(&one, &boot(2)).is_some());
}

/// The guest sends 200 kB to the outside and back, and its web server answers the outside. The next boot has only the frames that came from
/// outside, with their times. A frame that came a microsecond later makes another boot.
#[test]
fn tcp_connections_of_a_guest_are_repeated_from_a_record_of_the_outside() {
    let Some(guests) = Guests::new() else { return };
    let names = REGISTRY.iter().map(|entry| entry.about.name);
    for adapter in names.filter(|name| !WITHOUT_DRIVER.contains(name)) {
        let requests = [1_500_000_000, 1_700_000_000, 2_000_000_000];
        let peer = Peer::new(&requests);
        let answers = Arc::clone(&peer.answers);
        let one = guests.boot(&[adapter], TCP, 1, Box::new(peer));
        println!("{adapter}: {}", summary(&one));
        assert!(one.console.contains("\nequal\r\n"), "{}", one.console);
        let answers = files(&answers.lock().unwrap());
        assert_eq!(answers.len(), requests.len());
        assert!(answers.iter().all(|file| file.len() == 100_000 && *file == answers[0]));
        let repeat = |frames| guests.boot(&[adapter], TCP, 1, Box::new(Recorded(frames)));
        let other = repeat(one.received().into());
        assert_eq!(difference(&one, &other), None);
        assert_eq!(one.console, other.console);
        if adapter != "e1000" {
            continue;
        }
        let mut late = one.received();
        let place = late.len() / 2;
        late[place].0 += 1000;
        assert!(difference(&one, &repeat(late.into())).is_some());
    }
}

/// The guest's web server sends a file to a client outside, and its client gets 200 kB back from outside, while its host dies. The other host
/// has replayed the kernel from the log of frames and times, and goes on with the same connections.
#[test]
fn connections_of_a_guest_outlive_its_host() {
    let Some(guests) = Guests::new() else { return };
    let commands = [TCP, "while :; do sleep 1; done"].concat();
    let initramfs = guests.initramfs(&commands);
    for adapter in ["virtio-net-pci", "e1000e"] {
        let (adapters, kernel) = ([adapter], guests.kernel.program());
        let machine = Machine { kernel, initramfs: &initramfs, adapters: &adapters, seed: 1, until_ns: 0 };
        let requests = [3_000_000_000, 3_200_000_000, 3_400_000_000];
        let run = |dies_at| {
            let client = Peer::new(&requests);
            let answers = Arc::clone(&client.answers);
            let mut world = World::new([&machine; 2], client, requests[0], dies_at);
            world.pass(2_900_000_000);
            let status = world.host(0).unwrap().status();
            assert!(status.is_protected, "{status:?}");
            // What follows a kill at one of these points is TCP's doing, and the rest of the boot.
            world.pass(3_600_000_000);
            let busy = world.points;
            world.pass(10 * SECOND_NS);
            assert_eq!(world.ended, []);
            let answers = files(&answers.lock().unwrap());
            assert_eq!(answers.len(), requests.len(), "{adapter}, killed at point {dies_at}: {}", world.console(1));
            assert!(answers.iter().all(|file| file.len() == 100_000 && *file == answers[0]));
            (world, answers, busy)
        };
        let (whole, answers, points) = run(usize::MAX);
        assert_eq!(whole.console(0), whole.console(1));
        assert_eq!(whole.host(0).unwrap().role(), Role::Owner);
        println!("{adapter}: {points} points, {:?}", whole.host(0).unwrap().status());
        let ([out, back], received) = (whole.logged, whole.received);
        println!("{adapter}: {received} bytes received; the log: {out} bytes there, {back} back");
        // As of the embedded guest: `crates/lab/tests/replay`.
        assert!(received > 200_000 && out * 100 <= received * 102, "{adapter}: {out} of {received}");
        for part in 1..=KILLS {
            let dies_at = points * part / (KILLS + 1);
            let (world, again, _) = run(dies_at);
            assert_eq!(again, answers, "{adapter}, killed at point {dies_at}");
            let survivor = world.host(1).unwrap();
            assert_eq!(survivor.role(), Role::Owner, "{adapter}, killed at point {dies_at}");
            assert!(world.host(0).is_none() && world.is_known(), "{adapter}, killed at point {dies_at}");
            assert!(world.console(1).contains("\nequal\r\n"), "{}", world.console(1));
        }
    }
}

/// Instants at which the host dies, in each adapter's session.
const KILLS: usize = 8;

/// A replica with another randomness differs, and that is noticed at the first call that shows it.
#[test]
fn a_kernel_that_differs_is_noticed_and_the_other_goes_on_alone() {
    let Some(guests) = Guests::new() else { return };
    let initramfs = guests.initramfs(TCP);
    let machine = |seed| Machine {
        kernel: guests.kernel.program(),
        initramfs: &initramfs,
        adapters: &["vmxnet3"],
        seed,
        until_ns: 0,
    };
    let client = Peer::new(&[]);
    let mut world = World::new([&machine(1), &machine(2)], client, 0, usize::MAX);
    world.pass(2 * SECOND_NS);
    assert!(matches!(world.ended[..], [(1, End::Differs(_))]), "{:?}", world.ended);
    let status = world.host(0).unwrap().status();
    assert!(status.role == Role::Owner && !status.is_protected, "{status:?}");
    assert!(world.console(0).contains("\nequal\r\n"), "{}", world.console(0));
}
