//! Files by `scp`, out of a guest and into it, over every adapter. Under this test hypervisors' adapters have been seen to stall,
//! with their drivers logging "Tx Unit Hang" or "transmit timed out".

use std::time::{Duration, Instant};

use nicety_guests::{Guest, Layer};
use nicety_trials::scope::{in_linux as entries, is_full};

use crate::{
    stage::{SOON, Stage, address, amount, ping, quiet, sh, well},
    user_mode::{machine, take},
};

/// OpenSSH, which no guest's image has.
pub const PACKAGES: &[&str] = &["openssh-server", "openssh-client"];
/// Files of OpenSSH that a guest needs, by path.
const FILES: [&str; 5] = ["usr/bin/scp", "usr/bin/ssh", "usr/bin/ssh-keygen", "usr/sbin/sshd", "usr/lib/openssh"];
/// Megabytes of a file, or as many as an adapter carries in a gigabit's time; and files in each direction, in a normal and in a
/// full run.
const FILE: u32 = 12;
const FILES_EACH_WAY: [u32; 2] = [1, 25];
/// Time after which `scp` itself reports a stall (STALL_TIME in OpenSSH's progressmeter.c).
const STALL: Duration = Duration::from_secs(5);

#[test]
#[ignore = "only with --full: drivers.rs sends in the usual run"]
fn scp_carries_files_out_and_in_over_every_adapter_without_a_stall_or_a_driver_s_word() {
    let layer = well(Layer::lay("openssh", PACKAGES, &mut |line| eprintln!("{line}")));
    let adapters: Vec<&str> = entries().iter().map(|entry| entry.about.name).collect();
    let server = adapters.len() as u8 + 1;
    let stage = Stage::new(&[&adapters[..], &["virtio-net"]].concat());
    let mut guests: Vec<Guest> =
        (1..=server).map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)))).collect();
    for guest in &mut guests {
        stage.ready(guest.wait_ready());
        take(guest, &layer, &FILES);
    }
    let Some((peer, guests)) = guests.split_last_mut() else { return };
    let key = serve(peer);
    for ((number, adapter), guest) in (1..).zip(&adapters).zip(guests) {
        sh(guest, &format!("umask 077; printf '%s\n' '{key}' >/tmp/key"));
        ping(guest, "", &address(server));
        let megabytes = if is_full() { FILE } else { amount(adapter, FILE) };
        let (begin, mut files) = (Instant::now(), 0);
        while files < FILES_EACH_WAY[usize::from(is_full())] {
            let made =
                format!("dd if=/dev/urandom of=/tmp/out bs=1M count={megabytes} 2>/dev/null; sha256sum </tmp/out");
            let sum = sh(guest, &made);
            copy(&stage, guest, number, &format!("/tmp/out {}:/tmp/file", address(server)));
            assert_eq!(sh(peer, "sha256sum </tmp/file"), sum, "{adapter}: what came out");
            copy(&stage, guest, number, &format!("{}:/tmp/file /tmp/in", address(server)));
            assert_eq!(sh(guest, "sha256sum </tmp/in"), sum, "{adapter}: what came in");
            files += 1;
        }
        println!("{adapter}: {} MB out and in by scp in {:.1?}", files * megabytes, begin.elapsed());
        quiet(guest);
    }
    quiet(peer);
}

/// Starts a server that accepts one key. Returns that key.
pub fn serve(peer: &mut Guest) -> String {
    let keys = "ssh-keygen -q -t ed25519 -N '' -f /tmp/host; ssh-keygen -q -t ed25519 -N '' -f /tmp/client";
    let user = "mkdir -p /run/sshd; echo sshd:x:74:74::/run/sshd:/bin/false >>/etc/passwd";
    let server = "/usr/sbin/sshd -f /dev/null -h /tmp/host -o StrictModes=no -o AuthorizedKeysFile=/tmp/client.pub -o \
                  'Subsystem sftp internal-sftp'";
    sh(peer, &format!("{keys}; {user}; {server}; until netstat -ltn | grep -q :22; do rest; done"));
    sh(peer, "cat /tmp/client").trim().to_owned()
}

/// Copies one file. Frames must pass in every interval of a few seconds until `scp` succeeds.
pub fn copy(stage: &Stage, guest: &mut Guest, number: u8, from_to: &str) {
    let scp = "scp -q -i /tmp/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null";
    sh(guest, &format!("rm -f /tmp/ended; ({scp} {from_to} >/tmp/said 2>&1; echo $? >/tmp/ended) >/dev/null 2>&1 &"));
    let port = format!("vm{number}");
    let (mut frames, mut moved) = (stage.received(&port), Instant::now());
    while sh(guest, "[ -s /tmp/ended ] || usleep 100000; cat /tmp/ended 2>/dev/null || true").is_empty() {
        let now = stage.received(&port);
        if now != frames {
            (frames, moved) = (now, Instant::now());
        }
        assert!(moved.elapsed() < STALL, "scp {from_to} stalls: {}", stage.report(&port));
    }
    assert_eq!(well(guest.succeed("cat /tmp/said /tmp/ended", SOON)), "0\n", "scp {from_to}");
}
