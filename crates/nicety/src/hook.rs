//! `nicety hook libvirt`: what libvirt's hook for QEMU calls (libvirt's "Hooks for specific system management"). The ports of a domain come
//! before it starts, and go when it has ended.
//!
//! | libvirt calls | a failure | what is done |
//! |---|---|---|
//! | `migrate begin`, `restore begin` | ends it | looks whether the ports could be added; prints nothing, so that the XML stays as it is |
//! | `prepare begin` | ends the start | adds the ports |
//! | `started begin` | ends the VM | the same: somebody may have removed one |
//! | `reconnect begin`, `attach begin` | would end a VM that runs | the same, and a failure is told and no failure |
//! | `stopped end`, `release end` | is logged | removes the ports |
//!
//! The incoming side of a migration is also prepared and started. Each call does only what is still to do, so that one that was killed, came
//! twice, or came in another order does no harm. A port that a VM still uses is not removed.

use std::io::Read as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nicety_control::api::{DaemonView, Exported, PortValues};
use nicety_control::{self as control, Ask, AskError, Reply};
use nicety_host::{Host, List};
use serde_json::Value;

use crate::answer::{failure, odd};
use crate::cli::{HookLibvirt, HookOf};
use crate::exit::{Exit, Failure};
use crate::find;
use crate::{import, opens, output};

mod domain;
mod script;
mod steps;

use domain::Domain;
use steps::Step;

/// Most times that a call begins again because another one has changed the same ports meanwhile.
const ROUNDS_MAX: usize = 8;
/// Time between two looks at a daemon that is away, or at a port that still has its VM.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for a daemon to notice that a VM has ended.
const NOTICED: Duration = Duration::from_secs(5);

/// Runs it.
pub fn run(of: &HookOf) -> Result<(), Failure> {
    match of {
        HookOf::Libvirt(args) if args.install => script::install(args),
        HookOf::Libvirt(args) if args.remove => script::remove(&args.hooks),
        HookOf::Libvirt(args) => libvirt(args),
    }
}

/// The request of libvirt's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// Look whether the ports could be added.
    Look,
    /// The ports must be there.
    Begin,
    /// The same, of a VM that runs: libvirt would end it after a failure.
    Again,
    /// The VM has ended.
    End,
}

impl Call {
    /// The call of these words of libvirt. `None`: nothing is to do.
    fn of(operation: &str, suboperation: &str) -> Option<Self> {
        Some(match (operation, suboperation) {
            ("migrate" | "restore", "begin") => Self::Look,
            ("prepare" | "started", "begin") => Self::Begin,
            ("reconnect" | "attach", "begin") => Self::Again,
            ("stopped" | "release", "end") => Self::End,
            _ => return None,
        })
    }
}

/// Reason why a call has not done its work.
enum Trouble {
    /// The daemon does not answer, or does not make this change before another one is confirmed or undone: it may soon.
    Away(Failure),
    /// Another call has changed the same ports.
    Overtaken(Failure),
    /// Something else.
    Other(Failure),
}

impl Trouble {
    fn failure(self) -> Failure {
        match self {
            Self::Away(failure) | Self::Overtaken(failure) | Self::Other(failure) => failure,
        }
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        if failure.exit == Exit::Missing { Self::Away(failure) } else { Self::Other(failure) }
    }
}

impl From<AskError> for Trouble {
    fn from(error: AskError) -> Self {
        match &error {
            AskError::Nobody(_) | AskError::Starting(_) | AskError::System { .. } => Self::Away(failure(error)),
            AskError::Refused(problem) if problem.is_waiting() => Self::Away(failure(error)),
            AskError::Refused(problem) if problem.is_overtaken() => Self::Overtaken(failure(error)),
            _ => Self::Other(failure(error)),
        }
    }
}

/// A refusal for a reason in the domain.
fn refused(why: impl ToString) -> Failure {
    Failure::new(Exit::Failed, why)
}

/// A call by libvirt.
fn libvirt(args: &HookLibvirt) -> Result<(), Failure> {
    let [name, operation, suboperation] =
        [&args.domain, &args.operation, &args.suboperation].map(|word| word.as_deref().unwrap_or("-"));
    let Some(call) = Call::of(operation, suboperation) else {
        // `start begin` comes between two others. A later libvirt may know more operations.
        if (operation, suboperation) != ("start", "begin") {
            output::tell(format_args!("note: nothing is to do at {operation} {suboperation} of domain {name}"));
        }
        return Ok(());
    };
    let Err(Failure { exit, message }) = called(args, call, name) else { return Ok(()) };
    // libvirt shows it in a line of its own.
    let message = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    if call == Call::Again {
        output::tell(format_args!("note: domain {name} runs on, perhaps without its network: {message}"));
        return Ok(());
    }
    Err(Failure::new(exit, format!("domain {name}: {message}")))
}

fn called(args: &HookLibvirt, call: Call, name: &str) -> Result<(), Failure> {
    let mut xml = String::new();
    let read = std::io::stdin().lock().take(import::MAX).read_to_string(&mut xml);
    read.map_err(|error| refused(format!("stdin, which has its XML, cannot be read: {error}")))?;
    let domain = Domain::parse(&xml, args.sockets.as_deref()).map_err(|why| Failure::new(Exit::Usage, why))?;
    if domain.name != name {
        let what = format!("the XML on stdin is that of domain {}", domain.name);
        return Err(Failure::new(Exit::Usage, what));
    }
    if domain.ports.is_empty() && call != Call::End {
        return Ok(());
    }
    let end = Instant::now() + args.wait.duration();
    let mut rounds = 0;
    loop {
        let done = find::socket(&args.which, None).map_err(Trouble::from).and_then(|socket| match call {
            Call::Look => look(&socket, &domain),
            Call::Begin => begin(&socket, &domain, |_| true),
            // The VM runs: what an administrator has changed since its start stays.
            Call::Again => begin(&socket, &domain, |step| matches!(step, Step::Add(_))),
            Call::End => end_of(&socket, &domain),
        });
        match done {
            // A domain without ports of ours starts and ends without a daemon.
            Err(_) if domain.ports.is_empty() => return Ok(()),
            Err(Trouble::Away(_)) if Instant::now() < end => sleep(PAUSE),
            Err(Trouble::Overtaken(_)) if rounds < ROUNDS_MAX => rounds += 1,
            done => return done.map_err(Trouble::failure),
        }
    }
}

/// The host that a daemon runs.
fn running(socket: &Path) -> Result<Host, Trouble> {
    let path = match control::ask(socket, Ask::Version)? {
        Reply::Version(DaemonView { host, starting: false, .. }) => host,
        Reply::Version(_) => return Err(Failure::new(Exit::Missing, "the daemon is still starting").into()),
        other => return Err(odd(&other).into()),
    };
    let text = match control::ask(socket, Ask::Export)? {
        Reply::Exported(Exported { text }) => text,
        other => return Err(odd(&other).into()),
    };
    let read = Host::parse_change(&text, &path);
    let odd = |errors| refused(format!("the daemon serves what this program does not understand: {errors}"));
    read.map_err(|errors| odd(errors).into())
}

/// The steps that are left, which would make a host file.
fn left(socket: &Path, domain: &Domain) -> Result<Vec<Step>, Trouble> {
    let running = running(socket)?;
    let steps = steps::steps(&running, domain).map_err(refused)?;
    steps::after(&running, &steps).map_err(refused)?;
    Ok(steps)
}

fn look(socket: &Path, domain: &Domain) -> Result<(), Trouble> {
    left(socket, domain).map(drop)
}

/// Adds the ports of a domain.
fn begin(socket: &Path, domain: &Domain, is_taken: fn(&Step) -> bool) -> Result<(), Trouble> {
    for step in left(socket, domain)?.into_iter().filter(is_taken) {
        match step {
            Step::Remove(name) => removed(socket, name)?,
            Step::Set(name, values) => {
                let values = values.into_iter().map(|(key, value)| (key, value.and_then(json).unwrap_or(Value::Null)));
                let values = PortValues(values.collect());
                opens::name_entry(socket, List::Ports, &name, &values.0)?;
                ask(socket, Ask::Set { list: List::Ports, name, values, cut_off: false })?;
            }
            Step::Add(port) => {
                let name = domain::text(&port, "name").to_owned();
                let values =
                    PortValues(port.into_iter().filter_map(|(key, value)| Some((key, json(value)?))).collect());
                opens::name_entry(socket, List::Ports, &name, &values.0)?;
                ask(socket, Ask::Add { list: List::Ports, values, cut_off: false })?;
            }
        }
    }
    Ok(())
}

fn json(value: toml::Value) -> Option<Value> {
    serde_json::to_value(value).ok()
}

/// Removes the ports that this hook has made for a domain.
fn end_of(socket: &Path, domain: &Domain) -> Result<(), Trouble> {
    for name in steps::made(&running(socket)?, &domain.uuid) {
        removed(socket, name)?;
    }
    Ok(())
}

/// Removes a port, which may be gone already. Its VM has ended, or is about to.
fn removed(socket: &Path, name: String) -> Result<(), Trouble> {
    let end = Instant::now() + NOTICED;
    loop {
        match control::ask(socket, Ask::Remove { list: List::Ports, name: name.clone(), cut_off: false }) {
            Err(AskError::Refused(problem)) if problem.status == 404 => return Ok(()),
            Err(AskError::Refused(problem)) if !problem.cuts_off.is_empty() && Instant::now() < end => sleep(PAUSE),
            Err(AskError::Refused(problem)) if !problem.cuts_off.is_empty() => {
                return Err(refused(format!("port {name} stays, because a VM still uses it")).into());
            }
            answer => return changed(answer),
        }
    }
}

fn ask(socket: &Path, ask: Ask) -> Result<(), Trouble> {
    changed(control::ask(socket, ask))
}

/// The end of a change. One that is in force, and would be lost at a restart of the daemon, is told.
fn changed(answer: Result<Reply, AskError>) -> Result<(), Trouble> {
    match answer? {
        Reply::Changed(changed) => {
            if let Some(why) = changed.not_kept {
                output::tell(format_args!("note: after a restart of the daemon this change is gone: {why}"));
            }
            Ok(())
        }
        other => Err(odd(&other).into()),
    }
}
