//! The line that shows how far a run is, while it runs and somebody looks.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use crate::account::Items;

/// See the module.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    since: Instant,
    shown: bool,
}

impl ProgressLine {
    /// A line on stderr, if that is a terminal.
    pub(crate) fn if_watched() -> Option<Self> {
        std::io::stderr().is_terminal().then(|| Self {
            since: Instant::now(),
            shown: false,
        })
    }

    /// The run starts now, and its rate is from here on.
    pub(crate) fn begin(&mut self) {
        self.since = Instant::now();
    }

    pub(crate) fn show(&mut self, items: &Items, target: Option<u64>) {
        self.shown = true;
        let text = text(items, target, self.since.elapsed().as_secs_f64());
        // To the beginning of the line, and the rest of it cleared.
        let _ = write!(std::io::stderr(), "\r{text}\x1b[K");
    }

    pub(crate) fn end(&mut self, items: &Items, target: Option<u64>) {
        if self.shown {
            self.show(items, target);
            let _ = writeln!(std::io::stderr());
        }
    }
}

/// Says something on stderr, above the line where there is one.
pub(crate) fn notice(line: Option<&mut ProgressLine>, told: &str) {
    // The line is shown again at its next turn.
    let clear = match line {
        Some(ProgressLine { shown: true, .. }) => "\r\x1b[K",
        _ => "",
    };
    let _ = writeln!(std::io::stderr(), "{clear}{told}");
}

fn text(items: &Items, target: Option<u64>, seconds: f64) -> String {
    let Items {
        completed,
        dropped,
        failed,
        unfinished,
        ..
    } = items;
    let rate = *completed as f64 / seconds.max(1e-9);
    let mut text = match target {
        Some(target) => {
            let percent = 100.0 * *completed as f64 / target.max(1) as f64;
            let left = target.saturating_sub(*completed) as f64;
            let rest = if left > 0.0 && rate > 0.0 {
                format!(", {:.0} s left", left / rate)
            } else {
                String::new()
            };
            format!("{completed} of {target} items ({percent:.0} %), {rate:.1}/s{rest}")
        }
        None => format!("{completed} items, {rate:.1}/s"),
    };
    if dropped + failed > 0 {
        text.push_str(&format!("; {dropped} dropped, {failed} failed"));
    }
    if *unfinished > 0 {
        text.push_str(&format!("; {unfinished} unfinished"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_how_fast_and_how_long() {
        let items = Items {
            completed: 50,
            dropped: 1,
            ..Items::default()
        };
        assert_eq!(
            text(&items, Some(200), 10.0),
            "50 of 200 items (25 %), 5.0/s, 30 s left; 1 dropped, 0 failed"
        );
        assert_eq!(text(&Items::default(), None, 0.0), "0 items, 0.0/s");
        let items = Items {
            completed: 8,
            unfinished: 2,
            ..Items::default()
        };
        assert_eq!(text(&items, None, 4.0), "8 items, 2.0/s; 2 unfinished");
    }
}
