//! Guest memory that one driver allocates from, in ascending order.

use std::cell::RefCell;

use crate::DriverError;

thread_local! {
    static TAKEN: RefCell<Option<Vec<(u64, u64)>>> = const { RefCell::new(None) };
}

/// Guest memory of one driver. Allocations are never freed: a driver keeps its rings and buffers.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    next: u64,
    end: u64,
    /// Addresses of further pages, each of `page` bytes.
    pages: &'static [u64],
    page: u64,
}

impl Arena {
    /// The `len` bytes at `base`.
    pub fn new(base: u64, len: u64) -> Arena {
        Arena { next: base, end: base.saturating_add(len), pages: &[], page: 0 }
    }

    /// Pages of `page` bytes each, at any addresses. No allocation can be longer than a page.
    pub fn of_pages(pages: &'static [u64], page: u64) -> Arena {
        Arena { pages, page, ..Arena::new(0, 0) }
    }

    /// Allocates `len` bytes at a multiple of `align`, a power of two. They lie in one region of the guest's memory.
    pub fn take(&mut self, len: u64, align: u64) -> Result<u64, DriverError> {
        loop {
            let at = self.next.checked_next_multiple_of(align.max(1));
            let next = at.and_then(|at| at.checked_add(len)).filter(|next| *next <= self.end);
            if let (Some(at), Some(next)) = (at, next) {
                self.next = next;
                TAKEN.with_borrow_mut(|taken| taken.iter_mut().for_each(|taken| taken.push((at, len))));
                return Ok(at);
            }
            let Some((first, rest)) = self.pages.split_first().filter(|_| len <= self.page) else {
                return Err(DriverError::NoRoom { wanted: len });
            };
            (self.next, self.end, self.pages) = (*first, first.saturating_add(self.page), rest);
        }
    }

    /// Runs `act`, and returns the address and bytes of each allocation that a driver of this thread made meanwhile. Trials find a
    /// driver's rings with it.
    pub fn noting<T>(act: impl FnOnce() -> T) -> (T, Vec<(u64, u64)>) {
        TAKEN.set(Some(Vec::new()));
        let done = act();
        (done, TAKEN.take().unwrap_or_default())
    }

    /// Bytes that are free.
    pub fn left(&self) -> u64 {
        self.end.saturating_sub(self.next) + self.pages.len() as u64 * self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_are_taken_meanwhile_are_told() {
        let mut arena = Arena::new(0, 0x1000);
        arena.take(16, 1).unwrap();
        let (second, noted) = Arena::noting(|| arena.take(32, 64).unwrap());
        arena.take(8, 1).unwrap();
        assert_eq!((second, noted), (64, vec![(64, 32)]));
    }

    #[test]
    fn pieces_are_aligned_do_not_overlap_and_end_with_the_arena() {
        let mut arena = Arena::new(0x1001, 0x2000);
        assert_eq!(arena.take(16, 0x1000).unwrap(), 0x2000);
        assert_eq!(arena.take(16, 16).unwrap(), 0x2010);
        assert_eq!(arena.left(), 0x3001 - 0x2020);
        assert!(matches!(arena.take(0x1000, 1), Err(DriverError::NoRoom { wanted: 0x1000 })));
        assert_eq!(arena.take(0xfe1, 1).unwrap(), 0x2020);
        assert!(arena.take(1, 1).is_err());
    }

    #[test]
    fn no_piece_crosses_from_page_to_page() {
        let mut arena = Arena::of_pages(&[0x9000, 0x2000, 0x5000], 0x1000);
        assert_eq!(arena.left(), 0x3000);
        assert_eq!(arena.take(0xc00, 1).unwrap(), 0x9000);
        assert_eq!(arena.take(0x400, 1).unwrap(), 0x9c00);
        assert_eq!(arena.take(0x10, 1).unwrap(), 0x2000);
        assert_eq!(arena.take(0x1000, 16).unwrap(), 0x5000);
        assert!(arena.take(1, 1).is_err());
        assert!(Arena::of_pages(&[0x9000, 0xa000], 0x1000).take(0x1001, 1).is_err());
    }
}
