//! The race detector against a small model: random programs of streams and events, in which what comes after what is found
//! by walking a graph of all operations.

use std::process::ExitCode;

use cuda_emulator::{Driver, Kind, Knobs, Session};
use integration_tests::tests;

fn main() -> ExitCode {
    let tests = tests![random_programs_race_exactly_where_the_graph_says_so];
    integration_tests::main(&tests)
}

const STREAMS: usize = 4;
const EVENTS: usize = 3;
/// A byte range of the one allocation: 16 cells.
const CELLS: u64 = 16;
const CELL: u64 = 64;

/// An operation of the model: which earlier ones it comes directly after, and what it touches.
#[derive(Clone)]
struct Node {
    after: Vec<usize>,
    cells: std::ops::Range<u64>,
    writes: bool,
}

/// The model: everything that was issued, and what the streams, the events and the host come after.
#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
    streams: [Vec<usize>; STREAMS],
    events: [Vec<usize>; EVENTS],
    host: Vec<usize>,
}

impl Graph {
    /// Adds an operation; whether it races with an earlier one.
    fn touch(&mut self, stream: usize, cells: std::ops::Range<u64>, writes: bool) -> bool {
        let after: Vec<usize> = self.streams[stream]
            .iter()
            .chain(&self.host)
            .copied()
            .collect();
        let mut before = vec![false; self.nodes.len()];
        let mut todo = after.clone();
        while let Some(node) = todo.pop() {
            if !std::mem::replace(&mut before[node], true) {
                todo.extend(&self.nodes[node].after);
            }
        }
        let races = self.nodes.iter().zip(&before).any(|(node, before)| {
            let overlaps = node.cells.start < cells.end && cells.start < node.cells.end;
            overlaps && (writes || node.writes) && !before
        });
        self.nodes.push(Node {
            after,
            cells,
            writes,
        });
        self.streams[stream] = vec![self.nodes.len() - 1];
        races
    }
}

struct Machine {
    session: Session,
    driver: Driver,
    streams: [usize; STREAMS],
    own: [u64; STREAMS],
}

fn random_programs_race_exactly_where_the_graph_says_so() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let session = Knobs::new().load().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let machine = Machine {
        session,
        driver,
        streams: std::array::from_fn(|_| driver.stream(1).unwrap()),
        own: std::array::from_fn(|_| driver.alloc((CELLS * CELL) as usize).unwrap()),
    };
    let (mut races, mut clean) = (0, 0);
    for program in 0..600 {
        match run(
            &machine,
            &mut random,
            &format!("seed {seed}, program {program}"),
        ) {
            true => races += 1,
            false => clean += 1,
        }
    }
    // The programs are such that both happen often.
    assert!(
        races > 20 && clean > 20,
        "{races} with races, {clean} without, seed {seed}"
    );
}

/// One program, until its first race or its end; whether there was one.
fn run(machine: &Machine, random: &mut fastrand::Rng, name: &str) -> bool {
    let Machine {
        session,
        driver,
        streams,
        own,
    } = machine;
    let at = driver.alloc((CELLS * CELL) as usize).unwrap();
    let events: [usize; EVENTS] = std::array::from_fn(|_| driver.event(2).unwrap());
    let mut graph = Graph::default();
    let mut raced = false;
    let mut story = Vec::new();
    for _ in 0..random.usize(4..40) {
        let (stream, event) = (random.usize(..STREAMS), random.usize(..EVENTS));
        match random.u32(..100) {
            0..35 => {
                // Mostly apart from the others, so that programs come far.
                let start = if random.u32(..3) == 0 {
                    random.u64(..CELLS)
                } else {
                    stream as u64 * 4
                };
                let end = (start + random.u64(1..4)).min(CELLS);
                let writes = random.u32(..3) == 0;
                let expected = graph.touch(stream, start..end, writes);
                let (from, len) = (at + start * CELL, (end - start) * CELL);
                match writes {
                    true => driver.fill_async(from, 1, len as usize, streams[stream]),
                    false => driver.copy_async(own[stream], from, len as usize, streams[stream]),
                }
                .unwrap();
                story.push(format!(
                    "stream {stream} {} {start}..{end}",
                    if writes { "writes" } else { "reads" }
                ));
                raced = !session.reports_of(Kind::Race).is_empty();
                assert_eq!(raced, expected, "{name}: {story:#?}");
                if raced {
                    break;
                }
            }
            35..60 => {
                driver.record(events[event], streams[stream]).unwrap();
                // Everything of that stream so far, and what it waited for.
                graph.events[event] = graph.streams[stream]
                    .iter()
                    .chain(&graph.host)
                    .copied()
                    .collect();
                story.push(format!("event {event} is recorded on stream {stream}"));
            }
            60..92 => {
                driver.wait(streams[stream], events[event], 0).unwrap();
                let event_after = graph.events[event].clone();
                graph.streams[stream].extend(event_after);
                story.push(format!("stream {stream} waits for event {event}"));
            }
            92..96 => {
                driver.synchronize_event(events[event]).unwrap();
                let event_after = graph.events[event].clone();
                graph.host.extend(event_after);
                story.push(format!("the host waits for event {event}"));
            }
            _ => {
                driver.synchronize_stream(streams[stream]).unwrap();
                let stream_after = graph.streams[stream].clone();
                graph.host.extend(stream_after);
                story.push(format!("the host waits for stream {stream}"));
            }
        }
    }
    driver.synchronize().unwrap();
    session.clear_reports();
    for event in events {
        driver.destroy_event(event).unwrap();
    }
    driver.free(at).unwrap();
    raced
}
