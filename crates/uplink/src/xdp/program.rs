//! The XDP program, its map of sockets, and its link to an interface, by bpf(2).
//!
//! The program hands each frame to the socket of its receive queue; frames of other queues go on to the host's stack. It is attached by
//! a link (Linux 5.9), which ends with its last descriptor: when daemon and keeper have ended, nothing is left at the interface. Layouts are those of
//! `union bpf_attr` and `struct bpf_insn` in Linux's `include/uapi/linux/bpf.h`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of bpf(2).
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
/// BPF_OBJ_GET_INFO_BY_FD
const OBJECT_INFO: i32 = 15;
const LINK_CREATE: i32 = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const LINK_TYPE_XDP: u32 = 6;
const PROG_TYPE_XDP: u32 = 6;
/// The attach type BPF_XDP.
const ATTACH_XDP: u32 = 37;
/// XDP_FLAGS_SKB_MODE: the kernel runs the program, not the driver.
const BY_THE_KERNEL: u32 = 1 << 1;

/// `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    code: u8,
    /// The destination register in the lower half, the source in the upper one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers, offset, immediate }
}

/// `return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);`
fn program(sockets: BorrowedFd<'_>) -> [Instruction; 6] {
    [
        // r2 = ctx->rx_queue_index, the fifth word of `struct xdp_md`.
        instruction(0x61, 0x12, 16, 0),
        // r1 = the map, by its descriptor (BPF_PSEUDO_MAP_FD), in two instructions.
        instruction(0x18, 0x11, 0, sockets.as_raw_fd()),
        instruction(0, 0, 0, 0),
        // r3 = XDP_PASS
        instruction(0xb7, 0x03, 0, 2),
        // call bpf_redirect_map
        instruction(0x85, 0, 0, 51),
        // exit
        instruction(0x95, 0, 0, 0),
    ]
}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// The first part of `struct bpf_link_info`, of a link of an XDP program.
#[repr(C)]
struct LinkInfo {
    link_type: u32,
    id: u32,
    prog_id: u32,
    _pad: u32,
    ifindex: u32,
    _rest: u32,
}

#[repr(C)]
struct ObjectInfo {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `T` is the command's part of `union bpf_attr`, without padding, and the addresses in it are those of memory that lives for the call.
unsafe fn bpf<T>(command: i32, attributes: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `attributes`, and what the caller vouches for.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as i32) }
}

/// The same, for commands that make a descriptor.
///
/// # Safety
/// That of [`bpf`]; and the command makes a descriptor.
unsafe fn bpf_fd<T>(command: i32, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's word; the new descriptor is nobody else's, and is closed on execve(2).
    unsafe { bpf(command, attributes).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

fn name() -> [u8; 16] {
    *b"nicety\0\0\0\0\0\0\0\0\0\0"
}

/// A map of sockets by queue, and the program that uses it.
#[derive(Debug)]
pub(super) struct Program {
    sockets: OwnedFd,
    program: OwnedFd,
}

impl Program {
    /// Loads the program, for this many queues.
    pub(super) fn load(queues: u16) -> io::Result<Self> {
        let map = MapCreate {
            map_type: MAP_TYPE_XSKMAP,
            key_size: 4,
            value_size: 4,
            max_entries: queues.into(),
            map_flags: 0,
            inner_map_fd: 0,
            numa_node: 0,
            map_name: name(),
        };
        // SAFETY: it is BPF_MAP_CREATE's part, holds no address, and makes a descriptor.
        let sockets = unsafe { bpf_fd(MAP_CREATE, &map) }?;
        let instructions = program(sockets.as_fd());
        let license = c"MIT or Apache-2.0";
        let load = ProgramLoad {
            prog_type: PROG_TYPE_XDP,
            insn_cnt: instructions.len() as u32,
            insns: instructions.as_ptr().addr() as u64,
            license: license.as_ptr().addr() as u64,
            log_level: 0,
            log_size: 0,
            log_buf: 0,
            kern_version: 0,
            prog_flags: 0,
            prog_name: name(),
            prog_ifindex: 0,
            expected_attach_type: ATTACH_XDP,
        };
        // SAFETY: it is BPF_PROG_LOAD's part; instructions and licence live until the end of this function.
        let program = unsafe { bpf_fd(PROG_LOAD, &load) }?;
        Ok(Self { sockets, program })
    }

    /// Has a queue's frames go to this socket.
    pub(super) fn give(&self, queue: u16, socket: BorrowedFd<'_>) -> io::Result<()> {
        let (key, value) = (u32::from(queue), socket.as_raw_fd() as u32);
        let update = MapUpdate {
            map_fd: self.sockets.as_raw_fd() as u32,
            _pad: 0,
            key: (&raw const key).addr() as u64,
            value: (&raw const value).addr() as u64,
            flags: 0,
        };
        // SAFETY: it is BPF_MAP_UPDATE_ELEM's part; key and value are of the map's sizes, and live for the call.
        unsafe { bpf(MAP_UPDATE_ELEM, &update) }.map(drop)
    }

    /// Whether the interface's driver runs the program that is attached to it, or else the kernel. It attaches another one in vain:
    /// `dev_xdp_attach` in Linux's `net/core/dev.c` refuses it with EBUSY beside a link of the same kind, with EEXIST beside one of the
    /// other kind.
    pub(super) fn is_run_by_driver(&self, index: u32) -> io::Result<bool> {
        match self.attach(index, true) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(error),
            Ok(_nothing_was_attached) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Attaches the program to an interface, for as long as the link lives. `by_driver`: the interface's driver runs it, if it can.
    pub(super) fn attach(&self, index: u32, by_driver: bool) -> io::Result<OwnedFd> {
        let link = LinkCreate {
            prog_fd: self.program.as_raw_fd() as u32,
            target_ifindex: index,
            attach_type: ATTACH_XDP,
            flags: if by_driver { 0 } else { BY_THE_KERNEL },
        };
        // SAFETY: it is BPF_LINK_CREATE's part, holds no address, and makes a descriptor.
        unsafe { bpf_fd(LINK_CREATE, &link) }
    }
}

/// The interface to which a link attaches its program. `None`: to none any more, since the interface was deleted or the program detached.
///
/// # Errors
/// It is no link of an XDP program.
pub(super) fn attached_to(link: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut info = LinkInfo { link_type: 0, id: 0, prog_id: 0, _pad: 0, ifindex: 0, _rest: 0 };
    let ask = ObjectInfo {
        bpf_fd: link.as_raw_fd() as u32,
        info_len: size_of::<LinkInfo>() as u32,
        info: (&raw mut info).addr() as u64,
    };
    // SAFETY: it is BPF_OBJ_GET_INFO_BY_FD's part; the kernel writes at most `info_len` bytes to `info`, which lives for the call.
    unsafe { bpf(OBJECT_INFO, &ask) }?;
    match info.link_type {
        LINK_TYPE_XDP => Ok((info.ifindex != 0).then_some(info.ifindex)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// A part without padding: the kernel refuses bytes behind what it knows that are not 0, and padding may be anything.
const _: () = assert!(size_of::<MapCreate>() == 44 && size_of::<MapUpdate>() == 32 && size_of::<LinkCreate>() == 16);
const _: () = assert!(size_of::<ProgramLoad>() == 72 && size_of::<Instruction>() == 8);
const _: () = assert!(size_of::<LinkInfo>() == 24 && size_of::<ObjectInfo>() == 16);
