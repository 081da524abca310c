//! Each misuse is refused, with the code that a driver has for it, or reported where a driver would say nothing.

use std::process::ExitCode;

use cuda_emulator::{Code, Driver, Feature, Kind, Knobs, Session};
use integration_tests::tests;

fn main() -> ExitCode {
    let tests = tests![
        a_call_before_the_start_is_refused,
        a_call_after_a_fork_is_refused,
        a_call_without_a_context_is_refused,
        a_context_that_was_released_is_refused,
        a_device_that_is_not_there_is_refused,
        an_event_with_wrong_flags_is_refused,
        an_event_that_was_destroyed_is_refused,
        an_event_of_another_device_is_refused,
        an_event_that_is_not_for_other_processes_is_not_exported,
        a_stream_that_was_destroyed_is_refused,
        no_bytes_are_no_allocation,
        what_is_out_of_range_is_refused,
        a_host_address_is_no_device_address,
        memory_is_freed_once_and_at_its_start,
        memory_that_was_freed_breaks_the_context_of_who_uses_it,
        memory_that_cannot_be_exported_is_refused,
        a_handle_of_this_process_is_refused,
        bytes_that_are_no_handle_are_refused,
        what_was_not_opened_is_not_closed,
        host_memory_is_registered_once_and_when_it_is_there,
        virtual_memory_is_handled_in_its_order,
        virtual_memory_without_access_breaks_the_context_of_who_uses_it,
        what_is_no_descriptor_of_memory_is_not_imported,
        a_peer_is_enabled_once,
        a_stream_that_works_on_freed_memory_is_reported,
    ];
    integration_tests::main(&tests)
}

const MIB: usize = 1 << 20;
const INVALID_VALUE: Code = Code(1);
const INVALID_CONTEXT: Code = Code(201);
const INVALID_HANDLE: Code = Code(400);
const ILLEGAL_ADDRESS: Code = Code(700);

/// What follows are rules of the driver's manual, and can be tried on a real one: it is how the emulator is kept honest.
fn start() -> (Session, Driver) {
    let session = Knobs::new().load().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    (session, driver)
}

fn a_call_before_the_start_is_refused() {
    Knobs::new().load().unwrap();
    let driver = Driver::loaded();
    assert_eq!(driver.alloc(8), Err(Code(3)));
    assert_eq!(driver.retain(0), Err(Code(3)));
    assert_eq!(driver.init(1), Err(INVALID_VALUE));
}

fn a_call_after_a_fork_is_refused() {
    let (session, driver) = start();
    let before = session.live();
    assert_eq!(driver.codes_in_a_fork(), Some((3, 3)));
    assert_eq!(session.live(), before, "and the parent keeps what it has");
    driver.alloc(8).unwrap();
}

fn a_call_without_a_context_is_refused() {
    let (_, driver) = start();
    let at = driver.alloc(8).unwrap();
    let event = driver.event(6).unwrap();
    let thread = std::thread::spawn(move || {
        assert_eq!(driver.alloc(8), Err(INVALID_CONTEXT));
        assert_eq!(driver.free(at), Err(INVALID_CONTEXT));
        assert_eq!(driver.event(2), Err(INVALID_CONTEXT));
        assert_eq!(driver.record(event, 0), Err(INVALID_CONTEXT));
        assert_eq!(driver.stream(0), Err(INVALID_CONTEXT));
        assert_eq!(driver.export_memory(at), Err(INVALID_CONTEXT));
        assert_eq!(driver.close_memory(at), Err(INVALID_CONTEXT));
        assert_eq!(driver.synchronize(), Err(INVALID_CONTEXT));
        assert_eq!(driver.pop_current(), Err(INVALID_CONTEXT));
    });
    thread.join().unwrap();
    driver.free(at).unwrap();
}

fn a_context_that_was_released_is_refused() {
    let (_, driver) = start();
    driver.release(0).unwrap();
    assert_eq!(driver.alloc(8), Err(INVALID_CONTEXT));
    assert_eq!(driver.release(0), Err(INVALID_CONTEXT));
    assert_eq!(driver.set_current(0x1234), Err(INVALID_CONTEXT));
    driver.start(0).unwrap();
    driver.alloc(8).unwrap();
}

fn a_device_that_is_not_there_is_refused() {
    let (_, driver) = start();
    assert_eq!(driver.retain(2), Err(Code(101)));
    assert_eq!(driver.uuid(-1), Err(Code(101)));
    assert_eq!(driver.attribute(100_000, 0), Err(INVALID_VALUE));
}

fn an_event_with_wrong_flags_is_refused() {
    let (_, driver) = start();
    assert_eq!(
        driver.event(4),
        Err(INVALID_VALUE),
        "for other processes, with the time"
    );
    assert_eq!(driver.event(32), Err(INVALID_VALUE));
    let event = driver.event(7).unwrap();
    assert_eq!(driver.wait(0, event, 8), Err(INVALID_VALUE));
}

fn an_event_that_was_destroyed_is_refused() {
    let (_, driver) = start();
    let event = driver.event(6).unwrap();
    driver.destroy_event(event).unwrap();
    assert_eq!(driver.record(event, 0), Err(INVALID_HANDLE));
    assert_eq!(driver.wait(0, event, 0), Err(INVALID_HANDLE));
    assert_eq!(driver.query_event(event), Err(INVALID_HANDLE));
    assert_eq!(driver.synchronize_event(event), Err(INVALID_HANDLE));
    assert_eq!(driver.export_event(event), Err(INVALID_HANDLE));
    assert_eq!(driver.destroy_event(event), Err(INVALID_HANDLE));
    // A new one is another one.
    assert_ne!(driver.event(6), Ok(event));
}

fn an_event_of_another_device_is_refused() {
    let (_, driver) = start();
    let event = driver.event(2).unwrap();
    let other = driver.retain(1).unwrap();
    driver.push_current(other).unwrap();
    let stream = driver.stream(1).unwrap();
    assert_eq!(driver.record(event, stream), Err(INVALID_HANDLE));
    // Waiting for it is fine.
    driver.wait(stream, event, 0).unwrap();
    driver.pop_current().unwrap();
    driver.record(event, 0).unwrap();
}

fn an_event_that_is_not_for_other_processes_is_not_exported() {
    let (_, driver) = start();
    let event = driver.event(2).unwrap();
    assert_eq!(driver.export_event(event), Err(INVALID_VALUE));
}

fn a_stream_that_was_destroyed_is_refused() {
    let (_, driver) = start();
    let (stream, event, at) = (
        driver.stream(1).unwrap(),
        driver.event(2).unwrap(),
        driver.alloc(8).unwrap(),
    );
    driver.destroy_stream(stream).unwrap();
    assert_eq!(driver.record(event, stream), Err(INVALID_HANDLE));
    assert_eq!(driver.wait(stream, event, 0), Err(INVALID_HANDLE));
    assert_eq!(driver.fill_async(at, 0, 8, stream), Err(INVALID_HANDLE));
    assert_eq!(driver.synchronize_stream(stream), Err(INVALID_HANDLE));
    assert_eq!(driver.destroy_stream(stream), Err(INVALID_HANDLE));
    assert_eq!(driver.stream(2), Err(INVALID_VALUE), "flags");
}

fn no_bytes_are_no_allocation() {
    let (_, driver) = start();
    assert_eq!(driver.alloc(0), Err(INVALID_VALUE));
    assert_eq!(driver.alloc_async(0, 0), Err(INVALID_VALUE));
    assert_eq!(driver.host_alloc(0, 0), Err(INVALID_VALUE));
}

fn what_is_out_of_range_is_refused() {
    let (session, driver) = start();
    let (a, b) = (driver.alloc(100).unwrap(), driver.alloc(100).unwrap());
    assert_eq!(driver.upload(a + 90, &[0; 11]), Err(INVALID_VALUE));
    assert_eq!(driver.download(a, 101), Err(INVALID_VALUE));
    assert_eq!(driver.copy_async(a, b, 101, 0), Err(INVALID_VALUE));
    assert_eq!(driver.copy_async(a + 1, b, 100, 0), Err(INVALID_VALUE));
    assert_eq!(driver.fill_async(a, 0, usize::MAX, 0), Err(INVALID_VALUE));
    assert_eq!(
        driver.fill_words_async(a + 1, 0, 1, 0),
        Err(INVALID_VALUE),
        "not aligned"
    );
    driver.upload(a, &[0; 100]).unwrap();
    assert_eq!(session.faults(), []);
}

fn a_host_address_is_no_device_address() {
    let (_, driver) = start();
    let bytes = [0_u8; 8];
    let host = bytes.as_ptr() as u64;
    let at = driver.alloc(8).unwrap();
    assert_eq!(driver.fill_async(host, 0, 8, 0), Err(INVALID_VALUE));
    assert_eq!(driver.copy_async(at, host, 8, 0), Err(INVALID_VALUE));
    assert_eq!(driver.pointer_attribute(2, host), Err(INVALID_VALUE));
    assert_eq!(driver.pointer_attribute(2, at), Ok(2));
    assert_eq!(driver.range(host), Err(Code(500)));
}

fn memory_is_freed_once_and_at_its_start() {
    let (_, driver) = start();
    let at = driver.alloc(8).unwrap();
    assert_eq!(driver.free(at + 1), Err(INVALID_VALUE));
    driver.free(at).unwrap();
    assert_eq!(driver.free(at), Err(INVALID_VALUE));
    driver.free(0).unwrap();
}

fn memory_that_was_freed_breaks_the_context_of_who_uses_it() {
    let (session, driver) = start();
    let (at, other) = (driver.alloc(8).unwrap(), driver.alloc(8).unwrap());
    driver.free(at).unwrap();
    assert_eq!(driver.download(at, 8), Err(ILLEGAL_ADDRESS));
    // From then on nothing works.
    assert_eq!(driver.download(other, 8), Err(ILLEGAL_ADDRESS));
    assert_eq!(driver.event(2), Err(ILLEGAL_ADDRESS));
    assert_eq!(driver.synchronize(), Err(ILLEGAL_ADDRESS));
    assert_eq!(session.reports_of(Kind::UseAfterFree).len(), 1);
}

fn memory_that_cannot_be_exported_is_refused() {
    let (_, driver) = start();
    let pooled = driver.alloc_async(MIB, 0).unwrap();
    assert_eq!(driver.export_memory(pooled), Err(INVALID_VALUE));
    assert_eq!(driver.pointer_attribute(10, pooled), Ok(0));
    let plain = driver.alloc(MIB).unwrap();
    assert_eq!(driver.pointer_attribute(10, plain), Ok(1));
    // From inside, the handle is the allocation's.
    assert_eq!(driver.export_memory(plain + 5), driver.export_memory(plain));
    let handle = driver.create_virtual(2 * MIB, 0, false).unwrap();
    let at = driver.reserve(2 * MIB, 0, 0, 0).unwrap();
    driver.map(at, 2 * MIB, 0, handle, 0).unwrap();
    assert_eq!(driver.export_memory(at), Err(INVALID_VALUE));
    assert_eq!(driver.export_memory(12_345), Err(INVALID_VALUE));
    assert_eq!(
        driver.export_descriptor(handle, 1, 0),
        Err(INVALID_VALUE),
        "not made for it"
    );
    driver.free_async(pooled, 0).unwrap();
    driver.synchronize().unwrap();
}

fn a_handle_of_this_process_is_refused() {
    let (_, driver) = start();
    let at = driver.alloc(8).unwrap();
    let event = driver.event(6).unwrap();
    assert_eq!(
        driver.open_memory(driver.export_memory(at).unwrap(), 1),
        Err(INVALID_CONTEXT)
    );
    assert_eq!(
        driver.open_event(driver.export_event(event).unwrap()),
        Err(INVALID_CONTEXT)
    );
}

fn bytes_that_are_no_handle_are_refused() {
    let (_, driver) = start();
    assert_eq!(driver.open_memory([7; 64], 1), Err(INVALID_VALUE));
    assert_eq!(driver.open_event([7; 64]), Err(INVALID_VALUE));
    let event = driver.event(6).unwrap();
    assert_eq!(
        driver.open_memory(driver.export_event(event).unwrap(), 1),
        Err(INVALID_VALUE)
    );
}

fn what_was_not_opened_is_not_closed() {
    let (_, driver) = start();
    let at = driver.alloc(8).unwrap();
    assert_eq!(driver.close_memory(at), Err(INVALID_VALUE));
    assert_eq!(driver.close_memory(12_345), Err(INVALID_VALUE));
}

fn host_memory_is_registered_once_and_when_it_is_there() {
    let (_, driver) = start();
    let bytes = vec![0_u8; MIB];
    let at = bytes.as_ptr() as usize;
    assert_eq!(driver.register(at, 0, 0), Err(INVALID_VALUE));
    assert_eq!(driver.register(0, 8, 0), Err(INVALID_VALUE));
    assert_eq!(
        driver.register(0x1000, 8, 0),
        Err(INVALID_VALUE),
        "nothing is mapped there"
    );
    assert_eq!(driver.register(at, MIB, 64), Err(INVALID_VALUE));
    driver.register(at, MIB, 0).unwrap();
    assert_eq!(driver.register(at + 8, 8, 0), Err(Code(712)));
    assert_eq!(driver.register(at - 8, 16, 0), Err(Code(712)));
    assert_eq!(driver.unregister(at + 8), Err(Code(713)));
    assert_eq!(driver.host_free(at), Err(INVALID_VALUE));
    driver.unregister(at).unwrap();
    assert_eq!(driver.unregister(at), Err(Code(713)));
    // What can only be read is registered when that is said.
    static CONSTANT: [u8; 4096] = [1; 4096];
    let constant = CONSTANT.as_ptr() as usize;
    assert_eq!(driver.register(constant, 4096, 0), Err(INVALID_VALUE));
    driver.register(constant, 4096, 8).unwrap();
    driver.unregister(constant).unwrap();
}

fn virtual_memory_is_handled_in_its_order() {
    let (session, driver) = start();
    let size = 2 * MIB;
    assert_eq!(driver.create_virtual(size + 1, 0, true), Err(INVALID_VALUE));
    assert_eq!(driver.reserve(1, 0, 0, 0), Err(INVALID_VALUE));
    let handle = driver.create_virtual(size, 0, true).unwrap();
    let at = driver.reserve(size, 0, 0, 0).unwrap();
    assert_eq!(driver.map(at, 2 * size, 0, handle, 0), Err(INVALID_VALUE));
    assert_eq!(driver.map(12_345, size, 0, handle, 0), Err(INVALID_VALUE));
    assert_eq!(
        driver.grant(at, size, 0),
        Err(INVALID_VALUE),
        "nothing is mapped"
    );
    driver.map(at, size, 0, handle, 0).unwrap();
    assert_eq!(driver.map(at, size, 0, handle, 0), Err(Code(208)));
    assert_eq!(
        driver.free_addresses(at, size),
        Err(INVALID_VALUE),
        "still mapped"
    );
    assert_eq!(driver.free(at), Err(INVALID_VALUE));
    assert_eq!(driver.unmap(at, 2 * size), Err(INVALID_VALUE));
    driver.unmap(at, size).unwrap();
    assert_eq!(driver.unmap(at, size), Err(INVALID_VALUE));
    driver.free_addresses(at, size).unwrap();
    assert_eq!(driver.free_addresses(at, size), Err(INVALID_VALUE));
    driver.release_virtual(handle).unwrap();
    assert_eq!(driver.release_virtual(handle), Err(INVALID_VALUE));
    assert_eq!(driver.export_descriptor(handle, 1, 0), Err(INVALID_VALUE));
    assert_eq!(session.live().allocations, 0);
}

fn virtual_memory_without_access_breaks_the_context_of_who_uses_it() {
    let (_, driver) = start();
    let size = 2 * MIB;
    let handle = driver.create_virtual(size, 0, true).unwrap();
    let at = driver.reserve(size, 0, 0, 0).unwrap();
    driver.map(at, size, 0, handle, 0).unwrap();
    assert_eq!(driver.upload(at, &[1; 8]), Err(ILLEGAL_ADDRESS));
    assert_eq!(driver.event(2), Err(ILLEGAL_ADDRESS));
}

fn what_is_no_descriptor_of_memory_is_not_imported() {
    let (_, driver) = start();
    assert_eq!(driver.import_descriptor(-1, 1), Err(INVALID_VALUE));
    assert_eq!(driver.import_descriptor(987_654, 1), Err(INVALID_VALUE));
    assert_eq!(
        driver.import_descriptor(0, 1),
        Err(INVALID_VALUE),
        "that is /dev/null"
    );
    let handle = driver.create_virtual(2 * MIB, 0, true).unwrap();
    let descriptor = driver.export_descriptor(handle, 1, 0).unwrap();
    assert_eq!(driver.import_descriptor(descriptor, 8), Err(Code(801)));
    assert_eq!(driver.export_descriptor(handle, 8, 0), Err(INVALID_VALUE));
    driver.import_descriptor(descriptor, 1).unwrap();
}

fn a_peer_is_enabled_once() {
    let (_, driver) = start();
    let (own, other) = (driver.retain(0).unwrap(), driver.retain(1).unwrap());
    assert_eq!(driver.enable_peer(own, 0), Err(Code(217)));
    driver.enable_peer(other, 0).unwrap();
    assert_eq!(driver.enable_peer(other, 0), Err(Code(704)));
}

fn a_stream_that_works_on_freed_memory_is_reported() {
    let session = Knobs::new().without(Feature::Peers).load().unwrap();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let (first, second) = (driver.stream(1).unwrap(), driver.stream(1).unwrap());
    let at = driver.alloc_async(8, first).unwrap();
    driver.synchronize().unwrap();
    session.hold();
    driver.free_async(at, first).unwrap();
    // Issued before the address went, this would be a race; afterwards the address is nobody's.
    assert_eq!(driver.fill_async(at, 0, 8, second), Err(ILLEGAL_ADDRESS));
    session.let_go();
    assert_eq!(session.reports_of(Kind::UseAfterFree).len(), 1);
}
