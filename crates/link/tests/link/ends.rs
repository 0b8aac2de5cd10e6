//! Both ends of a link in one thread, and what a test does with them.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nicety_link::{Link, LinkError, Secret};
use rustix::event::{PollFd, Timespec, poll};

/// A test that takes longer has failed, on a busy machine too.
const TEST_TIME_MAX: Duration = Duration::from_secs(240);

pub fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).unwrap()
}

pub fn unix() -> [OwnedFd; 2] {
    let (one, two) = UnixStream::pair().unwrap();
    [one.into(), two.into()]
}

pub fn tcp() -> [OwnedFd; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [one.into(), listener.accept().unwrap().0.into()]
}

/// The end that connects and the end that accepts.
pub fn links([connects, accepts]: [OwnedFd; 2], secrets: [&Secret; 2]) -> [Link; 2] {
    [Link::connect(connects, secrets[0]).unwrap(), Link::accept(accepts, secrets[1]).unwrap()]
}

/// Waits for an event of one of these links, for a moment.
pub fn wait(links: &[&Link], moment: Duration) {
    let waited = links.iter().map(|link| (link, link.events())).filter(|(_, events)| !events.is_empty());
    let mut polled: Vec<_> = waited.map(|(link, events)| PollFd::new(link, events)).collect();
    poll(&mut polled, Some(&Timespec::try_from(moment).unwrap())).unwrap();
}

/// Turns both links until this has a result.
pub fn until<T>(links: &mut [Link; 2], mut act: impl FnMut(&mut [Link; 2]) -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        for link in links.iter_mut() {
            let _later = link.turn();
        }
        if let Some(result) = act(links) {
            return result;
        }
        assert!(begun.elapsed() < TEST_TIME_MAX, "it takes too long");
        if !links.iter().any(Link::is_readable) {
            wait(&links.each_ref(), Duration::from_millis(100));
        }
    }
}

pub fn establish(links: &mut [Link; 2]) {
    until(links, |links| links.iter().all(Link::is_established).then_some(()));
}

/// The reason of each end.
pub fn reasons(links: &mut [Link; 2]) -> [LinkError; 2] {
    let mut reasons = [None, None];
    until(links, |links| {
        for (reason, link) in reasons.iter_mut().zip(links) {
            *reason = reason.take().or_else(|| link.turn().err());
        }
        reasons.iter().all(Option::is_some).then_some(())
    });
    reasons.map(Option::unwrap)
}

/// The reason of one link whose other end is no link.
pub fn reason(link: &mut Link) -> LinkError {
    let begun = Instant::now();
    loop {
        if let Err(why) = link.turn() {
            return why;
        }
        assert!(!link.is_established() && begun.elapsed() < TEST_TIME_MAX, "it takes too long");
        wait(&[link], Duration::from_millis(100));
    }
}

/// All that can be read now, and the reason why there is no more.
pub fn drain(link: &mut Link, into: &mut Vec<u8>) -> Option<LinkError> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        match link.read(&mut bytes) {
            Ok(0) => return None,
            Ok(count) => into.extend_from_slice(&bytes[..count]),
            Err(why) => return Some(why),
        }
    }
}

/// Bytes that don't repeat soon, and compress badly.
pub fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..count.div_ceil(8)).flat_map(|_| next()).take(count).collect()
}
