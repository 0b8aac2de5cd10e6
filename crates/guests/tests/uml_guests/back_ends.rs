//! Faulty vhost-user back ends, and the guest's reaction: one message, and it continues without the device.

use std::{
    io::{IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{Arc, OnceLock, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use nicety_guests::{Folder, Guest, uml::UmlConfig};
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use super::{SOON, guests, powers_off_well, well};

/// A fault of a vhost-user back end with many queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Takes the memory, and then stops reading: the guest's messages fill the socket.
    Deaf,
    /// Writes to the first queue's interrupt endlessly, with pauses of this many milliseconds.
    Interrupts(u64),
    /// Sends this request endlessly and requests a reply to each, with pauses of this many milliseconds.
    Requests(u32, u64),
    /// Answers every message and serves no queue.
    ServesNothing,
    /// The same, and makes kicks block forever: the descriptor blocks, and its counter is full.
    FillsKicks,
    /// Sends a request byte by byte.
    Drips,
    /// Answers with an undefined flag.
    Flags,
    /// Answers with an impossible size.
    Size,
}

/// Runs such a back end until `over`. It floods, or drips, once the guest has booted.
fn back_end(socket: &Path, fault: Fault, booted: Arc<OnceLock<()>>, over: mpsc::Receiver<()>) -> JoinHandle<()> {
    let listener = well(UnixListener::bind(socket));
    thread::spawn(move || {
        let (guest, _) = well(listener.accept());
        let mut header = [0; 12];
        // A closed pipe would tell the guest that the server has gone.
        let mut kept = Vec::new();
        while let Ok((12, passed)) = receive(&guest, &mut header) {
            let [request, flags, len] =
                [0, 4, 8].map(|at| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap_or_default()));
            let mut body = vec![0; len as usize];
            if (&guest).read_exact(&mut body).is_err() {
                break;
            }
            let flooded = match fault {
                // SET_VRING_CALL of the first queue; SET_SLAVE_REQ_FD.
                Fault::Interrupts(_) if request == 13 && body[0] == 0 => 1u64.to_ne_bytes().to_vec(),
                Fault::Drips if request == 21 => [2, 1, 0].map(u32::to_ne_bytes).concat(),
                Fault::Requests(kind, _) if request == 21 => [kind, 1 | 8, 0].map(u32::to_ne_bytes).concat(),
                _ => Vec::new(),
            };
            if let Some(pipe) = passed {
                let (its, booted) = (well(pipe.try_clone()), Arc::clone(&booted));
                kept.push(pipe);
                match fault {
                    // The guest waits for the answer, so this comes before it continues.
                    Fault::FillsKicks if request == 12 => fill(&its),
                    _ if flooded.is_empty() => {}
                    Fault::Drips => drop(thread::spawn(move || drip(&its, &flooded, &booted))),
                    Fault::Interrupts(pause) | Fault::Requests(_, pause) => {
                        let bytes = flooded.repeat(4096 / flooded.len());
                        thread::spawn(move || flood(&its, &bytes, Duration::from_millis(pause), &booted));
                    }
                    _ => {}
                }
            }
            let answer = match request {
                // GET_FEATURES: VERSION_1, protocol features, STATUS, MAC. MQ and CTRL_VQ too, except where the guest would give the
                // device up for the control queue first. GET_PROTOCOL_FEATURES: MQ, SLAVE_REQ, CONFIG, and REPLY_ACK for `FillsKicks`.
                1 => {
                    let control = match fault {
                        Fault::Interrupts(_) | Fault::Requests(..) | Fault::Drips => 0,
                        _ => 1 << 22 | 1 << 17,
                    };
                    (1u64 << 32 | 1 << 30 | control | 1 << 16 | 1 << 5).to_ne_bytes().to_vec()
                }
                15 => (1u64 | 1 << 5 | 1 << 9 | u64::from(fault == Fault::FillsKicks) << 3).to_ne_bytes().to_vec(),
                // GET_QUEUE_NUM: 31 pairs, the most for which UML has rings. GET_CONFIG: an address, link up, the same number of pairs.
                17 => 31u64.to_ne_bytes().to_vec(),
                24 => {
                    let config = [0x52, 0x54, 0, 0x12, 0x34, 0x56, 1, 0, 31, 0];
                    let room = body.len().min(12 + config.len());
                    body[12..room].copy_from_slice(&config[..room - 12]);
                    body
                }
                // SET_MEM_TABLE.
                5 if fault == Fault::Deaf => break,
                _ if flags & 8 == 8 => 0u64.to_ne_bytes().to_vec(),
                _ => continue,
            };
            let head = match fault {
                Fault::Flags => [request, 1, answer.len() as u32],
                Fault::Size => [request, 5, u32::MAX],
                _ => [request, 5, answer.len() as u32],
            };
            if (&guest).write_all(&[&head.map(u32::to_ne_bytes).concat()[..], &answer].concat()).is_err() {
                break;
            }
        }
        // The back end stays connected until the test is over.
        let _ended = over.recv();
    })
}

/// Receives bytes, and the first descriptor passed with them.
fn receive(from: &UnixStream, into: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let message = recvmsg(from, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::WAITALL)?;
    let passed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((message.bytes, passed))
}

/// Fills the counter, if there is one, and makes writers block. The flag is shared with the guest, unless the pipe has two ends.
fn fill(kick: &OwnedFd) {
    let waits = well(fcntl_getfl(kick)) - OFlags::NONBLOCK;
    well(fcntl_setfl(kick, waits | OFlags::NONBLOCK));
    // The counter may hold anything already, up to 2^64 - 2. A write that would exceed that fails.
    for bit in (0..64).rev() {
        let _ignored = rustix::io::write(kick, &(1u64 << bit).to_ne_bytes());
    }
    well(fcntl_setfl(kick, waits));
}

fn drip(pipe: &OwnedFd, bytes: &[u8], booted: &OnceLock<()>) {
    booted.wait();
    for byte in bytes {
        // The guest may have given the device up.
        let _ignored = rustix::io::write(pipe, std::slice::from_ref(byte));
        thread::sleep(Duration::from_millis(400));
    }
}

/// Writes to a guest's pipe until nobody reads it. It pauses each time after writing the pipe's capacity.
fn flood(pipe: &OwnedFd, bytes: &[u8], pause: Duration, booted: &OnceLock<()>) {
    booted.wait();
    loop {
        for _ in 0..(64 << 10) / bytes.len() {
            match rustix::io::write(pipe, bytes) {
                Ok(_) | Err(Errno::INTR) => {}
                // The guest's end does not block; this one may or may not.
                Err(Errno::AGAIN) => thread::sleep(Duration::from_millis(1)),
                Err(_) => return,
            }
        }
        thread::sleep(pause);
    }
}

/// Boots a guest with such a back end, within the guest's time limit for that. Returns its messages about the lost device.
fn with_back_end(fault: Fault, then: impl FnOnce(&mut Guest)) -> String {
    let (root, config) = guests();
    let folder = well(Folder::new());
    let (end, over) = mpsc::channel();
    let booted = Arc::new(OnceLock::new());
    let server = back_end(&folder.path().join("socket"), fault, Arc::clone(&booted), over);
    let append = vec![format!("virtio_uml.device={}:1", folder.join("socket")), "nicety.patience=50".into()];
    let mut guest = well(Guest::boot(&root, UmlConfig { append, ..config }));
    booted.get_or_init(|| ());
    then(&mut guest);
    let said = well(guest.succeed("dmesg | grep 'the server' | sed 's/.*socket: //'", SOON));
    powers_off_well(guest);
    drop(end);
    server.join().unwrap();
    said
}

const GONE: &str = "; the device is gone until it is attached again\n";

#[test]
fn a_back_end_that_reads_no_more_is_given_up_in_time() {
    let said = with_back_end(Fault::Deaf, |_| ());
    assert_eq!(said, format!("the server does not answer{GONE}"));
}

/// `virtnet_send_command_reply()` waits until the queue has answered or is broken.
#[test]
fn a_back_end_that_leaves_the_control_queue_alone_is_given_up_in_time() {
    for fault in [Fault::ServesNothing, Fault::FillsKicks] {
        let said = with_back_end(fault, |guest| {
            // The one message appears, and the interface goes.
            well(guest.succeed("until ! [ -e /sys/class/net/eth0 ]; do rest; done", SOON));
        });
        assert_eq!(said, format!("the server does not serve its control queue{GONE}"), "{fault:?}");
    }
}

#[test]
fn a_back_end_that_sends_a_request_byte_by_byte_is_given_up() {
    let said = with_back_end(Fault::Drips, |guest| {
        well(guest.succeed("until dmesg | grep -q 'the device is gone'; do rest; done", SOON));
    });
    assert_eq!(said, format!("the server stops within a message{GONE}"));
}

#[test]
fn a_back_end_that_interrupts_without_end_is_given_up_and_the_guest_goes_on() {
    // A back end with a processor of its own, and one that shares the guest's.
    let faults = [0, 10].map(|pause| [Fault::Interrupts(pause), Fault::Requests(2, pause), Fault::Requests(3, pause)]);
    for &fault in faults.as_flattened() {
        let said = with_back_end(fault, |guest| {
            let until_gone = "until dmesg | grep -q 'the device is gone'; do rest; done";
            well(guest.succeed(until_gone, SOON));
            // One message for each request would have filled the log.
            let many = "dmesg | grep -c 'unexpected slave request' || true";
            let lines: u32 = well(well(guest.succeed(many, SOON)).trim().parse());
            assert!(lines < 100, "{lines} lines");
        });
        assert!(said.ends_with(&format!("the server interrupts without end{GONE}")), "{fault:?}: {said}");
    }
}

#[test]
fn a_back_end_whose_answers_make_no_sense_is_given_up_by_its_first() {
    for fault in [Fault::Flags, Fault::Size] {
        let said = with_back_end(fault, |_| ());
        assert_eq!(said, format!("the server sends what makes no sense{GONE}"), "{fault:?}");
    }
}
