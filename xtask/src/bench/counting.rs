//! The suite `cuda` on the emulated driver: which calls of the driver a hand-over costs each process, in steady state. Times
//! would mean nothing there.

use std::collections::BTreeMap;

use super::catalogue::Suite;
use super::pair::Pair;
use super::{cuda, machine};
use crate::Result;

/// Hand-overs before those that are counted: what happens once has happened then.
const WARM: usize = 20;
/// Hand-overs that are counted.
const COUNTED: usize = 200;

/// Calls that say which context a thread is in, and change nothing.
const ASIDE: [&str; 2] = ["cuCtxGetCurrent", "cuCtxSetCurrent"];

pub(crate) fn run(json: bool) -> Result<()> {
    let session = cuda_emulator::Knobs::new().load()?;
    let pins = machine::choose_pins()?;
    for case in Suite::Cuda.cases() {
        // Attaching is not steady, and copies are not handed over.
        let name = case.subject.name();
        if !["device put", "device to device", "device get 4KiB, of 1000"].contains(&name.as_str())
        {
            continue;
        }
        let small = name.ends_with("of 1000");
        let (warm, counted) = if small { (2, 4) } else { (WARM, COUNTED) };
        // Once with a look at what arrives, which would be calls as well.
        let mut pair = Pair::start(pins)?;
        let end = pair.open(case.subject.as_ref())?;
        pair.run(end, 2)?;
        drop(pair);
        let mut pair = Pair::start_with(pins, &[(cuda::COUNTING, "1")])?;
        let end = pair.open(case.subject.as_ref())?;
        pair.run(end, warm)?;
        let before = pair.ids().map(|pid| session.calls_of(pid));
        pair.run(end, counted)?;
        let after = pair.ids().map(|pid| session.calls_of(pid));
        for (side, (before, after)) in ["A", "B"].into_iter().zip(before.iter().zip(&after)) {
            let calls: BTreeMap<&str, f64> = after
                .since(before)
                .into_iter()
                .filter(|(call, _)| !ASIDE.contains(call))
                .map(|(call, count)| (call, count as f64 / counted as f64))
                .collect();
            match json {
                true => println!(
                    "{}",
                    serde_json::json!({"case": name, "side": side, "calls": calls})
                ),
                false => {
                    let calls: Vec<String> = calls
                        .iter()
                        .map(|(call, count)| format!("{call} {count:.2}"))
                        .collect();
                    println!("{name:<26} {side}  {}", calls.join(", "));
                }
            }
        }
    }
    let faults = session.faults();
    if !faults.is_empty() {
        return Err(format!(
            "the emulated driver saw {} faults, the first: {:?}",
            faults.len(),
            faults[0]
        )
        .into());
    }
    Ok(())
}
