//! Virtual functions under Linux's drivers: what their host lets them do, and what it changes under them.

use nicety_guests::{Guest, Port};
use nicety_trials::scope::is_asked;

use crate::{
    stage::{HOST, LATER, Stage, change, ping, port, sh, well},
    user_mode::machine,
};

const FUNCTIONS: [&str; 2] = ["igbvf", "ixgbevf"];

/// Gives the interface another address, and says whether that was possible.
fn another_address(guest: &mut Guest, last: u8) -> bool {
    let set = format!("ip link set eth0 address 52:54:00:4e:03:{last:02x} 2>/dev/null && echo done || echo refused");
    sh(guest, &set) == "done\n"
}

#[test]
fn linux_hears_from_its_physical_function_that_it_may_not_have_another_address() {
    for adapter in FUNCTIONS.into_iter().filter(|adapter| is_asked(adapter)) {
        let reject = Port { more: "mac_changes = \"reject\"\n".into(), ..port(adapter, 2) };
        let stage = Stage::with(vec![port(adapter, 1), reject]);
        let [mut free, mut bound] =
            [1, 2].map(|number| stage.ready(Guest::boot(&stage.root, stage.at_port(machine(1), number))));
        for guest in [&mut free, &mut bound] {
            ping(guest, "", HOST);
        }
        assert!(another_address(&mut free, 0x71), "{adapter}: its port says nothing");
        assert!(!another_address(&mut bound, 0x72), "{adapter}: its port rejects that");
        for guest in [&mut free, &mut bound] {
            ping(guest, "", HOST);
        }
    }
}

#[test]
fn linux_resets_a_function_whose_policy_changes_and_carries_on() {
    for adapter in FUNCTIONS.into_iter().filter(|adapter| is_asked(adapter)) {
        let mut stage = Stage::new(&[adapter]);
        let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine(1), 1)));
        ping(&mut guest, "", HOST);
        change(&mut stage, "port set vm1 mac_changes=reject");
        // The driver's watchdog finds the message, and resets: up to ten seconds (igbvf_reset_task, ixgbevf_reset_subtask).
        well(guest.succeed(&format!("until /usr/bin/ping -c 1 -W 1 {HOST} >/dev/null; do rest; done"), LATER));
        assert!(!another_address(&mut guest, 0x73), "{adapter}: from now on");
        ping(&mut guest, "", HOST);
    }
}
