//! One connection to a server of etcd: HTTP/1.1 by hyper, over TCP or TLS. Each answer is bounded; redirects are not followed.

use std::error::Error as _;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, LOCATION};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::endpoint::{Endpoint, Scheme};
use crate::error::{Error, ErrorKind, excerpt};
use crate::tls;
use crate::wire::{self, Subject};

/// Most bytes of an answer's head.
const HEAD_MAX: usize = 16 << 10;
/// A connection that was idle for longer is not used again: a firewall in between may have forgotten it.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// The kernel asks a silent server whether it is there after so many seconds, then every second, at most so often.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(1), 5);

/// An address of a server.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub endpoint: Endpoint,
    pub address: SocketAddr,
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address && self.endpoint == other.endpoint
    }
}

impl Target {
    /// A text for a person.
    pub fn text(&self) -> String {
        let Self { endpoint, address } = self;
        let place = endpoint.authority();
        if endpoint.host.parse() == Ok(address.ip()) { place } else { format!("{place} at {address}") }
    }
}

/// A call: its path, body and conditions.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub path: &'static str,
    pub body: Bytes,
    pub token: Option<HeaderValue>,
    /// A server without a leader refuses at once (`hasleader`, `api/v3/v3rpc/rpctypes/metadatafields.go`).
    pub needs_leader: bool,
    pub answer_max: usize,
    pub subject: Subject,
}

impl Call {
    fn request(&self, target: &Target) -> Result<Request<Full<Bytes>>, Error> {
        let mut request = Request::post(self.path).header(CONTENT_TYPE, "application/json");
        request = request.header(HOST, target.endpoint.authority());
        if self.needs_leader {
            request = request.header("grpc-metadata-hasleader", "true");
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        request.body(Full::new(self.body.clone())).map_err(|error| Error::new(ErrorKind::Settings(error.to_string())))
    }
}

/// See the module's page. Its task ends with it.
pub(crate) struct Connection {
    pub target: Target,
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
    idle_since: Option<Instant>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The error of a connection whose request may have left.
fn broken(error: &hyper::Error, unknown_outcome: bool) -> Error {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    let kind = match cause.and_then(tls::sentence) {
        Some(sentence) => ErrorKind::Tls(sentence),
        None if error.is_parse_too_large() => {
            ErrorKind::NotEtcd(format!("its answer's head has more than {HEAD_MAX} bytes"))
        }
        None if error.is_parse() => ErrorKind::NotEtcd(format!("its answer is no HTTP/1.1 ({error})")),
        None => ErrorKind::Broken(cause.map_or_else(|| error.to_string(), ToString::to_string)),
    };
    Error { kind, at: None, unknown_outcome }
}

impl Connection {
    /// Connects, and makes the TLS session.
    pub async fn open(target: &Target, tls: Option<&TlsConnector>) -> Result<Self, Error> {
        let failed = |error: io::Error| match tls::sentence(&error) {
            Some(sentence) => Error::new(ErrorKind::Tls(sentence)),
            None => Error::new(ErrorKind::Connect(error.to_string())),
        };
        let stream = TcpStream::connect(target.address).await.map_err(failed)?;
        set_options(&stream).map_err(failed)?;
        match (target.endpoint.scheme, tls) {
            (Scheme::Https, Some(tls)) => {
                let name = tls::server_name(&target.endpoint.host)?;
                let stream = tls.connect(name, stream).await.map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                        Error::new(ErrorKind::Tls(
                            "it hangs up when TLS begins: does etcd listen with TLS there?".to_owned(),
                        ))
                    }
                    _ => failed(error),
                })?;
                Self::begin(target, stream).await
            }
            (Scheme::Https, None) => Err(Error::new(ErrorKind::Settings("TLS without a CA".to_owned()))),
            (Scheme::Http, _) => Self::begin(target, stream).await,
        }
    }

    async fn begin(
        target: &Target,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, Error> {
        let mut builder = http1::Builder::new();
        let handshake = builder.max_buf_size(HEAD_MAX).handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(|error| broken(&error, false))?;
        // Whoever waits for an answer gets the connection's error.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { target: target.clone(), sender, task, idle_since: None })
    }

    /// Whether another request can go this way. Gives the runtime a chance to see that the server has hung up meanwhile.
    pub async fn is_usable(&mut self) -> bool {
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        let is_fresh = self.idle_since.is_none_or(|since| since.elapsed() < IDLE_MAX);
        is_fresh && self.sender.is_ready() && !self.sender.is_closed()
    }

    /// Notes that it waits for its next request from now on.
    pub fn rest(&mut self) {
        self.idle_since = Some(Instant::now());
    }

    /// Whether it waits since its last answer.
    pub fn was_used(&self) -> bool {
        self.idle_since.is_some()
    }

    /// Sends a request, and waits for the head of its answer.
    async fn ask(&mut self, call: &Call) -> Result<Response<Incoming>, Error> {
        let request = call.request(&self.target)?;
        self.sender.ready().await.map_err(|error| broken(&error, false))?;
        self.sender.try_send_request(request).await.map_err(|mut error| {
            let was_sent = error.take_message().is_none();
            let is_hung_up = error.error().is_incomplete_message() && self.target.endpoint.scheme == Scheme::Http;
            let mut broken = broken(error.error(), was_sent);
            if let ErrorKind::Broken(why) = &mut broken.kind
                && is_hung_up
            {
                why.push_str("; does etcd speak TLS there? Then name its CA, and ask by https");
            }
            broken
        })
    }

    /// The whole answer, of status 200.
    pub async fn call(&mut self, call: &Call) -> Result<Vec<u8>, Error> {
        let answer = self.ask(call).await?;
        checked(answer, call).await
    }

    /// Opens a stream of answers, one a line.
    pub async fn open_stream(mut self, call: &Call) -> Result<Lines, Error> {
        let answer = self.ask(call).await?;
        if answer.status().as_u16() != 200 {
            let found = checked(answer, call).await;
            return Err(found.err().unwrap_or_else(|| Error::new(ErrorKind::NotEtcd("no stream".to_owned()))));
        }
        let (body, rest) = (answer.into_body(), Vec::new());
        Ok(Lines { connection: self, body, rest, searched: 0, max: call.answer_max })
    }
}

/// The body of an answer, or the error that it is.
async fn checked(answer: Response<Incoming>, call: &Call) -> Result<Vec<u8>, Error> {
    let status = answer.status();
    if status.is_redirection() {
        let to = answer.headers().get(LOCATION).map_or(String::new(), |to| excerpt(to.as_bytes()));
        let why = format!("it sends us to `{to}` (HTTP {}): name etcd's own address", status.as_u16());
        return Err(Error::new(ErrorKind::NotEtcd(why)));
    }
    let body = whole(answer.into_body(), call.answer_max).await?;
    if status.as_u16() == 200 {
        return Ok(body);
    }
    let mut error = wire::failure(status.as_u16(), &body, &call.subject);
    // A server that sees no leader has refused. One that waited for the others in vain, or a proxy, may have passed the call on.
    error.unknown_outcome = match &error.kind {
        ErrorKind::NoMajority(words) => !words.contains("no leader"),
        ErrorKind::NotEtcd(_) => true,
        _ => false,
    };
    Err(error)
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    let (idle, interval, count) = KEEPALIVE;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    sockopt::set_tcp_keepcnt(stream, count)?;
    Ok(())
}

/// The next piece of a body.
async fn piece(body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
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

async fn whole(mut body: Incoming, max: usize) -> Result<Vec<u8>, Error> {
    let mut whole = Vec::new();
    while let Some(piece) = piece(&mut body).await {
        let piece = piece.map_err(|error| broken(&error, true))?;
        if whole.len() + piece.len() > max {
            return Err(Error { kind: ErrorKind::TooLarge { max }, at: None, unknown_outcome: true });
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

/// A stream of answers: each is one line of JSON (grpc-gateway, `runtime/handler.go`, `ForwardResponseStream`).
pub(crate) struct Lines {
    pub connection: Connection,
    body: Incoming,
    rest: Vec<u8>,
    /// Bytes of `rest` that have no line feed.
    searched: usize,
    max: usize,
}

impl Lines {
    /// The next line. It may be given up and called again: nothing is lost.
    pub async fn next(&mut self) -> Result<Vec<u8>, Error> {
        loop {
            let from = self.rest.get(self.searched..).unwrap_or_default();
            if let Some(end) = from.iter().position(|byte| *byte == b'\n') {
                let rest = self.rest.split_off(self.searched + end + 1);
                self.searched = 0;
                return Ok(std::mem::replace(&mut self.rest, rest));
            }
            self.searched = self.rest.len();
            match piece(&mut self.body).await {
                None => return Err(Error::new(ErrorKind::Broken("etcd ended the stream".to_owned()))),
                Some(Err(error)) => return Err(broken(&error, false)),
                Some(Ok(piece)) if self.rest.len() + piece.len() > self.max => {
                    return Err(Error::new(ErrorKind::TooLarge { max: self.max }));
                }
                Some(Ok(piece)) => self.rest.extend_from_slice(&piece),
            }
        }
    }
}
