//! Files for programs that start VMs: a hookscript for Proxmox, a hook sidecar for KubeVirt. They are written from the documentation of these
//! two ("Hookscripts" and `args` of qm.conf(5) in the Proxmox VE Administration Guide; "Hook Sidecar Container" in KubeVirt's User Guide),
//! and were not run there.

use nicety_host::{PortConfig, Role};
use toml::{Table, Value};

use super::{Attach, device, libvirt, memory, quoted};

/// The note of what no test runs.
const UNTRIED: &str = "this was written from documentation, and not tried";

/// A hookscript, whose first lines tell how the VM gets it and its arguments. It adds the port before the VM starts, if the daemon lacks it,
/// and removes it afterwards, if the script has added it. `keys` are the port's, as the host file has them.
pub fn proxmox(port: &PortConfig, keys: &Table) -> Attach {
    let name = &port.name;
    // Proxmox gives a machine type of its own: QEMU merges the two.
    let machine = vec!["-machine".to_owned(), "memory-backend=mem".to_owned()];
    let lines = [memory("SIZE"), machine].into_iter().chain(device(port));
    let args: Vec<String> = lines.flatten().map(|word| quoted(&word)).collect();
    let args = quoted(&args.join(" "));
    let values = keys.iter().filter(|(key, _)| !["name", "origin"].contains(&key.as_str()));
    let values: Vec<String> = values.map(|(key, value)| quoted(&format!("{key}={}", plain(value)))).collect();
    let values = values.join(" ");
    let words = format!(
        "#!/bin/sh\n\
         # Hookscript of the Proxmox VM at port {name}. Save it as /var/lib/vz/snippets/nicety-{name}, make it executable, and run, with the\n\
         # VM's number as VMID and its memory as SIZE, such as 4096M:\n\
         #   qm set VMID --hookscript local:snippets/nicety-{name} --args {args}\n\
         case \"$2\" in\n\
         pre-start)\n    \
             nicety ports {name} >/dev/null 2>&1 ||\n        \
                 nicety port add {name} {values} \"origin=hook proxmox, VM $1\"\n    \
             ;;\n\
         post-stop)\n    \
             nicety port remove {name} --yes --origin \"hook proxmox, VM $1\"\n    \
             ;;\n\
         esac\n"
    );
    let mut notes = vec![UNTRIED.to_owned()];
    notes.push(
        "SIZE is all of the VM's memory, as its `memory` says; ballooning and memory hotplug must be off".to_owned(),
    );
    notes.push("a VM with several ports has one hookscript and one `args`: join what this prints for each".to_owned());
    if port.role == Role::Listen {
        notes.push("Proxmox runs QEMU as root, which reaches every socket".to_owned());
    }
    Attach { words, notes }
}

/// A value as `nicety port add` takes it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Merges the elements that libvirt needs into a domain (`--domain`), and prints it.
const SCRIPT: &str = r#"#!/usr/bin/env python3
import sys
import xml.etree.ElementTree as tree

tree.register_namespace("qemu", "http://libvirt.org/schemas/domain/qemu/1.0")
domain = tree.fromstring(sys.argv[sys.argv.index("--domain") + 1])
added = tree.fromstring("""ADDED""")
for part in added:
    own = domain.find(part.tag)
    if own is None:
        domain.append(part)
        continue
    for element in part:
        # A VM has its memory once.
        same = own.findall(element.tag) if part.tag == "memoryBacking" else []
        for old in same:
            own.remove(old)
        own.append(element)
print(tree.tostring(domain, encoding="unicode"))
"#;

/// A ConfigMap with a script for KubeVirt's hook sidecar, which gives the VM's domain the elements that libvirt needs.
pub fn kubevirt(port: &PortConfig) -> Attach {
    let name = format!("nicety-{}", label(&port.name));
    // The XML is escaped once more, because it stands in a text of Python.
    let added = libvirt(port).words.replace('\\', "\\\\").replace("\"\"\"", "\\\"\\\"\\\"");
    let script = SCRIPT.replace("ADDED", added.trim_end());
    let script: String =
        script.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") }).collect();
    let words = format!(
        "# The VM's metadata takes this annotation:\n\
         #   hooks.kubevirt.io/hookSidecars: '[{{\"args\": [\"--version\", \"v1alpha2\"], \"configMap\": {{\"name\": \"{name}\", \"key\": \
         \"on-define-domain.py\", \"hookPath\": \"/usr/bin/onDefineDomain\"}}}}]'\n\
         apiVersion: v1\n\
         kind: ConfigMap\n\
         metadata:\n  name: {name}\n\
         data:\n  on-define-domain.py: |\n{script}"
    );
    let socket = port.socket.display();
    let notes = vec![
        UNTRIED.to_owned(),
        "KubeVirt needs its feature gate Sidecar".to_owned(),
        format!(
            "the pod of the VM must see {socket}, which lies in a folder of the node: KubeVirt mounts none by itself, and a network \
             binding plugin or a device plugin can"
        ),
    ];
    Attach { words, notes }
}

/// A name as Kubernetes allows it (RFC 1123's label, with dots).
fn label(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(plain).collect::<String>().trim_matches('-').to_owned()
}
