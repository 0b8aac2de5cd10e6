//! The list of a port's last guest errors, for a driver's developer.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nicety_daemon::report::{GuestErrorReport, PortReport};

/// The list, or nothing. The time is the trace's, and how long ago that is.
pub fn block(port: &PortReport) -> String {
    listed(port, SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn listed(port: &PortReport, now: Duration) -> String {
    let mut text = String::new();
    for (index, error) in port.last_guest_errors.iter().enumerate() {
        let GuestErrorReport { number: _, microseconds, unix_milliseconds, times, place, value, expected } = error;
        if index == 0 {
            text.push_str("  the last of both, oldest first:\n");
        }
        let ago = now.saturating_sub(Duration::from_millis(*unix_milliseconds)).as_secs();
        let value = value.as_ref().map(|value| format!(": {value}")).unwrap_or_default();
        let times = if *times > 1 { format!(" ({times} times)") } else { String::new() };
        let _ = writeln!(text, "    @{microseconds}, {ago} s ago: {place}{value}; expected {expected}{times}");
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn errors() -> Vec<GuestErrorReport> {
        let error = |number, place: &str, value: Option<&str>, times, expected: &str| GuestErrorReport {
            number,
            microseconds: number * 1_000_000,
            unix_milliseconds: 1_700_000_000_000 + number * 1_000,
            times,
            place: place.to_owned(),
            value: value.map(str::to_owned),
            expected: expected.to_owned(),
        };
        vec![
            error(1, "read of 3 bytes at bar0 0x0008 (STATUS)", None, 1, "a register there, and this width"),
            error(9, "TDT (bar0 0x3818)", Some("0x200"), 8, "a tail within the ring (TDT below TDLEN / 16)"),
        ]
    }

    #[test]
    fn each_error_is_a_line_with_time_place_value_and_expectation() {
        let port = PortReport { last_guest_errors: errors(), ..super::super::tests::port() };
        assert_eq!(
            listed(&port, Duration::from_secs(1_700_000_012)),
            "  the last of both, oldest first:
    @1000000, 11 s ago: read of 3 bytes at bar0 0x0008 (STATUS); expected a register there, and this width
    @9000000, 3 s ago: TDT (bar0 0x3818): 0x200; expected a tail within the ring (TDT below TDLEN / 16) (8 times)
"
        );
        assert_eq!(listed(&super::super::tests::port(), Duration::ZERO), "");
    }
}
