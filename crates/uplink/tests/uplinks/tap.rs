//! A tap carries packets between the switch and the host's own stack. The tests run themselves again in a user and network
//! namespace of their own, which needs no root rights. Without a tap driver or such a namespace they report that and check nothing;
//! `cargo xtask test` counts them as skipped.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::again;
use crate::common::*;
use crate::elsewhere::Elsewhere;
use nicety_adapter::{Batch, Budget, Checksum, Counters, Frames, News, Offload, Pick, PortId, Reason, Time, Uplink};
use nicety_uplink::{Paced, Tap, TapError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use smoltcp::wire::{EthernetFrame, EthernetProtocol, Ipv4Address, Ipv4Packet, UdpPacket};

/// Runs the named test of this file in its own namespaces. True inside of them.
fn inside(test: &str) -> bool {
    inside_as(&format!("tap::{test}"))
}

/// The same for a test of another file.
pub fn inside_as(test: &str) -> bool {
    again::inside(test, "-Urn", || {
        let driver = File::options().read(true).write(true).open("/dev/net/tun").err();
        let no_driver = driver.map(|error| format!("/dev/net/tun: {error}"));
        no_driver.or_else(|| again::refusal(&["-Urn", "ip", "link"], "unshare -Urn ip link"))
    })
}

fn readable_now(uplink: &impl Uplink) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(uplink.descriptor().unwrap(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// Whether the descriptor becomes silent, once the frames that the host's stack sends by itself are fetched.
fn falls_silent(uplink: &mut impl Uplink, counters: &mut Counters) -> bool {
    (0..1000).any(|_| {
        let silent = !readable_now(uplink);
        if !silent {
            fetch(uplink, counters, Time::ZERO);
        }
        silent
    })
}

/// Runs `ip` as the administrator does.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn up(tap: &Tap, address: &str) {
    // Without IPv6 the interface sends nothing by itself.
    let _no_ipv6_here = std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", tap.name()), "1");
    ip(&format!("address add {address} dev {}", tap.name()));
    ip(&format!("link set {} up", tap.name()));
}

fn hardware(tap: &Tap) -> [u8; 6] {
    let text = Command::new("ip").args(["-o", "link", "show", tap.name()]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    let address = text.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap();
    let bytes: Vec<u8> = address.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

#[test]
fn a_datagram_reaches_the_hosts_stack_and_one_comes_back() {
    if !inside("a_datagram_reaches_the_hosts_stack_and_one_comes_back") {
        return;
    }
    let mut tap = Tap::open("world%d").unwrap();
    assert_eq!(tap.name(), "world0");
    let mut counters = Counters::default();
    let early = Sender::new(&[(tcp(b"early"), Offload::default())]);
    early.deliver(&mut tap, &mut counters, Time::ZERO);
    assert_eq!(counters.receive_drops[Reason::LinkDown as usize], 1, "nobody has brought it up yet");
    up(&tap, "10.9.8.1/24");
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();

    let frame = udp(b"into the host", hardware(&tap), smoltcp::wire::Ipv4Address::new(10, 9, 8, 1), 2000);
    let mut unfinished = frame.clone();
    // RFC 768's pseudo-header, folded: the kernel computes the rest.
    let sum: u32 = 0x0a09 + 0x0802 + 0x0a09 + 0x0801 + 17 + 8 + 13;
    unfinished[40..42].copy_from_slice(&(sum as u16).to_be_bytes());
    let partial = Offload { checksum: Checksum::Partial { start: 34, field: 40 }, segment: None };
    for packet in [(frame, Offload::default()), (unfinished, partial)] {
        assert_eq!(Sender::new(&[packet]).deliver(&mut tap, &mut counters, Time::ZERO).refused(), 0);
        let mut data = [0; 100];
        let (len, from) = socket.recv_from(&mut data).unwrap();
        assert_eq!((&data[..len], from.to_string().as_str()), (&b"into the host"[..], "10.9.8.2:1000"));
    }
    assert_eq!(counters.taken().packets, 2);

    ip("neighbour add 10.9.8.2 lladdr 02:00:00:00:00:77 dev world0");
    socket.send_to(b"out of the host", "10.9.8.2:1000").unwrap();
    let packet = loop {
        assert!(readable(&tap), "the datagram");
        let (batch, _) = fetch(&mut tap, &mut counters, Time::ZERO);
        let found = frames(&batch, PLAIN).into_iter().find(|frame| {
            let frame = EthernetFrame::new_checked(&frame[..]).unwrap();
            frame.ethertype() == EthernetProtocol::Ipv4
                && Ipv4Packet::new_checked(frame.payload()).unwrap().dst_addr().octets() == [10, 9, 8, 2]
        });
        tap.complete(&batch);
        if let Some(found) = found {
            break found;
        }
    };
    let frame = EthernetFrame::new_checked(&packet[..]).unwrap();
    assert_eq!(frame.dst_addr().0, [2, 0, 0, 0, 0, 0x77]);
    let ip = Ipv4Packet::new_checked(frame.payload()).unwrap();
    let datagram = UdpPacket::new_checked(ip.payload()).unwrap();
    assert!(datagram.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()));
    assert_eq!(datagram.payload(), b"out of the host");
}

#[test]
fn a_deleted_interface_is_silent_and_its_frames_are_counted() {
    if !inside("a_deleted_interface_is_silent_and_its_frames_are_counted") {
        return;
    }
    let mut tap = Tap::open("world0").unwrap();
    up(&tap, "10.9.8.1/24");
    let busy = Tap::open("world0").unwrap_err();
    assert!(matches!(busy, TapError::Busy { .. }), "{busy}");
    assert!(matches!(Tap::open("lo"), Err(TapError::NotTap { .. })));
    ip("link delete world0");
    let mut counters = Counters::default();
    while !tap.gone() {
        assert!(readable(&tap));
        fetch(&mut tap, &mut counters, Time::ZERO);
    }
    assert!(!readable_now(&tap), "nobody is kept awake");
    Sender::new(&[(tcp(b"late"), Offload::default())]).deliver(&mut tap, &mut counters, Time::ZERO);
    assert_eq!(counters.receive_drops[Reason::LinkDown as usize], 1);
}

/// Waits for a datagram from this port of the host's stack. Returns the queue that it comes on.
fn queue_of(taps: &mut [Tap], port: u16) -> usize {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        for (number, tap) in taps.iter_mut().enumerate() {
            let mut counters = Counters::default();
            let (batch, _) = fetch(tap, &mut counters, Time::ZERO);
            let found = frames(&batch, PLAIN).iter().any(|frame| frame.get(34..36) == Some(&port.to_be_bytes()[..]));
            tap.complete(&batch);
            if found {
                return number;
            }
        }
    }
    panic!("no datagram from port {port}");
}

#[test]
fn a_flow_comes_back_on_the_queue_that_it_was_sent_on() {
    if !inside("a_flow_comes_back_on_the_queue_that_it_was_sent_on") {
        return;
    }
    ip("tuntap add dev world0 mode tap multi_queue");
    let mut taps = Tap::open_queues("world0", 4).unwrap();
    up(&taps[0], "10.9.8.1/24");
    ip("neighbour add 10.9.8.2 lladdr 02:00:00:00:00:77 dev world0");
    // A flow that nobody has sent anything of comes on some queue. Once it was sent on a queue, it comes there.
    for (port, queue) in (2000..).zip([3, 1, 0, 2, 3, 0]) {
        let socket = UdpSocket::bind(("10.9.8.1", port)).unwrap();
        socket.send_to(b"new", "10.9.8.2:1000").unwrap();
        queue_of(&mut taps, port);
        let answer = udp(b"learn", hardware(&taps[0]), Ipv4Address::new(10, 9, 8, 1), port);
        Sender::new(&[(answer, Offload::default())]).deliver(&mut taps[queue], &mut Counters::default(), Time::ZERO);
        socket.recv_from(&mut [0; 16]).unwrap();
        socket.send_to(b"known", "10.9.8.2:1000").unwrap();
        assert_eq!(queue_of(&mut taps, port), queue, "port {port}");
    }
}

#[test]
fn a_tap_of_which_somebody_holds_a_queue_or_that_has_another_number_of_them_is_refused_with_what_to_do() {
    if !inside("a_tap_of_which_somebody_holds_a_queue_or_that_has_another_number_of_them_is_refused_with_what_to_do") {
        return;
    }
    ip("tuntap add dev world0 mode tap multi_queue");
    ip("tuntap add dev world1 mode tap");
    let said = |error: TapError| error.to_string();
    let one = said(Tap::open_queues("world1", 2).unwrap_err());
    assert!(one.contains("world1 is for one queue") && one.contains("multi_queue"), "{one}");
    let several = said(Tap::open("world0").unwrap_err());
    assert!(
        several.contains("world0 has several queues") && several.contains("`queues` in the host file"),
        "{several}"
    );
    let held = Tap::open_queues("world0", 1).unwrap();
    let busy = Tap::open_queues("world0", 2).unwrap_err();
    assert!(matches!(busy, TapError::Busy { .. }), "{busy}");
    assert!(matches!(Tap::check_queues(None, "world0", 0), Err(TapError::Busy { .. })));
    Tap::check_queues(None, "world0", 1).unwrap();
    drop(held);
    assert_eq!(Tap::open_queues("world0", 2).unwrap().len(), 2);
}

/// Nobody sends to it: it is not by a refused frame that this is known.
#[test]
fn a_tap_that_is_taken_down_wakes_its_worker_and_says_so_though_nothing_is_sent_to_it() {
    if !inside("a_tap_that_is_taken_down_wakes_its_worker_and_says_so_though_nothing_is_sent_to_it") {
        return;
    }
    let (mut tap, mut counters) = (Tap::open("world0").unwrap(), Counters::default());
    ip("link set world0 up");
    assert!(falls_silent(&mut tap, &mut counters));
    for _ in 0..3 {
        assert!(tap.carrier());
        ip("link set world0 down");
        assert!(readable_now(&tap), "its worker wakes");
        assert!(falls_silent(&mut tap, &mut counters));
        assert!(!tap.carrier());
        ip("link set world0 up");
        assert!(readable_now(&tap));
        assert!(falls_silent(&mut tap, &mut counters));
    }
    // Others' changes are not its own.
    ip("link set lo up");
    assert!(falls_silent(&mut tap, &mut counters) && tap.carrier());
}

#[test]
fn a_tap_that_is_down_says_so_and_the_kernel_tells_when_it_is_up() {
    if !inside("a_tap_that_is_down_says_so_and_the_kernel_tells_when_it_is_up") {
        return;
    }
    let tap = Tap::open("world0").unwrap();
    let _no_ipv6_here = std::fs::write("/proc/sys/net/ipv6/conf/world0/disable_ipv6", "1");
    let mut tap = Paced::new(tap, "1Gbit/s".parse().unwrap()).unwrap();
    let mut counters = Counters::default();
    let frame = Sender::new(&[(tcp(b"out"), Offload::default())]);
    let down = "world0 is down: ip link set world0 up".to_owned();
    assert_eq!(tap.vacant(), Some(down.clone()));
    assert_eq!((tap.news(), tap.news()), (Some(News::Vacant(down.clone())), None));
    for dropped in 1..4 {
        assert!(falls_silent(&mut tap, &mut counters), "nobody is kept awake");
        ip("link set world0 up");
        assert!(readable(&tap));
        fetch(&mut tap, &mut counters, Time::ZERO);
        assert_eq!((tap.vacant(), tap.news()), (None, Some(News::Back("world0 is up".to_owned()))));
        assert!(falls_silent(&mut tap, &mut counters), "nobody is kept awake");
        frame.deliver(&mut tap, &mut counters, Time::ZERO);
        assert_eq!(counters.taken().packets, dropped);
        ip("link set world0 down");
        assert_eq!((tap.vacant(), tap.news()), (Some(down.clone()), None), "who looks knows");
        frame.deliver(&mut tap, &mut counters, Time::ZERO);
        frame.deliver(&mut tap, &mut counters, Time::ZERO);
        assert_eq!(counters.receive_drops[Reason::LinkDown as usize], 2 * dropped);
        assert_eq!((tap.vacant(), tap.news()), (Some(down.clone()), Some(News::Vacant(down.clone()))));
        assert_eq!(tap.news(), None);
    }
}

#[test]
fn a_deleted_tap_is_attached_again_when_it_is_there_again_and_not_made() {
    if !inside("a_deleted_tap_is_attached_again_when_it_is_there_again_and_not_made") {
        return;
    }
    let mut tap = Tap::open("world0").unwrap();
    // An address from its administrator, not the one that it had when it was attached.
    ip("link set world0 address 02:00:00:00:00:0a");
    up(&tap, "10.9.8.1/24");
    let mut counters = Counters::default();
    fetch(&mut tap, &mut counters, Time::ZERO);
    let at = |ms: u64| Time::ZERO.after(Duration::from_millis(ms));
    let look = |tap: &mut Tap, counters: &mut Counters, ms| {
        fetch(tap, counters, at(ms));
        (tap.gone(), tap.vacant().unwrap_or_default())
    };
    ip("link delete world0");
    assert!(tap.vacant().unwrap().starts_with("world0 was deleted: "), "who looks knows");
    while !tap.gone() {
        assert!(readable(&tap));
        fetch(&mut tap, &mut counters, at(0));
    }
    let given = "ip link set world0 address 02:00:00:00:00:0a (guests know the host by it), and ip link set world0 up";
    let deleted = &format!(
        "world0 was deleted: ip tuntap add dev world0 mode tap user $USER, {given}; it is attached within a second"
    );
    assert!(matches!(tap.news(), Some(News::Vacant(why)) if why == *deleted));
    assert_eq!(tap.wake(), Some(Time::ZERO));
    // This process could make the tap here, but must not: that is its administrator's task.
    assert_eq!(look(&mut tap, &mut counters, 10), (true, deleted.to_owned()));
    assert_eq!(tap.wake(), Some(at(1010)));

    ip("tuntap add dev world0 mode tun");
    assert_eq!(look(&mut tap, &mut counters, 1000), (true, deleted.to_owned()), "it was not time to look");
    let (gone, why) = look(&mut tap, &mut counters, 1010);
    let barred = "world0 was deleted, and the next one cannot be attached: world0 is a tun device, of IP packets";
    assert!(gone && why.starts_with(barred), "{why}");
    ip("link delete world0");
    assert_eq!(look(&mut tap, &mut counters, 3000), (true, deleted.to_owned()));

    // The new tap has another address.
    ip("tuntap add dev world0 mode tap");
    let down = format!("world0 is down: {given}");
    assert_eq!(look(&mut tap, &mut counters, 4000), (false, down.clone()));
    assert!(matches!(tap.news(), Some(News::Vacant(why)) if why == down));
    ip("link set world0 address 02:00:00:00:00:0a");
    assert_eq!(tap.vacant().unwrap(), "world0 is down: ip link set world0 up");
    up(&tap, "10.9.8.1/24");
    assert!(readable(&tap));
    assert_eq!(look(&mut tap, &mut counters, 4000), (false, String::new()));
    assert_eq!(tap.news(), Some(News::Back("world0 is up".to_owned())));
    fetch(&mut tap, &mut counters, at(4000));
    assert_eq!(tap.wake(), None, "nobody looks for it");
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let frame = udp(b"again", hardware(&tap), smoltcp::wire::Ipv4Address::new(10, 9, 8, 1), 2000);
    Sender::new(&[(frame, Offload::default())]).deliver(&mut tap, &mut counters, at(4000));
    let mut data = [0; 100];
    let (len, _) = socket.recv_from(&mut data).unwrap();
    assert_eq!(&data[..len], b"again");
}

#[test]
fn why_the_next_tap_cannot_be_attached_is_news_once_for_each_cause_and_so_is_another_address() {
    if !inside("why_the_next_tap_cannot_be_attached_is_news_once_for_each_cause_and_so_is_another_address") {
        return;
    }
    let mut tap = Tap::open("world0").unwrap();
    up(&tap, "10.9.8.1/24");
    let mut counters = Counters::default();
    fetch(&mut tap, &mut counters, Time::ZERO);
    let (first, mut seconds) = (hardware(&tap), 0);
    ip("link delete world0");
    let mut look = |tap: &mut Tap| {
        seconds += 2;
        fetch(tap, &mut counters, Time::ZERO.after(Duration::from_secs(seconds)));
        match tap.news() {
            Some(News::Vacant(why)) => why,
            Some(News::Back(what) | News::Moved(what) | News::Looped(what)) => format!("well: {what}"),
            None => String::new(),
        }
    };
    while !tap.gone() {
        assert!(readable(&tap));
        assert_eq!(look(&mut tap).contains("was deleted: "), tap.gone());
    }
    let barred = "world0 was deleted, and the next one cannot be attached: ";
    ip("tuntap add dev world0 mode tap multi_queue");
    let message = look(&mut tap);
    assert!(message.starts_with(&format!("{barred}tap world0 has several queues")), "{message}");
    assert_eq!([look(&mut tap), look(&mut tap)], ["", ""]);
    ip("link delete world0");
    assert_eq!(look(&mut tap), "");
    // Another tap with the same cause, then other causes: its kind, and another process that has it.
    ip("tuntap add dev world0 mode tap multi_queue");
    assert_eq!(look(&mut tap), "");
    ip("link delete world0");
    ip("tuntap add dev world0 mode tun");
    let message = look(&mut tap);
    assert!(message.starts_with(&format!("{barred}world0 is a tun device, of IP packets, not a tap: ")), "{message}");
    assert_eq!([look(&mut tap), look(&mut tap)], ["", ""]);
    ip("link delete world0");
    let other = Tap::open("world0").unwrap();
    let message = look(&mut tap);
    assert!(message.starts_with(&format!("{barred}tap world0 is in use by another process")), "{message}");
    assert_eq!([look(&mut tap), look(&mut tap)], ["", ""]);
    drop(other);

    // The tap is up when it is found, with a new random address.
    ip("tuntap add dev world0 mode tap");
    up(&tap, "10.9.8.1/24");
    assert_ne!(hardware(&tap), first);
    let old = first.map(|byte| format!("{byte:02x}")).join(":");
    let message = look(&mut tap);
    assert!(message.starts_with("well: world0 is up, with another hardware address than before: "), "{message}");
    assert!(message.ends_with(&format!("; ip link set world0 address {old} gives it back")), "{message}");
    assert_eq!((tap.vacant(), look(&mut tap)), (None, String::new()));
}

/// Moves received packets from one tap to the other. Returns the longest packet.
fn carry(from: &mut Tap, to: &mut Tap, counters: &mut Counters) -> u32 {
    let mut batch = Batch::new();
    from.fetch(PortId(0), Budget::TURN, &mut batch, counters, Time::ZERO);
    let picks: Vec<Pick> = (0..batch.len() as u16).map(Pick::whole).collect();
    assert_eq!(to.deliver(&Frames::new(&batch, &picks), counters, Time::ZERO).refused(), 0);
    from.complete(&batch);
    batch.packets().iter().map(|packet| packet.len()).max().unwrap_or(0)
}

#[test]
fn tcp_between_two_hosts_passes_uncut_through_two_taps_both_ways() {
    if !inside("tcp_between_two_hosts_passes_uncut_through_two_taps_both_ways") {
        return;
    }
    const BYTES: usize = 8 << 20;
    let elsewhere = Elsewhere::new();
    let mut here = Tap::open("here").unwrap();
    up(&here, "10.9.8.1/24");
    let (mut there, listener) = elsewhere.run(|| {
        let tap = Tap::open("there").unwrap();
        up(&tap, "10.9.8.2/24");
        (tap, TcpListener::bind("10.9.8.2:80").unwrap())
    });
    eprintln!("offloads: {}", here.features().join(" "));
    let data = payload(BYTES);
    let echo = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut data = vec![0; BYTES];
        stream.read_exact(&mut data).unwrap();
        stream.write_all(&data).unwrap();
    });
    let sent = data.clone();
    let client = std::thread::spawn(move || {
        let mut stream = TcpStream::connect("10.9.8.2:80").unwrap();
        stream.write_all(&sent).unwrap();
        let mut back = vec![0; BYTES];
        stream.read_exact(&mut back).unwrap();
        back
    });
    let (mut out, mut back) = (Counters::default(), Counters::default());
    let mut longest = (0, 0);
    let until = Instant::now() + Duration::from_secs(30);
    while !client.is_finished() {
        assert!(Instant::now() < until, "out {:?} back {:?}", out.transmitted(), back.transmitted());
        longest.0 = carry(&mut here, &mut there, &mut out).max(longest.0);
        longest.1 = carry(&mut there, &mut here, &mut back).max(longest.1);
        let mut fds = [&here, &there].map(|tap| PollFd::from_borrowed_fd(tap.descriptor().unwrap(), PollFlags::IN));
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })).unwrap();
    }
    assert!(client.join().unwrap() == data, "the bytes that came back");
    echo.join().unwrap();
    assert!(longest.0 > 20_000 && longest.1 > 20_000, "{longest:?}");
    for counters in [&out, &back] {
        assert_eq!(counters.transmit_drops.iter().chain(&counters.receive_drops).sum::<u64>(), 0);
        assert_eq!(counters.transmitted(), counters.taken());
        assert!(counters.transmitted().frames > 2 * counters.transmitted().packets);
    }
}

#[test]
fn who_may_not_make_a_tap_may_attach_to_one_that_is_there() {
    if !inside("who_may_not_make_a_tap_may_attach_to_one_that_is_there") {
        return;
    }
    ip("tuntap add dev world0 mode tap");
    // The only user here is root. A thread without the capability stands for another user.
    let refused = |name: &'static str| {
        let attach = move || {
            let mut ours = capabilities(None).unwrap();
            ours.effective -= CapabilitySet::NET_ADMIN;
            set_capabilities(None, ours).unwrap();
            Tap::open(name)
        };
        std::thread::spawn(attach).join().unwrap()
    };
    let missing = refused("world1").unwrap_err();
    assert!(matches!(&missing, TapError::Permission { name } if name == "world1"), "{missing}");
    // Any user may attach to a tap without an owner.
    refused("world0").unwrap();
}

#[test]
fn what_is_no_tap_is_named_by_its_kind_and_nothing_that_destroys_it_is_advised() {
    if !inside("what_is_no_tap_is_named_by_its_kind_and_nothing_that_destroys_it_is_advised") {
        return;
    }
    ip("link add br0 type bridge");
    ip("link add veth0 type veth peer name veth1");
    ip("tuntap add dev tun0 mode tun");
    ip("tuntap add dev many0 mode tap multi_queue");
    for (name, says) in [
        ("br0", "br0 is a bridge, not a tap: make a tap "),
        ("veth0", "veth0 is a veth, not a tap: make a tap "),
        ("lo", "lo is the loopback device, not a tap: "),
        ("tun0", "tun0 is a tun device, of IP packets, not a tap: "),
        ("many0", "tap many0 has several queues, and "),
    ] {
        let message = Tap::check(None, name).unwrap_err().to_string();
        assert!(message.starts_with(says) && !message.contains(" del"), "{message}");
        assert_eq!(Tap::open(name).unwrap_err().to_string(), message);
    }
    // The only user here is root. A thread without the capability stands for another user.
    let refused = std::thread::spawn(|| {
        let mut ours = capabilities(None).unwrap();
        ours.effective -= CapabilitySet::NET_ADMIN;
        set_capabilities(None, ours).unwrap();
        let message = Tap::check(None, "world1").unwrap_err().to_string();
        assert_eq!(Tap::open("world1").unwrap_err().to_string(), message);
        message
    });
    let absent = refused.join().unwrap();
    assert!(absent.starts_with("attaching to tap world1 needs CAP_NET_ADMIN"), "{absent}");
    Tap::check(None, "world1").unwrap();
    assert!(!Command::new("ip").args(["link", "show", "world1"]).output().unwrap().status.success(), "it is not made");
}

#[test]
fn errors_say_what_to_do() {
    let long = Tap::open("a-name-that-is-too-long").unwrap_err();
    assert!(long.to_string().contains("1 to 15 characters"), "{long}");
    let denied = TapError::Permission { name: "tap0".to_owned() };
    assert!(denied.to_string().contains("ip tuntap add dev tap0 mode tap user $USER"), "{denied}");
}
