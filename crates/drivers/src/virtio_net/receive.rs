//! The receive queue: each descriptor has one buffer of a page. A packet takes as many buffers as it needs (5.1.6.3.1).

use nicety_memory::Map;

use super::ring::{Ring, WRITE, descriptor};
use super::{features, header};
use crate::{Arena, DriverError, Received};

const BUFFER: u32 = 4096;
/// Buffers that the driver makes available together.
const REFILL: u16 = 16;

#[derive(Debug, Default)]
pub(super) struct Receive {
    pub ring: Ring,
    buffers: u64,
    packet: Vec<u8>,
    waiting: u16,
}

impl Receive {
    pub(super) fn new(memory: &Map, arena: &mut Arena, size: u16, taken: u64) -> Result<Receive, DriverError> {
        let ring = Ring::new(memory, arena, size, features::has(taken, features::EVENTS))?;
        let buffers = arena.take(u64::from(size) * u64::from(BUFFER), BUFFER.into())?;
        let mut receive = Receive { ring, buffers, packet: Vec::with_capacity(68 << 10), waiting: 0 };
        let window = ring.window(memory)?;
        for index in 0..size {
            receive.ring.set(&window, index, &descriptor(receive.buffer(index), BUFFER, WRITE, 0));
            receive.ring.add(&window, index);
        }
        receive.ring.show(&window);
        Ok(receive)
    }

    fn buffer(&self, index: u16) -> u64 {
        self.buffers + u64::from(index) * u64::from(BUFFER)
    }

    /// Takes the next packet into `packet`. The device returns all its buffers together with the first.
    pub(super) fn next(&mut self, memory: &Map) -> Result<Option<Received>, DriverError> {
        let window = self.ring.window(memory)?;
        let Some((index, len)) = self.ring.take(&window)? else { return Ok(None) };
        let mut head = [0; header::BYTES];
        memory.read(self.buffer(index), &mut head)?;
        self.packet.clear();
        self.append(memory, index, header::BYTES, len)?;
        self.ring.add(&window, index);
        self.waiting += 1;
        for _ in 1..header::buffers(&head) {
            let Some((index, len)) = self.ring.take(&window)? else {
                return Err(DriverError::Device("gives back fewer buffers than a packet says it has"));
            };
            self.append(memory, index, 0, len)?;
            self.ring.add(&window, index);
            self.waiting += 1;
        }
        if self.waiting >= REFILL {
            self.waiting = 0;
            self.ring.show(&window);
        }
        Ok(Some(header::received(&head, &self.packet)))
    }

    fn append(&mut self, memory: &Map, index: u16, from: usize, len: u32) -> Result<(), DriverError> {
        let Some(len) = (len as usize).checked_sub(from).filter(|_| len <= BUFFER) else {
            return Err(DriverError::Device("wrote less than a header, or more than a buffer"));
        };
        let at = self.packet.len();
        self.packet.resize(at + len, 0);
        Ok(memory.read(self.buffer(index) + from as u64, self.packet.get_mut(at..).unwrap_or_default())?)
    }

    /// The packet that [`Receive::next`] has assembled.
    pub(super) fn packet(&mut self) -> &mut Vec<u8> {
        &mut self.packet
    }

    /// Makes every free buffer available. True if the device wants a notification.
    pub(super) fn refill(&mut self, memory: &Map) -> Result<bool, DriverError> {
        let window = self.ring.window(memory)?;
        self.waiting = 0;
        self.ring.show(&window);
        Ok(self.ring.must_notify(&window))
    }
}
