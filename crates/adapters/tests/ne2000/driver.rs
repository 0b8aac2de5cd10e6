//! The interrupt and transmit side of Linux's lib8390.c, one access per step, so that events can happen between any two accesses:
//! ei_start_xmit, ei_interrupt, ei_receive and ei_tx_intr, with both transmit buffers.

use std::collections::VecDeque;

use nicety_adapter::Offload;

use crate::bench::*;

/// MAX_SERVICE: rounds of one interrupt.
const ROUNDS: u32 = 12;
/// Frames that ei_receive takes in one round.
const TAKEN: u32 = 9;
/// ENISR_ALL.
const ALL: u8 = 0x3f;
/// Bytes of a sent frame.
const LEN: usize = 60;
/// Usual time of an access.
const STEP_NS: u64 = 1000;
/// More interrupts than this for one story count as an endless loop.
const ENDLESS: u32 = 200;

/// Events for a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This many frames arrive.
    Frames(u8),
    /// The stack has a frame to send.
    Send,
    /// The port takes its turn.
    Turn,
    /// The guest is not run for three milliseconds.
    Wait,
    /// The chip is saved, and another one continues from its state.
    Restored,
}

/// A driver with its chip.
pub struct Driver {
    pub b: Bench,
    /// Since Linux 3.14 a handler with more work than its limit acknowledges nothing; before, it acknowledged everything.
    acknowledges: bool,
    /// The remaining events, each after a number of accesses, and the accesses since the last event.
    story: VecDeque<(usize, Event)>,
    gone: usize,
    /// The processor has the chip's interrupt disabled.
    disabled: bool,
    busy: bool,
    /// Buffers: 0 free, 1 loaded, 2 being sent.
    buffers: [u8; 2],
    sending: bool,
    stopped: bool,
    /// Frames of the stack that wait for the queue.
    queued: u32,
    /// Frames that arrived and wait for room.
    waiting: Vec<u8>,
    number: u8,
    /// Time of an access.
    pub step_ns: u64,
    /// The port runs a turn after each access.
    pub prompt: bool,
    /// Time of a sent frame that was not yet reported to the driver, and the longest such delay.
    unreported_since: Option<u64>,
    pub late_ns: u64,
    sent: u32,
    wanted: u32,
    seen: u8,
    interrupts: u32,
}

impl Driver {
    pub fn new(acknowledges: bool) -> Self {
        Self {
            b: Bench::opened(),
            acknowledges,
            story: VecDeque::new(),
            gone: 0,
            disabled: false,
            busy: false,
            buffers: [0; 2],
            sending: false,
            stopped: false,
            queued: 0,
            waiting: Vec::new(),
            number: 0,
            step_ns: STEP_NS,
            prompt: false,
            unreported_since: None,
            late_ns: 0,
            sent: 0,
            wanted: 0,
            seen: 0,
            interrupts: 0,
        }
    }

    /// Plays a story until the driver is idle. Returns the number of interrupts. An error describes a fault, or what the driver
    /// still waits for.
    pub fn play(&mut self, story: &[(usize, Event)]) -> Result<u32, String> {
        self.story.extend(story);
        (self.gone, self.interrupts) = (0, 0);
        loop {
            self.happen();
            self.interrupt()?;
            if self.queued > 0 && !self.stopped && !self.busy {
                self.queued -= 1;
                self.start_xmit()?;
            } else if !self.story.is_empty() {
                // Nothing to do: time passes, and the next event happens.
                self.gone += 1;
            } else if !self.port() && !self.b.level {
                break;
            }
        }
        let rest = (self.sent, self.seen, self.stopped, self.buffers, self.sending);
        let all = (self.wanted, self.number, false, [0; 2], false);
        if rest == all {
            Ok(self.interrupts)
        } else {
            Err(format!("sent, seen, stopped, buffers, sending: {rest:?}, not {all:?}"))
        }
    }

    /// Does the port's work: true if there was any.
    fn port(&mut self) -> bool {
        let work = self.b.out.work.contains(0);
        if work {
            self.sent += self.b.turn().len() as u32;
            self.unreported_since = Some(self.b.now.0);
        }
        let wake = self.b.out.wake.take();
        if let Some(at) = wake {
            self.b.now = self.b.now.max(at);
            self.b.call(|nic, cx| nic.tick(cx));
        }
        let room = self.b.out.room.contains(0) && !self.waiting.is_empty();
        if room {
            self.b.out.room = nicety_adapter::Set::default();
            let waiting = std::mem::take(&mut self.waiting);
            waiting.into_iter().for_each(|number| self.arrive(number));
        }
        work || wake.is_some() || room
    }

    fn arrive(&mut self, number: u8) {
        let delivery = self.waiting.is_empty().then(|| {
            let frame = frame(MAC, PEER, 60, number);
            self.b.bring(&frame, Offload::default(), 0)
        });
        if delivery.is_none_or(|delivery| delivery.is_refused(0)) {
            self.waiting.push(number);
        }
    }

    /// Makes due events happen.
    fn happen(&mut self) {
        while let Some((gap, event)) = self.story.front().copied() {
            if self.gone < gap {
                return;
            }
            self.story.pop_front();
            self.gone = 0;
            match event {
                Event::Frames(count) => {
                    for _ in 0..count {
                        let number = self.number;
                        self.number = self.number.wrapping_add(1);
                        self.arrive(number);
                    }
                }
                Event::Send => {
                    self.queued += 1;
                    self.wanted += 1;
                }
                Event::Turn => self.turn(),
                Event::Wait => {
                    self.pass(3_000_000);
                    self.turn();
                }
                Event::Restored => self.restore(),
            }
        }
    }

    /// Runs a turn, with the frames that wait for room: no wake-up before its time.
    fn turn(&mut self) {
        let early = self.b.out.wake.filter(|at| *at > self.b.now);
        if early.is_some() {
            self.b.out.wake = None;
        }
        self.port();
        self.b.out.wake = self.b.out.wake.or(early);
    }

    fn pass(&mut self, ns: u64) {
        self.b.now = self.b.now.after_ns(ns);
    }

    fn restore(&mut self) {
        let mut other = Bench::new();
        self.b.hand_over(&mut other);
        other.level = self.b.level;
        other.restored();
        self.b = other;
    }

    /// Before each access, any event may happen and the processor may be interrupted.
    fn step(&mut self) -> Result<(), String> {
        self.gone += 1;
        self.pass(self.step_ns);
        self.happen();
        if self.prompt {
            self.turn();
        }
        self.interrupt()
    }

    fn outb(&mut self, value: u8, at: u64) -> Result<(), String> {
        self.step()?;
        self.b.outb(value, at);
        Ok(())
    }

    fn inb(&mut self, at: u64) -> Result<u8, String> {
        self.step()?;
        Ok(self.b.inb(at))
    }

    /// ei_start_xmit.
    fn start_xmit(&mut self) -> Result<(), String> {
        self.busy = true;
        self.outb(0, EN0_IMR)?;
        self.disabled = true;
        let buffer = if self.buffers[0] == 0 { 0 } else { 1 };
        if self.buffers[buffer] != 0 {
            return Err("No Tx buffers free!".into());
        }
        self.buffers[buffer] = 1;
        self.block_output(TX_PAGE + 6 * buffer as u8)?;
        if !self.sending {
            self.sending = true;
            self.trigger_send(buffer)?;
        }
        self.stopped = self.buffers[0] != 0 && self.buffers[1] != 0;
        self.outb(ALL, EN0_IMR)?;
        (self.disabled, self.busy) = (false, false);
        Ok(())
    }

    fn remote(&mut self, command: u8, page: u8, from: u8, count: u8) -> Result<(), String> {
        self.outb(0x22, E8390_CMD)?;
        for (value, at) in [(count, EN0_RCNTLO), (0, EN0_RCNTHI), (from, EN0_RSARLO), (page, EN0_RSARHI)] {
            self.outb(value, at)?;
        }
        self.outb(command, E8390_CMD)
    }

    /// ne2k_pci_block_output.
    fn block_output(&mut self, page: u8) -> Result<(), String> {
        self.outb(ENISR_RDC, EN0_ISR)?;
        self.remote(0x12, page, 0, LEN as u8)?;
        self.step()?;
        self.b.bar_write(0, NE_DATAPORT, &[0x5a; LEN][..4]);
        (1..LEN / 4).for_each(|_| self.b.bar_write(0, NE_DATAPORT, &[0x5a; 4]));
        if self.inb(EN0_ISR)? & ENISR_RDC == 0 {
            return Err("timeout waiting for Tx RDC.".into());
        }
        self.outb(ENISR_RDC, EN0_ISR)
    }

    /// NS8390_trigger_send.
    fn trigger_send(&mut self, buffer: usize) -> Result<(), String> {
        self.buffers[buffer] = 2;
        self.outb(0x20, E8390_CMD)?;
        if self.inb(E8390_CMD)? & 4 != 0 {
            return Err("trigger_send() called with the transmitter busy".into());
        }
        self.outb(LEN as u8, EN0_TCNTLO)?;
        self.outb(0, EN0_TCNTHI)?;
        self.outb(TX_PAGE + 6 * buffer as u8, EN0_TPSR)?;
        self.outb(0x26, E8390_CMD)
    }

    /// ei_interrupt, if there is a cause and interrupts are enabled.
    fn interrupt(&mut self) -> Result<(), String> {
        while self.b.level && !self.disabled {
            self.interrupts += 1;
            if self.interrupts > ENDLESS {
                return Err("an interrupt without end".into());
            }
            self.disabled = true;
            self.outb(0x20, E8390_CMD)?;
            let mut rounds = 0;
            let left = loop {
                let causes = self.inb(EN0_ISR)?;
                rounds += 1;
                if causes == 0 || rounds == ROUNDS {
                    break causes;
                }
                if causes & ENISR_RX != 0 {
                    self.receive()?;
                }
                if causes & ENISR_TX != 0 {
                    self.tx_intr()?;
                }
                if causes & ENISR_RDC != 0 {
                    self.outb(ENISR_RDC, EN0_ISR)?;
                }
                self.outb(0x22, E8390_CMD)?;
            };
            if left != 0 && self.acknowledges {
                self.outb(0x22, E8390_CMD)?;
                self.outb(ALL, EN0_ISR)?;
            }
            self.disabled = false;
        }
        Ok(())
    }

    /// ei_tx_intr.
    fn tx_intr(&mut self) -> Result<(), String> {
        if self.inb(EN0_TSR)? & 1 == 0 {
            return Err("a transmission failed".into());
        }
        let since = self.unreported_since.take().ok_or("it is told of nothing")?;
        self.late_ns = self.late_ns.max(self.b.now.0 - since);
        self.outb(ENISR_TX, EN0_ISR)?;
        let done = self.buffers.iter().position(|state| *state == 2).ok_or("nothing was sent")?;
        self.buffers[done] = 0;
        self.sending = self.buffers[1 - done] == 1;
        if self.sending {
            self.trigger_send(1 - done)?;
        }
        self.stopped = false;
        Ok(())
    }

    /// ei_receive.
    fn receive(&mut self) -> Result<(), String> {
        for _ in 0..TAKEN {
            self.outb(0x60, E8390_CMD)?;
            let current = self.inb(EN1_CURPAG)?;
            self.outb(0x20, E8390_CMD)?;
            let next = self.inb(EN0_BOUNDARY)? + 1;
            let this = if next >= STOP_PAGE { RX_PAGE } else { next };
            if this == current {
                break;
            }
            self.remote(0x0a, this, 0, 4)?;
            self.step()?;
            let [_, next, ..] = self.b.r(NE_DATAPORT).to_le_bytes();
            self.outb(ENISR_RDC, EN0_ISR)?;
            self.remote(0x0a, this, 4, LEN as u8)?;
            self.step()?;
            let read: Vec<u8> = (0..LEN / 4).flat_map(|_| self.b.r(NE_DATAPORT).to_le_bytes()).collect();
            self.outb(ENISR_RDC, EN0_ISR)?;
            if read != frame(MAC, PEER, LEN, self.seen) {
                return Err(format!("frame {} is another", self.seen));
            }
            self.seen = self.seen.wrapping_add(1);
            self.outb(next - 1, EN0_BOUNDARY)?;
        }
        self.outb(ENISR_RX, EN0_ISR)
    }
}
