//! Decorates an uplink: it announces itself to its neighbour by LLDP (IEEE 802.1AB-2016), every 30 seconds, on this uplink alone. It
//! begins and ends to do so while the link is open.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, HandOver, News, Pick, PortId, Progress, Time, Uplink, UplinkSettings,
};
use nicety_frame::Mac;
use nicety_frame::ethernet::ethertype;
use nicety_memory::{Map, MapError};

/// Interval between two frames, and the seconds that an announcement stays valid: IEEE 802.1AB-2016, table 9-1 (msgTxInterval,
/// txTTL).
const INTERVAL_NS: u64 = 30_000_000_000;
const HOLDS_S: u16 = 121;
/// The nearest bridge: IEEE 802.1AB-2016, table 7-1.
const NEAREST: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
/// TLV types, and name subtypes: section 8.5.
const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const HOLDS: u8 = 3;
const SYSTEM: u8 = 5;
const DESCRIPTION: u8 = 6;
const BY_MAC: u8 = 4;
const BY_NAME: u8 = 7;
/// Most bytes of a name: section 8.5.6.
const NAME_MOST: usize = 255;

/// See the module's documentation.
#[derive(Debug)]
pub struct Announced<U> {
    inner: U,
    /// The announcement.
    frame: Vec<u8>,
    /// `None`: it does not announce itself.
    sender: Option<Sender>,
}

/// Sends the announcement.
#[derive(Debug)]
struct Sender {
    batch: Batch,
    map: Arc<Map>,
    len: u32,
    at: Time,
}

impl<U: Uplink> Announced<U> {
    /// `system` is the host's name, `port` the uplink's; `description` names the software that serves it. It is silent until
    /// [`Uplink::set`] turns it on.
    pub fn new(inner: U, mac: Mac, system: &str, port: &str, description: &str) -> Self {
        Self { inner, frame: frame(mac, system, port, description), sender: None }
    }
}

impl Sender {
    fn new(frame: &[u8]) -> Result<Self, MapError> {
        let map = Map::private(frame.len())?;
        // The map has the frame's length.
        let _written = map.write(0, frame);
        Ok(Self { batch: Batch::new(), map: Arc::new(map), len: frame.len() as u32, at: Time::ZERO })
    }

    fn announce(&mut self, inner: &mut impl Uplink, counters: &mut Counters, now: Time) {
        if now < self.at {
            return;
        }
        self.at = now.after_ns(INTERVAL_NS);
        self.batch.start(&self.map, PortId::default(), 0);
        if let Some(mut draft) = self.batch.draft(0) {
            // The whole frame is in the map.
            let _in_bounds = draft.push(0, self.len);
            draft.finish_plain(0);
        }
        // A refused announcement is not retried: the next one follows in half a minute.
        let _refused = inner.deliver(&Frames::new(&self.batch, &[Pick::whole(0)]), counters, now);
        self.batch.release();
    }
}

impl<U: Uplink> Uplink for Announced<U> {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        if let Some(sender) = &mut self.sender {
            sender.announce(&mut self.inner, counters, now);
        }
        self.inner.fetch(port, budget, batch, counters, now)
    }

    fn complete(&mut self, batch: &Batch) {
        self.inner.complete(batch);
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        self.inner.deliver(frames, counters, now)
    }

    fn hand_over(&self) -> HandOver<'_> {
        self.inner.hand_over()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn wake(&self) -> Option<Time> {
        self.inner.wake().into_iter().chain(self.sender.as_ref().map(|sender| sender.at)).min()
    }

    fn set(&mut self, settings: &UplinkSettings) -> io::Result<()> {
        let new = if settings.announces && self.sender.is_none() {
            Some(Sender::new(&self.frame).map_err(io::Error::other)?)
        } else {
            None
        };
        self.inner.set(settings)?;
        self.sender = new.or(self.sender.take()).filter(|_| settings.announces);
        Ok(())
    }

    fn carrier(&self) -> bool {
        self.inner.carrier()
    }

    fn vacant(&self) -> Option<String> {
        self.inner.vacant()
    }

    fn news(&mut self) -> Option<News> {
        self.inner.news()
    }
}

/// Appends a TLV: type, length, value (section 8.4).
fn say(frame: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let len = parts.iter().map(|part| part.len()).sum::<usize>() as u16;
    frame.extend((u16::from(kind) << 9 | len).to_be_bytes());
    parts.iter().for_each(|part| frame.extend_from_slice(part));
}

fn frame(mac: Mac, system: &str, port: &str, description: &str) -> Vec<u8> {
    let cut = |text: &str| text.bytes().take(NAME_MOST).collect::<Vec<_>>();
    let mut frame = [&NEAREST[..], &mac.0, &ethertype::LLDP.to_be_bytes()].concat();
    say(&mut frame, CHASSIS, &[&[BY_MAC], &mac.0]);
    say(&mut frame, PORT, &[&[BY_NAME], &cut(port)]);
    say(&mut frame, HOLDS, &[&HOLDS_S.to_be_bytes()]);
    say(&mut frame, SYSTEM, &[&cut(system)]);
    say(&mut frame, DESCRIPTION, &[&cut(description)]);
    say(&mut frame, 0, &[]);
    frame.resize(frame.len().max(60), 0);
    frame
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::Null;

    /// Keeps the frames that leave.
    #[derive(Default)]
    struct Kept(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Uplink for Kept {
        fn fetch(
            &mut self,
            port: PortId,
            budget: Budget,
            batch: &mut Batch,
            counters: &mut Counters,
            now: Time,
        ) -> Progress {
            Null.fetch(port, budget, batch, counters, now)
        }

        fn complete(&mut self, _: &Batch) {}

        fn deliver(&mut self, frames: &Frames<'_>, _: &mut Counters, _: Time) -> Delivery {
            let head = |packet| frames.batch.head(packet).to_vec();
            self.0.lock().unwrap().extend(frames.iter().map(|(_, _, packet)| head(packet)));
            Delivery::default()
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    #[test]
    fn it_says_who_it_is_every_30_seconds_whatever_else_happens() {
        let kept = Kept::default();
        let sent = Arc::clone(&kept.0);
        let mac = Mac([2, 0x4e, 1, 2, 3, 4]);
        let mut uplink = Announced::new(kept, mac, "host1", "up0", "Nicety");
        let (mut batch, mut counters) = (Batch::new(), Counters::default());
        uplink.fetch(PortId(0), Budget::TURN, &mut batch, &mut counters, Time::ZERO);
        assert_eq!((sent.lock().unwrap().len(), uplink.wake()), (0, None), "it is silent at first");
        let says = |announces| UplinkSettings { announces, ..UplinkSettings::default() };
        uplink.set(&says(true)).unwrap();
        for second in 0..=90 {
            let now = Time(second * 1_000_000_000);
            uplink.fetch(PortId(0), Budget::TURN, &mut batch, &mut counters, now);
            assert!(uplink.wake().unwrap() > now);
        }
        uplink.set(&says(true)).unwrap();
        assert_eq!(uplink.wake(), Some(Time(120_000_000_000)), "the same again changes nothing");
        uplink.set(&says(false)).unwrap();
        uplink.fetch(PortId(0), Budget::TURN, &mut batch, &mut counters, Time(120_000_000_000));
        assert_eq!(uplink.wake(), None);
        let sent = sent.lock().unwrap();
        assert_eq!(sent.len(), 4);
        let said = b"\x01\x80\xc2\x00\x00\x0e\x02\x4e\x01\x02\x03\x04\x88\xcc\x02\x07\x04\x02\x4e\x01\x02\x03\x04\x04\x04\x07up0\
                     \x06\x02\x00\x79\x0a\x05host1\x0c\x06Nicety\x00\x00";
        assert_eq!(sent[3], [&said[..], &[0; 60][said.len()..]].concat());
    }
}
