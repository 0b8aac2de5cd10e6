//! Multicast groups: Linux joins and leaves them by IGMPv3 and MLDv2, and ports with snooping are sent what was joined there.

use std::path::Path;

use nicety_guests::{Guest, Layer};

use crate::{
    stage::{SOON, Stage, port, sh, well},
    user_mode::{machine, take},
};

/// Of each protocol: what joins and leaves, and its group.
const GROUPS: [(&str, &str, &str); 2] = [("-4", "239.1.2.3", "32"), ("-6", "ff15::1:2:3", "128")];
/// Requests that are sent to a group at once.
const REQUESTS: u64 = 20;

/// One change of the daemon that serves this stage.
fn change(stage: &mut Stage, words: &str) {
    let report = stage.report("vm1");
    let host = Path::new(report["socket"].as_str().unwrap_or_default()).with_file_name("host.toml");
    let program = env!("CARGO_BIN_EXE_nicety");
    well(stage.namespace.run(&format!("{program} {words} --host {}", host.display()), SOON));
}

/// What the daemon says a port is sent.
fn multicasts(stage: &Stage, name: &str) -> Vec<String> {
    let report = stage.report(name);
    report["multicasts"].as_array().into_iter().flatten().filter_map(|said| said.as_str().map(str::to_owned)).collect()
}

fn wants(stage: &Stage, name: &str, group: &str) -> bool {
    multicasts(stage, name).iter().any(|said| said.starts_with(group))
}

/// Sends requests to a group: which of the ports were sent all of them, and which guests have answered.
fn asked(stage: &Stage, from: &mut Guest, family: &str, group: &str, ports: &[&str]) -> (Vec<bool>, usize) {
    // What an adapter does not take, for its guest has not joined, came to it all the same.
    let came = |name: &str| stage.received(name) + stage.dropped(name);
    let before: Vec<u64> = ports.iter().map(|name| came(name)).collect();
    let ping = format!("/usr/bin/ping {family} -n -I eth0 -t 1 -c {REQUESTS} -i 0.02 -W 1 {group} || true");
    let said = sh(from, &format!("{ping} 2>&1"));
    println!("{said}");
    let mut answered: Vec<&str> = said.lines().filter_map(|line| line.split_once(" from ")?.1.split(' ').next()).collect();
    answered.sort_unstable();
    answered.dedup();
    // A few frames of neighbour discovery may be among them, never as many as requests.
    let reached = ports.iter().zip(before).map(|(name, before)| came(name) - before >= REQUESTS).collect();
    (reached, answered.len())
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
    // busybox's `ip` cannot join.
    let layer = well(Layer::lay("iproute2", &["iproute2"], &mut |line| eprintln!("{line}")));
    let mut guests = (1..=4).map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)))).collect::<Vec<_>>();
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    // Who asks is heard by the guests that are there: it asks at once.
    change(&mut stage, "uplink add querier kind=querier");
    let [sender, one, two, three] = &mut guests[..] else { panic!("four guests") };
    for guest in [&mut *one, &mut *two, three] {
        take(guest, &layer, &[]);
        sh(guest, "echo 0 >/proc/sys/net/ipv4/icmp_echo_ignore_broadcasts");
    }
    let ports = ["vm2", "vm3", "vm4"];
    for (family, group, length) in GROUPS {
        let (reached, _) = asked(&stage, sender, family, group, &ports);
        assert_eq!(reached, [true, true, true], "{group}: nobody has joined: all get it");
        let join = format!("/layer/usr/bin/ip addr add {group}/{length} dev eth0 autojoin");
        for guest in [&mut *one, &mut *two] {
            sh(guest, &join);
        }
        for name in ["vm2", "vm3"] {
            stage.wait_until(group, || wants(&stage, name, group));
        }
        let (reached, answered) = asked(&stage, sender, family, group, &ports);
        assert_eq!(reached, [true, true, false], "{group}: vm2 and vm3 have joined");
        println!("{group}: {reached:?}, {answered} answered; vm2 is sent {:?}", multicasts(&stage, "vm2"));
        assert_eq!(answered, 2, "{group}");
        sh(two, &join.replace("add", "del").replace(" autojoin", ""));
        // It is asked for the others, twice, a second apart; vm2 stays.
        stage.wait_until("vm3 has left", || !wants(&stage, "vm3", group));
        let (reached, answered) = asked(&stage, sender, family, group, &ports);
        assert_eq!((reached, answered), (vec![true, false, false], 1), "{group}: vm3 has left");
    }
    // What all hosts listen to needs no report, and who is not snooped gets all.
    let (reached, answered) = asked(&stage, sender, "-4", "224.0.0.1", &ports);
    assert_eq!((reached, answered), (vec![true; 3], 3));
    let (reached, answered) = asked(&stage, sender, "-6", "ff02::1", &ports);
    assert_eq!((reached, answered >= 3), (vec![true; 3], true));
    change(&mut stage, "port set vm4 snooping=false");
    let (reached, _) = asked(&stage, sender, "-4", GROUPS[0].1, &ports);
    assert_eq!(reached, [true, false, true], "vm4 is no more snooped");
    change(&mut stage, "port set vm4 snooping=true");
    let (reached, _) = asked(&stage, sender, "-4", GROUPS[0].1, &ports);
    assert_eq!(reached, [true, false, true], "whatever it had joined nobody had heard: it gets all for 260 s");
    assert_eq!(multicasts(&stage, "vm4"), ["all"]);
}
