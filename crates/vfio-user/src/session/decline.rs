//! Declines a connection.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::codec::{FLAG_ERROR, HEADER_SIZE, Header};
use crate::wire::reply_header;

/// Answers the first command of a connection with an error, so that the client can report the reason. The command and its payload
/// stay unread. Returns false if no command came that requests an answer.
pub fn decline(connection: impl AsFd, errno: Errno) -> bool {
    let mut first = [0; HEADER_SIZE];
    let read = recv(&connection, &mut first, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    let command = Header::decode(&first);
    if !read.is_ok_and(|(read, _)| read == first.len())
        || command.check().is_err()
        || command.is_reply()
        || command.no_reply()
    {
        return false;
    }
    let mut reply = reply_header(&command);
    reply.flags |= FLAG_ERROR;
    reply.error = errno.raw_os_error() as u32;
    let mut bytes = Vec::with_capacity(HEADER_SIZE);
    reply.encode(&mut bytes);
    // This is the first message sent: either there is room, or the peer has gone.
    let _peer_gone = send(&connection, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    true
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_whole_command_alone_is_answered_and_none_is_taken() {
        // Number 7, VERSION, 20 bytes, a command (vfio-user.rst, "Header").
        let command = [7, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
        let (ours, mut peer) = UnixStream::pair().unwrap();
        assert!(!decline(&ours, Errno::BUSY), "nothing is there");
        peer.write_all(&command[..15]).unwrap();
        assert!(!decline(&ours, Errno::BUSY), "not yet");
        peer.write_all(&command[15..]).unwrap();
        assert!(decline(&ours, Errno::BUSY));
        let mut answer = [0; 16];
        peer.read_exact(&mut answer).unwrap();
        // A reply (1) with an error (0x20), EBUSY.
        assert_eq!(answer, [7, 0, 1, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 16, 0, 0, 0]);
        let mut there = [0; 20];
        (&ours).read_exact(&mut there).unwrap();
        assert_eq!(there, command);
        // Sizes below a header's, replies, and commands that request no answer.
        for (at, byte) in [(4, 15), (8, 1), (8, 0x10)] {
            let (ours, mut peer) = UnixStream::pair().unwrap();
            let mut other = command;
            other[at] = byte;
            peer.write_all(&other).unwrap();
            assert!(!decline(&ours, Errno::BUSY), "{other:?}");
        }
        drop(peer);
        assert!(!decline(&ours, Errno::BUSY), "it has gone");
    }
}
