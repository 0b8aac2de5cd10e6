//! The embedded guest: a process of its own that sleeps until its adapter interrupts, a TCP timer expires, or its bench sends an
//! order. It never spins.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nicety_drivers::BUDGET;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use smoltcp::iface::{Config, Interface};
use smoltcp::time::Instant as TcpInstant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Address, Ipv4Cidr};

use super::attach::attach;
use super::cpu;
use super::crowd::crowd;
use super::device::LinkDevice;
use super::flood::Flood;
use super::link::{GuestError, Link};
use super::native::native;
use super::orders::{Orders, send_answer};
use super::program::{EXEC, GUEST};
use super::station::{Station, Task};
use super::words::{Answer, Counts, Order};

/// Time limit for the link to come up.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The hidden command. `guest` reads orders from standard input until its end. `exec PARENT PROGRAM ARGUMENT...` becomes that program,
/// and ends with the process PARENT that started it. Returns the exit code; messages for a person go to `tell`.
pub fn guest_main(args: &[OsString], tell: &mut dyn FnMut(&str)) -> i32 {
    match args.split_first() {
        Some((word, [])) if word == GUEST => guest(),
        Some((word, rest)) if word == EXEC => exec(rest, tell),
        _ => {
            tell("this command is for `nicety compare` itself");
            2
        }
    }
}

fn exec(args: &[OsString], tell: &mut dyn FnMut(&str)) -> i32 {
    let [parent, program, args @ ..] = args else { return 2 };
    let parent = parent.to_str().and_then(|number| number.parse().ok()).and_then(Pid::from_raw);
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        tell(&error.to_string());
        return 1;
    }
    // If the parent ended before that call, no signal will come.
    if parent.is_none() || getppid() != parent {
        return 1;
    }
    let error = std::process::Command::new(program).args(args).exec();
    tell(&format!("{}: {error}", Path::new(program).display()));
    1
}

fn guest() -> i32 {
    let mut orders = Orders::default();
    match serve(&mut orders) {
        Ok(()) => 0,
        Err(error) => {
            // The bench may no longer listen.
            let _sent = send_answer(&Answer::Failed(error.to_string()));
            1
        }
    }
}

fn serve(orders: &mut Orders) -> Result<(), GuestError> {
    let (to, address) = match orders.wait()? {
        Some(Order::Configure { attach, address }) => (attach, address),
        Some(Order::Crowd { attach }) => return crowd(orders, &attach),
        Some(Order::Natively { mbit }) => return native(orders, mbit),
        Some(_) => return Err(GuestError::Peer("the first order must be to configure".to_owned())),
        None => return Ok(()),
    };
    let mut guest = Guest::new(attach(&to)?, address);
    guest.wait_ready(orders)?;
    send_answer(&Answer::Ready)?;
    while !orders.ended() {
        while let Some(order) = orders.next()? {
            guest.execute(&order)?;
        }
        guest.turn()?;
        guest.sleep(orders, None)?;
    }
    guest.device.link().close()
}

struct Guest {
    device: LinkDevice,
    iface: Interface,
    station: Station,
    begun: Instant,
    flood: Option<Flood>,
    /// Interrupts are masked and packets may be waiting.
    polling: bool,
}

impl Guest {
    fn new(link: Box<dyn Link>, address: [u8; 4]) -> Guest {
        let mac = link.mac();
        let mut device = LinkDevice::new(link);
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac.0)));
        config.random_seed = u64::from(u32::from_be_bytes(address));
        let mut iface = Interface::new(config, &mut device, TcpInstant::ZERO);
        iface.update_ip_addrs(|addresses| {
            // The list is empty and has room for at least one.
            let _full = addresses.push(IpCidr::Ipv4(Ipv4Cidr::new(Ipv4Address::from(address), 24)));
        });
        Guest { device, iface, station: Station::new(), begun: Instant::now(), flood: None, polling: false }
    }

    fn wait_ready(&mut self, orders: &mut Orders) -> Result<(), GuestError> {
        let give_up = Instant::now() + TIMEOUT;
        while !self.device.link().up() {
            if Instant::now() >= give_up {
                return Err(GuestError::Peer("the link does not come up".to_owned()));
            }
            if orders.ended() {
                break;
            }
            self.sleep(orders, Some(give_up))?;
            self.turn()?;
        }
        Ok(())
    }

    fn execute(&mut self, order: &Order) -> Result<(), GuestError> {
        let begun = match *order {
            Order::Send { to, seconds, shape } => {
                self.station.begin(&mut self.iface, Task::Send(shape), &[to], seconds, Instant::now())
            }
            Order::SendEach { ref to, seconds, shape, bytes_a_second, from: _ } => {
                let task = bytes_a_second.map_or(Task::Send(shape), |most| Task::SendPaced(shape, most));
                self.station.begin(&mut self.iface, task, to, seconds, Instant::now())
            }
            Order::Listen { shape } => {
                self.station.listen(shape);
                return send_answer(&Answer::Ready);
            }
            Order::Transact { to, seconds } => {
                self.station.begin(&mut self.iface, Task::Transact, &[to], seconds, Instant::now())
            }
            Order::Compare { to, seconds, bytes_a_second } => {
                self.station.begin(&mut self.iface, Task::Compare(bytes_a_second), &[to], seconds, Instant::now())
            }
            Order::Touch { reads, writes } => {
                self.device.link().touch(reads, writes)?;
                return send_answer(&Answer::Touched);
            }
            Order::Report => return send_answer(&Answer::Counts(self.counts())),
            Order::Series => return send_answer(&Answer::Series(self.station.sampled().clone())),
            Order::Windows => return send_answer(&Answer::Windows(self.station.take_windows())),
            Order::Flood { bytes, seconds } => {
                self.flood = Some(Flood::new(self.device.link().mac(), bytes, seconds));
                Ok(())
            }
            Order::Trickle { bytes, a_second, seconds } => {
                self.flood = Some(Flood::trickle(self.device.link().mac(), bytes, a_second, seconds));
                Ok(())
            }
            Order::Offer { .. } => Err("a generator has two ports".to_owned()),
            Order::Configure { .. } | Order::Crowd { .. } | Order::Natively { .. } => {
                Err("the guest is configured already".to_owned())
            }
        };
        begun.map_err(GuestError::Peer)
    }

    fn counts(&mut self) -> Counts {
        let link = self.device.link().counts();
        let (discarded_bytes, span) = self.station.discarded();
        Counts {
            reads: link.reads,
            writes: link.writes,
            interrupts: link.interrupts,
            frames: self.device.frames(),
            bytes: self.device.bytes(),
            cpu_seconds: cpu::seconds_of(std::process::id()).unwrap_or(0.0),
            discarded_bytes,
            discarded_ns: u64::try_from(span.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    fn now(&self) -> TcpInstant {
        TcpInstant::from_micros(i64::try_from(self.begun.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    /// Receives one budget of packets, runs TCP on them and rings one doorbell.
    fn turn(&mut self) -> Result<(), GuestError> {
        let more = self.polling && self.device.fill(BUDGET)?;
        self.device.retry()?;
        loop {
            let now = self.now();
            self.iface.poll(now, &mut self.device, self.station.sockets());
            let (moved, answer) = self.station.step(Instant::now());
            if let Some(answer) = answer {
                send_answer(&answer)?;
            }
            if !moved {
                break;
            }
        }
        if let Some(flood) = &mut self.flood {
            flood.go(self.device.link(), Instant::now(), self.polling)?;
        }
        self.device.flush()?;
        if let Some(frames) = self.flood.as_ref().and_then(Flood::over) {
            self.flood = None;
            send_answer(&Answer::Flooded { frames })?;
        }
        if self.polling && !more {
            self.polling = self.device.link().rest()?;
        }
        Ok(())
    }

    /// Sleeps until there is work, or until `give_up`.
    fn sleep(&mut self, orders: &mut Orders, give_up: Option<Instant>) -> Result<(), GuestError> {
        let wait = if self.polling { Some(Duration::ZERO) } else { self.timeout(give_up) };
        let timeout = wait.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let stdin = std::io::stdin();
        let ready: Vec<bool> = {
            let watch = self.device.link().watch();
            let mut fds: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
            fds.extend(
                watch.iter().map(|(fd, flags): &(BorrowedFd<'_>, PollFlags)| PollFd::from_borrowed_fd(*fd, *flags)),
            );
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(GuestError::System("waiting", errno)),
            }
            fds.iter().map(|fd| !fd.revents().is_empty()).collect()
        };
        if ready.first() == Some(&true) {
            orders.read()?;
        }
        for which in ready.iter().skip(1).enumerate().filter(|(_, ready)| **ready).map(|(which, _)| which) {
            self.polling |= self.device.link().woken(which)?;
        }
        Ok(())
    }

    /// Time until the next work. None: until an event arrives.
    fn timeout(&mut self, give_up: Option<Instant>) -> Option<Duration> {
        let now = Instant::now();
        let tcp_now = self.now();
        // Packets that wait for room in the link are retried at its interrupt.
        let tcp = if self.device.blocked() {
            None
        } else {
            self.iface.poll_delay(tcp_now, self.station.sockets()).map(Duration::from)
        };
        let deadlines = [self.station.deadline(now), give_up].into_iter().flatten();
        let flood = self.flood.as_ref().map(|flood| flood.next(now));
        tcp.into_iter().chain(flood).chain(deadlines.map(|deadline| deadline.saturating_duration_since(now))).min()
    }
}
