//! A bench without guests. Its figures follow from the item alone, so tests know the expected results.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Bench, BenchError, Latency, Measured, Outcome, Usage};
use crate::method::{Contestant, Guests, Item, Load, Order, Server};
use crate::series::Series;

/// A fault that the bench injects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Items whose text contains the string fail with the error.
    On(String, BenchError),
    /// The run of this number is cancelled, as by Ctrl-C.
    CancelAt(usize),
}

#[derive(Debug, Clone)]
pub(crate) struct FakeBench {
    pub(crate) guests: Guests,
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) absent: Vec<(Contestant, String)>,
    pub(crate) loads: Vec<Load>,
    pub(crate) overhead: Duration,
    pub(crate) order: Order,
    pub(crate) faults: Vec<Fault>,
    pub(crate) ran: Vec<Item>,
}

impl FakeBench {
    /// Two adapters, each served by two servers.
    pub(crate) fn two_servers() -> FakeBench {
        let of = |adapter| [Server::Nicety, Server::Qemu].map(|server| Contestant::new(adapter, server));
        FakeBench {
            guests: Guests::Qemu,
            contestants: [of("e1000"), of("virtio-net")].concat(),
            absent: Vec::new(),
            loads: Load::ALL.to_vec(),
            overhead: Duration::from_millis(100),
            order: Order::EveryRun,
            faults: Vec::new(),
            ran: Vec::new(),
        }
    }

    /// Two adapters, each served by Nicety over two transports; QEMU serves one of them. No traffic leaves the host.
    pub(crate) fn linked() -> FakeBench {
        let contestants = Server::ALL.map(|server| Contestant::new("e1000", server));
        let others = [Server::Nicety, Server::NicetyStream].map(|server| Contestant::new("virtio-net", server));
        FakeBench {
            guests: Guests::Uml,
            contestants: contestants.into_iter().chain(others).collect(),
            absent: vec![(Contestant::new("virtio-net", Server::Qemu), "QEMU has none".to_owned())],
            loads: vec![Load::GuestToGuest, Load::RequestResponse],
            ..FakeBench::two_servers()
        }
    }

    /// One adapter served by two servers, and one driven from user space.
    pub(crate) fn user_space() -> FakeBench {
        let e1000 = [Server::Nicety, Server::Qemu].map(|server| Contestant::new("e1000", server));
        let vmxnet = Contestant::new("vmxnet", Server::Nicety).by_user_space();
        FakeBench {
            contestants: e1000.into_iter().chain([vmxnet]).collect(),
            absent: vec![(Contestant::new("vmxnet", Server::Qemu), "QEMU has no such adapter".to_owned())],
            ..FakeBench::two_servers()
        }
    }

    /// Mbit/s of a bulk run: virtio-net moves twice e1000's, Nicety 1.5 times QEMU's (1.2 times over a stream). Each round is 1 %
    /// faster.
    fn megabits(item: &Item) -> f64 {
        let adapter = if item.contestant.adapter == "virtio-net" { 2.0 } else { 1.0 };
        let server = match item.contestant.server {
            Server::Nicety => 1.5,
            Server::NicetyStream => 1.2,
            Server::Qemu => 1.0,
        };
        1_000.0 * adapter * server * (1.0 + f64::from(item.round) / 100.0)
    }
}

impl Bench for FakeBench {
    fn guests(&self) -> Guests {
        self.guests
    }

    fn contestants(&self) -> Vec<Contestant> {
        self.contestants.clone()
    }

    fn absent(&self) -> Vec<(Contestant, String)> {
        self.absent.clone()
    }

    fn loads(&self) -> Vec<Load> {
        self.loads.clone()
    }

    fn order(&self) -> Order {
        self.order
    }

    fn overhead(&self) -> Duration {
        self.overhead
    }

    fn run(&mut self, item: &Item, duration: Duration, cancel: &AtomicBool) -> Result<Measured, BenchError> {
        let number = self.ran.len();
        self.ran.push(item.clone());
        for fault in &self.faults {
            match fault {
                Fault::On(text, error) if item.to_string().contains(text.as_str()) => return Err(error.clone()),
                Fault::CancelAt(at) if *at == number => {
                    cancel.store(true, Ordering::Relaxed);
                    return Err(BenchError::Cancelled);
                }
                _ => {}
            }
        }
        let payload_bytes = (Self::megabits(item) * duration.as_secs_f64() * 1e6 / 8.0) as u64;
        let outcome = match item.load {
            Load::RequestResponse => Outcome::Transactions {
                count: payload_bytes / 1_000,
                elapsed: duration,
                latency: Latency::EveryNs((1..=100).map(|micros| micros * 1_000).collect()),
            },
            _ => Outcome::Bulk { payload_bytes, elapsed: duration },
        };
        let counted = |count| (item.contestant.server != Server::Qemu).then_some(count);
        let usage = Usage {
            frames: counted(10_000),
            register_reads: counted(1_000),
            register_writes: counted(2_000),
            interrupts: counted(500),
            cpu_seconds: Some(0.25),
            guest_cpu_seconds: Some(0.125),
            ..Usage::default()
        };
        let mut series = Series::default();
        let slots = 30_u32;
        for slot in 1..=slots {
            // The rate climbs at first, as TCP's does.
            let rate = payload_bytes as f64 * 8e-6 / duration.as_secs_f64() * f64::from(slot.min(3)) / 3.0;
            let rate = if item.load == Load::RequestResponse { rate * 125.0 } else { rate };
            series.push(duration.as_secs_f64() * f64::from(slot) / f64::from(slots), rate);
        }
        Ok(Measured { outcome, usage, series: Some(series) })
    }
}
