//! The structures that the device reads at activation: `Vmxnet3_DriverShared`, the queue descriptors, the RSS structure.

use nicety_memory::{Map, Rights, Window};

use super::Vmxnet3;
use super::layout::*;
use crate::{Arena, DriverError};

pub(super) use super::layout::shared::*;

/// The key of Microsoft's verification suite for RSS. Any key works; this one is easy to check.
const RSS_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// Addresses of these structures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub shared: u64,
    pub rss: u64,
    queues: u64,
    count: u32,
}

impl Places {
    pub(super) fn new(memory: &Map, arena: &mut Arena, count: u16) -> Result<Places, DriverError> {
        let queues_bytes = u64::from(count) * 2 * u64::from(queue::BYTES);
        let places = Places {
            shared: arena.take(BYTES.into(), RING_ALIGN)?,
            queues: arena.take(queues_bytes, queue::ALIGN)?,
            rss: arena.take(rss::BYTES.into(), RING_ALIGN)?,
            count: count.into(),
        };
        memory.write(places.shared, &[0; BYTES as usize])?;
        for number in 0..2 * u64::from(count) {
            memory.write(places.queues + number * u64::from(queue::BYTES), &[0; queue::BYTES as usize])?;
        }
        Ok(places)
    }

    /// A transmit queue's descriptor. Those of transmit queues come first.
    pub(super) fn transmit(&self, number: u32) -> u64 {
        self.queues + u64::from(number * queue::BYTES)
    }

    /// A receive queue's descriptor.
    pub(super) fn receive(&self, number: u32) -> u64 {
        self.queues + u64::from((self.count + number) * queue::BYTES)
    }
}

fn put64(window: &Window<'_>, at: usize, value: u64) {
    window.write(at, &value.to_le_bytes());
}

impl Vmxnet3 {
    /// Fills all structures, with interrupts off and an empty receive filter.
    pub(super) fn describe(&self, places: &Places, version: u32) -> Result<(), DriverError> {
        let queues = self.settings.queues as u8;
        let window = self.memory.window(places.shared, BYTES, Rights::BOTH)?;
        window.store_u32(MAGIC.0, MAGIC.1);
        // 1.0.0.0, as this driver's own version.
        window.store_u32(DRIVER_VERSION, 0x0100_0000);
        window.store_u32(GUEST_SYSTEM, GUEST_LINUX_64);
        window.store_u32(REVISION, 1 << (version - 1));
        window.store_u32(UPT_VERSION, 1);
        let mut features = FEATURE_RX_CHECKSUM | FEATURE_RX_VLAN;
        if self.settings.lro {
            features |= FEATURE_LRO;
        }
        if queues > 1 {
            features |= FEATURE_RSS;
            self.describe_rss(&window, places)?;
        }
        put64(&window, FEATURES, features);
        put64(&window, QUEUES_ADDRESS, places.transmit(0));
        window.store_u32(QUEUES_BYTES, u32::from(queues) * 2 * queue::BYTES);
        window.store_u32(MTU, self.settings.mtu);
        window.store_u16(RX_PIECES, self.settings.receive_pieces);
        window.store_u8(TX_QUEUES, queues);
        window.store_u8(RX_QUEUES, queues);
        window.store_u8(AUTO_MASK, self.auto_mask.into());
        window.store_u8(VECTORS, queues + 1);
        window.store_u8(EVENT_VECTOR, queues);
        for vector in 0..=usize::from(queues) {
            window.store_u8(MODERATION + vector, MODERATION_ADAPTIVE);
        }
        window.store_u32(INTERRUPT_CONTROL, DISABLE_ALL);
        // Tags of every VLAN pass the filter.
        window.write(VLAN_TABLE, &[0xff; 512]);
        self.describe_queues(places)
    }

    fn describe_rss(&self, window: &Window<'_>, places: &Places) -> Result<(), DriverError> {
        window.store_u32(RSS, 1);
        window.store_u32(RSS + 4, rss::BYTES);
        put64(window, RSS + 8, places.rss);
        let window = self.memory.window(places.rss, rss::BYTES, Rights::BOTH)?;
        for (index, value) in [rss::KINDS, rss::TOEPLITZ, rss::KEY_BYTES, rss::TABLE_ENTRIES].into_iter().enumerate() {
            window.store_u16(2 * index, value);
        }
        window.write(rss::KEY, &RSS_KEY);
        for entry in 0..rss::TABLE_ENTRIES {
            window.store_u8(rss::TABLE + usize::from(entry), (entry % self.settings.queues) as u8);
        }
        Ok(())
    }

    fn describe_queues(&self, places: &Places) -> Result<(), DriverError> {
        for (number, tx) in (0..).zip(&self.transmit) {
            let window = self.memory.window(places.transmit(number), queue::BYTES, Rights::BOTH)?;
            window.store_u32(queue::TX_THRESHOLD, 1);
            put64(&window, queue::TX_RING, tx.ring.base);
            put64(&window, queue::TX_DATA, tx.data);
            put64(&window, queue::COMPLETIONS, tx.done.base);
            for (at, size) in queue::SIZES.into_iter().zip([tx.ring.size, tx.ring.size, tx.done.size]) {
                window.store_u32(at, size);
            }
            window.store_u8(queue::VECTOR, number as u8);
            window.store_u16(queue::DATA_BYTES, tx.data_bytes as u16);
        }
        for (number, rx) in (0..).zip(&self.receive) {
            let window = self.memory.window(places.receive(number), queue::BYTES, Rights::BOTH)?;
            let [first, second] = rx.fills.map(|fill| fill.ring);
            put64(&window, queue::RX_RINGS[0], first.base);
            put64(&window, queue::RX_RINGS[1], second.base);
            put64(&window, queue::COMPLETIONS, rx.done.base);
            for (at, size) in queue::SIZES.into_iter().zip([first.size, second.size, rx.done.size]) {
                window.store_u32(at, size);
            }
            window.store_u8(queue::VECTOR, number as u8);
            if rx.data_bytes > 0 {
                put64(&window, queue::RX_DATA, rx.data);
                window.store_u16(queue::DATA_BYTES, rx.data_bytes as u16);
            }
        }
        Ok(())
    }
}
