//! The pcapng blocks of a capture, made from its chunks on the control thread.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use nicety_adapter::{Edit, PortId};
use nicety_plane::Fate;
use nicety_uplink::Direction;
use nicety_uplink::pcapng::{self, Note};

use super::{CapturedFrame, Chunk, Reader, What};

/// Names of ports by their numbers.
pub type Names = BTreeMap<PortId, String>;

/// An interface in the file.
#[derive(Debug)]
struct Interface {
    number: u32,
    name: String,
    /// The counts of an earlier port that had this number on the switch.
    base: (u64, u64),
    /// The counts written so far: seen and lost frames in statistics blocks; lost frames in packet blocks.
    written: (u64, u64),
    gap: u64,
}

/// Makes pcapng blocks from the chunks of a capture.
#[derive(Debug)]
pub struct Encoder {
    reader: Reader,
    /// The start of the daemon's clock, since 1970-01-01 00:00 UTC.
    epoch: Duration,
    names: Names,
    interfaces: BTreeMap<PortId, Interface>,
    /// The number of interfaces so far, including those of closed ports.
    count: u32,
}

impl Encoder {
    pub(crate) fn new(reader: Reader, epoch: Duration, names: Names) -> Self {
        Self { reader, epoch, names, interfaces: BTreeMap::new(), count: 0 }
    }

    /// Sets new names, after ports were opened or closed.
    pub fn rename(&mut self, names: Names) {
        self.names = names;
    }

    /// The file's first blocks, with an interface for each of these ports.
    pub fn begin(&mut self, ports: &[PortId]) -> Vec<u8> {
        let mut out = Vec::new();
        pcapng::section(&mut out);
        for port in ports {
            self.interface(*port, &mut out);
        }
        out
    }

    /// The blocks of the next chunk. `None` at the end of the capture.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        self.reader.chunks.poll_recv(cx).map(|chunk| Some(self.taken(&chunk?)))
    }

    /// Like [`Encoder::poll`], for a thread that may block.
    pub(super) fn wait(&mut self) -> Option<Vec<u8>> {
        let chunk = self.reader.chunks.blocking_recv()?;
        Some(self.taken(&chunk))
    }

    fn taken(&mut self, chunk: &Chunk) -> Vec<u8> {
        self.reader.waiting.fetch_sub(chunk.bytes.len(), Ordering::Relaxed);
        self.blocks(chunk)
    }

    /// Bytes in the queue.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.reader.waiting.load(Ordering::Relaxed)
    }

    fn blocks(&mut self, chunk: &Chunk) -> Vec<u8> {
        let mut out = Vec::with_capacity(chunk.bytes.len() + 128 * chunk.frames.len());
        let (mut at, mut comment) = (0, String::new());
        for captured in &chunk.frames {
            let frame = chunk.bytes.get(at..at + captured.bytes as usize).unwrap_or_default();
            at += captured.bytes as usize;
            let interface = self.interface(captured.port, &mut out);
            let lost = self.lost(captured.port);
            comment.clear();
            self.say(captured, &mut comment);
            let direction = match captured.what {
                What::Out { .. } => Direction::Outbound,
                What::To(..) | What::Nowhere(_) => Direction::Inbound,
            };
            let time = self.epoch + Duration::from_nanos(chunk.time.0);
            let note = Note { interface, time, direction, len: captured.len, lost, comment: Some(&comment) };
            pcapng::packet(&mut out, note, frame.len() as u32, |to| to.copy_from_slice(frame));
        }
        out
    }

    /// The number of a port's interface. Writes its block if there is none yet.
    fn interface(&mut self, port: PortId, out: &mut Vec<u8>) -> u32 {
        let name = self.names.get(&port).map_or("(a port that has gone)", String::as_str);
        match self.interfaces.get(&port) {
            Some(known) if known.name == name => known.number,
            known => {
                let base = if known.is_some() { self.tally(port) } else { (0, 0) };
                pcapng::interface(out, name);
                let (number, name) = (self.count, name.to_owned());
                self.count += 1;
                self.interfaces.insert(port, Interface { number, name, base, written: base, gap: base.1 });
                number
            }
        }
    }

    /// The number of matching frames of a port so far, and how many of these were lost.
    fn tally(&self, port: PortId) -> (u64, u64) {
        let tally = self.reader.tallies.get(usize::from(port.0));
        tally.map_or((0, 0), |tally| (tally.seen.load(Ordering::Relaxed), tally.lost.load(Ordering::Relaxed)))
    }

    /// The number of frames lost since the port's last block.
    fn lost(&mut self, port: PortId) -> u64 {
        let (_, lost) = self.tally(port);
        self.interfaces.get_mut(&port).map_or(0, |known| lost - std::mem::replace(&mut known.gap, lost))
    }

    /// Statistics of the interfaces whose counts changed. Always returns at least one block, so that a disconnected reader is
    /// noticed.
    pub fn statistics(&mut self, now: Duration) -> Vec<u8> {
        let mut out = Vec::new();
        let tallies: Vec<_> = self.interfaces.keys().map(|port| (*port, self.tally(*port))).collect();
        for (port, tally) in tallies {
            let Some(known) = self.interfaces.get_mut(&port) else { continue };
            if known.written != tally || (out.is_empty() && known.number + 1 == self.count) {
                known.written = tally;
                let (seen, lost) = (tally.0 - known.base.0, tally.1 - known.base.1);
                pcapng::statistics(&mut out, known.number, now, seen, lost);
            }
        }
        out
    }

    fn say(&self, captured: &CapturedFrame, out: &mut String) {
        let name = |port: PortId| self.names.get(&port).map_or("a port that has gone", String::as_str);
        // Writing to a String cannot fail.
        let _ = match captured.what {
            What::To(port, 0) => write!(out, "to {}", name(port)),
            What::To(port, more) => write!(out, "to {} and {more} more", name(port)),
            What::Nowhere(reason) => write!(out, "dropped: {}", reason.name()),
            What::Out { from, edit, fate } => write!(out, "from {}", name(from)).and_then(|()| {
                match edit {
                    Edit::Keep => {}
                    Edit::Untag => out.push_str("; its tag was taken out"),
                    Edit::Tag(tag) => write!(out, "; {tag} was put in")?,
                    Edit::Retag(tag) => write!(out, "; its tag became {tag}")?,
                }
                match fate {
                    Fate::Taken => Ok(()),
                    Fate::Waits => write!(out, "; waits in the receive buffer"),
                    Fate::Dropped(reason) => write!(out, "; dropped: {}", reason.name()),
                }
            }),
        };
        if let Some((frames, mss)) = captured.cut.filter(|(frames, _)| *frames > 1) {
            let _ = write!(out, "; {frames} frames on a wire (MSS {mss})");
        }
    }
}
