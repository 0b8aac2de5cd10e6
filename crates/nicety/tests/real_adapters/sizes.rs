//! A datagram of each size, from empty to the largest that fits, out of a guest and back into it, over every adapter. Each byte is
//! compared.

use std::time::Instant;

use nicety_adapters::find;
use nicety_guests::{Guest, Layer};
use nicety_trials::scope::{in_linux as entries, is_asked, is_full};

use crate::{
    stage::{Stage, address, ping, quiet, send, sh, usual, well},
    user_mode::{machine, take},
};

/// Perl, which no guest's image has.
pub const PACKAGES: &[&str] = &["perl-base"];
/// Files of Perl that a guest needs.
pub const FILES: [&str; 2] = ["usr/bin/perl", "usr/lib/x86_64-linux-gnu/perl-base"];
/// An adapter without DMA, which [`entries`] leaves out: one datagram of each size is not too much for it.
const PORTS_ALONE: &str = "ne2k_pci";
/// Longest packets of a chip here; paravirtual adapters carry longer ones.
const LONGEST: u32 = 16_110;
/// Bytes of the IPv4 and UDP headers.
const HEADERS: u32 = 28;
/// Step between the sizes beyond an ordinary frame's, in a normal and in a full run.
const STEP: [u32; 2] = [31, 1];

/// Echoes each datagram.
const ECHO: &str = r#"use Socket; socket(S, PF_INET, SOCK_DGRAM, 0); bind(S, sockaddr_in(7, INADDR_ANY)) or die $!;
while ($from = recv(S, $d, 65536, 0)) { send(S, $d, 0, $from); }"#;
/// Prints how many sizes came back whole, or which one did not. It tries each size of an ordinary frame.
const ASK: &str = r#"use Socket; ($to, $last, $step) = @ARGV; socket(S, PF_INET, SOCK_DGRAM, 0); connect(S, sockaddr_in(7, inet_aton($to))) or die $!;
srand(7); $all .= chr(rand(256)) for 1 .. $last + 256;
for $n (grep { $_ <= 1472 || $_ == $last || $_ % $step == 0 } 0 .. $last) { $sent = substr($all, $n % 256, $n); $d = undef; defined(send(S, $sent, 0)) or die "$n: $!"; $r = ""; vec($r, fileno(S), 1) = 1;
  select($r, undef, undef, 20) or die "of $n bytes none came back"; recv(S, $d, 65536, 0);
  $d eq $sent or die "of $n bytes others came back: " . length($d); $count++; }
print $count;"#;

/// The largest datagram that a guest with this adapter sends, after its interface has the largest MTU.
fn largest(adapter: &str, guest: &mut Guest) -> u32 {
    let mtu = find(adapter).map_or(1500, |entry| entry.about.mtu_max.min(LONGEST));
    sh(guest, &format!("[ $(cat /sys/class/net/eth0/mtu) = {mtu} ] || ip link set eth0 mtu {mtu}"));
    sh(guest, "until has_carrier eth0; do rest; done");
    mtu - HEADERS
}

#[test]
fn a_datagram_of_each_size_goes_out_and_comes_back_whole_over_every_adapter() {
    let layer = well(Layer::lay("perl", PACKAGES, &mut |line| eprintln!("{line}")));
    let mut adapters: Vec<&str> = entries().iter().map(|entry| entry.about.name).collect();
    if is_asked(PORTS_ALONE) && !adapters.contains(&PORTS_ALONE) {
        adapters.push(PORTS_ALONE);
    }
    let server = adapters.len() as u8 + 1;
    let stage = Stage::new(&[&adapters[..], &["virtio-net"]].concat());
    let mut guests: Vec<Guest> =
        (1..=server).map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)))).collect();
    for guest in &mut guests {
        stage.ready(guest.wait_ready());
        take(guest, &layer, &FILES);
    }
    let Some((peer, guests)) = guests.split_last_mut() else { return };
    largest("virtio-net", peer);
    sh(peer, &format!("(perl -e '{ECHO}' >/dev/null 2>&1 &); until netstat -lun | grep -q ':7 '; do rest; done"));
    for ((number, adapter), guest) in (1..).zip(&adapters).zip(guests) {
        let last = largest(adapter, guest);
        ping(guest, "", &address(server));
        let begin = Instant::now();
        let step = STEP[usize::from(is_full())];
        let count = sh(guest, &format!("perl -e '{ASK}' {} {last} {step}", address(server)));
        let sizes = (0..=last).filter(|n| *n <= 1472 || *n == last || n % step == 0).count();
        assert_eq!(count, sizes.to_string(), "{adapter}");
        println!("{adapter}: {count} sizes up to {last} bytes, there and back, in {:.1?}", begin.elapsed());
        quiet(guest);
        let report = stage.report(&format!("vm{number}"));
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
    }
}

#[test]
fn intel_s_chips_carry_the_longest_frames_that_they_have_and_drop_longer_ones_as_too_long() {
    // Longest frame of each chip: its registers' limit, or the limit that igb's driver sets; and whether such a frame reaches the
    // guest: e1000e's driver gives a frame four buffers.
    let mut chips = vec![("e1000", 16_376, true), ("e1000e", 16_376, false), ("igb", 9716, true)];
    chips.retain(|(chip, ..)| is_asked(chip));
    let names: Vec<&str> = chips.iter().map(|(chip, ..)| *chip).chain(["virtio-net"]).collect();
    let stage = Stage::new(&names);
    let last = names.len() as u8;
    let mut guests: Vec<Guest> =
        (1..=last).map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)))).collect();
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    let Some((peer, guests)) = guests.split_last_mut() else { return };
    for ((number, guest), (chip, longest, reaches)) in (1..).zip(guests).zip(chips) {
        let mtu = find(chip).map_or(0, |entry| entry.about.mtu_max);
        sh(peer, &format!("ip link set eth0 mtu {mtu}"));
        let carrier = "until has_carrier eth0; do rest; done";
        sh(guest, &format!("ip link set eth0 mtu {mtu} && ! ip link set eth0 mtu {} 2>/dev/null; {carrier}", mtu + 1));
        ping(guest, &format!("-s {} -M do", mtu - 28), &address(last));
        ping(peer, &format!("-s {} -M do", mtu - 28), &address(number));
        send(guest, peer, &address(last), usual(8));
        send(peer, guest, &address(number), usual(8));

        sh(peer, &format!("ip link set eth0 mtu {longest}"));
        let port = format!("vm{number}");
        let long = |stage: &Stage| stage.report(&port)["receive_drops"]["too-long"].as_u64().unwrap_or(0);
        let before = long(&stage);
        let asks = |bytes: u32, ends: &str| {
            format!("/usr/bin/ping -n -q -c 3 -i 0.2 -W 1 -M do -s {} {} {ends}", bytes - 42, address(number))
        };
        sh(peer, &asks(longest, if reaches { "" } else { "|| true" }));
        assert_eq!(long(&stage), before, "{chip}: {}", stage.report(&port));
        sh(peer, &format!("! {}", asks(longest + 1, "")));
        assert_eq!(long(&stage) - before, 3, "{chip}: {}", stage.report(&port));
        println!("{chip}: an MTU of {mtu} both ways; frames longer than {longest} bytes dropped as too-long");
        quiet(guest);
        let report = stage.report(&port);
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
    }
}
