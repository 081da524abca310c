//! Arenas with a name: strangers that attach, full and foreign file systems, and what is left when all are killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use integration_tests::{Test, allow_leaks, kill, pidfd, play, tests, wait_for_end};
use tensormp::prelude::*;
use tensormp::shm_core::ErrorKind;
use tensormp::shm_core::strategy::file_system::{list, path_of, sweep};

pub(crate) const PROMISES: &[Test] = &tests![
    strangers_share_queues_and_tensors_by_name,
    a_stranger_that_is_killed_is_buried_and_its_receiver_told,
    a_strangers_children_share_its_named_arena,
    a_long_directory_is_no_obstacle,
    a_directory_on_a_disk_serves_as_well,
    an_arena_on_a_full_tmpfs_is_an_error_not_a_sigbus,
    when_all_are_killed_the_sweep_removes_the_file_and_nothing_else,
    a_program_that_ends_leaves_no_file,
];

pub(crate) const SCENES: &[Test] = &tests![a_stranger, a_host, a_filler];

/// The environment variable that tells a scene where the arena is.
const PLACE: &str = "CONFORMANCE_PLACE";

fn place() -> PathBuf {
    std::env::var_os(PLACE).expect("a place").into()
}

fn scene(name: &str, place: impl Into<PathBuf>) -> Command {
    let mut command = play(&format!("file_system::{name}"));
    command.env(PLACE, place.into());
    command
}

/// Runs a scene to its end.
#[track_caller]
fn played(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

type Frame = (u32, Tensor<u8>);

/// A program that knows the arena's name and nothing else.
fn a_stranger() {
    let arena = Arena::attach(place()).unwrap();
    let frames: Receiver<Frame> = arena.open("frames").unwrap();
    let (weights, sums): (SharedTensor<u32>, Sender<u64>) = arena.open("weights").unwrap();
    for (factor, frame) in &frames {
        let pixels: u64 = frame.as_slice().iter().map(|&x| u64::from(x)).sum();
        let weights: u64 = weights.as_slice().iter().map(|&x| u64::from(x)).sum();
        sums.put(u64::from(factor) * (pixels + weights)).unwrap();
        if std::env::var_os("CONFORMANCE_DIES").is_some() {
            kill(std::process::id());
        }
    }
    // What it makes outlives it.
    let answer = Tensor::full_in(&arena, 4, 4_u16).unwrap().freeze();
    arena.publish("answer", &answer).unwrap();
}

fn named(directory: &std::path::Path) -> Arena {
    Arena::builder()
        .name("conformance")
        .directory(directory)
        .capacity(1 << 30)
        .create()
        .unwrap()
}

/// Publishes work for a stranger; what is left is the other ends.
fn offer(arena: &Arena) -> (Sender<Frame>, Receiver<u64>) {
    let (work, frames) = Queue::bounded_in(arena, 4).unwrap().split();
    let (to, sums) = Queue::bounded_in(arena, 4).unwrap().split();
    let weights = Tensor::full_in(arena, 3, 2_u32).unwrap().freeze();
    arena.publish("frames", &frames).unwrap();
    arena.publish("weights", &(weights, to)).unwrap();
    (work, sums)
}

fn strangers_share_queues_and_tensors_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let arena = named(directory.path());
    let (work, sums) = offer(&arena);
    for factor in 1..=3 {
        let frame = Tensor::full_in(&arena, [10, 10], 1_u8).unwrap();
        work.put((factor, frame)).unwrap();
    }
    drop(work);
    played(&mut scene("a_stranger", arena.path().unwrap()));
    assert_eq!([(); 3].map(|()| sums.get().unwrap()), [106, 212, 318]);
    let answer: SharedTensor<u16> = arena.open("answer").unwrap();
    assert_eq!(answer.as_slice(), [4; 4]);
    drop((answer, sums));
    for name in ["frames", "weights", "answer"] {
        arena.unpublish(name).unwrap();
    }
    let audit = arena.audit();
    assert!(
        audit.leaked.is_empty() && audit.missing.is_empty(),
        "{audit:?}"
    );
    drop(arena);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

fn a_stranger_that_is_killed_is_buried_and_its_receiver_told() {
    let directory = tempfile::tempdir().unwrap();
    let arena = named(directory.path());
    let (work, sums) = offer(&arena);
    let mut stranger = scene("a_stranger", arena.path().unwrap());
    let mut stranger = stranger.env("CONFORMANCE_DIES", "").spawn().unwrap();
    let frame = Tensor::full_in(&arena, [10, 10], 1_u8).unwrap();
    work.put((1, frame)).unwrap();
    assert_eq!(sums.get().unwrap(), 106);
    // The name holds a sender; without it the stranger's is the last one, and that is gone.
    arena.unpublish("weights").unwrap();
    assert!(sums.get().is_err());
    stranger.wait().unwrap();
    arena.bury_the_dead();
    assert_eq!(arena.participants(), 1);
    let audit = arena.audit();
    assert!(
        audit.missing.is_empty() && audit.leaked.len() <= 1,
        "{audit:?}"
    );
}

fn a_strangers_children_share_its_named_arena() {
    fn sum(_rank: usize, tensor: SharedTensor<u32>) -> tensormp::Result<u32> {
        let arena = Arena::current()?;
        assert_eq!(arena.strategy(), &"file_system");
        arena.publish("seen", &tensor)?;
        Ok(tensor.as_slice().iter().sum())
    }
    let directory = tempfile::tempdir().unwrap();
    let arena = named(directory.path());
    let tensor = Tensor::full_in(&arena, 5, 5_u32).unwrap().freeze();
    Arena::install_current(Arena::attach(arena.path().unwrap()).unwrap()).unwrap();
    let error = spawn(sum, tensor, 1).err().map(|error| error.to_string());
    // Each participation has handles of its own, though both are this process's.
    assert!(error.is_some_and(|text| text.contains("copy_into")));
    let tensor = Tensor::full(5, 5_u32).unwrap().freeze();
    let mut context = spawn(sum, tensor, 1).unwrap();
    assert_eq!(context.join().unwrap(), [25]);
    let seen: SharedTensor<u32> = arena.open("seen").unwrap();
    assert_eq!(seen.as_slice(), [5; 5]);
}

fn a_long_directory_is_no_obstacle() {
    // Longer than the path of a socket may be.
    let directory = tempfile::tempdir().unwrap();
    let long = directory
        .path()
        .join("long".repeat(50))
        .join("longer".repeat(30));
    std::fs::create_dir_all(&long).unwrap();
    let arena = named(&long);
    let (work, sums) = offer(&arena);
    work.put((1, Tensor::zeros_in(&arena, 1).unwrap())).unwrap();
    drop(work);
    played(&mut scene("a_stranger", arena.path().unwrap()));
    assert_eq!(sums.get().unwrap(), 6);
}

fn a_directory_on_a_disk_serves_as_well() {
    // Where cargo builds is hardly ever a tmpfs.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let arena = named(directory.path());
    let tensor = Tensor::full_in(&arena, 1 << 20, 7_u32).unwrap().freeze();
    arena.publish("large", &tensor).unwrap();
    let again = Arena::attach(arena.path().unwrap()).unwrap();
    let same: SharedTensor<u32> = again.open("large").unwrap();
    assert!(same.as_slice().iter().all(|&x| x == 7));
}

/// Fills an arena in a small tmpfs until there is no room, and writes to all of it.
fn a_filler() {
    let arena = named(&place());
    let mut kept = Vec::new();
    let error = loop {
        match Tensor::full_in(&arena, 4 << 20, 1_u8) {
            Ok(tensor) => kept.push(tensor),
            Err(error) => break error,
        }
    };
    let ErrorKind::OutOfRoom(shortage) = error.kind() else {
        panic!("{error}")
    };
    assert!(
        shortage.free < shortage.asked && shortage.asked <= 5 << 20,
        "{shortage:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("file system") && text.contains("enlarge"),
        "{text}"
    );
    assert!(
        (10..16).contains(&kept.len()),
        "{} of 4 MiB in 64",
        kept.len()
    );
    for tensor in &mut kept {
        tensor.fill(2);
    }
    // And it goes on.
    kept.pop();
    kept.push(Tensor::full_in(&arena, 4 << 20, 3_u8).unwrap());
}

fn an_arena_on_a_full_tmpfs_is_an_error_not_a_sigbus() {
    let directory = tempfile::tempdir().unwrap();
    let filler = scene("a_filler", directory.path());
    let mount = r#"mount -t tmpfs -o size=64m,mode=700 none "$CONFORMANCE_PLACE" || exit 99; exec "$0" "$@""#;
    let mut isolated = Command::new("unshare");
    isolated.args(["-m", "--propagation", "private", "sh", "-c", mount]);
    isolated.arg(filler.get_program()).args(filler.get_args());
    isolated.env(PLACE, directory.path()).stdin(Stdio::null());
    match Command::new("unshare").args(["-m", "true"]).output() {
        Ok(able) if able.status.success() => {}
        other => return eprintln!("skipped: no mount namespace can be made here: {other:?}"),
    }
    let output = isolated.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(99) {
        return eprintln!("skipped: no tmpfs can be mounted here: {text}");
    }
    assert!(output.status.success(), "{}\n{text}", output.status);
}

/// Makes an arena (or attaches to it), says so, and waits to be killed.
fn a_host() {
    let directory = place();
    let arena = match Arena::attach(path_of(&directory, "conformance").unwrap()) {
        Ok(arena) => arena,
        Err(_) => named(&directory),
    };
    let queue = Queue::<Tensor<u8>>::bounded_in(&arena, 4).unwrap();
    queue
        .put(Tensor::zeros_in(&arena, 1 << 20).unwrap())
        .unwrap();
    let name = std::process::id().to_string();
    arena.publish(&name, &queue).unwrap();
    println!("there");
    loop {
        std::thread::park();
    }
}

fn start_host(directory: &std::path::Path) -> Child {
    let mut command = scene("a_host", directory);
    let mut host = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let said = BufReader::new(host.stdout.as_mut().unwrap()).read_line(&mut line);
    assert_eq!((said.unwrap(), line.as_str()), (6, "there\n"));
    host
}

fn end(mut host: Child) {
    let process = pidfd(host.id());
    kill(host.id());
    wait_for_end(&process);
    host.wait().unwrap();
}

fn when_all_are_killed_the_sweep_removes_the_file_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("somebody's file");
    std::fs::write(&other, "theirs").unwrap();
    let hosts = [(); 3].map(|()| start_host(directory.path()));
    let found = list(directory.path()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].participants.len(), 3);
    let mut left = 3;
    for host in hosts {
        assert_eq!(
            sweep(directory.path(), false).unwrap(),
            [],
            "{left} live there"
        );
        end(host);
        left -= 1;
    }
    // Whoever comes first finds all as it was, and buries the dead.
    let arena = Arena::attach(&found[0].path).unwrap();
    assert_eq!(arena.published().unwrap().len(), 3);
    let audit = arena.audit();
    assert!(audit.missing.is_empty(), "{audit:?}");
    drop(arena);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    end(start_host(directory.path()));
    assert_eq!(sweep(directory.path(), false).unwrap().len(), 1);
    assert_eq!(std::fs::read_to_string(other).unwrap(), "theirs");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

fn a_program_that_ends_leaves_no_file() {
    allow_leaks(0);
    // In /dev/shm, by the names that others would use. The harness looks there afterwards.
    let name = format!("conformance.{}", std::process::id());
    let arena = Arena::builder()
        .name(&name)
        .capacity(1 << 30)
        .create()
        .unwrap();
    assert!(arena.path().unwrap().starts_with("/dev/shm"));
    assert_eq!(Arena::attach(&name).unwrap().participants(), 2);
    // Never dropped: the end of the process removes its file.
    std::mem::forget(arena);
    assert!(Arena::current().unwrap().path().unwrap().exists());
}
