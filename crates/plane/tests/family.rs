//! A port takes its adapter's asks to the adapter's family, and the answer back, in the same call; and what the host changes in a
//! function's policy, to the function.

use std::sync::{Arc, Mutex};

use nicety_adapter::family::FunctionPolicy;
use nicety_adapter::{PortId, Set, Time};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_plane::{End, Plane, Port, SharedFamily, Shell};
use nicety_switch::{Limits, Policy, Vlan};

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

/// A port with such an adapter, and its interrupts.
fn port(number: u8) -> (Port, Notes) {
    let adapter = (find("igbvf").unwrap().create)(&Settings::new(address(number))).unwrap();
    let notes = Notes::default();
    let id = PortId(number.into());
    let port = Port::new(id, End::guest(adapter), Box::new(notes.clone()), 1 << 16).unwrap();
    port.attach();
    port.config_write(4, &[6, 0], Time(1));
    (port, notes)
}

fn address(number: u8) -> Mac {
    Mac([0x52, 0x54, 0, 1, 2, number])
}

fn write(port: &Port, offset: u64, value: u32) {
    port.write(0, offset, &value.to_le_bytes(), Time(1));
}

/// Sends a message, and reads the reply.
fn exchange(port: &Port, words: [u32; 3]) -> [u32; 3] {
    write(port, V2PMAILBOX, 4);
    for (at, word) in (VMBMEM..).step_by(4).zip(words) {
        write(port, at, word);
    }
    write(port, V2PMAILBOX, 1);
    assert_eq!(read(port, V2PMAILBOX) & 0x30, 0x30, "PFACK and PFSTS");
    let reply = [0, 4, 8].map(|at| read(port, VMBMEM + at));
    write(port, V2PMAILBOX, 2);
    reply
}

fn read(port: &Port, offset: u64) -> u32 {
    let mut data = [0; 4];
    port.read(0, offset, &mut data, Time(1));
    u32::from_le_bytes(data)
}

#[test]
fn the_access_after_a_message_finds_its_answer_and_the_interrupt_is_sent() {
    let (port, notes) = port(3);
    port.config_write(0x73, &[0x80], Time(1));
    write(&port, 0x1740, 0x82);
    write(&port, 0x1524, 4);
    assert_eq!(exchange(&port, [1, 0, 0]), [0x8000_0001, 0x0100_5452, 0x0302]);
    let mut sent = notes.0.lock().unwrap().clone();
    assert_eq!(sent.iter_mut().map(Set::pop).collect::<Vec<_>>(), [Some(2)]);
}

#[test]
fn functions_of_a_card_have_policies_of_their_own_and_hear_when_they_lose_an_address() {
    let policy =
        |number| FunctionPolicy { trusted: false, tagged: number == 2, ..FunctionPolicy::free(address(number)) };
    let card = find("igbvf").unwrap().card.unwrap();
    assert_eq!(card.functions, 8);
    let family = SharedFamily::new((card.family)(vec![policy(1), policy(2)]));
    let ports = [1, 2].map(|number| port(number).0);
    for (number, port) in (0..).zip(&ports) {
        port.join_family(&family, number, None);
    }
    // Each gets its own address; neither may have another.
    let [low, high] = [0x0100_5452, 0x0902];
    for (number, port) in (1..).zip(&ports) {
        assert_eq!(exchange(port, [1, 0, 0]), [0x8000_0001, low, number << 8 | 2]);
        assert_eq!(exchange(port, [2, low, high])[0], 0x6000_0002);
    }
    // The second one's port tags its frames.
    assert_eq!(exchange(&ports[0], [1 << 16 | 4, 5, 0])[0], 0xa001_0004);
    assert_eq!(exchange(&ports[1], [1 << 16 | 4, 5, 0])[0], 0x6001_0004);
    ports[0].set_function_policy(FunctionPolicy { trusted: true, ..policy(1) });
    assert_eq!(family.policy(0).map(|policy| policy.trusted), Some(true));
    assert_eq!(ports.each_ref().map(|port| read(port, V2PMAILBOX) & 0x10), [0; 2], "noted: igb_ndo_set_vf_trust");
    assert_eq!(exchange(&ports[0], [2, low, high])[0], 0xa000_0002);
    assert_eq!(exchange(&ports[1], [2, low, high])[0], 0x6000_0002);
    // The same policy again changes nothing.
    ports[0].set_function_policy(FunctionPolicy { trusted: true, ..policy(1) });
    assert_eq!(read(&ports[0], V2PMAILBOX) & 0x10, 0);
    // It has an address that it may not have any more. E1000_PF_CONTROL_MSG without CTS: its driver resets it.
    ports[0].set_function_policy(policy(1));
    assert_eq!((read(&ports[0], VMBMEM), read(&ports[0], V2PMAILBOX) & 0x10), (0x100, 0x10));
    assert_eq!(exchange(&ports[0], [1, 0, 0]), [0x8000_0001, low, 0x0102]);
}

/// The switch drops what a port may not do; the function's driver is also told, as by Linux's PF.
#[test]
fn a_function_may_do_what_both_the_host_and_its_port_s_policy_allow() {
    let plane = Plane::new(Limits { addresses: 1 << 10, ..Limits::default() });
    let port = Arc::new(port(1).0);
    let set = |mac_changes, vlan| plane.set_policy(&port, &Policy { mac_changes, vlan, ..Policy::default() });
    let address = [2, 0x0100_5452, 0x0902];
    let vlan = [1 << 16 | 4, 5, 0];
    let ask = |message| {
        assert_eq!(exchange(&port, [1, 0, 0])[0], 0x8000_0001);
        exchange(&port, message)[0] & 0xc000_0000
    };
    const GRANTED: u32 = 0x8000_0000;
    const REFUSED: u32 = 0x4000_0000;
    plane.join_with(Arc::clone(&port), &Policy::default()).unwrap();
    assert_eq!([ask(address), ask(vlan)], [GRANTED; 2], "a port of its own, with the usual policy");
    set(false, Vlan::Flat);
    assert_eq!(read(&port, VMBMEM), 0x100, "its driver resets it");
    assert_eq!([ask(address), ask(vlan)], [REFUSED, GRANTED]);
    set(true, Vlan::Access("7".parse().unwrap()));
    assert_eq!([ask(address), ask(vlan)], [GRANTED, REFUSED]);
    // It holds in another family, too, from the first message on.
    set(false, Vlan::Flat);
    let another = |trusted| {
        let policy = FunctionPolicy { trusted, ..FunctionPolicy::free(self::address(1)) };
        SharedFamily::new((find("igbvf").unwrap().card.unwrap().family)(vec![policy]))
    };
    port.join_family(&another(true), 0, None);
    assert_eq!([ask(address), ask(vlan)], [REFUSED, GRANTED]);
    // The port's policy gives nothing that the host does not allow.
    port.join_family(&another(false), 0, None);
    set(true, Vlan::Flat);
    assert_eq!([ask(address), ask(vlan)], [REFUSED, GRANTED]);
}

/// A state that was saved elsewhere has the link of another card.
#[test]
fn a_restored_function_has_its_new_host_s_link_before_it_goes_on() {
    const STATUS: u64 = 8;
    for is_up in [false, true] {
        let [old, new] = [1, 1].map(|number| port(number).0);
        exchange(&old, [1, 0, 0]);
        old.set_link(!is_up, Time(1));
        read(&old, V2PMAILBOX);
        let saved = old.save(Time(1)).unwrap();
        new.set_link(is_up, Time(1));
        assert_eq!(new.restore(&saved, Time(1)), Some(Ok(())));
        assert_eq!(read(&new, STATUS) & 2 != 0, is_up);
        // igb_ping_all_vfs.
        assert_eq!((read(&new, VMBMEM), read(&new, V2PMAILBOX) & 0x10), (0x2000_0100, 0x10));
    }
}
