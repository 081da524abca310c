//! The two processes of a case, seen from the benchmark's own: started, given orders, watched, stopped.

use std::any::Any;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::control::{self, Answer, Order};
use super::machine::Pins;
use super::python;
use super::subject::Subject;
use crate::Result;

/// A batch takes milliseconds; an end that does not answer for this long hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Side 0 is A, side 1 is B.
pub(crate) struct Pair {
    ends: [Process; 2],
    /// An answer, or none when the process has ended.
    answers: Receiver<(usize, Option<Answer>)>,
    opened: usize,
    /// What subjects keep on this side.
    kept: Vec<Box<dyn Any>>,
}

struct Process {
    child: Child,
    orders: OwnedFd,
}

impl Pair {
    pub(crate) fn start(pins: Pins) -> Result<Pair> {
        Self::start_with(pins, &[])
    }

    /// With more in the environment of both.
    pub(crate) fn start_with(pins: Pins, environment: &[(&str, &str)]) -> Result<Pair> {
        let (sender, answers) = mpsc::channel();
        // Should the second fail to start, dropping the first one stops it.
        let a = Process::start(0, pins.a, environment, sender.clone())?;
        let b = Process::start(1, pins.b, environment, sender)?;
        Ok(Pair {
            ends: [a, b],
            answers,
            opened: 0,
            kept: Vec::new(),
        })
    }

    /// The process ids of A and B.
    pub(crate) fn ids(&self) -> [u32; 2] {
        [&self.ends[0], &self.ends[1]].map(|end| end.child.id())
    }

    /// Builds both ends of the subject and returns the number that runs them.
    pub(crate) fn open(&mut self, subject: &dyn Subject) -> Result<usize> {
        let connection = subject.connect()?;
        for (end, link) in self.ends.iter().zip([&connection.a, &connection.b]) {
            control::send(
                end.orders.as_fd(),
                &Order::open(subject.key(), link),
                &link.descriptors,
            )?;
        }
        self.collect()?;
        self.kept.push(connection.keep);
        self.opened += 1;
        Ok(self.opened - 1)
    }

    /// Runs a batch and returns the samples of both sides.
    pub(crate) fn run(&mut self, end: usize, samples: usize) -> Result<Vec<u64>> {
        // B first, so that it is there when A begins.
        for process in self.ends.iter().rev() {
            control::send(process.orders.as_fd(), &Order::Run { end, samples }, &[])?;
        }
        self.collect()
    }

    /// One answer of each side. The first that failed is the result: the other side may then wait for ever.
    fn collect(&mut self) -> Result<Vec<u64>> {
        let mut samples = Vec::new();
        let deadline = Instant::now() + WATCHDOG;
        for _ in 0..self.ends.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok((_, Some(Answer::Done(more)))) => samples.extend(more),
                Ok((side, Some(Answer::Failed(why)))) => {
                    return Err(format!("process {}: {why}", name(side)).into());
                }
                Ok((side, None)) => {
                    let status = self.ends[side].child.wait()?;
                    return Err(format!(
                        "process {} ended with {status} in the middle of a case",
                        name(side)
                    )
                    .into());
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(format!(
                        "a process did not answer within {} s",
                        WATCHDOG.as_secs()
                    )
                    .into());
                }
            }
        }
        Ok(samples)
    }
}

fn name(side: usize) -> &'static str {
    if side == 0 { "A" } else { "B" }
}

impl Process {
    fn start(
        side: usize,
        cpu: usize,
        environment: &[(&str, &str)],
        answers: Sender<(usize, Option<Answer>)>,
    ) -> Result<Process> {
        let flags = SocketFlags::CLOEXEC;
        let (orders, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // The link to the program that runs, which holds even while cargo replaces the file.
        let mut child = Command::new("/proc/self/exe")
            .arg("bench-end")
            .args(["--side", &name(side).to_lowercase()])
            .args(["--cpu", &cpu.to_string()])
            .args(["--parent", &std::process::id().to_string()])
            .envs(python::environment())
            .envs(environment.iter().copied())
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start process {}: {error}", name(side)))?;
        let output = child.stdout.take();
        thread::spawn(move || {
            let lines = output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines());
            for line in lines.map_while(std::result::Result::ok) {
                let answer = serde_json::from_str(&line).unwrap_or_else(|error| {
                    Answer::Failed(format!("an answer that cannot be read: {error}"))
                });
                // Nobody listens any more once the pair is dropped.
                let _ = answers.send((side, Some(answer)));
            }
            let _ = answers.send((side, None));
        });
        Ok(Process { child, orders })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may spin, so asking would not do. It owns nothing that outlives it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::name;
    use crate::bench::subject::Side;

    #[test]
    fn sides_are_named_as_the_command_line_of_an_end_reads_them() {
        for (side, expected) in [(0, Side::A), (1, Side::B)] {
            assert_eq!(Side::from_str(name(side), true), Ok(expected));
        }
    }
}
