//! The decision: which participants wait only for each other.

use super::scan::{Noted, Scene, Snapshot, scene};
use super::{CHANGE, PROCESSES};
use crate::arena::Arena;
use crate::cells::Owner;

/// A group of stuck participants.
pub(super) struct Found {
    /// The one that looked is the first.
    pub(super) snapshot: Snapshot,
    /// Somebody who is stuck as well waits for the end of one of them.
    pub(super) joined: bool,
}

/// The group of stuck participants that `me` belongs to, if there is one.
pub(super) fn stuck_with(arena: &Arena, me: Owner) -> Option<Found> {
    let scene = scene(arena, me)?;
    let Group { rows, joined } = closed_group(&scene, me)?;
    let mut stuck: Vec<_> = rows
        .iter()
        .filter_map(|row| scene.waiting.get(row).cloned())
        .collect();
    stuck.sort_by_key(|stuck| (stuck.owner != me, stuck.owner.row));
    Some(Found {
        snapshot: Snapshot(stuck),
        joined,
    })
}

/// The rows of a group, and whether somebody stuck waits for the end of one of them.
struct Group {
    rows: Vec<u16>,
    joined: bool,
}

/// Who may end this wait. `None`: somebody who cannot be named.
fn helpers(scene: &Scene, waiter: Owner, wait: Noted) -> Option<Vec<Owner>> {
    match wait.kind() {
        CHANGE => scene.holders.get(&wait.subject).cloned().flatten(),
        PROCESSES => {
            let children = scene
                .children
                .get(&(waiter, wait.subject as u16))
                .cloned()
                .unwrap_or_default();
            // One that has not joined the arena does something else.
            (children.len() as u64 == wait.detail).then_some(children)
        }
        _ => None,
    }
}

/// The rows that `me` depends on, all of them stuck for good; `None` if `me` is not.
fn closed_group(scene: &Scene, me: Owner) -> Option<Group> {
    let mut stuck: Vec<u16> = scene.waiting.keys().copied().collect();
    let is_stuck = |stuck: &[u16], owner: &Owner| {
        stuck.contains(&owner.row)
            && scene
                .waiting
                .get(&owner.row)
                .is_some_and(|found| found.owner == *owner)
    };
    // Whoever can be helped from outside of the group is not in it; the greatest group that remains is closed.
    loop {
        let remaining: Vec<u16> = stuck
            .iter()
            .copied()
            .filter(|row| {
                let found = &scene.waiting[row];
                found.waits.iter().all(|wait| {
                    helpers(scene, found.owner, *wait).is_some_and(|helpers| {
                        helpers.iter().all(|helper| is_stuck(&stuck, helper))
                    })
                })
            })
            .collect();
        if remaining.len() == stuck.len() {
            break;
        }
        stuck = remaining;
    }
    if !is_stuck(&stuck, &me) {
        return None;
    }
    // Of that, only what has to do with `me`.
    let mut reached = vec![me.row];
    let mut next = 0;
    while let Some(&row) = reached.get(next) {
        next += 1;
        let found = &scene.waiting[&row];
        for wait in &found.waits {
            for helper in helpers(scene, found.owner, *wait).unwrap_or_default() {
                if !reached.contains(&helper.row) {
                    reached.push(helper.row);
                }
            }
        }
    }
    // Whoever joins need not be among those that it joins depend on.
    let joined = stuck.iter().any(|row| {
        let found = &scene.waiting[row];
        let joins = found.waits.iter().filter(|wait| wait.kind() == PROCESSES);
        joins
            .flat_map(|wait| helpers(scene, found.owner, *wait).unwrap_or_default())
            .any(|child| reached.contains(&child.row))
    });
    Some(Group {
        rows: reached,
        joined,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::super::scan::Stuck;
    use super::*;

    const QUEUE: u64 = 100;
    const OTHER: u64 = 101;

    fn owner(row: u16) -> Owner {
        Owner { row, epoch: 7 }
    }

    fn waits_on(subject: u64) -> Noted {
        Noted {
            state: CHANGE,
            subject,
            detail: 0,
            since: 0,
        }
    }

    fn joins(context: u64, running: u64) -> Noted {
        Noted {
            state: PROCESSES,
            subject: context,
            detail: running,
            since: 0,
        }
    }

    fn scene(
        waiting: &[(u16, &[Noted])],
        holders: &[(u64, Option<&[u16]>)],
        children: &[(u16, u16, &[u16])],
    ) -> Scene {
        let owners = |rows: &[u16]| rows.iter().copied().map(owner).collect::<Vec<_>>();
        Scene {
            waiting: waiting
                .iter()
                .map(|&(row, waits)| {
                    let stuck = Stuck {
                        owner: owner(row),
                        pid: row.into(),
                        waits: waits.to_vec(),
                    };
                    (row, stuck)
                })
                .collect::<BTreeMap<_, _>>(),
            holders: holders
                .iter()
                .map(|&(subject, holders)| (subject, holders.map(owners)))
                .collect::<HashMap<_, _>>(),
            children: children
                .iter()
                .map(|&(parent, context, children)| ((owner(parent), context), owners(children)))
                .collect::<HashMap<_, _>>(),
        }
    }

    fn group_of(scene: &Scene, row: u16) -> Option<Vec<u16>> {
        let mut rows = closed_group(scene, owner(row))?.rows;
        rows.sort_unstable();
        Some(rows)
    }

    #[test]
    fn children_that_are_stuck_without_their_parent_know_that_it_joins_them() {
        let children: [(u16, &[Noted]); 2] = [(1, &[waits_on(QUEUE)]), (2, &[waits_on(OTHER)])];
        let holders: [(u64, Option<&[u16]>); 2] = [(QUEUE, Some(&[1, 2])), (OTHER, Some(&[1, 2]))];
        let of_parent = |parent: &[Noted]| {
            let waiting = [(0, parent), children[0], children[1]];
            let scene = scene(&waiting, &holders, &[(0, 3, &[1, 2])]);
            let group = closed_group(&scene, owner(1)).unwrap();
            assert_eq!(group_of(&scene, 1), Some(vec![1, 2]));
            group.joined
        };
        assert!(of_parent(&[joins(3, 2)]));
        // It does something else; it waits for more than these.
        assert!(!of_parent(&[waits_on(9)]));
        assert!(!of_parent(&[joins(3, 3)]));
    }

    #[test]
    fn a_parent_that_joins_while_it_keeps_the_sender_is_stuck_with_its_children() {
        let scene = scene(
            &[
                (0, &[joins(3, 2)]),
                (1, &[waits_on(QUEUE)]),
                (2, &[waits_on(QUEUE)]),
            ],
            &[(QUEUE, Some(&[0, 1, 2]))],
            &[(0, 3, &[1, 2])],
        );
        for row in 0..3 {
            assert_eq!(group_of(&scene, row), Some(vec![0, 1, 2]));
        }
    }

    #[test]
    fn a_holder_that_still_works_may_end_the_wait() {
        let scene = scene(
            &[(0, &[waits_on(QUEUE)]), (1, &[waits_on(QUEUE)])],
            &[(QUEUE, Some(&[0, 1, 9]))],
            &[],
        );
        assert_eq!(group_of(&scene, 0), None);
    }

    #[test]
    fn a_reference_in_nobodys_hands_may_end_the_wait() {
        let scene = scene(&[(0, &[waits_on(QUEUE)])], &[(QUEUE, None)], &[]);
        assert_eq!(group_of(&scene, 0), None);
    }

    #[test]
    fn who_waits_for_one_that_can_be_helped_can_be_helped() {
        // 0 joins 1, 1 waits for a queue that 2 holds, 2 waits for one that 9 holds, who works.
        let scene = scene(
            &[
                (0, &[joins(1, 1)]),
                (1, &[waits_on(QUEUE)]),
                (2, &[waits_on(OTHER)]),
            ],
            &[(QUEUE, Some(&[1, 2])), (OTHER, Some(&[2, 9]))],
            &[(0, 1, &[1])],
        );
        for row in 0..3 {
            assert_eq!(group_of(&scene, row), None);
        }
    }

    #[test]
    fn one_thread_that_can_be_helped_is_enough() {
        let scene = scene(
            &[(0, &[waits_on(QUEUE), waits_on(OTHER)])],
            &[(QUEUE, Some(&[0])), (OTHER, Some(&[0, 9]))],
            &[],
        );
        assert_eq!(group_of(&scene, 0), None);
    }

    #[test]
    fn a_child_that_has_not_come_yet_may_do_anything() {
        let scene = scene(
            &[(0, &[joins(1, 2)]), (1, &[waits_on(QUEUE)])],
            &[(QUEUE, Some(&[0, 1]))],
            &[(0, 1, &[1])],
        );
        assert_eq!(group_of(&scene, 0), None);
        assert_eq!(group_of(&scene, 1), None);
    }

    #[test]
    fn a_group_that_is_stuck_by_itself_is_told_without_the_others() {
        let scene = scene(
            &[(0, &[waits_on(QUEUE)]), (1, &[waits_on(OTHER)])],
            &[(QUEUE, Some(&[0])), (OTHER, Some(&[1]))],
            &[],
        );
        assert_eq!(group_of(&scene, 0), Some(vec![0]));
    }

    #[test]
    fn a_row_whose_occupant_has_changed_is_no_helper_that_is_stuck() {
        let mut scene = scene(
            &[(0, &[waits_on(QUEUE)]), (1, &[waits_on(QUEUE)])],
            &[(QUEUE, Some(&[0, 1]))],
            &[],
        );
        scene
            .holders
            .insert(QUEUE, Some(vec![owner(0), Owner { row: 1, epoch: 8 }]));
        assert_eq!(group_of(&scene, 0), None);
    }
}
