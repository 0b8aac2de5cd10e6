use std::path::Path;

use crate::Host;
use crate::card::tests::function;
use crate::io_classes::tests::class;
use crate::tests::parse;

/// Two functions of a card behind a link of a gigabit, and a third port.
fn functions_at(first: &str, second: &str, more: &str) -> String {
    let [first, second] = [(1, first), (2, second)]
        .map(|(number, least)| function(number, &format!("card = \"nic\"\nfunction = {number}\n{least}")));
    format!(
        "[[uplink]]\nname = \"up\"\nkind = \"null\"\nrate = \"1Gbit/s\"\n\
         [[card]]\nname = \"nic\"\nchip = \"82576\"\nuplink = \"up\"\n{first}{second}{}{more}",
        function(3, "")
    )
}

#[test]
fn a_function_s_minimum_rate_is_its_port_s_reservation_in_the_class_of_its_frames() {
    let classes = |first: &str, second: &str, more: &str| {
        let host = parse(&functions_at(first, second, more)).unwrap();
        host.outward_classes_of(&host.uplinks[0])
    };
    assert!(classes("", "", "").is_empty(), "nobody has one: no I/O control");
    let mbit = |rate: u64| nicety_uplink::Rate::new(rate * 1_000_000);
    let of = |port: &str, rate| (port.to_owned(), mbit(rate).unwrap());
    let [vm] = &classes("min_rate = \"300Mbit/s\"", "min_rate = \"450Mbit/s\"", "")[..] else { panic!() };
    assert_eq!((vm.name.as_str(), vm.terms.reservation), ("vm", mbit(750)), "75 % of the link may be reserved");
    assert_eq!(vm.minimums, [of("f1", 300), of("f2", 450)]);
    // A class that has all frames of the second, and one that has some of the first's.
    let more = class("a", "ports = \"f1\"\nvlan = 7") + &class("b", "ports = \"f2,f3\"\nreservation = \"300Mbit/s\"");
    let [vm, a, b] = &classes("min_rate = \"100Mbit/s\"", "min_rate = \"200Mbit/s\"", &more)[..] else { panic!() };
    assert_eq!((vm.minimums.clone(), vm.terms.reservation), (vec![of("f1", 100)], mbit(100)));
    assert_eq!((a.minimums.len(), a.terms.reservation), (0, None));
    assert_eq!((b.minimums.clone(), b.terms.reservation), (vec![of("f2", 200)], mbit(300)), "within the class's own");
    let host = parse(&functions_at("min_rate = \"100Mbit/s\"", "", "")).unwrap();
    assert!(host.classes_of(&host.uplinks[0]).is_empty(), "inward there is none");
}

#[test]
fn minimum_rates_that_cannot_be_kept_are_refused_with_the_arithmetic() {
    let of = |first: &str, second: &str, more: &str| {
        let errors = Host::parse(&functions_at(first, second, more), Path::new("/h")).unwrap_err();
        let [error] = &errors.list[..] else { panic!("{errors}") };
        format!("{}: {}", error.key, error.what)
    };
    let [most, one] = ["min_rate = \"500Mbit/s\"", "min_rate = \"251Mbit/s\""];
    assert_eq!(
        of(most, one, ""),
        "port.min_rate: 500Mbit/s + 251Mbit/s = 751Mbit/s are reserved on up, and 75 % of its slowest link may be: 750Mbit/s of the 1Gbit/s of up"
    );
    assert_eq!(
        of(most, "", &class("nfs", "reservation = \"300Mbit/s\"")),
        "port.min_rate: 300Mbit/s + 500Mbit/s = 800Mbit/s are reserved on up, and 75 % of its slowest link may be: 750Mbit/s of the 1Gbit/s of up"
    );
    assert_eq!(
        of(most, "", &class("vm", "limit = \"400Mbit/s\"")),
        "port.min_rate: with it 500Mbit/s are reserved for ports of class vm, which may send 400Mbit/s (limit)"
    );
    assert_eq!(
        of(most, "", &class("vm", "port_limit = \"400Mbit/s\"")),
        "port.min_rate: a port of class vm may send at most 400Mbit/s (port_limit)"
    );
    let shaped = format!("{most}\nsend_average = \"400Mbit/s\"");
    assert_eq!(of(&shaped, "", ""), "port.min_rate: it may send at most 400Mbit/s (send_average)");
    let error = |text: String| Host::parse(&text, Path::new("/h")).unwrap_err().list[0].what.clone();
    let text = functions_at(most, "", "");
    assert_eq!(
        error(text.replace("rate = \"1Gbit/s\"\n", "")),
        "uplink up has no rate, and a reservation is a part of it: give it the link's rate"
    );
    assert_eq!(error(text.replace("uplink = \"up\"\n", "")), "card nic has no uplink, of which it would be a part");
    let queues = text.replace("kind = \"null\"\nrate = \"1Gbit/s\"", "kind = \"tap\"\nqueues = 2");
    assert_eq!(error(queues), "uplink up has no rate, and a reservation is a part of it: give it the link's rate");
    assert!(error(function(1, most)).contains("only a port at a card's function has this"));
}
