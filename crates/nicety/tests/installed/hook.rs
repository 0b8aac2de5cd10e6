//! `nicety hook libvirt` as Debian 13's libvirtd calls it: VMs whose ports come and go with them, and move to another libvirtd with a daemon
//! of its own.

use nicety_guests::Root;

use crate::cell::{Cell, SOON, as_the_unit, skipped_without_root};
use crate::libvirt::{BOOT_LIMIT, HOST, domain, laid, laid_out, libvirtd};
use crate::{say, well};

const MEMORY: &str = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>";

/// A domain with virtio-net, without any port there.
fn rings() -> String {
    let devices = "<devices><interface type='vhostuser'><mac address='52:54:00:4e:03:01'/>\
         <source type='unix' path='/run/nicety/vm1.sock' mode='client'><reconnect enabled='yes' timeout='1'/></source>\
         <model type='virtio'/></interface></devices>";
    domain("vm1", &format!("{MEMORY}{devices}"), "10.9.3.1")
}

/// A domain with an e1000, which libvirt does not know: its metadata describes the port.
fn function() -> String {
    let argument = "<qemu:commandline><qemu:arg value='-device'/><qemu:arg value='{&quot;driver&quot;:&quot;vfio-user-pci&quot;,\
         &quot;socket&quot;:{&quot;type&quot;:&quot;unix&quot;,&quot;path&quot;:&quot;/run/nicety/vm2.sock&quot;}}'/></qemu:commandline>";
    let port = "<metadata><nicety:ports xmlns:nicety='urn:nicety:domain'>\
         <nicety:port mac='52:54:00:4e:03:02' adapter='e1000' socket='/run/nicety/vm2.sock'/></nicety:ports></metadata>";
    domain("vm2", &format!("{MEMORY}{argument}"), "10.9.3.2").replacen("<memory ", &format!("{port}<memory "), 1)
}

/// A host with a daemon without ports, and a libvirtd that others reach by its wire.
fn host(name: &str, root: &Root) -> Cell {
    let (ports, _) = HOST.split_once("[[port]]").unwrap();
    let cell = laid_out(&laid(), root, ports);
    cell.run(&format!("echo {name} >/proc/sys/kernel/hostname && echo '127.0.0.1 localhost {name}' >/etc/hosts && adduser --quiet libvirt-qemu nicety"));
    // Each is a host of its own: libvirt moves no VM to the host where it is.
    let uuid = format!("00000000-0000-4000-8000-{:0>12}", name.len());
    let listens = "listen_tls = 0\\nlisten_tcp = 1\\nauth_tcp = \"none\"\\n";
    cell.run(&format!("printf '{listens}host_uuid = \"{uuid}\"\\n' >/etc/libvirt/libvirtd.conf"));
    cell
}

fn has_port(cell: &Cell, name: &str) -> bool {
    cell.run("nicety ports").lines().any(|line| line.starts_with(&format!("{name} ")))
}

fn ping(cell: &Cell, address: &str) {
    cell.run(&format!("ping -n -q -c 4 -w 60 {address}"));
}

fn ends_the_daemon(cell: &Cell, signal: &str) {
    cell.run(&format!("kill -{signal} $(pidof nicety)"));
    cell.wait("! pidof nicety", SOON);
}

fn starts_the_daemon(cell: &Cell) {
    cell.run(&as_the_unit("nicety serve /etc/nicety/host.toml"));
    cell.wait("nicety ports | grep -q '^tap0'", SOON);
    cell.run("ip address replace 10.9.3.254/24 dev tap0 && ip link set tap0 up");
}

#[test]
fn the_ports_of_a_libvirtd_s_vms_come_and_go_with_them_and_move_with_them_to_another_libvirtd() {
    if skipped_without_root("hook") {
        return;
    }
    let root = well(Root::lay(&mut say));
    let (one, other) = (host("first", &root), host("other1", &root));
    one.joined("10.9.4.1/24", &other, "10.9.4.2/24");
    // At one it comes to a libvirtd that runs, and at the other one before it starts.
    libvirtd(&one, "--listen");
    print!("{}", one.run("nicety hook libvirt --install --wait 2s"));
    one.run("kill -HUP $(pidof libvirtd)");
    other.run("nicety hook libvirt --install");
    libvirtd(&other, "--listen");
    for (name, xml) in [("vm1", rings()), ("vm2", function())] {
        one.write("/srv/domain.xml", &xml);
        one.run("virsh -q define --validate /srv/domain.xml");
        assert!(!has_port(&one, name));
    }
    comes_and_goes(&one);
    lives_on(&one);
    moves(&one, &other);
    is_killed_while_it_moves(&one, &other);
    print!("{}", one.run("nicety hook libvirt --remove"));
    print!("{}", one.run("cat /var/log/nicety.log"));
    print!("{}", other.run("cat /var/log/nicety.log"));
}

/// An e1000, which starts only with its port there.
fn comes_and_goes(cell: &Cell) {
    // libvirtd reads its hooks again some time after the signal.
    cell.wait("virsh -q start vm2", SOON);
    assert!(has_port(cell, "vm2"));
    let origin = cell.run("nicety ports vm2 | grep 'made by'");
    assert!(origin.contains("hook libvirt, domain vm2, "), "{origin}");
    cell.wait("grep -q 'nicety ready' /srv/control-vm2", BOOT_LIMIT);
    ping(cell, "10.9.3.2");
    cell.run("virsh -q destroy vm2");
    assert!(!has_port(cell, "vm2"), "libvirt waits for its hook");
    // A start that fails behind the hook takes the port away again.
    cell.run("mv /srv/kernel /srv/kernel.away");
    cell.fails("virsh -q start vm2");
    assert!(!has_port(cell, "vm2"));
    cell.run("mv /srv/kernel.away /srv/kernel");
    // Without its daemon a VM does not start, and libvirt shows why.
    ends_the_daemon(cell, "TERM");
    let refused = cell.fails("virsh -q start vm2");
    assert!(refused.contains("domain vm2: ") && refused.contains("no daemon was found"), "{refused}");
    starts_the_daemon(cell);
}

/// virtio-net, over restarts of libvirtd and of the daemon.
fn lives_on(cell: &Cell) {
    // Two at once: one of them starts it.
    cell.run("(virsh -q start vm1 & virsh -q start vm1; wait) 2>&1");
    assert!(has_port(cell, "vm1"));
    cell.wait("grep -q 'nicety ready' /srv/control-vm1", BOOT_LIMIT);
    ping(cell, "10.9.3.1");
    cell.run("kill -KILL $(pidof libvirtd)");
    libvirtd(cell, "--listen");
    assert_eq!(cell.run("virsh -q domstate vm1").trim(), "running");
    ping(cell, "10.9.3.1");
    ends_the_daemon(cell, "KILL");
    // libvirtd asks the hook about VMs that run, and ends a VM whose hook fails.
    cell.run("kill -KILL $(pidof libvirtd)");
    libvirtd(cell, "--listen");
    assert_eq!(cell.run("virsh -q domstate vm1").trim(), "running");
    starts_the_daemon(cell);
    assert!(has_port(cell, "vm1"));
    ping(cell, "10.9.3.1");
}

const MIGRATE: &str = "virsh -q migrate --live vm1 qemu+tcp://10.9.4.2/system tcp://10.9.4.2";

fn moves(one: &Cell, other: &Cell) {
    // The other host's daemon is away: the VM stays where it is.
    ends_the_daemon(other, "TERM");
    let refused = one.fails(MIGRATE);
    assert!(refused.contains("domain vm1: ") && refused.contains("no daemon was found"), "{refused}");
    starts_the_daemon(other);
    assert!(!has_port(other, "vm1"));
    ping(one, "10.9.3.1");
    one.run(MIGRATE);
    assert!(!has_port(one, "vm1"), "libvirt waits for its hook");
    assert!(has_port(other, "vm1"));
    assert_eq!(other.run("virsh -q domstate vm1").trim(), "running");
    ping(other, "10.9.3.1");
    other.run("virsh -q destroy vm1");
    assert!(!has_port(other, "vm1"));
    // It can start again where it came from.
    one.run("virsh -q start vm1 && virsh -q destroy vm1");
    assert!(!has_port(one, "vm1"));
}

/// At each end its QEMU and its libvirtd are killed in the middle of a migration. The port is where the VM runs afterwards, and nowhere else.
fn is_killed_while_it_moves(one: &Cell, other: &Cell) {
    let kills = |cell: &Cell, program: &str| cell.run(&format!("kill -KILL $(pidof {program})"));
    let (qemu, daemon) = ("qemu-system-x86_64", "libvirtd");
    one.run("virsh -q start vm1");
    one.wait("grep -q 'nicety ready' /srv/control-vm1", BOOT_LIMIT);

    begins_to_move(one, other);
    kills(other, qemu);
    stayed(one, other);

    begins_to_move(one, other);
    kills(other, daemon);
    // The source sends the rest, and hears then that nobody takes the VM over there.
    one.run("virsh -q migrate-setspeed vm1 1000");
    one.wait("test -e /srv/moved", SOON);
    assert!(has_port(other, "vm1"), "its QEMU there still waits");
    libvirtd(other, "--listen");
    stayed(one, other);

    begins_to_move(one, other);
    kills(one, daemon);
    libvirtd(one, "--listen");
    stayed(one, other);

    begins_to_move(one, other);
    kills(one, qemu);
    one.wait("test -e /srv/moved", SOON);
    without_port(other);
    without_port(one);
}

/// A migration that lasts, in its middle.
fn begins_to_move(one: &Cell, other: &Cell) {
    let slowly = format!("{MIGRATE} --bandwidth 1 >/srv/migration 2>&1 </dev/null; echo $? >/srv/moved");
    one.run(&format!("rm -f /srv/moved; ({slowly}) >/dev/null 2>&1 &"));
    one.wait("virsh -q domjobinfo vm1 | grep -q 'Data processed'", SOON);
    assert!(has_port(one, "vm1") && has_port(other, "vm1"), "{}", one.run("cat /srv/migration"));
    one.run("! test -e /srv/moved");
}

/// The migration has failed, and the VM goes on where it was.
fn stayed(one: &Cell, other: &Cell) {
    one.wait("test -e /srv/moved", SOON);
    assert_ne!(one.run("cat /srv/moved").trim(), "0");
    without_port(other);
    assert_eq!(other.run("virsh -q list --name").trim(), "");
    one.wait("virsh -q domstate vm1 | grep -q running", SOON);
    assert!(has_port(one, "vm1"));
    ping(one, "10.9.3.1");
}

/// The hook of a libvirtd that was killed, or of a VM, runs a moment later.
fn without_port(cell: &Cell) {
    cell.wait("! nicety ports | grep -q '^vm1 '", SOON);
}
