//! A scene: streams wait for a process that dies before its work is done, or that others wait for in turn.

use cuda_emulator::Session;
use cuda_ipc::{DeviceTensor, SharedDeviceTensor};
use integration_tests::{kill, resume, see_stopped, stop};
use tensormp::prelude::*;

use crate::lifetime::promise;

type Bytes = DeviceTensor<u8>;
type Shared = SharedDeviceTensor<u8>;

/// A process that is about to write a tensor, and the tensor, for which the default stream of this process waits now.
pub(crate) struct Behind {
    pub(crate) writer: SpawnContext<()>,
    pub(crate) theirs: Shared,
    /// Of this process, written behind it in the same stream.
    pub(crate) mine: Bytes,
}

pub(crate) fn behind(session: &Session) -> Behind {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (ready, go) = (Event::new().unwrap(), Event::new().unwrap());
    let mut mine = DeviceTensor::from_slice([3], &[1_u8, 2, 3]).unwrap();
    let writer = spawn(promise, (sender, ready.clone(), go.clone()), 1).unwrap();
    ready.wait().unwrap();
    session.hold();
    go.set();
    let theirs = receiver.get().unwrap();
    mine.clear().unwrap();
    Behind {
        writer,
        theirs,
        mine,
    }
}

/// It dies, and what it had on the device with it.
pub(crate) fn dies(mut writer: SpawnContext<()>, session: &Session) {
    writer.kill();
    assert!(writer.join().is_err());
    session.let_go();
}

/// Receives one tensor, says so, and then what reading it answers.
pub(crate) fn read_one(
    _rank: usize,
    (from, said): (Receiver<Bytes>, Sender<String>),
) -> tensormp::Result<()> {
    let tensor = from.get()?;
    said.put("received".to_owned())?;
    said.put(match tensor.to_vec() {
        Ok(elements) => format!("{elements:?}"),
        Err(error) => format!("{:?}: {error}", error.kind()),
    })?;
    Ok(())
}

/// What a third process says of a tensor that was sent `behind` the work of a process that dies. This one lives, and does nothing.
pub(crate) fn read_by_a_third<K>(
    session: &Session,
    behind: impl FnOnce() -> (SpawnContext<()>, Bytes, K),
) -> String {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (said, told) = Queue::bounded(4).unwrap().split();
    let mut third = spawn(read_one, (receiver, said), 1).unwrap();
    let (writer, mine, _kept) = behind();
    sender.put(mine).unwrap();
    assert_eq!(told.get().unwrap(), "received");
    dies(writer, session);
    let read = told.get().unwrap();
    assert!(read.contains("WriterGone"), "{read}");
    third.join().unwrap();
    read
}

/// What is not written yet, where to send one's own behind it, and an event to say that both can come.
pub(crate) type Between = (Receiver<Shared>, Sender<Bytes>, Event);

/// A process sends its own tensor behind work of another one, and is stopped; what it has sent, when the other one has died.
pub(crate) fn sent_by_one_that_is_stopped(
    session: &Session,
    send_behind: impl FnOnce(Between) -> SpawnContext<()>,
    look: impl FnOnce(Bytes),
) {
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let [ready, go, prepared] = [(); 3].map(|()| Event::new().unwrap());
    let writer = spawn(promise, (sender, ready.clone(), go.clone()), 1).unwrap();
    let mut between = send_behind((receiver, to, prepared.clone()));
    ready.wait().unwrap();
    prepared.wait().unwrap();
    session.hold();
    go.set();
    let tensor = from.get().unwrap();
    let pid = between.pids()[0];
    stop(pid);
    see_stopped(pid);
    dies(writer, session);
    look(tensor);
    resume(pid);
    kill(pid);
    assert!(between.join().is_err());
}
