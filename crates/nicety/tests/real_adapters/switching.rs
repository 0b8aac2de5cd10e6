//! Guests with different adapters on one switch, and the host behind a tap.

use nicety_adapters::REGISTRY;
use nicety_lab::real::{Guest, Kernel};

use crate::stage::{HOST, LATER, Stage, address, ping, send, sh, well};

/// What the host sends: enough for many windows, and the same each time.
const SENT: &str = "\"$busybox\" sh -c '\"$0\" yes nicety | \"$0\" head -c 8000000' \"$busybox\"";

/// Starts busybox's nc on the host's side, with this program at a connection's end.
fn listen(stage: &mut Stage, port: u16, program: &str) {
    let listening = format!("\"$busybox\" netstat -ltn | \"$busybox\" grep -q :{port}");
    let script = format!(
        "\"$busybox\" nc -l -p {port} -e {program} >/dev/null & until {listening}; do \"$busybox\" usleep 20000; done"
    );
    well(stage.namespace.run(&script, LATER));
}

/// TCP both ways with the host, compared byte by byte.
fn with_the_host(stage: &mut Stage, guest: &mut Guest) {
    ping(guest, "", HOST);
    listen(stage, 9100, "\"$busybox\" sha256sum");
    let made = "dd if=/dev/urandom of=/tmp/sent bs=1M count=8 2>/dev/null; sha256sum </tmp/sent";
    let sums = sh(guest, &format!("{made}; nc {HOST} 9100 </tmp/sent"));
    let (sent, came) = sums.split_once('\n').unwrap_or_default();
    assert_eq!(sent, came.trim_end(), "to the host");

    let sent = well(stage.namespace.run(&format!("{SENT} | \"$busybox\" sha256sum"), LATER));
    listen(stage, 9101, SENT);
    assert_eq!(sh(guest, &format!("nc {HOST} 9101 </dev/null | sha256sum")).trim(), sent.trim(), "from the host");
}

#[test]
fn guests_with_different_adapters_reach_each_other_and_the_host() {
    let adapters: Vec<&str> = REGISTRY.iter().map(|entry| entry.about.name).collect();
    let mut stage = Stage::new(&adapters);
    let numbers: Vec<u8> = (1..).take(adapters.len()).collect();
    let mut guests: Vec<Guest> =
        numbers.iter().map(|&number| well(Guest::start(&stage.root, stage.config(Kernel::V6_12, number)))).collect();
    for guest in &mut guests {
        stage.ready(guest.wait_ready());
    }
    for from in 0..guests.len() {
        for (to, &number) in numbers.iter().enumerate() {
            if let Ok([one, other]) = guests.get_disjoint_mut([from, to]) {
                ping(one, "", &address(number));
                send(one, other, &address(number), 4);
            }
        }
    }
    for guest in &mut guests {
        with_the_host(&mut stage, guest);
    }
}
