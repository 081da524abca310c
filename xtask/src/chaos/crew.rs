//! The processes of a round: starting them, and seeing how they ended.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use shm_core::Arena;

use super::killer::Armed;
use super::orphans::MARKER;
use super::pattern::CORRUPT;
use super::receipts::Receipts;
use super::suite::Name;
use crate::Result;

/// One process.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) slot: usize,
    pub(crate) life: u64,
    /// The failpoint it was given.
    pub(crate) armed: Option<Armed>,
    /// Steps of its place when it started.
    pub(crate) steps_before: u64,
    /// Until when it is stopped, and whether it is killed then.
    pub(crate) stopped: Option<(Instant, bool)>,
    killed: bool,
    child: Child,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, and all was well.
    Done,
    /// By our hand.
    Killed,
    /// At the label it was given.
    AtLabel(&'static str),
    /// It found wrong contents.
    Corrupt,
    /// It panicked, crashed, or was told an error that it must not be told.
    Wrong(String),
}

/// What all processes of a round have in common.
#[derive(Debug)]
pub(crate) struct Ground<'a> {
    pub(crate) suite: Name,
    /// What tells its processes, and whom they start, from all others.
    pub(crate) marker: String,
    pub(crate) arena: &'a Arena,
    pub(crate) place: Option<PathBuf>,
    pub(crate) receipts: &'a Receipts,
    /// What they say when something is wrong.
    pub(crate) log: &'a Receipts,
}

impl Ground<'_> {
    /// Starts this executable as a process of the crew.
    pub(crate) fn start(
        &self,
        slot: usize,
        life: u64,
        seed: u64,
        words: &[u64],
        armed: Option<Armed>,
    ) -> Result<Member> {
        // The link to the program that runs, which holds even while cargo replaces the file.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg("chaos-child")
            .args(["--suite", &format!("{:?}", self.suite).to_lowercase()])
            .args(["--slot", &slot.to_string()])
            .args(["--life", &life.to_string()])
            .args(["--seed", &seed.to_string()])
            .args(["--parent", &std::process::id().to_string()])
            .env("RUST_BACKTRACE", "0")
            .env(MARKER, &self.marker)
            .env_remove("TENSORMP_FAILPOINT")
            .stdout(self.receipts.appended()?)
            .stderr(self.log.appended()?);
        if !words.is_empty() {
            let words: Vec<_> = words.iter().map(u64::to_string).collect();
            command.args(["--words", &words.join(",")]);
        }
        match &self.place {
            Some(place) => command.arg("--arena").arg(place).stdin(Stdio::null()),
            None => command.stdin(self.arena.as_fd().try_clone_to_owned()?),
        };
        if let Some(armed) = &armed {
            command.env("TENSORMP_FAILPOINT", armed.text());
        }
        let child = command
            .spawn()
            .map_err(|error| format!("cannot start a process: {error}"))?;
        Ok(Member {
            slot,
            life,
            armed,
            steps_before: 0,
            stopped: None,
            killed: false,
            child,
        })
    }
}

impl Member {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        // It was not waited for yet, so the number is still its own.
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }

    pub(crate) fn kill(&mut self) {
        self.killed = true;
        self.signal(Signal::KILL);
    }

    pub(crate) fn stop(&mut self, until: Instant, then_kill: bool) {
        self.stopped = Some((until, then_kill));
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&mut self) {
        self.stopped = None;
        self.signal(Signal::CONT);
    }

    /// Whether it has stopped since this was last asked.
    pub(crate) fn has_stopped(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        Pid::from_raw(self.child.id().cast_signed())
            .is_some_and(|pid| matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_))))
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<End>> {
        Ok(self.child.try_wait()?.map(|status| self.judge(status)))
    }

    fn judge(&self, status: ExitStatus) -> End {
        let kill = Some(Signal::KILL.as_raw());
        match (&self.armed, status.code()) {
            (_, Some(0)) => End::Done,
            (_, Some(code)) if code == i32::from(CORRUPT) => End::Corrupt,
            _ if status.signal() == kill && self.killed => End::Killed,
            (Some(armed), None) if status.signal() == kill && armed.kills() => {
                End::AtLabel(armed.label)
            }
            _ => End::Wrong(format!(
                "process {} (life {}, place {}) ended with {status}",
                self.pid(),
                self.life,
                self.slot
            )),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
