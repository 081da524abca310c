//! A machine that stands still for longer than anything takes: nobody's work is lost by that, since nobody had a turn.

use std::time::Duration;

use cuda_ipc::DeviceTensor;
use integration_tests::{Test, resume, stop, tests};
use tensormp::prelude::*;

use crate::support::machine;

pub(crate) const TESTS: &[Test] =
    &tests![what_a_process_sent_last_is_not_lost_with_a_pause_of_its_end];

type Bytes = DeviceTensor<u8>;

fn what_a_process_sent_last_is_not_lost_with_a_pause_of_its_end() {
    type Part = (Receiver<Bytes>, Sender<Bytes>, Event, Event);
    /// Writes what is ours, and ends while its stream has yet to do it.
    fn write_late(_rank: usize, (from, to, ready, go): Part) -> tensormp::Result<()> {
        let mut ours = from.get()?;
        let source = DeviceTensor::from_slice([100], &[8; 100])?;
        ours.copy_from(&source)?;
        ours.stream().synchronize()?;
        ready.set();
        go.wait()?;
        ours.copy_from(&source)?;
        to.put(ours)?;
        Ok(())
    }
    let session = machine();
    let (to_writer, from_us) = Queue::bounded(1).unwrap().split();
    let (to_us, from) = Queue::bounded(1).unwrap().split();
    to_writer.put(Bytes::zeros([100]).unwrap()).unwrap();
    let (ready, go) = (Event::new().unwrap(), Event::new().unwrap());
    let mut writer = spawn(write_late, (from_us, to_us, ready.clone(), go.clone()), 1).unwrap();
    let pid = writer.pids()[0];
    ready.wait().unwrap();
    session.settle();
    session.hold();
    go.set();
    let late: Bytes = from.get().unwrap();
    // Behind its function by now, where it waits for its stream, for longer than it is given for that.
    std::thread::sleep(Duration::from_millis(500));
    stop(pid);
    std::thread::sleep(Duration::from_secs(6));
    resume(pid);
    std::thread::sleep(Duration::from_millis(500));
    session.let_go();
    assert_eq!(late.to_vec().unwrap(), [8; 100]);
    writer.join().unwrap();
}
