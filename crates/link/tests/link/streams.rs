//! What two hosts with the same key say to each other.

use std::os::fd::OwnedFd;

use nicety_link::{Link, LinkError, Messages};
use rustix::net::sockopt;

use crate::ends::{drain, establish, links, noise, secret, tcp, unix, until};

/// A stream of this length, each way: a pattern again and again.
struct Stream {
    pattern: Vec<u8>,
    length: usize,
    written: usize,
    read: usize,
}

impl Stream {
    fn new(length: usize, seed: u64) -> Self {
        // No multiple of a record's length.
        Self { pattern: noise(1_000_003, seed), length, written: 0, read: 0 }
    }

    fn at(&self, place: usize, count: usize) -> &[u8] {
        let from = place % self.pattern.len();
        let end = (from + count).min(self.pattern.len()).min(from + self.length - place);
        &self.pattern[from..end]
    }

    fn write(&mut self, link: &mut Link) {
        while self.written < self.length {
            let count = link.write(self.at(self.written, 100_000));
            if count == 0 {
                return;
            }
            self.written += count;
        }
        link.finish();
    }

    /// Whether all has been read.
    fn read(&mut self, link: &mut Link, bytes: &mut [u8]) -> bool {
        loop {
            match link.read(bytes) {
                Ok(0) => return false,
                Ok(count) => {
                    let mut rest = &bytes[..count];
                    while !rest.is_empty() {
                        let right = self.at(self.read, rest.len());
                        assert!(!right.is_empty() && rest[..right.len()] == *right, "wrong bytes at {}", self.read);
                        let count = right.len();
                        self.read += count;
                        rest = &rest[count..];
                    }
                }
                Err(why) => {
                    assert_eq!((why, self.read), (LinkError::Ended, self.length));
                    return true;
                }
            }
        }
    }
}

fn carries(sockets: [OwnedFd; 2], buffers: Option<usize>, length: usize) {
    for socket in &sockets {
        if let Some(bytes) = buffers {
            sockopt::set_socket_send_buffer_size(socket, bytes).unwrap();
            sockopt::set_socket_recv_buffer_size(socket, bytes).unwrap();
        }
    }
    let key = secret(7);
    let mut links = links(sockets, [&key, &key]);
    let (mut there, mut back) = (Stream::new(length, 1), Stream::new(length, 2));
    let mut bytes = vec![0; 64 << 10];
    until(&mut links, |[one, two]| {
        there.write(one);
        back.write(two);
        // Both, each time.
        let is_over = [there.read(two, &mut bytes), back.read(one, &mut bytes)];
        (is_over == [true; 2]).then_some(())
    });
    let sent: u64 = links.iter_mut().map(|link| link.take_traffic()[0]).sum();
    // A record of at most 16 KiB costs 22 bytes (RFC 8446, section 5.2).
    assert!((2 * length as u64..2 * length as u64 * 101 / 100 + 8192).contains(&sent), "{sent}");
}

#[test]
fn sixty_four_megabytes_pass_each_way_at_once_over_tcp() {
    carries(tcp(), None, 64_000_000);
}

#[test]
fn sixty_four_megabytes_pass_each_way_at_once_over_a_unix_socket_with_tiny_buffers() {
    carries(unix(), Some(4096), 64_000_000);
}

#[test]
fn a_megabyte_passes_each_way_at_once_over_tcp_with_small_buffers() {
    carries(tcp(), Some(32 << 10), 1_000_000);
}

#[test]
fn what_is_written_before_the_handshake_arrives_after_it() {
    let key = secret(7);
    let mut links = links(unix(), [&key, &key]);
    assert_eq!((links[0].write(b"early"), links[1].write(b"bird")), (5, 4));
    links[0].finish();
    assert_eq!(links[0].write(b"late"), 0);
    let mut read = [Vec::new(), Vec::new()];
    until(&mut links, |[one, two]| {
        let ends = [drain(one, &mut read[0]), drain(two, &mut read[1])];
        (read[0] == b"bird" && ends[1] == Some(LinkError::Ended)).then_some(())
    });
    assert_eq!(read[1], b"early");
}

#[test]
fn one_end_may_finish_and_the_other_go_on() {
    let key = secret(7);
    let mut links = links(tcp(), [&key, &key]);
    establish(&mut links);
    links[0].finish();
    let mut read = Vec::new();
    until(&mut links, |[_, two]| drain(two, &mut Vec::new()));
    assert_eq!(links[1].write(b"still here"), 10);
    links[1].finish();
    let end = until(&mut links, |[one, _]| drain(one, &mut read));
    assert_eq!((end, read.as_slice()), (LinkError::Ended, b"still here".as_slice()));
    assert!(links[0].turn().is_ok() && links[0].events().is_empty());
}

#[test]
fn a_cut_is_no_orderly_end_and_what_came_before_it_is_read() {
    for sockets in [tcp(), unix()] {
        let key = secret(7);
        let mut both = links(sockets, [&key, &key]);
        establish(&mut both);
        let said = noise(100_000, 3);
        assert_eq!(both[0].write(&said), said.len());
        let mut read = Vec::new();
        until(&mut both, |[one, two]| {
            assert_eq!(drain(two, &mut read), None);
            one.is_flushed().then_some(())
        });
        let [one, mut two] = both;
        drop(one);
        let end = loop {
            let turned = two.turn();
            if let Some(end) = drain(&mut two, &mut read) {
                break end;
            }
            assert!(turned.is_ok());
        };
        assert_eq!((end, read == said), (LinkError::Cut, true));
        assert!(two.turn().unwrap_err().to_string().starts_with("the connection was cut"));
        assert!(two.events().is_empty() && two.write(b"more") == 0);
    }
}

#[test]
fn an_owner_that_does_not_read_stops_its_peer_and_loses_nothing() {
    let key = secret(7);
    let mut links = links(unix(), [&key, &key]);
    for link in &links {
        sockopt::set_socket_send_buffer_size(link, 16 << 10).unwrap();
    }
    establish(&mut links);
    let all = noise(4 << 20, 4);
    let mut written = 0;
    for _ in 0..1000 {
        written += links[0].write(&all[written..]);
        for link in &mut links {
            link.turn().unwrap();
        }
    }
    // 256 KiB at the writer, 64 and 48 KiB at the reader, and the system's buffers.
    assert!((256 << 10..512 << 10).contains(&written), "{written}");
    assert!(links[1].events().is_empty() && links[1].is_readable() && !links[0].is_flushed());
    let mut read = Vec::new();
    until(&mut links, |[one, two]| {
        written += one.write(&all[written..]);
        assert_eq!(drain(two, &mut read), None);
        (read.len() == all.len()).then_some(())
    });
    assert!(read == all);
}

#[test]
fn messages_pass_whole_and_raw_bytes_may_follow() {
    let key = secret(7);
    let mut links = links(unix(), [&key, &key]);
    let said = [b"{}".to_vec(), Vec::new(), noise(nicety_link::MESSAGE_BYTES_MAX, 5)];
    let (mut ours, mut theirs) = (Messages::default(), Messages::default());
    assert!(said.iter().all(|message| ours.send(message)));
    assert!(!ours.send(&[0; nicety_link::MESSAGE_BYTES_MAX + 1]));
    let mut raw = 0;
    let mut heard = Vec::new();
    let mut rest = Vec::new();
    until(&mut links, |[one, two]| {
        if ours.write(one) && raw < 5 {
            raw += one.write(&b"bytes"[raw..]);
        }
        while heard.len() < said.len() {
            heard.push(theirs.read(two).unwrap()?);
        }
        assert_eq!(drain(two, &mut rest), None);
        (rest.len() == 5).then_some(())
    });
    assert!(heard == said && rest == b"bytes");
}

#[test]
fn messages_that_nobody_takes_are_bounded_and_refused_whole() {
    let mut messages = Messages::default();
    let count = (0..1000).take_while(|_| messages.send(&[1; 10_000])).count();
    assert_eq!(count, nicety_link::WAITING_BYTES_MAX / 10_004);
    assert!(messages.send(b"a short one has room"));
}

#[test]
fn a_message_that_is_too_long_or_has_no_end_is_an_error() {
    let key = secret(7);
    for (bytes, why) in [
        (&[0, 1, 0, 1][..], LinkError::Message(65_537)),
        (&[0xff; 4], LinkError::Message(u32::MAX)),
        (&[0, 0], LinkError::Cut),
        (&[0, 0, 0, 3, b'a'], LinkError::Cut),
        (&[], LinkError::Ended),
    ] {
        let mut links = links(unix(), [&key, &key]);
        links[0].write(bytes);
        links[0].finish();
        let mut messages = Messages::default();
        assert_eq!(until(&mut links, |[_, two]| messages.read(two).err()), why);
    }
}
