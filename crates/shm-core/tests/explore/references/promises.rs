//! What must hold of references, and what the explorer must notice.

use super::{Config, References, Role, Variant};
use crate::run;

fn holds(name: &str, config: Config) {
    let report = run(name, &References::new(config));
    if let Some(violation) = report.violation {
        panic!("{name}: {violation}");
    }
    assert!(report.ends > 0, "{name} never ends");
}

const MOVING: Config = Config::BASE;

#[test]
fn smoke() {
    holds("moving", MOVING);
}
