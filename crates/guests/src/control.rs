//! The control protocol with a guest's first process (`crates/guests/control`) over its second serial port. It consists of lines; a mark
//! and an ID distinguish them.

use std::time::Duration;

/// Start of every line that is not a command's output.
const MARK: &str = ":nicety ";
/// A raw serial line buffers 4,096 bytes for its reader (N_TTY_BUF_SIZE).
const LONGEST: usize = 3500;

/// A line from the guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// The guest is up. The value is its kernel's release.
    Ready(&'a str),
    /// The guest is up, but its setup failed.
    Broken(&'a str),
    /// A guest that is to be saved, or was just restored, waits for its settings. The value is its uptime in seconds.
    Waiting(&'a str),
    /// The output of a command begins.
    Begin(&'a str),
    /// A command ended with this code.
    End(&'a str, i32),
    /// Output.
    Text(&'a str),
}

/// Reads a line.
pub(super) fn parse(line: &str) -> Line<'_> {
    let Some(rest) = line.strip_prefix(MARK) else { return Line::Text(line) };
    let (first, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    match (first, rest) {
        ("ready", release) => Line::Ready(release),
        ("broken", why) => Line::Broken(why),
        ("waiting", uptime) => Line::Waiting(uptime),
        (id, "begin") => Line::Begin(id),
        (id, rest) => match rest.strip_prefix("end ").and_then(|code| code.parse().ok()) {
            Some(code) => Line::End(id, code),
            None => Line::Text(line),
        },
    }
}

/// The line that makes the guest run a command. The guest counts its limit in whole seconds, at least one. `None` if the line is too
/// long to send.
pub(super) fn request(id: &str, limit: Duration, command: &str) -> Option<String> {
    let seconds = limit.as_secs().saturating_add(u64::from(limit.subsec_nanos() > 0)).max(1);
    let line = format!("{id} {seconds} {}\n", command.replace('\\', r"\\").replace('\n', r"\n"));
    (line.len() <= LONGEST).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_lines_are_told_from_output() {
        assert_eq!(parse(":nicety ready 6.12.1-amd64"), Line::Ready("6.12.1-amd64"));
        assert_eq!(parse(":nicety broken eth0 has no carrier"), Line::Broken("eth0 has no carrier"));
        assert_eq!(parse(":nicety waiting 3.25"), Line::Waiting("3.25"));
        assert_eq!(parse(":nicety 4f-1 begin"), Line::Begin("4f-1"));
        assert_eq!(parse(":nicety 4f-1 end 137"), Line::End("4f-1", 137));
        assert_eq!(parse("64 bytes from 10.0.0.1"), Line::Text("64 bytes from 10.0.0.1"));
        assert_eq!(parse(":nicety 4f-1 end soon"), Line::Text(":nicety 4f-1 end soon"));
    }

    #[test]
    fn a_command_of_several_lines_with_backslashes_survives_the_guests_printf() {
        let script = "printf 'a\\tb\\n'\necho \\\\ '%b'";
        let line = request("1", Duration::from_millis(1500), script).expect("it is short");
        assert_eq!(line.matches('\n').count(), 1);
        let encoded = line.trim_end().strip_prefix("1 2 ").expect("id and seconds come first");
        let shell = std::process::Command::new("sh")
            .args(["-c", "printf '%b' \"$1\"", "sh", encoded])
            .output()
            .expect("sh runs");
        assert_eq!(String::from_utf8_lossy(&shell.stdout), script);
    }

    #[test]
    fn a_command_that_the_serial_line_would_cut_is_refused() {
        assert_eq!(request("1", Duration::from_secs(1), &"x".repeat(4000)), None);
    }
}
