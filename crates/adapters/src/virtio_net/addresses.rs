//! Address tables of the control queue (virtio 1.2, section 5.1.6.5.2). A bounded number of addresses is kept; a longer table lets
//! all addresses of its kind pass.

use arrayvec::ArrayVec;
use nicety_memory::Map;
use serde::{Deserialize, Serialize};

use super::broken::Broken;
use super::chain::Chain;

/// Maximum addresses of one kind that are filtered individually.
const ADDRESSES: usize = 64;
/// Bytes of an address.
const ADDRESS_BYTES: u64 = 6;
/// Bytes of the command's class and number, before the tables.
const CODE_BYTES: u64 = 2;

/// Addresses of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Table {
    addresses: ArrayVec<[u8; 6], ADDRESSES>,
    overflown: bool,
}

impl Table {
    /// Whether a frame to this address passes.
    pub fn has(&self, address: &[u8]) -> bool {
        self.overflown || self.addresses.iter().any(|entry| entry == address)
    }

    fn read(bytes: &mut Bytes<'_, '_>) -> Result<Option<Self>, Broken> {
        let mut table = Self::default();
        let Some(count) = bytes.read()?.map(u32::from_le_bytes) else { return Ok(None) };
        if count as usize > ADDRESSES {
            table.overflown = true;
            return Ok(bytes.skip(u64::from(count) * ADDRESS_BYTES)?.then_some(table));
        }
        for _ in 0..count {
            let Some(address) = bytes.read()? else { return Ok(None) };
            // The count bounds it.
            let _fits = table.addresses.try_push(address);
        }
        Ok(Some(table))
    }
}

/// MAC_TABLE_SET: unicast and multicast addresses, from the command's chain. `None`: the chain is shorter than their counts. The
/// chain stays available, so that its walk can be counted.
pub(super) fn read(chain: &mut Chain<'_>, memory: &Map) -> Result<Option<[Table; 2]>, Broken> {
    let mut bytes = Bytes { chain, memory, at: 0, left: 0 };
    if !bytes.skip(CODE_BYTES)? {
        return Ok(None);
    }
    let Some(unicast) = Table::read(&mut bytes)? else { return Ok(None) };
    Ok(Table::read(&mut bytes)?.map(|multicast| [unicast, multicast]))
}

/// The device-readable bytes of a chain, in order.
struct Bytes<'a, 'm> {
    chain: &'a mut Chain<'m>,
    memory: &'a Map,
    /// The rest of a buffer.
    at: u64,
    left: u32,
}

impl Bytes<'_, '_> {
    /// Consumes this many bytes and passes them to `piece`. False if there are fewer.
    fn take(
        &mut self,
        mut len: u64,
        mut piece: impl FnMut(&Map, u64, u32) -> Result<(), Broken>,
    ) -> Result<bool, Broken> {
        while len > 0 {
            if self.left == 0 {
                let Some(buffer) = self.chain.next().transpose()? else { return Ok(false) };
                (self.at, self.left) = if buffer.write { (0, 0) } else { (buffer.address, buffer.len) };
                continue;
            }
            let here = u64::from(self.left).min(len) as u32;
            piece(self.memory, self.at, here)?;
            self.at = self.at.wrapping_add(here.into());
            self.left -= here;
            len -= u64::from(here);
        }
        Ok(true)
    }

    fn skip(&mut self, len: u64) -> Result<bool, Broken> {
        self.take(len, |_, _, _| Ok(()))
    }

    fn read<const N: usize>(&mut self) -> Result<Option<[u8; N]>, Broken> {
        let (mut out, mut done) = ([0; N], 0);
        let whole = self.take(N as u64, |memory, at, len| {
            let part = out.get_mut(done..done + len as usize).ok_or(Broken::Buffer)?;
            done += len as usize;
            memory.read(at, part).map_err(|_| Broken::Buffer)
        })?;
        Ok(whole.then_some(out))
    }
}
