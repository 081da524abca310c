//! What the other processes do.

use cuda_emulator::{Code, Driver, load};
use integration_tests::{Test, tests};

use crate::peer::{hear, say, wait_to_be_killed};

pub(crate) const SCENES: &[Test] = &tests![
    adds_one,
    opens,
    opens_twice,
    exports_and_waits,
    records_and_waits,
    follows_orders,
    makes_virtual_memory
];

fn start() -> Driver {
    load().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    driver
}

/// Reads memory of the test round by round, ordered by its events.
fn adds_one() {
    let driver = start();
    let stream = driver.stream(1).unwrap();
    let at = driver.open_memory(hear(), 1).unwrap();
    let (written, read) = (
        driver.open_event(hear()).unwrap(),
        driver.open_event(hear()).unwrap(),
    );
    let own = driver.alloc(1024).unwrap();
    while hear() == [1] {
        driver.wait(stream, written, 0).unwrap();
        driver.copy_async(own, at, 1024, stream).unwrap();
        driver.record(read, stream).unwrap();
        let bytes = driver.download_async(own, 1024, stream).unwrap();
        assert!(bytes.iter().all(|&byte| byte == bytes[0]));
        say(&bytes[..1]);
    }
    driver.close_memory(at).unwrap();
    driver.destroy_event(written).unwrap();
    driver.destroy_event(read).unwrap();
    driver.free(own).unwrap();
    driver.destroy_stream(stream).unwrap();
}

fn opens() {
    let driver = start();
    let at = driver.open_memory(hear(), 1).unwrap();
    say(&at.to_ne_bytes());
    hear::<1>();
    driver.close_memory(at).unwrap();
}

fn opens_twice() {
    let driver = start();
    let handle = hear();
    let first = driver.open_memory(handle, 1).unwrap();
    assert_eq!(driver.open_memory(handle, 1), Ok(first));
    driver.close_memory(first).unwrap();
    driver.download(first, 8).unwrap();
    driver.close_memory(first).unwrap();
    assert_eq!(driver.close_memory(first), Err(Code(1)));
}

fn exports_and_waits() {
    let driver = start();
    let at = driver.alloc(1024).unwrap();
    driver.fill_async(at, 42, 1024, 0).unwrap();
    driver.synchronize().unwrap();
    say(&driver.export_memory(at).unwrap());
    wait_to_be_killed();
}

fn records_and_waits() {
    let driver = start();
    let stream = driver.stream(1).unwrap();
    let event = driver.event(6).unwrap();
    let at = driver.alloc(1024).unwrap();
    hear::<1>();
    driver.fill_async(at, 42, 1024, stream).unwrap();
    driver.record(event, stream).unwrap();
    say(&driver.export_event(event).unwrap());
    wait_to_be_killed();
}

/// A reader of the test's memory: each letter is an order, and is repeated when it was followed.
fn follows_orders() {
    let driver = start();
    let stream = driver.stream(1).unwrap();
    let at = driver.open_memory(hear(), 1).unwrap();
    let (written, read) = (
        driver.open_event(hear()).unwrap(),
        driver.open_event(hear()).unwrap(),
    );
    let own = driver.alloc(1024).unwrap();
    loop {
        let [order] = hear();
        match order {
            b'n' => {}
            b'r' => driver.copy_async(own, at, 1024, stream).unwrap(),
            b'w' => driver.wait(stream, written, 0).unwrap(),
            b'W' => assert_eq!(driver.wait(stream, written, 0), Err(Code(400))),
            b'o' => driver.record(read, stream).unwrap(),
            b's' => driver.synchronize_stream(stream).unwrap(),
            b'b' => {
                assert_eq!(driver.synchronize(), Err(Code(700)));
                assert_eq!(driver.event(2), Err(Code(700)));
            }
            b'q' => {
                driver.close_memory(at).unwrap();
                driver.destroy_event(written).unwrap();
                driver.destroy_event(read).unwrap();
                driver.free(own).unwrap();
                driver.destroy_stream(stream).unwrap();
            }
            b'e' => driver.free(own).unwrap(),
            _ => panic!("an order that nobody knows"),
        }
        say(&[order]);
        if matches!(order, b'q' | b'e') {
            return;
        }
    }
}

/// Makes exportable memory with 17 in it, says the descriptor, and writes to it again when told to.
fn makes_virtual_memory() {
    let driver = start();
    let size = 2 << 20;
    let handle = driver.create_virtual(size, 0, true).unwrap();
    let at = driver.reserve(size, 0, 0, 0).unwrap();
    driver.map(at, size, 0, handle, 0).unwrap();
    driver.grant(at, size, 0).unwrap();
    driver.fill_async(at, 17, size, 0).unwrap();
    driver.synchronize().unwrap();
    say(&driver
        .export_descriptor(handle, 1, 0)
        .unwrap()
        .to_ne_bytes());
    hear::<1>();
    driver.fill_async(at, 18, 8, 0).unwrap();
    say(&[1]);
    wait_to_be_killed();
}
