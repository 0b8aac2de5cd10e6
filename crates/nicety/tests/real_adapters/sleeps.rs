//! A guest suspends to RAM, and QEMU wakes it: each driver has shut its adapter down, and starts it again in its current state.

use std::{panic::resume_unwind, path::Path, thread};

use nicety_guests::{Accel, GuestConfig, Image, Kernel};
use nicety_trials::scope::few;
use serde_json::json;
use tempfile::TempDir;

use crate::{
    every::{Every, address},
    monitor::Monitor,
    stage::{FLOOD, LATER, Stage, quiet, sh, well},
};

/// Frames that arrive while the guest sleeps.
const FRAMES_WHILE_ASLEEP: u64 = 50;

/// A guest that a monitor at `qmp` can wake.
fn sleeper(stage: &Stage, qmp: &Path) -> GuestConfig {
    let config = GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(Kernel::V6_12) };
    let mut config = Monitor::at(config, qmp);
    // The packed kernel, as a boot loader gets it: when the guest wakes, QEMU writes an unpacked kernel to its place again, over
    // the running kernel's data.
    let image = well(Image::of(&stage.root, Kernel::V6_12));
    config.devices.extend(["-kernel".to_owned(), image.compressed().display().to_string()]);
    config
}

/// The guest suspends, frames arrive for it, it wakes.
fn sleeps(every: &mut Every, qmp: &Path) {
    let peer = format!("vm{}", every.adapters.len() + 1);
    for (_, number) in &every.adapters {
        sh(&mut every.peer, &format!("({FLOOD} -n -q -i 0.05 {} >/tmp/pinged{number} 2>&1 &)", address(*number, 1)));
    }
    let mut monitor = Monitor::of(qmp);
    let counted = thread::scope(|scope| {
        // Input during the wake-up is lost: the serial port is not set up yet.
        let guest = &mut every.guest;
        let slept =
            scope.spawn(|| sh(guest, "echo mem >/sys/power/state && cd /sys/power/suspend_stats && cat success fail"));
        monitor.wait("query-status", "suspended", LATER);
        every.stage.wait_more("requests", FRAMES_WHILE_ASLEEP, || every.stage.sent(&peer));
        monitor.run("system_wakeup", json!({}));
        slept.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    assert_eq!(counted, "1\n0\n");
    sh(&mut every.peer, "killall -INT ping; while pidof ping; do rest; done");
}

/// Reads of registers that the chip lacks, when its driver suspends: e1000e's driver reads LPIC of other chips
/// (`e1000e_flush_lpic`).
fn holes_read(adapter: &str) -> u64 {
    u64::from(adapter == "e1000e")
}

#[test]
fn a_guest_suspended_to_ram_and_woken_goes_on_over_every_adapter() {
    let folder = well(TempDir::new());
    let qmp = folder.path().join("qmp");
    let mut every = Every::new(&few(), |stage| sleeper(stage, &qmp));
    every.set_up();
    every.carries();
    sleeps(&mut every, &qmp);
    every.carries();
    quiet(&mut every.guest);
    every.are_up(holes_read);
}
