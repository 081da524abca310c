//! A program whose process group and session were made outside of its pid namespace, so that they have no number there:
//! what is sent into a container that lives already is such a program.

use std::io::Write;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use spawn::{ErrorKind, Stdin};

use crate::scenes::zombies_and_children;
use crate::support::{self, method, sleeps, spawn};
use crate::trials;

pub(crate) fn tests() -> Vec<Trial> {
    trials![a_program_whose_group_and_session_have_no_number_is_served]
}

/// How a program gets into a pid namespace of its own here: with the rights that there are, or those of a user namespace.
/// An error says why it does not.
fn unshare() -> Result<Command, String> {
    let mut reason = String::new();
    for more in [&[][..], &["--user", "--map-root-user"]] {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        command.args(more);
        let mut probe = Command::new(command.get_program());
        match probe.args(command.get_args()).arg("true").output() {
            Ok(output) if output.status.success() => return Ok(command),
            Ok(output) => reason = String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

fn a_program_whose_group_and_session_have_no_number_is_served() {
    let mut command = match unshare() {
        Ok(command) => command,
        Err(reason) => {
            eprintln!("skipped: no pid namespace can be made here: {reason}");
            return;
        }
    };
    let scene = support::scene("outside");
    command.arg(scene.get_program()).args(scene.get_args());
    for (name, value) in scene.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let mut program = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = program.stdin.take().unwrap();
    stdin.write_all(b"from outside\n").unwrap();
    drop(stdin);
    let output = program.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The process, its group and its session, as /proc has them.
fn ids(_rank: usize, _: ()) -> Result<Vec<u32>, String> {
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(|error| error.to_string())?;
    // "pid (name) state parent group session …"
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let mut found = vec![std::process::id()];
    let numbers = fields.split_whitespace().skip(2).take(2);
    found.extend(numbers.map(|field| field.parse::<u32>().unwrap_or(u32::MAX)));
    Ok(found)
}

fn read_line(_rank: usize, _: ()) -> Result<String, std::io::Error> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line)
}

fn exits(_rank: usize, _: ()) {
    std::process::exit(5);
}

pub(crate) fn outside_scene() {
    support::guarded("outside", || {
        let own = ids(0, ()).unwrap();
        assert_eq!(own[1..], [0, 0], "the premise of this scene");
        // Its workers have groups of their own, and these have numbers.
        let found = spawn(ids, (), 2).unwrap().into_results().unwrap();
        for found in found {
            assert_eq!((found[1], found[2]), (found[0], 0), "{}", method());
        }
        let context = support::builder().stdin(Stdin::Inherit);
        let lines = context.spawn(read_line, (), 1).unwrap().into_results();
        assert_eq!(lines.unwrap(), ["from outside\n"]);
        let error = spawn(exits, (), 1).unwrap().join().unwrap_err();
        assert!(error.to_string().contains("exited with code 5"), "{error}");
        let mut context = spawn(sleeps, (), 2).unwrap();
        context.terminate();
        let error = context.join().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Interrupted { .. }),
            "{error:?}"
        );
        drop(spawn(sleeps, (), 1).unwrap());
        assert_eq!(zombies_and_children(), 0);
    });
}
