//! `file_descriptor`, the default: a file without a name (memfd) that exists as long as a process has it open.
//!
//! It is sealed against shrinking and growing as soon as it has its size, so no peer can pull pages from under a mapping, and a received descriptor proves by
//! its seals that this holds. Nothing is left behind when every process is killed.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;

use super::{Backing, SharingStrategy, check_file_size_limit, vetted_size};
use crate::descriptor::apart;
use crate::error::{Bytes, Error, ErrorKind, Result};

/// The strategy `file_descriptor`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileDescriptor;

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

// SAFETY: the file is a memfd made anew, which has no name; it is sealed against every change of its size before it is used,
// and its descriptor goes to participants only.
unsafe impl SharingStrategy for FileDescriptor {
    fn name(&self) -> &'static str {
        "file_descriptor"
    }

    fn create(&self) -> Result<Backing> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match memfd_create("tensormp", flags | MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3 the flag is unknown.
            Err(Errno::INVAL) => memfd_create("tensormp", flags),
            answer => answer,
        }
        .and_then(apart)
        .map_err(|errno| Error::system("memfd_create", errno, "making the arena's file"))?;
        // A memfd starts open to everyone who can reach /proc/<pid>/fd.
        fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(|errno| {
            Error::system(
                "fchmod",
                errno,
                "keeping the arena's file to this user (mode 0600)",
            )
        })?;
        Ok(Backing::new(file, 0, None))
    }

    fn fix_size(&self, backing: &mut Backing, capacity: u64) -> Result<()> {
        check_file_size_limit(capacity)?;
        ftruncate(&*backing, capacity).map_err(|errno| {
            Error::system(
                "ftruncate",
                errno,
                format!("giving the arena's file its size of {}", Bytes(capacity)),
            )
        })?;
        fcntl_add_seals(&*backing, SEALS).map_err(|errno| {
            Error::system(
                "fcntl(F_ADD_SEALS)",
                errno,
                format!("sealing the arena's file at {}", Bytes(capacity)),
            )
        })?;
        backing.size = capacity;
        Ok(())
    }

    fn recognises(&self, file: BorrowedFd<'_>) -> bool {
        // Only a memfd can be sealed; a named file of a tmpfs answers that nothing may be.
        fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
    }

    fn adopt(&self, file: OwnedFd) -> Result<Backing> {
        // The seals come first: once they are known to hold, the size that is read next is the size for good.
        match fcntl_get_seals(&file) {
            Ok(seals) if seals.contains(SEALS) => {
                let forbidden = seals & (SealFlags::WRITE | SealFlags::FUTURE_WRITE);
                if !forbidden.is_empty() {
                    return Err(Error::new(
                        ErrorKind::NotAnArena,
                        format!(
                            "the received file is sealed against writing ({forbidden:?}), which an arena's file never is"
                        ),
                    ));
                }
            }
            Ok(seals) => {
                return Err(Error::new(
                    ErrorKind::NotAnArena,
                    format!(
                        "the received file carries the seals {seals:?}, but an arena's file has at least {SEALS:?}; it could shrink under its readers, \
                         so it is refused"
                    ),
                ));
            }
            Err(errno) => {
                return Err(Error::new(
                    ErrorKind::NotAnArena,
                    format!("the received descriptor is no sealed memory file: fcntl(F_GET_SEALS) answered \"{errno}\""),
                )
                .because(errno));
            }
        }
        let size = vetted_size(&file)?;
        Ok(Backing::new(file, size, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;

    const SIZE: u64 = 1 << 20;

    fn made() -> Backing {
        let mut backing = FileDescriptor.create().unwrap();
        FileDescriptor.fix_size(&mut backing, SIZE).unwrap();
        backing
    }

    fn bare(size: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, size).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    fn refused(file: OwnedFd) -> Error {
        FileDescriptor.adopt(file).unwrap_err()
    }

    #[test]
    fn nobody_can_shrink_grow_or_unseal_the_file() {
        let backing = made();
        assert_eq!(ftruncate(&backing, SIZE / 2), Err(Errno::PERM));
        assert_eq!(ftruncate(&backing, SIZE * 2), Err(Errno::PERM));
        assert_eq!(
            fcntl_add_seals(&backing, SealFlags::WRITE),
            Err(Errno::PERM)
        );
    }

    #[test]
    fn the_file_is_the_users_alone_and_closes_on_exec() {
        let backing = made();
        assert_eq!(fstat(&backing).unwrap().st_mode & 0o777, 0o600);
        assert!(
            rustix::io::fcntl_getfd(&backing)
                .unwrap()
                .contains(rustix::io::FdFlags::CLOEXEC)
        );
    }

    #[test]
    fn a_descriptor_made_here_is_adopted_with_its_size() {
        let backing = made();
        let copy = rustix::io::fcntl_dupfd_cloexec(&backing, 0).unwrap();
        assert_eq!(FileDescriptor.adopt(copy).unwrap().size(), SIZE);
    }

    #[test]
    fn a_file_that_could_change_its_size_is_refused() {
        for seals in [
            SealFlags::empty(),
            SealFlags::SHRINK,
            SealFlags::SHRINK | SealFlags::GROW,
        ] {
            assert_eq!(refused(bare(SIZE, seals)).kind(), &ErrorKind::NotAnArena);
        }
        let ordinary = tempfile::tempfile().unwrap();
        assert_eq!(refused(ordinary.into()).kind(), &ErrorKind::NotAnArena);
    }

    #[test]
    fn a_file_that_cannot_be_written_or_mapped_whole_is_refused() {
        assert_eq!(
            refused(bare(SIZE, SEALS | SealFlags::WRITE)).kind(),
            &ErrorKind::NotAnArena
        );
        for size in [0, 1, SIZE + 1, i64::MAX as u64] {
            assert_eq!(
                refused(bare(size, SEALS)).kind(),
                &ErrorKind::Size,
                "{size} bytes"
            );
        }
    }

    #[test]
    fn pipes_sockets_and_directories_are_refused() {
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(refused(pipe).kind(), &ErrorKind::NotAnArena);
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(refused(socket.into()).kind(), &ErrorKind::NotAnArena);
        let directory = std::fs::File::open("/").unwrap();
        assert_eq!(refused(directory.into()).kind(), &ErrorKind::NotAnArena);
    }

    #[test]
    fn an_unknown_strategy_names_those_that_exist() {
        let error = super::super::by_name("file_descripter").unwrap_err();
        assert!(error.to_string().contains("file_descriptor"), "{error}");
    }
}
