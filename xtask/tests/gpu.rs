//! `cargo xtask gpu` where there is no GPU: it says that nothing ran, and never that it passed.

use std::process::Command;

#[test]
fn without_a_gpu_nothing_runs_and_nothing_has_passed() {
    if cuda_ipc::is_available() {
        println!("skipped: there is a GPU");
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("gpu")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(
        errors.contains("no GPU: ") && errors.contains("nothing has passed"),
        "{errors}"
    );
    assert!(output.stdout.is_empty());
}
