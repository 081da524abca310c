//! Receipts: what processes have sent and taken, in a file in memory, so that SIGKILL cannot take it back.
//!
//! Each is one write of 32 bytes, which no kill cuts in two: they never lie across pages. What a process did last before
//! it was killed may be missing, and nothing else.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use crate::Result;

/// What a process noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// Whether it was taken; else it was sent.
    pub(crate) taken: bool,
    /// The life that sent it.
    pub(crate) sender: u64,
    /// Its number among all that this life sent.
    pub(crate) number: u64,
    /// The life that notes it.
    pub(crate) by: u64,
}

/// The file, in the process that reads it.
#[derive(Debug)]
pub(crate) struct Receipts(File);

/// Where one process writes: its standard output.
#[derive(Debug)]
pub(crate) struct Pen;

impl Receipts {
    pub(crate) fn create() -> Result<Receipts> {
        let file = rustix::fs::memfd_create("chaos-receipts", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(Receipts(file.into()))
    }

    /// For a process that is to write: each write goes to the end.
    pub(crate) fn appended(&self) -> Result<File> {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        Ok(OpenOptions::new().append(true).open(path)?)
    }

    /// What was written, as text, for a file that holds a log: the end of it.
    pub(crate) fn text(&self) -> String {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let bytes = std::fs::read(path).unwrap_or_default();
        let from = bytes.len().saturating_sub(16 << 10);
        String::from_utf8_lossy(&bytes[from..]).into_owned()
    }

    pub(crate) fn read(&self) -> Result<Vec<Receipt>> {
        let bytes = std::fs::read(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?;
        let word = |record: &[u8], at: usize| {
            record[at * 8..at * 8 + 8]
                .iter()
                .rev()
                .fold(0, |sum, &byte| (sum << 8) | u64::from(byte))
        };
        Ok(bytes
            .chunks_exact(32)
            .map(|record| Receipt {
                taken: word(record, 0) != 0,
                sender: word(record, 1),
                number: word(record, 2),
                by: word(record, 3),
            })
            .collect())
    }
}

impl Pen {
    pub(crate) fn write(&self, receipt: Receipt) -> Result<()> {
        let words = [
            u64::from(receipt.taken),
            receipt.sender,
            receipt.number,
            receipt.by,
        ];
        let mut bytes = [0; 32];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        match rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), &bytes))? {
            32 => Ok(()),
            short => Err(format!("a receipt was cut to {short} bytes").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{Receipt, Receipts};

    #[test]
    fn receipts_are_read_as_they_were_written() {
        let receipts = Receipts::create().unwrap();
        let words: [u64; 8] = [0, 5, 6, 7, 1, 8, 9, 10];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        receipts
            .appended()
            .unwrap()
            .write_all(&bytes[..32])
            .unwrap();
        receipts
            .appended()
            .unwrap()
            .write_all(&bytes[32..])
            .unwrap();
        let [sent, taken] =
            [(false, 5, 6, 7), (true, 8, 9, 10)].map(|(taken, sender, number, by)| Receipt {
                taken,
                sender,
                number,
                by,
            });
        assert_eq!(receipts.read().unwrap(), [sent, taken]);
    }
}
