//! `kvm-scp`: a comparison of KVM's virtual NICs. A client outside copies a file from a guest by scp, over a 100 Mbit/s network; MB/s,
//! stability, and what the guest shows of its adapter.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nicety_guests::uml::UmlKernel;
use nicety_guests::{Accel, Error, Layer, Root};

use super::rig::{Measurement, Run, Stay, rig};
use super::{ABOUT_CPU, About, CPU, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::BenchError;
use crate::method::{Guests, Own, Server};
use crate::plan::Plan;
use crate::rate::Rate;
use crate::real::native;
use crate::real::outside::{self, GUEST, Lone, Outside, subjects};
use crate::real::own::OF_ANY_AGE;
use crate::real::veth::Tc;
use crate::real::{Watch, quoted};
use crate::results::Direction;
use crate::series::Sampler;
use crate::spent::{Spent, Stopwatch};

mod natively;

use natively::Natively;

const PACKAGES: &[&str] = &["openssh-server", "openssh-client", "pciutils"];
/// Files of these packages that a guest needs.
const FILES: &[&str] = &[
    "usr/bin/ssh-keygen",
    "usr/sbin/sshd",
    "usr/lib/openssh/sshd-session",
    "usr/lib/openssh/sshd-auth",
    "usr/bin/lspci",
    "usr/share/misc/pci.ids",
];
/// The document's network.
const RATE: Rate = Rate { mbit: 100 };
const RATE_BYTES: u64 = 12_500_000;
/// The document's file (its size is lost in the text; the reference takes 300 MB).
const FILE_BYTES: u64 = 300_000_000;
/// Length of the copy that says how much an adapter carries.
const PROBE_BYTES: u64 = 256 << 10;
/// A copy that does not move for so long stalls: `scp` itself says so then (STALL_TIME in OpenSSH's progressmeter.c).
const STALL: Duration = Duration::from_secs(5);
/// Time limit of what takes no time itself.
const SLACK: Duration = Duration::from_secs(30);
const LOAD: &str = "scp";
/// Commands in the guest, whose output the report shows, as the plan names them.
const SHOWN: &str = "lspci | grep Ethernet; ethtool -i eth0; dmesg | grep eth0";
/// The kernel's log. A person's own guest may have none, or not show it to the user.
const DMESG: &str = "dmesg 2>/dev/null";
/// Mark of a run of which nobody knows whether the guest's kernel complained.
const LOG_UNKNOWN: &str = "kernel log not readable: not checked";
/// The document's adapters. Its virtio is a PCI function.
const DOCUMENTS: [&str; 5] = ["virtio-net-pci", "e1000", "rtl8139", "ne2k_pci", "pcnet"];

const FIGURES: [Figure; 5] = [
    Figure::new("megabytes", "Throughput", "MB/s", Direction::Higher),
    Figure { name: "stable", title: "Stable", unit: "runs", direction: Direction::Higher, yes_or_no: true },
    CPU[0],
    CPU[1],
    CPU[2],
];

/// The method (see the module's page).
#[derive(Debug)]
pub struct KvmScp;

impl Method for KvmScp {
    fn about(&self) -> About {
        About {
            name: "kvm-scp",
            document: Some((2, "KVM virtual NICs: virtio, e1000, rtl8139, ne2k_pci, pcnet")),
            line: "files by scp out of a guest, over a 100 Mbit/s uplink: MB/s, stability, what the guest shows",
            needs: "user-mode guests (a C compiler, once) or QEMU's; Debian packages, 260 MB once; tc for QEMU's and native rows",
            guests: &[Guests::Uml, Guests::Qemu],
            overhead_seconds: 5.0,
            memory_mib: None,
            disk_bytes: 60_000_000,
        }
    }

    fn field(&self, guests: Guests, length: Length) -> Vec<Subject> {
        let documents = DOCUMENTS.into_iter();
        let all = nicety_adapters::REGISTRY.iter().map(|entry| entry.about.name);
        let others = all.filter(|name| length != Length::Quick && !DOCUMENTS.contains(name));
        let served = |subject: &Subject| length != Length::Quick || subject.server == Some(Server::Nicety);
        let all = documents.chain(others).flat_map(|name| subjects(guests, name)).filter(served);
        all.chain([Subject::native()]).collect()
    }

    fn loads(&self, _guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let most = match length {
            Length::Quick => 4,
            Length::Usual => 30,
            Length::Full => 180,
        };
        let seconds = seconds.unwrap_or(most);
        let commands = [
            "guest: sshd -f /dev/null -h KEY -o Subsystem='sftp internal-sftp'".to_owned(),
            format!("guest: {SHOWN}"),
            "outside: scp -v root@GUEST:/tmp/file FILE; sha256sum FILE".to_owned(),
        ];
        vec![Load {
            name: LOAD.to_owned(),
            title: format!(
                "A file out of the guest by scp, over {RATE}: as much as the adapter carries in {seconds} s, at most 300 MB"
            ),
            seconds,
            commands: commands.into(),
        }]
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, _loads: &[Load]) -> Vec<Table> {
        let table = |title: &str, figure, bases, document, about| Table {
            title: title.to_owned(),
            load: LOAD.to_owned(),
            figure,
            bases,
            document,
            about,
        };
        vec![
            table(
                "Throughput",
                "megabytes",
                &["virtio-net-pci"],
                &[
                    ("e1000", "virtio-net-pci", 1.0),
                    ("rtl8139", "virtio-net-pci", 1.0),
                    ("ne2k_pci", "virtio-net-pci", 0.60),
                    ("pcnet", "virtio-net-pci", 0.82),
                ],
                "The document: virtio 10.9–11.2, e1000 and rtl8139 10.8–11.2, ne2k_pci 6.5–6.7, pcnet 9.1 MB/s; the first three reach the \
                 wire's limit. Its ratios are those of the middles.",
            ),
            table(
                "Stability",
                "stable",
                &[],
                &[],
                "Stable: the file is identical, the copy never stood still for 5 s, and the guest's kernel said nothing meanwhile. Where an \
                 image's user may not read the kernel's log, a remark says so, and the other two decide. The document calls all stable but pcnet (\"85% VM Nic crash\").",
            ),
            table(
                "CPU per gigabit",
                "cpu",
                &["virtio-net-pci"],
                &[],
                "Guest and its server together, encryption included. The document does not give it.",
            ),
            table(CPU[1].title, CPU[1].name, &["virtio-net-pci"], &[], ABOUT_CPU[1]),
            table(CPU[2].title, CPU[2].name, &["virtio-net-pci"], &[], ABOUT_CPU[2]),
        ]
    }

    /// The image has a server and keys of its own.
    fn in_image(&self, mut loads: Vec<Load>, own: &Own) -> Option<Vec<Load>> {
        for load in &mut loads {
            load.commands = vec![
                format!("guest: the image's own ssh server, which lets {} in", own.user),
                format!("guest: {SHOWN}"),
                "guest: dd if=/dev/urandom of=/tmp/file; sha256sum </tmp/file".to_owned(),
                format!("outside: scp -v {}@GUEST:/tmp/file FILE; sha256sum FILE", own.user),
            ];
        }
        Some(loads)
    }

    /// The copy lies among the temporary files.
    fn disk_bytes(&self, plan: &Plan) -> u64 {
        let kernel = if plan.guests == Guests::Uml { UmlKernel::DISK_BYTES } else { 0 };
        Root::DISK_BYTES + kernel + self.about().disk_bytes + file_bytes(plan)
    }

    fn open(&self, mut opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let tc = opening.tc()?;
        let Opening { plan, program, say, .. } = opening;
        let layer = Layer::lay("kvm-scp", PACKAGES, say)?;
        let file = file_bytes(plan);
        // The file lies in memory, in a file system that may take half of it.
        let memory_mib = u32::try_from(file * 2 / (1 << 20)).unwrap_or(1024).saturating_add(160);
        let programs = Some((layer.clone(), FILES));
        let opening = outside::Opening { programs, ..outside::Opening::of(plan, program, memory_mib) };
        let outside = Outside::open(opening, say)?;
        let ssh = quoted(&layer.program("usr/bin/ssh"));
        let script = outside.folder().write("ssh", format!("#!/bin/sh\nexec {ssh} \"$@\"\n"))?;
        let executable = fs::set_permissions(&script, fs::Permissions::from_mode(0o700));
        executable.map_err(|source| Error::File { doing: "make executable", path: script, source })?;
        let (native, own) = (native::Kept::default(), plan.own.clone());
        Ok(rig(Scp { outside, layer, tc, native, own, file_bytes: file }))
    }
}

/// Longest file of a plan's copies.
fn file_bytes(plan: &Plan) -> u64 {
    let longest = plan.loads.iter().map(|load| u64::from(load.seconds)).max().unwrap_or(0);
    FILE_BYTES.min(longest.saturating_mul(RATE_BYTES))
}

#[derive(Debug)]
struct Scp {
    outside: Outside,
    layer: Layer,
    tc: Option<Tc>,
    native: native::Kept<Natively>,
    own: Option<Own>,
    /// Size of the native row's file.
    file_bytes: u64,
}

/// The file to copy: from whom, where, how long, and its checksum.
struct From<'a> {
    user: &'a str,
    port: u16,
    address: &'a str,
    bytes: u64,
    sum: &'a str,
}

/// A copy's file, rate and whether it arrived.
struct Copied {
    bytes: u64,
    seconds: f64,
    identical: bool,
    sampler: Sampler,
    elapsed: Duration,
}

impl Scp {
    /// Starts the guest's server, with keys of its own. The client's key is then in the folder outside.
    fn serve(&self, lone: &mut Lone, stop: &AtomicBool) -> Result<(), Error> {
        let keys = "ssh-keygen -q -t ed25519 -N '' -f /tmp/host; ssh-keygen -q -t ed25519 -N '' -f /tmp/client";
        let user = "mkdir -p /run/sshd; echo sshd:x:74:74::/run/sshd:/bin/false >>/etc/passwd";
        let server = "/usr/sbin/sshd -f /dev/null -h /tmp/host -o StrictModes=no -o AuthorizedKeysFile=/tmp/client.pub -o \
                      'Subsystem sftp internal-sftp'";
        let wait = "until netstat -ltn | grep -q :22; do rest; done; cat /tmp/client";
        let key = lone.guest.succeed_unless(&format!("{keys}; {user}; {server}; {wait}"), SLACK, stop)?;
        self.keep_key(&key)
    }

    /// Makes a file in the guest, and copies it out: the copy, and what it cost.
    fn copy(
        &mut self,
        lone: &mut Lone,
        bytes: u64,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<(Copied, Spent, Option<f64>), Error> {
        let kib = bytes / 1024;
        let make = format!("dd if=/dev/urandom of=/tmp/file bs=1k count={kib} 2>/dev/null; sha256sum </tmp/file");
        let sum = lone.guest.succeed_unless(&make, SLACK + limit, stop)?;
        let from = From {
            user: self.own.as_ref().map_or("root", |own| &own.user),
            port: 22,
            address: GUEST,
            bytes: kib * 1024,
            sum: sum.trim(),
        };
        let (command, to) = self.scp(&from);
        let watch = Stopwatch::start(lone.spent());
        let copied = fetched(&self.outside.root().busybox(), &from, &to, &mut |watch| {
            self.outside.run(&command, limit, stop, watch)
        })?;
        let (spent, steal_percent) = watch.stop(lone.spent());
        Ok((copied, spent, steal_percent))
    }

    /// The client's command, and the place of the copy.
    fn scp(&self, from: &From<'_>) -> (Command, PathBuf) {
        let folder = self.outside.folder();
        let to = folder.path().join("file");
        let mut command = self.layer.program("usr/bin/scp");
        command.args(["-v", "-F", "/dev/null", "-S", &folder.join("ssh")]);
        let key = match (&self.own, from.address == GUEST) {
            // Without a key of its person's, ssh takes its own choice.
            (Some(own), true) => {
                command.args(OF_ANY_AGE);
                own.key.clone()
            }
            _ => Some(folder.path().join("key")),
        };
        if let Some(key) = key {
            command.arg("-i").arg(key);
        }
        command.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]);
        command.arg("-P").arg(from.port.to_string());
        command.arg(format!("{}@{}:/tmp/file", from.user, from.address)).arg(&to);
        (command, to)
    }

    /// The key of the server, with which the client is let in.
    fn keep_key(&self, key: &str) -> Result<(), Error> {
        let path = self.outside.folder().write("key", key.trim().to_owned() + "\n")?;
        let private = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
        private.map_err(|source| Error::File { doing: "protect", path, source })
    }

    /// The copy from a server without a virtual machine.
    fn copy_natively(&self, native: &mut Natively, limit: Duration, stop: &AtomicBool) -> Result<Copied, Error> {
        self.keep_key(&native.key)?;
        let from = From {
            user: natively::USER,
            port: natively::PORT,
            address: natively::ADDRESS,
            bytes: self.file_bytes / 1024 * 1024,
            sum: &native.sum,
        };
        let (command, to) = self.scp(&from);
        let network = &mut native.network;
        fetched(&self.outside.root().busybox(), &from, &to, &mut |watch| network.run(&command, limit, stop, watch))
    }

    fn copies(&mut self, lone: &mut Lone, load: &Load, stop: &AtomicBool) -> Result<Taken, Error> {
        if self.own.is_none() {
            self.serve(lone, stop)?;
        }
        let mut texts = BTreeMap::new();
        let interface = lone.interface.clone();
        for (title, command) in [
            ("lspci | grep Ethernet", "lspci | grep Ethernet || true".to_owned()),
            ("ethtool -i", format!("ethtool -i {interface} || true")),
            ("dmesg | grep", format!("dmesg | grep {interface} | grep -v 'Kernel command line' || true")),
        ] {
            let text = lone.guest.succeed_unless(&command, SLACK, stop)?;
            let title = if title.starts_with("lspci") { title.to_owned() } else { format!("{title} {interface}") };
            texts.insert(title, text);
        }
        let (probe, ..) = self.copy(lone, PROBE_BYTES, SLACK * 4, stop)?;
        let carried = (probe.bytes as f64 / probe.seconds.max(0.01) * f64::from(load.seconds)) as u64;
        // A probe is short: at the wire's rate it says little. The copy may take longer than asked, or less.
        let bytes = carried.clamp(PROBE_BYTES, FILE_BYTES.min(RATE_BYTES.saturating_mul(load.seconds.into())));
        let before = log(lone, stop)?;
        let limit = SLACK * 2 + Duration::from_secs(u64::from(load.seconds) * 4);
        let (copied, spent, steal_percent) = self.copy(lone, bytes, limit, stop)?;
        let after = log(lone, stop)?;
        let stability = Stability::of(copied.identical, before.as_deref(), after.as_deref());
        if !stability.said.is_empty() {
            texts.insert("dmesg during the copy".to_owned(), stability.said.join("\n"));
        }
        Ok(Taken { steal_percent, ..copied.taken(stability, Some(spent), texts) })
    }
}

/// The guest's kernel log. None if its user may not read it, or the system has none. An empty one is none: each kernel says something
/// when it boots.
fn log(lone: &mut Lone, stop: &AtomicBool) -> Result<Option<String>, Error> {
    match lone.guest.succeed_unless(DMESG, SLACK, stop) {
        Ok(text) => Ok(Some(text).filter(|text| !text.trim().is_empty())),
        Err(Error::Command { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a copy was stable.
#[derive(Debug, PartialEq)]
struct Stability {
    is_stable: bool,
    /// The kernel's lines meanwhile.
    said: Vec<String>,
    /// Remarks for the reader.
    marks: Vec<String>,
}

impl Stability {
    /// The kernel's log `before` and `after` the copy is None where it cannot be read.
    fn of(is_identical: bool, before: Option<&str>, after: Option<&str>) -> Stability {
        let said: Option<Vec<String>> =
            before.zip(after).map(|(before, after)| added(before, after).into_iter().map(str::to_owned).collect());
        let complained = said.as_ref().is_some_and(|said| !said.is_empty());
        let marks = [
            (!is_identical, "unstable: the file differs"),
            (complained, "unstable: the guest's kernel complained"),
            (said.is_none(), LOG_UNKNOWN),
        ];
        Stability {
            is_stable: is_identical && !complained,
            said: said.unwrap_or_default(),
            marks: marks.into_iter().filter(|(holds, _)| *holds).map(|(_, mark)| mark.to_owned()).collect(),
        }
    }
}

/// Lines that a log has gained. A full log loses its oldest lines as it gains new ones: the end of `before` that `after` begins with is
/// the same lines.
fn added<'a>(before: &str, after: &'a str) -> Vec<&'a str> {
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let kept = (0..=before.len()).find_map(|lost| {
        let kept = before.get(lost..)?;
        after.starts_with(kept).then_some(kept.len())
    });
    after.into_iter().skip(kept.unwrap_or(0)).collect()
}

/// Runs a command until its end, with a look at it at short intervals.
type Runs<'a> = &'a mut dyn FnMut(Watch<'_>) -> Result<(String, Duration), Error>;

/// Copies a file to `to` by `run`, and removes the copy.
fn fetched(busybox: &Path, from: &From<'_>, to: &Path, run: Runs<'_>) -> Result<Copied, Error> {
    let bytes = from.bytes;
    let (mut sampler, mut size, mut moved) = (Sampler::default(), 0, Duration::ZERO);
    let mut watch = |elapsed: Duration| {
        let now = fs::metadata(to).map_or(0, |file| file.len());
        if now > size {
            sampler.add(elapsed, now - size);
            (size, moved) = (now, elapsed);
        }
        // Before the first byte there is the key exchange.
        let most = if size == 0 { SLACK } else { STALL };
        if elapsed.saturating_sub(moved) > most {
            return Err(format!("scp stalls: nothing moved for {most:?} after {size} of {bytes} bytes"));
        }
        Ok(())
    };
    let (said, elapsed) = run(&mut watch)?;
    let seconds = transferred(&said).ok_or_else(|| failed(&said))?;
    let mut sha256 = Command::new(busybox);
    sha256.arg("sha256sum").arg(to);
    let output = sha256.output().map_err(|error| failed(&error.to_string()))?;
    let ours = String::from_utf8_lossy(&output.stdout).into_owned();
    let word = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
    let identical = !from.sum.is_empty() && word(&ours) == word(from.sum);
    // The next copy's growth must be its own.
    fs::remove_file(to).map_err(|source| Error::File { doing: "remove", path: to.to_owned(), source })?;
    Ok(Copied { bytes, seconds, identical, sampler, elapsed })
}

impl Copied {
    /// The figures of a run, with the processor time if it is known.
    fn taken(self, stability: Stability, spent: Option<Spent>, texts: BTreeMap<String, String>) -> Taken {
        let cpu = spent.into_iter().flat_map(|spent| spent.per(self.bytes as f64 * 8e-9, ""));
        let figures = [
            ("megabytes", self.bytes as f64 / self.seconds.max(1e-3) / 1e6),
            ("stable", f64::from(u8::from(stability.is_stable))),
        ];
        let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(cpu).collect();
        let series = Some(self.sampler.series(self.elapsed, 1e-6)).filter(|series| series.is_sound());
        Taken { figures, series, texts, marks: stability.marks, ..Taken::default() }
    }
}

fn failed(said: &str) -> Error {
    Error::Run { doing: "scp".to_owned(), said: said.to_owned() }
}

/// Duration of an ssh session: `Transferred: sent 3364, received 1055040 bytes, in 0.1 seconds`, and more exactly from `Bytes per second:
/// sent 30583.2, received 9591539.1`. None if it failed.
fn transferred(said: &str) -> Option<f64> {
    let number = |text: &str| text.trim().trim_end_matches(',').parse::<f64>().ok();
    let line = said.lines().find_map(|line| line.trim().strip_prefix("Transferred: sent "))?;
    let bytes = number(line.split("received ").nth(1)?.split(' ').next()?)?;
    let line = said.lines().find_map(|line| line.trim().strip_prefix("Bytes per second: sent "))?;
    let rate = number(line.split("received ").nth(1)?)?;
    let complete = said.lines().any(|line| line.contains("Exit status 0"));
    (complete && rate > 0.0).then_some(bytes / rate)
}

impl Measurement for Scp {
    type Layout = ();
    type Guests = Lone;
    const STAY: Stay = Stay::Run;

    fn layout(load: &str) -> Option<()> {
        (load == LOAD).then_some(())
    }

    fn boot(&mut self, run: &Run<'_, ()>) -> Result<Lone, BenchError> {
        Ok(self.outside.boot(run.subject, RATE, run.stop)?)
    }

    fn measure(&mut self, lone: &mut Lone, run: &Run<'_, ()>) -> Result<Taken, BenchError> {
        let taken = self.copies(lone, run.load, run.stop);
        Ok(taken.map_err(|error| match error {
            Error::Run { doing, said } => {
                let console = lone.guest.console();
                Error::Run { doing, said: format!("{said}\nthe guest's console ended with\n{console}") }
            }
            other => other,
        })?)
    }

    /// The same programs over a link of the same rate.
    fn natively(&mut self, run: &Run<'_, ()>) -> Result<Taken, BenchError> {
        let mut kept = std::mem::take(&mut self.native);
        let open = || {
            let tc = self.tc.as_ref().ok_or(Error::Stopped)?;
            Natively::open(self.outside.root(), &self.layer, tc, self.file_bytes, run.stop)
        };
        let limit = SLACK * 2 + run.duration() * 4;
        let copied = kept.with(open, |native| self.copy_natively(native, limit, run.stop))?;
        self.native = kept;
        // The log of the host's kernel has much besides.
        let stability = Stability::of(copied.identical, Some(""), Some(""));
        Ok(copied.taken(stability, None, BTreeMap::new()))
    }

    fn end(&mut self, lone: Lone) -> Result<(), BenchError> {
        Ok(self.outside.end(lone)?)
    }

    fn accelerator(&self) -> Option<Accel> {
        self.outside.accelerator()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.outside.notes();
        notes.push(
            "native: the same programs between two network namespaces of the host, joined by a veth pair that tc paces to the same rate."
                .to_owned(),
        );
        notes.push(
            "Over time: the growth of the copy, looked at every few milliseconds. scp writes what it has gathered at once, so a point may be above \
             the link's 12.5 MB/s, and the next is the lower for it."
                .to_owned(),
        );
        notes.push(
            "MB/s (10⁶ bytes) is the file's size by the duration of the ssh session, as `scp -v` says it. Cipher and key exchange are OpenSSH's own choice."
                .to_owned(),
        );
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_s_duration_is_read_from_what_ssh_says_and_a_failure_has_none() {
        let said = "debug1: channel 0: free: client-session, nchannels 1\nTransferred: sent 3364, received 1055040 bytes, in 0.1 seconds\n\
                    Bytes per second: sent 30583.2, received 9591539.1\ndebug1: Exit status 0\n";
        assert!((transferred(said).unwrap() - 0.11).abs() < 0.001);
        assert_eq!(transferred(&said.replace("status 0", "status 1")), None);
        assert_eq!(
            transferred("ssh: connect to host 10.9.5.1 port 22: Connection refused\nscp: Connection closed\n"),
            None
        );
    }

    /// A user without CAP_SYSLOG (dmesg(1): "read kernel buffer failed"), and Windows.
    #[test]
    fn a_log_that_nobody_can_read_is_no_proof_that_the_kernel_was_silent() {
        let of = |identical, before, after| {
            let Stability { is_stable, said, marks } = Stability::of(identical, before, after);
            (is_stable, said.join("|"), marks.join("|"))
        };
        let unknown = || LOG_UNKNOWN.to_owned();
        assert_eq!(of(true, Some("boot"), Some("boot")), (true, String::new(), String::new()));
        assert_eq!(of(true, None, None), (true, String::new(), unknown()));
        assert_eq!(of(true, Some("boot"), None), (true, String::new(), unknown()));
        assert_eq!(of(false, None, None), (false, String::new(), format!("unstable: the file differs|{LOG_UNKNOWN}")));
        let complaint = (false, "eth0: hang".to_owned(), "unstable: the guest's kernel complained".to_owned());
        assert_eq!(of(true, Some("boot"), Some("boot\neth0: hang")), complaint);
    }

    #[test]
    fn lines_that_pushed_others_out_of_a_full_log_are_seen() {
        assert_eq!(added("a\nb\nc", "a\nb\nc"), [""; 0]);
        assert_eq!(added("a\nb\nc", "c\nd\ne"), ["d", "e"]);
        assert_eq!(added("a\nb\nc", "x\ny\nz"), ["x", "y", "z"]);
        assert_eq!(added("a\na\na", "a\na\na\na"), ["a"]);
    }

    #[test]
    fn the_document_s_adapters_come_first_and_with_full_all_others_follow() {
        let names =
            |length| KvmScp.field(Guests::Uml, length).into_iter().map(|subject| subject.adapter).collect::<Vec<_>>();
        let quick = names(Length::Quick);
        assert_eq!(
            (quick.last().map(String::as_str), &quick[..5]),
            (Some("native"), &DOCUMENTS.map(str::to_owned)[..])
        );
        let mut all = names(Length::Full);
        all.dedup();
        assert_eq!(all.len(), nicety_adapters::REGISTRY.len() + 1);
        assert!(all.starts_with(&DOCUMENTS.map(str::to_owned)), "{all:?}");
    }
}
