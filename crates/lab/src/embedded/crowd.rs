//! Many guests in one process, one per port. Their drivers are up and receive packets. They send nothing, unless the first two are
//! ordered to be a generator.

use std::os::fd::OwnedFd;

use nicety_drivers::BUDGET;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::attach::attach;
use super::generator::offer;
use super::link::{GuestError, Link};
use super::orders::{Orders, send_answer};
use super::words::{Answer, Attach, Order};

/// Event token of the pipe that carries orders.
const ORDERS: u64 = u64::MAX;
const EVENTS: usize = 64;

/// A guest at a port.
pub struct Member {
    /// Its adapter.
    pub link: Box<dyn Link>,
    /// Interrupts are masked and packets may be waiting.
    pub polling: bool,
}

/// Attaches to all ports and serves them until the orders end.
pub fn crowd(orders: &mut Orders, to: &[Attach]) -> Result<(), GuestError> {
    let failed = |what| move |errno| GuestError::System(what, errno);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("making an epoll set"))?;
    let watch = failed("watching a descriptor");
    epoll::add(&epoll, std::io::stdin(), EventData::new_u64(ORDERS), EventFlags::IN).map_err(watch)?;
    let mut members = Vec::with_capacity(to.len());
    for (number, to) in to.iter().enumerate() {
        let link = attach(to)?;
        for (which, (fd, _)) in link.watch().iter().enumerate() {
            let token = EventData::new_u64((number as u64) << 32 | which as u64);
            epoll::add(&epoll, fd, token, EventFlags::IN).map_err(watch)?;
        }
        members.push(Member { link, polling: false });
    }
    let mut ready = false;
    while !orders.ended() {
        let mut busy = false;
        for member in members.iter_mut().filter(|member| member.polling) {
            if member.link.receive(BUDGET, &mut |_, _| {})? < BUDGET {
                member.polling = member.link.rest()?;
            }
            member.link.flush()?;
            busy |= member.polling;
        }
        if !ready && members.iter().all(|member| member.link.up()) {
            ready = true;
            send_answer(&Answer::Ready)?;
        }
        wait(&epoll, busy, orders, &mut members)?;
        match orders.next()? {
            Some(Order::Offer { wire_bytes, a_second, seconds }) => {
                let offered = offer(&epoll, orders, &mut members, (wire_bytes, a_second, seconds))?;
                send_answer(&Answer::Offered(offered))?;
            }
            Some(_) => return Err(GuestError::Peer("these guests only receive, or offer frames".to_owned())),
            None => {}
        }
    }
    members.iter_mut().try_for_each(|member| member.link.close())
}

/// Takes interrupts and orders; without `busy` it sleeps until there is one.
pub fn wait(epoll: &OwnedFd, busy: bool, orders: &mut Orders, members: &mut [Member]) -> Result<(), GuestError> {
    let mut events = Vec::with_capacity(EVENTS);
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), busy.then_some(&none)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(GuestError::System("waiting", errno)),
    }
    for event in events {
        let token = event.data.u64();
        if token == ORDERS {
            orders.read()?;
        } else if let Some(member) = members.get_mut((token >> 32) as usize) {
            member.polling |= member.link.woken((token & 0xffff_ffff) as usize)?;
        }
    }
    Ok(())
}
