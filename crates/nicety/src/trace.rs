//! `nicety trace`: a running daemon's decisions about a frame, in words.

mod file;

use std::io::{self, Read};
use std::path::Path;

use nicety_control::api::{CaptureRequest, StageWord, TraceRequest};
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::trace::{FrameTrace, TraceStage};

use crate::answer::{failure, odd};
use crate::capture::{TICK, compiled, would_block};
use crate::cli::Trace;
use crate::exit::{Exit, Failure};
use crate::find::socket;
use crate::output::{self, columns};
use file::{Found, first_frame};

/// Most bytes that are read of a file: its first frame is near its beginning.
const FILE_MAX: u64 = 16 << 20;

/// Runs it.
pub fn run(args: &Trace) -> Result<(), Failure> {
    let Trace { port, frame, next, json, which } = args;
    let given = frame.as_deref().map(given).transpose()?;
    let filter = next.as_deref().filter(|words| !words.is_empty()).map(compiled).transpose()?;
    let control = socket(which, Some(port.as_str()).filter(|_| which.host.is_none()))?;
    let found = match given {
        Some(found) => found,
        None => {
            output::tell(format_args!("waiting for a frame of {port}: Ctrl-C ends it"));
            next_frame(&control, port, filter)?
        }
    };
    if found.bytes < found.whole {
        output::tell(format_args!(
            "note: the frame had {} bytes, and the first {} of them are there",
            found.whole, found.bytes
        ));
    }
    let digits = found.frame.iter().map(|byte| format!("{byte:02x}")).collect();
    let request = TraceRequest { port: port.clone(), frame: digits };
    let trace = match control::ask(&control, Ask::Trace(request)).map_err(failure)? {
        Reply::Traced(trace) => trace,
        other => return Err(odd(&other)),
    };
    if *json {
        let text = serde_json::to_string_pretty(&trace).map_err(Failure::with(Exit::Failed))?;
        return output::print(&(text + "\n"));
    }
    let really = found.comment.filter(|_| next.is_some());
    output::print(&words(&trace, really.as_deref()))
}

fn words(trace: &FrameTrace, really: Option<&str>) -> String {
    let word = |stage| match stage {
        TraceStage::Arrives => "arrives",
        TraceStage::Fetched => "fetched",
        TraceStage::Policy => "policy",
        TraceStage::Vlan => "VLAN",
        TraceStage::Learns => "learns",
        TraceStage::LookedUp => "looked up",
        TraceStage::PassesBy => "passes by",
        TraceStage::Delivered => "delivered",
        TraceStage::Tunnel => "tunnel",
        TraceStage::Dropped => "dropped",
    };
    let mut rows: Vec<Vec<String>> =
        trace.steps.iter().map(|step| vec![format!("{:9}", word(step.stage)), step.what.clone()]).collect();
    rows.extend(really.map(|really| vec!["in fact".to_owned(), really.to_owned()]));
    columns(&rows)
}

/// A frame from the command line: a file, digits, or stdin with either.
fn given(words: &str) -> Result<Found, Failure> {
    let failed = |error: io::Error| Failure::new(Exit::Failed, format!("{words}: {error}"));
    let mut bytes = Vec::new();
    if words == "-" {
        io::stdin().lock().take(FILE_MAX).read_to_end(&mut bytes).map_err(failed)?;
    } else if Path::new(words).is_file() {
        std::fs::File::open(words).and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes)).map_err(failed)?;
    } else {
        bytes.extend_from_slice(words.as_bytes());
    }
    let wrong = |why: &str| Failure::new(Exit::Usage, format!("{words}: {why}"));
    match first_frame(&bytes) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(wrong("there is no whole frame in it")),
        Err(why) => Err(wrong(&why)),
    }
}

/// The next frame that comes in from a port.
fn next_frame(control: &Path, port: &str, filter: Option<Vec<(u16, u8, u8, u32)>>) -> Result<Found, Failure> {
    let request = CaptureRequest { of: port.to_owned(), stage: Some(StageWord::Ingress), filter, snap: None };
    let mut source = control::capture(control, &request, TICK).map_err(failure)?;
    let (mut gathered, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match source.read(&mut piece) {
            Ok(0) => return Err(Failure::new(Exit::Failed, "the daemon ended, or the capture with it")),
            Ok(len) => gathered.extend_from_slice(&piece[..len]),
            Err(error) if would_block(&error) => continue,
            Err(error) => return Err(Failure::new(Exit::Failed, format!("reading from the daemon: {error}"))),
        }
        // The first four bytes distinguish a section header from digits.
        if gathered.len() < 4 {
            continue;
        }
        if let Some(found) = first_frame(&gathered).map_err(Failure::with(Exit::Failed))? {
            return Ok(found);
        }
    }
}
