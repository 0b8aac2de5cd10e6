//! VMs that connect, disconnect, reconnect, or cannot be served; and a daemon that dies under them.

use std::path::Path;
use std::process::Command;

use nicety_guests::{Guest, GuestConfig, Kernel, Memory, Start};

use crate::stage::{FLOOD, HOST, LATER, SOON, Stage, address, ping, sh, well};

/// Arguments that `nicety attach` prints for a port, split as a shell does.
fn attach_words(stage: &Stage, name: &str) -> Vec<String> {
    let report = stage.report(name);
    let host = Path::new(report["socket"].as_str().unwrap_or_default()).with_file_name("host.toml");
    let mut attach = Command::new(env!("CARGO_BIN_EXE_nicety"));
    let output = well(attach.args(["attach", name, "--host"]).arg(host).output());
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut shell = Command::new("sh");
    let split = well(shell.args(["-c", &format!("printf '%s\\n' {words}")]).output());
    String::from_utf8_lossy(&split.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn the_words_that_attach_prints_start_a_vm_at_the_port_of_each_adapter() {
    let stage = Stage::new(&["e1000", "vmxnet3", "virtio-net"]);
    for number in [1, 2, 3] {
        let mut config = stage.config(Kernel::V6_12, number);
        // Only these arguments define memory and adapter. They come last, and name the memory that counts.
        config.devices = attach_words(&stage, &format!("vm{number}"));
        config.memory_mib = 512;
        config.start = Start::Direct;
        let mut guest = stage.ready(Guest::boot(&stage.root, config));
        ping(&mut guest, "", HOST);
        assert_eq!(sh(&mut guest, "cat /sys/class/net/eth0/address"), format!("52:54:00:4e:03:0{number}\n"));
    }
}

#[test]
fn a_port_takes_the_next_vm_when_one_has_gone() {
    for adapter in ["e1000", "virtio-net"] {
        let stage = Stage::new(&[adapter]);
        for kernel in [Kernel::V6_12, Kernel::V6_12, Kernel::V6_1] {
            let [mut guest] = stage.boot(kernel, [1]);
            ping(&mut guest, "", HOST);
            // The VM is killed in the middle of traffic.
            sh(&mut guest, &format!("({FLOOD} -w 20 {HOST} >/dev/null 2>&1 &)"));
            stage.wait_more("answers", 100, || stage.received("vm1"));
            drop(guest);
            stage.wait_log("disconnected");
        }
    }
}

#[test]
fn a_guest_that_reboots_finds_its_adapter_as_new() {
    let stage = Stage::new(&["e1000", "vmxnet3"]);
    for number in [1, 2] {
        let [mut guest] = stage.boot(Kernel::V6_12, [number]);
        ping(&mut guest, "", HOST);
        // A panic in the middle of traffic: QEMU ends (-no-reboot), and the port is free again.
        sh(&mut guest, &format!("({FLOOD} {HOST} >/dev/null 2>&1 &)"));
        stage.wait_more("answers", 100, || stage.received(&format!("vm{number}")));
        assert!(guest.run("echo c >/proc/sysrq-trigger", SOON).is_err(), "the guest's kernel is not gone");
        drop(guest);
        let [mut guest] = stage.boot(Kernel::V6_12, [number]);
        ping(&mut guest, "", HOST);
    }
}

/// A second VMM at an occupied port is refused, and the first one notices nothing.
#[test]
fn a_second_vm_at_a_port_is_refused_and_the_first_one_goes_on() {
    let stage = Stage::new(&["e1000"]);
    let [mut guest] = stage.boot(Kernel::V6_12, [1]);
    let second = Guest::boot(&stage.root, stage.config(Kernel::V6_12, 1));
    let error = second.expect_err("two VMs have the same adapter").to_string();
    assert!(error.contains("version reply: Device or resource busy"), "{error}");
    stage.wait_log("refused");
    ping(&mut guest, "", HOST);
}

/// Memory without sharing: QEMU's default, and a file with a private mapping. With vfio-user the first arrives without a file, the
/// second with a file that never has data; with vhost-user QEMU passes neither, and gives the rings up.
#[test]
fn a_vm_that_does_not_share_its_memory_is_told_how_and_harms_nobody() {
    let mut stage = Stage::new(&["e1000", "vmxnet3", "virtio-net", "e1000"]);
    let [mut neighbour] = stage.boot(Kernel::V6_12, [4]);
    for (number, name) in [(1, "vm1"), (2, "vm2"), (3, "vm3")] {
        for (times, memory) in [(1, Memory::Anonymous), (2, Memory::Private)] {
            println!("{name}, {memory:?}");
            let config = GuestConfig { memory, addresses: Vec::new(), ..stage.config(Kernel::V6_12, number) };
            let mut guest = well(Guest::boot(&stage.root, config));
            // The VM has an adapter all the same; the driver's attempt to use it must not stop guest or neighbour.
            sh(&mut guest, "ip link set eth0 up || true; ping -c 1 -W 1 -w 1 10.9.3.254 || true; echo still here");
            // The daemon logs this once for each VM: a person reads the log.
            stage.wait_until("word of share=on", || stage.log_count(name, "share=on") >= times);
            let report = stage.report(name);
            assert_eq!(report["condition"], "broken", "{report}");
            assert!(report["sentence"].as_str().is_some_and(|text| text.contains("share=on")), "{report}");
            ping(&mut neighbour, "", HOST);
        }
    }
    let counts = ["vm1", "vm2", "vm3", "vm4"].map(|name| stage.log_count(name, "share=on"));
    assert_eq!(counts, [2, 2, 2, 0], "{}", stage.served.log());
    // With shared memory the same VM is served.
    for number in [1, 3] {
        let [mut guest] = stage.boot(Kernel::V6_12, [number]);
        ping(&mut guest, "", HOST);
    }
    // And once more without, whatever its port has carried meanwhile.
    let config = GuestConfig { memory: Memory::Private, addresses: Vec::new(), ..stage.config(Kernel::V6_12, 1) };
    let mut guest = well(Guest::boot(&stage.root, config));
    sh(&mut guest, "ip link set eth0 up || true; ping -c 1 -W 1 -w 1 10.9.3.254 || true; echo still here");
    stage.wait_until("vm1 is broken", || stage.report("vm1")["condition"] == "broken");
    well(stage.served.kill(&mut stage.namespace));
}

/// `nicety ports` shows the state of the current VM's driver, not the port's past traffic.
#[test]
fn a_port_is_up_while_its_driver_is() {
    let stage = Stage::new(&["e1000", "vmxnet3", "virtio-net"]);
    let (down, up) = ("ip link set eth0 down", "ip link set eth0 up");
    let driver = "/sys/bus/virtio/drivers/virtio_net";
    let unbind = format!(
        "basename $(dirname $(dirname $(readlink -f /sys/class/net/eth0))) >/tmp/v; cat /tmp/v >{driver}/unbind"
    );
    let bind = format!("cat /tmp/v >{driver}/bind");
    for (number, name, stop, start) in [(1, "vm1", down, up), (2, "vm2", down, up), (3, "vm3", &*unbind, &*bind)] {
        let [mut guest] = stage.boot(Kernel::V6_12, [number]);
        ping(&mut guest, "", HOST);
        for (act, condition) in [("true", "up"), (stop, "attached"), (start, "up")] {
            sh(&mut guest, act);
            stage.wait_until(act, || stage.report(name)["condition"] == condition);
        }
        drop(guest);
        stage.wait_until("nobody is there", || stage.report(name)["condition"] == "waiting");
        let config = GuestConfig { addresses: Vec::new(), ..stage.config(Kernel::V6_12, number) };
        let mut guest = well(Guest::boot(&stage.root, config));
        sh(&mut guest, "ip link show eth0");
        // Linux's virtio-net starts its rings when it finds the device, the other drivers when the interface comes up.
        let condition = if number == 3 { "up" } else { "attached" };
        stage.wait_until("a port that was used before", || stage.report(name)["condition"] == condition);
    }
}

/// Sends a signal to a guest's process.
fn signal(guest: &Guest, name: &str) {
    let done = well(Command::new("kill").args([name, &guest.process().to_string()]).status());
    assert!(done.success(), "kill {name}: {done}");
}

/// QEMU does not reconnect to a vfio-user server: the guest continues without its adapter. vhost-user reconnects.
#[test]
fn guests_outlive_a_killed_daemon_and_virtio_net_comes_back() {
    let mut stage = Stage::new(&["virtio-net", "e1000"]);
    let [mut rings, mut function] = stage.boot(Kernel::V6_12, [1, 2]);
    ping(&mut rings, "", &address(2));
    sh(&mut function, "dmesg -n 1; ping -c 1 -w 5 10.9.3.1");
    // Stop this QEMU before the kill: it sends nothing more, and the daemon has read its messages by the time that the other guest
    // has pinged. If a killed daemon leaves a message unread, the kernel resets the connection, and QEMU 11.1 does not survive that
    // (docs/operating.md).
    signal(&function, "-STOP");
    ping(&mut rings, "", HOST);
    well(stage.served.kill_and_restart(&mut stage.namespace));
    signal(&function, "-CONT");
    let again = format!("until /usr/bin/ping -n -q -c 1 -W 1 {HOST} >/dev/null; do usleep 100000; done");
    stage.ready(rings.succeed(&again, LATER));
    ping(&mut rings, "", HOST);
    // The guest with the vfio-user function still runs, but its adapter passes no frames.
    let text = well(function.run(&format!("ping -c 2 -W 1 -w 3 {HOST}; echo alive"), LATER)).text;
    assert!(text.ends_with("alive\n") && text.contains("100% packet loss"), "{text}");
    drop(function);
    // A new QEMU at the same port is served.
    let [mut function] = stage.boot(Kernel::V6_12, [2]);
    ping(&mut function, "", HOST);
}
