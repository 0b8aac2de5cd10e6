//! Decorates an uplink: token buckets limit its rate in each direction, or nothing does. The limit changes while the link is open.
//!
//! Incoming frames wait in the uplink: it is not read while there are no tokens. Outgoing frames are refused, and wait in their
//! port's backlog. While frames wait for tokens the uplink's descriptor is silent, and [`Uplink::wake`] returns when tokens will be
//! there.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nicety_adapter::{
    Batch, Bucket, Budget, Counters, Delivery, Frames, HandOver, News, PortId, Progress, Rate, Time, Uplink,
    UplinkSettings,
};
use nicety_memory::Map;

use crate::handover::{SavedPaced, Tokens};
use crate::interface::Interface;
use crate::watch::Watch;

/// A bucket holds tokens for this time. A turn that comes late loses nothing (`Bucket::go_on`), and neither does an interruption
/// (`Bucket::resume`).
const BURST_NS: u64 = 2_000_000;
/// A bucket holds at least one packet of the greatest length.
const BURST_MIN_BYTES: u64 = 64 << 10;

/// See the module's documentation.
#[derive(Debug)]
pub struct Paced<U> {
    inner: U,
    /// `None`: frames pass without a limit.
    limit: Option<Limit>,
    /// It has the tokens for what comes in; a link with one queue has one of its own.
    interface: Arc<Interface>,
    /// Its place among the interface's queues.
    place: usize,
}

/// A rate, its token buckets, and the frames that wait for tokens.
#[derive(Debug)]
struct Limit {
    rate: Rate,
    burst_bytes: u64,
    watch: Option<Watch>,
    watched: bool,
    egress: Bucket,
    /// Frames wait for tokens until then: ingress, egress.
    starved: [Option<Time>; 2],
    /// The last turn fetched nothing, for lack of tokens. So the uplink's own wish for a turn waits for tokens, too.
    passed_over: bool,
    /// The last turn ended then, with frames for this link and tokens left.
    left_at: Option<Time>,
    /// Since when they wait, as far as it is not counted: ingress, egress.
    since: [Option<Time>; 2],
}

/// Counts a wait that ends now.
fn count(since: &mut Option<Time>, sum: &mut u64, now: Time) {
    if let Some(since) = since.take() {
        *sum += now.0.saturating_sub(since.0);
    }
}

/// The content of a bucket for this rate.
fn burst_bytes(rate: Rate) -> u64 {
    let bytes = u128::from(rate.bits_per_second()) * u128::from(BURST_NS) / 8_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX).max(BURST_MIN_BYTES)
}

impl<U: Uplink> Paced<U> {
    /// The same rate in each direction, each with its own bucket, full at first.
    pub fn new(inner: U, rate: Rate) -> io::Result<Self> {
        Self::with_burst(inner, rate, burst_bytes(rate))
    }

    /// Like [`Paced::new`], with buckets of this many bytes.
    pub fn with_burst(inner: U, rate: Rate, burst_bytes: u64) -> io::Result<Self> {
        let limit = Limit::new(&inner, rate, burst_bytes)?;
        Ok(Self { inner, limit: Some(limit), interface: Arc::default(), place: 0 })
    }

    /// Without a limit, until [`Uplink::set`] sets one.
    pub fn unlimited(inner: U) -> Self {
        Self { inner, limit: None, interface: Arc::default(), place: 0 }
    }

    /// One of the queues of an interface, at this place: a rate in which frames come in is that of all together.
    pub fn queue_of(mut self, interface: &Arc<Interface>, place: usize) -> Self {
        (self.interface, self.place) = (Arc::clone(interface), place);
        self
    }

    /// Goes on with the tokens of another process's uplink of the same rate.
    pub fn go_on(&mut self, Tokens(tokens): Tokens) {
        if let (Some(limit), Some([ingress, egress])) = (&mut self.limit, tokens) {
            self.interface.metered(limit.rate, limit.burst_bytes, |meter| meter.bucket.restore(ingress));
            limit.egress.restore(egress);
        }
    }

    /// Earliest time at which waiting frames have tokens.
    pub fn next_ready(&self) -> Option<Time> {
        self.limit.as_ref()?.starved.into_iter().flatten().min()
    }

    /// The decorated uplink.
    pub fn inner(&self) -> &U {
        &self.inner
    }
}

impl<U> Paced<U> {
    /// Has no limit any more.
    fn leave(&mut self) {
        if let Some(limit) = self.limit.take() {
            self.interface.metered(limit.rate, limit.burst_bytes, |meter| meter.leave(self.place));
        }
    }
}

/// Other queues of the interface do not wait for it.
impl<U> Drop for Paced<U> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Limit {
    fn new(inner: &impl Uplink, rate: Rate, burst_bytes: u64) -> io::Result<Self> {
        let mut watch = None;
        if let Some(fd) = inner.descriptor() {
            let outer = Watch::new()?;
            outer.add(fd)?;
            watch = Some(outer);
        }
        let bucket = Bucket::new(rate, burst_bytes);
        let watched = watch.is_some();
        Ok(Self {
            rate,
            burst_bytes,
            watch,
            watched,
            egress: bucket,
            starved: [None; 2],
            passed_over: false,
            left_at: None,
            since: [None; 2],
        })
    }

    /// Another rate, with full buckets: frames that wait may go.
    fn change(&mut self, inner: &impl Uplink, rate: Rate) {
        let burst_bytes = burst_bytes(rate);
        (self.rate, self.burst_bytes, self.egress) = (rate, burst_bytes, Bucket::new(rate, burst_bytes));
        (self.starved, self.left_at) = ([None; 2], None);
        self.listen(inner, true);
    }

    /// Continues egress after an interruption, or if the wait for tokens is over.
    fn go_out(&mut self, now: Time) {
        if let Some(at) = self.left_at.take() {
            self.egress.resume(at, now);
        } else if let Some(at) = self.starved[1].take_if(|at| *at <= now) {
            self.egress.go_on(at, now);
        }
    }

    /// Watches the descriptor (`wanted`), or keeps it silent while there are no tokens.
    fn listen(&mut self, inner: &impl Uplink, wanted: bool) {
        if let (Some(watch), Some(fd)) = (&self.watch, inner.descriptor())
            && self.watched != wanted
        {
            self.watched = if wanted {
                watch.add(fd).is_ok()
            } else {
                watch.remove(fd);
                false
            };
        }
    }
}

impl<U: Uplink> Uplink for Paced<U> {
    fn fetch(
        &mut self,
        port: PortId,
        mut budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        let Self { inner, limit, interface, place } = self;
        let Some(limit) = limit else { return inner.fetch(port, budget, batch, counters, now) };
        count(&mut limit.since[0], &mut counters.transmit_throttled_ns, now);
        limit.go_out(now);
        let (rate, burst_bytes) = (limit.rate, limit.burst_bytes);
        let mut progress = Progress { more: false, armed: true };
        // Other queues go on while this one reads.
        let allowed = interface.metered(rate, burst_bytes, |meter| meter.begin(*place, now));
        limit.passed_over = allowed.is_none();
        match allowed {
            Some(bytes) => {
                budget.bytes = budget.bytes.min(bytes);
                progress = inner.fetch(port, budget, batch, counters, now);
            }
            None => batch.start(&Map::empty(), port, 0),
        }
        limit.starved[0] = interface.metered(rate, burst_bytes, |meter| {
            batch.packets().iter().for_each(|packet| meter.bucket.charge(packet.wire_bytes(), now));
            if allowed.is_none() || !meter.bucket.ready(now) {
                return Some(meter.wait(*place, now));
            }
            if progress.more {
                meter.left_at = Some(now);
            }
            None
        });
        let starved = limit.starved[0].is_some();
        limit.listen(inner, !starved);
        if starved {
            limit.since[0] = Some(now);
            progress = Progress { more: false, armed: true };
        }
        progress
    }

    fn complete(&mut self, batch: &Batch) {
        self.inner.complete(batch);
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        let Self { inner, limit, .. } = self;
        let Some(limit) = limit else { return inner.deliver(frames, counters, now) };
        count(&mut limit.since[1], &mut counters.receive_throttled_ns, now);
        limit.go_out(now);
        limit.starved[1] = None;
        let mut bucket = limit.egress;
        let mut allowed = 0;
        for (index, _, packet) in frames.iter() {
            if !bucket.ready(now) {
                break;
            }
            bucket.charge(packet.wire_bytes(), now);
            allowed = index + 1;
        }
        let (now_picks, later) = frames.picks.split_at(allowed.min(frames.picks.len()));
        let mut delivery = Delivery::default();
        if !now_picks.is_empty() {
            limit.passed_over = false;
            delivery = inner.deliver(&Frames::new(frames.batch, now_picks), counters, now);
        }
        for (index, _, packet) in frames.iter().take(allowed) {
            if !delivery.is_refused(index) {
                limit.egress.charge(packet.wire_bytes(), now);
            }
        }
        for (index, pick) in later.iter().enumerate() {
            delivery.refuse(allowed + index, 0, pick.from.into());
        }
        if !later.is_empty() {
            limit.starved[1] = Some(limit.egress.ready_at().max(now));
            limit.since[1] = Some(now);
        }
        delivery
    }

    fn pause(&mut self, now: Time) {
        self.inner.pause(now);
        if let Some(limit) = &mut self.limit
            && limit.starved[1].is_none()
        {
            limit.left_at = Some(now);
        }
    }

    fn withholds(&self) -> bool {
        self.inner.withholds() || self.limit.as_ref().is_some_and(|limit| limit.starved[0].is_some())
    }

    fn carrier(&self) -> bool {
        self.inner.carrier()
    }

    fn features(&self) -> Vec<&'static str> {
        self.inner.features()
    }

    fn vacant(&self) -> Option<String> {
        self.inner.vacant()
    }

    fn remark(&self) -> Option<String> {
        self.inner.remark()
    }

    fn news(&mut self) -> Option<News> {
        self.inner.news()
    }

    fn hand_over(&self) -> HandOver<'_> {
        match self.inner.hand_over() {
            HandOver::Parts { descriptors, state: inner } => {
                let tokens = self.limit.as_ref().map(|limit| {
                    let ingress = self.interface.metered(limit.rate, limit.burst_bytes, |meter| meter.bucket.save());
                    [ingress, limit.egress.save()]
                });
                HandOver::Parts { descriptors, state: SavedPaced { tokens, inner }.to_bytes() }
            }
            other => other,
        }
    }

    fn own(&mut self) {
        self.inner.own();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.limit {
            Some(limit) => limit.watch.as_ref().map(Watch::descriptor),
            None => self.inner.descriptor(),
        }
    }

    fn set(&mut self, settings: &UplinkSettings) -> io::Result<()> {
        self.inner.set(settings)?;
        match (settings.rate, &mut self.limit) {
            (Some(rate), Some(limit)) if limit.rate == rate => {}
            (Some(rate), Some(limit)) => limit.change(&self.inner, rate),
            (Some(rate), None) => self.limit = Some(Limit::new(&self.inner, rate, burst_bytes(rate))?),
            (None, _) => self.leave(),
        }
        Ok(())
    }

    fn wake(&self) -> Option<Time> {
        let passed_over = self.limit.as_ref().filter(|limit| limit.passed_over);
        let not_before = passed_over.and_then(|limit| limit.starved[0]).unwrap_or(Time::ZERO);
        let own = self.inner.wake().map(|at| at.max(not_before));
        own.into_iter().chain(self.next_ready()).min()
    }
}
