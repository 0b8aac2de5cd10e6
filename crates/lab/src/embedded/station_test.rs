//! Two stations joined by a socket, run in turns in one thread, without switch and adapter.

use nicety_frame::Mac;
use smoltcp::iface::Config;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Cidr};

use super::super::device::LinkDevice;
use super::super::pair::joined;
use super::super::words::Compared;
use super::*;

const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
/// Time limit for an answer, by the stations' own clock. That clock advances with each turn, so the machine's load does not matter.
const TIMEOUT: Duration = Duration::from_secs(20);
const TURN: Duration = Duration::from_micros(20);

/// Two stations and their clock.
struct Sides {
    sides: [Side; 2],
    begun: Instant,
    now: Instant,
    /// Time for which the second station does nothing at first.
    absent: Duration,
}

struct Side {
    device: LinkDevice,
    iface: Interface,
    station: Station,
}

impl Sides {
    fn new() -> Sides {
        let macs = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
        let mut number = 0;
        let sides = joined(macs).map(|link| {
            let (mac, address) = (macs[number], ADDRESSES[number]);
            number += 1;
            let mut device = LinkDevice::new(Box::new(link));
            let config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac.0)));
            let mut iface = Interface::new(config, &mut device, smoltcp::time::Instant::ZERO);
            iface.update_ip_addrs(|list| list.push(IpCidr::Ipv4(Ipv4Cidr::new(address.into(), 24))).unwrap());
            Side { device, iface, station: Station::new() }
        });
        let begun = Instant::now();
        Sides { sides, begun, now: begun, absent: Duration::ZERO }
    }

    fn begin(&mut self, task: Task, seconds: f64) -> Result<(), String> {
        let [Side { iface, station, .. }, _] = &mut self.sides;
        station.begin(iface, task, &[ADDRESSES[1]], seconds, self.now)
    }

    /// Runs both stations until the first has an answer.
    fn until_answer(&mut self) -> Answer {
        let late = self.now + TIMEOUT;
        while self.now < late {
            self.now += TURN;
            let since = self.now.duration_since(self.begun);
            let there = if since < self.absent { 1 } else { 2 };
            for (number, side) in self.sides.iter_mut().take(there).enumerate() {
                side.device.fill(64).unwrap();
                side.device.retry().unwrap();
                let now = smoltcp::time::Instant::from_micros(since.as_micros() as i64);
                side.iface.poll(now, &mut side.device, side.station.sockets());
                let (_, answer) = side.station.step(self.now);
                side.device.flush().unwrap();
                if let (0, Some(answer)) = (number, answer) {
                    return answer;
                }
            }
        }
        panic!("no answer in {TIMEOUT:?}");
    }
}

#[test]
fn what_a_station_sends_the_other_discards_and_counts_anew_for_each_connection() {
    let mut sides = Sides::new();
    for seconds in [0.2, 0.1] {
        sides.begin(Task::Send(Shape::default()), seconds).unwrap();
        let Answer::Sent { bytes } = sides.until_answer() else { panic!("another answer") };
        let (arrived, took) = sides.sides[1].station.discarded();
        assert!(bytes > 0);
        assert_eq!(arrived, bytes, "TCP lost nothing");
        assert!(took < TIMEOUT);
    }
}

#[test]
fn streams_of_a_shape_are_counted_together_and_each_has_the_buffer_that_was_asked_for() {
    let mut sides = Sides::new();
    for (streams, write_bytes, buffer_bytes) in [(16, 128 << 10, 64 << 10), (3, 128, 8 << 10), (1, 64 << 10, 512 << 10)]
    {
        let shape = Shape { streams, write_bytes, buffer_bytes };
        sides.sides[1].station.listen(shape);
        sides.begin(Task::Send(shape), 0.1).unwrap();
        let Answer::Sent { bytes } = sides.until_answer() else { panic!("another answer") };
        assert_eq!(sides.sides[1].station.discarded().0, bytes, "{shape:?}: TCP lost nothing");
        // Each stream fills its buffer at least once.
        assert!(bytes >= u64::from(streams) * u64::from(buffer_bytes), "{shape:?}: {bytes}");
    }
}

#[test]
fn every_transaction_is_measured() {
    let mut sides = Sides::new();
    sides.begin(Task::Transact, 0.1).unwrap();
    let Answer::Transacted { elapsed_ns, each_ns } = sides.until_answer() else { panic!("another answer") };
    assert!(!each_ns.is_empty());
    assert!(each_ns.iter().sum::<u64>() <= elapsed_ns, "transactions do not overlap");
}

#[test]
fn a_run_begins_when_the_other_side_is_reached_however_short_it_is() {
    for task in [Task::Transact, Task::Send(Shape::default())] {
        let mut sides = Sides::new();
        sides.absent = Duration::from_millis(1200);
        sides.begin(task, 0.05).unwrap();
        match sides.until_answer() {
            Answer::Transacted { each_ns, .. } => assert!(!each_ns.is_empty()),
            Answer::Sent { bytes } => assert!(bytes > 0),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn nobody_is_waited_for_long() {
    let mut sides = Sides::new();
    sides.absent = TIMEOUT;
    sides.begin(Task::Transact, 0.05).unwrap();
    let Answer::Transacted { each_ns, .. } = sides.until_answer() else { panic!("another answer") };
    assert!(each_ns.is_empty());
}

#[test]
fn a_service_answers_one_connection_right_after_the_other() {
    let mut sides = Sides::new();
    for _ in 0..30 {
        sides.begin(Task::Transact, 0.01).unwrap();
        let Answer::Transacted { each_ns, .. } = sides.until_answer() else { panic!("another answer") };
        assert!(!each_ns.is_empty(), "a client that leaves without a word would keep the service's socket");
    }
}

#[test]
fn an_order_while_another_is_obeyed_is_refused() {
    let mut sides = Sides::new();
    let task = Task::Send(Shape::default());
    sides.begin(task, 1.0).unwrap();
    assert!(sides.begin(task, 1.0).is_err());
}

#[test]
fn a_sender_with_a_limit_keeps_to_it_and_its_bytes_are_counted_by_sender_and_window() {
    let mut sides = Sides::new();
    let (a_second, seconds) = (4_000_000, 0.5);
    sides.begin(Task::SendPaced(Shape::default(), a_second), seconds).unwrap();
    let Answer::Sent { bytes } = sides.until_answer() else { panic!("another answer") };
    let write = u64::from(Shape::default().write_bytes);
    // Half a second, and a last write that passes the limit.
    assert!((1_800_000..=2_000_000 + write).contains(&bytes), "{bytes}");
    let windows = sides.sides[1].station.take_windows();
    let [(from, windows)] = windows.as_slice() else { panic!("{windows:?}") };
    assert_eq!((*from, windows.bytes.iter().sum::<u64>()), (ADDRESSES[0], bytes));
    assert!((5..=7).contains(&windows.bytes.len()), "{windows:?}");
    assert!(windows.bytes.iter().all(|bytes| *bytes <= a_second / 10 + 2 * write), "{windows:?}");
    assert!(sides.sides[1].station.take_windows().is_empty(), "they are given once");
}

#[test]
fn a_stream_that_is_compared_comes_back_whole_before_its_answer() {
    for a_second in [None, Some(1_000_000)] {
        let mut sides = Sides::new();
        sides.begin(Task::Compare(a_second), 0.2).unwrap();
        let Answer::Compared(Compared { sent, received, different }) = sides.until_answer() else {
            panic!("another answer")
        };
        assert!(sent > 100_000 && a_second.is_none_or(|_| sent <= 200_000), "{sent}");
        assert_eq!((received, different), (sent, 0));
    }
}
