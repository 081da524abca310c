//! Making a board, finding one, and mapping it and its device memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use super::{Board, HEAP_AT, HEAP_LEN, MAGIC};

/// How a process that is given this path opens the file of another.
pub(crate) fn path_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

impl Board {
    /// A new board. It lives as long as a process has it.
    pub(crate) fn create() -> io::Result<(File, &'static Self)> {
        let file = File::from(memfd_create("cuda-emulator", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, HEAP_AT + HEAP_LEN)?;
        let board = map(&file)?;
        board.lock.init()?;
        let mut id = [0; 8];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
        board
            .id
            .store(u64::from_ne_bytes(id) | 1, Ordering::Relaxed);
        let size = size_of::<Self>() as u64;
        board.layout.store(size, Ordering::Relaxed);
        // Release: who sees the magic number sees the lock and the id.
        board.magic.store(MAGIC, Ordering::Release);
        Ok((file, board))
    }

    /// The board that another process has at that path.
    pub(crate) fn open(path: &str) -> io::Result<(File, &'static Self)> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(path)?;
        let odd = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{path} {what}"));
        if file.metadata()?.len() != HEAP_AT + HEAP_LEN {
            return Err(odd("is not a board of the emulated driver"));
        }
        let board = map(&file)?;
        // Acquire: pairs with the store that finished the board.
        let is_one = board.magic.load(Ordering::Acquire) == MAGIC;
        if !is_one || board.layout.load(Ordering::Relaxed) != size_of::<Self>() as u64 {
            return Err(odd("is a board of another version"));
        }
        Ok((file, board))
    }
}

fn map(file: &File) -> io::Result<&'static Board> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping where the kernel wants it changes nothing that anyone uses.
    let at = unsafe {
        mmap(
            ptr::null_mut(),
            size_of::<Board>(),
            READ_WRITE,
            flags,
            file,
            0,
        )
    }?;
    // SAFETY: the mapping is as long as a board, aligned to a page and never unmapped; the file has that length and is
    // never cut. A board is atomics, a lock and numbers, for which any bytes, zeros first, are valid.
    Ok(unsafe { &*at.cast::<Board>() })
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Maps all device memory; the address of its first byte. Pages appear when they are written.
pub(crate) fn map_heap(file: &File) -> io::Result<usize> {
    map_data(file, HEAP_AT, HEAP_LEN as usize)
}

/// Maps a part of a file for good.
pub(crate) fn map_data(file: impl AsFd, offset: u64, len: usize) -> io::Result<usize> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping where the kernel wants it changes nothing that anyone uses.
    let at = unsafe { mmap(ptr::null_mut(), len, READ_WRITE, flags, file, offset) }?;
    Ok(at as usize)
}

/// Address space for device addresses, which the host can neither read nor write: at `wanted`, or anywhere when that is
/// taken.
pub(crate) fn reserve(wanted: usize, len: usize) -> io::Result<usize> {
    for (hint, fixed) in [(wanted, MapFlags::FIXED_NOREPLACE), (0, MapFlags::empty())] {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | fixed;
        let hint = ptr::without_provenance_mut(hint);
        // SAFETY: FIXED_NOREPLACE and a kernel's choice replace no mapping.
        match unsafe { mmap_anonymous(hint, len, ProtFlags::empty(), flags) } {
            Ok(at) => return Ok(at as usize),
            Err(errno) if fixed.is_empty() => return Err(errno.into()),
            Err(_) => {}
        }
    }
    Err(io::ErrorKind::OutOfMemory.into())
}

/// Gives the pages of a piece of device memory back: it reads as zeros.
pub(crate) fn forget(file: &File, offset: u64, len: u64) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // A kernel without holes keeps the pages; nothing depends on them.
    let _ = fallocate(file, flags, HEAP_AT + offset, len);
}

/// Puts memory of nobody where a part of a file was mapped, so that the file's memory can go. Who still writes there, as a
/// late operation of a stream may, does no harm.
pub(crate) fn retire(at: usize, len: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    let at = ptr::with_exposed_provenance_mut(at);
    // SAFETY: the range was mapped by `map_data` and is only used by streams, through addresses.
    let _ = unsafe { mmap_anonymous(at, len, READ_WRITE, flags) };
}
