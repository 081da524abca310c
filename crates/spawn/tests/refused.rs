//! What the compiler says of a function that cannot be spawned: one sentence that a reader understands.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// What the compiler says about a program that uses this crate, which it must refuse with that word in its sentence.
/// `None`, and a line about it, where there is nothing to compile with.
fn refusal(program: &str, word: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.rs");
    std::fs::write(&source, program).unwrap();
    let mut said = "no library of this crate lies beside the test".to_owned();
    for library in libraries() {
        match compile(&source, &library) {
            Ok(text) if text.contains(word) => return Some(text),
            // That one was built with other versions of what it depends on.
            Ok(text) => said = text,
            Err(error) => said = error.to_string(),
        }
    }
    let compiles = said.contains("no library") || said.contains("No such file");
    assert!(compiles, "{word:?} was not said:\n{said}");
    eprintln!("skipped: nothing can be compiled against this crate here: {said}");
    None
}

/// This crate's libraries where the test was built, the newest first.
fn libraries() -> Vec<PathBuf> {
    let folder = std::env::current_exe().unwrap();
    let folder = folder.parent().unwrap();
    let mut found: Vec<(SystemTime, PathBuf)> = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with("libspawn-") && name.ends_with(".rlib")
        })
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    found.sort();
    found.reverse();
    found.truncate(8);
    found.into_iter().map(|(_, path)| path).collect()
}

fn compile(source: &Path, library: &Path) -> std::io::Result<String> {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let folder = library.parent().unwrap();
    let output = Command::new(compiler)
        .args(["--edition=2024", "--emit=obj", "--color=never"])
        .arg("--extern")
        .arg(format!("spawn={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", folder.display()))
        .arg("-o")
        .arg(source.with_extension("o"))
        .arg(source)
        .output()?;
    assert!(!output.status.success(), "it was compiled");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// How many errors the compiler told, its last line about how many there were aside.
fn errors(text: &str) -> usize {
    text.lines()
        .filter(|line| line.starts_with("error") && !line.contains("aborting"))
        .count()
}

#[test]
fn a_captured_variable_and_a_function_pointer_are_refused_in_one_sentence() {
    for f in [
        "let x = 3_u32; let f = move |_: usize, y: u32| Ok::<_, String>(x * y);",
        "let f: fn(usize, u32) -> Result<u32, String> = |_, y| Ok(y);",
    ] {
        let call = "let _ = spawn::spawn(f, 2, 1).unwrap().join();";
        let program = format!("fn main() {{ spawn::init(); {f} {call} }}");
        let Some(text) = refusal(&program, "captures nothing") else {
            return;
        };
        assert_eq!(errors(&text), 1, "{text}");
        assert!(text.contains("Pass the values as arguments"), "{text}");
    }
}

#[test]
fn what_is_preloaded_and_what_is_sent_as_a_function_is_refused_in_one_sentence_too() {
    for call in [
        "let _ = spawn::forkserver::preload(move || println!(\"{x}\"));",
        "let _ = spawn::Function::<u32>::of(move |y: &mut u32| *y += x);",
    ] {
        let program = format!("fn main() {{ let x = 3_u32; {call} }}");
        let Some(text) = refusal(&program, "captures nothing") else {
            return;
        };
        assert_eq!(errors(&text), 1, "{text}");
    }
}
