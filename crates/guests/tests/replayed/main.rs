//! Real kernels whose boots can be repeated: user-mode Linux with unmodified drivers, in virtual time that we serve. Not among `cargo test`'s
//! targets, because they build a kernel: `cargo xtask test --full` and `cargo test -p nicety-guests --test replayed` run them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use nicety_guests::{Archive, Folder, Root};

mod calendar;
mod host;
mod outside;

use host::{Boot, Event, Machine, boot};
use outside::{Outside, Peer, Recorded, Responder};

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

fn initramfs(folder: &Folder, commands: &str) -> PathBuf {
    let root = Root::lay(&mut |line| eprintln!("{line}")).unwrap();
    let mut archive = Archive::new();
    ["bin", "dev", "proc", "sys", "tmp", "www"].iter().for_each(|name| archive.folder(name));
    archive.device("dev/console", 5, 1);
    archive.device("dev/null", 1, 3);
    archive.file("bin/busybox", 0o755, &fs::read(root.busybox()).unwrap());
    archive.link("bin/sh", "busybox");
    archive.file("init", 0o755, [BEGIN, commands, END].concat().as_bytes());
    folder.write("initramfs", archive.finish()).unwrap()
}

fn kernel() -> PathBuf {
    Path::new("/tmp/tt/out/linux").to_owned()
}

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

fn run(adapters: &[&str], commands: &str, outside: Box<dyn Outside>) -> Boot {
    let folder = Folder::new().unwrap();
    let initramfs = initramfs(&folder, commands);
    let machine =
        Machine { kernel: &kernel(), initramfs: &initramfs, adapters, words: &[], seed: 1, until_ns: 600 * SECOND_NS };
    boot(&machine, outside).unwrap()
}

#[test]
fn a_guest_pings_twice_to_the_same_bytes_and_nanoseconds() {
    let once = || {
        run(
            &["virtio-net-pci"],
            "up 0; ping -c 5 -i 0.2 10.0.0.1; cat /proc/interrupts",
            Box::new(Responder::new(50_000)),
        )
    };
    let (one, other) = (once(), once());
    println!("{}", summary(&one));
    assert!(one.console.contains("5 packets received") && one.console.contains("\ndone\r\n"), "{}", one.console);
    assert_eq!(difference(&one, &other), None);
    assert_eq!(one.console, other.console);
}

#[test]
fn a_guest_sends_the_same_frames_to_a_record_of_the_outside() {
    let commands = "up 0; ping -c 5 -i 0.2 10.0.0.1";
    let one = run(&["virtio-net-pci"], commands, Box::new(Responder::new(50_000)));
    let other = run(&["virtio-net-pci"], commands, Box::new(Recorded(one.received().into())));
    assert_eq!(difference(&one, &other), None);
}

/// The guest sends 200 kB through the outside and back, and its web server answers the outside, over each of these adapters.
#[test]
fn tcp_connections_of_a_guest_are_repeated_from_a_record_of_the_outside() {
    let names = std::env::var("TRY").unwrap_or("virtio-net-pci e1000e vmxnet3".into());
    for adapter in names.split(' ') {
        let requests = [1_500_000_000, 1_700_000_000, 2_000_000_000];
        let peer = Peer::new(&requests);
        let answers = Arc::clone(&peer.answers);
        let one = run(&[adapter], TCP, Box::new(peer));
        println!("{adapter}: {}\n", summary(&one));
        assert!(one.console.contains("\nequal\r\n"), "{}", one.console);
        let answers = answers.lock().unwrap();
        assert_eq!(answers.len(), requests.len());
        assert!(
            answers.iter().all(|answer| answer.len() > 100_000),
            "{:?}",
            answers.iter().map(Vec::len).collect::<Vec<_>>()
        );
        let other = run(&[adapter], TCP, Box::new(Recorded(one.received().into())));
        assert_eq!(difference(&one, &other), None);
        assert_eq!(one.console, other.console);
    }
}

const TCP: &str = "up 0
head -c 100000 /dev/urandom > /www/file
httpd -h /www
cat /www/file /www/file > /tmp/there
nc 10.0.0.1 7 < /tmp/there > /tmp/back
cmp /tmp/there /tmp/back && echo equal
sleep 3
";
