//! The guests of one process, one per port, and the wait for their interrupts and the process's orders.

use std::os::fd::OwnedFd;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::attach::attach;
use super::link::{GuestError, Link};
use super::orders::Orders;
use super::words::Attach;

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

/// All guests of a process.
pub struct Members {
    epoll: OwnedFd,
    /// They, in the order of their ports.
    pub all: Vec<Member>,
}

impl Members {
    /// Attaches to all ports.
    pub fn attach(to: &[Attach]) -> Result<Members, GuestError> {
        let failed = |what| move |errno| GuestError::System(what, errno);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("making an epoll set"))?;
        let watch = failed("watching a descriptor");
        epoll::add(&epoll, std::io::stdin(), EventData::new_u64(ORDERS), EventFlags::IN).map_err(watch)?;
        let mut all = Vec::with_capacity(to.len());
        for (number, to) in to.iter().enumerate() {
            let link = attach(to)?;
            for (which, (fd, _)) in link.watch().iter().enumerate() {
                let token = EventData::new_u64((number as u64) << 32 | which as u64);
                epoll::add(&epoll, fd, token, EventFlags::IN).map_err(watch)?;
            }
            all.push(Member { link, polling: false });
        }
        Ok(Members { epoll, all })
    }

    /// Takes interrupts and orders; without `busy` it sleeps until there is one.
    pub fn wait(&mut self, busy: bool, orders: &mut Orders) -> Result<(), GuestError> {
        let mut events = Vec::with_capacity(EVENTS);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), busy.then_some(&none)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(GuestError::System("waiting", errno)),
        }
        for event in events {
            let token = event.data.u64();
            if token == ORDERS {
                orders.read()?;
            } else if let Some(member) = self.all.get_mut((token >> 32) as usize) {
                member.polling |= member.link.woken((token & 0xffff_ffff) as usize)?;
            }
        }
        Ok(())
    }
}
