//! Messages by the crate ipc-channel: bytes that are copied, or, for what is large, shared memory that is sent on as it
//! came.

use std::fs;

use bench_peers::{Ends, Head, Result, Setup, open, patiently, seal, serve};
use ipc_channel::TryRecvError;
use ipc_channel::ipc::{
    self, IpcBytesReceiver, IpcBytesSender, IpcOneShotServer, IpcReceiver, IpcSender,
    IpcSharedMemory,
};
use serde::{Serialize, de::DeserializeOwned};

/// Beyond this, bytes lie in shared memory.
const COPIED: usize = 1 << 16;

/// B makes both channels and sends A its ends of them.
fn exchange<T: Serialize + DeserializeOwned, O>(
    setup: &Setup,
    make: impl FnOnce() -> Result<(T, O)>,
    as_own: impl FnOnce(T) -> O,
) -> Result<O> {
    let path = setup.path("server");
    if setup.is_a {
        let (server, name) = IpcOneShotServer::<T>::new()?;
        fs::write(setup.path("name"), name)?;
        fs::rename(setup.path("name"), path)?;
        return Ok(as_own(server.accept()?.1));
    }
    let name = patiently(|| fs::read_to_string(&path))?;
    let (theirs, own) = make()?;
    IpcSender::connect(name)?.send(theirs)?;
    Ok(own)
}

struct Bytes {
    to: IpcBytesSender,
    from: IpcBytesReceiver,
    message: Vec<u8>,
    parked: bool,
}

impl Bytes {
    fn connect(setup: &Setup) -> Result<Self> {
        let make = || {
            let (to_b, from_a) = ipc::bytes_channel()?;
            let (to_a, from_b) = ipc::bytes_channel()?;
            Ok(((to_b, from_b), (to_a, from_a)))
        };
        let (to, from) = exchange(setup, make, |own| own)?;
        Ok(Self {
            to,
            from,
            message: vec![0; setup.bytes],
            parked: setup.parked,
        })
    }
}

impl Ends for Bytes {
    fn put(&mut self, head: Head) -> Result<()> {
        seal(&mut self.message, head);
        Ok(self.to.send(&self.message)?)
    }

    fn get(&mut self) -> Result<Head> {
        let bytes = if self.parked {
            self.from.recv()?
        } else {
            spin(|| self.from.try_recv())?
        };
        open(&bytes, self.message.len())
    }
}

type Shared = (u64, u64, IpcSharedMemory);

struct Memory {
    to: IpcSender<Shared>,
    from: IpcReceiver<Shared>,
    /// On the side whose turn it is.
    memory: Option<IpcSharedMemory>,
    bytes: usize,
    parked: bool,
}

impl Memory {
    fn connect(setup: &Setup) -> Result<Self> {
        let make = || {
            let (to_b, from_a) = ipc::channel()?;
            let (to_a, from_b) = ipc::channel()?;
            Ok(((to_b, from_b), (to_a, from_a)))
        };
        let (to, from) = exchange(setup, make, |own| own)?;
        Ok(Self {
            to,
            from,
            memory: setup
                .is_a
                .then(|| IpcSharedMemory::from_byte(1, setup.bytes)),
            bytes: setup.bytes,
            parked: setup.parked,
        })
    }
}

impl Ends for Memory {
    fn put(&mut self, head: Head) -> Result<()> {
        let memory = self.memory.take().ok_or("it is the other side's turn")?;
        Ok(self.to.send((head.number, head.stamp, memory))?)
    }

    fn get(&mut self) -> Result<Head> {
        let (number, stamp, memory) = if self.parked {
            self.from.recv()?
        } else {
            spin(|| self.from.try_recv())?
        };
        if memory.len() != self.bytes || memory.last() != Some(&1) {
            return Err("a message is not whole".into());
        }
        self.memory = Some(memory);
        Ok(Head { number, stamp })
    }
}

fn spin<T>(mut attempt: impl FnMut() -> std::result::Result<T, TryRecvError>) -> Result<T> {
    loop {
        match attempt() {
            Ok(message) => return Ok(message),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
}

fn main() -> Result<()> {
    let bytes = std::env::args().nth(3).unwrap_or_default();
    if bytes.parse::<usize>().is_ok_and(|bytes| bytes > COPIED) {
        serve(Memory::connect)
    } else {
        serve(Bytes::connect)
    }
}
