//! `ls` and `gc`.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use integration_tests::{Test, kill, pidfd, play, resume, stop, tests, wait_for_end};
use serde_json::Value;
use tensormp::prelude::*;
use tensormp::shm_core::strategy::file_system::path_of;

use crate::{everywhere, objects, on, text};

pub(crate) const PROMISES: &[Test] = &tests![
    an_arena_without_a_name_is_listed_by_the_processes_that_hold_it,
    an_arena_is_found_in_any_directory_while_somebody_has_it_open,
    the_living_the_stopped_and_the_dead_are_told_apart,
    what_was_killed_is_removed_and_what_lives_is_kept,
    a_look_leaves_no_trace,
    what_is_no_arena_is_left_out_with_the_reason_and_left_alone,
    a_file_whose_maker_was_killed_is_removed,
    a_name_cannot_drive_the_terminal,
    a_file_that_was_removed_by_hand_is_listed_while_it_takes_memory,
];

pub(crate) const SCENES: &[Test] = &tests![a_resident];

const PLACE: &str = "COMMAND_PLACE";

/// Takes part in the arena of that path (or makes it), holds a tensor, says so, and stays.
fn a_resident() {
    let path = PathBuf::from(std::env::var_os(PLACE).unwrap());
    let arena = Arena::attach(&path).unwrap_or_else(|_| named(path.parent().unwrap()));
    arena.recorder().set_name("resident");
    arena.recorder().set_task("sitting there");
    let tensor = Tensor::<u8>::zeros_in(&arena, 1 << 20).unwrap();
    println!("there");
    let _ = std::io::stdin().read(&mut [0]);
    drop(tensor);
}

fn named(directory: &Path) -> Arena {
    let builder = Arena::builder().name("command").directory(directory);
    builder.capacity(1 << 30).create().unwrap()
}

struct Resident(Child);

impl Resident {
    fn in_arena_at(path: &Path) -> Self {
        let mut scene = play("a_resident");
        scene.env(PLACE, path).stdin(Stdio::piped());
        let mut child = scene.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.as_mut().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "there\n");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn killed(mut self) -> u32 {
        let process = pidfd(self.pid());
        kill(self.pid());
        wait_for_end(&process);
        self.0.wait().unwrap();
        self.pid()
    }

    fn ended(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

/// The object about the file at `path`.
fn at<'a>(objects: &'a [Value], path: &Path) -> Option<&'a Value> {
    objects
        .iter()
        .find(|object| object["path"].as_str() == path.to_str())
}

fn participant(arena: &Value, pid: u32) -> &Value {
    let all = arena["participants"].as_array().unwrap();
    all.iter().find(|one| one["pid"] == pid).expect("its row")
}

fn an_arena_without_a_name_is_listed_by_the_processes_that_hold_it() {
    fn look(_rank: usize, (): ()) -> tensormp::Result<String> {
        // A process takes part from the moment at which it needs something of the arena.
        Arena::current()?;
        let output = everywhere(&["ls", "--json"]);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
    let arena = Arena::current().unwrap();
    arena.recorder().set_name("root");
    let tensor = Tensor::<f32>::zeros(3 << 20).unwrap().freeze();
    let here = std::process::id();
    let mut context = spawn(look, (), 1).unwrap();
    let worker = context.pids()[0];
    let said = context.join().unwrap()[0].clone();
    let all: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let found = all.iter().find(|object| {
        let holders = object["holders"].as_array().unwrap();
        holders.contains(&here.into())
    });
    let found = found.expect(&said);
    assert_eq!(found["strategy"], "file_descriptor");
    assert!(found["path"].is_null() && found["inhabited"] == true);
    assert!(
        found["holders"]
            .as_array()
            .unwrap()
            .contains(&worker.into())
    );
    let (me, it) = (participant(found, here), participant(found, worker));
    assert_eq!(
        (&me["name"], &me["state"]),
        (&"root".into(), &"alive".into())
    );
    assert_eq!(
        (&it["state"], &it["stopped"]),
        (&"alive".into(), &false.into())
    );
    assert!(me["bytes"].as_u64().unwrap() >= 12 << 20, "{me}");
    assert!(found["live"].as_u64() >= me["bytes"].as_u64());
    assert!(found["committed"].as_u64() >= found["live"].as_u64());
    drop(tensor);

    let told = text(everywhere(&["ls"]));
    assert!(told.contains(&format!("memfd of process {here}")), "{told}");
    let empty = tempfile::tempdir().unwrap();
    let told = text(on(empty.path(), &["ls"]));
    assert!(
        told.starts_with("no arenas of this user: none in"),
        "{told}"
    );
}

fn an_arena_is_found_in_any_directory_while_somebody_has_it_open() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let arena = named(directory.path());
    let path = arena.path().unwrap();
    let all = objects(&everywhere(&["ls", "--json"]));
    let found = at(&all, &path).expect("by its holders");
    assert_eq!(found["holders"], serde_json::json!([std::process::id()]));
    // Where directories are given, only what is there.
    assert!(objects(&on(elsewhere.path(), &["ls", "--json"])).is_empty());
    let link = elsewhere.path().join("link");
    symlink(directory.path(), &link).unwrap();
    for place in [directory.path(), &link] {
        assert_eq!(objects(&on(place, &["ls", "--json"])).len(), 1);
    }
    drop(arena);
    assert!(at(&objects(&everywhere(&["ls", "--json"])), &path).is_none());
}

fn the_living_the_stopped_and_the_dead_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = path_of(directory.path(), "command").unwrap();
    let [stays, stops, dies] = [(); 3].map(|()| Resident::in_arena_at(&path));
    // None of them looks after the others: they only wait.
    stop(stops.pid());
    let dead = dies.killed();
    let all = objects(&on(directory.path(), &["ls", "--json"]));
    let found = at(&all, &path).expect("it is there");
    let show = |pid| {
        let one = participant(found, pid);
        assert_eq!(
            (&one["name"], &one["task"]),
            (&"resident".into(), &"sitting there".into())
        );
        assert_eq!(
            (&one["blocks"], one["bytes"].as_u64() >= Some(1 << 20)),
            (&1.into(), true)
        );
        (
            one["state"].as_str().unwrap().to_owned(),
            one["stopped"].as_bool().unwrap(),
        )
    };
    assert_eq!(show(stays.pid()), ("alive".to_owned(), false));
    assert_eq!(show(stops.pid()), ("alive".to_owned(), true));
    assert_eq!(show(dead), ("dead".to_owned(), false));
    let mut holders = [stays.pid(), stops.pid()];
    holders.sort_unstable();
    assert_eq!(found["holders"], serde_json::json!(holders));
    let told = text(on(directory.path(), &["ls"]));
    for words in [
        "alive, stopped",
        "dead, not buried",
        "strategy file_system",
        "sitting there",
    ] {
        assert!(told.contains(words), "{told}");
    }
    resume(stops.pid());
    stays.ended();
    stops.ended();
    assert!(!path.exists());
}

fn what_was_killed_is_removed_and_what_lives_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = path_of(directory.path(), "command").unwrap();
    let resident = Resident::in_arena_at(&path);
    stop(resident.pid());
    let kept = objects(&on(directory.path(), &["gc", "--json"]));
    assert_eq!(
        (&kept[0]["action"], &kept[0]["why"]),
        (&"kept".into(), &"inhabited".into())
    );
    assert_eq!(kept[0]["participants"], serde_json::json!([resident.pid()]));
    let told = text(on(directory.path(), &["gc"]));
    assert!(
        told.contains(&format!("used by process {}", resident.pid())),
        "{told}"
    );
    resident.killed();

    let told = text(on(directory.path(), &["ls"]));
    assert!(told.contains("`tensormp gc` removes it"), "{told}");
    let would = objects(&on(directory.path(), &["gc", "--dry-run", "--json"]));
    assert_eq!(
        (would.len(), &would[0]["action"]),
        (1, &"would remove".into())
    );
    assert!(path.exists(), "a dry run removes nothing");
    let told = text(on(directory.path(), &["gc"]));
    assert!(
        told.starts_with("removed ") && told.contains("nobody lives there"),
        "{told}"
    );
    assert!(!path.exists());
    assert!(text(on(directory.path(), &["gc"])).starts_with("nothing to remove"));
}

fn a_look_leaves_no_trace() {
    let directory = tempfile::tempdir().unwrap();
    let arena = named(directory.path());
    let path = arena.path().unwrap();
    let tensor = Tensor::<u8>::zeros_in(&arena, 5 << 20).unwrap();
    let state = || {
        let data = fs::metadata(&path).unwrap();
        let times = [data.atime_nsec(), data.mtime_nsec(), data.ctime_nsec()];
        // The header, rows and the first descriptors. Nothing in them changes while we do nothing.
        let mut head = vec![0; 64 << 10];
        let mut file = OpenOptions::new();
        let quietly = rustix::fs::OFlags::NOATIME.bits().cast_signed();
        let mut file = file.read(true).custom_flags(quietly).open(&path).unwrap();
        file.read_exact(&mut head).unwrap();
        (data.blocks(), times, head)
    };
    let before = state();
    text(on(directory.path(), &["ls"]));
    text(on(directory.path(), &["ls", "--json"]));
    assert!(state() == before, "{:?}", (&before.0, &before.1));
    assert_eq!(arena.participants(), 1);
    drop(tensor);
}

fn what_is_no_arena_is_left_out_with_the_reason_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name| path_of(directory.path(), name).unwrap();
    let file = |name, content: &[u8], mode| {
        fs::write(place(name), content).unwrap();
        fs::set_permissions(place(name), Permissions::from_mode(mode)).unwrap();
    };
    file("empty", b"", 0o600);
    file("garbage", &[0xa5; 1 << 16], 0o600);
    file("open", &[0; 1 << 16], 0o644);
    // The right magic, and nonsense behind it.
    file(
        "nonsense",
        &[b"tensormp".as_slice(), &[0xff; 8184]].concat(),
        0o600,
    );
    let mut huge = OpenOptions::new();
    let huge = huge
        .write(true)
        .create(true)
        .mode(0o600)
        .open(place("huge"))
        .unwrap();
    huge.set_len(1 << 40).unwrap();
    symlink("/etc/passwd", place("link")).unwrap();
    fs::create_dir(place("folder")).unwrap();
    // Opening it for reading would wait for a writer.
    let pipe = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place("pipe"),
        rustix::fs::FileType::Fifo,
        pipe,
        0,
    )
    .unwrap();
    fs::write(directory.path().join("somebody's file"), "theirs").unwrap();
    let arena = named(directory.path());
    // Of another version, or cut short.
    let whole = fs::metadata(arena.path().unwrap()).unwrap().len();
    let mut head = vec![0; 1 << 20];
    fs::File::open(arena.path().unwrap())
        .unwrap()
        .read_exact(&mut head)
        .unwrap();
    file("short", &head, 0o600);
    head[8] = 99;
    file("version", &head, 0o600);
    let other = OpenOptions::new()
        .write(true)
        .open(place("version"))
        .unwrap();
    other.set_len(whole).unwrap();

    let output = on(directory.path(), &["ls", "--json"]);
    assert!(output.status.success());
    let all = objects(&output);
    assert!(at(&all, &arena.path().unwrap()).unwrap()["error"].is_null());
    for (name, reason) in [
        ("empty", "0 bytes"),
        ("garbage", "magic"),
        ("open", "mode 0644"),
        ("nonsense", "version"),
        ("huge", "magic"),
        ("link", "Symlink"),
        ("folder", "Directory"),
        ("pipe", "Fifo"),
        ("short", "cut short"),
        ("version", "version 99"),
    ] {
        let found = at(&all, &place(name)).expect(name);
        let error = found["error"].as_str().expect(name);
        assert!(error.contains(reason), "{name}: {error}");
    }
    assert!(!String::from_utf8_lossy(&output.stdout).contains("somebody"));
    let told = text(on(directory.path(), &["ls"]));
    let place = directory.path().to_str().unwrap();
    // Others on this machine may just be making an arena, which is none yet.
    let left_out = |line: &&str| line.starts_with("left out: ") && line.contains(place);
    assert_eq!(told.lines().filter(left_out).count(), 10, "{told}");
    let told = text(on(directory.path(), &["gc"]));
    assert!(told.contains("another version (99)"), "{told}");
    // Nothing is lost with what was an arena once and was cut short, or is empty.
    let removed: Vec<&str> = told
        .lines()
        .filter(|line| line.starts_with("removed "))
        .collect();
    assert!(
        removed.len() == 2 && removed[0].contains(".empty") && removed[1].contains(".short"),
        "{told}"
    );
    drop(arena);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 9);
}

fn a_file_whose_maker_was_killed_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = path_of(directory.path(), "command").unwrap();
    let mut scene = play("a_resident");
    scene
        .env(PLACE, &path)
        .env("TENSORMP_FAILPOINT", "named.hidden=kill");
    let mut child = scene.stdout(Stdio::null()).spawn().unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        1,
        "the hidden file"
    );
    let told = text(on(directory.path(), &["gc"]));
    assert!(told.starts_with("removed "), "{told}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

fn a_name_cannot_drive_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let arena = named(directory.path());
    arena.recorder().set_name("\u{1b}[2Jcleared");
    arena.recorder().set_task("line\nforged line");
    let told = text(on(directory.path(), &["ls"]));
    assert!(
        told.contains("cleared") && !told.contains('\u{1b}'),
        "{told}"
    );
    assert!(
        !told.lines().any(|line| line.starts_with("forged")),
        "{told}"
    );
}

fn a_file_that_was_removed_by_hand_is_listed_while_it_takes_memory() {
    let directory = tempfile::tempdir().unwrap();
    let arena = named(directory.path());
    fs::remove_file(arena.path().unwrap()).unwrap();
    let told = text(everywhere(&["ls"]));
    let here = std::process::id();
    assert!(
        told.contains(&format!("file without a name any more, of process {here}")),
        "{told}"
    );
}
