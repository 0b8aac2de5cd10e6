//! `nicety try`: a small Linux whose eth0 is an adapter, until a shell or one command in it ends. Its files are this machine's own,
//! read-only; its kernel is a user-mode one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nicety_adapters::Entry;
use nicety_guests::uml::{UmlConfig, UmlKernel};
use nicety_guests::{Error, Folder, Guest, Hosted, Machine, Output, Programs};
use nicety_host::{PortConfig, Transport};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cli::{Peer, Try};
use crate::exit::{Exit, Failure};
use crate::output::tell;

mod console;
mod debugger;
mod ended;
mod switch;

use console::Console;
use ended::{ended_by_itself, failure};
use switch::Switch;

/// Addresses of the guest and its peer, on their private switch.
const OWN: &str = "10.0.0.1";
const PEER: &str = "10.0.0.2";
/// In effect no limit: the person decides when the guest ends.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);
const SOON: Duration = Duration::from_secs(10);

/// Runs it; the exit code is the shell's or the command's.
pub fn run(args: &Try) -> Result<ExitCode, Failure> {
    // Mistakes in the arguments are reported before anything is built or started.
    let entry = args.adapter.as_deref().map(driven).transpose()?;
    let running = args
        .port
        .as_deref()
        .map(|port| switch::running(args.host.as_deref(), args.control.as_deref(), port))
        .transpose()?;
    let console = Console::new(args.command.is_empty()).map_err(Failure::with(Exit::Failed))?;
    let Some((mut console, lines)) = console else {
        return Err(Failure::new(
            Exit::Usage,
            "a shell needs a terminal; for one command: nicety try ADAPTER -- COMMAND",
        ));
    };
    if args.gdb {
        debugger::check()?;
    }
    let room = room()?;
    let kernel = kernel(args)?;
    let programs = Programs::find(&mut |line| tell(line)).map_err(failure)?;
    // From here on a signal ends guests and switch in order; a signal during the steps above ends the program.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(Failure::with(Exit::Failed))?;
    }
    let switch = match (running, entry) {
        (Some(port), _) => Switch::of(port),
        (None, Some(entry)) => Switch::start(entry, args.peer == Peer::Guest, args.record.as_deref())?,
        (None, None) => return Err(Failure::new(Exit::Usage, "name an adapter or a port")),
    };
    let recording = args.capture.as_deref().map(|path| switch.record(path)).transpose()?;
    let names = || vec![(OWN.to_owned(), "own".to_owned()), (PEER.to_owned(), "peer".to_owned())];
    let guest = |port: &PortConfig, name: &str, address: Option<&str>| Hosted {
        machine: attached(
            UmlConfig { memory_mib: args.memory, append: args.append.clone(), ..UmlConfig::new(&kernel) },
            port,
            &room,
        ),
        name: name.to_owned(),
        address: address.map(|address| format!("{address}/24")),
        hosts: if address.is_some() { names() } else { Vec::new() },
        files: Vec::new(),
        lines: Vec::new(),
    };
    let own = guest(&switch.port, switch.port.entry.about.name, (!switch.shared).then_some(OWN));
    let mut own = Hosted { files: vec![("program", program(&args.command))], lines, ..own };
    if args.gdb {
        (own.machine.before, own.machine.boot_limit) = (debugger::hold(), FOREVER);
    }
    let peer = switch.peer.as_ref().map(|port| guest(port, "peer", Some(PEER)).start(&programs));
    let mut own = own.start(&programs).map_err(failure)?;
    let mut peer = peer.transpose().map_err(failure)?;
    if args.gdb {
        tell(debugger::advice(own.process(), kernel.program()));
    }
    own.wait_ready_unless(&stop).map_err(failure)?;
    let serves = peer.as_mut().map(|peer| serve(peer, &stop)).transpose().map_err(failure)?;
    if args.command.is_empty() {
        tell(greeting(&switch, &own, serves.as_deref()));
    }
    console.begin(&stop).map_err(|error| {
        // A terminal that is gone is no failure of the console: report an interruption.
        let gone = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
        if gone || stop.load(Ordering::Relaxed) { failure(Error::Stopped) } else { Failure::new(Exit::Failed, error) }
    })?;
    let ended = own.run_unless(&console.script(), FOREVER, &stop);
    // Before further messages: print all output of the guest, and restore the terminal.
    drop((own, peer));
    console.finish();
    if let Some(Err(error)) = recording.map(|recording| switch.end(recording)) {
        tell(format_args!("note: not all that passed was captured: {}", error.message));
    }
    drop(switch);
    if stop.load(Ordering::Relaxed) {
        return Err(failure(Error::Stopped));
    }
    exit_code(args, ended)
}

/// The adapter of this name, which Linux must drive.
fn driven(name: &str) -> Result<&'static Entry, Failure> {
    let entry = crate::adapters::known(name)?;
    let about = entry.about;
    if about.in_linux() {
        return Ok(entry);
    }
    let why = format!("Linux has no driver for {}: it came {} (nicety adapters {0})", about.name, about.linux.version);
    Err(Failure::new(Exit::Usage, why))
}

/// A folder whose path the guest's kernel can be told.
fn room() -> Result<Folder, Failure> {
    let room = Folder::new().map_err(Failure::with(Exit::Failed))?;
    if fits_command_line(room.path()) {
        return Ok(room);
    }
    Err(Failure::new(
        Exit::Usage,
        format!(
            "{}: a path with a blank, a quote or a colon cannot be told to the guest's kernel; set XDG_RUNTIME_DIR, or TMPDIR if there is none, to another folder",
            room.path().display()
        ),
    ))
}

/// The exit code of the shell or the command.
fn exit_code(args: &Try, ended: Result<Output, Error>) -> Result<ExitCode, Failure> {
    match ended {
        // An exit code is the last byte of a program's status.
        Ok(output) => Ok(ExitCode::from(output.code.to_le_bytes()[0])),
        // A guest that ends itself is a valid end of a shell. For a command it is not: its result is unknown.
        Err(error) => match ended_by_itself(&error).filter(|_| args.command.is_empty()) {
            Some(sentence) => {
                tell(sentence);
                Ok(ExitCode::SUCCESS)
            }
            None => Err(failure(error)),
        },
    }
}

/// The named kernel, or the one in the cache; it is built if it does not exist.
fn kernel(args: &Try) -> Result<UmlKernel, Failure> {
    let named = match (&args.kernel, &args.kernel_tree) {
        (Some(file), _) => Some(file.clone()),
        (None, Some(tree)) => Some(built(tree)?),
        (None, None) => None,
    };
    if let Some(file) = named {
        let file = std::path::absolute(&file).map_err(Failure::with(Exit::Usage))?;
        return UmlKernel::at(&file).map_err(Failure::with(Exit::Usage));
    }
    let mut announced = false;
    let kernel = UmlKernel::lay(&mut |line| {
        if !std::mem::replace(&mut announced, true) {
            tell("building the user-mode kernel: about 3 minutes, this once");
        }
        tell(line);
    });
    kernel.map_err(failure)
}

/// The kernel that a person has built in a tree.
fn built(tree: &Path) -> Result<PathBuf, Failure> {
    let file = tree.join("linux");
    let shown = tree.display();
    file.is_file().then_some(file).ok_or_else(|| {
        let what = format!(
            "{shown} has no kernel `linux`; build it there: make -C {shown} ARCH=um linux (docs/driver-developers.md)"
        );
        Failure::new(Exit::Usage, what)
    })
}

/// Whether a path can be part of an argument on the kernel's command line: virtio_uml separates its fields by colons.
fn fits_command_line(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || matches!(byte, b'"' | b':'))
}

/// A machine attached to a port with the port's protocol. A socket with an unsuitable path gets a symbolic link in `room`.
fn attached(machine: UmlConfig, port: &PortConfig, room: &Folder) -> UmlConfig {
    let other = room.path().join(format!("{}.sock", port.mac).replace(':', "-"));
    let is_linked = !fits_command_line(&port.socket) && std::os::unix::fs::symlink(&port.socket, &other).is_ok();
    let socket = if is_linked { other } else { port.socket.clone() }.display().to_string();
    match port.transport() {
        Transport::VfioUser => machine.vfio_user(&socket),
        Transport::VhostUser => machine.vhost_user(&socket, &port.mac.to_string()),
    }
}

/// Waits for the peer, starts its installed measuring programs as servers, and returns the commands that use them.
fn serve(peer: &mut Guest, stop: &AtomicBool) -> Result<String, Error> {
    peer.wait_ready_unless(stop)?;
    let servers = "command -v iperf3 >/dev/null && iperf3 -s -D >/dev/null 2>&1 && echo iperf3 -c peer\n\
                   command -v netserver >/dev/null && netserver >/dev/null 2>&1 && echo netperf -H peer\ntrue";
    peer.succeed_unless(servers, SOON, stop)
}

/// Describes the guest and suggests commands, one line each.
fn greeting(switch: &Switch, own: &Guest, serves: Option<&str>) -> String {
    let adapter = switch.port.entry.about.name;
    let article = article(adapter);
    let seconds = own.boot_time().as_secs_f64();
    let others = match (switch.shared, serves) {
        (true, _) => format!("at the port {}, without an IPv4 address yet", switch.port.name),
        (false, Some(_)) => format!("{OWN}; at the other end of the switch is the same again, peer, {PEER}"),
        (false, None) => format!("{OWN}; nobody else is at the switch"),
    };
    let mut tries = vec!["ethtool -i eth0".to_owned()];
    tries.extend(serves.iter().map(|_| "ping peer".to_owned()));
    tries.extend(switch.shared.then(|| "ip address add ADDRESS/24 dev eth0".to_owned()));
    tries.extend(serves.unwrap_or_default().lines().map(str::to_owned));
    format!(
        "eth0 is {article} {adapter}, {others} (booted in {seconds:.2} s)\n\
         try: {}; what is written here is gone after `exit`",
        tries.join(", ")
    )
}

/// The article follows the name's first letter, also for `e1000`.
fn article(name: &str) -> &'static str {
    if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

/// The script that becomes the command or the shell, in the person's directory.
fn program(command: &[std::ffi::OsString]) -> Vec<u8> {
    let mut script = Vec::new();
    if let Ok(folder) = std::env::current_dir() {
        script.extend([b"cd ".as_slice(), &quoted(folder.as_os_str()), b" 2>/dev/null || cd /\n"].concat());
    }
    for name in ["HOME", "TERM", "LANG"] {
        if let Some(value) = std::env::var_os(name) {
            script.extend([format!("export {name}=").as_bytes(), &quoted(&value), b"\n"].concat());
        }
    }
    if command.is_empty() {
        script.extend_from_slice(
            b"if command -v bash >/dev/null; then export PS1='\\h:\\w\\$ '; exec bash --norc -i; fi\n\
              export PS1=\"$(uname -n)# \"; exec sh -i\n",
        );
    } else {
        let words: Vec<Vec<u8>> = command.iter().map(|word| quoted(word)).collect();
        script.extend([b"exec ".as_slice(), &words.join(&b' '), b"\n"].concat());
    }
    script
}

/// Quotes an argument for the shell, whatever bytes it has.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in word.as_bytes() {
        if byte == b'\'' { quoted.extend_from_slice(br"'\''") } else { quoted.push(byte) }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::process::Command;

    use super::*;

    #[test]
    fn an_adapter_has_its_article() {
        let with_article = |name: &str| format!("{} {name}", article(name));
        assert_eq!(["e1000", "vmxnet3", "virtio-net"].map(with_article), ["an e1000", "a vmxnet3", "a virtio-net"]);
    }

    #[test]
    fn a_commands_words_come_as_they_were_given() {
        let words = ["printf", "%s|", "a b", "it's", "$HOME", "\\", "", "two\nlines"].map(OsString::from);
        let mut words = words.to_vec();
        words.push(OsStr::from_bytes(b"\xff").to_owned());
        let script = program(&words);
        let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).output().unwrap();
        assert_eq!(output.stdout, b"a b|it's|$HOME|\\||two\nlines|\xff|");
    }
}
