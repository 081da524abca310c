//! The end of an arena with a name: the last to leave is killed while it leaves, and the sweep removes what it left.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shm_core::Arena;
use shm_core::strategy::file_system::sweep;

use super::killer;
use super::report::Tally;
use crate::Result;

/// The labels on the way out.
const LABELS: [&str; 1] = ["named."];

/// What the process is told; it answers by its row, and leaves when its input ends.
pub(crate) fn leave(arena: Arena) {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    drop(arena);
}

/// Lets one process after the other be the last, and be killed at each label.
pub(crate) fn play(patience: Duration, tally: &mut Tally) -> Result<()> {
    // Of its own, so that the sweep meets no arena of others.
    let folder = tempfile::Builder::new()
        .prefix("chaos-")
        .tempdir_in("/dev/shm")?;
    for label in killer::labels(&LABELS) {
        let arena = Arena::builder()
            .name("last")
            .directory(folder.path())
            .capacity(64 << 20)
            .create()?;
        let Some(path) = arena.path() else {
            return Err("an arena with a name has no path".into());
        };
        let mut last = Command::new("/proc/self/exe")
            .args(["chaos-child", "--suite", "memory", "--slot", "0"])
            .args(["--life", "0", "--seed", "0", "--leaves"])
            .args(["--parent", &std::process::id().to_string()])
            .arg("--arena")
            .arg(&path)
            .env("TENSORMP_FAILPOINT", format!("{label}=kill"))
            .stdin(Stdio::piped())
            .spawn()?;
        tally.processes += 1;
        let input = last.stdin.take();
        let start = Instant::now();
        let mut ended = None;
        while arena.participants() < 2 && ended.is_none() && start.elapsed() < patience {
            ended = last.try_wait()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        drop((arena, input));
        while ended.is_none() && start.elapsed() < 2 * patience {
            ended = last.try_wait()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        match ended {
            None => {
                tally.hangs += 1;
                tally.problem(format!("the last one hangs while it leaves, at {label}"));
                last.kill()?;
                last.wait()?;
            }
            Some(status) if status.code().is_none() => {
                *tally.killed_at_labels.entry(label).or_default() += 1;
            }
            Some(status) if status.success() => {}
            Some(status) => {
                tally.crashes += 1;
                tally.problem(format!("the last one to leave ended with {status}"));
            }
        }
        sweep(folder.path(), false)?;
        let left: Vec<_> = std::fs::read_dir(folder.path())?.flatten().collect();
        if !left.is_empty() {
            tally.files_left += left.len() as u64;
            tally.problem(format!(
                "the last one was killed at {label}, and the sweep left {left:?}"
            ));
            return Ok(());
        }
    }
    Ok(())
}
