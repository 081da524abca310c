//! The emulated driver between processes: handles, events, descriptors, deaths.

mod orders;
mod peer;
mod scenes;

use std::process::ExitCode;

use cuda_emulator::{Code, Driver, Kind, Knobs, Session, load};
use integration_tests::{Test, tests};
use orders::{
    a_reader_that_does_not_wait_is_found, a_release_that_is_recorded_before_the_read_is_found,
    a_writer_that_does_not_wait_for_the_release_is_found,
    a_writer_that_waits_on_the_host_needs_no_event,
    an_event_that_is_destroyed_while_another_process_uses_it_is_reported,
    an_order_by_way_of_another_process_is_enough,
    memory_that_is_freed_before_a_reader_is_done_is_a_race,
    memory_that_is_freed_while_another_process_has_it_is_reported,
    memory_travels_as_a_descriptor_and_outlives_who_made_it,
    races_on_virtual_memory_are_found_between_processes, what_a_killed_reader_was_doing_is_no_race,
    what_a_process_forgets_is_reported_at_its_end,
};
use peer::Peer;
use scenes::SCENES;

fn main() -> ExitCode {
    let tests: &[Test] = &tests![
        memory_and_events_travel_as_handles,
        addresses_differ_between_processes,
        opening_twice_is_counted,
        memory_of_a_dead_process_stays_for_who_has_it_open,
        nothing_is_left_of_a_killed_process,
        an_event_of_a_killed_process_never_happens,
        unless_a_knob_says_that_it_does,
        a_reader_that_does_not_wait_is_found,
        a_writer_that_does_not_wait_for_the_release_is_found,
        a_release_that_is_recorded_before_the_read_is_found,
        an_order_by_way_of_another_process_is_enough,
        a_writer_that_waits_on_the_host_needs_no_event,
        memory_that_is_freed_while_another_process_has_it_is_reported,
        memory_that_is_freed_before_a_reader_is_done_is_a_race,
        an_event_that_is_destroyed_while_another_process_uses_it_is_reported,
        what_a_killed_reader_was_doing_is_no_race,
        memory_travels_as_a_descriptor_and_outlives_who_made_it,
        races_on_virtual_memory_are_found_between_processes,
        what_a_process_forgets_is_reported_at_its_end,
    ];
    integration_tests::main_with_scenes(tests, SCENES)
}

fn start() -> (Session, Driver) {
    let session = load().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    (session, driver)
}

fn memory_and_events_travel_as_handles() {
    let (session, driver) = start();
    let stream = driver.stream(1).unwrap();
    let at = driver.alloc(1024).unwrap();
    let (written, read) = (driver.event(6).unwrap(), driver.event(6).unwrap());
    let mut peer = Peer::start("adds_one");
    peer.say(&driver.export_memory(at).unwrap());
    peer.say(&driver.export_event(written).unwrap());
    peer.say(&driver.export_event(read).unwrap());
    for round in 0..20_u8 {
        // The writer waits for the reader of the round before, on its stream.
        driver.wait(stream, read, 0).unwrap();
        driver.fill_async(at, round, 1024, stream).unwrap();
        driver.record(written, stream).unwrap();
        peer.say(&[1]);
        assert_eq!(peer.hear::<1>(), [round]);
    }
    peer.say(&[0]);
    peer.ends_well();
    driver.free(at).unwrap();
    assert_eq!(session.reports_of(Kind::Race), []);
    assert_eq!(session.faults(), []);
}

fn addresses_differ_between_processes() {
    let (_, driver) = start();
    let at = driver.alloc(1024).unwrap();
    let mut peer = Peer::start("opens");
    peer.say(&driver.export_memory(at).unwrap());
    let there = u64::from_ne_bytes(peer.hear());
    assert_ne!(at, there);
    peer.say(&[0]);
    peer.ends_well();
}

fn opening_twice_is_counted() {
    let (session, driver) = start();
    let at = driver.alloc(1024).unwrap();
    let mut peer = Peer::start("opens_twice");
    peer.say(&driver.export_memory(at).unwrap());
    peer.ends_well();
    assert_eq!(session.faults(), []);
}

fn memory_of_a_dead_process_stays_for_who_has_it_open() {
    let (session, driver) = start();
    let mut peer = Peer::start("exports_and_waits");
    let handle = peer.hear::<64>();
    let at = driver.open_memory(handle, 1).unwrap();
    peer.kill();
    assert_eq!(driver.download(at, 8).unwrap(), [42; 8]);
    assert_eq!(
        driver.open_memory(handle, 1),
        Err(Code(1)),
        "nobody answers for it any more"
    );
    assert_eq!(session.live().allocations, 1);
    driver.close_memory(at).unwrap();
    assert_eq!(session.live().allocations, 0);
    assert_eq!(session.faults(), []);
}

fn nothing_is_left_of_a_killed_process() {
    let (session, _) = start();
    let before = session.live();
    let mut peer = Peer::start("exports_and_waits");
    peer.hear::<64>();
    assert_ne!(session.live(), before);
    peer.kill();
    assert_eq!(session.live(), before);
}

fn unless_a_knob_says_that_it_does() {
    let session = Knobs::new().events_of_the_dead_happen().load().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let mut peer = Peer::start("records_and_waits");
    session.hold();
    peer.say(&[1]);
    let event = driver.open_event(peer.hear()).unwrap();
    let stream = driver.stream(1).unwrap();
    driver.wait(stream, event, 0).unwrap();
    assert_eq!(driver.query_event(event), Err(Code(600)));
    peer.kill();
    session.let_go();
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(driver.query_event(event), Ok(()));
    driver.destroy_event(event).unwrap();
}

fn an_event_of_a_killed_process_never_happens() {
    let (session, driver) = start();
    let mut peer = Peer::start("records_and_waits");
    session.hold();
    peer.say(&[1]);
    let event = driver.open_event(peer.hear()).unwrap();
    assert_eq!(driver.query_event(event), Err(Code(600)));
    peer.kill();
    session.let_go();
    assert_eq!(session.live().processes, 1);
    assert_eq!(driver.query_event(event), Err(Code(600)));
    driver.destroy_event(event).unwrap();
    assert_eq!(session.live().events, 0);
}
