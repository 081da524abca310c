//! Messages by the crate ringfire: records that are copied, or, for what is large, a place in its arena.

use std::time::Duration;

use bench_peers::{Ends, Head, Result, Setup, open, patiently, seal, serve};
use ringfire::{
    BlobConsumer, BlobProducer, BusySpin, FutexWait, RingConsumer, RingProducer, WaitStrategy,
};

/// A record of a ring.
#[derive(Copy, Clone)]
#[repr(C)]
struct Record<const N: usize> {
    bytes: [u8; N],
}

const CAPACITY: u64 = 8;

struct Rings<const N: usize, W> {
    to: RingProducer<Record<N>>,
    from: RingConsumer<Record<N>>,
    record: Record<N>,
    wait: W,
}

impl<const N: usize, W: WaitStrategy> Rings<N, W> {
    fn connect(setup: &Setup, wait: W) -> Result<Self> {
        let [to, from] = setup.names().map(|name| setup.path(name));
        Ok(Self {
            to: RingProducer::create(to, CAPACITY)?,
            from: patiently(|| RingConsumer::builder().start_from_oldest().attach(&from))?,
            record: Record { bytes: [0; N] },
            wait,
        })
    }
}

impl<const N: usize, W: WaitStrategy> Ends for Rings<N, W> {
    fn put(&mut self, head: Head) -> Result<()> {
        seal(&mut self.record.bytes, head);
        self.to.push(&self.record);
        Ok(())
    }

    fn get(&mut self) -> Result<Head> {
        open(&self.from.recv_blocking(&mut self.wait).bytes, N)
    }
}

/// Both sides see the bytes where they lie; nobody fills them.
struct Blobs {
    to: BlobProducer<u64>,
    from: BlobConsumer<u64>,
    bytes: usize,
}

impl Blobs {
    fn connect(setup: &Setup) -> Result<Self> {
        let [to, from] = setup.names().map(|name| setup.path(name));
        Ok(Self {
            to: BlobProducer::create(to, CAPACITY, (3 * setup.bytes).next_power_of_two())?,
            from: patiently(|| BlobConsumer::attach(&from))?,
            bytes: setup.bytes,
        })
    }
}

impl Ends for Blobs {
    fn put(&mut self, head: Head) -> Result<()> {
        self.to
            .push_with(&head.number, self.bytes, |bytes| seal(bytes, head))?;
        Ok(())
    }

    fn get(&mut self) -> Result<Head> {
        loop {
            if let Some(head) = self.from.view(|_, bytes| open(bytes, self.bytes))? {
                return head;
            }
            std::hint::spin_loop();
        }
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let (parked, bytes) = (
        args.get(2).is_some_and(|way| way == "parked"),
        args.get(3).map_or("", String::as_str),
    );
    // Sleeps at once; a lost wake would show as a sample of 50 ms.
    let sleepy = || FutexWait::new(0, Some(Duration::from_millis(50)));
    match (bytes, parked) {
        ("64", false) => serve(|setup| Rings::<64, _>::connect(setup, BusySpin)),
        ("64", true) => serve(|setup| Rings::<64, _>::connect(setup, sleepy())),
        ("4096", false) => serve(|setup| Rings::<4096, _>::connect(setup, BusySpin)),
        ("4096", true) => serve(|setup| Rings::<4096, _>::connect(setup, sleepy())),
        (_, false) => serve(Blobs::connect),
        (_, true) => Err("ringfire does not sleep for what lies in its arena".into()),
    }
}
