//! The kernel as a host behind a tap.

use std::fs::File;
use std::io::Write as _;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nicety_adapter::{Batch, Counters, Frames, Offload, Pick, PortId, Time, Uplink as _};
use nicety_memory::Map;
use nicety_uplink::Tap;

const INSIDE: &str = "NICETY_GUARD_TEST_INSIDE";

/// Runs the named test of this file in namespaces of its own. True inside of them.
pub fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let driver = File::options().read(true).write(true).open("/dev/net/tun").map(drop);
    let namespaces = Command::new("unshare").args(["-Urn", "ip", "link"]).output();
    let reason = match (driver, namespaces) {
        (Err(error), _) => Some(format!("/dev/net/tun: {error}")),
        (_, Err(error)) => Some(format!("unshare: {error}")),
        (_, Ok(output)) if !output.status.success() => {
            Some(format!("unshare -Urn ip link: {}", String::from_utf8_lossy(&output.stderr)))
        }
        _ => None,
    };
    if let Some(reason) = reason {
        // Past the harness, which keeps the output of tests that pass to itself.
        let _nobody_listens = writeln!(std::io::stdout(), "\nSKIPPED {test}: {}", reason.trim());
        return false;
    }
    let mut again = Command::new("unshare");
    again.arg("-Urn").arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let output = again.output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{error}");
    print!("{out}");
    false
}

/// Runs `ip` with each of these lines and returns what it shows.
fn ip(lines: &str) -> String {
    let mut child = Command::new("ip");
    child.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "ip {lines}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn set(key: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{key}"), value).unwrap_or_else(|error| panic!("{key}: {error}"));
}

/// A host with addresses, routers and clients of DHCP.
pub struct Linux {
    tap: Tap,
    counters: Counters,
    clients: [UdpSocket; 2],
    /// What the clients have had.
    answers: String,
}

impl Linux {
    pub fn new() -> Self {
        let tap = Tap::open("host0").unwrap();
        // The loopback takes part in redirects' routes.
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
        // An advertisement tells of those that are known already.
        let known = |number| format!("neighbour add fe80::2:{number:x} lladdr 02:00:00:00:00:99 nud stale dev host0\n");
        ip(&(1..=u8::MAX).map(known).collect::<String>());
        let client = |address: &str| {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let clients = [client("10.0.0.2:68"), client("[::]:546")];
        Self { tap, counters: Counters::default(), clients, answers: String::new() }
    }

    /// Frames arrive, each by itself. The kernel is done with one when the call that writes it returns (drivers/net/tun.c, tun_get_user).
    pub fn hears(&mut self, frames: &[Vec<u8>]) {
        let map = Arc::new(Map::private(4096).unwrap());
        let mut batch = Batch::new();
        for bytes in frames {
            map.write(0, bytes).unwrap();
            batch.start(&map, PortId(0), 0);
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, bytes.len() as u32).unwrap();
            draft.finish(Offload::default(), 0);
            let picks = [Pick::whole(0)];
            let delivery = self.tap.deliver(&Frames::new(&batch, &picks), &mut self.counters, Time::ZERO);
            assert_eq!(delivery.refused(), 0);
        }
    }

    /// Its routes, its neighbours, and what its clients have had.
    pub fn shown(&mut self) -> String {
        let mut data = [0; 100];
        for (socket, port) in self.clients.iter().zip([68, 546]) {
            while let Ok(len) = socket.recv(&mut data) {
                self.answers.push_str(&format!("port {port} has had {} \n", data[len - 1]));
            }
        }
        let far: String = (1..=u8::MAX).map(|number| format!("route get 10.9.0.{number}\n")).collect();
        // Of IPv6; its routes in the order of their table.
        let routes = std::fs::read_to_string("/proc/net/ipv6_route").unwrap();
        [routes, ip(&format!("neighbour show dev host0\n{far}")), self.answers.clone()].concat()
    }
}
