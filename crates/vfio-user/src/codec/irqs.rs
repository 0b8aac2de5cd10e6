//! DEVICE_GET_IRQ_INFO and DEVICE_SET_IRQS (vfio-user.rst, the sections of those names; `struct vfio_irq_set`).

use nicety_peer::PeerFd;

use super::{Fields, MAX_VECTORS, Malformed, put_u32};

/// Index of the legacy interrupt line (`VFIO_PCI_INTX_IRQ_INDEX`).
pub const INTX: u32 = 0;
/// Index of MSI.
pub const MSI: u32 = 1;
/// Index of MSI-X.
pub const MSIX: u32 = 2;
/// Index of the error interrupt.
pub const ERR: u32 = 3;
/// Index of the interrupt by which a device requests its release.
pub const REQ: u32 = 4;
/// Interrupt indexes of a PCI device: up to MSI-X, because [`ERR`] and [`REQ`] are not served. QEMU requires these three. It also
/// asks for the other two, and works without them if they are refused (hw/vfio/pci.c, vfio_populate_device).
pub const PCI_INDEXES: u32 = 3;

/// `VFIO_IRQ_INFO_EVENTFD`: signals through an eventfd.
pub const INFO_EVENTFD: u32 = 1;
/// `VFIO_IRQ_INFO_MASKABLE`: understands mask and unmask.
pub const INFO_MASKABLE: u32 = 2;
/// `VFIO_IRQ_INFO_AUTOMASKED`: masks itself when it is delivered.
pub const INFO_AUTOMASKED: u32 = 4;
/// `VFIO_IRQ_INFO_NORESIZE`: vectors can only be connected as a set.
pub const INFO_NORESIZE: u32 = 8;

/// The payload carries nothing.
pub const DATA_NONE: u32 = 1;
/// The payload carries a byte per interrupt.
pub const DATA_BOOL: u32 = 2;
/// The message carries a descriptor per interrupt.
pub const DATA_EVENTFD: u32 = 4;
/// Mask.
pub const ACTION_MASK: u32 = 8;
/// Unmask.
pub const ACTION_UNMASK: u32 = 16;
/// Trigger, or connect what is triggered.
pub const ACTION_TRIGGER: u32 = 32;

/// Bytes of the fixed part of SET_IRQS.
pub const SET_SIZE: usize = 20;
/// Bytes of GET_IRQ_INFO, both ways.
pub const INFO_SIZE: usize = 16;

/// The properties of an interrupt index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqInfo {
    /// `INFO_*` bits of [`crate::codec::irqs`].
    pub flags: u32,
    /// Number of interrupts, at most [`MAX_VECTORS`].
    pub count: u32,
}

/// The action of SET_IRQS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// Mask.
    Mask,
    /// Unmask.
    Unmask,
    /// Trigger now (no data or booleans), or connect eventfds to be triggered later.
    Trigger,
}

/// The chosen interrupts of the range, and the data.
#[derive(Debug)]
pub enum IrqData<'a> {
    /// All of the range.
    All,
    /// The interrupts with a nonzero byte; there is one byte per interrupt of the range.
    Chosen(&'a [u8]),
    /// One eventfd per interrupt of the range.
    Connect(Vec<PeerFd>),
    /// Disconnects the eventfds of the range: EVENTFD without descriptors (the ioctl uses -1).
    Disconnect,
}

/// A checked SET_IRQS: the range lies within the index, and data and action are compatible.
#[derive(Debug)]
pub struct IrqSet<'a> {
    /// Interrupt index: [`INTX`], [`MSI`], [`MSIX`], ...
    pub index: u32,
    /// First interrupt.
    pub start: u32,
    /// Number of interrupts. Zero, with [`IrqAction::Trigger`] and [`IrqData::All`], disables the whole index.
    pub count: u32,
    /// The action.
    pub action: IrqAction,
    /// The interrupts and the data.
    pub data: IrqData<'a>,
}

impl IrqSet<'_> {
    /// The set that disables a whole index.
    pub fn disable(index: u32) -> IrqSet<'static> {
        IrqSet { index, start: 0, count: 0, action: IrqAction::Trigger, data: IrqData::All }
    }

    /// Whether this set disables its whole index.
    pub fn is_disable(&self) -> bool {
        self.count == 0
    }

    /// Appends the payload to `out`. Descriptors are sent beside it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (data, bools): (u32, &[u8]) = match &self.data {
            IrqData::All => (DATA_NONE, &[]),
            IrqData::Chosen(bools) => (DATA_BOOL, bools),
            IrqData::Connect(_) | IrqData::Disconnect => (DATA_EVENTFD, &[]),
        };
        let action = match self.action {
            IrqAction::Mask => ACTION_MASK,
            IrqAction::Unmask => ACTION_UNMASK,
            IrqAction::Trigger => ACTION_TRIGGER,
        };
        put_u32(out, (SET_SIZE + bools.len()) as u32);
        put_u32(out, data | action);
        put_u32(out, self.index);
        put_u32(out, self.start);
        put_u32(out, self.count);
        out.extend_from_slice(bools);
    }
}

/// A SET_IRQS as received, not yet checked against the device's number of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawIrqSet<'a> {
    /// DATA and ACTION bits.
    pub flags: u32,
    /// Interrupt index.
    pub index: u32,
    /// First interrupt.
    pub start: u32,
    /// Number of interrupts.
    pub count: u32,
    /// The data after the fixed part.
    pub data: &'a [u8],
}

impl<'a> RawIrqSet<'a> {
    /// Reads the payload.
    pub fn decode(payload: &'a [u8]) -> Result<RawIrqSet<'a>, Malformed> {
        let mut fields = Fields(payload);
        let argsz = fields.u32()?;
        let (flags, index, start, count) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        if (argsz as usize) < SET_SIZE {
            return Err(Malformed("SET_IRQS: argsz is less than its fixed part"));
        }
        Ok(RawIrqSet { flags, index, start, count, data: fields.rest() })
    }

    /// Whether this message may carry descriptors.
    pub fn takes_fds(flags: u32) -> bool {
        flags & DATA_EVENTFD != 0
    }

    /// Checks the set against the index's `info` and adds the descriptors of its message.
    pub fn check(&self, info: &IrqInfo, fds: Vec<PeerFd>) -> Result<IrqSet<'a>, Malformed> {
        const DATA: u32 = DATA_NONE | DATA_BOOL | DATA_EVENTFD;
        let limit = info.count.min(MAX_VECTORS);
        let action = match self.flags & !DATA {
            ACTION_MASK => IrqAction::Mask,
            ACTION_UNMASK => IrqAction::Unmask,
            ACTION_TRIGGER => IrqAction::Trigger,
            _ => return Err(Malformed("SET_IRQS: exactly one action must be set")),
        };
        if self.start >= limit || self.count > limit - self.start {
            return Err(Malformed("SET_IRQS: the range lies outside the index"));
        }
        let data_type = self.flags & DATA;
        if self.count == 0 && (self.start != 0 || action != IrqAction::Trigger || data_type != DATA_NONE) {
            return Err(Malformed("SET_IRQS: a count of 0 only goes with start 0, trigger and no data"));
        }
        if !fds.is_empty() && (data_type != DATA_EVENTFD || fds.len() != self.count as usize) {
            return Err(Malformed("SET_IRQS: descriptors do not match data type and count"));
        }
        let data = match data_type {
            DATA_NONE => IrqData::All,
            DATA_BOOL if self.data.len() == self.count as usize => IrqData::Chosen(self.data),
            DATA_BOOL => return Err(Malformed("SET_IRQS: not one boolean per interrupt")),
            DATA_EVENTFD if fds.is_empty() => IrqData::Disconnect,
            DATA_EVENTFD => IrqData::Connect(fds),
            _ => return Err(Malformed("SET_IRQS: exactly one data type must be set")),
        };
        Ok(IrqSet { index: self.index, start: self.start, count: self.count, action, data })
    }
}
