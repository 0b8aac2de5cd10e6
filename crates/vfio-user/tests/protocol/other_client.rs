//! The client of the crate `vfio_user` 0.1.7, written by others, against our server.

use std::os::fd::AsRawFd;

use nicety_vfio_user::{Accepted, Area, Listener, Mapping, RegionInfo, SessionError};
use vfio_user::Client;

use crate::kit::{DeviceCall, Model, event, memfd, place, serve, take};

#[test]
fn the_client_of_the_vfio_user_crate_sees_the_whole_device() {
    let (_place, path) = place();
    let listener = Listener::bind(&path).unwrap();
    let areas = vec![Area { offset: 0x1000, size: 0x1000 }, Area { offset: 0x3000, size: 0x1000 }];
    let mapping = Mapping { fd: std::sync::Arc::new(memfd(&[0; 64])), offset: 0x2000, areas };
    let mut model = Model::new();
    model.shared = Some(RegionInfo { mapping: Some(mapping), ..RegionInfo::trapped(0x4000) });
    let interrupts = std::sync::Arc::clone(&model.interrupts);
    let server = std::thread::spawn(move || {
        loop {
            match listener.accept(false).unwrap() {
                Accepted::Client(socket, _) => return serve(socket, model).join().unwrap(),
                _ => std::thread::yield_now(),
            }
        }
    });
    let mut client = Client::new(&path).unwrap();
    let region = client.region(1).unwrap();
    assert_eq!((region.size, region.flags), (0x4000, 0xf));
    assert_eq!(region.file_offset.as_ref().unwrap().start(), 0x2000);
    let areas: Vec<_> = region.sparse_areas.iter().map(|a| (a.offset, a.size)).collect();
    assert_eq!(areas, [(0x1000, 0x1000), (0x3000, 0x1000)]);
    assert_eq!(client.region(0).unwrap().size, 256);
    client.region_write(0, 8, &[1, 2, 3, 4]).unwrap();
    let mut data = [0; 4];
    client.region_read(0, 8, &mut data).unwrap();
    assert_eq!(data, [1, 2, 3, 4]);
    let info = client.get_irq_info(2).unwrap();
    assert_eq!(info.count, 40);
    let file = memfd(&[0; 4096]);
    client.dma_map(0x1000, 0x10_0000, 0x2000, file.as_raw_fd()).unwrap();
    client.dma_unmap(0x10_0000, 0x2000).unwrap();
    let (first, second) = (event(), event());
    client.set_irqs(2, 4 | 32, 3, 2, &[first.as_raw_fd(), second.as_raw_fd()]).unwrap();
    interrupts.raise_msix(4);
    assert_eq!((take(&first), take(&second)), (0, 1));
    client.set_irqs(2, 1 | 32, 0, 0, &[]).unwrap();
    client.reset().unwrap();
    client.shutdown().unwrap();
    drop(client);
    let (error, session, model) = server.join().unwrap();
    assert_eq!(error, SessionError::Closed);
    let map = DeviceCall::Map { address: 0x10_0000, size: 0x2000, offset: 0x1000, read: true, write: true, file: true };
    assert!(model.calls().contains(&map));
    assert_eq!(session.counters().errors_sent, 0);
    assert!(!path.exists());
}
