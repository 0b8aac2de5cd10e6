//! `nicety capture`: frames on a running daemon's switch, as pcapng.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nicety_control::api::{CaptureRequest, StageWord};
use nicety_control::{self as control, AskError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::answer::failure;
use crate::cli::{Capture, Stage};
use crate::exit::{Exit, Failure};
use crate::find::socket;
use crate::output::{self, count};

/// Longest time until a signal is noticed while no frame arrives.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// A daemon that replaces another, or follows a killed one, answers within this time.
const FOLLOWS: Duration = Duration::from_secs(10);
/// A daemon that ends in order removes its socket. One that follows makes it again within this time.
const REMOVED: Duration = Duration::from_secs(1);
/// The pause between two questions whether it does.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Block types of a packet and of statistics: draft-ietf-opsawg-pcapng, section 4.
const PACKET: u32 = 6;
const STATISTICS: u32 = 5;
/// Statistics option with the number of lost frames (section 4.6).
const LOST: u16 = 5;
/// Longest block: a packet block has the packet's bytes and little more.
const BLOCK_MAX: usize = 1 << 20;

/// Runs it.
pub fn run(args: &Capture) -> Result<(), Failure> {
    let Capture { of, stage, filter, snap, count: most, write, which } = args;
    let to_stdout = write.as_deref().is_none_or(|path| path == Path::new("-"));
    if to_stdout && io::stdout().is_terminal() {
        let what =
            "a capture is nothing for a terminal: name a file with -w FILE, or a program with | wireshark -k -i -";
        return Err(Failure::new(Exit::Usage, what));
    }
    let filter = filter.as_deref().map(compiled).transpose()?;
    let stage = stage.map(StageWord::from);
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&ended)).map_err(Failure::with(Exit::Failed))?;
    }
    let control = socket(which, Some(of.as_str()).filter(|_| which.host.is_none()))?;
    let request = CaptureRequest { of: of.clone(), stage, filter, snap: *snap };
    let source = control::capture(&control, &request, TICK).map_err(failure)?;
    // Only after the capture has begun: if that fails, an existing file stays as it is.
    let mut target: Box<dyn Write> = match write {
        Some(path) if !to_stdout => {
            let file = File::create(path);
            Box::new(file.map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", path.display())))?)
        }
        _ => Box::new(io::stdout()),
    };
    output::tell(format_args!("capturing {of}: Ctrl-C ends it"));
    let mut sum = copy(source, &mut target, *most, &ended)?;
    while sum.ended
        && let Some(source) = again(&control, &request, &ended)
    {
        output::tell(format_args!("note: another daemon serves, and the capture goes on"));
        let left = most.map(|most| most.saturating_sub(sum.frames));
        let more = copy(source, &mut target, left, &ended)?;
        sum = Sum { frames: sum.frames + more.frames, lost: sum.lost + more.lost, ended: more.ended };
        if more.frames == 0 {
            // A daemon that ends captures at once would be asked again and again.
            std::thread::sleep(TICK);
        }
    }
    let lost = if sum.lost > 0 { format!(", and {} lost: the reader was slow", sum.lost) } else { String::new() };
    output::tell(format_args!("{}{lost}", count(sum.frames, "frame")));
    if sum.ended {
        output::tell("note: the daemon ended, or the capture with it");
    }
    Ok(())
}

/// The same capture in the daemon that follows one that was replaced or killed. It begins another section of the file (pcapng, section 4.1).
/// `None` if no daemon follows, or it refuses.
fn again(socket: &Path, request: &CaptureRequest, ended: &AtomicBool) -> Option<impl Read + use<>> {
    let began = Instant::now();
    let mut seen = began;
    loop {
        let now = Instant::now();
        if socket.exists() {
            seen = now;
        }
        match control::capture(socket, request, TICK) {
            Ok(source) => return Some(source),
            Err(AskError::Refused(_) | AskError::NotAllowed(_)) => return None,
            // A daemon that is ending may have taken the question, and one that has just begun may be slow.
            Err(_) if now - began < FOLLOWS && now - seen < REMOVED && !ended.load(Ordering::Relaxed) => {
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(_nobody_follows) => return None,
        }
    }
}

impl From<Stage> for StageWord {
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Ingress => Self::Ingress,
            Stage::Egress => Self::Egress,
        }
    }
}

/// Compiles a filter expression: libpcap does it, through tcpdump.
pub(crate) fn compiled(expression: &str) -> Result<Vec<(u16, u8, u8, u32)>, Failure> {
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-ddd", "-y", "EN10MB", "--", expression]).stdin(Stdio::null());
    let result = tcpdump.output().map_err(|error| {
        let what = format!("tcpdump, which reads filters, cannot be run ({error}): install it, or leave --filter out");
        Failure::new(Exit::Missing, what)
    })?;
    if !result.status.success() {
        let why = String::from_utf8_lossy(&result.stderr);
        return Err(Failure::new(Exit::Usage, format!("--filter {expression:?}: {}", why.trim())));
    }
    let odd = || Failure::new(Exit::Failed, "tcpdump -ddd has said something else than a program");
    let text = String::from_utf8_lossy(&result.stdout);
    // The first line is the number of instructions.
    let instruction = |line: &str| {
        let mut words = line.split_whitespace();
        Some((
            words.next()?.parse().ok()?,
            words.next()?.parse().ok()?,
            words.next()?.parse().ok()?,
            words.next()?.parse().ok()?,
        ))
    };
    text.lines().skip(1).map(instruction).collect::<Option<Vec<_>>>().filter(|all| !all.is_empty()).ok_or_else(odd)
}

/// Result of a capture.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    frames: u64,
    lost: u64,
    /// The source ended by itself.
    ended: bool,
}

/// Copies whole blocks until `most` frames are copied, a signal arrives, or either end closes.
pub(crate) fn copy(
    mut source: impl Read,
    mut target: impl Write,
    most: Option<u64>,
    ended: &AtomicBool,
) -> Result<Sum, Failure> {
    let mut sum = Sum::default();
    let mut losses = std::collections::BTreeMap::new();
    let mut gathered = Vec::new();
    let mut piece = vec![0; 64 << 10];
    while !ended.load(Ordering::Relaxed) {
        match source.read(&mut piece) {
            Ok(0) => {
                sum.ended = true;
                break;
            }
            Ok(len) => gathered.extend_from_slice(&piece[..len]),
            Err(error) if would_block(&error) => continue,
            // A daemon that is killed ends in the middle.
            Err(error) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                sum.ended = true;
                break;
            }
            Err(error) => return Err(Failure::new(Exit::Failed, format!("reading from the daemon: {error}"))),
        }
        let mut whole = 0;
        while let Some(block) = block_at(&gathered[whole..])? {
            whole += block.len();
            match word(block, 0) {
                Some(PACKET) => sum.frames += 1,
                Some(STATISTICS) => drop(lost_in(block).map(|(interface, lost)| losses.insert(interface, lost))),
                _ => {}
            }
            if most.is_some_and(|most| sum.frames >= most) {
                break;
            }
        }
        match target.write_all(&gathered[..whole]).and_then(|()| target.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            done => done.map_err(|error| Failure::new(Exit::Failed, format!("writing the capture: {error}")))?,
        }
        gathered.drain(..whole);
        if most.is_some_and(|most| sum.frames >= most) {
            break;
        }
    }
    sum.lost = losses.values().sum();
    Ok(sum)
}

pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// The block at the beginning of `bytes`; `None` if it is incomplete.
fn block_at(bytes: &[u8]) -> Result<Option<&[u8]>, Failure> {
    let Some(len) = word(bytes, 4) else { return Ok(None) };
    let len = len as usize;
    if !(12..=BLOCK_MAX).contains(&len) || !len.is_multiple_of(4) {
        return Err(Failure::new(Exit::Failed, "what the daemon sends is no pcapng"));
    }
    Ok(bytes.get(..len))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The interface of a statistics block, and the number of its lost frames.
fn lost_in(block: &[u8]) -> Option<(u32, u64)> {
    let interface = word(block, 8)?;
    let mut options = block.get(20..)?;
    loop {
        let head = word(options, 0)?;
        let (code, len) = (head as u16, (head >> 16) as usize);
        if code == LOST {
            return Some((interface, u64::from_le_bytes(*options.get(4..)?.first_chunk()?)));
        }
        options = options.get(4 + len.next_multiple_of(4)..).filter(|_| code != 0)?;
    }
}

#[cfg(test)]
#[path = "capture_test.rs"]
mod tests;
