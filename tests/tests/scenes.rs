//! The main job, as a user runs it: exact cuts in every arrangement, clear errors, Ctrl-C, and each of its four
//! processes killed at any moment and at each labelled step. Never a hang, never a process left.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};

use integration_tests::{children_of, kill, name_of, tests};
use rustix::process::{Pid, Signal, kill_process};

fn main() -> ExitCode {
    integration_tests::main(&tests![
        the_real_clip_gives_its_five_cuts_in_every_arrangement,
        the_built_in_clip_gives_exactly_its_known_cuts,
        a_hop_is_counted_for_every_frame,
        unusable_input_is_a_clear_error_and_code_2,
        impossible_options_are_told_and_code_2,
        ctrl_c_ends_all_processes_with_130,
        a_reader_that_has_had_enough_ends_all_processes,
        each_process_killed_in_the_middle_is_named_with_its_signal,
        each_process_killed_at_each_step_of_one_worker_is_named,
        each_process_killed_at_each_step_among_workers_is_named,
    ])
}

const REAL_CUTS: [u64; 5] = [30, 76, 137, 187, 242];
const BUILT_IN_CUTS: [u64; 4] = [42, 97, 203, 228];

fn scenes() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scenes"));
    command.stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    scenes().args(arguments).output().expect("scenes runs")
}

/// The real clip, which lies beside the repository where there is one.
fn real_clip() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = root
        .ancestors()
        .map(|folder| folder.join("shared/data/bikes-160x68.y4m"))
        .find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no shared/data/bikes-160x68.y4m beside the repository");
    }
    found
}

/// The frames of the cuts that a run with `--json` printed, and its last line.
#[track_caller]
fn cuts(output: &Output) -> (Vec<u64>, serde_json::Value) {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    let mut lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let summary = lines.pop().expect("a summary");
    let frames = lines
        .iter()
        .map(|line| line["frame"].as_u64().expect("a frame"))
        .collect();
    (frames, summary)
}

fn the_real_clip_gives_its_five_cuts_in_every_arrangement() {
    let Some(clip) = real_clip() else { return };
    let clip = clip.to_str().expect("a path in UTF-8");
    for workers in ["1", "2", "3"] {
        let output = run(&[clip, "--json", "--workers", workers, "--slots", "2"]);
        assert_eq!(cuts(&output).0, REAL_CUTS, "{workers} workers");
    }
    assert_eq!(cuts(&run(&[clip, "--json", "--slots", "16"])).0, REAL_CUTS);
    for transport in ["ring", "serialized"] {
        let file = std::fs::File::open(clip).expect("the clip");
        let output = scenes()
            .args(["-", "--json", "--transport", transport])
            .stdin(file)
            .output()
            .expect("scenes runs");
        assert_eq!(cuts(&output).0, REAL_CUTS, "{transport} through stdin");
    }
}

fn the_built_in_clip_gives_exactly_its_known_cuts() {
    assert_eq!(cuts(&run(&["--json", "--size", "64x36"])).0, BUILT_IN_CUTS);
    assert_eq!(
        cuts(&run(&["--json", "--size", "64x36", "--workers", "3"])).0,
        BUILT_IN_CUTS
    );
}

fn a_hop_is_counted_for_every_frame() {
    let (_, summary) = cuts(&run(&["--json", "--size", "64x36"]));
    let frames = summary["frames"].as_u64().expect("a number");
    assert!(frames > 0);
    let transports = summary["transports"].as_array().expect("transports");
    assert_eq!(transports.len(), 2);
    for transport in transports {
        for hop in transport["hops"].as_array().expect("hops") {
            assert_eq!(hop["count"].as_u64(), Some(frames), "{hop}");
            assert!(
                hop["p50_ns"].as_u64() > Some(0)
                    && hop["p99_ns"].as_u64() >= hop["p50_ns"].as_u64(),
                "{hop}"
            );
        }
    }
}

fn unusable_input_is_a_clear_error_and_code_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let clip = run(&["--generate", "--size", "32x18"]).stdout;
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let header = clip
        .iter()
        .position(|&byte| byte == b'\n')
        .expect("a header");
    let with_header = |text: &str| [text.as_bytes(), b"\n", &clip[header + 1..]].concat();
    let cases = [
        (
            folder.join("missing").to_str().expect("UTF-8").to_owned(),
            "cannot be opened",
        ),
        (write("empty", b""), "it is empty"),
        (write("text", b"This is no video.\n"), "no YUV4MPEG2"),
        (
            write("cut", &clip[..clip.len() - 100]),
            "in the middle of a frame",
        ),
        (write("half-header", &clip[..10]), "header"),
        (
            write("deep", &with_header("YUV4MPEG2 W32 H18 F25:1 C420p10")),
            "p10",
        ),
        (
            write("zero", &with_header("YUV4MPEG2 W0 H18 F25:1 C420")),
            "0",
        ),
    ];
    for (path, words) in &cases {
        let output = run(&[path, "--json"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{path}: {said}");
        assert!(
            said.contains(words) && said.contains(path.as_str()),
            "{path}: {said}"
        );
    }
}

fn impossible_options_are_told_and_code_2() {
    for arguments in [
        &["--slots", "0"][..],
        &["--workers", "0"],
        &["--transport", "pigeon"],
        &["--size", "0x0"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!output.stderr.is_empty());
    }
}

/// A run whose input does not end: the built-in clip over and over, through stdin.
struct Endless {
    child: Child,
    feeder: std::thread::JoinHandle<()>,
}

impl Endless {
    fn start(arguments: &[&str], stdout: Stdio) -> Self {
        let clip = run(&["--generate", "--size", "32x18"]).stdout;
        let header = clip
            .iter()
            .position(|&byte| byte == b'\n')
            .expect("a header")
            + 1;
        let mut child = scenes()
            .arg("-")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .expect("scenes runs");
        let mut input = child.stdin.take().expect("a pipe");
        let feeder = std::thread::spawn(move || {
            // Until nobody reads any more.
            if input.write_all(&clip[..header]).is_ok() {
                while input.write_all(&clip[header..]).is_ok() {}
            }
        });
        Self { child, feeder }
    }

    /// The children, once all `count` are there under their names.
    fn workers(&self, count: usize) -> Vec<(u32, String)> {
        loop {
            let workers: Vec<_> = children_of(self.child.id())
                .into_iter()
                .filter_map(|pid| Some((pid, name_of(pid)?)))
                .filter(|(_, name)| {
                    ["decode", "features", "detect"]
                        .iter()
                        .any(|step| name.starts_with(step))
                })
                .collect();
            if workers.len() == count {
                return workers;
            }
            std::thread::yield_now();
        }
    }

    /// Waits for the end: the exit code, and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .expect("a pipe")
            .read_to_string(&mut said)
            .expect("text");
        let status = self.child.wait().expect("an end");
        self.feeder.join().expect("the feeder");
        (status.code(), said)
    }
}

fn ctrl_c_ends_all_processes_with_130() {
    for signal in [Signal::INT, Signal::TERM] {
        let endless = Endless::start(&["--transport", "ring"], Stdio::null());
        let workers = endless.workers(4);
        kill_process(
            Pid::from_raw(endless.child.id().cast_signed()).expect("a pid"),
            signal,
        )
        .expect("to send it");
        let (code, said) = endless.end();
        assert_eq!(code, Some(130), "{said}");
        assert!(said.contains("interrupted"), "{said}");
        for (pid, name) in workers {
            assert!(name_of(pid).is_none_or(|now| now != name), "{name} is left");
        }
    }
}

fn a_reader_that_has_had_enough_ends_all_processes() {
    let mut endless = Endless::start(&["--json", "--transport", "ring"], Stdio::piped());
    let mut first = [0; 1];
    let mut output = endless.child.stdout.take().expect("a pipe");
    output.read_exact(&mut first).expect("the first cut");
    drop(output);
    let (code, said) = endless.end();
    assert_eq!(
        (code, said.contains("panicked")),
        (Some(0), false),
        "{said}"
    );
}

#[track_caller]
fn assert_names(code: Option<i32>, said: &str, process: &str) {
    assert_eq!(code, Some(1), "{process}: {said}");
    assert!(
        said.contains(process) && said.contains("SIGKILL"),
        "{process}: {said}"
    );
}

fn each_process_killed_in_the_middle_is_named_with_its_signal() {
    for round in 0..4 {
        for victim in ["decode", "features.0", "features.1", "detect"] {
            let transport = if round == 3 { "serialized" } else { "ring" };
            let endless = Endless::start(&["--transport", transport], Stdio::null());
            let workers = endless.workers(4);
            // The two workers over pipes are added one by one and have the same name.
            let prefix = if round == 3 {
                victim.split('.').next().unwrap_or(victim)
            } else {
                victim
            };
            let (pid, name) = workers
                .iter()
                .find(|(_, name)| name.starts_with(prefix))
                .expect("that process")
                .clone();
            kill(pid);
            let (code, said) = endless.end();
            assert_names(code, &said, &name);
        }
    }
}

/// Kills `process` at a step, the `nth` time it comes by.
fn killed_at(label: &str, nth: u32, process: &str, workers: &str) {
    let output = scenes()
        .args([
            "--transport",
            "ring",
            "--size",
            "32x18",
            "--slots",
            "2",
            "--workers",
            workers,
        ])
        .env(
            "TENSORMP_FAILPOINT",
            format!("{label}:{nth}@{process}=kill"),
        )
        .output()
        .expect("scenes runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let process = process.trim_end_matches('*');
    assert_names(output.status.code(), &format!("{label} in {said}"), process);
}

/// What the first process, the middle ones and the last come by in a run.
fn each_step(workers: &str, features: &str) {
    let put = ["put.claimed", "put.written", "put.giving", "put.published"];
    let get = ["get.taken", "get.recorded", "get.released"];
    let release = [
        "block.drop.left",
        "block.drop.recorded",
        "block.drop.uncounted",
    ];
    // Each process gets some items, and comes by once for each.
    for nth in [1, 3] {
        for label in put {
            killed_at(label, nth, "decode", workers);
            killed_at(label, nth, features, workers);
        }
        for label in release.iter().chain(&get) {
            killed_at(label, nth, features, workers);
            killed_at(label, nth, "detect", workers);
        }
    }
}

fn each_process_killed_at_each_step_of_one_worker_is_named() {
    each_step("1", "features");
}

fn each_process_killed_at_each_step_among_workers_is_named() {
    // One of them comes by often enough, whichever gets most of the items.
    each_step("2", "features.*");
}
