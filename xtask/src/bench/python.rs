//! Python's own queue and torch's, with `--python PATH`: one process puts, its child gets and puts back.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::payload::Size;
use super::peer::Program;
use super::subject::{Connection, End, Link, Side, Subject};
use crate::Result;

/// The environment variable by which the two processes know the Python to measure.
const PYTHON: &str = "TENSORMP_BENCH_PYTHON";

static GIVEN: OnceLock<PathBuf> = OnceLock::new();

/// The Python to measure, as the command line has it.
pub(crate) fn use_python(path: PathBuf) {
    let _ = GIVEN.set(path);
}

/// What the two processes need in their environment.
pub(crate) fn environment() -> Option<(&'static str, &'static Path)> {
    GIVEN.get().map(|path| (PYTHON, path.as_path()))
}

/// The same, or what to do to have one.
pub(crate) fn given() -> std::result::Result<&'static Path, String> {
    let path = GIVEN.get().map(PathBuf::as_path);
    path.ok_or_else(|| "give a Python with `--python PATH`".to_owned())
}

/// Runs a script in it. An order is a number of samples.
pub(crate) fn start(script: &str, args: &[&str]) -> Result<Box<dyn End>> {
    let mut python = Command::new(std::env::var_os(PYTHON).ok_or("no Python was given")?);
    python.args(["-c", script]).args(args);
    Ok(Box::new(Python(Program::start(python)?)))
}

/// Bytes, or a tensor, through a queue of Python's.
#[derive(Copy, Clone, Debug)]
pub(crate) struct PythonQueue {
    /// `torch.multiprocessing`, not `multiprocessing`.
    pub(crate) torch: bool,
    pub(crate) size: Size,
}

const SCRIPT: &str = "
import sys, time

if sys.argv[1] == 'torch':
    import torch
    from torch import multiprocessing
else:
    import multiprocessing

def back(requests, replies):
    while True:
        value = requests.get()
        if value is None:
            return
        replies.put(value)

if __name__ == '__main__':
    size = int(sys.argv[2])
    requests, replies = multiprocessing.Queue(), multiprocessing.Queue()
    multiprocessing.get_context('fork').Process(target=back, args=(requests, replies), daemon=True).start()
    value = torch.ones(size, dtype=torch.uint8) if sys.argv[1] == 'torch' else bytes(size)
    for line in sys.stdin:
        taken = []
        for _ in range(int(line)):
            start = time.monotonic_ns()
            requests.put(value)
            answer = replies.get()
            taken.append((time.monotonic_ns() - start) // 2)
            assert len(answer) == size
        print(*taken, flush=True)
    requests.put(None)
";

impl Subject for PythonQueue {
    fn name(&self) -> String {
        let whose = if self.torch { "torch" } else { "python" };
        format!("{whose} queue 1:1 {}", self.size.name)
    }

    fn batch(&self) -> usize {
        if self.size.bytes < 1_000_000 { 50 } else { 8 }
    }

    fn prepare(&self) -> std::result::Result<(), String> {
        let import = if self.torch {
            "import torch"
        } else {
            "import multiprocessing"
        };
        can(import, &format!("`{import}`"))
    }

    fn connect(&self) -> Result<Connection> {
        unconnected()
    }

    fn open(&self, side: Side, _: Link) -> Result<Box<dyn End>> {
        let module = if self.torch { "torch" } else { "python" };
        open(side, SCRIPT, &[module, &self.size.bytes.to_string()])
    }
}

/// A tensor on a device through torch's queue: from the call that writes it to the end of a copy of it in the child.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TorchDevice;

/// As large as what our own case hands over.
const DEVICE_BYTES: usize = 1 << 20;

const DEVICE_SCRIPT: &str = "
import sys, time
import torch
from torch import multiprocessing

def copied(requests, replies):
    while True:
        message = requests.get()
        if message is None:
            return
        start, number, tensor = message
        copy = tensor.clone()
        torch.cuda.synchronize()
        taken = time.monotonic_ns() - start
        assert int(copy[-1]) == number
        del message, tensor, copy
        replies.put(taken)

if __name__ == '__main__':
    requests, replies = multiprocessing.Queue(), multiprocessing.Queue()
    # Before CUDA is started: who has started it cannot be forked.
    multiprocessing.get_context('fork').Process(target=copied, args=(requests, replies), daemon=True).start()
    tensor = torch.ones(int(sys.argv[1]), dtype=torch.uint8, device='cuda')
    torch.cuda.synchronize()
    for line in sys.stdin:
        taken = []
        for sample in range(int(line)):
            number = sample % 251
            start = time.monotonic_ns()
            tensor.fill_(number)
            requests.put((start, number, tensor))
            taken.append(replies.get())
        print(*taken, flush=True)
    requests.put(None)
";

impl Subject for TorchDevice {
    fn name(&self) -> String {
        "torch device to device".to_owned()
    }

    fn batch(&self) -> usize {
        50
    }

    fn prepare(&self) -> std::result::Result<(), String> {
        let has_cuda = "import sys, torch; sys.exit(not torch.cuda.is_available())";
        can(has_cuda, "use torch with a GPU")
    }

    fn connect(&self) -> Result<Connection> {
        unconnected()
    }

    fn open(&self, side: Side, _: Link) -> Result<Box<dyn End>> {
        open(side, DEVICE_SCRIPT, &[&DEVICE_BYTES.to_string()])
    }
}

/// A script that is both ends: one side runs it, the other is idle.
fn open(side: Side, script: &str, args: &[&str]) -> Result<Box<dyn End>> {
    if side == Side::B {
        return Ok(Box::new(Idle));
    }
    // Its two processes share the CPUs as they like.
    super::start::unpin()?;
    start(script, args)
}

/// The two sides need nothing of each other.
fn unconnected() -> Result<Connection> {
    Ok(Connection::of(Vec::new(), Vec::new()))
}

/// Whether the Python that was given runs this.
fn can(script: &str, what: &str) -> std::result::Result<(), String> {
    let python = given()?;
    match Command::new(python).args(["-c", script]).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(_) => Err(format!("{} cannot {what}", python.display())),
        Err(error) => Err(format!("{} cannot be run: {error}", python.display())),
    }
}

/// The side that has nothing to do.
struct Idle;

impl End for Idle {
    fn run(&mut self, _: usize) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }
}

struct Python(Program);

impl End for Python {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let times = self.0.order(&samples.to_string())?;
        if times.len() != samples {
            return Err(format!("Python gave {} of {samples} times", times.len()).into());
        }
        Ok(times)
    }
}
