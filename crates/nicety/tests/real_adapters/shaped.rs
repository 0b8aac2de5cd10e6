//! Shaping under the TCP of real guests, counted by the daemon.

use std::time::{Duration, Instant};

use nicety_guests::Guest;

use crate::{
    stage::{Stage, address, port, quiet, sh, well},
    user_mode::machine,
};

/// Time until TCP has reached its rate, and the time that is measured.
const BEFORE: Duration = Duration::from_secs(2);
const COUNTED: Duration = Duration::from_secs(6);
const BURST: f64 = 65_536.0;

/// Headers of a TCP segment over IPv4 with time stamps.
const HEADERS: f64 = 66.0;

/// Bytes that the receiver's port has delivered, with the headers of each segment.
fn bytes(stage: &Stage) -> f64 {
    let report = stage.report("vm2");
    let count = |key: &str| -> f64 {
        report["receive"].as_array().into_iter().flatten().filter_map(|queue| queue[key].as_f64()).sum()
    };
    count("bytes") + (count("frames") - count("packets")) * HEADERS
}

#[test]
fn tcp_between_guests_gets_what_a_shape_gives_and_no_more() {
    for (adapter, rate, mbps) in [("e1000", "100Mbit/s", 100.0), ("vmxnet3", "1Gbit/s", 1000.0)] {
        for direction in ["send", "receive"] {
            let shape = format!(
                "{direction}_average = \"{rate}\"\n{direction}_peak = \"{rate}\"\n{direction}_burst = \"64KiB\"\n"
            );
            let shaped = if direction == "send" { 1 } else { 2 };
            let ports = [1, 2].map(|number| {
                let mut port = port(adapter, number);
                port.more = if number == shaped { shape.clone() } else { String::new() };
                port
            });
            let stage = Stage::with(ports.into());
            let mut guests = [1, 2].map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number))));
            guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
            let [left, right] = &mut guests;
            let receive = "(nc -l -p 9000 -e dd bs=64k of=/dev/null >/dev/null 2>&1 &)";
            sh(right, &format!("{receive}; until netstat -ltn | grep -q :9000; do rest; done"));
            // dd uses the connection directly: nc would copy a kilobyte at a time.
            sh(left, &format!("(nc {} 9000 -e dd bs=64k if=/dev/zero >/dev/null 2>&1 &)", address(2)));
            std::thread::sleep(BEFORE);
            let (asked, before) = (Instant::now(), bytes(&stage));
            let (counted, began) = (Instant::now(), bytes(&stage) - before);
            std::thread::sleep(COUNTED);
            let (least, carried) = (counted.elapsed().as_secs_f64(), bytes(&stage) - before);
            let most = asked.elapsed().as_secs_f64();
            let carried_mbps = (carried - began) * 8.0 / 1e6 / least;
            println!(
                "{adapter}, {direction}_average {rate}: {carried_mbps:.2} Mbit/s, {:.4} of it",
                carried_mbps / mbps
            );
            let allowed = mbps * 1e6 / 8.0 * most + BURST + 65_536.0;
            assert!(carried <= allowed, "{carried} bytes of {allowed}");
            // TCP makes progress even on a busy host.
            assert!(carried_mbps > mbps / 4.0, "{carried_mbps} of {mbps}");
            guests.iter_mut().for_each(quiet);
        }
    }
}
