//! Starts processes by the crate procspawn and says how long each took. `cargo xtask bench spawn` builds and runs it.
//!
//! Each line of its stdin is an order, `procspawn 30`, `floor 30` or `call 30`; the answer is a line with that many times
//! in nanoseconds. The floor is this same program run again, ended at once, and waited for. A call is one task of a pool
//! with one worker (`cargo xtask bench pool`).

use std::error::Error;
use std::io::Write;
use std::process::Command;
use std::time::Instant;

/// What a task of a pool does, with what goes there and back.
fn next((a, b): (u64, u64)) -> (u64, u64) {
    (a + 1, b)
}

fn double(x: u64) -> u64 {
    2 * x
}

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().nth(1).as_deref() == Some("floor") {
        return Ok(());
    }
    procspawn::init();
    let mut pool = None;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (what, samples) = line
            .split_once(' ')
            .ok_or("an order is a word and a number")?;
        let mut one: Box<dyn FnMut() -> Result<(), Box<dyn Error>>> = match what {
            "procspawn" => Box::new(by_procspawn),
            "floor" => Box::new(floor),
            "call" => {
                let pool: &procspawn::Pool = match &mut pool {
                    Some(pool) => pool,
                    none => none.insert(procspawn::Pool::new(1)?),
                };
                Box::new(move || call(pool))
            }
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

fn call(pool: &procspawn::Pool) -> Result<(), Box<dyn Error>> {
    let back = pool.spawn((41, 7), next).join()?;
    if back != (42, 7) {
        return Err(format!("(42, 7) was to come back, not {back:?}").into());
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
