use nicety_memory::Map;
use nicety_pci::{Bar, Capability, Identity, Msi, MsixCapability, Pin, Power};

use super::*;
use crate::counters::Counters;
use crate::outbox::Outbox;

const COMMAND: u64 = 4;
const BUS_MASTER: u8 = 6;

/// A function with the line, one MSI vector and 32 MSI-X vectors, and its requests.
struct Bench {
    function: Function,
    out: Outbox,
    counters: Counters,
    now: Time,
}

impl Bench {
    fn new() -> Self {
        let identity =
            Identity { vendor: 1, device: 2, revision: 0, class: 0x02_0000, subsystem_vendor: 1, subsystem: 2 };
        let msix = MsixCapability { vectors: 32, table_bar: 0, table_offset: 0, pba_bar: 0, pba_offset: 0x800 };
        let function = Function::builder(identity)
            .interrupt_pin(Pin::A)
            .bar(0, Bar::memory(0x1000))
            .capability(Capability::Power(Power::default()))
            .capability(Capability::Msi(Msi { vectors: 1, maskable: false }))
            .capability(Capability::Msix(msix))
            .build()
            .unwrap();
        let mut bench = Self { function, out: Outbox::default(), counters: Counters::default(), now: Time(1_000_000) };
        let _ = bench.function.config_write(COMMAND, &[BUS_MASTER]);
        bench
    }

    /// Enables or disables a capability: MSI (5) or MSI-X (17), whose enable bits lie in their control words.
    fn enable(&mut self, capability: u8, on: bool) {
        let at = self.function.capability(capability).unwrap() as u64;
        let byte = if capability == 17 { (at + 3, 0x80) } else { (at + 2, 1) };
        let _ = self.function.config_write(byte.0, &[if on { byte.1 } else { 0 }]);
    }

    fn msix() -> Self {
        let mut bench = Self::new();
        bench.enable(17, true);
        bench
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut Function, &mut Context<'_>) -> R) -> R {
        let memory = Map::empty();
        let Self { function, out, counters, now } = self;
        act(function, &mut Context::new(&memory, out, counters, *now))
    }

    fn mode_changed(&mut self, interrupts: &mut Interrupts) {
        self.with(|function, cx| {
            interrupts.mode_changed(function, cx);
            interrupts.update(function, cx);
        });
    }

    /// Updates; returns the line, if it changed, and the messages.
    fn update(&mut self, interrupts: &mut Interrupts) -> (Option<bool>, Vec<u16>) {
        self.with(|function, cx| interrupts.update(function, cx));
        self.took()
    }

    fn took(&mut self) -> (Option<bool>, Vec<u16>) {
        let mut out = std::mem::take(&mut self.out);
        (out.line, std::iter::from_fn(|| out.messages.pop()).collect())
    }
}

/// The 8254x: 32 causes, the line, ITR.
fn e8254x() -> Interrupts {
    Interrupts::new(32, Line::Level, InterruptRouter::Direct).throttled(1)
}

/// The 82574L with MSI-X (manual 10.2.4): causes 20 to 24 through IVAR to vectors 0, 1, 2, 2 and 4.
fn e82574() -> Interrupts {
    let mut interrupts = Interrupts::new(25, Line::Level, InterruptRouter::table(25)).throttled(5);
    for (cause, vector) in [(20, 0), (21, 1), (22, 2), (23, 2), (24, 4)] {
        interrupts.router().route(cause, Some(vector));
    }
    interrupts
}

#[test]
fn the_line_is_up_while_a_cause_is_pending_and_enabled() {
    let (mut bench, mut interrupts) = (Bench::new(), e8254x());
    interrupts.raise(0x80);
    assert_eq!(bench.update(&mut interrupts), (None, vec![]), "disabled");
    interrupts.enable(0x84);
    assert_eq!(bench.update(&mut interrupts), (Some(true), vec![]));
    interrupts.raise(4);
    assert_eq!(bench.update(&mut interrupts), (None, vec![]), "it is up already");
    interrupts.clear(0x80);
    assert_eq!(bench.update(&mut interrupts), (None, vec![]));
    interrupts.disable(4);
    assert_eq!(bench.update(&mut interrupts), (Some(false), vec![]));
    interrupts.enable(4);
    assert_eq!(bench.update(&mut interrupts), (Some(true), vec![]), "a cause is never lost");
    assert_eq!((interrupts.take(), bench.update(&mut interrupts)), (4, (Some(false), vec![])));
    assert_eq!(bench.counters.interrupts, 2);
}

#[test]
fn a_throttle_holds_the_line_back_and_says_until_when() {
    let (mut bench, mut interrupts) = (Bench::new(), e8254x());
    interrupts.enable(1);
    interrupts.throttle(0).unwrap().set_interval(50_000);
    interrupts.raise(1);
    assert!(interrupts.is_due(&bench.function, bench.now));
    assert_eq!(bench.update(&mut interrupts).0, Some(true));
    interrupts.take();
    assert_eq!(bench.update(&mut interrupts).0, Some(false));
    let begun = bench.now;
    bench.now = begun.after_ns(10_000);
    interrupts.raise(1);
    assert!(!interrupts.is_due(&bench.function, bench.now));
    assert_eq!(bench.update(&mut interrupts).0, None);
    assert_eq!(interrupts.due(&bench.function, bench.now), Some(begun.after_ns(50_000)));
    bench.now = begun.after_ns(50_000);
    assert_eq!(interrupts.due(&bench.function, bench.now), None);
    assert_eq!(bench.update(&mut interrupts).0, Some(true));
    assert_eq!(interrupts.due(&bench.function, bench.now), None, "nothing waits");
}

#[test]
fn a_message_goes_out_once_for_a_cause_until_it_ends() {
    let (mut bench, mut interrupts) = (Bench::msix(), e82574());
    interrupts.enable(1 << 20 | 1 << 22);
    interrupts.raise(1 << 20);
    assert_eq!(bench.update(&mut interrupts), (None, vec![0]));
    interrupts.raise(1 << 20);
    assert_eq!(bench.update(&mut interrupts), (None, vec![]), "it has not been cleared");
    interrupts.raise(1 << 22);
    assert_eq!(bench.update(&mut interrupts), (None, vec![2]));
    interrupts.clear(1 << 20);
    bench.update(&mut interrupts);
    interrupts.raise(1 << 20);
    assert_eq!(bench.update(&mut interrupts), (None, vec![0]));
    interrupts.disable(1 << 20);
    bench.update(&mut interrupts);
    interrupts.enable(1 << 20);
    assert_eq!(bench.update(&mut interrupts), (None, vec![0]), "enabled again while it is pending");
}

#[test]
fn causes_that_share_a_vector_share_a_message_and_those_without_send_none() {
    let (mut bench, mut interrupts) = (Bench::msix(), e82574());
    interrupts.enable(u128::MAX);
    interrupts.raise(1 << 22 | 1 << 23 | 1 << 3);
    assert_eq!(bench.update(&mut interrupts), (None, vec![2]));
    assert_eq!((interrupts.signalled(), bench.counters.interrupts), (1 << 22 | 1 << 23, 1));
    interrupts.router().route(3, Some(1));
    assert_eq!(bench.update(&mut interrupts), (None, vec![1]), "once it has one");
}

#[test]
fn auto_clear_and_auto_mask_act_on_the_causes_whose_message_went_out() {
    let (mut bench, mut interrupts) = (Bench::msix(), e82574());
    interrupts.set_auto_clear(1 << 20 | 1 << 21);
    interrupts.set_auto_mask(1 << 21);
    interrupts.enable(0x1f << 20);
    interrupts.raise(1 << 20 | 1 << 21 | 1 << 24);
    assert_eq!(bench.update(&mut interrupts), (None, vec![0, 1, 4]));
    assert_eq!((interrupts.pending(), interrupts.enabled()), (1 << 24, 0x1d << 20));
    interrupts.raise(1 << 20 | 1 << 21);
    assert_eq!(bench.update(&mut interrupts), (None, vec![0]), "no register was read in between");
    interrupts.enable(1 << 21);
    assert_eq!(bench.update(&mut interrupts), (None, vec![1]), "what came while it was masked");
    // With the line, auto-mask and auto-clear have no effect.
    bench.enable(17, false);
    bench.mode_changed(&mut interrupts);
    interrupts.raise(1 << 20);
    interrupts.enable(0x1f << 20);
    assert_eq!(bench.update(&mut interrupts).0, Some(true), "since the mode changed, for cause 24");
    assert_eq!((interrupts.pending(), interrupts.enabled()), (1 << 20 | 1 << 24, 0x1f << 20));
}

#[test]
fn each_vector_has_its_own_throttle() {
    let (mut bench, mut interrupts) = (Bench::msix(), e82574());
    interrupts.set_auto_clear(u128::MAX);
    interrupts.enable(0x1f << 20);
    interrupts.throttle(0).unwrap().set_interval(100_000);
    interrupts.throttle(2).unwrap().set_interval(20_000);
    interrupts.raise(1 << 20 | 1 << 21 | 1 << 22);
    assert_eq!(bench.update(&mut interrupts).1, [0, 1, 2]);
    let begun = bench.now;
    interrupts.raise(1 << 20 | 1 << 21 | 1 << 23);
    assert_eq!(bench.update(&mut interrupts).1, [1]);
    assert_eq!(interrupts.due(&bench.function, bench.now), Some(begun.after_ns(20_000)));
    bench.now = begun.after_ns(20_000);
    assert_eq!(bench.update(&mut interrupts).1, [2]);
    assert_eq!(interrupts.due(&bench.function, bench.now), Some(begun.after_ns(100_000)));
    interrupts.throttle(0).unwrap().stop();
    assert_eq!(bench.update(&mut interrupts).1, [0]);
    assert!(interrupts.throttle(5).is_none());
}

#[test]
fn without_bus_mastering_and_in_d3hot_messages_wait() {
    let (mut bench, mut interrupts) = (Bench::msix(), e82574());
    interrupts.enable(0x1f << 20);
    let power = bench.function.capability(1).unwrap() as u64 + 4;
    for (at, silent, awake) in [(COMMAND, 2, BUS_MASTER), (power, 3, 0)] {
        interrupts.take();
        bench.update(&mut interrupts);
        let _ = bench.function.config_write(at, &[silent]);
        interrupts.raise(1 << 20);
        assert!(!interrupts.is_due(&bench.function, bench.now));
        assert_eq!(bench.update(&mut interrupts), (None, vec![]));
        let _ = bench.function.config_write(at, &[awake]);
        bench.mode_changed(&mut interrupts);
        assert_eq!(bench.took().1, [0]);
    }
}

#[test]
fn msi_carries_every_cause_in_its_one_vector() {
    let (mut bench, mut interrupts) = (Bench::new(), e82574());
    bench.enable(5, true);
    interrupts.enable(u128::MAX);
    interrupts.raise(1 << 3 | 1 << 24);
    assert_eq!(bench.update(&mut interrupts), (None, vec![0]));
    assert_eq!(bench.counters.interrupts, 1);
}

#[test]
fn a_latched_cause_holds_the_line_until_it_is_taken_or_disabled() {
    let (mut bench, mut interrupts) = (Bench::new(), Interrupts::new(65, Line::Latched, InterruptRouter::Direct));
    interrupts.set_auto_mask(u128::MAX);
    interrupts.enable(u128::MAX);
    interrupts.raise(1 | 1 << 64);
    assert_eq!(bench.update(&mut interrupts), (Some(true), vec![]));
    assert_eq!((interrupts.pending(), interrupts.signalled()), (0, 1 | 1 << 64));
    assert_eq!(interrupts.enabled() & (1 | 1 << 64), 0, "masked by itself, and the line is still up");
    interrupts.raise(1);
    assert_eq!(bench.update(&mut interrupts), (None, vec![]));
    assert_eq!((interrupts.take(), bench.update(&mut interrupts)), (1 | 1 << 64, (Some(false), vec![])));
    interrupts.enable(1);
    assert_eq!(bench.update(&mut interrupts), (Some(true), vec![]), "what came meanwhile");
    interrupts.disable(1);
    assert_eq!(bench.update(&mut interrupts), (Some(false), vec![]));
    interrupts.enable(1);
    assert_eq!(bench.update(&mut interrupts), (None, vec![]), "taken back");
}

#[test]
fn what_holds_the_line_goes_by_message_when_messages_are_enabled() {
    for line in [Line::Level, Line::Latched] {
        let (mut bench, mut interrupts) = (Bench::new(), Interrupts::new(25, line, InterruptRouter::Direct));
        interrupts.enable(u128::MAX);
        interrupts.raise(1 << 7);
        assert_eq!(bench.update(&mut interrupts), (Some(true), vec![]));
        // INTx disable (Command bit 10): the cause stays.
        let _ = bench.function.config_write(COMMAND + 1, &[4]);
        bench.mode_changed(&mut interrupts);
        assert_eq!(bench.took(), (Some(false), vec![]));
        assert_ne!(interrupts.signalled(), 0);
        bench.enable(17, true);
        bench.mode_changed(&mut interrupts);
        assert_eq!(bench.took(), (Some(false), vec![7]), "{line:?}");
        assert!(!bench.function.intx_level());
    }
}

#[test]
fn a_reset_takes_the_line_down_and_what_is_saved_fits_its_own_device_alone() {
    let (mut bench, mut interrupts) = (Bench::new(), e82574());
    let new = Interrupts::new(25, Line::Level, InterruptRouter::table(25)).throttled(5);
    interrupts.enable(u128::MAX);
    interrupts.throttle(1).unwrap().set_interval(5);
    interrupts.raise(1 << 20);
    assert_eq!(bench.update(&mut interrupts).0, Some(true));
    assert!(interrupts.fits(&new) && new.fits(&interrupts));
    let others = [
        Interrupts::new(24, Line::Level, InterruptRouter::table(25)).throttled(5),
        Interrupts::new(25, Line::Latched, InterruptRouter::table(25)).throttled(5),
        Interrupts::new(25, Line::Level, InterruptRouter::Direct).throttled(5),
        Interrupts::new(25, Line::Level, InterruptRouter::table(25)).throttled(4),
    ];
    assert!(others.iter().all(|other| !interrupts.fits(other)));
    let wild = Interrupts { signalled: 1 << 3, ..interrupts.clone() };
    assert!(!wild.fits(&new), "a cause is told that is not pending");
    let wild = Interrupts { enabled: 1 << 25, ..interrupts.clone() };
    assert!(!wild.fits(&new), "a cause that the device has not");
    interrupts.reset();
    assert_eq!(interrupts, new);
    assert_eq!(bench.update(&mut interrupts).0, Some(false));
}
