//! The command of a program whose pipelines come from files, as the example `video_clips` has it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tensormp::pipeline::report::Run;

fn configuration(name: &str) -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.join("../crates/tensormp/examples/video_clips")
        .join(name)
}

/// Small clips: what is looked at is the command, and that the results are the same.
fn run(name: &str, more: &[&str]) -> Output {
    command(name, more).output().expect("video_clips runs")
}

fn command(name: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_video_clips"));
    command
        .arg("run")
        .arg(configuration(name))
        .args([
            "--device",
            "cpu",
            "--set",
            "pipeline.0.size=16",
            "--set",
            "pipeline.1.size=16",
        ])
        .args(["--set", "pipeline.0.clips=6", "--set", "pipeline.1.clips=6"])
        .args(more)
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn clips_give_the_same_features_however_they_are_split() {
    let dir = tempfile::tempdir().unwrap();
    let mut first: Option<String> = None;
    for (name, more) in [
        ("whole.toml", &[][..]),
        ("segments.toml", &[]),
        (
            "segments.toml",
            &["--set", "load.segments=5", "--set", "pipeline.1.threads=2"],
        ),
        ("rnb.json", &[]),
    ] {
        let file = dir.path().join("results.jsonl");
        let results = format!("pipeline.2.results={}", file.display());
        let mut all = vec!["-n", "9", "-m", "0.5", "--json", "--set", &results];
        all.extend(more);
        let output = run(name, &all);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{name}: {said}");
        let outcome: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!(outcome["termination"], "target_reached");
        assert_eq!(outcome["items"]["completed"], 9);
        let features = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(features.lines().count(), 9);
        assert_eq!(
            *first.get_or_insert(features.clone()),
            features,
            "{name} {more:?}"
        );
    }
}

pub(crate) fn the_command_says_how_a_run_ended() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run").display().to_string();
    let output = run("whole.toml", &["-n", "3", "-m", "0", "--out", &out]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.starts_with("target_reached: 3 items"), "{said}");
    assert!(
        said.contains(&format!("report: {out}/report.html")),
        "{said}"
    );
    assert!(
        output.stderr.is_empty(),
        "no progress line where nobody looks"
    );
    let run_json = std::fs::read_to_string(dir.path().join("run/run.json")).unwrap();
    let run_json: Value = serde_json::from_str(&run_json).unwrap();
    assert_eq!(run_json["config"]["client"]["count"], 3);

    // Once more, there is a run already.
    let again = ["-n", "4", "-m", "0", "--json", "--out", &out];
    let output = run("whole.toml", &again);
    assert_eq!(output.status.code(), Some(2));
    let told: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert!(
        told["error"].as_str().unwrap().contains("--overwrite"),
        "{told}"
    );
    let output = run("whole.toml", &[&again[..], &["--overwrite"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(told["report"], format!("{out}/report.html"));
    // The rate of a run is one and the same wherever it is told.
    let summary = std::fs::read_to_string(dir.path().join("run/summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["items"]["completed"], 4);
    assert_eq!(summary["throughput"], told["per_second"]);
    assert_eq!(summary["seconds"], told["seconds"]);
    let run_json = std::fs::read_to_string(dir.path().join("run/run.json")).unwrap();
    let run_json: Value = serde_json::from_str(&run_json).unwrap();
    assert!(told["clock_start_ns"].is_u64(), "{told}");
    assert_eq!(run_json["clock_start_ns"], told["clock_start_ns"]);

    // Killed before it can say how it ended, it has said what ran.
    let out = dir.path().join("killed");
    let mut killed = command(
        "whole.toml",
        &[
            "-m",
            "20",
            "-n",
            "1000000",
            "--out",
            &out.display().to_string(),
        ],
    );
    let mut killed = killed.stdout(Stdio::null()).spawn().unwrap();
    let description = out.join("run.json");
    while !description.exists() && killed.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let report = Run::open(&out).unwrap();
    assert!(!report.has_ended() && report.steps.len() == 3);

    // Whoever starts what has no end is told so.
    let output = run("rnb.json", &["--set", "timeout_ms=1"]);
    let said = text(&output.stderr);
    assert!(
        said.starts_with("note: the inputs never end, and no count is given")
            && said.contains("until its limit of 1ms or Ctrl-C; give --count to end it"),
        "{said}"
    );

    // The run came to its end, and its report could not be written.
    let taken = dir.path().join("taken");
    std::fs::create_dir_all(taken.join("summary.json/by a folder")).unwrap();
    let taken = taken.display().to_string();
    let output = run("whole.toml", &["-n", "1", "-m", "0", "--out", &taken]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("summary.json could not be written"));

    // Nobody reads, or nothing can be written.
    let closed = std::io::pipe().unwrap().1;
    let full = std::fs::File::create("/dev/full").unwrap();
    for (out, code) in [(Stdio::from(closed), 0), (Stdio::from(full), 1)] {
        let mut command = command("whole.toml", &["--check"]);
        let status = command.stdout(out).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(code));
    }

    let checked = run("segments.toml", &["--check"]);
    assert_eq!(checked.status.code(), Some(0));
    for (code, told, more) in [
        (2, "unknown field `colour`", &["--set", "load.colour=1"][..]),
        (2, "step \"load\", segments", &["--set", "load.segments=50"]),
        (2, "KEY=VALUE", &["--set", "load"]),
        (2, "unexpected argument", &["--colour"]),
        (2, "invalid value '-3'", &["--count", "-3"]),
        // What is wrong is told where it was written.
        (
            2,
            "error: --set load.slots=0: step \"load\", slots: 0 slots",
            &["--set", "load.slots=0"],
        ),
        (
            2,
            "error: --set load.slots=many: step \"load\", slots: invalid type",
            &["--set", "load.limit_ms=1e9", "--set", "load.slots=many"],
        ),
        (
            2,
            "error: --queue-size 0: client, queue_size: 0 items",
            &["--queue-size", "0"],
        ),
        (
            2,
            "error: --set pipline.0.slots=1: there is no \"pipline\"",
            &["--set", "pipline.0.slots=1"],
        ),
        (1, "no.y4m", &["--set", "iterator_params.path=no.y4m"]),
        (
            3,
            "full",
            &[
                "--set",
                "load.backpressure=fail",
                "--set",
                "load.slots=6",
                "-m",
                "0",
            ],
        ),
        (4, "limit", &["--set", "timeout_ms=1"]),
    ] {
        let output = run("segments.toml", more);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        assert!(said.contains(told), "{more:?}: {said}");
    }
}

pub(crate) fn what_is_odd_is_told_by_a_check_in_its_object_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("odd.toml");
    let steps = "iterator = \"Videos\"\n[[pipeline]]\nstage = \"Load\"\n";
    let last = "[[pipeline]]\nstage = \"Convolve\"\n";
    std::fs::write(&file, format!("{steps}{last}")).unwrap();
    let check = |file: PathBuf| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_video_clips"));
        command.arg("run").arg(file).args(["--check", "--json"]);
        let output = command.output().expect("video_clips runs");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let told: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!(told["check"], "ok", "{told}");
        (told["warnings"].clone(), said)
    };
    let (warnings, said) = check(file);
    let [Value::String(warning)] = &warnings.as_array().unwrap()[..] else {
        panic!("one warning: {warnings}");
    };
    assert!(warning.contains("\"Convolve\" is the last"), "{warning}");
    assert_eq!(said, format!("warning: {warning}\n"));
    let (warnings, said) = check(configuration("whole.toml"));
    assert_eq!((warnings, &*said), (serde_json::json!([]), ""));
}

pub(crate) fn a_process_that_is_replaced_is_told_with_the_cause_while_it_runs_and_after() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let out_dir = out.display().to_string();
    let mut running = command(
        "whole.toml",
        &["-m", "5", "-n", "1000000", "--out", &out_dir],
    );
    let mut running = running
        .args(["--set", "load.restart=2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let send = |signal: &str, pid: u32| {
        let mut kill = Command::new("kill");
        let sent = kill.args([signal, &pid.to_string()]).status();
        assert!(sent.unwrap().success());
    };
    let description = out.join("run.json");
    while !description.exists() && running.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let pid = Run::open(&out).unwrap().processes[0].pid;
    send("-KILL", pid);
    // It is told at once, while the run goes on.
    let mut told = BufReader::new(running.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    let cause = "was killed by SIGKILL";
    assert!(
        line.starts_with(&format!("warning: process \"load\" (pid {pid}) {cause}"))
            && line.contains("another takes its place (restart 1 of 2)"),
        "{line}"
    );
    send("-INT", running.id());
    let output = running.wait_with_output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{said}");
    let once = format!("process \"load\" was replaced once: it {cause}");
    assert!(said.contains(&once), "{said}");
    let summary = std::fs::read_to_string(out.join("summary.txt")).unwrap();
    assert!(summary.contains(&once), "{summary}");
    // And each on a line of its own.
    let each = format!(": step \"load\", rank 0 (process \"load\", pid {pid}) {cause}");
    assert!(summary.contains(&each), "{summary}");
    // By the same words, with the moment and what became of its items, where the run is over.
    let lines = |text: &str| -> Vec<String> {
        let of_it = text
            .lines()
            .filter(|line| line.contains("process \"load\""));
        of_it.map(str::to_owned).collect()
    };
    assert_eq!(lines(&said), lines(&summary), "{said}");
    assert_eq!(Run::open(&out).unwrap().processes[0].replaced[0].pid, pid);
}

/// As where the terminal is gone, or whoever read has ended.
fn nobody_listens() -> std::fs::File {
    std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
}

pub(crate) fn the_exit_code_is_the_same_where_nobody_can_be_told() {
    let mut wrong = command("nowhere.toml", &[]);
    let output = wrong.stderr(nobody_listens()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
}

/// A terminal that is closed, or a connection that is lost, ends a run as Ctrl-C does.
pub(crate) fn a_hangup_ends_a_run_as_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let count = ["-m", "20", "-n", "1000000", "--out"];
    let mut running = command("whole.toml", &count)
        .arg(&out)
        .stdout(Stdio::piped())
        .stderr(nobody_listens())
        .spawn()
        .unwrap();
    while !out.join("run.json").exists() && running.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let mut kill = Command::new("kill");
    let sent = kill.args(["-HUP", &running.id().to_string()]).status();
    assert!(sent.unwrap().success());
    ends_as_interrupted(running, &out);
}

/// With its report in that directory.
fn ends_as_interrupted(running: Child, out: &Path) {
    let output = running.wait_with_output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    let run = Run::open(out).unwrap();
    assert!(run.has_ended());
    assert_eq!(run.termination.reason, "interrupted");
}

/// Ctrl-C on a terminal reaches all processes of the program at once, its own first of all or last.
pub(crate) fn ctrl_c_on_a_terminal_ends_a_run_as_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let command = command(
        "whole.toml",
        &[
            "-m",
            "20",
            "-n",
            "1000000",
            "--out",
            &out.display().to_string(),
        ],
    );
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| format!("'{}'", word.display()))
        .collect();
    let mut terminal = Command::new("script");
    terminal
        .args([
            "--quiet",
            "--return",
            "--command",
            &words.join(" "),
            "/dev/null",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut running = match terminal.spawn() {
        Ok(running) => running,
        Err(error) => {
            eprintln!(
                "skipped: no terminal to press Ctrl-C on, since `script` cannot be run: {error}"
            );
            return;
        }
    };
    while !out.join("run.json").exists() && running.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    // It stays open: its end would be the end of the terminal's input.
    let mut keys = running.stdin.take().unwrap();
    keys.write_all(&[3]).unwrap();
    ends_as_interrupted(running, &out);
    drop(keys);
}
