//! Single tasks: arguments, results, errors, state, waiting.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use integration_tests::Test;
use tensormp::mp_queue::{Error, ErrorKind};
use tensormp::prelude::*;
use tensormp::spawn_api::Typed;

use crate::workers::{Workers, with_both};

pub(crate) const TESTS: &[Test] = with_both![
    a_call_runs_elsewhere_and_its_result_comes_home,
    tensors_in_and_out_are_handles,
    errors_travel_as_data,
    an_error_type_that_nobody_else_knows_comes_home_as_its_texts,
    a_typed_error_comes_home_as_itself,
    a_panic_fails_its_task_only_and_the_worker_lives_on,
    arguments_that_cannot_be_sent_come_back_with_the_reason,
    an_argument_that_cannot_be_sent_is_told_in_its_own_words,
    a_result_that_cannot_be_sent_is_an_error_and_hangs_nobody,
    arguments_that_cannot_be_read_are_an_error_and_hang_nobody,
    each_worker_keeps_the_state_that_its_initializer_made,
    large_messages_and_many_handles_go_through,
    a_wait_with_a_limit_ends_and_the_task_goes_on,
    tasks_that_nobody_waits_for_are_done_all_the_same,
    many_threads_use_one_pool_at_once,
    a_queue_goes_to_a_worker_like_any_value,
    generic_functions_and_closures_are_told_apart,
];

fn a_call_runs_elsewhere_and_its_result_comes_home<W: Workers>() {
    fn sum((a, b): (u64, Vec<u64>)) -> Result<u64, std::io::Error> {
        Ok(a + b.iter().sum::<u64>())
    }
    let pool = W::pool(2);
    assert_eq!(pool.call(sum, (1, vec![2, 3])).unwrap(), 6);
    let pid = pool
        .call(|()| Ok::<_, String>(std::process::id()), ())
        .unwrap();
    assert!(pool.pids().contains(&pid), "{pid} of {:?}", pool.pids());
    pool.shutdown().unwrap();
}

fn tensors_in_and_out_are_handles<W: Workers>() {
    fn double(mut tensor: Tensor<f32>) -> tensormp::Result<Tensor<f32>> {
        tensor.as_mut_slice().iter_mut().for_each(|x| *x *= 2.0);
        Ok(tensor)
    }
    fn same((shared, count): (SharedTensor<u8>, usize)) -> tensormp::Result<Vec<SharedTensor<u8>>> {
        Ok(vec![shared; count])
    }
    let pool = W::pool(2);
    let tensor = Tensor::full([256, 1024], 1.5_f32).unwrap();
    let place = tensor.as_slice().as_ptr();
    let tensor = pool.call(double, tensor).unwrap();
    // The bytes are where they were, and written in place.
    assert_eq!(tensor.as_slice().as_ptr(), place);
    assert!(tensor.as_slice().iter().all(|&x| x == 3.0));

    let shared = Tensor::full(100, 7_u8).unwrap().freeze();
    let copies = pool.call(same, (shared.clone(), 3)).unwrap();
    for copy in &copies {
        assert_eq!(copy.as_slice().as_ptr(), shared.as_slice().as_ptr());
    }
}

fn errors_travel_as_data<W: Workers>() {
    fn open(path: String) -> Result<u64, std::io::Error> {
        std::fs::metadata(path).map(|metadata| metadata.len())
    }
    let pool = W::pool(1);
    let error = pool.call(open, "/no/such/file".to_owned()).unwrap_err();
    let ErrorKind::TaskRaised { pid, chain, .. } = error.kind() else {
        panic!("{error}")
    };
    assert_eq!([*pid], pool.pids()[..]);
    assert!(chain[0].contains("No such file"), "{chain:?}");
    assert!(error.to_string().contains("No such file"), "{error}");
    // The worker is none the worse.
    assert_eq!(pool.call(|x: u8| Ok::<_, String>(x), 1).unwrap(), 1);
}

/// Not serializable, and a type of this test only.
#[derive(Debug)]
struct Layered(std::num::ParseIntError);

impl fmt::Display for Layered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the label cannot be read")
    }
}

impl std::error::Error for Layered {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

fn an_error_type_that_nobody_else_knows_comes_home_as_its_texts<W: Workers>() {
    fn read(text: String) -> Result<u8, Layered> {
        text.parse().map_err(Layered)
    }
    let pool = W::pool(1);
    let error = pool.call(read, "x".to_owned()).unwrap_err();
    let ErrorKind::TaskRaised { chain, .. } = error.kind() else {
        panic!("{error}")
    };
    assert_eq!(
        chain[..],
        ["the label cannot be read", "invalid digit found in string"]
    );
}

#[derive(Clone, PartialEq, Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("{bytes} bytes are too many for {name}")]
struct TooLarge {
    bytes: u64,
    name: String,
}

fn a_typed_error_comes_home_as_itself<W: Workers>() {
    fn load(bytes: u64) -> Result<u64, Typed<TooLarge>> {
        if bytes > 100 {
            let name = "the model".to_owned();
            Err(TooLarge { bytes, name })?;
        }
        Ok(bytes)
    }
    let pool = W::pool(2);
    let expected = TooLarge {
        bytes: 200,
        name: "the model".to_owned(),
    };
    let error = pool.call(load, 200).unwrap_err();
    assert_eq!(error.downcast::<TooLarge>(), Some(expected.clone()));
    assert_eq!(error.downcast::<String>(), None, "only as what it is");
    assert!(
        error.to_string().contains("200 bytes are too many"),
        "{error}"
    );
    let error = pool.call(|_: ()| Err::<(), _>("plain"), ()).unwrap_err();
    assert_eq!(error.downcast::<TooLarge>(), None);
    // Each of a chunk by itself.
    let outcomes = pool.map(load, [1, 200, 3]).unwrap().chunk(3);
    let errors: Vec<_> = outcomes
        .map(|outcome| outcome.err().and_then(|error| error.downcast()))
        .collect();
    assert_eq!(errors, [None, Some(expected), None]);
}

fn a_panic_fails_its_task_only_and_the_worker_lives_on<W: Workers>() {
    fn picky(x: u32) -> Result<u32, String> {
        assert!(x != 3, "three is not a number");
        Ok(x)
    }
    let pool = W::pool(1);
    let before = pool.pids();
    let tasks: Vec<_> = (0..6).map(|x| pool.submit(picky, x).unwrap()).collect();
    for (x, task) in tasks.into_iter().enumerate() {
        match task.wait() {
            Ok(y) => assert_eq!(y as usize, x),
            Err(error) => {
                assert_eq!(x, 3);
                let ErrorKind::TaskPanicked { message, .. } = error.kind() else {
                    panic!("{error}")
                };
                assert!(message.contains("three is not a number"), "{error}");
            }
        }
    }
    assert_eq!(pool.pids(), before);
}

fn arguments_that_cannot_be_sent_come_back_with_the_reason<W: Workers>() {
    fn take(_: Vec<std::sync::Arc<Tensor<u8>>>) {}
    let pool = W::pool(1);
    let twice = std::sync::Arc::new(Tensor::full(4, 1_u8).unwrap());
    let kept = std::sync::Arc::clone(&twice);
    let error = pool.submit(take, vec![twice]).unwrap_err();
    assert!(error.to_string().contains("still holds"), "{error}");

    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    struct Skips {
        #[serde(skip_serializing_if = "Option::is_none")]
        a: Option<u8>,
    }
    let error = pool.submit(|_: Skips| (), Skips { a: None }).unwrap_err();
    assert!(error.into_value().is_some_and(|skips| skips.a.is_none()));
    assert_eq!(kept.as_slice(), [1; 4]);
}

/// Cannot be written.
#[derive(Debug, serde::Deserialize)]
struct Mute;

impl serde::Serialize for Mute {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("mute"))
    }
}

/// Panics when it is written.
#[derive(Debug, serde::Deserialize)]
struct Loud;

impl serde::Serialize for Loud {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("loud")
    }
}

/// What its `Serialize` says, and the user's type, and none of ours around it.
fn assert_own_words(error: &Error) {
    let text = error.to_string();
    assert!(text.ends_with("Mute could not be written: mute"), "{text}");
    assert!(
        !text.contains("mp_queue::") && !text.contains("spawn::"),
        "{text}"
    );
}

fn an_argument_that_cannot_be_sent_is_told_in_its_own_words<W: Workers>() {
    let pool = W::pool(1);
    let nothing = |_: Mute| Ok::<_, String>(());
    assert_own_words(&pool.call(nothing, Mute).unwrap_err());
    assert_own_words(&pool.submit(nothing, Mute).unwrap_err().into_parts().0);
    let mut each = pool.map(nothing, [Mute]).unwrap();
    assert_own_words(&each.next().unwrap().unwrap_err());
}

fn a_result_that_cannot_be_sent_is_an_error_and_hangs_nobody<W: Workers>() {
    let pool = W::pool(1);
    let error = pool.call(|()| Ok::<_, String>(Mute), ()).unwrap_err();
    assert!(error.to_string().contains("could not be sent"), "{error}");
    assert_own_words(&error);
    let error = pool.call(|()| Ok::<_, String>(Loud), ()).unwrap_err();
    assert!(error.to_string().contains("could not be sent"), "{error}");
    assert_eq!(pool.call(|x: u8| Ok::<_, String>(x), 1).unwrap(), 1);
}

/// postcard can write it, but not read it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u32),
}

fn arguments_that_cannot_be_read_are_an_error_and_hang_nobody<W: Workers>() {
    let pool = W::pool(1);
    let error = pool
        .call(|_: Untagged| (), Untagged::Number(1))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("it did not run: its arguments of type") && text.contains("untagged"),
        "{text}"
    );
    // The same on the way home.
    let error = pool
        .call(|()| Ok::<_, String>(Untagged::Number(1)), ())
        .unwrap_err();
    assert!(error.to_string().contains("untagged"), "{error}");
    assert_eq!(pool.call(|x: u8| Ok::<_, String>(x), 1).unwrap(), 1);
}

struct Counter {
    rank: usize,
    calls: u64,
}

fn each_worker_keeps_the_state_that_its_initializer_made<W: Workers>() {
    fn count(counter: &mut Counter, by: u64) -> Result<(usize, u64), String> {
        counter.calls += by;
        Ok((counter.rank, counter.calls))
    }
    let pool = W::builder()
        .workers(2)
        .init(|rank| Counter { rank, calls: 0 })
        .start()
        .unwrap();
    let mut last = [0, 0];
    for outcome in pool.map_with(count, (0..50).map(|_| 2)).unwrap() {
        let (rank, calls) = outcome.unwrap();
        last[rank] = last[rank].max(calls);
    }
    assert_eq!(last.iter().sum::<u64>(), 100, "{last:?}");
    let (rank, calls) = pool.call_with(count, 5).unwrap();
    assert_eq!(calls, last[rank] + 5);
    // Functions without state run in the same workers.
    assert_eq!(pool.call(|x: u8| Ok::<_, String>(x), 1).unwrap(), 1);
}

fn large_messages_and_many_handles_go_through<W: Workers>() {
    type Load = (String, Vec<Tensor<u32>>);
    fn back((mut text, mut tensors): Load) -> tensormp::Result<Load> {
        tensors.reverse();
        text.push('!');
        Ok((text, tensors))
    }
    let pool = W::pool(2);
    let tensors = (0..30).map(|i| Tensor::full(10, i).unwrap()).collect();
    let (text, tensors) = pool.call(back, ("x".repeat(100_000), tensors)).unwrap();
    assert_eq!(text.len(), 100_001);
    for (i, tensor) in tensors.iter().enumerate() {
        assert_eq!(tensor.as_slice(), [29 - i as u32; 10]);
    }
}

fn a_wait_with_a_limit_ends_and_the_task_goes_on<W: Workers>() {
    fn waits(go: Event) -> tensormp::Result<u8> {
        go.wait()?;
        Ok(7)
    }
    let pool = W::pool(1);
    let go = Event::new().unwrap();
    let mut task = pool.submit(waits, go.clone()).unwrap();
    assert!(task.try_wait().is_none());
    assert!(task.wait_timeout(Duration::from_millis(20)).is_none());
    assert!(!task.is_done());
    go.set();
    assert_eq!(task.wait().unwrap(), 7);
}

fn tasks_that_nobody_waits_for_are_done_all_the_same<W: Workers>() {
    fn put((to, x): (Sender<u32>, u32)) -> tensormp::Result<()> {
        // Longer than what is given ahead: most of them wait in the parent's queue.
        std::thread::sleep(Duration::from_millis(2));
        Ok(to.put(x)?)
    }
    let pool = W::pool(2);
    let (to, from) = Queue::bounded(100).unwrap().split();
    for x in 0..60 {
        drop(pool.submit(put, (to.clone(), x)).unwrap());
    }
    let all: HashSet<u32> = (0..60).map(|_| from.get().unwrap()).collect();
    assert_eq!(all.len(), 60);
}

fn many_threads_use_one_pool_at_once<W: Workers>() {
    fn twice(x: u64) -> Result<u64, String> {
        Ok(2 * x)
    }
    let pool = W::pool(2);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let pool = &pool;
            scope.spawn(move || {
                for x in 0..150 {
                    assert_eq!(
                        pool.call(twice, thread * 1000 + x).unwrap(),
                        2 * (thread * 1000 + x)
                    );
                }
                let sum: u64 = pool.map(twice, 0..100).unwrap().map(|y| y.unwrap()).sum();
                assert_eq!(sum, 9900);
            });
        }
    });
    pool.shutdown().unwrap();
}

fn a_queue_goes_to_a_worker_like_any_value<W: Workers>() {
    fn total(from: Receiver<Tensor<u32>>) -> tensormp::Result<u64> {
        Ok(from
            .iter()
            .map(|tensor| u64::from(tensor.as_slice()[0]))
            .sum())
    }
    let pool = W::pool(1);
    let (to, from) = Queue::bounded(4).unwrap().split();
    let task = pool.submit(total, from).unwrap();
    for i in 0..20 {
        to.put(Tensor::full(3, i).unwrap()).unwrap();
    }
    drop(to);
    assert_eq!(task.wait().unwrap(), 190);
}

fn generic_functions_and_closures_are_told_apart<W: Workers>() {
    fn name<T: Default>(_: T) -> Result<String, String> {
        Ok(std::any::type_name::<T>().to_owned())
    }
    let pool = W::pool(1);
    assert_eq!(pool.call(name::<u8>, 0).unwrap(), "u8");
    assert_eq!(pool.call(name::<i64>, 0).unwrap(), "i64");
    let up = pool.submit(|x: u8| Ok::<_, String>(x + 1), 7).unwrap();
    let down = pool.submit(|x: u8| Ok::<_, String>(x - 1), 7).unwrap();
    assert_eq!((up.wait().unwrap(), down.wait().unwrap()), (8, 6));
}
