//! The messages of real front ends, in the order in which they send them.

use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nicety_memory::shared_file;
use nicety_vhost_user::frontend::Frontend;
use nicety_vhost_user::{Ended, Kick, ProtocolFeatures};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend as PeerFrontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use crate::hostile::Raw;
use crate::port::{TestPort, serve};

const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = 1 << 30;
/// The address of the peer's memory in the peer's own process.
const USER: u64 = 0x7f00_0000_0000;

fn region(base: u64, len: u64, fd: i32) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: base,
        memory_size: len,
        userspace_addr: USER + base,
        mmap_offset: 0,
        mmap_handle: fd,
    }
}

fn ring_at(base: u64) -> VringConfigData {
    VringConfigData {
        queue_max_size: 256,
        queue_size: 256,
        flags: 0,
        desc_table_addr: USER + base,
        used_ring_addr: USER + base + 0x2000,
        avail_ring_addr: USER + base + 0x1000,
        log_addr: None,
    }
}

#[test]
fn the_vhost_crates_front_end_sets_up_a_ring_and_takes_it_down() {
    let port = TestPort::new(None);
    let (served, stream) = serve(&port);
    let mut peer = PeerFrontend::from_stream(stream, 5);
    peer.set_owner().unwrap();
    let features = peer.get_features().unwrap();
    assert_ne!(features & VERSION_1, 0);
    let offered = peer.get_protocol_features().unwrap();
    let wanted = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::RESET_DEVICE;
    assert!(offered.contains(wanted));
    peer.set_protocol_features(wanted).unwrap();
    peer.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    assert_eq!(peer.get_queue_num().unwrap(), 2, "queue pairs");
    peer.set_features(VERSION_1 | PROTOCOL).unwrap();
    let file = shared_file("guest", 0x10_0000).unwrap();
    peer.set_mem_table(&[region(0x4000_0000, 0x10_0000, file.as_raw_fd())]).unwrap();
    let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
    for ring in [0, 1] {
        peer.set_vring_num(ring, 256).unwrap();
        peer.set_vring_base(ring, 0).unwrap();
        peer.set_vring_addr(ring, &ring_at(0x4000_0000 + 0x4000 * ring as u64)).unwrap();
        peer.set_vring_call(ring, &call).unwrap();
        peer.set_vring_kick(ring, &kick).unwrap();
        peer.set_vring_enable(ring, true).unwrap();
    }
    port.look(|inside| {
        assert_eq!(inside.adapter.transmit_queues(), 1);
        assert!(matches!(inside.kicks.get(&1), Some(Kick::Bell(_))));
        assert!(inside.calls.contains_key(&1));
    });
    let (config, bytes) = peer.get_config(0, 8, VhostUserConfigFlags::empty(), &[0; 8]).unwrap();
    assert_eq!({ config.size }, 8, "as many bytes as were asked for");
    assert_eq!(bytes, [2, 0, 0, 0, 0, 1, 1, 0], "address and link");
    assert_eq!(peer.get_max_mem_slots().unwrap(), 128);
    let more = shared_file("more", 0x1000).unwrap();
    peer.add_mem_region(&region(0x8000_0000, 0x1000, more.as_raw_fd())).unwrap();
    port.look(|inside| assert_eq!(inside.memory.regions(), 2));
    peer.remove_mem_region(&region(0x8000_0000, 0x1000, more.as_raw_fd())).unwrap();
    port.look(|inside| assert_eq!(inside.memory.regions(), 1));
    assert_eq!(peer.get_vring_base(1).unwrap(), 0);
    port.look(|inside| {
        assert_eq!(inside.adapter.transmit_queues(), 0, "the ring is stopped");
        assert!(matches!(inside.kicks.get(&1), Some(Kick::Stopped)));
    });
    peer.reset_device().unwrap();
    port.look(|inside| assert!(inside.adapter.features().is_empty()));
    drop(peer);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn the_vhost_crates_front_end_shares_a_log_and_keeps_a_page_a_ring_for_the_next_back_end() {
    let (served, stream) = serve(&TestPort::new(None));
    let mut peer = PeerFrontend::from_stream(stream, 5);
    peer.get_features().unwrap();
    peer.get_protocol_features().unwrap();
    let wanted = [VhostUserProtocolFeatures::INFLIGHT_SHMFD, VhostUserProtocolFeatures::LOG_SHMFD];
    peer.set_protocol_features(wanted[0] | wanted[1] | VhostUserProtocolFeatures::REPLY_ACK).unwrap();
    peer.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    let log = shared_file("log", 4096).unwrap();
    let region = VhostUserDirtyLogRegion { mmap_size: 4096, mmap_offset: 0, mmap_handle: log.as_raw_fd() };
    peer.set_log_base(0, Some(region)).unwrap();
    let (kept, file) = peer.get_inflight_fd(&VhostUserInflight::new(0, 0, 5, 64)).unwrap();
    assert_eq!(({ kept.mmap_size }, { kept.mmap_offset }, { kept.num_queues }), (5 * 4096, 0, 5));
    assert_eq!(file.metadata().unwrap().len(), 5 * 4096);
    peer.set_inflight_fd(&kept, file.as_raw_fd()).unwrap();
    for (len, offset, rings) in [(5 * 4096 - 1, 0, 5), (5 * 4096, 8, 5), (6 * 4096, 0, 6), (4096, 0, 1025)] {
        let wrong = VhostUserInflight::new(len, offset, rings, 64);
        peer.set_inflight_fd(&wrong, file.as_raw_fd()).unwrap_err();
    }
    drop(peer);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn rings_start_enabled_when_protocol_features_were_not_taken() {
    let port = TestPort::new(None);
    let (served, stream) = serve(&port);
    let peer = PeerFrontend::from_stream(stream, 5);
    peer.set_owner().unwrap();
    peer.get_features().unwrap();
    peer.set_features(VERSION_1).unwrap();
    let file = shared_file("guest", 0x10_0000).unwrap();
    peer.set_mem_table(&[region(0, 0x10_0000, file.as_raw_fd())]).unwrap();
    let bell = EventFd::new(0).unwrap();
    peer.set_vring_num(1, 256).unwrap();
    peer.set_vring_addr(1, &ring_at(0)).unwrap();
    peer.set_vring_kick(1, &bell).unwrap();
    assert_eq!(peer.get_features().unwrap() & VERSION_1, VERSION_1, "all before was served");
    port.look(|inside| assert_eq!(inside.adapter.transmit_queues(), 1));
    drop(peer);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn a_ring_may_be_enabled_before_features_are_set_as_qemu_does() {
    let port = TestPort::new(None);
    let (served, stream) = serve(&port);
    let mut raw = Raw(stream);
    raw.negotiate();
    // hw/net/virtio-net.c, peer_attach: at the start, long before the driver accepts features.
    assert_eq!(raw.result(18, &[1u32.to_ne_bytes(), 1u32.to_ne_bytes()].concat(), &[]), 0);
    assert_eq!(raw.result(2, &(VERSION_1 | PROTOCOL).to_ne_bytes(), &[]), 0);
    raw.share();
    raw.ring(1, 0);
    port.look(|inside| assert_eq!(inside.adapter.transmit_queues(), 1));
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn our_own_front_end_agrees_on_features_and_reads_configuration_space() {
    let port = TestPort::new(Some(1500));
    let (served, stream) = serve(&port);
    let mut front = Frontend::from_socket(stream.into());
    let taken = front.negotiate(VERSION_1 | 1 << 3 | 1 << 62).unwrap();
    assert_eq!(taken, VERSION_1 | 1 << 3, "those on offer");
    assert_eq!(front.queue_pairs().unwrap(), 2);
    let mut mtu = [0; 2];
    front.config(10, &mut mtu).unwrap();
    assert_eq!(u16::from_le_bytes(mtu), 1500);
    front.config(8, &mut [1; 16]).unwrap();
    assert!(front.config(8, &mut [1; 17]).is_err(), "a byte beyond the end");
    assert!(front.config(u32::MAX, &mut [1]).is_err());
    front.reset().unwrap();
    drop(front);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn an_mtu_that_the_port_is_not_for_is_refused_and_the_device_status_is_kept() {
    let port = TestPort::new(Some(1500));
    let (served, stream) = serve(&port);
    let mut raw = Raw(stream);
    raw.negotiate();
    assert_eq!(raw.result(20, &1500u64.to_ne_bytes(), &[]), 0);
    assert_eq!(raw.result(20, &9000u64.to_ne_bytes(), &[]), 1);
    assert_eq!(port.look(|inside| inside.refused.len()), 1);
    assert_eq!(raw.result(39, &15u64.to_ne_bytes(), &[]), 0);
    assert_eq!(raw.exchange(40, &[]), 15u64.to_ne_bytes());
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn a_guest_that_came_from_elsewhere_is_announced() {
    let port = TestPort::new(None);
    let (served, stream) = serve(&port);
    let mut raw = Raw(stream);
    raw.negotiate();
    assert_eq!(raw.result(19, &[2, 0, 0, 0, 0, 9, 0, 0], &[]), 0);
    assert_eq!(raw.result(19, &[2, 0, 0, 0, 0, 9], &[]), 1, "its address has eight bytes in the message");
    port.look(|inside| assert_eq!(inside.announced, [[2, 0, 0, 0, 0, 9]]));
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn the_socket_for_a_back_end_s_own_requests_is_kept_as_long_as_the_session() {
    let (served, stream) = serve(&TestPort::new(None));
    let mut peer = PeerFrontend::from_stream(stream, 5);
    peer.get_features().unwrap();
    assert!(peer.get_protocol_features().unwrap().contains(VhostUserProtocolFeatures::BACKEND_REQ));
    peer.set_protocol_features(VhostUserProtocolFeatures::BACKEND_REQ | VhostUserProtocolFeatures::REPLY_ACK).unwrap();
    peer.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    let open = |own: &mut UnixStream| {
        own.set_nonblocking(true).unwrap();
        own.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    // Another thread closes the socket, so wait for it.
    let closed = |own: &mut UnixStream| {
        own.set_nonblocking(false).unwrap();
        own.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        own.read(&mut [0]).is_ok_and(|bytes| bytes == 0)
    };
    let ((mut first, its), (mut second, its_too)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    peer.set_backend_request_fd(&its).unwrap();
    drop(its);
    assert!(open(&mut first));
    peer.set_backend_request_fd(&its_too).unwrap();
    drop(its_too);
    assert!(closed(&mut first) && open(&mut second), "one at a time");
    drop(peer);
    assert!(matches!(served.ended(), Ended::Gone));
    assert!(closed(&mut second));
}

#[test]
fn only_what_is_served_is_offered() {
    // Bits of docs/interop/vhost-user.rst that are not served: postcopy, in-band notifications.
    for bit in [8, 14] {
        assert_eq!(ProtocolFeatures::OFFERED.0 & 1 << bit, 0, "bit {bit}");
    }
}

#[test]
fn a_session_is_ended_from_outside_while_it_waits() {
    let port = TestPort::new(None);
    let (served, _stream) = serve(&port);
    served.closer.close();
    assert!(matches!(served.ended(), Ended::Gone));
}
