//! Processes that have joined an arena and do nothing: what a participant costs the others.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use shm_core::Arena;

use crate::Result;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The benchmark's process.
    #[arg(long)]
    parent: i32,
}

/// One member: joins the arena that is its standard input, says so, and stays.
pub(crate) fn member(args: &Args) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != args.parent) {
        return Ok(());
    }
    let _arena = Arena::join(std::io::stdin().as_fd().try_clone_to_owned()?)?;
    println!("joined");
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

/// The members; they end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Crowd(Vec<Child>);

impl Crowd {
    /// Starts so many processes and waits until each has joined.
    pub(crate) fn join(arena: &Arena, count: usize) -> Result<Crowd> {
        let mut crowd = Crowd::default();
        for _ in 0..count {
            let child = Command::new("/proc/self/exe")
                .arg("bench-member")
                .args(["--parent", &std::process::id().to_string()])
                .stdin(Stdio::from(arena.as_fd().try_clone_to_owned()?))
                .stdout(Stdio::piped())
                .spawn()?;
            crowd.0.push(child);
        }
        for child in &mut crowd.0 {
            let mut line = String::new();
            if let Some(output) = child.stdout.take() {
                BufReader::new(output).read_line(&mut line)?;
            }
            if line.trim() != "joined" {
                return Err("a process that was to join the arena did not".into());
            }
        }
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
