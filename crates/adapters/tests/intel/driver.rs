//! The interrupt side of Linux's drivers: handlers, NAPI and the re-arming of interrupts, one access per step, so that events can
//! happen between any two accesses (e1000_main.c, e1000e/netdev.c, igb_main.c).

use std::collections::BTreeSet;

use nicety_adapter::{Batch, Time};

use crate::bench::*;
use crate::chip::*;

const CTRL_EXT: u64 = 0x18;
const EIAC_82574: u64 = 0xdc;
const IAM: u64 = 0xe0;
const IVAR_82574: u64 = 0xe4;
const EITR_82574: u64 = 0xe8;
const GPIE: u64 = 0x1514;
const EIMS: u64 = 0x1524;
const EIAC: u64 = 0x152c;
const EIAM: u64 = 0x1530;
const EITR: u64 = 0x1680;
const IVAR: u64 = 0x1700;
const IVAR_MISC: u64 = 0x1740;
const RXQ0: u32 = 0x0010_0000;
const TXQ0: u32 = 0x0040_0000;
const OTHER: u32 = 0x0100_0000;
const LSC: u32 = 4;
const ASSERTED: u32 = 1 << 31;
/// IMS_ENABLE_MASK: RXT0, TXDW, RXDMT0, RXSEQ, LSC.
const MASK: u32 = 0x9d;
/// IDE: the completion may be delayed.
const DELAY: u32 = 1 << 31;
/// EITR of the 82576: keep the running pause (CNT_IGNR).
const KEEP: u32 = 1 << 31;
/// Least time of an access.
const STEP_NS: u64 = 1000;

/// Kinds of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Line,
    Msi,
    Msix,
}

/// A step of a driver.
#[derive(Clone, Copy, Debug)]
enum Op {
    Write(u64, u32),
    /// Reads a register, and keeps the value.
    Read(u64),
    /// The handler continues only if one of these bits was read.
    Need(u32),
    /// Raises again those of these causes that were read.
    Again(u32),
    /// napi_schedule.
    Schedule,
    /// Reclaims sent packets.
    CleanSent,
    /// A round of the poll function.
    Poll,
    /// napi_complete_done: polls again if it was scheduled meanwhile.
    Complete,
}

/// Events for a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame arrives.
    Frame,
    /// A frame is sent, and its descriptor comes back.
    Sent,
    /// Another cause.
    Link,
    /// Time passes.
    Wait,
    /// The chip is saved, and another one continues from its state. Wake-ups of the first chip are lost.
    Restored,
}

/// A driver with its chip.
pub struct Driver {
    chip: Chip,
    kind: Kind,
    handlers: [Vec<Op>; 3],
    napi: Vec<Op>,
    frame: Batch,
    /// Interrupts that reached the processor and are not yet taken.
    pending: BTreeSet<u16>,
    line: bool,
    /// The running handler, with its next step.
    handler: Option<(usize, usize)>,
    /// The running poll function, with its next step.
    poll: Option<usize>,
    scheduled: bool,
    missed: bool,
    wake: Option<Time>,
    read: u32,
    /// Frames that arrived, and those that the driver has received; and the same for sent ones.
    came: u32,
    seen: u32,
    sent: u32,
    cleaned: u32,
}

impl Driver {
    /// An opened driver with a throttle (in the chip's units), which the driver writes again where Linux's does.
    pub fn new(name: &'static str, kind: Kind, throttle: u32) -> Self {
        let mut chip = Chip::opened(name);
        let none = Vec::new;
        let (handlers, enable) = match (name, kind) {
            ("e1000", _) => {
                let handler = vec![Op::Read(ICR), Op::Need(!0), Op::Write(IMC, !0), Op::Read(STATUS), Op::Schedule];
                chip.w(ITR, throttle);
                ([handler, none(), none()], vec![Op::Write(ITR, throttle), Op::Write(IMS, MASK), Op::Read(STATUS)])
            }
            ("e1000e", Kind::Msix) => Self::vectors_82574(&mut chip, throttle),
            ("e1000e", _) => {
                chip.w(CTRL_EXT, 0x0800_0000);
                chip.w(IAM, !0);
                chip.w(ITR, throttle);
                let handler = vec![Op::Read(ICR), Op::Need(ASSERTED), Op::Schedule];
                ([handler, none(), none()], vec![Op::Write(ITR, throttle), Op::Write(IMS, MASK), Op::Read(STATUS)])
            }
            (_, Kind::Msix) => Self::vectors_82576(&mut chip, throttle),
            _ => {
                chip.w(IAM, MASK);
                let pause = Op::Write(EITR, throttle | KEEP);
                let handler = match kind {
                    Kind::Msi => vec![pause, Op::Read(ICR), Op::Schedule],
                    _ => vec![Op::Read(ICR), Op::Need(ASSERTED), pause, Op::Schedule],
                };
                ([handler, none(), none()], vec![Op::Write(IMS, MASK), Op::Write(IAM, MASK)])
            }
        };
        if kind == Kind::Msi {
            chip.config_write(if name == "igb" { 0x52 } else { 0xd2 }, &[1]);
        }
        if kind != Kind::Msix {
            chip.r(ICR);
            chip.w(IMS, MASK);
        }
        chip.out.messages = Default::default();
        let napi = [vec![Op::Poll, Op::Complete], enable].concat();
        let frame = plain_batch(&[&ethernet(0x0800, &ipv4(6, &tcp(b"x")))]);
        let (handler, poll, wake) = (None, None, None);
        let (pending, line, scheduled, missed, read) = (BTreeSet::new(), false, false, false, 0);
        let (came, seen, sent, cleaned) = (0, 0, 0, 0);
        let mut this = Self {
            chip,
            kind,
            handlers,
            napi,
            frame,
            pending,
            line,
            handler,
            poll,
            scheduled,
            missed,
            wake,
            read,
            came,
            seen,
            sent,
            cleaned,
        };
        this.settle();
        this
    }

    /// e1000_configure_msix, e1000_intr_msix_rx, e1000_intr_msix_tx, e1000_msix_other.
    fn vectors_82574(chip: &mut Chip, throttle: u32) -> ([Vec<Op>; 3], Vec<Op>) {
        chip.config_write(0xa2, &[0x04, 0x80]);
        chip.w(IVAR_82574, 0x800a_0908);
        chip.w(CTRL_EXT, 0x8100_0000);
        chip.w(IAM, !0);
        chip.w(EIAC_82574, RXQ0 | TXQ0);
        for vector in 0..2 {
            chip.w(EITR_82574 + 4 * vector, throttle);
        }
        chip.r(ICR);
        chip.w(IMS, RXQ0 | TXQ0 | OTHER | LSC);
        let receive = vec![Op::Write(EITR_82574, throttle), Op::Schedule];
        let sent = vec![Op::CleanSent, Op::Write(IMS, TXQ0)];
        let other = vec![Op::Read(ICR), Op::Again(RXQ0 | TXQ0), Op::Write(IMS, OTHER | LSC)];
        ([receive, sent, other], vec![Op::Write(IMS, RXQ0)])
    }

    /// igb_configure_msix, igb_irq_enable, igb_msix_other, igb_msix_ring.
    fn vectors_82576(chip: &mut Chip, throttle: u32) -> ([Vec<Op>; 3], Vec<Op>) {
        chip.config_write(0x72, &[0x00, 0x80]);
        chip.w(GPIE, 0xc000_0011);
        chip.w(IVAR_MISC, 0x8000);
        chip.w(IVAR, 0x8181);
        chip.w(EITR + 4, throttle);
        chip.w(EIAC, 3);
        chip.w(EIAM, 3);
        chip.w(EIMS, 3);
        chip.w(IMS, LSC | 1 << 28 | 1 << 30);
        let ring = vec![Op::Write(EITR + 4, throttle | KEEP), Op::Schedule];
        ([vec![Op::Read(ICR), Op::Write(EIMS, 1)], ring, Vec::new()], vec![Op::Write(EIMS, 2)])
    }

    /// Whether completions have a vector of their own.
    fn sent_apart(&self) -> bool {
        self.chip.name == "e1000e" && self.kind == Kind::Msix
    }

    /// Takes the last call's interrupts and wake-ups for processor and port.
    fn settle(&mut self) {
        while let Some(vector) = self.chip.out.messages.pop() {
            self.pending.insert(vector);
        }
        if let Some(level) = self.chip.out.line.take() {
            self.line = level;
        }
        // An earlier wake-up stays: nicety_plane's port does the same.
        if let Some(at) = self.chip.out.wake.take()
            && self.wake.is_none_or(|earlier| at < earlier)
        {
            self.wake = Some(at);
        }
    }

    fn pass(&mut self, ns: u64) {
        let until = self.chip.now.after_ns(ns);
        while let Some(at) = self.wake.filter(|at| *at <= until) {
            self.wake = None;
            self.chip.now = self.chip.now.max(at);
            self.chip.tick();
            self.settle();
        }
        self.chip.now = until;
    }

    /// Makes an event happen.
    pub fn meet(&mut self, event: Event) {
        match event {
            Event::Frame => {
                let refused = self.chip.deliver(&self.frame).refused();
                assert_eq!(refused, 0);
                self.came = (self.came + 1) % RING as u32;
            }
            Event::Sent => {
                let delay = if self.chip.is_igb() { 0 } else { DELAY };
                self.chip.data(TX_DATA, 60, EOP | delay, false, 0);
                assert_eq!(self.chip.run(), 1);
                self.sent = (self.sent + 1) % RING as u32;
            }
            Event::Link => self.chip.w(ICS, LSC),
            Event::Wait => self.pass(30_000),
            Event::Restored => {
                let saved = self.chip.nic.save();
                let name = self.chip.name;
                self.chip.nic = adapter(name);
                self.chip.nic.restore(&saved).unwrap();
                self.wake = None;
                self.chip.restored();
            }
        }
        self.settle();
    }

    /// Runs one step. False if the processor has nothing to do.
    pub fn step(&mut self) -> bool {
        self.pass(STEP_NS);
        if self.handler.is_none() {
            if let Some(vector) = self.pending.pop_first() {
                self.handler = Some((vector.into(), 0));
            } else if self.kind == Kind::Line && self.line {
                self.handler = Some((0, 0));
            }
        }
        if let Some((vector, at)) = self.handler {
            let op = self.handlers[vector].get(at).copied();
            self.handler = op.is_some().then_some((vector, at + 1));
            if let Some(op) = op
                && !self.execute(op)
            {
                self.handler = None;
            }
            return true;
        }
        if self.poll.is_none() && self.scheduled {
            self.poll = Some(0);
        }
        let Some(at) = self.poll else { return false };
        let op = self.napi.get(at).copied();
        self.poll = op.is_some().then_some(at + 1);
        if let Some(op) = op
            && !self.execute(op)
        {
            self.poll = Some(0);
        }
        true
    }

    /// False: the steps after this one are skipped.
    fn execute(&mut self, op: Op) -> bool {
        let mut on = true;
        match op {
            Op::Write(register, value) => self.chip.w(register, value),
            Op::Read(register) => {
                let value = self.chip.r(register);
                if register == ICR {
                    self.read = value;
                }
            }
            Op::Need(bits) => on = self.read & bits != 0,
            Op::Again(bits) if self.read & bits == 0 => {}
            Op::Again(bits) => self.chip.w(ICS, self.read & bits),
            Op::Schedule if self.scheduled => self.missed = true,
            Op::Schedule => self.scheduled = true,
            Op::CleanSent => self.cleaned = self.chip.r(TDH),
            Op::Poll => {
                self.seen = self.chip.r(RDH);
                let tail = (self.seen + RING as u32 - 1) % RING as u32;
                self.chip.w(RDT, tail);
                if !self.sent_apart() {
                    self.cleaned = self.chip.r(TDH);
                }
            }
            Op::Complete if std::mem::take(&mut self.missed) => on = false,
            Op::Complete => self.scheduled = false,
        }
        self.settle();
        on
    }

    /// Continues until no work and no wake-up is left. An error if the driver missed an event.
    pub fn finish(&mut self) -> Result<(), String> {
        for _ in 0..10_000 {
            if self.step() {
                continue;
            }
            match self.wake {
                Some(at) => self.pass(at.since(self.chip.now).as_nanos() as u64),
                None if (self.seen, self.cleaned) == (self.came, self.sent) => return Ok(()),
                None => {
                    let Self { came, seen, sent, cleaned, .. } = self;
                    return Err(format!("{came} frames came, {seen} were seen; {sent} were sent, {cleaned} came back"));
                }
            }
        }
        Err("it never comes to rest".into())
    }

    /// Number of interrupts so far.
    pub fn interrupts(&self) -> u64 {
        self.chip.counters.interrupts
    }
}
