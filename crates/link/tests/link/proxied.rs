//! What stands between two hosts: it reads, alters, and cuts.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use nicety_link::{Link, LinkError};

use crate::ends::{drain, noise, secret};

/// Passes bytes on between two links, and keeps them.
struct Proxy {
    streams: [UnixStream; 2],
    /// What came from the end that connects, and from the one that accepts.
    seen: [Vec<u8>; 2],
    /// Inverts the lowest bit of this byte of what that end says.
    flipped: Option<(usize, usize)>,
    /// Nothing from this byte on of what that end says is passed on, and both connections end.
    cut: Option<(usize, usize)>,
}

impl Proxy {
    fn between(key: u8) -> (Self, [Link; 2]) {
        let ((one, ours), (two, theirs)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        for stream in [&one, &two] {
            stream.set_nonblocking(true).unwrap();
        }
        let key = secret(key);
        let links = [Link::connect(ours.into(), &key).unwrap(), Link::accept(theirs.into(), &key).unwrap()];
        (Self { streams: [one, two], seen: [Vec::new(), Vec::new()], flipped: None, cut: None }, links)
    }

    /// Passes on what is there. Returns how many bytes.
    fn pass(&mut self) -> usize {
        let mut bytes = vec![0; 16 << 10];
        let mut passed = 0;
        for from in [0, 1] {
            while let Ok(count @ 1..) = self.streams[from].read(&mut bytes) {
                let place = self.seen[from].len();
                self.seen[from].extend_from_slice(&bytes[..count]);
                let within = |at: usize| at.checked_sub(place).filter(|at| *at < count);
                if let Some(at) = self.flipped.filter(|(end, _)| *end == from).and_then(|(_, at)| within(at)) {
                    bytes[at] ^= 1;
                }
                let cut = self.cut.filter(|(end, _)| *end == from).and_then(|(_, at)| within(at));
                // The links' other ends take what fits: tests say little at once.
                self.streams[1 - from].write_all(&bytes[..cut.unwrap_or(count)]).unwrap_or_default();
                if cut.is_some() {
                    let _ended = self.streams.each_ref().map(|stream| stream.shutdown(std::net::Shutdown::Both));
                    return passed;
                }
                passed += count;
            }
        }
        passed
    }

    /// Goes on until nobody says anything. Returns the reasons of both ends, if they have one.
    fn settle(&mut self, links: &mut [Link; 2]) -> [Option<LinkError>; 2] {
        let mut reasons = [None, None];
        loop {
            for (reason, link) in reasons.iter_mut().zip(links.iter_mut()) {
                *reason = reason.take().or_else(|| link.turn().err());
            }
            let moved: u64 = links.iter_mut().flat_map(Link::take_traffic).sum();
            if moved == 0 && self.pass() == 0 {
                return reasons;
            }
            self.pass();
        }
    }
}

#[test]
fn the_wire_shows_nothing_of_what_is_said() {
    let (mut proxy, mut links) = Proxy::between(7);
    assert_eq!(proxy.settle(&mut links), [None, None]);
    let said = b"the memory of a protected VM, which nobody else may read ".repeat(1000);
    let mut read = [Vec::new(), Vec::new()];
    for link in &mut links {
        assert_eq!(link.write(&said), said.len());
    }
    while read.iter().any(|read| read.len() < said.len()) {
        assert_eq!(proxy.settle(&mut links), [None, None]);
        for (link, read) in links.iter_mut().zip(&mut read) {
            assert_eq!(drain(link, read), None);
        }
    }
    assert!(read.iter().all(|read| *read == said));
    for seen in &proxy.seen {
        // Eight bytes in a row of the text are in random bytes of this length once in 10^13.
        let is_shown = seen.windows(8).any(|window| said[..100].windows(8).any(|text| text == window));
        assert!(!is_shown && seen.len() > said.len());
        // The keys that are shown are encrypted too: the object identifier of Ed25519 (RFC 8410, section 3) leads to none.
        assert!(!seen.windows(5).any(|window| window == [0x06, 0x03, 0x2b, 0x65, 0x70]));
    }
    assert_ne!(proxy.seen[0][200..], proxy.seen[1][200..]);
}

#[test]
fn a_flipped_byte_ends_the_link_and_no_wrong_plaintext_comes_out() {
    let said = noise(100_000, 6);
    for place in [0, 1, 3, 4, 5, 100, 16_000, 16_410, 50_000, 99_999] {
        let (mut proxy, mut links) = Proxy::between(7);
        assert_eq!(proxy.settle(&mut links), [None, None]);
        proxy.flipped = Some((0, proxy.seen[0].len() + place));
        let (mut read, mut written) = (Vec::new(), 0);
        let why = loop {
            written += links[0].write(&said[written..]);
            proxy.settle(&mut links);
            let end = drain(&mut links[1], &mut read);
            if end.is_some() || read.len() == said.len() {
                break end;
            }
        };
        assert!(said.starts_with(&read), "{place}: wrong bytes came out");
        let Some(why) = why else {
            // Type and version of a record are always the same in TLS 1.3 (RFC 8446, section 5.2): the receiver may not look at them.
            assert!(place < 3, "{place}: all came out");
            continue;
        };
        assert!(matches!(why, LinkError::Altered | LinkError::Tls(_)), "{place}: {why:?}");
        assert!(read.len() <= place, "{place}: {} bytes came out", read.len());
        // The one that wrote hears of it.
        let [heard, _] = proxy.settle(&mut links);
        let heard = heard.expect("an alert");
        assert!(matches!(heard, LinkError::Altered | LinkError::Refused(_)), "{place}: {heard:?}");
    }
}

/// Bytes that each end says in a handshake.
fn handshake() -> [usize; 2] {
    let (mut proxy, mut links) = Proxy::between(7);
    assert_eq!(proxy.settle(&mut links), [None, None]);
    assert!(links.iter().all(Link::is_established));
    proxy.seen.map(|seen| seen.len())
}

#[test]
fn a_flipped_byte_of_the_handshake_never_gives_wrong_plaintext() {
    let lengths = handshake();
    for (end, length) in lengths.into_iter().enumerate() {
        for place in 0..length {
            let (mut proxy, mut links) = Proxy::between(7);
            proxy.flipped = Some((end, place));
            for link in &mut links {
                assert_eq!(link.write(b"truth"), 5);
            }
            let reasons = proxy.settle(&mut links);
            let mut read = [Vec::new(), Vec::new()];
            for (link, read) in links.iter_mut().zip(&mut read) {
                let _why = drain(link, read);
                assert!(read.is_empty() || read == b"truth", "{end} {place}");
            }
            // A record's version and a change_cipher_spec have no meaning in TLS 1.3, and are not authenticated (RFC 8446, sections 5.1
            // and 5): these flips may pass. With all others both fail, or wait for what the altered length announces.
            if links.iter().all(Link::is_established) && reasons == [None, None] {
                assert!(read.iter().all(|read| read == b"truth"), "{end} {place}: {read:?}");
            } else {
                assert!(read[end ^ 1].is_empty(), "{end} {place}: {reasons:?}");
            }
        }
    }
}

#[test]
fn a_handshake_that_is_cut_anywhere_is_a_cut_at_both_ends() {
    let lengths = handshake();
    for (end, length) in lengths.into_iter().enumerate() {
        for place in (0..length).step_by(3) {
            let (mut proxy, mut links) = Proxy::between(7);
            proxy.cut = Some((end, place));
            let reasons = proxy.settle(&mut links);
            assert_eq!(reasons, [Some(LinkError::Cut), Some(LinkError::Cut)], "{end} {place}");
        }
    }
}
