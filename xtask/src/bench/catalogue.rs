//! All suites, their cases, and each subject by its name, which is how the two processes find it.

use super::floor::{CacheLine, FutexWake};
use super::memory::{FirstTouch, Memcpy};
use super::payload::SIZES;
use super::stream::{Stream, Transport};
use super::subject::Subject;

#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Suite {
    /// What the machine itself costs; each case against itself.
    Floor,
    /// One hand-over from process to process, by each transport.
    Handoff,
}

/// A subject and the floor that fits it; none: the subject itself.
pub(crate) struct Case {
    pub(crate) subject: Box<dyn Subject>,
    pub(crate) floor: Option<Box<dyn Subject>>,
}

impl Suite {
    pub(crate) fn all() -> Vec<Suite> {
        vec![Suite::Floor, Suite::Handoff]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Suite::Floor => "floor",
            Suite::Handoff => "handoff",
        }
    }

    pub(crate) fn cases(self) -> Vec<Case> {
        match self {
            Suite::Floor => {
                let subjects: [Box<dyn Subject>; 4] = [
                    Box::new(CacheLine),
                    Box::new(FutexWake),
                    Box::new(Memcpy),
                    Box::new(FirstTouch),
                ];
                subjects
                    .into_iter()
                    .map(|subject| Case {
                        subject,
                        floor: None,
                    })
                    .collect()
            }
            Suite::Handoff => {
                // The receiver of a stream sleeps in the kernel until its bytes come: a futex is the floor that fits.
                let transports = [Transport::Pipe, Transport::Unix];
                let streams = transports
                    .into_iter()
                    .flat_map(|transport| SIZES.map(|size| Stream { transport, size }));
                streams
                    .map(|stream| Case {
                        subject: Box::new(stream),
                        floor: Some(Box::new(FutexWake)),
                    })
                    .collect()
            }
        }
    }
}

/// The subject or floor of that name.
pub(crate) fn find(name: &str) -> Option<Box<dyn Subject>> {
    let cases = Suite::all().into_iter().flat_map(Suite::cases);
    let mut subjects = cases
        .flat_map(|case| [Some(case.subject), case.floor])
        .flatten();
    subjects.find(|subject| subject.name() == name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Suite, find};

    #[test]
    fn each_subject_is_found_by_its_name_and_none_twice() {
        let mut names = HashSet::new();
        for case in Suite::all().into_iter().flat_map(Suite::cases) {
            assert!(find(&case.subject.name()).is_some());
            assert!(case.floor.is_none_or(|floor| find(&floor.name()).is_some()));
            assert!(
                names.insert(case.subject.name()),
                "{} is there twice",
                case.subject.name()
            );
        }
        assert!(
            names.contains("pipe 12MB") && names.contains("unix 4KiB"),
            "{names:?}"
        );
    }
}
