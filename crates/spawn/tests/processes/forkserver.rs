//! What only a fork server has: what it preloads, its own end, and that its copies show nothing of where they come from.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Signal, pidfd_send_signal};
use spawn::{ErrorKind, StartMethod, forkserver};

use crate::support::{
    self, Gate, by_server, nothing, open_gate, pidfd, sleep_for_ever, wait_at_gate, wait_for_end,
};
use crate::trials_once;

pub(crate) fn tests() -> Vec<Trial> {
    trials_once![
        what_is_preloaded_is_found_by_every_process,
        a_preload_that_leaves_a_thread_is_refused_with_its_name,
        a_preload_that_makes_a_tensor_is_refused,
        a_preload_that_panics_is_told,
        a_preload_that_does_not_return_is_told_and_ended,
        a_killed_server_hurts_no_running_process_and_is_replaced,
        a_stopped_server_is_told_and_replaced,
        a_process_has_the_environment_and_directory_of_the_moment,
        a_process_is_a_child_of_the_program_in_a_group_of_its_own,
        a_process_has_no_descriptor_of_another,
        where_the_server_cannot_be_copied_processes_start_by_spawn,
        where_clone3_is_filtered_the_server_is_copied_by_clone,
        a_threads_own_variables_are_dropped_before_the_process_ends,
        a_function_of_a_process_by_the_server_may_use_it_itself,
    ]
}

/// Runs the program of a scene.
pub(crate) fn play(name: &str) -> bool {
    let scene: fn() = match name {
        "fork-preload" => preload_scene,
        "fork-thread" => thread_scene,
        "fork-tensor" => tensor_scene,
        "fork-panic" => panic_scene,
        "fork-hang" => hang_scene,
        "fork-killed" => killed_scene,
        "fork-stopped" => stopped_scene,
        "fork-moment" => moment_scene,
        "fork-group" => group_scene,
        "fork-descriptors" => descriptors_scene,
        "fork-filter" => filter_scene,
        "fork-clone" => clone_scene,
        "fork-nested" => nested_scene,
        _ => return false,
    };
    scene();
    true
}

fn what_is_preloaded_is_found_by_every_process() {
    support::play("fork-preload");
}

static LOADED: OnceLock<u32> = OnceLock::new();

fn preload_scene() {
    fn load() {
        LOADED.get_or_init(std::process::id);
    }
    fn loaded(_rank: usize, _: ()) -> Result<Option<u32>, String> {
        Ok(LOADED.get().copied())
    }
    support::guarded("fork-preload", || {
        forkserver::preload(load).unwrap();
        forkserver::start().unwrap();
        let server = forkserver::pid();
        assert!(server.is_some_and(|pid| pid != std::process::id()));
        let found = by_server()
            .spawn(loaded, (), 3)
            .unwrap()
            .into_results()
            .unwrap();
        assert_eq!(found, [server; 3]);
        // By spawn, nothing is there; and it is too late to load anything else.
        assert_eq!(spawn::spawn(loaded, (), 1).unwrap().join().unwrap(), [None]);
        let error = forkserver::preload(load).unwrap_err();
        assert!(error.to_string().contains("runs already"), "{error}");
    });
}

fn a_preload_that_leaves_a_thread_is_refused_with_its_name() {
    support::play("fork-thread");
}

fn thread_scene() {
    fn leaves_a_thread() {
        let (started, waits) = std::sync::mpsc::channel();
        let _ = std::thread::Builder::new()
            .name("left-behind".to_owned())
            .spawn(move || {
                // Now it has its name.
                let _ = started.send(());
                sleep_for_ever();
            });
        let _ = waits.recv();
    }
    support::guarded("fork-thread", || {
        forkserver::preload(leaves_a_thread).unwrap();
        let error = forkserver::start().unwrap_err().to_string();
        assert!(
            error.contains("left threads running (left-behind)")
                && error.contains("leaves_a_thread"),
            "{error}"
        );
        // Starting a process says the same, each time.
        for _ in 0..2 {
            let error = by_server().spawn(nothing, (), 2).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Launch), "{error:?}");
            assert!(
                error.to_string().contains("left threads running"),
                "{error}"
            );
        }
        // What can be preloaded instead makes it work.
        forkserver::preload(|| ()).unwrap();
        by_server().spawn(nothing, (), 2).unwrap().join().unwrap();
    });
}

fn a_preload_that_makes_a_tensor_is_refused() {
    support::play("fork-tensor");
}

fn tensor_scene() {
    support::guarded("fork-tensor", || {
        forkserver::preload(|| drop(shm_core::Tensor::<u8>::zeros([4]))).unwrap();
        let error = forkserver::start().unwrap_err().to_string();
        assert!(error.contains("made a tensor"), "{error}");
    });
}

fn a_preload_that_panics_is_told() {
    support::play("fork-panic");
}

fn panic_scene() {
    support::guarded("fork-panic", || {
        forkserver::preload(|| panic!("no model at hand")).unwrap();
        let error = forkserver::start().unwrap_err().to_string();
        assert!(
            error.contains("preloading panicked: no model at hand"),
            "{error}"
        );
    });
}

fn a_preload_that_does_not_return_is_told_and_ended() {
    support::play("fork-hang");
}

fn hang_scene() {
    fn hangs() {
        sleep_for_ever()
    }
    support::guarded("fork-hang", || {
        forkserver::preload_within(hangs, Duration::from_millis(100)).unwrap();
        let error = by_server().spawn(nothing, (), 2).unwrap_err().to_string();
        assert!(
            error.contains("hangs` could not be started: that had not returned within 100ms")
                && error.contains("preload_within"),
            "{error}"
        );
        let pid = error.split("(pid ").nth(1).unwrap();
        let pid = pid.split(')').next().unwrap().parse().unwrap();
        if let Some(ends) = support::try_pidfd(pid) {
            wait_for_end(&ends);
        }
        // The next has as long as it is given.
        forkserver::preload_within(|| (), Duration::from_secs(3600)).unwrap();
        by_server().spawn(nothing, (), 2).unwrap().join().unwrap();
    });
}

fn wait(_rank: usize, (ready, gate): (PathBuf, PathBuf)) -> Result<u32, String> {
    open_gate(&ready);
    wait_at_gate(&gate);
    Ok(std::process::id())
}

fn a_killed_server_hurts_no_running_process_and_is_replaced() {
    support::play("fork-killed");
}

fn killed_scene() {
    support::guarded("fork-killed", || {
        let (ready, gate) = (Gate::new("killed-ready"), Gate::new("killed"));
        let paths = (ready.path(), gate.path());
        let mut running = by_server().spawn(wait, paths, 1).unwrap();
        wait_at_gate(&ready.path());
        let first = forkserver::pid().unwrap();
        let server = pidfd(first);
        pidfd_send_signal(&server, Signal::KILL).unwrap();
        wait_for_end(&server);
        by_server().spawn(nothing, (), 2).unwrap().join().unwrap();
        assert_ne!(forkserver::pid().unwrap(), first);
        gate.open();
        let pids = running.pids();
        assert_eq!(running.join().unwrap(), pids);
        // It was waited for, though nobody asked for it.
        while support::exists(first) {
            std::thread::yield_now();
        }
    });
}

fn a_stopped_server_is_told_and_replaced() {
    support::play("fork-stopped");
}

fn stopped_scene() {
    support::guarded("fork-stopped", || {
        forkserver::start().unwrap();
        pidfd_send_signal(pidfd(forkserver::pid().unwrap()), Signal::STOP).unwrap();
        let hasty = by_server().hello_deadline(std::time::Duration::from_millis(100));
        let error = hasty.spawn(nothing, (), 1).unwrap_err();
        assert!(
            error.to_string().contains("did not answer in time"),
            "{error}"
        );
        by_server().spawn(nothing, (), 1).unwrap().join().unwrap();
    });
}

fn a_process_has_the_environment_and_directory_of_the_moment() {
    support::play("fork-moment");
}

fn moment_scene() {
    type Found = (Option<String>, Option<String>, PathBuf, String);
    fn look(_rank: usize, _: ()) -> Result<Found, std::io::Error> {
        Ok((
            std::env::var("FORK_NEW").ok(),
            std::env::var("FORK_OLD").ok(),
            std::env::current_dir()?,
            std::fs::read_link("/proc/self/fd/2")?.display().to_string(),
        ))
    }
    support::guarded("fork-moment", || {
        let set = |name: &str, value: Option<&str>| support::set_environment(name, value);
        set("FORK_OLD", Some("old"));
        forkserver::start().unwrap();
        set("FORK_NEW", Some("new"));
        set("FORK_OLD", None);
        std::env::set_current_dir("/proc").unwrap();
        let null = std::fs::File::options()
            .write(true)
            .open("/dev/null")
            .unwrap();
        let stderr = rustix::io::dup(rustix::stdio::stderr()).unwrap();
        rustix::stdio::dup2_stderr(&null).unwrap();
        let found = by_server().spawn(look, (), 1).unwrap().into_results();
        let by_spawn = spawn::spawn(look, (), 1).unwrap().into_results();
        rustix::stdio::dup2_stderr(stderr.as_fd()).unwrap();
        let expected: Found = (
            Some("new".to_owned()),
            None,
            "/proc".into(),
            "/dev/null".to_owned(),
        );
        assert_eq!(by_spawn.unwrap(), found.as_deref().unwrap());
        assert_eq!(found.unwrap(), [expected]);
    });
}

fn a_process_is_a_child_of_the_program_in_a_group_of_its_own() {
    support::play("fork-group");
}

fn group_scene() {
    fn ids(_rank: usize, _: ()) -> Result<(u32, i32, i32, String), std::io::Error> {
        let raw = |pid: rustix::process::Pid| pid.as_raw_nonzero().get();
        Ok((
            std::os::unix::process::parent_id(),
            raw(rustix::process::getpid()),
            raw(rustix::process::getpgrp()),
            // What `ps` shows, without the zeros behind it.
            std::fs::read_to_string("/proc/self/cmdline")?
                .trim_end_matches('\0')
                .to_owned(),
        ))
    }
    support::guarded("fork-group", || {
        let mut context = by_server().name("one").spawn(ids, (), 1).unwrap();
        let (parent, pid, group, shown) = context.join().unwrap()[0].clone();
        assert_eq!(parent, std::process::id());
        assert_eq!((pid, group), (context.pids()[0] as i32, pid));
        assert!(shown.ends_with(" [one]"), "{shown}");
        assert_ne!(forkserver::pid(), Some(parent));
    });
}

fn a_process_has_no_descriptor_of_another() {
    support::play("fork-descriptors");
}

fn descriptors_scene() {
    type Found = Vec<String>;
    /// What is open, without the numbers that differ: how many of which kind.
    fn open(rank: usize, paths: (PathBuf, PathBuf)) -> Result<Found, String> {
        if rank == 0 {
            wait(rank, paths)?;
            return Ok(Vec::new());
        }
        wait_at_gate(&paths.0);
        let listing = std::fs::read_dir("/proc/self/fd").map_err(|error| error.to_string())?;
        let mut found: Found = listing
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .map(|target| target.display().to_string())
            .map(|target| target.split(':').next().unwrap_or("").to_owned())
            .collect();
        found.sort();
        open_gate(&paths.1);
        Ok(found)
    }
    support::guarded("fork-descriptors", || {
        let found = [StartMethod::Spawn, StartMethod::Forkserver].map(|method| {
            let (ready, gate) = (Gate::new("open-ready"), Gate::new("open"));
            let paths = (ready.path(), gate.path());
            let builder = spawn::builder().start_method(method);
            let mut found = builder
                .spawn(open, paths, 2)
                .unwrap()
                .into_results()
                .unwrap();
            let found = found.remove(1);
            found
                .into_iter()
                .filter(|target| !target.contains("/proc/"))
                .collect::<Found>()
        });
        assert_eq!(found[0], found[1]);
        let sockets = found[1].iter().filter(|target| *target == "socket");
        assert_eq!(sockets.count(), 1, "{:?}", found[1]);
    });
}

fn where_the_server_cannot_be_copied_processes_start_by_spawn() {
    support::play("fork-filter");
}

fn filter_scene() {
    // Only for the server and what it makes.
    fn filter() {
        LOADED.get_or_init(std::process::id);
        support::refuse_clone3(true);
    }
    fn loaded(rank: usize, _: ()) -> Result<(usize, bool), String> {
        Ok((rank, LOADED.get().is_some()))
    }
    support::guarded("fork-filter", || {
        forkserver::preload(filter).unwrap();
        for _ in 0..2 {
            let found = by_server()
                .spawn(loaded, (), 3)
                .unwrap()
                .into_results()
                .unwrap();
            assert_eq!(found, [(0, false), (1, false), (2, false)]);
        }
    });
}

fn where_clone3_is_filtered_the_server_is_copied_by_clone() {
    support::play("fork-clone");
}

fn clone_scene() {
    // As an old container's filter does.
    fn filter() {
        LOADED.get_or_init(std::process::id);
        support::refuse_clone3(false);
    }
    fn loaded(rank: usize, _: ()) -> Result<(usize, bool, u32), String> {
        let parent = std::os::unix::process::parent_id();
        Ok((rank, LOADED.get().is_some(), parent))
    }
    support::guarded("fork-clone", || {
        forkserver::preload(filter).unwrap();
        let me = std::process::id();
        let found = by_server().spawn(loaded, (), 2).unwrap().into_results();
        assert_eq!(found.unwrap(), [(0, true, me), (1, true, me)]);
        // Its end comes home as any other's.
        let error = by_server().spawn(exits, (), 1).unwrap().join().unwrap_err();
        assert!(error.to_string().contains("exited with code 7"), "{error}");
    });
}

fn exits(_rank: usize, _: ()) {
    std::process::exit(7);
}

fn a_threads_own_variables_are_dropped_before_the_process_ends() {
    struct Opener(PathBuf);
    impl Drop for Opener {
        fn drop(&mut self) {
            open_gate(&self.0);
        }
    }
    thread_local!(static KEPT: std::cell::RefCell<Option<Opener>> = const { std::cell::RefCell::new(None) });
    fn keeps(_rank: usize, gate: PathBuf) {
        KEPT.set(Some(Opener(gate)));
    }
    for method in StartMethod::ALL {
        let gate = Gate::new(&format!("own-{method}"));
        let builder = spawn::builder().start_method(method);
        builder
            .spawn(keeps, gate.path(), 1)
            .unwrap()
            .join()
            .unwrap();
        assert!(gate.path().exists(), "{method}");
    }
}

fn a_function_of_a_process_by_the_server_may_use_it_itself() {
    support::play("fork-nested");
}

fn nested_scene() {
    fn inner(rank: usize, x: usize) -> Result<(usize, u32), String> {
        Ok((x + rank, std::os::unix::process::parent_id()))
    }
    fn outer(_rank: usize, x: usize) -> spawn::Result<Vec<(usize, u32)>> {
        let found = by_server().spawn(inner, x, 2)?.into_results()?;
        let me = std::process::id();
        assert!(found.iter().all(|&(_, parent)| parent == me));
        Ok(found)
    }
    support::guarded("fork-nested", || {
        let found = by_server()
            .spawn(outer, 5, 2)
            .unwrap()
            .into_results()
            .unwrap();
        let numbers: Vec<usize> = found
            .concat()
            .into_iter()
            .map(|(number, _)| number)
            .collect();
        assert_eq!(numbers, [5, 6, 5, 6]);
    });
}
