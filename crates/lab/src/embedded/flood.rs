//! A flood of broadcast frames: as many as the adapter takes, for a time. Or a trickle: one by one, so many a second.

use std::time::{Duration, Instant};

use nicety_adapter::Offload;
use nicety_frame::Mac;

use super::link::{GuestError, Link};

/// Frames between two looks at the clock and the orders.
const AT_ONCE: usize = 64;
/// IEEE 802, "Local Experimental EtherType 1": nobody's protocol.
const KIND: [u8; 2] = [0x88, 0xb5];
const FRAME_BYTES: std::ops::RangeInclusive<u16> = 60..=1514;
const SECOND: Duration = Duration::from_secs(1);

/// See the module's page.
#[derive(Debug)]
pub struct Flood {
    frame: Vec<u8>,
    until: Instant,
    frames: u64,
    full: bool,
    pace: Option<Pace>,
}

/// A trickle's.
#[derive(Debug)]
struct Pace {
    gap: Duration,
    due: Instant,
}

impl Pace {
    /// Whether a frame is due. One that comes late is not made up for: the next is a gap away.
    fn takes(&mut self, now: Instant) -> bool {
        let due = now >= self.due;
        if due {
            let next = self.due + self.gap;
            self.due = if next > now { next } else { now + self.gap };
        }
        due
    }
}

impl Flood {
    /// One from this address, of frames of `bytes`.
    pub fn new(from: Mac, bytes: u16, seconds: f64) -> Flood {
        let mut frame = vec![0xff; 6];
        frame.extend(from.0.iter().chain(&KIND));
        frame.resize(usize::from(bytes.clamp(*FRAME_BYTES.start(), *FRAME_BYTES.end())), 0);
        let until = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
        Flood { frame, until, frames: 0, full: false, pace: None }
    }

    /// A trickle from this address, of `a_second` frames of `bytes` every second.
    pub fn trickle(from: Mac, bytes: u16, a_second: u32, seconds: f64) -> Flood {
        let pace = Pace { gap: SECOND / a_second.max(1), due: Instant::now() };
        Flood { pace: Some(pace), ..Flood::new(from, bytes, seconds) }
    }

    /// Sends some. `interrupted`: there may be room again.
    pub fn go(&mut self, link: &mut dyn Link, now: Instant, interrupted: bool) -> Result<(), GuestError> {
        self.full &= !interrupted;
        for _ in 0..AT_ONCE {
            if self.full || self.pace.as_mut().is_some_and(|pace| !pace.takes(now)) {
                break;
            }
            let taken = link.transmit(&self.frame, &Offload::default())?;
            self.frames += u64::from(taken);
            self.full = !taken;
        }
        Ok(())
    }

    /// When to go on: at once, or when the next frame of a trickle is due; if nothing has room before that, at its end.
    pub fn next(&self, now: Instant) -> Duration {
        let next = match &self.pace {
            _ if self.full => self.until,
            Some(pace) => pace.due.min(self.until),
            None => now,
        };
        next.saturating_duration_since(now)
    }

    /// The frames that were sent, if it is over.
    pub fn over(&self) -> Option<u64> {
        (Instant::now() >= self.until).then_some(self.frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::pair::joined;

    #[test]
    fn a_flood_is_broadcast_frames_until_there_is_no_room_and_goes_on_when_there_is() {
        let mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
        let [mut from, mut to] = joined([mac, Mac([0x52, 0x54, 0, 0, 0, 2])]);
        let (mut flood, now) = (Flood::new(mac, 20, 3600.0), Instant::now());
        for _ in 0..1_000_000 {
            flood.go(&mut from, now, false).unwrap();
            if flood.full {
                break;
            }
        }
        let sent = flood.frames;
        assert!(flood.full && sent > 0 && flood.next(now) > Duration::from_secs(3000));
        flood.go(&mut from, now, false).unwrap();
        assert_eq!(flood.frames, sent, "without an interrupt there is no room");
        let mut taken = 0;
        // One message more: the pair's greeting.
        to.receive(sent as usize + 1, &mut |packet, _| {
            assert_eq!(
                (packet.len(), &packet[..6], &packet[6..12], &packet[12..14]),
                (60, &[0xff; 6][..], &mac.0[..], &KIND[..])
            );
            taken += 1;
        })
        .unwrap();
        assert_eq!(taken, sent);
        flood.go(&mut from, now, true).unwrap();
        assert!(flood.frames > sent);
        assert_eq!(flood.over(), None);
    }

    #[test]
    fn a_trickle_is_one_frame_a_gap_and_never_two_at_once_however_late_it_is() {
        let mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
        let [mut from, _to] = joined([mac, Mac([0x52, 0x54, 0, 0, 0, 2])]);
        let mut flood = Flood::trickle(mac, 60, 100, 3600.0);
        let gap = Duration::from_millis(10);
        let begun = flood.pace.as_ref().unwrap().due;
        // When it is called in hundredths of a second, what it has sent then, and how long it may sleep.
        for (gaps, frames, sleep) in
            [(0.0, 1, 1.0), (0.5, 1, 0.5), (1.0, 2, 1.0), (2.25, 3, 0.75), (3.0, 4, 1.0), (9.5, 5, 1.0), (9.5, 5, 1.0)]
        {
            let now = begun + gap.mul_f64(gaps);
            flood.go(&mut from, now, true).unwrap();
            assert_eq!((flood.frames, flood.next(now)), (frames, gap.mul_f64(sleep)), "after {gaps} gaps");
        }
    }
}
