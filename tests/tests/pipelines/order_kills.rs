//! Order restored behind processes that are killed again and again: what is lost is passed over, and nothing stands still.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tensormp::pipeline::{Client, Delivery, Pipeline, Step, Unfinished};

use crate::flow::seen;
use crate::scenes::copy;
use crate::stages::*;

/// How many processes are killed, and about how long after each other.
const KILLS: usize = 25;
const PAUSE_MS: u64 = 20;

/// What is before the step that wants order.
#[derive(Clone, Copy)]
struct Before {
    replicas: usize,
    slots: u32,
    segments: u32,
    /// Further outputs of each input.
    more: u64,
    /// Another step between, which is not killed, of so many processes.
    between: usize,
    delivery: Delivery,
    unfinished: Unfinished,
    seed: u64,
}

impl Default for Before {
    fn default() -> Self {
        Self {
            replicas: 2,
            slots: 8,
            segments: 1,
            more: 0,
            between: 0,
            delivery: Delivery::One,
            unfinished: Unfinished::Redeliver,
            seed: 7,
        }
    }
}

impl Before {
    fn steps(self, inputs: Client) -> Pipeline {
        let params = LoadParams {
            more: self.more,
            ..LoadParams::default()
        };
        let load = Step::of::<Load>("load", params)
            .replicas(self.replicas)
            .slots(self.slots)
            .segments(self.segments)
            .delivery(self.delivery)
            .restart(1000, self.unfinished);
        let pipeline = Pipeline::new().client(inputs).step(load);
        let pipeline = match self.between {
            0 => pipeline,
            processes => {
                let copy = copy();
                pipeline.step(copy.replicas(processes).slots(self.slots))
            }
        };
        pipeline.step(Step::of::<See>("see", SeeParams::default()).ordered())
    }

    /// Runs it; the numbers that the last step saw, in the order in which it saw them, and how often a process died.
    fn play(self) -> (Vec<u64>, u64) {
        self.play_and_count().0
    }

    /// The same, and how many items were told to be late.
    fn play_and_count(self) -> ((Vec<u64>, u64), u64) {
        integration_tests::allow_leaks(2 * KILLS);
        // As many inputs as can be finished until the killing stops, and some more.
        let stop = Arc::new(AtomicBool::new(false));
        let go_on = Arc::clone(&stop);
        let (begun, has_begun) = std::sync::mpsc::sync_channel(1);
        let inputs = (0_u64..).take_while(move |_| {
            let _ = begun.try_send(());
            !go_on.load(Ordering::Relaxed)
        });
        let running = self.steps(Client::new(inputs)).start().unwrap();
        // Not while they start: all might be killed before the first input.
        has_begun.recv().unwrap();
        let mut random = self.seed;
        for _ in 0..KILLS {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let pause = PAUSE_MS / 2 + (random >> 33) % PAUSE_MS;
            std::thread::sleep(Duration::from_millis(pause));
            let pid = running.pids()[(random >> 40) as usize % self.replicas];
            // Not one that has just been waited for: its number may be another's.
            if integration_tests::children().contains(&pid) {
                integration_tests::kill(pid);
            }
        }
        stop.store(true, Ordering::Relaxed);
        let report = running.wait();
        assert!(report.error().is_none(), "{report:?}");
        let (items, restarts) = (report.items(), report.processes().iter());
        let restarts: u64 = restarts.map(|process| u64::from(process.restarts())).sum();
        assert!(restarts > 0 && items.completed > 0, "{items:?}");
        assert_eq!(items.offered, items.completed + items.failed, "{items:?}");
        // Each death costs what the process had in its hands, where that is reported, and what it was about to take.
        assert!(
            items.failed <= 2 * restarts,
            "{items:?}, {restarts} restarts"
        );
        let numbers = seen(&report, "see").concat();
        let numbers: Vec<u64> = numbers.into_iter().map(|(number, ..)| number).collect();
        let different: BTreeSet<u64> = numbers.iter().copied().collect();
        assert!(different.len() as u64 >= items.completed, "{items:?}");
        ((numbers, restarts), items.late)
    }

    /// What is not in its place was counted as late.
    fn tells_what_is_late(self) {
        let (numbers, late) = self.play_and_count();
        let (numbers, _) = numbers;
        let mut known = BTreeSet::new();
        let mut behind = 0;
        for number in numbers {
            let is_behind = known.last().is_some_and(|&last| number < last);
            behind += u64::from(is_behind && !known.contains(&number));
            known.insert(number);
        }
        assert!(behind <= late, "{behind} were late, {late} are told");
    }

    /// Runs it; each number is first seen behind all smaller ones. Who is killed after it put an item and before it said so
    /// makes its replacement put that again, which comes late.
    fn goes_on_in_order(self) {
        let (numbers, restarts) = self.play();
        let mut known = BTreeSet::new();
        let mut again = 0;
        for number in numbers {
            if known.last().is_some_and(|&last| number <= last) {
                assert!(
                    known.contains(&number),
                    "{number} comes after {:?}",
                    known.last()
                );
                again += 1;
            }
            known.insert(number);
        }
        let segments = u64::from(self.segments);
        let most = known.len() as u64 * (segments - 1) + segments * restarts;
        assert!(again <= most, "{again} again, {restarts} restarts");
    }
}

pub(crate) fn killed_again_and_again_replicas_leave_their_items_in_order() {
    Before::default().goes_on_in_order();
}

pub(crate) fn killed_again_and_again_three_replicas_of_two_slots_leave_their_items_in_order() {
    Before {
        replicas: 3,
        slots: 2,
        ..Before::default()
    }
    .goes_on_in_order();
}

pub(crate) fn killed_again_and_again_replicas_leave_segments_in_order() {
    Before {
        slots: 3,
        segments: 2,
        ..Before::default()
    }
    .goes_on_in_order();
}

pub(crate) fn killed_two_steps_before_processes_do_not_stop_what_is_put_in_order() {
    for (between, delivery, unfinished) in [
        (1, Delivery::One, Unfinished::Report),
        (2, Delivery::One, Unfinished::Redeliver),
        (2, Delivery::Every, Unfinished::Redeliver),
    ] {
        Before {
            slots: 3,
            between,
            delivery,
            unfinished,
            ..Before::default()
        }
        .tells_what_is_late();
    }
}

pub(crate) fn killed_again_and_again_processes_do_not_stop_further_outputs_of_what_is_in_order() {
    Before {
        slots: 2,
        more: 2,
        ..Before::default()
    }
    .play();
}
