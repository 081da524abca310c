//! Different functions under one supervision.

use std::panic::{AssertUnwindSafe, catch_unwind};

use libtest_mimic::Trial;
use shm_core::Arena;
use shm_core::object::{Array, Object, ObjectKind};
use spawn::{ErrorKind, Group};

use crate::support::{self, exists, sleeps};
use crate::trials;

pub(crate) fn tests() -> Vec<Trial> {
    trials![
        ranks_and_results_follow_the_order_of_adding,
        a_panic_of_what_makes_a_result_is_told_by_the_next_join,
        a_failure_in_one_function_stops_the_others,
        an_empty_group_is_a_mistake,
        a_failure_of_processes_apart_ends_no_wait_of_others,
    ]
}

fn length(rank: usize, text: String) -> Result<usize, String> {
    Ok(rank * 100 + text.len())
}

fn double(rank: usize, x: usize) -> Result<usize, String> {
    Ok(rank * 100 + 2 * x)
}

fn spell(rank: usize, x: u8) -> Result<String, String> {
    Ok(format!("{rank}{x}"))
}

fn ranks_and_results_follow_the_order_of_adding() {
    let mut group = Group::new().start_method(support::method());
    assert_eq!(group.add("first", length, "four".to_owned()).unwrap(), 0);
    assert_eq!(group.add_replicas("middle", double, 21, 3).unwrap(), 1..4);
    let spelt = |text: String| text.parse::<usize>().unwrap_or(0);
    assert_eq!(group.add_mapped("last", spell, 7, spelt).unwrap(), 4);
    let mut context = group.start().unwrap();
    let names: Vec<String> = context
        .workers()
        .into_iter()
        .map(|worker| worker.name)
        .collect();
    assert_eq!(names, ["first", "middle.0", "middle.1", "middle.2", "last"]);
    assert_eq!(context.join().unwrap(), [4, 142, 242, 342, 47]);
}

fn a_panic_of_what_makes_a_result_is_told_by_the_next_join() {
    let mut group = Group::new().start_method(support::method());
    group.add("plain", length, "four".to_owned()).unwrap();
    let fails = |_: String| -> usize { panic!("no number") };
    group.add_mapped("mapped", spell, 7, fails).unwrap();
    let mut context = group.start().unwrap();
    let joined = catch_unwind(AssertUnwindSafe(|| context.join().map(<[_]>::len)));
    assert!(joined.is_err());
    for _ in 0..2 {
        let error = context.join().unwrap_err();
        let worker = error.worker().unwrap();
        assert_eq!((worker.rank, worker.name.as_str()), (1, "mapped"));
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}

fn a_failure_in_one_function_stops_the_others() {
    fn fails(_rank: usize, why: String) -> Result<(), String> {
        Err(why)
    }
    let mut group = Group::new().start_method(support::method());
    group.add_replicas("sleeper", sleeps, (), 2).unwrap();
    group.add("failer", fails, "enough".to_owned()).unwrap();
    let mut context = group.start().unwrap();
    let error = context.join().unwrap_err();
    let worker = error.worker().unwrap();
    assert_eq!((worker.rank, worker.name.as_str()), (2, "failer"));
    assert!(context.pids().into_iter().all(|pid| !exists(pid)));
}

fn an_empty_group_is_a_mistake() {
    let error = Group::<()>::new().start().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Usage), "{error:?}");
}

fn a_failure_of_processes_apart_ends_no_wait_of_others() {
    fn fails(_rank: usize, _: Object) -> Result<(), String> {
        Err("enough".to_owned())
    }
    for apart in [false, true] {
        let arena = Arena::current().unwrap();
        let none = [Array::None, Array::None];
        let shared = Object::create(&arena, ObjectKind::Event, none, 1).unwrap();
        let fails_alone = |shared: Object| fails(0, shared);
        let one = spawn::builder().grace(std::time::Duration::ZERO);
        let one = if apart { one.apart() } else { one };
        let one = one.name("failer").start_method(support::method());
        let mut one = one.spawn_one(fails_alone, shared.clone()).unwrap();
        let error = one.join().unwrap_err().to_string();
        assert!(error.contains("\"failer\""), "{error}");
        assert_eq!(shared.failure().is_none(), apart);
        let shared = Object::create(&arena, ObjectKind::Event, none, 1).unwrap();
        let mut group = Group::new();
        if apart {
            group = group.apart();
        }
        group.add("failer", fails, shared.clone()).unwrap();
        group.start().unwrap().join().unwrap_err();
        assert_eq!(shared.failure().is_none(), apart);
    }
}
