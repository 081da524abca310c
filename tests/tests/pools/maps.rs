//! `map`: order, laziness, bounds, chunks, and what tasks write in place.

use std::cell::Cell;

use integration_tests::Test;
use tensormp::mp_queue::ErrorKind;
use tensormp::prelude::*;

use crate::workers::{Workers, with_both};

pub(crate) const TESTS: &[Test] = with_both![
    outcomes_come_in_the_order_of_the_items,
    unordered_outcomes_are_each_given_once,
    a_map_drains_nothing_eagerly,
    a_map_takes_no_more_items_than_it_may_have_in_flight,
    an_endless_input_is_fine,
    a_map_without_any_limit_takes_what_there_is,
    a_chunk_gives_the_same_as_its_items,
    one_items_error_leaves_the_others_alone,
    an_item_that_cannot_be_sent_fails_in_its_place,
    in_place_writes_of_a_map_are_seen,
    results_of_a_map_are_tensors_where_the_workers_made_them,
    a_dropped_map_gives_up_what_was_not_begun,
    a_hundred_thousand_items_leave_the_arena_as_it_was,
];

fn square(x: u64) -> Result<u64, String> {
    Ok(x * x)
}

fn outcomes_come_in_the_order_of_the_items<W: Workers>() {
    fn uneven(x: u64) -> Result<u64, String> {
        if x.is_multiple_of(7) {
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        Ok(x)
    }
    let pool = W::pool(3);
    let outcomes: Vec<u64> = pool
        .map(uneven, 0..100)
        .unwrap()
        .map(|outcome| outcome.unwrap())
        .collect();
    assert_eq!(outcomes, (0..100).collect::<Vec<_>>());
    assert_eq!(pool.map(square, 0..0).unwrap().count(), 0);
}

fn unordered_outcomes_are_each_given_once<W: Workers>() {
    let pool = W::pool(2);
    let mut outcomes: Vec<u64> = pool
        .map(square, 0..3000)
        .unwrap()
        .unordered()
        .map(|outcome| outcome.unwrap())
        .collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, (0..3000).map(|x| x * x).collect::<Vec<_>>());
}

fn a_map_drains_nothing_eagerly<W: Workers>() {
    let pool = W::pool(2);
    let taken = Cell::new(0);
    let items = (0..100_000).inspect(|_| taken.set(taken.get() + 1));
    let mut map = pool.map(square, items).unwrap();
    assert_eq!(taken.get(), 0);
    assert_eq!(map.next().unwrap().unwrap(), 0);
    assert!(taken.get() <= 256, "{}", taken.get());
}

fn a_map_without_any_limit_takes_what_there_is<W: Workers>() {
    let pool = W::builder().workers(2).start().unwrap();
    for (chunk, in_flight) in [(1, usize::MAX), (usize::MAX, usize::MAX), (7, 1 << 50)] {
        let map = pool.map(square, 0..50).unwrap();
        let map = map.chunk(chunk).in_flight(in_flight);
        let squares: Vec<_> = map.map(|outcome| outcome.unwrap()).collect();
        assert!((0..50).map(|x| x * x).eq(squares));
    }
    let map = pool.map(square, 0..50).unwrap().chunk(usize::MAX);
    assert_eq!(map.count(), 50);
}

fn a_map_takes_no_more_items_than_it_may_have_in_flight<W: Workers>() {
    let pool = W::pool(2);
    for chunk in [1, 3] {
        let taken = Cell::new(0);
        let items = (0..500).inspect(|_| taken.set(taken.get() + 1));
        let mut map = pool.map(square, items).unwrap().in_flight(5).chunk(chunk);
        for given in 0..500 {
            assert_eq!(map.next().unwrap().unwrap(), given * given);
            assert!(taken.get() <= given + 1 + 5, "{} at {given}", taken.get());
        }
        assert!(map.next().is_none());
    }
}

fn an_endless_input_is_fine<W: Workers>() {
    let pool = W::pool(2);
    let first: Vec<u64> = pool
        .map(square, 1..)
        .unwrap()
        .map(|outcome| outcome.unwrap())
        .take(10)
        .collect();
    assert_eq!(first.last(), Some(&100));
    // The pool serves the next one.
    assert_eq!(pool.call(square, 3).unwrap(), 9);
}

fn a_chunk_gives_the_same_as_its_items<W: Workers>() {
    fn picky(x: u64) -> Result<u64, String> {
        assert!(x != 11, "eleven");
        if x == 13 {
            Err("thirteen".into())
        } else {
            Ok(x)
        }
    }
    let pool = W::pool(2);
    for (chunk, ordered) in [(1, true), (7, true), (7, false), (1000, true)] {
        let map = pool.map(picky, 0..100).unwrap().chunk(chunk);
        let map = if ordered {
            map.ordered()
        } else {
            map.unordered()
        };
        let (good, bad): (Vec<_>, Vec<_>) = map.partition(|outcome| outcome.is_ok());
        assert_eq!((good.len(), bad.len()), (98, 2), "{chunk} {ordered}");
        let kinds: Vec<_> = bad
            .iter()
            .map(|outcome| outcome.as_ref().unwrap_err().kind())
            .collect();
        assert!(kinds.iter().any(
            |kind| matches!(kind, ErrorKind::TaskPanicked { message, .. } if message == "eleven")
        ));
        assert!(kinds.iter().any(
            |kind| matches!(kind, ErrorKind::TaskRaised { chain, .. } if chain == &["thirteen"])
        ));
    }
}

fn one_items_error_leaves_the_others_alone<W: Workers>() {
    fn odd(x: u64) -> Result<u64, String> {
        if x % 2 == 1 {
            Ok(x)
        } else {
            Err(format!("{x} is even"))
        }
    }
    let pool = W::pool(2);
    for (x, outcome) in pool.map(odd, 0..100).unwrap().enumerate() {
        match outcome {
            Ok(y) => assert_eq!(y, x as u64),
            Err(error) => assert!(
                error.to_string().contains(&format!("{x} is even")),
                "{error}"
            ),
        }
    }
}

fn an_item_that_cannot_be_sent_fails_in_its_place<W: Workers>() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Skips {
        #[serde(skip_serializing_if = "Option::is_none")]
        a: Option<u8>,
    }
    let pool = W::pool(2);
    let items = (0..10).map(|x| Skips {
        a: (x != 4).then_some(x),
    });
    let outcomes: Vec<_> = pool
        .map(|skips: Skips| Ok::<_, String>(skips.a), items)
        .unwrap()
        .collect();
    for (x, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(a) => assert_eq!(a, Some(x as u8)),
            Err(error) => assert!(x == 4 && error.to_string().contains("skip"), "{error}"),
        }
    }
}

fn in_place_writes_of_a_map_are_seen<W: Workers>() {
    fn fill((tensor, row): (AliasedTensor<f32>, usize)) -> tensormp::Result<()> {
        let row = tensor.select(0, row)?;
        for column in 0..8 {
            row.store(&[column], 1.0 + column as f32)?;
        }
        Ok(())
    }
    let pool = W::pool(2);
    let tensor = Tensor::<f32>::zeros([20, 8]).unwrap().alias();
    let items = (0..20).map(|row| (tensor.clone(), row));
    for outcome in pool.map(fill, items).unwrap() {
        outcome.unwrap();
    }
    for row in 0..20 {
        for column in 0..8 {
            assert_eq!(tensor.load(&[row, column]).unwrap(), 1.0 + column as f32);
        }
    }
}

fn results_of_a_map_are_tensors_where_the_workers_made_them<W: Workers>() {
    fn make(x: u32) -> tensormp::Result<Tensor<u32>> {
        Ok(Tensor::full([100, 100], x)?)
    }
    let pool = W::pool(2);
    let before = Arena::current().unwrap().stats().blocks;
    for (x, outcome) in pool.map(make, 0..200).unwrap().enumerate() {
        let tensor = outcome.unwrap();
        assert!(tensor.as_slice().iter().all(|&y| y == x as u32));
    }
    assert!(Arena::current().unwrap().stats().blocks <= before + 8);
}

fn a_dropped_map_gives_up_what_was_not_begun<W: Workers>() {
    fn count((to, go, x): (Sender<u32>, Event, u32)) -> tensormp::Result<()> {
        if x > 0 {
            go.wait()?;
        }
        Ok(to.put(x)?)
    }
    let pool = W::builder().workers(1).prefetch(8).start().unwrap();
    let (to, from) = Queue::bounded(1000).unwrap().split();
    let go = Event::new().unwrap();
    let items = (0..1000).map(|x| (to.clone(), go.clone(), x));
    let mut map = pool.map(count, items).unwrap().in_flight(100);
    map.next().unwrap().unwrap();
    drop(map);
    go.set();
    drop(to);
    pool.shutdown().unwrap();
    let done = from.iter().count();
    assert!((1..40).contains(&done), "{done}");
}

fn a_hundred_thousand_items_leave_the_arena_as_it_was<W: Workers>() {
    let pool = W::pool(2);
    let items = |n: u64| (0..n).map(|x| (x, Tensor::full(4, x).unwrap().freeze()));
    let add = |(x, tensor): (u64, SharedTensor<u64>)| Ok::<_, String>(x + tensor.as_slice()[0]);
    let count = if cfg!(debug_assertions) {
        10_000
    } else {
        100_000
    };
    let sum = |n| -> u64 {
        let map = pool.map(add, items(n)).unwrap().unordered();
        map.map(|outcome| outcome.unwrap()).sum()
    };
    assert_eq!(sum(500), 500 * 499);
    let arena = Arena::current().unwrap();
    let before = arena.stats();
    assert_eq!(sum(count), count * (count - 1));
    let after = arena.stats();
    assert!(after.blocks <= before.blocks + 8, "{before:?} {after:?}");
    assert!(
        after.committed <= before.committed + (8 << 20),
        "{before:?} {after:?}"
    );
}
