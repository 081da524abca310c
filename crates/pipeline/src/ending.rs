//! The end of a run: what it came to, for whoever joins it and for its directory.

use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use shm_core::clock::now_ns;
use shm_core::patience::Patience;

use crate::account::Items;
use crate::board::{ENDING, State, WOKEN};
use crate::check::{in_queue, out_queues, slots};
use crate::error::{Error, ErrorKind};
use crate::run::{ProcessReport, Report, Termination, seconds};
use crate::runner::{Runner, unix_ns};
use crate::wiring::Wiring;

/// How long the client's iterator may take to come back where nothing is said, as long as processes have to end.
const GRACE: Duration = Duration::from_secs(3);

impl Runner {
    /// Waits for the client, writes the run directory, and says what the run came to.
    pub(crate) fn finish(mut self, started: Option<(u64, u64)>) -> Report {
        self.progress.stop.store(true, Ordering::Relaxed);
        // The queue before the first step ends with the client's hold on it.
        self.wiring.let_go(|_| true, |_| true);
        self.wait_for_client();
        self.hear();
        let in_hand = self.failed_rank.map_or(0, |rank| self.failed_in_hand(rank));
        if let Some(rank) = self.failed_rank {
            self.counts[rank].failed += in_hand;
        }
        let mut items = self.account.close(self.error.is_some(), in_hand);
        if self.error.is_none() {
            self.error = self
                .never_whole()
                .or_else(|| self.fell_short(items.completed));
        }
        let ranks = 0..self.wiring.seats.len() as u32;
        items.late = ranks.map(|rank| self.wiring.board.late(rank)).sum();
        let ended_ns = now_ns();
        let termination = match (&self.error, self.count) {
            (Some(error), _) => Termination::of(error),
            (None, Some(count)) if items.completed >= count => Termination::TargetReached,
            (None, _) => Termination::InputEnded,
        };
        if let Some(line) = &mut self.line {
            line.end(&items, self.count);
        }
        let processes = self.process_reports();
        if let Some(dir) = self.dir.take() {
            let told = json!({
                "reason": termination,
                "detail": self.error.as_ref().map(Error::to_string),
            });
            let times = started.unwrap_or((ended_ns, unix_ns()));
            let mut run = self.run_json(times, ended_ns, told, &processes, items);
            run["seconds"] = json!(seconds(&processes, started.map(|(at, _)| at), ended_ns));
            if let Err(error) = dir.finish(run)
                && self.error.is_none()
            {
                self.error = Some(error);
            }
        }
        // Everything is told; what is left of the run in shared memory goes now, before whoever joins looks.
        let Self { error, .. } = self;
        Report {
            termination,
            error,
            items,
            processes,
            started_ns: started.map(|(clock, _)| clock),
            ended_ns,
        }
    }

    /// What there is to be told of items that never were whole again. A death may have taken segments with it: those are
    /// counted, and were expected.
    fn never_whole(&self) -> Option<Error> {
        let items = self.account.incomplete();
        if items == 0 || self.wiring.board.deaths() > 0 {
            return None;
        }
        Some(Error::new(
            ErrorKind::Incomplete,
            format!(
                "{items} items never came whole: {} had some of their segments and waited in vain for the others; a stage \
                 before made nothing of those, or they went to another process",
                self.waited_in_vain()
            ),
        ))
    }

    /// The processes that had segments whose others never came.
    fn waited_in_vain(&self) -> String {
        let waited = self.wiring.seats.iter().zip(&self.counts);
        let waited: Vec<_> = waited
            .filter(|(_, counts)| counts.incomplete > 0)
            .map(|(seat, _)| format!("{:?}", seat.name))
            .collect();
        waited.join(", ")
    }

    /// What there is to be told where the input was ended before its target, since all that was offered was held by
    /// processes that waited for more of it, and some of that never came, in a run in which processes were killed.
    fn fell_short(&self, completed: u64) -> Option<Error> {
        let count = self.count.filter(|&count| completed < count)?;
        if !self.progress.enough.load(Ordering::Relaxed) || self.wiring.board.deaths() == 0 {
            return None;
        }
        // Of what a stage made nothing of all is back; of what went with a process it is not, unless some came twice.
        let why = match self.account.incomplete() {
            0 => "which went with processes that were killed".to_owned(),
            items => format!(
                "and that never did: {items} items never came whole, since a stage before made nothing of some of their \
                 segments, or those went with processes that were killed, and {} waited for them in vain",
                self.waited_in_vain()
            ),
        };
        Some(Error::new(
            ErrorKind::Incomplete,
            format!(
                "{completed} inputs were finished, and not {count}: processes held all others until more of them would come, {why}"
            ),
        ))
    }

    /// Waits for the client's thread, which was told to stop, as long as it may take for that. One that is in its iterator
    /// for longer is left to itself: nothing of the run depends on it any more.
    pub(crate) fn wait_for_client(&mut self) {
        let mut wait = Patience::new(self.grace.unwrap_or(GRACE));
        while self.client.is_some() {
            self.hear();
            self.look_after_client();
            if wait.is_over(Instant::now()) || self.wanted() > 1 {
                if self.client.take().is_some() {
                    tracing::warn!(
                        "the iterator that makes the inputs has not come back; the run ends without it"
                    );
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn look_after_client(&mut self) {
        if !self.client.as_ref().is_some_and(JoinHandle::is_finished) {
            return;
        }
        let Some(client) = self.client.take() else {
            return;
        };
        let answer = client.join().unwrap_or_else(|_| {
            // Its thread catches what the iterator does.
            let told = "the thread that feeds the first step ended unexpectedly";
            Err(Error::new(ErrorKind::Process, told))
        });
        match answer {
            // That nobody takes its inputs has a reason, which is told by whoever it happened to.
            Err(error) if !crate::client::follows(&error) => {
                self.fail(crate::client::client_failed(error));
            }
            _ => {}
        }
    }

    /// Notes in the run directory what runs, for whoever looks there when nobody came to say how it ended.
    pub(crate) fn note_start(&mut self, started: (u64, u64)) {
        let Some(dir) = &self.dir else { return };
        let told = json!({
            "reason": "unknown",
            "detail": "it has not ended yet, or its program ended before it could say how",
        });
        let processes = self.process_reports();
        let run = self.run_json(started, started.0, told, &processes, Items::default());
        if let Err(error) = dir.note(run) {
            self.dir = None;
            self.fail(error);
        }
    }

    /// What `run.json` says.
    fn run_json(
        &self,
        (started_ns, started_unix_ns): (u64, u64),
        ended_ns: u64,
        termination: serde_json::Value,
        processes: &[ProcessReport],
        items: Items,
    ) -> serde_json::Value {
        json!({
            "started_unix_ns": started_unix_ns,
            "clock_start_ns": started_ns,
            "ended_ns": ended_ns,
            "termination": termination,
            "steps": self.steps_json(),
            "processes": processes.iter().enumerate().map(|(rank, process)| json!({
                "rank": rank,
                "pid": process.pid,
                "step": process.step,
                "replica": process.replica,
                "device": process.device,
                "name": process.name,
                "restarts": process.restarts,
                "replaced": process.replaced,
                "inputs": process.inputs(),
                "outputs": process.outputs(),
                "failed": self.failed_in_hand(rank),
            })).collect::<Vec<_>>(),
            "rings": self.rings_json(),
            "items": items,
            "cards_missing": self.cards_missing(processes),
            "config": self.config,
        })
    }

    /// Items that processes took and of which no time card came home: those that they were at when they were ended.
    fn cards_missing(&self, processes: &[ProcessReport]) -> u64 {
        let each = processes.iter().zip(&self.cards);
        each.map(|(process, &cards)| process.inputs().saturating_sub(cards))
            .sum()
    }

    /// The same of one process: those that it was at, or holds.
    pub(crate) fn in_hand(&self, rank: usize) -> u64 {
        let (inputs, _) = self.wiring.board.counts(rank as u32);
        inputs.saturating_sub(self.cards[rank])
    }

    /// What a process had when its failure ended the run, of which no card tells.
    fn failed_in_hand(&self, rank: usize) -> u64 {
        match self.failed_rank == Some(rank) {
            true => self.in_hand(rank),
            false => 0,
        }
    }

    /// The item that a process worked on when it ended, as far as the board tells.
    pub(crate) fn last_item(&self, rank: usize) -> Option<u64> {
        let (board, rank) = (&self.wiring.board, rank as u32);
        let works = matches!(
            board.state(rank),
            State::Working | State::WaitsForSlot | State::WaitsForRoom(_)
        );
        let item = board.item(rank);
        let is_item = board.counts(rank).0 > 0 && item != ENDING && item != WOKEN;
        (works && is_item).then_some(item)
    }

    fn process_reports(&self) -> Vec<ProcessReport> {
        (0..self.wiring.seats.len())
            .map(|rank| self.process_report(rank))
            .collect()
    }

    fn process_report(&self, rank: usize) -> ProcessReport {
        let seat = &self.wiring.seats[rank];
        ProcessReport {
            step: self.wiring.step_of(rank).name.clone(),
            name: seat.name.clone(),
            pid: self.workers[rank].as_ref().map_or(0, |worker| worker.pid),
            device: seat.device,
            replica: seat.replica,
            restarts: self.restarts[rank],
            replaced: self.replaced[rank].clone(),
            counts: self.counts[rank],
            noted: self.wiring.board.counts(rank as u32),
            outcome: self.outcomes[rank].clone(),
        }
        .close()
    }

    fn steps_json(&self) -> serde_json::Value {
        let last = self.wiring.steps.len() - 1;
        let steps = self.wiring.steps.iter().enumerate();
        steps
            .map(|(index, step)| {
                let groups: Vec<_> = step
                    .groups
                    .iter()
                    .map(|group| {
                        json!({
                            "devices": group.devices,
                            "replicas": group.devices.len(),
                            "in_queue": (index > 0).then(|| in_queue(group)),
                            "out_queues": out_queues(group, index == last),
                            "selector": group.selector,
                            "slots": if index < last { slots(step) } else { 0 },
                            "segments": step.segments,
                        })
                    })
                    .collect();
                let ranks = self.wiring.seats.iter().enumerate();
                let ranks: Vec<_> = ranks
                    .filter(|(_, seat)| seat.step == index)
                    .map(|(rank, _)| rank)
                    .collect();
                json!({
                    "name": step.name,
                    "stage": step.groups.first().map(|group| group.maker.stage()),
                    "groups": groups,
                    "ranks": ranks,
                    "delivery": step.delivery,
                    "backpressure": step.backpressure,
                })
            })
            .collect()
    }

    fn rings_json(&self) -> serde_json::Value {
        rings(&self.wiring)
            .into_iter()
            .map(|(step, name)| {
                let (slots, slot_bytes) = self.wiring.slots_of(step);
                let (from, to) = (&self.wiring.steps[step].name, &self.wiring.steps[step + 1].name);
                json!({"name": name, "from": from, "to": to, "slots": slots, "slot_bytes": slot_bytes})
            })
            .collect()
    }
}

/// The steps that have slots, and what the ring behind each is called.
pub(crate) fn rings(wiring: &Wiring) -> Vec<(usize, String)> {
    let pairs = wiring.steps.windows(2).enumerate();
    pairs
        .filter(|(step, _)| wiring.slots_of(*step).0 > 0)
        .map(|(step, pair)| (step, format!("{}→{}", pair[0].name, pair[1].name)))
        .collect()
}
