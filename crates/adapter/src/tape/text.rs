//! A tape as text, a line for each entry: `NANOSECONDS CALL < BYTES READ = SUM / STATE`.

use std::fmt;
use std::str::FromStr;

use nicety_frame::{Tag, Tci};
use nicety_memory::{Place, Rights};

use super::call::{Call, Entry, Offer, Offered};
use crate::adapter::{Event, Reset};
use crate::batch::{Checksum, Offload, Segment, SegmentKind};
use crate::face::RingPlace;
use crate::frames::{Edit, Pick};
use crate::outbox::Set;
use crate::progress::Budget;
use crate::time::Time;

/// Bytes as hexadecimal digits; `-` for none.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("-");
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn bytes(word: &str) -> Result<Vec<u8>, String> {
    if word == "-" {
        return Ok(Vec::new());
    }
    let wrong = || format!("`{word}` is no row of bytes in hexadecimal digits");
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = word.as_bytes().as_chunks::<2>();
    let pair = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    let all: Option<Vec<u8>> = pairs.iter().map(pair).collect();
    all.filter(|_| rest.is_empty()).ok_or_else(wrong)
}

fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Read { bar, offset, len } => write!(f, "read {bar} {offset:#x} {len}"),
            Call::Write { bar, offset, data } => write!(f, "write {bar} {offset:#x} {}", Hex(data)),
            Call::ConfigWrite { offset, data } => write!(f, "config {offset:#x} {}", Hex(data)),
            Call::Features(features) => write!(f, "features {features:#x}"),
            Call::Place { ring, place: RingPlace { size, descriptors, driver, device } } => {
                write!(f, "place {ring} {size} {descriptors:#x} {driver:#x} {device:#x}")
            }
            Call::Start { ring, base } => write!(f, "start {ring} {base:#x}"),
            Call::Stop(ring) => write!(f, "stop {ring}"),
            Call::Enable { ring, on } => write!(f, "enable {ring} {}", switch(*on)),
            Call::Keep(Some(bytes)) => write!(f, "keep {bytes}"),
            Call::Keep(None) => f.write_str("keep none"),
            Call::Kick(ring) => write!(f, "kick {ring}"),
            Call::Fetch { queue, budget } => write!(f, "fetch {queue} {} {}", budget.packets, budget.bytes),
            Call::Complete => f.write_str("complete"),
            Call::Deliver(offer) => offer.fmt(f),
            Call::Memory(places) => {
                f.write_str("memory")?;
                places.iter().try_for_each(|Place { base, len, rights, is_shared }| {
                    let right = |has: bool, letter| if has { letter } else { '-' };
                    let (read, write) = (right(rights.read, 'r'), right(rights.write, 'w'));
                    write!(f, " {base:#x} {len:#x} {read}{write}{}", right(*is_shared, 's'))
                })
            }
            Call::Notice(event) => match event {
                Event::Link(up) => write!(f, "link {}", switch(*up)),
                Event::Memory => f.write_str("replaced"),
                Event::Page => f.write_str("page"),
                Event::Restored => f.write_str("restored"),
                Event::Lost => f.write_str("lost"),
                // Plain data can be written.
                Event::Answer(answer) => {
                    write!(f, "answer {}", Hex(&postcard::to_allocvec(answer).unwrap_or_default()))
                }
                Event::Missed(frames) => write!(f, "missed {frames}"),
                Event::Unanswered => f.write_str("unanswered"),
            },
            Call::Tick => f.write_str("tick"),
            Call::Reset(Reset::Bus) => f.write_str("reset bus"),
            Call::Reset(Reset::Function) => f.write_str("reset function"),
            Call::Restore(state) => write!(f, "restore {}", Hex(state)),
            Call::Ask => f.write_str("ask"),
        }
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deliver")?;
        let mut held = self.held;
        while let Some(queue) = held.pop() {
            write!(f, " held {queue}")?;
        }
        for Offered { head, offload, bytes } in &self.packets {
            write!(f, " packet {head}")?;
            match offload.checksum {
                Checksum::AsIs => f.write_str(" as-is")?,
                Checksum::Verified => f.write_str(" verified")?,
                Checksum::Partial { start, field } => write!(f, " partial {start} {field}")?,
            }
            if let Some(Segment { kind, mss, headers }) = offload.segment {
                let kind = match kind {
                    SegmentKind::Tcp => "tcp",
                    SegmentKind::Udp => "udp",
                    SegmentKind::Tunnel => "tunnel",
                };
                write!(f, " {kind} {mss} {headers}")?;
            } else {
                f.write_str(" whole")?;
            }
            write!(f, " {}", Hex(bytes))?;
        }
        for Pick { packet, from, edit } in &self.picks {
            write!(f, " pick {packet} {from}")?;
            match edit {
                Edit::Keep => f.write_str(" keep")?,
                Edit::Untag => f.write_str(" untag")?,
                Edit::Tag(Tag { tpid, tci }) => write!(f, " tag {tpid:#x} {:#x}", tci.0)?,
                Edit::Retag(Tag { tpid, tci }) => write!(f, " retag {tpid:#x} {:#x}", tci.0)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { at, call, read, sum, state } = self;
        write!(f, "{} {call}", at.0)?;
        if !read.is_empty() {
            write!(f, " < {}", Hex(read))?;
        }
        write!(f, " = {sum:x}")?;
        if let Some(state) = state {
            write!(f, " / {state:x}")?;
        }
        Ok(())
    }
}

/// The words of a line.
struct Words<'a>(std::iter::Peekable<std::str::SplitAsciiWhitespace<'a>>);

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("{what} is missing"))
    }

    /// Takes this word, if it is the next one.
    fn takes(&mut self, word: &str) -> bool {
        self.0.next_if(|next| *next == word).is_some()
    }

    fn number<T: TryFrom<u128>>(&mut self, what: &str) -> Result<T, String> {
        let word = self.next(what)?;
        let number = match word.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        let fits = number.and_then(|number| T::try_from(number).ok());
        fits.ok_or_else(|| format!("{what} cannot be `{word}`"))
    }

    fn bytes(&mut self) -> Result<Vec<u8>, String> {
        bytes(self.next("a row of bytes")?)
    }

    fn switch(&mut self) -> Result<bool, String> {
        match self.next("`on` or `off`")? {
            "on" => Ok(true),
            "off" => Ok(false),
            word => Err(format!("`{word}` is neither `on` nor `off`")),
        }
    }

    fn sum(&mut self) -> Result<u64, String> {
        let word = self.next("a sum")?;
        u64::from_str_radix(word, 16).map_err(|_| format!("`{word}` is no sum"))
    }

    fn call(&mut self) -> Result<Call, String> {
        Ok(match self.next("the call")? {
            "read" => Call::Read {
                bar: self.number("the BAR")?,
                offset: self.number("the offset")?,
                len: self.number("the length")?,
            },
            "write" => {
                Call::Write { bar: self.number("the BAR")?, offset: self.number("the offset")?, data: self.bytes()? }
            }
            "config" => Call::ConfigWrite { offset: self.number("the offset")?, data: self.bytes()? },
            "features" => Call::Features(self.number("features")?),
            "place" => Call::Place {
                ring: self.number("the ring")?,
                place: RingPlace {
                    size: self.number("the size")?,
                    descriptors: self.number("an address")?,
                    driver: self.number("an address")?,
                    device: self.number("an address")?,
                },
            },
            "start" => Call::Start { ring: self.number("the ring")?, base: self.number("the position")? },
            "stop" => Call::Stop(self.number("the ring")?),
            "enable" => Call::Enable { ring: self.number("the ring")?, on: self.switch()? },
            "keep" if self.takes("none") => Call::Keep(None),
            "keep" => Call::Keep(Some(self.number("the length")?)),
            "kick" => Call::Kick(self.number("the ring")?),
            "fetch" => Call::Fetch {
                queue: self.number("the queue")?,
                budget: Budget { packets: self.number("packets")?, bytes: self.number("bytes")? },
            },
            "complete" => Call::Complete,
            "deliver" => Call::Deliver(self.offer()?),
            "memory" => Call::Memory(self.places()?),
            "link" => Call::Notice(Event::Link(self.switch()?)),
            "replaced" => Call::Notice(Event::Memory),
            "page" => Call::Notice(Event::Page),
            "restored" => Call::Notice(Event::Restored),
            "lost" => Call::Notice(Event::Lost),
            "answer" => {
                let answer = postcard::from_bytes(&self.bytes()?);
                Call::Notice(Event::Answer(answer.map_err(|_| "that is no answer of a family".to_owned())?))
            }
            "missed" => Call::Notice(Event::Missed(self.number("the number of frames")?)),
            "unanswered" => Call::Notice(Event::Unanswered),
            "tick" => Call::Tick,
            "reset" if self.takes("bus") => Call::Reset(Reset::Bus),
            "reset" if self.takes("function") => Call::Reset(Reset::Function),
            "restore" => Call::Restore(self.bytes()?),
            "ask" => Call::Ask,
            word => return Err(format!("`{word}` is no call")),
        })
    }

    fn places(&mut self) -> Result<Vec<Place>, String> {
        let mut places = Vec::new();
        while self.0.peek().is_some_and(|word| word.starts_with("0x")) {
            let (base, len) = (self.number("the address")?, self.number("the length")?);
            let rights = self.next("rights")?;
            let has = |letter| rights.contains(letter);
            let is_shared = has('s');
            places.push(Place { base, len, rights: Rights { read: has('r'), write: has('w') }, is_shared });
        }
        Ok(places)
    }

    fn offer(&mut self) -> Result<Offer, String> {
        let mut offer = Offer::default();
        let mut held = Set::default();
        while self.takes("held") {
            held.insert(self.number("the queue")?);
        }
        offer.held = held;
        while self.takes("packet") {
            let head = self.number("the head's length")?;
            let checksum = match self.next("the checksum")? {
                "as-is" => Checksum::AsIs,
                "verified" => Checksum::Verified,
                "partial" => Checksum::Partial { start: self.number("the start")?, field: self.number("the field")? },
                word => return Err(format!("`{word}` is no state of a checksum")),
            };
            let kind = match self.next("the segmentation")? {
                "whole" => None,
                "tcp" => Some(SegmentKind::Tcp),
                "udp" => Some(SegmentKind::Udp),
                "tunnel" => Some(SegmentKind::Tunnel),
                word => return Err(format!("`{word}` is no segmentation")),
            };
            let segment = match kind {
                Some(kind) => {
                    Some(Segment { kind, mss: self.number("the MSS")?, headers: self.number("the headers")? })
                }
                None => None,
            };
            offer.packets.push(Offered { head, offload: Offload { checksum, segment }, bytes: self.bytes()? });
        }
        while self.takes("pick") {
            let (packet, from) = (self.number("the packet")?, self.number("the first frame")?);
            let edit = match self.next("the edit")? {
                "keep" => Edit::Keep,
                "untag" => Edit::Untag,
                "tag" => Edit::Tag(self.tag()?),
                "retag" => Edit::Retag(self.tag()?),
                word => return Err(format!("`{word}` is no edit")),
            };
            offer.picks.push(Pick { packet, from, edit });
        }
        Ok(offer)
    }

    fn tag(&mut self) -> Result<Tag, String> {
        Ok(Tag { tpid: self.number("the protocol identifier")?, tci: Tci(self.number("the tag")?) })
    }
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = Words(line.split_ascii_whitespace().peekable());
        let at = Time(words.number("the time")?);
        let call = words.call()?;
        let read = if words.takes("<") { words.bytes()? } else { Vec::new() };
        if !words.takes("=") {
            return Err("`=` and a sum are missing".to_owned());
        }
        let sum = words.sum()?;
        let state = if words.takes("/") { Some(words.sum()?) } else { None };
        match words.0.next() {
            Some(word) => Err(format!("`{word}` is one word too many")),
            None => Ok(Self { at, call, read, sum, state }),
        }
    }
}
