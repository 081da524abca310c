//! loom models of the lane: `cargo test -p shm-core --features loom --release --test loom_lane`.
#![cfg(feature = "loom")]

mod loom_support;

use loom::sync::Arc;
use loom::thread;
use loom_support::{
    ModelCells, RelaxedLoads, RelaxedPublication, Right, Variant, check, check_fails,
};
use shm_core::cells::PAYLOAD_WORDS;
use shm_core::lane::Lane;

fn put<V: Variant>(cells: &ModelCells<V>, pos: u64) -> bool {
    while !Lane(cells).can_put(pos) {
        if Lane(cells).is_closed() {
            return false;
        }
        thread::yield_now();
    }
    Lane(cells).write(pos, &[pos + 1; PAYLOAD_WORDS]);
    Lane(cells).publish(pos)
}

/// So many messages pass, whole and in order; then both sides die and have successors.
fn passing<V: Variant>(capacity: usize, messages: u64) {
    let cells = Arc::new(ModelCells::<V>::new(capacity));
    Lane(&*cells).init();
    let producer = {
        let cells = cells.clone();
        thread::spawn(move || {
            for pos in 0..messages {
                assert!(put(&cells, pos));
            }
        })
    };
    for pos in 0..messages {
        while !Lane(&*cells).is_ready(pos) {
            thread::yield_now();
        }
        assert_eq!(Lane(&*cells).read(pos)[0], pos + 1);
        Lane(&*cells).release(pos);
    }
    producer.join().expect("the producer did not panic");
    assert_eq!(Lane(&*cells).tail(), messages);
    assert_eq!(Lane(&*cells).head(), messages);
}

/// A lane is closed by its consumer while its producer puts: either the message is had, or the
/// producer keeps it.
fn closing<V: Variant>() {
    let cells = Arc::new(ModelCells::<V>::closable(1));
    Lane(&*cells).init();
    let producer = {
        let cells = cells.clone();
        thread::spawn(move || put(&cells, 0))
    };
    Lane(&*cells).close();
    let drained = Lane(&*cells).is_drained(0);
    let got = Lane(&*cells).is_ready(0);
    assert!(drained != got);
    if got {
        assert_eq!(Lane(&*cells).read(0)[0], 1);
    }
    assert_eq!(producer.join().expect("the producer did not panic"), got);
}

#[test]
fn messages_pass_whole_and_in_order() {
    check(3, || passing::<Right>(1, 3));
    check(3, || passing::<Right>(2, 3));
    check_fails(3, || passing::<RelaxedPublication>(2, 3));
    check_fails(3, || passing::<RelaxedLoads>(2, 3));
}

#[test]
fn closing_settles_with_the_producer_whose_the_message_is() {
    check(5, closing::<Right>);
    check_fails(5, closing::<RelaxedPublication>);
}
