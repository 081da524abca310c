//! Telling the processor what will be touched next, so that lines which lie far apart come at the same time.
//!
//! A live block has three: its own counted line, its lease, and the count of local handles. Among a million blocks none of
//! them is in a cache, and to wait for one after the other took most of the time of a drop.

/// How many allocations ahead of its use a line is asked for. What is far away takes as long as several allocations: the
/// page's address has to be looked up first, and on a virtual machine that is a walk through two tables.
pub(crate) const AHEAD: usize = 4;

/// Brings the line of a value nearer. Does nothing on processors for which there is no instruction in `core`.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads and writes nothing that the program could see; the address is that of a live value.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Brings the line of a value nearer, and takes it from the other processors that have it. Does nothing on processors other
/// than x86-64.
#[inline(always)]
pub(crate) fn prefetch_for_writing<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads and writes nothing that the program could see, and is defined for any address; processors of
    // this architecture that do not have the instruction pass over it.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) core::ptr::from_ref(value),
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
