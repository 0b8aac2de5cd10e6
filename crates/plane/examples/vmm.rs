//! Two guests of a VMM of its own, each with an e1000, and a frame from one to the other: no socket, no thread, no clock.
//!
//! ```sh
//! cargo run -p nicety-plane --example vmm
//! ```
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nicety_adapter::{PortId, Set, Time};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_memory::Map;
use nicety_plane::{End, Plane, Port, Shell, Turn};
use nicety_switch::Limits;

/// A port's shell. Only the INTx line is looked at here, and every port gets its turns anyway.
struct Pins(Arc<AtomicBool>);

impl Shell for Pins {
    fn messages(&self, _vectors: Set) {}
    fn line(&self, level: bool) {
        self.0.store(level, Ordering::Relaxed);
    }
    fn schedule(&self) {}
    fn wake_at(&self, _time: Time) {}
}

struct Guest {
    port: Arc<Port>,
    memory: Arc<Map>,
    interrupt: Arc<AtomicBool>,
}

impl Guest {
    fn new(plane: &Plane, number: u8) -> Result<Guest, Box<dyn Error>> {
        let e1000 = find("e1000").ok_or("there is no e1000")?;
        let adapter = (e1000.create)(&Settings::new(Mac([2, 0, 0, 0, 0, number])))?;
        let interrupt = Arc::new(AtomicBool::new(false));
        let shell = Box::new(Pins(Arc::clone(&interrupt)));
        let port = Arc::new(Port::new(PortId(number.into()), End::guest(adapter), shell, 1 << 20)?);
        plane.join(Arc::clone(&port))?;
        port.attach();
        let memory = Arc::new(Map::private(1 << 20)?); // at the guest's address 0
        port.set_memory(Arc::clone(&memory), Time::ZERO);
        port.config_write(4, &6_u16.to_le_bytes(), Time::ZERO); // BARs answer, DMA is allowed
        Ok(Guest { port, memory, interrupt })
    }

    /// The guest writes a register: the VMM's exit handler has the BAR, the offset and the bytes.
    fn write(&self, register: u64, value: u32, now: Time) {
        self.port.write(0, register, &value.to_le_bytes(), now);
    }

    fn read(&self, register: u64, now: Time) -> u32 {
        let mut bytes = [0; 4];
        self.port.read(0, register, &mut bytes, now);
        u32::from_le_bytes(bytes)
    }

    /// A driver's first steps. Registers and bits: Intel's 8254x manual, chapter 13.
    fn start(&self, now: Time) -> Result<(), Box<dyn Error>> {
        for descriptor in 0..8 {
            let buffer = 0x1_0000 + 0x800 * descriptor;
            self.memory.write(0x1000 + 16 * descriptor, &buffer.to_le_bytes())?;
        }
        // Rings of eight descriptors: RDBAL, RDLEN and RDT, TDBAL and TDLEN.
        for (register, value) in [(0x2800, 0x1000), (0x2808, 128), (0x2818, 7), (0x3800, 0x2000), (0x3808, 128)] {
            self.write(register, value, now);
        }
        self.write(0x00d0, 0x80, now); // IMS: tell of received frames
        self.write(0x0100, 0x8002, now); // RCTL: receive, broadcasts too
        self.write(0x0400, 0x2, now); // TCTL: transmit
        self.write(0x0000, 0x40, now); // CTRL: link up
        Ok(())
    }

    fn link(&self, now: Time) -> bool {
        self.read(0x0008, now) & 2 != 0 // STATUS.LU
    }

    fn send(&self, frame: &[u8], now: Time) -> Result<(), Box<dyn Error>> {
        let mut descriptor = 0x8000_u64.to_le_bytes().to_vec();
        descriptor.extend(u16::try_from(frame.len())?.to_le_bytes());
        descriptor.extend([0, 0b1011, 0, 0, 0, 0]); // the packet's end, add the check sequence, report
        self.memory.write(0x8000, frame)?;
        self.memory.write(0x2000, &descriptor)?;
        self.write(0x3818, 1, now); // TDT
        Ok(())
    }

    /// The first received frame, without its check sequence.
    fn received(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        let mut descriptor = [0; 16];
        self.memory.read(0x1000, &mut descriptor)?;
        let length = u16::from_le_bytes([descriptor[8], descriptor[9]]);
        let mut frame = vec![0; usize::from(length).saturating_sub(4)];
        self.memory.read(0x1_0000, &mut frame)?;
        Ok(frame)
    }
}

/// A frame from the first guest to the second.
pub fn main() -> Result<(), Box<dyn Error>> {
    let plane = Plane::new(Limits::default());
    let guests = [Guest::new(&plane, 1)?, Guest::new(&plane, 2)?];
    let mut turn = Turn::new();
    // Time is what the caller says: here a millisecond passes, and each port does what it has to do.
    let mut now = Time::ZERO;
    let mut pass = || {
        now = now.after_ns(1_000_000);
        for guest in &guests {
            loop {
                let outcome = plane.turn(&guest.port, &mut turn, now);
                if !outcome.more && !outcome.unfinished {
                    break;
                }
            }
        }
        now
    };

    let [first, second] = &guests;
    let mut now = pass();
    first.start(now)?;
    second.start(now)?;
    while !(first.link(now) && second.link(now)) {
        now = pass();
    }
    let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 0x88, 0xb5], &[0x5a; 46]].concat();
    first.send(&frame, now)?;
    pass();

    assert!(second.interrupt.load(Ordering::Relaxed), "the second guest is interrupted");
    assert_eq!(second.received()?, frame);
    println!("{} bytes from one guest to the other", frame.len());
    Ok(())
}
