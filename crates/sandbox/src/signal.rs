//! SIGSYS: raised in a thread whose filter refuses a call. The handler notes the call, and has it fail with EPERM.
//!
//! The handler touches only atomics, constant thread-locals, its context, and write(2) to a pipe that never blocks.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::{Kind, calls};

/// Calls have lower numbers: 470 at the most in Linux 6.18.
const CALLS: usize = 1024;
const KINDS: usize = Kind::ALL.len();
/// The longest name of a thread (prctl(2), PR_SET_NAME), without its NUL.
const NAME: usize = 15;
/// The length of a note in the pipe: kind, number of the call, name.
pub(crate) const NOTE: usize = 3 + NAME;

/// A bit for each kind and call.
static REFUSED: [[AtomicU64; CALLS / 64]; KINDS] = [const { [const { AtomicU64::new(0) }; CALLS / 64] }; KINDS];
/// The pipe's end to write to. It is open until the process ends.
static NOTES: AtomicI32 = AtomicI32::new(-1);

/// Whether a refusal ends the process, as in tests.
static ABORT: AtomicBool = AtomicBool::new(false);

thread_local! {
    static THREAD: Cell<(u8, [u8; NAME])> = const { Cell::new((0, [0; NAME])) };
    /// The number of the last call that was refused here.
    static LAST: Cell<Option<u16>> = const { Cell::new(None) };
}

/// A refused call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of the thread that made it.
    pub kind: Kind,
    /// Its name, such as `openat`, or its number.
    pub call: String,
}

/// Whether this kernel can refuse calls with a signal (seccomp(2)).
pub(crate) fn is_supported() -> io::Result<()> {
    let action: u32 = libc::SECCOMP_RET_TRAP;
    // SAFETY: SECCOMP_GET_ACTION_AVAIL reads one u32, which lives for the call.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Installs the handler. Returns the pipe from which each first refusal of a kind can be read.
pub(crate) fn install() -> io::Result<OwnedFd> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    NOTES.store(write.as_raw_fd(), Ordering::SeqCst);
    // The handler has it until the process ends.
    let _open_for_ever = std::os::fd::IntoRawFd::into_raw_fd(write);
    // SAFETY: a zeroed sigaction is a valid value to fill in; the handler below is async-signal-safe, and its signature is the one
    // that SA_SIGINFO requires.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_refusal as *const () as usize;
        // Not on the alternate stack, which is for overflows and has no room for a backtrace.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut())
    };
    if result == 0 { Ok(read) } else { Err(io::Error::last_os_error()) }
}

/// Has each later refusal end the process.
pub(crate) fn abort_on_refusal() {
    ABORT.store(true, Ordering::Relaxed);
}

/// Notes kind and name of this thread, for the handler.
pub(crate) fn name_this_thread(kind: Kind) {
    let thread = std::thread::current();
    let mut name = [0; NAME];
    for (to, from) in name.iter_mut().zip(thread.name().unwrap_or("main").bytes()) {
        *to = from;
    }
    THREAD.set((kind as u8, name));
}

/// The log's words for a note of the pipe: the thread's name and the call's.
pub(crate) fn words(note: &[u8; NOTE]) -> (String, String) {
    let [_kind, low, high, name @ ..] = note;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let name = String::from_utf8_lossy(&name[..end]).into_owned();
    (name, calls::name(u16::from_le_bytes([*low, *high]).into()))
}

/// Forgets which call was refused to this thread. Call it before each port's messages, and before each new attempt: an error must not
/// name what was refused to another port, or long ago.
#[inline]
pub fn forget_refused_here() {
    LAST.set(None);
}

/// The last call that was refused to this thread since this was last asked, or since [`forget_refused_here`], as the end of an error's words: ` (the sandbox refused openat)`.
/// Empty if there was none.
pub fn refused_here() -> String {
    let call = LAST.take().map(|number| calls::name(number.into()));
    call.map(|call| format!(" (the sandbox refused {call})")).unwrap_or_default()
}

pub(crate) fn refusals() -> Vec<Refusal> {
    let mut all = Vec::new();
    for (kind, words) in Kind::ALL.into_iter().zip(&REFUSED) {
        for number in 0..CALLS {
            if words[number / 64].load(Ordering::Relaxed) >> (number % 64) & 1 != 0 {
                all.push(Refusal { kind, call: calls::name(number as i64) });
            }
        }
    }
    all
}

/// `si_code` of a refusal by a filter (linux/signal.h).
const SYS_SECCOMP: libc::c_int = 1;

extern "C" fn on_refusal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo to a SA_SIGINFO handler.
    if unsafe { (*info).si_code } != SYS_SECCOMP {
        // SAFETY: restoring the default action and raising again is the documented way to die of the signal.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    // SAFETY: the third argument of a SA_SIGINFO handler is the thread's context, which the handler may change.
    let number = unsafe { refuse(&mut *context.cast::<libc::ucontext_t>()) };
    LAST.set(Some(number as u16));
    let (kind, name) = THREAD.get();
    let number = number as usize;
    let Some(word) = REFUSED.get(usize::from(kind)).and_then(|words| words.get(number / 64)) else { return };
    let bit = 1 << (number % 64);
    if word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return;
    }
    let [low, high] = (number as u16).to_le_bytes();
    let mut note = [0; NOTE];
    (note[0], note[1], note[2]) = (kind, low, high);
    note[3..].copy_from_slice(&name);
    // The report of a panic looks for names in files.
    if !std::thread::panicking() && ABORT.swap(false, Ordering::Relaxed) {
        abort(&name, number);
    }
    // SAFETY: `note` lives for the call. A pipe takes so few bytes whole or not at all; each kind of thread may write.
    unsafe { libc::write(NOTES.load(Ordering::Relaxed), note.as_ptr().cast(), NOTE) };
}

/// Ends the process with the names of thread and call on stderr. The thread may have been within the allocator: nothing is allocated.
fn abort(thread: &[u8; NAME], number: usize) -> ! {
    let length = thread.iter().position(|&byte| byte == 0).unwrap_or(NAME);
    let call = calls::known_name(number as i64).unwrap_or("a system call without a name here");
    for part in [&thread[..length], b": the sandbox refused ", call.as_bytes(), b"\n"] {
        // SAFETY: `part` lives for the call.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    std::process::abort()
}

/// Has the call fail with EPERM, and returns its number. Before the signal, the kernel rolls the call back: its number is in the
/// register of the result (arch/x86/include/asm/syscall.h, `syscall_rollback`).
#[cfg(target_arch = "x86_64")]
fn refuse(context: &mut libc::ucontext_t) -> i64 {
    let result = &mut context.uc_mcontext.gregs[libc::REG_RAX as usize];
    std::mem::replace(result, -i64::from(libc::EPERM))
}

/// The same for ARM: x8 has the number, x0 the result.
#[cfg(target_arch = "aarch64")]
fn refuse(context: &mut libc::ucontext_t) -> i64 {
    context.uc_mcontext.regs[0] = (-i64::from(libc::EPERM)).cast_unsigned();
    context.uc_mcontext.regs[8].cast_signed()
}

/// The same for RISC-V: a7 (x17) has the number, a0 (x10) the result.
#[cfg(target_arch = "riscv64")]
fn refuse(context: &mut libc::ucontext_t) -> i64 {
    context.uc_mcontext.__gregs[10] = (-i64::from(libc::EPERM)).cast_unsigned();
    context.uc_mcontext.__gregs[17].cast_signed()
}
