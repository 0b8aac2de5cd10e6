//! The 8139C+ and the 8139C under their drivers: offsets and bits are those of Linux's 8139cp.c and 8139too.c, written here again;
//! sequences those of these drivers, of iPXE's realtek.c and of U-Boot's rtl8139.c.

mod bench;
mod cve;
mod killed;
mod plain;
mod probe;
mod rings;
