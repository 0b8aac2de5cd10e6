//! QEMU's control socket, played by the test: it answers what a real one did (`crates/qmp/tests/golden`), and sends the events that the
//! test wants.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::collections::BTreeMap;
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

const GREETING: &str = "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 3, \"minor\": 1, \"major\": 11}, \"package\": \"\"}, \"capabilities\": [\"oob\"]}}\r\n";
const SOON: Duration = Duration::from_secs(30);

#[derive(Default)]
struct State {
    /// The client, once it is there.
    client: Option<UnixStream>,
    /// Commands that came, and answers that are not as recorded.
    heard: Vec<String>,
    answers: BTreeMap<String, Value>,
    overrides: BTreeMap<String, Value>,
    objects: Vec<Value>,
    /// The stream of copies, which `getfd` brought.
    stream: Option<OwnedFd>,
    /// A descriptor has come, and its `getfd` was not read yet.
    descriptor: Option<OwnedFd>,
    /// It answers nothing any more, and its sockets stay open.
    is_hung: bool,
    has_ended: bool,
}

/// See the module's page.
pub struct Qemu {
    state: Arc<Mutex<State>>,
}

fn recorded(name: &str) -> BTreeMap<String, Value> {
    let path = format!("{}/../qmp/tests/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let entries = file["answers"].as_array().unwrap();
    let entry = |entry: &Value| (format!("{}{}", entry["command"], entry["arguments"]), entry["answer"].clone());
    entries.iter().map(entry).collect()
}

impl Qemu {
    /// Listens at this socket: with a VM that runs, or one that waits for a VM.
    pub fn at(socket: &Path, waits: bool) -> Self {
        let mut answers = recorded("primary");
        if waits {
            answers.extend(recorded("secondary"));
        }
        let state = Arc::new(Mutex::new(State { answers, ..State::default() }));
        let listener = UnixListener::bind(socket).unwrap();
        let own = Arc::clone(&state);
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            // One client at a time.
            while !own.lock().unwrap().has_ended {
                match listener.accept() {
                    Ok((client, _)) => {
                        client.set_nonblocking(false).unwrap();
                        serve(client, &own);
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Self { state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// From now on it answers this command so: `{"return": …}` or `{"error": …}`.
    pub fn answers(&self, command: &str, answer: Value) {
        self.state().overrides.insert(command.to_owned(), answer);
    }

    /// Waits for a command.
    pub fn hears(&self, command: &str) {
        let end = Instant::now() + SOON;
        while !self.has_heard(command) {
            assert!(Instant::now() < end, "no {command}: {:?}", self.state().heard);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a command has come.
    pub fn has_heard(&self, command: &str) -> bool {
        self.count(command) > 0
    }

    /// How often a command has come.
    pub fn count(&self, command: &str) -> usize {
        self.state().heard.iter().filter(|heard| *heard == command).count()
    }

    /// Sends an event.
    pub fn event(&self, name: &str, data: &Value) {
        let line = json!({"event": name, "data": data, "timestamp": {"seconds": 1, "microseconds": 0}});
        self.send(&line);
    }

    fn send(&self, line: &Value) {
        let state = self.state();
        let mut client = state.client.as_ref().unwrap();
        client.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    /// It answers nothing any more.
    pub fn hang(&self) {
        self.state().is_hung = true;
    }

    /// Its client is cut off, and it listens for another one.
    pub fn cut(&self) {
        let client = self.state().client.take().unwrap();
        client.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Its stream of copies.
    pub fn stream(&self) -> UnixStream {
        let stream = UnixStream::from(self.state().stream.as_ref().unwrap().try_clone().unwrap());
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// It is killed: its sockets close.
    pub fn kill(self, socket: &Path) {
        std::fs::remove_file(socket).unwrap();
        let mut state = self.state();
        (state.stream, state.has_ended) = (None, true);
        let client = state.client.take().unwrap();
        client.shutdown(std::net::Shutdown::Both).unwrap();
    }
}

fn serve(client: UnixStream, state: &Mutex<State>) {
    (&client).write_all(GREETING.as_bytes()).unwrap();
    state.lock().unwrap().client = Some(client.try_clone().unwrap());
    let mut text = String::new();
    loop {
        let (mut bytes, mut space) = ([0; 4096], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let count = recvmsg(&client, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty());
        let Some(count) = count.ok().map(|message| message.bytes).filter(|count| *count > 0) else { return };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                let mut state = state.lock().unwrap();
                state.descriptor = fds.last();
            }
        }
        text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        while let Some(end) = text.find('\n') {
            let line: String = text.drain(..=end).collect();
            let asked: Value = serde_json::from_str(&line).unwrap();
            let mut state = state.lock().unwrap();
            if state.is_hung {
                continue;
            }
            let mut answer = answer(&mut state, &asked);
            if let (Some(id), Some(answer)) = (asked.get("id"), answer.as_object_mut()) {
                answer.insert("id".to_owned(), id.clone());
            }
            // A client that has gone hears nothing.
            let _gone = (&client).write_all(format!("{answer}\r\n").as_bytes());
            if state.heard.last().is_some_and(|last| last == "quit") && !state.overrides.contains_key("quit") {
                (state.client, state.has_ended) = (None, true);
                let _gone = client.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }
}

fn answer(state: &mut State, asked: &Value) -> Value {
    let name = asked.get("execute").or(asked.get("exec-oob")).and_then(Value::as_str).unwrap_or_default();
    state.heard.push(name.to_owned());
    if let Some(answer) = state.overrides.get(name) {
        return answer.clone();
    }
    let recorded =
        state.answers.get(&format!("{}{}", asked.get("execute").unwrap_or(&Value::Null), asked["arguments"]));
    match (name, recorded) {
        ("getfd", _) => match state.descriptor.take() {
            Some(descriptor) => {
                if asked["arguments"]["fdname"] == "nicety" {
                    state.stream = Some(descriptor);
                }
                json!({"return": {}})
            }
            None => json!({"error": {"class": "GenericError", "desc": "No file descriptor supplied via SCM_RIGHTS"}}),
        },
        ("qom-list", _) => json!({"return": state.objects}),
        ("object-add", _) => {
            state.objects.push(json!({"name": asked["arguments"]["id"], "type": "child<secret>"}));
            json!({"return": {}})
        }
        (_, Some(answer)) => answer.clone(),
        _ => json!({"return": {}}),
    }
}
