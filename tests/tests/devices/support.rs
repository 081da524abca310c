//! What the tests of devices have in common: a machine, and looking at the end whether it is as it was.

use std::time::Duration;

use cuda_emulator::{Kind, Knobs, Session};

/// The emulated machine: two devices, without a delay.
pub(crate) fn machine() -> Session {
    with(&Knobs::new())
}

/// The emulated machine, as these knobs make it.
pub(crate) fn with(knobs: &Knobs) -> Session {
    knobs.load().expect("the emulated driver")
}

/// A machine whose streams take their time, so that a wait that is missing shows.
pub(crate) fn slow_machine() -> Session {
    with(&Knobs::new().delay(Duration::from_millis(2)))
}

/// All device memory comes back, nothing raced, and no call was refused.
pub(crate) fn all_is_well(session: Session) {
    no_memory_is_left(session);
    let refused = session.reports_of(Kind::Refused);
    assert!(refused.is_empty(), "{refused:#?}");
}

/// All device memory comes back, and nothing raced.
pub(crate) fn no_memory_is_left(session: Session) {
    cuda_ipc::close(Duration::from_secs(20)).unwrap();
    // A thread of its own may be in the middle of closing what is of the dead.
    while cuda_ipc::stats().imports > 0 {
        cuda_ipc::collect();
        std::thread::sleep(Duration::from_millis(1));
    }
    let stats = cuda_ipc::stats();
    assert_eq!((stats.allocations, stats.live), (0, 0), "{stats:?}");
    let live = session.live();
    assert_eq!((live.allocations, live.imports), (0, 0), "{live:?}");
    let faults = session.faults();
    assert!(faults.is_empty(), "{faults:#?}");
}
