//! Instructions that a frame costs between two ports of any adapter, under this project's drivers; counted and not timed, as
//! `instructions` counts them for a driver of DPDK's kind.
//!
//! ```sh
//! cargo build --release -p nicety-plane --example driven
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*counted*' --callgrind-out-file=out \
//!     target/release/examples/driven e1000 1518 20000
//! ```
//! The arguments are an adapter, bytes of a frame (its check sequence counted), frames, and perhaps a number of ports, in pairs; else
//! there are two. "Collected" over the frames is the figure: `Plane::turn` and all beneath it. The drivers poll, so that nobody is
//! interrupted; both directions at once. Virtual functions are of as many cards as they need.
#![forbid(unsafe_code)]

mod help;

use std::sync::Arc;

use nicety_adapter::family::FunctionPolicy;
use nicety_adapter::{Bus, BusError, InterruptKind, Offload, PortId, RingPlace, Set, Time};
use nicety_adapters::{Settings, find};
use nicety_drivers::{Arena, Driver, DriverError, Made, RingBus, VirtioNet, config};
use nicety_frame::Mac;
use nicety_memory::{Map, Mapping, Rights, shared_file};
use nicety_plane::{End, Plane, Port, SharedFamily, Shell, Turn};
use nicety_switch::Limits;

type Error = Box<dyn std::error::Error>;

/// Frames that a driver adds per burst.
const BURST: u32 = 64;
/// Rounds before the counted ones: links come up, addresses are learned.
const WARM: u32 = 20;
/// Time between two turns.
const STEP_NS: u64 = 20_000;
/// Size of a guest's memory, and start of its driver's part.
const MEMORY: u64 = 32 << 20;
const ARENA: u64 = 1 << 20;

/// Notifies nobody: the drivers poll.
struct Silent;

impl Shell for Silent {
    fn messages(&self, _vectors: Set) {}
    fn line(&self, _level: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _time: Time) {}
}

/// A port, with its driver's way of access.
struct Place {
    port: Arc<Port>,
    memory: Arc<Map>,
    now: Time,
}

impl Place {
    fn rings<R>(&self, act: impl FnOnce(&mut dyn nicety_adapter::RingFace) -> Option<R>) -> Result<R, BusError> {
        let done = self.port.with_rings(self.now, |rings, _| act(rings)).flatten();
        done.ok_or_else(|| BusError("the adapter's rings do not do that".to_owned()))
    }
}

impl Bus for Place {
    fn config_read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), BusError> {
        self.port.config_read(offset.into(), data, self.now);
        Ok(())
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) -> Result<(), BusError> {
        self.port.config_write(offset, data, self.now);
        Ok(())
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.port.read(bar, offset, data, self.now);
        Ok(())
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.port.write(bar, offset, data, self.now);
        Ok(())
    }

    fn memory(&self) -> &Arc<Map> {
        &self.memory
    }

    fn interrupts(&mut self, kind: InterruptKind) -> Result<(), BusError> {
        config::set(self, config::COMMAND, config::COMMAND_NO_INTX, kind != InterruptKind::Intx)?;
        if let Some(at) = config::capability(self, config::MSIX)? {
            let on = matches!(kind, InterruptKind::Msix(_));
            config::set(self, at + config::MESSAGE_CONTROL, config::MSIX_ENABLE, on)?;
        }
        Ok(())
    }

    fn unmask_line(&mut self) -> Result<(), BusError> {
        Ok(())
    }
}

impl RingBus for Place {
    fn negotiate(&mut self, wanted: u64) -> Result<u64, BusError> {
        self.rings(|rings| {
            let both = rings.features() & u128::from(wanted);
            rings.take_features(both).then_some(both as u64)
        })
    }

    fn config(&mut self, offset: u32, data: &mut [u8]) -> Result<(), BusError> {
        self.rings(|rings| rings.config(offset, data).then_some(()))
    }

    fn memory(&self) -> &Arc<Map> {
        &self.memory
    }

    fn start(&mut self, ring: u16, place: RingPlace) -> Result<(), BusError> {
        let started = self.port.with_rings(self.now, |rings, cx| {
            rings.enable(ring, true, cx);
            rings.place(ring, place) && rings.start(ring, 0, cx)
        });
        if started == Some(true) { Ok(()) } else { Err(BusError("it does not start that ring".to_owned())) }
    }

    fn stop(&mut self, ring: u16) -> Result<(), BusError> {
        self.port.with_rings(self.now, |rings, cx| rings.stop(ring, cx));
        Ok(())
    }

    fn kick(&mut self, ring: u16) -> Result<(), BusError> {
        self.port.with_rings(self.now, |rings, cx| rings.kick(ring, cx));
        Ok(())
    }
}

/// A driver for PCI or for rings.
enum Net {
    Pci(Box<dyn Driver>),
    Rings(Box<VirtioNet>),
}

/// Calls the same method of either driver.
macro_rules! either {
    ($net:expr, $driver:ident => $call:expr) => {
        match $net {
            Net::Pci($driver) => $call,
            Net::Rings($driver) => $call,
        }
    };
}

/// A port, and its driver.
struct Guest {
    place: Place,
    net: Net,
    mac: Mac,
}

impl Guest {
    fn new(plane: &Plane, name: &str, number: u16, cards: &[SharedFamily]) -> Result<Self, Error> {
        let entry = find(name).ok_or("there is no such adapter")?;
        let [high, low] = number.to_be_bytes();
        let mac = Mac([2, 0, 0, 1, high, low]);
        let adapter = (entry.create)(&Settings::new(mac))?;
        let port = Arc::new(Port::new(PortId(number), End::guest(adapter), Box::new(Silent), 1 << 20)?);
        let mapping = Arc::new(Mapping::of_file(shared_file("guest", MEMORY)?, 0, MEMORY, true)?);
        let memory = Arc::new(Map::default().with(0, mapping, Rights::BOTH)?);
        if let Some(card) = entry.card
            && let Some(family) = cards.get(usize::from(number / card.functions))
        {
            port.join_family(family, number % card.functions, None);
            port.set_function_policy(FunctionPolicy::free(mac));
        }
        port.attach();
        port.set_memory(Arc::clone(&memory), Time::ZERO);
        plane.join(Arc::clone(&port))?;
        let driver = nicety_drivers::find(entry.about.pci).ok_or("there is no driver for it")?;
        let mut place = Place { port, memory, now: Time::ZERO };
        let mut net = match (driver.make)(Arena::new(ARENA, MEMORY - ARENA)) {
            Made::Pci(driver) => Net::Pci(driver),
            Made::Rings(driver) => Net::Rings(driver),
        };
        either!(&mut net, driver => driver.open(&mut place))?;
        Ok(Self { place, net, mac })
    }

    /// A burst of frames.
    fn send(&mut self, frame: &[u8], now: Time) -> Result<(), DriverError> {
        self.place.now = now;
        let place = &mut self.place;
        for _ in 0..BURST {
            if !either!(&mut self.net, driver => driver.transmit(place, frame, &Offload::default()))? {
                return Err(DriverError::Device("takes no more frames"));
            }
        }
        either!(&mut self.net, driver => driver.flush(place))
    }

    /// Receives all waiting frames.
    fn receive(&mut self) -> Result<usize, DriverError> {
        let place = &mut self.place;
        let mut received = 0;
        loop {
            match either!(&mut self.net, driver => driver.receive(place, BURST as usize, &mut |_, _| ()))? {
                0 => return Ok(received),
                count => received += count,
            }
        }
    }
}

/// The counted part: turns of each port until it has no work.
#[inline(never)]
fn counted(plane: &Plane, guests: &[Guest], turn: &mut Turn, now: Time) {
    guests.iter().for_each(|guest| serve(plane, &guest.place.port, turn, now));
}

#[inline(never)]
fn serve(plane: &Plane, port: &Port, turn: &mut Turn, now: Time) {
    while plane.turn(port, turn, now).more {}
}

/// UDP over IPv4 without a checksum, in a frame of this many bytes without its check sequence.
fn frame(len: u16, to: Mac, from: Mac) -> Vec<u8> {
    let mut frame = vec![0; usize::from(len)];
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[16..18].copy_from_slice(&(len - 14).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..38].copy_from_slice(&[0, 9, 0, 9]);
    frame[38..40].copy_from_slice(&(len - 34).to_be_bytes());
    frame
}

fn main() -> Result<(), Error> {
    help::on_request(include_str!("driven.rs"));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, bytes, frames, ports) = match &arguments[..] {
        [name, bytes, frames] => (name, bytes, frames, 2),
        [name, bytes, frames, ports] => (name, bytes, frames, ports.parse::<u16>()?),
        _ => return Err("arguments: adapter bytes frames [ports]".into()),
    };
    if ports == 0 || !ports.is_multiple_of(2) {
        return Err("ports come in pairs".into());
    }
    let len = bytes.parse::<u16>()?.checked_sub(4).filter(|len| (60..=1514).contains(len));
    let len = len.ok_or("a frame has 64 to 1518 bytes")?;
    let plane = Plane::new(Limits::default());
    let nobody = FunctionPolicy::free(Mac([0; 6]));
    let cards: Vec<SharedFamily> = find(name).and_then(|entry| entry.card).map_or_else(Vec::new, |card| {
        let family = || SharedFamily::new((card.family)(vec![nobody; card.functions.into()]));
        (0..ports.div_ceil(card.functions)).map(|_| family()).collect()
    });
    let guests: Result<Vec<Guest>, Error> = (0..ports).map(|number| Guest::new(&plane, name, number, &cards)).collect();
    let mut guests = guests?;
    let macs: Vec<Mac> = guests.iter().map(|guest| guest.mac).collect();
    let sent: Vec<Vec<u8>> = (0..macs.len()).map(|number| frame(len, macs[number ^ 1], macs[number])).collect();
    let (mut turn, mut now) = (Turn::new(), Time::ZERO);
    let rounds = frames.parse::<u32>()?.div_ceil(u32::from(ports) * BURST);
    for round in 0..WARM + rounds {
        now = now.after_ns(STEP_NS);
        guests.iter_mut().zip(&sent).try_for_each(|(guest, frame)| guest.send(frame, now))?;
        match round < WARM {
            true => guests.iter().for_each(|guest| serve(&plane, &guest.place.port, &mut turn, now)),
            false => counted(&plane, &guests, &mut turn, now),
        }
        for guest in &mut guests {
            let received = guest.receive()?;
            if round >= WARM && received != BURST as usize {
                return Err(format!("{received} frames came").into());
            }
        }
    }
    println!("{} frames of {bytes} bytes", rounds * u32::from(ports) * BURST);
    Ok(())
}
