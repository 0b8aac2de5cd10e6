//! The BAR with an MSI-X table and its pending-bit array, and nothing else that a driver reads.

use nicety_pci::{Function, Window};

use crate::pieces::pieces;

/// Reads that BAR. The bytes between the table and the array, and after them, are zero.
pub(crate) fn read(function: &Function, bar: u8, offset: u64, data: &mut [u8]) {
    for (at, part) in pieces(offset, data.len()) {
        let data = &mut data[part];
        match (function.window(bar.into(), at), function.msix()) {
            (Some(Window::Table(at)), Some(msix)) => msix.read_table(at, data),
            (Some(Window::Pba(at)), Some(msix)) => msix.read_pba(at, data),
            _ => data.fill(0),
        }
    }
}

/// Writes that BAR. Only the table is writable; other writes are ignored.
pub(crate) fn write(function: &mut Function, bar: u8, offset: u64, data: &[u8]) {
    for (at, part) in pieces(offset, data.len()) {
        if let (Some(Window::Table(at)), Some(msix)) = (function.window(bar.into(), at), function.msix_mut()) {
            msix.write_table(at, &data[part]);
        }
    }
}
