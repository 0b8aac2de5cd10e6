//! Unmapping memory. munmap(2) waits for the file's lock, which a VMM can hold for seconds (docs/adr/0012), and for the process's
//! `mmap_lock`. So a port's memory thread unmaps for its own port, and one thread unmaps for all others.
//!
//! Closing the last handle of a memory file frees its pages: a third of a second for 4 GiB, which a killed VMM leaves to us. One
//! thread does that for all. Such a file is the kernel's own, so nobody can block that thread.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use nicety_sandbox::Kind;
use rustix::fs::{fcntl_get_seals, fstat};

/// In blocks of 512 bytes: freeing a file of at most this size (1 MiB) takes no noticeable time.
const BLOCKS_AT_ONCE: i64 = 2048;
/// The thread's name.
const NAME: &str = "releasing";

/// The queue to the thread, if it could be started.
static QUEUE: OnceLock<Option<Sender<Box<dyn Send>>>> = OnceLock::new();

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread unmaps memory itself: it serves only one VMM, so it may block.
pub fn this_thread_may_wait() {
    MAY_WAIT.set(true);
}

/// Drops mapped memory: here, if this thread may block; else on the other thread.
pub fn unmap(what: impl Send + 'static) {
    // A thread that is ending has lost its mark.
    if MAY_WAIT.try_with(Cell::get).unwrap_or(false) {
        drop(what);
    } else {
        release(what);
    }
}

/// Starts the thread if it does not run yet. Starting maps its stack, which may block.
pub(crate) fn ready() {
    QUEUE.get_or_init(start);
}

/// Whether freeing a file may take long if this is its last handle. For a memory file the blocks tell how much memory it uses; for
/// a disk file they do not.
pub fn holds_much(file: BorrowedFd<'_>) -> bool {
    // F_GET_SEALS succeeds only for memory files (fcntl(2)), and never blocks.
    fcntl_get_seals(file).is_err() || fstat(file).map_or(true, |stat| stat.st_blocks > BLOCKS_AT_ONCE)
}

/// Drops on the other thread what takes the kernel long to free.
pub fn release(what: impl Send + 'static) {
    if let Some(queue) = QUEUE.get_or_init(start) {
        // Without the thread it is dropped here.
        let _taken = queue.send(Box::new(what));
    }
}

fn start() -> Option<Sender<Box<dyn Send>>> {
    let (queue, released) = channel();
    nicety_sandbox::spawn(Kind::Releasing, NAME, 0, move || released.into_iter().for_each(drop)).ok()?;
    Some(queue)
}

#[cfg(test)]
mod tests {
    use std::fs::{read_dir, read_to_string};
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::Duration;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::io::pwrite;

    use super::*;

    /// Reports the name of the thread that drops it.
    struct Watched(Sender<Option<String>>);

    impl Drop for Watched {
        fn drop(&mut self) {
            let _told = self.0.send(thread::current().name().map(str::to_owned));
        }
    }

    #[test]
    fn what_is_released_is_dropped_by_one_thread() {
        for _ in 0..3 {
            let (tell, told) = channel();
            release(Watched(tell));
            assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Some(NAME.to_owned())));
        }
        let names = read_dir("/proc/self/task").unwrap().map(|task| read_to_string(task.unwrap().path().join("comm")));
        assert_eq!(names.filter(|name| name.as_ref().is_ok_and(|name| name.trim() == NAME)).count(), 1);
    }

    #[test]
    fn a_thread_that_may_wait_unmaps_itself_and_any_other_does_not() {
        let (tell, told) = channel();
        let name = || told.recv_timeout(Duration::from_secs(20)).unwrap();
        unmap(Watched(tell.clone()));
        assert_eq!(name().as_deref(), Some(NAME));
        let may = thread::Builder::new().name("may wait".to_owned()).spawn(move || {
            this_thread_may_wait();
            unmap(Watched(tell));
        });
        may.unwrap().join().unwrap();
        assert_eq!(name().as_deref(), Some("may wait"));
    }

    #[test]
    fn what_a_memory_file_holds_is_what_was_written_to_it() {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 30).unwrap();
        assert!(!holds_much(file.as_fd()));
        pwrite(&file, &vec![1; 1 << 20], 0).unwrap();
        assert!(!holds_much(file.as_fd()));
        pwrite(&file, &[1], 1 << 20).unwrap();
        assert!(holds_much(file.as_fd()));
        let (of_a_pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(holds_much(of_a_pipe.as_fd()), "of anything else it is not known");
    }
}
