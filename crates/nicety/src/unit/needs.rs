//! The needs of a host file that its unit must allow.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nicety_daemon::paths::{self, HostPath, PathUse};
use nicety_host::{
    AccessConfig, EtcdConfig, Host, LeasePlace, ListenAddress, PageAddress, PeerAddress, TunnelConfig, UplinkConfig,
    UplinkKind, group_number,
};
use nix::unistd::{User, getgrouplist};
use rustix::fs::getxattr;

use super::{Lack, Lacks, Unit, is_yes, quoted};

/// The needs of a host file that a unit does not allow. `None`: it allows all.
pub fn lacks(host: &Host, unit: &Unit) -> Option<Lacks> {
    let mut needs = Needs { unit, all: Vec::new() };
    needs.network(host);
    needs.uplinks(host);
    needs.files(host);
    needs.accounts(host);
    let Needs { all, .. } = needs;
    (!all.is_empty()).then(|| Lacks { unit: unit.name.clone(), all })
}

struct Needs<'a> {
    unit: &'a Unit,
    all: Vec<Lack>,
}

/// Whom a socket speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    Address(IpAddr),
    Anybody,
}

impl Needs<'_> {
    fn lack(&mut self, why: String, lines: impl IntoIterator<Item = String>) {
        self.all.push(Lack { why, lines: lines.into_iter().collect() });
    }

    /// The page, other daemons, collectors of flows, and etcd.
    fn network(&mut self, host: &Host) {
        if let Some(PageAddress::Loopback(address)) = host.daemon.page {
            let what = format!("daemon.page = \"{address}\"");
            self.inet(&what, With::Address(address.ip()));
            self.low_port(&what, address.port());
        }
        if let Some(ListenAddress::Address(address)) = host.tolerance.as_ref().and_then(|ft| ft.listen.as_ref()) {
            let with = if address.ip().is_loopback() { With::Address(address.ip()) } else { With::Anybody };
            let what = format!("ft.listen = \"{address}\"");
            self.inet(&what, with);
            self.low_port(&what, address.port());
        }
        for (what, peer) in host.vms.iter().map(|vm| (format!("vm {}: peer", vm.name), &vm.peer)) {
            let with = match peer {
                PeerAddress::Address(address) => With::Address(address.ip()),
                // Names are looked up anywhere.
                PeerAddress::Name { .. } => With::Anybody,
                PeerAddress::Unix(_) => continue,
            };
            self.inet(&what, with);
        }
        for export in &host.flow_exports {
            let what = format!("flow_export {}: collector: {}", export.name, export.collector);
            self.inet(&what, With::Address(export.collector.address().ip()));
        }
        if let Some(LeasePlace::Etcd(etcd)) = host.tolerance.as_ref().and_then(|ft| ft.lease.as_ref()) {
            self.etcd("ft", etcd);
        }
        if let Some(fabric) = &host.fabric {
            self.etcd("fabric", &fabric.etcd);
        }
    }

    fn etcd(&mut self, table: &str, etcd: &EtcdConfig) {
        for endpoint in &etcd.endpoints {
            let with = endpoint.host.parse().map_or(With::Anybody, With::Address);
            self.inet(&format!("{table}.etcd: {endpoint}"), with);
        }
    }

    /// Lower ports are root's (ip-sysctl, ip_unprivileged_port_start).
    fn low_port(&mut self, what: &str, port: u16) {
        const CAPABILITY: &str = "CAP_NET_BIND_SERVICE";
        let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        let first: u16 = first.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024);
        if port != 0 && port < first && !self.unit.has_capability(CAPABILITY) {
            let lines = ["AmbientCapabilities", "CapabilityBoundingSet"].map(|key| format!("{key}={CAPABILITY}"));
            self.lack(format!("{what}: a port below {first} is root's ({CAPABILITY})"), lines);
        }
    }

    fn inet(&mut self, what: &str, with: With) {
        let families: &[&str] = match with {
            With::Address(IpAddr::V4(_)) => &["AF_INET"],
            With::Address(IpAddr::V6(_)) => &["AF_INET6"],
            With::Anybody => &["AF_INET", "AF_INET6"],
        };
        let missing: Vec<&str> = families.iter().copied().filter(|family| !self.unit.has_family(family)).collect();
        if !missing.is_empty() {
            let missing = missing.join(" ");
            let line = format!("RestrictAddressFamilies={missing}");
            self.lack(format!("{what}: no sockets of {missing} (RestrictAddressFamilies=)"), [line]);
        }
        if !self.unit.reaches(with) {
            let peer = match with {
                With::Address(address) if address.is_loopback() => "localhost".to_owned(),
                With::Address(address) => address.to_string(),
                With::Anybody => "any".to_owned(),
            };
            let whom = if with == With::Anybody { "other hosts" } else { &peer };
            self.lack(
                format!("{what}: no packets to and from {whom} (IPAddressDeny=)"),
                [format!("IPAddressAllow={peer}")],
            );
        }
    }

    fn uplinks(&mut self, host: &Host) {
        for UplinkConfig { name, kind, .. } in &host.uplinks {
            match kind {
                UplinkKind::Xdp { .. } => self.xdp(name),
                UplinkKind::Tap { .. } => self.tap(name),
                UplinkKind::Vxlan(tunnel) => self.tunnel(name, tunnel),
                _ => {}
            }
        }
    }

    /// UDP with other hosts.
    fn tunnel(&mut self, name: &str, tunnel: &TunnelConfig) {
        self.low_port(&format!("uplink {name}: udp_port"), tunnel.settings.port);
        if tunnel.is_fabric {
            // Its hosts come and go.
            self.inet(&format!("uplink {name}: [fabric] tunnel"), With::Anybody);
        }
        for peer in &tunnel.peers {
            self.inet(&format!("uplink {name}: peers"), With::Address(*peer));
        }
    }

    /// docs/installing.md, "AF_XDP".
    fn xdp(&mut self, name: &str) {
        let unit = self.unit;
        let mut lines = Vec::new();
        for capability in ["CAP_BPF", "CAP_NET_RAW"].into_iter().filter(|one| !unit.has_capability(one)) {
            lines.push(format!("AmbientCapabilities={capability}"));
            lines.push(format!("CapabilityBoundingSet={capability}"));
        }
        if !unit.has_family("AF_XDP") {
            lines.push("RestrictAddressFamilies=AF_XDP".to_owned());
        }
        if !unit.has_call("bpf") {
            lines.push("SystemCallFilter=bpf".to_owned());
        }
        if unit.value("LimitMEMLOCK") != Some("infinity") {
            lines.push("LimitMEMLOCK=infinity".to_owned());
        }
        if !lines.is_empty() {
            self.lack(format!("uplink {name}: kind = \"xdp\": AF_XDP takes rights that the unit does not give"), lines);
        }
    }

    fn tap(&mut self, name: &str) {
        let unit = self.unit;
        let is_closed = unit.value("DevicePolicy").is_some_and(|policy| policy != "auto");
        let allowed = unit.values("DeviceAllow").filter_map(|value| value.split_whitespace().next());
        let allowed: Vec<&str> = allowed.collect();
        let is_there = allowed.contains(&"/dev/net/tun") || (allowed.is_empty() && !is_closed);
        if !is_there || unit.is_on("PrivateDevices") {
            let lines = ["DeviceAllow=/dev/net/tun rw".to_owned()];
            let hides = unit.is_on("PrivateDevices").then(|| "PrivateDevices=no".to_owned());
            self.lack(format!("uplink {name}: no /dev/net/tun (DeviceAllow=)"), lines.into_iter().chain(hides));
        }
    }

    /// Files and sockets at paths.
    fn files(&mut self, host: &Host) {
        use PathUse::{Captures, Connects, Fills, Listens, Reads, Writes};
        let own = folder_of(&host.path);
        // Not the user's folder: the unit has none.
        let control = host.control(None).ok();
        let (opened, made): (Vec<_>, Vec<_>) =
            paths::of_host(host, control.as_deref()).into_iter().partition(|one| matches!(one.does, Reads | Connects));
        for HostPath { key, path, does, .. } in made {
            match does {
                Fills => self.folder(&key, &path, true),
                Writes | Captures => self.made(&key, &path, "/var/lib/nicety", own),
                Listens | Reads | Connects => self.made(&key, &path, "/run/nicety", own),
            }
        }
        for HostPath { key, path, does, .. } in opened {
            self.opened(&key, &path, if does == Reads { (READ, "read") } else { (WRITE, "connect to") });
        }
    }

    /// A file or a socket that the daemon makes. Another place for it is in the folder `instead`.
    fn made(&mut self, key: &str, path: &Path, instead: &str, own: &Path) {
        let folder = folder_of(path);
        if folder == own && self.unit.keeps_read_only(folder).is_some() {
            // Who writes to this folder writes the host file.
            let why = format!("{key}: {} is read-only for the daemon; name a place in {instead}", folder.display());
            self.lack(why, []);
        } else {
            self.folder(key, folder, false);
        }
    }

    /// A file that is read, or a socket that others have made.
    fn opened(&mut self, key: &str, path: &Path, (right, name): (u32, &str)) {
        let shown = path.display();
        let why = self.unit.hides(path);
        if let Some(why) = &why {
            let lines = self.unit.shows(path.parent().unwrap_or(path), "BindReadOnlyPaths", false);
            self.lack(format!("{key}: the unit does not see {shown} ({why})"), lines);
        }
        let may_not = self.unit.may_not(path, right).filter(|(_, closed)| why.is_none() || !holds_homes(closed));
        if let Some((user, closed)) = may_not {
            let (does, closed) = (if closed == path { name } else { "enter" }, closed.display());
            self.lack(
                format!("{key}: user {user} may not {does} {closed}: change its group or mode (chgrp, chmod)"),
                [],
            );
        }
    }

    /// A folder in which files and sockets are made.
    fn folder(&mut self, what: &str, folder: &Path, may_miss: bool) {
        let shown = folder.display();
        let hidden = self.unit.hides(folder);
        if let Some(why) = &hidden {
            let lines = self.unit.shows(folder, "BindPaths", may_miss);
            self.lack(format!("{what}: the unit does not see {shown} ({why})"), lines);
        } else if let Some(why) = self.unit.keeps_read_only(folder) {
            self.lack(
                format!("{what}: {shown} is read-only for the unit ({why})"),
                [format!("ReadWritePaths={}", setting(folder, may_miss))],
            );
        }
        // The unit's own folders are its user's when it starts.
        if !self.unit.own_folders().any(|own| folder.starts_with(own))
            && let Some((user, closed)) = self.unit.may_not(folder, WRITE | ENTER)
            && (hidden.is_none() || !holds_homes(closed))
        {
            let (closed, is_it) = (closed.display(), if closed == folder { "write to" } else { "enter" });
            self.lack(
                format!("{what}: user {user} may not {is_it} {closed}: change its owner or mode (chown, chmod)"),
                [],
            );
        }
    }

    /// Notes owners and groups of sockets that the unit's user cannot set: it can give a socket to its own groups only.
    fn accounts(&mut self, host: &Host) {
        if self.unit.has_capability("CAP_CHOWN") {
            return;
        }
        let ports = host.ports.iter().map(|port| (format!("port {}", port.name), &port.access));
        let control = ("daemon: control".to_owned(), &host.daemon.access);
        for (what, AccessConfig { owner, group, .. }) in ports.chain([control]) {
            let user = self.unit.value("User").unwrap_or("root");
            if let Some(owner) = owner.as_ref().filter(|owner| !is_user(owner, user)) {
                let lines = ["AmbientCapabilities=CAP_CHOWN", "CapabilityBoundingSet=CAP_CHOWN"].map(str::to_owned);
                self.lack(format!("{what}: owner = \"{owner}\": {user} may not give files away (CAP_CHOWN)"), lines);
            } else if let Some(group) = group.as_ref().filter(|group| !self.unit.is_in(group, user)) {
                let line = format!("SupplementaryGroups={group}");
                self.lack(format!("{what}: group = \"{group}\": {user} is not in it"), [line]);
            }
        }
    }
}

/// The folder of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Whether two words are one user. Without a database the words are compared.
fn is_user(one: &str, other: &str) -> bool {
    let number = |name: &str| user(name).map(|user| user.uid.as_raw()).or_else(|| name.parse().ok());
    one == other || number(one).is_some_and(|one| number(other) == Some(one))
}

fn user(name: &str) -> Option<User> {
    User::from_name(name).ok().flatten()
}

/// The groups of a user in the databases. `None`: the user is not known yet.
fn groups_of(name: &str) -> Option<Vec<u32>> {
    let user = user(name)?;
    let groups = getgrouplist(&std::ffi::CString::new(user.name).ok()?, user.gid).ok()?;
    Some(groups.into_iter().map(|group| group.as_raw()).collect())
}

impl Unit {
    /// Whether packets go to and come from there (systemd.resource-control(5), IPAddressAllow=).
    fn reaches(&self, with: With) -> bool {
        let matches = |word: &str| match with {
            With::Anybody => word == "any",
            With::Address(address) => covers(word, address),
        };
        let is_denied = self.words("IPAddressDeny").any(|word| word == "any" || matches(&word));
        !is_denied || self.words("IPAddressAllow").any(|word| word == "any" || matches(&word))
    }

    /// Folders that are the unit's own, in which it may write.
    fn own_folders(&self) -> impl Iterator<Item = PathBuf> {
        let kinds = [
            ("RuntimeDirectory", "/run"),
            ("StateDirectory", "/var/lib"),
            ("CacheDirectory", "/var/cache"),
            ("LogsDirectory", "/var/log"),
        ];
        kinds.into_iter().flat_map(|(key, place)| self.words(key).map(move |name| Path::new(place).join(name)))
    }

    /// The paths of a setting, without their signs; of a mount, what it is in the unit.
    fn paths(&self, key: &str) -> impl Iterator<Item = PathBuf> {
        self.words(key).filter_map(|word| {
            let word = word.trim_start_matches(['-', '+']);
            let of_mount = key.starts_with("Bind");
            word.split(':').take(1 + usize::from(of_mount)).last().map(PathBuf::from)
        })
    }

    /// The setting that keeps a folder, which it sees, read-only. The longest path that is named counts.
    pub(super) fn keeps_read_only(&self, folder: &Path) -> Option<&'static str> {
        let is_in = |places: &[&str]| places.iter().any(|place| folder.starts_with(place));
        let longest = |paths: &mut dyn Iterator<Item = PathBuf>| {
            paths.filter(|path| folder.starts_with(path)).map(|path| path.components().count()).max()
        };
        let writes =
            longest(&mut self.own_folders().chain(self.paths("ReadWritePaths")).chain(self.paths("BindPaths")));
        let reads = longest(&mut self.paths("ReadOnlyPaths").chain(self.paths("BindReadOnlyPaths")));
        if writes.is_some() || reads.is_some() {
            return (writes < reads).then_some("ReadOnlyPaths=");
        }
        if self.has_private_tmp() && is_in(&TMP) {
            return None;
        }
        if self.value("ProtectHome") == Some("read-only") && is_in(&HOMES) {
            return Some("ProtectHome=");
        }
        let is_protected = match self.value("ProtectSystem").unwrap_or("no") {
            "strict" => !is_in(&["/dev", "/proc", "/sys"]),
            "full" => is_in(&["/usr", "/boot", "/efi", "/etc"]),
            other => is_yes(other) && is_in(&["/usr", "/boot", "/efi"]),
        };
        is_protected.then_some("ProtectSystem=")
    }

    /// The setting that hides a path from it, if one does.
    fn hides(&self, path: &Path) -> Option<&'static str> {
        let is_in = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
        let names = |key: &str| self.paths(key).any(|named| path.starts_with(named));
        if names("BindPaths") || names("BindReadOnlyPaths") {
            return None;
        }
        let home = self.value("ProtectHome").unwrap_or("no");
        if (is_yes(home) || home == "tmpfs") && is_in(&HOMES) {
            return Some("ProtectHome=");
        }
        if self.has_private_tmp() && is_in(&TMP) {
            return Some("PrivateTmp=");
        }
        let hiding = [("InaccessiblePaths", "InaccessiblePaths="), ("TemporaryFileSystem", "TemporaryFileSystem=")];
        hiding.into_iter().find(|(key, _)| names(key)).map(|(_, shown)| shown)
    }

    fn has_private_tmp(&self) -> bool {
        self.is_on("PrivateTmp") || self.value("PrivateTmp") == Some("disconnected")
    }

    /// Lines that show a folder which is hidden.
    fn shows(&self, folder: &Path, key: &str, may_miss: bool) -> Vec<String> {
        let is_home = HOMES.iter().any(|home| folder.starts_with(home));
        let mut lines = Vec::new();
        // An inaccessible folder takes no mount; an empty one does.
        if is_home && self.value("ProtectHome") != Some("tmpfs") {
            lines.push("ProtectHome=tmpfs".to_owned());
        }
        let (hiding, others): (Vec<PathBuf>, Vec<PathBuf>) =
            self.paths("InaccessiblePaths").partition(|path| folder.starts_with(path));
        if !hiding.is_empty() {
            // A setting can only be emptied whole: the others are named again.
            lines.push("InaccessiblePaths=".to_owned());
            lines
                .extend(others.iter().map(|path| format!("InaccessiblePaths={}", quoted(&path.display().to_string()))));
        }
        lines.push(format!("{key}={}", setting(folder, may_miss)));
        lines
    }

    /// The unit's user, and what keeps it from this path: the first folder that it may not enter, or the path if it lacks this right there.
    /// `None` as well if its rights are not known: the user is none yet, a part is missing or has an access control list.
    fn may_not<'a>(&self, path: &'a Path, right: u32) -> Option<(String, &'a Path)> {
        let name = self.value("User").filter(|user| !["root", "0"].contains(user))?;
        if self.has_capability("CAP_DAC_OVERRIDE") {
            return None;
        }
        let (uid, mut groups) = (user(name)?.uid.as_raw(), groups_of(name)?);
        groups.extend(
            self.words("Group").chain(self.words("SupplementaryGroups")).filter_map(|group| group_number(&group).ok()),
        );
        let mut way: Vec<&Path> = path.ancestors().collect();
        way.reverse();
        for place in way {
            let found = std::fs::metadata(place).ok()?;
            let mut none = [0; 0];
            if getxattr(place, "system.posix_acl_access", &mut none).is_ok() {
                return None;
            }
            let shift = if found.uid() == uid {
                6
            } else if groups.contains(&found.gid()) {
                3
            } else {
                0
            };
            let needs = if place == path { right } else { ENTER };
            if found.mode() >> shift & needs != needs {
                return Some((name.to_owned(), place));
            }
        }
        None
    }

    /// Whether its processes are in a group.
    fn is_in(&self, group: &str, user: &str) -> bool {
        let Ok(wanted) = group_number(group) else { return true };
        let mut named = self.words("Group").chain(self.words("SupplementaryGroups"));
        if user == "root" || user == "0" || named.any(|name| group_number(&name) == Ok(wanted)) {
            return true;
        }
        groups_of(user).is_none_or(|groups| groups.contains(&wanted))
    }
}

/// Rights as a mode has them for its owner, its group or others.
const READ: u32 = 0o4;
const WRITE: u32 = 0o2;
const ENTER: u32 = 0o1;

/// Whether a unit with `ProtectHome=` has an empty folder in this one's place (systemd.exec(5)), so that this one's mode says nothing.
fn holds_homes(folder: &Path) -> bool {
    ["/home", "/root", "/run/user"].iter().any(|home| folder == Path::new(home))
}

/// A folder as a setting's path. A unit does not start without one that it names, if that may not be missing.
fn setting(folder: &Path, may_miss: bool) -> String {
    quoted(&format!("{}{}", if may_miss { "-" } else { "" }, folder.display()))
}

/// Folders of PrivateTmp= (systemd.exec(5)).
const TMP: [&str; 2] = ["/tmp", "/var/tmp"];

/// Home folders (systemd.exec(5), ProtectHome=).
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// Whether a word of IPAddressAllow= or IPAddressDeny= has this address.
fn covers(word: &str, address: IpAddr) -> bool {
    let (base, length) = match word {
        "any" => return true,
        "localhost" => return address.is_loopback(),
        "link-local" => {
            return match address {
                IpAddr::V4(address) => address.is_link_local(),
                IpAddr::V6(address) => address.is_unicast_link_local(),
            };
        }
        "multicast" => return address.is_multicast(),
        word => word.split_once('/').map_or((word, None), |(base, length)| (base, length.parse::<u32>().ok())),
    };
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let Ok(base) = base.parse::<IpAddr>() else { return false };
    let ((base_bits, most), (bits, _)) = (bits(base), bits(address));
    let length = length.unwrap_or(most).min(most);
    let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
    base.is_ipv4() == address.is_ipv4() && base_bits & mask == bits & mask
}
