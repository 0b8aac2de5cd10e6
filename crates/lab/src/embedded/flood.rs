//! A flood of broadcast frames: as many as the adapter takes, for a time.

use std::time::{Duration, Instant};

use nicety_adapter::Offload;
use nicety_frame::Mac;

use super::link::{GuestError, Link};

/// Frames between two looks at the clock and the orders.
const AT_ONCE: usize = 64;
/// IEEE 802, "Local Experimental EtherType 1": nobody's protocol.
const KIND: [u8; 2] = [0x88, 0xb5];
const FRAME_BYTES: std::ops::RangeInclusive<u16> = 60..=1514;

/// See the module's page.
#[derive(Debug)]
pub struct Flood {
    frame: Vec<u8>,
    until: Instant,
    frames: u64,
    full: bool,
}

impl Flood {
    /// One from this address, of frames of `bytes`.
    pub fn new(from: Mac, bytes: u16, seconds: f64) -> Flood {
        let mut frame = vec![0xff; 6];
        frame.extend(from.0.iter().chain(&KIND));
        frame.resize(usize::from(bytes.clamp(*FRAME_BYTES.start(), *FRAME_BYTES.end())), 0);
        let until = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
        Flood { frame, until, frames: 0, full: false }
    }

    /// Sends some. `interrupted`: there may be room again.
    pub fn go(&mut self, link: &mut dyn Link, interrupted: bool) -> Result<(), GuestError> {
        self.full &= !interrupted;
        for _ in 0..AT_ONCE {
            if self.full {
                break;
            }
            let taken = link.transmit(&self.frame, &Offload::default())?;
            self.frames += u64::from(taken);
            self.full = !taken;
        }
        Ok(())
    }

    /// When to go on: at once, or if nothing has room before that, at its end.
    pub fn next(&self, now: Instant) -> Duration {
        if self.full { self.until.saturating_duration_since(now) } else { Duration::ZERO }
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
        let mut flood = Flood::new(mac, 20, 3600.0);
        for _ in 0..1_000_000 {
            flood.go(&mut from, false).unwrap();
            if flood.full {
                break;
            }
        }
        let sent = flood.frames;
        assert!(flood.full && sent > 0 && flood.next(Instant::now()) > Duration::from_secs(3000));
        flood.go(&mut from, false).unwrap();
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
        flood.go(&mut from, true).unwrap();
        assert!(flood.frames > sent);
        assert_eq!(flood.over(), None);
    }
}
