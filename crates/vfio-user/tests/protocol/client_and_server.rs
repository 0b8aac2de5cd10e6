//! Our client against our server over a socket pair (vfio-user.rst, every command).

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::kit::{DeviceCall, Model, client, event, memfd, pair, serve, take};
use nicety_vfio_user::codec::{Command, irqs};
use nicety_vfio_user::{
    Area, ClientError, DeviceInfo, DmaProtection, DmaRange, Errno, Mapping, RegionInfo, SessionError,
};

const READ_WRITE: DmaProtection = DmaProtection { read: true, write: true };

#[test]
fn what_is_written_is_read_back_and_the_session_ends_cleanly() {
    let (near, far) = pair();
    let server = serve(far, Model::new());
    let mut guest = client(near);
    assert_eq!(guest.device_info().unwrap(), DeviceInfo { regions: 9, irqs: 3, resettable: true });
    guest.region_write(0, 16, &[1, 2, 3, 4]).unwrap();
    guest.region_write_posted(0, 20, &[5, 6]).unwrap();
    guest.write_multi(&[(0, 22, &[7]), (0, 23, &[8])], false).unwrap();
    guest.write_multi(&[(0, 24, &[9; 8])], true).unwrap();
    let mut data = [0; 16];
    guest.region_read(0, 16, &mut data).unwrap();
    assert_eq!(data, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9, 9, 9]);
    guest.reset().unwrap();
    guest.region_read(0, 16, &mut data).unwrap();
    assert_eq!(data, [0; 16]);
    drop(guest);
    let (error, session, _) = server.join().unwrap();
    assert_eq!(error, SessionError::Closed);
    let counters = session.counters();
    assert_eq!((counters.reads, counters.writes, counters.posted_writes), (2, 5, 2));
    assert_eq!(counters.received(Command::RegionWriteMulti), 2);
    assert_eq!(counters.messages_sent(), counters.messages_received() - 2, "all but the posted ones are answered");
}

#[test]
fn errors_of_the_device_reach_the_client_and_the_session_goes_on() {
    let (near, far) = pair();
    let server = serve(far, Model::new());
    let mut guest = client(near);
    let refused = |command, errno| ClientError::Refused { command, errno };
    assert_eq!(guest.region_read(2, 0, &mut [0; 4]).unwrap_err(), refused(Command::RegionRead, Errno::IO));
    assert_eq!(guest.region_write(2, 0, &[0; 4]).unwrap_err(), refused(Command::RegionWrite, Errno::IO));
    guest.region_write_posted(2, 0, &[0; 4]).unwrap();
    assert_eq!(guest.irq_info(irqs::ERR).unwrap_err(), refused(Command::DeviceGetIrqInfo, Errno::INVAL));
    assert_eq!(guest.irq_info(irqs::REQ).unwrap_err(), refused(Command::DeviceGetIrqInfo, Errno::INVAL));
    assert_eq!(guest.region_info(9).unwrap_err(), refused(Command::DeviceGetRegionInfo, Errno::INVAL));
    let migration_probe = 1 | 1 << 16 | 1 << 18;
    assert_eq!(guest.device_feature(migration_probe).unwrap_err(), refused(Command::DeviceFeature, Errno::NOTTY));
    assert_eq!(guest.region_io_fds(0).unwrap(), 0);
    assert_eq!(guest.region_info(8).unwrap().size, 0);
    drop(guest);
    assert_eq!(server.join().unwrap().0, SessionError::Closed);
}

#[test]
fn windows_of_memory_are_mapped_once_and_given_back_at_the_end() {
    let (near, far) = pair();
    let server = serve(far, Model::new());
    let mut guest = client(near);
    let file = memfd(&[0; 8192]);
    let range = |address, size| DmaRange { address, size };
    guest.dma_map(range(0x1000, 0x2000), READ_WRITE, Some((file.as_fd(), 4096))).unwrap();
    let read_only = DmaProtection { read: true, write: false };
    guest.dma_map(range(0xfffc_0000, 0x4_0000), read_only, None).unwrap();
    let error = guest.dma_map(range(0x2000, 0x1000), READ_WRITE, None).unwrap_err();
    assert_eq!(error, ClientError::Refused { command: Command::DmaMap, errno: Errno::EXIST });
    let error = guest.dma_map(range(0, 0x1001), READ_WRITE, None).unwrap_err();
    assert_eq!(error, ClientError::Refused { command: Command::DmaMap, errno: Errno::EXIST });
    let error = guest.dma_map(range(u64::MAX, 2), READ_WRITE, None).unwrap_err();
    assert_eq!(error, ClientError::Refused { command: Command::DmaMap, errno: Errno::INVAL });
    let error = guest.dma_unmap(range(0x1000, 0x1000)).unwrap_err();
    assert_eq!(error, ClientError::Refused { command: Command::DmaUnmap, errno: Errno::INVAL });
    guest.dma_unmap(range(0x1000, 0x2000)).unwrap();
    let error = guest.dma_unmap(range(0x1000, 0x2000)).unwrap_err();
    assert_eq!(error, ClientError::Refused { command: Command::DmaUnmap, errno: Errno::NOENT });
    guest.dma_map(range(0, 0x1000), READ_WRITE, None).unwrap();
    guest.dma_unmap_all().unwrap();
    drop(guest);
    let (_, session, model) = server.join().unwrap();
    assert_eq!(session.dma_maps(), 0);
    let map = |address, size, offset, write, file| DeviceCall::Map { address, size, offset, read: true, write, file };
    let expected = [
        map(0x1000, 0x2000, 4096, true, true),
        map(0xfffc_0000, 0x4_0000, 0, false, false),
        DeviceCall::Unmap(Some((0x1000, 0x2000))),
        map(0, 0x1000, 0, true, false),
        DeviceCall::Unmap(None),
        DeviceCall::Unmap(None),
    ];
    assert_eq!(model.calls(), expected);
}

#[test]
fn a_region_to_map_comes_with_its_file_and_its_areas() {
    let (near, far) = pair();
    let mut model = Model::new();
    let file = memfd(b"page of the device");
    let areas = vec![Area { offset: 0x1000, size: 0x1000 }, Area { offset: 0x4000, size: 0x2000 }];
    let mapping = Mapping { fd: Arc::new(file), offset: 0x10000, areas: areas.clone() };
    model.shared = Some(RegionInfo { mapping: Some(mapping), ..RegionInfo::trapped(0x8000) });
    let server = serve(far, model);
    let mut guest = client(near);
    let region = guest.region_info(1).unwrap();
    assert_eq!((region.size, region.offset, region.areas), (0x8000, 0x10000, areas));
    let mut text = [0; 18];
    rustix::io::pread(region.fd.unwrap(), &mut text, 0).unwrap();
    assert_eq!(&text, b"page of the device");
    drop(guest);
    assert_eq!(server.join().unwrap().1.counters().fds_sent, 1);
}

#[test]
fn forty_vectors_are_connected_in_messages_of_sixteen_and_each_reaches_its_own_eventfd() {
    let (near, far) = pair();
    let model = Model::new();
    let interrupts = Arc::clone(&model.interrupts);
    let server = serve(far, model);
    let mut guest = client(near);
    assert_eq!(guest.irq_info(irqs::MSIX).unwrap().count, 40);
    let events: Vec<_> = (0..40).map(|_| event()).collect();
    let borrowed: Vec<_> = events.iter().map(|e| e.as_fd()).collect();
    guest.connect_irqs(irqs::MSIX, 0, &borrowed).unwrap();
    assert_eq!(guest.counters().sent(Command::DeviceSetIrqs), 3);
    for vector in 0..40u16 {
        assert!(interrupts.raise_msix(vector));
        let counts: Vec<u64> = events.iter().map(take).collect();
        assert!(counts.iter().enumerate().all(|(n, c)| *c == u64::from(n == usize::from(vector))));
    }
    guest.mask_irqs(irqs::MSIX, 7, 1, true).unwrap();
    assert!(!interrupts.raise_msix(7));
    assert_eq!(take(&events[7]), 0);
    guest.mask_irqs(irqs::MSIX, 7, 1, false).unwrap();
    assert_eq!(take(&events[7]), 1);
    guest.disable_irqs(irqs::MSIX).unwrap();
    assert!(!interrupts.raise_msix(7));
    drop(guest);
    server.join().unwrap();
}
