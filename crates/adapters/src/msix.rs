//! The BAR that holds an MSI-X table and its pending-bit array, and nothing else that a driver reads.

use nicety_pci::{Function, Window};

use crate::pieces::pieces;

/// Reads that BAR. Between the table and the array, and after them, are zeros.
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

/// Writes that BAR: the table takes what it is given, all else ignores it.
pub(crate) fn write(function: &mut Function, bar: u8, offset: u64, data: &[u8]) {
    for (at, part) in pieces(offset, data.len()) {
        if let (Some(Window::Table(at)), Some(msix)) = (function.window(bar.into(), at), function.msix_mut()) {
            msix.write_table(at, &data[part]);
        }
    }
}
