//! The other process of a test, spoken with through its standard input and output.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use integration_tests::play;

/// A process that plays a scene.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl Peer {
    pub(crate) fn start(scene: &str) -> Self {
        let mut command = play(scene);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = child.stdout.take().unwrap();
        Self {
            child,
            input,
            output,
        }
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.input.write_all(bytes).unwrap();
    }

    pub(crate) fn hear<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.output.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Gives orders, a letter each, and waits until they are followed.
    pub(crate) fn orders(&mut self, orders: &str) {
        for order in orders.bytes() {
            self.say(&[order]);
            assert_eq!(self.hear(), [order]);
        }
    }

    pub(crate) fn ends_well(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// In a scene: what the test says.
pub(crate) fn hear<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    std::io::stdin().read_exact(&mut bytes).unwrap();
    bytes
}

/// In a scene: something for the test.
pub(crate) fn say(bytes: &[u8]) {
    let mut output = std::io::stdout();
    output.write_all(bytes).unwrap();
    output.flush().unwrap();
}

/// In a scene: waits for ever, to be killed, or until the test is gone.
pub(crate) fn wait_to_be_killed() {
    let _ = std::io::stdin().read(&mut [0]);
}
