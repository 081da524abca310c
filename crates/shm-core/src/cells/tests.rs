//! The cells by one thread: each step, each refusal, and what reaping leaves.

use super::heap::HeapCells;
use super::*;

const A: Owner = Owner { row: 1, epoch: 1 };
const B: Owner = Owner { row: 2, epoch: 7 };
const CAPACITIES: [u64; 5] = [1, 2, 3, 4, 5];

fn put(cells: &Cells<&HeapCells>, value: u64) {
    let claim = cells.claim(A);
    let Claim::At(pos) = claim else {
        panic!("no free cell for {value}: {claim:?}");
    };
    cells.write(pos, &[value; PAYLOAD_WORDS]);
    cells.publish(pos);
}

fn taken(take: Take) -> (u64, bool) {
    let Take::At { pos, handed_back } = take else {
        panic!("no message: {take:?}");
    };
    (pos, handed_back)
}

fn get(cells: &Cells<&HeapCells>) -> u64 {
    let (pos, _) = taken(cells.take(B, &mut 0));
    let [value, rest @ ..] = cells.read(pos);
    assert_eq!(rest, [value; PAYLOAD_WORDS - 1]);
    let _ = cells.release(pos);
    value
}

fn with_each_capacity(check: impl Fn(Cells<&HeapCells>, u64)) {
    for capacity in CAPACITIES {
        let heap = HeapCells::zeroed(capacity);
        let cells = Cells(&heap);
        cells.init();
        check(cells, capacity);
    }
}

#[test]
fn messages_come_out_in_the_order_they_went_in_for_many_laps() {
    with_each_capacity(|cells, capacity| {
        for lap in 0..10 {
            for i in 0..capacity {
                assert_eq!(cells.len(), i);
                put(&cells, lap * capacity + i);
            }
            assert_eq!(cells.claim(A), Claim::Full);
            for i in 0..capacity {
                assert_eq!(get(&cells), lap * capacity + i);
            }
            assert_eq!(cells.take(B, &mut 0), Take::Empty);
            assert!(cells.is_empty());
        }
    });
}

#[test]
fn whoever_is_in_the_way_is_named() {
    with_each_capacity(|cells, capacity| {
        for _ in 0..capacity {
            assert!(matches!(cells.claim(A), Claim::At(_)));
        }
        assert_eq!(cells.claim(B), Claim::Pending(A));
        assert_eq!(cells.take(B, &mut 0), Take::Pending(A));
    });
}

#[test]
fn a_claim_of_a_dead_producer_leaves_a_gap_that_all_step_over() {
    with_each_capacity(|cells, _| {
        assert!(matches!(cells.claim(A), Claim::At(_)));
        assert_eq!(cells.reap(A).voided, 1);
        assert_eq!(cells.take(B, &mut 0), Take::Empty);
        put(&cells, 5);
        assert_eq!(get(&cells), 5);
    });
}

#[test]
fn a_message_handed_back_is_there_again_and_says_so() {
    with_each_capacity(|cells, _| {
        put(&cells, 5);
        let mut seen = 0;
        let (pos, _) = taken(cells.take(B, &mut seen));
        assert_eq!(cells.take(B, &mut seen), Take::Empty);
        cells.hand_back(pos);
        assert_eq!(taken(cells.take(B, &mut seen)), (pos, true));
        assert_eq!(cells.read(pos)[0], 5);
        let _ = cells.release(pos);
        assert_eq!(cells.take(B, &mut seen), Take::Empty);
        put(&cells, 6);
        assert_eq!(get(&cells), 6);
    });
}

#[test]
fn a_message_handed_back_below_the_head_is_still_found() {
    let heap = HeapCells::zeroed(2);
    let cells = Cells(&heap);
    cells.init();
    put(&cells, 5);
    put(&cells, 6);
    let mut seen = 0;
    let (first, _) = taken(cells.take(A, &mut 0));
    let (second, _) = taken(cells.take(B, &mut seen));
    let _ = cells.release(second);
    assert_eq!(cells.take(B, &mut seen), Take::Empty);
    assert_eq!(
        cells.reap(A),
        Reaped {
            handed_back: 1,
            ..Reaped::default()
        }
    );
    assert_eq!(taken(cells.take(B, &mut seen)), (first, true));
}

#[test]
fn a_reap_voids_claims_and_gives_messages_back_once() {
    with_each_capacity(|cells, capacity| {
        for value in 0..capacity {
            put(&cells, value);
        }
        let mut seen = 0;
        for _ in 0..capacity {
            let _ = taken(cells.take(A, &mut seen));
        }
        let reaped = cells.reap(A);
        assert_eq!((reaped.voided, reaped.handed_back), (0, capacity as u32));
        assert_eq!(cells.reap(A), Reaped::default());
        let mut values: Vec<_> = (0..capacity).map(|_| get(&cells)).collect();
        values.sort_unstable();
        assert_eq!(values, (0..capacity).collect::<Vec<_>>());

        for _ in 0..capacity {
            assert!(matches!(cells.claim(A), Claim::At(_)));
        }
        assert_eq!(cells.reap(A).voided, capacity as u32);
        for value in 0..capacity {
            put(&cells, value);
        }
        for value in 0..capacity {
            assert_eq!(get(&cells), value);
        }
    });
}

#[test]
fn a_reap_leaves_the_rows_next_user_alone() {
    let heap = HeapCells::zeroed(2);
    let cells = Cells(&heap);
    cells.init();
    let next = Owner { epoch: 2, ..A };
    let Claim::At(pos) = cells.claim(next) else {
        panic!("an empty queue refuses a claim");
    };
    assert_eq!(cells.reap(A), Reaped::default());
    assert!(is_claimed_by((&heap).word(pos).load(SeqCst), next, pos, 2));
    assert!(!is_claimed_by((&heap).word(pos).load(SeqCst), A, pos, 2));
    cells.publish(pos);
    let _ = taken(cells.take(next, &mut 0));
    assert_eq!(cells.reap(A), Reaped::default());
    assert!(is_taken_by((&heap).word(pos).load(SeqCst), next, pos, 2));
}

#[test]
fn a_death_before_the_hint_moved_changes_nothing() {
    // A process that dies between a word and its hint: put the hints back by hand.
    with_each_capacity(|cells, _| {
        for value in 0..20 {
            let (tail, head) = (cells.0.tail().load(SeqCst), cells.0.head().load(SeqCst));
            put(&cells, value);
            cells.0.tail().store(tail, SeqCst);
            assert_eq!(get(&cells), value);
            cells.0.head().store(head, SeqCst);
            cells.0.tail().store(tail, SeqCst);
        }
    });
}

#[test]
fn a_closed_queue_gives_out_what_it_has_and_then_says_so() {
    with_each_capacity(|cells, _| {
        put(&cells, 5);
        cells.close();
        assert_eq!(cells.claim(A), Claim::Closed);
        assert!(!cells.is_drained());
        let (pos, _) = taken(cells.take(B, &mut 0));
        assert_eq!(cells.release(pos), Wake::All);
        assert!(cells.is_drained());
        assert_eq!(cells.take(B, &mut 0), Take::Drained);
        assert_eq!(cells.claim(A), Claim::Closed);
    });
}

#[test]
fn closed_and_drained_waits_for_a_message_that_may_come_back() {
    with_each_capacity(|cells, capacity| {
        put(&cells, 5);
        let (pos, _) = taken(cells.take(A, &mut 0));
        cells.close();
        let other = cells.take(B, &mut 0);
        let expected = if capacity == 1 {
            Take::Empty
        } else {
            Take::Pending(A)
        };
        assert_eq!(other, expected);
        assert!(!cells.is_drained());
        assert_eq!(cells.reap(A).handed_back, 1);
        assert_eq!(taken(cells.take(B, &mut 0)), (pos, true));
        let _ = cells.release(pos);
        assert_eq!(cells.take(B, &mut 0), Take::Drained);
    });
}

#[test]
fn a_claim_outlives_the_closing() {
    with_each_capacity(|cells, _| {
        let Claim::At(pos) = cells.claim(A) else {
            panic!("an empty queue refuses a claim");
        };
        cells.close();
        assert_eq!(cells.take(B, &mut 0), Take::Pending(A));
        cells.write(pos, &[5; PAYLOAD_WORDS]);
        cells.publish(pos);
        assert_eq!(get(&cells), 5);
        assert_eq!(cells.take(B, &mut 0), Take::Drained);
    });
}

#[test]
fn passing_on_knows_the_next_cell() {
    let heap = HeapCells::zeroed(2);
    let cells = Cells(&heap);
    cells.init();
    put(&cells, 5);
    assert!(cells.next_is_free(0));
    assert!(!cells.next_is_ready(0));
    put(&cells, 6);
    assert!(!cells.next_is_free(1));
    assert!(cells.next_is_ready(0));
}

#[test]
fn garbage_in_the_words_is_an_answer_not_a_hang() {
    let garbage = [
        u64::MAX,
        5,
        HANDED_BACK,
        word::free(1 << 40) | HANDED_BACK,
        word::ready(3) | 1 << 60,
        word::claimed(A, 9_999),
        word::taking(A, 9_999, true),
        word::free(u64::MAX >> 4),
        word::closed(u64::MAX >> 4),
    ];
    for garbage in garbage {
        for hint in [0, 6, u64::MAX] {
            let heap = HeapCells::zeroed(3);
            let cells = Cells(&heap);
            for index in 0..3 {
                (&heap).word(index).store(garbage, SeqCst);
            }
            (&heap).tail().store(hint, SeqCst);
            (&heap).head().store(hint, SeqCst);
            let _ = cells.claim(A);
            let _ = cells.take(B, &mut 1);
            let _ = cells.reap(A);
            cells.close();
            let _ = cells.take(B, &mut 1);
            let _ = (cells.is_drained(), cells.len());
            let _ = (cells.next_is_free(hint), cells.next_is_ready(hint));
        }
    }
}

#[test]
fn two_producers_and_two_consumers_lose_nothing_and_keep_each_producers_order() {
    const EACH: u64 = 2_000;
    for capacity in [1, 2, 3, 8] {
        let heap = HeapCells::zeroed(capacity);
        let cells = Cells(&heap);
        cells.init();
        let produce = |producer: u64| {
            for number in 0..EACH {
                loop {
                    match cells.claim(A) {
                        Claim::At(pos) => {
                            cells.write(pos, &[producer << 32 | number; PAYLOAD_WORDS]);
                            break cells.publish(pos);
                        }
                        Claim::Full | Claim::Pending(_) => std::thread::yield_now(),
                        other => panic!("{other:?}"),
                    }
                }
            }
        };
        let consume = || {
            let (mut seen, mut got) = (0, Vec::new());
            loop {
                match cells.take(B, &mut seen) {
                    Take::At { pos, .. } => {
                        let [value, rest @ ..] = cells.read(pos);
                        assert_eq!(rest, [value; PAYLOAD_WORDS - 1]);
                        let _ = cells.release(pos);
                        got.push(value);
                    }
                    Take::Drained => return got,
                    Take::Empty | Take::Pending(_) => std::thread::yield_now(),
                    Take::Damaged => panic!("damaged"),
                }
            }
        };
        let got = std::thread::scope(|scope| {
            let consumers = [scope.spawn(consume), scope.spawn(consume)];
            let producers = [scope.spawn(|| produce(0)), scope.spawn(|| produce(1))];
            for producer in producers {
                producer.join().expect("a producer panicked");
            }
            cells.close();
            consumers.map(|consumer| consumer.join().expect("a consumer panicked"))
        });
        for got in &got {
            for producer in 0..2 {
                let mine: Vec<_> = got
                    .iter()
                    .filter(|value| *value >> 32 == producer)
                    .collect();
                assert!(mine.is_sorted(), "capacity {capacity}: {mine:?}");
            }
        }
        let mut all: Vec<_> = got.concat();
        all.sort_unstable();
        let expected: Vec<_> = (0..2)
            .flat_map(|producer| (0..EACH).map(move |number| producer << 32 | number))
            .collect();
        assert_eq!(all, expected, "capacity {capacity}");
    }
}

#[test]
fn cells_are_all_free_only_when_nobody_has_one_in_hand() {
    with_each_capacity(|cells, _| {
        assert!(cells.are_all_free());
        let Claim::At(pos) = cells.claim(A) else {
            panic!("an empty queue has a free cell");
        };
        assert!(!cells.are_all_free(), "claimed");
        cells.write(pos, &[1; PAYLOAD_WORDS]);
        cells.publish(pos);
        assert!(!cells.are_all_free(), "ready");
        let (pos, _) = taken(cells.take(B, &mut 0));
        assert!(!cells.are_all_free(), "being taken");
        cells.hand_back(pos);
        assert!(!cells.are_all_free(), "handed back");
        let mut seen = u64::MAX;
        let (pos, handed_back) = taken(cells.take(B, &mut seen));
        assert!(handed_back);
        let _ = cells.release(pos);
        assert!(cells.are_all_free());
    });
}
