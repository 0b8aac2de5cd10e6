use nicety_host::{Host, List};

use super::*;

fn port(adapter: &str, more: &str) -> PortConfig {
    let text = format!(
        "[[port]]\nname = \"vm1\"\nadapter = {adapter:?}\nmac = \"52:54:00:12:34:01\"\nsocket = \"/run/n/vm1.sock\"\n{more}\n"
    );
    Host::parse(&text, Path::new("/etc/host.toml")).unwrap().ports.remove(0)
}

/// Facts from QEMU's docs/interop/vfio-user.rst, and measured with QEMU 11.1.
#[test]
fn a_function_is_attached_by_vfio_user() {
    let attach = qemu(&port("e1000", ""));
    assert_eq!(
        attach.words,
        "-object memory-backend-memfd,id=mem,size=512M,share=on \\\n\
         -machine q35,memory-backend=mem \\\n\
         -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"/run/n/vm1.sock\"}}'\n"
    );
    assert!(attach.notes.iter().any(|note| note.contains("\"romfile\":\"…\",\"bootindex\":1")), "{:?}", attach.notes);
    let attach = qemu(&port("e1000", "rom = \"pxe.rom\""));
    assert!(attach.words.contains("\"path\":\"/run/n/vm1.sock\"},\"bootindex\":1}'"), "{}", attach.words);
}

#[test]
fn rings_are_attached_by_vhost_user() {
    assert_eq!(
        qemu(&port("virtio-net", "")).words,
        "-object memory-backend-memfd,id=mem,size=512M,share=on \\\n\
         -machine q35,memory-backend=mem \\\n\
         -chardev socket,id=nicety-vm1,path=/run/n/vm1.sock,reconnect-ms=1000 \\\n\
         -netdev vhost-user,id=nicety-vm1-net,chardev=nicety-vm1 \\\n\
         -device virtio-net-pci,netdev=nicety-vm1-net,mac=52:54:00:12:34:01,speed=10000,duplex=full\n"
    );
    let words = qemu(&port("virtio-net", "queues = 4\nmtu = 9000")).words;
    assert!(words.contains("chardev=nicety-vm1,queues=4 "), "{words}");
    assert!(words.ends_with(",speed=10000,duplex=full,mq=on,vectors=10,host_mtu=9000\n"), "{words}");
    let words = qemu(&port("virtio-net", "standby = true")).words;
    assert!(words.ends_with(",duplex=full,failover=on\n"), "{words}");
    let words = libvirt(&port("virtio-net", "standby = true")).words;
    assert!(words.contains("      <teaming type='persistent'/>\n"), "{words}");
}

#[test]
fn where_the_daemon_connects_the_vmm_listens() {
    let port = port("virtio-net", "role = \"connect\"\nqueues = 2");
    let attach = qemu(&port);
    let chardev = "-chardev socket,id=nicety-vm1,path=/run/n/vm1.sock,server=on,wait=off \\\n";
    assert!(attach.words.contains(chardev) && !attach.words.contains("reconnect"), "{}", attach.words);
    let who = "QEMU makes the socket, for its own user alone: the daemon must run as that user, or as root";
    assert_eq!(attach.notes.last().map(String::as_str), Some(who));
    // libvirt 9.0.0 takes this, and with <reconnect> in it says: 'reconnect' attribute unsupported 'server' mode for <interface
    // type='vhostuser'>.
    let attach = libvirt(&port);
    let source = "      <source type='unix' path='/run/n/vm1.sock' mode='server'/>\n      <model type='virtio'/>\n";
    assert!(attach.words.contains(source) && !attach.words.contains("reconnect"), "{}", attach.words);
    assert_eq!(attach.notes.last().map(String::as_str), Some(who));
}

#[test]
fn libvirt_gets_shared_memory_and_the_device() {
    assert_eq!(
        libvirt(&port("vmxnet3", "")).words,
        "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n  \
           <memoryBacking>\n    <source type='memfd'/>\n    <access mode='shared'/>\n  </memoryBacking>\n  \
           <qemu:commandline>\n    <qemu:arg value='-device'/>\n    \
             <qemu:arg value='{&quot;driver&quot;:&quot;vfio-user-pci&quot;,&quot;socket&quot;:{&quot;type&quot;:&quot;unix&quot;,\
&quot;path&quot;:&quot;/run/n/vm1.sock&quot;}}'/>\n  \
           </qemu:commandline>\n</domain>\n"
    );
    let words = libvirt(&port("virtio-net", "queues = 2\nmtu = 1450")).words;
    assert_eq!(
        words,
        "<domain type='kvm'>\n  <memoryBacking>\n    <source type='memfd'/>\n    <access mode='shared'/>\n  </memoryBacking>\n  \
         <devices>\n    <interface type='vhostuser'>\n      <mac address='52:54:00:12:34:01'/>\n      \
         <source type='unix' path='/run/n/vm1.sock' mode='client'>\n        <reconnect enabled='yes' timeout='1'/>\n      \
         </source>\n      <model type='virtio'/>\n      <driver queues='2'/>\n      <mtu size='1450'/>\n    \
         </interface>\n  </devices>\n</domain>\n"
    );
}

/// libvirt's user and profile are Debian's (libvirt-daemon-system; /etc/apparmor.d/abstractions/libvirt-qemu includes the local file).
#[test]
fn libvirt_s_admin_is_told_which_group_and_which_rule_qemu_needs() {
    let notes = libvirt(&port("e1000", "[sockets]\ngroup = \"nicety\"")).notes.join("\n");
    assert!(notes.contains("`adduser libvirt-qemu nicety`"), "{notes}");
    assert!(notes.contains("/etc/apparmor.d/local/abstractions/libvirt-qemu"), "{notes}");
    assert!(notes.contains(": \"/run/n/vm1.sock\" rw,\n"), "{notes}");
    let own = libvirt(&port("e1000", "[sockets]\ngroup = \"libvirt-qemu\"")).notes.join("\n");
    assert!(!own.contains("adduser"), "{own}");
    let odd = PortConfig { socket: "/run/a [b]\"*.sock".into(), ..port("e1000", "") };
    assert_eq!(apparmor_rule(&odd), "\"/run/a \\[b\\]\\\"\\*.sock\" rw,");
}

#[test]
fn odd_paths_come_through_shell_option_list_json_and_xml() {
    let odd = |adapter| PortConfig { socket: "/run/a b,c'\"d&<.sock".into(), ..port(adapter, "") };
    let words = qemu(&odd("virtio-net")).words;
    assert!(words.contains("'socket,id=nicety-vm1,path=/run/a b,,c'\\''\"d&<.sock,reconnect-ms=1000'"), "{words}");
    let words = qemu(&odd("e1000")).words;
    assert!(words.contains(r#""path":"/run/a b,c'\''\"d&<.sock"}}'"#), "{words}");
    let words = libvirt(&odd("virtio-net")).words;
    assert!(words.contains("path='/run/a b,c&apos;&quot;d&amp;&lt;.sock'"), "{words}");
}

/// The formats get these files. `NICETY_GOLDEN=write` writes them again. Tests of the program run the scripts in them, and libvirt's domains.
#[test]
fn each_format_gets_the_files_of_the_folder_golden() {
    for (adapter, more) in [("e1000", "vlan = 7"), ("virtio-net", "queues = 2\nmtu = 1450")] {
        for (format, attach) in all_formats(adapter, more) {
            let path = golden(adapter, format);
            if std::env::var_os("NICETY_GOLDEN").is_some_and(|asked| asked == "write") {
                std::fs::write(&path, &attach.words).unwrap();
            }
            assert_eq!(attach.words, std::fs::read_to_string(&path).unwrap(), "{}", path.display());
            let is_untried = attach.notes[0] == "this was written from documentation, and not tried";
            assert_eq!(is_untried, format.starts_with("proxmox") || format.starts_with("kubevirt"), "{format}");
        }
    }
}

/// An adapter shows only by its transport, and by its name where a script adds its port.
#[test]
fn each_adapter_is_attached_as_its_transport_says_in_each_format() {
    for about in nicety_adapters::REGISTRY.iter().map(|entry| entry.about) {
        let (like, more) = match about.transports {
            ["vfio-user"] => ("e1000", "vlan = 7"),
            ["vhost-user"] => ("virtio-net", "queues = 2\nmtu = 1450"),
            other => panic!("{}: {other:?} has no format", about.name),
        };
        for (format, attach) in all_formats(about.name, more) {
            let expected = std::fs::read_to_string(golden(like, format)).unwrap();
            let expected = expected.replace(&format!("adapter={like} "), &format!("adapter={} ", about.name));
            assert_eq!(attach.words, expected, "{} by {format}", about.name);
        }
    }
}

fn golden(adapter: &str, format: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/observe/attach/golden/{adapter}.{format}"))
}

/// The texts that attach a VM to a port with this adapter, by the ends of their golden files' names.
fn all_formats(adapter: &str, more: &str) -> [(&'static str, Attach); 4] {
    let text = format!(
        "[[port]]\nname = \"vm_1\"\nadapter = {adapter:?}\nmac = \"52:54:00:12:34:01\"\nsocket = \"/run/n/a b's.sock\"\n{more}\n"
    );
    let host = Host::parse(&text, Path::new("/etc/host.toml")).unwrap();
    let (port, keys) = (&host.ports[0], host.document.entry(List::Ports, "vm_1"));
    [
        ("qemu.sh", qemu(port)),
        ("libvirt.xml", libvirt(port)),
        ("proxmox.sh", proxmox(port, &keys)),
        ("kubevirt.yaml", kubevirt(port)),
    ]
}
