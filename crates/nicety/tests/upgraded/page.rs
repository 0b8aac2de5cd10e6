//! The page while its daemon is replaced: its place answers all the time, and a refused upgrade changes nothing. And the page in a browser:
//! Chromium's console stays empty, and the numbers are those of `nicety ports --json`.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use super::*;

const PORT: &str =
    "[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";

/// The beginning of a host file whose page is here.
fn with_page(page: impl std::fmt::Display) -> String {
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
    answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("data-port=\"vm1\"")
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
    let (kept, address) = Kept::start_at_port(|address, _| format!("{}{PORT}", with_page(address)));
    let ask = |host: &str| get(TcpStream::connect(address).unwrap(), host);
    let host = address.to_string();
    assert!(is_served(&ask(&host)), "{}", kept.log());
    assert!(ask("rebound.example").starts_with("HTTP/1.1 421 "));
    kept.refused(Path::new(REFUSES));
    assert!(is_served(&ask(&host)), "refused: {}", kept.log());
    kept.upgrade();
    assert!(is_served(&ask(&host)), "upgraded: {}", kept.log());
}

/// A page as Chromium has it after some of its own seconds, and what its console says.
fn browsed(browser: &str, url: &str, profile: &Path) -> (String, String) {
    let mut command = Command::new(browser);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=2500",
    ]);
    command.arg(format!("--user-data-dir={}", profile.display())).args(["--dump-dom", url]);
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    let console: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    (String::from_utf8(ended.stdout).unwrap(), console.join("\n"))
}

/// The exact numbers behind a mark of the page, up to the end of that row.
fn numbers(page: &str, mark: &str) -> Vec<u64> {
    let row = page
        .split_once(mark)
        .and_then(|(_, rest)| rest.split_once("</tr>"))
        .unwrap_or_else(|| panic!("{mark}: {page}"));
    let values = row.0.split("data-value=\"").skip(1).filter_map(|rest| rest.split('"').next());
    values.map(|value| value.parse().unwrap()).collect()
}

/// Frames sent and got, and dropped frames of a port in the JSON of `nicety ports`.
fn counted(port: &Value) -> Vec<u64> {
    let sum = |way: &str| port[way].as_array().unwrap().iter().map(|queue| queue["frames"].as_u64().unwrap()).sum();
    let drops = ["transmit_drops", "receive_drops"].map(|way| port[way].as_object().unwrap().values());
    vec![sum("transmit"), sum("receive"), drops.into_iter().flatten().map(|count| count.as_u64().unwrap()).sum()]
}

#[test]
fn a_browser_shows_the_numbers_of_the_api_and_its_console_stays_empty() {
    let starts = |name: &&&str| {
        let mut version = Command::new(name);
        version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"].iter().find(starts) else {
        // Writes past the harness, which captures the output of tests that pass.
        let test = "page::a_browser_shows_the_numbers_of_the_api_and_its_console_stays_empty";
        let _stdout_closed = writeln!(std::io::stdout(), "\nSKIPPED {test}: Chromium is not installed");
        return;
    };
    let adapters = ["e1000", "vmxnet3"];
    let mut host = "[[port_group]]\nname = \"web\"\nvlan = 10\n".to_owned();
    for (adapter, number) in adapters.iter().zip(1..) {
        host += &format!(
            "\n[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:12:34:{number:02x}\"\n\
             socket = \"vm{number}.sock\"\nport_group = \"web\"\n"
        );
    }
    host += "\n[[uplink]]\nkind = \"pair\"\nname = \"up\"\nsocket = \"up.sock\"\n";
    let (mut kept, address) = Kept::start_at_port(|address, _| format!("{}{host}", with_page(address)));
    kept.attach(&adapters);
    kept.answers("before");
    let profile = kept.path("profile");
    let end = Instant::now() + 3 * SOON;
    loop {
        let before = kept.json(&["ports", "--json"])["ports"].clone();
        let (page, console) = browsed(browser, &format!("http://{address}/"), &profile);
        let (own, own_console) = browsed(browser, &format!("http://{address}/ports/vm1"), &profile);
        assert_eq!((console.as_str(), own_console.as_str()), ("", ""));
        if kept.json(&["ports", "--json"])["ports"] != before {
            // A guest has sent something meanwhile.
            assert!(Instant::now() < end, "the guests do not come to rest");
            continue;
        }
        assert!(page.contains("Live: read again each second."), "the script has read the page again: {page}");
        for port in before.as_array().unwrap() {
            let name = port["name"].as_str().unwrap();
            let shown = numbers(&page, &format!("<tr data-port=\"{name}\">"));
            assert_eq!(shown, counted(port), "{name}");
        }
        let vm1 = before.as_array().unwrap().iter().find(|port| port["name"] == "vm1").unwrap();
        assert!(counted(vm1)[0] > 0, "{vm1}");
        for (way, key) in [("sends", "transmit"), ("gets", "receive")] {
            for queue in vm1[key].as_array().unwrap() {
                let mark = format!("<tr data-queue=\"{way} {}\">", queue["queue"]);
                let of = ["packets", "frames", "bytes"].map(|of| queue[of].as_u64().unwrap());
                assert_eq!(numbers(&own, &mark), of, "{mark}");
            }
        }
        assert!(page.contains("VLAN 10") && page.contains("all sockets are ready"), "{page}");
        return;
    }
}
