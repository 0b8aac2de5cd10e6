//! `nicety-uio` in a guest: adapters that no kernel has a driver for, driven from user space, with a tap as the guest's interface.

use std::path::Path;

use nicety_guests::{Archive, Folder, Guest, GuestConfig, Kernel, Layer};

use crate::{
    scp::{self, copy, serve},
    stage::{LATER, Stage, address, amount, ping, quiet, send, sh, well},
    user_mode::machine,
};

/// What a Rust program needs and the guest's image has not.
const PACKAGES: &[&str] = &["libgcc-s1"];
const LIBRARY: &str = "usr/lib/x86_64-linux-gnu/libgcc_s.so.1";
/// OpenSSH, as a guest without the host's files needs it.
const OPENSSH: [&str; 7] = [
    "usr/bin/scp",
    "usr/bin/ssh",
    "usr/bin/ssh-keygen",
    "usr/sbin/sshd",
    "usr/lib/openssh/sshd-session",
    "usr/lib/openssh/sshd-auth",
    "usr/lib/openssh/sftp-server",
];
const TAKEN: [&str; 3] = ["vmxnet", "vmxnet2", "flexible"];
/// The guest that answers, at its own port.
const PEER: u8 = TAKEN.len() as u8 + 1;

#[test]
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
    let program = Path::new(env!("CARGO_BIN_EXE_nicety-uio"));
    let folder = program.parent().unwrap_or(program).display();
    sh(&mut guest, &format!("mkdir /host; mount -t hostfs -o {folder} none /host; ln -s /host/nicety-uio /bin"));
    let unbound = sh(&mut guest, "nicety-uio 0000:00:00.0 t0 2>&1; [ $? = 1 ]");
    assert!(unbound.starts_with("nicety-uio: 0000:00:00.0 is not bound to uio_pci_generic; run\n"), "{unbound}");
    let nobody = sh(&mut guest, "su nobody -c 'nicety-uio 0000:00:00.0 t0 2>&1; [ $? = 1 ]'");
    assert_eq!(nobody, "nicety-uio: /proc/self/pagemap shows no page numbers: it takes root (CAP_SYS_ADMIN)\n");
    // One haul of pages is half of what is left.
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

/// What is to be done with the guest and its peer: at which port, of which adapter, with so many megabytes.
type Also<'a> = &'a mut dyn FnMut(&mut Guest, &mut Guest, (u8, &str, u32));

/// Ours in the guest at each of these adapters: packets of all sizes and TCP both ways, and what else is to be done; then the adapter
/// that was a pcnet before is one again.
fn drive(stage: &Stage, guest: &mut Guest, peer: &mut Guest, also: Also<'_>) {
    for (number, adapter) in (1..).zip(TAKEN) {
        let pci = hand_over(guest, number);
        start(guest, &pci, number);
        ping(guest, "", &address(PEER));
        ping(guest, "-s 1472 -M do", &address(PEER));
        let megabytes = amount(adapter, 8).max(4);
        send(guest, peer, &address(PEER), megabytes);
        send(peer, guest, &address(number), megabytes);
        also(guest, peer, (number, adapter, megabytes));
        let report = stage.report(&format!("vm{number}"));
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
        stop(guest, number);
    }
    let taken_back = "cd /sys/bus/pci; f=$(cat /tmp/function); echo >devices/$f/driver_override; echo $f >devices/$f/driver/unbind; \
                      modprobe pcnet32 2>/dev/null; echo $f >drivers_probe; until [ -e devices/$f/net ]; do usleep 20000; done; ls devices/$f/net";
    let name = sh(guest, taken_back);
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
    let (code, said) = run(&[]);
    assert!(code == Some(2) && said.starts_with("usage: nicety-uio PCI-ADDRESS TAP"), "{code:?} {said}");
    let (code, said) = run(&["0000:99:00.0", "t0"]);
    assert!(code == Some(1) && said.starts_with("nicety-uio: ") && said.lines().count() == 1, "{code:?} {said}");
}

fn config(stage: &Stage, folder: &Folder, openssh: &[u8]) -> GuestConfig {
    let layer = well(Layer::lay("libgcc", PACKAGES, &mut |line| eprintln!("{line}")));
    let mut program = Archive::new();
    program.file("bin/nicety-uio", 0o755, &well(std::fs::read(Path::new(env!("CARGO_BIN_EXE_nicety-uio")))));
    let archives = [&program.finish(), &well(layer.archive(&[LIBRARY])), openssh].concat();
    let config = GuestConfig {
        memory_mib: 768,
        drivers: vec!["uio_pci_generic".into(), "tun".into()],
        archive: Some(well(folder.write("uio.cpio", archives))),
        append: vec!["hugepages=32".into()],
        ..GuestConfig::new(Kernel::V6_12)
    };
    (1..PEER).fold(config, |config, number| stage.served.attach(config, &format!("vm{number}")))
}

/// Gives the function of this number among the network functions to `uio_pci_generic`; its PCI address.
fn hand_over(guest: &mut Guest, number: u8) -> String {
    let find = format!(
        "cd /sys/bus/pci; f=$(for d in devices/*; do case $(cat $d/class) in 0x02*) echo ${{d##*/}};; esac; done | sed -n {number}p)"
    );
    let give = "echo uio_pci_generic >devices/$f/driver_override; [ ! -e devices/$f/driver ] || echo $f >devices/$f/driver/unbind; \
                echo $f >drivers_probe; [ -d devices/$f/uio ] && echo $f | tee /tmp/function";
    sh(guest, &format!("{find}; {give}")).trim().to_owned()
}

fn start(guest: &mut Guest, pci: &str, number: u8) {
    let run = format!(
        "rm -f /tmp/uio; [ -e /dev/net/tun ] || {{ mkdir -p /dev/net; mknod /dev/net/tun c 10 200; }}; (nicety-uio {pci} v{number} vmxnet >/tmp/uio 2>&1; echo $? >>/tmp/uio) >/dev/null 2>&1 &"
    );
    sh(guest, &run);
    let said = sh(guest, "until [ -s /tmp/uio ]; do usleep 20000; done; cat /tmp/uio");
    let mac = format!("52:54:00:4e:03:{number:02x}");
    let asked = format!("{pci}: run `ip link set v{number} address {mac} up`\n");
    assert_eq!(said, asked);
    sh(guest, &format!("ip link set v{number} address {mac} up; ip addr add {}/24 dev v{number}", address(number)));
}

fn stop(guest: &mut Guest, number: u8) {
    sh(guest, "killall nicety-uio");
    let code = sh(guest, "until grep -x '[0-9]*' /tmp/uio; do usleep 20000; done");
    assert_eq!(code, "0\n", "v{number}");
}

/// What netperf and iperf measure, each way.
fn streams(guest: &mut Guest, peer: &mut Guest) -> String {
    sh(peer, "pidof netserver || netserver >/dev/null 2>&1");
    let one =
        |test: &str| format!("netperf -4 -H {} -t {test} -l 2 -P 0 -- -k THROUGHPUT,THROUGHPUT_UNITS", address(PEER));
    let said = well(guest.succeed(&format!("{}; {}", one("TCP_STREAM"), one("TCP_MAERTS")), LATER));
    let rates = said.split_whitespace().collect::<Vec<_>>().join(" ");
    sh(peer, "pidof iperf3 || iperf3 -s -D >/dev/null 2>&1; until netstat -ltn | grep -q :5201; do usleep 20000; done");
    let iperf = |way: &str| {
        format!(
            "iperf3 -4 -c {} -t 2 -f m {way} | sed -n 's/.* \\([0-9.]* Mbits.sec\\).*receiver/\\1/p'",
            address(PEER)
        )
    };
    let said = well(guest.succeed(&format!("{}; {}", iperf(""), iperf("-R")), LATER));
    let figures: Vec<&str> = said.lines().collect();
    assert_eq!(figures.len(), 2, "{said}");
    format!("netperf {rates}, iperf3 {}", figures.join(" "))
}
