//! The same programs without a virtual machine: between two network namespaces, joined by a veth pair (veth(4)).

use std::{
    fs,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nicety_guests::{Error, Folder, Namespace, Process, Root};

/// The near end's address.
pub const NEAR: &str = "10.9.4.1";
/// The far end's address.
pub const FAR: &str = "10.9.4.2";
/// Time limit of the namespaces' own commands.
const SLACK: Duration = Duration::from_secs(10);
/// Interval between two looks at a running program.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Two namespaces (see the module's page). Dropping it ends every program in them.
#[derive(Debug)]
pub struct Native {
    namespace: Namespace,
    far: Process,
    busybox: String,
    folder: Folder,
    logs: u32,
}

impl Native {
    /// Makes both namespaces and the link.
    ///
    /// # Errors
    /// Those of [`Namespace::open`]; it names its remedy.
    pub fn open(root: &Root) -> Result<Native, Error> {
        let mut namespace = Namespace::open(root)?;
        let busybox = root.busybox().display().to_string();
        let mut command = Command::new(&busybox);
        // It lives as long as the namespace, whose end ends it.
        command.args(["unshare", "-n", &busybox, "sleep", "2147483"]);
        let far = namespace.start(&command, Path::new("/dev/null"))?;
        let inside = format!("\"$busybox\" nsenter -t {} -n -F \"$busybox\"", far.host);
        // The shell is the first process of its namespace. Until `far` has its own network, the two are the same.
        let made = format!(
            "n=200; until [ \"$(\"$busybox\" readlink /proc/{host}/ns/net)\" != \"$(\"$busybox\" readlink /proc/self/ns/net)\" ]; do n=$((n-1)); \
             [ $n -gt 0 ] || exit 1; \"$busybox\" usleep 10000; done; \
             {inside} ip link add near type veth && {inside} ip link set near netns 1 && \
             {inside} ip link set lo up && {inside} ip addr add {FAR}/24 dev veth0 && {inside} ip link set veth0 up && \
             ip addr add {NEAR}/24 dev near && ip link set near up",
            host = far.host
        );
        namespace.run(&made, SLACK)?;
        Ok(Native { namespace, far, busybox, folder: Folder::new()?, logs: 0 })
    }

    /// Starts a server at the far end.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn serve(&mut self, command: &Command) -> Result<Process, Error> {
        let mut entered = Command::new(&self.busybox);
        entered.args(["nsenter", "-t", &self.far.host.to_string(), "-n", "-F"]);
        entered.arg(command.get_program()).args(command.get_args());
        self.namespace.start(&entered, Path::new("/dev/null"))
    }

    /// Runs a program at the near end, and returns its output.
    ///
    /// # Errors
    /// It does not end within `limit`, or `stop` became true.
    pub fn run(&mut self, command: &Command, limit: Duration, stop: &AtomicBool) -> Result<String, Error> {
        self.logs += 1;
        let log = self.folder.path().join(format!("log{}", self.logs));
        let process = self.namespace.start(command, &log)?;
        let end = Instant::now() + limit;
        let said = || fs::read_to_string(&log).unwrap_or_default();
        while process.runs() {
            let stopped = stop.load(Ordering::Relaxed);
            if stopped || Instant::now() > end {
                self.namespace.signal(process, "KILL", SLACK)?;
                let doing = format!("`{}` without a virtual machine", command.get_program().display());
                return Err(if stopped {
                    Error::Stopped
                } else {
                    Error::Run { doing, said: format!("no end within {limit:?}\n{}", said()) }
                });
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(said())
    }
}
