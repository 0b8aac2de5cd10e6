//! A session that goes on in another process although the one that served it was killed between any two steps.

use std::os::fd::AsFd;
use std::sync::Arc;

use nicety_peer::{Table, Tally};
use nicety_vfio_user::{Batch, Session, SessionError};
use rustix::net::{RecvFlags, recv, sockopt};

use crate::kit::{DeviceCall, Raw, Reply, memfd, message, words};

const READ: u16 = 9;
const WRITE: u16 = 10;
const WRITE_MULTI: u16 = 15;
const POSTED: u32 = 0x10;

/// An access to the first bytes of region 0.
fn access(data: &[u8]) -> Vec<u8> {
    [&[0; 8][..], &words(&[0, 4]), data].concat()
}

fn read(id: u16) -> Vec<u8> {
    message(id, READ, 0, &access(&[]))
}

fn kept() -> Raw {
    let mut raw = Raw::ready();
    assert!(raw.session.keep(None));
    raw
}

/// Another process goes on with what was kept. This one's session disappears, and its device too.
fn killed(raw: Raw, batches: &[Batch]) -> (Raw, u32) {
    killed_with(raw, batches, None)
}

fn killed_with(raw: Raw, batches: &[Batch], tally: Option<Tally>) -> (Raw, u32) {
    let mut table = Table::default();
    let saved = raw.session.save_kept(&mut table).unwrap();
    let mut session = Session::restore(saved, &mut table).unwrap();
    assert!(session.keep(tally.map(Arc::new)));
    let answers = batches.iter().map(|batch| session.pass_over(*batch).unwrap()).sum();
    (Raw { session, model: crate::kit::Model::new(), ..raw }, answers)
}

fn turned(raw: &mut Raw) -> Vec<Reply> {
    raw.turn().unwrap();
    raw.session.finish().unwrap();
    raw.replies()
}

/// Messages that were not handled are handled by the next process; those that were may have been answered, and get a header, which QEMU
/// takes for success or ignores (hw/vfio-user/proxy.c, vfio_user_recv_one); those that were consumed are gone.
#[test]
fn each_message_takes_effect_and_no_answer_has_a_payload_twice_whenever_the_process_is_killed() {
    for step in ["received", "handled", "consumed"] {
        let mut raw = kept();
        raw.send(&[message(6, WRITE, POSTED, &access(&[1, 2, 3, 4])), read(7)].concat(), &[]);
        raw.turn().unwrap();
        let batch = raw.session.batch().unwrap();
        assert_eq!(
            (&batch.first[..2], batch.len, raw.replies()),
            (&[6, 0][..], 36 + 32, vec![]),
            "nothing is answered yet"
        );
        let (mut raw, answers) = match step {
            "received" => killed(raw, &[]),
            "handled" => killed(raw, &[batch]),
            _ => {
                raw.session.finish().unwrap();
                killed(raw, &[batch])
            }
        };
        let replies = match step {
            "received" => turned(&mut raw),
            _ => raw.replies(),
        };
        let [reply] = &replies[..] else { panic!("{step}: {replies:?}") };
        assert_eq!((reply.id, reply.flags), (7, 1), "{step}");
        let data = if step == "handled" { vec![] } else { access(&[1, 2, 3, 4]) };
        assert_eq!((&reply.payload, answers), (&data, u32::from(step == "handled")), "{step}");
        raw.send(&read(8), &[]);
        let replies = turned(&mut raw);
        assert_eq!((replies.len(), replies[0].id, replies[0].payload.len()), (1, 8, 20), "{step}");
    }
}

/// A client takes an answer that comes twice, or half of one, for a defect.
#[test]
fn each_answer_comes_once_and_whole_after_whichever_of_its_bytes_the_process_is_killed() {
    let answer = message(7, READ, 1, &access(&[1, 2, 3, 4]));
    for sent in 0..=answer.len() {
        let page = memfd(&[0; 4096]);
        let [here, next, after] = [(); 3].map(|()| Tally::of(&page).unwrap());
        let (mut raw, here) = (Raw::ready(), Arc::new(here));
        assert!(raw.session.keep(Some(Arc::clone(&here))));
        // An earlier answer is none of these.
        raw.send(&read(5), &[]);
        raw.turn().unwrap();
        raw.session.keep_answers(&raw.session.batch().unwrap());
        raw.session.finish().unwrap();
        assert_eq!(raw.replies().len(), 1);
        raw.send(&[message(6, WRITE, POSTED, &access(&[1, 2, 3, 4])), read(7)].concat(), &[]);
        raw.turn().unwrap();
        let batch = raw.session.batch().unwrap();
        raw.session.keep_answers(&batch);
        if sent == answer.len() {
            raw.session.flush().unwrap();
        } else if sent > 0 {
            assert_eq!(here.send(raw.session.as_fd(), &answer[..sent], &[]), Ok(sent));
        }
        let (raw, doubtful) = killed_with(raw, &[batch], Some(next));
        let (mut raw, more) = killed_with(raw, &[batch], Some(after));
        let replies = raw.replies();
        let [reply] = &replies[..] else { panic!("{sent}: {replies:?}") };
        assert_eq!((reply.id, reply.flags, &reply.payload), (7, 1, &access(&[1, 2, 3, 4])), "{sent}");
        assert_eq!((doubtful, more), (0, 0), "{sent}");
        raw.send(&read(8), &[]);
        let replies = turned(&mut raw);
        assert_eq!((replies.len(), replies[0].id, replies[0].payload.len()), (1, 8, 20), "{sent}");
    }
}

/// A message with more writes than one call makes is all there for the next process, whenever this one is killed.
#[test]
fn a_message_of_many_writes_takes_effect_as_a_whole_when_the_process_is_killed_within_it() {
    const COUNT: u64 = 1000;
    let writes = (0..COUNT).flat_map(|at| [&(at % 256).to_ne_bytes()[..], &words(&[0, 1]), &[at as u8; 8]].concat());
    let all = [&COUNT.to_ne_bytes()[..], &writes.collect::<Vec<u8>>()].concat();
    let mut raw = kept();
    raw.send(&[read(1), message(2, WRITE_MULTI, 0, &all)].concat(), &[]);
    let progress = raw.turn().unwrap();
    assert!(progress.more && raw.session.is_within_batch());
    assert_eq!(raw.session.batch(), None);
    raw.session.finish().unwrap();
    let (mut raw, _) = killed(raw, &[]);
    let mut replies = Vec::new();
    for _ in 0..20 {
        replies.extend(turned(&mut raw));
    }
    let ids: Vec<_> = replies.iter().map(|reply| (reply.id, reply.payload.len())).collect();
    assert_eq!(ids, [(1, 20), (2, 8)]);
    let calls = raw.model.calls.lock().unwrap();
    assert_eq!(calls.iter().filter(|call| matches!(call, DeviceCall::Write(..))).count() as u64, COUNT);
}

#[test]
fn a_message_in_parts_stays_in_the_socket_until_it_is_whole() {
    let mut raw = kept();
    let whole = [read(1), read(2)].concat();
    for cut in 1..whole.len() {
        raw.send(&whole[..cut], &[]);
        let before = turned(&mut raw);
        assert_eq!((before.len(), raw.session.is_within_message()), (cut / 32, !cut.is_multiple_of(32)), "{cut}");
        let (mut next, _) = killed(raw, &[]);
        next.send(&whole[cut..], &[]);
        let after = turned(&mut next);
        assert_eq!(before.len() + after.len(), 2, "{cut}");
        assert!(!next.session.is_within_message());
        raw = next;
    }
}

/// DMA_MAP of a page: size of the fields, read and write, offset, address, bytes.
fn map(id: u16, address: u64) -> Vec<u8> {
    let fields = [words(&[32, 3]), vec![0; 8], address.to_le_bytes().to_vec(), 4096u64.to_le_bytes().to_vec()];
    message(id, 2, 0, &fields.concat())
}

/// The windows that were mapped.
fn maps(raw: &Raw) -> Vec<DeviceCall> {
    raw.model.calls().into_iter().filter(|call| matches!(call, DeviceCall::Map { .. })).collect()
}

/// A window that was mapped with a file.
fn mapped(address: u64) -> DeviceCall {
    DeviceCall::Map { address, size: 4096, offset: 0, read: true, write: true, file: true }
}

#[test]
fn descriptors_of_messages_that_are_peeked_belong_to_them() {
    let mut raw = kept();
    for (id, address) in [(3, 0), (4, 8192)] {
        raw.send(&read(id + 10), &[]);
        raw.send(&map(id, address), &[&memfd(&[7; 4096])]);
        let mut replies = turned(&mut raw);
        while replies.len() < 2 {
            replies.extend(turned(&mut raw));
        }
        assert!(replies.iter().all(|reply| reply.error == 0), "{replies:?}");
    }
    assert_eq!(maps(&raw), [mapped(0), mapped(8192)]);
    assert_eq!(raw.session.counters().fds_refused, 0);
}

/// A peek ends behind the send that had descriptors, and begins at the first byte again: unix(7).
#[test]
fn a_message_whose_descriptors_came_with_its_first_part_is_whole_when_the_rest_has_come() {
    let whole = map(3, 0);
    for cut in 1..whole.len() {
        let mut raw = kept();
        raw.send(&[&read(1), &whole[..cut]].concat(), &[&memfd(&[7; 4096])]);
        assert_eq!((turned(&mut raw).len(), raw.session.is_within_message()), (1, true), "{cut}");
        raw.send(&[&whole[cut..], &read(4)].concat(), &[]);
        let ids: Vec<_> = turned(&mut raw).iter().map(|reply| (reply.id, reply.error)).collect();
        assert_eq!(ids, [(3, 0), (4, 0)], "{cut}");
        assert_eq!(maps(&raw), [mapped(0)], "{cut}");
        assert_eq!(raw.session.counters().fds_refused, 0);
    }
}

/// The kernel gives a send's descriptors up with the first byte of it that is read. Killed after so many turns.
fn maps_behind_others_of_the_same_send(killed_after: Option<usize>) {
    let accesses = (0..500).flat_map(|id| [message(id, WRITE, POSTED, &access(&[1, 2, 3, 4])), read(id)].concat());
    let all: Vec<u8> = accesses.chain(map(1000, 0)).collect();
    let mut raw = kept();
    raw.send(&all[..all.len() / 2], &[]);
    raw.send(&all[all.len() / 2..], &[&memfd(&[7; 4096])]);
    let (mut turns, mut replies) = (0, Vec::new());
    while replies.last().is_none_or(|reply: &Reply| reply.id != 1000) {
        raw.turn().unwrap();
        let batch = raw.session.batch();
        raw.session.finish().unwrap();
        replies.extend(raw.replies());
        turns += 1;
        assert!(turns < 20);
        if killed_after == Some(turns) {
            raw = killed(raw, batch.as_slice()).0;
        }
    }
    assert!(turns > 3, "they were handled in {turns} turns");
    assert_eq!((replies.last().unwrap().error, maps(&raw)), (0, vec![mapped(0)]), "{killed_after:?}");
    let with_data: Vec<u16> = replies.iter().filter(|reply| reply.payload.len() == 20).map(|reply| reply.id).collect();
    assert_eq!(with_data, (0..500).collect::<Vec<_>>(), "{killed_after:?}");
}

#[test]
fn a_message_keeps_its_descriptors_when_others_of_the_same_send_are_handled_first() {
    maps_behind_others_of_the_same_send(None);
    (1..=3).for_each(|turns| maps_behind_others_of_the_same_send(Some(turns)));
}

#[test]
fn a_client_that_goes_within_a_message_is_noticed_at_once() {
    let whole = map(3, 0);
    for cut in 1..whole.len() {
        let mut raw = kept();
        raw.send(&whole[..cut], &[&memfd(&[7; 4096])]);
        assert!(turned(&mut raw).is_empty());
        let Raw { peer, mut session, mut model } = raw;
        drop(peer);
        let ended = session.receive(&mut model);
        assert!(matches!(ended, Err(SessionError::ClosedWithinMessage)), "{cut}: {ended:?}");
    }
}

/// Another process goes on with a session of which this one was the last to handle messages.
fn upgraded(raw: Raw) -> Raw {
    let mut table = Table::default();
    let unread = raw.session.unread().unwrap();
    let saved = raw.session.save(&mut table).unwrap().unwrap();
    let mut session = Session::restore(saved, &mut table).unwrap();
    session.leave_unread(unread);
    assert!(session.keep(None));
    Raw { session, model: crate::kit::Model::new(), ..raw }
}

#[test]
fn a_client_that_reads_nothing_gets_each_answer_once_from_the_processes_that_go_on() {
    let mut raw = kept();
    sockopt::set_socket_send_buffer_size(raw.session.as_fd(), 4096).unwrap();
    let mut sent = 0;
    while !raw.session.wants_write() {
        assert!(sent < 10_000);
        raw.send(&read(sent), &[]);
        sent += 1;
        raw.turn().unwrap();
        raw.session.finish().unwrap();
    }
    // Some wait behind those that were handled; the last one has come in part.
    let cut = read(sent + 9);
    let more: Vec<u8> = (sent..sent + 9).flat_map(read).collect();
    raw.send(&[&more, &cut[..20]].concat(), &[]);
    let mut raw = upgraded(upgraded(raw));
    raw.send(&cut[20..], &[]);
    sent += 10;
    let (mut bytes, mut part) = (Vec::new(), vec![0; 1 << 16]);
    let size = 16 + 20;
    for _ in 0..100 {
        while let Ok((count, _)) = recv(&raw.peer, &mut part[..], RecvFlags::DONTWAIT) {
            bytes.extend_from_slice(&part[..count]);
        }
        raw.turn().unwrap();
        raw.session.finish().unwrap();
        raw = if bytes.len() < size * usize::from(sent) { upgraded(raw) } else { break };
    }
    let ids: Vec<u16> = bytes.chunks(size).map(|reply| u16::from_le_bytes([reply[0], reply[1]])).collect();
    assert_eq!(ids, (0..sent).collect::<Vec<_>>());
}
