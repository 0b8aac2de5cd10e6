//! LLDP: the daemon receives lldpd's announcements from a guest, and tcpdump decodes an uplink's.

use nicety_guests::{Guest, Layer};

use crate::{
    stage::{Stage, change, port, sh, well},
    user_mode::{machine, take},
};

#[test]
fn the_daemon_hears_lldpd_and_tcpdump_reads_what_an_uplink_says() {
    let mut heard = port("e1000e", 1);
    heard.more = "lldp = \"receive\"\n".to_owned();
    let mut stage = Stage::with(vec![heard]);
    let layer = well(Layer::lay("lldp", &["lldpd", "tcpdump"], &mut |line| eprintln!("{line}")));
    let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine(1), 1)));
    take(&mut guest, &layer, &["usr/sbin/lldpd", "usr/sbin/lldpcli"]);
    // lldpd needs a user and a folder of its own.
    let user = "echo _lldpd:x:100:100::/:/bin/sh >>/etc/passwd; echo _lldpd:x:100: >>/etc/group";
    sh(&mut guest, &format!("{user}; mkdir -p /run/lldpd /var; ln -s /run /var/run; hostname rack7"));
    sh(&mut guest, "(/usr/sbin/lldpd -d -I eth0 >/tmp/said 2>&1 &)");
    stage.wait_until("lldpd", || stage.report("vm1")["neighbour"].is_string());
    println!("vm1: {}", stage.report("vm1")["neighbour"]);
    assert_eq!(stage.report("vm1")["neighbour"], "rack7, port 52:54:00:4e:03:01");

    let file = stage.served.socket("vm1").with_file_name("seen.pcapng");
    change(&mut stage, &format!("uplink add seen kind=capture file={} lldp=send", file.display()));
    let folder = file.parent().unwrap_or(&file).display();
    sh(&mut guest, &format!("mkdir /seen; mount -t hostfs -o {folder} none /seen"));
    let read = "/layer/usr/bin/tcpdump -Z root -nv -r /seen/seen.pcapng ether proto 0x88cc 2>&1";
    let text = sh(&mut guest, read);
    println!("{text}");
    for part in ["LLDP, length", "TTL 121s", "Subtype Local (7): seen", "System Description TLV (6)", "Nicety "] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}
