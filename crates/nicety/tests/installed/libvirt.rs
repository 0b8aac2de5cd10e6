//! Debian 13's libvirtd with domains of what `nicety attach --libvirt` prints, in namespaces of this host: a root of its own, with the
//! users and groups that the packages make. QEMU is that of trixie-backports, which knows vfio-user. AppArmor does not run there: its
//! parser alone says what it thinks of the printed rule.

use std::process::Command;
use std::time::Duration;

use nicety_guests::{Backports, Debian, GuestConfig, Image, Kernel, Root, Suite};

use crate::cell::{Cell, SOON, as_the_unit, skipped_without_root};
use crate::{Packages, say, well};

const PACKAGES: &[&str] = &[
    "apparmor",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "libvirt-clients",
    "qemu-system-x86",
    "seabios",
    "ipxe-qemu",
    "adduser",
    "passwd",
    "iproute2",
    "iputils-ping",
    "systemd-standalone-sysusers",
];
/// For a translated guest to boot on a busy host.
pub const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// User and groups of QEMU, as libvirt-daemon-system's postinst makes them.
const USERS: &str = "groupadd --system kvm && groupadd --gid 64055 libvirt-qemu && useradd --uid 64055 --gid kvm --groups libvirt-qemu \
    --home-dir /var/lib/libvirt --shell /usr/sbin/nologin libvirt-qemu";

/// The elements between two tags of what `nicety attach` printed.
pub fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let inner = text.split_once(begin).and_then(|(_, rest)| rest.split_once(end));
    inner.unwrap_or_else(|| panic!("{begin} … {end} is not in {text}")).0
}

/// A domain with the printed elements merged in, as the printed note asks for. The rest is a plain VM.
pub fn domain(name: &str, printed: &str, address: &str) -> String {
    let config = GuestConfig { addresses: vec![format!("eth0:{address}/24")], ..GuestConfig::new(Kernel::V6_12) };
    let words = config.command_line();
    let memory = between(printed, "<memoryBacking>", "</memoryBacking>");
    let devices = if printed.contains("<devices>") { between(printed, "<devices>", "</devices>") } else { "" };
    let arguments = if printed.contains("<qemu:commandline>") {
        format!(
            "<qemu:commandline>{}</qemu:commandline>",
            between(printed, "<qemu:commandline>", "</qemu:commandline>")
        )
    } else {
        String::new()
    };
    format!(
        "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
           <name>{name}</name><memory unit='MiB'>256</memory><vcpu>1</vcpu>
           <memoryBacking>{memory}</memoryBacking>
           <os><type arch='x86_64' machine='q35'>hvm</type><kernel>/srv/kernel</kernel><initrd>/srv/initramfs</initrd>
             <cmdline>{words}</cmdline></os>
           <features><acpi/></features>
           <devices>
             <serial type='file'><source path='/srv/console-{name}'/><target port='0'/></serial>
             <serial type='file'><source path='/srv/control-{name}'/><target port='1'/></serial>
             <controller type='usb' model='none'/><memballoon model='none'/>
             {devices}
           </devices>
           {arguments}
         </domain>"
    )
}

/// Debian's host file of the package, with a tap and two ports.
pub const HOST: &str = r#"[switch]
name = "switch0"

[daemon]
control = "/run/nicety/switch0.sock"
state = "/var/lib/nicety/host.state"

[sockets]
group = "nicety"

[[uplink]]
kind = "tap"
name = "tap0"

[[port]]
name = "vm1"
adapter = "virtio-net"
mac = "52:54:00:4e:03:01"
socket = "/run/nicety/vm1.sock"

[[port]]
name = "vm2"
adapter = "e1000"
mac = "52:54:00:4e:03:02"
socket = "/run/nicety/vm2.sock"
"#;

/// A root with the package, its daemon, and a libvirtd. At the daemon's tap is the root itself.
fn prepared(debian: &Debian, root: &Root) -> Cell {
    let cell = laid_out(debian, root, HOST);
    libvirtd(&cell, "");
    print!("{}", cell.run("virsh version"));
    cell
}

/// A root with the package and its daemon, which serves this host file. At the daemon's tap is the root itself.
pub fn laid_out(debian: &Debian, root: &Root, host: &str) -> Cell {
    let cell = Cell::enter(debian);
    furnish(&cell, root);
    serve(&cell, host);
    cell.run("ip address add 10.9.3.254/24 dev tap0 && ip link set tap0 up");
    cell
}

/// Puts the package, the users of Debian's libvirt and a guest's kernel into a root.
pub fn furnish(cell: &Cell, root: &Root) {
    let there = cell.root();
    std::fs::copy(Packages::made().path(1), format!("{there}/tmp/nicety.deb")).unwrap();
    let image = well(Image::of(root, Kernel::V6_12));
    std::fs::copy(image.kernel(), format!("{there}/srv/kernel")).unwrap();
    std::fs::copy(image.initramfs(), format!("{there}/srv/initramfs")).unwrap();
    cell.run("dpkg-deb -x /tmp/nicety.deb / && systemd-sysusers");
    cell.run(USERS);
    // Without systemd there is no socket for virtlogd.
    cell.run("echo 'stdio_handler = \"file\"' >>/etc/libvirt/qemu.conf");
}

/// Starts a daemon with this host file.
pub fn serve(cell: &Cell, host: &str) {
    cell.write("/etc/nicety/host.toml", host);
    cell.run(&as_the_unit("nicety serve /etc/nicety/host.toml"));
    cell.wait("nicety ports | grep -q '^tap0'", SOON);
}

/// Starts libvirtd, with these further words.
pub fn libvirtd(cell: &Cell, words: &str) {
    cell.run(&format!("(libvirtd {words} >>/var/log/libvirtd.log 2>&1 </dev/null &)"));
    cell.wait("virsh -q version", SOON);
}

#[test]
fn debian_13_s_libvirtd_runs_domains_of_what_attach_prints_and_their_qemu_reaches_the_sockets() {
    if skipped_without_root("libvirt") {
        return;
    }
    let root = well(Root::lay(&mut say));
    let cell = prepared(&laid(), &root);
    for (name, address) in [("vm1", "10.9.3.1"), ("vm2", "10.9.3.2")] {
        let printed = cell.run(&format!("nicety attach {name} --format libvirt 2>/dev/null"));
        cell.write("/srv/domain.xml", &domain(name, &printed, address));
        cell.run("virsh -q define --validate /srv/domain.xml");
    }
    // QEMU's user reaches no socket before the admin has done what the note says. With a vhost-user socket QEMU would try again for ever.
    let refused = cell.fails("virsh -q start vm2");
    assert!(refused.contains("Permission denied"), "{refused}");
    let notes = cell.run("nicety attach vm1 --libvirt 2>&1 >/dev/null");
    let adduser = between(&notes, "Debian's libvirt runs QEMU as libvirt-qemu: `", "`");
    assert_eq!(adduser, "adduser libvirt-qemu nicety");
    cell.run(adduser);
    cell.run("virsh -q start vm1 && virsh -q start vm2");
    let user = "for qemu in $(pidof qemu-system-x86_64); do stat -c %U /proc/$qemu; done";
    assert_eq!(cell.run(user), "libvirt-qemu\nlibvirt-qemu\n");
    for (name, address) in [("vm1", "10.9.3.1"), ("vm2", "10.9.3.2")] {
        cell.wait(&format!("grep -q 'nicety ready' /srv/control-{name}"), BOOT_LIMIT);
        cell.run(&format!("ping -n -q -c 4 -w 40 {address}"));
    }
    changed(&cell);
    for name in ["vm1", "vm2"] {
        cell.run(&format!("virsh -q destroy {name}"));
        cell.wait(&format!("nicety ports | grep -q '^{name} .* waiting '"), SOON);
        cell.run(&format!("virsh -q start {name} && virsh -q destroy {name} && virsh -q undefine {name}"));
    }
    print!("{}", cell.run("cat /var/log/nicety.log"));
}

/// Changes while both VMs run: a port that libvirt plugs into one of them and takes away, and a limit of the other one's.
fn changed(cell: &Cell) {
    cell.run("nicety port add vm3 adapter=virtio-net mac=52:54:00:4e:03:03 socket=/run/nicety/vm3.sock");
    let printed = cell.run("nicety attach vm3 --libvirt 2>/dev/null");
    cell.write("/srv/interface.xml", between(&printed, "<devices>", "</devices>"));
    cell.run("virsh -q attach-device vm1 /srv/interface.xml --live");
    // Linux's virtio-net starts its rings when it finds the device.
    cell.wait("nicety ports | grep -q '^vm3 .* up '", SOON);
    cell.run("virsh -q detach-device vm1 /srv/interface.xml --live");
    cell.wait("nicety ports | grep -q '^vm3 .* waiting '", SOON);
    cell.run("nicety port remove vm3");
    let long = "ping -n -q -M dont -c 1 -s 1450 10.9.3.2";
    cell.run(&format!("{long} -w 40"));
    cell.run("nicety port set vm2 mtu_limit=1400");
    cell.fails(&format!("{long} -W 2"));
    cell.run("ping -n -q -c 1 -w 40 10.9.3.2");
}

pub fn laid() -> Debian {
    well(Debian::lay_with("libvirt", Suite::Trixie, PACKAGES, Backports::Qemu, &mut say))
}

/// AppArmor's own parser takes the rule where the note says, in the profile that libvirt's virt-aa-helper makes of its template.
#[test]
fn apparmor_s_parser_takes_the_rule_that_attach_prints_within_the_profile_of_libvirt_s_qemu() {
    let place = tempfile::tempdir().unwrap();
    let host = "[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"/run/nicety/a [b]*.sock\"\n";
    std::fs::write(place.path().join("host.toml"), host).unwrap();
    let mut attach = Command::new(env!("CARGO_BIN_EXE_nicety"));
    let attach = attach.args(["attach", "vm1", "--libvirt"]).current_dir(place.path()).output().unwrap();
    let notes = String::from_utf8(attach.stderr).unwrap();
    let rule = notes.lines().find_map(|line| {
        let (_, rest) = line.split_once("add to /etc/apparmor.d/local/abstractions/libvirt-qemu, ")?;
        rest.split_once(": ")
    });
    let (untried, rule) = rule.unwrap_or_else(|| panic!("{notes}"));
    assert_eq!(untried, "untried with an AppArmor that runs");
    let debian = laid();
    let parse = |rule: &str| {
        let path = place.path().join("rule");
        std::fs::write(&path, format!("{rule}\n")).unwrap();
        let words = "mkdir -p /tmp/own/local/abstractions && mv /tmp/rule /tmp/own/local/abstractions/libvirt-qemu && \
            sed 's/LIBVIRT_TEMPLATE/libvirt-4e0301/' /etc/apparmor.d/libvirt/TEMPLATE.qemu >/tmp/profile && \
            apparmor_parser -I /tmp/own -I /etc/apparmor.d --skip-kernel-load --skip-cache /tmp/profile && \
            apparmor_parser -I /tmp/own -I /etc/apparmor.d --preprocess /tmp/profile";
        debian.command(&path, "sh").args(["-c", words]).output().unwrap()
    };
    let said = parse(rule);
    assert!(said.status.success(), "{rule}: {}", String::from_utf8_lossy(&said.stderr));
    assert!(String::from_utf8_lossy(&said.stdout).contains(rule), "the profile includes the file");
    assert!(!parse("\"/run/nicety/vm1.sock\" rw").status.success(), "a rule without its comma");
}
