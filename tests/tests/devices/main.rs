//! Tensors on devices between real processes, on an emulated driver that is strict: see `tests/cuda-emulator`.

use std::process::ExitCode;

mod again;
mod behind;
mod closing;
mod company;
mod crowded;
mod doctor;
mod dying;
mod failing;
mod full;
mod given_up;
mod gone;
mod guards;
mod held_up;
mod hostile;
mod kept;
mod legacy;
mod lifetime;
mod lost;
mod misuse;
mod order;
mod orphans;
mod others;
mod owners;
mod paths;
mod pauses;
mod peace;
mod registered;
mod rules;
mod sharing;
mod slots;
mod staged;
mod stages;
mod support;
mod views;

fn main() -> ExitCode {
    // Workers find the emulated driver that their parent has loaded.
    cuda_emulator::inherit().expect("the emulated driver");
    let suites = [
        sharing::TESTS,
        order::TESTS,
        company::TESTS,
        lifetime::TESTS,
        closing::TESTS,
        lost::TESTS,
        given_up::TESTS,
        kept::TESTS,
        legacy::TESTS,
        again::TESTS,
        registered::TESTS,
        dying::TESTS,
        peace::TESTS,
        pauses::TESTS,
        rules::TESTS,
        crowded::TESTS,
        misuse::TESTS,
        failing::TESTS,
        paths::TESTS,
        staged::TESTS,
        doctor::TESTS,
        hostile::TESTS,
        orphans::TESTS,
        others::TESTS,
        owners::TESTS,
        views::TESTS,
        slots::TESTS,
        guards::TESTS,
        held_up::TESTS,
        full::TESTS,
        gone::TESTS,
    ];
    integration_tests::main_with_scenes(
        &suites.concat(),
        &[others::SCENES, failing::SCENES].concat(),
    )
}
