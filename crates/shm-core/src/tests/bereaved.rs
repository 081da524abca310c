//! Who died with an object in hand, and who returned in order.

use super::{arena, queue};

#[test]
fn who_returned_in_order_is_not_bereaved_and_does_not_hide_who_is() {
    let here = arena();
    let queue = queue(&here, 2);
    queue.set_bereaved(8);
    queue.record_departure(0, 8);
    assert_eq!(queue.bereaved(), None);
    queue.set_bereaved(8);
    assert_eq!(queue.bereaved(), None, "also where it is noted later");
    queue.set_bereaved(7);
    queue.set_bereaved(9);
    queue.record_departure(1, 9);
    assert_eq!(queue.bereaved(), Some(7));
    queue.begin_anew();
    queue.set_bereaved(9);
    queue.set_bereaved(7);
    queue.record_departure(1, 9);
    assert!(queue.bereaved().is_some(), "one of them has died");
}
