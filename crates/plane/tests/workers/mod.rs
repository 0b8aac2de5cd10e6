//! Runs tests with one worker and with two: the plane's, and the daemon's.

/// Proves each of these sentences with one worker, and with two.
macro_rules! with_one_worker_and_with_two {
    ($($name:ident),+ $(,)?) => {
        mod with_one_worker {
            $(#[test] fn $name() { super::$name(1) })+
        }
        mod with_two_workers {
            $(#[test] fn $name() { super::$name(2) })+
        }
    };
}
