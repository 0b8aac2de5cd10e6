//! `results.csv`: a line for each sample, for spreadsheets and scripts (RFC 4180; docs/results-format.md).

use std::fmt::Write as _;

use crate::folder::TABLE;
use crate::method::Driver;
use crate::results::{Direction, Results};

/// Columns added later.
const LATER_COLUMNS: &str = ",driver\n";

/// The whole file.
pub(super) fn csv(results: &Results) -> String {
    let mut out = [TABLE, LATER_COLUMNS].concat();
    for row in &results.rows {
        let direction = match row.direction {
            Direction::Higher => "higher",
            Direction::Lower => "lower",
        };
        let (adapter, unit) = (field(&row.adapter), field(&row.unit));
        let driver = row.driver.map_or("", Driver::name);
        for sample in &row.samples {
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "{adapter},{},{},{unit},{direction},{},{},{driver}",
                row.test.name(),
                row.server,
                sample.round,
                sample.value
            );
        }
    }
    out
}

/// A CSV field, quoted where necessary.
fn field(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;

    #[test]
    fn every_sample_is_a_line_with_its_row_and_round() {
        let results = sample::two_servers();
        let text = csv(&results);
        let samples: usize = results.rows.iter().map(|row| row.samples.len()).sum();
        assert_eq!(text.lines().count(), samples + 1);
        assert!(text.starts_with(TABLE));
        assert!(text.contains("\ne1000,bulk-transmit,nicety,Mbit/s,higher,0,1500,\n"), "{text}");
        let head = [TABLE, LATER_COLUMNS].concat();
        assert!(text.lines().all(|line| line.split(',').count() == head.split(',').count()));
        let document = include_str!("../../../../docs/results-format.md");
        assert!(document.contains(&format!("`{}`", head.trim_end())));
    }

    #[test]
    fn a_sample_under_a_user_space_driver_says_so() {
        let text = csv(&sample::user_space());
        let of = |adapter: &str| text.lines().filter(|line| line.starts_with(adapter)).collect::<Vec<_>>();
        assert!(!of("vmxnet").is_empty() && of("vmxnet,").iter().all(|line| line.ends_with(",user-space")), "{text}");
        assert!(of("e1000,").iter().all(|line| line.ends_with(',')), "{text}");
    }

    #[test]
    fn a_name_with_a_comma_or_a_quote_stays_one_field() {
        assert_eq!(field("e1000"), "e1000");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("two\nlines"), "\"two\nlines\"");
    }
}
