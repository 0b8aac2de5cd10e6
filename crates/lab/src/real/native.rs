//! The same programs without a virtual machine: between two network namespaces, joined by a veth pair.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use nicety_guests::{Error, Folder, Namespace, Process, Root};

use super::{
    veth::{self, Tc, Veth},
    wait::{Outputs, Watch, quoted},
};
use crate::rate::Rate;

/// The near end's address.
pub const NEAR: &str = "10.9.4.1";
/// The far end's address.
pub const FAR: &str = "10.9.4.2";
/// Note of the report on the native row.
pub const NOTE: &str =
    "native: the same programs between two network namespaces of the host, joined by a veth pair without a limit.";
/// Port of iperf 2's server.
pub const IPERF_PORT: u16 = 5001;
/// Port of netserver.
pub const NETPERF_PORT: u16 = 12865;
/// Time limit of the namespaces' own commands.
const SLACK: Duration = Duration::from_secs(10);
/// Divides the outputs of programs that run at once.
const END: &str = "==end==";
/// Interval of looks at a server that starts.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A method's native row, kept from run to run. After a failure the next run makes it again.
#[derive(Debug)]
pub struct Kept<N>(Option<N>);

impl<N> Default for Kept<N> {
    fn default() -> Self {
        Kept(None)
    }
}

impl<N> Kept<N> {
    /// Runs `act` with what is kept, which `open` makes if it is not there.
    ///
    /// # Errors
    /// Those of both.
    pub fn with<T>(
        &mut self,
        open: impl FnOnce() -> Result<N, Error>,
        act: impl FnOnce(&mut N) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut kept = self.0.take().map_or_else(open, Ok)?;
        let done = act(&mut kept)?;
        self.0 = Some(kept);
        Ok(done)
    }
}

/// Two namespaces (see the module's page). Dropping it ends every program in them.
#[derive(Debug)]
pub struct Native {
    namespace: Namespace,
    veth: Veth,
    outputs: Outputs,
}

impl Native {
    /// Makes both namespaces and the link, which has no limit and carries packets.
    ///
    /// # Errors
    /// Those of [`Namespace::open`]; it names its remedy. Those of [`Veth::open`] and [`Veth::wait`].
    pub fn open(root: &Root) -> Result<Native, Error> {
        let mut namespace = Namespace::open(root)?;
        let veth = Veth::open(&mut namespace, root, &format!("{FAR}/24"))?;
        namespace.run(&format!("ip addr add {NEAR}/24 dev {}", veth::NEAR), SLACK)?;
        veth.wait(&mut namespace)?;
        Ok(Native { namespace, veth, outputs: Outputs::new()? })
    }

    /// The same with these servers at the far end, each at its TCP port.
    ///
    /// # Errors
    /// Those of [`Native::open`] and [`Native::listen`].
    pub fn serving(root: &Root, servers: &[(Command, u16)]) -> Result<Native, Error> {
        let mut native = Native::open(root)?;
        servers.iter().try_for_each(|(server, port)| native.listen(server, *port))?;
        Ok(native)
    }

    /// Limits the link in both directions.
    ///
    /// # Errors
    /// Those of [`Veth::pace`].
    pub fn pace(&mut self, tc: &Tc, rate: Rate) -> Result<(), Error> {
        self.veth.pace(&mut self.namespace, tc, rate)
    }

    /// Starts a server at the far end, whose output goes to `log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn serve(&mut self, command: &Command, log: &Path) -> Result<Process, Error> {
        self.namespace.start(&self.veth.at_far_end(command), log)
    }

    /// Starts a server at the far end, and waits until it listens at this TCP port: a client that came before would be refused.
    ///
    /// # Errors
    /// It cannot be started, ends, or does not listen in time.
    pub fn listen(&mut self, command: &Command, port: u16) -> Result<(), Error> {
        let log = self.outputs.file();
        let process = self.serve(command, &log)?;
        let end = Instant::now() + SLACK;
        while !listens(process, port) {
            if !process.runs() || Instant::now() > end {
                let doing = format!("`{}` at port {port} without a virtual machine", command.get_program().display());
                return Err(Error::Run { doing, said: fs::read_to_string(&log).unwrap_or_default() });
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// A folder for files of the programs.
    pub fn folder(&self) -> &Folder {
        self.outputs.folder()
    }

    /// Runs a program at the near end, and returns its output and duration.
    ///
    /// # Errors
    /// It does not end within `limit`, `watch` objects, or `stop` became true.
    pub fn run(
        &mut self,
        command: &Command,
        limit: Duration,
        stop: &AtomicBool,
        watch: Watch<'_>,
    ) -> Result<(String, Duration), Error> {
        let doing = format!("`{}` without a virtual machine", command.get_program().display());
        let running = self.outputs.start(&mut self.namespace, command, doing)?;
        running.wait(&mut self.namespace, limit, stop, watch)
    }
}

impl Native {
    /// Runs `count` of a program at the near end at once, and returns their outputs.
    ///
    /// # Errors
    /// Those of [`Native::run`].
    pub fn at_once(
        &mut self,
        root: &Root,
        command: &Command,
        count: usize,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Vec<String>, Error> {
        let (busybox, folder, words) = (root.busybox(), self.folder().path().display(), quoted(command));
        let all = (0..count).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
        let script = format!(
            "for n in {all}; do {words} >'{folder}'/n$n 2>&1 & done; wait; for n in {all}; do '{b}' cat '{folder}'/n$n; echo {END}; done",
            b = busybox.display()
        );
        let mut shell = Command::new(&busybox);
        shell.args(["sh", "-c", &script]);
        let (said, _) = self.run(&shell, limit, stop, &mut |_| Ok(()))?;
        Ok(said.split(END).take(count).map(str::to_owned).collect())
    }
}

/// Whether a socket of the process's network listens at this port (proc_net_tcp: the local address in hexadecimal, state 0A).
fn listens(process: Process, port: u16) -> bool {
    let place = format!(":{port:04X}");
    let is_it = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&place)) && fields.nth(1) == Some("0A")
    };
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{}/net/{table}", process.host)).unwrap_or_default();
        text.lines().any(is_it)
    })
}
