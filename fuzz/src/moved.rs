//! What a VMM brings along of another host's port (VHOST_USER_PROTOCOL_F_DEVICE_STATE), one copy after another: arbitrary bytes, or a
//! protected port's own state with some bytes changed.

use std::sync::{Arc, Mutex, PoisonError};

use nicety_adapters::find;
use nicety_daemon::protected::{ClosedEpoch, EpochEvent, Pairing, Protected};
use nicety_daemon::rings::Moving;
use nicety_plane::{Epochs, GateMode, Group};
use nicety_trials::random::Random;
use nicety_trials::rig::Rig;

/// Copies of one input.
const COPIES: usize = 16;
const PAIRING: Pairing = Pairing(7);

/// A port whose state goes with its guest.
struct Host {
    rig: Rig,
    parts: Group,
    moving: Moving,
    loaded: Arc<Mutex<Vec<ClosedEpoch>>>,
}

impl Host {
    fn new(mode: GateMode) -> Option<Self> {
        let rig = Rig::new(find("virtio-net")?, 4096, true);
        let parts = Group::parts(Arc::clone(&rig.port), []);
        let moving = Moving::new(Arc::clone(&rig.plane), "vm1", None);
        let loaded = Arc::<Mutex<Vec<ClosedEpoch>>>::default();
        let told = Arc::clone(&loaded);
        let tell = move |event| {
            if let EpochEvent::Loaded(closed) = event {
                told.lock().unwrap_or_else(PoisonError::into_inner).push(closed);
            }
        };
        let is_twin = mode == GateMode::Mute;
        let epochs = Arc::new(Epochs::new(mode, || {}));
        moving.protect(Some(Arc::new(Protected::new(PAIRING, epochs, is_twin, tell))));
        Some(Self { rig, parts, moving, loaded })
    }
}

/// Bit 0 of the first byte: the port is a twin's.
pub fn run(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let is_twin = first & 1 != 0;
    let (from, to) = (Host::new(GateMode::Armed), Host::new(if is_twin { GateMode::Mute } else { GateMode::Armed }));
    let (Some(from), Some(to)) = (from, to) else { return };
    let mut random = Random::of_bytes(rest);
    for _ in 0..COPIES {
        if random.spent() {
            break;
        }
        let mut state = from.moving.save(&from.parts, random.one_in(2), from.rig.now);
        if random.one_in(8) {
            state = vec![0; random.below(200) as usize];
            state.fill_with(|| random.below(256) as u8);
        }
        for _ in 0..random.below(4) {
            let at = random.below(state.len().max(1) as u64) as usize;
            state.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.below(256) as u8);
        }
        if let Err(why) = to.moving.load(&state, &to.parts, to.rig.now) {
            assert!(!why.is_empty(), "no reason");
        }
    }
    let loaded = to.loaded.lock().unwrap_or_else(PoisonError::into_inner);
    // A twin acknowledges copies of its own protection alone, in their order, whose gates go on; and has no address of the VM's.
    assert!(is_twin || loaded.is_empty(), "{loaded:?}");
    for closed in loaded.iter() {
        assert!(closed.pairing == PAIRING && closed.gate.is_none_or(|gate| gate.waiting().is_some()), "{closed:?}");
    }
    for pair in loaded.windows(2) {
        let goes_on = match (pair[0].gate, pair[1].gate) {
            (Some(before), gate) => gate.is_some_and(|gate| gate.follows(&before)),
            (None, _) => true,
        };
        assert!(goes_on && pair[0].epoch <= pair[1].epoch, "{pair:?}");
    }
    let known = to.rig.plane.switch().addresses().iter(to.rig.now).filter(|learned| learned.port == to.rig.port.id());
    assert!(!is_twin || known.count() == 0, "a twin has taught the switch");
}
