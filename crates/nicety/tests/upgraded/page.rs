//! The page while its daemon is replaced: its place answers all the time, and a refused upgrade changes nothing.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use super::*;

const PORT: &str =
    "[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";

/// The beginning of a host file whose page is here.
pub fn with_page(page: impl std::fmt::Display) -> String {
    format!("[daemon]\ncontrol = \"control.sock\"\npage = \"{page}\"\n")
}

/// The answer to `GET /` on a connection.
fn get(mut stream: impl Read + Write, host: &str) -> String {
    write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A program that cannot take over.
const REFUSES: &str = "/bin/false";

fn is_served(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("data-key=\"vm1\"")
}

#[test]
fn a_page_at_a_unix_socket_is_served_after_upgrades_that_succeed_and_that_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page.sock");
    let kept = Kept::start_on(dir, &format!("{}{PORT}", with_page(path.display())));
    let ask = || get(UnixStream::connect(&path).unwrap(), "localhost");
    assert!(is_served(&ask()), "{}", kept.log());
    for _ in 0..2 {
        kept.refused(Path::new(REFUSES));
        assert!(is_served(&ask()), "refused: {}", kept.log());
        kept.upgrade();
        assert!(is_served(&ask()), "upgraded: {}", kept.log());
    }
    // Its owner alone may connect, as with the control socket.
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let ended = Command::new("kill").args(["-TERM", &kept.keeper.0.id().to_string()]).status().unwrap();
    assert!(ended.success());
    let end = Instant::now() + SOON;
    while path.exists() {
        assert!(Instant::now() < end, "a daemon that ends removes its socket: {}", kept.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_page_at_a_port_is_served_after_upgrades_that_succeed_and_that_are_refused() {
    let (kept, address) = Kept::start_at_port(|address| format!("{}{PORT}", with_page(address)));
    let ask = |host: &str| get(TcpStream::connect(address).unwrap(), host);
    let host = address.to_string();
    assert!(is_served(&ask(&host)), "{}", kept.log());
    assert!(ask("rebound.example").starts_with("HTTP/1.1 421 "));
    kept.refused(Path::new(REFUSES));
    assert!(is_served(&ask(&host)), "refused: {}", kept.log());
    kept.upgrade();
    assert!(is_served(&ask(&host)), "upgraded: {}", kept.log());
}

#[test]
fn an_upgrade_switches_on_a_page_that_was_applied_and_names_one_that_it_cannot_serve() {
    let dir = tempfile::tempdir().unwrap();
    let (path, host) = (dir.path().join("page.sock"), dir.path().join("host.toml"));
    let without = format!("[daemon]\ncontrol = \"control.sock\"\n{PORT}");
    let kept = Kept::start_on(dir, &without);
    let nicety = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        let output = command.args(words).arg("--control").arg(kept.path("control.sock")).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}\n{}", kept.log());
        String::from_utf8(output.stdout).unwrap()
    };
    // Written, and not applied.
    std::fs::write(&host, format!("{}{PORT}", with_page(kept.path("no/such/page.sock").display()))).unwrap();
    let said = nicety(&["upgrade"]);
    assert!(said.contains("not in force, of what the host file asks for: ") && said.contains("page"), "{said}");
    // Applied, and there is no such folder.
    nicety(&["apply", host.to_str().unwrap(), "--yes"]);
    let said = nicety(&["upgrade"]);
    assert!(said.contains("not in force, of what the host file asks for: daemon.page\n"), "{said}");
    assert!(kept.log().contains("the page is not served"), "{}", kept.log());
    std::fs::write(&host, format!("{}{PORT}", with_page(path.display()))).unwrap();
    nicety(&["apply", host.to_str().unwrap(), "--yes"]);
    let said = nicety(&["upgrade"]);
    assert!(!said.contains("not in force"), "{said}");
    assert!(is_served(&get(UnixStream::connect(&path).unwrap(), "localhost")), "{}", kept.log());
}

#[test]
fn an_upgrade_moves_a_page_and_leaves_the_control_socket_where_clients_and_the_keeper_know_it() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first.sock"), dir.path().join("second.sock"));
    let kept = Kept::start_on(dir, &format!("{}{PORT}", with_page(first.display())));
    let nicety = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        let output = command.args(words).arg("--control").arg(kept.path("control.sock")).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}\n{}", kept.log());
        String::from_utf8(output.stdout).unwrap()
    };
    let host = kept.path("host.toml");
    let moved = with_page(second.display()).replace("control.sock", "other.sock");
    std::fs::write(&host, format!("{moved}{PORT}")).unwrap();
    nicety(&["apply", host.to_str().unwrap(), "--yes"]);
    for _ in 0..2 {
        let said = nicety(&["upgrade"]);
        assert!(said.contains("not in force, of what the host file asks for: daemon.control\n"), "{said}");
        assert!(is_served(&get(UnixStream::connect(&second).unwrap(), "localhost")), "{}", kept.log());
        assert!(!first.exists() && !kept.path("other.sock").exists(), "{}", kept.log());
        // The keeper's socket lies beside the control socket, and must not be taken.
        nicety(&["port", "set", "vm1", "socket=moved.sock", "--yes"]);
        nicety(&["port", "set", "vm1", "socket=vm1.sock", "--yes"]);
    }
    assert!(!kept.log().contains("started again"), "{}", kept.log());
}
