//! The emulated driver within one process: what works, and that work is really asynchronous.

use std::process::ExitCode;

use cuda_emulator::{Code, Driver, Feature, Kind, Knobs, Session, load};
use integration_tests::tests;

fn main() -> ExitCode {
    let tests = tests![
        the_library_is_what_libcuda_is_from_then_on,
        what_is_copied_to_a_device_comes_back,
        streams_work_in_the_background_and_in_their_own_order,
        an_event_orders_two_streams,
        an_event_without_a_record_is_no_wait,
        a_wait_is_for_the_record_at_the_time_of_the_call,
        the_default_stream_and_blocking_streams_wait_for_each_other,
        a_blocking_stream_waits_for_another_one_by_way_of_the_default_stream,
        the_default_stream_is_done_when_the_blocking_ones_are,
        copies_from_pageable_memory_are_staged_and_pinned_ones_are_not,
        an_address_that_was_freed_is_given_out_again_and_is_other_memory,
        fresh_memory_is_not_zero,
        devices_have_names_that_order_does_not_change,
        a_machine_without_devices_says_so,
        an_old_driver_lacks_symbols_and_attributes,
        features_can_be_missing,
        a_call_can_be_made_to_fail_with_any_code,
        virtual_memory_is_mapped_and_used,
        words_are_written_and_waited_for_by_streams,
        calls_are_counted,
        what_is_left_at_the_end_is_reported,
        memory_comes_to_an_end,
    ];
    integration_tests::main(&tests)
}

const MIB: usize = 1 << 20;

fn start() -> (Session, Driver) {
    started(&Knobs::new())
}

fn started(knobs: &Knobs) -> (Session, Driver) {
    let session = knobs.load().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    (session, driver)
}

fn the_library_is_what_libcuda_is_from_then_on() {
    let session = load().unwrap();
    let driver = Driver::loaded();
    assert!(driver.has("cuInit") && driver.has("cuIpcOpenMemHandle_v2"));
    assert_eq!(driver.version(), Ok(13_000));
    assert_eq!(driver.device_count(), Err(Code(3)));
    driver.start(0).unwrap();
    assert_eq!(driver.device_count(), Ok(2));
    assert_eq!(session.live().processes, 1);
    // Once more finds the same.
    load().unwrap();
}

fn what_is_copied_to_a_device_comes_back() {
    let (session, driver) = start();
    let bytes: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8).collect();
    let (a, b) = (driver.alloc(MIB).unwrap(), driver.alloc(MIB).unwrap());
    driver.upload(a, &bytes).unwrap();
    driver.copy_async(b, a, MIB, 0).unwrap();
    assert_eq!(driver.download(b, MIB), Ok(bytes));
    driver.fill_words_async(b + 4, 0x0102_0304, 2, 0).unwrap();
    assert_eq!(driver.download(b + 4, 8).unwrap(), [4, 3, 2, 1, 4, 3, 2, 1]);
    assert_eq!(driver.range(a + 77), Ok((a, MIB)));
    driver.free(a).unwrap();
    driver.free(b).unwrap();
    assert_eq!(session.reports(), []);
    assert_eq!(session.live().bytes, 0);
}

fn streams_work_in_the_background_and_in_their_own_order() {
    let (session, driver) = start();
    let stream = driver.stream(1).unwrap();
    let at = driver.alloc(8).unwrap();
    session.hold();
    for value in 0..100 {
        driver.fill_async(at, value, 8, stream).unwrap();
    }
    assert_eq!(driver.query_stream(stream), Err(Code(600)));
    session.let_go();
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(driver.query_stream(stream), Ok(()));
    assert_eq!(driver.download(at, 8).unwrap(), [99; 8]);
    driver.destroy_stream(stream).unwrap();
    driver.free(at).unwrap();
    assert_eq!(session.reports(), []);
}

fn an_event_orders_two_streams() {
    let (session, driver) = start();
    let (writer, reader) = (driver.stream(1).unwrap(), driver.stream(1).unwrap());
    let (at, copy) = (driver.alloc(8).unwrap(), driver.alloc(8).unwrap());
    let event = driver.event(2).unwrap();
    session.hold();
    driver.fill_async(at, 7, 8, writer).unwrap();
    driver.record(event, writer).unwrap();
    driver.wait(reader, event, 0).unwrap();
    driver.copy_async(copy, at, 8, reader).unwrap();
    assert_eq!(driver.query_event(event), Err(Code(600)));
    session.let_go();
    driver.synchronize_event(event).unwrap();
    assert_eq!(driver.query_event(event), Ok(()));
    assert_eq!(driver.download_async(copy, 8, reader).unwrap(), [7; 8]);
    driver.destroy_event(event).unwrap();
    assert_eq!(session.reports(), []);
}

fn an_event_without_a_record_is_no_wait() {
    let (session, driver) = start();
    let stream = driver.stream(1).unwrap();
    let event = driver.event(2).unwrap();
    assert_eq!(driver.query_event(event), Ok(()));
    driver.synchronize_event(event).unwrap();
    driver.wait(stream, event, 0).unwrap();
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(session.reports(), []);
}

fn a_wait_is_for_the_record_at_the_time_of_the_call() {
    let (session, driver) = start();
    let (first, second) = (driver.stream(1).unwrap(), driver.stream(1).unwrap());
    let event = driver.event(2).unwrap();
    driver.record(event, first).unwrap();
    driver.synchronize_stream(first).unwrap();
    session.hold();
    driver.wait(second, event, 0).unwrap();
    let at = driver.alloc(8).unwrap();
    driver.fill_async(at, 1, 8, first).unwrap();
    // What comes after the wait is none of its business, though it is held back.
    driver.record(event, first).unwrap();
    assert_eq!(driver.query_event(event), Err(Code(600)));
    session.let_go();
    driver.synchronize_stream(second).unwrap();
    driver.synchronize_stream(first).unwrap();
    assert_eq!(session.reports(), []);
}

fn the_default_stream_and_blocking_streams_wait_for_each_other() {
    let (session, driver) = start();
    let blocking = driver.stream(0).unwrap();
    let at = driver.alloc(8).unwrap();
    driver.fill_async(at, 1, 8, blocking).unwrap();
    driver.fill_async(at, 2, 8, 0).unwrap();
    driver.fill_async(at, 3, 8, blocking).unwrap();
    driver.fill_async(at, 4, 8, 0).unwrap();
    assert_eq!(driver.download(at, 8).unwrap(), [4; 8]);
    assert_eq!(session.reports(), []);
    // One that does not take part in this is a race.
    let apart = driver.stream(1).unwrap();
    driver.fill_async(at, 5, 8, 0).unwrap();
    driver.fill_async(at, 6, 8, apart).unwrap();
    assert_eq!(session.reports_of(Kind::Race).len(), 1);
    driver.synchronize().unwrap();
}

/// A word for which a stream waits, until it is 1.
fn held_up(driver: Driver, stream: usize) -> u64 {
    let word = driver.alloc(8).unwrap();
    driver.fill_async(word, 0, 8, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();
    driver.wait_value(stream, word, 1, 0).unwrap();
    word
}

fn a_blocking_stream_waits_for_another_one_by_way_of_the_default_stream() {
    let (_session, driver) = start();
    let [one, two, apart] = [0, 0, 1].map(|flags| driver.stream(flags).unwrap());
    assert_eq!(
        [0, one, apart].map(|it| driver.stream_flags(it)),
        [Ok(0), Ok(0), Ok(1)]
    );
    let at = driver.alloc(64).unwrap();
    let fill = |value, stream| driver.fill_async(at + 8 * u64::from(value), value, 8, stream);
    fill(0, two).unwrap();
    driver.synchronize_stream(two).unwrap();
    let word = held_up(driver, one);
    // Nothing was put into the default stream since: they have nothing to do with each other.
    fill(1, two).unwrap();
    driver.synchronize_stream(two).unwrap();
    fill(2, 0).unwrap();
    fill(3, two).unwrap();
    fill(4, apart).unwrap();
    driver.synchronize_stream(apart).unwrap();
    assert_eq!(
        [two, 0].map(|it| driver.query_stream(it)),
        [Err(Code(600)); 2]
    );
    // What is in a stream that is destroyed is waited for all the same.
    driver.destroy_stream(one).unwrap();
    fill(5, 0).unwrap();
    assert_eq!(driver.query_stream(0), Err(Code(600)));
    driver.write_value(apart, word, 1, 0).unwrap();
    driver.synchronize_stream(two).unwrap();
    driver.synchronize().unwrap();
}

fn the_default_stream_is_done_when_the_blocking_ones_are() {
    let (session, driver) = start();
    let [one, two, apart] = [0, 0, 1].map(|flags| driver.stream(flags).unwrap());
    let at = driver.alloc(8).unwrap();
    driver.fill_async(at, 1, 8, 0).unwrap();
    driver.synchronize_stream(0).unwrap();
    let word = held_up(driver, one);
    driver.fill_async(at, 2, 8, two).unwrap();
    assert_eq!(driver.query_stream(0), Err(Code(600)));
    driver.write_value(apart, word, 1, 0).unwrap();
    driver.synchronize_stream(0).unwrap();
    assert_eq!(driver.query_stream(0), Ok(()));
    // That makes no order, which would hide a wait that is missing.
    assert!(session.reports_of(Kind::Race).is_empty());
    driver.fill_async(at, 3, 8, apart).unwrap();
    assert_eq!(session.reports_of(Kind::Race).len(), 1);
    driver.synchronize().unwrap();
}

fn copies_from_pageable_memory_are_staged_and_pinned_ones_are_not() {
    let (session, driver) = start();
    let stream = driver.stream(1).unwrap();
    let at = driver.alloc(2 * MIB).unwrap();
    let mut bytes = vec![1_u8; MIB];
    session.hold();
    driver.upload_async(at, &bytes, stream).unwrap();
    bytes.fill(2);
    session.let_go();
    assert_eq!(driver.download_async(at, 8, stream).unwrap(), [1; 8]);

    let address = bytes.as_ptr() as usize;
    driver.register(address, MIB, 0).unwrap();
    session.hold();
    driver.upload_async(at, &bytes, stream).unwrap();
    bytes.fill(3);
    session.let_go();
    assert_eq!(driver.download_async(at, 8, stream).unwrap(), [3; 8]);
    driver.unregister(address).unwrap();
    let own = driver.host_alloc(MIB, 0).unwrap();
    driver.host_free(own).unwrap();
    assert_eq!(session.reports(), []);
}

fn an_address_that_was_freed_is_given_out_again_and_is_other_memory() {
    let (_, driver) = start();
    let first = driver.alloc(MIB).unwrap();
    let key = driver.pointer_attribute(7, first).unwrap();
    driver.free(first).unwrap();
    let second = driver.alloc(MIB).unwrap();
    assert_eq!(first, second);
    assert_ne!(driver.pointer_attribute(7, second), Ok(key));
}

fn fresh_memory_is_not_zero() {
    let (_, driver) = start();
    let at = driver.alloc(64).unwrap();
    assert!(
        driver
            .download(at, 64)
            .unwrap()
            .iter()
            .all(|&byte| byte != 0)
    );
}

fn devices_have_names_that_order_does_not_change() {
    let (_, driver) = started(&Knobs::new().visible("1,0"));
    let swapped = [driver.uuid(0).unwrap(), driver.uuid(1).unwrap()];
    assert_ne!(swapped[0], swapped[1]);
    assert!(swapped[0] > swapped[1], "the second device comes first");
    assert_eq!(driver.current_device(), Ok(0));
    assert_eq!(driver.can_access_peer(0, 1), Ok(1));
}

fn a_machine_without_devices_says_so() {
    Knobs::new().devices(0).load().unwrap();
    assert_eq!(Driver::loaded().init(0), Err(Code(100)));
}

fn an_old_driver_lacks_symbols_and_attributes() {
    let (_, driver) = started(
        &Knobs::new()
            .version(11_020)
            .missing(&["cuMemHostRegister_v2"]),
    );
    assert_eq!(driver.version(), Ok(11_020));
    assert!(!driver.has("cuStreamWriteValue64_v2") && !driver.has("cuDeviceGetUuid_v2"));
    assert!(!driver.has("cuMemHostRegister_v2"));
    assert!(driver.has("cuMemHostUnregister") && driver.has("cuStreamWaitEvent"));
    assert_eq!(driver.attribute(41, 0), Ok(1));
    assert_eq!(driver.attribute(125, 0), Err(Code(1)));
}

fn features_can_be_missing() {
    let knobs = [
        Feature::LegacyIpc,
        Feature::IpcEvents,
        Feature::Vmm,
        Feature::Pools,
        Feature::MemoryOperations,
        Feature::Peers,
        Feature::HostRegister,
    ]
    .into_iter()
    .fold(Knobs::new(), Knobs::without);
    let (_, driver) = started(&knobs);
    for attribute in [102, 103, 115, 122, 125] {
        assert_eq!(
            driver.attribute(attribute, 0),
            Ok(0),
            "attribute {attribute}"
        );
    }
    let at = driver.alloc(8).unwrap();
    let bytes = [0_u8; 8];
    assert_eq!(driver.export_memory(at), Err(Code(801)));
    assert_eq!(
        driver.export_event(driver.event(6).unwrap()),
        Err(Code(801))
    );
    assert_eq!(driver.create_virtual(2 * MIB, 0, true), Err(Code(801)));
    assert_eq!(driver.alloc_async(8, 0), Err(Code(801)));
    assert_eq!(driver.write_value(0, at, 1, 0), Err(Code(801)));
    assert_eq!(
        driver.register(bytes.as_ptr() as usize, 8, 0),
        Err(Code(801))
    );
    assert_eq!(driver.can_access_peer(0, 1), Ok(0));
    let other = driver.retain(1).unwrap();
    assert_eq!(driver.enable_peer(other, 0), Err(Code(217)));
}

fn a_call_can_be_made_to_fail_with_any_code() {
    let knobs = Knobs::new()
        .fail("cuMemAlloc_v2", 12_345, Some(2))
        .fail("cuEventCreate", 2, None);
    let (session, driver) = started(&knobs);
    driver.alloc(8).unwrap();
    assert_eq!(driver.alloc(8), Err(Code(12_345)));
    driver.alloc(8).unwrap();
    assert_eq!(driver.event(2), Err(Code(2)));
    assert_eq!(driver.event(2), Err(Code(2)));
    assert_eq!(session.reports_of(Kind::Refused).len(), 3);
}

fn virtual_memory_is_mapped_and_used() {
    let (session, driver) = start();
    let size = 4 * MIB;
    let handle = driver.create_virtual(size, 0, true).unwrap();
    let at = driver.reserve(size, 0, 0, 0).unwrap();
    driver.map(at, size, 0, handle, 0).unwrap();
    driver.grant(at, size, 0).unwrap();
    // The mapping holds the memory.
    driver.release_virtual(handle).unwrap();
    assert_eq!(session.live().allocations, 1);
    driver.upload(at, &[5; 64]).unwrap();
    assert_eq!(driver.download(at, 64).unwrap(), [5; 64]);
    driver.unmap(at, size).unwrap();
    driver.free_addresses(at, size).unwrap();
    assert_eq!(session.live().allocations, 0);
    assert_eq!(session.reports(), []);
}

fn words_are_written_and_waited_for_by_streams() {
    let (session, driver) = start();
    let (first, second) = (driver.stream(1).unwrap(), driver.stream(1).unwrap());
    let (word, data, copy) = (
        driver.alloc(8).unwrap(),
        driver.alloc(8).unwrap(),
        driver.alloc(8).unwrap(),
    );
    driver.upload(word, &[0; 8]).unwrap();
    driver.synchronize().unwrap();
    driver.wait_value(second, word, 5, 0).unwrap();
    driver.copy_async(copy, data, 8, second).unwrap();
    driver.fill_async(data, 9, 8, first).unwrap();
    driver.write_value(first, word, 5, 0).unwrap();
    assert_eq!(driver.download_async(copy, 8, second).unwrap(), [9; 8]);
    assert_eq!(session.reports(), []);
    assert_eq!(driver.write_value(first, word + 4, 5, 0), Err(Code(1)));
}

fn calls_are_counted() {
    let (session, driver) = start();
    let before = session.calls();
    let event = driver.event(2).unwrap();
    driver.record(event, 0).unwrap();
    driver.record(event, 0).unwrap();
    driver.destroy_event(event).unwrap();
    let counts = session.calls().since(&before);
    assert_eq!(
        counts,
        [
            ("cuEventCreate", 1),
            ("cuEventDestroy_v2", 1),
            ("cuEventRecord", 2)
        ]
    );
    assert_eq!(
        session.calls().of("cuInit"),
        0,
        "not counted: the driver is not there before"
    );
    assert_eq!(session.calls_of(std::process::id()), session.calls());
}

fn what_is_left_at_the_end_is_reported() {
    let (session, driver) = start();
    driver.alloc(8).unwrap();
    driver.event(2).unwrap();
    driver.stream(1).unwrap();
    driver.release(0).unwrap();
    let leaks = session.reports_of(Kind::Leak);
    assert_eq!(leaks.len(), 3, "{leaks:?}");
    assert_eq!(driver.alloc(8), Err(Code(201)), "the context is gone");
    assert_eq!(session.live().bytes, 0);
}

fn memory_comes_to_an_end() {
    let (_, driver) = started(&Knobs::new().memory(4));
    let first = driver.alloc(3 * MIB).unwrap();
    assert_eq!(driver.alloc(2 * MIB), Err(Code(2)));
    driver.free(first).unwrap();
    driver.alloc(4 * MIB).unwrap();
}
