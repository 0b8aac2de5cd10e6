//! Times for which a VM stood still, by the events of its QEMU (QMP's STOP and RESUME, qapi/run-state.json), which have QEMU's own times.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// Time limit for QEMU to make its socket.
const SOON: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The times so far (see the module's page).
#[derive(Debug)]
pub struct Stops(Arc<Mutex<Vec<Duration>>>);

impl Stops {
    /// Follows the QEMU with this control socket until it ends.
    pub fn of(socket: PathBuf) -> Stops {
        let stops = Arc::<Mutex<Vec<Duration>>>::default();
        let found = Arc::clone(&stops);
        // Without QEMU's events there are no figures of them: nobody waits for this thread.
        thread::spawn(move || follow(&socket, &found));
        Stops(stops)
    }

    /// Takes the times since the last call.
    pub fn take(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn follow(socket: &Path, found: &Mutex<Vec<Duration>>) -> Option<()> {
    let end = Instant::now() + SOON;
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(_) if Instant::now() > end => return None,
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    };
    stream.write_all(b"{\"execute\": \"qmp_capabilities\"}\n").ok()?;
    let mut stopped = None;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if let Some(stop) = hear(&line, &mut stopped) {
            found.lock().unwrap_or_else(PoisonError::into_inner).push(stop);
        }
    }
    Some(())
}

#[derive(Deserialize)]
struct Event {
    event: String,
    timestamp: Timestamp,
}

#[derive(Deserialize)]
struct Timestamp {
    seconds: u64,
    microseconds: u32,
}

/// A line of QEMU's. `stopped`: since when the VM stands still. Returns the whole time when it goes on.
fn hear(line: &str, stopped: &mut Option<Duration>) -> Option<Duration> {
    let Event { event, timestamp } = serde_json::from_str(line).ok()?;
    let at = Duration::from_secs(timestamp.seconds) + Duration::from_micros(timestamp.microseconds.into());
    match event.as_str() {
        "STOP" => {
            *stopped = Some(at);
            None
        }
        "RESUME" => stopped.take().map(|since| at.saturating_sub(since)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_and_a_resume_are_one_time_and_other_lines_are_none() {
        let mut stopped = None;
        let lines = [
            r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#,
            r#"{"return": {}}"#,
            r#"{"timestamp": {"seconds": 5, "microseconds": 1}, "event": "RESUME"}"#,
            r#"{"timestamp": {"seconds": 5, "microseconds": 999000}, "event": "STOP"}"#,
            r#"{"timestamp": {"seconds": 6, "microseconds": 0}, "event": "MIGRATION", "data": {"status": "colo"}}"#,
            r#"{"timestamp": {"seconds": 6, "microseconds": 2000}, "event": "RESUME"}"#,
        ];
        let found: Vec<Duration> = lines.iter().filter_map(|line| hear(line, &mut stopped)).collect();
        assert_eq!(found, [Duration::from_millis(3)]);
    }
}
