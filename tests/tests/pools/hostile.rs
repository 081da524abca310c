//! What nobody should do with a pool, done.

use std::sync::atomic::{AtomicU32, Ordering};

use integration_tests::{Test, kill, tests};
use tensormp::mp_queue::ErrorKind;
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    a_task_that_kills_the_pools_process_leaves_no_worker,
    a_pool_in_a_worker_of_a_pool_goes_with_it,
    items_that_call_the_pool_while_a_map_takes_them_are_fine,
    a_result_of_a_gibibyte_is_a_handle,
    a_task_that_closes_what_its_pool_works_with_fails_alone,
    an_argument_that_panics_when_it_is_dropped_fails_its_task_only,
];

fn double(x: u64) -> Result<u64, String> {
    Ok(2 * x)
}

fn a_task_that_kills_the_pools_process_leaves_no_worker() {
    fn has_a_pool(_rank: usize, (): ()) -> tensormp::Result<()> {
        let pool = Pool::new(2)?;
        pool.call(
            |owner: u32| {
                kill(owner);
                std::thread::sleep(std::time::Duration::from_secs(3600));
            },
            std::process::id(),
        )?;
        Ok(())
    }
    let mut context = spawn(has_a_pool, (), 1).unwrap();
    // The workers are gone with it: the harness finds whatever is left.
    let text = context.join().unwrap_err().to_string();
    assert!(text.contains("SIGKILL"), "{text}");
}

fn a_pool_in_a_worker_of_a_pool_goes_with_it() {
    fn nested(depth: u32) -> tensormp::Result<u32> {
        if depth == 0 {
            return Ok(0);
        }
        let pool = Pool::new(1)?;
        Ok(pool.call(nested, depth - 1)? + 1)
    }
    fn dies_with_a_pool(_: ()) -> tensormp::Result<()> {
        let pool = Pool::new(2)?;
        let _task = pool.submit(
            |_: ()| std::thread::sleep(std::time::Duration::from_secs(3600)),
            (),
        )?;
        kill(std::process::id());
        Ok(())
    }
    let pool = Pool::new(1).unwrap();
    assert_eq!(pool.call(nested, 3).unwrap(), 3);
    let error = pool.call(dies_with_a_pool, ()).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::TaskLost { .. }),
        "{error}"
    );
    assert_eq!(pool.call(nested, 1).unwrap(), 1);
    pool.shutdown().unwrap();
}

fn items_that_call_the_pool_while_a_map_takes_them_are_fine() {
    let pool = Pool::new(2).unwrap();
    let items = (0..50).map(|x| pool.call(double, x).unwrap());
    let sum: u64 = pool.map(double, items).unwrap().map(Result::unwrap).sum();
    assert_eq!(sum, 4 * (0..50).sum::<u64>());
    // A map in a map.
    let inner = |x| {
        pool.map(double, 0..x)
            .unwrap()
            .map(Result::unwrap)
            .sum::<u64>()
    };
    let outer: u64 = pool
        .map(double, (0..10).map(inner))
        .unwrap()
        .map(Result::unwrap)
        .sum();
    assert_eq!(
        outer,
        2 * (0..10_u64).map(|x| x * x.saturating_sub(1)).sum::<u64>()
    );
    pool.shutdown().unwrap();
}

fn a_result_of_a_gibibyte_is_a_handle() {
    const BYTES: usize = 1 << 30;
    fn makes(bytes: usize) -> tensormp::Result<Tensor<u8>> {
        let mut tensor = Tensor::zeros(bytes)?;
        tensor.as_mut_slice()[bytes - 1] = 7;
        Ok(tensor)
    }
    let pool = Pool::new(1).unwrap();
    match pool.call(makes, BYTES) {
        Ok(tensor) => {
            assert_eq!(tensor.numel(), BYTES);
            assert_eq!(tensor.as_slice()[BYTES - 1], 7);
        }
        // Where there is no such room, that is what the task says.
        Err(error) => {
            eprintln!("skipped in part: {error}");
            assert!(
                matches!(error.kind(), ErrorKind::TaskRaised { .. }),
                "{error}"
            );
        }
    }
    assert_eq!(pool.call(double, 1).unwrap(), 2);
}

fn a_task_that_closes_what_its_pool_works_with_fails_alone() {
    // Its standard streams, and every descriptor that it can name.
    fn closes(_: ()) -> tensormp::Result<()> {
        let listed: Vec<_> = std::fs::read_dir("/proc/self/fd")?.flatten().collect();
        assert!(!listed.is_empty());
        std::process::exit(0);
    }
    let pool = Pool::new(1).unwrap();
    for _ in 0..3 {
        let error = pool.call(closes, ()).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::TaskLost { .. }),
            "{error}"
        );
        assert_eq!(pool.call(double, 2).unwrap(), 4);
    }
    pool.shutdown().unwrap();
}

/// The process of the pool; 0 in a worker.
static POOL: AtomicU32 = AtomicU32::new(0);

/// Panics when it is dropped in a worker.
#[derive(serde::Serialize, serde::Deserialize)]
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        assert_eq!(POOL.load(Ordering::Relaxed), std::process::id());
    }
}

fn an_argument_that_panics_when_it_is_dropped_fails_its_task_only() {
    fn takes(_: Grenade) -> Result<u32, String> {
        Ok(1)
    }
    fn makes(_: ()) -> Result<Grenade, String> {
        Ok(Grenade)
    }
    POOL.store(std::process::id(), Ordering::Relaxed);
    let pool = Pool::new(1).unwrap();
    let pids = pool.pids();
    for _ in 0..5 {
        let error = pool.call(takes, Grenade).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::TaskPanicked { .. }),
            "{error}"
        );
        // A result is dropped in the worker once it is written.
        let outcome = pool.call(makes, ()).map_err(|error| error.to_string());
        assert!(outcome.is_err_and(|text| text.contains("panicked")));
        assert_eq!(pool.call(double, 1).unwrap(), 2);
    }
    assert_eq!(pool.pids(), pids, "the worker lives on");
    pool.shutdown().unwrap();
}
