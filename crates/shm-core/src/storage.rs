//! Stand-in for the storage: heap memory of this process with the interface of the real one.

use crate::arena::Arena;
use crate::error::{Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const ALIGN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(dead_code)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    Aliased,
    Object,
    Message,
}

#[derive(Debug)]
struct Inner {
    base: NonNull<u8>,
    layout: Layout,
    len: usize,
    mode: AtomicU8,
    generation: u64,
}

// SAFETY: the memory belongs to `Inner` alone, wherever that is; who may touch its bytes is decided by the tensor types.
unsafe impl Send for Inner {}
// SAFETY: as for Send; `Inner` itself never reads or writes the bytes after creation.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `base` was allocated with exactly this layout in `allocate` and is freed once, here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// This process's share of one block.
#[derive(Clone, Debug)]
pub(crate) struct Storage(Arc<Inner>);

#[allow(dead_code)]
impl Storage {
    pub(crate) fn allocate(_arena: &Arena, bytes: usize, mode: Mode) -> Result<Storage> {
        static GENERATION: AtomicU64 = AtomicU64::new(1);
        let no_room = || Error::memory(format!("no room for {bytes} bytes"));
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).map_err(|_| no_room())?;
        // SAFETY: the layout has at least one byte.
        let base = unsafe { alloc_zeroed(layout) };
        Ok(Storage(Arc::new(Inner {
            base: NonNull::new(base).ok_or_else(no_room)?,
            layout,
            len: bytes,
            mode: AtomicU8::new(mode as u8),
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
        })))
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.0.mode.load(Ordering::Acquire) {
            0 => Mode::Exclusive,
            1 => Mode::Shared,
            2 => Mode::Aliased,
            3 => Mode::Object,
            _ => Mode::Message,
        }
    }

    pub(crate) fn freeze(&self) {
        self.0.mode.store(Mode::Shared as u8, Ordering::Release);
    }

    pub(crate) fn try_thaw(&self) -> bool {
        let sole = self.is_locally_unique() && self.mode() == Mode::Shared;
        if sole {
            self.0.mode.store(Mode::Exclusive as u8, Ordering::Release);
        }
        sole
    }

    pub(crate) fn is_locally_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    pub(crate) fn arena(&self) -> &Arena {
        &Arena
    }

    pub(crate) fn id(&self) -> (u64, u64) {
        (self.as_ptr().addr() as u64, self.0.generation)
    }
}
