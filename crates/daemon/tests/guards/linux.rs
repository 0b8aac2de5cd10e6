//! The kernel as a host behind a tap.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_adapter::{Batch, Counters, Frames, Pick, PortId, Time, Uplink as _};
use nicety_memory::Map;
use nicety_uplink::Tap;

use crate::namespace::ip;

fn set(key: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{key}"), value).unwrap_or_else(|error| panic!("{key}: {error}"));
}

/// A host with addresses, routers and DHCP clients.
pub struct Linux {
    tap: Tap,
    counters: Counters,
    clients: [UdpSocket; 2],
    /// Answers that the clients have received.
    offers: String,
    /// The interface's number, and the sockets that joined groups at it.
    index: u32,
    members: Vec<UdpSocket>,
}

impl Linux {
    pub fn new() -> Self {
        let tap = Tap::open("host0").unwrap();
        // Routes of redirects also use the loopback.
        ip("link set lo up");
        for (key, value) in [("accept_dad", "0"), ("accept_ra", "1"), ("accept_redirects", "1"), ("autoconf", "0")] {
            set(&format!("ipv6/conf/host0/{key}"), value);
        }
        for interface in ["all", "host0"] {
            set(&format!("ipv4/conf/{interface}/accept_redirects"), "1");
        }
        ip("link set host0 address 02:00:00:00:00:02");
        ip("link set host0 up");
        for address in ["10.0.0.2/16", "fe80::2/64"] {
            ip(&format!("address add {address} dev host0"));
        }
        for (router, target) in [("10.0.0.1", "10.9.0.0/16"), ("fe80::1", "2001:db8::/32")] {
            ip(&format!("neighbour add {router} lladdr 02:00:00:00:00:01 dev host0"));
            ip(&format!("route add {target} via {router} dev host0"));
        }
        ip("neighbour add 10.0.0.77 lladdr 02:00:00:00:00:77 dev host0");
        // An advertisement changes only neighbours that are known already.
        let known = |number| format!("neighbour add fe80::2:{number:x} lladdr 02:00:00:00:00:99 nud stale dev host0\n");
        ip(&(1..=u8::MAX).map(known).collect::<String>());
        let client = |address: &str| {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let clients = [client("10.0.0.2:68"), client("[::]:546")];
        let index = ip("link show host0").split(':').next().unwrap().parse().unwrap();
        Self { tap, counters: Counters::default(), clients, offers: String::new(), index, members: Vec::new() }
    }

    /// Sends frames to the host, one by one. The kernel has handled a frame when the call that writes it returns
    /// (drivers/net/tun.c, tun_get_user).
    pub fn hears(&mut self, frames: &[Vec<u8>]) {
        let map = Arc::new(Map::private(4096).unwrap());
        let mut batch = Batch::new();
        for bytes in frames {
            map.write(0, bytes).unwrap();
            batch.start(&map, PortId(0), 0);
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, bytes.len() as u32).unwrap();
            draft.finish_plain(0);
            let picks = [Pick::whole(0)];
            let delivery = self.tap.deliver(&Frames::new(&batch, &picks), &mut self.counters, Time::ZERO);
            assert_eq!(delivery.refused(), 0);
        }
    }

    /// Joins groups. If they are many, several sockets share them, within `igmp_max_memberships` and `optmem_max`.
    pub fn joins(&mut self, groups: &[IpAddr]) {
        for some in groups.chunks(16) {
            let [v4, v6] = ["0.0.0.0:0", "[::]:0"].map(|address| UdpSocket::bind(address).unwrap());
            for group in some {
                match group {
                    IpAddr::V4(group) => v4.join_multicast_v4(group, &[10, 0, 0, 2].into()).unwrap(),
                    IpAddr::V6(group) => v6.join_multicast_v6(group, self.index).unwrap(),
                }
            }
            self.members.extend([v4, v6]);
        }
    }

    /// The groups that were queried: their timers run, or have expired and the host was a reporter (net/ipv4/igmp.c,
    /// igmp_mc_seq_show; net/ipv6/mcast.c, igmp6_mc_seq_show, MAF_TIMER_RUNNING and MAF_LAST_REPORTER).
    pub fn answers(&self) -> BTreeSet<IpAddr> {
        let [v4, v6] = ["igmp", "igmp6"].map(|name| std::fs::read_to_string(format!("/proc/net/{name}")).unwrap());
        let v4 = v4.lines().filter_map(|line| {
            let [group, _, timer, reporter] = line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
            let group = u32::from_str_radix(group, 16).ok()?.to_ne_bytes();
            (timer.starts_with("1:") || reporter == "1").then_some(IpAddr::from(group))
        });
        let v6 = v6.lines().filter_map(|line| {
            let [_, _, group, _, flags, _] = line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
            let was_asked = u32::from_str_radix(flags, 16).ok()? & 3 != 0;
            was_asked.then_some(IpAddr::from(u128::from_str_radix(group, 16).ok()?.to_be_bytes()))
        });
        v4.chain(v6).collect()
    }

    /// Waits for another thread of the kernel to do something.
    pub fn wait_until(&self, is_done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(5);
        while !is_done(self) {
            assert!(Instant::now() < end, "the kernel has not done it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The host's routes, its neighbours, and the answers that its clients received.
    pub fn shown(&mut self) -> String {
        let mut data = [0; 100];
        for (socket, port) in self.clients.iter().zip([68, 546]) {
            while let Ok(len) = socket.recv(&mut data) {
                self.offers.push_str(&format!("port {port} has had {} \n", data[len - 1]));
            }
        }
        let far: String = (1..=u8::MAX).map(|number| format!("route get 10.9.0.{number}\n")).collect();
        // The routes of IPv6, in the order of their table.
        let routes = std::fs::read_to_string("/proc/net/ipv6_route").unwrap();
        [routes, ip(&format!("neighbour show dev host0\n{far}")), self.offers.clone()].concat()
    }
}
