//! A headless Chromium, told what to do by its DevTools protocol (chromedevtools.github.io/devtools-protocol) over two pipes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use nicety_guests::Tool;
use serde_json::{Value, json};

use crate::station::Process;

/// A browser with one page. It ends with its test.
pub struct Browser {
    _process: Process,
    to: File,
    from: BufReader<File>,
    last: u64,
    session: Option<String>,
    /// Events since the last [`go`](Browser::go).
    events: Vec<Value>,
}

impl Browser {
    /// Starts Chromium, with its files in a new folder.
    pub fn start(chromium: &Tool, folder: &Path) -> Self {
        std::fs::create_dir(folder).unwrap();
        let pipes = ["to", "from"].map(|name| folder.join(name));
        assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
        // It reads orders from descriptor 3, and writes answers to 4.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec 3<\"$1\" 4>\"$2\"; shift 2; exec \"$@\"", "sh"]).args(&pipes);
        // The shell gets the browser's variables by `env`, for it has other libraries.
        let browser = chromium.browser(folder).unwrap();
        shell.arg("env").args(browser.get_envs().filter_map(|(name, value)| {
            let mut text = name.to_owned();
            text.push("=");
            text.push(value?);
            Some(text)
        }));
        shell.arg(browser.get_program()).args(browser.get_args()).arg("--remote-debugging-pipe");
        shell.stdout(Stdio::null()).stderr(File::create(folder.join("log")).unwrap());
        let process = Process(shell.spawn().unwrap());
        let to = File::options().write(true).open(&pipes[0]).unwrap();
        let from = BufReader::new(File::open(&pipes[1]).unwrap());
        let mut browser = Self { _process: process, to, from, last: 0, session: None, events: Vec::new() };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": page, "flatten": true }));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Gives an order and waits for its result.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut order = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            order["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{order}\0").as_bytes()).unwrap();
        loop {
            let message = self.message();
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn message(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Opens a page, and waits until it is loaded.
    pub fn go(&mut self, url: &str) {
        self.events.clear();
        let gone = self.call("Page.navigate", json!({ "url": url }));
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
        self.is_loaded();
    }

    /// Leaves the page by an expression of JavaScript, and waits until another one is loaded.
    pub fn go_by(&mut self, expression: &str) {
        self.events.clear();
        self.value(expression);
        self.is_loaded();
    }

    fn is_loaded(&mut self) {
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.message();
            self.events.push(event);
        }
    }

    /// The value of an expression of JavaScript in the page. A promise is waited for.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", asked);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, condition: &str) {
        self.value(&format!(
            "new Promise((done, fail) => {{ const end = Date.now() + 30000; const look = () => {{ if ({condition}) done(true); \
             else if (Date.now() > end) fail(document.body.innerText); else setTimeout(look, 20); }}; look(); }})"
        ));
    }

    /// Presses and releases a key.
    pub fn press(&mut self, key: &str, code: &str, number: u32) {
        for kind in ["rawKeyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": code, "windowsVirtualKeyCode": number });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// What the page has written to the console, and its errors and those of its requests.
    pub fn console(&self) -> Vec<&Value> {
        let kinds = ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
        self.events
            .iter()
            .filter(|event| event["method"].as_str().is_some_and(|method| kinds.contains(&method)))
            .collect()
    }
}
