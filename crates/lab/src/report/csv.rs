//! `results.csv`: a line for each sample, for spreadsheets and scripts (RFC 4180; docs/results-format.md).

use std::fmt::Write as _;

use crate::results::{Direction, Results};

/// How every file begins: by this a later report knows that it may take the place.
pub(super) const HEAD: &str = "adapter,test,server,unit,direction,round,value\n";

/// The whole file.
pub(super) fn csv(results: &Results) -> String {
    let mut out = HEAD.to_owned();
    for row in &results.rows {
        let direction = match row.direction {
            Direction::Higher => "higher",
            Direction::Lower => "lower",
        };
        let (adapter, unit) = (field(&row.adapter), field(&row.unit));
        for sample in &row.samples {
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "{adapter},{},{},{unit},{direction},{},{}",
                row.test.name(),
                row.server,
                sample.round,
                sample.value
            );
        }
    }
    out
}

/// In quotes where it has to be.
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
        assert!(text.starts_with(HEAD));
        assert!(text.contains("\ne1000,bulk-transmit,nicety,Mbit/s,higher,0,1500"), "{text}");
        assert!(text.lines().all(|line| line.split(',').count() == HEAD.split(',').count()));
        let document = include_str!("../../../../docs/results-format.md");
        assert!(document.contains(&format!("`{}`", HEAD.trim_end())));
    }

    #[test]
    fn a_name_with_a_comma_or_a_quote_stays_one_field() {
        assert_eq!(field("e1000"), "e1000");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("two\nlines"), "\"two\nlines\"");
    }
}
