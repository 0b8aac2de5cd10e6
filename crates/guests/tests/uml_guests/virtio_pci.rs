//! Linux's virtio-pci driver behind a vfio-user server that serves no queue, and dies or interrupts endlessly.

use std::{
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{Arc, Mutex, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use nicety_guests::{Folder, Guest, uml::UmlConfig};
use nicety_vfio_user::{
    Change, Device, DmaMap, DmaRange, Errno, Interrupts, IrqInfo, IrqLayout, IrqSet, RegionInfo, Session,
    codec::irqs::{IrqData, MSIX},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    pipe::fcntl_setpipe_size,
};

use super::{SOON, guests, powers_off_well, well};

/// The region of configuration space (VFIO_PCI_CONFIG_REGION_INDEX).
const CONFIG: u32 = 7;
/// BAR 0, by virtio 1.2, section 4.1.4: a page each for the common structure, ISR, configuration and notifications.
const BAR: u32 = 0x4000;
const ISR: u64 = 0x1000;
const NET: u64 = 0x2000;
const NOTIFY: u64 = 0x3000;
const MAC: [u8; 6] = [0x52, 0x54, 0, 0x4e, 3, 1];
/// VERSION_1, MQ, CTRL_VQ, STATUS, MAC.
const FEATURES: u64 = 1 << 32 | 1 << 22 | 1 << 17 | 1 << 16 | 1 << 5;
/// Pairs of receive and transmit queues. The control queue comes on top.
const PAIRS: u16 = 8;
const QUEUES: u16 = 2 * PAIRS + 1;
/// One vector for each data queue, and one for configuration changes.
const VECTORS: u16 = 2 * PAIRS + 1;

type Vectors = Arc<Mutex<Vec<OwnedFd>>>;

/// A virtio-net function that serves no queue. The common structure reads back what was written.
struct Unserved {
    config: [u8; 256],
    common: [u8; 64],
    interrupts: Interrupts,
    /// The guest's interrupt descriptors, for a test that writes to them endlessly.
    vectors: Vectors,
    /// Receives the number of each notified queue.
    rung: mpsc::Sender<u64>,
}

impl Unserved {
    fn new(rung: mpsc::Sender<u64>, vectors: Vectors) -> Unserved {
        let mut config = [0; 256];
        let mut lay = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        // Vendor and device; capabilities; revision and class; the first capability; INTA.
        lay(0, &[0xf4, 0x1a, 0x41, 0x10, 0, 0, 0x10, 0, 1, 0, 0, 2]);
        lay(0x34, &[0x40]);
        lay(0x3d, &[1]);
        // Section 4.1.4: vendor-specific, next, length, type, BAR, three bytes, offset, length. Notifications have a multiplier as well.
        let places = [(0x40, 1, 0), (0x50, 3, ISR), (0x60, 4, NET), (0x70, 2, NOTIFY)];
        for (at, kind, offset) in places {
            let next = if at == 0x70 { 0x90 } else { at as u8 + 0x10 };
            lay(at, &[9, next, 16 + 4 * u8::from(kind == 2), kind, 0, 0, 0, 0]);
            lay(at + 8, &(offset as u32).to_le_bytes());
            lay(at + 12, &0x1000u32.to_le_bytes());
        }
        lay(0x80, &4u32.to_le_bytes());
        // MSI-X (PCI 3.0, section 6.8.2): the table and the pending bits are in BAR 1.
        lay(0x90, &[0x11, 0, VECTORS as u8 - 1, 0, 1, 0, 0, 0, 1, 8, 0, 0]);
        let interrupts = Interrupts::new(IrqLayout { intx: true, msix: VECTORS, ..IrqLayout::default() });
        Unserved { config, common: [0; 64], interrupts, vectors, rung }
    }

    /// The common structure as the guest reads it, by section 4.1.4.3: what was written, except the fields that the device sets.
    fn common(&self) -> [u8; 64] {
        let mut common = self.common;
        let selected = u32::from_le_bytes([common[0], common[1], common[2], common[3]]);
        let features = if selected < 2 { (FEATURES >> (32 * selected)) as u32 } else { 0 };
        common[4..8].copy_from_slice(&features.to_le_bytes());
        common[18..20].copy_from_slice(&QUEUES.to_le_bytes());
        let queue = [common[22], common[23]];
        // The queue's size, 256, and its notification offset: its own number.
        let size = if u16::from_le_bytes(queue) < QUEUES { [0, 1] } else { [0, 0] };
        common[24..26].copy_from_slice(&size);
        common[30..32].copy_from_slice(&queue);
        common
    }
}

impl Device for Unserved {
    fn region(&self, index: u32) -> Option<RegionInfo> {
        match index {
            0 | 1 => Some(RegionInfo::trapped(u64::from(BAR))),
            CONFIG => Some(RegionInfo::trapped(256)),
            _ => Some(RegionInfo::trapped(0)),
        }
    }

    fn irq_info(&self, index: u32) -> Option<IrqInfo> {
        self.interrupts.info(index)
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let common = self.common();
        // The link is up.
        let net = [&MAC[..], &[1, 0], &PAIRS.to_le_bytes()].concat();
        let from = match (region, offset) {
            (CONFIG, _) => self.config.get(offset as usize..).unwrap_or_default(),
            (0, 0..64) => &common[offset as usize..],
            (0, NET..NOTIFY) => net.get((offset - NET) as usize..).unwrap_or_default(),
            _ => &[],
        };
        data.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let at = offset as usize;
        match (region, offset) {
            // The command register, MSI-X's control, and the BARs, whose size reads back.
            (CONFIG, 4 | 0x92) => self.config[at..at + data.len()].copy_from_slice(data),
            (CONFIG, 0x10 | 0x14) if data.len() == 4 => {
                let base = u32::from_le_bytes([data[0], data[1], data[2], data[3]]) & !(BAR - 1);
                self.config[at..at + 4].copy_from_slice(&base.to_le_bytes());
            }
            (0, 0..64) if at + data.len() <= 64 => self.common[at..at + data.len()].copy_from_slice(data),
            (0, NOTIFY..) => _ = self.rung.send((offset - NOTIFY) / 4),
            _ => {}
        }
        Ok(())
    }

    fn dma_map(&mut self, _map: DmaMap) -> Result<Change, Errno> {
        Ok(Change::Done)
    }

    fn dma_unmap(&mut self, _range: Option<DmaRange>) -> Change {
        Change::Done
    }

    fn set_irqs(&mut self, set: IrqSet<'_>) -> Result<(), Errno> {
        if let (MSIX, IrqData::Connect(pipes)) = (set.index, &set.data) {
            let own = pipes
                .iter()
                .map(|pipe| pipe.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE))
                .collect::<Result<Vec<_>, _>>()?;
            own.iter().try_for_each(|pipe| fcntl_setpipe_size(pipe, 1 << 20).map(drop))?;
            self.vectors.lock().unwrap().extend(own);
        }
        self.interrupts.apply(set)
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.common = [0; 64];
        Ok(())
    }
}

/// Serves one guest until its connection is shut down. The returned receiver gets the connection.
fn serve(socket: &Path, mut device: Unserved) -> (JoinHandle<()>, mpsc::Receiver<UnixStream>) {
    let listener = well(UnixListener::bind(socket));
    let (connected, connection) = mpsc::channel();
    let server = thread::spawn(move || {
        let (guest, _) = well(listener.accept());
        well(connected.send(well(guest.try_clone())));
        well(guest.set_nonblocking(true));
        let mut session = Session::new(guest.into());
        while let Ok(progress) = session.receive(&mut device) {
            if progress.more && !session.wants_write() {
                continue;
            }
            let wanted = if session.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let _ready = poll(&mut [PollFd::from_borrowed_fd(session.as_fd(), wanted)], None);
        }
    });
    (server, connection)
}

/// Boots behind such a server. In the end the guest's kernel prints `said`. `act` starts once the driver waits for its control queue.
fn boots_behind(act: impl FnOnce(&UnixStream, Vec<OwnedFd>) + Send, said: &str) {
    let (root, config) = guests();
    let folder = well(Folder::new());
    let (rung, rings) = mpsc::channel();
    let vectors = Vectors::default();
    let (server, connection) = serve(&folder.path().join("socket"), Unserved::new(rung, vectors.clone()));
    let devices = vec![format!("vfio_user.device={}", folder.join("socket"))];
    let mut guest = thread::scope(|scope| {
        scope.spawn(move || {
            while well(rings.recv_timeout(SOON)) != u64::from(QUEUES) - 1 {}
            let pipes = std::mem::take(&mut *vectors.lock().unwrap());
            assert_eq!(pipes.len(), usize::from(VECTORS));
            act(&well(connection.recv()), pipes);
        });
        well(Guest::boot(&root, UmlConfig { devices, ..config }))
    });
    let message = well(guest.succeed("dmesg | grep 'the device is gone' | sed 's/.*socket: //'", SOON));
    assert_eq!(message, format!("{said}; the device is gone, its registers read as ones until it is attached again\n"));
    powers_off_well(guest);
    server.join().unwrap();
}

/// `virtnet_send_command_reply()`, here during boot, waits until the queue has answered or is broken, and reads no register meanwhile.
#[test]
fn a_virtio_driver_that_waits_for_its_queue_learns_that_its_server_has_died() {
    let dies = |connection: &UnixStream, _| {
        thread::sleep(Duration::from_secs(1));
        well(connection.shutdown(Shutdown::Both));
    };
    boots_behind(dies, "the server has closed the connection");
}

/// More vectors than the kernel takes at once, each written to faster than it reads. One server writes all the time; the other pauses
/// now and then, as on a machine with other work.
#[test]
fn a_server_that_interrupts_without_end_on_many_vectors_is_given_up() {
    for breath in [Duration::ZERO, Duration::from_millis(1)] {
        let floods = move |_: &UnixStream, mut pipes: Vec<OwnedFd>| {
            let bytes = 1u64.to_ne_bytes().repeat(512);
            // A full pipe soon has room again. A pipe that nobody reads any more is dropped.
            while !pipes.is_empty() {
                for _ in 0..8 {
                    pipes.retain(|pipe| rustix::io::write(pipe, &bytes) != Err(Errno::PIPE));
                }
                thread::sleep(breath);
            }
        };
        boots_behind(floods, "the server interrupts without end");
    }
}
