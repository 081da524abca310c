//! Packets between two processes of one user: whole, with at most one descriptor, over a socket without a file.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};

/// A packet has at most so many bytes.
pub(crate) const LONGEST: usize = 1024;

fn new() -> Result<OwnedFd, Errno> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Listens under a name that is gone with this process.
pub(crate) fn serve(name: &str) -> Result<OwnedFd, Errno> {
    let socket = new()?;
    bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    listen(&socket, 64)?;
    Ok(socket)
}

/// The next visitor, if it is of this user.
pub(crate) fn accept(socket: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    let visitor = accept_with(socket, SocketFlags::CLOEXEC)?;
    let theirs = socket_peercred(&visitor)?.uid;
    Ok((theirs == rustix::process::geteuid()).then_some(visitor))
}

/// Visits the process that listens under a name, if it is of this user. Receiving gives up after `patience`.
pub(crate) fn visit(name: &str, patience: Duration) -> Result<OwnedFd, Errno> {
    let socket = new()?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    if socket_peercred(&socket)?.uid != rustix::process::geteuid() {
        return Err(Errno::PERM);
    }
    Ok(socket)
}

/// A visitor that stops in the middle is waited for no longer than this.
pub(crate) fn limit(socket: &OwnedFd, patience: Duration) -> Result<(), Errno> {
    set_socket_timeout(socket, Timeout::Send, Some(patience))?;
    set_socket_timeout(socket, Timeout::Recv, Some(patience))
}

/// Sends a packet.
pub(crate) fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::INVAL);
    }
    loop {
        let outcome = sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        if outcome != Err(Errno::INTR) {
            return outcome.map(drop);
        }
    }
}

/// Receives a packet; `AGAIN` when none came in time, an empty one when the other side has gone, `MFILE` when this process
/// has no room for its descriptor.
pub(crate) fn receive(socket: impl AsFd) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let mut bytes = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let descriptor = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .last();
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE);
    }
    bytes.truncate(received.bytes);
    Ok((bytes, descriptor))
}

/// As [`receive`], until then: `AGAIN` when nothing came, to the moment, which a time of the socket itself is not.
pub(crate) fn receive_until(
    socket: &OwnedFd,
    then: Instant,
) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let left = then.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).ok();
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], left.as_ref()) {
        Ok(0) | Err(Errno::INTR) => Err(Errno::AGAIN),
        Ok(_) => receive(socket),
        Err(errno) => Err(errno),
    }
}
