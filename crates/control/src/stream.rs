//! The body of an endless answer: a capture that lasts until its reader disconnects.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use hyper::body::Frame;
use nicety_daemon::live::Live;
use nicety_daemon::live::capture::Capture;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Most captures at once.
const CAPTURES_MAX: usize = 8;
/// The time between two statistics blocks. It also limits the delay until a disconnected reader is noticed.
const TICK: Duration = Duration::from_secs(1);

/// Marks an answer that lasts until its reader disconnects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endless;

/// A place among the captures. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    /// Takes a place, if one is free.
    pub(super) fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let one_more = |count: usize| (count < CAPTURES_MAX).then_some(count + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The stream of a capture's blocks.
#[derive(Debug)]
pub(super) struct Stream {
    live: Arc<Live>,
    capture: Capture,
    generation: u64,
    begun: bool,
    tick: Interval,
    _place: Place,
}

impl Stream {
    pub(super) fn new(live: Arc<Live>, capture: Capture, place: Place) -> Self {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let generation = live.daemon().generation();
        Self { live, capture, generation, begun: false, tick, _place: place }
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let Self { live, capture, generation, begun, tick, .. } = self;
        let daemon = live.daemon();
        if !std::mem::replace(begun, true) {
            return Poll::Ready(Some(capture.encoder.begin(&capture.ports)));
        }
        if std::mem::replace(generation, daemon.generation()) != *generation {
            capture.encoder.rename(daemon.names());
        }
        if let Poll::Ready(blocks) = capture.encoder.poll(cx) {
            return Poll::Ready(blocks);
        }
        tick.poll_tick(cx).map(|_| Some(capture.encoder.statistics(daemon.wall())))
    }
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.next(cx).map(|blocks| blocks.map(|blocks| Ok(Frame::data(Bytes::from(blocks)))))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.live.daemon().unwatch(&self.capture.watcher);
    }
}
