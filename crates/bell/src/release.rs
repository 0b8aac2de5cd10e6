//! Letting go of memory: whoever has the last handle of a memory file frees all its pages, which takes a third of a second for
//! 4 GiB, and a VMM that was killed leaves that to us. So it is a thread's of its own, one for all: such a file is the
//! kernel's own, and nobody can have that thread wait.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::fs::{fcntl_get_seals, fstat};

/// A file that has no more than so many blocks of 512 bytes in memory, 1 MiB, is freed in no time.
const BLOCKS_AT_ONCE: i64 = 2048;
/// What the thread is called.
const NAME: &str = "releasing";

/// To the thread, if it could be started.
static QUEUE: OnceLock<Option<Sender<Box<dyn Send>>>> = OnceLock::new();

/// Whether freeing a file may take long, if that is its last handle. Of a memory file it is known what it has in memory; one on a disk
/// may have more there than blocks.
pub fn holds_much(file: BorrowedFd<'_>) -> bool {
    // F_GET_SEALS is answered for memory files alone (fcntl(2)), and waits for nobody.
    fcntl_get_seals(file).is_err() || fstat(file).map_or(true, |stat| stat.st_blocks > BLOCKS_AT_ONCE)
}

/// Drops what takes long to be dropped, though nobody but the kernel is waited for, by the thread.
pub fn release(what: impl Send + 'static) {
    if let Some(queue) = QUEUE.get_or_init(start) {
        // If nobody takes it, it is dropped here.
        let _taken = queue.send(Box::new(what));
    }
}

fn start() -> Option<Sender<Box<dyn Send>>> {
    let (queue, released) = channel();
    thread::Builder::new().name(NAME.to_owned()).spawn(move || released.into_iter().for_each(drop)).ok()?;
    Some(queue)
}

#[cfg(test)]
mod tests {
    use std::fs::{read_dir, read_to_string};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::io::pwrite;

    use super::*;

    /// Tells the name of the thread that drops it.
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
