//! Driver settings in the common structure (virtio 1.2, section 4.1.4.3), and their effect on the device. The legacy interface
//! (4.1.4.10) sets the same values through other registers.

use arrayvec::ArrayVec;
use nicety_adapter::{Adapter, Context, Outbox, Reset, RingFace, RingPlace};
use serde::{Deserialize, Serialize};

use super::registers::{NOTIFY_EVERY, Reg, TABLE, status};
use super::{CONFIGURATION, QUEUE, RING_SIZE, VirtioPci};
use crate::virtio_net::RINGS_MAX;
use crate::virtio_net::kept::Kept;
use crate::virtio_net::registers::feature;
use crate::virtio_net::ring::Ring;

/// No vector (4.1.5.1.2).
pub(super) const NO_VECTOR: u16 = 0xffff;
/// Start position of a new ring, split or packed.
const NEW_RING: u32 = 0x8000_8000;
/// Low bits of a legacy queue's address that its register omits.
const LEGACY_PAGE_BITS: u32 = 12;

/// One queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Queue {
    pub size: u16,
    pub vector: u16,
    pub enabled: bool,
    /// Addresses of the descriptors, the driver area, the device area.
    pub areas: [u64; 3],
}

impl Queue {
    const NEW: Self = Self { size: RING_SIZE, vector: NO_VECTOR, enabled: false, areas: [0; 3] };
}

/// Driver settings: see the module's page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Common {
    pub device_select: u32,
    pub driver_select: u32,
    /// Features written by the driver.
    pub driver: u128,
    pub status: u8,
    pub generation: u8,
    pub config_vector: u16,
    pub select: u16,
    pub queues: ArrayVec<Queue, RINGS_MAX>,
}

impl Common {
    pub fn new(rings: u16) -> Self {
        Self {
            device_select: 0,
            driver_select: 0,
            driver: 0,
            status: 0,
            generation: 0,
            config_vector: NO_VECTOR,
            select: 0,
            queues: std::iter::repeat_n(Queue::NEW, usize::from(rings)).collect(),
        }
    }

    /// Whether saved state is valid.
    pub fn possible(&self, rings: u16) -> bool {
        self.queues.len() == usize::from(rings) && self.queues.iter().all(|queue| queue.size <= RING_SIZE)
    }

    fn selected(&mut self) -> Option<&mut Queue> {
        self.queues.get_mut(usize::from(self.select))
    }

    pub fn has(&self, bit: u8) -> bool {
        self.status & bit != 0
    }
}

/// The selected dword of 128 bits; 0 beyond them.
fn dword(bits: u128, select: u32) -> u32 {
    if select < 4 { (bits >> (32 * select)) as u32 } else { 0 }
}

fn low(value: u64) -> u32 {
    value as u32
}

fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

fn set_low(value: &mut u64, word: u32) {
    *value = *value & !0xffff_ffff | u64::from(word);
}

fn set_high(value: &mut u64, word: u32) {
    *value = *value & 0xffff_ffff | u64::from(word) << 32;
}

impl VirtioPci {
    /// Value that a read of a register of either interface returns.
    pub(super) fn read_register(&mut self, name: Reg, cx: &mut Context<'_>) -> u32 {
        let offer = RingFace::features(&self.device);
        let Common { device_select, driver_select, driver, status, generation, config_vector, select, .. } =
            self.common;
        let queue = self.common.selected().copied();
        let of = |value: fn(&Queue) -> u32| queue.as_ref().map_or(0, value);
        match name {
            Reg::device_feature_select => device_select,
            Reg::device_feature => dword(offer, device_select),
            Reg::driver_feature_select => driver_select,
            Reg::driver_feature => dword(driver, driver_select),
            Reg::config_msix_vector => config_vector.into(),
            Reg::num_queues => self.common.queues.len() as u32,
            Reg::device_status | Reg::legacy_device_status => status.into(),
            Reg::config_generation => generation.into(),
            Reg::queue_select | Reg::legacy_queue_select => select.into(),
            Reg::queue_size | Reg::legacy_queue_size => of(|queue| queue.size.into()),
            Reg::queue_msix_vector => queue.map_or(NO_VECTOR, |queue| queue.vector).into(),
            Reg::queue_enable => of(|queue| queue.enabled.into()),
            Reg::queue_notify_off => {
                if queue.is_some() {
                    select.into()
                } else {
                    0
                }
            }
            Reg::queue_desc_lo => of(|queue| low(queue.areas[0])),
            Reg::queue_desc_hi => of(|queue| high(queue.areas[0])),
            Reg::queue_driver_lo => of(|queue| low(queue.areas[1])),
            Reg::queue_driver_hi => of(|queue| high(queue.areas[1])),
            Reg::queue_device_lo => of(|queue| low(queue.areas[2])),
            Reg::queue_device_hi => of(|queue| high(queue.areas[2])),
            Reg::isr_status | Reg::legacy_isr_status => self.take_status(cx),
            Reg::legacy_device_feature => offer as u32,
            Reg::legacy_driver_feature => driver as u32,
            Reg::legacy_queue_address => {
                of(|queue| if queue.enabled { (queue.areas[0] >> LEGACY_PAGE_BITS) as u32 } else { 0 })
            }
            // A reset completes within its write; doorbells read as 0.
            Reg::queue_notif_config_data | Reg::queue_reset | Reg::queue_notify | Reg::legacy_queue_notify => 0,
        }
    }

    /// Effect of a write to a register of either interface. `index`: which of several.
    pub(super) fn write_register(&mut self, name: Reg, index: usize, value: u32, cx: &mut Context<'_>) {
        match name {
            Reg::device_feature_select => self.common.device_select = value,
            Reg::driver_feature_select => self.common.driver_select = value,
            // Features are fixed once FEATURES_OK is set (3.1.1).
            Reg::driver_feature if !self.common.has(status::FEATURES_OK) && self.common.driver_select < 4 => {
                let shift = 32 * self.common.driver_select;
                self.common.driver = self.common.driver & !(0xffff_ffff << shift) | u128::from(value) << shift;
            }
            Reg::config_msix_vector => self.common.config_vector = self.vector(value),
            Reg::device_status | Reg::legacy_device_status => {
                self.set_status(value as u8, name == Reg::legacy_device_status, cx);
            }
            Reg::queue_select | Reg::legacy_queue_select => self.common.select = value as u16,
            Reg::queue_msix_vector => {
                let vector = self.vector(value);
                self.common.selected().into_iter().for_each(|queue| queue.vector = vector);
            }
            Reg::queue_enable if value == 1 => self.enable_queue(cx),
            Reg::queue_reset if value == 1 && self.common.driver & feature::RING_RESET != 0 => self.reset_queue(cx),
            Reg::queue_notify => self.notify_queue(index as u16, cx),
            Reg::legacy_queue_notify => self.notify_queue(value as u16, cx),
            Reg::legacy_driver_feature => self.common.driver = value.into(),
            Reg::legacy_queue_address => self.place_legacy(value, cx),
            _ => self.write_queue(name, value),
        }
    }

    /// Sets the address of the selected queue. It is fixed while the queue is enabled (4.1.4.3.2): CVE-2026-5747.
    fn write_queue(&mut self, name: Reg, value: u32) {
        let Some(queue) = self.common.selected().filter(|queue| !queue.enabled) else { return };
        let [descriptors, driver, device] = &mut queue.areas;
        match name {
            Reg::queue_size if value <= RING_SIZE.into() => queue.size = value as u16,
            Reg::queue_desc_lo => set_low(descriptors, value),
            Reg::queue_desc_hi => set_high(descriptors, value),
            Reg::queue_driver_lo => set_low(driver, value),
            Reg::queue_driver_hi => set_high(driver, value),
            Reg::queue_device_lo => set_low(device, value),
            Reg::queue_device_hi => set_high(device, value),
            _ => {}
        }
    }

    /// A vector that exists, or none (4.1.5.1.2).
    fn vector(&self, value: u32) -> u16 {
        u16::try_from(value).ok().filter(|vector| *vector < super::VECTORS).unwrap_or(NO_VECTOR)
    }

    fn set_status(&mut self, value: u8, legacy: bool, cx: &mut Context<'_>) {
        if value == 0 {
            return self.reset_device(cx);
        }
        let before = self.common.status;
        // Only the device changes this bit.
        let mut value = value & !status::NEEDS_RESET | before & status::NEEDS_RESET;
        let agrees = value & !before & status::FEATURES_OK != 0 || (legacy && before & status::DRIVER_OK == 0);
        if agrees && !self.agree(legacy) {
            value &= !status::FEATURES_OK;
        }
        self.common.status = value;
        if value & !before & status::DRIVER_OK != 0 {
            for ring in 0..self.common.queues.len() as u16 {
                self.device.enable(ring, true, cx);
            }
            // After a kill the rings are found by it.
            cx.out.stalled.insert(Outbox::KEEP);
        }
    }

    /// Takes the driver's features. A modern driver has VERSION_1 (6.1).
    fn agree(&mut self, legacy: bool) -> bool {
        let wanted = if legacy { self.common.driver & RingFace::features(&self.device) } else { self.common.driver };
        (legacy || wanted & feature::VERSION_1 != 0) && self.device.take_features(wanted)
    }

    /// Enables the selected queue; it starts as soon as memory may be read.
    fn enable_queue(&mut self, cx: &mut Context<'_>) {
        let ring = self.common.select;
        let Some(queue) = self.common.selected().filter(|queue| !queue.enabled) else { return };
        queue.enabled = true;
        // A record is an earlier driver's.
        self.device.kept.iter().filter_map(|map| Kept::of(map, ring)).for_each(|kept| kept.clear());
        self.start_queue(ring, cx);
    }

    /// The driver kicks a queue. Before DRIVER_OK the queue is not served, and its frames stay in it until then (2.1.2).
    fn notify_queue(&mut self, ring: u16, cx: &mut Context<'_>) {
        if self.device.rings.get(usize::from(ring)).is_some_and(|ring| ring.enabled) {
            self.device.kick(ring, cx);
        }
    }

    /// A modern driver's queue is not used before DRIVER_OK. Some legacy drivers use theirs before they set it (3.1.2).
    fn start_queue(&mut self, ring: u16, cx: &mut Context<'_>) {
        let on = self.common.has(status::DRIVER_OK) || !self.device.took(feature::VERSION_1);
        let started = self.device.rings.get(usize::from(ring)).is_none_or(|ring| ring.started);
        let may_act = self.may_act();
        let Some(queue) = self.common.queues.get_mut(usize::from(ring)) else { return };
        if !queue.enabled || started || !may_act {
            return;
        }
        let [descriptors, driver, device] = queue.areas;
        let place = RingPlace { size: queue.size, descriptors, driver, device };
        // A new packed ring begins with its wrap counters at 1 (2.8.1).
        if self.device.place(ring, place) && self.device.start(ring, NEW_RING, cx) {
            self.device.enable(ring, on, cx);
        } else {
            queue.enabled = false;
            let expected = "a queue in guest memory with a size that the device offers (queue_desc, queue_driver, queue_device; 4.1.4.3)";
            cx.guest_error(TABLE.error_place(Reg::queue_enable, 0), place.descriptors, expected);
        }
    }

    /// Memory may be reached again. Queues start that could not; each of the others is processed and notified once, because the
    /// driver's notification settings could not be read meanwhile.
    pub(super) fn resume(&mut self, cx: &mut Context<'_>) {
        for ring in 0..self.device.rings() {
            self.start_queue(ring, cx);
            self.device.wake(ring, cx);
            if self.device.rings.get(usize::from(ring)).is_some_and(|ring| ring.live()) {
                let vector = self.common.queues.get(usize::from(ring)).map_or(NO_VECTOR, |queue| queue.vector);
                self.raise(vector, QUEUE);
            }
        }
        cx.out.wake_by(cx.now);
        self.interrupts.update(&mut self.function, cx);
    }

    /// The process that served it was killed. A split ring goes on at its used index, which is in guest memory; a packed ring at the
    /// position in the file that was kept. Without one the driver has to reset the device (2.1.2).
    pub(super) fn lose(&mut self, cx: &mut Context<'_>) {
        let is_lost = self.device.is_packed() && self.device.kept.is_none();
        for ring in &mut self.device.rings {
            let is_started = std::mem::take(&mut ring.started);
            ring.generation = ring.generation.wrapping_add(1);
            if is_started && is_lost {
                self.common.status |= status::NEEDS_RESET;
            }
        }
        self.interrupts.show(&mut self.function, cx);
        if is_lost {
            self.common.generation = self.common.generation.wrapping_add(1);
            self.raise(self.common.config_vector, CONFIGURATION);
            self.interrupts.update(&mut self.function, cx);
        } else if self.may_act() {
            self.resume(cx);
        }
    }

    /// Stops the selected queue (2.6.1).
    fn reset_queue(&mut self, cx: &mut Context<'_>) {
        let (ring, may_act) = (self.common.select, self.may_act());
        let Some(queue) = self.common.selected() else { return };
        *queue = Queue { vector: queue.vector, ..Queue::NEW };
        if may_act {
            self.device.stop(ring, cx);
        } else if let Some(ring) = self.device.rings.get_mut(usize::from(ring)) {
            *ring = Ring { generation: ring.generation.wrapping_add(1), ..Ring::default() };
        }
    }

    /// A legacy queue's areas are contiguous; the device area starts on a page (2.7.2). Address 0 stops the queue.
    fn place_legacy(&mut self, page: u32, cx: &mut Context<'_>) {
        if page == 0 {
            return self.reset_queue(cx);
        }
        if !self.common.has(status::DRIVER_OK) {
            // A legacy driver has written its features by now; it has no FEATURES_OK.
            self.agree(true);
        }
        if let Some(queue) = self.common.selected().filter(|queue| !queue.enabled) {
            let descriptors = u64::from(page) << LEGACY_PAGE_BITS;
            let driver = descriptors + 16 * u64::from(RING_SIZE);
            let device = (driver + 6 + 2 * u64::from(RING_SIZE)).next_multiple_of(1 << LEGACY_PAGE_BITS);
            (queue.size, queue.areas) = (RING_SIZE, [descriptors, driver, device]);
        }
        self.enable_queue(cx);
    }

    /// Resets everything to the power-on state.
    pub(super) fn reset_function(&mut self, cx: &mut Context<'_>) {
        self.reset_device(cx);
        self.function.reset();
        self.common.generation = 0;
        self.interrupts.show(&mut self.function, cx);
    }

    /// Resets everything except configuration space.
    pub(super) fn reset_device(&mut self, cx: &mut Context<'_>) {
        self.device.reset(Reset::Function, cx);
        self.common = Common { generation: self.common.generation, ..Common::new(self.common.queues.len() as u16) };
        self.interrupts.reset();
        self.interrupts.enable(u128::MAX);
        self.interrupts.update(&mut self.function, cx);
    }
}

const _: () = assert!(NOTIFY_EVERY as usize * RINGS_MAX <= 256);
