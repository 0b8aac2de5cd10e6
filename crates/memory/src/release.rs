//! How mapped memory is let go: whoever has the last handle of a memory file frees all its pages, which takes a third of a
//! second for 4 GiB, and a VMM that was killed leaves that to us. So it is a thread's of its own.
//!
//! Files that are mapped are the kernel's own (`origin.rs`): nobody can have that thread wait.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use vm_memory::MmapRegion;

/// A file that has no more than so many bytes in memory is let go at once: some 256 pages.
const AT_ONCE: u64 = 1 << 20;

/// What the thread is called.
const NAME: &str = "unmapping";

/// To the thread, if it could be started.
static QUEUE: OnceLock<Option<Sender<MmapRegion<()>>>> = OnceLock::new();

/// Unmaps a region and closes its file, without waiting for that if it may take long.
pub(crate) fn unmap(region: MmapRegion<()>) {
    if region.file_offset().is_none_or(|file| held(file.file()) <= AT_ONCE) {
        return drop(region);
    }
    if let Some(queue) = QUEUE.get_or_init(start) {
        // If nobody takes it, it is dropped here.
        let _taken = queue.send(region);
    }
}

/// Bytes that a file has in memory, or on its disk; stat(2) counts by 512.
fn held(file: &File) -> u64 {
    file.metadata().map_or(u64::MAX, |stat| stat.blocks().saturating_mul(512))
}

fn start() -> Option<Sender<MmapRegion<()>>> {
    let (queue, regions) = channel();
    thread::Builder::new().name(NAME.to_owned()).spawn(move || regions.into_iter().for_each(drop)).ok()?;
    Some(queue)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Mapping, shared_file};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A mapping of a file that has so many bytes in memory.
    fn mapping(name: &str, bytes: usize) -> Mapping {
        let file = File::from(shared_file(name, 8 << 20).unwrap());
        rustix::io::pwrite(&file, &vec![1; bytes], 0).unwrap();
        Mapping::of_file(file, 0, 8 << 20, true).unwrap()
    }

    fn is_mapped(name: &str) -> bool {
        fs::read_to_string("/proc/self/maps").unwrap().contains(&format!("/memfd:{name}"))
    }

    fn threads() -> usize {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim() == NAME).count()
    }

    #[test]
    fn files_with_much_in_memory_are_let_go_by_a_thread_and_others_at_once() {
        let small = mapping("small", 64 << 10);
        assert!(is_mapped("small"));
        drop(small);
        assert!(!is_mapped("small"));
        for _ in 0..2 {
            let big = mapping("big", 2 << 20);
            assert!(is_mapped("big"));
            drop(big);
            assert_eq!(threads(), 1, "one for all");
            let end = Instant::now() + PATIENCE;
            while is_mapped("big") {
                assert!(Instant::now() < end, "it is let go");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
