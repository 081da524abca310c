//! Signals to the program that runs a pipeline, from the moment at which the run is started.
//!
//! A guard ([`Signals`]) hands a signal on to the processes that there are. What comes while a run is being started finds
//! none, or some of them, so the run counts for itself what its program got meanwhile.

use spawn::Signals;

use crate::error::{Error, ErrorKind};

/// See the module.
#[derive(Debug)]
pub(crate) struct SignalsHeard {
    /// A guard that is the run's own: what came before the run counts, too.
    guard: Option<Signals>,
    /// How many signals the program had got by then.
    before: u64,
}

impl SignalsHeard {
    /// From now on.
    pub(crate) fn from_now(guard: Option<Signals>) -> Self {
        let before = Signals::seen();
        Self { guard, before }
    }

    /// How many came. Always 0 in a program that has no guard, and that they would end.
    pub(crate) fn count(&self) -> u64 {
        let of_guard = self.guard.as_ref().map_or(0, Signals::count);
        Signals::seen()
            .saturating_sub(self.before)
            .max(of_guard.into())
    }

    /// Why a run ends that is to stop.
    pub(crate) fn interrupted(&self) -> Error {
        let signal = Signals::last_seen().filter(|_| self.count() > 0);
        let why = match (signal, &self.guard) {
            (None, _) => "on request".to_owned(),
            (Some(signal), Some(_)) => format!("on request ({signal})"),
            (Some(signal), None) => format!(
                "because this program got SIGINT, SIGTERM or SIGHUP and hands them on (it was {signal})"
            ),
        };
        Error::new(ErrorKind::Interrupted, format!("the run was stopped {why}"))
    }
}
