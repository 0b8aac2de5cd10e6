//! Touching guest memory: loads, stores and copies that survive a missing page.
//!
//! A VMM may truncate its memory file at any time; an access then raises SIGBUS (`guard.rs`). Mapping other pages there would unmap
//! the file's, which waits for the file's lock, and the VMM can hold that lock for seconds (docs/adr/0012). So each instruction
//! here that touches guest memory has an entry in a fixup table (`nicety_fixups`, a section of the program) that says where to
//! continue after a fault. A failed load gives zero; a failed copy is reported, or gives zeros. Linux accesses user space in the
//! same way (Documentation/arch/x86/exception-tables.rst).
//!
//! On processors other than x86-64 accesses are plain, and the guard maps zero pages.

use std::mem::MaybeUninit;

use vm_memory::volatile_memory::VolatileSlice;

/// Bytes that are copied and summed at a time.
const PIECE: usize = 512;

/// Copies out of guest memory, as many bytes as the shorter one has; unreadable bytes are zero. Returns their number.
#[inline]
pub(crate) fn copy_out(from: &VolatileSlice<'_>, into: &mut [u8]) -> usize {
    let len = from.len().min(into.len());
    // SAFETY: both have `len` bytes, and `into` is borrowed exclusively.
    let left = unsafe { native::copy(from.ptr_guard().as_ptr(), into.as_mut_ptr(), len) };
    if left > 0 {
        into[len - left..len].fill(0);
    }
    len
}

/// Copies into guest memory, as many bytes as the shorter one has; missing pages are skipped.
#[inline]
pub(crate) fn copy_in(from: &[u8], to: &VolatileSlice<'_>) {
    let len = from.len().min(to.len());
    // SAFETY: both have `len` bytes. Bytes for missing pages are lost.
    let _left = unsafe { native::copy(from.as_ptr(), to.ptr_guard_mut().as_ptr(), len) };
}

/// Copies bytes out of guest memory; unreadable bytes are zero.
///
/// # Safety
/// That many bytes are mapped there.
#[inline(always)]
pub(crate) unsafe fn read(from: *const u8, into: &mut [u8]) {
    // SAFETY: as the caller guarantees, and `into` is borrowed exclusively.
    let left = unsafe { native::copy(from, into.as_mut_ptr(), into.len()) };
    if left > 0 {
        let len = into.len();
        into[len - left..].fill(0);
    }
}

/// Most bytes of [`read_few`].
pub(crate) const FEW: usize = 128;

/// Copies up to [`FEW`] bytes out of guest memory; unreadable bytes are zero.
///
/// # Safety
/// That many bytes are mapped at `from`, and may be written at `into`.
#[inline(always)]
pub(crate) unsafe fn read_few(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: as the caller guarantees.
    unsafe {
        if !native::copy_few(from, into, len) {
            read_few_again(from, into, len);
        }
    }
}

/// Like [`read_few`], for few bytes, or after a fault.
///
/// # Safety
/// As for [`read_few`].
#[cold]
#[inline(never)]
unsafe fn read_few_again(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: as the caller guarantees.
    unsafe {
        let left = native::copy(from, into, len);
        into.add(len - left).write_bytes(0, left);
    }
}

/// Copies bytes into guest memory; missing pages are skipped.
///
/// # Safety
/// That many bytes are mapped there.
#[inline(always)]
pub(crate) unsafe fn write(from: &[u8], to: *mut u8) {
    // SAFETY: as the caller guarantees. Bytes for missing pages are lost.
    let _left = unsafe { native::copy(from.as_ptr(), to, from.len()) };
}

/// Like [`write`], for 32 to 64 bytes: less code, where others take the other lengths.
///
/// # Safety
/// That many bytes are mapped there, and there are 32 to 64.
#[inline(always)]
pub(crate) unsafe fn write_short(from: &[u8], to: *mut u8) {
    // SAFETY: as the caller guarantees. Bytes for missing pages are lost.
    unsafe {
        std::hint::assert_unchecked((32..=64).contains(&from.len()));
        let _left = native::copy(from.as_ptr(), to, from.len());
    }
}

/// Copies the shorter of both within guest memory; the places may overlap. Unreadable bytes are zero.
pub(crate) fn copy_across(from: &VolatileSlice<'_>, to: &VolatileSlice<'_>) {
    let len = from.len().min(to.len());
    // SAFETY: both have `len` bytes.
    unsafe { across(from.ptr_guard().as_ptr(), to.ptr_guard_mut().as_ptr(), len) }
}

/// Copies bytes within guest memory; the places may overlap. Unreadable bytes are zero.
///
/// # Safety
/// That many bytes are mapped at both.
#[inline]
pub(crate) unsafe fn across(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller guarantees; `left` bytes remain at the end of the target.
    unsafe {
        let left = native::copy(from, to, len);
        if left > 0 {
            native::clear(to.add(len - left), left);
        }
    }
}

/// Like [`copy_across`], without overlap; returns the one's complement sum of the stored bytes, in native-endian words, before
/// folding.
#[inline(always)]
pub(crate) fn copy_summed(from: &VolatileSlice<'_>, to: &VolatileSlice<'_>) -> u64 {
    let len = from.len().min(to.len());
    let (source, target) = (from.ptr_guard(), to.ptr_guard_mut());
    let (source, target) = (source.as_ptr(), target.as_ptr());
    // Not cleared: each piece is written before it is read.
    let mut bytes = MaybeUninit::<[u8; PIECE]>::uninit();
    let first = bytes.as_mut_ptr().cast::<u8>();
    // SAFETY: both have `len` bytes.
    let (mut at, mut sum) = unsafe { native::copy_blocks_summed(source, target, len) };
    let mut gone = false;
    while at < len {
        let count = PIECE.min(len - at);
        // SAFETY: `at + count <= len` and `count <= PIECE`, and `bytes` is this call's own. The copy writes all but the last `left`
        // bytes, and what it does not write is cleared; so the whole piece has been written.
        let piece = unsafe {
            let left = if gone { count } else { native::copy(source.add(at), first, count) };
            if left > 0 {
                gone = true;
                first.add(count - left).write_bytes(0, left);
            }
            std::slice::from_raw_parts(first, count)
        };
        sum += words(piece);
        // SAFETY: as above.
        if unsafe { native::copy(piece.as_ptr(), target.add(at), count) } > 0 {
            return sum;
        }
        at += count;
    }
    sum
}

/// The sum of these few bytes does not overflow.
fn words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut tail = [0; 8];
    tail[..rest.len()].copy_from_slice(rest);
    let add = |sum: u64, word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word);
        sum.wrapping_add(word & 0xffff_ffff).wrapping_add(word >> 32)
    };
    add(words.iter().fold(0, add), &tail)
}

pub(crate) use native::{load_u16, load_u32, load_u64, load_u128, or_u64, store_u8, store_u16, store_u32, store_u64};

#[cfg(target_arch = "x86_64")]
pub(crate) use native::skip;

/// For the signal handler: makes the thread continue behind the faulting access. False if the access is not in this
/// module.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn skip(_context: *mut libc::c_void) -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
mod native {
    //! Each of these accesses memory between its labels 2 and 3, and continues at 3 if it faults. On x86-64 an aligned load of up to eight
    //! bytes is atomic and acquires, and a store releases (Intel SDM, volume 3, 9.1.1 and 9.2.2). The compiler does not move other accesses
    //! across assembly that may touch memory.

    use std::arch::asm;
    use std::arch::x86_64::_mm_setzero_si128;

    /// Copies of at least this length use the processor's own string instruction, which gets faster with length.
    const LONG: usize = 2048;

    /// An entry of the table: the first byte of an access and the first behind it, each relative to its own address.
    #[repr(C)]
    struct Fixup {
        from: i32,
        to: i32,
    }

    /// The linker keeps the entry although nothing refers to it (R).
    macro_rules! fixup {
        () => {
            ".pushsection nicety_fixups, \"aR\", @progbits\n.balign 4\n.long 2b - .\n.long 3b - .\n.popsection"
        };
    }

    unsafe extern "C" {
        // The linker's symbols for the ends of the section.
        #[link_name = "__start_nicety_fixups"]
        static FIRST: Fixup;
        #[link_name = "__stop_nicety_fixups"]
        static END: Fixup;
    }

    /// For a signal handler, with its third argument: makes the thread continue behind the faulting access. False if the access
    /// is not in this module.
    pub(crate) fn skip(context: *mut libc::c_void) -> bool {
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel passes a valid context to a handler with SA_SIGINFO, and takes its registers from it afterwards. The
        // table lies between two symbols of the linker, is not written to, and has whole entries only.
        unsafe {
            let place = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
            let at = *place as usize;
            let (mut fixup, end) = (&raw const FIRST, &raw const END);
            while fixup < end {
                let of = |distance: *const i32| distance.addr().wrapping_add_signed(*distance as isize);
                let (from, to) = (of(&raw const (*fixup).from), of(&raw const (*fixup).to));
                if (from..to).contains(&at) {
                    *place = to as i64;
                    return true;
                }
                fixup = fixup.add(1);
            }
        }
        false
    }

    macro_rules! load {
        ($name:ident, $kind:ty, $instruction:literal) => {
            /// Loads a value, or zero. An aligned load is atomic, with acquire ordering.
            ///
            /// # Safety
            /// The address is mapped.
            #[inline(always)]
            pub unsafe fn $name(from: *const u8) -> $kind {
                let mut value = 0u64;
                // SAFETY: it reads only mapped bytes, or is skipped.
                unsafe {
                    asm!("2:", $instruction, "3:", fixup!(), from = in(reg) from, value = inout(reg) value,
                        options(nostack, preserves_flags));
                }
                value as $kind
            }
        };
    }

    load!(load_u16, u16, "movzx {value:e}, word ptr [{from}]");
    load!(load_u32, u32, "mov {value:e}, dword ptr [{from}]");
    load!(load_u64, u64, "mov {value}, qword ptr [{from}]");

    /// Loads 16 bytes, or zeros. Not atomic.
    ///
    /// # Safety
    /// The bytes are mapped.
    #[inline(always)]
    pub unsafe fn load_u128(from: *const u8) -> u128 {
        // SAFETY: it reads only mapped bytes, or is skipped. SSE2 is part of x86-64, and any 16 bytes are a number.
        unsafe {
            let mut value = _mm_setzero_si128();
            asm!("2:", "movups {value}, [{from}]", "3:", fixup!(), from = in(reg) from, value = inout(xmm_reg) value,
                options(nostack, preserves_flags));
            std::mem::transmute(value)
        }
    }

    macro_rules! store {
        ($name:ident, $kind:ty, $instruction:literal) => {
            /// Stores a value if the page exists. An aligned store is atomic, with release ordering.
            ///
            /// # Safety
            /// The address is mapped.
            #[inline(always)]
            pub unsafe fn $name(to: *mut u8, value: $kind) {
                let value = u64::from(value);
                // SAFETY: it writes only mapped bytes, or is skipped.
                unsafe {
                    asm!("2:", $instruction, "3:", fixup!(), to = in(reg) to, value = in(reg) value,
                        options(nostack, preserves_flags));
                }
            }
        };
    }

    store!(store_u8, u8, "mov byte ptr [{to}], {value:l}");
    store!(store_u16, u16, "mov word ptr [{to}], {value:x}");
    store!(store_u32, u32, "mov dword ptr [{to}], {value:e}");
    store!(store_u64, u64, "mov qword ptr [{to}], {value}");

    /// Sets bits of an aligned word atomically, if the page exists: another process may clear some at the same time.
    ///
    /// # Safety
    /// The address is mapped.
    pub unsafe fn or_u64(to: *mut u8, bits: u64) {
        // SAFETY: it changes eight bytes there, or is skipped.
        unsafe {
            asm!("2:", "lock or qword ptr [{to}], {bits}", "3:", fixup!(), to = in(reg) to, bits = in(reg) bits,
                options(nostack));
        }
    }

    /// Copies bytes; the places may overlap. Returns the number of uncopied bytes at the end, if a page of either is missing.
    #[inline(always)]
    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> usize {
        // SAFETY: as the caller guarantees; each branch handles its own lengths.
        let is_done = unsafe {
            match len {
                32..=64 => ends_of_32(from, to, len),
                65..=128 => ends_of_64(from, to, len),
                129.. => return copy_long(from, to, len),
                16..=31 => ends_of_16(from, to, len),
                8..=15 => ends_of_8(from, to, len),
                4..=7 => ends_of_4(from, to, len),
                2..=3 => ends_of_2(from, to, len),
                1 => one(from, to, len),
                0 => true,
            }
        };
        // SAFETY: as the caller guarantees.
        if is_done { 0 } else { unsafe { copy_again(from, to, len) } }
    }

    /// Copies 32 to 128 bytes. False if it did not.
    ///
    /// # Safety
    /// So many bytes are mapped at both places.
    #[inline(always)]
    pub unsafe fn copy_few(from: *const u8, to: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller guarantees.
        unsafe {
            match len {
                32..=64 => ends_of_32(from, to, len),
                65..=128 => ends_of_64(from, to, len),
                _ => false,
            }
        }
    }

    /// Copies the first N and the last N bytes of a piece of N to 2 N bytes. All are loaded before the first is stored, so the
    /// places may overlap. False if it faulted.
    macro_rules! ends {
        ($name:ident, $class:ident, $($register:ident)+, $($instruction:literal)+) => {
            #[inline(always)]
            unsafe fn $name(from: *const u8, to: *mut u8, len: usize) -> bool {
                let mut left = len;
                // SAFETY: it reads and writes `len` bytes, or is skipped.
                unsafe {
                    asm!("2:", $($instruction,)+ "mov {left:e}, 0", "3:", fixup!(), $($register = out($class) _,)+
                        from = in(reg) from, to = in(reg) to, len = in(reg) len, left = inout(reg) left,
                        options(nostack, preserves_flags));
                }
                left == 0
            }
        };
    }

    #[rustfmt::skip]
    ends!(one, reg, a,
        "mov {a:l}, [{from} + {len} - 1]"
        "mov [{to} + {len} - 1], {a:l}");
    #[rustfmt::skip]
    ends!(ends_of_2, reg, a b,
        "mov {a:x}, [{from}]" "mov {b:x}, [{from} + {len} - 2]"
        "mov [{to}], {a:x}" "mov [{to} + {len} - 2], {b:x}");
    #[rustfmt::skip]
    ends!(ends_of_4, reg, a b,
        "mov {a:e}, [{from}]" "mov {b:e}, [{from} + {len} - 4]"
        "mov [{to}], {a:e}" "mov [{to} + {len} - 4], {b:e}");
    #[rustfmt::skip]
    ends!(ends_of_8, reg, a b,
        "mov {a}, [{from}]" "mov {b}, [{from} + {len} - 8]"
        "mov [{to}], {a}" "mov [{to} + {len} - 8], {b}");
    #[rustfmt::skip]
    ends!(ends_of_16, xmm_reg, a b,
        "movups {a}, [{from}]" "movups {b}, [{from} + {len} - 16]"
        "movups [{to}], {a}" "movups [{to} + {len} - 16], {b}");
    #[rustfmt::skip]
    ends!(ends_of_32, xmm_reg, a b c d,
        "movups {a}, [{from}]" "movups {b}, [{from} + 16]"
        "movups {c}, [{from} + {len} - 32]" "movups {d}, [{from} + {len} - 16]"
        "movups [{to}], {a}" "movups [{to} + 16], {b}"
        "movups [{to} + {len} - 32], {c}" "movups [{to} + {len} - 16], {d}");
    #[rustfmt::skip]
    ends!(ends_of_64, xmm_reg, a b c d e f g h,
        "movups {a}, [{from}]" "movups {b}, [{from} + 16]" "movups {c}, [{from} + 32]" "movups {d}, [{from} + 48]"
        "movups {e}, [{from} + {len} - 64]" "movups {f}, [{from} + {len} - 48]"
        "movups {g}, [{from} + {len} - 32]" "movups {h}, [{from} + {len} - 16]"
        "movups [{to}], {a}" "movups [{to} + 16], {b}" "movups [{to} + 32], {c}" "movups [{to} + 48], {d}"
        "movups [{to} + {len} - 64], {e}" "movups [{to} + {len} - 48], {f}"
        "movups [{to} + {len} - 32], {g}" "movups [{to} + {len} - 16], {h}");

    /// Bytes that [`copy_blocks_summed`] copies at a time.
    const BLOCK: usize = 64;

    /// Copies whole blocks from the start, in one pass with their sum: native-endian 32-bit words, which cannot overflow. Returns the number
    /// of bytes that were copied and are in the sum. It ends before the first block that is not whole, or of which a page is missing.
    ///
    /// # Safety
    /// So many bytes are mapped at both places.
    pub unsafe fn copy_blocks_summed(from: *const u8, to: *mut u8, len: usize) -> (usize, u64) {
        let end = len / BLOCK * BLOCK;
        let mut at = 0_usize;
        // SAFETY: SSE2 is part of x86-64. The assembly reads and writes the first `end` bytes, or is skipped. A block is added after its last
        // store, so `at` and the sums agree wherever it ends. Any 16 bytes are two numbers.
        let [low, high]: [[u64; 2]; 2] = unsafe {
            let (mut low, mut high) = (_mm_setzero_si128(), _mm_setzero_si128());
            asm!(
                "pcmpeqd {mask}, {mask}",
                "psrlq {mask}, 32",
                "2:",
                "cmp {at}, {end}",
                "jae 3f",
                "movups {a}, [{from} + {at}]",
                "movups {b}, [{from} + {at} + 16]",
                "movups {c}, [{from} + {at} + 32]",
                "movups {d}, [{from} + {at} + 48]",
                "movups [{to} + {at}], {a}",
                "movups [{to} + {at} + 16], {b}",
                "movups [{to} + {at} + 32], {c}",
                "movups [{to} + {at} + 48], {d}",
                "movdqa {e}, {a}",
                "movdqa {f}, {b}",
                "movdqa {g}, {c}",
                "movdqa {h}, {d}",
                "pand {a}, {mask}",
                "pand {b}, {mask}",
                "pand {c}, {mask}",
                "pand {d}, {mask}",
                "psrlq {e}, 32",
                "psrlq {f}, 32",
                "psrlq {g}, 32",
                "psrlq {h}, 32",
                "paddq {a}, {b}",
                "paddq {c}, {d}",
                "paddq {e}, {f}",
                "paddq {g}, {h}",
                "paddq {a}, {c}",
                "paddq {e}, {g}",
                "paddq {low}, {a}",
                "paddq {high}, {e}",
                "add {at}, {block}",
                "jmp 2b",
                "3:",
                fixup!(),
                block = const BLOCK,
                from = in(reg) from, to = in(reg) to, end = in(reg) end, at = inout(reg) at,
                low = inout(xmm_reg) low, high = inout(xmm_reg) high, mask = out(xmm_reg) _,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                e = out(xmm_reg) _, f = out(xmm_reg) _, g = out(xmm_reg) _, h = out(xmm_reg) _,
                options(nostack),
            );
            std::mem::transmute([low, high])
        };
        (at, low.iter().chain(&high).sum())
    }

    /// Copies bytes again after a first attempt faulted.
    #[cold]
    #[inline(never)]
    unsafe fn copy_again(from: *const u8, to: *mut u8, len: usize) -> usize {
        // SAFETY: as the caller guarantees.
        unsafe {
            if to.addr().wrapping_sub(from.addr()) >= len {
                return copy_bytes(from, to, len);
            }
            copy_back(from, to, len);
        }
        0
    }

    /// Like [`copy`], for at least 64 bytes. The last 64 are loaded before the first are stored, so the places may overlap.
    unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) -> usize {
        if to.addr().wrapping_sub(from.addr()) < len {
            // SAFETY: as the caller guarantees.
            unsafe { copy_back(from, to, len) };
            return 0;
        }
        let (mut at, mut left) = (0_usize, len);
        // SAFETY: it reads and writes only these `len` bytes, or is skipped.
        unsafe {
            asm!(
                "2:",
                "cmp rcx, {long}",
                "jae 8f",
                "movups {e}, [rsi + rcx - 64]",
                "movups {f}, [rsi + rcx - 48]",
                "movups {g}, [rsi + rcx - 32]",
                "movups {h}, [rsi + rcx - 16]",
                "sub rcx, 128",
                "jb 5f",
                "4:",
                "movups {a}, [rsi + {at}]",
                "movups {b}, [rsi + {at} + 16]",
                "movups {c}, [rsi + {at} + 32]",
                "movups {d}, [rsi + {at} + 48]",
                "movups [rdi + {at}], {a}",
                "movups [rdi + {at} + 16], {b}",
                "movups [rdi + {at} + 32], {c}",
                "movups [rdi + {at} + 48], {d}",
                "movups {a}, [rsi + {at} + 64]",
                "movups {b}, [rsi + {at} + 80]",
                "movups {c}, [rsi + {at} + 96]",
                "movups {d}, [rsi + {at} + 112]",
                "movups [rdi + {at} + 64], {a}",
                "movups [rdi + {at} + 80], {b}",
                "movups [rdi + {at} + 96], {c}",
                "movups [rdi + {at} + 112], {d}",
                "sub {at}, -128",
                "cmp {at}, rcx",
                "jbe 4b",
                "5:",
                "add rcx, 64",
                "cmp {at}, rcx",
                "ja 6f",
                "movups {a}, [rsi + {at}]",
                "movups {b}, [rsi + {at} + 16]",
                "movups {c}, [rsi + {at} + 32]",
                "movups {d}, [rsi + {at} + 48]",
                "movups [rdi + {at}], {a}",
                "movups [rdi + {at} + 16], {b}",
                "movups [rdi + {at} + 32], {c}",
                "movups [rdi + {at} + 48], {d}",
                "add {at}, 64",
                "6:",
                "movups [rdi + rcx], {e}",
                "movups [rdi + rcx + 16], {f}",
                "movups [rdi + rcx + 32], {g}",
                "movups [rdi + rcx + 48], {h}",
                "lea {at}, [rcx + 64]",
                "jmp 3f",
                "8:",
                "rep movsb",
                "3:",
                fixup!(),
                long = const LONG,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                e = out(xmm_reg) _, f = out(xmm_reg) _, g = out(xmm_reg) _, h = out(xmm_reg) _,
                at = inout(reg) at,
                inout("rcx") left,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack),
            );
        }
        if len < LONG {
            left = len - at;
        }
        if left == 0 {
            return 0;
        }
        // SAFETY: these are the bytes that were not copied, or not all of them.
        unsafe { copy_bytes(from.add(len - left), to.add(len - left), left) }
    }

    /// Like [`copy`], byte by byte from the start.
    #[cold]
    unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) -> usize {
        let mut left = len;
        // SAFETY: it reads and writes `len` bytes, or is skipped.
        unsafe {
            asm!("2:", "rep movsb", "3:", fixup!(), inout("rcx") left, inout("rsi") from => _, inout("rdi") to => _,
                options(nostack, preserves_flags));
        }
        left
    }

    /// Copies bytes to an overlapping place behind them, from the end.
    unsafe fn copy_back(from: *const u8, to: *mut u8, len: usize) {
        if len == 0 {
            return;
        }
        // SAFETY: it reads and writes `len` bytes, or is skipped; the direction flag is restored in either case.
        unsafe {
            asm!(
                "std",
                "2:",
                "rep movsb",
                "3:",
                "cld",
                fixup!(),
                inout("rcx") len => _,
                inout("rsi") from.add(len - 1) => _,
                inout("rdi") to.add(len - 1) => _,
                options(nostack),
            );
        }
    }

    /// Stores zeros, as far as pages exist.
    pub unsafe fn clear(to: *mut u8, len: usize) {
        // SAFETY: it writes `len` bytes, or is skipped.
        unsafe {
            asm!("2:", "rep stosb", "3:", fixup!(), inout("rcx") len => _, inout("rdi") to => _, in("al") 0u8,
                options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod native {
    //! Plain accesses: if a page is missing, the guard maps one.

    use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

    pub unsafe fn load_u16(from: *const u8) -> u16 {
        // SAFETY: it is mapped, and aligned.
        unsafe { (*from.cast::<AtomicU16>()).load(Ordering::Acquire) }
    }

    pub unsafe fn load_u32(from: *const u8) -> u32 {
        // SAFETY: it is mapped, and aligned.
        unsafe { (*from.cast::<AtomicU32>()).load(Ordering::Acquire) }
    }

    pub unsafe fn load_u64(from: *const u8) -> u64 {
        let from = from.cast::<u64>();
        if !from.is_aligned() {
            // SAFETY: it is mapped.
            return unsafe { from.read_unaligned() };
        }
        // SAFETY: it is mapped, and aligned.
        unsafe { (*from.cast::<AtomicU64>()).load(Ordering::Acquire) }
    }

    pub unsafe fn load_u128(from: *const u8) -> u128 {
        // SAFETY: it is mapped.
        unsafe { from.cast::<u128>().read_unaligned() }
    }

    pub unsafe fn store_u8(to: *mut u8, value: u8) {
        // SAFETY: it is mapped.
        unsafe { (*to.cast::<AtomicU8>()).store(value, Ordering::Release) }
    }

    pub unsafe fn or_u64(to: *mut u8, bits: u64) {
        // SAFETY: it is mapped, and aligned.
        unsafe { (*to.cast::<AtomicU64>()).fetch_or(bits, Ordering::AcqRel) };
    }

    pub unsafe fn store_u16(to: *mut u8, value: u16) {
        // SAFETY: it is mapped, and aligned.
        unsafe { (*to.cast::<AtomicU16>()).store(value, Ordering::Release) }
    }

    pub unsafe fn store_u32(to: *mut u8, value: u32) {
        // SAFETY: it is mapped, and aligned.
        unsafe { (*to.cast::<AtomicU32>()).store(value, Ordering::Release) }
    }

    pub unsafe fn store_u64(to: *mut u8, value: u64) {
        // SAFETY: it is mapped.
        unsafe { to.cast::<u64>().write_unaligned(value) }
    }

    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> usize {
        // SAFETY: as the caller guarantees.
        unsafe { std::ptr::copy(from, to, len) };
        0
    }

    pub unsafe fn copy_few(_from: *const u8, _to: *mut u8, _len: usize) -> bool {
        false
    }

    pub unsafe fn copy_blocks_summed(_from: *const u8, _to: *mut u8, _len: usize) -> (usize, u64) {
        (0, 0)
    }

    pub unsafe fn clear(to: *mut u8, len: usize) {
        // SAFETY: as the caller guarantees.
        unsafe { std::ptr::write_bytes(to, 0, len) };
    }
}
