//! A real guest: QEMU with an [`Image`], asked over a serial port, ended with its owner.

use std::{
    fmt, fs,
    io::Write,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    accel::Accel,
    console::{self, Console},
    control::{self, Line},
    error::Error,
    image::Image,
    kernel::Kernel,
    root::Root,
    spawn::spawn,
};

/// What the guest may take beyond a command's own limit to say that it ended.
const GRACE: Duration = Duration::from_secs(5);
/// Lines of output that wait for their reader before QEMU is made to wait.
const LINES_WAITING: usize = 4096;
/// How soon a wait is given up when it is to be.
const STOP_LATENCY: Duration = Duration::from_millis(100);
/// A command's output beyond this is dropped.
const OUTPUT_LIMIT_BYTES: usize = 4 << 20;

/// For every kernel: messages where we read them, an end instead of a hang after a panic, and no work that a short-lived guest
/// does not need. `no_timer_check`: on a busy host a translated guest may get no timer tick while the kernel counts them
/// (arch/x86/kernel/apic/io_apic.c, timer_irq_works), which is a panic. `tsc=nowatchdog`: for the same reason its watchdog would
/// take the clock for unstable, and fall back to one whose every reading leaves the translated code: in one guest of two.
const KERNEL_WORDS: &[&str] = &[
    "console=ttyS0",
    "quiet",
    "panic=-1",
    "mitigations=off",
    "nokaslr",
    "audit=0",
    "cryptomgr.notests",
    "no_timer_check",
    "tsc=nowatchdog",
];

/// Where a guest's kernel comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// QEMU loads it.
    #[default]
    Direct,
    /// The firmware finds it, over an adapter's option ROM. It must bring the words of [`GuestConfig::command_line`].
    Network,
}

/// What a guest's memory is to a server outside QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// A file that both see, as vfio-user and vhost-user need it.
    #[default]
    Shared,
    /// A file that QEMU passes on, while what the guest writes stays in copies of QEMU's own: `share=off`.
    Private,
    /// No file: QEMU's default.
    Anonymous,
}

/// What a guest is made of.
#[derive(Debug, Clone)]
pub struct GuestConfig {
    /// Its kernel.
    pub kernel: Kernel,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// Its processors.
    pub cpus: u32,
    /// What runs its instructions.
    pub accel: Accel,
    /// QEMU's machine with its options, `q35` or `pc`.
    pub machine: String,
    /// Interfaces to bring up, `eth0:10.0.0.2/24`; booting ends when each of them has carrier.
    pub addresses: Vec<String>,
    /// Drivers to load, in order; when empty, whatever the PCI devices ask for; `none` for none.
    pub drivers: Vec<String>,
    /// Where its kernel comes from.
    pub start: Start,
    /// What its memory is to a server outside QEMU.
    pub memory: Memory,
    /// Words before QEMU's own command line: how it enters a [`Namespace`](super::Namespace).
    pub entrance: Vec<String>,
    /// More words for the kernel's command line.
    pub append: Vec<String>,
    /// Arguments for QEMU: the adapters and what they are connected to.
    pub devices: Vec<String>,
    /// How long it may take until it answers.
    pub boot_limit: Duration,
}

impl GuestConfig {
    /// A guest with one processor, 256 MiB and no adapter.
    pub fn new(kernel: Kernel) -> GuestConfig {
        GuestConfig {
            kernel,
            memory_mib: 256,
            cpus: 1,
            accel: Accel::Auto,
            machine: "q35".into(),
            addresses: Vec::new(),
            drivers: Vec::new(),
            start: Start::Direct,
            memory: Memory::Shared,
            entrance: Vec::new(),
            append: Vec::new(),
            devices: Vec::new(),
            boot_limit: Duration::from_secs(120),
        }
    }

    /// Adds an adapter that a vfio-user server offers on a socket.
    #[must_use]
    pub fn vfio_user(mut self, socket: &str) -> GuestConfig {
        let device = serde_json::json!({"driver": "vfio-user-pci", "socket": {"type": "unix", "path": socket}});
        self.devices.extend(["-device".to_owned(), device.to_string()]);
        self
    }

    /// Adds a virtio-net whose rings a vhost-user server serves on a socket, with QEMU's defaults otherwise.
    #[must_use]
    pub fn vhost_user(mut self, socket: &str, mac: &str) -> GuestConfig {
        let name = format!("n{}", self.devices.len());
        self.devices.extend([
            "-chardev".to_owned(),
            format!("socket,id=c{name},path={socket},reconnect-ms=1000"),
            "-netdev".to_owned(),
            format!("vhost-user,id={name},chardev=c{name}"),
            "-device".to_owned(),
            format!("virtio-net-pci,netdev={name},romfile=,mac={mac}"),
        ]);
        self
    }

    /// Adds one of QEMU's own adapters (`e1000`), connected to a `-netdev` of type and options (`user`, `stream,...`).
    #[must_use]
    pub fn adapter(mut self, model: &str, netdev: &str) -> GuestConfig {
        let name = format!("n{}", self.devices.len());
        let (kind, options) = netdev.split_once(',').unwrap_or((netdev, ""));
        let comma = if options.is_empty() { "" } else { "," };
        self.devices.extend([
            "-netdev".to_owned(),
            format!("{kind},id={name}{comma}{options}"),
            "-device".to_owned(),
            format!("{model},netdev={name},romfile="),
        ]);
        self
    }

    /// The kernel's command line.
    pub fn command_line(&self) -> String {
        let mut words: Vec<String> = KERNEL_WORDS.iter().map(|word| (*word).to_owned()).collect();
        if !self.addresses.is_empty() {
            words.push(format!("nicety.ip={}", self.addresses.join(",")));
        }
        if !self.drivers.is_empty() {
            words.push(format!("nicety.modules={}", self.drivers.join(",")));
        }
        words.extend(self.append.iter().cloned());
        words.join(" ")
    }

    /// QEMU's arguments. The console goes to its standard error, the control line to its standard input and output: no file, no socket.
    fn arguments(&self, image: &Image, accel: Accel) -> Vec<String> {
        let memory = self.memory_mib;
        let backend = match self.memory {
            Memory::Shared => format!("memory-backend-memfd,id=m,size={memory}M,share=on"),
            Memory::Private => format!("memory-backend-memfd,id=m,size={memory}M,share=off"),
            Memory::Anonymous => format!("memory-backend-ram,id=m,size={memory}M"),
        };
        let mut arguments: Vec<String> =
            ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"].map(str::to_owned).into();
        let mut pair = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        pair("-run-with", "exit-with-parent=on".into());
        pair("-object", backend);
        pair("-machine", format!("{},memory-backend=m,graphics=off,usb=off,vmport=off", self.machine));
        pair("-m", memory.to_string());
        pair("-accel", accel.argument().into());
        pair("-smp", self.cpus.to_string());
        if self.start == Start::Direct {
            pair("-kernel", image.kernel().display().to_string());
            pair("-initrd", image.initramfs().display().to_string());
            pair("-append", self.command_line());
        }
        pair("-chardev", "file,id=console,path=/proc/self/fd/2".into());
        pair("-serial", "chardev:console".into());
        pair("-chardev", "stdio,id=control,signal=off".into());
        pair("-serial", "chardev:control".into());
        if accel == Accel::Kvm {
            pair("-cpu", "host".into());
        }
        arguments.extend(self.devices.iter().cloned());
        arguments
    }
}

/// What a command said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// What it wrote to its standard output and error, in order; control characters are left out.
    pub text: String,
    /// Its exit code.
    pub code: i32,
    /// How long it took, seen from the host.
    pub elapsed: Duration,
}

/// `command`, with what it is to be started by before it.
fn entered(entrance: &[String], command: Command) -> Command {
    let Some((program, arguments)) = entrance.split_first() else { return command };
    let mut entering = Command::new(program);
    entering.args(arguments).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => entering.env(name, value),
            None => entering.env_remove(name),
        };
    }
    entering
}

/// A running guest. It ends when this is dropped, and when this process ends, however it ends.
pub struct Guest {
    child: Child,
    control: ChildStdin,
    lines: Option<Receiver<String>>,
    readers: Vec<JoinHandle<()>>,
    console: Console,
    config: GuestConfig,
    begin: Instant,
    boot: Duration,
    commands: u64,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("process", &self.child.id()).field("config", &self.config).finish_non_exhaustive()
    }
}

impl Guest {
    /// Starts a guest and waits until it answers.
    ///
    /// # Errors
    /// [`Error::Boot`] with the end of its console if it does not come up as asked within `boot_limit`.
    pub fn boot(root: &Root, config: GuestConfig) -> Result<Guest, Error> {
        let mut guest = Guest::start(root, config)?;
        guest.wait_ready()?;
        Ok(guest)
    }

    /// Starts a guest without waiting; [`Guest::wait_ready`] must come next. So that several guests boot at a time.
    ///
    /// # Errors
    /// Those of [`Image::of`], and [`Error::Run`] if QEMU cannot be started.
    pub fn start(root: &Root, config: GuestConfig) -> Result<Guest, Error> {
        let image = Image::of(root, config.kernel)?;
        let accel = config.accel.resolve(root)?;
        let mut command = entered(&config.entrance, root.qemu_command());
        command.args(config.arguments(&image, accel));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: the terminal's Ctrl-C reaches it only through us.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let failed = |said: String| Error::Run { doing: "starting QEMU".into(), said };
        let begin = Instant::now();
        let mut child = spawn(command).map_err(|e| failed(e.to_string()))?;
        let (Some(control), Some(output), Some(complaints)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            let _ = child.kill();
            return Err(failed("its pipes are missing".into()));
        };
        let console = Console::default();
        let log = console.clone();
        let (sender, lines): (SyncSender<String>, _) = sync_channel(LINES_WAITING);
        let readers = vec![
            thread::spawn(move || log.fill(complaints)),
            thread::spawn(move || console::lines(output, |line| sender.send(line.to_owned()).is_ok())),
        ];
        Ok(Guest {
            child,
            control,
            lines: Some(lines),
            readers,
            console,
            config,
            begin,
            boot: Duration::ZERO,
            commands: 0,
        })
    }

    /// Waits until a started guest answers.
    ///
    /// # Errors
    /// [`Error::Boot`] with the end of its console if it does not come up as asked within `boot_limit`, counted from its start.
    pub fn wait_ready(&mut self) -> Result<(), Error> {
        self.wait_ready_unless(&AtomicBool::new(false))
    }

    /// Like [`Guest::wait_ready`], until `stop` becomes true.
    ///
    /// # Errors
    /// Those of [`Guest::wait_ready`], and [`Error::Stopped`].
    pub fn wait_ready_unless(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let end = self.begin + self.config.boot_limit;
        let why = loop {
            match self.line(end, stop) {
                Ok(line) => match control::parse(&line) {
                    Line::Ready(_) => {
                        self.boot = self.begin.elapsed();
                        return Ok(());
                    }
                    Line::Broken(why) => break why.to_owned(),
                    _ => {}
                },
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Err(Error::Stopped),
                Err(RecvTimeoutError::Timeout) => break format!("no answer within {:?}", self.config.boot_limit),
                Err(RecvTimeoutError::Disconnected) => break "QEMU ended".to_owned(),
            }
        };
        Err(Error::Boot { kernel: self.config.kernel.version(), why, console: self.last_words() })
    }

    /// Runs a command line with the guest's `sh -c` and waits for its end. It is killed in the guest when `limit` (in whole
    /// seconds, rounded up) is over. The command may have several lines, 3,400 bytes in all.
    ///
    /// # Errors
    /// [`Error::Late`] if it does not end in time, [`Error::Gone`] if QEMU ends, [`Error::Command`] if it is too long.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Output, Error> {
        self.run_unless(command, limit, &AtomicBool::new(false))
    }

    /// Like [`Guest::run`], until `stop` becomes true: the command goes on in the guest then.
    ///
    /// # Errors
    /// Those of [`Guest::run`], and [`Error::Stopped`].
    pub fn run_unless(&mut self, command: &str, limit: Duration, stop: &AtomicBool) -> Result<Output, Error> {
        self.commands += 1;
        let id = format!("{:x}-{}", self.child.id(), self.commands);
        let request = control::request(&id, limit, command).ok_or_else(|| Error::Command {
            command: command.into(),
            code: -1,
            said: "the command is too long for the control line".into(),
        })?;
        let begin = Instant::now();
        let end = begin + limit + GRACE;
        if self.control.write_all(request.as_bytes()).and_then(|()| self.control.flush()).is_err() {
            return Err(self.gone(command));
        }
        let late = |guest: &Guest| Error::Late { command: command.into(), limit, console: guest.console.tail() };
        let (mut text, mut begun) = (String::new(), false);
        loop {
            let line = match self.line(end, stop) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Err(Error::Stopped),
                Err(RecvTimeoutError::Timeout) => return Err(late(self)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone(command)),
            };
            match control::parse(&line) {
                Line::Begin(of) if of == id => begun = true,
                Line::End(of, code) if of == id => {
                    let elapsed = begin.elapsed();
                    if code == 128 + 9 && elapsed >= limit {
                        return Err(late(self));
                    }
                    text.pop(); // the newline that starts the mark's line
                    return Ok(Output { text, code, elapsed });
                }
                _ if begun && text.len() < OUTPUT_LIMIT_BYTES => {
                    text.push_str(&line);
                    text.push('\n');
                }
                _ => {}
            }
        }
    }

    /// Like [`Guest::run`], for a command whose failure is an error.
    ///
    /// # Errors
    /// Those of [`Guest::run`], and [`Error::Command`] if its code is not 0.
    pub fn succeed(&mut self, command: &str, limit: Duration) -> Result<String, Error> {
        self.succeed_unless(command, limit, &AtomicBool::new(false))
    }

    /// Like [`Guest::succeed`], until `stop` becomes true.
    ///
    /// # Errors
    /// Those of [`Guest::succeed`], and [`Error::Stopped`].
    pub fn succeed_unless(&mut self, command: &str, limit: Duration, stop: &AtomicBool) -> Result<String, Error> {
        let output = self.run_unless(command, limit, stop)?;
        if output.code == 0 {
            return Ok(output.text);
        }
        Err(Error::Command { command: command.into(), code: output.code, said: output.text })
    }

    /// From QEMU's start to the guest's answer.
    pub fn boot_time(&self) -> Duration {
        self.boot
    }

    /// The processor time that QEMU has used, as /proc counts it (in hundredths of a second), or zero if it has ended.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.child.id())
    }

    /// QEMU's process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// The last lines of its console and of QEMU's complaints.
    pub fn console(&self) -> String {
        self.console.tail()
    }

    /// The next line; a timeout also when `stop` becomes true.
    fn line(&self, end: Instant, stop: &AtomicBool) -> Result<String, RecvTimeoutError> {
        let lines = self.lines.as_ref().ok_or(RecvTimeoutError::Disconnected)?;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left.min(STOP_LATENCY)) {
                Err(RecvTimeoutError::Timeout) if left > STOP_LATENCY && !stop.load(Ordering::Relaxed) => {}
                other => return other,
            }
        }
    }

    fn gone(&mut self, command: &str) -> Error {
        Error::Gone { command: command.into(), console: self.last_words() }
    }

    /// Ends QEMU, so that everything it said has been read, and gives the end of it.
    fn last_words(&mut self) -> String {
        self.end();
        self.console.tail()
    }

    fn end(&mut self) {
        // It may have ended by itself; and nothing can be done about a failure to end a child of our own.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.lines = None;
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

/// The processor time of a process and its threads, as /proc counts it, or zero if it has ended.
pub(super) fn cpu_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // proc_pid_stat(5): utime and stime are fields 14 and 15; the second one is a name in brackets that may hold anything.
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks: u64 = after_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks.saturating_mul(10))
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_of_a_vfio_user_server_is_described_in_qemus_json_form() {
        let config = GuestConfig::new(Kernel::V6_12).vfio_user("/run/n/vm1.sock");
        assert_eq!(config.devices[0], "-device");
        let device: serde_json::Value = serde_json::from_str(&config.devices[1]).expect("it is JSON");
        assert_eq!(device["driver"], "vfio-user-pci");
        assert_eq!(device["socket"]["path"], "/run/n/vm1.sock");
    }

    #[test]
    fn two_adapters_of_qemus_own_get_network_names_of_their_own() {
        let config = GuestConfig::new(Kernel::V6_1).adapter("e1000", "user").adapter("vmxnet3", "stream,server=on");
        let joined = config.devices.join(" ");
        assert_eq!(
            joined,
            "-netdev user,id=n0 -device e1000,netdev=n0,romfile= -netdev stream,id=n4,server=on -device vmxnet3,netdev=n4,romfile="
        );
    }
}
