//! Processes that end or are killed while they make, enter or leave a named arena, and the sweep after them.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::process::Signal;

use super::*;
use crate::testing::{Held, assert_passed, output, rerun};

/// The environment variable that tells a child where.
const PLACE: &str = "SHM_CORE_TEST_PLACE";

/// The command of a child that is killed at a step, or ends by itself.
fn at_step(command: &mut Command, step: &str, place: &Path) -> bool {
    command
        .env(PLACE, place)
        .env("TENSORMP_FAILPOINT", format!("{step}=kill"));
    let output = output(command);
    let killed = output.status.signal() == Some(libc::SIGKILL);
    if !killed {
        assert_passed(&output);
    }
    killed
}

fn place() -> PathBuf {
    std::env::var_os(PLACE).unwrap().into()
}

#[test]
fn a_maker_killed_on_the_way_leaves_what_the_sweep_removes() {
    const NAME: &str = "strategy::file_system::tests::deaths::a_maker_killed_on_the_way_leaves_what_the_sweep_removes";
    if rerun(NAME).is_none() {
        let strategy = FileSystem::new().directory(place());
        if std::env::var("TENSORMP_FAILPOINT")
            .unwrap()
            .contains("unsized")
        {
            let _unsized = strategy.create().unwrap();
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, Signal::KILL).unwrap();
        }
        return drop(named(&place(), "a"));
    }
    let directory = directory();
    for step in ["unsized", "named.hidden"] {
        assert!(at_step(&mut rerun(NAME).unwrap(), step, directory.path()));
        let dry = sweep(directory.path(), true).unwrap();
        assert_eq!(dry.len(), 1, "{step}");
        assert!(!dry[0].removed);
        let swept = sweep(directory.path(), false).unwrap();
        assert!(swept[0].removed, "{step}");
        assert_eq!(files(directory.path()), 0);
    }
}

#[test]
fn an_arena_whose_processes_were_all_killed_is_swept_and_no_other() {
    const NAME: &str = "strategy::file_system::tests::deaths::an_arena_whose_processes_were_all_killed_is_swept_and_no_other";
    let Some(mut child) = rerun(NAME) else {
        let _arena = named(&place(), "theirs");
        return Held::stay();
    };
    let directory = directory();
    let ours = named(directory.path(), "ours");
    std::fs::write(directory.path().join("tensormp.txt"), "not an arena").unwrap();
    let child = Held::start(child.env(PLACE, directory.path()));
    assert_eq!(sweep(directory.path(), false).unwrap(), []);
    child.signal(Signal::STOP);
    assert_eq!(
        sweep(directory.path(), false).unwrap(),
        [],
        "stopped is not dead"
    );
    let theirs = path_of(directory.path(), "theirs").unwrap();
    let seen = list(directory.path()).unwrap();
    assert_eq!(seen.len(), 2);
    let one = seen.iter().find(|found| found.path == theirs).unwrap();
    assert_eq!(one.standing, Standing::Inhabited);
    assert_eq!(one.participants[0].pid, child.pid());
    assert!(one.taken > 0 && one.taken < one.capacity);
    child.signal(Signal::KILL);
    child.wait_until_ended();
    assert_eq!(list(directory.path()).unwrap().len(), 2);
    assert!(!sweep(directory.path(), true).unwrap()[0].removed);
    let swept = sweep(directory.path(), false).unwrap();
    assert_eq!(swept.len(), 1);
    assert_eq!(swept[0].found.path, theirs);
    assert_eq!(swept[0].found.standing, Standing::Abandoned);
    assert!(swept[0].removed && !theirs.exists());
    assert!(ours.path().unwrap().exists());
}

#[test]
fn whoever_makes_an_arena_without_giving_it_a_name_removes_those_that_the_dead_left() {
    const NAME: &str = "strategy::file_system::tests::deaths::whoever_makes_an_arena_without_giving_it_a_name_removes_those_that_the_dead_left";
    let make = |directory: &Path| {
        Arena::builder()
            .strategy(FileSystem::new().directory(directory))
            .capacity(128 << 20)
            .create()
            .unwrap()
    };
    let Some(mut child) = rerun(NAME) else {
        let _arenas = (make(&place()), named(&place(), "theirs"));
        return Held::stay();
    };
    let directory = directory();
    let child = Held::start(child.env(PLACE, directory.path()));
    let living = make(directory.path());
    assert_eq!(files(directory.path()), 3, "the child lives");
    child.signal(Signal::KILL);
    child.wait_until_ended();
    let another = make(directory.path());
    let left: Vec<_> = list(directory.path()).unwrap();
    // One that was given a name may be asked for by it.
    assert!(
        left.iter()
            .any(|found| found.path.ends_with(prefix() + "theirs"))
    );
    for arena in [&living, &another] {
        assert!(
            left.iter()
                .any(|found| Some(&found.path) == arena.path().as_ref())
        );
    }
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn the_name_of_an_arena_whose_processes_were_all_killed_is_free_again() {
    const NAME: &str = "strategy::file_system::tests::deaths::the_name_of_an_arena_whose_processes_were_all_killed_is_free_again";
    let Some(mut child) = rerun(NAME) else {
        let _arena = named(&place(), "a");
        return Held::stay();
    };
    let directory = directory();
    let child = Held::start(child.env(PLACE, directory.path()));
    let path = path_of(directory.path(), "a").unwrap();
    let survivor = Arena::attach(&path).unwrap();
    child.signal(Signal::KILL);
    child.wait_until_ended();
    let again = Arena::attach(&path).unwrap();
    assert_eq!(
        again.participants(),
        2,
        "the dead one is buried by whoever comes"
    );
    std::mem::forget(survivor);
    drop(again);
    assert!(path.exists(), "somebody who does not answer is still there");
}

#[test]
fn a_process_that_ends_without_dropping_its_arena_removes_the_file() {
    const NAME: &str = "strategy::file_system::tests::deaths::a_process_that_ends_without_dropping_its_arena_removes_the_file";
    let Some(mut child) = rerun(NAME) else {
        std::mem::forget(named(&place(), "a"));
        return;
    };
    let directory = directory();
    assert_passed(&output(child.env(PLACE, directory.path())));
    assert_eq!(files(directory.path()), 0);
}

#[test]
fn two_that_end_at_once_do_not_leave_the_file_to_each_other() {
    const NAME: &str = "strategy::file_system::tests::deaths::two_that_end_at_once_do_not_leave_the_file_to_each_other";
    if rerun(NAME).is_none() {
        let path = place();
        std::mem::forget(Arena::attach(path).unwrap());
        return Held::stay();
    }
    let directory = directory();
    for _ in 0..5 {
        let arena = named(directory.path(), "a");
        let path = arena.path().unwrap();
        let children: Vec<_> = (0..3)
            .map(|_| Held::start(rerun(NAME).unwrap().env(PLACE, &path)))
            .collect();
        drop(arena);
        assert!(path.exists());
        // Closing their input ends them, all at once.
        for child in children {
            child.let_go();
        }
        assert_eq!(files(directory.path()), 0);
    }
}

#[test]
fn whoever_is_killed_while_leaving_or_coming_hinders_nobody() {
    const NAME: &str = "strategy::file_system::tests::deaths::whoever_is_killed_while_leaving_or_coming_hinders_nobody";
    if rerun(NAME).is_none() {
        let path = path_of(&place(), "a").unwrap();
        match path.exists() {
            true => drop(Arena::attach(path).unwrap()),
            false => drop(named(&place(), "a")),
        }
        return;
    }
    let directory = directory();
    for step in [
        "attach.opened",
        "attach.entered",
        "named.left",
        "row.joining",
    ] {
        let arena = named(directory.path(), "a");
        let path = arena.path().unwrap();
        assert!(
            at_step(&mut rerun(NAME).unwrap(), step, directory.path()),
            "{step}"
        );
        assert_eq!(Arena::attach(&path).unwrap().participants(), 2, "{step}");
        drop(arena);
        assert_eq!(files(directory.path()), 0, "{step}");
    }
    // The last one, on its way out: the name stays, and is free.
    for step in ["named.left", "named.alone"] {
        assert!(
            at_step(&mut rerun(NAME).unwrap(), step, directory.path()),
            "{step}"
        );
        assert_eq!(files(directory.path()), 1, "{step}");
        drop(named(directory.path(), "a"));
        assert_eq!(files(directory.path()), 0, "{step}");
    }
}

#[test]
fn a_file_that_was_cut_short_is_removed_once_nobody_lives_there() {
    const NAME: &str = "strategy::file_system::tests::deaths::a_file_that_was_cut_short_is_removed_once_nobody_lives_there";
    let Some(child) = rerun(NAME) else {
        let _arena = named(&place(), "a");
        return Held::stay();
    };
    // To nothing, within the header, behind it, to the half; and made longer.
    for size in [0, 100, 3 * PAGE, SIZE / 2, SIZE * 2] {
        let directory = directory();
        let mut child = {
            let mut command = Command::new(child.get_program());
            command.args(child.get_args()).envs(
                child
                    .get_envs()
                    .filter_map(|(key, value)| Some((key, value?))),
            );
            command
        };
        let child = Held::start(child.env(PLACE, directory.path()));
        let path = path_of(directory.path(), "a").unwrap();
        child.signal(Signal::STOP);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        assert_eq!(kind(&path), ErrorKind::Size, "{size}");
        let seen = list(directory.path()).unwrap();
        assert_eq!(seen[0].standing, Standing::Inhabited, "{size}");
        assert_eq!(sweep(directory.path(), false).unwrap(), [], "{size}");
        child.signal(Signal::KILL);
        child.wait_until_ended();
        let swept = sweep(directory.path(), true).unwrap();
        assert_eq!(swept.len(), 1, "{size}");
        assert_eq!(swept[0].found.standing, Standing::Damaged, "{size}");
        // A name that nobody uses is free, and the sweep would do it as well.
        if size == 0 {
            drop(named(directory.path(), "a"));
        } else {
            assert!(sweep(directory.path(), false).unwrap()[0].removed, "{size}");
        }
        assert_eq!(files(directory.path()), 0, "{size}");
    }
}
