//! Bodies of requests. A body is read only if its sender may send it, within [`TIMEOUT`], and up to a limit.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use hyper::body::Body as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::api::{BUSY, Problem, TOO_LARGE, TOO_LATE};
use super::served::{Peer, Served};
use super::{REQUEST_MAX, TIMEOUT};

/// Longest body except a host file and a port's state: a frame of 64 KiB in hexadecimal, or a port with 4095 addresses.
pub(super) const SMALL_MAX: usize = 256 << 10;
/// The time that a long body waits for the one before it. Its sender's own timeout is longer.
const TURN: Duration = Duration::from_secs(30);

type Rejection = Box<Problem>;

/// Marks a client whose request is being answered, so that it keeps its place.
#[derive(Clone, Debug)]
pub(super) struct Busy(pub(super) Arc<AtomicBool>);

/// A client that may make changes. Others are refused before their body is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changer(pub(super) Peer);

impl FromRequestParts<Arc<Served>> for Changer {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, served: &Arc<Served>) -> Result<Self, Rejection> {
        let peer = parts.extensions.get::<Peer>().copied().flatten();
        served.is_changer(peer).await?;
        Ok(Self(peer))
    }
}

/// A body of at most 256 KiB.
pub(super) struct Small(pub(super) Bytes);

impl<S: Sync> FromRequest<S> for Small {
    type Rejection = Rejection;

    async fn from_request(request: Request, _: &S) -> Result<Self, Rejection> {
        whole(request, SMALL_MAX).await.map(Self)
    }
}

/// A host file or a port's state. There is only one at a time, until this is dropped: parsing it takes many times its size in
/// memory.
///
/// Its bytes are private: a closure that named the field would take the bytes alone, and leave the turn to the connection, which may end
/// first.
pub(super) struct Large {
    bytes: Bytes,
    _turn: OwnedSemaphorePermit,
}

impl Large {
    /// The whole body.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl FromRequest<Arc<Served>> for Large {
    type Rejection = Rejection;

    async fn from_request(request: Request, served: &Arc<Served>) -> Result<Self, Rejection> {
        let turn = timeout(TURN, Arc::clone(&served.large).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(Problem::new(BUSY, format!("the host file or state before it took longer than {TURN:?}")));
        };
        Ok(Self { bytes: whole(request, REQUEST_MAX).await?, _turn: turn })
    }
}

/// Reads a whole body. From then on the client keeps its place.
async fn whole(request: Request, most: usize) -> Result<Bytes, Rejection> {
    let busy = request.extensions().get::<Busy>().cloned();
    let mut body = request.into_body();
    let bytes = match timeout(TIMEOUT, at_most(&mut body, most)).await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            // A client that still sends would see the connection break, and not the answer.
            let _late = timeout(TIMEOUT, discard(&mut body)).await;
            let most = format!("the body of this request has at most {most} bytes, and comes whole");
            return Err(Problem::new(TOO_LARGE, most));
        }
        Err(_) => return Err(Problem::new(TOO_LATE, format!("the request was not whole after {TIMEOUT:?}"))),
    };
    if let Some(Busy(busy)) = busy {
        busy.store(true, Ordering::Relaxed);
    }
    Ok(bytes)
}

/// The next bytes of a body; `None` at its end.
async fn next(body: &mut Body) -> Option<Result<Bytes, axum::Error>> {
    let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
    Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
}

/// A whole body, unless it is longer or breaks.
async fn at_most(body: &mut Body, most: usize) -> Option<Bytes> {
    if body.size_hint().lower() > most as u64 {
        return None;
    }
    let mut whole = Vec::new();
    while let Some(bytes) = next(body).await {
        let bytes = bytes.ok().filter(|bytes| bytes.len() <= most - whole.len())?;
        whole.extend_from_slice(&bytes);
    }
    Some(whole.into())
}

/// Reads the rest of a body that is refused, up to four times what the longest one has.
async fn discard(body: &mut Body) {
    let mut left = 4 * REQUEST_MAX;
    while let Some(Ok(bytes)) = next(body).await
        && left > bytes.len()
    {
        left -= bytes.len();
    }
}
