//! Multicast groups: Linux joins and leaves them by IGMPv3 and MLDv2, and ports with snooping receive only the groups that were
//! joined there.

use nicety_guests::{Guest, Layer};

use crate::{
    stage::{Stage, change, port, sh, well},
    user_mode::{machine, take},
};

/// For each protocol: the option that selects it, its group, and the prefix length.
const GROUPS: [(&str, &str, &str); 2] = [("-4", "239.1.2.3", "32"), ("-6", "ff15::1:2:3", "128")];
/// Requests that are sent to a group at once.
const REQUESTS: u64 = 20;

/// The groups that a port receives, according to the daemon.
fn multicasts(stage: &Stage, name: &str) -> Vec<String> {
    let report = stage.report(name);
    report["multicasts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.as_str().map(str::to_owned))
        .collect()
}

fn wants(stage: &Stage, name: &str, group: &str) -> bool {
    multicasts(stage, name).iter().any(|entry| entry.starts_with(group))
}

/// Requests received by a guest's kernel.
fn heard(guest: &mut Guest, family: &str) -> u64 {
    let counter = match family {
        "-4" => "grep '^Icmp: [0-9]' /proc/net/snmp | cut -d ' ' -f 10",
        _ => "grep Icmp6InEchos /proc/net/snmp6 | tr -dc '0-9\n' | cut -c 2-",
    };
    well(sh(guest, counter).trim().parse())
}

/// Sends requests to a group. Returns for each other guest whether its port was sent them, and whether its kernel received them.
fn asked(stage: &Stage, guests: &mut [Guest], family: &str, group: &str) -> (Vec<bool>, Vec<bool>) {
    let [sender, others @ ..] = guests else { panic!("no guests") };
    // Includes frames that the adapter filtered because its guest has not joined: the port was sent them.
    let came = |number: usize| stage.received(&format!("vm{number}")) + stage.dropped(&format!("vm{number}"));
    let before: Vec<(u64, u64)> =
        (2..).zip(&mut *others).map(|(number, guest)| (came(number), heard(guest, family))).collect();
    sh(
        sender,
        &format!("/usr/bin/ping {family} -n -q -I eth0 -t 1 -c {REQUESTS} -i 0.02 -W 1 {group} >/dev/null || true"),
    );
    // A few frames of neighbour discovery may be among them, always fewer than the requests.
    let after = (2..).zip(others).zip(before);
    after
        .map(|((number, guest), (sent, had))| (came(number) - sent >= REQUESTS, heard(guest, family) - had == REQUESTS))
        .unzip()
}

#[test]
fn a_group_reaches_the_guests_that_have_joined_it_until_they_leave() {
    let snooped = |(number, adapter): (u8, &str)| {
        let mut port = port(adapter, number);
        port.more = "snooping = true\n".to_owned();
        port
    };
    let adapters = ["virtio-net", "e1000e", "vmxnet3", "virtio-net"];
    let mut stage = Stage::with((1..).zip(adapters).map(snooped).collect());
    // busybox's `ip` cannot join groups.
    let layer = well(Layer::lay("iproute2", &["iproute2"], &mut |line| eprintln!("{line}")));
    let mut guests =
        (1..=4).map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)))).collect::<Vec<_>>();
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    // The querier asks at once, so the guests that are running hear it.
    change(&mut stage, "uplink add querier kind=querier");
    for guest in &mut guests {
        take(guest, &layer, &[]);
    }
    let all = || vec![true; 3];
    for (family, group, length) in GROUPS {
        let (sent, had) = asked(&stage, &mut guests, family, group);
        assert_eq!((sent, had), (all(), vec![false; 3]), "{group}: nobody has joined, and all are sent it");
        for (name, guest) in ["vm2", "vm3"].iter().zip(&mut guests[1..]) {
            sh(guest, &format!("/layer/usr/bin/ip addr add {group}/{length} dev eth0 autojoin"));
            stage.wait_until(group, || wants(&stage, name, group));
        }
        let joined = vec![true, true, false];
        assert_eq!(
            asked(&stage, &mut guests, family, group),
            (joined.clone(), joined),
            "{group}: vm2 and vm3 have joined"
        );
        println!("{group}: vm2 is sent {:?}, vm4 {:?}", multicasts(&stage, "vm2"), multicasts(&stage, "vm4"));
        sh(&mut guests[2], &format!("/layer/usr/bin/ip addr del {group}/{length} dev eth0"));
        // The querier asks twice for other members, a second apart; vm2 answers.
        stage.wait_until("vm3 has left", || !wants(&stage, "vm3", group));
        let stays = vec![true, false, false];
        assert_eq!(asked(&stage, &mut guests, family, group), (stays.clone(), stays), "{group}: vm3 has left");
    }
    for (family, group) in [("-4", "224.0.0.1"), ("-6", "ff02::1")] {
        assert_eq!(asked(&stage, &mut guests, family, group), (all(), all()), "{group} is for all hosts");
    }
    let (family, group, _) = GROUPS[0];
    let but_vm3 = vec![true, false, true];
    change(&mut stage, "port set vm4 snooping=false");
    assert_eq!(asked(&stage, &mut guests, family, group).0, but_vm3, "vm4 is not snooped");
    change(&mut stage, "port set vm4 snooping=true");
    assert_eq!(asked(&stage, &mut guests, family, group).0, but_vm3, "nobody has heard what vm4 had joined");
    assert_eq!(multicasts(&stage, "vm4"), ["all"]);
}
