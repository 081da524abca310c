//! A process that runs another program, started as the C library's `posix_spawn` does it, in fewer steps.
//!
//! The new process borrows this one's memory until it has its program (`CLONE_VM`), while the thread that started it
//! stands still (`CLONE_VFORK`), so the size of this process does not matter. The kernel takes its signal handlers away
//! (`CLONE_CLEAR_SIGHAND`), which the C library does one by one, and gives the descriptor for it (`CLONE_PIDFD`). What it
//! could not do lies in the memory that it shares, so this side knows which step it was.
//!
//! The rule behind all of it: between its start and its program the new process makes system calls on what was prepared
//! before, and nothing else: no allocation, no lock, no signal handler.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_long};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// Takes away all signal handlers; what is ignored stays so. (Linux 5.5.)
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;

/// The new process's stack, in words of 16 bytes: a few frames, and no signal handler's.
const STACK: usize = 1024;

/// All that a process gets on its way to its program. The lists end with a null.
#[derive(Debug)]
pub(crate) struct Ready<'a> {
    pub(crate) program: &'a CStr,
    pub(crate) arguments: &'a Texts,
    pub(crate) environment: &'a Texts,
    pub(crate) directory: Option<&'a CStr>,
    /// Its stdin, stdout and stderr, where they are not this process's own; none of these has a number below 3.
    pub(crate) streams: [Option<BorrowedFd<'a>>; 3],
    /// In a process group of its own.
    pub(crate) leads_group: bool,
}

/// What a new process does on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Group = 1,
    Streams,
    Directory,
    Program,
}

/// Why there is no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotStarted {
    /// It cannot be done in this way here.
    Unable(Errno),
    /// A text that it was to get has a zero byte in it.
    Zero,
    /// The system made no process.
    Refused(Errno),
    /// There was one, which could not do this.
    Failed(Step, Errno),
}

/// Texts as C has them: each ends with a zero byte, and a list of where they are ends with a null.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    bytes: Vec<u8>,
    starts: Vec<usize>,
    places: Vec<*const c_char>,
}

impl Texts {
    /// An empty list, with room for so many bytes before it grows.
    pub(crate) fn with_room(bytes: usize) -> Texts {
        Texts {
            bytes: Vec::with_capacity(bytes),
            starts: Vec::with_capacity(bytes / 64),
            places: Vec::new(),
        }
    }

    /// Adds a text that consists of these parts. One with a zero byte in it is refused: it would end there.
    pub(crate) fn push(&mut self, parts: &[&[u8]]) -> Result<(), NotStarted> {
        if parts.iter().any(|part| part.contains(&0)) {
            return Err(NotStarted::Zero);
        }
        self.starts.push(self.bytes.len());
        parts
            .iter()
            .for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.push(0);
        Ok(())
    }

    /// Nothing is added from here on.
    pub(crate) fn close(&mut self) {
        let places = self
            .starts
            .iter()
            .map(|&start| self.bytes[start..].as_ptr().cast());
        self.places = places.chain([null()]).collect();
    }
}

/// What both processes see.
struct Shared<'a> {
    ready: &'a Ready<'a>,
    /// The signals that the thread had blocked before.
    mask: u64,
    /// What could not be done, and why; 0 as long as all could.
    step: AtomicU32,
    errno: AtomicI32,
}

/// Starts a process. Its id stays its own until it is waited for by the descriptor.
pub(crate) fn start(ready: &Ready<'_>) -> Result<(u32, OwnedFd), NotStarted> {
    let mut stack = [MaybeUninit::<u128>::uninit(); STACK];
    let mut pidfd: RawFd = -1;
    let mut shared = Shared {
        ready,
        mask: 0,
        step: AtomicU32::new(0),
        errno: AtomicI32::new(0),
    };
    let flags =
        (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD) as u64 | CLONE_CLEAR_SIGHAND;
    let arguments: [u64; 8] = [
        flags,
        (&raw mut pidfd) as u64,
        0,
        0,
        libc::SIGCHLD as u64,
        stack.as_mut_ptr() as u64,
        size_of_val(&stack) as u64,
        0,
    ];
    // The new process must not run a handler of this one, whose memory it has, in the moment before they are gone.
    shared.mask = set_mask(u64::MAX);
    // SAFETY: the arguments are a `struct clone_args` of its first size, and live, as do the stack, which nobody else
    // uses, and what is shared; this thread goes on only when the new process has another memory or is gone.
    let answer = unsafe { clone(&arguments, &raw const shared) };
    set_mask(shared.mask);
    let pid = match answer {
        1.. => answer as u32,
        _ => {
            let errno = Errno::from_raw_os_error(answer.unsigned_abs() as i32);
            return Err(match errno {
                Errno::NOSYS | Errno::PERM | Errno::INVAL => NotStarted::Unable(errno),
                _ => NotStarted::Refused(errno),
            });
        }
    };
    // SAFETY: there is a child, so the kernel has opened this descriptor for this process, and nobody else knows of it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // Written before this thread went on.
    let step = match shared.step.load(Ordering::Relaxed) {
        0 => return Ok((pid, pidfd)),
        1 => Step::Group,
        2 => Step::Streams,
        3 => Step::Directory,
        _ => Step::Program,
    };
    while let Err(Errno::INTR) = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {}
    let errno = Errno::from_raw_os_error(shared.errno.load(Ordering::Relaxed));
    Err(NotStarted::Failed(step, errno))
}

/// Sets which signals the calling thread has blocked, those of the C library too, and gives which it had.
fn set_mask(mask: u64) -> u64 {
    let mut before: u64 = 0;
    // SAFETY: the kernel reads and writes a set of signals of the size that is given.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            size_of::<u64>(),
        )
    };
    before
}

/// Makes the process, which begins in [`run`] on the stack that the arguments name. Gives its id, or an error's number
/// below 0.
///
/// # Safety
/// As for `clone3` itself: the arguments ask for memory that is shared, on a stack of its own that is used by nobody else,
/// and for this thread to stand still. What is shared lives.
#[cfg(target_arch = "x86_64")]
unsafe fn clone(arguments: &[u64; 8], shared: *const Shared<'_>) -> i64 {
    let answer: i64;
    // SAFETY: by the contract above. The kernel keeps all registers but rax, rcx and r11. In this process nothing else
    // happens here. In the new one the stack pointer is at the upper end of the new stack, which is aligned as a call
    // wants it, and `run` never returns.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r9",
            "call r8",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => answer,
            in("rdi") arguments.as_ptr(),
            in("rsi") size_of_val(arguments),
            in("r8") run as unsafe extern "C" fn(*const Shared<'_>) -> !,
            in("r9") shared,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// The same.
///
/// # Safety
/// The same.
#[cfg(target_arch = "aarch64")]
unsafe fn clone(arguments: &[u64; 8], shared: *const Shared<'_>) -> i64 {
    let answer: i64;
    // SAFETY: as above. The kernel keeps all registers but x0.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x10",
            "blr x9",
            "brk 1",
            "2:",
            inlateout("x0") arguments.as_ptr() => answer,
            in("x1") size_of_val(arguments),
            in("x8") libc::SYS_clone3,
            in("x9") run as unsafe extern "C" fn(*const Shared<'_>) -> !,
            in("x10") shared,
        );
    }
    answer
}

/// No such call is written down for this processor.
///
/// # Safety
/// None is needed.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone(_: &[u64; 8], _: *const Shared<'_>) -> i64 {
    let _ = run as unsafe extern "C" fn(*const Shared<'_>) -> !;
    -i64::from(libc::ENOSYS)
}

/// The whole life of the new process before it has its program.
///
/// # Safety
/// To be called in that process only, with what the thread that stands still has prepared.
unsafe extern "C" fn run(shared: *const Shared<'_>) -> ! {
    // SAFETY: by the contract it points to what is shared, which lives on the stack of the thread that stands still.
    let shared = unsafe { &*shared };
    let step = match prepare(shared) {
        Err(step) => step,
        Ok(()) => {
            let ready = shared.ready;
            // SAFETY: the path and all texts end with a zero byte, the lists end with a null, and all of them live.
            unsafe {
                libc::syscall(
                    libc::SYS_execve,
                    ready.program.as_ptr(),
                    ready.arguments.places.as_ptr(),
                    ready.environment.places.as_ptr(),
                )
            };
            Step::Program
        }
    };
    // SAFETY: the call takes nothing and only computes an address from that of the thread's own data.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is the error's number of the calling thread, which is here that of the thread that stands still: the new
    // process has its thread's own data. The call that failed has just written it.
    let errno = unsafe { place.read() };
    shared.errno.store(errno, Ordering::Relaxed);
    shared.step.store(step as u32, Ordering::Relaxed);
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, 127) };
    }
}

fn prepare(shared: &Shared<'_>) -> Result<(), Step> {
    let done = |step: Step, answer: c_long| if answer < 0 { Err(step) } else { Ok(()) };
    let ready = shared.ready;
    if ready.leads_group {
        // SAFETY: no memory is involved.
        done(Step::Group, unsafe {
            libc::syscall(libc::SYS_setpgid, 0, 0)
        })?;
        forget_stops();
    }
    for (number, stream) in ready.streams.iter().enumerate() {
        if let Some(stream) = stream {
            // SAFETY: nobody in this process uses what had the number; the descriptors are a copy of the parent's.
            done(Step::Streams, unsafe {
                libc::syscall(libc::SYS_dup3, stream.as_raw_fd(), number as c_int, 0)
            })?;
        }
    }
    if let Some(directory) = ready.directory {
        // SAFETY: the path ends with a zero byte.
        done(Step::Directory, unsafe {
            libc::syscall(libc::SYS_chdir, directory.as_ptr())
        })?;
    }
    // The standard library ignores SIGPIPE, and no program that it runs shall.
    set_action(libc::SIGPIPE, &DEFAULT);
    // Last: a signal that came meanwhile does what it does by default.
    set_mask(shared.mask);
    Ok(())
}

/// Forgets what was to stop the group of the process that started this one, as Ctrl-Z does: it has left that group, and
/// what makes the others go on again would not reach it, nor the thread that stands still until it has its program.
fn forget_stops() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        // What is ignored is not pending any more.
        let before = set_action(signal, &IGNORE);
        set_action(signal, &before);
    }
}

/// What a signal does, in the kernel's form of it, which has up to four words. Nothing, and what it does by default.
type Action = [u64; 4];
const IGNORE: Action = [libc::SIG_IGN as u64, 0, 0, 0];
const DEFAULT: Action = [libc::SIG_DFL as u64, 0, 0, 0];

/// Sets what a signal does, and gives what it did.
fn set_action(signal: c_int, action: &Action) -> Action {
    let mut before = DEFAULT;
    // SAFETY: the kernel reads and writes no more than four words. No handler comes of it: the handlers of this process are
    // gone, so what it did is to be ignored, or the default.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            action.as_ptr(),
            before.as_mut_ptr(),
            size_of::<u64>(),
        )
    };
    before
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    fn list(texts: &[&str]) -> Texts {
        let mut list = Texts::default();
        for text in texts {
            list.push(&[text.as_bytes()]).unwrap();
        }
        list.close();
        list
    }

    /// What a program says that is run with these arguments.
    fn said(program: &CStr, arguments: &[&str]) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let ready = Ready {
            program,
            arguments: &list(arguments),
            environment: &list(&["PATH=/usr/bin:/bin", "SAID=so"]),
            directory: Some(c"/proc"),
            streams: [None, Some(writer.as_fd()), None],
            leads_group: true,
        };
        let (_, pidfd) = start(&ready).unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).unwrap();
        assert_eq!(status.unwrap().exit_status(), Some(0), "{text}");
        text
    }

    #[test]
    fn a_program_gets_what_it_was_promised() {
        let words = "echo $SAID $0; pwd; echo $$; cut -d' ' -f5 /proc/$$/stat";
        let text = said(c"/bin/sh", &["sh", "-c", words, "title"]);
        let [said, directory, pid, group] = text.lines().collect::<Vec<_>>()[..] else {
            panic!("{text}");
        };
        assert_eq!((said, directory), ("so title", "/proc"));
        assert_eq!(pid, group);
    }

    #[test]
    fn a_program_has_the_signals_of_the_thread_that_starts_it_and_no_handlers() {
        // Those that nothing in this process cares for, in this thread only.
        let blocked = 1 << (libc::SIGWINCH - 1) | 1 << (libc::SIGURG - 1);
        let before = set_mask(blocked);
        let status = said(c"/bin/cat", &["cat", "self/status"]);
        assert_eq!(set_mask(before), blocked);
        let mask = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
        };
        assert_eq!(mask("SigBlk:"), blocked);
        assert_eq!(mask("SigIgn:") & 1 << (libc::SIGPIPE - 1), 0);
        assert_eq!(mask("SigCgt:"), 0);
    }

    #[test]
    fn what_a_process_could_not_do_is_told_and_leaves_none() {
        let empty = list(&[]);
        let null = File::open("/dev/null").unwrap();
        let ready = |program, directory| Ready {
            program,
            arguments: &empty,
            environment: &empty,
            directory,
            streams: [Some(null.as_fd()), None, None],
            leads_group: false,
        };
        let failed = |ready: &Ready<'_>| start(ready).map(drop).unwrap_err();
        let missing = ready(c"/nowhere/at/all", None);
        assert_eq!(
            failed(&missing),
            NotStarted::Failed(Step::Program, Errno::NOENT)
        );
        let nowhere = ready(c"/bin/sh", Some(c"/nowhere/at/all"));
        assert_eq!(
            failed(&nowhere),
            NotStarted::Failed(Step::Directory, Errno::NOENT)
        );
        let no_directory = ready(c"/bin/sh", Some(c"/dev/null"));
        assert_eq!(
            failed(&no_directory),
            NotStarted::Failed(Step::Directory, Errno::NOTDIR)
        );
        // A process that was not waited for would be in this list.
        let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
        assert_eq!(children, "");
    }

    #[test]
    fn a_text_that_would_end_early_is_refused() {
        assert_eq!(
            Texts::default().push(&[b"A=", b"1\x002"]),
            Err(NotStarted::Zero)
        );
    }
}
