//! A panic that ends the whole process.

use std::process::abort;
use std::thread::panicking;

/// Runs what all ports need. If it panics, the process aborts: a keeper starts the next daemon, which goes on with every VMM. A process
/// that lost only this thread would serve some ports no more, and their VMMs would wait for answers, for their connections stay open.
pub fn fatal<R>(act: impl FnOnce() -> R) -> R {
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            if panicking() {
                abort();
            }
        }
    }
    let _guard = Guard;
    act()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    const PANICS: &str = "NICETY_TEST_PANICS";

    #[test]
    fn a_panic_of_what_all_need_ends_the_process_and_not_its_thread_alone() {
        if std::env::var_os(PANICS).is_some() {
            let thread = std::thread::spawn(|| fatal(|| panic!("all need this")));
            let _never = thread.join();
            return;
        }
        let name = "run::fatal::tests::a_panic_of_what_all_need_ends_the_process_and_not_its_thread_alone";
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", name]).env(PANICS, "1").stdout(Stdio::null()).stderr(Stdio::null());
        assert_eq!(again.status().unwrap().signal(), Some(6), "SIGABRT");
        assert_eq!(fatal(|| 7), 7);
    }
}
