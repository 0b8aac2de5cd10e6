//! `nicety-uio` in a guest: adapters without a kernel driver, driven from user space, with a tap as the guest's interface.

use std::{path::Path, sync::atomic::AtomicBool};

use nicety_guests::{Folder, Guest, GuestConfig, Kernel, Layer, Tap, Uio};

use crate::{
    scp::{self, copy, serve},
    stage::{LATER, Stage, address, amount, mac, ping, quiet, send, sh, well},
    user_mode::machine,
};

/// Files of OpenSSH for a guest without the host's files.
const OPENSSH: [&str; 7] = [
    "usr/bin/scp",
    "usr/bin/ssh",
    "usr/bin/ssh-keygen",
    "usr/sbin/sshd",
    "usr/lib/openssh/sshd-session",
    "usr/lib/openssh/sshd-auth",
    "usr/lib/openssh/sftp-server",
];
const TAKEN: [&str; 3] = Uio::DRIVES;
/// The guest that answers, at its own port.
const PEER: u8 = TAKEN.len() as u8 + 1;

#[test]
#[ignore = "only with --full: in a user-mode guest in the usual run"]
fn vmxnet_and_enhanced_vmxnet_carry_tcp_in_a_real_guest_by_a_driver_in_its_user_space() {
    let stage = Stage::new(&[&TAKEN[..], &["vmxnet3"]].concat());
    let folder = well(Folder::new());
    let openssh = well(well(Layer::lay("openssh", scp::PACKAGES, &mut |line| eprintln!("{line}"))).archive(&OPENSSH));
    let archive = Some(well(folder.write("openssh.cpio", &openssh)));
    let mut peer = well(Guest::start(&stage.root, GuestConfig { archive, ..stage.config(Kernel::V6_12, PEER) }));
    let mut guest = stage.ready(Guest::boot(&stage.root, config(&stage, &folder, &openssh)));
    stage.ready(peer.wait_ready());
    let key = serve(&mut peer);
    sh(&mut guest, &format!("umask 077; printf '%s\n' '{key}' >/tmp/key"));
    drive(&stage, &mut guest, &mut peer, &mut |guest, peer, (number, adapter, megabytes)| {
        let made = format!("dd if=/dev/urandom of=/tmp/out bs=1M count={megabytes} 2>/dev/null; sha256sum </tmp/out");
        let sum = sh(guest, &made);
        copy(&stage, guest, number, &format!("/tmp/out {}:/tmp/file", address(PEER)));
        assert_eq!(sh(peer, "sha256sum </tmp/file"), sum, "{adapter}: what came out");
        copy(&stage, guest, number, &format!("{}:/tmp/file /tmp/in", address(PEER)));
        assert_eq!(sh(guest, "sha256sum </tmp/in"), sum, "{adapter}: what came in");
        println!("{adapter}: {megabytes} MB each way by nc and by scp, then {}", streams(guest, peer));
    });
}

#[test]
fn vmxnet_and_enhanced_vmxnet_carry_tcp_in_a_user_mode_guest_by_a_driver_in_its_user_space() {
    let stage = Stage::new(&[&TAKEN[..], &["vmxnet3"]].concat());
    let mut peer = well(Guest::start(&stage.root, stage.at_port(machine(1), PEER)));
    let all = (1..PEER).fold(machine(1), |machine, number| stage.served.attach(machine, &format!("vm{number}")));
    let mut guest = stage.ready(Guest::boot(&stage.root, all));
    stage.ready(peer.wait_ready());
    well(uio().in_user_mode(&mut guest, &GO_ON));
    let unbound = sh(&mut guest, "nicety-uio 0000:00:00.0 t0 2>&1; [ $? = 1 ]");
    assert!(unbound.starts_with("nicety-uio: 0000:00:00.0 is not bound to uio_pci_generic; run\n"), "{unbound}");
    let nobody = sh(&mut guest, "su nobody -c 'nicety-uio 0000:00:00.0 t0 2>&1; [ $? = 1 ]'");
    assert_eq!(nobody, "nicety-uio: /proc/self/pagemap shows no page numbers: it takes root (CAP_SYS_ADMIN)\n");
    // Fills the memory: one allocation of pages is half of the rest.
    let fill = "mkdir /full; mount -t tmpfs -o size=100% none /full; left=$(sed -n 's/MemAvailable: *\\([0-9]*\\) .*/\\1/p' /proc/meminfo); \
                dd if=/dev/zero of=/full/file bs=64k count=$(((left - 12000) / 64)) 2>/dev/null";
    let little = sh(&mut guest, &format!("{fill}; nicety-uio 0000:00:00.0 t0 2>&1; [ $? = 1 ] && umount /full"));
    assert!(little.starts_with("nicety-uio: half of the free memory has only "), "{little}");
    drive(&stage, &mut guest, &mut peer, &mut |guest, peer, (_, adapter, megabytes)| {
        println!("{adapter}: {megabytes} MB each way");
        if adapter == "vmxnet2" {
            println!("{adapter}: {}", streams(guest, peer));
        }
    });
}

/// Never set: these commands are not cancelled.
static GO_ON: AtomicBool = AtomicBool::new(false);

fn uio() -> Uio {
    well(Uio::beside(Path::new(env!("CARGO_BIN_EXE_nicety"))))
}

/// Further tests with the guest and its peer: the port's number, the adapter, and the megabytes.
type Also<'a> = &'a mut dyn FnMut(&mut Guest, &mut Guest, (u8, &str, u32));

/// Runs nicety-uio in the guest for each of these adapters: packets of all sizes, TCP in both directions, and further tests. Then
/// checks that the adapter that was a pcnet before is one again.
fn drive(stage: &Stage, guest: &mut Guest, peer: &mut Guest, also: Also<'_>) {
    let mut function = String::new();
    for (number, adapter) in (1..).zip(TAKEN) {
        function = well(Uio::hand_over(guest, number, &GO_ON));
        let (name, mac, own) = (format!("v{number}"), mac(number), format!("{}/24", address(number)));
        well(Uio::start(guest, &function, Tap { name: &name, mac: &mac, address: &own }, &GO_ON));
        ping(guest, "", &address(PEER));
        ping(guest, "-s 1472 -M do", &address(PEER));
        let megabytes = amount(adapter, 8).max(4);
        send(guest, peer, &address(PEER), megabytes);
        send(peer, guest, &address(number), megabytes);
        also(guest, peer, (number, adapter, megabytes));
        let report = stage.report(&format!("vm{number}"));
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
        well(Uio::stop(guest, &GO_ON));
    }
    let taken_back = "cd /sys/bus/pci; echo >devices/$f/driver_override; echo $f >devices/$f/driver/unbind; \
                      modprobe pcnet32 2>/dev/null; echo $f >drivers_probe; until [ -e devices/$f/net ]; do rest; done; ls devices/$f/net";
    let name = sh(guest, &format!("f={function}; {taken_back}"));
    sh(guest, &format!("ip addr add {}/24 dev {name}", address(TAKEN.len() as u8)).replace('\n', ""));
    sh(guest, &format!("ip link set {} up", name.trim()));
    ping(guest, "", &address(PEER));
    quiet(guest);
    quiet(peer);
}

#[test]
fn nicety_uio_says_what_is_missing() {
    let run = |words: &[&str]| {
        let output = well(std::process::Command::new(env!("CARGO_BIN_EXE_nicety-uio")).args(words).output());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = run(&[]);
    assert!(code == Some(2) && text.starts_with("usage: nicety-uio PCI-ADDRESS TAP"), "{code:?} {text}");
    let (code, text) = run(&["0000:99:00.0", "t0"]);
    assert!(code == Some(1) && text.starts_with("nicety-uio: ") && text.lines().count() == 1, "{code:?} {text}");
}

fn config(stage: &Stage, folder: &Folder, openssh: &[u8]) -> GuestConfig {
    let config = GuestConfig { memory_mib: 768, ..GuestConfig::new(Kernel::V6_12) };
    let config = well(uio().in_qemu(config, folder, openssh));
    (1..PEER).fold(config, |config, number| stage.served.attach(config, &format!("vm{number}")))
}

/// Rates of netperf and iperf, in each direction.
fn streams(guest: &mut Guest, peer: &mut Guest) -> String {
    sh(peer, "pidof netserver || netserver >/dev/null 2>&1");
    let one =
        |test: &str| format!("netperf -4 -H {} -t {test} -l 2 -P 0 -- -k THROUGHPUT,THROUGHPUT_UNITS", address(PEER));
    let text = well(guest.succeed(&format!("{}; {}", one("TCP_STREAM"), one("TCP_MAERTS")), LATER));
    let rates = text.split_whitespace().collect::<Vec<_>>().join(" ");
    sh(peer, "pidof iperf3 || iperf3 -s -D >/dev/null 2>&1; until netstat -ltn | grep -q :5201; do rest; done");
    let iperf = |way: &str| {
        format!(
            "iperf3 -4 -c {} -t 2 -f m {way} | sed -n 's/.* \\([0-9.]* Mbits.sec\\).*receiver/\\1/p'",
            address(PEER)
        )
    };
    let text = well(guest.succeed(&format!("{}; {}", iperf(""), iperf("-R")), LATER));
    let figures: Vec<&str> = text.lines().collect();
    assert_eq!(figures.len(), 2, "{text}");
    format!("netperf {rates}, iperf3 {}", figures.join(" "))
}
