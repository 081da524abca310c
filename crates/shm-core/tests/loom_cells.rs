//! loom models of the cells: orderings, competing claimers and takers, and a reaper among the
//! living.
//!
//! `cargo test -p shm-core --features loom --release --test loom_cells`. Death is a thread that
//! returns in the middle of an operation; that it is dead is known by joining it.
//!
//! Two things keep the models honest. Nobody polls: each side tries a few times, and at the end the
//! main thread takes what is left and counts. And whoever reads payloads for a check of orderings
//! is a spawned thread: loom does not give a thread an old value again that it has seen before it
//! yielded, and the main thread has seen the initial values of all.
#![cfg(feature = "loom")]

mod loom_support;

use loom::sync::Arc;
use loom::thread;
use loom_support::{
    ModelCells, NoOrphanEpoch, RelaxedPublication, Right, Variant, check, check_fails,
};
use shm_core::cells::{Cells, Claim, Owner, PAYLOAD_WORDS, Take, is_taken_by};

const A: Owner = Owner { row: 1, epoch: 1 };
const B: Owner = Owner { row: 2, epoch: 1 };
const MAIN: Owner = Owner { row: 3, epoch: 1 };

fn new<V: Variant>(capacity: usize) -> Arc<ModelCells<V>> {
    let cells = Arc::new(ModelCells::new(capacity));
    Cells(&*cells).init();
    cells
}

fn claim<V: Variant>(cells: &ModelCells<V>, me: Owner) -> Option<u64> {
    match Cells(cells).claim(me) {
        Claim::At(pos) => Some(pos),
        Claim::Full | Claim::Pending(_) | Claim::Closed => None,
        Claim::Damaged => panic!("damaged"),
    }
}

/// Puts a message, if there is room, and says so.
fn put<V: Variant>(cells: &ModelCells<V>, me: Owner, value: u64) -> bool {
    let pos = claim(cells, me);
    if let Some(pos) = pos {
        Cells(cells).write(pos, &[value; PAYLOAD_WORDS]);
        Cells(cells).publish(pos);
    }
    pos.is_some()
}

fn take<V: Variant>(cells: &ModelCells<V>, me: Owner, seen: &mut u64) -> Option<u64> {
    match Cells(cells).take(me, seen) {
        Take::At { pos, .. } => Some(pos),
        Take::Empty | Take::Pending(_) | Take::Drained => None,
        Take::Damaged => panic!("damaged"),
    }
}

/// Gets a message, if one is there.
fn get<V: Variant>(cells: &ModelCells<V>, me: Owner, seen: &mut u64) -> Option<u64> {
    let pos = take(cells, me, seen)?;
    let value = Cells(cells).read(pos)[0];
    let _ = Cells(cells).release(pos);
    Some(value)
}

/// Starts a consumer that tries so many times and gives what it got.
fn consumer<V: Variant>(
    cells: &Arc<ModelCells<V>>,
    me: Owner,
    tries: usize,
) -> thread::JoinHandle<Vec<u64>> {
    let cells = cells.clone();
    thread::spawn(move || {
        let mut seen = 0;
        (0..tries)
            .filter_map(|_| get(&cells, me, &mut seen))
            .collect()
    })
}

/// Takes what is left and checks that exactly these messages came out of the queue.
fn nothing_lost_or_doubled<V: Variant>(cells: &ModelCells<V>, mut got: Vec<u64>, put: &[u64]) {
    let mut seen = 0;
    while let Some(value) = get(cells, MAIN, &mut seen) {
        got.push(value);
    }
    got.sort_unstable();
    assert_eq!(got, put);
}

/// Two producers put one message each.
fn two_producers<V: Variant>(capacity: usize) {
    let cells = new::<V>(capacity);
    let producer = {
        let cells = cells.clone();
        thread::spawn(move || put(&cells, A, 1))
    };
    let consumer = consumer(&cells, B, 2);
    let second = put(&cells, MAIN, 2);
    let first = producer.join().expect("the producer did not panic");
    let got = consumer.join().expect("the consumer did not panic");
    let sent = [(first, 1), (second, 2)];
    let sent: Vec<_> = sent
        .iter()
        .filter(|sent| sent.0)
        .map(|sent| sent.1)
        .collect();
    assert!(!sent.is_empty());
    nothing_lost_or_doubled(&cells, got, &sent);
}

/// Two consumers share two messages.
fn two_consumers<V: Variant>() {
    let cells = new::<V>(2);
    let consumers = [A, B].map(|me| consumer(&cells, me, 2));
    assert!(put(&cells, MAIN, 1));
    assert!(put(&cells, MAIN, 2));
    let got = consumers.map(|consumer| consumer.join().expect("no consumer panicked"));
    assert!(got.iter().all(|got| got.is_sorted()));
    nothing_lost_or_doubled(&cells, got.concat(), &[1, 2]);
}

/// One producer fills one cell again and again.
fn a_cell_used_again<V: Variant>() {
    let cells = new::<V>(1);
    let consumer = consumer(&cells, A, 3);
    let sent: Vec<_> = (1..=3).filter(|value| put(&cells, MAIN, *value)).collect();
    let got = consumer.join().expect("the consumer did not panic");
    assert!(got.is_sorted());
    nothing_lost_or_doubled(&cells, got, &sent);
}

/// A consumer gives a message back below the head, for another that may have moved on to find.
fn hand_back<V: Variant>() {
    let cells = new::<V>(2);
    assert!(put(&cells, MAIN, 1));
    assert!(put(&cells, MAIN, 2));
    let (mut seen, mut other_seen) = (0, 0);
    let first = take(&cells, A, &mut seen).expect("there are two messages");
    let second = take(&cells, B, &mut other_seen).expect("there are two messages");
    let _ = Cells(&*cells).release(first);
    let consumer = consumer(&cells, A, 2);
    Cells(&*cells).hand_back(second);
    let got = consumer.join().expect("the consumer did not panic");
    nothing_lost_or_doubled(&cells, got, &[2]);
}

/// A consumer dies holding a message while another lives on.
fn dead_consumer<V: Variant>() {
    let cells = new::<V>(2);
    assert!(put(&cells, MAIN, 1));
    assert!(put(&cells, MAIN, 2));
    let dead = {
        let cells = cells.clone();
        thread::spawn(move || {
            // Dies before its release.
            if let Some(pos) = take(&cells, A, &mut 0) {
                use shm_core::cells::CellArray;
                use shm_core::sync::Atomic64;
                let word = (&*cells)
                    .word(pos % 2)
                    .load(std::sync::atomic::Ordering::Acquire);
                assert!(is_taken_by(word, A, pos, 2));
            }
        })
    };
    let consumer = consumer(&cells, B, 3);
    dead.join().expect("it did not panic");
    Cells(&*cells).reap(A);
    let got = consumer.join().expect("the consumer did not panic");
    nothing_lost_or_doubled(&cells, got, &[1, 2]);
}

/// A producer died between claim and publication: two reap it while another puts and one takes.
fn dead_producer<V: Variant>() {
    let cells = new::<V>(2);
    let _ = claim(&cells, A);
    let reaper = {
        let cells = cells.clone();
        thread::spawn(move || Cells(&*cells).reap(A).voided)
    };
    let consumer = consumer(&cells, B, 1);
    assert!(put(&cells, MAIN, 2));
    let voided = Cells(&*cells).reap(A).voided;
    assert_eq!(voided + reaper.join().expect("the reaper did not panic"), 1);
    let got = consumer.join().expect("the consumer did not panic");
    nothing_lost_or_doubled(&cells, got, &[2]);
}

/// A queue is closed while a producer puts: either the message is had, or it was refused; and who
/// is told *drained* has not missed it.
fn closing<V: Variant>() {
    let cells = Arc::new(ModelCells::<V>::closable(1));
    Cells(&*cells).init();
    let consumer = {
        let cells = cells.clone();
        thread::spawn(move || {
            let (mut seen, mut got, mut drained) = (0, 0, false);
            for _ in 0..2 {
                match Cells(&*cells).take(A, &mut seen) {
                    Take::At { pos, .. } => {
                        assert!(!drained);
                        assert_eq!(Cells(&*cells).read(pos)[0], 1);
                        let _ = Cells(&*cells).release(pos);
                        got += 1;
                    }
                    Take::Drained => drained = true,
                    other => assert!(!drained, "{other:?}"),
                }
            }
            (got, drained)
        })
    };
    let closer = {
        let cells = cells.clone();
        thread::spawn(move || Cells(&*cells).close())
    };
    let sent = put(&cells, MAIN, 1);
    closer.join().expect("the closer did not panic");
    let (mut got, drained) = consumer.join().expect("the consumer did not panic");
    assert!(
        !drained || got == u32::from(sent),
        "drained, and a message is missing"
    );
    let mut seen = 0;
    while let Take::At { pos, .. } = Cells(&*cells).take(MAIN, &mut seen) {
        let _ = Cells(&*cells).release(pos);
        got += 1;
    }
    assert_eq!(Cells(&*cells).take(MAIN, &mut seen), Take::Drained);
    assert!(Cells(&*cells).is_drained());
    assert_eq!(got, u32::from(sent));
}

#[test]
fn two_producers_messages_arrive_whole() {
    check(3, || two_producers::<Right>(1));
    check(3, || two_producers::<Right>(2));
    check_fails(3, || two_producers::<RelaxedPublication>(2));
}

#[test]
fn two_consumers_never_have_the_same_message() {
    check(3, two_consumers::<Right>);
    check_fails(3, two_consumers::<RelaxedPublication>);
}

#[test]
fn a_cell_is_used_again_in_order() {
    check(3, a_cell_used_again::<Right>);
    check_fails(3, a_cell_used_again::<RelaxedPublication>);
}

#[test]
fn a_message_handed_back_is_found() {
    check(3, hand_back::<Right>);
    check_fails(3, hand_back::<NoOrphanEpoch>);
}

#[test]
fn a_dead_consumers_message_is_found() {
    check(3, dead_consumer::<Right>);
    check_fails(3, dead_consumer::<NoOrphanEpoch>);
}

#[test]
fn a_dead_producers_claim_is_voided_once() {
    check(3, dead_producer::<Right>);
    check_fails(3, dead_producer::<RelaxedPublication>);
}

#[test]
fn closing_settles_with_a_producer_whether_its_message_counts() {
    check(3, closing::<Right>);
    check_fails(3, closing::<RelaxedPublication>);
}
