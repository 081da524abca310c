//! `tensormp doctor` on the emulated machine: what it says of each device.

use std::process::Command;

use cuda_emulator::{Feature, Knobs, Session};
use integration_tests::{Test, tests};

use crate::support::{machine, with};

pub(crate) const TESTS: &[Test] = &tests![
    the_doctor_names_each_device_its_path_and_why,
    the_doctor_says_why_memory_goes_another_way,
    the_doctor_says_that_a_path_was_asked_for,
    the_doctor_says_why_there_is_no_device,
];

/// What the doctor says of devices: check, status and finding of each line, with the path that is asked for.
fn told(session: &Session, path: Option<&str>) -> Vec<[String; 3]> {
    session.only_emulated();
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_tensormp-command"));
    // The program is the one that users have, and knows nothing of an emulated driver.
    doctor
        .env(
            "LD_PRELOAD",
            std::env::var_os("CUDA_EMULATOR_LIBRARY").unwrap(),
        )
        .env_remove("TENSORMP_CUDA_PATH")
        .args(["doctor", "--json"]);
    if let Some(path) = path {
        doctor.env("TENSORMP_CUDA_PATH", path);
    }
    let output = doctor.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        ["check", "status", "found"].map(|field| line[field].as_str().unwrap().to_owned())
    });
    let is_ours = |line: &[String; 3]| {
        let checks = [
            "CUDA",
            "CUDA device",
            "its memory",
            "host memory",
            "its events",
        ];
        checks.contains(&line[0].as_str())
    };
    lines.filter(is_ours).collect()
}

fn of<'a>(told: &'a [[String; 3]], check: &str) -> Vec<(&'a str, &'a str)> {
    let those = told.iter().filter(|line| line[0] == check);
    those
        .map(|line| (line[1].as_str(), line[2].as_str()))
        .collect()
}

fn the_doctor_names_each_device_its_path_and_why() {
    let session = machine();
    let told = told(&session, None);
    let devices = cuda_ipc::devices().unwrap();
    assert_eq!(devices.len(), 2);
    for (info, (status, found)) in devices.iter().zip(of(&told, "CUDA device")) {
        assert_eq!(status, "ok");
        for part in [
            &info.ordinal.to_string(),
            &info.name,
            &info.uuid.to_string(),
        ] {
            assert!(found.contains(part.as_str()), "{found}");
        }
    }
    assert_eq!(of(&told, "its memory"), [("ok", "Handle: handles work"); 2]);
    assert_eq!(
        of(&told, "host memory"),
        [("ok", "can be registered for it"); 2]
    );
    assert_eq!(of(&told, "its events"), [("ok", "can be shared"); 2]);
}

fn the_doctor_says_why_memory_goes_another_way() {
    let session = with(&Knobs::new().without(Feature::LegacyIpc));
    let found = told(&session, None);
    for (status, found) in of(&found, "its memory") {
        assert_eq!(status, "ok");
        assert!(
            found.starts_with("Descriptor: descriptors work, handles do not: "),
            "{found}"
        );
        assert!(found.len() > 60, "the reason is there: {found}");
    }
}

fn the_doctor_says_that_a_path_was_asked_for() {
    let session = with(
        &Knobs::new()
            .without(Feature::Vmm)
            .without(Feature::IpcEvents),
    );
    let forced = told(&session, Some("host"));
    for (status, found) in of(&forced, "its memory") {
        assert_eq!(status, "note");
        assert!(
            found.starts_with("Host: it was asked for; without that Handle, since handles work"),
            "{found}"
        );
    }
    for (status, found) in of(&forced, "its events") {
        assert_eq!(status, "note");
        assert!(!found.is_empty() && found != "can be shared", "{found}");
    }
    let impossible = told(&session, Some("descriptor"));
    for (status, found) in of(&impossible, "its memory") {
        assert_eq!(status, "problem");
        assert!(found.contains("Descriptor was asked for"), "{found}");
        assert!(found.contains("virtual memory"), "{found}");
    }
}

fn the_doctor_says_why_there_is_no_device() {
    let session = with(&Knobs::new().devices(0));
    let told = told(&session, None);
    assert_eq!(told.len(), 1, "{told:?}");
    let (status, found) = of(&told, "CUDA")[0];
    assert_eq!(status, "note");
    assert!(
        found.contains("100") && found.contains("nvidia-smi"),
        "{found}"
    );
}
