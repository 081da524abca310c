//! Who died with an object in hand, and who returned in order.

use std::sync::atomic::Ordering;

use super::{arena, join, kill, queue, wipe};
use crate::arena::Arena;
use crate::layout::row;
use crate::object::Object;
use crate::participant::table::Row;

/// One more participant with the queue in hand, of this process's own pid.
fn holder(here: &Arena, queue: &Object) -> (Arena, Object) {
    let there = join(here);
    let theirs = Object::open(&there, queue.handle()).unwrap();
    (there, theirs)
}

#[test]
fn who_returned_in_order_is_not_bereaved_and_does_not_hide_who_is() {
    let here = arena();
    let queue = queue(&here, 2);
    let me = std::process::id();
    let ends = |returns: bool| {
        let (there, theirs) = holder(&here, &queue);
        if returns {
            there.note_own_return();
        }
        kill(there, theirs)
    };
    // Two of them, and only then the news of either.
    let (one, another) = (ends(true), ends(true));
    here.bury_for_certain(one);
    here.bury_for_certain(another);
    assert_eq!(queue.bereaved(), None);
    queue.record_departure(0, me);
    queue.record_departure(1, me);
    // Who dies has the pid of one that returned, as in another pid namespace, and its row says that an earlier one did.
    let dies = ends(false);
    let row = Row::get(here.segment(), dies.row).unwrap();
    row.word(row::RETURNED)
        .store(dies.epoch.into(), Ordering::Relaxed);
    here.bury_for_certain(dies);
    assert_eq!(queue.bereaved(), Some(me));
    // What is known of a death does not go with the news of a return, nor with another death.
    queue.set_bereaved(me + 1);
    queue.record_departure(1, me);
    assert_eq!(queue.bereaved(), Some(me));
    queue.begin_anew();
    assert_eq!((queue.bereaved(), queue.departed()), (None, None));
    drop(queue);
    wipe(&here);
}
