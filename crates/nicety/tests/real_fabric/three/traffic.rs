//! Guests that send to each other all the time. Each frame has a number, and each that comes is looked at: it comes once, in order, and to
//! nobody of another group.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::rings_guest::Guest;

/// Between two frames from each guest to each other one.
const INTERVAL: Duration = Duration::from_millis(10);
/// One of so many rounds is a broadcast.
const BROADCAST: u32 = 8;
/// All that was sent has arrived after this time, if it is not lost.
const ARRIVED: Duration = Duration::from_secs(5);

/// Whom a frame is for: a guest, or all of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum To {
    One(u8),
    All,
}

/// A frame that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    to: To,
}

impl Sent {
    fn is_for(self, guest: u8) -> bool {
        self.to == To::All || self.to == To::One(guest)
    }
}

#[derive(Default)]
struct Member {
    group: String,
    /// `None`: its daemon is gone.
    guest: Option<Guest>,
    sent: Vec<Sent>,
    /// Numbers of the frames that came, by the guest that sent them.
    came: BTreeMap<u8, BTreeSet<u32>>,
    /// The newest of these, apart for broadcasts.
    newest: BTreeMap<(u8, bool), u32>,
}

/// See the module's page.
#[derive(Default)]
pub struct Traffic {
    members: BTreeMap<u8, Member>,
    round: u32,
    /// The numbers of each guest's first frames since the last mark.
    marks: BTreeMap<u8, u32>,
    /// Frames since then that came to another guest of their group as well.
    pub flooded: usize,
}

fn bytes(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0x12, 0x34, number]
}

impl Traffic {
    /// A guest runs at this socket.
    pub fn join(&mut self, number: u8, group: &str, socket: PathBuf) {
        let member = self.members.entry(number).or_default();
        group.clone_into(&mut member.group);
        member.guest = Some(Guest::new(socket));
    }

    /// A guest has lost its adapter. All that had come is looked at.
    pub fn leave(&mut self, number: u8) {
        self.take();
        self.members.get_mut(&number).unwrap().guest = None;
    }

    /// Sends from all guests, waits for a moment, and looks at what has come.
    pub fn step(&mut self) {
        self.round += 1;
        let is_broadcast = self.round.is_multiple_of(BROADCAST);
        let groups: Vec<(u8, String)> = self.members.iter().map(|(number, of)| (*number, of.group.clone())).collect();
        for (number, member) in &mut self.members {
            let peers = groups.iter().filter(|(peer, group)| peer != number && *group == member.group);
            let targets: Vec<To> = match is_broadcast {
                true => vec![To::All],
                false => peers.map(|(peer, _)| To::One(*peer)).collect(),
            };
            targets.into_iter().for_each(|to| member.send(*number, to));
        }
        std::thread::sleep(INTERVAL);
        self.take();
    }

    fn take(&mut self) {
        let numbers: Vec<u8> = self.members.keys().copied().collect();
        for number in numbers {
            let guest = self.members.get_mut(&number).unwrap().guest.as_mut();
            for frame in guest.map(Guest::take_frames).unwrap_or_default() {
                self.came(number, &frame);
            }
        }
    }

    /// A frame has come to this guest.
    fn came(&mut self, at: u8, frame: &[u8]) {
        let from = frame[11];
        let number = u32::from_le_bytes(frame[14..18].try_into().unwrap());
        let sender = self.members.get(&from).unwrap_or_else(|| panic!("{at} has a frame of nobody: {frame:x?}"));
        assert_eq!(frame[6..12], bytes(from), "{at}: {frame:x?}");
        let Sent { to } = sender.sent[number as usize];
        let (group, is_for) = (sender.group.clone(), sender.sent[number as usize].is_for(at));
        let member = self.members.get_mut(&at).unwrap();
        assert_eq!(member.group, group, "{at} has frame {number} of {from} for {to:?}");
        assert!(member.came.entry(from).or_default().insert(number), "{at} has frame {number} of {from} twice");
        if !is_for {
            // Nobody knew where its address is.
            self.flooded += 1;
            return;
        }
        let newest = member.newest.insert((from, to == To::All), number);
        assert!(newest.is_none_or(|newest| newest < number), "{at} has frame {number} of {from} after {newest:?}");
    }

    /// [`Traffic::unheard`] and [`Traffic::all_came`] are about frames from now on.
    pub fn mark(&mut self) {
        self.flooded = 0;
        self.marks = self.members.iter().map(|(number, of)| (*number, of.sent.len() as u32)).collect();
    }

    /// The pairs of a group, sender first, of which no frame has come since the mark.
    pub fn unheard(&self) -> Vec<(u8, u8)> {
        let has_come = |from: u8, to: u8| self.count(from, to) > 0;
        self.pairs().into_iter().filter(|(from, to)| !has_come(*from, *to)).collect()
    }

    fn pairs(&self) -> Vec<(u8, u8)> {
        let mut pairs = Vec::new();
        for (from, sender) in &self.members {
            let others = self.members.iter().filter(|(to, of)| *to != from && of.group == sender.group);
            pairs.extend(others.map(|(to, _)| (*from, *to)));
        }
        pairs
    }

    /// Of the frames that were sent since the mark those between these guests that have not come: sender, receiver, number.
    fn missing(&self, between: &[u8]) -> Vec<(u8, u8, u32)> {
        let mut missing = Vec::new();
        for (from, to) in self.pairs().into_iter().filter(|(from, to)| between.contains(from) && between.contains(to)) {
            let came = self.members[&to].came.get(&from);
            for (number, sent) in (0..).zip(&self.members[&from].sent).skip(self.marks[&from] as usize) {
                if sent.is_for(to) && !came.is_some_and(|came| came.contains(&number)) {
                    missing.push((from, to, number));
                }
            }
        }
        missing
    }

    /// Each frame between these guests since the mark has come.
    #[track_caller]
    pub fn all_came(&mut self, between: &[u8], when: &str) {
        let end = Instant::now() + ARRIVED;
        let mut missing = self.missing(between);
        while !missing.is_empty() && Instant::now() < end {
            std::thread::sleep(INTERVAL);
            self.take();
            missing = self.missing(between);
        }
        assert!(missing.is_empty(), "{when}: lost (from, to, number): {missing:?}");
        let count: usize = between.iter().map(|from| self.members[from].sent.len() - self.marks[from] as usize).sum();
        println!("{when}: none of {count} frames is lost");
        assert!(count > 0, "{when}");
    }

    /// The number of frames from one guest for another that have come since the mark.
    pub fn count(&self, from: u8, to: u8) -> usize {
        let is_for = |number: &&u32| self.members[&from].sent[**number as usize].is_for(to);
        self.members[&to].came.get(&from).map_or(0, |came| came.range(self.marks[&from]..).filter(is_for).count())
    }
}

impl Member {
    fn send(&mut self, own: u8, to: To) {
        // One that stands still takes nothing: its guest waits.
        let Some(guest) = self.guest.as_mut().filter(|guest| guest.has_room()) else { return };
        let target = match to {
            To::One(peer) => bytes(peer),
            To::All => [0xff; 6],
        };
        let number = self.sent.len() as u32;
        guest.send_payload(target, bytes(own), &number.to_le_bytes());
        self.sent.push(Sent { to });
    }
}
