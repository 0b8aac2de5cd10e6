//! Silences of a VM, seen from outside: the times at which its answers came.

/// An answer to a `ping -D`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// Its time, in seconds since 1970.
    pub at: f64,
    /// Its round trip in milliseconds.
    pub round_trip_ms: f64,
}

/// The answers that `ping -D` shows: `[1700000000.123456] 64 bytes from 10.9.6.1: icmp_seq=1 ttl=64 time=0.413 ms`. Repeated ones count
/// once.
pub fn answers(said: &str) -> Vec<Answer> {
    let answer = |line: &str| {
        let (at, rest) = line.strip_prefix('[')?.split_once("] ")?;
        let round_trip = rest.split_once(" time=")?.1.strip_suffix(" ms")?;
        Some(Answer { at: at.parse().ok()?, round_trip_ms: round_trip.parse().ok()? })
    };
    said.lines().filter_map(|line| answer(line.trim_end())).collect()
}

/// Silences around an event, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Silence {
    /// The usual one: half of the time before the event lies in longer ones.
    pub usual: f64,
    /// The longest one that ends after the event.
    pub longest: f64,
}

impl Silence {
    /// The silence that the event adds, in seconds.
    pub fn outage(self) -> f64 {
        (self.longest - self.usual).max(0.0)
    }
}

/// Silences between answers at these rising times, around an event. None: there are not two answers before it, and one after it.
pub fn around(times: &[f64], event: f64) -> Option<Silence> {
    let gaps = || times.iter().zip(times.iter().skip(1)).map(|(begin, end)| (end - begin, *end));
    let mut before: Vec<f64> = gaps().filter(|(_, end)| *end <= event).map(|(gap, _)| gap).collect();
    before.sort_unstable_by(f64::total_cmp);
    let half = before.iter().sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let usual = before.into_iter().find(|gap| {
        sum += gap;
        sum >= half
    })?;
    let longest = longest(times, event, f64::INFINITY)?;
    Some(Silence { usual, longest })
}

/// The longest silence of which a part lies between two times.
pub fn longest(times: &[f64], from: f64, until: f64) -> Option<f64> {
    let gaps = times.iter().zip(times.iter().skip(1)).filter(|(begin, end)| **end > from && **begin < until);
    gaps.map(|(begin, end)| end - begin).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_s_answers_have_their_times_and_repeated_ones_count_once() {
        let said = "PING 10.9.6.1 (10.9.6.1) 56(84) bytes of data.\n\
                    [1700000000.250000] 64 bytes from 10.9.6.1: icmp_seq=1 ttl=64 time=48.2 ms\n\
                    [1700000000.250000] 64 bytes from 10.9.6.1: icmp_seq=1 ttl=64 time=48.3 ms (DUP!)\n\
                    [1700000000.500000] no answer yet for icmp_seq=2\n\
                    [1700000000.750000] 64 bytes from 10.9.6.1: icmp_seq=3 ttl=64 time=1 ms\n\
                    \n--- 10.9.6.1 ping statistics ---\n3 packets transmitted, 2 received\n";
        let found = answers(said);
        assert_eq!(found.iter().map(|answer| answer.round_trip_ms).collect::<Vec<_>>(), [48.2, 1.0]);
        assert!((found[1].at - found[0].at - 0.5).abs() < 1e-6);
    }

    /// A gate lets answers out together, every 50 ms: nearly all of the time lies in silences of 50 ms.
    #[test]
    fn a_usual_silence_is_that_in_which_an_event_falls_and_only_what_exceeds_it_is_an_outage() {
        let epochs = (0..20).flat_map(|epoch| (0..10).map(move |n| f64::from(epoch) * 0.05 + f64::from(n) * 1e-4));
        let mut times: Vec<f64> = epochs.collect();
        let event = 0.96;
        times.extend([1.25, 1.251, 1.252]);
        let silence = around(&times, event).unwrap();
        assert!((silence.usual - 0.0491).abs() < 1e-9, "{silence:?}");
        assert!((silence.longest - (1.25 - 0.9509)).abs() < 1e-9, "{silence:?}");
        assert!((silence.outage() - 0.25).abs() < 1e-9, "{silence:?}");
        assert_eq!(around(&times, 2.0), None, "nothing came after it");
        assert_eq!(around(&times, 0.0), None, "nothing came before it");
        assert_eq!(around(&[], 0.0), None);
    }

    #[test]
    fn a_silence_counts_where_a_part_of_it_lies() {
        let times = [0.0, 1.0, 3.0, 3.5];
        assert_eq!(longest(&times, 0.0, 1.5), Some(2.0));
        assert_eq!(longest(&times, 0.0, 1.0), Some(1.0));
        assert_eq!(longest(&times, 3.0, 9.0), Some(0.5));
        assert_eq!(longest(&times, 3.5, 9.0), None);
    }
}
