//! The end of a run: what it came to, for whoever joins it and for its directory.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use shm_core::clock::now_ns;

use crate::account::Items;
use crate::check::{in_queue, out_queues, slots};
use crate::error::Error;
use crate::run::{ProcessReport, Report, Termination, seconds};
use crate::runner::{Runner, unix_ns};
use crate::wiring::Wiring;

impl Runner {
    /// Waits for the client, writes the run directory, and says what the run came to.
    pub(crate) fn finish(mut self, started: Option<(u64, u64)>) -> Report {
        self.progress.stop.store(true, Ordering::Relaxed);
        // The queue before the first step ends with the client's hold on it.
        self.wiring.let_go(|_| true, |_| true);
        while self.client.is_some() {
            self.hear();
            self.look_after_client();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.hear();
        let failed = self.error.is_some();
        let items = self.account.close(failed);
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
                "inputs": process.inputs(),
                "outputs": process.outputs(),
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
            counts: self.wiring.board.counts(rank as u32),
            outcome: self.outcomes[rank].clone(),
        }
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
