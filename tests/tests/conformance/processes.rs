//! Processes that come, stop, end and are killed.

use integration_tests::{
    Test, allow_leaks, children, kill, pidfd, resume, see_stopped, stop, tests, wait_for_end,
};
use tensormp::prelude::*;

pub(crate) const PROMISES: &[Test] = &tests![
    the_sender_may_be_gone_before_the_message_is_taken,
    a_killed_senders_messages_arrive,
    a_killed_receiver_gives_back_what_it_held,
    a_killed_process_takes_nothing_from_the_others,
    a_stopped_process_keeps_what_it_holds,
    no_process_is_needed_besides_those_one_starts,
    the_environment_chooses_the_strategy,
];

fn committed() -> u64 {
    Arena::current().unwrap().stats().committed
}

fn the_sender_may_be_gone_before_the_message_is_taken() {
    fn send(_rank: usize, to: Sender<(Tensor<u32>, SharedTensor<u32>)>) -> tensormp::Result<()> {
        for i in 0..10 {
            to.put((Tensor::full(1000, i)?, Tensor::full(10, i)?.freeze()))?;
        }
        Ok(())
    }
    let (sender, receiver) = Queue::bounded(10).unwrap().split();
    spawn(send, sender, 1).unwrap().join().unwrap();
    assert_eq!(children(), [0; 0]);
    for i in 0..10 {
        let (own, shared) = receiver.get().unwrap();
        assert_eq!(
            (own.as_slice(), shared.as_slice()),
            (&[i; 1000][..], &[i; 10][..])
        );
    }
    assert!(receiver.get().is_err());
}

fn a_killed_senders_messages_arrive() {
    fn send(_rank: usize, to: Sender<Tensor<u8>>) -> tensormp::Result<()> {
        for i in 0..5 {
            to.put(Tensor::full(100_000, i)?)?;
        }
        kill(std::process::id());
        Ok(())
    }
    allow_leaks(1);
    let (sender, receiver) = Queue::bounded(5).unwrap().split();
    let mut context = spawn(send, sender, 1).unwrap();
    assert!(context.join().unwrap_err().to_string().contains("SIGKILL"));
    for i in 0..5 {
        assert_eq!(receiver.get().unwrap().as_slice(), vec![i; 100_000]);
    }
}

fn a_killed_receiver_gives_back_what_it_held() {
    fn hold(_rank: usize, (from, ready): (Receiver<Tensor<u8>>, Event)) -> tensormp::Result<()> {
        let _held: Vec<_> = (0..8).map(|_| from.get()).collect();
        ready.set();
        loop {
            std::thread::park();
        }
    }
    allow_leaks(5);
    let mut least = u64::MAX;
    for round in 0..5 {
        let (sender, receiver) = Queue::bounded(8).unwrap().split();
        let ready = Event::new().unwrap();
        let context = spawn(hold, (receiver, ready.clone()), 1).unwrap();
        for _ in 0..8 {
            sender.put(Tensor::zeros(4 << 20).unwrap()).unwrap();
        }
        ready.wait().unwrap();
        let process = pidfd(context.pids()[0]);
        kill(context.pids()[0]);
        wait_for_end(&process);
        drop(context);
        least = least.min(committed());
        // What one of them held serves the next.
        assert!(committed() < least + (24 << 20), "round {round}");
    }
}

fn a_killed_process_takes_nothing_from_the_others() {
    fn look(_rank: usize, (tensor, to): (SharedTensor<u32>, Sender<u32>)) -> tensormp::Result<()> {
        to.put(tensor.as_slice()[99])?;
        kill(std::process::id());
        Ok(())
    }
    allow_leaks(6);
    let tensor = Tensor::full(100, 5_u32).unwrap().freeze();
    for _ in 0..3 {
        let (sender, receiver) = Queue::bounded(1).unwrap().split();
        let mut context = spawn(look, (tensor.clone(), sender), 1).unwrap();
        assert_eq!(receiver.get().unwrap(), 5);
        assert!(context.join().is_err());
        assert_eq!(tensor.as_slice(), [5; 100]);
    }
    let path = Arena::current().unwrap().path();
    assert!(path.is_none_or(|path| path.exists()), "nor the file");
}

fn a_stopped_process_keeps_what_it_holds() {
    type Both = (Receiver<Tensor<u8>>, Sender<u64>);
    fn hold(_rank: usize, (from, to): Both) -> tensormp::Result<()> {
        let held = from.get()?;
        to.put(0)?;
        let sum: u64 = {
            // Stopped somewhere here.
            from.get()?;
            held.as_slice().iter().map(|&byte| u64::from(byte)).sum()
        };
        Ok(to.put(sum)?)
    }
    let (work, from) = Queue::bounded(2).unwrap().split();
    let (to, answers) = Queue::bounded(2).unwrap().split();
    let mut context = spawn(hold, (from, to), 1).unwrap();
    work.put(Tensor::full(100_000, 3_u8).unwrap()).unwrap();
    answers.get().unwrap();
    let pid = context.pids()[0];
    stop(pid);
    see_stopped(pid);
    // No time decides that it is dead, and no look at it either: whatever is made anew lies elsewhere.
    let arena = Arena::current().unwrap();
    for _ in 0..50 {
        arena.bury_the_dead();
        assert!(Tensor::full(100_000, 9_u8).unwrap().as_slice()[0] == 9);
    }
    assert_eq!(arena.participants(), 2);
    resume(pid);
    work.put(Tensor::full(1, 0_u8).unwrap()).unwrap();
    assert_eq!(answers.get().unwrap(), 300_000);
    context.join().unwrap();
}

fn no_process_is_needed_besides_those_one_starts() {
    fn wait(_rank: usize, (_, go): (SharedTensor<u8>, Event)) -> tensormp::Result<()> {
        Ok(go.wait()?)
    }
    let tensor = Tensor::full(100, 5_u8).unwrap().freeze();
    let go = Event::new().unwrap();
    assert_eq!(children(), [0; 0]);
    let mut context = spawn(wait, (tensor, go.clone()), 2).unwrap();
    assert_eq!(children().len(), 2);
    go.set();
    context.join().unwrap();
    assert_eq!(children(), [0; 0]);
}

fn the_environment_chooses_the_strategy() {
    // `first` sets none, so it takes what the environment says.
    let way = crate::peer::way().unwrap();
    let run = |strategy: &str| {
        std::process::Command::new(env!("CARGO_BIN_EXE_first"))
            .env("TENSORMP_STRATEGY", strategy)
            .output()
            .unwrap()
    };
    let output = run(&way);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "5190451200\n",
        "{output:?}"
    );
    let output = run("shared_memory");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        text.contains("TENSORMP_STRATEGY") && text.contains(&way),
        "{text}"
    );
}
