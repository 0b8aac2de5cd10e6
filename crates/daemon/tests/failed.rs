//! A defect in an adapter that a VM triggers: the VM loses its adapter, the port reports its failure, and its neighbours
//! continue. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod nic;
mod stage;

use std::cell::Cell;
use std::os::fd::AsFd;

use nic::{BUFFERS, MIB, Nic, file};
use nicety_adapter::snapshot::RestoreError;
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, Progress, Reason, Reset, Snapshot,
};
use nicety_adapters::{CreateError, Entry, Settings, find};
use nicety_daemon::daemon::PortSpec;
use nicety_daemon::report::{Condition, PortReport};
use nicety_host::PortConfig;
use nicety_vfio_user::{Client, DmaProtection};
use nicety_vhost_user::frontend::{Frontend, Shared};
use stage::Stage;

with_one_worker_and_with_two!(
    a_vm_whose_adapter_panics_loses_it_and_whoever_comes_next_is_refused_while_others_send,
    a_front_end_whose_adapter_panics_is_rung_by_every_error_descriptor,
    a_port_that_has_failed_is_restarted_as_new_and_one_that_has_not_is_left_alone,
);

/// An adapter with a defect: it panics when it gets memory.
struct Defect(Box<dyn Adapter>);

impl Snapshot for Defect {
    fn save(&self) -> Vec<u8> {
        self.0.save()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), RestoreError> {
        self.0.restore(state)
    }
}

impl Adapter for Defect {
    fn face(&mut self) -> Face<'_> {
        self.0.face()
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        self.0.fetch(queue, budget, batch, cx)
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        self.0.complete(batch, cx);
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.0.deliver(frames, cx)
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        assert!(event != Event::Memory || cx.memory.mapped_bytes() == 0, "a defect");
        self.0.notice(event, cx);
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.0.tick(cx);
    }

    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>) {
        self.0.reset(kind, cx);
    }

    fn transmit_queues(&self) -> u16 {
        self.0.transmit_queues()
    }

    fn is_driven(&self) -> bool {
        self.0.is_driven()
    }

    fn features(&self) -> Vec<&'static str> {
        self.0.features()
    }
}

thread_local! {
    /// Whether the next adapter that this thread makes has the defect.
    static DEFECT: Cell<bool> = const { Cell::new(true) };
}

/// Makes one adapter with the defect, and later ones without it.
fn mended_e1000(settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    if DEFECT.replace(false) { e1000(settings) } else { (find("e1000").unwrap().create)(settings) }
}

fn e1000(settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(Defect((find("e1000").unwrap().create)(settings)?)))
}

fn virtio_net(settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(Defect((find("virtio-net").unwrap().create)(settings)?)))
}

/// Opens port `vm3` with such an adapter.
fn open(stage: &Stage, name: &str, create: fn(&Settings) -> Result<Box<dyn Adapter>, CreateError>) {
    let entry: &'static Entry = Box::leak(Box::new(Entry { create, ..*find(name).unwrap() }));
    let spec =
        PortSpec::plain(PortConfig::new("vm3", entry, nicety_frame::Mac([0x52, 0x54, 0, 0, 0, 3]), stage.socket(3)));
    stage.daemon.open(spec).unwrap();
}

fn failed(stage: &Stage) -> bool {
    let report = PortReport::of(&stage.view(3));
    report.condition == Condition::Failed && report.sentence.contains("a defect")
}

fn a_vm_whose_adapter_panics_loses_it_and_whoever_comes_next_is_refused_while_others_send(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    open(&stage, "e1000", e1000);
    let mut client = Client::connect(stage.socket(3)).unwrap();
    let memory = file("memory");
    let both = DmaProtection { read: true, write: true };
    let _answer = client.dma_map(BUFFERS, both, Some((memory.as_fd(), 0)));
    stage.until("it has failed", || failed(&stage));
    stage.until("its VMM is disconnected", || client.region_read(7, 0, &mut [0; 4]).is_err());
    assert!(Client::connect(stage.socket(3)).is_err(), "who comes next is refused");
    receiver.repost().unwrap();
    sender.send().unwrap();
    stage.until("its neighbours go on", || stage.taken(2) == 64);
    let dropped = || stage.view(3).state.counters.receive_drops[Reason::Failed as usize];
    assert_eq!(dropped(), 64);
}

fn a_port_that_has_failed_is_restarted_as_new_and_one_that_has_not_is_left_alone(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    let folder = tempfile::tempdir().unwrap();
    stage.daemon.record(nicety_daemon::recorder::Target::Folder(folder.path().to_owned())).unwrap();
    open(&stage, "e1000", mended_e1000);
    stage.daemon.begin_traces().unwrap();
    let memory = file("memory");
    let both = DmaProtection { read: true, write: true };
    {
        let mut client = Client::connect(stage.socket(3)).unwrap();
        let _answer = client.dma_map(BUFFERS, both, Some((memory.as_fd(), 0)));
        stage.until("it has failed", || failed(&stage));
        stage.daemon.restart("vm3").unwrap();
    }
    let report = PortReport::of(&stage.view(3));
    assert_eq!((report.condition, report.register_reads), (Condition::Waiting, 0), "as new");
    let mut client = Client::connect(stage.socket(3)).unwrap();
    client.dma_map(BUFFERS, both, Some((memory.as_fd(), 0))).unwrap();
    let restart_error = |name: &str| stage.daemon.restart(name).unwrap_err().to_string();
    for name in ["vm1", "vm3"] {
        let left =
            format!("port {name} has not failed: a restart would take its adapter away from its VM; nothing was done");
        assert_eq!(restart_error(name), left);
    }
    assert_eq!(restart_error("vm9"), "there is no port \"vm9\"");
    receiver.repost().unwrap();
    sender.send().unwrap();
    stage.until("its neighbours go on", || stage.taken(2) == 64);
    drop(client);
    stage.daemon.stop();
    let trace = std::fs::read_to_string(folder.path().join("vm3.trace")).unwrap();
    assert_eq!(trace.matches("\nconnect ").count(), 2, "one trace of both: {trace}");
}

fn a_front_end_whose_adapter_panics_is_rung_by_every_error_descriptor(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    open(&stage, "virtio-net", virtio_net);
    let mut front = Frontend::connect(stage.socket(3)).unwrap();
    front.negotiate(1 << 32).unwrap();
    let errors = [0, 1].map(|ring| front.error_bell(ring).unwrap());
    let memory = file("memory");
    let _answer = front.share(&[Shared { base: 0, len: MIB, fd: memory.as_fd(), offset: 0 }]);
    stage.until("it has failed", || failed(&stage));
    for error in &errors {
        stage.until("the front end is told", || error.clear());
    }
    receiver.repost().unwrap();
    sender.send().unwrap();
    stage.until("its neighbours go on", || stage.taken(2) == 64);
}
