//! Counts every basic block that a thread runs, in all crates that were built with SanitizerCoverage:
//! `-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-trace-pc` (clang's documentation,
//! SanitizerCoverage, "Tracing PCs"). The compiler calls `__sanitizer_cov_trace_pc` from each block. The function is assembly: a Rust
//! function would be counted too, and call itself without end.

#[cfg(all(feature = "blocks", target_arch = "x86_64"))]
std::arch::global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".balign 8",
    ".globl nicety_blocks",
    ".hidden nicety_blocks",
    "nicety_blocks: .zero 8",
    ".text",
    ".globl __sanitizer_cov_trace_pc",
    "__sanitizer_cov_trace_pc:",
    "inc qword ptr fs:nicety_blocks@tpoff",
    "ret",
);

/// Basic blocks that this thread has run since the last call; 0 in other builds.
#[cfg(all(feature = "blocks", target_arch = "x86_64"))]
pub fn take() -> u64 {
    let mut blocks = 0;
    // SAFETY: it exchanges a number of this thread's own.
    unsafe { std::arch::asm!("xchg {0}, fs:nicety_blocks@tpoff", inout(reg) blocks, options(nostack)) };
    blocks
}

/// Basic blocks that this thread has run since the last call; 0 in other builds.
#[cfg(not(all(feature = "blocks", target_arch = "x86_64")))]
pub fn take() -> u64 {
    0
}
