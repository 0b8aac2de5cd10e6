//! The rates of one series: the last five minutes in steps of a second, the last hour in steps of ten seconds. Its size is fixed.

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
/// Seconds of a coarse step.
const COARSE: u64 = 10;
/// Steps in a ring: those of the longest time shown, one that is under way, and the rest of a group that has begun before them.
const FINE_KEPT: usize = 306;
const COARSE_KEPT: usize = 367;
/// After so many seconds without traffic a ring has zeros only, and is given back.
const FORGOTTEN: u64 = 3700;

/// The time that charts show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Span {
    #[default]
    Minutes,
    Hour,
}

impl Span {
    /// The span in seconds.
    pub fn seconds(self) -> u64 {
        match self {
            Self::Minutes => 300,
            Self::Hour => 3600,
        }
    }

    /// Seconds of a chart's step.
    fn step(self) -> u64 {
        match self {
            Self::Minutes => 1,
            Self::Hour => COARSE,
        }
    }

    /// `five minutes`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Minutes => "five minutes",
            Self::Hour => "hour",
        }
    }

    /// `5 minutes`, for the head of a table.
    pub fn brief(self) -> &'static str {
        match self {
            Self::Minutes => "5 minutes",
            Self::Hour => "hour",
        }
    }
}

/// A chart's value: the rate in bit/s between two moments, in seconds from the chart's begin.
pub(super) type Step = (f64, f64, f64);

/// Rates both ways in bit/s. A step has its place by its number since the first look.
#[derive(Debug)]
struct Rings {
    fine: [[f32; 2]; FINE_KEPT],
    coarse: [[f32; 2]; COARSE_KEPT],
}

/// Bytes of the rates that are kept for one series.
pub(super) const RING_BYTES: usize = size_of::<Rings>();

/// See the module's page. Times are nanoseconds since the first look at any series.
#[derive(Debug)]
pub(super) struct Carried {
    at_ns: u64,
    bytes: [u64; 2],
    /// The rates between the last two looks.
    rate: Option<[f64; 2]>,
    /// The first second that was seen whole.
    first: u64,
    /// Bits of the second under way.
    part: [f64; 2],
    /// The last second with traffic, each way.
    busy: [Option<u64>; 2],
    /// `None`: nothing was carried for an hour, or no more rings are left.
    rings: Option<Box<Rings>>,
}

impl Carried {
    pub fn new(bytes: [u64; 2], at_ns: u64) -> Self {
        let first = at_ns.div_ceil(SECOND);
        Self { at_ns, bytes, rate: None, first, part: [0.0; 2], busy: [None; 2], rings: None }
    }

    /// Notes the counters of a moment. `room`: whether it may take a ring.
    pub fn note(&mut self, bytes: [u64; 2], at_ns: u64, room: bool) {
        // Counters of a port that was opened as new begin again.
        if bytes.iter().zip(self.bytes).any(|(now, then)| *now < then) {
            *self = Self::new(bytes, at_ns);
            return;
        }
        let span = at_ns.saturating_sub(self.at_ns);
        if span == 0 {
            return;
        }
        let per_second = [0, 1].map(|way: usize| {
            let bits = (bytes[way] - self.bytes[way]) as f64 * 8.0;
            bits * SECOND as f64 / span as f64
        });
        let is_busy = per_second.iter().any(|rate| *rate > 0.0);
        if is_busy && room && self.rings.is_none() {
            self.rings = Some(Box::new(Rings { fine: [[0.0; 2]; FINE_KEPT], coarse: [[0.0; 2]; COARSE_KEPT] }));
        }
        self.spread(per_second, at_ns);
        for (busy, rate) in self.busy.iter_mut().zip(per_second) {
            if rate > 0.0 {
                *busy = Some(at_ns / SECOND);
            }
        }
        let newest = self.busy.iter().flatten().max();
        if newest.is_none_or(|newest| newest + FORGOTTEN < at_ns / SECOND) {
            self.rings = None;
        }
        (self.at_ns, self.bytes, self.rate) = (at_ns, bytes, Some(per_second));
    }

    /// Divides what was carried since the last look over the seconds since then.
    fn spread(&mut self, per_second: [f64; 2], until_ns: u64) {
        let mut at = self.at_ns;
        let oldest = (until_ns / SECOND).saturating_sub(Span::Hour.seconds()) * SECOND;
        if at < oldest {
            (at, self.part) = (oldest, [0.0; 2]);
        }
        while at < until_ns {
            let second = at / SECOND;
            let end = ((second + 1) * SECOND).min(until_ns);
            let share = (end - at) as f64 / SECOND as f64;
            self.part.iter_mut().zip(per_second).for_each(|(part, rate)| *part += rate * share);
            if end == (second + 1) * SECOND {
                let whole = std::mem::take(&mut self.part).map(|bits| bits as f32);
                self.rings.iter_mut().for_each(|rings| rings.put(second, whole));
            }
            at = end;
        }
    }

    /// When it was looked at last.
    pub fn at_ns(&self) -> u64 {
        self.at_ns
    }

    pub fn has_rings(&self) -> bool {
        self.rings.is_some()
    }

    /// Whether it carries traffic that nothing remembers.
    pub fn is_forgotten(&self) -> bool {
        self.rings.is_none() && self.busy.iter().any(Option::is_some)
    }

    /// The rate between the last two looks, in bit/s, one way.
    pub fn rate(&self, way: usize) -> Option<f64> {
        self.rate.map(|rate| rate[way])
    }

    /// Seconds since traffic went this way. `None`: it never did.
    pub fn quiet(&self, way: usize) -> Option<u64> {
        self.busy[way].map(|busy| (self.at_ns / SECOND).saturating_sub(busy))
    }

    /// The rates one way, in steps of so many of the span's. The last step is the last that has ended: until the next one has, nothing moves.
    pub fn steps(&self, way: usize, span: Span, group: u64) -> Vec<Step> {
        let long = span.step() * group;
        let end = self.at_ns / SECOND / long;
        let begin = self.first.div_ceil(long).max(end.saturating_sub(span.seconds() / long));
        let mut steps = Vec::<Step>::new();
        for number in begin..end {
            let rate = self.mean(way, span, number * group, group);
            let from = (span.seconds() as f64) - ((end - number) * long) as f64;
            match steps.last_mut() {
                Some((_, to, last)) if *last == rate => *to = from + long as f64,
                _ => steps.push((from, from + long as f64, rate)),
            }
        }
        steps
    }

    fn mean(&self, way: usize, span: Span, first: u64, many: u64) -> f64 {
        let Some(rings) = &self.rings else { return 0.0 };
        let ring: &[[f32; 2]] = match span {
            Span::Minutes => &rings.fine,
            Span::Hour => &rings.coarse,
        };
        let sum: f64 = (first..first + many).map(|step| f64::from(ring[place(step, ring.len())][way])).sum();
        sum / many as f64
    }
}

fn place(step: u64, of: usize) -> usize {
    (step % of as u64) as usize
}

impl Rings {
    /// Notes a second that has ended.
    fn put(&mut self, second: u64, rate: [f32; 2]) {
        self.fine[place(second, FINE_KEPT)] = rate;
        let coarse = &mut self.coarse[place(second / COARSE, COARSE_KEPT)];
        if second.is_multiple_of(COARSE) {
            *coarse = [0.0; 2];
        }
        coarse.iter_mut().zip(rate).for_each(|(sum, rate)| *sum += rate / COARSE as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A series whose counter is looked at at these times in milliseconds.
    fn looked(looks: &[(u64, u64)]) -> Carried {
        let mut carried = Carried::new([looks[0].1, 0], looks[0].0 * 1_000_000);
        looks[1..].iter().for_each(|(ms, bytes)| carried.note([*bytes, 0], ms * 1_000_000, true));
        carried
    }

    #[test]
    fn a_look_is_divided_over_the_seconds_since_the_last_one() {
        // 1000 bytes in a second, then 500 in two.
        let carried = looked(&[(0, 0), (1000, 1000), (3000, 1500)]);
        assert_eq!(carried.steps(0, Span::Minutes, 1), [(297.0, 298.0, 8000.0), (298.0, 300.0, 2000.0)]);
        assert_eq!((carried.rate(0), carried.rate(1)), (Some(2000.0), Some(0.0)));
        // At half seconds: the second between has half of each.
        let carried = looked(&[(500, 0), (1500, 1000), (2500, 1000), (3000, 1000)]);
        assert_eq!(carried.steps(0, Span::Minutes, 1), [(298.0, 299.0, 4000.0), (299.0, 300.0, 0.0)]);
    }

    #[test]
    fn an_hour_is_kept_in_steps_of_ten_seconds_and_no_more() {
        let mut looks: Vec<(u64, u64)> = (0..=9000).map(|second| (second * 1000, second * 125)).collect();
        let carried = looked(&looks);
        assert_eq!(carried.steps(0, Span::Minutes, 1), [(0.0, 300.0, 1000.0)]);
        assert_eq!(carried.steps(0, Span::Hour, 1), [(0.0, 3600.0, 1000.0)]);
        assert_eq!(carried.steps(0, Span::Hour, 6), [(0.0, 3600.0, 1000.0)]);
        // 700,000 bits in one second, ten minutes ago.
        looks.iter_mut().for_each(|(ms, bytes)| *bytes = if *ms > 8_400_000 { 87_500 } else { 0 });
        let carried = looked(&looks);
        assert_eq!(carried.steps(0, Span::Minutes, 1), [(0.0, 300.0, 0.0)]);
        let steps = carried.steps(0, Span::Hour, 1);
        assert_eq!(steps, [(0.0, 3000.0, 0.0), (3000.0, 3010.0, 70_000.0), (3010.0, 3600.0, 0.0)]);
        assert_eq!(RING_BYTES, (306 + 367) * 2 * 4);
    }

    #[test]
    fn every_step_of_each_group_is_one_that_is_kept() {
        // Each second has its own rate: a step that another one has overwritten shows.
        for end in 7200..7212_u64 {
            let bytes = |second: u64| second * (second + 1) / 2 * 125;
            let looks: Vec<(u64, u64)> = (0..=end).map(|second| (second * 1000, bytes(second))).collect();
            let carried = looked(&looks);
            for (span, unit) in [(Span::Minutes, 1), (Span::Hour, 10)] {
                for group in [1, 6] {
                    let long = (unit * group) as f64;
                    let last = (end / (unit * group) * unit * group) as f64;
                    for (from, to, rate) in carried.steps(0, span, group) {
                        // The rate of second n, from n to n + 1, is (n + 1) times 1000 bit/s.
                        let first = last - span.seconds() as f64 + from;
                        let mean = (first + 1.0 + first + long) / 2.0 * 1000.0;
                        assert!(to - from == long && (rate / mean - 1.0).abs() < 1e-4, "{end} {span:?} {group} {from}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_quiet_series_takes_no_ring_and_gives_one_back_after_an_hour() {
        let mut carried = looked(&[(0, 7), (1000, 7), (2000, 7)]);
        assert!(!carried.has_rings() && carried.quiet(0).is_none());
        assert_eq!(carried.steps(0, Span::Minutes, 1), [(298.0, 300.0, 0.0)]);
        carried.note([8, 0], 3000 * 1_000_000, true);
        assert!(carried.has_rings() && carried.quiet(0) == Some(0));
        // A look that comes late.
        carried.note([8, 0], 3_600 * SECOND, true);
        assert!(carried.has_rings() && carried.quiet(0) == Some(3597));
        carried.note([8, 0], 3_800 * SECOND, true);
        assert!(!carried.has_rings());
        carried.note([9, 0], 3_801 * SECOND, false);
        assert!(!carried.has_rings() && carried.is_forgotten());
    }

    #[test]
    fn counters_that_begin_again_begin_a_new_series() {
        let carried = looked(&[(0, 5000), (1000, 0), (2000, 125)]);
        assert_eq!(carried.steps(0, Span::Minutes, 1), [(299.0, 300.0, 1000.0)]);
        assert_eq!(looked(&[(0, 5000), (1000, 0)]).rate(0), None);
    }
}
