//! Memory that changes under traffic: a VMM unmaps it, punches holes into it, or truncates it. The guests are bare: an 82540EM
//! driven by hand, with its rings in one memory file and its buffers in another. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod nic;
mod stage;

use std::os::fd::AsFd;

use nic::{BUFFERS, MIB, Nic, file};
use nicety_adapter::{Reason, RingPlace};
use nicety_vhost_user::frontend::{Frontend, Shared};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use stage::Stage;

fn memory_may_be_unmapped_while_frames_fly_and_is_not_touched_afterwards(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    for round in 0..200 {
        sender.send().unwrap();
        receiver.repost().unwrap();
        match round % 10 {
            3 => {
                sender.client.dma_unmap(BUFFERS).unwrap();
                sender.send().unwrap();
                sender.read(0x08).unwrap();
                sender.map(BUFFERS).unwrap();
            }
            7 => {
                sender.send().unwrap();
                receiver.client.dma_unmap(BUFFERS).unwrap();
                // From this answer on, these pages belong to the VMM alone.
                let mark = [0x77; 512 << 10];
                receiver.buffers.write(512 << 10, &mark).unwrap();
                for _ in 0..3 {
                    sender.send().unwrap();
                    receiver.repost().unwrap();
                }
                let mut now = vec![0; mark.len()];
                receiver.buffers.read(512 << 10, &mut now).unwrap();
                assert!(now == mark, "round {round}: it was written to after it was unmapped");
                receiver.map(BUFFERS).unwrap();
            }
            _ => {}
        }
    }
    let before = stage.taken(2);
    stage.until("frames fly again", || {
        sender.send().unwrap();
        receiver.repost().unwrap();
        stage.taken(2) > before + 64
    });
    let lost = |number: usize| stage.view(number).state.counters;
    assert!(lost(1).transmit_drops[Reason::BadAddress as usize] > 0, "some were sent from where nothing was");
    assert!(lost(2).receive_drops.iter().sum::<u64>() > 0, "some came to where nothing was");
}

fn holes_punched_under_traffic_are_zeros_and_nothing_else(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for round in 0..200 {
        sender.send().unwrap();
        receiver.repost().unwrap();
        if round % 10 == 5 {
            // Both files of both guests, with the rings, while 64 frames are in flight.
            for file in sender.files.iter().chain(&receiver.files) {
                fallocate(file, punch, 0, MIB).unwrap();
            }
            sender.send().unwrap();
            receiver.repost().unwrap();
            sender.lay();
            receiver.lay();
        }
    }
    let before = stage.taken(2);
    stage.until("frames fly again", || {
        sender.lay();
        sender.send().unwrap();
        receiver.repost().unwrap();
        stage.taken(2) > before + 64
    });
    for number in [1, 2] {
        let state = stage.view(number).state;
        assert!(state.attached && !state.damaged, "vm{number}");
    }
}

fn a_vmm_that_truncates_its_memory_under_traffic_loses_its_adapter_alone(workers: usize) {
    for which in [0, 1] {
        let stage = Stage::new(workers, &["e1000", "e1000", "e1000"]);
        let mut nics = [1, 2, 3].map(|number| Nic::new(&stage, number));
        for _ in 0..20 {
            nics[0].send().unwrap();
            nics.iter_mut().for_each(|nic| nic.repost().unwrap());
        }
        // The second guest's rings, or its buffers, while 64 frames are in flight to it.
        nics[0].send().unwrap();
        ftruncate(&nics[1].files[which], 0).unwrap();
        // No timeout ends it: a VMM may rest between messages.
        stage.until("the cheat's end", || {
            nics[0].send().unwrap();
            nics[2].repost().unwrap();
            !stage.view(2).state.attached
        });
        let before = stage.taken(3);
        stage.until("the others' frames", || {
            nics[0].send().unwrap();
            nics[2].repost().unwrap();
            stage.taken(3) > before + 64
        });
        assert!(stage.view(1).state.attached && stage.view(3).state.attached);
        assert!(nics[1].read(0x08).is_err());
    }
}

fn a_front_end_that_truncates_its_memory_stops_its_own_port(workers: usize) {
    let stage = Stage::new(workers, &["virtio-net", "e1000", "e1000"]);
    let memory = file("rings");
    let mut front = Frontend::connect(stage.socket(1)).unwrap();
    front.negotiate(1 << 32).unwrap();
    front.share(&[Shared { base: 0, len: MIB, fd: memory.as_fd(), offset: 0 }]).unwrap();
    let place = RingPlace { size: 64, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
    let bells = front.start(1, place, 0).unwrap();
    front.enable(1, true).unwrap();
    let (mut sender, mut receiver) = (Nic::new(&stage, 2), Nic::new(&stage, 3));
    sender.send().unwrap();
    ftruncate(&memory, 0).unwrap();
    stage.until("its port's end", || {
        let _ = bells.kick.ring();
        sender.send().unwrap();
        receiver.repost().unwrap();
        !stage.view(1).state.attached
    });
    let before = stage.taken(3);
    stage.until("the others' frames", || {
        sender.send().unwrap();
        receiver.repost().unwrap();
        stage.taken(3) > before + 64
    });
    // The port serves the next one.
    drop(front);
    stage.until("the next front end", || {
        Frontend::connect(stage.socket(1)).and_then(|mut next| next.negotiate(1 << 32)).is_ok()
    });
}

with_one_worker_and_with_two!(
    memory_may_be_unmapped_while_frames_fly_and_is_not_touched_afterwards,
    holes_punched_under_traffic_are_zeros_and_nothing_else,
    a_vmm_that_truncates_its_memory_under_traffic_loses_its_adapter_alone,
    a_front_end_that_truncates_its_memory_stops_its_own_port,
);
