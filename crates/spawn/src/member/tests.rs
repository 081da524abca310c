//! What the end of a process is taken for, without processes.

use super::*;

/// A child that has reached its function, as far as anybody can tell.
fn running() -> Member {
    Member {
        worker: Worker {
            rank: 0,
            pid: 0,
            name: "x".into(),
        },
        pidfd: None,
        control: None,
        arguments: None,
        value: None,
        arena: None,
        arrived: true,
        word: Word::None,
        panicking: None,
        in_hook: false,
        deaf: false,
        leaving: false,
        signalled: false,
        exit: None,
        due: None,
        settled: false,
        tail: None,
        daemon: false,
        way_in: "make `init()` the first line of `main`",
        disarmed: None,
    }
}

fn killed() -> Exit {
    Exit::Signal {
        number: Signal::KILL.as_raw(),
        name: "SIGKILL".into(),
        core: false,
    }
}

fn oom_kill() -> Option<String> {
    Some("the counter oom_kill in memory.events went from 2 to 3".into())
}

#[test]
fn sigkill_while_a_counter_of_memory_kills_grew_is_likely_out_of_memory() {
    let kind = running().cause_of(killed(), oom_kill);
    let text = kind.cause();
    assert!(
        text.contains("killed by SIGKILL") && text.contains("want of memory (the counter oom_kill"),
        "{text}"
    );
    let ErrorKind::ProcessExited {
        likely_out_of_memory: None,
        ..
    } = running().cause_of(killed(), || None)
    else {
        panic!("nothing grew")
    };
    // Another signal is another reason.
    let kind = running().cause_of(Exit::Code(9), || panic!("not looked at"));
    assert!(!kind.cause().contains("memory"));
}

#[test]
fn what_we_killed_ourselves_is_no_failure_whatever_the_counters_say() {
    let mut member = running();
    member.signalled = true;
    assert!(member.end(killed(), &OomKills::default()).is_none());
}

#[test]
fn a_core_dump_is_told() {
    let exit = Exit::Signal {
        number: Signal::SEGV.as_raw(),
        name: "SIGSEGV".into(),
        core: true,
    };
    let text = running().cause_of(exit, || None).cause();
    assert!(text.contains("SIGSEGV and left a core dump"), "{text}");
}

#[test]
fn a_process_whose_socket_ended_while_it_lives_is_lost() {
    let (ours, theirs) = control::pair().unwrap();
    let mut member = running();
    member.control = Some(Arc::new(ours));
    drop(theirs);
    member.hear(&mut Vec::new(), true, &mut Vec::new());
    assert!(member.next_look().is_some());
    let failure = member.overdue(Duration::ZERO).unwrap();
    assert!(
        matches!(failure.kind, ErrorKind::LostContact { .. }),
        "{failure:?}"
    );
}

#[test]
fn what_was_lost_in_this_program_is_lost_contact_and_no_process_that_never_ran() {
    let null = || Some(Arc::new(std::fs::File::open("/dev/null").unwrap().into()));
    let silent = || Member {
        arrived: false,
        control: null(),
        ..running()
    };
    // Heard while it lives, and at its end.
    let mut member = silent();
    member.hear(&mut Vec::new(), true, &mut Vec::new());
    assert!(member.next_look().is_some());
    for (mut member, exit, how) in [
        (member, Exit::Code(0), "it exited with code 0"),
        (silent(), Exit::Code(0), "it exited with code 0"),
        // As it ends by itself when it finds its socket closed.
        (silent(), killed(), "it was killed by SIGKILL"),
    ] {
        let failure = member.end(exit, &OomKills::default()).unwrap();
        let text = failure.kind.cause();
        let lost = matches!(failure.kind, ErrorKind::LostContact { .. });
        assert!(lost && text.contains(how), "{text}");
    }
}

#[test]
fn who_ends_before_init_is_advised_only_if_it_ended_by_itself() {
    let early = |exit, oom: fn() -> Option<String>| {
        let member = Member {
            arrived: false,
            ..running()
        };
        member.cause_of(exit, oom).cause()
    };
    let text = early(Exit::Code(0), || panic!("not looked at"));
    assert!(text.contains("make `init()` the first line"), "{text}");
    let text = early(killed(), || None);
    assert!(
        text.contains("killed by SIGKILL before it reached `init`") && !text.contains("first line"),
        "{text}"
    );
    let text = early(killed(), oom_kill);
    assert!(text.contains("want of memory (the counter"), "{text}");
}
