//! National Semiconductor's DP8390D, the controller in every NE2000: its command register, its pages, its interrupts, its remote
//! DMA and its address filter. It is independent of PCI and of the switch. Numbers in brackets are sections of its datasheet.

use nicety_adapter::Time;
use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line};
use nicety_frame::{Mac, crc};
use nicety_memory::MapError;

use super::buffer::{Buffer, PAGE, PAGES};
use super::pace::Pace;
use super::registers::{self as r, Bank, TABLE, cr, isr, rcr};

/// Actions for the caller after an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// There is a frame to send.
    pub transmit: bool,
    /// There may be room for a frame, or waiting frames are no longer wanted.
    pub room: bool,
    /// The receive ring, a mode, an address, or the page of a stopped chip has changed: a driver sets them once.
    pub set_up: bool,
}

/// The receive ring, in pages. It is valid: it lies in packet memory, and its current page in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    pub start: u32,
    pub stop: u32,
    /// Page of the next frame.
    pub current: u32,
    /// The driver's read position (BNRY): received frames end before it.
    pub boundary: u32,
}

impl Ring {
    /// Number of its pages.
    pub fn len(self) -> u32 {
        self.stop - self.start
    }

    /// Whether the boundary is one that a driver sets on purpose: a page of the ring, or the page before it.
    pub fn has_boundary(self) -> bool {
        (self.start.saturating_sub(1)..self.stop).contains(&self.boundary)
    }

    /// Pages free for frames. The current page must never reach the boundary, because all pages would then seem free.
    pub fn free(self) -> u32 {
        let (len, current) = (self.len(), self.current - self.start);
        // Linux's ei_receive (lib8390.c) sets the boundary a page before the ring's first when it means its last.
        let boundary = (self.boundary + len * PAGE - self.start) % len;
        if boundary == current { len - 1 } else { (boundary + len - current) % len - 1 }
    }

    /// The page this many pages further.
    pub fn after(self, page: u32, pages: u32) -> u32 {
        self.start + (page - self.start + pages) % self.len()
    }

    /// Pages from one to the ring's end.
    pub fn to_end(self, page: u32) -> u32 {
        self.stop - page
    }
}

/// The controller, with the memory that its remote DMA reaches.
#[derive(Debug)]
pub struct Dp8390 {
    /// Its registers.
    pub registers: Bank,
    /// ISR and IMR.
    pub causes: Interrupts,
    /// PROM and packet memory.
    pub buffer: Buffer,
    /// The driver has read CURR since ISR.PRX was set: it takes frames before it acknowledges them.
    pub looked: bool,
    /// A frame arrived after that read.
    pub unshown: bool,
    /// The driver is assumed to be in its receive routine until this time, unless it shows otherwise. No frame is delivered
    /// meanwhile.
    pub busy_until: Option<Time>,
    /// Limit on frames given to it at once.
    pub pace: Pace,
}

impl Dp8390 {
    /// A controller in its power-on state.
    pub fn new(mac: Mac) -> Result<Self, MapError> {
        let causes = Interrupts::new(8, Line::Level, InterruptRouter::Direct);
        let registers = Bank::new(&TABLE);
        let mut this = Self {
            registers,
            causes,
            buffer: Buffer::new(mac)?,
            looked: false,
            unshown: false,
            busy_until: None,
            pace: Pace::default(),
        };
        this.reset();
        Ok(this)
    }

    /// Resets everything to the power-on state.
    pub fn power_on(&mut self) {
        self.registers.reset(|_| true);
        self.buffer.clear();
        self.reset();
    }

    /// The reset pin [11.1]: stopped, out of loopback, nothing enabled. The other registers keep their values.
    pub fn reset(&mut self) {
        self.registers[r::CR] = cr::RESET;
        self.registers[r::TCR] &= !r::TCR_LB;
        self.registers[r::DCR] |= 1 << 2;
        self.causes.reset();
        self.causes.raise(isr::RST.into());
        (self.looked, self.unshown) = (false, false);
        (self.busy_until, self.pace) = (None, Pace::default());
    }

    fn command_is(&self, bit: u32) -> bool {
        self.registers[r::CR] & bit != 0
    }

    /// A frame waits to be sent.
    pub fn is_sending(&self) -> bool {
        self.command_is(cr::TXP)
    }

    /// The controller is started.
    pub fn runs(&self) -> bool {
        self.command_is(cr::STA) && !self.command_is(cr::STP)
    }

    /// The controller is started, and counts frames without storing them [10.3: RCR].
    pub fn monitors(&self) -> bool {
        self.runs() && !self.loops() && self.registers[r::RCR] & rcr::MON != 0
    }

    /// The controller is in loopback.
    pub fn loops(&self) -> bool {
        self.registers[r::TCR] & r::TCR_LB != 0
    }

    /// Remote DMA's direction, while it is active: 1 reads, 2 writes.
    fn remote(&self) -> u32 {
        self.registers[r::CR] >> cr::RD_SHIFT & 7
    }

    /// Value of two registers of eight bits.
    fn pair(&self, low: r::Reg, high: r::Reg) -> u32 {
        self.registers[high] << 8 | self.registers[low]
    }

    fn set_pair(&mut self, low: r::Reg, high: r::Reg, value: u32) {
        self.registers[low] = value & 0xff;
        self.registers[high] = value >> 8 & 0xff;
    }

    /// First byte and length of the frame to send.
    pub fn to_send(&self) -> (u32, u32) {
        (self.registers[r::TPSR] * PAGE, self.pair(r::TBCR0, r::TBCR1))
    }

    /// The receive ring, if its position is valid.
    pub fn ring(&self) -> Option<Ring> {
        let [start, stop, current, boundary] = [r::PSTART, r::PSTOP, r::CURR, r::BNRY].map(|name| self.registers[name]);
        let placed = PAGES.start <= start && start < stop && stop <= PAGES.end && (start..stop).contains(&current);
        placed.then_some(Ring { start, stop, current, boundary })
    }

    /// Whether the ring has frames, for both ways in which drivers set the boundary: at the page that they read next, or a page
    /// before.
    fn has_unread(&self) -> bool {
        self.ring().is_some_and(|ring| ring.free() + 2 < ring.len())
    }

    /// A frame was written to the ring.
    pub fn received(&mut self) {
        self.looked &= self.is_receive_pending();
        self.unshown = self.looked;
        self.causes.raise(isr::PRX.into());
    }

    fn is_receive_pending(&self) -> bool {
        self.causes.pending() & u128::from(isr::PRX) != 0
    }

    /// Whether the driver has time for another frame.
    pub fn has_time(&mut self) -> bool {
        let unread = self.has_unread();
        self.pace.allows(unread)
    }

    /// Resumes from saved state, which does not include whether the driver has looked.
    pub fn restored(&mut self) {
        (self.looked, self.unshown) = (self.is_receive_pending(), self.is_receive_pending());
        (self.busy_until, self.pace) = (None, Pace::default());
    }

    /// The driver has looked for frames.
    fn look(&mut self, now: Time) {
        (self.looked, self.unshown) = (true, false);
        let pending = self.is_receive_pending();
        let unread = self.has_unread();
        self.pace.looks(unread, now);
        if pending && unread {
            self.busy_until = Some(now.after_ns(self.pace.taking_ns()));
        } else if pending {
            // No later than assumed before: a driver that polls (iPXE's ns8390.c) looks repeatedly, and never acknowledges.
            let end = now.after_ns(self.pace.ending_ns());
            self.busy_until = self.busy_until.map(|until| until.min(end));
        }
    }

    /// Acknowledges causes: PRX for the frames that the driver has looked for. A frame that arrived since keeps its cause. True if
    /// the ring has frames that no cause reports: the next frame does, and may be delivered.
    fn acknowledge(&mut self, causes: u32) -> bool {
        self.causes.clear((causes & !isr::RST).into());
        let left = causes & isr::PRX != 0 && self.has_unread();
        if left && std::mem::take(&mut self.unshown) {
            self.received();
        } else if left {
            self.pace.leaves();
        }
        left
    }

    /// Reads a register of the page. `port` is 1 to 15.
    pub fn read(&mut self, port: u32, now: Time) -> u32 {
        let region = match self.registers[r::CR] >> cr::PAGE_SHIFT & 3 {
            0 => r::READ0,
            1 => r::PAGE1,
            2 => r::READ2,
            _ => r::PAGE3,
        };
        let Some(place) = TABLE.find(region, port.into()) else { return 0 };
        match place.name {
            r::ISR => {
                let pending = self.causes.pending() as u32;
                if pending & isr::PRX == 0 {
                    self.busy_until = None;
                    self.pace.ends();
                }
                pending
            }
            r::CURR => {
                self.look(now);
                self.registers[r::CURR]
            }
            r::IMR => self.causes.enabled() as u32,
            r::CRDA0 => self.registers[r::RSAR0],
            r::CRDA1 => self.registers[r::RSAR1],
            // Bits that are always set (RTL8029AS).
            r::RCR => self.registers[r::RCR] | 0xc0,
            r::TCR => self.registers[r::TCR] | 0xe0,
            r::DCR => self.registers[r::DCR] | 0x80,
            _ => self.registers.read(&place),
        }
    }

    /// Writes a register of the page.
    pub fn write(&mut self, port: u32, value: u32) -> Effect {
        let mut effect = Effect::default();
        let region = match self.registers[r::CR] >> cr::PAGE_SHIFT & 3 {
            0 => r::WRITE0,
            1 => r::PAGE1,
            2 => return effect,
            _ => r::PAGE3,
        };
        let Some(place) = TABLE.find(region, port.into()) else { return effect };
        match place.name {
            r::ISR => effect.room = self.acknowledge(value),
            r::IMR => {
                let on = u128::from(value & !isr::RST);
                self.causes.disable(!on);
                self.causes.enable(on);
            }
            r::CONFIG2 | r::CONFIG3 if self.registers[r::CR9346] & r::CR9346_CONFIG != r::CR9346_CONFIG => {}
            name => {
                self.registers.write(&place, value);
                effect.room = matches!(name, r::PSTART | r::PSTOP | r::CURR | r::RCR | r::TCR | r::BNRY);
                effect.set_up = effect.room && name != r::BNRY || matches!(name, r::PAR | r::MAR);
            }
        }
        effect
    }

    /// Writes CR [10.3].
    pub fn command(&mut self, value: u32) -> Effect {
        let before = self.registers[r::CR];
        let mut effect = Effect::default();
        let mut state = before & (cr::STP | cr::STA);
        if value & cr::STP != 0 {
            state = cr::STP;
            self.busy_until = None;
            self.causes.raise(isr::RST.into());
        } else if value & cr::STA != 0 {
            state = cr::STA;
            self.causes.clear(isr::RST.into());
        }
        effect.room = state != before & (cr::STP | cr::STA);
        // While a driver sets the chip up, the page says which register it writes next.
        effect.set_up = state == cr::STP && (value ^ before) >> cr::PAGE_SHIFT & 3 != 0;
        let sends = before & cr::TXP != 0;
        effect.transmit = !sends && value & cr::TXP != 0 && state == cr::STA;
        let transmit = if sends || effect.transmit { cr::TXP } else { 0 };
        self.registers[r::CR] = value & 0xf8 | state | transmit;
        // A zero-byte transfer completes at once: NetWare's driver waits for it (according to QEMU's ne2000.c).
        if matches!(self.remote(), 1 | 2) && self.pair(r::RBCR0, r::RBCR1) == 0 {
            self.causes.raise(isr::RDC.into());
        }
        effect
    }

    /// The frame was sent, or failed.
    pub fn sent(&mut self, status: u32) {
        self.registers[r::CR] &= !cr::TXP;
        self.registers[r::TSR] = status;
        self.causes.raise(if status & r::tsr::PTX != 0 { isr::PTX } else { isr::TXE }.into());
    }

    /// A frame was missed [10.3: CNTR2].
    pub fn missed(&mut self) {
        let [.., missed] = self.registers.of_mut(r::CNTR) else { return };
        // Tallies stop at 192.
        *missed = (*missed + 1).min(192);
        if *missed & 0x80 != 0 {
            self.causes.raise(isr::CNT.into());
        }
    }

    /// Whether a destination passes the filter [10.3: RCR].
    pub fn wants(&self, destination: [u8; 6]) -> bool {
        let mode = self.registers[r::RCR];
        if destination == [0xff; 6] {
            return mode & rcr::AB != 0;
        }
        if destination[0] & 1 == 0 {
            let own = self.registers.of(r::PAR).iter().zip(destination).all(|(own, byte)| *own == u32::from(byte));
            return own || mode & rcr::PRO != 0;
        }
        let hash = crc::multicast_be(Mac(destination)) >> 26;
        let bits = self.registers.of(r::MAR).get(hash as usize >> 3);
        mode & rcr::AM != 0 && bits.is_some_and(|bits| bits >> (hash & 7) & 1 != 0)
    }

    /// Reads the data port, `width` bytes at a time, until `data` is full. Bytes beyond the transfer read as ones.
    pub fn read_data(&mut self, data: &mut [u8], width: usize) {
        if self.registers[r::DCR] & r::DCR_WTS != 0 && width == 1 {
            // A byte of a word: the other byte is lost.
            for byte in data {
                let mut word = [0xff; 2];
                self.read_data(&mut word, 2);
                *byte = word[0];
            }
            return;
        }
        data.fill(0xff);
        self.transfer(1, data.len(), width, |buffer, at, piece| {
            if let Some(piece) = data.get_mut(piece) {
                buffer.read(at, piece);
            }
        });
    }

    /// Writes the data port in the same way.
    pub fn write_data(&mut self, data: &[u8], width: usize) {
        if self.registers[r::DCR] & r::DCR_WTS != 0 && width == 1 {
            data.iter().for_each(|byte| self.write_data(&[*byte, 0], 2));
            return;
        }
        self.transfer(2, data.len(), width, |buffer, at, piece| {
            if let Some(piece) = data.get(piece) {
                buffer.write(at, piece);
            }
        });
    }

    /// Remote DMA [7.0]: contiguous pieces, with the wrap from PSTOP to PSTART between them. An access wider than the rest also
    /// ends the transfer.
    fn transfer(
        &mut self,
        way: u32,
        len: usize,
        width: usize,
        mut copy: impl FnMut(&Buffer, u32, std::ops::Range<usize>),
    ) {
        let left = self.pair(r::RBCR0, r::RBCR1);
        if self.remote() != way || left == 0 {
            return;
        }
        let end = len.min((left as usize).next_multiple_of(width.max(1)));
        let [start, stop] = [r::PSTART, r::PSTOP].map(|name| self.registers[name] * PAGE);
        let mut at = self.pair(r::RSAR0, r::RSAR1);
        if self.registers[r::DCR] & r::DCR_WTS != 0 {
            at &= !1;
        }
        let mut done = 0;
        while done < end {
            let limit = if at < stop { stop } else { 0x1_0000 };
            let piece = (end - done).min((limit - at) as usize);
            copy(&self.buffer, at, done..done + piece);
            done += piece;
            at += piece as u32;
            if at == stop {
                at = start;
            }
            at &= 0xffff;
        }
        self.set_pair(r::RSAR0, r::RSAR1, at);
        let left = left.saturating_sub(end as u32);
        self.set_pair(r::RBCR0, r::RBCR1, left);
        if left == 0 {
            self.causes.raise(isr::RDC.into());
        }
    }
}
