//! Starts processes by the crate procspawn and says how long each took. `cargo xtask bench spawn` builds and runs it.
//!
//! Each line of its stdin is an order, `procspawn 30` or `floor 30`; the answer is a line with that many times in
//! nanoseconds. The floor is this same program run again, ended at once, and waited for.

use std::error::Error;
use std::io::Write;
use std::process::Command;
use std::time::Instant;

fn double(x: u64) -> u64 {
    2 * x
}

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().nth(1).as_deref() == Some("floor") {
        return Ok(());
    }
    procspawn::init();
    for line in std::io::stdin().lines() {
        let line = line?;
        let (what, samples) = line
            .split_once(' ')
            .ok_or("an order is a word and a number")?;
        let one = match what {
            "procspawn" => by_procspawn,
            "floor" => floor,
            other => return Err(format!("there is no peer {other:?}").into()),
        };
        let mut times = Vec::new();
        for _ in 0..samples.parse::<usize>()? {
            let start = Instant::now();
            one()?;
            times.push(start.elapsed().as_nanos().to_string());
        }
        println!("{}", times.join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn by_procspawn() -> Result<(), Box<dyn Error>> {
    let doubled = procspawn::spawn(21, double).join()?;
    if doubled != 42 {
        return Err(format!("42 was to come back, not {doubled}").into());
    }
    Ok(())
}

fn floor() -> Result<(), Box<dyn Error>> {
    let status = Command::new("/proc/self/exe").arg("floor").status()?;
    if !status.success() {
        return Err(format!("running this program again: {status}").into());
    }
    Ok(())
}
