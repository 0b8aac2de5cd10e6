//! Frames of Linux that a port's policy refuses, set while the guest runs: the reason, the log, and that allowed frames still pass.

use std::time::Duration;

use nicety_guests::Guest;

use crate::{
    stage::{HOST, Stage, address, change, ping, sh, well},
    user_mode::machine,
};

const DHCPD: &str = "start 10.9.3.200\\nend 10.9.3.210\\ninterface eth0\\nlease_file /tmp/leases\\nmax_leases 9\\n";

/// The link-local address that Linux derives from a port's MAC address (RFC 4291, appendix A).
fn link_local(number: u8) -> String {
    format!("fe80::5054:ff:fe4e:3{number:02x}")
}

/// Runs a command in a guest that `vm1`'s policy must refuse, and checks that it is counted.
fn refuses(stage: &Stage, guest: &mut Guest, reason: &str, command: &str) {
    let count = || stage.report("vm1")["transmit_drops"][reason].as_u64().unwrap_or(0);
    let before = count();
    sh(guest, &format!("({command}) >/dev/null 2>&1 || true"));
    stage.wait_until(reason, || count() > before);
    println!("{reason}: {} frames", count() - before);
}

/// Number of lines that the daemon has logged about `vm1`'s refusals.
fn logged(stage: &Stage, reason: &str) -> usize {
    stage.log_count("vm1", &format!("its policy refuses what the VM sends: {reason}"))
}

/// Like [`refuses`], and checks that it is logged, perhaps only when repeated: at least a second lies between two lines.
fn refuses_and_logs(stage: &Stage, guest: &mut Guest, reason: &str, command: &str) {
    for _ in 0..3 {
        refuses(stage, guest, reason, command);
        if logged(stage, reason) > 0 {
            return;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    panic!("it is not logged: {reason}\n{}", stage.served.log());
}

#[test]
fn what_a_policy_refuses_of_linux_is_counted_and_logged_by_its_reason() {
    let mut stage = Stage::new(&["virtio-net", "e1000e"]);
    let mut guests = [1, 2].map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number))));
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    let [guest, other] = &mut guests;
    change(&mut stage, "port set vm1 log_refusals=true mtu_limit=1000 arp_guard=true dhcp_guard=true");
    refuses_and_logs(&stage, guest, "mtu", &format!("/usr/bin/ping -c 1 -W 1 -s 1000 {HOST}"));
    ping(guest, "-s 972", HOST);
    // A DHCP server in the guest receives another guest's request; its answer must not pass.
    sh(
        guest,
        &format!("printf '{DHCPD}' >/tmp/dhcpd && touch /tmp/leases && (udhcpd -f -a 1 /tmp/dhcpd >/dev/null 2>&1 &)"),
    );
    refuses_and_logs(&stage, other, "dhcp-guard", "udhcpc -i eth0 -f -n -q -t 1 -T 1 -s /bin/true");

    change(&mut stage, "port set vm1 log_refusals=false");
    let lines = logged(&stage, "");

    // ARP and neighbour discovery from an address that is not bound.
    change(&mut stage, &format!("port set vm1 bound_ips={},{}", address(1), link_local(1)));
    sh(guest, "ip addr add 10.9.3.99/24 dev eth0; ip addr add fd00::99/64 dev eth0");
    refuses(
        &stage,
        guest,
        "arp-guard",
        &format!("ip neigh flush dev eth0; /usr/bin/ping -c 1 -W 1 -I 10.9.3.99 {}", address(2)),
    );
    let guarded = stage.report("vm1")["transmit_drops"]["arp-guard"].as_u64();
    sh(guest, "/usr/bin/ping -6 -c 1 -W 3 fd00::98 >/dev/null || true");
    assert!(stage.report("vm1")["transmit_drops"]["arp-guard"].as_u64() > guarded, "neighbour discovery");
    sh(guest, "ip addr del 10.9.3.99/24 dev eth0; ip addr del fd00::99/64 dev eth0; ip neigh flush dev eth0");
    ping(guest, "", HOST);
    ping(guest, "-6 -I eth0", &link_local(2));

    // Broadcasts beyond the limit; one within it passes.
    change(&mut stage, "port set vm1 broadcast_limit=10");
    refuses(&stage, guest, "broadcast-storm", "/usr/bin/ping -b -c 50 -i 0.002 10.9.3.255");
    // Frames from another MAC address are refused, until that address is bound to the port.
    change(&mut stage, "port set vm1 forged_transmits=reject mac_changes=reject broadcast_limit=");
    sh(guest, "ip link set eth0 down; ip link set eth0 address 02:00:00:00:00:07; ip link set eth0 up");
    refuses(&stage, guest, "forged-transmit", &format!("/usr/bin/ping -c 1 -W 1 {HOST}"));
    change(&mut stage, "port set vm1 bound_macs=02:00:00:00:00:07");
    ping(guest, "", HOST);
    assert_eq!(logged(&stage, ""), lines, "it was asked to be silent");
    assert_eq!(stage.report("vm1")["policy"]["bound_macs"], "02:00:00:00:00:07");
}
