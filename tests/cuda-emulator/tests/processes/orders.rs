//! Races between processes, and memory that goes while another process has it.

use cuda_emulator::{Code, Kind};

use crate::peer::Peer;
use crate::start;

/// Tells the reader where things are; it answers each `r` (read), `w` (wait, then read), `o` (record) and so on.
fn reader(at: u64, events: [usize; 2]) -> (Peer, cuda_emulator::Driver) {
    let driver = cuda_emulator::Driver::loaded();
    let mut peer = Peer::start("follows_orders");
    peer.say(&driver.export_memory(at).unwrap());
    for event in events {
        peer.say(&driver.export_event(event).unwrap());
    }
    (peer, driver)
}

pub(crate) fn a_reader_that_does_not_wait_is_found() {
    let (session, driver) = start();
    let (stream, at) = (driver.stream(1).unwrap(), driver.alloc(1024).unwrap());
    let events = [driver.event(6).unwrap(), driver.event(6).unwrap()];
    let (mut peer, _) = reader(at, events);
    driver.fill_async(at, 1, 1024, stream).unwrap();
    driver.record(events[0], stream).unwrap();
    peer.orders("r");
    let races = session.reports_of(Kind::Race);
    assert_eq!(races.len(), 1, "{races:?}");
    let here = format!("process {}", std::process::id());
    assert!(
        races[0].text.contains("cuMemsetD8Async") && races[0].text.contains(&here),
        "{races:?}"
    );
    assert_ne!(races[0].pid, std::process::id());
    peer.orders("q");
    peer.ends_well();
}

pub(crate) fn a_writer_that_does_not_wait_for_the_release_is_found() {
    let (session, driver) = start();
    let (stream, at) = (driver.stream(1).unwrap(), driver.alloc(1024).unwrap());
    let events = [driver.event(6).unwrap(), driver.event(6).unwrap()];
    let (mut peer, _) = reader(at, events);
    driver.fill_async(at, 1, 1024, stream).unwrap();
    driver.record(events[0], stream).unwrap();
    peer.orders("wro");
    assert_eq!(session.faults(), []);
    driver.fill_async(at, 2, 1024, stream).unwrap();
    assert_eq!(session.reports_of(Kind::Race).len(), 1);
    session.clear_reports();
    // And with the wait it is in order.
    driver.wait(stream, events[1], 0).unwrap();
    driver.fill_async(at, 3, 1024, stream).unwrap();
    driver.record(events[0], stream).unwrap();
    peer.orders("wro");
    driver.wait(stream, events[1], 0).unwrap();
    driver.fill_async(at, 4, 1024, stream).unwrap();
    assert_eq!(session.faults(), []);
    peer.orders("q");
    peer.ends_well();
}

pub(crate) fn a_release_that_is_recorded_before_the_read_is_found() {
    let (session, driver) = start();
    let (stream, at) = (driver.stream(1).unwrap(), driver.alloc(1024).unwrap());
    let events = [driver.event(6).unwrap(), driver.event(6).unwrap()];
    let (mut peer, _) = reader(at, events);
    driver.fill_async(at, 1, 1024, stream).unwrap();
    driver.record(events[0], stream).unwrap();
    peer.orders("wor");
    driver.wait(stream, events[1], 0).unwrap();
    driver.fill_async(at, 2, 1024, stream).unwrap();
    assert_eq!(session.reports_of(Kind::Race).len(), 1);
    peer.orders("q");
    peer.ends_well();
}

pub(crate) fn an_order_by_way_of_another_process_is_enough() {
    let (session, driver) = start();
    let (stream, at) = (driver.stream(1).unwrap(), driver.alloc(1024).unwrap());
    let events = [driver.event(6).unwrap(), driver.event(6).unwrap()];
    let (mut first, _) = reader(at, events);
    let (mut second, _) = reader(at, [events[1], events[0]]);
    driver.fill_async(at, 1, 1024, stream).unwrap();
    driver.record(events[0], stream).unwrap();
    // The first waits for the writer and records; the second waits for the first alone.
    first.orders("wo");
    second.orders("wr");
    assert_eq!(session.faults(), []);
    for mut peer in [first, second] {
        peer.orders("q");
        peer.ends_well();
    }
}

pub(crate) fn a_writer_that_waits_on_the_host_needs_no_event() {
    let (session, driver) = start();
    let (stream, at) = (driver.stream(1).unwrap(), driver.alloc(1024).unwrap());
    let events = [driver.event(6).unwrap(), driver.event(6).unwrap()];
    let (mut peer, _) = reader(at, events);
    for _ in 0..3 {
        driver.fill_async(at, 1, 1024, stream).unwrap();
        driver.synchronize_stream(stream).unwrap();
        peer.orders("rs");
    }
    assert_eq!(session.faults(), []);
    peer.orders("q");
    peer.ends_well();
}

pub(crate) fn memory_that_is_freed_while_another_process_has_it_is_reported() {
    let (session, driver) = start();
    let at = driver.alloc(1024).unwrap();
    let events = [driver.event(6).unwrap(), driver.event(6).unwrap()];
    let (mut peer, _) = reader(at, events);
    peer.orders("n");
    driver.free(at).unwrap();
    assert_eq!(session.reports_of(Kind::FreedWhileOpen).len(), 1);
    peer.orders("r");
    // Found when the stream works on it; the watchdog bounds this.
    while session.reports_of(Kind::UseAfterFree).is_empty() {
        std::thread::yield_now();
    }
    // Its context is broken for good.
    peer.orders("b");
    peer.kill();
}

pub(crate) fn memory_that_is_freed_before_a_reader_is_done_is_a_race() {
    let (session, driver) = start();
    let at = driver.alloc(1024).unwrap();
    let events = [driver.event(6).unwrap(), driver.event(6).unwrap()];
    let (mut peer, _) = reader(at, events);
    session.hold();
    peer.orders("r");
    // The reader is held back; the process that owns the memory has nothing to wait for.
    driver.free(at).unwrap();
    assert_eq!(session.reports_of(Kind::Race).len(), 1);
    session.let_go();
    peer.kill();
}

pub(crate) fn an_event_that_is_destroyed_while_another_process_uses_it_is_reported() {
    let (session, driver) = start();
    let at = driver.alloc(1024).unwrap();
    let events = [driver.event(6).unwrap(), driver.event(6).unwrap()];
    let (mut peer, _) = reader(at, events);
    peer.orders("n");
    driver.destroy_event(events[0]).unwrap();
    assert_eq!(session.faults(), [], "destroying it is no fault yet");
    peer.orders("W");
    assert_eq!(session.reports_of(Kind::FreedWhileOpen).len(), 1);
    peer.orders("q");
    peer.ends_well();
}

pub(crate) fn what_a_killed_reader_was_doing_is_no_race() {
    let (session, driver) = start();
    let (stream, at) = (driver.stream(1).unwrap(), driver.alloc(1024).unwrap());
    let events = [driver.event(6).unwrap(), driver.event(6).unwrap()];
    let (mut peer, _) = reader(at, events);
    session.hold();
    peer.orders("r");
    peer.kill();
    session.let_go();
    driver.fill_async(at, 1, 1024, stream).unwrap();
    driver.free(at).unwrap();
    assert_eq!(session.faults(), []);
}

pub(crate) fn memory_travels_as_a_descriptor_and_outlives_who_made_it() {
    let (session, driver) = start();
    let mut peer = Peer::start("makes_virtual_memory");
    let descriptor = i32::from_ne_bytes(peer.hear());
    // Another descriptor of the same file, as SCM_RIGHTS would give one.
    let path = format!("/proc/{}/fd/{descriptor}", peer.id());
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    peer.kill();
    assert_eq!(
        session.live().allocations,
        0,
        "only the descriptor holds it"
    );
    let number = std::os::fd::AsRawFd::as_raw_fd(&file);
    let handle = driver.import_descriptor(number, 1).unwrap();
    drop(file);
    let size = 2 << 20;
    let at = driver.reserve(size, 0, 0, 0).unwrap();
    driver.map(at, size, 0, handle, 0).unwrap();
    driver.release_virtual(handle).unwrap();
    driver.grant(at, size, 0).unwrap();
    assert_eq!(driver.download(at, 8).unwrap(), [17; 8]);
    driver.unmap(at, size).unwrap();
    driver.free_addresses(at, size).unwrap();
    assert_eq!(session.live().allocations, 0);
    assert_eq!(session.faults(), []);
    assert_eq!(driver.import_descriptor(number, 1), Err(Code(1)));
}

pub(crate) fn races_on_virtual_memory_are_found_between_processes() {
    let (session, driver) = start();
    let mut peer = Peer::start("makes_virtual_memory");
    let descriptor = i32::from_ne_bytes(peer.hear());
    let path = format!("/proc/{}/fd/{descriptor}", peer.id());
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let handle = driver
        .import_descriptor(std::os::fd::AsRawFd::as_raw_fd(&file), 1)
        .unwrap();
    let size = 2 << 20;
    let at = driver.reserve(size, 0, 0, 0).unwrap();
    driver.map(at, size, 0, handle, 0).unwrap();
    driver.grant(at, size, 0).unwrap();
    let stream = driver.stream(1).unwrap();
    driver.fill_async(at, 1, 8, stream).unwrap();
    assert_eq!(session.faults(), [], "the maker has waited");
    peer.say(&[1]);
    peer.hear::<1>();
    assert_eq!(session.reports_of(Kind::Race).len(), 1);
    peer.kill();
}

pub(crate) fn what_a_process_forgets_is_reported_at_its_end() {
    let (session, driver) = start();
    let at = driver.alloc(1024).unwrap();
    let events = [driver.event(6).unwrap(), driver.event(6).unwrap()];
    let (mut peer, _) = reader(at, events);
    let id = peer.id();
    peer.orders("e");
    peer.ends_well();
    let leaks = session.reports_of(Kind::Leak);
    assert!(leaks.iter().all(|leak| leak.pid == id), "{leaks:?}");
    let about = |what: &str| leaks.iter().filter(|leak| leak.text.contains(what)).count();
    assert_eq!(about("another process's memory"), 1, "{leaks:?}");
    assert_eq!(about("another process's event"), 2);
    assert_eq!(about("a stream"), 1);
    // A driver takes it back all the same.
    assert_eq!(session.live().imports, 0);
}
