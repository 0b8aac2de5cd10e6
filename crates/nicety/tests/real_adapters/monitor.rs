//! QEMU's own control socket (docs/interop/qmp-spec.rst).

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nicety_guests::GuestConfig;
use serde_json::{Value, json};

use crate::stage::{SOON, well};

/// Polling interval of QEMU's status.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A connection to the monitor.
pub struct Monitor {
    stream: BufReader<UnixStream>,
    /// The events that have come.
    events: Vec<Value>,
}

impl Monitor {
    /// Gives a guest a monitor socket at this path.
    pub fn at(mut config: GuestConfig, path: &Path) -> GuestConfig {
        config.devices.extend(["-qmp".to_owned(), format!("unix:{},server=on,wait=off", path.display())]);
        config
    }

    pub fn of(path: &Path) -> Monitor {
        let stream = well(UnixStream::connect(path));
        well(stream.set_read_timeout(Some(SOON)));
        let mut monitor = Monitor { stream: BufReader::new(stream), events: Vec::new() };
        monitor.run("qmp_capabilities", json!({}));
        monitor
    }

    pub fn run(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({"execute": command, "arguments": arguments});
        well(self.stream.get_mut().write_all(request.to_string().as_bytes()));
        loop {
            let mut line = String::new();
            well(self.stream.read_line(&mut line));
            let answer: Value = well(serde_json::from_str(&line));
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            // QEMU also sends a greeting.
            if let Some(value) = answer.get("return") {
                return value.clone();
            }
            if answer.get("event").is_some() {
                self.events.push(answer);
            }
        }
    }

    /// When QEMU last sent an event of this name since the connection was made.
    #[track_caller]
    pub fn time_of(&mut self, event: &str) -> SystemTime {
        // An event comes before the answer of a command that follows it.
        self.run("query-status", json!({}));
        let found = self.events.iter().rfind(|found| found["event"] == event);
        let time = &found.unwrap_or_else(|| panic!("no {event} in {:?}", self.events))["timestamp"];
        let part = |name: &str| time[name].as_u64().unwrap_or_else(|| panic!("{time}"));
        UNIX_EPOCH + Duration::from_secs(part("seconds")) + Duration::from_micros(part("microseconds"))
    }

    /// Repeats a command until its answer's `status` is this one, at most for `limit`. Returns that answer.
    pub fn wait(&mut self, command: &str, status: &str, limit: Duration) -> Value {
        let end = Instant::now() + limit;
        loop {
            let answer = self.run(command, json!({}));
            match answer["status"].as_str() {
                Some(now) if now == status => return answer,
                Some("failed" | "cancelled") => panic!("{answer}"),
                _ => assert!(Instant::now() < end, "it does not become {status}: {answer}"),
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}
