//! Echo requests every 10 ms, from a guest of our own driver to a real guest that moves. They show when the guest was not reached.

use std::{
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nicety_frame::{Mac, checksum::sum, ethernet, ipv4};

use crate::{
    rings_guest::Guest,
    stage::{LATER, address, mac, sh, well},
};

/// Time between two requests.
pub const INTERVAL: Duration = Duration::from_millis(10);
/// Requests that are sent so shortly before a pause or at its end may belong to it: they are on their way, on a busy machine.
const ON_THE_WAY: Duration = Duration::from_millis(50);
/// Types of ICMP (RFC 792), and the identifier of these requests.
const ECHO: u8 = 8;
const REPLY: u8 = 0;
const IDENTIFIER: u16 = 0x4e59;
const ETHERTYPE_IPV4: u16 = 0x0800;

/// Requests and answers so far.
#[derive(Debug, Default)]
struct Seen {
    /// The time at which each request was sent, by its number.
    sent: Vec<SystemTime>,
    /// The numbers of the answers, as they came.
    answered: Vec<u16>,
    is_over: bool,
}

/// See the module's page.
pub struct Requests {
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
    /// Requests before this one are judged.
    judged: usize,
}

/// A time in which the guest need not answer.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// The time at which it began.
    pub begin: SystemTime,
    /// The time at which the guest went on.
    pub end: SystemTime,
    /// When the sender's host knew its place. Before this its frames may be lost, too.
    pub known: SystemTime,
}

impl Pause {
    /// The guest answers all the time.
    pub const NONE: Pause = Pause { begin: UNIX_EPOCH, end: UNIX_EPOCH, known: UNIX_EPOCH };
}

fn request(number: u16) -> Vec<u8> {
    let addresses = [3, 1].map(|number| well(mac(number).parse::<Mac>()));
    let [source, destination] = [3, 1].map(|number| well(address(number).parse::<Ipv4Addr>()));
    let [high, low] = IDENTIFIER.to_be_bytes();
    let [first, second] = number.to_be_bytes();
    let mut message = [ECHO, 0, 0, 0, high, low, first, second];
    let checksum = sum(&message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = vec![0; 60];
    let link = ethernet::Header { source: addresses[0], destination: addresses[1], ethertype: ETHERTYPE_IPV4 };
    let start = well(link.write(&mut frame));
    let payload_len = message.len();
    let header =
        ipv4::Header { source, destination, protocol: ipv4::protocol::ICMP, payload_len, ..ipv4::Header::default() };
    let start = start + well(header.write(&mut frame[start..]));
    frame[start..start + payload_len].copy_from_slice(&message);
    frame
}

/// The number of the request that this frame answers.
fn answered(frame: &[u8]) -> Option<u16> {
    let link = ethernet::View::parse(frame).ok().filter(|link| link.ethertype() == ETHERTYPE_IPV4)?;
    let packet = ipv4::View::parse(link.payload()).ok()?;
    let [REPLY, 0, _, _, high, low, first, second] = *packet.payload().first_chunk::<8>()? else { return None };
    (u16::from_be_bytes([high, low]) == IDENTIFIER).then(|| u16::from_be_bytes([first, second]))
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(mut guest: Guest, seen: &Mutex<Seen>) {
    let mut next = Instant::now();
    loop {
        let frames = guest.take_frames();
        let mut now = lock(seen);
        now.answered.extend(frames.iter().filter_map(|frame| answered(frame)));
        if now.is_over {
            return;
        }
        let number = well(u16::try_from(now.sent.len()));
        now.sent.push(SystemTime::now());
        drop(now);
        guest.send_frame(&request(number));
        next = (next + INTERVAL).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

impl Requests {
    /// Begins to send, from the guest number 3 at this socket to number 1, which answers.
    pub fn start(socket: PathBuf, to: &mut nicety_guests::Guest) -> Requests {
        // The guest need not ask for the sender's address, whatever it has forgotten.
        sh(to, &format!("arp -s {} {}", address(3), mac(3)));
        let (seen, guest) = (Arc::new(Mutex::new(Seen::default())), Guest::new(socket));
        let shared = Arc::clone(&seen);
        let mut requests = Requests { seen, thread: Some(thread::spawn(move || run(guest, &shared))), judged: 0 };
        requests.wait("the first answers", |now| now.answered.len() > 10);
        // Until its address was known, the first ones may have been lost.
        requests.judged = usize::from(lock(&requests.seen).answered.last().copied().unwrap_or_default());
        requests
    }

    fn wait(&self, what: &str, done: impl Fn(&Seen) -> bool) {
        let end = Instant::now() + LATER;
        while !done(&lock(&self.seen)) {
            let is_running = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
            let now = lock(&self.seen);
            let counts = [now.sent.len(), now.answered.len()];
            drop(now);
            assert!(is_running && Instant::now() < end, "{what}: {counts:?} requests and answers");
            thread::sleep(INTERVAL);
        }
    }

    /// Requests so far.
    pub fn count(&self) -> usize {
        lock(&self.seen).sent.len()
    }

    /// Waits until so many of the requests from now on are answered.
    pub fn answered(&self, count: usize) {
        let first = self.count();
        let fresh = |now: &Seen| now.answered.iter().filter(|number| usize::from(**number) >= first).count();
        self.wait("answers", |now| fresh(now) >= count);
    }

    /// All requests since the last judgement are answered, each once and in order, but for those of this pause. Prints what was lost, and
    /// returns the number of these requests.
    #[track_caller]
    pub fn judge(&mut self, what: &str, pause: Pause) -> usize {
        self.judge_ways(what, pause, true)
    }

    /// Like [`judge`](Self::judge) where the guest changes from one of its adapters to another: what it has put into the queue of the old one
    /// may be behind what it sends by the new one.
    #[track_caller]
    pub fn judge_change(&mut self, what: &str, pause: Pause) -> usize {
        self.judge_ways(what, pause, false)
    }

    #[track_caller]
    fn judge_ways(&mut self, what: &str, pause: Pause, in_order: bool) -> usize {
        let end = pause.end.max(pause.known);
        self.wait("answers after the pause", |now| {
            now.answered.last().is_some_and(|last| now.sent[usize::from(*last)] > end + 5 * ON_THE_WAY)
        });
        let mut now = lock(&self.seen);
        if !in_order {
            now.answered.sort_unstable();
        }
        if let Some(at) = now.answered.windows(2).position(|two| two[0] >= two[1]) {
            let around = at.saturating_sub(5)..now.answered.len().min(at + 6);
            let sent = &now.sent[usize::from(now.answered[at])];
            panic!("{what}: not each once and in order: {:?}, sent at {sent:?}, {pause:?}", &now.answered[around]);
        }
        let last = now.answered.last().copied().map_or(0, usize::from);
        let all = self.judged..last;
        let lost: Vec<usize> = all.filter(|&number| now.answered.binary_search(&(number as u16)).is_err()).collect();
        let may_be_lost = (pause.begin - ON_THE_WAY)..(end + ON_THE_WAY);
        let mut others = lost.iter().filter(|&&number| !may_be_lost.contains(&now.sent[number]));
        let late = lost.iter().filter(|&&number| now.sent[number] >= pause.end).count();
        let since = |from: SystemTime, to: SystemTime| match to.duration_since(from) {
            Ok(later) => format!("{} ms after", later.as_millis()),
            Err(earlier) => format!("{} ms before", earlier.duration().as_millis()),
        };
        println!(
            "{what}: paused for {} ms, known {} the end of that; {} of {} lost, {late} of them after the pause",
            pause.end.duration_since(pause.begin).unwrap_or_default().as_millis(),
            since(pause.end, pause.known),
            lost.len(),
            last - self.judged,
        );
        let beyond = others.next().map(|&number| (number, now.sent[number]));
        let more = others.count();
        assert_eq!(beyond, None, "{what}: lost beyond {pause:?}, and {more} more");
        drop(now);
        self.judged = last;
        lost.len()
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        lock(&self.seen).is_over = true;
        // A thread that has panicked has failed the test already.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}
