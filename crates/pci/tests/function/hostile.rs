//! A guest that writes anything anywhere: nothing panics, and no read-only bit changes.

use nicety_pci::{Function, PowerState};

use crate::devices;

/// Marsaglia's xorshift: the same bytes in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Mostly within the space, sometimes around its end, sometimes near the largest number.
    fn offset(&mut self) -> u64 {
        match self.below(16) {
            0 => u64::MAX - self.below(16),
            1 => 4096 - 8 + self.below(16),
            2 => self.next(),
            3..=5 => self.below(4096),
            _ => self.below(256),
        }
    }

    fn data(&mut self) -> Vec<u8> {
        let len = [1, 2, 4, 8, 0, 3, 16, 64][self.below(8) as usize];
        let ones = self.below(4) == 0;
        (0..len).map(|_| if ones { 0xff } else { self.next() as u8 }).collect()
    }
}

fn space(function: &Function) -> Vec<u8> {
    first(function, function.config_size())
}

fn first(function: &Function, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    function.config_read(0, &mut bytes);
    bytes
}

/// Header registers that no software can change, by PCI 3.0 §6.1, and each capability's ID and link.
fn fixed(function: &Function) -> Vec<usize> {
    let header = [0x00..0x04, 0x08..0x0c, 0x0e..0x10, 0x28..0x30, 0x34..0x3c, 0x3d..0x40];
    let links = function.capabilities().flat_map(|(_, at)| [at, at + 1]);
    header.into_iter().flatten().chain(links).collect()
}

fn act(function: &mut Function, random: &mut Random) {
    let (offset, data) = (random.offset(), random.data());
    match random.below(8) {
        0 => function.device_write(offset as usize, &data),
        1 => drop(function.set_intx(random.below(2) == 0)),
        2 => drop(function.bar_of(nicety_pci::Space::Memory, offset)),
        3 => {
            if let Some(msix) = function.msix_mut() {
                msix.write_table(offset, &data);
            }
        }
        4 => {
            let mut data = data;
            function.config_read(offset, &mut data);
        }
        _ => drop(function.config_write(offset, &data)),
    }
}

#[test]
fn no_access_panics_and_no_read_only_bit_moves() {
    for (name, pristine) in devices::all() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut function = pristine.clone();
        let (reset, fixed) = (space(&pristine), fixed(&pristine));
        for round in 0..20_000 {
            act(&mut function, &mut random);
            let bytes = first(&function, 256);
            for &offset in &fixed {
                assert_eq!(bytes[offset], reset[offset], "{name}, round {round}, at {offset:#x}");
            }
            if round % 64 == 0 {
                for (offset, (byte, was)) in space(&function).iter().zip(&reset).enumerate() {
                    let rule = function.rule(offset).expect("inside");
                    assert_eq!((byte ^ was) & !rule.changeable(), 0, "{name}, round {round}, at {offset:#x}");
                }
            }
            assert!(!matches!(function.power_state(), PowerState::D1 | PowerState::D2), "none of these has them");
            for index in 0..8 {
                let _ = (function.bar(index), function.bar_address(index), function.window(index, 0));
            }
        }
        function.reset();
        assert_eq!(function.save(), pristine.save(), "{name}: reset equals new");
    }
}

#[test]
fn a_write_by_bytes_equals_a_write_at_once() {
    for (name, pristine) in devices::all() {
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        let (mut whole, mut parts) = (pristine.clone(), pristine);
        for round in 0..2_000 {
            let (offset, data) = (random.below(4096), random.data());
            let _ = whole.config_write(offset, &data);
            for (index, byte) in data.iter().enumerate() {
                let _ = parts.config_write(offset + index as u64, &[*byte]);
            }
            assert_eq!(space(&whole), space(&parts), "{name}, round {round}");
        }
    }
}

#[test]
fn saved_state_taken_anywhere_is_taken_back_and_damaged_state_never_panics() {
    for (name, pristine) in devices::all() {
        let mut random = Random(0xdead_beef_cafe_f00d);
        let mut function = pristine.clone();
        for round in 0..1_000 {
            act(&mut function, &mut random);
            let saved = function.save();
            let mut other = pristine.clone();
            other.restore(&saved).unwrap_or_else(|error| panic!("{name}, round {round}: {error}"));
            assert_eq!(other.save(), saved, "{name}");
            let mut bytes = saved.to_bytes();
            assert_eq!(nicety_pci::Saved::from_bytes(&bytes).as_ref(), Ok(&saved));
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
            bytes.truncate(bytes.len() - (random.below(2) * random.below(64)) as usize);
            if let Ok(damaged) = nicety_pci::Saved::from_bytes(&bytes) {
                let before = other.save();
                if other.restore(&damaged).is_err() {
                    assert_eq!(other.save(), before, "{name}: refused state changes nothing");
                }
            }
        }
    }
}
