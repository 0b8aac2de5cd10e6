//! Embedded guests, and daemons for them, as processes of this program.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// Starts a daemon on the host file of a folder.
#[allow(dead_code, reason = "not all tests start one without a keeper")]
pub fn serve(dir: &Path) -> Process {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_nicety"));
    serve.arg("serve").current_dir(dir).env_remove("XDG_RUNTIME_DIR").stderr(Stdio::null());
    Process(serve.spawn().unwrap())
}

/// Starts a keeper with a daemon on the host file of a folder. Its log goes to `log` there.
#[allow(dead_code, reason = "not all tests upgrade")]
pub fn keep(dir: &Path) -> Process {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_nicety"));
    serve.args(["serve", "--keeper"]).current_dir(dir).env_remove("XDG_RUNTIME_DIR");
    serve.stderr(std::fs::File::create(dir.join("log")).unwrap());
    Process(serve.spawn().unwrap())
}

/// Whether a keeper's child is a daemon: it also starts openers, and an acceptor.
#[allow(dead_code, reason = "not all tests have a keeper")]
pub fn is_daemon(pid: u64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("--kept"))
}

/// A process of this program that ends with its test.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An embedded guest, or a peer at the uplink.
pub struct Station {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Its IPv4 address.
    pub address: [u8; 4],
    process: Process,
}

impl Station {
    /// Starts a guest with this attachment, and the address 10.0.0.LAST.
    pub fn start(attach: &Value, last: u8) -> Station {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        let mut child = command.args(["guest", "guest"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut station = Station { orders, answers, address: [10, 0, 0, last], process: Process(child) };
        let order = json!({ "configure": { "attach": attach, "address": station.address } });
        assert_eq!(station.asked(&order), json!("ready"));
        station
    }

    /// Its process.
    #[allow(dead_code, reason = "not all tests stop guests")]
    pub fn process(&self) -> u32 {
        self.process.0.id()
    }

    /// The guest's answer to an order.
    pub fn asked(&mut self, order: &Value) -> Value {
        self.order(order);
        self.answer()
    }

    /// Gives an order. Its answer must be read before the next one.
    pub fn order(&mut self, order: &Value) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// The answer to the last order.
    pub fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}
