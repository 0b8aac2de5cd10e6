//! The cost of a message: reads, writes, posted writes and interrupts between two threads over a socket pair.
//!
//! `cargo run --release -p nicety-vfio-user --example round_trips`

mod help;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_vfio_user::codec::irqs::MSIX;
use nicety_vfio_user::{
    Change, Client, Device, DmaMap, DmaRange, Errno, Interrupts, IrqInfo, IrqLayout, IrqSet, NoMemory, RegionInfo,
    Session,
};
use rustix::event::{PollFd, PollFlags, poll};

struct Register(u64, Arc<Interrupts>);

impl Device for Register {
    fn region(&self, index: u32) -> Option<RegionInfo> {
        (index == 0).then(|| RegionInfo::trapped(4096))
    }
    fn irq_info(&self, index: u32) -> Option<IrqInfo> {
        self.1.info(index)
    }
    fn region_read(&mut self, _region: u32, _offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        data.iter_mut().zip(self.0.to_le_bytes()).for_each(|(to, from)| *to = from);
        Ok(())
    }
    fn region_write(&mut self, _region: u32, _offset: u64, _data: &[u8]) -> Result<(), Errno> {
        self.0 = self.0.wrapping_add(1);
        Ok(())
    }
    fn dma_map(&mut self, _map: DmaMap) -> Result<Change, Errno> {
        Ok(Change::Done)
    }
    fn dma_unmap(&mut self, _range: Option<DmaRange>) -> Change {
        Change::Done
    }
    fn set_irqs(&mut self, set: IrqSet<'_>) -> Result<(), Errno> {
        self.1.apply(set)
    }
    fn reset(&mut self) -> Result<(), Errno> {
        Ok(())
    }
}

fn run(socket: OwnedFd, interrupts: Arc<Interrupts>) -> Session {
    let mut session = Session::new(socket);
    let mut device = Register(0, interrupts);
    while let Ok(progress) = session.receive(&mut device) {
        if progress.more && !session.wants_write() {
            continue;
        }
        let events = if session.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut fds = [PollFd::from_borrowed_fd(session.as_fd(), events)];
        if poll(&mut fds, None).is_err() {
            break;
        }
    }
    session
}

fn report(name: &str, count: u32, begun: Instant) {
    println!("{name:<32} {:>8.2} us each", begun.elapsed().as_secs_f64() * 1e6 / f64::from(count));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    help::on_request(include_str!("round_trips.rs"));
    const COUNT: u32 = 100_000;
    let (near, far) = std::os::unix::net::UnixStream::pair()?;
    let interrupts = Arc::new(Interrupts::new(IrqLayout { msix: 1, ..IrqLayout::default() }));
    let server = std::thread::spawn({
        let interrupts = Arc::clone(&interrupts);
        move || run(far.into(), interrupts)
    });
    let mut client = Client::from_socket(near.into(), Duration::from_secs(5), Box::new(NoMemory))?;
    let mut data = [0; 4];
    let begun = Instant::now();
    for _ in 0..COUNT {
        client.region_read(0, 0, &mut data)?;
    }
    report("read", COUNT, begun);
    let begun = Instant::now();
    for _ in 0..COUNT {
        client.region_write(0, 0, &data)?;
    }
    report("write", COUNT, begun);
    let begun = Instant::now();
    for _ in 0..COUNT {
        client.region_write_posted(0, 0, &data)?;
    }
    client.region_read(0, 0, &mut data)?;
    report("posted write", COUNT, begun);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK)?;
    client.connect_irqs(MSIX, 0, &[event.as_fd()])?;
    let begun = Instant::now();
    for _ in 0..COUNT {
        interrupts.raise_msix(0);
    }
    report("interrupt raised", COUNT, begun);
    drop(client);
    let session = server.join().map_err(|_| "the server's thread failed")?;
    let counters = session.counters();
    println!(
        "server: {} messages in, {} out, {} recvmsg, {} sendmsg",
        counters.messages_received(),
        counters.messages_sent(),
        counters.receive_calls,
        counters.send_calls
    );
    Ok(())
}
