//! A port takes its adapter's asks to the adapter's family, and the answer back, in the same call.

use std::sync::{Arc, Mutex};

use nicety_adapter::{PortId, Set, Time};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_plane::{End, Port, Shell};

/// V2PMAILBOX and the mailbox, of an 82576's virtual function (Linux, igbvf/regs.h).
const V2PMAILBOX: u64 = 0xc40;
const VMBMEM: u64 = 0x800;

/// Notes the vectors that were signalled.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<Set>>>);

impl Shell for Notes {
    fn messages(&self, vectors: Set) {
        self.0.lock().unwrap().push(vectors);
    }

    fn line(&self, _: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _: Time) {}
}

fn read(port: &Port, offset: u64) -> u32 {
    let mut data = [0; 4];
    port.read(0, offset, &mut data, Time(1));
    u32::from_le_bytes(data)
}

#[test]
fn the_access_after_a_message_finds_its_answer_and_the_interrupt_is_sent() {
    let adapter = (find("igbvf").unwrap().create)(&Settings::new(Mac([0x52, 0x54, 0, 1, 2, 3]))).unwrap();
    let notes = Notes::default();
    let port = Port::new(PortId(1), End::Adapter(adapter), Box::new(notes.clone()), 1 << 16).unwrap();
    port.attach();
    let write = |offset, value: u32| _ = port.write(0, offset, &value.to_le_bytes(), Time(1));
    port.config_write(4, &[6, 0], Time(1));
    port.config_write(0x73, &[0x80], Time(1));
    write(0x1740, 0x82);
    write(0x1524, 4);
    write(V2PMAILBOX, 4);
    write(VMBMEM, 1);
    write(V2PMAILBOX, 1);
    // PFACK and PFSTS.
    assert_eq!(read(&port, V2PMAILBOX), 0x30);
    assert_eq!([read(&port, VMBMEM), read(&port, VMBMEM + 4)], [0x8000_0001, 0x0100_5452]);
    let mut sent = notes.0.lock().unwrap().clone();
    assert_eq!(sent.iter_mut().map(Set::pop).collect::<Vec<_>>(), [Some(2)]);
}
