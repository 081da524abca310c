//! What a fork server does that the standard library has no words for: a copy of a process that has one thread, as a
//! child of its own parent, and that copy's command line and environment.
//!
//! The rule behind all of it: the process has one thread. It is looked up before each use, not believed.

#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::Pid;

/// Which of the two processes this is.
#[derive(Debug)]
pub(crate) enum Copied {
    /// The new one.
    Child,
    /// The one that was there, and what names the new one.
    Server { pid: Pid, pidfd: OwnedFd },
}

/// How many threads this process has.
pub(crate) fn threads() -> Result<u64, Errno> {
    // A directory's link count is 2 and one for each directory in it; here these are the threads.
    Ok((rustix::fs::stat("/proc/self/task")?.st_nlink as u64).saturating_sub(2))
}

/// The names of this process's threads beside the main one.
pub(crate) fn other_threads() -> Vec<String> {
    let main = std::process::id().to_string();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    tasks
        .flatten()
        .filter(|task| task.file_name() != OsStr::new(&main))
        .map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            name.trim_end().to_owned()
        })
        .collect()
}

/// The process group that this process is in. `None` where its number means nothing here: the group was made outside of
/// this pid namespace, as that of a command that was sent into a container, and the system says 0.
pub(crate) fn own_group() -> Option<i32> {
    // SAFETY: the call takes nothing, touches no memory and cannot fail. (rustix promises a number that is not 0.)
    let group = unsafe { libc::getpgrp() };
    (group > 0).then_some(group)
}

/// Makes a copy of this process whose parent is this process's parent.
///
/// # Errors
/// `BUSY` when this process has more than one thread; else what the system answers, `NOSYS` and `PERM` where a filter
/// of system calls is in the way.
pub(crate) fn copy() -> Result<Copied, Errno> {
    if threads()? != 1 {
        return Err(Errno::BUSY);
    }
    match clone(Call::Clone3) {
        // Filters of containers that are older than this call, or cannot look into its arguments, do not let it pass.
        // The older one can do the same.
        Err(Errno::NOSYS | Errno::PERM) => clone(Call::Clone),
        other => other,
    }
}

/// The two system calls that make a copy.
#[derive(Clone, Copy, Debug)]
enum Call {
    Clone3,
    Clone,
}

/// Makes a copy by that call. To be called by the only thread of this process.
fn clone(call: Call) -> Result<Copied, Errno> {
    let mut pidfd: RawFd = -1;
    let place = (&raw mut pidfd) as u64;
    // The child's end signals our parent as ours would: with CLONE_PARENT the signal is inherited, and must be 0 here.
    // What the C library does beyond this in its own fork is for processes with threads (taking its locks before, and
    // giving them back after), and noting the id of the main thread, which the kernel is asked to do where the C
    // library told it the place.
    let tid = tid_address();
    let mut flags = (libc::CLONE_PARENT | libc::CLONE_PIDFD) as u64;
    if tid != 0 {
        flags |= (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
    }
    let arguments: [u64; 8] = [flags, place, tid, 0, 0, 0, 0, 0];
    let pid = match call {
        // SAFETY: the arguments are a `struct clone_args` of its first size (eight words), which the kernel reads. No
        // stack is given and memory is not shared, so both processes go on here, each with all it had: this is what
        // `fork` does. The child of a process with one thread may do anything that its parent could: there is no other
        // thread that could have held a lock, and the count in `copy` was taken by the only thread that could start
        // another. The kernel writes to `pidfd`, which lives, and in the child to the word in which the C library keeps
        // the main thread's id, whose place it told the kernel itself when the process started.
        Call::Clone3 => unsafe {
            libc::syscall(
                libc::SYS_clone3,
                arguments.as_ptr(),
                size_of_val(&arguments),
            )
        },
        // One architecture takes the first two the other way round.
        Call::Clone if cfg!(target_arch = "s390x") => return Err(Errno::NOSYS),
        // SAFETY: as above, the same in words of its own: flags, no stack, where the pidfd goes, and where the main
        // thread's id goes, which is the fourth argument or the fifth; the other one is for what no flag asks for.
        Call::Clone => unsafe { libc::syscall(libc::SYS_clone, flags, 0_u64, place, tid, tid) },
    };
    if pid == 0 {
        return Ok(Copied::Child);
    }
    let pid = match i32::try_from(pid) {
        Ok(raw) if raw > 0 => Pid::from_raw(raw),
        _ => None,
    };
    let Some(pid) = pid else {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    };
    // SAFETY: there is a child, so the kernel has opened this descriptor for this process, and nobody else knows of it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Copied::Server { pid, pidfd })
}

/// Where the C library keeps the main thread's id, as it told the kernel at the start; 0 if the kernel does not say.
fn tid_address() -> u64 {
    const PR_GET_TID_ADDRESS: libc::c_int = 40;
    let mut address: u64 = 0;
    // SAFETY: the kernel writes one word to the place that is given, which is one.
    let asked = unsafe { libc::prctl(PR_GET_TID_ADDRESS, &raw mut address) };
    if asked == 0 { address } else { 0 }
}

/// Where this process's command line lies in its memory, as the kernel knows it; `None` if it does not say.
pub(crate) fn command_line() -> Option<Range<usize>> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // "pid (name) state …": the name may contain anything, the 48th and 49th of all fields are what is looked for.
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(45);
    let start = fields.next()?.parse().ok()?;
    let end = fields.next()?.parse().ok()?;
    (start != 0 && start < end).then_some(start..end)
}

/// Makes `title` the whole command line, as far as there is room: what `ps` shows and [`std::env::args`] gives.
pub(crate) fn set_title(command_line: &Range<usize>, title: &[u8]) -> Result<(), Errno> {
    if threads()? != 1 {
        return Err(Errno::BUSY);
    }
    // The last byte stays the zero that it is.
    let room = command_line.len() - 1;
    let title = &title[..title.len().min(room)];
    let place = std::ptr::with_exposed_provenance_mut::<u8>(command_line.start);
    // SAFETY: the kernel put this process's arguments there, at the upper end of its stack, which stays mapped and may be
    // written to (C programs own their `argv`). The standard library reads them only while it copies them, and this is
    // the only thread. All bytes are valid.
    unsafe { place.write_bytes(0, room) };
    // SAFETY: as above, and the title was cut to the room that there is; it lies elsewhere.
    unsafe { place.copy_from_nonoverlapping(title.as_ptr(), title.len()) };
    Ok(())
}

/// Sets a variable of the environment, or removes it.
pub(crate) fn set_environment(name: &OsStr, value: Option<&OsStr>) -> Result<(), Errno> {
    if threads()? != 1 {
        return Err(Errno::BUSY);
    }
    match value {
        // SAFETY: no other thread reads or writes the environment, since there is none.
        Some(value) => unsafe { std::env::set_var(name, value) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var(name) },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_not_copied() {
        // The harness of these tests runs each on a thread of its own.
        assert!(threads().unwrap() > 1);
        assert!(!other_threads().is_empty());
        assert_eq!(copy().unwrap_err(), Errno::BUSY);
        assert_eq!(set_environment(OsStr::new("X"), None), Err(Errno::BUSY));
    }

    #[test]
    fn the_command_line_is_where_the_kernel_says() {
        let place = command_line().unwrap();
        let shown = fs::read("/proc/self/cmdline").unwrap();
        assert_eq!(place.len(), shown.len());
    }
}
