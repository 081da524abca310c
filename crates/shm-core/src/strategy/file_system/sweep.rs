//! Finding named arenas, and removing those that nobody lives in any more.

use std::fmt;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{OFlags, fstat};

use super::{PATIENCE, open_looked_at, open_vetted, prefix, remove};
use crate::error::{Error, ErrorKind, Result};
use crate::inspect::{Member, Reader, members};
use crate::layout;
use crate::participant::liveness::Verdict;
use crate::participant::lock::{Gate, RowLocks, is_locked_elsewhere};

/// A named arena of this user, as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Its file.
    pub path: PathBuf,
    /// Bytes of address space that it reserves: the file's size.
    pub capacity: u64,
    /// Bytes of memory (or disk) that the file takes.
    pub taken: u64,
    /// The arena's random identity; zeros where there is no header that we read.
    pub id: [u64; 2],
    /// What can be said about its life.
    pub standing: Standing,
    /// Who takes part, the dead included that nobody has buried yet.
    pub participants: Vec<Inhabitant>,
}

/// What can be said about the life of a named arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// A participant is alive, or may be.
    Inhabited,
    /// Everyone who took part is gone, or it was made before the machine's last boot.
    Abandoned,
    /// A file that its maker did not live to give its name.
    Unfinished,
    /// A file that was cut short or made longer, or whose header does not add up, so that nobody can attach, and of which
    /// nobody holds a lock as participants do.
    Damaged,
    /// Another version laid it out, so who lives there can't be told. It is left alone.
    OtherVersion(u32),
    /// Somebody comes or leaves at this moment.
    Busy,
}

/// Somebody in a named arena.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inhabitant {
    /// Its process id, in its own pid namespace.
    pub pid: u32,
    /// The name it gave itself, or an empty text.
    pub name: String,
    /// Whether it is alive.
    pub verdict: Verdict,
}

/// A named arena that nobody lives in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// What it was.
    pub found: Found,
    /// Whether its file was removed: not in a dry run, nor if somebody came.
    pub removed: bool,
}

/// The named arenas of this user in `directory`, in the order of their names.
///
/// # Errors
/// When the directory can't be read, or there is no descriptor to look with. Files that are no arenas of this user, or
/// go away meanwhile, are left out.
pub fn list(directory: impl AsRef<Path>) -> Result<Vec<Found>> {
    let mut all = Vec::new();
    for path in ours_in(directory.as_ref())? {
        all.extend(look_at(&path, false)?.map(|(found, _)| found));
    }
    Ok(all)
}

/// Removes the files in `directory` of this user's named arenas in which nobody lives; in a `dry_run` only says which.
///
/// An arena is left alone while there is any doubt about its participants, as for one in a container whose processes
/// can't be seen from here and still hold their locks.
///
/// # Errors
/// As [`list`], and what the system answers when a file can't be removed.
pub fn sweep(directory: impl AsRef<Path>, dry_run: bool) -> Result<Vec<Swept>> {
    let mut swept = Vec::new();
    for path in ours_in(directory.as_ref())? {
        let Some((found, removed)) = look_at(&path, !dry_run)? else {
            continue;
        };
        if is_over(found.standing) {
            swept.push(Swept { found, removed });
        }
    }
    Ok(swept)
}

/// Removes the file at `path` if it is an arena that nobody lives in.
pub(crate) fn sweep_one(path: &Path) -> Result<bool> {
    Ok(look_at(path, true)?.is_some_and(|(_, removed)| removed))
}

/// How many arenas with names that were made up are looked at before another is made.
const LOOKED_AT: usize = 16;

/// Removes some of the arenas in `directory` whose names were made up and in which nobody lives: nobody will ask for
/// them, and no program knows what to clean up after it was killed. Waits for nobody, and what can't be looked at stays.
pub(super) fn sweep_made_up(directory: &Path) {
    let paths = ours_in(directory).unwrap_or_default();
    for path in paths.iter().filter(|path| is_made_up(path)).take(LOOKED_AT) {
        let over = matches!(look_at(path, false), Ok(Some((found, _))) if is_over(found.standing));
        if over && let Err(error) = sweep_one(path) {
            crate::say!(debug, %error, path = %path.display(), "an abandoned arena stays");
        }
    }
}

/// Whether a path is that of an arena to which nobody gave a name.
fn is_made_up(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        name.as_encoded_bytes()
            .strip_prefix(prefix().as_bytes())
            .is_some_and(|name| {
                name.len() == 16
                    && name
                        .iter()
                        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            })
    })
}

/// For a message: who lives in the arena at `path`, as far as that can be told.
pub(crate) fn who_lives_in(path: &Path) -> impl fmt::Display + use<> {
    let found = look_at(path, false).ok().flatten();
    let living: Vec<_> = found
        .iter()
        .flat_map(|(found, _)| &found.participants)
        .filter(|inhabitant| inhabitant.verdict != Verdict::Dead)
        .map(|inhabitant| inhabitant.pid.to_string())
        .collect();
    if living.is_empty() {
        return String::new();
    }
    format!(", used by process {}", living.join(", "))
}

/// Files whose names are those of this user's arenas, or hide them.
pub(crate) fn ours_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).map_err(|error| {
        let tried = format!("looking for arenas in {}", directory.display());
        Error::io("readdir", error, tried)
    })?;
    let prefix = prefix();
    let mut paths: Vec<_> = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.as_encoded_bytes();
            name.strip_prefix(b".")
                .unwrap_or(name)
                .starts_with(prefix.as_bytes())
        })
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    Ok(paths)
}

/// Looks at a file, and removes it if that is asked and nobody lives there. `None` if it is no arena of this user.
fn look_at(path: &Path, removing: bool) -> Result<Option<(Found, bool)>> {
    let backing = match open_vetted(path) {
        Ok(backing) => backing,
        // A file that was not given its size yet is one nobody finished.
        Err(error) if *error.kind() == ErrorKind::Size && is_hidden(path) => {
            return look_at_unsized(path, removing);
        }
        Err(error) if *error.kind() == ErrorKind::Size => return look_at_damaged(path, removing),
        Err(error) if *error.kind() == ErrorKind::DescriptorLimit => return Err(error),
        Err(_) => return Ok(None),
    };
    let Ok(stat) = fstat(&backing) else {
        return Ok(None);
    };
    let capacity = backing.size();
    let taken = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
    let mut found = Found {
        path: path.to_owned(),
        capacity,
        taken,
        id: [0; 2],
        standing: Standing::Unfinished,
        participants: Vec::new(),
    };
    let locks = RowLocks::open(backing.as_fd(), capacity)?;
    // Read, not mapped: whoever cuts the file short meanwhile must not end us.
    let reader = Reader::new(&backing, &stat, path);
    // Nobody comes or leaves while we look and decide; for a mere look it need not be free.
    let gate = locks.gate(if removing {
        PATIENCE
    } else {
        std::time::Duration::ZERO
    })?;
    match reader.header() {
        Ok(header) => {
            found.id = header.id;
            // Cut short while we look: no arena any more.
            let Ok(members) = members(&reader, &header, &locks) else {
                return Ok(None);
            };
            found.standing = match &gate {
                None => Standing::Busy,
                Some(_) if members.iter().any(Member::needs_the_arena) => Standing::Inhabited,
                Some(_) => Standing::Abandoned,
            };
            let known = members.into_iter().map(|member| Inhabitant {
                pid: member.pid,
                name: member.name,
                verdict: member.verdict,
            });
            found.participants = known.collect();
        }
        Err(error) => match error.kind() {
            ErrorKind::WrongVersion { found: version, .. } => {
                found.standing = Standing::OtherVersion(*version);
            }
            _ if is_hidden(path) && gate.is_some() => {}
            _ if is_hidden(path) => found.standing = Standing::Busy,
            ErrorKind::Copied if gate.is_some() => found.standing = Standing::Abandoned,
            ErrorKind::Copied => found.standing = Standing::Busy,
            ErrorKind::Size | ErrorKind::Layout => {
                drop(gate);
                return look_at_damaged(path, removing);
            }
            _ => return Ok(None),
        },
    }
    let removed = removing && is_over(found.standing) && remove(backing.as_fd())?;
    Ok(Some((found, removed)))
}

/// Whether nobody lives there, nor ever will.
fn is_over(standing: Standing) -> bool {
    matches!(
        standing,
        Standing::Abandoned | Standing::Unfinished | Standing::Damaged
    )
}

/// Looks at a file that has the name of an arena and begins like one (or is empty), but is not as long as it says. Its
/// rows may be gone, and where its locks lie is not known either; but whether there is any lock on it can be asked.
fn look_at_damaged(path: &Path, removing: bool) -> Result<Option<(Found, bool)>> {
    let Ok((file, stat)) = open_looked_at(path, OFlags::NOFOLLOW, OFlags::RDWR) else {
        return Ok(None);
    };
    let magic = layout::MAGIC.to_le_bytes();
    let mut first = [0; 8];
    let read = rustix::io::pread(&file, &mut first, 0).unwrap_or(usize::MAX);
    if first.get(..read) != magic.get(..read) {
        return Ok(None);
    }
    let gate = Gate::take(
        file.as_fd(),
        if removing { PATIENCE } else { Duration::ZERO },
    )?;
    let standing = match &gate {
        None => Standing::Busy,
        // Only the gate is ours, and one's own locks don't show.
        Some(_) if is_locked_elsewhere(file.as_fd())? => Standing::Inhabited,
        Some(_) => Standing::Damaged,
    };
    let found = Found {
        path: path.to_owned(),
        capacity: u64::try_from(stat.st_size).unwrap_or(0),
        taken: u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
        id: [0; 2],
        standing,
        participants: Vec::new(),
    };
    let removed = removing && is_over(standing) && remove(file.as_fd())?;
    Ok(Some((found, removed)))
}

fn look_at_unsized(path: &Path, removing: bool) -> Result<Option<(Found, bool)>> {
    let Ok(file) = std::fs::File::options().read(true).write(true).open(path) else {
        return Ok(None);
    };
    let Some(_gate) = Gate::take(file.as_fd(), std::time::Duration::ZERO)? else {
        return Ok(None);
    };
    let found = Found {
        path: path.to_owned(),
        capacity: 0,
        taken: 0,
        id: [0; 2],
        standing: Standing::Unfinished,
        participants: Vec::new(),
    };
    let removed = removing && rustix::fs::unlink(path).is_ok();
    Ok(Some((found, removed)))
}

fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}
