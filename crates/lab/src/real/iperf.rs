//! iperf 2 (Debian's package `iperf`), which no guest's image has: its command line, and its report.

use std::collections::BTreeMap;
use std::process::Command;

use nicety_guests::Layer;

use crate::record::Taken;
use crate::series::Series;

/// The package.
pub const PACKAGES: &[&str] = &["iperf"];
/// The program in its layer.
pub const IPERF: &str = "usr/bin/iperf";

/// The program with the words of this command line.
pub fn program(layer: &Layer, line: &str) -> Command {
    let mut command = layer.program(IPERF);
    command.args(line.split(' ').skip(1));
    command
}

/// The result of an iperf.
#[derive(Debug, PartialEq)]
pub struct Report {
    /// The rate, and the rate over time.
    pub taken: Taken,
    /// The payload in gigabits: streams that end late carry more than the rate makes of the time that was asked for.
    pub gbit: f64,
}

/// iperf 2's report of all streams together: `[SUM] 0.0000-30.0080 sec  1638400 KBytes  447000 Kbits/sec`, a line for each second and one
/// for the whole.
pub fn report(text: &str) -> Option<Report> {
    let (mut series, mut whole) = (Series::default(), None::<(f64, f64)>);
    for line in text.lines().filter(|line| line.starts_with("[SUM")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let before =
            |unit: &str| words.iter().position(|word| *word == unit).and_then(|at| words.get(at.checked_sub(1)?));
        let (begin, end) = before("sec")?.split_once('-')?;
        let (begin, end): (f64, f64) = (begin.trim_start_matches(']').parse().ok()?, end.parse().ok()?);
        let mbit = before("Kbits/sec")?.parse::<f64>().ok().filter(|rate| rate.is_finite())? / 1000.0;
        // The sum of the whole comes last, and begins at 0 too.
        if begin == 0.0 && whole.is_none_or(|(until, _)| end >= until) {
            whole = Some((end, mbit));
        }
        let rises = series.until_seconds.last().is_none_or(|last| end > *last);
        if end - begin < 1.5 && rises {
            series.push(end, mbit);
        }
    }
    let (seconds, mbit) = whole.filter(|(_, mbit)| *mbit > 0.0)?;
    let series = Some(series).filter(|series| series.values.len() > 1);
    let taken = Taken { figures: BTreeMap::from([("mbit".to_owned(), mbit)]), series, ..Taken::default() };
    Some(Report { taken, gbit: mbit * seconds / 1000.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iperf_s_sum_over_all_streams_is_the_rate_and_its_seconds_are_the_series() {
        let text = "------------------------------------------------------------\n\
                    Client connecting to 10.9.2.2, TCP port 5001 with pid 90 (16 flows)\n\
                    [SUM] 0.0000-1.0000 sec  262144 KBytes  2147484 Kbits/sec\n\
                    [SUM] 1.0000-2.0000 sec  294912 KBytes  2415919 Kbits/sec\n\
                    [SUM] 0.0000-2.0071 sec  557056 KBytes  2273619 Kbits/sec\n\
                    [ CT] final connect times (min/avg/max/stdev) = 0.406/0.604/0.778/0.109 ms (tot/err) = 16/0\n";
        let Report { taken, gbit } = report(text).unwrap();
        assert_eq!(taken.figures.get("mbit"), Some(&2273.619));
        // 557056 KBytes of 1024 bytes.
        assert!((gbit - 4.5634).abs() < 1e-3, "the payload, not the rate times two seconds: {gbit}");
        let series = taken.series.unwrap();
        assert_eq!((series.until_seconds, series.values), (vec![1.0, 2.0], vec![2147.5, 2415.9]));
        for nothing in ["", "connect failed: Connection refused\n", "[SUM] 0.0000-2.0071 sec  0 KBytes  0 Kbits/sec\n"]
        {
            assert_eq!(report(nothing), None, "{nothing}");
        }
    }
}
