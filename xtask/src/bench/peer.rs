//! Other crates, measured in the same run as ours. Each is a program of its own in the package `bench-peers`, which no
//! other build needs: what it depends on is fetched and built when it is measured.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use super::floor::ROUND_TRIPS;
use super::payload::Size;
use super::subject::{Connection, End, Link, Side, Subject};
use crate::Result;
use crate::workspace::{cargo, root};

/// Builds a program of the package, or says why that is not possible.
pub(crate) fn build(name: &str) -> std::result::Result<(), String> {
    let manifest = root().join("bench-peers/Cargo.toml");
    let mut build = cargo(["build", "--quiet", "--release", "--features", name]);
    build
        .args(["--bin", name, "--manifest-path"])
        .arg(&manifest);
    match build.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!(
            "{name} of {} could not be built ({status}); it needs crates that cargo has to fetch",
            manifest.display()
        )),
        Err(error) => Err(format!("cargo could not be run: {error}")),
    }
}

/// A program of that package as it runs.
pub(crate) fn program(name: &str) -> Command {
    Command::new(root().join("bench-peers/target/release").join(name))
}

/// A program that measures: an order is a line, and so are the times in its answer. It ends when its stdin does.
pub(crate) struct Program {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _program: Child,
}

impl Program {
    pub(crate) fn start(mut command: Command) -> Result<Program> {
        let mut program = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (orders, answers) = (program.stdin.take(), program.stdout.take());
        Ok(Program {
            orders: orders.ok_or("the program has no stdin")?,
            answers: BufReader::new(answers.ok_or("the program has no stdout")?),
            _program: program,
        })
    }

    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err("the program ended; what it said is above".into());
        }
        Ok(line)
    }

    pub(crate) fn order(&mut self, order: &str) -> Result<Vec<u64>> {
        writeln!(self.orders, "{order}")?;
        let line = self.line()?;
        let times = line.split_whitespace().map(str::parse);
        Ok(times.collect::<std::result::Result<_, _>>()?)
    }
}

/// Messages of one size by another crate, from put to get.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Carried {
    /// The program, and how it is called here.
    pub(crate) program: &'static str,
    pub(crate) name: &'static str,
    /// Whether the receiver sleeps until something comes.
    pub(crate) parked: bool,
    pub(crate) size: Size,
}

impl Subject for Carried {
    fn name(&self) -> String {
        let waiting = match (self.parked, self.program) {
            (false, _) => "busy ",
            // There is no other way, or none that a program would take.
            (true, "pipe" | "ipc-channel") => "",
            (true, _) => "parked ",
        };
        format!("{} 1:1 {waiting}{}", self.name, self.size.name)
    }

    fn batch(&self) -> usize {
        match (self.parked, self.size.bytes) {
            (false, _) => 20,
            (true, ..1_000_000) => 100,
            (true, _) => 8,
        }
    }

    fn prepare(&self) -> std::result::Result<(), String> {
        build(self.program)
    }

    fn connect(&self) -> Result<Connection> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let words = vec![
            u64::from(std::process::id()),
            NEXT.fetch_add(1, Ordering::Relaxed),
        ];
        sweep(Path::new(MEMORY));
        let folder = folder(&words);
        std::fs::create_dir(&folder)?;
        let link = || Link {
            descriptors: Vec::new(),
            words: words.clone(),
        };
        Ok(Connection {
            a: link(),
            b: link(),
            keep: Box::new(Remains(folder)),
        })
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        // It stays on the CPU of this process, which has nothing to do while that one measures.
        let mut command = program(self.program);
        command
            .arg(if side == Side::A { "a" } else { "b" })
            .arg(if self.parked { "parked" } else { "busy" })
            .arg(self.size.bytes.to_string())
            .arg(folder(&link.words));
        let mut program = Program::start(command)?;
        let line = program.line()?;
        if line.trim_end() != "ready" {
            return Err(format!("the peer said {line:?}").into());
        }
        Ok(Box::new(Carrying(program)))
    }
}

const MEMORY: &str = "/dev/shm";
/// What the names of folders begin with; the process that made one comes next.
const NAME: &str = "tensormp_bench_";

/// Where both sides find each other, in memory.
fn folder(words: &[u64]) -> PathBuf {
    let words: Vec<String> = words.iter().map(u64::to_string).collect();
    Path::new(MEMORY).join(format!("{NAME}{}", words.join("_")))
}

/// Removes what benchmarks have left whose process was killed before it could.
fn sweep(memory: &Path) {
    for entry in std::fs::read_dir(memory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name
            .to_str()
            .and_then(|name| name.strip_prefix(NAME))
            .and_then(|rest| rest.split('_').next())
            .and_then(|pid| pid.parse::<u32>().ok());
        if let Some(maker) = maker
            && !Path::new("/proc").join(maker.to_string()).exists()
        {
            let path = entry.path();
            let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
        }
    }
}

/// What the two programs leave, since they are killed: the folder, and what lies beside it under names that begin like it.
struct Remains(PathBuf);

impl Drop for Remains {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        let (Some(parent), Some(name)) = (self.0.parent(), self.0.file_name()) else {
            return;
        };
        // What is called as this one and a further digit belongs to another case, of which none runs at the same time.
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let other = entry.file_name();
            if other
                .as_encoded_bytes()
                .starts_with(name.as_encoded_bytes())
            {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

struct Carrying(Program);

impl End for Carrying {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        self.0.order(&format!("{samples} {ROUND_TRIPS}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_benchmark_left_is_swept_and_what_runs_is_left_alone() {
        let memory = tempfile::tempdir().unwrap();
        let path = |name: &str| memory.path().join(name);
        // No process has a number beyond the largest that the system gives out.
        let (gone, here) = (u32::MAX, std::process::id());
        std::fs::create_dir(path(&format!("{NAME}{gone}_0"))).unwrap();
        std::fs::write(path(&format!("{NAME}{gone}_0/inside")), "").unwrap();
        std::fs::write(path(&format!("{NAME}{gone}_0service")), "").unwrap();
        std::fs::create_dir(path(&format!("{NAME}{here}_0"))).unwrap();
        std::fs::write(path("somebody's"), "").unwrap();
        sweep(memory.path());
        let mut left: Vec<_> = std::fs::read_dir(memory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["somebody's".to_owned(), format!("{NAME}{here}_0")]);
    }
}
