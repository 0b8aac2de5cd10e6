//! The server's own requests (vfio-user.rst, VFIO_USER_DMA_READ and VFIO_USER_DMA_WRITE).

use std::time::Duration;

use nicety_vfio_user::{Client, DmaProtection, DmaRange, DmaRequestError, Errno, MemoryTable, Session, SessionError};

use crate::kit::{DeviceCall, Model, Raw, memfd, message, pair, words};

fn memory() -> Box<MemoryTable> {
    let mut table = MemoryTable::new();
    let window = |address, size| DmaRange { address, size };
    let read_write = DmaProtection { read: true, write: true };
    let read_only = DmaProtection { read: true, write: false };
    table.add(window(0x1000, 0x1000), read_write, memfd(&[7; 0x1000]), 0);
    table.add(window(0x8000, 0x100), read_only, memfd(&[8; 0x100]), 0);
    Box::new(table)
}

/// Runs a client in a thread that does `work`, and the session beside it until the client disconnects.
fn together(
    work: impl FnOnce(&mut Client) + Send + 'static,
    mut each_turn: impl FnMut(&mut Session, &Model),
) -> (SessionError, Model) {
    let (near, far) = pair();
    let guest = std::thread::spawn(move || {
        let mut client = Client::from_socket(near, Duration::from_secs(5), memory()).unwrap();
        work(&mut client);
    });
    let (mut session, mut model) = (Session::new(far), Model::new());
    let error = loop {
        match session.receive(&mut model) {
            Ok(_) => each_turn(&mut session, &model),
            Err(error) => break error,
        }
        session.flush().unwrap();
        assert!(crate::kit::wait(&session));
    };
    guest.join().unwrap();
    (error, model)
}

#[test]
fn memory_is_read_and_written_by_messages_while_the_client_waits_for_its_own_answer() {
    let mut ids = Vec::new();
    let work = |client: &mut Client| {
        // The server sends its requests after this command. The client answers them while it waits for the next command's answer.
        client.reset().unwrap();
        assert_eq!(client.serve(Duration::from_secs(5), 4).unwrap(), 4);
        let mut data = [0; 4];
        client.memory().read(0x1ffc, &mut data).unwrap();
        assert_eq!(data, [1, 2, 3, 4]);
    };
    let (error, model) = together(work, |session, model| {
        if ids.is_empty() && model.calls() == [DeviceCall::Reset] {
            ids.push(session.dma_read(0x1800, 3).unwrap());
            ids.push(session.dma_write(0x1ffc, &[1, 2, 3, 4]).unwrap());
            ids.push(session.dma_read(0x1ffd, 4).unwrap());
            ids.push(session.dma_write(0x8000, &[1]).unwrap());
            assert_eq!(session.dma_outstanding(), 4);
        }
    });
    assert_eq!(error, SessionError::Closed);
    let expected = [
        DeviceCall::Reset,
        DeviceCall::DmaRead(ids[0], Ok(vec![7; 3])),
        DeviceCall::DmaWrite(ids[1], Ok(())),
        DeviceCall::DmaRead(ids[2], Err(Errno::FAULT)),
        DeviceCall::DmaWrite(ids[3], Err(Errno::PERM)),
        DeviceCall::Unmap(None),
    ];
    assert_eq!(model.calls()[..5], expected[..5]);
}

#[test]
fn requests_before_the_handshake_too_many_or_too_large_are_not_made() {
    let mut raw = Raw::fresh();
    assert_eq!(raw.session.dma_read(0, 4), Err(DmaRequestError::NotReady));
    let mut raw = Raw::ready();
    assert_eq!(raw.session.dma_read(0, 0), Err(DmaRequestError::Length));
    assert_eq!(raw.session.dma_read(0, (1 << 20) + 1), Err(DmaRequestError::Length));
    assert_eq!(raw.session.dma_read(u64::MAX, 2), Err(DmaRequestError::Length));
    for _ in 0..64 {
        raw.session.dma_read(0x1000, 8).unwrap();
    }
    assert_eq!(raw.session.dma_read(0x1000, 8), Err(DmaRequestError::Busy));
    raw.session.flush().unwrap();
    let requests = raw.replies();
    assert_eq!((requests.len(), requests[5].command, requests[5].flags), (64, 11, 0));
    assert_eq!(requests[5].payload, words(&[0x1000, 0, 8, 0]));
}

#[test]
fn answers_may_come_in_any_order_and_a_short_one_ends_the_session() {
    let mut raw = Raw::ready();
    let ids: Vec<_> = (0..3).map(|n| raw.session.dma_read(0x1000 * n, 4).unwrap()).collect();
    raw.session.flush().unwrap();
    let requests: Vec<u16> = raw.replies().iter().map(|m| m.id).collect();
    let answer =
        |id: u16, address: u32, data: &[u8]| message(id, 11, 1, &[&words(&[address, 0, 4, 0])[..], data].concat());
    raw.send(&answer(requests[2], 0x2000, &[3; 4]), &[]);
    raw.send(&message(requests[0], 11, 0x21, &[]), &[]);
    raw.settle().unwrap();
    let expected = [DeviceCall::DmaRead(ids[2], Ok(vec![3; 4])), DeviceCall::DmaRead(ids[0], Err(Errno::IO))];
    assert_eq!(raw.model.calls(), expected, "an error without a number is an input/output error");
    raw.send(&answer(requests[1], 0x1000, &[3; 3]), &[]);
    assert!(matches!(raw.settle(), Err(SessionError::BadReply(_))));
}

#[test]
fn a_reply_to_nothing_or_to_another_command_ends_the_session() {
    let mut raw = Raw::ready();
    raw.send(&message(77, 11, 1, &[]), &[]);
    assert_eq!(raw.settle(), Err(SessionError::UnexpectedReply(77)));
    let mut raw = Raw::ready();
    raw.session.dma_read(0, 4).unwrap();
    raw.session.flush().unwrap();
    let id = raw.replies()[0].id;
    raw.send(&message(id, 12, 1, &[]), &[]);
    assert_eq!(raw.settle(), Err(SessionError::UnexpectedReply(id)));
}
