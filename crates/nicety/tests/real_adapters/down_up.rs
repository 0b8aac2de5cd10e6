//! An interface of a guest with two processors that repeatedly goes down and up.

use nicety_guests::{
    Guest,
    uml::{UmlConfig, UmlKernel},
};
use nicety_trials::scope::{in_linux as entries, is_asked, is_full};

use crate::stage::{HOST, MAPPED, Stage, ping, port, quiet, sh, well};

/// Number of times that an interface goes down, in a normal and in a full run.
const ROUNDS: [u32; 2] = [3, 20];
/// Pings after each. One by one: with several, `ping` waits for the last reply no longer than twice the longest round trip so far.
const PINGS: usize = 5;
/// Takes the interface down and up, and waits for carrier. Before that the kernel itself may drop frames: with the neighbours'
/// addresses (`neigh_carrier_down`) it drops the frames that wait for them, up to a second after the interface went down; and
/// `operstate` still says `up` meanwhile. A driver that always reports carrier (pcnet32, of a 79C970A) has no known `operstate`.
const AGAIN: &str = "cd /sys/class/net/eth0; ip link set eth0 down; ip link set eth0 up; \
                     until has_carrier eth0 && read state <operstate && [ $state != down ]; do rest; done";

/// If a command hangs, the guest's console has the kernel stacks of what waits in the kernel.
const WATCHED: &str = "{ sleep 60; for p in /proc/[0-9]*; do grep -q '^State:.D' $p/status && cat $p/comm $p/stack; done; } \
                       </dev/null >/dev/kmsg 2>&1 & watch=$!";
/// Nothing is sent while the interface goes down, as IPv6 does when it leaves its groups.
///
/// igbvf's watchdog runs every two seconds. If it finds a frame in the ring while the interface goes down, it has the driver reset itself
/// (igbvf_watchdog_task), without a lock against igbvf_close. Both then disable the same NAPI instance. In Linux 7.3 (net/core/dev.c) the
/// second napi_disable holds the lock that the first one's napi_enable takes: both wait for ever.
const SILENT: &str = "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6";

#[test]
fn an_interface_of_a_guest_with_two_processors_goes_down_and_up_again_and_again_and_loses_no_ping() {
    let kernel = well(UmlKernel::lay_smp(&mut |line| eprintln!("{line}")));
    let usual = entries().into_iter().map(|entry| (entry.about.name, ""));
    let mapped = ["e1000e", "igb", "igbvf", "ixgbevf"].map(|adapter| (adapter, MAPPED));
    for (adapter, more) in usual.chain(mapped.into_iter().filter(|(adapter, _)| is_asked(adapter))) {
        println!("{adapter} {more}");
        let mut port = port(adapter, 1);
        port.more = more.to_owned();
        let stage = Stage::with(vec![port]);
        let machine = UmlConfig { cpus: 2, ..UmlConfig::new(&kernel) };
        let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine, 1)));
        assert_eq!(sh(&mut guest, "nproc"), "2\n");
        ping(&mut guest, "", HOST);
        if adapter == "igbvf" {
            sh(&mut guest, SILENT);
        }
        let pings = format!("for n in $(seq {PINGS}); do /usr/bin/ping -n -q -c 1 -W 5 {HOST}; done");
        for round in 0..ROUNDS[usize::from(is_full())] {
            let text = sh(&mut guest, &format!("{WATCHED}; {AGAIN}; {pings}; kill $watch"));
            let received = text.matches(" 0% packet loss").count();
            assert_eq!(received, PINGS, "{adapter}, round {round}: {text}\n{}", stage.report("vm1"));
        }
        quiet(&mut guest);
    }
}
