//! Inward I/O control under Linux's TCP on both sides: senders in the host's network, receivers in guests.

use nicety_guests::Guest;

use crate::{
    stage::{LATER, Stage, address, port, quiet, sh, well},
    user_mode::machine,
};

/// TCP ports of the greedy guest, a stream each.
const STREAMS: u16 = 4;
/// Blocks of 64 KiB in a stream of the greedy guest, and in that of the guest with a reservation.
const GREEDY: u32 = 96;
const RESERVED: u32 = 48;

/// Packets that a guest's kernel received with the mark of congestion (`IpExt: InCEPkts` of /proc/net/netstat).
fn marks(guest: &mut Guest) -> u64 {
    let column =
        "awk '/^IpExt:/ { if (!n) { for (i = 1; i <= NF; i++) if ($i == \"InCEPkts\") n = i } else print $n }'";
    well(sh(guest, &format!("{column} /proc/net/netstat")).trim().parse())
}

/// Packets of all classes that the daemon marked, and dropped.
fn told(stage: &Stage) -> (u64, u64) {
    let report = stage.report("n0");
    let classes = report["inward_classes"].as_array().cloned().unwrap_or_default();
    assert!(!classes.is_empty(), "{report}");
    let sum = |key: &str| classes.iter().filter_map(|class| class[key].as_u64()).sum();
    (sum("marked"), sum("dropped"))
}

/// Sends to both guests at once, all streams of the first and one of the second. Returns their names in the order in which they ended.
fn sent(stage: &mut Stage, guests: &mut [Guest; 2]) -> String {
    let receive = |tcp: u16| format!("(nc -l -p {tcp} -e dd bs=64k of=/dev/null >/dev/null 2>&1 &)");
    let listens = |tcp: u16| format!("until netstat -ltn | grep -q :{tcp}; do rest; done");
    let ports: Vec<u16> = (9001..9001 + STREAMS).collect();
    for (guest, ports) in guests.iter_mut().zip([&ports[..], &ports[..1]]) {
        for tcp in ports {
            sh(guest, &format!("{}; {}", receive(*tcp), listens(*tcp)));
        }
    }
    let send = |guest: u8, tcp: u16, blocks: u32| {
        let to = address(guest);
        format!("\"$busybox\" dd if=/dev/zero bs=64k count={blocks} 2>/dev/null | \"$busybox\" nc {to} {tcp}")
    };
    let greedy: Vec<String> = ports.iter().map(|tcp| format!("{} &", send(1, *tcp, GREEDY))).collect();
    // The shell has other children, the daemon for one: it waits for these two alone.
    let script = format!(
        "( ( {} wait ); echo vm1 ) & first=$!; ( {}; echo vm2 ) & wait $first $!",
        greedy.join(" "),
        send(2, ports[0], RESERVED)
    );
    well(stage.namespace.run(&script, LATER))
}

/// 40 Mbit/s are passed on. The greedy guest has four streams of 6 MB and a hundred shares; the other one of 3 MB, one share, and 20 Mbit/s
/// reserved. By shares alone it would have 0.4 Mbit/s, and end last.
#[test]
fn what_comes_in_keeps_a_reservation_and_tells_linux_s_tcp_by_marks_or_by_drops() {
    let classes = "rate = \"60Mbit/s\"\ninward_rate = \"40Mbit/s\"\nreceive_buffer = \"512KiB\"\n\
                   [[io_class]]\nuplink = \"n0\"\nname = \"storage\"\nports = \"vm2\"\nshares = 1\nreservation = \"20Mbit/s\"\n\
                   [[io_class]]\nuplink = \"n0\"\nname = \"vm\"\nshares = 100\n";
    let mut stage = Stage::beside(vec![port("vmxnet3", 1), port("virtio-net", 2)], classes);
    let mut guests = [1, 2].map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number))));
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    for knows_marks in [true, false] {
        let set = format!("echo {} >/proc/sys/net/ipv4/tcp_ecn", u8::from(knows_marks));
        well(stage.namespace.run(&set, LATER));
        let before = (told(&stage), marks(&mut guests[0]));
        let order = sent(&mut stage, &mut guests);
        let ended: Vec<&str> = order.split_whitespace().collect();
        assert_eq!(ended, ["vm2", "vm1"], "who has a reservation ends first");
        let (marked, dropped) = told(&stage);
        let (marked, dropped) = (marked - before.0.0, dropped - before.0.1);
        let seen = marks(&mut guests[0]) - before.1;
        println!(
            "marks are known: {knows_marks}; {marked} packets marked, {dropped} dropped, {seen} marks seen by vm1's kernel"
        );
        if knows_marks {
            assert!(marked > 0 && seen > 0, "{marked} marked, {seen} seen");
        } else {
            assert_eq!((marked, seen), (0, 0), "a sender that does not know marks gets none");
            assert!(dropped > 0, "and is told by drops");
        }
    }
    guests.iter_mut().for_each(quiet);
}
