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
    before: Heard,
}

impl SignalsHeard {
    /// From now on.
    pub(crate) fn from_now(guard: Option<Signals>) -> Self {
        let before = Heard::now();
        Self { guard, before }
    }

    /// How many came, of hangups one at most. Always 0 in a program that has no guard, and that they would end.
    pub(crate) fn count(&self) -> u64 {
        let of_guard = self.guard.as_ref().map_or(0, Signals::count);
        let now = Heard::now();
        let hangups = now.hangups.saturating_sub(self.before.hangups);
        let all = now.all.saturating_sub(self.before.all);
        let counted = all.saturating_sub(hangups) + hangups.min(1);
        counted.max(of_guard.into())
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

/// What the program has got since its first guard.
#[derive(Clone, Copy, Debug)]
struct Heard {
    hangups: u64,
    all: u64,
}

impl Heard {
    fn now() -> Self {
        // In this order: a hangup that comes in between is missed for a moment, and not taken for another signal.
        let all = Signals::seen();
        let hangups = Signals::seen_hangups();
        Self { hangups, all }
    }
}
