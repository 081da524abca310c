//! Subjects that live in an arena: the benchmark's process makes it and what both ends use, and each end joins it.

use std::os::fd::AsFd;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::Arena;
use shm_core::letterbox::Letterbox;

use super::subject::{Connection, Link};
use crate::Result;

/// What carries these values to the two ends. The arena stays while the case runs.
pub(crate) fn connect<A: Serialize, B: Serialize>(
    arena: Arena,
    to_a: A,
    to_b: B,
) -> Result<Connection> {
    let (a, box_a) = post(&arena, to_a)?;
    let (b, box_b) = post(&arena, to_b)?;
    Ok(Connection {
        a,
        b,
        keep: Box::new((box_a, box_b, arena)),
    })
}

fn post<T: Serialize>(arena: &Arena, value: T) -> Result<(Link, Letterbox)> {
    let letterbox = Letterbox::create(arena, 1)?;
    letterbox.send(value).map_err(|failed| failed.error)?;
    let link = Link {
        descriptors: vec![arena.as_fd().try_clone_to_owned()?],
        words: letterbox.handle().to_vec(),
    };
    Ok((link, letterbox))
}

/// Joins the arena and takes what was sent to this end.
pub(crate) fn open<T: DeserializeOwned>(link: Link) -> Result<T> {
    let ([descriptor], [line, generation]) = (
        <[_; 1]>::try_from(link.descriptors).map_err(|_| "needs the arena's descriptor")?,
        <[u64; 2]>::try_from(link.words).map_err(|_| "needs the handle of a letterbox")?,
    );
    let arena = Arena::join(descriptor)?;
    let value = Letterbox::open(&arena, [line, generation])?.try_recv()?;
    value.ok_or_else(|| "nothing was sent to this end".into())
}

#[cfg(test)]
mod tests {
    use shm_core::{Arena, Tensor};

    use super::{connect, open};

    #[test]
    fn each_end_gets_what_was_sent_to_it() {
        let arena = Arena::builder().capacity(64 << 20).create().unwrap();
        let tensor = Tensor::<u8>::zeros_in(&arena, 5).unwrap();
        let connection = connect(arena, 7_u32, tensor).unwrap();
        let (a, b) = (connection.a, connection.b);
        assert_eq!(open::<u32>(a).unwrap(), 7);
        assert_eq!(open::<Tensor<u8>>(b).unwrap().as_slice(), [0; 5]);
    }
}
