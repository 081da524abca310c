//! What the benchmark's process and its two ends say to each other.
//!
//! Orders go over a socket that keeps packets apart, since an order may carry descriptors; answers come back as lines on the
//! end's standard output.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use super::subject::Link;
use crate::Result;

/// More than any subject hands over.
const MAX_DESCRIPTORS: usize = 8;
const MAX_ORDER: usize = 4096;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Build the end of the subject of that name; it gets the next number, from 0.
    Open { subject: String, words: Vec<u64> },
    /// Run a batch with the end of that number.
    Run { end: usize, samples: usize },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// With the samples, if it was a batch.
    Done(Vec<u64>),
    Failed(String),
}

pub(crate) fn send(socket: BorrowedFd<'_>, order: &Order, descriptors: &[OwnedFd]) -> Result<()> {
    let bytes = serde_json::to_vec(order)?;
    if bytes.len() > MAX_ORDER || descriptors.len() > MAX_DESCRIPTORS {
        return Err(format!(
            "an order of {} bytes with {} descriptors is too large",
            bytes.len(),
            descriptors.len()
        )
        .into());
    }
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
    }
    sendmsg(
        socket,
        &[IoSlice::new(&bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// The next order, and what it carries; none once the benchmark's process is gone.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Order, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_ORDER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err("descriptors were lost on the way: is the limit on open files too low?".into());
    }
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(Some((
        serde_json::from_slice(&bytes[..received.bytes])?,
        descriptors,
    )))
}

impl Order {
    pub(crate) fn open(subject: String, link: &Link) -> Order {
        Order::Open {
            subject,
            words: link.words.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::{Order, receive, send};

    #[test]
    fn an_order_arrives_with_its_descriptors_and_then_the_end() {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let file = super::super::mapping::file(1).unwrap();
        let open = Order::Open {
            subject: "x".to_owned(),
            words: vec![1],
        };
        send(a.as_fd(), &open, &[file]).unwrap();
        send(a.as_fd(), &Order::Run { end: 0, samples: 2 }, &[]).unwrap();
        drop(a);
        let (order, descriptors) = receive(b.as_fd()).unwrap().unwrap();
        assert_eq!((order, descriptors.len()), (open, 1));
        assert_eq!(
            receive(b.as_fd()).unwrap().unwrap().0,
            Order::Run { end: 0, samples: 2 }
        );
        assert!(receive(b.as_fd()).unwrap().is_none());
    }
}
