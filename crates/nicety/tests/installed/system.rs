//! A Debian with systemd as its first process, in a user-mode guest.

use std::time::Duration;

use nicety_guests::uml::{UmlConfig, UmlKernel};
use nicety_guests::{Debian, DebianGuest, Guest, Root, Suite};
use serde_json::{Value, json};

use crate::{Packages, say, well};

pub const SOON: Duration = Duration::from_secs(120);
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// Waits until the journal's records of a unit contain the words: the journal reads what it is sent a little later. `journalctl --sync`
/// writes only what it has read (before systemd 258).
#[track_caller]
pub fn logs(guest: &mut Guest, chosen: &str, words: &str) {
    let shown = format!("journalctl -u {chosen} --no-pager");
    let waits = format!(
        "for n in $(seq 100); do {shown} >/tmp/shown; grep -qF '{words}' /tmp/shown && break; sleep 0.2; done; cat /tmp/shown"
    );
    contains(&run(guest, &waits), words);
}

/// A guest with the packages in its folder.
pub fn booted(suite: Suite) -> Guest {
    let root = well(Root::lay(&mut say));
    let kernel = well(UmlKernel::lay(&mut say));
    let debian = well(Debian::system(suite, &mut say));
    let append = if has_landlock(suite) { Vec::new() } else { vec!["lsm=capability".to_owned()] };
    let machine = UmlConfig { memory_mib: 768, boot_limit: BOOT_LIMIT, append, ..UmlConfig::new(&kernel) };
    let package = |revision| (format!("{revision}.deb"), std::fs::read(Packages::made().path(revision)).unwrap());
    let mut guest = well(debian.guest(&root, DebianGuest { machine, files: [1, 2].map(package).into() }));
    well(guest.wait_ready());
    println!("{suite}: ready after {:?}", guest.boot_time());
    guest
}

/// The older release's kernel starts without Landlock.
fn has_landlock(suite: Suite) -> bool {
    suite != Suite::Bookworm
}

/// Runs a command that succeeds.
#[track_caller]
pub fn run(guest: &mut Guest, command: &str) -> String {
    well(guest.succeed(command, SOON))
}

/// Runs a command that fails, and returns what it said.
#[track_caller]
fn fails(guest: &mut Guest, command: &str) -> String {
    let output = well(guest.run(command, SOON));
    assert_ne!(output.code, 0, "{command}: {}", output.text);
    output.text
}

#[track_caller]
pub fn contains(text: &str, words: &str) {
    assert!(text.contains(words), "{words:?} is not in: {text}");
}

/// The port table of a host file.
fn port(name: &str, adapter: &str, last: u8) -> String {
    format!(
        "\\n[[port]]\\nname = \\\"{name}\\\"\\nadapter = \\\"{adapter}\\\"\\nmac = \\\"52:54:00:12:34:0{last}\\\"\\n\
         socket = \\\"/run/nicety/{name}.sock\\\"\\n"
    )
}

/// Starts an embedded guest (`nicety guest guest`), whose orders come from a pipe, and waits until it has answered.
fn station(guest: &mut Guest, name: &str, attach: &Value, last: u8) {
    let order = json!({ "configure": { "attach": attach, "address": [10, 0, 0, last] } });
    let command = format!(
        "mkfifo {name}.in; systemd-run --quiet --unit={name} sh -c 'exec nicety guest guest <>/root/{name}.in >/root/{name}.out 2>&1'
         echo '{order}' >{name}.in; for i in $(seq 300); do grep -q . {name}.out 2>/dev/null && break; sleep 0.1; done; cat {name}.out
         grep -q ready {name}.out || {{ systemctl status {name}; journalctl --no-pager -n 40; nicety ports; ps axo pid,stat,wchan:20,comm | tail -20; }}"
    );
    contains(&run(guest, &command), "\"ready\"");
}

/// One guest sends TCP to another for a moment. Returns the bytes that it sent.
fn carried(guest: &mut Guest, from: &str, to: u8) -> u64 {
    let order = json!({ "send": { "to": [10, 0, 0, to], "seconds": 0.3 } });
    let command = format!(
        "n=$(wc -l <{from}.out); echo '{order}' >{from}.in
         for i in $(seq 300); do [ $(wc -l <{from}.out) -gt $n ] && break; sleep 0.1; done; tail -n1 {from}.out"
    );
    let answer: Value = serde_json::from_str(run(guest, &command).trim()).unwrap();
    answer["sent"]["bytes"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

/// Everything that an admin does with it, on one release.
fn lifetime(suite: Suite) {
    let mut guest = booted(suite);
    let guest = &mut guest;
    let installed = run(guest, "apt-get -q install -y ./1.deb 2>&1");
    assert!(!installed.contains("warning: nicety"), "{installed}");
    assert_eq!(well(guest.run("systemctl is-enabled nicety", SOON)).text.trim(), "disabled");
    assert_eq!(well(guest.run("systemctl is-active nicety", SOON)).text.trim(), "inactive");
    contains(&run(guest, "getent passwd nicety"), ":/var/lib/nicety:");
    // With all tests it is the program of a release, as `lint.rs` has it of the package.
    let profile = if nicety_trials::scope::is_full() { "release" } else { "given" };
    contains(&run(guest, "cat /usr/share/doc/nicety/build-information"), &format!("profile: {profile}\n"));

    // It serves the package's own example.
    run(
        guest,
        "systemctl enable --now nicety 2>&1 || { systemctl status nicety; journalctl -u nicety --no-pager; exit 1; }",
    );
    contains(&run(guest, "systemctl status nicety"), "Status: \"1 port, 0 with a VM; no uplink\"");
    contains(&run(guest, "nicety ports"), "vm1");
    contains(&run(guest, "stat -c '%U:%G %a' /run/nicety/vm1.sock"), "nicety:nicety 660");
    contains(&run(guest, &format!("grep -h ^Cap /proc/{DAEMON}/status")), "CapBnd:\t0000000000001000");

    // Another member of the group: /etc/group is another file from now on.
    run(guest, "usermod --append --groups nicety daemon");
    // No file has this name: systemd's module is asked.
    contains(&fails(guest, "nicety port set vm1 group=nobody-knows-it 2>&1"), "nobody-knows-it");
    nothing_was_refused(guest);
    // Changed, and reloaded; two guests talk.
    run(guest, &format!("printf \"{}\" >>/etc/nicety/host.toml && systemctl reload nicety", port("vm2", "e1000", 2)));
    // Their memory is in files that the unit's mounts do not hide.
    station(guest, "one", &json!({ "vhost-user": { "socket": "/run/nicety/vm1.sock", "memory": "/dev/shm" } }), 1);
    let two = json!({ "vfio-user": { "driver": "e1000", "socket": "/run/nicety/vm2.sock", "memory": "/dev/shm" } });
    station(guest, "two", &two, 2);
    let bytes = carried(guest, "one", 2);
    assert!(bytes > 100_000, "{bytes}");
    contains(
        &run(
            guest,
            "for i in $(seq 100); do systemctl status nicety | grep -q '2 ports, 2 with a VM' && break; sleep 0.2; done; \
                          systemctl show -P StatusText nicety",
        ),
        "2 ports, 2 with a VM; no uplink",
    );

    // A change that would cut a VM off is refused, with the reason.
    run(guest, "cp /etc/nicety/host.toml good.toml; sed -i 's/12:34:02/12:34:09/' /etc/nicety/host.toml");
    contains(&fails(guest, "systemctl reload nicety 2>&1"), "ailed");
    // The reason is an error there.
    logs(guest, "nicety -p err", "nicety: this cuts VMs off");
    logs(guest, "nicety", "vm2");
    run(guest, "cp good.toml /etc/nicety/host.toml; systemctl reload nicety");
    journal(guest);
    let lacks = "journalctl -u nicety -p warning --no-pager | grep -c 'this kernel has no Landlock: threads that make changes may open'";
    assert_eq!(well(guest.run(lacks, SOON)).text.trim(), if has_landlock(suite) { "0" } else { "1" });
    newer_state_file(guest);

    replaced_in_place(guest, "apt-get -q install -y ./2.deb 2>&1");
    // An older one does the same, or refuses (`scripts.rs`): dpkg warns and installs it.
    replaced_in_place(guest, "dpkg -i ./1.deb 2>&1");
    killed(guest);
    run(guest, "systemctl stop one two || true");
    ends_while_the_journal_stands_still(guest);
    newer_state_file_is_left(guest);

    wrong_host_file(guest);
    rights(guest);
    missing_tap(guest);
    another_mount(guest);
    watchdog(guest);
    instances(guest);

    nothing_was_refused(guest);
    // Removed and then purged, or purged while it serves: nothing is left but the user.
    run(guest, "systemctl is-active nicety nicety@lan");
    if suite == Suite::Bookworm {
        // A folder of the admin's is mounted in that of the sockets, and the state has a file system of its own.
        let mounts =
            "mkdir -p /srv/theirs /run/nicety/vms; touch /srv/theirs/file; mount --bind /srv/theirs /run/nicety/vms";
        run(guest, mounts);
        contains(&run(guest, "apt-get -q remove -y nicety 2>&1"), "nicety: /run/nicety stays with its folders");
        fails(guest, "systemctl is-active nicety nicety@lan");
        run(guest, "test -e /etc/nicety/host.toml && test -e /srv/theirs/file && ls -A /run/nicety | grep -qx vms");
        run(guest, "umount /run/nicety/vms; mount -t tmpfs state /var/lib/nicety; touch /var/lib/nicety/host.state");
    }
    contains(
        &run(guest, "rm /etc/nicety/lan.toml; apt-get -q purge -y nicety 2>&1; echo ended with $?"),
        "ended with 0",
    );
    if suite == Suite::Bookworm {
        run(guest, "test -z \"$(ls -A /var/lib/nicety)\"; umount /var/lib/nicety; rm -r /var/lib/nicety /srv/theirs");
    }
    run(guest, "test ! -e /run/nicety");
    fails(guest, "systemctl is-active nicety nicety@lan");
    let left = run(
        guest,
        "find / -xdev -iname '*nicety*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/root/*' \
                           -not -path '/var/lib/dpkg/*' -not -path '/var/log/*' -not -path '/var/cache/*' -not -path '/tmp/*'",
    );
    assert_eq!(left.trim(), "", "left behind");
    contains(&run(guest, "getent passwd nicety"), "nologin");
}

/// The daemon's process: the child of the unit's main process, the keeper.
pub const DAEMON: &str = "$(pgrep -f -P $(systemctl show -P MainPID nicety) -- --kept | tail -n1)";

/// Another package replaces the daemon, and neither guest notices.
fn replaced_in_place(guest: &mut Guest, install: &str) {
    let keeper = run(guest, "systemctl show -P MainPID nicety");
    let before = run(guest, &format!("echo {DAEMON}"));
    let upgraded = run(guest, install);
    contains(&upgraded, "nicety.service goes on with the new program: nicety ");
    contains(&upgraded, "(2 ports)");
    assert_eq!(run(guest, "systemctl show -P MainPID nicety"), keeper, "the unit was not restarted");
    assert_ne!(run(guest, &format!("echo {DAEMON}")), before, "another daemon serves");
    run(guest, "systemctl is-active nicety");
    contains(&run(guest, "nicety ports"), "vm2");
    for (from, to) in [("one", 2), ("two", 1)] {
        let bytes = carried(guest, from, to);
        assert!(bytes > 100_000, "{from}: {bytes}");
    }
    // The new daemon reports for the unit.
    let status = "for i in $(seq 100); do systemctl status nicety | grep -q '2 ports, 2 with a VM' && break; sleep 0.2; done; \
                  systemctl show -P StatusText nicety";
    contains(&run(guest, status), "2 ports, 2 with a VM; no uplink");
    let closed = "journalctl --sync; journalctl -u nicety --no-pager | grep disconnected || true";
    assert_eq!(run(guest, closed).trim(), "");
}

/// The keeper starts a killed daemon again, and the unit stays up.
fn killed(guest: &mut Guest) {
    let (keeper, before) = (run(guest, "systemctl show -P MainPID nicety"), run(guest, &format!("echo {DAEMON}")));
    run(
        guest,
        &format!("kill -9 {DAEMON}; for i in $(seq 100); do nicety ports && break; sleep 0.1; done; nicety ports"),
    );
    assert_eq!(run(guest, "systemctl show -P MainPID nicety"), keeper);
    assert_ne!(run(guest, &format!("echo {DAEMON}")), before);
    assert_eq!(run(guest, "systemctl show -P NRestarts nicety").trim(), "0");
    run(guest, "systemctl is-active nicety");
}

/// The journal looks up a record's unit by the process that has sent it, so the daemon waits until its last record is read.
fn ends_while_the_journal_stands_still(guest: &mut Guest) {
    let daemon = run(guest, &format!("echo {DAEMON}"));
    // After five seconds the journal forgets what it knows of a process.
    run(
        guest,
        "sleep 6; journal=$(systemctl show -P MainPID systemd-journald); kill -STOP $journal; (sleep 1; kill -CONT $journal) & \
         systemctl restart nicety",
    );
    logs(guest, &format!("nicety _PID={}", daemon.trim()), "ending signal=");
}

/// The sandbox's lists are long enough for this Debian.
#[track_caller]
fn nothing_was_refused(guest: &mut Guest) {
    let refused =
        "journalctl --sync; journalctl -u nicety -u 'nicety@*' --no-pager | grep 'the sandbox refused' || true";
    assert_eq!(run(guest, refused).trim(), "");
}

/// The log is in the journal, with its fields.
fn journal(guest: &mut Guest) {
    let text = run(guest, "journalctl -u nicety PORT=vm1 -o json --no-pager");
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let connected =
        records.iter().find(|one| one["MESSAGE"].as_str().is_some_and(|text| text.contains("has connected")));
    let connected = connected.unwrap_or_else(|| panic!("{text}"));
    assert_eq!((&connected["PRIORITY"], &connected["SYSLOG_IDENTIFIER"]), (&json!("6"), &json!("nicety")));
    assert!(connected["VM_PID"].as_str().is_some_and(|pid| pid.parse::<u32>().is_ok()), "{connected}");
    assert_eq!(connected["_SYSTEMD_UNIT"], json!("nicety.service"));
}

/// The state file of a newer program, as a person has who installs an older package again: its lines, and the digest of them.
fn newer() -> String {
    let lines = "{\"version\":2,\"what\":[\"nobody knows\"]}\n";
    format!("{lines}crc32 {:08x}\n", nicety_frame::crc::fcs(lines.as_bytes()))
}

fn newer_state_file(guest: &mut Guest) {
    let state = "/var/lib/nicety/host.state";
    run(guest, &format!("test ! -e {state}; cat >{state} <<'END'\n{}END\nchown nicety: {state}", newer()));
}

/// After the upgrade: the daemon serves the host file, says so, and neither uses nor loses the file; a live change says that it is not kept.
fn newer_state_file_is_left(guest: &mut Guest) {
    let state = "/var/lib/nicety/host.state";
    let sentence =
        "is of version 2, and this program knows 1: the host file is served, and what is changed live is not kept";
    logs(guest, "nicety -p warning", &format!("the state file {state} {sentence}"));
    contains(&run(guest, "nicety ports"), "vm2");
    let changed = well(guest.run("nicety port set vm1 mtu_limit=1400 2>&1", SOON)).text;
    contains(&changed, &format!("{state} is of a newer version of nicety, and is left as it is: move it away"));
    assert_eq!(run(guest, &format!("cat {state}")).trim(), newer().trim());
    // Moved away, it is in nobody's way.
    run(guest, &format!("mv {state} /root/; nicety port set vm1 mtu_limit=1300; test -e {state}"));
    run(
        guest,
        "nicety port set vm1 mtu_limit=1500; nicety apply /etc/nicety/host.toml </dev/null; systemctl restart nicety",
    );
}

/// Without its capability, and without a tap that somebody else has made for it, the unit says what to do, and begins by itself when
/// the tap is there.
fn missing_tap(guest: &mut Guest) {
    let tap = "printf '[[uplink]]\\nkind = \"tap\"\\nname = \"tap1\"\\n' | cat - good.toml >/etc/nicety/host.toml";
    let none = "mkdir -p /run/systemd/system/nicety.service.d; cd /run/systemd/system/nicety.service.d; \
                printf '[Service]\\nCapabilityBoundingSet=\\nAmbientCapabilities=\\nRestartSec=3\\n' >none.conf; systemctl daemon-reload";
    run(guest, tap);
    run(guest, none);
    fails(guest, "systemctl reset-failed nicety; systemctl restart nicety 2>&1");
    let why = "attaching to tap tap1 needs CAP_NET_ADMIN, or make the tap first: ip tuntap add dev tap1 mode tap user ";
    logs(guest, "nicety -p err", why);
    run(guest, "ip tuntap add dev tap1 mode tap user nicety");
    run(
        guest,
        "for i in $(seq 100); do systemctl is-active nicety && break; sleep 0.2; done; systemctl is-active nicety",
    );
    contains(&run(guest, "systemctl show -P StatusText nicety"), "; uplink tap1");
    run(guest, &format!("grep -q 'CapEff:.0000000000000000' /proc/{DAEMON}/status"));
    run(guest, "rm -r /run/systemd/system/nicety.service.d; systemctl daemon-reload");
    run(
        guest,
        "cp good.toml /etc/nicety/host.toml; systemctl reset-failed nicety; systemctl restart nicety; ip link delete tap1",
    );
}

/// A port whose folder is a mount of its own: at the start, and by a reload.
fn another_mount(guest: &mut Guest) {
    run(
        guest,
        "mkdir -p /srv/vms && mount -t tmpfs -o mode=755 vms /srv/vms && chown nicety: /srv/vms; mkdir -p /run/systemd/system/nicety.service.d; \
         printf '[Service]\\nReadWritePaths=/srv/vms\\n' >/run/systemd/system/nicety.service.d/mount.conf; systemctl daemon-reload",
    );
    run(
        guest,
        "sed 's#/run/nicety/vm2.sock#/srv/vms/vm2.sock#' good.toml >/etc/nicety/host.toml; systemctl reset-failed nicety; systemctl restart nicety",
    );
    let attach = json!({ "vfio-user": { "driver": "e1000", "socket": "/srv/vms/vm2.sock" } });
    station(guest, "mounted", &attach, 3);
    let third = port("vm3", "virtio-net", 3).replace("/run/nicety/", "/srv/vms/");
    run(
        guest,
        &format!("printf \"{third}\" >>/etc/nicety/host.toml && systemctl reload nicety && test -S /srv/vms/vm3.sock"),
    );
    run(
        guest,
        "systemctl stop mounted nicety; test ! -e /srv/vms/vm2.sock && test ! -e /srv/vms/vm3.sock && umount /srv/vms",
    );
    run(guest, "rm -r /run/systemd/system/nicety.service.d; systemctl daemon-reload");
    run(guest, "cp good.toml /etc/nicety/host.toml; systemctl reset-failed nicety; systemctl start nicety");
}

/// A daemon that stands still is replaced by its keeper, and a keeper that stands still by systemd's watchdog.
fn watchdog(guest: &mut Guest) {
    run(
        guest,
        "mkdir -p /run/systemd/system/nicety.service.d; cd /run/systemd/system/nicety.service.d; \
         printf '[Service]\\nWatchdogSec=8\\nTimeoutAbortSec=1\\nRestartSec=1\\n' >soon.conf; \
         systemctl daemon-reload; systemctl reset-failed nicety; systemctl restart nicety",
    );
    let (keeper, before) = (run(guest, "systemctl show -P MainPID nicety"), run(guest, &format!("echo {DAEMON}")));
    run(guest, &format!("kill -STOP {DAEMON}"));
    let replaced = format!("d={DAEMON}; [ \"$d\" ] && [ \"$d\" != {} ] && nicety ports >/dev/null 2>&1", before.trim());
    run(guest, &format!("for i in $(seq 300); do {replaced} && break; sleep 0.2; done; {replaced}"));
    assert_eq!(run(guest, "systemctl show -P MainPID nicety"), keeper, "the keeper goes on");
    logs(guest, "nicety", "workers stand still, for 8s: it is killed");
    let said = run(guest, "journalctl -u nicety --no-pager");
    assert!(!said.contains("Watchdog timeout"), "{said}");
    run(guest, "kill -STOP $(systemctl show -P MainPID nicety)");
    run(
        guest,
        "for i in $(seq 300); do [ $(systemctl show -P NRestarts nicety) -ge 1 ] && systemctl is-active nicety && break; sleep 0.2; done; \
         systemctl is-active nicety",
    );
    assert_ne!(run(guest, "systemctl show -P MainPID nicety"), keeper);
    logs(guest, "nicety", "Watchdog timeout (limit 8s)!");
    contains(&run(guest, "nicety ports"), "vm2");
    run(
        guest,
        "rm -r /run/systemd/system/nicety.service.d; systemctl daemon-reload; systemctl reset-failed nicety; systemctl restart nicety",
    );
}

/// The unit fails with the sentence, and is not started again and again.
fn wrong_host_file(guest: &mut Guest) {
    run(guest, "sed -i 's/\"e1000\"/\"e100\"/' /etc/nicety/host.toml");
    fails(guest, "systemctl restart nicety 2>&1");
    let sentence = "there is no adapter \"e100\"; did you mean \"e1000\"?";
    logs(guest, "nicety -p err", sentence);
    let status = well(guest.run("systemctl status nicety --no-pager --full", SOON)).text;
    contains(&status, sentence);
    contains(&status, "status=2");
    assert_eq!(run(guest, "systemctl show -P NRestarts nicety").trim(), "0");
    run(guest, "cp good.toml /etc/nicety/host.toml; systemctl reset-failed nicety; systemctl start nicety");
}

/// With its one capability it makes a tap; a socket outside its folders is refused with a sentence.
fn rights(guest: &mut Guest) {
    // udev's 50-udev-default.rules does the same; this guest has no udev.
    run(guest, "chmod 666 /dev/net/tun");
    let tap = "printf '[[uplink]]\\nkind = \"tap\"\\nname = \"tap0\"\\n' | cat - good.toml >/etc/nicety/host.toml; systemctl restart nicety || \
               { systemctl status nicety --no-pager --full; ls -l /dev/net/tun; false; }";
    run(guest, tap);
    contains(&run(guest, "systemctl show -P StatusText nicety"), "; uplink tap0");
    contains(&run(guest, "ip -o link show tap0"), "tap0");
    run(guest, "sed 's#/run/nicety/vm2.sock#/srv/vm2.sock#' good.toml >/etc/nicety/host.toml");
    // One start alone: each has to say why.
    fails(guest, "systemctl restart nicety 2>&1; code=$?; systemctl stop nicety; exit $code");
    // `systemctl status` shows only what was said since the unit began to wait for its next start.
    logs(guest, "nicety -p err", "the socket /srv/vm2.sock cannot be made");
    logs(guest, "nicety -p warning", "(ReadWritePaths=/srv)");
    run(guest, "cp good.toml /etc/nicety/host.toml; systemctl reset-failed nicety; systemctl start nicety");
}

/// Further daemons: one with the first one's host file is refused with a sentence; one with its own serves, and stays when the other ends.
fn instances(guest: &mut Guest) {
    run(guest, "cp good.toml /etc/nicety/twice.toml");
    fails(guest, "systemctl start nicety@twice 2>&1");
    logs(guest, "nicety@twice", "switch0.sock is that of process");
    run(guest, "systemctl reset-failed nicety@twice; rm /etc/nicety/twice.toml");
    // The very same file.
    fails(guest, "systemctl start nicety@host 2>&1");
    logs(guest, "nicety@host", "a daemon serves /etc/nicety/host.toml already: process ");
    run(guest, "systemctl stop nicety@host; systemctl reset-failed nicety@host; systemctl is-active nicety");
    run(
        guest,
        "sed 's/switch0/lan/; s/host.state/lan.state/; s/vm1/lan1/; s/vm2/lan2/' good.toml >/etc/nicety/lan.toml",
    );
    run(guest, "systemctl enable --now nicety@lan 2>&1; systemctl is-active nicety@lan");
    run(guest, "systemctl stop nicety; test -S /run/nicety/lan1.sock");
    contains(&run(guest, "nicety ports --all"), "/etc/nicety/lan.toml");
    run(guest, "systemctl start nicety");
}

#[test]
#[ignore = "only with --full: Debian 13 in the usual run"]
fn debian_12_installs_it_and_an_admin_can_do_with_it_what_he_does_with_any_daemon() {
    lifetime(Suite::Bookworm);
}

#[test]
fn debian_13_installs_it_and_an_admin_can_do_with_it_what_he_does_with_any_daemon() {
    lifetime(Suite::Trixie);
}
