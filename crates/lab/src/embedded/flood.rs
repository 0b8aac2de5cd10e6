//! A flood of broadcast frames: for a time, as many as the adapter takes. Or a trickle: single frames at a fixed rate.

use std::time::{Duration, Instant};

use nicety_adapter::Offload;
use nicety_frame::Mac;

use super::link::{GuestError, Link};

/// Frames between two checks of the clock and the orders.
const AT_ONCE: usize = 64;
/// IEEE 802, "Local Experimental EtherType 1": no protocol uses it.
const KIND: [u8; 2] = [0x88, 0xb5];
const FRAME_BYTES: std::ops::RangeInclusive<u16> = 60..=1514;
const SECOND: Duration = Duration::from_secs(1);

/// A flood or trickle (see the module's page).
#[derive(Debug)]
pub struct Flood {
    frame: Vec<u8>,
    until: Instant,
    frames: u64,
    full: bool,
    pace: Option<Pace>,
}

/// Rate of a trickle.
#[derive(Debug)]
struct Pace {
    gap: Duration,
    due: Instant,
}

impl Pace {
    /// Whether a frame is due. A late frame is not made up for: the next is due one gap later.
    fn take_due(&mut self, now: Instant) -> bool {
        let due = now >= self.due;
        if due {
            let next = self.due + self.gap;
            self.due = if next > now { next } else { now + self.gap };
        }
        due
    }
}

impl Flood {
    /// A flood from this address, of frames of `bytes`.
    pub fn new(from: Mac, bytes: u16, seconds: f64) -> Flood {
        let mut frame = vec![0xff; 6];
        frame.extend(from.0.iter().chain(&KIND));
        frame.resize(usize::from(bytes.clamp(*FRAME_BYTES.start(), *FRAME_BYTES.end())), 0);
        let until = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
        Flood { frame, until, frames: 0, full: false, pace: None }
    }

    /// A trickle from this address: `a_second` frames of `bytes` every second.
    pub fn trickle(from: Mac, bytes: u16, a_second: u32, seconds: f64) -> Flood {
        let pace = Pace { gap: SECOND / a_second.max(1), due: Instant::now() };
        Flood { pace: Some(pace), ..Flood::new(from, bytes, seconds) }
    }

    /// Sends a batch. `interrupted` means that there may be room again.
    pub fn go(&mut self, link: &mut dyn Link, now: Instant, interrupted: bool) -> Result<(), GuestError> {
        self.full &= !interrupted;
        for _ in 0..AT_ONCE {
            if self.full || self.pace.as_mut().is_some_and(|pace| !pace.take_due(now)) {
                break;
            }
            let taken = link.transmit(&self.frame, &Offload::default())?;
            self.frames += u64::from(taken);
            self.full = !taken;
        }
        Ok(())
    }

    /// Time until the next call: none for a flood, the next due time for a trickle. While the adapter is full, the end of the flood.
    pub fn next(&self, now: Instant) -> Duration {
        let next = match &self.pace {
            _ if self.full => self.until,
            Some(pace) => pace.due.min(self.until),
            None => now,
        };
        next.saturating_duration_since(now)
    }

    /// Number of frames sent, once the time is over.
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
        // One message more than frames: the pair's hello.
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
        // For each call: its time in gaps, total frames sent, time until the next frame in gaps.
        for (gaps, frames, sleep) in
            [(0.0, 1, 1.0), (0.5, 1, 0.5), (1.0, 2, 1.0), (2.25, 3, 0.75), (3.0, 4, 1.0), (9.5, 5, 1.0), (9.5, 5, 1.0)]
        {
            let now = begun + gap.mul_f64(gaps);
            flood.go(&mut from, now, true).unwrap();
            assert_eq!((flood.frames, flood.next(now)), (frames, gap.mul_f64(sleep)), "after {gaps} gaps");
        }
    }
}
