//! Queues of an interface by AF_XDP, at one end of a veth whose other end is the kernel's. The tests run themselves again in a network
//! namespace of their own. They need rights in the initial user namespace, and without them report that and check nothing;
//! `cargo xtask test` counts them as skipped.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::again;
use crate::common::*;
use nicety_adapter::{Batch, Budget, Counters, HandOver, News, Offload, PortId, Reason, Time, Uplink};
use nicety_uplink::{Xdp, XdpError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::wire::Ipv4Address;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the named test of this file in its own network namespace. True inside of it.
fn inside(test: &str) -> bool {
    inside_as(&format!("xdp::{test}"))
}

/// The same for a test of another file.
pub fn inside_as(test: &str) -> bool {
    again::inside(test, "-n", || {
        let veth = ["-n", "ip", "link", "add", "a0", "type", "veth", "peer", "b0"];
        again::refusal(&veth, "a veth in a network namespace").or_else(|| match Xdp::check("lo", 1) {
            Err(error @ (XdpError::Rights { .. } | XdpError::NoSockets)) => Some(error.to_string()),
            _ => None,
        })
    })
}

/// Runs `ip` as the administrator does.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A veth: `wire0` for AF_XDP, `far0` with the address 10.9.8.1, which knows 10.9.8.2 as a neighbour behind it.
pub fn veth(queues: u32) {
    ip(&format!(
        "link add wire0 numtxqueues {queues} numrxqueues {queues} type veth peer name far0 numtxqueues {queues} numrxqueues {queues}"
    ));
    for name in ["wire0", "far0"] {
        let _no_ipv6_here = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    }
    ip("address add 10.9.8.1/24 dev far0");
    ip("link set far0 up");
    ip("link set wire0 up");
    ip("neighbour add 10.9.8.2 lladdr 02:00:00:00:00:02 dev far0");
}

fn address(name: &str) -> [u8; 6] {
    let output = Command::new("ip").args(["-j", "link", "show", name]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let address = text.split_once("\"address\":\"").unwrap().1.split('"').next().unwrap();
    let bytes: Vec<u8> = address.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// Payloads of datagrams that come in by this uplink until there are `count`.
fn payloads(uplink: &mut Xdp, counters: &mut Counters, count: usize) -> Vec<Vec<u8>> {
    let (mut batch, mut payloads, end) = (Batch::new(), Vec::new(), Instant::now() + TIMEOUT);
    while payloads.len() < count && Instant::now() < end {
        let mut fds = [PollFd::from_borrowed_fd(uplink.descriptor().unwrap(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap();
        uplink.fetch(PortId(1), Budget::TURN, &mut batch, counters, Time::ZERO);
        for packet in batch.packets() {
            let mut frame = vec![0; packet.len() as usize];
            batch.copy(packet, &mut frame);
            if frame[12..14] == [8, 0] && frame[23] == 17 {
                payloads.push(frame[42..].to_vec());
            }
        }
        uplink.complete(&batch);
    }
    payloads
}

/// Sends a datagram to port 2000 of `far0`. Returns how many frames were refused.
fn send(uplink: &mut Xdp, counters: &mut Counters, gateway: [u8; 6], payload: &[u8]) -> u32 {
    let frame = udp(payload, gateway, Ipv4Address::new(10, 9, 8, 1), 2000);
    let sender = Sender::new(&[(frame, Offload::default())]);
    sender.deliver(uplink, counters, Time::ZERO).refused().count_ones()
}

pub fn one(name: &str) -> Xdp {
    Xdp::open(name, 1).unwrap().pop().unwrap()
}

#[test]
fn frames_go_both_ways_past_the_host_s_stack() {
    if !inside("frames_go_both_ways_past_the_host_s_stack") {
        return;
    }
    veth(1);
    let mut uplink = one("wire0");
    let mut counters = Counters::default();
    assert_eq!(uplink.features(), ["AF_XDP", "copy"]);
    let said = uplink.news();
    assert!(
        matches!(&said, Some(News::Back(what)) if what.contains("queue 0 of wire0 is up, with a copy")),
        "{said:?}"
    );
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    // Several times as many as the rings hold: pieces of memory go round.
    for word in 0..19_968u32 {
        socket.send_to(&word.to_be_bytes(), "10.9.8.2:1000").unwrap();
        if word % 64 == 63 {
            let heard = payloads(&mut uplink, &mut counters, 64);
            let wanted: Vec<Vec<u8>> = (word - 63..=word).map(|word| word.to_be_bytes().to_vec()).collect();
            assert_eq!(heard, wanted);
        }
    }
    let gateway = address("far0");
    for word in 0..10_000u32 {
        assert_eq!(send(&mut uplink, &mut counters, gateway, &word.to_be_bytes()), 0, "{word}");
        let mut bytes = [0; 8];
        assert_eq!(socket.recv(&mut bytes).unwrap(), 4);
        assert_eq!(bytes[..4], word.to_be_bytes());
    }
    assert_eq!((counters.taken().frames, counters.transmitted().frames), (10_000, 19_968));
}

#[test]
fn each_queue_has_its_frames_and_a_queue_that_is_taken_is_named() {
    if !inside("each_queue_has_its_frames_and_a_queue_that_is_taken_is_named") {
        return;
    }
    veth(2);
    let refused = Xdp::open("wire0", 3).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "wire0 has no queue 2: give the uplink fewer (`queues`), or the interface more (ethtool -L wire0 combined N)"
    );
    let mut queues = Xdp::open("wire0", 2).unwrap();
    assert_eq!(queues.iter().map(Xdp::queue).collect::<Vec<_>>(), [0, 1]);
    // The kernel spreads flows over the queues of the other end, and each is a queue here.
    let senders: Vec<UdpSocket> = (0..64).map(|_| UdpSocket::bind("10.9.8.1:0").unwrap()).collect();
    senders.iter().for_each(|sender| assert_eq!(sender.send_to(b"flow", "10.9.8.2:1000").unwrap(), 4));
    let mut came = [0; 2];
    let end = Instant::now() + TIMEOUT;
    while came.iter().sum::<u64>() < 64 && Instant::now() < end {
        for (queue, came) in queues.iter_mut().zip(&mut came) {
            let mut counters = Counters::default();
            let (batch, _) = fetch(queue, &mut counters, Time::ZERO);
            queue.complete(&batch);
            *came += counters.transmitted().frames;
        }
    }
    println!("by queue: {came:?}");
    assert!(came.iter().sum::<u64>() == 64 && came[0] > 0 && came[1] > 0, "{came:?}");
    let refused = Xdp::open("wire0", 1).unwrap_err();
    assert_eq!(refused.to_string(), "queue 0 of wire0 is taken by another process: end it, or use another interface");
    // A closed queue is let go, and nothing is left at the interface.
    drop(queues);
    let queues = Xdp::open("wire0", 2).unwrap();
    drop(queues);
    let shown = Command::new("ip").args(["link", "show", "wire0"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&shown.stdout).contains("prog/xdp"), "{shown:?}");
}

#[test]
fn an_interface_that_is_down_or_vanishes_drops_frames_with_a_reason() {
    if !inside("an_interface_that_is_down_or_vanishes_drops_frames_with_a_reason") {
        return;
    }
    veth(1);
    let gateway = address("far0");
    let mut uplink = one("wire0");
    let mut counters = Counters::default();
    let _up = uplink.news();
    let learns = |uplink: &mut Xdp, counters: &mut Counters| {
        let end = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < end && readable(uplink), "no event");
            let (batch, _) = fetch(uplink, counters, Time::ZERO);
            uplink.complete(&batch);
            if let Some(news) = uplink.news() {
                return news;
            }
        }
    };
    ip("link set wire0 down");
    let news = learns(&mut uplink, &mut counters);
    assert_eq!(news, News::Vacant("wire0 is down, or has no carrier: ip link set wire0 up".to_owned()));
    assert_eq!(send(&mut uplink, &mut counters, gateway, b"lost"), 0);
    assert_eq!((counters.receive_drops[Reason::LinkDown as usize], uplink.carrier(), uplink.wake()), (1, false, None));
    ip("link set wire0 up");
    assert!(matches!(learns(&mut uplink, &mut counters), News::Back(_)));
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(send(&mut uplink, &mut counters, gateway, b"back"), 0);
    let mut bytes = [0; 8];
    assert_eq!(socket.recv(&mut bytes).unwrap(), 4);
    socket.send_to(b"here", "10.9.8.2:1000").unwrap();
    assert_eq!(payloads(&mut uplink, &mut counters, 1), [b"here"]);
    ip("link del wire0");
    let News::Vacant(why) = learns(&mut uplink, &mut counters) else { panic!() };
    assert!(why.starts_with("wire0 was deleted: once it is there again, restart the daemon"), "{why}");
    assert_eq!(send(&mut uplink, &mut counters, gateway, b"lost"), 0);
    assert_eq!((counters.receive_drops[Reason::LinkDown as usize], uplink.gone(), uplink.wake()), (2, true, None));
    // A deleted interface keeps no worker awake.
    let silent = (0..100).any(|_| {
        let mut fds = [PollFd::from_borrowed_fd(uplink.descriptor().unwrap(), PollFlags::IN)];
        let is_silent = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 0;
        let (batch, _) = fetch(&mut uplink, &mut counters, Time::ZERO);
        uplink.complete(&batch);
        is_silent
    });
    assert!(silent);
}

#[test]
fn frames_beyond_the_ring_are_counted_as_lost() {
    if !inside("frames_beyond_the_ring_are_counted_as_lost") {
        return;
    }
    veth(1);
    let mut uplink = one("wire0");
    let mut counters = Counters::default();
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    (0..5000u32).for_each(|word| _ = socket.send_to(&word.to_be_bytes(), "10.9.8.2:1000").unwrap());
    let heard = payloads(&mut uplink, &mut counters, 2048);
    assert_eq!(heard.last().unwrap()[..], 2047u32.to_be_bytes());
    let (batch, progress) = fetch(&mut uplink, &mut counters, Time::ZERO);
    assert!(batch.is_empty() && progress.armed);
    assert_eq!(counters.transmit_drops[Reason::BufferFull as usize], 5000 - 2048);
    socket.send_to(b"more", "10.9.8.2:1000").unwrap();
    assert_eq!(payloads(&mut uplink, &mut counters, 1), [b"more"]);
}

#[test]
fn a_queue_goes_on_in_another_owner_and_loses_no_frame() {
    if !inside("a_queue_goes_on_in_another_owner_and_loses_no_frame") {
        return;
    }
    veth(1);
    let gateway = address("far0");
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut uplink = one("wire0");
    let mut counters = Counters::default();
    for round in 0..50u32 {
        for word in 0..100u32 {
            socket.send_to(&[round.to_be_bytes(), word.to_be_bytes()].concat(), "10.9.8.2:1000").unwrap();
        }
        let HandOver::Parts { descriptors, state } = uplink.hand_over() else { panic!() };
        let descriptors = descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let next = Xdp::go_on("wire0", &state, descriptors).unwrap();
        uplink = next;
        assert_eq!(uplink.news(), None);
        let heard = payloads(&mut uplink, &mut counters, 100);
        let wanted: Vec<Vec<u8>> = (0..100u32).map(|word| [round.to_be_bytes(), word.to_be_bytes()].concat()).collect();
        assert_eq!(heard, wanted);
        for _ in 0..60 {
            assert_eq!(send(&mut uplink, &mut counters, gateway, &round.to_be_bytes()), 0);
            assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 4);
        }
    }
    let HandOver::Parts { descriptors, state } = uplink.hand_over() else { panic!() };
    let mut descriptors: Vec<_> = descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    assert!(matches!(
        Xdp::go_on("wire0", &state[..state.len() - 1], descriptors.iter().map(|fd| fd.try_clone().unwrap()).collect()),
        Err(XdpError::State(_))
    ));
    descriptors.pop();
    assert!(matches!(Xdp::go_on("wire0", &state, descriptors), Err(XdpError::State(_))));
}

/// The descriptors by which another process goes on.
fn held(uplink: &Xdp) -> Vec<OwnedFd> {
    let HandOver::Parts { descriptors, .. } = uplink.hand_over() else { panic!() };
    descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect()
}

#[test]
fn a_queue_whose_process_was_killed_in_a_batch_goes_on_with_all_its_memory_and_the_frames_that_waited() {
    if !inside("a_queue_whose_process_was_killed_in_a_batch_goes_on_with_all_its_memory_and_the_frames_that_waited") {
        return;
    }
    veth(1);
    let gateway = address("far0");
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut uplink = one("wire0");
    let mut counters = Counters::default();
    // More rounds than there is memory for, if each lost a batch.
    for round in 0..100u32 {
        let bytes = |word: u32| [round.to_be_bytes(), word.to_be_bytes()].concat();
        for word in 0..100u32 {
            socket.send_to(&bytes(word), "10.9.8.2:1000").unwrap();
        }
        for _ in 0..20 {
            assert_eq!(send(&mut uplink, &mut counters, gateway, &round.to_be_bytes()), 0);
        }
        let (batch, _) = fetch(&mut uplink, &mut counters, Time::ZERO);
        let taken = u32::try_from(batch.packets().len()).unwrap();
        assert!(taken > 10, "{taken}");
        let descriptors = held(&uplink);
        drop((uplink, batch));
        uplink = Xdp::resume("wire0", 0, descriptors).unwrap();
        assert_eq!((uplink.news(), uplink.features()), (None, vec!["AF_XDP", "copy"]));
        let heard = payloads(&mut uplink, &mut counters, (100 - taken) as usize);
        assert_eq!(heard, (taken..100).map(bytes).collect::<Vec<_>>());
        (0..20).for_each(|_| assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 4));
    }
    // Another interface of that name, an MTU for which the memory is too small, and other descriptors are refused.
    let (mut short, same, again) = (held(&uplink), held(&uplink), held(&uplink));
    short.pop();
    assert!(matches!(Xdp::resume("wire0", 0, short), Err(XdpError::State(_))));
    ip("link set wire0 mtu 3000");
    assert!(matches!(Xdp::resume("wire0", 0, same), Err(XdpError::State(_))));
    ip("link del wire0");
    veth(1);
    assert!(matches!(Xdp::resume("wire0", 0, again), Err(XdpError::State(_))));
}

#[test]
fn interfaces_that_do_not_fit_are_refused_with_the_remedy() {
    if !inside("interfaces_that_do_not_fit_are_refused_with_the_remedy") {
        return;
    }
    veth(1);
    let refused = |name| Xdp::check(name, 1).unwrap_err().to_string();
    assert_eq!(refused("wire7"), "there is no interface wire7: `ip link` shows those that there are");
    assert!(refused("lo").contains("is no Ethernet interface"), "{}", refused("lo"));
    Xdp::check("wire0", 1).unwrap();
    // The sentence that opening says.
    let few = Xdp::check("wire0", 2).unwrap_err().to_string();
    assert!(few.starts_with("wire0 has no queue 1: give the uplink fewer (`queues`), or the interface more"), "{few}");
    assert_eq!(Xdp::open("wire0", 2).unwrap_err().to_string(), few);
    ip("link set wire0 mtu 9000");
    assert_eq!(refused("wire0"), "wire0 has an MTU of 9000, and AF_XDP takes 3818 here: ip link set wire0 mtu 3818");
    ip("link set wire0 mtu 3000");
    ip("link set far0 mtu 3000");
    let mut uplink = one("wire0");
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    socket.send_to(&[7; 2900], "10.9.8.2:1000").unwrap();
    let mut counters = Counters::default();
    assert_eq!(payloads(&mut uplink, &mut counters, 1), [vec![7; 2900]]);
}

/// In a user namespace the kernel refuses the program, whatever the capabilities there.
#[test]
fn without_the_rights_one_sentence_names_them() {
    const TEST: &str = "xdp::without_the_rights_one_sentence_names_them";
    let veth_as_root_of_a_namespace = ["-Urn", "ip", "link", "add", "a0", "type", "veth", "peer", "b0"];
    if again::inside(TEST, "-Urn", || again::refusal(&veth_as_root_of_a_namespace, "unshare -Urn")) {
        veth(1);
        let said = Xdp::check("wire0", 1).unwrap_err().to_string();
        println!("{said}");
        assert_eq!(
            said,
            "an XDP program for wire0 needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW in the initial user namespace \
             (docs/installing.md): give the daemon these, or use a tap"
        );
    }
}
