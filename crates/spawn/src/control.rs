//! The control socket between a parent and one child: whole packets, descriptors with them, and an end of file that
//! means that the other side is gone.
//!
//! What a worker calls once on its way is `inline` here and in other modules: it stands in the code of whoever calls it,
//! then, since each other place of a large program's code costs a start some microseconds.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    recvmsg, sendmsg, socketpair, sockopt,
};
use rustix::process::{Pid, getpid};

use crate::frame::{FRAME, Frame};
use crate::link::{Patience, apart};

/// The most descriptors in one packet: a control socket, stdout, stderr, a working directory. A greeting has three:
/// the arena, a stdin, a stdout.
const DESCRIPTORS: usize = 4;

/// A packet and what came with it.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// There were more, for which this process had no room.
    pub(crate) truncated: bool,
}

/// What a look into the socket finds.
#[derive(Debug)]
pub(crate) enum Heard {
    Frame(Frame),
    /// A packet that is no frame.
    Noise,
    /// Nothing now.
    Silence,
    /// Nothing ever again.
    End,
    /// The descriptor is not that of the socket any more: something in this program closed it.
    Lost,
}

/// A connected pair: the parent's end, the child's end. Both close on exec; the launcher puts the child's on its stdin.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok((apart(ours)?, apart(theirs)?))
}

/// Waits until a descriptor has something to read, or its end; whether it has, before that is over.
pub(crate) fn is_readable(descriptor: impl AsFd, wait: &mut Patience) -> Result<bool, Errno> {
    let mut look = [PollFd::new(&descriptor, PollFlags::IN)];
    loop {
        let left = wait.next().saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut look, Some(&left)) {
            Ok(1..) => return Ok(true),
            Ok(0) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
        if wait.is_over(Instant::now()) {
            return Ok(false);
        }
    }
}

/// How long descriptors that are on their way to others may be in the way of more of them.
const ON_THEIR_WAY: Duration = Duration::from_secs(10);

/// Sends a packet with descriptors. What one user's processes have sent and nobody has received yet is limited as what a
/// process has open is, unless it has rights: many at once wait here until those that are being started took theirs.
#[inline]
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let mut wait = Patience::new(ON_THEIR_WAY);
    loop {
        match sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Err(Errno::INTR) => {}
            Err(Errno::TOOMANYREFS) if !wait.is_over(Instant::now()) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other.map(drop),
        }
    }
}

/// Sends a frame, waiting for room: the parent reads all the time, so a full socket means a parent that is stopped.
#[inline]
pub(crate) fn tell(socket: BorrowedFd<'_>, frame: &Frame) -> Result<(), Errno> {
    send(socket, &frame.encode(), &[])
}

/// Sends the last frame of all: the parent, who does not look at each frame as it comes, is woken for it.
#[inline]
pub(crate) fn tell_last(socket: BorrowedFd<'_>, frame: &Frame) -> Result<(), Errno> {
    let told = tell(socket, frame);
    rustix::net::shutdown(socket, Shutdown::Write).and(told)
}

/// Receives one packet of up to `size` bytes with its descriptors; `None` at the end of file.
#[inline]
pub(crate) fn receive(socket: BorrowedFd<'_>, size: usize) -> Result<Option<Packet>, String> {
    match receive_any(socket, size)? {
        // It would show as a bad handle much later.
        Some(packet) if packet.truncated => Err(format!(
            "only {} descriptors of a packet arrived: this process has reached its limit of open files (see `ulimit \
             -n`)",
            packet.descriptors.len()
        )),
        packet => Ok(packet),
    }
}

/// The same, also if not all of its descriptors arrived.
#[inline]
pub(crate) fn receive_any(socket: BorrowedFd<'_>, size: usize) -> Result<Option<Packet>, String> {
    // As much room as the packet takes: touching the pages of the largest would cost a child more than asking.
    let length = loop {
        let asked = RecvFlags::PEEK | RecvFlags::TRUNC;
        match rustix::net::recv(socket, &mut [0_u8; 0][..], asked) {
            // A reset is told once, where the other side ended with a packet unread. What it had said comes after that.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Ok((_, 0)) => return Ok(None),
            Ok((_, length)) => break length.min(size),
            Err(errno) => return Err(format!("the control socket failed: {errno}")),
        }
    };
    let mut bytes = vec![0; length];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(errno) => return Err(format!("the control socket failed: {errno}")),
            Ok(received) => break received,
        }
    };
    let mut descriptors = Vec::with_capacity(DESCRIPTORS);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            for descriptor in came {
                let descriptor = apart(descriptor)
                    .map_err(|errno| format!("a descriptor that came with a packet: {errno}"))?;
                descriptors.push(descriptor);
            }
        }
    }
    // The kernel installs as many as fit and drops the rest without an error.
    let truncated = received.flags.contains(ReturnFlags::CTRUNC);
    if received.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(received.bytes);
    Ok(Some(Packet {
        bytes,
        descriptors,
        truncated,
    }))
}

/// The process that sent the packet which is there; `None` if none is, or the system does not say. The socket must have
/// been told to ask for that before.
///
/// # Errors
/// What the system answers: `CONNRESET` where the other end was closed and what was sent there had not been read.
pub(crate) fn sender(socket: BorrowedFd<'_>) -> Result<Option<Pid>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 1];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    )?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(who) => Some(who.pid),
        _ => None,
    }))
}

/// Whether the descriptor is one of a pair that this process made, as far as can be told: its number may be somebody
/// else's by now.
pub(crate) fn is_one_of_a_pair(socket: BorrowedFd<'_>) -> bool {
    is_one_of_a_pair_of(socket, getpid())
}

/// The same of one that some process made.
pub(crate) fn is_one_of_a_pair_of(socket: BorrowedFd<'_>, maker: Pid) -> bool {
    sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET)
        && sockopt::socket_peercred(socket).is_ok_and(|peer| peer.pid == maker)
}

/// Looks for the next frame without waiting.
pub(crate) fn listen(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Heard {
    buffer.resize(FRAME, 0);
    loop {
        match rustix::net::recv(socket, buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
            // Told once where the other side closed its end with a packet unread; what it had said comes after that.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => return Heard::Silence,
            Ok((0, _)) => return Heard::End,
            Err(_) => return Heard::Lost,
            Ok((length, _)) => {
                return Frame::decode(&buffer[..length]).map_or(Heard::Noise, Heard::Frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn packets_keep_their_bounds_and_their_descriptors() {
        let (ours, theirs) = pair().unwrap();
        send(ours.as_fd(), b"one", &[]).unwrap();
        send(ours.as_fd(), b"two", &[ours.as_fd(), theirs.as_fd()]).unwrap();
        let one = receive(theirs.as_fd(), 64).unwrap().unwrap();
        let two = receive(theirs.as_fd(), 64).unwrap().unwrap();
        assert_eq!(
            (one.bytes.as_slice(), one.descriptors.len()),
            (b"one".as_slice(), 0)
        );
        assert_eq!(
            (two.bytes.as_slice(), two.descriptors.len()),
            (b"two".as_slice(), 2)
        );
        for descriptor in &two.descriptors {
            assert!(
                rustix::io::fcntl_getfd(descriptor)
                    .unwrap()
                    .contains(rustix::io::FdFlags::CLOEXEC)
            );
        }
    }

    #[test]
    fn the_end_of_the_other_side_is_heard_after_its_last_word() {
        let (ours, theirs) = pair().unwrap();
        tell(theirs.as_fd(), &Frame::Arrived).unwrap();
        send(theirs.as_fd(), &[0xff, 0xff], &[]).unwrap();
        let mut buffer = Vec::new();
        assert!(matches!(
            listen(ours.as_fd(), &mut buffer),
            Heard::Frame(Frame::Arrived)
        ));
        assert!(matches!(listen(ours.as_fd(), &mut buffer), Heard::Noise));
        assert!(matches!(listen(ours.as_fd(), &mut buffer), Heard::Silence));
        drop(theirs);
        assert!(matches!(listen(ours.as_fd(), &mut buffer), Heard::End));
    }

    #[test]
    fn the_last_word_of_one_that_did_not_read_is_heard() {
        let (ours, theirs) = pair().unwrap();
        send(ours.as_fd(), b"unread", &[]).unwrap();
        tell(theirs.as_fd(), &Frame::Arrived).unwrap();
        drop(theirs);
        let mut buffer = Vec::new();
        assert!(matches!(
            listen(ours.as_fd(), &mut buffer),
            Heard::Frame(Frame::Arrived)
        ));
        assert!(matches!(listen(ours.as_fd(), &mut buffer), Heard::End));
    }

    #[test]
    fn a_packet_of_one_that_did_not_read_is_received() {
        let (ours, theirs) = pair().unwrap();
        send(ours.as_fd(), b"unread", &[]).unwrap();
        send(theirs.as_fd(), b"said", &[]).unwrap();
        drop(theirs);
        let packet = receive(ours.as_fd(), 64).unwrap().unwrap();
        assert_eq!(packet.bytes, b"said");
        assert!(receive(ours.as_fd(), 64).unwrap().is_none());
    }
}
