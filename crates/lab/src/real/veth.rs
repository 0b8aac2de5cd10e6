//! A second network namespace behind a veth pair (veth(4)), whose ends may be paced by a token bucket (tc-tbf(8)).

use std::{process::Command, time::Duration};

use nicety_guests::{Error, Layer, Namespace, Process, Root};

use crate::rate::Rate;

/// The near end's name, in the first namespace.
pub const NEAR: &str = "near";
/// The far end's name.
pub const FAR: &str = "veth0";
/// Time limit of the namespaces' own commands.
const SLACK: Duration = Duration::from_secs(10);
/// Time limit of the first answer over a new pair.
const FIRST_ANSWER: Duration = Duration::from_secs(30);
/// Longest time that a frame waits for tokens before it is dropped: a switch's buffer, not a bottomless one.
const LATENCY: &str = "50ms";

/// The program that paces interfaces.
#[derive(Debug, Clone)]
pub struct Tc {
    layer: Layer,
}

impl Tc {
    /// Lays the program.
    ///
    /// # Errors
    /// Those of [`Layer::lay`]; each names its remedy.
    pub fn lay(say: &mut dyn FnMut(&str)) -> Result<Tc, Error> {
        Ok(Tc { layer: Layer::lay("iproute2", &["iproute2"], say)? })
    }

    /// A line of shell that limits what `interface` sends.
    fn paces(&self, interface: &str, rate: Rate) -> Command {
        let mut tc = self.layer.program("usr/sbin/tc");
        let (speed, burst) = (format!("{}mbit", rate.mbit), rate.burst_bytes().to_string());
        tc.args(["qdisc", "replace", "dev", interface, "root", "tbf", "rate", &speed]);
        tc.args(["burst", &burst, "latency", LATENCY]);
        tc
    }
}

/// The second namespace. It ends with the first.
#[derive(Debug)]
pub struct Veth {
    far: Process,
    /// The far end's address.
    address: String,
    busybox: String,
}

impl Veth {
    /// Makes the far namespace with `address` (`10.9.4.2/24`), and the pair. The near end is up, and has no address yet.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub fn open(namespace: &mut Namespace, root: &Root, address: &str) -> Result<Veth, Error> {
        Veth::named(namespace, root, NEAR, address)
    }

    /// The same with another name of the near end: for several pairs in one namespace.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub fn named(namespace: &mut Namespace, root: &Root, near: &str, address: &str) -> Result<Veth, Error> {
        let busybox = root.busybox().display().to_string();
        let mut command = Command::new(&busybox);
        // It lives as long as the namespace, whose end ends it.
        command.args(["unshare", "-n", &busybox, "sleep", "2147483"]);
        let far = namespace.start(&command, std::path::Path::new("/dev/null"))?;
        let inside = format!("\"$busybox\" nsenter -t {} -n -F \"$busybox\"", far.host);
        // The shell is the first process of its namespace. Until `far` has its own network, the two are the same.
        let made = format!(
            "( n=200; until [ \"$(\"$busybox\" readlink /proc/{host}/ns/net)\" != \"$(\"$busybox\" readlink /proc/self/ns/net)\" ]; do n=$((n-1)); \
             [ $n -gt 0 ] || exit 1; \"$busybox\" usleep 10000; done ) && \
             {inside} ip link add {near} type veth && {inside} ip link set {near} netns 1 && \
             {inside} ip link set lo up && {inside} ip addr add {address} dev {FAR} && {inside} ip link set {FAR} up && \
             ip link set {near} up",
            host = far.host
        );
        namespace.run(&made, SLACK)?;
        let address = address.split('/').next().unwrap_or_default().to_owned();
        Ok(Veth { far, address, busybox })
    }

    /// Waits until the far end answers a ping of the first namespace. An interface drops packets without a word until the kernel has
    /// looked at its new link, at most once a second (net/core/link_watch.c): a first connection would begin a second late.
    ///
    /// # Errors
    /// [`Error::Run`] if no answer comes.
    pub fn wait(&self, namespace: &mut Namespace) -> Result<(), Error> {
        let ping = format!("\"$busybox\" ping -c 1 -W 1 {} >/dev/null", self.address);
        // A ping that cannot be sent ends at once: the pause bounds how often that is tried.
        let wait =
            format!("n=30; until {ping}; do n=$((n-1)); [ $n -gt 0 ] || exit 1; \"$busybox\" usleep 100000; done");
        namespace.run(&format!("( {wait} )"), FIRST_ANSWER).map(drop)
    }

    /// The command prefix that makes a program run at the far end.
    pub fn entrance(&self) -> Vec<String> {
        let far = self.far.host.to_string();
        [&self.busybox, "nsenter", "-t", &far, "-n", "-F"].map(str::to_owned).into()
    }

    /// `command`, run at the far end.
    pub fn at_far_end(&self, command: &Command) -> Command {
        let entrance = self.entrance();
        let mut entered = Command::new(&self.busybox);
        entered.args(entrance.iter().skip(1));
        entered.arg(command.get_program()).args(command.get_args());
        entered
    }

    /// Limits both directions.
    ///
    /// # Errors
    /// [`Error::Run`] with what tc says: a kernel without sch_tbf.
    pub fn pace(&self, namespace: &mut Namespace, tc: &Tc, rate: Rate) -> Result<(), Error> {
        let far = self.at_far_end(&tc.paces(FAR, rate));
        for command in [tc.paces(NEAR, rate), far] {
            namespace.run(&words(&command), SLACK)?;
        }
        Ok(())
    }
}

/// A command as words for the shell.
fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| format!("'{}'", word.display().to_string().replace('\'', r"'\''"))).collect::<Vec<_>>().join(" ")
}
