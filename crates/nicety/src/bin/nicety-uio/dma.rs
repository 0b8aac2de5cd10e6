//! Memory that the adapter reaches: huge pages, which the kernel does not move, by their physical addresses
//! (Linux, Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use nicety_drivers::Arena;
use nicety_memory::{Map, Mapping, Rights};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::Fallible;

/// A huge page.
const HUGE: u64 = 2 << 20;
/// As many as a driver's rings and buffers need.
const PAGES: u64 = 8;
/// The adapters know 32 bits of an address.
const LIMIT: u64 = 1 << 32;
/// An entry of pagemap: the page is there, and its number.
const PRESENT: u64 = 1 << 63;
const NUMBER: u64 = (1 << 55) - 1;

/// See the module's page.
pub struct Memory {
    /// By physical addresses.
    pub map: Arc<Map>,
    /// All of it, for a driver.
    pub arena: Arena,
}

impl Memory {
    /// Takes the pages, for as long as this process lives.
    pub fn new() -> Fallible<Self> {
        let file = hugetlb().map_err(|error| {
            format!("no {PAGES} huge pages of 2 MB: {error}; `echo {PAGES} >/proc/sys/vm/nr_hugepages` asks for them")
        })?;
        let whole = file.try_clone()?;
        let whole = Arc::new(Mapping::of_file(whole, 0, PAGES * HUGE, true)?);
        let begin = whole.bytes().ptr_guard().as_ptr().addr() as u64;
        let touched = Map::default().with(0, Arc::clone(&whole), Rights::BOTH)?;
        let (mut map, mut pages) = (Map::default(), Vec::new());
        for offset in (0..PAGES).map(|page| page * HUGE) {
            touched.write(offset, &[0])?;
            let at = physical(begin + offset)?;
            if at + HUGE > LIMIT {
                return Err(format!(
                    "a huge page lies at {at:#x}, beyond the 4 GB that these adapters reach: boot with less memory, or mem=4G"
                )
                .into());
            }
            let file = file.try_clone()?;
            let page = Mapping::of_file(file, offset, HUGE, true)?;
            map = map.with(at, Arc::new(page), Rights::BOTH)?;
            pages.push(at);
        }
        Ok(Self { map: Arc::new(map), arena: Arena::of_pages(pages.leak(), HUGE) })
    }
}

/// A file of huge pages, all of which can be had: they are reserved where it is mapped.
fn hugetlb() -> Fallible<OwnedFd> {
    let file = memfd_create("nicety-dma", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB)?;
    ftruncate(&file, PAGES * HUGE)?;
    let again = file.try_clone()?;
    Mapping::of_file(again, 0, PAGES * HUGE, true)?;
    Ok(file)
}

/// The physical address of a page of this process.
fn physical(address: u64) -> Fallible<u64> {
    let page = rustix::param::page_size() as u64;
    let mut entry = [0; 8];
    let read = File::open("/proc/self/pagemap").and_then(|map| map.read_exact_at(&mut entry, 8 * (address / page)));
    read.map_err(|error| format!("/proc/self/pagemap: {error}"))?;
    let entry = u64::from_ne_bytes(entry);
    if entry & PRESENT == 0 || entry & NUMBER == 0 {
        return Err("/proc/self/pagemap shows no page numbers: it takes root (CAP_SYS_ADMIN)".into());
    }
    Ok((entry & NUMBER) * page)
}
