//! Hardware time stamps and the chips' clocks, with linuxptp: IEEE 1588 between two guests.

use std::time::Duration;

use nicety_guests::{Folder, Guest, GuestConfig, Kernel, Layer};

use crate::stage::{LATER, SOON, Stage, quiet, sh, well};

/// linuxptp and its libraries, which no guest's image has.
const PACKAGES: &[&str] = &["libc6", "linuxptp"];
const FILES: [&str; 3] = ["usr/sbin/ptp4l", "usr/sbin/phc_ctl", "usr/sbin/hwstamp_ctl"];
/// Time limit until a slave has followed its master for a while, on a busy host.
const LOCKED: Duration = Duration::from_secs(150);
/// Number of offsets to check after the lock, and their limit in nanoseconds: a software time stamp of the guest is milliseconds
/// off.
const OFFSETS: usize = 8;
const NEAR: u64 = 1_000_000;

/// The clock of `phc_ctl`, in nanoseconds.
fn clock(guest: &mut Guest) -> u64 {
    let text = sh(guest, "phc_ctl eth0 get");
    let shown = text.split("clock time is ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let (seconds, fraction) = shown.and_then(|shown| shown.split_once('.')).unwrap_or_else(|| panic!("{text}"));
    let [seconds, fraction] =
        [seconds, fraction].map(|digits| digits.parse::<u64>().unwrap_or_else(|_| panic!("{text}")));
    seconds * 1_000_000_000 + fraction
}

/// Checks that the driver's clock can be set, moved and read, and advances like the host's.
fn has_a_clock(guest: &mut Guest, adapter: &str) {
    let shown = sh(guest, "ethtool -T eth0");
    for mode in ["hardware-transmit", "hardware-receive", "hardware-raw-clock"] {
        assert!(shown.contains(mode), "{adapter}: no {mode}: {shown}");
    }
    sh(guest, "phc_ctl eth0 set 1000000");
    let first = clock(guest);
    assert!(
        (1_000_000..1_000_030).contains(&(first / 1_000_000_000)),
        "{adapter} was set to a million seconds: {first}"
    );
    sh(guest, "phc_ctl eth0 adj 500");
    let moved = clock(guest) - first;
    assert!((500..530).contains(&(moved / 1_000_000_000)), "{adapter} was moved by 500 s: {moved}");
    let text = sh(guest, "hwstamp_ctl -i eth0 -t 1 -r 12");
    assert!(text.contains("tx_type 1"), "{adapter}: {text}");
    sh(guest, "hwstamp_ctl -i eth0 -t 0 -r 0 >/dev/null");
    println!("{adapter}: {}", shown.split_whitespace().collect::<Vec<_>>().join(" "));
}

/// Offsets that the slave has measured since it was locked (state s2), in nanoseconds.
fn follow(master: &mut Guest, slave: &mut Guest, transport: &str) -> Vec<i64> {
    // The first guest is the master. The long timeout is for a busy host, where time stamps arrive late.
    let run = |options: &str| {
        let options = format!(
            "-i eth0 -m -H {transport} --tx_timestamp_timeout 5000 --logSyncInterval -2 --summary_interval -2 {options}"
        );
        format!("rm -f /tmp/ptp; mkdir -p /var/run; (sh -c 'echo $$ >/tmp/pid; exec ptp4l {options}' >/tmp/ptp 2>&1 &)")
    };
    sh(master, &format!("phc_ctl eth0 set 2000000; {}", run("--priority1 1")));
    sh(slave, &format!("phc_ctl eth0 set 1000000; {}", run("-s")));
    let locked = format!("until [ $(grep -c ' s2 ' /tmp/ptp) -gt {OFFSETS} ]; do usleep 100000; done; cat /tmp/ptp");
    let text = slave.succeed(&locked, LOCKED).unwrap_or_else(|error| {
        let logs = [&mut *master, &mut *slave].map(|guest| sh(guest, "cat /tmp/ptp; ethtool -S eth0 | grep -i stamp"));
        panic!("{error}\nthe master said\n{}\nthe slave said\n{}", logs[0], logs[1])
    });
    for guest in [master, slave] {
        well(guest.succeed("kill $(cat /tmp/pid); ! grep 'timed out\\|FAULTY' /tmp/ptp", SOON));
    }
    let offset = |line: &str| line.split("offset").nth(1)?.split_whitespace().next()?.parse().ok();
    text.lines().filter(|line| line.contains(" s2 ")).filter_map(offset).collect()
}

#[test]
fn ptp4l_follows_with_hardware_time_stamps_over_an_e1000e_and_an_igb() {
    let layer = well(Layer::lay("linuxptp", PACKAGES, &mut |line| eprintln!("{line}")));
    let folder = well(Folder::new());
    let archive = well(folder.write("linuxptp.cpio", well(layer.archive(&FILES))));
    let stage = Stage::new(&["e1000e", "igb"]);
    let [mut e1000e, mut igb] = [1, 2].map(|number| {
        let mut config = GuestConfig { archive: Some(archive.clone()), ..stage.config(Kernel::V6_12, number) };
        // On a busy host a kernel's estimate of its TSC rate may be ten times too low, and so would be its timeouts.
        config.append.push("clocksource=hpet".into());
        well(Guest::start(&stage.root, config))
    });
    stage.ready(e1000e.wait_ready());
    stage.ready(igb.wait_ready());
    assert_eq!(sh(&mut igb, "cat /sys/devices/system/clocksource/clocksource0/current_clocksource"), "hpet\n");
    has_a_clock(&mut e1000e, "e1000e");
    has_a_clock(&mut igb, "igb");
    // Over Ethernet, and over UDP: the chips detect PTP messages differently.
    for (name, transport) in [("e1000e", "-2"), ("igb", "-4")] {
        let (master, slave) = if name == "igb" { (&mut e1000e, &mut igb) } else { (&mut igb, &mut e1000e) };
        let offsets = follow(master, slave, transport);
        println!("{name} follows, ptp4l {transport}: offsets in ns while locked {offsets:?}");
        assert!(offsets.len() > OFFSETS && offsets.iter().all(|offset| offset.unsigned_abs() < NEAR), "{offsets:?}");
        let apart = clock(master).abs_diff(clock(slave));
        assert!(
            apart < LATER.as_nanos() as u64,
            "{name}: their clocks were a million seconds apart, and are {apart} ns"
        );
        quiet(slave);
    }
    quiet(&mut igb);
}
