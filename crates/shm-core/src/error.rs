//! The one error of this crate: what kind it is, the whole story in one message, and what caused it.
//!
//! The message is the context: what was tried, with which numbers, what the system answered, and what to do. The kind is for programs: it carries the same
//! facts as fields, so that nobody has to parse text.

use std::fmt;

use rustix::io::Errno;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Why something in the arena could not be done.
///
/// `Display` tells what was tried, with which numbers, what the system answered and what to do; [`Error::kind`] tells programs which case it is.
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(
    // Behind a pointer, so that the results of hot paths are a word or two: an error is hardly ever in them.
    Box<Inner>,
);

#[derive(Debug, thiserror::Error)]
#[error("{context}")]
struct Inner {
    kind: ErrorKind,
    context: String,
    #[source]
    source: Option<Source>,
}

/// The cases of [`Error`], with the facts that a program may act on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Memory was asked for that some limit does not leave free. Nothing was taken.
    OutOfRoom(Shortage),
    /// The arena's own reserved space cannot hold what was asked for. It is fixed when the arena is made.
    CapacityExhausted {
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes that the arena has in all.
        capacity: u64,
    },
    /// This system, file or build cannot do it.
    Unsupported,
    /// A system call failed in a way that has no kind of its own.
    System {
        /// The system call, by its name in the manual.
        operation: &'static str,
        /// The errno it answered.
        errno: i32,
    },
    /// The process has no file descriptor left (`RLIMIT_NOFILE`), or the system has none.
    DescriptorLimit,
    /// A descriptor or file is not one of our arenas.
    NotAnArena,
    /// A file is a copy of an arena's file. Nobody can live in it.
    Copied,
    /// The file belongs to another user.
    WrongOwner {
        /// The user that owns it.
        found: u32,
        /// The user that this process acts as.
        wanted: u32,
    },
    /// The file's permissions are not those of an arena's file: others may reach it, or we may not.
    WrongPermission {
        /// The permission bits that it has.
        found: u32,
        /// The permission bits that an arena's file has.
        wanted: u32,
    },
    /// A name that nothing can have.
    Name,
    /// The arena was laid out by another version of this crate.
    WrongVersion {
        /// The version the arena says it has.
        found: u32,
        /// The version that this build reads.
        wanted: u32,
    },
    /// The arena's layout does not add up, or an offset or length read from it points outside.
    Layout,
    /// A file, block or buffer has another size than it must have.
    Size,
    /// All rows for participants are taken.
    ParticipantsFull {
        /// Rows in all.
        rows: u32,
    },
    /// This process already holds as many references as its lease table has entries.
    LeasesFull {
        /// Entries in all.
        entries: u32,
    },
    /// The handle names a block of another arena.
    ForeignArena,
    /// The value can't be sent or reclaimed yet: a handle to its memory is still held.
    StillHeld,
    /// The block that the handle named was freed; its place may hold something else now.
    Stale,
    /// The block is in another mode than the operation needs (exclusive, shared, aliased, …).
    WrongMode,
    /// The element types differ.
    Dtype {
        /// The element type that is there.
        found: &'static str,
        /// The element type that was wanted.
        wanted: &'static str,
    },
    /// A shape, stride, index or view does not fit.
    Shape,
    /// The message holds the very queue that it was to be put into, and so would keep it for ever.
    Cycle,
    /// A value could not be put into a message.
    Encode,
    /// A message could not be turned into a value.
    Decode,
    /// This process is a bare fork of the one that joined the arena, and so is no participant.
    AfterFork,
    /// A reference count would pass its largest value.
    CountOverflow,
    /// The other side, or this one, has closed it.
    Closed,
    /// It holds as much as it can.
    Full,
    /// No thing of that name, or no such row, exists.
    NotFound,
    /// A thing of that name is already there.
    AlreadyExists,
    /// The setting can't be changed any more, because what it governs exists already.
    TooLate,
    /// The time that the caller gave was over first.
    TimedOut,
    /// A participant that this depended on has died or failed.
    PeerFailed,
    /// A device, or a tensor on one, could not do it; the message says what its driver answered.
    Device,
}

/// Which limit left how much, for [`ErrorKind::OutOfRoom`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that were asked for.
    pub asked: u64,
    /// Bytes that the limit leaves free, the safety margin already taken off.
    pub free: u64,
    /// The limit: a cgroup file, `MemAvailable`, a mounted directory, a resource limit.
    pub limit: String,
    /// What to do about it.
    pub hint: String,
}

impl Error {
    /// An error of `kind` whose message is `context`.
    #[must_use]
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            context: context.into(),
            source: None,
        }))
    }

    /// The same error, with what caused it.
    #[must_use]
    pub fn because(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// A failed system call. `tried` says what it was for, with numbers ("reserving 64 GiB of address space"); the answer and advice are added here.
    #[must_use]
    pub fn system(operation: &'static str, errno: Errno, tried: impl fmt::Display) -> Self {
        let kind = match errno {
            Errno::MFILE | Errno::NFILE => ErrorKind::DescriptorLimit,
            Errno::NOSYS => ErrorKind::Unsupported,
            _ => ErrorKind::System {
                operation,
                errno: errno.raw_os_error(),
            },
        };
        let answer = std::io::Error::from(errno);
        let mut context = format!("{tried}: {operation} answered \"{answer}\"");
        if let Some(advice) = advice(errno) {
            context.push_str("; ");
            context.push_str(advice);
        }
        Self::new(kind, context).because(answer)
    }

    /// As [`Error::system`], for a failure that std or a library reports as an [`std::io::Error`].
    #[must_use]
    pub fn io(operation: &'static str, error: std::io::Error, tried: impl fmt::Display) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => Self::system(operation, errno, tried),
            None => Self::new(
                ErrorKind::System {
                    operation,
                    errno: 0,
                },
                format!("{tried}: {operation} failed with \"{error}\""),
            )
            .because(error),
        }
    }

    /// A limit that leaves too little.
    #[must_use]
    pub fn out_of_room(shortage: Shortage) -> Self {
        let context = format!(
            "no room for {} more: {} leaves {} free; {}",
            Bytes(shortage.asked),
            shortage.limit,
            Bytes(shortage.free),
            shortage.hint
        );
        Self::new(ErrorKind::OutOfRoom(shortage), context)
    }

    /// An allocation that does not fit into the arena: `free` bytes of it are, `largest` in one piece.
    #[must_use]
    pub fn capacity(asked: u64, capacity: u64, free: u64, largest: u64) -> Self {
        let larger = "make the arena with a larger capacity, which is fixed from then on (`Arena::builder().capacity(bytes)`, and \
                      `Arena::install_current` before the first tensor to make it this process's own)";
        let context = if asked > capacity {
            format!(
                "the allocation needs {}, which is more than the whole arena has ({}): {larger}",
                Bytes(asked),
                Bytes(capacity)
            )
        } else {
            format!(
                "the allocation needs {} in one piece, but the arena's {} are used up: {} are free, and the largest free piece has {}; \
                 drop tensors that are no longer needed, or {larger}",
                Bytes(asked),
                Bytes(capacity),
                Bytes(free),
                Bytes(largest)
            )
        };
        Self::new(ErrorKind::CapacityExhausted { asked, capacity }, context)
    }

    /// Another element type than wanted.
    #[must_use]
    pub fn dtype(found: &'static str, wanted: &'static str) -> Self {
        Self::new(
            ErrorKind::Dtype { found, wanted },
            format!(
                "the tensor holds {found}, but {wanted} was asked for; ask for {found}, or receive it as a tensor whose element type is known at run time only"
            ),
        )
    }

    /// Another mode than wanted.
    #[must_use]
    pub fn wrong_mode(found: &'static str, wanted: &'static str) -> Self {
        Self::new(
            ErrorKind::WrongMode,
            format!(
                "the block is {found}, but it would have to be {wanted}; sender and receiver must agree on the kind of tensor"
            ),
        )
    }

    /// Another mode than wanted, in a sentence.
    pub(crate) fn mode(context: String) -> Self {
        Self::new(ErrorKind::WrongMode, context)
    }

    /// A shape, stride, index or view that does not fit.
    pub(crate) fn shape(context: String) -> Self {
        Self::new(ErrorKind::Shape, context)
    }

    /// Bytes from outside that are not what they should be.
    pub(crate) fn malformed(context: String) -> Self {
        Self::new(ErrorKind::Decode, context)
    }

    /// For a process that is a bare fork of a participant.
    #[cold]
    pub(crate) fn after_fork(doing: &str) -> Self {
        Self::new(
            ErrorKind::AfterFork,
            format!(
                "{doing}: this process was made by a bare fork and is no participant of the arena; start it with `spawn`"
            ),
        )
    }

    /// Whether there was no room for what had to be written down, rather than anything wrong.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::OutOfRoom(_)
                | ErrorKind::CapacityExhausted { .. }
                | ErrorKind::LeasesFull { .. }
        )
    }

    /// The case, for programs.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The whole message, as `Display` prints it.
    #[must_use]
    pub fn context(&self) -> &str {
        &self.0.context
    }

    /// The same error, with `what` (what was being done, one level up) put before the message.
    #[must_use]
    pub fn while_doing(mut self, what: impl fmt::Display) -> Self {
        self.0.context = format!("{what}: {}", self.0.context);
        self
    }
}

/// `main` prints errors by `Debug`, so this is the message and its causes, not the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        tell(self, f)
    }
}

/// Writes an error's message and what caused it, a line each: what the `Debug` of this family's errors prints.
///
/// # Errors
/// Those of the formatter.
pub fn tell(error: &dyn std::error::Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut told = error.to_string();
    f.write_str(&told)?;
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        // A message often holds that of its cause already.
        if !told.contains(&text) {
            write!(f, "\n  caused by: {text}")?;
        }
        told = text;
        source = cause.source();
    }
    Ok(())
}

fn advice(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::MFILE => {
            "this process has as many files open as it may: close some, or raise `ulimit -n`"
        }
        Errno::NFILE => "the whole system has as many files open as it may: raise fs.file-max",
        Errno::NOSYS => "this kernel, or a sandbox around the process, does not offer that call",
        Errno::ACCESS | Errno::PERM => {
            "check the permissions, and whether a sandbox (seccomp, SELinux, AppArmor) forbids it"
        }
        _ => return None,
    })
}

/// A number of bytes as people read it: exact below 10 KiB, else with a binary unit and, where it is not a whole number of units, the exact figure behind it.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let bytes = self.0;
        if bytes < 10 << 10 {
            return write!(f, "{bytes} bytes");
        }
        // The last unit is 1 KiB, which any number that comes here reaches.
        let (unit, shift) = UNITS
            .into_iter()
            .find(|&(_, shift)| bytes >> shift > 0)
            .unwrap_or(("KiB", 10));
        if bytes.trailing_zeros() >= shift {
            return write!(f, "{} {unit}", bytes >> shift);
        }
        // Whole and tenths apart, so that no rounding makes 1023.96 MiB into 1024.0 MiB.
        let rest = bytes & ((1 << shift) - 1);
        let tenths = (rest * 10) >> shift;
        write!(f, "{}.{tenths} {unit} ({bytes} bytes)", bytes >> shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_error_keeps_errno_operation_and_numbers() {
        let error = Error::system("ftruncate", Errno::FBIG, "sizing the arena to 64 GiB");
        assert_eq!(
            error.kind(),
            &ErrorKind::System {
                operation: "ftruncate",
                errno: libc::EFBIG
            }
        );
        assert!(
            error
                .to_string()
                .starts_with("sizing the arena to 64 GiB: ftruncate answered"),
            "{error}"
        );
        assert!(std::error::Error::source(&error).is_some());
    }

    #[test]
    fn debug_is_what_a_reader_of_main_needs() {
        let cause = std::io::Error::other("the disk is gone");
        let error = Error::malformed("reading 3 bytes".to_owned()).because(cause);
        assert_eq!(
            format!("{error:?}"),
            "reading 3 bytes\n  caused by: the disk is gone"
        );
        let error = Error::malformed("reading 3 bytes: the disk is gone".to_owned())
            .because(std::io::Error::other("the disk is gone"));
        assert_eq!(format!("{error:?}"), error.to_string());
    }

    #[test]
    fn a_full_descriptor_table_has_a_kind_of_its_own_and_advice() {
        let error = Error::system("memfd_create", Errno::MFILE, "making an arena");
        assert_eq!(error.kind(), &ErrorKind::DescriptorLimit);
        assert!(error.to_string().contains("ulimit -n"), "{error}");
    }

    #[test]
    fn a_shortage_names_asked_free_limit_and_what_to_do() {
        let error = Error::out_of_room(Shortage {
            asked: 12 << 20,
            free: 5 << 19,
            limit: "/sys/fs/cgroup/memory.max".into(),
            hint: "raise it".into(),
        });
        assert_eq!(
            error.to_string(),
            "no room for 12 MiB more: /sys/fs/cgroup/memory.max leaves 2.5 MiB (2621440 bytes) free; raise it"
        );
    }

    #[test]
    fn sizes_are_read_by_people() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (10 << 10, "10 KiB"),
            (64 << 30, "64 GiB"),
            ((1 << 30) - 1, "1023.9 MiB (1073741823 bytes)"),
            (u64::MAX, "16777215.9 TiB (18446744073709551615 bytes)"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
