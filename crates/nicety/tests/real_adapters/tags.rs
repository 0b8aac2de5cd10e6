//! Provider tags (IEEE 802.1ad), for which none of these adapters has hardware, with a customer's tag inside. The longest frame of
//! a Gigabit chip without jumbo frames has 1522 bytes (Intel 317453, RCTL.LPE): room for one tag.

use nicety_guests::Guest;
use nicety_trials::scope::{in_linux as entries, pairs_of};

use crate::{
    stage::{Stage, ping, quiet, send, sh, well},
    user_mode::machine,
};

/// Tagged interfaces of the guest. Linux makes the outer tags in software, since its adapter supports only 802.1Q. An 802.1Q
/// interface makes the adapter strip tags, and pass only its number (e1000's VFTA); neither may affect an 802.1ad tag, of the same
/// number or another.
const TAGS: &str = "ip link add link eth0 name q100 type vlan id 100 && ip link set q100 up && \
                    ip link add link eth0 name s100 type vlan protocol 802.1ad id 100 && ip link set s100 up && \
                    ip link add link eth0 name s200 type vlan protocol 802.1ad id 200 && ip link set s200 up && \
                    ip link add link s200 name c5 type vlan id 5 && ip link set c5 mtu 1496 up";

#[test]
fn provider_tags_and_customer_tags_in_them_pass_between_adapters() {
    let entries = entries();
    let adapters: Vec<&str> = entries.iter().map(|entry| entry.about.name).collect();
    let stage = Stage::new(&adapters);
    let numbers = (1..).take(adapters.len());
    let mut guests: Vec<Guest> =
        numbers.map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)))).collect();
    for (number, guest) in (1..).zip(&mut guests) {
        stage.ready(guest.wait_ready());
        sh(guest, TAGS);
        sh(guest, &format!("ip addr add {}/24 dev s100; ip addr add {}/24 dev c5", outer(number), inner(number)));
    }
    for [from, to] in pairs_of(&adapters) {
        let (one, other) = (from as u8 + 1, to as u8 + 1);
        let Ok([left, right]) = guests.get_disjoint_mut([from, to]) else { continue };
        ping(left, "-s 1472 -M do", &outer(other));
        ping(right, "-s 1468 -M do", &inner(one));
        send(left, right, &outer(other), 1);
        send(left, right, &inner(other), 1);
        println!("{} to {}: 802.1ad, and 802.1Q in it", adapters[from], adapters[to]);
    }
    guests.iter_mut().for_each(quiet);
}

/// A guest's address behind the provider's tag.
fn outer(number: u8) -> String {
    format!("10.9.6.{number}")
}

/// A guest's address behind both tags.
fn inner(number: u8) -> String {
    format!("10.9.7.{number}")
}
