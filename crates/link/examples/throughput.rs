//! How many bytes a second a link carries over the loopback device, with a thread at each end:
//! `cargo run --release -p nicety-link --example throughput`.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nicety_link::{Link, LinkError, Secret};
use rustix::event::{PollFd, poll};

const LENGTH: usize = 8 << 30;

fn wait(link: &Link) {
    poll(&mut [PollFd::new(link, link.events())], None).expect("poll");
}

fn write(socket: OwnedFd, secret: &Secret) -> Result<(), LinkError> {
    let mut link = Link::connect(socket, secret)?;
    let block = vec![0x5a; 256 << 10];
    let mut left = LENGTH;
    loop {
        while left > 0 {
            let count = link.write(&block[..left.min(block.len())]);
            if count == 0 {
                break;
            }
            left -= count;
        }
        if left == 0 {
            link.finish();
        }
        link.turn()?;
        if left == 0 && link.is_established() && link.is_flushed() {
            return Ok(());
        }
        wait(&link);
    }
}

fn read(socket: OwnedFd, secret: &Secret) -> Result<(usize, Duration), LinkError> {
    let mut link = Link::accept(socket, secret)?;
    let mut bytes = vec![0; 256 << 10];
    let (mut count, mut begun) = (0, None);
    loop {
        link.turn()?;
        loop {
            match link.read(&mut bytes) {
                Ok(0) => break,
                Ok(read) => count += read,
                Err(LinkError::Ended) => {
                    return Ok((count, begun.map_or(Duration::ZERO, |begun: Instant| begun.elapsed())));
                }
                Err(why) => return Err(why),
            }
            begun.get_or_insert_with(Instant::now);
        }
        wait(&link);
    }
}

fn main() {
    let secret = Secret::new(&[7; 32]).expect("a key");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let ours = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let theirs = listener.accept().expect("a connection").0;
    let (count, time) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(ours.into(), &secret));
        let read = read(theirs.into(), &secret).expect("the reader");
        writer.join().expect("a thread").expect("the writer");
        read
    });
    println!("{count} bytes in {time:?}: {:.0} MB/s", count as f64 / 1e6 / time.as_secs_f64());
}
