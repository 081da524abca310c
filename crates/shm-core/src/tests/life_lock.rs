//! The life lock: nobody lives without one because somebody else has the byte, and who has none is never taken for dead.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use super::{arena, join, lent};
use crate::arena::Arena;
use crate::layout::{ROWS_STEP, row};
use crate::participant::liveness::{Identity, Verdict};
use crate::participant::lock::RowLocks;
use crate::participant::table::{self, Life, Row, rows};
use crate::reap;
use crate::testing::{self, gets_so, rerun};

/// The lock bytes of an arena, through one more description of its file.
fn locks(arena: &Arena) -> RowLocks {
    RowLocks::open(arena.as_fd(), arena.segment().capacity()).unwrap()
}

/// That description as a file, to be copied or opened for reading only.
fn reopened(arena: &Arena, write: bool) -> File {
    let path = format!("/proc/self/fd/{}", arena.as_fd().as_raw_fd());
    File::options().read(true).write(write).open(path).unwrap()
}

/// This process, as one of a pid namespace that nobody sees.
fn unseen() -> Identity {
    let own = Identity::of_self().unwrap();
    Identity {
        namespace: own.namespace ^ 1,
        ..own
    }
}

#[test]
fn a_row_whose_lock_somebody_else_has_is_passed_over_until_it_is_free() {
    let one = arena();
    let holder = locks(&one);
    assert!(holder.try_lock(1).unwrap());
    let other = join(&one);
    assert_eq!(other.me().row, 2);
    assert!(holder.is_held_elsewhere(2).unwrap());
    let passed_over = Row::get(one.segment(), 1).unwrap();
    assert_eq!(passed_over.state().life, Life::Free);
    assert_eq!(one.participants(), 2);
    holder.unlock(1).unwrap();
    assert_eq!(join(&one).me().row, 1);
}

#[test]
fn more_rows_are_taken_when_somebody_else_has_the_locks_of_all_free_ones() {
    let one = arena();
    let holder = locks(&one);
    for row in 1..ROWS_STEP as u16 {
        assert!(holder.try_lock(row).unwrap());
    }
    let other = join(&one);
    assert_eq!(u64::from(other.me().row), ROWS_STEP);
    assert!(holder.is_held_elsewhere(other.me().row).unwrap());
}

#[test]
fn who_leaves_gives_its_lock_back_even_if_a_forked_child_has_the_description() {
    let one = arena();
    let file = reopened(&one, true);
    let the_childs = file.try_clone().unwrap();
    let leaver = RowLocks::through(file.into(), one.segment().capacity());
    let me = table::join(one.segment(), Identity::of_self().unwrap(), &leaver).unwrap();
    assert!(locks(&one).is_held_elsewhere(me.row).unwrap());
    table::leave(one.segment(), me, &leaver);
    assert!(!locks(&one).is_held_elsewhere(me.row).unwrap());
    assert_eq!(join(&one).me().row, me.row, "the row is there for the next");
    drop(the_childs);
}

#[test]
fn where_there_are_no_locks_the_row_says_so_and_its_participant_is_never_dead_elsewhere() {
    let one = arena();
    let capacity = one.segment().capacity();
    let judged = |number| {
        let row = Row::get(one.segment(), number).unwrap();
        let (_, _, verdict) = reap::judge(one.locks(), row).unwrap();
        (
            row.word(row::UNLOCKED)
                .load(std::sync::atomic::Ordering::Relaxed),
            verdict,
        )
    };
    // A description for reading gives no lock, as some file systems and old kernels give none.
    let none = RowLocks::through(reopened(&one, false).into(), capacity);
    let without = table::join(one.segment(), unseen(), &none).unwrap();
    assert_eq!(judged(without.row), (1, Verdict::Unknown));
    one.bury_the_dead();
    assert!(one.is_present(without));
    one.bury(without);
    assert!(one.is_present(without), "nobody is buried in doubt");

    let held = locks(&one);
    let with = table::join(one.segment(), unseen(), &held).unwrap();
    assert_eq!(judged(with.row), (0, Verdict::Alive));
    drop(held);
    assert!(gets_so(|| judged(with.row) == (0, Verdict::Dead)));
    one.bury(with);
    assert!(!one.is_present(with));

    table::leave(one.segment(), without, &none);
    let next = join(&one);
    assert_eq!(next.me().row, without.row);
    assert_eq!(
        judged(next.me().row),
        (0, Verdict::Alive),
        "the next one's row says the truth again"
    );
}

#[test]
fn who_came_while_the_lock_was_somebody_elses_is_alive_for_another_pid_namespace() {
    const NAME: &str = "tests::life_lock::who_came_while_the_lock_was_somebody_elses_is_alive_for_another_pid_namespace";
    let Some(mut child) = rerun(NAME) else {
        let arena = Arena::join(lent()).unwrap();
        let others: Vec<Verdict> = rows(arena.segment())
            .filter(|row| row.number != arena.me().row)
            .filter_map(|row| reap::verdict(&arena, row))
            .map(|(_, _, verdict)| verdict)
            .collect();
        assert_eq!(others, [Verdict::Alive; 2]);
        arena.bury_the_dead();
        assert_eq!(arena.participants(), 3);
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let one = Arena::builder()
        .name("namespaces")
        .directory(directory.path())
        .capacity(128 << 20)
        .create()
        .unwrap();
    let holder = locks(&one);
    assert!(holder.try_lock(1).unwrap());
    let other = join(&one);
    drop(holder);
    child.env("TEST_ARENA", one.path().unwrap());
    match testing::in_pid_namespace(&child) {
        Ok(output) => testing::assert_passed(&output),
        Err(reason) => println!("skipped: {reason}"),
    }
    assert!(one.is_present(other.me()));
}

#[test]
fn what_somebody_said_last_is_there_until_another_one_has_its_row() {
    let one = arena();
    let other = join(&one);
    let who = other.me();
    other.recorder().set_task("the last one");
    let said = |who| one.last_record_of(who).map(|record| record.task);
    assert_eq!(said(who).as_deref(), Some("the last one"));
    drop(other);
    assert!(one.record_of(who).is_none(), "it has left");
    assert_eq!(said(who).as_deref(), Some("the last one"));
    let next = join(&one);
    assert_eq!(next.me().row, who.row);
    assert_eq!(said(who), None);
    assert_eq!(said(next.me()).as_deref(), Some(""));
}
