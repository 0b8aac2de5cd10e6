//! The PCI function (virtio 1.2, section 4.1), access by access, with the kernel's own constants.

use nicety_adapter::{Batch, Event, Face, Time};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_memory::Map;
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FEATURES_OK,
    VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_ACCESS_PLATFORM, VIRTIO_F_RING_RESET, VIRTIO_F_VERSION_1,
};

use crate::guest::{Bench, adapter_with, bit, settings};
use crate::packets::{payload, tcp4};

/// Configuration space (PCI 3.0, section 6): the command register with memory and bus mastering; MSI-X's ID.
const COMMAND: u16 = 4;
const MASTER: u16 = 7;
const POWER: u8 = 0x01;
const MSIX: u8 = 0x11;
const VENDOR: u8 = 9;

/// Addresses of the modern structures, from the capabilities.
struct Function {
    /// By `cfg_type`: bar and offset.
    places: [(u8, u64); 6],
}

type Machine = Bench<Function>;

/// Queue 1's areas, and its one buffer.
const DESCRIPTORS: u64 = 0x1000;
const DRIVER: u64 = 0x2000;
const DEVICE: u64 = 0x3000;
const BUFFER: u64 = 0x8000;

impl Machine {
    fn new() -> Self {
        let mut this = Self::around(adapter_with("virtio-net-pci", &settings()), Function { places: [(0, 0); 6] });
        this.now = Time::ZERO;
        let mut at = this.config(0x34, 1)[0];
        while at != 0 {
            let bytes = this.config(at.into(), 16);
            if bytes[0] == VENDOR {
                let offset = u32::from_le_bytes(*bytes[8..].first_chunk().unwrap());
                this.places[usize::from(bytes[3])] = (bytes[4], offset.into());
            }
            at = bytes[1];
        }
        this.config_write(COMMAND, &MASTER.to_le_bytes());
        this
    }

    fn config(&mut self, offset: u16, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.pci(|face, _| face.function().config_read(offset.into(), &mut data));
        data
    }

    fn capability(&mut self, id: u8, kind: Option<u8>) -> u16 {
        let mut at = self.config(0x34, 1)[0];
        while at != 0 {
            let bytes = self.config(at.into(), 4);
            if bytes[0] == id && kind.is_none_or(|kind| bytes[3] == kind) {
                return at.into();
            }
            at = bytes[1];
        }
        panic!("no capability {id}");
    }

    /// Reads a field in the structure of this `cfg_type`.
    fn read(&mut self, kind: usize, field: u64, len: usize) -> u64 {
        let ((bar, offset), mut data) = (self.places[kind], [0; 8]);
        self.bar_read(bar, offset + field, &mut data[..len]);
        u64::from_le_bytes(data)
    }

    fn write(&mut self, kind: usize, field: u64, value: u64, len: usize) {
        let (bar, offset) = self.places[kind];
        self.bar_write(bar, offset + field, &value.to_le_bytes()[..len]);
    }

    /// Sets bits of the device status, one after the other.
    fn status(&mut self, bits: u32) -> u32 {
        let old = self.read(1, 0x14, 1);
        self.write(1, 0x14, old | u64::from(bits), 1);
        self.read(1, 0x14, 1) as u32
    }

    fn negotiate(&mut self, features: u128) {
        self.status(VIRTIO_CONFIG_S_ACKNOWLEDGE);
        self.status(VIRTIO_CONFIG_S_DRIVER);
        for select in 0..4 {
            self.write(1, 0x08, select, 4);
            self.write(1, 0x0c, (features >> (32 * select)) as u64 & 0xffff_ffff, 4);
        }
        self.status(VIRTIO_CONFIG_S_FEATURES_OK);
    }

    /// Places queue 1 and enables it.
    fn enable(&mut self) {
        self.write(1, 0x16, 1, 2);
        self.write(1, 0x18, 16, 2);
        self.write(1, 0x1a, 1, 2);
        for (field, address) in [(0x20, DESCRIPTORS), (0x28, DRIVER), (0x30, DEVICE)] {
            self.write(1, field, address, 4);
            self.write(1, field + 4, 0, 4);
        }
        self.write(1, 0x1c, 1, 2);
    }

    /// Adds one frame to queue 1, and writes the doorbell.
    fn send(&mut self) {
        let frame = [&[0; 12][..], &tcp4(&payload(100))].concat();
        self.put(BUFFER, &frame);
        let descriptor = [&BUFFER.to_le_bytes()[..], &(frame.len() as u32).to_le_bytes(), &[0; 4]].concat();
        self.put(DESCRIPTORS, &descriptor);
        let index = self.get16(DRIVER + 2).wrapping_add(1);
        self.put(DRIVER + 2, &index.to_le_bytes());
        self.write(2, 4, 1, 2);
    }

    fn enable_msix(&mut self) {
        let at = self.capability(MSIX, None) + 3;
        let control = self.config(at, 1)[0];
        self.config_write(at, &[control | 1 << 7]);
    }

    /// A function whose queue 1 runs.
    fn running() -> Self {
        let mut this = Self::new();
        this.negotiate(bit(VIRTIO_F_VERSION_1));
        this.enable();
        this.status(VIRTIO_CONFIG_S_DRIVER_OK);
        this
    }

    /// Fetches and completes the adapter's queue 0. Returns the number of packets.
    fn carry(&mut self) -> usize {
        self.fetch();
        self.complete();
        while let Some(wake) = self.out.wake.take() {
            self.now = wake;
            self.tick();
        }
        self.batch.len()
    }
}

#[test]
fn the_table_of_registers_is_whole() {
    assert_eq!(nicety_adapters::virtio_net::pci::TABLE.check(), Ok(()));
}

#[test]
fn a_driver_finds_the_structures_and_sends_and_is_interrupted_by_its_vector() {
    let mut machine = Machine::new();
    machine.enable_msix();
    assert_eq!(machine.read(1, 0x12, 2), 5, "two pairs and the control queue");
    machine.negotiate(bit(VIRTIO_F_VERSION_1));
    machine.enable();
    assert_eq!((machine.counters.guest_errors(), machine.read(1, 0x1c, 2)), (0, 1));
    machine.send();
    assert_eq!(machine.carry(), 0, "nothing before DRIVER_OK (2.1.2)");
    machine.status(VIRTIO_CONFIG_S_DRIVER_OK);
    assert_eq!(machine.out.work.pop(), Some(0));
    assert_eq!(machine.carry(), 1);
    assert!(machine.out.messages.contains(1) && machine.out.messages.len() == 1, "{:?}", machine.out);
    assert_eq!(machine.read(3, 0, 1), 0, "no status with MSI-X");
}

#[test]
fn a_message_that_has_not_gone_yet_stays_the_one_that_it_is() {
    let mut machine = Machine::new();
    machine.enable_msix();
    machine.negotiate(bit(VIRTIO_F_VERSION_1));
    machine.enable();
    machine.write(1, 0x1a, 3, 2);
    machine.status(VIRTIO_CONFIG_S_DRIVER_OK);
    for _ in 0..2 {
        machine.send();
        assert_eq!(machine.carry(), 1);
        machine.write(2, 0, 0, 2);
        assert!(machine.out.messages.contains(3) && machine.out.messages.len() == 1, "{:?}", machine.out);
    }
}

#[test]
fn without_messages_the_line_is_up_until_the_interrupt_status_is_read() {
    let mut machine = Machine::running();
    machine.send();
    assert_eq!(machine.carry(), 1);
    assert_eq!(machine.out.line, Some(true));
    assert_eq!(machine.read(3, 0, 1), 1, "a queue");
    assert_eq!(machine.out.line, Some(false));
    machine.link(false);
    assert_eq!(machine.out.line, Some(true));
    assert_eq!(machine.read(3, 0, 1), 2, "configuration");
    assert_eq!((machine.read(4, 6, 2), machine.read(1, 0x15, 1)), (0, 1), "the link, and the generation");
}

#[test]
fn features_are_agreed_on_once_and_only_with_version_1() {
    let mut machine = Machine::new();
    machine.negotiate(bit(5));
    assert_eq!(machine.status(0) & VIRTIO_CONFIG_S_FEATURES_OK, 0, "a modern driver has VERSION_1 (6.1)");
    machine.negotiate(bit(VIRTIO_F_VERSION_1) | bit(100));
    assert_eq!(machine.status(0) & VIRTIO_CONFIG_S_FEATURES_OK, 0, "what is not offered");
    machine.negotiate(bit(VIRTIO_F_VERSION_1));
    assert_ne!(machine.status(0) & VIRTIO_CONFIG_S_FEATURES_OK, 0);
    machine.write(1, 0x08, 0, 4);
    machine.write(1, 0x0c, 0xffff_ffff, 4);
    assert_eq!(machine.read(1, 0x0c, 4), 0, "not after FEATURES_OK");
    machine.write(1, 0x14, 0, 1);
    assert_eq!(machine.read(1, 0x14, 1), 0, "a reset is over at once");
}

/// Section 6.1: without this bit a driver must write physical addresses, which are invalid behind an IOMMU (Linux:
/// virtio_has_dma_quirk).
#[test]
fn a_modern_driver_may_let_an_iommu_translate_and_a_legacy_one_is_not_asked() {
    let mut machine = Machine::new();
    machine.write(1, 0x00, 1, 4);
    assert_ne!(machine.read(1, 0x04, 4) as u32 & 1 << (VIRTIO_F_ACCESS_PLATFORM - 32), 0);
    machine.negotiate(bit(VIRTIO_F_VERSION_1) | bit(VIRTIO_F_ACCESS_PLATFORM));
    assert_ne!(machine.status(0) & VIRTIO_CONFIG_S_FEATURES_OK, 0);
    machine.write(1, 0x14, 0, 1);
    machine.negotiate(bit(VIRTIO_F_VERSION_1));
    assert_ne!(
        machine.status(0) & VIRTIO_CONFIG_S_FEATURES_OK,
        0,
        "a driver that knows no IOMMU works where there is none"
    );
    let create = find("virtio-net").unwrap().create;
    let mut rings = create(&Settings::new(Mac([2, 0, 0, 0, 0, 1]))).unwrap();
    let Face::Rings(face) = rings.face() else { panic!("it is a back end") };
    assert_eq!(face.features() & bit(VIRTIO_F_ACCESS_PLATFORM), 0, "its front end would have to be asked");
}

/// Firecracker's CVE-2026-5747: queue registers written after DRIVER_OK pointed to unchecked memory.
#[test]
fn cve_2026_5747_a_queue_does_not_move_while_it_is_enabled() {
    let mut machine = Machine::running();
    for (field, value, len) in
        [(0x18, 256, 2), (0x20, 0xdead_0000, 4), (0x2c, 7, 4), (0x30, 0xffff_fff0, 4), (0x1c, 1, 2)]
    {
        let before = machine.read(1, field, len);
        machine.write(1, field, value, len);
        assert_eq!(machine.read(1, field, len), before, "register {field:#x}");
    }
    machine.send();
    assert_eq!(machine.carry(), 1, "it goes on where it was");
    // A queue that was never enabled may be placed after DRIVER_OK, and is checked then.
    machine.write(1, 0x16, 0, 2);
    machine.write(1, 0x24, 0xffff_ffff, 4);
    machine.write(1, 0x1c, 1, 2);
    assert_eq!((machine.read(1, 0x1c, 2), machine.counters.guest_errors()), (0, 1));
    // Numbers of missing queues and vectors.
    machine.write(1, 0x16, 999, 2);
    machine.write(1, 0x1c, 1, 2);
    assert_eq!((machine.read(1, 0x18, 2), machine.read(1, 0x1c, 2)), (0, 0));
    machine.write(1, 0x10, 77, 2);
    assert_eq!(machine.read(1, 0x10, 2), 0xffff, "no vector (4.1.5.1.2)");
}

#[test]
fn a_queue_is_reset_alone_and_begins_again() {
    let mut machine = Machine::new();
    machine.negotiate(bit(VIRTIO_F_VERSION_1) | bit(VIRTIO_F_RING_RESET));
    machine.enable();
    machine.status(VIRTIO_CONFIG_S_DRIVER_OK);
    machine.send();
    assert_eq!(machine.carry(), 1);
    machine.write(1, 0x3a, 1, 2);
    assert_eq!((machine.read(1, 0x3a, 2), machine.read(1, 0x1c, 2)), (0, 0), "it is over, and disabled (2.6.1)");
    machine.send();
    assert_eq!(machine.carry(), 0);
    machine.put(DRIVER, &[0; 64]);
    machine.put(DEVICE, &[0; 64]);
    machine.enable();
    machine.send();
    assert_eq!(machine.carry(), 1);
}

#[test]
fn a_driver_that_breaks_a_queue_is_told_that_the_device_needs_a_reset() {
    let mut machine = Machine::running();
    machine.put(DRIVER + 2, &17u16.to_le_bytes());
    machine.write(2, 4, 1, 2);
    assert_eq!(machine.carry(), 0);
    assert_ne!(machine.status(0) & VIRTIO_CONFIG_S_NEEDS_RESET, 0);
    assert_eq!(machine.read(3, 0, 1), 2);
    machine.write(1, 0x14, 0, 1);
    assert_eq!(machine.status(0), 0);
}

/// Behind an IOMMU a ring may be unmapped for a while. Section 2.1.2: the driver must reset a device that needs it.
#[test]
fn a_driver_is_told_when_the_device_needs_no_reset_any_more() {
    let mut machine = Machine::new();
    machine.negotiate(bit(VIRTIO_F_VERSION_1) | bit(VIRTIO_F_RING_RESET));
    machine.enable();
    machine.status(VIRTIO_CONFIG_S_DRIVER_OK);
    let needs_reset = |machine: &mut Machine| machine.status(0) & VIRTIO_CONFIG_S_NEEDS_RESET != 0;
    for round in 0..2 {
        machine.out.stalled = Default::default();
        machine.send();
        let whole = std::mem::replace(&mut machine.map, Map::empty());
        assert_eq!(machine.carry(), 0);
        assert!(needs_reset(&mut machine), "{round}");
        assert_eq!(machine.read(3, 0, 1), 2, "{round}: told once");
        machine.map = whole;
        machine.call(|nic, cx| nic.notice(Event::Memory, cx));
        assert!(!needs_reset(&mut machine), "{round}");
        assert_eq!(machine.read(3, 0, 1), 2, "{round}: told of that too");
        assert_eq!(machine.carry(), 1, "{round}");
        machine.read(3, 0, 1);
    }
    // A queue that is broken for good needs a reset, its own at least.
    machine.put(DRIVER + 2, &99u16.to_le_bytes());
    machine.write(2, 4, 1, 2);
    assert_eq!(machine.carry(), 0);
    assert!(needs_reset(&mut machine));
    machine.call(|nic, cx| nic.notice(Event::Memory, cx));
    assert!(needs_reset(&mut machine), "no memory mends it");
    machine.write(1, 0x14, 0x8f, 1);
    machine.write(1, 0x16, 1, 2);
    machine.write(1, 0x3a, 1, 2);
    assert!(!needs_reset(&mut machine), "the queue was reset alone (2.6.1)");
    machine.write(1, 0x14, 0x4f, 1);
    assert!(!needs_reset(&mut machine), "only the device sets it");
}

#[test]
fn without_bus_mastering_nothing_is_read_or_written_in_memory() {
    let mut machine = Machine::running();
    machine.config_write(COMMAND, &3u16.to_le_bytes());
    machine.send();
    assert_eq!(machine.carry(), 0);
    machine.deliver(&Batch::new());
    machine.config_write(COMMAND, &MASTER.to_le_bytes());
    assert_eq!(machine.carry(), 1);
}

/// SeaBIOS and iPXE reach the structures through configuration space if they cannot map them.
#[test]
fn the_window_in_configuration_space_reaches_the_registers() {
    let mut machine = Machine::new();
    let window = machine.capability(VENDOR, Some(5));
    let (bar, offset) = machine.places[1];
    machine.config_write(window + 4, &[bar]);
    machine.config_write(window + 12, &2u32.to_le_bytes());
    machine.config_write(window + 8, &(offset as u32 + 0x12).to_le_bytes());
    assert_eq!(machine.config(window + 16, 2), [5, 0], "num_queues");
    machine.config_write(window + 8, &(offset as u32 + 0x16).to_le_bytes());
    machine.config_write(window + 16, &3u16.to_le_bytes());
    assert_eq!(machine.read(1, 0x16, 2), 3, "queue_select");
    machine.config_write(window + 12, &3u32.to_le_bytes());
    machine.config_write(window + 16, &[4]);
    assert_eq!(machine.read(1, 0x16, 2), 3, "a length that is none");
}

#[test]
fn a_legacy_driver_sends_by_the_ports() {
    let mut machine = Machine::new();
    machine.places[0] = (0, 0);
    let features = machine.read(0, 0, 4);
    assert_ne!(features & 1 << 5, 0, "MAC");
    assert_eq!(machine.read(0, 20, 6), 0x0100_0000_0002, "configuration space begins with it");
    for status in [1, 3] {
        machine.write(0, 18, status, 1);
    }
    machine.write(0, 4, 1 << 5, 4);
    machine.write(0, 14, 1, 2);
    assert_eq!(machine.read(0, 12, 2), 256);
    machine.write(0, 8, 0x10, 4);
    assert_eq!(machine.read(0, 8, 4), 0x10);
    machine.write(0, 18, 7, 1);
    // The driver area follows 256 descriptors; the device area begins at the next page (2.7.2).
    let frame = [&[0; 10][..], &tcp4(&payload(100))].concat();
    machine.put(BUFFER, &frame);
    let descriptor = [&BUFFER.to_le_bytes()[..], &(frame.len() as u32).to_le_bytes(), &[0; 4]].concat();
    machine.put(0x10000, &descriptor);
    machine.put(0x11002, &1u16.to_le_bytes());
    machine.write(0, 16, 1, 2);
    assert_eq!(machine.carry(), 1);
    assert_eq!(machine.get16(0x12002), 1);
    assert_eq!(machine.read(0, 19, 1), 1, "the interrupt status");
    machine.write(0, 14, 1, 2);
    machine.write(0, 8, 0, 4);
    assert_eq!(machine.read(0, 8, 4), 0, "an address of 0 ends it");
}

/// When its guest wakes, Linux (6.10 on) restarts only a device whose No_Soft_Reset is clear (`vp_supports_pm_no_reset`).
#[test]
fn in_d3hot_the_function_promises_to_keep_nothing_and_keeps_nothing() {
    let mut machine = Machine::running();
    let power = machine.capability(POWER, None) + 4;
    assert_eq!(machine.config(power, 2), [0, 0], "no No_Soft_Reset");
    machine.config_write(power, &3u16.to_le_bytes());
    machine.config_write(power, &0u16.to_le_bytes());
    machine.config_write(COMMAND, &MASTER.to_le_bytes());
    assert_eq!(machine.read(1, 0x14, 1), 0, "the device status");
    machine.write(1, 0x16, 1, 2);
    assert_eq!(machine.read(1, 0x1c, 2), 0, "the queue is off");
}

#[test]
fn a_saved_function_goes_on_and_one_with_other_queues_is_refused() {
    let machine = Machine::running();
    let saved = machine.nic.save();
    let mut other = Machine::new();
    machine.hand_over(&mut other);
    other.send();
    assert_eq!(other.carry(), 1);
    let create = find("virtio-net-pci").unwrap().create;
    let mut fewer = create(&Settings { queues: Some(1), ..Settings::new(Mac([2, 0, 0, 0, 0, 1])) }).unwrap();
    assert!(fewer.restore(&saved).is_err());
}
