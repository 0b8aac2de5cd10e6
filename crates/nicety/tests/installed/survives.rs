//! A VM of libvirt's that survives its host, by the files that docs/fault-tolerance.md prints: two hosts, each with Debian 13's libvirtd and
//! the package's daemon. Their lease is in a folder that both have.

use std::sync::Arc;
use std::time::Duration;

use nicety_guests::Root;

use crate::cell::{Cell, SOON, skipped_without_root};
use crate::libvirt::{BOOT_LIMIT, between, domain, furnish, laid, libvirtd, serve};
use crate::{say, well};

const BOOK: &str = include_str!("../../../../docs/fault-tolerance.md");
/// The VM's address.
const VM: &str = "10.9.3.1";
/// For a first copy, and for a takeover with all that follows, on a busy machine.
const LATER: Duration = Duration::from_secs(90);
/// The lease lasts a second.
const OUTAGE_MAX: Duration = Duration::from_secs(1 + 3);

/// The first block of the page behind these words.
fn block(words: &str) -> &'static str {
    let block =
        BOOK.split_once(words).and_then(|(_, rest)| rest.split_once("```")?.1.split_once('\n')?.1.split_once("```"));
    block.unwrap_or_else(|| panic!("docs/fault-tolerance.md has no block behind {words:?}")).0
}

/// The page's host file, of the first or of the second host. Its lease is in the shared folder.
fn host_file(host: usize) -> String {
    let text = block("This is `/etc/nicety/host.toml` of the first host:");
    let line =
        |line: &str| if line.starts_with("etcd = ") { "lease = \"/srv/shared\"".to_owned() } else { line.to_owned() };
    let text = text.lines().map(line).collect::<Vec<_>>().join("\n");
    if host == 0 {
        return text;
    }
    text.replace("10.0.0.1", "10.0.0.0").replace("10.0.0.2", "10.0.0.1").replace("10.0.0.0", "10.0.0.2")
}

/// The folder of the page's line for tmpfiles.d, by hand: there is no systemd here.
fn make_folder(cell: &Cell, owner: &str) {
    let line = block("`/etc/tmpfiles.d/vm-web.conf`");
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["d", path, mode, "libvirt-qemu", group] = words[..] else { panic!("{line}") };
    cell.run(&format!("install -d -m {mode} -o {owner} -g {group} {path}"));
}

/// The page's domain, with a kernel.
fn vm() -> String {
    let printed = block("`/etc/vm-web.xml`");
    let uuid = between(printed, "<uuid>", "</uuid>");
    domain("web", printed, VM).replacen("<memory ", &format!("<uuid>{uuid}</uuid><memory "), 1)
}

/// Two hosts whose daemons serve the page's host file, on one network.
fn hosts() -> [Cell; 2] {
    let (root, debian) = (well(Root::lay(&mut say)), laid());
    let shared = Arc::new(tempfile::tempdir().unwrap());
    let cells = [0, 1].map(|_| Cell::enter_with(&debian, &shared));
    cells[0].joined("10.0.0.1/24", &cells[1], "10.0.0.2/24");
    for (host, cell) in cells.iter().enumerate() {
        furnish(cell, &root);
        let name = format!("host{host}");
        cell.run(&format!("echo {name} >/proc/sys/kernel/hostname && echo '127.0.0.1 localhost {name}' >/etc/hosts"));
        cell.run("ip link add br0 type bridge && ip link set wire0 master br0 && ip address flush dev wire0");
        cell.run(&format!("ip address add 10.0.0.{}/24 dev br0 && ip link set br0 up", host + 1));
    }
    // The VM's partner is on the first host, whose network lives on.
    cells[0].run("ip address add 10.9.3.254/24 dev br0 && chown nicety:nicety /srv/shared");
    let key = block("**1. A key.**").trim().trim_start_matches("$ sudo ");
    cells[0].run(key);
    cells[0].run("cp -a /etc/nicety/ft.key /srv/shared/ft.key");
    cells[1].run("cp -a /srv/shared/ft.key /etc/nicety/ft.key && rm /srv/shared/ft.key");
    for (host, cell) in cells.iter().enumerate() {
        serve(cell, &host_file(host));
        cell.run("ip link set tap0 master br0 && ip link set tap0 up");
        cell.run("adduser --quiet libvirt-qemu nicety");
        make_folder(cell, "libvirt-qemu");
        cell.write("/etc/vm-web.xml", &vm());
        cell.run("mkdir -p /usr/local/bin");
        cell.write("/usr/local/bin/vm-web-twin", block("`/usr/local/bin/vm-web-twin`"));
        libvirtd(cell, "");
    }
    cells
}

/// The page's unit does the same.
fn keeps_a_twin(cell: &Cell) {
    cell.run("(sh /usr/local/bin/vm-web-twin >>/var/log/twin.log 2>&1 </dev/null &)");
}

fn is_protected(cell: &Cell) {
    cell.wait("nicety ft status web | grep -q 'runs here, protected'", LATER);
}

/// The longest silence between two answers of the ping that runs, which is ended.
fn silence(cell: &Cell) -> Duration {
    cell.run("kill -INT $(pidof ping)");
    let text = cell.run("cat /srv/pings");
    let time = |line: &str| line.strip_prefix('[')?.split(']').next()?.parse::<f64>().ok();
    let times: Vec<f64> = text.lines().filter_map(time).collect();
    assert!(times.len() > 20, "{text}");
    Duration::from_secs_f64(times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max))
}

#[test]
#[ignore = "only with --full: two hosts, of which each boots"]
fn a_vm_of_libvirt_s_goes_on_at_its_twin_as_the_page_says_and_libvirt_sees_it_there() {
    if skipped_without_root("survives") {
        return;
    }
    let cells = hosts();
    cells[0].run("virsh -q create /etc/vm-web.xml");
    cells[0].wait("grep -q 'nicety ready' /srv/control-web", BOOT_LIMIT);
    cells.iter().for_each(keeps_a_twin);
    is_protected(&cells[0]);
    print!("{}", cells[0].run("nicety ft status; ls -l /run/vm-web; virsh list"));
    for round in 0..2 {
        let [from, to] = [&cells[round % 2], &cells[(round + 1) % 2]];
        cells[0].run(&format!("(ping -n -D -i 0.05 {VM} >/srv/pings 2>&1 </dev/null &)"));
        cells[0].wait("[ $(grep -c ttl= /srv/pings) -gt 10 ]", SOON);
        from.run("kill -KILL $(pidof qemu-system-x86_64)");
        to.wait("nicety ft status web | grep -q 'runs here'", LATER);
        cells[0].run("sleep 1");
        let silence = silence(&cells[0]);
        println!("{round}: silent for {silence:?}");
        assert!(silence < OUTAGE_MAX, "{silence:?}");
        is_protected(to);
        print!("{}", to.run("nicety ft status; virsh list"));
    }
    // The VM has not begun anew there.
    cells[1].fails("grep 'nicety ready' /srv/control-web");
}

/// QEMU's second QMP socket, as libvirt's user for all VMs and as a person's own libvirt makes it.
#[test]
fn user_nicety_may_open_the_qmp_socket_of_libvirt_s_qemu_in_the_page_s_folder_and_in_no_plain_one() {
    if skipped_without_root("survives") {
        return;
    }
    let (root, debian) = (well(Root::lay(&mut say)), laid());
    let cell = Cell::enter(&debian);
    furnish(&cell, &root);
    cell.run("ip address add 10.0.0.1/24 dev lo && install -d -o nicety /srv/shared && chmod 1777 /srv");
    cell.run(block("**1. A key.**").trim().trim_start_matches("$ sudo "));
    serve(&cell, &host_file(0));
    cell.run("adduser --quiet libvirt-qemu nicety");
    cell.write("/etc/vm-web.xml", &vm());
    libvirtd(&cell, "");
    cell.run("install -d -m 755 -o libvirt-qemu /run/vm-web && virsh -q create /etc/vm-web.xml");
    cell.wait("nicety ft status web | grep 'QMP socket /run/vm-web/nicety.qmp: Permission denied'", SOON);
    cell.run("virsh -q destroy web && rm -r /run/vm-web");
    make_folder(&cell, "libvirt-qemu");
    cell.run("virsh -q create /etc/vm-web.xml");
    cell.wait("nicety ft status web | grep 'runs here, not protected (alone)'", SOON);
    println!("{}", cell.run("stat -c '%A %U %G' /run/vm-web /run/vm-web/nicety.qmp"));
    cell.run("virsh -q destroy web && rm -r /run/vm-web /srv/console-web /srv/control-web");
    cell.run("useradd --create-home alice && adduser --quiet alice nicety");
    make_folder(&cell, "alice");
    // virtlogd has no socket here either.
    let alice = "setpriv --reuid alice --regid alice --init-groups env HOME=/home/alice XDG_RUNTIME_DIR=/run/alice";
    cell.run("install -d -o alice /run/alice && echo 'stdio_handler = \"file\"' >/srv/qemu.conf");
    cell.run(&format!("{alice} sh -c 'mkdir -p ~/.config/libvirt && cp /srv/qemu.conf ~/.config/libvirt/'"));
    cell.run(&format!("{alice} virsh -q -c qemu:///session create /etc/vm-web.xml"));
    cell.wait("nicety ft status web | grep 'runs here, not protected (alone)'", SOON);
    println!("{}", cell.run("stat -c '%A %U %G' /run/vm-web /run/vm-web/nicety.qmp"));
}
