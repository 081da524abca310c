//! Payloads serialized through a pipe or a Unix socket: what a hand-over costs when the bytes themselves travel.
//!
//! A message is a header (length, number, the sender's clock) and the payload. It is read whole into a buffer that was
//! touched before. One byte comes back when it was checked, so that the next is sent to a receiver that waits.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::pipe::{PipeFlags, pipe_with};

use super::payload::Size;
use super::subject::{Connection, End, Link, Side, Subject};
use super::{clock, payload};
use crate::Result;

#[derive(Copy, Clone, Debug)]
pub(crate) enum Transport {
    Pipe,
    Unix,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) transport: Transport,
    pub(crate) size: Size,
}

/// Length, number and clock.
const HEADER: usize = 3 * size_of::<u64>();

impl Subject for Stream {
    fn name(&self) -> String {
        let transport = match self.transport {
            Transport::Pipe => "pipe",
            Transport::Unix => "unix",
        };
        format!("{transport} {}", self.size.name)
    }

    fn batch(&self) -> usize {
        match self.size.bytes {
            ..100_000 => 200,
            100_000..4_000_000 => 40,
            _ => 8,
        }
    }

    fn connect(&self) -> Result<Connection> {
        match self.transport {
            Transport::Pipe => {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                let (read_back, write_back) = pipe_with(PipeFlags::CLOEXEC)?;
                Ok(Connection::of(
                    vec![read_back, write],
                    vec![read, write_back],
                ))
            }
            Transport::Unix => {
                let (a, b) = UnixStream::pair()?;
                let (a, b) = (OwnedFd::from(a), OwnedFd::from(b));
                Ok(Connection::of(
                    vec![a.try_clone()?, a],
                    vec![b.try_clone()?, b],
                ))
            }
        }
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        let [from, to]: [OwnedFd; 2] = link
            .descriptors
            .try_into()
            .map_err(|_| "needs a descriptor to read from and one to write to")?;
        // Not zeroes: those would be pages that were never touched.
        let message = vec![1; HEADER + self.size.bytes];
        // `File` only reads and writes, which pipes and sockets do as well.
        Ok(Box::new(StreamEnd {
            from: File::from(from),
            to: File::from(to),
            side,
            message,
            number: 0,
        }))
    }
}

struct StreamEnd {
    from: File,
    to: File,
    side: Side,
    message: Vec<u8>,
    number: u64,
}

impl StreamEnd {
    fn send(&mut self) -> Result<()> {
        payload::mark(&mut self.message[HEADER..], self.number);
        clock::settle();
        let header = [
            (self.message.len() - HEADER) as u64,
            self.number,
            clock::now(),
        ];
        for (place, word) in self.message[..HEADER].chunks_exact_mut(8).zip(header) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.to.write_all(&self.message)?;
        let mut seen = [0];
        self.from.read_exact(&mut seen)?;
        Ok(())
    }

    fn receive(&mut self) -> Result<u64> {
        self.from.read_exact(&mut self.message)?;
        let now = clock::now();
        let (header, payload) = self.message.split_at(HEADER);
        let word = |place: usize| {
            header
                .iter()
                .skip(8 * place)
                .take(8)
                .rev()
                .fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        if (word(0), word(1)) != (payload.len() as u64, self.number) {
            return Err(format!(
                "message {} of {} bytes arrived where {} was due",
                word(1),
                word(0),
                self.number
            )
            .into());
        }
        payload::check(payload, self.number)?;
        self.to.write_all(&[1])?;
        Ok(now - word(2))
    }
}

impl End for StreamEnd {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            self.number += 1;
            match self.side {
                Side::A => self.send()?,
                Side::B => taken.push(self.receive()?),
            }
        }
        Ok(taken)
    }
}
