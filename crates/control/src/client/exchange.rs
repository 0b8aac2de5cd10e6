//! One request and its answer, by hyper's HTTP/1.1 client over a UNIX socket. The caller's thread runs the connection while it waits.

use std::error::Error;
use std::future::poll_fn;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1;
use hyper::rt::{self, ReadBufCursor};
use hyper_util::rt::TokioIo;
use nicety_socket::PeerCredentials;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout, timeout_at};

use super::{AskError, foreign};

/// Most bytes of an answer's body.
const BODY_MAX: usize = 64 << 20;

/// An answer whose head has arrived.
pub(super) struct Exchange {
    server: Server,
    runtime: Runtime,
    answer: Response<Incoming>,
    deadline: Instant,
}

impl Exchange {
    /// Connects, sends a request, and waits for the head of the answer. `timeout` limits connecting, and the whole answer.
    pub(super) fn begin(path: &Path, request: Request<Body>, timeout: Duration) -> Result<Self, AskError> {
        let mut server = Server { path: path.to_owned(), timeout, process: "a process".to_owned() };
        let stream = connect(path, timeout).map_err(|error| server.lost(error))?;
        if let Some(peer) = PeerCredentials::of(&stream) {
            server.process = format!("process {}", peer.pid);
        }
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| server.lost(error))?;
        let deadline = Instant::now() + timeout;
        let answer = runtime.block_on(async {
            stream.set_nonblocking(true).map_err(|error| server.lost(error))?;
            let stream = UnixStream::from_std(stream).map_err(|error| server.lost(error))?;
            let sent = timeout_at(deadline, async {
                let (mut sender, connection) = http1::handshake(Link(TokioIo::new(stream))).await?;
                tokio::spawn(connection);
                sender.send_request(request).await
            });
            sent.await.map_err(|_| server.silent())?.map_err(|error| server.failed(&error))
        })?;
        Ok(Self { server, runtime, answer, deadline })
    }

    pub(super) fn status(&self) -> u16 {
        self.answer.status().as_u16()
    }

    /// The whole body of the answer.
    pub(super) fn body(self) -> Result<Vec<u8>, AskError> {
        let Self { server, runtime, answer, deadline } = self;
        let mut body = answer.into_body();
        runtime.block_on(async {
            let mut whole = Vec::new();
            loop {
                match timeout_at(deadline, next(&mut body)).await {
                    Err(_) => return Err(server.silent()),
                    Ok(None) => return Ok(whole),
                    Ok(Some(Err(error))) => return Err(server.failed(&error)),
                    Ok(Some(Ok(piece))) if whole.len() + piece.len() > BODY_MAX => {
                        return Err(foreign(&server.path, format!("its answer has more than {BODY_MAX} bytes")));
                    }
                    Ok(Some(Ok(piece))) => whole.extend_from_slice(&piece),
                }
            }
        })
    }

    /// An endless body, to be read piece by piece.
    pub(super) fn reader(self, tick: Duration) -> Reader {
        let Self { runtime, answer, .. } = self;
        Reader { runtime, body: answer.into_body(), rest: Bytes::new(), tick }
    }
}

/// The next piece of a body.
async fn next(body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
    loop {
        match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await? {
            Ok(frame) => match frame.into_data() {
                Ok(data) => return Some(Ok(data)),
                // Trailers.
                Err(_) => continue,
            },
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Reads an endless body until the daemon ends.
pub(super) struct Reader {
    runtime: Runtime,
    body: Incoming,
    rest: Bytes,
    tick: Duration,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Self { runtime, body, rest, tick } = self;
        while rest.is_empty() {
            match runtime.block_on(async { timeout(*tick, next(body)).await }) {
                Err(_) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(Some(Ok(piece))) => *rest = piece,
                // A daemon that ends does not end its captures: its connections just close.
                Ok(None | Some(Err(_))) => return Ok(0),
            }
        }
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest.split_to(count));
        Ok(count)
    }
}

/// A connection. A server that answers early closes its end before the whole request is written, and its answer has the reason.
/// So a failed write is no error here: the answer is read in any case.
struct Link(TokioIo<UnixStream>);

impl rt::Read for Link {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl rt::Write for Link {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match ready!(Pin::new(&mut self.0).poll_write(cx, bytes)) {
            Err(error) if is_closed(&error) => Poll::Ready(Ok(bytes.len())),
            written => Poll::Ready(written),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// The server's socket and process, for error messages.
struct Server {
    path: PathBuf,
    timeout: Duration,
    process: String,
}

impl Server {
    /// The error if there is no connection.
    fn lost(&self, error: io::Error) -> AskError {
        let path = self.path.clone();
        match error.kind() {
            io::ErrorKind::ConnectionRefused if !is_socket(&path) => AskError::NoSocket(path),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::Nobody(path),
            io::ErrorKind::PermissionDenied => AskError::NotAllowed(path),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Full { path, timeout: self.timeout },
            _ => AskError::System { path, error },
        }
    }

    /// The error if no whole answer came in time.
    fn silent(&self) -> AskError {
        AskError::Silent { path: self.path.clone(), process: self.process.clone(), timeout: self.timeout }
    }

    /// The error if the answer is none, or ends early.
    fn failed(&self, error: &hyper::Error) -> AskError {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        let number = cause.and_then(io::Error::raw_os_error);
        match number.map(io::Error::from_raw_os_error) {
            Some(error) => self.lost(error),
            None if error.is_incomplete_message() => foreign(&self.path, "its answer is cut".to_owned()),
            None => foreign(&self.path, error.to_string()),
        }
    }
}

/// Connects. If the daemon accepts no connections its queue fills up; the timeout prevents blocking for ever.
fn connect(path: &Path, timeout: Duration) -> io::Result<StdStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))?;
    rustix::net::connect(&socket, &address)?;
    Ok(StdStream::from(socket))
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}
