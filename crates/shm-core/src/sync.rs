//! Atomics behind a trait, so that one text of an algorithm runs on shared memory, under loom and
//! under the state explorer of the tests.
//!
//! Algorithms take *references* to atomics: loom's must be constructed and so cannot lie in a
//! zeroed mapping, while those of an arena already exist in it. [`Shared`] is what runs in
//! production; its calls compile to the plain core atomics.

use core::fmt::Debug;
use core::sync::atomic::{self, Ordering};

/// Declares one width of atomic integer and implements it for the core type and loom's.
macro_rules! atomic_trait {
    (@trait $(#[$doc:meta])* $name:ident, $value:ty, $atomic:ident) => {
        $(#[$doc])*
        pub trait $name: Debug + Send + Sync {
            /// Reads the value.
            fn load(&self, order: Ordering) -> $value;
            /// Writes the value.
            fn store(&self, value: $value, order: Ordering);
            /// Writes the value and gives the one before.
            fn swap(&self, value: $value, order: Ordering) -> $value;
            /// Writes `new` if the value is `current`.
            ///
            /// # Errors
            /// The value found, when it is another one.
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value>;
            /// Adds, wrapping, and gives the value before.
            fn fetch_add(&self, value: $value, order: Ordering) -> $value;
            /// Subtracts, wrapping, and gives the value before.
            fn fetch_sub(&self, value: $value, order: Ordering) -> $value;
            /// Sets bits and gives the value before.
            fn fetch_or(&self, value: $value, order: Ordering) -> $value;
            /// Keeps only the given bits and gives the value before.
            fn fetch_and(&self, value: $value, order: Ordering) -> $value;
        }

        atomic_trait!(@implement $name, $value, atomic::$atomic);
        #[cfg(feature = "loom")]
        atomic_trait!(@implement $name, $value, loom::sync::atomic::$atomic);
    };
    (@implement $name:ident, $value:ty, $atomic:path) => {
        impl $name for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> $value {
                self.load(order)
            }
            #[inline(always)]
            fn store(&self, value: $value, order: Ordering) {
                self.store(value, order);
            }
            #[inline(always)]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.swap(value, order)
            }
            #[inline(always)]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
            #[inline(always)]
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.fetch_add(value, order)
            }
            #[inline(always)]
            fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.fetch_sub(value, order)
            }
            #[inline(always)]
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.fetch_or(value, order)
            }
            #[inline(always)]
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.fetch_and(value, order)
            }
        }
    };
}

atomic_trait!(@trait
    /// A 64-bit atomic integer.
    Atomic64, u64, AtomicU64);
atomic_trait!(@trait
    /// A 32-bit atomic integer; the width the kernel can wait on.
    Atomic32, u32, AtomicU32);

/// The memory an algorithm runs on.
pub trait Memory: 'static {
    /// Its 64-bit atomics.
    type U64: Atomic64;
    /// Its 32-bit atomics.
    type U32: Atomic32;

    /// A memory fence.
    fn fence(order: Ordering);

    /// Orders a sequentially consistent read-modify-write (the caller's publication) before the
    /// sequentially consistent load that follows.
    ///
    /// The language already promises that order, both being in the one total order, so on real
    /// memory this is nothing. loom treats such accesses as acquire-release only, so there it is a
    /// fence; without it loom reports lost wakes that cannot happen.
    #[inline(always)]
    fn order_after_publication() {}

    /// Tells the processor that the caller polls.
    fn spin_hint();

    /// Asks the processor for the line of a word that the caller is about to write. Changes nothing.
    #[inline(always)]
    fn fetch_for_writing(_word: &Self::U64) {}

    /// Marks the top of a retry loop whose iterations carry nothing over to the next.
    ///
    /// Nothing on real memory. A model may forget the iterations that failed: see [`retry`].
    ///
    /// [`retry`]: Memory::retry
    #[inline(always)]
    fn retry_loop() {}

    /// An iteration of the loop marked last by [`retry_loop`](Memory::retry_loop) failed and the
    /// next one starts.
    #[inline(always)]
    fn retry() {}
}

/// Memory shared between processes (or threads): the core atomics.
#[derive(Debug)]
pub struct Shared;

impl Memory for Shared {
    type U64 = atomic::AtomicU64;
    type U32 = atomic::AtomicU32;

    #[inline(always)]
    fn fence(order: Ordering) {
        atomic::fence(order);
    }

    #[inline(always)]
    fn spin_hint() {
        core::hint::spin_loop();
    }

    #[inline(always)]
    fn fetch_for_writing(word: &Self::U64) {
        crate::prefetch::prefetch_for_writing(word);
    }
}

/// loom's model of memory.
#[cfg(feature = "loom")]
#[derive(Debug)]
pub struct Loom;

#[cfg(feature = "loom")]
impl Memory for Loom {
    type U64 = loom::sync::atomic::AtomicU64;
    type U32 = loom::sync::atomic::AtomicU32;

    fn fence(order: Ordering) {
        loom::sync::atomic::fence(order);
    }

    fn order_after_publication() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    fn spin_hint() {
        loom::thread::yield_now();
    }
}
