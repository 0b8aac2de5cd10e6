//! Open vSwitch with its userspace datapath (Debian package `openvswitch-switch-dpdk`): a bridge with two vhost-user ports, in a private
//! network. Settings: ovs-vswitchd.conf.db(5), `Documentation/topics/dpdk/vhost-user.rst` (`dpdkvhostuser`: the switch listens).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nicety_guests::{Error, Folder, Layer, Namespace, Process, Root};

/// Packages to unpack.
pub const PACKAGES: &[&str] = &["openvswitch-switch-dpdk", "librte-mempool-ring25"];
/// DPDK's pool of buffers, which it loads.
const POOL: &str = "dpdk/pmds-25.0/librte_mempool_ring.so.25";
/// Memory of its buffers, in MiB. Without huge pages it is ordinary memory.
const MEMORY_MIB: u32 = 256;
/// Names of the ports, and so of their sockets.
const PORTS: [&str; 2] = ["a", "b"];
/// Time limit to start, DPDK's memory included.
const LIMIT: Duration = Duration::from_secs(60);
/// Interval of looks at a program that starts.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A running switch. Dropping it ends it.
#[derive(Debug)]
pub struct Ovs {
    _namespace: Namespace,
    folder: Folder,
}

impl Ovs {
    /// Starts database and switch. The thread that moves frames polls on the processor `core`, all others are on `other`.
    ///
    /// # Errors
    /// One of its programs ends or is not ready in time; the text has its last lines.
    pub fn open(layer: &Layer, root: &Root, core: u16, other: u16, stop: &AtomicBool) -> Result<Ovs, Error> {
        let (mut namespace, folder) = (Namespace::open(root)?, Folder::new()?);
        let place = folder.path().to_owned();
        let (database, schema) = (place.join("conf.db"), layer.path("usr/share/openvswitch/vswitch.ovsschema"));
        once(layer.program("usr/bin/ovsdb-tool").arg("create").args([&database, &schema]))?;
        let socket = place.join("db.sock");
        let mut server = layer.program("usr/sbin/ovsdb-server");
        server.arg(&database).arg(format!("--remote=punix:{}", socket.display()));
        server.arg(format!("--unixctl={}", place.join("db.ctl").display()));
        let log = place.join("db.log");
        let process = namespace.start(&server, &log)?;
        wait(std::slice::from_ref(&socket), process, ("ovsdb-server", &log), stop)?;
        let remote = format!("unix:{}", socket.display());
        once(layer.program("usr/bin/ovs-vsctl").arg(format!("--db={remote}")).arg("--no-wait").args(settings(
            &layer.libraries().join(POOL),
            core,
            other,
        )))?;
        let mut switch = layer.program("usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk");
        switch.arg(&remote).arg(format!("--unixctl={}", place.join("switch.ctl").display()));
        // OVS_RUNDIR: its sockets. RUNTIME_DIRECTORY: DPDK's own (rte_eal_get_runtime_dir).
        switch.env("OVS_RUNDIR", &place).env("OVS_LOGDIR", &place).env("RUNTIME_DIRECTORY", &place);
        let log = place.join("switch.log");
        let process = namespace.start(&switch, &log)?;
        wait(&PORTS.map(|port| place.join(port)), process, ("ovs-vswitchd", &log), stop)?;
        Ok(Ovs { _namespace: namespace, folder })
    }

    /// The sockets of its ports.
    pub fn sockets(&self) -> [PathBuf; 2] {
        PORTS.map(|port| self.folder.path().join(port))
    }
}

/// Words of ovs-vsctl: DPDK's memory and processors, a bridge in user space, its ports.
fn settings(pool: &Path, core: u16, other: u16) -> Vec<String> {
    let dpdk = format!("--no-huge --legacy-mem -m {MEMORY_MIB} --no-pci --no-telemetry -d {}", pool.display());
    let mut words: Vec<String> = ["init", "--", "set", "Open_vSwitch", "."].map(str::to_owned).into();
    words.extend([
        "other_config:dpdk-init=true".to_owned(),
        format!("other_config:dpdk-extra={dpdk}"),
        format!("other_config:pmd-cpu-mask={}", mask(core)),
        format!("other_config:dpdk-lcore-mask={}", mask(other)),
    ]);
    words.extend(["--", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"].map(str::to_owned));
    for port in PORTS {
        words.extend(["--", "add-port", "br0", port, "--", "set", "Interface", port].map(str::to_owned));
        words.push("type=dpdkvhostuser".to_owned());
    }
    words
}

/// A mask of this processor alone, in hexadecimal digits.
fn mask(core: u16) -> String {
    format!("0x{:x}{}", 1_u8 << (core % 4), "0".repeat(usize::from(core / 4)))
}

/// Runs a program until its end.
fn once(command: &mut Command) -> Result<(), Error> {
    let failed = |said: String| Error::Run { doing: "setting Open vSwitch up".to_owned(), said };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())) }
}

/// Waits until a program has made these sockets.
fn wait(sockets: &[PathBuf], process: Process, (name, log): (&str, &Path), stop: &AtomicBool) -> Result<(), Error> {
    let end = Instant::now() + LIMIT;
    while !sockets.iter().all(|socket| socket.exists()) {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        if !process.runs() || Instant::now() > end {
            let said = fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = said.lines().collect();
            let last = lines.get(lines.len().saturating_sub(12)..).unwrap_or_default().join("\n");
            return Err(Error::Run { doing: format!("starting {name}"), said: last });
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_names_one_processor_however_many_there_are() {
        assert_eq!([0, 1, 3, 4, 63].map(mask), ["0x1", "0x2", "0x8", "0x10", "0x8000000000000000"]);
        assert_eq!(mask(130), format!("0x4{}", "0".repeat(32)));
    }
}
