//! `nicety replay`: the calls of a trace, made again of an adapter of this version (docs/traces.md).

use std::process::ExitCode;

use nicety_adapter::tape::Player;
use nicety_adapter::trace::{Event, Trace};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use serde_json::json;

use crate::cli::Replay;
use crate::exit::{Exit, Failure};
use crate::output;

/// The result.
struct Played {
    calls: u64,
    /// The line, and the difference there.
    differs: Option<(usize, String)>,
    /// Calls are missing from this line on.
    lost_at: Option<usize>,
}

/// Runs it.
pub fn run(args: &Replay) -> Result<ExitCode, Failure> {
    let wrong = |why: String| Failure::new(Exit::Usage, format!("{}: {why}", args.file.display()));
    let text = std::fs::read_to_string(&args.file).map_err(|error| wrong(error.to_string()))?;
    let trace = Trace::parse(&text).map_err(|error| wrong(error.to_string()))?;
    if trace.part.is_some_and(|part| part > 1) {
        return Err(wrong("this is a later part: a replay begins with the first one".to_owned()));
    }
    let Played { calls, differs, lost_at } = play(&trace).map_err(wrong)?;
    if calls == 0 {
        return Err(wrong("it has no calls: record it by `nicety serve --record DIR --calls`".to_owned()));
    }
    let adapter = &trace.adapter;
    if args.json {
        let differs = differs.as_ref().map(|(line, what)| json!({ "line": line, "what": what }));
        let result = json!({ "adapter": adapter, "calls": calls, "differs": differs, "lost_at_line": lost_at });
        output::print(&format!("{result:#}\n"))?;
    } else if let Some((line, what)) = &differs {
        output::print(&format!("line {line}: {what}\n"))?;
    } else {
        output::print(&format!("{adapter}: {calls} calls, all answered as in the trace\n"))?;
    }
    if let Some(line) = lost_at {
        output::tell(format_args!("note: events were lost at line {line}; what follows was not played"));
    }
    Ok(if differs.is_some() { ExitCode::from(Exit::Failed as u8) } else { ExitCode::SUCCESS })
}

fn play(trace: &Trace) -> Result<Played, String> {
    let entry = find(&trace.adapter).ok_or_else(|| format!("no adapter is called {}", trace.adapter))?;
    // The tape begins with the state, its address included. Traces of before had nothing else.
    let settings = trace.made.map_or_else(|| Settings::new(Mac([0x52, 0x54, 0, 0, 0, 1])), Settings::from);
    let adapter = (entry.create)(&settings).map_err(|error| error.to_string())?;
    let mut player = Player::new(adapter);
    let mut played = Played { calls: 0, differs: None, lost_at: None };
    for (line, record) in &trace.records {
        match &record.event {
            Event::Call(entry) => {
                if let Err(divergence) = player.play(entry) {
                    played.differs = Some((*line, divergence.to_string()));
                    break;
                }
                played.calls += 1;
            }
            Event::Lost(_) => {
                played.lost_at = Some(*line);
                break;
            }
            _ => {}
        }
    }
    Ok(played)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use nicety_adapter::tape::Recorder;
    use nicety_adapter::trace::TimedEvent;
    use nicety_adapter::{Adapter, Context, Counters, Face, Outbox, Time};
    use nicety_memory::Map;

    use super::*;

    /// Linux's vmxnet3 asks for the permanent address when it is loaded: commands 0xf00d0003 and 0xf00d0004 at BAR 1, 0x20.
    fn recorded(settings: &Settings) -> Vec<String> {
        let tape: Arc<Mutex<Vec<String>>> = Arc::default();
        let to = Arc::clone(&tape);
        let note = move |entry| {
            to.lock().unwrap().push(TimedEvent { at: None, event: Event::Call(Box::new(entry)) }.to_string());
        };
        let adapter = (find("vmxnet3").unwrap().create)(settings).unwrap();
        let mut adapter = Recorder::new(adapter, Box::new(note));
        let (memory, mut out, mut counters) = (Map::empty(), Outbox::default(), Counters::default());
        let mut cx = Context::new(&memory, &mut out, &mut counters, Time::ZERO);
        let Face::Pci(pci) = adapter.face() else { panic!("a PCI function") };
        for command in [0xf00d_0003_u32, 0xf00d_0004] {
            pci.write(1, 0x20, &command.to_le_bytes(), &mut cx);
            pci.read(1, 0x20, &mut [0; 4], &mut cx);
        }
        drop(adapter);
        std::mem::take(&mut tape.lock().unwrap())
    }

    #[test]
    fn a_vmxnet3_s_permanent_address_is_on_the_tape_and_was_not_on_those_of_before() {
        let settings = Settings::new(Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        let calls = recorded(&settings).join("\n");
        let played = |made| {
            let header = Trace::header("vm1", "vmxnet3", None, made);
            play(&Trace::parse(&format!("{header}{calls}\n")).unwrap()).unwrap()
        };
        let now = played(Some((&settings).into()));
        assert_eq!((now.calls, now.differs), (6, None), "the state, the memory, two writes and two reads");
        let before = played(None);
        assert!(before.differs.is_some_and(|(_, what)| what.contains("answers")), "such a trace is read all the same");
    }
}
