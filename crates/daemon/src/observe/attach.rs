//! The arguments to attach a VM to a port, made from the host file alone: QEMU 11's, libvirt's XML, and files for Proxmox and
//! KubeVirt. Also reports differences between the running daemon and the host file.

use std::fmt::Write as _;
use std::path::Path;

use nicety_frame::Mac;
use nicety_host::{AccessConfig, Bytes, Doorbells, PortConfig, Role, Transport};
use serde_json::json;

use crate::observe::report::{MadeOf, PortReport};

/// Advice if a daemon and the host file differ.
pub const OTHER_FILE: &str = "`nicety apply --dry-run` shows all that differs from the host file, `nicety apply` makes the daemon serve \
                              the file, `nicety save` writes what runs to it";

/// Arguments to paste, and notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// QEMU's arguments for a shell, or XML.
    pub words: String,
    /// One sentence each.
    pub notes: Vec<String>,
}

/// An option of QEMU, and its value.
type Words = Vec<String>;

/// The VM's memory, which the daemon maps. `size` is all of it.
fn memory(size: &str) -> Words {
    vec!["-object".to_owned(), format!("memory-backend-memfd,id=mem,size={size},share=on")]
}

/// The device that a VM needs at a port. Each format is written from this.
enum Device<'a> {
    /// A PCI function, by vfio-user.
    Function {
        socket: &'a Path,
        /// It has an option ROM, and the VM starts from it.
        boots: bool,
    },
    /// The rings of virtio-net, by vhost-user.
    Rings(Rings<'a>),
}

struct Rings<'a> {
    socket: &'a Path,
    /// Who makes the socket.
    role: Role,
    mac: Mac,
    /// Queue pairs, if there are several.
    queues: Option<u16>,
    mtu: Option<u16>,
    standby: bool,
}

impl<'a> Device<'a> {
    fn of(port: &'a PortConfig) -> Self {
        let socket = port.socket.as_path();
        match port.transport() {
            Transport::VfioUser => Self::Function { socket, boots: port.rom.is_some() },
            Transport::VhostUser => {
                let (role, mac, mtu, standby) = (port.role, port.mac, port.mtu, port.standby);
                let queues = port.queues.filter(|&queues| queues > 1);
                Self::Rings(Rings { socket, role, mac, queues, mtu, standby })
            }
        }
    }
}

/// QEMU's options for the device at a port.
fn device(port: &PortConfig) -> Vec<Words> {
    let id = format!("nicety-{}", port.name);
    let Rings { socket, role, mac, queues, mtu, standby } = match Device::of(port) {
        Device::Function { socket, boots } => return vec![vec!["-device".to_owned(), function(socket, boots)]],
        Device::Rings(rings) => rings,
    };
    let socket = commas(socket);
    let mode = match role {
        Role::Listen => "reconnect-ms=1000",
        Role::Connect => "server=on,wait=off",
    };
    let chardev = format!("socket,id={id},path={socket},{mode}");
    let mut netdev = format!("vhost-user,id={id}-net,chardev={id}");
    let mut device = format!("virtio-net-pci,netdev={id}-net,mac={mac},speed=10000,duplex=full");
    if let Some(queues) = queues {
        // Writing to a String cannot fail. Vectors: one per ring, one for configuration changes, one for the control queue.
        let _ = write!(netdev, ",queues={queues}");
        let _ = write!(device, ",mq=on,vectors={}", u32::from(queues) * 2 + 2);
    }
    if let Some(mtu) = mtu {
        let _ = write!(device, ",host_mtu={mtu}");
    }
    if standby {
        device.push_str(",failover=on");
    }
    [("-chardev", chardev), ("-netdev", netdev), ("-device", device)]
        .map(|(option, value)| vec![option.to_owned(), value])
        .to_vec()
}

/// The arguments of QEMU 11, one option per line, quoted for a shell.
pub fn qemu(port: &PortConfig) -> Attach {
    let mut lines = vec![memory("512M"), vec!["-machine".to_owned(), "q35,memory-backend=mem".to_owned()]];
    lines.extend(device(port));
    let shown: Vec<String> =
        lines.iter().map(|words| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")).collect();
    let mut notes = vec![
        "size= is all of the VM's memory; the first two arguments are there once, however many ports the VM has"
            .to_owned(),
    ];
    if port.transport() == Transport::VfioUser {
        notes.push(match &port.rom {
            Some(_) => "it boots from the network by the host file's option ROM".to_owned(),
            None => {
                let about = port.entry.about;
                let no_pxe = format!("{} has no usual option ROM to boot from the network", about.name);
                let pxe = "to boot from the network: name an option ROM in the host file (rom = \"…\"), or add \
                     \"romfile\":\"…\",\"bootindex\":1 to the device";
                if about.boot.rom.is_some() { pxe.to_owned() } else { no_pxe }
            }
        });
    }
    if port.role == Role::Connect {
        notes.push("QEMU waits at its start until the daemon has connected".to_owned());
    }
    notes.push(who_may(port));
    Attach { words: shown.join(" \\\n") + "\n", notes }
}

/// The elements of a libvirt domain.
pub fn libvirt(port: &PortConfig) -> Attach {
    let memory = "  <memoryBacking>\n    <source type='memfd'/>\n    <access mode='shared'/>\n  </memoryBacking>\n";
    let words = match Device::of(port) {
        Device::Function { socket, boots } => format!(
            "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n{memory}  \
             <qemu:commandline>\n    <qemu:arg value='-device'/>\n    <qemu:arg value='{}'/>\n  \
             </qemu:commandline>\n</domain>\n",
            escaped(&function(socket, boots))
        ),
        Device::Rings(rings) => {
            format!("<domain type='kvm'>\n{memory}  <devices>\n{}  </devices>\n</domain>\n", interface(&rings))
        }
    };
    let merge = "merge these elements into the domain (`virsh edit`); memoryBacking is there once".to_owned();
    let mut notes = vec![merge];
    // The default of Debian's libvirt (qemu.conf, `user` and `group`), which gives QEMU that user's further groups.
    if port.role == Role::Listen
        && port.access.mode() == 0o660
        && let Some(group) = port.access.group.as_deref().filter(|group| *group != QEMU_USER)
    {
        notes.push(format!(
            "Debian's libvirt runs QEMU as {QEMU_USER}: `adduser {QEMU_USER} {group}`, then start the VM"
        ));
    }
    notes.push(format!(
        "where AppArmor confines QEMU (as in Debian), add to /etc/apparmor.d/local/abstractions/libvirt-qemu, untried with an \
         AppArmor that runs: {}",
        apparmor_rule(port)
    ));
    notes.push(who_may(port));
    Attach { words, notes }
}

/// libvirt's element for rings.
fn interface(Rings { socket, role, mac, queues, mtu, standby }: &Rings<'_>) -> String {
    let path = escaped(&socket.to_string_lossy());
    // With mode='server' libvirt refuses <reconnect> (src/conf/domain_validate.c, virDomainNetDefValidate).
    let source = match role {
        Role::Listen => format!(
            "<source type='unix' path='{path}' mode='client'>\n        <reconnect enabled='yes' timeout='1'/>\n      \
             </source>"
        ),
        Role::Connect => format!("<source type='unix' path='{path}' mode='server'/>"),
    };
    let mut interface = format!(
        "    <interface type='vhostuser'>\n      <mac address='{mac}'/>\n      {source}\n      \
         <model type='virtio'/>\n"
    );
    // Writing to a String cannot fail.
    if let Some(queues) = queues {
        let _ = writeln!(interface, "      <driver queues='{queues}'/>");
    }
    if let Some(mtu) = mtu {
        let _ = writeln!(interface, "      <mtu size='{mtu}'/>");
    }
    if *standby {
        interface.push_str("      <teaming type='persistent'/>\n");
    }
    interface + "    </interface>\n"
}

/// The user as whom Debian's libvirt runs QEMU.
const QEMU_USER: &str = "libvirt-qemu";

/// A rule of an AppArmor profile (apparmor.d(5)) that lets QEMU connect to the port's socket, or make it.
pub fn apparmor_rule(port: &PortConfig) -> String {
    let mut path = String::new();
    for c in port.socket.to_string_lossy().chars() {
        // These have a meaning in a quoted pattern.
        if matches!(c, '"' | '\\' | '*' | '?' | '[' | ']' | '{' | '}' | '^' | '@') {
            path.push('\\');
        }
        path.push(c);
    }
    format!("\"{path}\" rw,")
}

/// The differences between the running daemon and the host file, in a sentence. With them the arguments would miss the port or
/// reach another adapter.
pub fn otherwise(port: &PortConfig, served: &PortReport) -> Option<String> {
    let (name, adapter, mac) = (&port.name, port.entry.about.name, port.mac.to_string());
    let (Some(its_adapter), Some(its_mac), Some(its_socket)) = (&served.adapter, &served.mac, &served.socket) else {
        return Some(format!("{name} is the uplink of the daemon: {OTHER_FILE}"));
    };
    let mut parts = Vec::new();
    if its_adapter != adapter {
        parts.push(format!("as {its_adapter} (not {adapter})"));
    }
    if *its_mac != mac {
        parts.push(format!("with the address {its_mac} (not {mac})"));
    }
    if !is_same(its_socket, &port.socket) {
        parts.push(format!("at {} (not {})", its_socket.display(), port.socket.display()));
    }
    if let Some(made_of) = &served.made_of {
        parts.extend(made_otherwise(port, made_of));
    }
    (!parts.is_empty()).then(|| format!("the daemon serves {name} {}: {OTHER_FILE}", parts.join(", ")))
}

/// Like [`otherwise`], for values that `nicety ports` does not show. `doorbells` counts only if the file sets it.
fn made_otherwise(port: &PortConfig, made_of: &MadeOf) -> Vec<String> {
    let number = |number: Option<u16>| number.map_or_else(|| "unset".to_owned(), |number| number.to_string());
    let doorbells = |mapped| if mapped { "mapped" } else { "trapped" }.to_owned();
    let rom = |has| if has { "with" } else { "without" };
    let mut parts = Vec::new();
    let mut compare = |key: &str, served: String, configured: String| {
        if served != configured {
            parts.push(format!("with {key} {served} (not {configured})"));
        }
    };
    compare("role", made_of.role.to_string(), port.role.to_string());
    compare("queues", number(made_of.queues), number(port.queues));
    compare("mtu", number(made_of.mtu), number(port.mtu));
    compare("standby", made_of.standby.to_string(), port.standby.to_string());
    compare("buffer", Bytes(u64::from(made_of.buffer)).to_string(), port.buffer.to_string());
    if let Some(configured) = port.doorbells {
        compare("doorbells", doorbells(made_of.mapped), doorbells(configured == Doorbells::Mapped));
    }
    let subsystem = |is_vmwares| if is_vmwares { "vmware" } else { "chip" }.to_owned();
    compare("subsystem", subsystem(made_of.vmware_subsystem), subsystem(port.is_vmwares));
    // A daemon of an earlier version does not report it.
    if !made_of.access.is_empty() && made_of.access != port.access.to_string() {
        parts.push(format!("for {} (not {})", made_of.access, port.access));
    }
    if made_of.rom != port.rom.is_some() {
        parts.push(format!("{} an option ROM (not {})", rom(made_of.rom), rom(!made_of.rom)));
    }
    parts
}

/// Whether two paths name the same file: a folder may have several names.
pub fn is_same(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// QEMU's vfio-user device, as JSON.
fn function(socket: &Path, boots: bool) -> String {
    // Written key by key: the driver must come first, as in QEMU's own examples.
    let path = json!(socket.to_string_lossy());
    let boot = if boots { ",\"bootindex\":1" } else { "" };
    format!("{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":{path}}}{boot}}}")
}

/// The user or group that QEMU, or the daemon, must run as.
fn who_may(port: &PortConfig) -> String {
    if port.role == Role::Connect {
        return "QEMU makes the socket, for its own user alone: the daemon must run as that user, or as root"
            .to_owned();
    }
    let AccessConfig { owner, group, .. } = &port.access;
    let owner = owner.as_ref().map_or("the user who runs `nicety serve`".to_owned(), |owner| format!("user {owner}"));
    match (port.access.mode(), group) {
        (0o600, _) => format!("the socket is its owner's alone: QEMU must run as {owner}"),
        (0o660, Some(group)) => {
            format!("the socket is for its owner and group {group}: QEMU must run as {owner}, or in that group")
        }
        (0o660, None) => {
            format!("the socket is for its owner and his group: QEMU must run as {owner}, or in his group")
        }
        _ => "the socket is open to everybody on this machine: QEMU may run as any user".to_owned(),
    }
}

/// A path in an option list of QEMU: a comma is written twice.
fn commas(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// A word quoted for a POSIX shell.
pub fn quoted(word: &str) -> String {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ',' | '=' | ':' | '+' | '@' | '%');
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A text escaped for a quoted XML attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;").replace('"', "&quot;")
}

mod managers;

pub use managers::{kubevirt, proxmox};

#[cfg(test)]
#[path = "attach_test.rs"]
mod tests;
