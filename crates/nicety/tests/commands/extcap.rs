//! Wireshark's extcap: a link to the program in its folder.

use std::io::Read;
use std::process::Stdio;

use nicety_guests::Tool;
use rustix::process::Signal;

use crate::python::skipped;
use crate::scratch::{Ended, HOST, Scratch, Served};

#[test]
fn wireshark_is_told_of_ports_link_types_and_choices() {
    // No other test's daemon has such a port.
    let name = format!("shark-{}", std::process::id());
    let scratch = Scratch::with(&HOST.replace("vm1", &name));
    let served = Served::start(&scratch);
    let list = scratch.run(&["--extcap-interfaces", "--extcap-version=4.0"]);
    let host = scratch.path().join("host.toml");
    let line = format!("interface {{value=nicety-{name}}}{{display=Nicety {name} ({})}}\n", host.display());
    assert!(list.code == Some(0) && list.out.starts_with("extcap {version="), "{list:?}");
    assert!(list.out.contains(&line) && list.out.contains("{display=Nicety what is dropped ("), "{list:?}");
    let interface = format!("--extcap-interface=nicety-{name}");
    let types = scratch.run(&["--extcap-dlts", &interface]);
    assert_eq!(types.out, "dlt {number=1}{name=EN10MB}{display=Ethernet}\n");
    let choices = scratch.run(&["--extcap-config", &interface]);
    assert!(choices.out.contains("value {arg=0}{value=both}{display=Both}{default=true}\n"), "{choices:?}");
    // The file's first blocks are written before any frame.
    let fifo = scratch.path().join("fifo");
    scratch.pipe("fifo");
    let mut capture = scratch.command(&["--capture", &interface, "--stage", "both", "--fifo"]);
    let mut capture = capture.arg(&fifo).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 4];
    let mut reader = std::fs::File::open(&fifo).unwrap();
    reader.read_exact(&mut first).unwrap();
    assert_eq!(first, [0x0a, 0x0d, 0x0d, 0x0a]);
    rustix::process::kill_process(rustix::process::Pid::from_child(&capture), Signal::TERM).unwrap();
    assert_eq!(capture.wait().unwrap().code(), Some(0));
    let gone = scratch.run(&["--capture", "--extcap-interface=nicety-none", "--fifo=fifo"]);
    assert!(gone.code == Some(3) && gone.err.contains("no daemon that runs has nicety-none"), "{gone:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn tshark_lists_the_ports_and_captures_from_one() {
    let tshark = match Tool::tshark(&mut |_| {}) {
        Ok(tshark) => tshark,
        Err(error) => return skipped("extcap::tshark", &error.to_string()),
    };
    let name = format!("shark2-{}", std::process::id());
    let scratch = Scratch::with(&HOST.replace("vm1", &name));
    let served = Served::start(&scratch);
    // Wireshark 4.0 searches the first of these folders, 4.2 and later the second.
    for folder in [".config/wireshark/extcap", ".local/lib/wireshark/extcap"] {
        let folder = scratch.path().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nicety"), folder.join("nicety")).unwrap();
    }
    let tshark = |args: &[&str]| {
        let mut tshark = tshark.command();
        tshark.args(args).current_dir(scratch.path()).env_remove("XDG_CONFIG_HOME");
        tshark.env("HOME", scratch.path());
        tshark
    };
    let list = Ended::soon(tshark(&["-D"]));
    assert!(list.out.contains(&format!(" nicety-{name} (Nicety {name} (")), "{list:?}");
    // There is no traffic: tshark runs for its second, and writes a valid file.
    let interface = format!("nicety-{name}");
    let run = Ended::soon(tshark(&["-i", &interface, "-a", "duration:1", "-w", "out.pcapng"]));
    assert_eq!(run.code, Some(0), "{run:?}");
    let read = Ended::soon(tshark(&["-r", "out.pcapng"]));
    assert_eq!((read.code, read.out.as_str()), (Some(0), ""), "{read:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}
