//! Guests with different adapters on one switch, and the host behind a tap.

use nicety_guests::{Guest, Kernel};
use nicety_trials::scope::{in_linux as entries, pairs_of, reference};

use crate::{
    stage::{HOST, LATER, Stage, address, amount, ping, send, sh, well},
    user_mode::machine,
};

/// Prints the host's data: always the same.
fn sent(megabytes: u32) -> String {
    format!("\"$busybox\" sh -c '\"$0\" yes nicety | \"$0\" head -c {megabytes}000000' \"$busybox\"")
}

/// Starts busybox's nc on the host's side, with this program at each connection.
fn listen(stage: &mut Stage, port: u16, program: &str) {
    let listening = format!("\"$busybox\" netstat -ltn | \"$busybox\" grep -q :{port}");
    let script = format!(
        "\"$busybox\" nc -l -p {port} -e {program} >/dev/null & until {listening}; do \"$busybox\" usleep 20000; done"
    );
    well(stage.namespace.run(&script, LATER));
}

/// TCP in both directions with the host, compared byte by byte.
fn with_the_host(stage: &mut Stage, guest: &mut Guest, megabytes: u32) {
    ping(guest, "", HOST);
    listen(stage, 9100, "\"$busybox\" sha256sum");
    let made = format!("dd if=/dev/urandom of=/tmp/sent bs=1M count={megabytes} 2>/dev/null; sha256sum </tmp/sent");
    let sums = sh(guest, &format!("{made}; nc {HOST} 9100 </tmp/sent"));
    let (sent, came) = sums.split_once('\n').unwrap_or_default();
    assert_eq!(sent, came.trim_end(), "to the host");

    let program = self::sent(megabytes);
    let sent = well(stage.namespace.run(&format!("{program} | \"$busybox\" sha256sum"), LATER));
    listen(stage, 9101, &program);
    assert_eq!(sh(guest, &format!("nc {HOST} 9101 </dev/null | sha256sum")).trim(), sent.trim(), "from the host");
}

/// The guests of most pairs are in QEMU; the others are in user mode, which boots in a second.
#[test]
fn guests_with_different_adapters_reach_each_other_and_the_host() {
    let adapters: Vec<&str> = entries().iter().map(|entry| entry.about.name).collect();
    let mut stage = Stage::new(&adapters);
    let start = |(number, adapter): (u8, &&str)| {
        let in_qemu = *adapter == reference().about.name;
        let qemu = || Guest::start(&stage.root, stage.config(Kernel::V6_12, number));
        well(if in_qemu { qemu() } else { Guest::start(&stage.root, stage.at_port(machine(1), number)) })
    };
    let mut guests: Vec<Guest> = (1..).zip(&adapters).map(start).collect();
    for guest in &mut guests {
        stage.ready(guest.wait_ready());
    }
    for [from, to] in pairs_of(&adapters) {
        let Ok([one, other]) = guests.get_disjoint_mut([from, to]) else { continue };
        let to_number = address(to as u8 + 1);
        ping(one, "", &to_number);
        send(one, other, &to_number, amount(adapters[from], 4).min(amount(adapters[to], 4)));
    }
    for (guest, adapter) in guests.iter_mut().zip(&adapters) {
        with_the_host(&mut stage, guest, amount(adapter, 8));
    }
}
