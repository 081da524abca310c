//! Messages as postcard bytes through pipes: what a program without any of these crates would do.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};

use bench_peers::{Ends, Head, Result, Setup, serve, wait_for};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Message<'a> {
    number: u64,
    stamp: u64,
    #[serde(borrow, with = "serde_bytes")]
    bytes: &'a [u8],
}

struct Pipes {
    to: File,
    from: File,
    /// What is sent, and room to serialize it.
    payload: Vec<u8>,
    buffer: Vec<u8>,
}

impl Pipes {
    fn connect(setup: &Setup) -> Result<Self> {
        let paths = ["ab", "ba"].map(|name| setup.path(name));
        if setup.is_a {
            for path in &paths {
                mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            }
        } else {
            for path in &paths {
                wait_for(path)?;
            }
        }
        let [ab, ba] = paths;
        // Each waits until the other end is opened.
        let (to, from);
        if setup.is_a {
            to = OpenOptions::new().write(true).open(ab)?;
            from = File::open(ba)?;
        } else {
            from = File::open(ab)?;
            to = OpenOptions::new().write(true).open(ba)?;
        }
        Ok(Self {
            to,
            from,
            payload: vec![1; setup.bytes],
            buffer: Vec::new(),
        })
    }
}

impl Ends for Pipes {
    fn put(&mut self, head: Head) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.extend([0; size_of::<u64>()]);
        let message = Message {
            number: head.number,
            stamp: head.stamp,
            bytes: &self.payload,
        };
        self.buffer = postcard::to_extend(&message, buffer)?;
        let (length, body) = self.buffer.split_at_mut(size_of::<u64>());
        length.copy_from_slice(&(body.len() as u64).to_le_bytes());
        Ok(self.to.write_all(&self.buffer)?)
    }

    fn get(&mut self) -> Result<Head> {
        let mut length = [0; size_of::<u64>()];
        self.from.read_exact(&mut length)?;
        self.buffer
            .resize(usize::try_from(u64::from_le_bytes(length))?, 0);
        self.from.read_exact(&mut self.buffer)?;
        let message: Message = postcard::from_bytes(&self.buffer)?;
        if message.bytes.len() != self.payload.len() || message.bytes.last() != Some(&1) {
            return Err("a message is not whole".into());
        }
        Ok(Head {
            number: message.number,
            stamp: message.stamp,
        })
    }
}

fn main() -> Result<()> {
    serve(Pipes::connect)
}
