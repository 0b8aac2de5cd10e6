//! Cards and their functions, which their host changes while VMs use them.

use std::path::Path;
use std::time::Duration;

use nicety_daemon::live::{ChangeError, Consent};
use nicety_host::{Host, List};
use nicety_vfio_user::Client;

use crate::{Stage, one};

/// A chip's function: offsets of its mailbox's register and memory (Linux, ixgbevf/regs.h and mbx.h, igbvf/regs.h), and its link's
/// register and bit.
struct Chip {
    card: &'static str,
    adapter: &'static str,
    mailbox: u64,
    memory: u64,
    link: (u64, u32),
}

static CHIP_82599: Chip =
    Chip { card: "82599", adapter: "ixgbevf", mailbox: 0x2fc, memory: 0x200, link: (0x10, 1 << 30) };
static CHIP_82576: Chip = Chip { card: "82576", adapter: "igbvf", mailbox: 0xc40, memory: 0x800, link: (8, 2) };

/// A function at a port, driven by hand.
struct Function(Client, &'static Chip);

impl Function {
    fn attach(stage: &Stage, number: u8, chip: &'static Chip) -> Self {
        let mut client = Client::connect(stage.socket(number)).unwrap();
        client.region_write(7, 4, &[6, 0]).unwrap();
        stage.until_attached(&format!("vm{number}"));
        Self(client, chip)
    }

    fn read(&mut self, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.0.region_read(0, offset, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    fn write(&mut self, offset: u64, word: u32) {
        self.0.region_write(0, offset, &word.to_le_bytes()).unwrap();
    }

    fn ask(&mut self, words: [u32; 3]) -> [u32; 3] {
        let &Chip { mailbox, memory, .. } = self.1;
        self.write(mailbox, 4);
        (memory..).step_by(4).zip(words).for_each(|(offset, word)| self.write(offset, word));
        self.write(mailbox, 1);
        let reply = [0, 4, 8].map(|offset| self.read(memory + offset));
        assert_eq!(self.read(mailbox) & 0x30, 0x30, "PFACK and PFSTS");
        self.write(mailbox, 2);
        reply
    }

    /// RESET: its address.
    fn reset(&mut self) -> [u8; 6] {
        let [word, low, high] = self.ask([1, 0, 0]);
        assert_eq!(word, 0x8000_0001);
        let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
        [a, b, c, d, e, f]
    }

    /// The first word of a message for its driver, if there is one.
    fn message(&mut self) -> Option<u32> {
        let has_message = self.read(self.1.mailbox) & 0x10 != 0;
        has_message.then(|| self.read(self.1.memory))
    }

    /// Whether the host wants it to be reset.
    fn is_told(&mut self) -> bool {
        self.message() == Some(0x100)
    }

    fn is_up(&mut self) -> bool {
        let (register, bit) = self.1.link;
        self.read(register) & bit != 0
    }
}

fn a_card_comes_changes_and_goes_with_its_functions(workers: usize) {
    let stage = Stage::new(workers, &[]);
    let table = |text: &str| text.parse::<toml::Table>().unwrap();
    let add =
        |list, text: &str| stage.live.add(list, table(text), &Consent::Nothing).map(|changed| changed.plan.to_string());
    let port = |number: u8, more: &str| one(number).replace("[[port]]\n", "").replace("e1000", "ixgbevf") + more;
    assert_eq!(add(List::Cards, "name = \"nic\"\nchip = \"82599\"\nfunctions = 4").unwrap(), "+ card.nic\n");
    add(List::Cards, "name = \"other\"\nchip = \"82599\"").unwrap();
    add(List::Ports, &port(1, "card = \"nic\"\nfunction = 3")).unwrap();
    add(List::Ports, &port(2, "card = \"nic\"\nfunction = 0")).unwrap();
    let wrong = |text: &str| add(List::Ports, text).unwrap_err().to_string();
    let taken = wrong(&port(3, "card = \"nic\"\nfunction = 3"));
    assert!(taken.contains("port vm3: function: function 3 of card nic is that of port vm1 already"), "{taken}");
    assert!(wrong(&port(3, "card = \"nic\"\nfunction = 4")).contains("card nic has 4 functions, from 0 on"));
    let [mut vm, mut neighbour] = [1, 2].map(|number| Function::attach(&stage, number, &CHIP_82599));
    assert_eq!(vm.reset(), [0x52, 0x54, 0, 0, 0, 1]);
    assert_eq!(neighbour.reset(), [0x52, 0x54, 0, 0, 0, 2]);

    // None of this cuts a VM off.
    let set = |values: &[(&str, toml::Value)]| {
        let values: Vec<_> = values.iter().map(|(key, value)| ((*key).to_owned(), Some(value.clone()))).collect();
        stage.live.set(List::Ports, "vm1", &values, &Consent::Nothing).unwrap().plan.to_string()
    };
    assert_eq!(set(&[("mac", "52:54:00:00:00:77".into())]), "~ port vm1: mac 52:54:00:00:00:01 → 52:54:00:00:00:77\n");
    assert!(!vm.is_told(), "ixgbe_ndo_set_vf_mac tells nobody");
    assert_eq!(vm.reset(), [0x52, 0x54, 0, 0, 0, 0x77]);
    let another = [2, 0x0000_5452, 0x9900];
    let [nobody_s, neighbour_s] = [another, [2, 0x0000_5452, 0x0200]];
    assert_eq!([nobody_s, neighbour_s].map(|words| vm.ask(words)[0]), [0x6000_0002; 2], "it is not trusted");
    set(&[("trust", true.into())]);
    assert!(!vm.is_told() && !neighbour.is_told(), "its queues run on");
    assert_eq!(vm.ask(another)[0], 0xa000_0002);
    set(&[("card", "other".into()), ("function", 62.into())]);
    assert!(!vm.is_told(), "it may have its address there, too");
    set(&[("card", "other".into()), ("function", 63.into()), ("trust", false.into())]);
    assert!(vm.is_told(), "it has an address that is not its own");
    assert_eq!(vm.reset(), [0x52, 0x54, 0, 0, 0, 0x77]);
    assert!(stage.live.daemon().reset_card("nic") && neighbour.is_told() && !vm.is_told());
    assert!(!stage.live.daemon().reset_card("nik"));
    let report = stage.report("vm1").unwrap();
    assert_eq!(report.function.map(|function| (function.card, function.function)), Some(("other".to_owned(), 63)));
    assert_eq!(report.policy.get("forged_transmits").map(String::as_str), Some("reject"), "spoofchk");

    let used = stage.live.remove(List::Cards, "nic", &Consent::All).unwrap_err().to_string();
    assert_eq!(used, "nothing was done: card nic is in use, by vm2: remove these first, or take them off it");
    let gone = stage.live.remove(List::Ports, "vm2", &Consent::Nothing).unwrap_err();
    assert!(matches!(gone, ChangeError::CutsOff(_)));
    stage.live.remove(List::Ports, "vm2", &Consent::All).unwrap();
    stage.live.remove(List::Cards, "nic", &Consent::Nothing).unwrap();
    assert!(neighbour.0.region_read(0, 0x200, &mut [0; 4]).is_err(), "taken away");
    assert_eq!(vm.reset(), [0x52, 0x54, 0, 0, 0, 0x77]);
    let exported = Host::parse(&stage.live.export(), Path::new("/elsewhere/host.toml")).unwrap();
    assert!(stage.live.plan(&exported).is_empty());
}

fn a_function_s_link_is_its_card_s_uplink_s_unless_it_is_forced(workers: usize) {
    let pair = |role: &str| format!("[uplink]\nkind = \"pair\"\nsocket = \"pair.sock\"\nrole = \"{role}\"\n");
    let card = "[[card]]\nname = \"nic\"\nchip = \"82599\"\nuplink = \"pair\"\n";
    let port = |number: u8, state: &str| {
        let at = format!("card = \"nic\"\nfunction = {number}\nlink_state = \"{state}\"\n");
        one(number).replace("e1000", "ixgbevf") + &at
    };
    let ports = [port(1, "auto"), port(2, "enable")].concat();
    let text = format!("[daemon]\nworkers = {workers}\n{}{card}{ports}", pair("listen"));
    let stage = Stage::new(workers, &[]);
    stage.live.apply(&stage.host(&text), &Consent::Nothing).unwrap();
    let [mut auto, mut forced] = [1, 2].map(|number| Function::attach(&stage, number, &CHIP_82599));
    assert!(!auto.is_up() && forced.is_up(), "nobody is at the other end");
    auto.reset();
    let until = |function: &mut Function, up: bool| {
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while function.is_up() != up {
            assert!(std::time::Instant::now() < end, "the link is not {up} within 20 s");
            std::thread::yield_now();
        }
    };
    let far = nicety_uplink::Pair::connect(stage.path().join("pair.sock")).unwrap();
    until(&mut auto, true);
    assert_eq!(auto.read(0x200), 0x2000_0100, "ixgbe_ping_all_vfs, with CTS");
    drop(far);
    until(&mut auto, false);
    assert!(forced.is_up());
    // A card without an uplink is always up.
    let alone = text.replace(&pair("listen"), "").replace("uplink = \"pair\"\n", "");
    stage.live.apply(&stage.host(&alone), &Consent::All).unwrap();
    assert!(auto.is_up() && forced.is_up());
}

/// `ip link set DEV vf N vlan ID [qos PRIORITY]`: the priority is 0 unless it is said, and goes with the VLAN.
fn a_function_s_priority_goes_with_its_vlan(workers: usize) {
    let stage = Stage::new(workers, &[]);
    let port = one(1).replace("e1000", "ixgbevf") + "card = \"nic\"\nfunction = 0\n";
    let text = format!("[daemon]\nworkers = {workers}\n[[card]]\nname = \"nic\"\nchip = \"82599\"\n{port}");
    stage.live.apply(&stage.host(&text), &Consent::Nothing).unwrap();
    let set = |values: &[(&str, Option<i64>)]| {
        let value = |(key, value): &(&str, Option<i64>)| ((*key).to_owned(), value.map(toml::Value::Integer));
        let values: Vec<_> = values.iter().map(value).collect();
        stage.live.set(List::Ports, "vm1", &values, &Consent::Nothing).unwrap().plan.to_string()
    };
    let marks = || {
        let host = Host::parse(&stage.live.export(), Path::new("/elsewhere/host.toml")).unwrap();
        assert!(stage.live.plan(&host).is_empty(), "what is saved is what runs");
        let policy = stage.report("vm1").unwrap().policy;
        ["vlan", "qos"].map(|key| policy.get(key).cloned().unwrap_or_default())
    };
    set(&[("vlan", Some(10)), ("qos", Some(3))]);
    assert_eq!(marks(), ["10", "3"]);
    assert_eq!(set(&[("vlan", Some(20))]), "~ port vm1: qos 3 → (not set), vlan 10 → 20\n");
    assert_eq!(marks(), ["20", ""]);
    set(&[("qos", Some(5))]);
    assert_eq!(marks(), ["20", "5"]);
    assert_eq!(set(&[("vlan", None)]), "~ port vm1: qos 5 → (not set), vlan 20 → (not set)\n");
    assert_eq!(marks(), ["", ""]);
}

/// A live change of another value sets the link anew; so does a card that comes.
fn a_disabled_function_of_an_82576_hears_of_no_link_when_its_host_changes_something_else(workers: usize) {
    let chip = &CHIP_82576;
    let stage = Stage::new(workers, &[]);
    let port = one(1).replace("e1000", chip.adapter) + "card = \"nic\"\nfunction = 0\nlink_state = \"disable\"\n";
    let text = format!("[daemon]\nworkers = {workers}\n[[card]]\nname = \"nic\"\nchip = \"{}\"\n{port}", chip.card);
    stage.live.apply(&stage.host(&text), &Consent::Nothing).unwrap();
    let mut function = Function::attach(&stage, 1, chip);
    function.reset();
    assert!(!function.is_up());
    let set = |key: &str, value: toml::Value| {
        stage.live.set(List::Ports, "vm1", &[(key.to_owned(), Some(value))], &Consent::Nothing).unwrap();
    };
    set("spoofchk", false.into());
    assert_eq!(function.message(), None, "it has not come up");
    let card = "name = \"other\"\nchip = \"82576\"".parse().unwrap();
    stage.live.add(List::Cards, card, &Consent::Nothing).unwrap();
    assert_eq!((function.message(), function.is_up()), (None, false));
    set("link_state", "enable".into());
    assert_eq!((function.message(), function.is_up()), (Some(0x2000_0100), true), "igb_ndo_set_vf_link_state");
}

fn a_function_that_is_restored_where_its_link_is_disabled_is_told(workers: usize) {
    for chip in [&CHIP_82576, &CHIP_82599] {
        let stage = Stage::new(workers, &[]);
        let port = |number: u8, state: &str| {
            let at = format!("card = \"nic\"\nfunction = {number}\ntrust = true\nlink_state = \"{state}\"\n");
            one(number).replace("e1000", chip.adapter) + &at
        };
        let card = format!("[[card]]\nname = \"nic\"\nchip = \"{}\"\n", chip.card);
        let text = format!("[daemon]\nworkers = {workers}\n{card}{}{}", port(1, "auto"), port(2, "disable"));
        stage.live.apply(&stage.host(&text), &Consent::Nothing).unwrap();
        let [mut old, mut new] = [1, 2].map(|number| Function::attach(&stage, number, chip));
        old.reset();
        let daemon = stage.live.daemon();
        let state = daemon.save("vm1").unwrap();
        daemon.restore("vm2", state).unwrap();
        assert_eq!((new.is_up(), new.message()), (false, Some(0x2000_0100)), "{}", chip.adapter);
    }
}

with_one_worker_and_with_two! {
    a_card_comes_changes_and_goes_with_its_functions,
    a_function_s_link_is_its_card_s_uplink_s_unless_it_is_forced,
    a_disabled_function_of_an_82576_hears_of_no_link_when_its_host_changes_something_else,
    a_function_that_is_restored_where_its_link_is_disabled_is_told,
    a_function_s_priority_goes_with_its_vlan,
}
