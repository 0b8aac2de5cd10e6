//! Connections that another process has accepted (docs/adr/0027): what it has read of a connection is read here first.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram as PlainMessages, UnixStream as Plain};
use std::pin::Pin;
use std::task::{Context, Poll};

use nicety_keeper::{ChannelError, Connection, Connections};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{UnixDatagram, UnixStream};

/// A client's connection.
#[derive(Debug)]
pub(super) struct Stream {
    socket: UnixStream,
    /// Bytes of the request that another process has read, and the number of them that were used here.
    read: (Vec<u8>, usize),
    /// Another process must see each request.
    is_handed: bool,
}

impl Stream {
    pub(super) fn of(socket: UnixStream) -> Self {
        Self { socket, read: (Vec::new(), 0), is_handed: false }
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Whether the client may send a second request on this connection.
    pub(super) fn may_ask_again(&self) -> bool {
        !self.is_handed
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (read, at) = &mut self.read;
        let left = read.get(*at..).unwrap_or_default();
        if left.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, buffer);
        }
        let taken = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..taken]);
        *at += taken;
        if *at == read.len() {
            self.read = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// Connections, not in a runtime yet. Made before the thread that waits for them is confined.
pub(super) struct Coming(Connections, PlainMessages);

impl Coming {
    pub(super) fn new(connections: Connections) -> io::Result<Self> {
        let messages = PlainMessages::from(connections.as_fd().try_clone_to_owned()?);
        messages.set_nonblocking(true)?;
        Ok(Self(connections, messages))
    }
}

/// Connections in a runtime.
pub(super) struct Handed {
    connections: Connections,
    /// The same socket, to wait for.
    messages: UnixDatagram,
}

impl Handed {
    pub(super) fn new(Coming(connections, messages): Coming) -> io::Result<Self> {
        Ok(Self { connections, messages: UnixDatagram::from_std(messages)? })
    }

    /// Waits for the next connection.
    pub(super) async fn accept(&self) -> io::Result<Stream> {
        loop {
            self.messages.readable().await?;
            let next = || match self.connections.next() {
                Ok(next) => next.ok_or_else(|| io::ErrorKind::WouldBlock.into()),
                Err(error) => Err(io::Error::other(error)),
            };
            match self.messages.try_io(Interest::READABLE, next) {
                Ok(Connection { socket, read }) => {
                    let socket = UnixStream::from_std(Plain::from(socket))?;
                    return Ok(Stream { socket, read: (read, 0), is_handed: true });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The keeper has ended, and this process is about to.
                Err(error) if is_closed(&error) => return std::future::pending().await,
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ChannelError>());
    inner.is_some_and(|inner| *inner == ChannelError::Closed)
}
