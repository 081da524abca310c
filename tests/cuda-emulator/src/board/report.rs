//! Reports: what a process did wrong, and what it left, as lines that a test reads.

/// Most reports that are kept; those after are only counted.
const MOST: usize = 512;
/// Most bytes of a report.
const LEN: usize = 500;

/// What a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// Two accesses to the same bytes, at least one of them a write, that nothing orders.
    Race,
    /// An access to memory that was freed, or closed in this process.
    UseAfterFree,
    /// Memory was freed while another process had it open, or an event was destroyed that another one still uses.
    FreedWhileOpen,
    /// A call was refused.
    Refused,
    /// A process ended and had not given something back.
    Leak,
}

const KINDS: [Kind; 5] = [
    Kind::Race,
    Kind::UseAfterFree,
    Kind::FreedWhileOpen,
    Kind::Refused,
    Kind::Leak,
];

/// One report.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Entry {
    kind: u8,
    pub(crate) pid: u32,
    len: u16,
    text: [u8; LEN],
}

#[repr(C)]
pub(crate) struct Log {
    count: u32,
    entries: [Entry; MOST],
}

impl Log {
    pub(crate) fn add(&mut self, kind: Kind, text: &str) {
        if let Some(entry) = self.entries.get_mut(self.count as usize) {
            let bytes = &text.as_bytes()[..text.floor_char_boundary_at(LEN)];
            entry.kind = KINDS.iter().position(|&it| it == kind).unwrap_or(0) as u8;
            entry.pid = std::process::id();
            entry.len = bytes.len() as u16;
            entry.text[..bytes.len()].copy_from_slice(bytes);
        }
        self.count = self.count.saturating_add(1);
    }

    /// How many there were, and those that are kept.
    pub(crate) fn read(&self) -> (usize, impl Iterator<Item = &Entry>) {
        let count = self.count as usize;
        (count, self.entries.iter().take(count))
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }
}

impl Entry {
    pub(crate) fn kind(&self) -> Kind {
        KINDS[usize::from(self.kind) % KINDS.len()]
    }

    pub(crate) fn text(&self) -> String {
        let len = usize::from(self.len).min(LEN);
        String::from_utf8_lossy(&self.text[..len]).into_owned()
    }
}

/// Cutting text between characters.
trait Boundary {
    fn floor_char_boundary_at(&self, most: usize) -> usize;
}

impl Boundary for str {
    fn floor_char_boundary_at(&self, most: usize) -> usize {
        let most = most.min(self.len());
        (0..=most)
            .rev()
            .find(|&at| self.is_char_boundary(at))
            .unwrap_or(0)
    }
}
